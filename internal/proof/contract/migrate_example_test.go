package contract_test

import (
	"context"
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
	mu, err := etcdlock.New(client, "stock/7", etcdlock.WithTTL(15*time.Second))
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
