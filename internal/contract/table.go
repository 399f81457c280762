package contract

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// Rule 18: one request and one revision each, and the lease is granted once.
func TestUncontendedLockAndUnlockAreOneRequestAndOneRevisionEach(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	mu := NewMutex(t, cluster.Client(t, With(counter)), "orders/42")
	require.NoError(t, mu.Lock(t.Context()))
	require.NoError(t, mu.Unlock(t.Context()))
	counter.Costs(t, Counts{}, "LeaseGrant 1, Txn 2")
	for range 20 {
		revision := cluster.Revision(t)
		for i, call := range []func(context.Context) error{mu.Lock, mu.Unlock} {
			before := counter.Counts()
			require.NoError(t, call(t.Context()))
			if counter.Costs(t, before, "Txn 1") {
				require.Equal(t, revision+int64(i)+1, cluster.Revision(t))
				require.True(t, mu.Token() == 0 || mu.Token() == revision+1)
			}
		}
	}
}

// Rule 18: no goroutine is started per Lock; rule 22: none before the first. The three are
// the keeper, the one that follows the connection, and, from the first renewal on, the receiver
// of the answers to renewals. A hold that has lasted for a second has one more, which watches
// its key. Whether the fifty have lasted so long depends on the machine, so the test does not
// count these.
func TestThreeGoroutinesRunBesideAnyNumberOfHolds(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	s := NewSession(t, cluster.Client(t, With(counter)))
	mutexes := make([]*etcdlock.Mutex, 50)
	for i := range mutexes {
		mutexes[i] = MutexOf(t, s, fmt.Sprintf("n/%d", i))
	}
	require.Zero(t, LibraryGoroutines(), "NewSession and Mutex start nothing")
	require.Zero(t, counter.Counts().Total(), "and send nothing")
	require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())

	for _, mu := range mutexes {
		require.NoError(t, mu.Lock(t.Context()))
	}
	require.NotEqual(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
	require.True(t, Poll(func() bool { return LibraryGoroutines("(*keyWatch).run") <= 3 }))
}

// Rule 19.
func TestTryLockOfATakenNameWritesNothing(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	client, other := cluster.Client(t), cluster.Client(t, With(counter))
	holder := NewMutex(t, client, "taken", etcdlock.WithOwner("holder"))
	require.NoError(t, holder.Lock(t.Context()))
	mu := NewMutex(t, other, "taken")
	require.ErrorIs(t, mu.TryLock(t.Context()), etcdlock.ErrLocked) // grants the lease

	for range 5 {
		revision := cluster.Revision(t)
		before := counter.Counts()
		err := mu.TryLock(t.Context())
		counter.Costs(t, before, "Txn 1")
		require.Equal(t, revision, cluster.Revision(t))
		var locked *etcdlock.LockedError
		ok := errors.As(err, &locked)
		require.True(t, ok, "%v", err)
		require.Equal(t, "taken", locked.Name)
		require.Equal(t, 1, locked.Ahead)
		require.Equal(t, "holder", locked.Holder.Owner)
		require.Equal(t, holder.Token(), locked.Holder.Token)
	}
	require.NoError(t, holder.Unlock(t.Context()))
	before := counter.Counts()
	require.NoError(t, mu.TryLock(t.Context()), "a free name without stray keys")
	counter.Costs(t, before, "Txn 1")
	require.NoError(t, mu.Unlock(t.Context()))
}

// "When the same Session holds or waits: ErrLocked, no RPC, zero revisions."
func TestTryLockInTheHoldersSessionAsksNobody(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	client := cluster.Client(t, With(counter))
	s, rival := NewSession(t, client), NewMutex(t, cluster.Client(t), "x", etcdlock.WithOwner("rival"))
	mu, same := MutexOf(t, s, "x"), MutexOf(t, s, "x")
	require.NoError(t, mu.Lock(t.Context()))

	before := counter.Counts()
	err := same.TryLock(t.Context())
	counter.Costs(t, before, "none")
	var locked *etcdlock.LockedError
	_ = errors.As(err, &locked)
	require.NotNil(t, locked, "%v", err)
	require.Equal(t, 1, locked.Ahead)
	require.Equal(t, mu.Key(), locked.Holder.Key)
	require.NoError(t, mu.Unlock(t.Context()))

	require.NoError(t, rival.Lock(t.Context()))
	waits := Async(func() error { return mu.Lock(t.Context()) })
	WaitForLine(t, client, "x", 2)
	require.True(t, Poll(func() bool { return counter.Counts().Of("Watch") > 0 }))
	before = counter.Counts()
	err = same.TryLock(t.Context())
	if sent, exact := counter.Exactly(t, before); exact {
		require.Zero(t, sent.Of("Txn"))
	}
	locked = nil
	_ = errors.As(err, &locked)
	require.NotNil(t, locked, "%v", err)
	require.Equal(t, 2, locked.Ahead, "the holder and the Session's own waiter")
	require.Equal(t, "rival", locked.Holder.Owner)
	require.NoError(t, rival.Unlock(t.Context()))
	require.NoError(t, <-waits)
	require.NoError(t, mu.Unlock(t.Context()))
}

// Rule 20: a waiter in a short line reads nothing when its turn comes. In a long line it
// reads at most once. (A read at the event's revision may reach a member that does not
// serve that revision yet. The member refuses it, and a linearizable read replaces it. So
// the test counts the answered reads.)
func TestAHandOverCostsAtMostOneReadAndNoneInAShortLine(t *testing.T, w World) {
	cluster := w.Start(t)
	first := NewMutex(t, cluster.Client(t), "x")
	require.NoError(t, first.Lock(t.Context()))

	type waiter struct {
		mu       *etcdlock.Mutex
		counter  *Counter
		answered *atomic.Int32
		in       <-chan error
	}
	const few = 8 // ahead, for a line to be short
	waiters := make([]waiter, few+3)
	for i := range waiters {
		counter, answered := NewCounter(), new(atomic.Int32)
		mu := NewMutex(t, cluster.Client(t, With(counter), countAnswers(answered)), "x")
		in := Async(func() error { return mu.Lock(context.Background()) })
		waiters[i] = waiter{mu, counter, answered, in}
		// The waiter has a lease, has put its key, and has read once after it created its
		// watch. Behind many it has looked for its predecessor before.
		want, answers := "LeaseGrant 1, Range 1, Txn 1, Watch 1", int32(3)
		if i >= few {
			want, answers = "LeaseGrant 1, Range 1, Txn 2, Watch 1", 4
		}
		require.True(t, Poll(func() bool { return answered.Load() >= answers }))
		counter.Costs(t, Counts{}, want)
	}
	unlock := first.Unlock
	for i, each := range waiters {
		before, answered := each.counter.Counts(), each.answered.Load()
		require.NoError(t, unlock(t.Context()))
		require.NoError(t, <-each.in)
		if cost, exact := each.counter.Exactly(t, before); exact && i < few {
			require.Zero(t, cost.Of("Range")+cost.Of("Txn"), "%v", cost)
		} else if exact {
			// A request that was sent before the turn does not count, even if its answer
			// comes now.
			require.LessOrEqual(t, min(cost.Of("Range"), int(each.answered.Load()-answered)), 1, "%v", cost)
			require.Zero(t, cost.Of("Txn"), "%v", cost)
		}
		unlock = each.mu.Unlock
	}
	require.NoError(t, unlock(t.Context()))
}

// Rule 18: the release of one goroutine and the place of the next are one request and one
// revision. The Session's key names are used in turn.
func TestReleaseAndNextPlaceInASessionAreOneTransaction(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	client := cluster.Client(t, With(counter))
	s := NewSession(t, client)
	keys := make(map[string]bool)
	holder := MutexOf(t, s, "x")
	require.NoError(t, holder.Lock(t.Context()))
	for range 10 {
		keys[holder.Key()] = true
		next := MutexOf(t, s, "x")
		in := Async(func() error { return next.Lock(context.Background()) })
		LocalLine(t, s, "x", 2)
		revision, before := cluster.Revision(t), counter.Counts()
		require.NoError(t, holder.Unlock(t.Context()))
		require.NoError(t, <-in)
		if cost, exact := counter.Exactly(t, before); exact {
			require.Equal(t, 1, cost.Of("Txn"), "%v", cost)
			require.Zero(t, cost.Of("Range"), "%v", cost)
			require.Equal(t, revision+1, cluster.Revision(t))
		}
		holder = next
	}
	require.Len(t, keys, 2)
	require.NoError(t, holder.Unlock(t.Context()))
}

// S7: goroutines exclude each other on one Mutex, on many of one Session, on Sessions and
// on clients.
func TestGoroutinesExcludeEachOtherAsProcessesDo(t *testing.T, w World) {
	cycles := w.Cycles
	cluster := w.Start(t)
	var (
		section countdown
		counter int // guarded by the lock alone, for the race detector to see
		last    int64
		workers sync.WaitGroup
		left    atomic.Int64
	)
	left.Store(int64(cycles))
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
			s := NewSession(t, client)
			shared := MutexOf(t, s, "x")
			for range 3 {
				workers.Go(func() { work(shared) })
				workers.Go(func() { work(MutexOf(t, s, "x")) })
			}
		}
	}
	workers.Wait()
	require.Equal(t, cycles, counter)
}

// Rule 21.
func TestTenThousandNamesAreOneLeaseAndNoGoroutineEach(t *testing.T, w World) {
	names := w.Names
	cluster := w.Start(t)
	counter := NewCounter()
	client := cluster.Client(t, With(counter))
	s := NewSession(t, client, etcdlock.WithTTL(time.Minute))

	revision := cluster.Revision(t)
	mutexes := make(chan *etcdlock.Mutex, names)
	for i := range names {
		mutexes <- MutexOf(t, s, fmt.Sprintf("n/%d", i))
	}
	close(mutexes)
	const many = 100 // above which no key gets a watch
	began := time.Now()
	var held atomic.Int64
	var toMany time.Duration
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for mu := range mutexes {
				if err := mu.Lock(t.Context()); err != nil {
					t.Error(err)
				}
				if held.Add(1) == many+1 {
					toMany = time.Since(began)
				}
			}
		})
	}
	workers.Wait()
	require.Equal(t, 1, counter.Counts().Of("LeaseGrant"))
	require.LessOrEqual(t, cluster.Revision(t)-revision, int64(names),
		"those that meet are sent as one")
	watched := 0
	// on a busy machine the first ones are watched, and read once, before there are many
	if toMany >= time.Second {
		watched = many
	}
	require.LessOrEqual(t, counter.Counts().Of("Txn"), names+names/20+watched,
		"those late are repeated, with several endpoints")
	few := func() bool { // one more for the renewal, if it is due
		return LibraryGoroutines() <= 3+watched && LibraryGoroutines("(*keyWatch).run") <= 3
	}
	require.Eventually(t, few, Patience, 10*time.Millisecond)
}

// Unlock ignores a context that has ended before the call.
func TestUnlockWorksWithAnEndedContext(t *testing.T, w World) {
	cluster := w.Start(t)
	client := cluster.Client(t)
	mu := NewMutex(t, client, "x")
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, mu.Lock(ctx))
	cancel()
	require.NoError(t, mu.Unlock(ctx))
	WaitForLine(t, client, "x", 0)
}

func TestTheHoldsContextSaysWhyItEnded(t *testing.T, w World) {
	cluster := w.Start(t)
	client := cluster.Client(t)
	type key struct{}
	parent := context.WithValue(t.Context(), key{}, "value")

	t.Run("unlocked", func(t *testing.T) {
		mu := NewMutex(t, client, "unlocked")
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
		require.True(t, mu.Status().Deadline.IsZero())
	})
	t.Run("parent", func(t *testing.T) {
		mu := NewMutex(t, client, "parent")
		require.NoError(t, mu.Lock(t.Context()))
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := mu.Context(parent)
		cancel(errors.ErrUnsupported)
		require.ErrorIs(t, context.Cause(ctx), errors.ErrUnsupported)
		require.NotZero(t, mu.Token(), "the hold goes on")
		require.NoError(t, mu.Unlock(t.Context()))
	})
	t.Run("closed", func(t *testing.T) {
		mu := NewMutex(t, client, "closed")
		require.NoError(t, mu.Lock(t.Context()))
		ctx := mu.Context(parent)
		require.NoError(t, mu.Close(t.Context()))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrNotHeld)
	})
	t.Run("longest hold", func(t *testing.T) {
		const longest = 300 * time.Millisecond // in which a busy machine gets from Lock to Context
		mu := NewMutex(t, client, "longest", etcdlock.WithMaxHold(longest))
		require.NoError(t, mu.Lock(t.Context()))
		ctx := mu.Context(parent)
		require.LessOrEqual(t, time.Until(mu.Status().Deadline), longest)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		WaitForLine(t, client, "longest", 0)
		err := mu.Unlock(t.Context())
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.ErrorIs(t, err, etcdlock.ErrMaxHold)
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrNotHeld)
		require.NoError(t, mu.Lock(t.Context()), "free for the next Lock")
		require.NoError(t, mu.Unlock(t.Context()))
	})
}

func TestDoReleasesWhateverBecomesOfTheFunction(t *testing.T, w World) {
	cluster := w.Start(t)
	client := cluster.Client(t)
	mu := NewMutex(t, client, "x")

	require.ErrorIs(t, mu.Do(t.Context(), func(context.Context) error {
		return os.ErrInvalid
	}), os.ErrInvalid)
	WaitForLine(t, client, "x", 0)

	require.PanicsWithValue(t, "boom", func() {
		_ = mu.Do(t.Context(), func(context.Context) error { panic("boom") })
	})
	WaitForLine(t, client, "x", 0)

	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = mu.Do(context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
	}()
	<-exited
	WaitForLine(t, client, "x", 0)

	err := mu.Do(t.Context(), func(ctx context.Context) error {
		_, err := client.Delete(ctx, mu.Key())
		return errors.Join(os.ErrInvalid, err)
	})
	require.ErrorIs(t, err, os.ErrInvalid)
	require.ErrorIs(t, err, etcdlock.ErrLost, "its key was gone before the release")
}

// Do releases its own hold and no other. It does not release a hold that another goroutine
// took after fn had unlocked.
func TestDoLeavesTheNextHoldOfItsMutexAlone(t *testing.T, w World) {
	mu := NewMutex(t, w.Start(t).Client(t), "x")
	err := mu.Do(t.Context(), func(context.Context) error {
		require.NoError(t, mu.Unlock(t.Context()))
		return mu.Lock(t.Context())
	})
	require.ErrorIs(t, err, etcdlock.ErrNotHeld)
	require.NotZero(t, mu.Token())
	require.NoError(t, mu.Unlock(t.Context()))
}

// Close of a Session's Mutex gives its place in the local line to the next.
func TestCloseOfAHeldMutexLetsTheNextOneIn(t *testing.T, w World) {
	client := w.Start(t).Client(t)
	s := NewSession(t, client)
	held, waiting, closed := MutexOf(t, s, "x"), MutexOf(t, s, "x"), MutexOf(t, s, "x")
	require.NoError(t, held.Lock(t.Context()))
	in := Async(func() error { return waiting.Lock(context.Background()) })
	out := Async(func() error { return closed.Lock(context.Background()) })
	LocalLine(t, s, "x", 3)
	require.NoError(t, closed.Close(t.Context()))
	require.ErrorIs(t, <-out, etcdlock.ErrClosed)
	require.NoError(t, held.Close(t.Context()))
	require.NoError(t, <-in)
	require.NoError(t, waiting.Unlock(t.Context()))
}

// A hook that blocks, and one that panics, harm no lock; the others come in order.
func TestTraceTellsTheLifeOfALockAndHarmsNone(t *testing.T, w World) {
	client := w.Start(t).Client(t)
	events := make(chan string, 100)
	release := make(chan struct{})
	trace := &etcdlock.Trace{
		Queued: func(_ context.Context, e etcdlock.QueuedEvent) {
			events <- fmt.Sprintf("queued %s behind %d, %s", e.Name, e.Ahead, e.Holder.Owner)
		},
		Acquired: func(_ context.Context, e etcdlock.AcquiredEvent) {
			events <- fmt.Sprintf("acquired %s behind %d", e.Name, e.Ahead)
			panic("a hook's panic")
		},
		Released: func(_ context.Context, e etcdlock.ReleasedEvent) { events <- "released " + e.Name },
		Lost: func(_ context.Context, e etcdlock.LostEvent) {
			events <- fmt.Sprintf("lost %s: %v", e.Name, e.Reason)
		},
		LeaseGranted: func(_ context.Context, _ etcdlock.LeaseGrantedEvent) {
			events <- "granted"
			<-release
		},
	}
	records := make(chan string, 100)
	logger := slog.New(slog.NewTextHandler(WriterFunc(func(p []byte) (int, error) {
		records <- string(p)
		return len(p), nil
	}), nil))
	holder := NewMutex(t, client, "x", etcdlock.WithOwner("holder"))
	mu := NewMutex(t, client, "x", etcdlock.WithTrace(trace), etcdlock.WithLogger(logger))
	require.NoError(t, holder.Lock(t.Context()))
	in := Async(func() error { return mu.Lock(context.Background()) })
	WaitForLine(t, client, "x", 2)
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

// Readers share and a writer excludes, by whatever package, in one line. What is alone
// costs a request and a revision. The second reader of a Session costs a read and a watch,
// the third nothing. TryRLock writes nothing while a writer holds.
func TestReadersShareAndWritersExclude(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	client := cluster.Client(t, With(counter))
	s := NewSession(t, client)
	rw, err := s.RWMutex("x")
	require.NoError(t, err)
	read := func(rw *etcdlock.RWMutex) *etcdlock.Hold {
		t.Helper()
		h, err := rw.RLock(Patient(t))
		require.NoError(t, err)
		return h
	}
	require.NoError(t, read(rw).Unlock(t.Context()))

	before, revision := counter.Counts(), cluster.Revision(t)
	first := read(rw)
	counter.Costs(t, before, "Txn 1")
	require.Equal(t, revision+1, first.Token())
	before = counter.Counts()
	second := read(rw)
	if since, exact := counter.Exactly(t, before); exact {
		require.LessOrEqual(t, since.Of("Range")+since.Of("Txn"), 1, "%v", since)
		require.LessOrEqual(t, since.Of("Watch"), 1, "%v", since)
	}
	before = counter.Counts()
	third, err := rw.TryRLock(t.Context())
	require.NoError(t, err)
	counter.Costs(t, before, "none")
	require.Equal(t, revision+1, cluster.Revision(t))
	for _, h := range []*etcdlock.Hold{second, third} {
		require.Equal(t, first.Token(), h.Token())
		require.NoError(t, h.Context(t.Context()).Err())
	}

	other := NewSession(t, cluster.Client(t))
	elsewhere, err := other.RWMutex("x")
	require.NoError(t, err)
	beside := read(elsewhere)
	require.Greater(t, beside.Token(), first.Token())
	twoHold(t, client, "read")

	peer, in := theirsWaits(t, cluster, 3)
	require.ErrorIs(t, MutexOf(t, other, "x").TryLock(t.Context()), etcdlock.ErrLocked)
	waiting := holdsOnce(func() (*etcdlock.Hold, error) { return elsewhere.RLock(Patient(t)) })
	require.Eventually(t, func() bool { // the watch has told of the writer
		h, err := rw.TryRLock(t.Context())
		if err == nil {
			require.NoError(t, h.Unlock(t.Context()))
		}
		return errors.Is(err, etcdlock.ErrLocked)
	}, Patience, time.Millisecond)
	for _, h := range []*etcdlock.Hold{third, first, beside} {
		require.Empty(t, in, "some read")
		require.NoError(t, h.Unlock(t.Context()))
	}
	require.NoError(t, second.Context(t.Context()).Err())
	require.Empty(t, in, "one reads")
	require.NoError(t, second.Unlock(t.Context()))
	require.ErrorIs(t, second.Unlock(t.Context()), etcdlock.ErrNotHeld)
	require.NoError(t, <-in)
	revision = cluster.Revision(t)
	_, err = rw.TryRLock(t.Context())
	var locked *etcdlock.LockedError
	ok := errors.As(err, &locked)
	require.True(t, ok, "%v", err)
	require.Equal(t, etcdlock.ModeExclusive, locked.Holder.Mode)
	require.Equal(t, revision, cluster.Revision(t))
	require.Empty(t, waiting, "one writes")
	require.NoError(t, peer.Unlock(Patient(t)))
	require.NoError(t, <-waiting)
}

// Goroutines of two Sessions read and write. A writer is alone, readers see no writer, and
// the tokens of writers grow.
func TestReadersAndWritersExcludeAsTheyShould(t *testing.T, w World) {
	cluster := w.Start(t)
	var inside, written atomic.Int64 // 1 for each that reads, 1,000 for each that writes
	var wg sync.WaitGroup
	for range 2 {
		s := NewSession(t, cluster.Client(t))
		for g := range 4 {
			rw, err := s.RWMutex("x")
			require.NoError(t, err)
			wg.Go(func() {
				for range max(w.Cycles/4, 1) {
					if g > 0 {
						err := rw.RDo(Patient(t), func(ctx context.Context) error {
							if inside.Add(1) >= 1000 {
								t.Error("one reads beside a writer")
							}
							token, _ := etcdlock.TokenFrom(ctx)
							if token < written.Load() {
								t.Errorf("one reads with token %d after a write with %d", token, written.Load())
							}
							runtime.Gosched()
							inside.Add(-1)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
						continue
					}
					err := rw.Do(Patient(t), func(context.Context) error {
						if inside.Add(1000) != 1000 {
							t.Error("a writer is not alone")
						}
						if before := written.Swap(rw.Token()); before >= rw.Token() {
							t.Errorf("token %d after %d", rw.Token(), before)
						}
						runtime.Gosched()
						inside.Add(-1000)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}
