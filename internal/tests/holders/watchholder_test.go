package holders

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// watcher follows the holders of n, as a process of its own.
type watcher struct {
	mu   sync.Mutex
	seen []etcdlock.Contender
	errs []error
	end  func() // returns when the sequence is over
}

// watches begins to follow them.
func watches(client *clientv3.Client, name string) *watcher {
	w := new(watcher)
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	over.Go(func() {
		for c, err := range etcdlock.WatchHolder(ctx, client, name) {
			w.mu.Lock()
			w.seen, w.errs = append(w.seen, c), append(w.errs, err)
			w.mu.Unlock()
		}
	})
	w.end = func() { cancel(); over.Wait() }
	return w
}

// all returns the Contenders that it has seen.
func (w *watcher) all() []etcdlock.Contender {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// sights returns the labels of the holders that it has seen, "-" for nobody.
func (w *watcher) sights() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for i, c := range w.seen {
		switch {
		case w.errs[i] != nil:
			all = append(all, w.errs[i].Error())
		case c == etcdlock.Contender{}:
			all = append(all, "-")
		default:
			all = append(all, c.Owner)
		}
	}
	return strings.Join(all, " ")
}

// While nobody holds, and keys of nested names come and go below the name, WatchHolder reads none
// of them again and again. It sees the holder that comes then, though no event tells.
func TestWatchHolderOfAFreeNameReadsNoNestedNames(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const nested, minutes = 1000, 10
		granted, err := etcd.Client("nested").Grant(context.Background(), 3000)
		require.NoError(t, err)
		key := func(i int) string { return fmt.Sprintf("n/5/%d", i%nested) }
		for i := range nested {
			require.NoError(t, etcd.PutKey(key(i), granted.ID))
		}
		w := watches(etcd.Client("w"), "n")
		synctest.Wait()
		var read atomic.Int64
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Process == "w" {
				e.Drop = c.Method == fake.Event
				e.Edit = func(reply any) { read.Add(int64(tests.KeysIn(reply))) }
			}
			return e
		})
		for i := range minutes * 60 {
			time.Sleep(time.Second)
			etcd.DeleteKey(key(i))
			require.NoError(t, etcd.PutKey(key(i), granted.ID))
		}
		require.LessOrEqual(t, int(read.Load()), minutes*60, "each of those that came, once")
		require.Equal(t, "-", w.sights())
		tests.LockWithin(t, contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n"), time.Second)
		time.Sleep(2 * time.Second)
		require.Equal(t, "- a", w.sights())
		w.end()
		etcd.Intercept(nil)
		for i := range nested {
			etcd.DeleteKey(key(i))
		}
	})
}

// WatchHolder shows each holder at once, in order, with what the holder says of itself. It
// does not show waiters.
func TestWatchHolderSeesEachHolder(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		w := watches(etcd.Client("w"), "n")
		synctest.Wait()
		require.Equal(t, "-", w.sights())
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithInfo("10.0.0.1:80"),
			tests.Listens)
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		tests.LockWithin(t, a, time.Second)
		synctest.Wait()
		require.Equal(t, "- a", w.sights())
		require.Equal(t, tests.PlaceOf(t, etcd, "n", 0), w.all()[1])
		require.Equal(t, "10.0.0.1:80", w.all()[1].Info)
		require.Equal(t, a.Token(), w.all()[1].Token)
		require.True(t, w.all()[1].Holds)

		next := tests.LockLater(b)
		synctest.Wait()
		tests.Recall(t, etcd, time.Hour)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, "- a", w.sights(), "one who waits, and a recall, are no change")
		require.NoError(t, a.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, next, "b does not get in"))
		synctest.Wait()
		require.Equal(t, "- a b", w.sights())
		require.NoError(t, b.Unlock(context.Background()))
		synctest.Wait()
		require.Equal(t, "- a b -", w.sights())
		w.end()
		time.Sleep(time.Minute)
		synctest.Wait() // those of the Sessions end, too
		require.Zero(t, etcd.Watches())
	})
}

// Of several readers it shows the first. When that goes it shows the next one.
func TestWatchHolderSeesTheFirstOfThoseThatRead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var holds []*etcdlock.Hold
		for _, who := range []string{"a", "b", "c"} {
			h, err := tests.RWMutexOf(t, tests.SessionOf(t, etcd, who)).RLock(context.Background())
			require.NoError(t, err)
			holds = append(holds, h)
		}
		w := watches(etcd.Client("w"), "n")
		defer w.end()
		for _, i := range []int{1, 0, 2} {
			synctest.Wait()
			require.NoError(t, holds[i].Unlock(context.Background()))
		}
		synctest.Wait()
		require.Equal(t, "a c -", w.sights())
		require.Equal(t, etcdlock.ModeRead, w.all()[0].Mode)
	})
}

// Keys that are no contenders, however many, hide nobody.
func TestWatchHolderSeesPastStrays(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		for i := range 50 {
			require.NoError(t, etcd.PutKey(fmt.Sprintf("n/stray-%d", i), clientv3.NoLease))
			defer etcd.DeleteKey(fmt.Sprintf("n/stray-%d", i))
		}
		w := watches(etcd.Client("w"), "n")
		defer w.end()
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		time.Sleep(time.Minute)
		synctest.Wait()
		for range 2 {
			tests.LockWithin(t, a, time.Second)
			synctest.Wait()
			require.NoError(t, a.Unlock(context.Background()))
			synctest.Wait()
		}
		require.Equal(t, "- a - a -", w.sights())
	})
}

// A lost event delays what it shows by about two seconds.
func TestWatchHolderOutlivesLostEvents(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		w := watches(etcd.Client("w"), "n")
		defer w.end()
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Process == "w" && c.Method == fake.Event}
		})
		for _, mu := range []*etcdlock.Mutex{a, b} {
			time.Sleep(time.Minute)
			synctest.Wait()
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.True(t, strings.HasSuffix(w.sights(), " "+tests.PlaceOf(t, etcd, "n", 0).Owner),
				w.sights())
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		require.Equal(t, "- a - b -", w.sights())
	})
}

// The watch delivers what happens between the read and the watch.
func TestWatchHolderSeesWhatHappensBeforeItsWatch(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		tests.LockWithin(t, mu, time.Second)
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Process == "w" && c.Method == fake.Watch {
				e.Delay = 200 * time.Millisecond
			}
			return e
		})
		w := watches(etcd.Client("w"), "n")
		defer w.end()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		require.NoError(t, mu.Unlock(context.Background()))
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, "a -", w.sights())
	})
}

// After a restore the holder may be the same, and the revision for which the watch waits is
// far ahead.
func TestWatchHolderWatchesAnewAfterARestore(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		tests.LockWithin(t, mu, time.Second)
		restore := etcd.Save()
		for range 1000 {
			require.NoError(t, etcd.PutKey("other", clientv3.NoLease))
		}
		defer etcd.DeleteKey("other")
		w := watches(etcd.Client("w"), "n")
		defer w.end()
		time.Sleep(time.Second)
		synctest.Wait()
		restore(1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.NoError(t, mu.Unlock(context.Background()))
		synctest.Wait()
		require.Equal(t, "a -", w.sights(), "at once")
	})
}

// It goes on through watches that end, compactions, an etcd that is away, and one that is restored.
func TestWatchHolderOutlivesWhatHappensToEtcd(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		w := watches(etcd.Client("w"), "n")
		defer w.end()
		tests.LockWithin(t, a, time.Second)
		restore := etcd.Save()
		change := func(from, to *etcdlock.Mutex) {
			require.NoError(t, from.Unlock(context.Background()))
			if to != nil {
				tests.LockWithin(t, to, time.Second)
			}
		}
		synctest.Wait()
		etcd.CancelWatches()
		change(a, b)
		etcd.Compact()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.True(t, strings.HasSuffix(w.sights(), " b"), w.sights())

		etcd.Cut("w")
		time.Sleep(time.Minute)
		synctest.Wait()
		change(b, a)
		etcd.Heal("w")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.True(t, strings.HasSuffix(w.sights(), " a"), w.sights())

		etcd.Freeze()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		etcd.Thaw()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		change(a, b)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.True(t, strings.HasSuffix(w.sights(), " b"), w.sights())

		before := len(w.all())
		require.NoError(t, b.Unlock(context.Background()))
		restore(2) // another cluster, in which a's first key still is
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Greater(t, len(w.all()), before)
		time.Sleep(time.Minute)
		synctest.Wait() // that key goes with its lease
		require.True(t, strings.HasSuffix(w.sights(), " -"), w.sights())
		tests.LockWithin(t, a, 2*time.Minute)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.True(t, strings.HasSuffix(w.sights(), " a"), w.sights())
		require.NoError(t, a.Unlock(context.Background()))
	})
}

// Each yielded holder was read after the one before. A member that is behind, or answers
// late requests, takes nothing back.
func TestWatchHolderNeverGoesBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		w := watches(etcd.Client("w"), "n")
		n := 0
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process != "w" {
				return fake.Effect{}
			}
			n++
			return fake.Effect{Delay: time.Duration(n%5) * 300 * time.Millisecond,
				DelayReply: time.Duration(n%3) * 700 * time.Millisecond}
		})
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		for range 200 {
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(170 * time.Millisecond)
			synctest.Wait()
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(90 * time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.end()
		require.Greater(t, len(w.all()), 10)
		var last int64
		for _, c := range w.all() {
			if c.Token != 0 {
				require.Greater(t, c.Token, last)
				last = c.Token
			}
		}
		require.Zero(t, w.all()[len(w.all())-1])
	})
}

// At rest it costs a watch, and a small read each 1.5 s. A change costs a read and a watch,
// however long the line is.
func TestWhatWatchHolderCosts(t *testing.T) {
	for _, waiting := range []int{0, 50} {
		t.Run(fmt.Sprint(waiting), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n")
				tests.LockWithin(t, mu, time.Second)
				for i := range waiting {
					other := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("b", i)), "n")
					go func() { _ = other.Do(t.Context(), func(context.Context) error { return nil }) }()
					synctest.Wait()
				}
				w := watches(etcd.Client("w"), "n")
				defer w.end()
				time.Sleep(time.Second)
				synctest.Wait()
				count := func(method string) (n int) {
					for _, c := range etcd.Calls(method) {
						if c.Process == "w" {
							n++
						}
					}
					return n
				}
				require.Equal(t, []int{1, 1, 0}, []int{count(fake.Range), count(fake.Watch), count(fake.Txn)})
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				require.Equal(t, []int{1, 1}, []int{count(fake.Range), count(fake.Watch)})
				require.InDelta(t, 400, count(fake.Txn), 20)

				etcd.ForgetCalls()
				require.NoError(t, mu.Unlock(context.Background()))
				time.Sleep(time.Second)
				synctest.Wait()
				changes := len(w.all()) - 1 // some of the waiters may have come and gone in between
				require.NotZero(t, changes)
				require.LessOrEqual(t, count(fake.Range), changes+1)
				require.LessOrEqual(t, count(fake.Watch), changes+1)
			})
		})
	}
}

// It ends with one error if retrying does not help, and without an error by its context or
// a break.
func TestWhatEndsWatchHolder(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx := context.Background()
		for _, row := range []struct {
			ctx    context.Context
			client *clientv3.Client
			name   string
			want   string
		}{
			{nil, etcd.Client("w"), "n", "nil context"},
			{ctx, nil, "n", "nil client"},
			{ctx, etcd.Client("w"), "", "is empty"},
			{ctx, etcd.Client("w"), "n/", `ends with "/"`},
		} {
			n := 0
			for c, err := range etcdlock.WatchHolder(row.ctx, row.client, row.name) {
				n++
				require.ErrorContains(t, err, row.want)
				require.Zero(t, c)
			}
			require.Equal(t, 1, n)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for range etcdlock.WatchHolder(ended, etcd.Client("w"), "n") {
			t.Error("its context had ended")
		}

		holders := etcdlock.WatchHolder(ctx, etcd.Client("w"), "n")
		for range 2 {
			for _, err := range holders {
				require.NoError(t, err)
				break
			}
		}
		synctest.Wait()
		require.Zero(t, etcd.Watches())

		client := etcd.Client("w")
		w := watches(client, "n")
		time.Sleep(time.Minute)
		synctest.Wait()
		client.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, w.all(), 2)
		require.ErrorContains(t, w.errs[1], "client")
		w.end()

		w = watches(etcd.Client("w"), "n")
		time.Sleep(time.Minute)
		synctest.Wait()
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Process == "w" {
				e.Before = rpctypes.ErrGRPCPermissionDenied
			}
			return e
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, w.all(), 2)
		require.ErrorIs(t, w.errs[1], rpctypes.ErrPermissionDenied)
		require.ErrorContains(t, w.errs[1], `watch the holder of "n"`)
		w.end()
		require.Zero(t, etcd.Watches())
	})
}

// WatchHolder tells that a name stays taken though its hold is over, and when it is free.
func TestWatchHolderTellsThatANameStaysTaken(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n",
			etcdlock.WithMinHold(least))
		tests.LockWithin(t, mu, time.Second)
		at := time.Now()
		seen := make(chan etcdlock.Contender, 10)
		go func() {
			for holder, err := range etcdlock.WatchHolder(ctx, etcd.Client("follower"), "n") {
				if err == nil {
					seen <- holder
				}
			}
		}()
		next := func() etcdlock.Contender { return tests.SoonOr(t, seen, "nothing is told") }
		first := next()
		require.Zero(t, first.Until)
		require.NoError(t, mu.Unlock(ctx))
		kept := next()
		require.Equal(t, first.Token, kept.Token)
		require.Equal(t, first.Owner, kept.Owner)
		require.True(t, kept.Until.Equal(at.Add(least)))
		require.Zero(t, next().Token)
		require.Equal(t, least, time.Since(at))
		synctest.Wait()
		require.Empty(t, seen)
	})
}
