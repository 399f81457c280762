package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

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

// A Session locks the name that comes with the work. No Mutex has to be made, kept or closed.
func ExampleSession_Do() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	charge := func(order string) error {
		return session.Do(ctx, "orders/"+order, func(ctx context.Context) error {
			token, _ := etcdlock.TokenFrom(ctx)
			fmt.Printf("charging order %s, with a token: %t\n", order, token > 0)
			return nil
		})
	}
	for _, order := range []string{"42", "43"} {
		if err := charge(order); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// charging order 42, with a token: true
	// charging order 43, with a token: true
}

// A hold that is unlocked as soon as it is lost, while its work may go on: other goroutines of the
// Session need not wait for that. The work must be safe beside theirs, as it has to be beside that
// of another process, by the token for instance. (A Hold unlocks itself only. [Mutex.Unlock] would
// unlock the next hold, if that came first.)
func ExampleSession_Lock() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	lost, err := session.Lock(ctx, "jobs/import")
	if err != nil {
		log.Fatal(err)
	}
	hold := lost.Context(ctx)
	context.AfterFunc(hold, func() { lost.Unlock(ctx) })

	if _, err := client.Revoke(ctx, session.Lease()); err != nil { // by an operator
		log.Fatal(err)
	}
	next, err := session.Lock(ctx, "jobs/import") // while the work of the first may go on
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("lost:", errors.Is(context.Cause(hold), etcdlock.ErrLost))
	fmt.Println("the next one holds:", next.Status().Held, next.Token() > 0)
	fmt.Println(next.Unlock(ctx))
	// Output:
	// lost: true
	// the next one holds: true true
	// <nil>
}

// An operator finds out who holds a stuck lock, and takes it away.
func ExampleBreak() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	stuck, err := etcdlock.NewMutex(client, "jobs/import", etcdlock.WithOwner("worker-3"))
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

// A rolling update moves the work to another machine: whoever holds is asked to end, and the next
// one begins when it has. The holder comes to a good point by itself.
func ExampleRecall() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	leads := func(who string, work func(ctx context.Context)) {
		mu, err := etcdlock.NewMutex(client, "leader/billing", etcdlock.WithOwner(who),
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

// How long the holds of a program last, for a histogram.
func ExampleTrace() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	events := make(chan string, 10)
	mu, err := etcdlock.NewMutex(client, "exports", etcdlock.WithTrace(&etcdlock.Trace{
		Acquired: func(_ context.Context, e etcdlock.AcquiredEvent) {
			events <- fmt.Sprintf("%s: acquired behind %d", e.Name, e.Ahead)
		},
		Released: func(_ context.Context, e etcdlock.ReleasedEvent) {
			events <- fmt.Sprintf("%s: released, after less than a minute: %t", e.Name, e.Held < time.Minute)
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Do(ctx, func(context.Context) error { return nil }); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-events)
	fmt.Println(<-events)
	// Output:
	// exports: acquired behind 0
	// exports: released, after less than a minute: true
}

// Without WithTrace a Trace has no effect. Its hooks are called beside the lock: one that blocks
// holds up other hooks, and no lock.
func ExampleWithTrace() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	lost := make(chan error, 1)
	session, err := etcdlock.NewSession(client, etcdlock.WithTrace(&etcdlock.Trace{
		Lost: func(_ context.Context, e etcdlock.LostEvent) { lost <- e.Reason },
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	mu, err := session.Mutex("feed")
	if err != nil {
		log.Fatal(err)
	}
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Delete(ctx, mu.Key()); err != nil { // as an operator might
		log.Fatal(err)
	}
	fmt.Println("by an operator:", errors.Is(<-lost, etcdlock.ErrKeyDeleted))
	// Output: by an operator: true
}

// A hold that is asked for goes on for half a second at most, whatever grace the request allows.
// Whoever works on until its context ends learns who has asked, and why.
func ExampleWithRecall() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.NewMutex(client, "reindex", etcdlock.WithRecall(time.Second/2))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	err = mu.Do(ctx, func(ctx context.Context) error {
		line, err := etcdlock.Contenders(ctx, client, "reindex")
		if err != nil {
			return err
		}
		request := etcdlock.RecallRequest{By: "ops", Reason: "the database is slow", Grace: time.Minute}
		if err := etcdlock.Recall(ctx, client, line[0], request); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	var recalled *etcdlock.RecalledError
	if errors.As(err, &recalled) {
		fmt.Printf("by %s: %s\n", recalled.By, recalled.Reason)
	}
	fmt.Println("lost:", errors.Is(err, etcdlock.ErrLost))
	// Output:
	// by ops: the database is slow
	// lost: false
}

// A reindex runs for hours, and gives way to whoever waits. The import that waits asks for it.
func ExampleWithAsk() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	reindex, err := etcdlock.NewMutex(client, "search", etcdlock.WithRecall(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer reindex.Close(ctx)
	urgent, err := etcdlock.NewMutex(client, "search", etcdlock.WithAsk(etcdlock.RecallRequest{
		By: "import", Reason: "new articles", Grace: 10 * time.Second,
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer urgent.Close(ctx)

	begun, over := make(chan bool), make(chan bool)
	go func() {
		defer close(over)
		err := reindex.Do(ctx, func(ctx context.Context) error {
			close(begun)
			select {
			case <-etcdlock.RecallFrom(ctx): // somebody waits: it goes on another time
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		fmt.Println("the reindex has stopped:", err)
	}()
	<-begun
	err = urgent.Do(ctx, func(context.Context) error {
		<-over
		fmt.Println("the import runs")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// the reindex has stopped: <nil>
	// the import runs
}

// Who holds a lock, and who waits?
func ExampleContenders() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	holder, err := etcdlock.NewMutex(client, "nightly", etcdlock.WithOwner("machine 1"))
	if err != nil {
		log.Fatal(err)
	}
	defer holder.Close(ctx)
	waiter, err := etcdlock.NewMutex(client, "nightly", etcdlock.WithOwner("machine 2"))
	if err != nil {
		log.Fatal(err)
	}
	defer waiter.Close(ctx)
	if err := holder.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	in := make(chan error)
	go func() { in <- waiter.Lock(ctx) }()

	var line []etcdlock.Contender
	for len(line) < 2 { // until it waits
		if line, err = etcdlock.Contenders(ctx, client, "nightly"); err != nil {
			log.Fatal(err)
		}
	}
	for place, c := range line {
		fmt.Printf("%d. %s, for less than a minute: %t\n", place+1, c.Owner,
			time.Since(c.Since) < time.Minute)
	}
	if err := errors.Join(holder.Unlock(ctx), <-in); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1. machine 1, for less than a minute: true
	// 2. machine 2, for less than a minute: true
}

// Many read what few change: a cache of rows that this process keeps as long as nobody writes. All
// its readers share one key, so that all but the first two cost etcd nothing.
func ExampleRWMutex_RDo() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	prices, err := etcdlock.NewRWMutex(client, "prices")
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close(ctx)

	price := map[string]int{"pear": 3}
	read := func(what string) (cents int, err error) {
		err = prices.RDo(ctx, func(ctx context.Context) error {
			cents = price[what]
			return ctx.Err() // ends if the read is lost: do not trust what was read then
		})
		return cents, err
	}
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			if _, err := read("pear"); err != nil {
				log.Fatal(err)
			}
		})
	}
	readers.Wait()
	err = prices.Do(ctx, func(context.Context) error { // waits for those that read
		price["pear"] = 4
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	cents, err := read("pear")
	fmt.Println(cents, err)
	// Output: 4 <nil>
}

// Of all processes that call Lead one leads at a time. WithInfo is what it tells those who follow.
func ExampleMutex_Lead() {
	client := exampleClient()
	defer client.Close()
	mu, err := etcdlock.NewMutex(client, "svc/leader", etcdlock.WithInfo("10.0.0.1:8080"))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(context.Background())

	ctx, stop := context.WithCancel(context.Background()) // with signal.NotifyContext, for instance
	err = mu.Lead(ctx, func(ctx context.Context) error {
		fmt.Println("leading")
		stop()
		<-ctx.Done() // work until then; nobody else leads before this returns
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leading
	// etcdlock: lock "svc/leader": context canceled
}

// A rolling update: the leader is asked to give way, and the other replica leads when it has.
func ExampleMutex_Lead_rollingUpdate() {
	client := exampleClient()
	defer client.Close()
	ctx, stop := context.WithCancel(context.Background())
	leads := make(chan string, 10)
	var replicas sync.WaitGroup
	start := func(version string) {
		mu, err := etcdlock.NewMutex(client, "svc/rolling",
			etcdlock.WithInfo(version), etcdlock.WithRecall(30*time.Second))
		if err != nil {
			log.Fatal(err)
		}
		replicas.Go(func() {
			defer mu.Close(context.Background())
			mu.Lead(ctx, func(ctx context.Context) error { // until ctx ends
				leads <- version
				select {
				case <-etcdlock.RecallFrom(ctx): // finish what is begun, and return
				case <-ctx.Done():
				}
				return nil
			})
		})
	}
	start("version 1")
	fmt.Println(<-leads, "leads")
	start("version 2")

	var line []etcdlock.Contender
	for len(line) < 2 { // until the new one stands in line
		var err error
		if line, err = etcdlock.Contenders(ctx, client, "svc/rolling"); err != nil {
			log.Fatal(err)
		}
	}
	request := etcdlock.RecallRequest{By: "deploy", Reason: "version 2", Grace: 10 * time.Second}
	if err := etcdlock.Recall(ctx, client, line[0], request); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-leads, "leads")
	stop()
	replicas.Wait()
	// Output:
	// version 1 leads
	// version 2 leads
}

func ExampleWithInfo() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.NewMutex(client, "svc/one", etcdlock.WithInfo("10.0.0.1:8080"))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	line, err := etcdlock.Contenders(ctx, client, "svc/one")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(line[0].Info)
	// Output: 10.0.0.1:8080
}

// A leader tells where it serves once it does.
func ExampleMutex_SetInfo() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.NewMutex(client, "svc/served", etcdlock.WithInfo("starting"))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	for leader, err := range etcdlock.WatchHolder(ctx, client, "svc/served") {
		if err != nil {
			log.Fatal(err) // no retry would help
		}
		fmt.Println(leader.Info)
		if leader.Info != "starting" {
			break
		}
		if err := mu.SetInfo(ctx, "10.0.0.1:8080"); err != nil {
			log.Fatal(err) // ErrLost: the key has gone, and nothing was told
		}
	}
	// Output:
	// starting
	// 10.0.0.1:8080
}

// A proxy sends requests to whoever leads, and to nobody while nobody does.
func ExampleWatchHolder() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	leader, err := etcdlock.NewMutex(client, "svc/proxied", etcdlock.WithInfo("10.0.0.1:8080"))
	if err != nil {
		log.Fatal(err)
	}
	defer leader.Close(ctx)
	if err := leader.Lock(ctx); err != nil {
		log.Fatal(err)
	}

	var backend atomic.Pointer[string] // what the proxy reads
	for holder, err := range etcdlock.WatchHolder(ctx, client, "svc/proxied") {
		if err != nil {
			log.Fatal(err) // no retry would help
		}
		backend.Store(&holder.Info)
		fmt.Printf("backend: %q\n", *backend.Load())
		if holder.Token == 0 {
			break
		}
		if err := leader.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// backend: "10.0.0.1:8080"
	// backend: ""
}

func ExampleSession_DoAll() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	account := map[string]int{"alice": 10, "bob": 0}
	transfer := func(from, to string, amount int) error {
		names := []string{"accounts/" + from, "accounts/" + to} // in any order
		return session.DoAll(ctx, names, func(ctx context.Context) error {
			account[from] -= amount
			account[to] += amount
			return ctx.Err() // ends if one of the two is lost
		})
	}
	var transfers sync.WaitGroup
	transfers.Go(func() {
		if err := transfer("alice", "bob", 7); err != nil {
			log.Print(err)
		}
	})
	transfers.Go(func() {
		if err := transfer("bob", "alice", 3); err != nil {
			log.Print(err)
		}
	})
	transfers.Wait()
	fmt.Println(account["alice"], account["bob"])
	// Output: 6 4
}

func ExampleSession_TryLockAll() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	hold, err := session.LockAll(ctx, "rooms/1", "rooms/2")
	if err != nil {
		log.Fatal(err)
	}
	_, err = session.TryLockAll(ctx, "rooms/2", "rooms/3")
	var locked *etcdlock.LockedError
	if errors.As(err, &locked) {
		fmt.Println(locked.Name, "is taken")
	}
	fmt.Println(hold.Unlock(ctx))
	// Output:
	// rooms/2 is taken
	// <nil>
}

// At most three jobs run at a time, in all processes together. One that needs more of what is
// scarce takes two permits.
func ExampleSemaphore_Do() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	jobs, err := etcdlock.NewSemaphore(client, "jobs", 3)
	if err != nil {
		log.Fatal(err)
	}
	defer jobs.Close(ctx)

	var running, most atomic.Int64
	var workers sync.WaitGroup
	for i := range 8 {
		n := 1 + i%2
		workers.Go(func() {
			err := jobs.Do(ctx, n, func(ctx context.Context) error {
				now := running.Add(int64(n))
				defer running.Add(int64(-n))
				for before := most.Load(); now > before && !most.CompareAndSwap(before, now); {
					before = most.Load()
				}
				return ctx.Err() // ends if the permits are lost
			})
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	workers.Wait()
	fmt.Println("never more than 3:", most.Load() <= 3)
	// Output: never more than 3: true
}

// TryAcquire refuses what does not fit, instead of waiting: a server sheds load by it.
func ExampleSemaphore_TryAcquire() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	uploads, err := etcdlock.NewSemaphore(client, "uploads", 1)
	if err != nil {
		log.Fatal(err)
	}
	defer uploads.Close(ctx)

	hold, err := uploads.TryAcquire(ctx, 1)
	fmt.Println(err)
	_, err = uploads.TryAcquire(ctx, 1)
	fmt.Println(errors.Is(err, etcdlock.ErrLocked))
	fmt.Println(hold.Unlock(ctx))
	// Output:
	// <nil>
	// true
	// <nil>
}
