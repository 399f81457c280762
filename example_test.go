package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// endpoints are those of the etcd in memory that TestMain starts for the examples.
var endpoints []string

func Example() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	mu, err := etcdlock.New(client, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)

	wait, cancel := context.WithTimeout(ctx, 10*time.Second) // for the lock, not for the work
	defer cancel()
	if err := mu.Lock(wait); err != nil {
		log.Fatal(err)
	}
	hold := mu.Context(ctx) // ends if the lock is lost

	fmt.Println("critical section, context:", hold.Err())

	if err := mu.Unlock(ctx); err != nil { // nil: held without a break
		log.Fatal(err)
	}
	// Output: critical section, context: <nil>
}

// A job that every replica starts at the same time, and one of them runs.
func ExampleMutex_TryDo() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()

	report := func(ctx context.Context) error {
		fmt.Println("writing tonight's report")
		replica, err := etcdlock.New(client, "cron/report")
		if err != nil {
			return err
		}
		defer replica.Close(ctx)
		err = replica.TryDo(ctx, func(context.Context) error { return nil })
		fmt.Println("the other replica: taken:", errors.Is(err, etcdlock.ErrLocked))
		return nil
	}

	mu, err := etcdlock.New(client, "cron/report")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.TryDo(ctx, report); err != nil {
		log.Fatal(err)
	}
	// Output:
	// writing tonight's report
	// the other replica: taken: true
}

// The context that Do gives ends when the lock is lost, here because an operator
// breaks it.
func ExampleMutex_Do() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "migrations")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)

	err = mu.Do(ctx, func(ctx context.Context) error {
		contenders, err := etcdlock.Contenders(ctx, client, "migrations")
		if err != nil {
			return err
		}
		if err := etcdlock.Break(ctx, client, contenders[0]); err != nil {
			return err
		}
		<-ctx.Done() // stop at the next safe point
		fmt.Println("stopped: lost:", errors.Is(context.Cause(ctx), etcdlock.ErrLost))
		return context.Cause(ctx)
	})
	fmt.Println("Do: lost:", errors.Is(err, etcdlock.ErrLost))
	// Output:
	// stopped: lost: true
	// Do: lost: true
}

// A write to etcd that takes effect only while this very hold exists, however long the
// process was paused before it.
func ExampleMutex_IsOwner() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "config")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	defer mu.Unlock(ctx)

	guard := mu.IsOwner()
	write := func(value string) {
		resp, err := client.Txn(ctx).If(guard).Then(clientv3.OpPut("settings", value)).Commit()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(value, "written:", resp.Succeeded)
	}
	write("while held")
	if _, err := client.Delete(ctx, mu.Key()); err != nil { // as an operator might
		log.Fatal(err)
	}
	write("after the key was deleted")
	// Output:
	// while held written: true
	// after the key was deleted written: false
}

// An account is a row of a database that remembers the highest token it has seen, as
// UPDATE ... SET balance = ?, token = ? WHERE id = ? AND token <= ? does.
type account struct {
	mu      sync.Mutex
	balance int
	token   int64
}

func (a *account) set(balance int, token int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.token {
		return errors.New("refused: an older token")
	}
	a.balance, a.token = balance, token
	return nil
}

// A write to a database that refuses holders that were overtaken while they were paused.
func ExampleMutex_Token() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "accounts/7")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)

	row := new(account)
	var paused int64 // the token of a holder that was paused before it wrote
	for _, balance := range []int{100, 200} {
		err := mu.Do(ctx, func(ctx context.Context) error {
			token, _ := etcdlock.TokenFrom(ctx)
			if paused == 0 {
				paused = token
				return nil
			}
			return row.set(balance, token)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("the paused holder writes:", row.set(100, paused))
	fmt.Println("balance:", row.balance)
	// Output:
	// the paused holder writes: refused: an older token
	// balance: 200
}

// Many names on one lease, with one renewal for all of them.
func ExampleSession() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client, etcdlock.WithTTL(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	for shard := range 100 {
		mu, err := session.Mutex(fmt.Sprintf("shards/%d", shard))
		if err != nil {
			log.Fatal(err)
		}
		if err := mu.Lock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	lease, err := client.TimeToLive(ctx, session.Lease(), clientv3.WithAttachedKeys())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("keys on the lease:", len(lease.Keys))
	// Output: keys on the lease: 100
}

// Who holds the lock that TryLock could not have?
func ExampleLockedError() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	holder, err := etcdlock.New(client, "stock", etcdlock.WithOwner("checkout"))
	if err != nil {
		log.Fatal(err)
	}
	defer holder.Close(ctx)
	if err := holder.Lock(ctx); err != nil {
		log.Fatal(err)
	}

	mu, err := etcdlock.New(client, "stock")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	err = mu.TryLock(ctx)
	if locked, ok := errors.AsType[*etcdlock.LockedError](err); ok {
		h := locked.Holder
		fmt.Println("holder:", h.Owner, "contenders before us:", locked.Ahead)
		text := fmt.Sprintf(`etcdlock: lock "stock": held by checkout (%s:%d)`, h.Host, h.PID)
		fmt.Println("the error says so:", locked.Error() == text)
	}
	// Output:
	// holder: checkout contenders before us: 1
	// the error says so: true
}

// An operator finds out who holds a stuck lock, and takes it away.
func ExampleBreak() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	stuck, err := etcdlock.New(client, "jobs/import", etcdlock.WithOwner("worker-3"))
	if err != nil {
		log.Fatal(err)
	}
	defer stuck.Close(ctx)
	if err := stuck.Lock(ctx); err != nil {
		log.Fatal(err)
	}

	holders, err := etcdlock.Holders(ctx, client, "jobs/")
	if err != nil {
		log.Fatal(err)
	}
	for _, holder := range holders {
		fmt.Println(holder.Name, "is held by", holder.Owner)
		if err := etcdlock.Break(ctx, client, holder); err != nil {
			log.Fatal(err)
		}
	}
	line, err := etcdlock.Contenders(ctx, client, "jobs/import")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("contenders left:", len(line))
	fmt.Println("the holder's Unlock: lost:", errors.Is(stuck.Unlock(ctx), etcdlock.ErrLost))
	// Output:
	// jobs/import is held by worker-3
	// contenders left: 0
	// the holder's Unlock: lost: true
}

// A rolling update moves the work to another machine: whoever holds is asked to end, and the next one
// begins when it has. The holder comes to a good point by itself.
func ExampleRecall() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	leads := func(who string, work func(ctx context.Context)) {
		mu, err := etcdlock.New(client, "leader/billing", etcdlock.WithOwner(who),
			etcdlock.WithRecall(30*time.Second))
		if err != nil {
			log.Fatal(err)
		}
		defer mu.Close(ctx)
		err = mu.Do(ctx, func(ctx context.Context) error {
			work(ctx)
			return nil
		})
		fmt.Println(who, "has led:", err)
	}
	begun, over := make(chan bool), make(chan bool)
	go func() {
		defer close(over)
		leads("old", func(ctx context.Context) {
			close(begun)
			for bill := 1; ; bill++ {
				select {
				case <-etcdlock.RecallFrom(ctx): // between two bills: a good point to end
					return
				case <-ctx.Done(): // lost, or the grace is over
					return
				case <-time.After(time.Millisecond): // one bill more
				}
			}
		})
	}()
	<-begun

	holders, err := etcdlock.Holders(ctx, client, "leader/billing")
	if err != nil {
		log.Fatal(err)
	}
	for _, holder := range holders {
		err := etcdlock.Recall(ctx, client, holder, etcdlock.RecallRequest{
			By: "deploy", Reason: "version 2", Grace: 10 * time.Second,
		})
		if err != nil { // ErrNotRecallable: it does not listen
			log.Fatal(err)
		}
	}
	<-over
	leads("new", func(context.Context) {})
	// Output:
	// old has led: <nil>
	// new has led: <nil>
}

// Which locks of a service are taken?
func ExampleHolders() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client, etcdlock.WithOwner("worker-1"))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	for _, name := range []string{"tenants/b", "tenants/a"} {
		mu, err := session.Mutex(name)
		if err != nil {
			log.Fatal(err)
		}
		if err := mu.Lock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	holders, err := etcdlock.Holders(ctx, client, "tenants/")
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range holders {
		fmt.Println(h.Name, "is held by", h.Owner)
	}
	// Output:
	// tenants/a is held by worker-1
	// tenants/b is held by worker-1
}

func exampleClient() *clientv3.Client { return contract.ExampleClient(endpoints) }
