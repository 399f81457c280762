package contract_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock"
)

// A sale writes under the lock, with the fencing token of the hold.
type sale func(ctx context.Context, token int64) error

func sellBefore(ctx context.Context, client *clientv3.Client, sell sale) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
	if err != nil {
		return err
	}
	defer session.Close()
	mu := concurrency.NewMutex(session, "stock/7")
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	defer mu.Unlock(context.WithoutCancel(ctx))

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-session.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	token, err := createRevision(ctx, client, mu)
	if err != nil {
		return err
	}
	return sell(ctx, token)
}

// createRevision returns a token of a concurrency.Mutex that compares with the tokens of
// etcdlock. Its Header().Revision does not: it may be later than the create revision of a
// key that stands behind it in the line.
func createRevision(
	ctx context.Context, client *clientv3.Client, mu *concurrency.Mutex,
) (int64, error) {
	resp, err := client.Get(ctx, mu.Key())
	if err != nil {
		return 0, err
	}
	if len(resp.Kvs) == 0 {
		return 0, concurrency.ErrSessionExpired
	}
	return resp.Kvs[0].CreateRevision, nil
}

func sellAfter(ctx context.Context, client *clientv3.Client, sell sale) error {
	mu, err := etcdlock.NewMutex(client, "stock/7", etcdlock.WithTTL(15*time.Second))
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	return mu.Do(ctx, func(ctx context.Context) error {
		token, _ := etcdlock.TokenFrom(ctx)
		return sell(ctx, token)
	})
}

// Half of the callers have moved over. All of them sell from one stock, one at a time.
func Example_migration() {
	client := exampleClient()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	var inside, sold, overlaps, late atomic.Int64
	var highest atomic.Int64 // the highest token that the stock has seen
	sell := func(ctx context.Context, token int64) error {
		if inside.Add(1) > 1 {
			overlaps.Add(1)
		}
		defer inside.Add(-1)
		if token <= highest.Swap(token) {
			late.Add(1)
		}
		sold.Add(1)
		return ctx.Err()
	}
	var callers sync.WaitGroup
	for range 10 {
		for _, call := range []func(context.Context, *clientv3.Client, sale) error{sellBefore,
			sellAfter} {
			callers.Go(func() {
				if err := call(ctx, client, sell); err != nil {
					log.Print(err)
				}
			})
		}
	}
	callers.Wait()
	fmt.Println("sold:", sold.Load())
	fmt.Println("two at once:", overlaps.Load())
	fmt.Println("tokens that did not grow:", late.Load())
	// Output:
	// sold: 20
	// two at once: 0
	// tokens that did not grow: 0
}

func priceBefore(session *concurrency.Session, read func() (int, error)) (int, error) {
	prices := recipe.NewRWMutex(session, "prices") // one for each read: it remembers one key
	if err := prices.RLock(); err != nil {
		return 0, err
	}
	defer prices.RUnlock()
	return read()
}

func priceAfter(
	ctx context.Context, prices *etcdlock.RWMutex, read func() (int, error),
) (cents int, err error) {
	err = prices.RDo(ctx, func(ctx context.Context) error {
		if cents, err = read(); err != nil {
			return err
		}
		return ctx.Err() // it has ended if the read was lost: another may have written meanwhile
	})
	return cents, err
}

// A reader by the recipe becomes a reader by this package.
func Example_migrationOfReaders() {
	client := exampleClient()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	prices, err := etcdlock.NewRWMutex(client, "new/prices", etcdlock.WithTTL(15*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close(ctx)
	read := func() (int, error) { return 3, nil }
	fmt.Println(priceBefore(session, read))
	fmt.Println(priceAfter(ctx, prices, read))
	// Output:
	// 3 <nil>
	// 3 <nil>
}

// A term is the work of a leader. It ends when ctx ends. tell says to others what it does.
type term func(ctx context.Context, tell func(ctx context.Context, info string) error) error

func leadBefore(ctx context.Context, client *clientv3.Client, serve term) error {
	for {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
		if err != nil {
			return err
		}
		election := concurrency.NewElection(session, "billing")
		if err := election.Campaign(ctx, "starting"); err != nil {
			session.Close()
			return err
		}
		lead, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-session.Done(): // another may lead already
				cancel()
			case <-lead.Done():
			}
		}()
		err = serve(lead, election.Proclaim)
		cancel()
		election.Resign(context.WithoutCancel(ctx))
		session.Close()
		if err != nil {
			return err
		}
	}
}

func followBefore(ctx context.Context, election *concurrency.Election, follow func(string)) {
	for leader := range election.Observe(ctx) {
		follow(string(leader.Kvs[0].Value))
	}
}

func leadAfter(ctx context.Context, session *etcdlock.Session, serve term) error {
	mu, err := session.Mutex("leader/billing", etcdlock.WithInfo("starting"))
	if err != nil {
		return err
	}
	return mu.Lead(ctx, func(ctx context.Context) error { // ends before another can lead
		return serve(ctx, mu.SetInfo)
	})
}

func followAfter(ctx context.Context, client *clientv3.Client, follow func(string)) error {
	for leader, err := range etcdlock.WatchHolder(ctx, client, "leader/billing") {
		if err != nil {
			return err
		}
		follow(leader.Info) // "" also if nobody leads
	}
	return context.Cause(ctx)
}

// A leader by concurrency.Election becomes a leader by this package, and so does its follower.
func Example_migrationOfLeaders() {
	client := exampleClient()
	defer client.Close()
	session, err := concurrency.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	after, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer after.Close(context.Background())

	// seen leads and follows until the follower has seen what the leader tells.
	seen := func(lead func(context.Context, term) error, follow func(context.Context, func(string))) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var both sync.WaitGroup
		both.Go(func() {
			lead(ctx, func(ctx context.Context, tell func(context.Context, string) error) error {
				if err := tell(ctx, "serving"); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			})
		})
		follow(ctx, func(info string) {
			if info == "serving" {
				fmt.Println(info)
				cancel()
			}
		})
		both.Wait()
	}
	seen(func(ctx context.Context, serve term) error { return leadBefore(ctx, client, serve) },
		func(ctx context.Context, follow func(string)) {
			followBefore(ctx, concurrency.NewElection(session, "billing"), follow)
		})
	seen(func(ctx context.Context, serve term) error { return leadAfter(ctx, after, serve) },
		func(ctx context.Context, follow func(string)) { followAfter(ctx, client, follow) })
	// Output:
	// serving
	// serving
}

func workAfter(
	ctx context.Context, session *etcdlock.Session, work func(context.Context) error,
) error {
	for {
		hold, err := session.Lock(ctx, "stock/8")
		if err != nil {
			return err
		}
		err = work(hold.Context(ctx)) // this context ends when the hold is lost
		unlocked := hold.Unlock(ctx)  // always: the next Lock waits for it
		if !errors.Is(unlocked, etcdlock.ErrLost) {
			return errors.Join(err, unlocked)
		}
	}
}

// The first hold is lost. The second one does the work.
func Example_migrationOfALoop() {
	client := exampleClient()
	defer client.Close()
	session, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer session.Close(ctx)

	holds := 0
	err = workAfter(ctx, session, func(ctx context.Context) error {
		if holds++; holds > 1 {
			return nil
		}
		line, err := etcdlock.Contenders(ctx, client, "stock/8")
		if err != nil {
			return err
		}
		if err := etcdlock.Break(ctx, client, line[0]); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(holds, err)
	// Output: 2 <nil>
}
