package etcdlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/etcdtest"
)

// newMutex is New for a test: closed in its Cleanup, and any error fails it.
func newMutex(t *testing.T, client *clientv3.Client, name string, opts ...etcdlock.Option) *etcdlock.Mutex {
	t.Helper()
	mu, err := etcdlock.New(client, name, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mu.Close(context.Background())) })
	return mu
}

// newSession is NewSession for a test.
func newSession(t *testing.T, client *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Session {
	t.Helper()
	s, err := etcdlock.NewSession(client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

// mutexOf is Session.Mutex for a test.
func mutexOf(t *testing.T, s *etcdlock.Session, name string, opts ...etcdlock.Option) *etcdlock.Mutex {
	t.Helper()
	mu, err := s.Mutex(name, opts...)
	require.NoError(t, err)
	return mu
}

// waitForLine waits until n contenders stand in etcd's line.
func waitForLine(t *testing.T, client *clientv3.Client, name string, n int) []etcdlock.Contender {
	t.Helper()
	var line []etcdlock.Contender
	require.Eventually(t, func() bool {
		var err error
		line, err = etcdlock.Contenders(context.Background(), client, name)
		return err == nil && len(line) == n
	}, 20*time.Second, 2*time.Millisecond, "%d contenders for %q", n, name)
	return line
}

// async runs f and returns a channel with its error.
func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// countdown is a critical section that does not survive two at once.
type countdown struct{ inside atomic.Int32 }

func (c *countdown) enter(t *testing.T) {
	if c.inside.Add(1) != 1 {
		t.Error("two hold the lock at once")
	}
	runtime.Gosched()
	c.inside.Add(-1)
}

// Rule 18: one request and one revision each, and the lease is granted once.
func TestUncontendedLockAndUnlockAreOneRequestAndOneRevisionEach(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	counter := etcdtest.NewCounter()
	client := cluster.Client(t, etcdtest.With(counter))
	other := cluster.Client(t)
	etcdtest.VerifyClean(t, other, "orders/42/")
	mu := newMutex(t, client, "orders/42")
	require.NoError(t, mu.Lock(t.Context()))
	require.NoError(t, mu.Unlock(t.Context()))
	require.Equal(t, 1, counter.Counts().Of("LeaseGrant"))

	for range 20 {
		revision := cluster.Revision(t)
		before := counter.Counts()
		require.NoError(t, mu.Lock(t.Context()))
		require.Equal(t, "Txn 1", counter.Since(before).String())
		require.Equal(t, revision+1, cluster.Revision(t))
		require.Equal(t, revision+1, mu.Token())

		before = counter.Counts()
		require.NoError(t, mu.Unlock(t.Context()))
		require.Equal(t, "Txn 1", counter.Since(before).String())
		require.Equal(t, revision+2, cluster.Revision(t))
	}
}

// Rule 18: no goroutine is started per Lock; 22: none before the first. The two are the
// keeper, and the one that follows the connection.
func TestTwoGoroutinesRunBesideAnyNumberOfHolds(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	counter := etcdtest.NewCounter()
	client := cluster.Client(t, etcdtest.With(counter))
	s := newSession(t, client)
	mutexes := make([]*etcdlock.Mutex, 50)
	for i := range mutexes {
		mutexes[i] = mutexOf(t, s, fmt.Sprintf("n/%d", i))
	}
	require.Zero(t, libraryGoroutines(), "NewSession and Mutex start nothing")
	require.Zero(t, counter.Counts().Total(), "and send nothing")
	require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())

	for _, mu := range mutexes {
		require.NoError(t, mu.Lock(t.Context()))
	}
	require.Eventually(t, func() bool { return libraryGoroutines() == 2 }, 10*time.Second, 10*time.Millisecond)
	require.NotEqual(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
}

// Rule 19.
func TestTryLockOfATakenNameWritesNothing(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	counter := etcdtest.NewCounter()
	client, other := cluster.Client(t), cluster.Client(t, etcdtest.With(counter))
	etcdtest.VerifyClean(t, cluster.Client(t), "taken/")
	holder := newMutex(t, client, "taken", etcdlock.WithOwner("holder"))
	require.NoError(t, holder.Lock(t.Context()))
	mu := newMutex(t, other, "taken")
	require.ErrorIs(t, mu.TryLock(t.Context()), etcdlock.ErrLocked) // grants the lease

	for range 5 {
		revision := cluster.Revision(t)
		before := counter.Counts()
		err := mu.TryLock(t.Context())
		require.Equal(t, "Txn 1", counter.Since(before).String())
		require.Equal(t, revision, cluster.Revision(t))
		locked, ok := errors.AsType[*etcdlock.LockedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "taken", locked.Name)
		require.Equal(t, 1, locked.Ahead)
		require.Equal(t, "holder", locked.Holder.Owner)
		require.Equal(t, holder.Token(), locked.Holder.Token)
	}
	require.NoError(t, holder.Unlock(t.Context()))
	before := counter.Counts()
	require.NoError(t, mu.TryLock(t.Context()), "a free name without stray keys")
	require.Equal(t, "Txn 1", counter.Since(before).String())
	require.NoError(t, mu.Unlock(t.Context()))
}

// "When the same Session holds or waits: ErrLocked, no RPC, zero revisions."
func TestTryLockInTheHoldersSessionAsksNobody(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	counter := etcdtest.NewCounter()
	client := cluster.Client(t, etcdtest.With(counter))
	s, rival := newSession(t, client), newMutex(t, cluster.Client(t), "x", etcdlock.WithOwner("rival"))
	mu, same := mutexOf(t, s, "x"), mutexOf(t, s, "x")
	require.NoError(t, mu.Lock(t.Context()))

	before := counter.Counts()
	err := same.TryLock(t.Context())
	require.Zero(t, counter.Since(before).Total())
	locked, _ := errors.AsType[*etcdlock.LockedError](err)
	require.NotNil(t, locked, "%v", err)
	require.Equal(t, 1, locked.Ahead)
	require.Equal(t, mu.Key(), locked.Holder.Key)
	require.NoError(t, mu.Unlock(t.Context()))

	require.NoError(t, rival.Lock(t.Context()))
	waits := async(func() error { return mu.Lock(t.Context()) })
	waitForLine(t, client, "x", 2)
	require.Eventually(t, func() bool { return counter.Counts().Of("Watch") > 0 }, 20*time.Second, time.Millisecond)
	before = counter.Counts()
	err = same.TryLock(t.Context())
	require.Zero(t, counter.Since(before).Of("Txn")-0)
	locked, _ = errors.AsType[*etcdlock.LockedError](err)
	require.NotNil(t, locked, "%v", err)
	require.Equal(t, 2, locked.Ahead, "the holder and the Session's own waiter")
	require.Equal(t, "rival", locked.Holder.Owner)
	require.NoError(t, rival.Unlock(t.Context()))
	require.NoError(t, <-waits)
	require.NoError(t, mu.Unlock(t.Context()))
}

// Rule 20: a waiter in a short line reads nothing when its turn comes; in a long one it
// reads at most once. (A read at the event's revision may come before the member serves
// that revision: such a one is refused, and made up for by a linearizable one. So the
// answered reads are counted.)
func TestAHandOverCostsAtMostOneReadAndNoneInAShortLine(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	first := newMutex(t, cluster.Client(t), "x")
	require.NoError(t, first.Lock(t.Context()))

	type waiter struct {
		mu       *etcdlock.Mutex
		counter  *etcdtest.Counter
		answered *atomic.Int32
		in       <-chan error
	}
	const few = 8 // ahead, for a line to be short
	waiters := make([]waiter, few+3)
	for i := range waiters {
		counter, answered := etcdtest.NewCounter(), new(atomic.Int32)
		mu := newMutex(t, cluster.Client(t, etcdtest.With(counter), countAnswers(answered)), "x")
		in := async(func() error { return mu.Lock(context.Background()) })
		waiters[i] = waiter{mu, counter, answered, in}
		// It has a lease, has put its key and, after creating its watch, looked once.
		require.Eventually(t, func() bool { return answered.Load() >= 3 }, 20*time.Second, time.Millisecond)
		want := "LeaseGrant 1, Range 1, Txn 1, Watch 1"
		if i >= few {
			want = "LeaseGrant 1, Txn 2, Watch 1"
		}
		require.Equal(t, want, counter.Counts().String())
	}
	unlock := first.Unlock
	for i, w := range waiters {
		before, answered := w.counter.Counts(), w.answered.Load()
		require.NoError(t, unlock(t.Context()))
		require.NoError(t, <-w.in)
		cost := w.counter.Since(before)
		if i < few {
			require.Zero(t, cost.Of("Range")+cost.Of("Txn"), "%v", cost)
		} else {
			require.LessOrEqual(t, w.answered.Load()-answered, int32(1), "%v", cost)
			require.Zero(t, cost.Of("Txn"), "%v", cost)
		}
		unlock = w.mu.Unlock
	}
	require.NoError(t, unlock(t.Context()))
}

// countAnswers counts the unary calls of a client that succeed.
func countAnswers(n *atomic.Int32) etcdtest.ClientOption {
	return func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if err == nil {
					n.Add(1)
				}
				return err
			}))
	}
}

// Rule 18: the release of one goroutine and the place of the next are one request
// and one revision, and the Session's key names are used in turn.
func TestReleaseAndNextPlaceInASessionAreOneTransaction(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	counter := etcdtest.NewCounter()
	client := cluster.Client(t, etcdtest.With(counter))
	etcdtest.VerifyClean(t, cluster.Client(t), "x/")
	s := newSession(t, client)
	keys := make(map[string]bool)
	holder := mutexOf(t, s, "x")
	require.NoError(t, holder.Lock(t.Context()))
	for range 10 {
		keys[holder.Key()] = true
		next := mutexOf(t, s, "x")
		in := async(func() error { return next.Lock(context.Background()) })
		localLine(t, s, "x", 2)
		revision, before := cluster.Revision(t), counter.Counts()
		require.NoError(t, holder.Unlock(t.Context()))
		require.NoError(t, <-in)
		cost := counter.Since(before)
		require.Equal(t, 1, cost.Of("Txn"), "%v", cost)
		require.Zero(t, cost.Of("Range"), "%v", cost)
		require.Equal(t, revision+1, cluster.Revision(t))
		holder = next
	}
	require.Len(t, keys, 2)
	require.NoError(t, holder.Unlock(t.Context()))
}

// S7: on one Mutex, on many of one Session, on Sessions and clients.
func TestGoroutinesExcludeEachOtherAsProcessesDo(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	const cycles = 3_000
	cluster := etcdtest.Start(t, 1)
	etcdtest.VerifyClean(t, cluster.Client(t), "x/")
	var (
		section countdown
		counter int // guarded by the lock alone, for the race detector to see
		last    int64
		workers sync.WaitGroup
		left    atomic.Int64
	)
	left.Store(cycles)
	work := func(mu *etcdlock.Mutex) {
		for left.Add(-1) >= 0 {
			err := mu.Do(t.Context(), func(ctx context.Context) error {
				section.enter(t)
				counter++
				token, _ := etcdlock.TokenFrom(ctx)
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
		}
	}
	for range 2 {
		client := cluster.Client(t)
		for range 2 {
			s := newSession(t, client)
			shared := mutexOf(t, s, "x")
			for range 3 {
				workers.Go(func() { work(shared) })
				workers.Go(func() { work(mutexOf(t, s, "x")) })
			}
		}
	}
	workers.Wait()
	require.Equal(t, cycles, counter)
}

// Rule 21.
func TestTenThousandNamesAreOneLeaseAndNoGoroutineEach(t *testing.T) {
	const names = 10_000
	cluster := etcdtest.Start(t, 1)
	counter := etcdtest.NewCounter()
	client := cluster.Client(t, etcdtest.With(counter))
	s := newSession(t, client, etcdlock.WithTTL(30*time.Second))

	mutexes := make(chan *etcdlock.Mutex, names)
	for i := range names {
		mutexes <- mutexOf(t, s, fmt.Sprintf("n/%d", i))
	}
	close(mutexes)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for mu := range mutexes {
				if err := mu.Lock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	require.Equal(t, 1, counter.Counts().Of("LeaseGrant"))
	require.Equal(t, names, counter.Counts().Of("Txn"))
	require.Eventually(t, func() bool { return libraryGoroutines() == 2 }, 10*time.Second, 10*time.Millisecond)
}

// A context that has ended before the call is ignored by Unlock.
func TestUnlockWorksWithAnEndedContext(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	etcdtest.VerifyClean(t, client, "x/")
	mu := newMutex(t, client, "x")
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, mu.Lock(ctx))
	cancel()
	require.NoError(t, mu.Unlock(ctx))
	waitForLine(t, client, "x", 0)
}

func TestTheHoldsContextSaysWhyItEnded(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	type key struct{}
	parent := context.WithValue(t.Context(), key{}, "value")

	t.Run("unlocked", func(t *testing.T) {
		mu := newMutex(t, client, "unlocked")
		require.NoError(t, mu.Lock(t.Context()))
		ctx := mu.Context(parent)
		child, stop := context.WithCancel(ctx)
		defer stop()
		require.NoError(t, ctx.Err())
		require.Equal(t, "value", ctx.Value(key{}))
		token, ok := etcdlock.TokenFrom(child)
		require.True(t, ok)
		require.Equal(t, mu.Token(), token)
		require.NoError(t, mu.Unlock(t.Context()))
		<-child.Done()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrUnlocked)
		require.ErrorIs(t, context.Cause(child), etcdlock.ErrUnlocked)
		require.Zero(t, mu.Token())
		require.Empty(t, mu.Key())
		require.True(t, mu.Deadline().IsZero())
	})
	t.Run("parent", func(t *testing.T) {
		mu := newMutex(t, client, "parent")
		require.NoError(t, mu.Lock(t.Context()))
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := mu.Context(parent)
		cancel(errors.ErrUnsupported)
		require.ErrorIs(t, context.Cause(ctx), errors.ErrUnsupported)
		require.NotZero(t, mu.Token(), "the hold goes on")
		require.NoError(t, mu.Unlock(t.Context()))
	})
	t.Run("closed", func(t *testing.T) {
		mu := newMutex(t, client, "closed")
		require.NoError(t, mu.Lock(t.Context()))
		ctx := mu.Context(parent)
		require.NoError(t, mu.Close(t.Context()))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrNotHeld)
	})
	t.Run("longest hold", func(t *testing.T) {
		mu := newMutex(t, client, "longest", etcdlock.WithMaxHold(50*time.Millisecond))
		require.NoError(t, mu.Lock(t.Context()))
		ctx := mu.Context(parent)
		require.LessOrEqual(t, time.Until(mu.Deadline()), 50*time.Millisecond)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		waitForLine(t, client, "longest", 0)
		err := mu.Unlock(t.Context())
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.ErrorIs(t, err, etcdlock.ErrMaxHold)
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrNotHeld)
		require.NoError(t, mu.Lock(t.Context()), "free for the next Lock")
		require.NoError(t, mu.Unlock(t.Context()))
	})
}

func TestDoReleasesWhateverBecomesOfTheFunction(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	mu := newMutex(t, client, "x")

	require.ErrorIs(t, mu.Do(t.Context(), func(context.Context) error { return os.ErrInvalid }), os.ErrInvalid)
	waitForLine(t, client, "x", 0)

	require.PanicsWithValue(t, "boom", func() {
		_ = mu.Do(t.Context(), func(context.Context) error { panic("boom") })
	})
	waitForLine(t, client, "x", 0)

	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = mu.Do(context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
	}()
	<-exited
	waitForLine(t, client, "x", 0)

	err := mu.Do(t.Context(), func(ctx context.Context) error {
		_, err := client.Delete(ctx, mu.Key())
		return errors.Join(os.ErrInvalid, err)
	})
	require.ErrorIs(t, err, os.ErrInvalid)
	require.ErrorIs(t, err, etcdlock.ErrLost, "its key was gone before the release")
}

// Do releases its own hold and no other: not one that somebody took after fn had
// unlocked.
func TestDoLeavesTheNextHoldOfItsMutexAlone(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	mu := newMutex(t, etcdtest.Start(t, 1).Client(t), "x")
	err := mu.Do(t.Context(), func(context.Context) error {
		require.NoError(t, mu.Unlock(t.Context()))
		return mu.Lock(t.Context())
	})
	require.ErrorIs(t, err, etcdlock.ErrNotHeld)
	require.NotZero(t, mu.Token())
	require.NoError(t, mu.Unlock(t.Context()))
}

// Close of a Session's Mutex gives its place in the local line to the next.
func TestCloseOfAHeldMutexLetsTheNextOneIn(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	client := etcdtest.Start(t, 1).Client(t)
	s := newSession(t, client)
	held, waiting, closed := mutexOf(t, s, "x"), mutexOf(t, s, "x"), mutexOf(t, s, "x")
	require.NoError(t, held.Lock(t.Context()))
	in := async(func() error { return waiting.Lock(context.Background()) })
	out := async(func() error { return closed.Lock(context.Background()) })
	localLine(t, s, "x", 3)
	require.NoError(t, closed.Close(t.Context()))
	require.ErrorIs(t, <-out, etcdlock.ErrClosed)
	require.NoError(t, held.Close(t.Context()))
	require.NoError(t, <-in)
	require.NoError(t, waiting.Unlock(t.Context()))
}

// A hook that blocks, and one that panics, harm no lock; the others come in order.
func TestTraceTellsTheLifeOfALockAndHarmsNone(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	client := etcdtest.Start(t, 1).Client(t)
	events := make(chan string, 100)
	release := make(chan struct{})
	trace := &etcdlock.Trace{
		Queued: func(name string, ahead int, holder etcdlock.Contender) {
			events <- fmt.Sprintf("queued %s behind %d, %s", name, ahead, holder.Owner)
		},
		Acquired: func(name string, token int64, waited time.Duration, ahead int) {
			events <- fmt.Sprintf("acquired %s behind %d", name, ahead)
			panic("a hook's panic")
		},
		Released: func(name string, token int64, held time.Duration) { events <- "released " + name },
		Lost: func(name string, token int64, held time.Duration, reason error) {
			events <- fmt.Sprintf("lost %s: %v", name, reason)
		},
		LeaseGranted: func(clientv3.LeaseID, time.Duration) { events <- "granted"; <-release },
	}
	records := make(chan string, 100)
	logger := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		records <- string(p)
		return len(p), nil
	}), nil))
	holder := newMutex(t, client, "x", etcdlock.WithOwner("holder"))
	mu := newMutex(t, client, "x", etcdlock.WithTrace(trace), etcdlock.WithLogger(logger))
	require.NoError(t, holder.Lock(t.Context()))
	in := async(func() error { return mu.Lock(context.Background()) })
	waitForLine(t, client, "x", 2)
	require.NoError(t, holder.Unlock(t.Context()))
	require.NoError(t, <-in, "although a hook blocks")
	require.NoError(t, mu.Unlock(t.Context()))
	require.NoError(t, mu.Lock(t.Context()))
	_, err := client.Delete(t.Context(), mu.Key())
	require.NoError(t, err)
	require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
	close(release)
	for _, want := range []string{
		"granted", "queued x behind 1, holder", "acquired x behind 1", "released x",
		"acquired x behind 0", "lost x: etcdlock: its key was deleted",
	} {
		require.Equal(t, want, <-events)
	}
	require.Contains(t, <-records, `level=WARN msg="etcdlock: lock lost" name=x`)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// The program in the README is the tested example.
func TestReadmeShowsTheTestedExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, body, found := strings.Cut(string(source), "func Example() {\n")
	require.True(t, found)
	body, _, found = strings.Cut(body, "\t// Output:")
	require.True(t, found)
	_, program, found := strings.Cut(string(readme), "func main() {\n")
	require.True(t, found, "README.md has no program")
	program, _, found = strings.Cut(program, "}\n```")
	require.True(t, found)
	require.Equal(t, body, program)
}

// libraryGoroutines counts the goroutines that the library has started.
func libraryGoroutines() int {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("created by github.com/etcdlock/etcdlock.("))
}

// Each test that the README names exists.
func TestReadmeNamesTestsThatExist(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var sources []byte
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		sources = append(sources, source...)
	}
	names := regexp.MustCompile(`\b(Test|Example)[A-Z]\w+`).FindAll(readme, -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, string(sources), "func "+string(name)+"(")
	}
}
