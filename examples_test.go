package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// charge is the program of the package's documentation.
func charge(ctx context.Context, client *clientv3.Client) error {
	mu, err := etcdlock.New(client, "orders/42")
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	return mu.Do(ctx, func(ctx context.Context) error { // waits for the lock
		return writeOrder(ctx) // ctx ends if the lock is lost
	})
}

func writeOrder(ctx context.Context) error { return ctx.Err() }

func Example_do() {
	client := exampleClient()
	defer client.Close()
	fmt.Println(charge(context.Background(), client))
	// Output: <nil>
}

// Was the work begun? What was not may be tried again; what failed in between may not.
func ExampleMutex_Do_notRun() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	mu, err := session.Mutex("charges/7")
	if err != nil {
		log.Fatal(err)
	}
	other, err := session.Mutex("charges/7")
	if err != nil {
		log.Fatal(err)
	}

	refused := errors.New("card refused")
	charge := func() {
		err := mu.TryDo(ctx, func(context.Context) error { return refused })
		switch {
		case errors.Is(err, etcdlock.ErrNotRun):
			fmt.Println("not charged, may be tried again: taken:", errors.Is(err, etcdlock.ErrLocked))
		case errors.Is(err, refused):
			fmt.Println("do not try again:", err)
		}
	}
	if err := other.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	charge()
	if err := other.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	charge()
	// Output:
	// not charged, may be tried again: taken: true
	// do not try again: card refused
}

// A job that may pause for some seconds (a collection of garbage, a busy machine) wants a TTL
// well above that. A crash then blocks the others for as long.
func ExampleWithTTL() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "reports", etcdlock.WithTTL(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("a crash would block others for:", mu.TTL())
	fmt.Println("a hold outlasts a pause of:", mu.TTL()-mu.SafetyMargin())
	// Output:
	// a crash would block others for: 1m0s
	// a hold outlasts a pause of: 52.5s
}

// Work that takes up to 5 s to stop gets that time: the hold ends 5 s before another can get in.
func ExampleWithSafetyMargin() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "uploads",
		etcdlock.WithTTL(20*time.Second), etcdlock.WithSafetyMargin(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("time to stop in:", mu.SafetyMargin())
	// Output: time to stop in: 5s
}

// What others read in their errors, and operators in the line.
func ExampleWithOwner() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "invoices", etcdlock.WithOwner("billing, release 7"))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	line, err := etcdlock.Contenders(ctx, client, "invoices")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held by:", line[0].Owner)
	fmt.Println("by this process:", line[0].PID == os.Getpid())
	// Output:
	// held by: billing, release 7
	// by this process: true
}

// A function that locks calls another one that locks the same, with the context of the hold.
func ExampleWithReentrancy() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "tree", etcdlock.WithReentrancy())
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)

	var remove func(ctx context.Context, depth int) error
	remove = func(ctx context.Context, depth int) error {
		return mu.Do(ctx, func(ctx context.Context) error {
			if depth == 0 {
				return nil
			}
			fmt.Println("removing at depth", depth)
			return remove(ctx, depth-1)
		})
	}
	fmt.Println(remove(ctx, 2))
	// Output:
	// removing at depth 2
	// removing at depth 1
	// <nil>
}

// A job that hangs gives the lock up.
func ExampleWithMaxHold() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "sync", etcdlock.WithMaxHold(50*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	err = mu.Do(ctx, func(ctx context.Context) error {
		<-ctx.Done() // it hangs
		return nil
	})
	fmt.Println("held too long:", errors.Is(err, etcdlock.ErrMaxHold))
	// Output: held too long: true
}

// The wait is bounded, and the work is not.
func ExampleWithAcquireTimeout() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client, etcdlock.WithAcquireTimeout(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	holder, err := session.Mutex("checkout")
	if err != nil {
		log.Fatal(err)
	}
	waiter, err := session.Mutex("checkout", etcdlock.WithAcquireTimeout(50*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}

	err = holder.Do(ctx, func(ctx context.Context) error {
		err := waiter.Lock(context.Background()) // that of another request
		fmt.Println("the wait is over:", errors.Is(err, context.DeadlineExceeded))
		_, bounded := ctx.Deadline()
		fmt.Println("the work has a deadline:", bounded)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// the wait is over: true
	// the work has a deadline: false
}

// Warnings go where the program's own go. Here an operator's deletion is told.
func ExampleWithLogger() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey, "token", "held": // they differ from run to run
			return slog.Attr{}
		}
		return a
	}}
	logger := slog.New(slog.NewTextHandler(os.Stdout, plain))
	mu, err := etcdlock.New(client, "imports", etcdlock.WithLogger(logger))
	if err != nil {
		log.Fatal(err)
	}
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	hold := mu.Context(ctx)
	if _, err := client.Delete(ctx, mu.Key()); err != nil {
		log.Fatal(err)
	}
	<-hold.Done()
	if err := mu.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// level=WARN msg="etcdlock: lock lost" name=imports reason="its key was deleted"
}

// How long the holds of a program last, for a histogram.
func ExampleTrace() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	events := make(chan string, 10)
	mu, err := etcdlock.New(client, "exports", etcdlock.WithTrace(&etcdlock.Trace{
		Acquired: func(name string, _ int64, _ time.Duration, ahead int) {
			events <- fmt.Sprintf("%s: acquired behind %d", name, ahead)
		},
		Released: func(name string, _ int64, held time.Duration) {
			events <- fmt.Sprintf("%s: released, after less than a minute: %t", name, held < time.Minute)
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
		Lost: func(_ string, _ int64, _ time.Duration, reason error) { lost <- reason },
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

// The goroutines of a process pass the lock on among themselves, up to eight times in a row.
// Their holds have one key, and one token.
func ExampleWithHandoff() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client, etcdlock.WithHandoff(8))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	first, err := session.Mutex("stock/7")
	if err != nil {
		log.Fatal(err)
	}
	second, err := session.Mutex("stock/7")
	if err != nil {
		log.Fatal(err)
	}
	if err := first.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	token := first.Token()
	in := make(chan error)
	go func() { in <- second.Lock(ctx) }()
	for { // until it stands in the Session's own line
		locked, ok := errors.AsType[*etcdlock.LockedError](first.TryLock(ctx))
		if ok && locked.Ahead == 2 {
			break
		}
	}
	if err := errors.Join(first.Unlock(ctx), <-in); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same token:", second.Token() == token)
	// Output: the same token: true
}

// One worker takes the same lock again and again: between its turns the key stays, and the
// next Lock asks nobody.
func ExampleWithLinger() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "cursor", etcdlock.WithLinger(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	tokens := make(map[int64]int)
	for range 100 {
		err := mu.Do(ctx, func(context.Context) error {
			tokens[mu.Token()]++
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("turns:", 100, "keys put:", len(tokens))
	// Output: turns: 100 keys put: 1
}

// A hold that is asked for goes on for half a second at most, whatever grace the request allows.
// Whoever works on until its context ends learns who has asked, and why.
func ExampleWithRecall() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "reindex", etcdlock.WithRecall(time.Second/2))
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
	recalled, _ := errors.AsType[*etcdlock.RecalledError](err)
	fmt.Printf("by %s: %s\n", recalled.By, recalled.Reason)
	fmt.Println("lost:", errors.Is(err, etcdlock.ErrLost))
	// Output:
	// by ops: the database is slow
	// lost: false
}

// Who holds a lock, and who waits?
func ExampleContenders() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	holder, err := etcdlock.New(client, "nightly", etcdlock.WithOwner("machine 1"))
	if err != nil {
		log.Fatal(err)
	}
	defer holder.Close(ctx)
	waiter, err := etcdlock.New(client, "nightly", etcdlock.WithOwner("machine 2"))
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
		fmt.Printf("%d. %s, for less than a minute: %t\n", place+1, c.Owner, time.Since(c.Since) < time.Minute)
	}
	if err := errors.Join(holder.Unlock(ctx), <-in); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1. machine 1, for less than a minute: true
	// 2. machine 2, for less than a minute: true
}

// Where every code path expects a sync.Locker. Errors become panics.
func ExampleMutex_Locker() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.New(client, "queue")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)

	jobs := 0
	ready := sync.NewCond(mu.Locker())
	go func() {
		ready.L.Lock()
		defer ready.L.Unlock()
		jobs = 3
		ready.Signal()
	}()
	ready.L.Lock()
	for jobs == 0 {
		ready.Wait()
	}
	ready.L.Unlock()
	fmt.Println("jobs:", jobs)
	// Output: jobs: 3
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
	mu, err := etcdlock.New(client, "svc/leader", etcdlock.WithInfo("10.0.0.1:8080"))
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
		mu, err := etcdlock.New(client, "svc/rolling",
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
	mu, err := etcdlock.New(client, "svc/one", etcdlock.WithInfo("10.0.0.1:8080"))
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

// A proxy sends requests to whoever leads, and to nobody while nobody does.
func ExampleWatchHolder() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	leader, err := etcdlock.New(client, "svc/proxied", etcdlock.WithInfo("10.0.0.1:8080"))
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
	if locked, ok := errors.AsType[*etcdlock.LockedError](err); ok {
		fmt.Println(locked.Name, "is taken")
	}
	fmt.Println(hold.Unlock(ctx))
	// Output:
	// rooms/2 is taken
	// <nil>
}

// At most three jobs run at a time, in all processes together. One that needs more of what is scarce
// takes two permits.
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
