package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// endpoints are those of the etcd in memory that TestMain starts for the examples.
var endpoints []string

func Example() {
	work := func(context.Context) error {
		fmt.Println("only one process at a time is here")
		return nil
	}

	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialKeepAliveTime:    10 * time.Second, // pings find a dead connection
		DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	session, err := etcdlock.NewSession(client, etcdlock.WithLogger(slog.Default()))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	err = session.Do(ctx, "orders/42", func(ctx context.Context) error {
		return work(ctx) // ctx ends if the lock is lost, and after the 10 s for wait and work
	})
	cancel()
	err = errors.Join(err, session.Close(context.Background()), client.Close())
	if err != nil {
		log.Fatal(err)
	}
	// Output: only one process at a time is here
}

// A job that every replica starts at the same time, and one of them runs.
func ExampleMutex_TryDo() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()

	report := func(ctx context.Context) error {
		fmt.Println("writing tonight's report")
		replica, err := etcdlock.NewMutex(client, "cron/report")
		if err != nil {
			return err
		}
		defer replica.Close(ctx)
		err = replica.TryDo(ctx, func(context.Context) error { return nil })
		fmt.Println("the other replica: taken:", errors.Is(err, etcdlock.ErrLocked))
		return nil
	}

	mu, err := etcdlock.NewMutex(client, "cron/report")
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
	mu, err := etcdlock.NewMutex(client, "migrations")
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
	mu, err := etcdlock.NewMutex(client, "config")
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
	mu, err := etcdlock.NewMutex(client, "accounts/7")
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

// Who holds the lock that TryLock could not have?
func ExampleLockedError() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	holder, err := etcdlock.NewMutex(client, "stock", etcdlock.WithOwner("checkout"))
	if err != nil {
		log.Fatal(err)
	}
	defer holder.Close(ctx)
	if err := holder.Lock(ctx); err != nil {
		log.Fatal(err)
	}

	mu, err := etcdlock.NewMutex(client, "stock")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	err = mu.TryLock(ctx)
	var locked *etcdlock.LockedError
	if errors.As(err, &locked) {
		h := locked.Holder
		fmt.Println("holder:", h.Owner, "contenders before us:", locked.Ahead)
		text := fmt.Sprintf(`etcdlock: lock "stock": held by checkout (%s:%d)`, h.Host, h.PID)
		fmt.Println("the error says so:", locked.Error() == text)
	}
	// Output:
	// holder: checkout contenders before us: 1
	// the error says so: true
}

func exampleClient() *clientv3.Client { return contract.ExampleClient(endpoints) }

// charge is the program of the package's documentation.
func charge(ctx context.Context, session *etcdlock.Session, order string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // for the wait and the work
	defer cancel()
	return session.Do(ctx, "orders/"+order, func(ctx context.Context) error {
		return writeOrder(ctx) // ctx ends if the lock is lost
	})
}

func writeOrder(ctx context.Context) error { return ctx.Err() }

func Example_do() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	fmt.Println(charge(ctx, session, "42"))
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
	mu, err := etcdlock.NewMutex(client, "reports", etcdlock.WithTTL(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	now := mu.Status()
	fmt.Println("a crash would block others for:", now.TTL)
	fmt.Println("a hold outlasts a pause of:", now.TTL-now.SafetyMargin)
	// Output:
	// a crash would block others for: 1m0s
	// a hold outlasts a pause of: 52.5s
}

// Work that takes up to 5 s to stop gets that time: the hold ends 5 s before another can get in.
func ExampleWithSafetyMargin() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.NewMutex(client, "uploads",
		etcdlock.WithTTL(20*time.Second), etcdlock.WithSafetyMargin(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("time to stop in:", mu.Status().SafetyMargin)
	// Output: time to stop in: 5s
}

// A fleet in which some jobs have a TTL of ten minutes: after a restore of etcd, this process gives
// the holders that it has never met as much time.
func ExampleWithRestoreDelay() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(client,
		etcdlock.WithTTL(30*time.Second), etcdlock.WithRestoreDelay(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	fmt.Println(session.Do(ctx, "reports", func(context.Context) error { return nil }))
	// Output: <nil>
}

// What others read in their errors, and operators in the line.
func ExampleWithOwner() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.NewMutex(client, "invoices", etcdlock.WithOwner("billing, release 7"))
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
	mu, err := etcdlock.NewMutex(client, "tree", etcdlock.WithReentrancy())
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
	mu, err := etcdlock.NewMutex(client, "sync", etcdlock.WithMaxHold(50*time.Millisecond))
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

// A job that many machines start at the same time by their own clocks runs once, however short it
// is: the name stays taken for a minute, and though the process has exited.
func ExampleWithMinHold() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	machine := func(n int) {
		session, err := etcdlock.NewSession(client)
		if err != nil {
			log.Fatal(err)
		}
		defer session.Close(ctx)
		err = session.TryDo(ctx, "cron/rotate", func(context.Context) error {
			fmt.Println("machine", n, "rotates the logs")
			return nil
		}, etcdlock.WithMinHold(time.Minute))
		fmt.Println("taken:", errors.Is(err, etcdlock.ErrLocked))
	}
	machine(1)
	machine(2) // its clock is behind
	// Output:
	// machine 1 rotates the logs
	// taken: false
	// taken: true
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
	lines, to := io.Pipe()
	defer to.Close()
	logger := slog.New(slog.NewTextHandler(to, plain))
	mu, err := etcdlock.NewMutex(client, "imports", etcdlock.WithLogger(logger))
	if err != nil {
		log.Fatal(err)
	}
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Delete(ctx, mu.Key()); err != nil {
		log.Fatal(err)
	}
	line, err := bufio.NewReader(lines).ReadString('\n')
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(line)
	if err := mu.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// level=WARN msg="etcdlock: lock lost" name=imports reason="its key was deleted"
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
		var locked *etcdlock.LockedError
		if errors.As(first.TryLock(ctx), &locked) && locked.Ahead == 2 {
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
	mu, err := etcdlock.NewMutex(client, "cursor", etcdlock.WithLinger(10*time.Second))
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

// Where every code path expects a sync.Locker. Errors become panics.
func ExampleMutex_Locker() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	mu, err := etcdlock.NewMutex(client, "queue")
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
