package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// manyNames returns n names.
func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("n", i))
	}
	return names
}

// allWithin is LockAll, and fails if that takes longer than most.
func allWithin(t *testing.T, s *etcdlock.Session, most time.Duration, names ...string) *etcdlock.Hold {
	t.Helper()
	h := holdWithin(t, most, func(ctx context.Context) (*etcdlock.Hold, error) { return s.LockAll(ctx, names...) })
	require.Len(t, h.IsOwner(), len(names))
	return h
}

// allLater is a LockAll that is under way. If it fails it returns a nil Hold, and every
// test fails on that.
func allLater(s *etcdlock.Session, names ...string) <-chan *etcdlock.Hold {
	in := make(chan *etcdlock.Hold, 1)
	go func() {
		h, _ := s.LockAll(context.Background(), names...)
		in <- h
	}()
	synctest.Wait()
	return in
}

// keysBelow returns the keys below a name, with their create revisions, as etcd has them.
func keysBelow(t *testing.T, etcd *fake.Server, name string) map[string]int64 {
	t.Helper()
	resp, err := etcd.Client("operator").Get(context.Background(), line.Prefix(name), clientv3.WithPrefix())
	require.NoError(t, err)
	keys := make(map[string]int64)
	for _, kv := range resp.Kvs {
		keys[string(kv.Key)] = kv.CreateRevision
	}
	return keys
}

// The rows of the costs: any number of names costs what one costs.
func TestWhatSeveralNamesCost(t *testing.T) {
	for _, n := range []int{1, 2, 32} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			etcd.MaxTxnOps(128) // etcd's default
			s, names := processIn(t, etcd, "a"), manyNames(n)
			done(t, allWithin(t, s, time.Second, names...)) // has a lease from here on

			now := callsSince(etcd)
			h := allWithin(t, s, time.Second, names...)
			costs(t, now, "Txn 1", 1)
			for _, name := range names {
				keys := keysBelow(t, etcd, name)
				require.Len(t, keys, 1)
				for _, rev := range keys {
					require.Equal(t, h.Token(), rev)
				}
			}
			now = callsSince(etcd)
			done(t, h)
			costs(t, now, "Txn 1", 1)

			now = callsSince(etcd)
			h, err := s.TryLockAll(context.Background(), names...)
			require.NoError(t, err)
			costs(t, now, "Txn 1", 1)
			// Its own Session holds it: TryLockAll sends nothing.
			now = callsSince(etcd)
			_, err = s.TryLockAll(context.Background(), append([]string{"free"}, names[n-1])...)
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			require.ErrorContains(t, err, names[n-1])
			costs(t, now, "", 0)
			done(t, h)

			other := contract.MutexOf(t, processIn(t, etcd, "b"), names[n-1])
			lockWithin(t, other, time.Second)
			now = callsSince(etcd)
			_, err = s.TryLockAll(context.Background(), names...)
			locked, ok := errors.AsType[*etcdlock.LockedError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, names[n-1], locked.Name)
			require.Equal(t, "b", locked.Holder.Owner)
			require.Equal(t, 1, locked.Ahead)
			costs(t, now, "Txn 1", 0)
			require.NoError(t, other.Unlock(context.Background()))
		})
	}
}

// Strays below a name block nobody, and neither does a nested name.
func TestTryLockAllBesideStrays(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		operator := etcd.Client("operator")
		for _, key := range []string{"x/stray", "y/z/stray"} {
			_, err := operator.Put(context.Background(), key, "")
			require.NoError(t, err)
		}
		s := processIn(t, etcd, "a")
		nested := contract.MutexOf(t, processIn(t, etcd, "b"), "x/nested")
		lockWithin(t, nested, time.Second)
		h, err := s.TryLockAll(context.Background(), "x", "y", "y/z", "free")
		require.NoError(t, err)
		now := callsSince(etcd)
		_, err = s.TryLockAll(context.Background(), "w", "x/nested")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		calls, revisions := now()
		require.Equal(t, "Txn 1", calls)
		require.Zero(t, revisions)
		done(t, h)
		require.NoError(t, nested.Unlock(context.Background()))
		_, err = operator.Delete(context.Background(), "", clientv3.WithPrefix())
		require.NoError(t, err)
	})
}

// What LockAll refuses, it refuses at once, and the text has the value.
func TestTheNamesOfALockAll(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		now := callsSince(etcd)
		for _, row := range []struct {
			names []string
			text  string
		}{
			{nil, "no names"},
			{manyNames(33), "33 names, more than 32"},
			{[]string{"a", "b", "a"}, `name "a" twice`},
			{[]string{"a", ""}, `name "" is empty`},
			{[]string{"a", "b/"}, `name "b/" ends with "/"`},
			{[]string{"a", strings.Repeat("n", 1025)}, "1025 bytes"},
		} {
			for _, lock := range []func(context.Context, ...string) (*etcdlock.Hold, error){s.LockAll, s.TryLockAll} {
				h, err := lock(context.Background(), row.names...)
				require.Nil(t, h)
				require.ErrorContains(t, err, row.text)
			}
			err := s.DoAll(context.Background(), row.names, func(context.Context) error { panic("called") })
			require.ErrorIs(t, err, etcdlock.ErrNotRun)
			require.ErrorContains(t, err, row.text)
		}
		require.ErrorIs(t, s.DoAll(context.Background(), []string{"a"}, nil), etcdlock.ErrNotRun)
		var no context.Context
		_, err := s.LockAll(no, "a")
		require.ErrorContains(t, err, "nil context")
		for _, none := range []*etcdlock.Session{nil, new(etcdlock.Session)} {
			_, err := none.LockAll(context.Background(), "a")
			require.ErrorContains(t, err, "NewSession")
		}
		calls, _ := now()
		require.Empty(t, calls)
	})
}

// A DoAll inside a hold of one of its names would wait for itself. So would a Lock inside a
// DoAll, unless it nests: then the last Unlock releases all names.
func TestLockAllInsideAndAroundOtherHolds(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a", etcdlock.WithReentrancy())
		mu := contract.MutexOf(t, s, "b")
		inside := lockWithin(t, mu, time.Second)
		_, err := s.LockAll(inside, "a", "b", "c")
		require.ErrorIs(t, err, etcdlock.ErrDeadlock)
		require.ErrorContains(t, err, `"b"`)
		_, err = s.TryLockAll(inside, "b")
		require.ErrorIs(t, err, etcdlock.ErrDeadlock)
		free := allWithin(t, s, time.Second, "a", "c")
		require.NoError(t, mu.Unlock(context.Background()))
		done(t, free)

		h := allWithin(t, s, time.Second, "a", "b", "c")
		inside = h.Context(context.Background())
		token, ok := etcdlock.TokenFrom(inside)
		require.True(t, ok)
		require.Equal(t, h.Token(), token)
		_, err = s.LockAll(inside, "x", "c")
		require.ErrorIs(t, err, etcdlock.ErrDeadlock)
		strict, err := s.RWMutex("c")
		require.NoError(t, err)
		_, err = strict.RLock(inside)
		require.ErrorIs(t, err, etcdlock.ErrDeadlock)

		require.NoError(t, mu.Lock(inside))
		require.Equal(t, h.Token(), mu.Token())
		require.NoError(t, h.Unlock(context.Background()))
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
		for _, name := range []string{"a", "b", "c"} {
			require.Len(t, keysBelow(t, etcd, name), 1, "a Lock nests in it")
		}
		require.NoError(t, mu.Unlock(context.Background()))
		for _, name := range []string{"a", "b", "c"} {
			require.Empty(t, keysBelow(t, etcd, name))
		}

		// Close of a nested hold ends all.
		h = allWithin(t, s, time.Second, "a", "b", "c")
		inside = h.Context(context.Background())
		require.NoError(t, mu.Lock(inside))
		require.NoError(t, mu.Close(context.Background()))
		require.ErrorIs(t, context.Cause(inside), etcdlock.ErrClosed)
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
		requireOver(t, h)
		done(t, allWithin(t, s, time.Second, "a", "b", "c"))
	})
}

// LockAll waits in each line, behind those that came before. All that come later wait for
// it, in each line, though it holds nothing yet.
func TestLockAllGetsInAsItCame(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "s")
		mutex := func(name string) *etcdlock.Mutex { return contract.MutexOf(t, processIn(t, etcd, name+"'s"), name) }
		a, b, lateA, lateC := mutex("a"), mutex("b"), mutex("a"), mutex("c")
		lockWithin(t, a, time.Second)
		lockWithin(t, b, time.Second)
		in := allLater(s, "a", "b", "c")
		time.Sleep(time.Second)
		first, second := writesLater(lateA), writesLater(lateC)
		time.Sleep(time.Minute)
		waits(t, second, "LockAll came before it")
		waits(t, in, "both hold")
		now := callsSince(etcd)
		require.NoError(t, a.Unlock(context.Background()))
		waits(t, in, "one holds")
		waits(t, first, "LockAll came before it")
		calls, _ := now()
		require.Equal(t, "Txn 1", calls, "the hand-over costs no request")
		now = callsSince(etcd)
		require.NoError(t, b.Unlock(context.Background()))
		h := soonOr(t, in, "LockAll does not get in")
		calls, _ = now()
		require.Equal(t, "Txn 1", calls, "the hand-over costs no request")
		waits(t, first, "LockAll holds")
		waits(t, second, "LockAll holds")
		done(t, h)
		require.NoError(t, soonOr(t, first, "the first does not get in"))
		require.NoError(t, soonOr(t, second, "the second does not get in"))
		require.NoError(t, lateA.Unlock(context.Background()))
		require.NoError(t, lateC.Unlock(context.Background()))
	})
}

// The error of a wait that ends names the first name that is in the way. The wait leaves
// nothing in any line.
func TestALockAllThatGivesUp(t *testing.T) {
	for _, local := range []bool{false, true} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := processIn(t, etcd, "a")
			home := processIn(t, etcd, "b")
			if local {
				home = s
			}
			other := contract.MutexOf(t, home, "y")
			lockWithin(t, other, time.Second)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := s.LockAll(ctx, "x", "y", "z")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			locked, ok := errors.AsType[*etcdlock.LockedError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, "y", locked.Name)
			require.ErrorContains(t, err, `"y": 2nd in line`)
			time.Sleep(time.Second)
			require.Empty(t, keysBelow(t, etcd, "x"))
			require.Len(t, keysBelow(t, etcd, "y"), 1)
			done(t, allWithin(t, s, time.Second, "x", "z"))
			done(t, allWithin(t, processIn(t, etcd, "c"), time.Second, "x", "z"))
			require.NoError(t, other.Unlock(context.Background()))
			done(t, allWithin(t, s, time.Second, "x", "y", "z"))
		})
	}
}

// If the key of one name is lost the whole Hold is lost, and the error has that name. The
// others go with its Unlock.
func TestALossOfOneOfSeveralNames(t *testing.T) {
	for _, known := range []bool{true, false} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := processIn(t, etcd, "a")
			h := allWithin(t, s, time.Second, "x", "y", "z")
			token, ctx := h.Token(), h.Context(context.Background())
			time.Sleep(5 * time.Second)
			for key := range keysBelow(t, etcd, "y") {
				_, err := etcd.Client("operator").Delete(context.Background(), key)
				require.NoError(t, err)
			}
			if known {
				endsAfter(t, ctx, time.Now())
				lost, ok := errors.AsType[*etcdlock.LostError](context.Cause(ctx))
				require.True(t, ok)
				require.Equal(t, "y", lost.Name)
				requireOver(t, h)
				require.Len(t, keysBelow(t, etcd, "x"), 1, "the loser may be at work")
			}
			err := h.Unlock(context.Background())
			lost, ok := errors.AsType[*etcdlock.LostError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, &etcdlock.LostError{Name: "y", Token: token, Reason: etcdlock.ErrKeyDeleted}, lost)
			synctest.Wait()
			for _, name := range []string{"x", "y", "z"} {
				require.Empty(t, keysBelow(t, etcd, name))
			}
			require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
			done(t, allWithin(t, processIn(t, etcd, "b"), time.Second, "z", "y", "x"))
			done(t, allWithin(t, s, time.Second, "z", "y", "x"))
		})
	}
}

// The end of the lease, of the longest hold, and of the Session ends all names.
func TestSeveralNamesEndTogether(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a", etcdlock.WithMaxHold(time.Minute))
		h := allWithin(t, s, time.Second, "x", "y")
		ctx := h.Context(context.Background())
		require.Equal(t, time.Minute, endsAfter(t, ctx, time.Now()).Round(time.Second))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		synctest.Wait()
		require.Empty(t, keysBelow(t, etcd, "x"))
		require.Empty(t, keysBelow(t, etcd, "y"))
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrMaxHold)

		h = allWithin(t, s, time.Second, "x", "y")
		ctx = h.Context(context.Background())
		etcd.Cut("a")
		endsAfter(t, ctx, time.Now())
		lost, ok := errors.AsType[*etcdlock.LostError](context.Cause(ctx))
		require.True(t, ok)
		require.Equal(t, "x", lost.Name)
		require.ErrorIs(t, lost, etcdlock.ErrExpired)
		etcd.Heal("a")
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrExpired)

		h = allWithin(t, s, time.Minute, "x", "y")
		ctx = h.Context(context.Background())
		in := make(chan error, 1)
		go func() {
			_, err := s.LockAll(context.Background(), "y", "z")
			in <- err
		}()
		other := processIn(t, etcd, "b")
		elsewhere := allWithin(t, other, time.Second, "w")
		inEtcd := make(chan error, 1)
		go func() {
			_, err := s.LockAll(context.Background(), "v", "w")
			inEtcd <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, s.Close(context.Background()))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.ErrorIs(t, soonOr(t, in, "the wait does not end"), etcdlock.ErrClosed)
		require.ErrorIs(t, soonOr(t, inEtcd, "the wait does not end"), etcdlock.ErrClosed)
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
		_, err := s.LockAll(context.Background(), "x")
		require.ErrorIs(t, err, etcdlock.ErrClosed)
		done(t, elsewhere)
		done(t, allWithin(t, other, time.Second, "v", "w", "x", "y", "z"))
	})
}

// A key of a wait is deleted, at the head of its line or behind others. The call queues
// anew within five seconds, with all keys, which have one revision again.
func TestAKeyOfSeveralThatIsDeletedIsMissed(t *testing.T) {
	for _, name := range []string{"x", "y"} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s, other := processIn(t, etcd, "a"), contract.MutexOf(t, processIn(t, etcd, "b"), "y")
			lockWithin(t, other, time.Second)
			in := allLater(s, "x", "y")
			time.Sleep(3 * time.Second)
			var theirs string
			before := keysBelow(t, etcd, name)
			for key, rev := range before {
				if rev != other.Token() {
					theirs = key
				}
			}
			_, err := etcd.Client("operator").Delete(context.Background(), theirs)
			require.NoError(t, err)
			mutex := contract.MutexOf(t, processIn(t, etcd, "c"), "x")
			if name == "x" { // another that gets in meanwhile is not overlapped
				lockWithin(t, mutex, time.Second)
			}
			time.Sleep(5 * time.Second)
			x, y := keysBelow(t, etcd, "x"), keysBelow(t, etcd, "y")
			var revs []int64
			for _, rev := range x {
				if rev != mutex.Token() {
					revs = append(revs, rev)
				}
			}
			for _, rev := range y {
				if rev != other.Token() {
					revs = append(revs, rev)
				}
			}
			require.Len(t, revs, 2, "%v %v", x, y)
			require.Equal(t, revs[0], revs[1])
			require.NoError(t, other.Unlock(context.Background()))
			if name == "x" {
				waits(t, in, "another holds x")
				require.NoError(t, mutex.Unlock(context.Background()))
			}
			done(t, soonOr(t, in, "LockAll does not get in"))
		})
	}
}

// The answer to the put is lost. The repeat finds the keys, and that they belong together.
// If an operator has deleted one of them meanwhile, it gives up the others.
func TestLockAllAfterALostAnswer(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := processIn(t, etcd, "a")
			done(t, allWithin(t, s, time.Second, "x"))
			etcd.LoseAnswers("a", 1)
			operator := etcd.Client("operator")
			var once sync.Once
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Process == "a" && c.Method == fake.Txn && len(c.Puts) > 0 && c.N > 3 && deleted {
					once.Do(func() { e.Delay = time.Second }) // the repeat
				}
				return e
			})
			in := allLater(s, "x", "y")
			time.Sleep(500 * time.Millisecond)
			if deleted {
				_, err := operator.Delete(context.Background(), line.Prefix("y"), clientv3.WithPrefix())
				require.NoError(t, err)
			}
			h := soonOr(t, in, "LockAll does not get in")
			for _, name := range []string{"x", "y"} {
				for _, rev := range keysBelow(t, etcd, name) {
					require.Equal(t, h.Token(), rev)
				}
			}
			done(t, h)
		})
	}
}

// LockAll comes to hold only by the keys that it has put together: by none that is handed
// off, none that lingers, and none that a release has put.
func TestLockAllTakesOverNoKey(t *testing.T) {
	rows := map[string]etcdlock.Option{
		"handed off": etcdlock.WithHandoff(100), "lingers": etcdlock.WithLinger(time.Hour),
		"put with a release": etcdlock.WithOwner("a"),
	}
	for how, option := range rows {
		t.Run(how, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a", option)
				mu := contract.MutexOf(t, s, "y")
				lockWithin(t, mu, time.Second)
				token := mu.Token()
				if how == "lingers" {
					require.NoError(t, mu.Unlock(context.Background()))
					require.Len(t, keysBelow(t, etcd, "y"), 1)
				}
				in := allLater(s, "x", "y")
				later := writesLater(contract.MutexOf(t, s, "y"))
				if how != "lingers" {
					waits(t, in, "another holds")
					require.Empty(t, keysBelow(t, etcd, "x"), "it does not own all its local lines")
					require.NoError(t, mu.Unlock(context.Background()))
				}
				h := soonOr(t, in, "LockAll does not get in")
				require.Greater(t, h.Token(), token)
				for _, name := range []string{"x", "y"} {
					keys := keysBelow(t, etcd, name)
					require.Len(t, keys, 1)
					for _, rev := range keys {
						require.Equal(t, h.Token(), rev)
					}
				}
				waits(t, later, "LockAll holds")
				done(t, h)
				require.NoError(t, soonOr(t, later, "the one behind does not get in"))
			})
		})
	}
}

// Goroutines of two Sessions take overlapping names in opposed orders, and single names
// beside them, with hand-offs and lingering keys. All get in, and nobody gets in beside
// another.
func TestSeveralNamesNeverWaitInACircle(t *testing.T) {
	options := map[string][]etcdlock.Option{
		"strict": nil, "hand-offs": {etcdlock.WithHandoff(3)}, "linger": {etcdlock.WithLinger(time.Second)},
		"both": {etcdlock.WithHandoff(3), etcdlock.WithLinger(time.Second)},
	}
	sets := [][]string{
		{"a", "b"}, {"b", "a"}, {"b", "c"}, {"c", "b", "a"}, {"a", "c"}, {"a"}, {"b"}, {"c"},
	}
	for how, opts := range options {
		t.Run(how, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var wg sync.WaitGroup
				var mu sync.Mutex
				inside := make(map[string]string)
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				work := func(who string, names []string, i int) {
					mu.Lock()
					for _, name := range names {
						if inside[name] != "" {
							t.Errorf("%s holds %s beside %s", who, name, inside[name])
						}
						inside[name] = who
					}
					mu.Unlock()
					time.Sleep(time.Duration(1+i%7) * time.Millisecond)
					mu.Lock()
					for _, name := range names {
						delete(inside, name)
					}
					mu.Unlock()
				}
				for _, home := range []string{"one", "two"} {
					s := processIn(t, etcd, home, opts...)
					etcd.Delay(home, 3*time.Millisecond)
					for g, names := range sets {
						who := fmt.Sprint(home, g)
						single := contract.MutexOf(t, s, names[0])
						wg.Go(func() {
							for i := range 30 {
								do := func(f func(context.Context) error) error { return s.DoAll(ctx, names, f) }
								if len(names) == 1 {
									do = func(f func(context.Context) error) error { return single.Do(ctx, f) }
								}
								if err := do(func(context.Context) error { work(who, names, i+g); return nil }); err != nil {
									t.Errorf("%s, %v: %v", who, names, err)
									return
								}
							}
						})
					}
				}
				wg.Wait()
			})
		})
	}
}

// A lingering key of the Session's own gives way, also to a TryLockAll. That TryLockAll
// then waits only for etcd.
func TestTryLockAllTakesTheTurnOfAKeyThatLingers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a", etcdlock.WithLinger(time.Hour))
		mu := contract.MutexOf(t, s, "y")
		lockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		require.Len(t, keysBelow(t, etcd, "y"), 1)
		h, err := s.TryLockAll(context.Background(), "x", "y")
		require.NoError(t, err)
		requireReads(t, h)
		done(t, h)
		lockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// A call that only tries has found the key that gives way to it, and its answer comes when etcd has
// already confirmed that this key is gone. It is etcd that it waits for, and no other contender.
func TestATryIsNotRefusedForAKeyOfItsOwnSessionThatHasGone(t *testing.T) {
	for what, try := range map[string]func(s *etcdlock.Session) error{
		"TryLock": func(s *etcdlock.Session) error {
			mu, err := s.Mutex("y", etcdlock.WithInfo("another value: the key that lingers cannot be used"))
			if err == nil {
				err = mu.TryLock(context.Background())
			}
			if err == nil {
				err = mu.Unlock(context.Background())
			}
			return err
		},
		"TryLockAll": func(s *etcdlock.Session) error {
			h, err := s.TryLockAll(context.Background(), "x", "y")
			if err == nil {
				err = h.Unlock(context.Background())
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a", etcdlock.WithLinger(time.Hour))
				mu := contract.MutexOf(t, s, "y")
				lockWithin(t, mu, time.Second)
				require.NoError(t, mu.Unlock(context.Background()))
				require.Len(t, keysBelow(t, etcd, "y"), 1)
				etcd.Intercept(func(c fake.Call) (e fake.Effect) {
					switch {
					case len(c.Puts) > 0:
						e.DelayReply = 20 * time.Millisecond
					case len(c.Deletes) > 0:
						e.Delay = 10 * time.Millisecond
					}
					return e
				})
				require.NoError(t, try(s))
			})
		})
	}
}

// After a restore from a backup that has the keys of a wait, the wait goes on, behind those
// that are there.
func TestLockAllGoesOnAfterASetBackToItsKeys(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		y := contract.MutexOf(t, processIn(t, etcd, "b"), "y")
		lockWithin(t, y, time.Second)
		in := allLater(s, "x", "y")
		time.Sleep(3 * time.Second)
		backup := etcd.Snapshot()
		late := contract.MutexOf(t, processIn(t, etcd, "c"), "x")
		waiting := writesLater(late)
		time.Sleep(3 * time.Second)
		etcd.Restore(backup, 1)
		time.Sleep(time.Minute)
		waits(t, in, "another holds y")
		require.NoError(t, y.Unlock(context.Background()))
		h := soonOr(t, in, "LockAll does not get in")
		waits(t, waiting, "LockAll holds")
		requireReads(t, h)
		done(t, h)
		require.NoError(t, soonOr(t, waiting, "the one behind does not get in"))
		require.NoError(t, late.Unlock(context.Background()))
	})
}

// After a restore from a backup a wait takes nothing for granted: neither its own keys, nor
// those that were before it.
func TestLockAllWaitsThroughASetBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		y := contract.MutexOf(t, processIn(t, etcd, "b"), "y")
		lockWithin(t, y, time.Second)
		backup := etcd.Snapshot()
		in := allLater(s, "x", "y")
		time.Sleep(3 * time.Second)
		etcd.Restore(backup, 1) // without the keys that wait
		x := contract.MutexOf(t, processIn(t, etcd, "c"), "x")
		lockWithin(t, x, time.Minute)
		time.Sleep(time.Minute)
		_ = y.Unlock(context.Background())
		waits(t, in, "another holds x")
		require.NoError(t, x.Unlock(context.Background()))
		done(t, soonOr(t, in, "LockAll does not get in"))
	})
}

// The hooks report each name, with one token.
func TestWhatIsToldOfSeveralNames(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var mu sync.Mutex
		var told []string
		say := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf(format, args...))
		}
		trace := &etcdlock.Trace{
			Queued: func(name string, ahead int, holder etcdlock.Contender) {
				say("%s queued behind %d, %s", name, ahead, holder.Owner)
			},
			Acquired: func(name string, token int64, _ time.Duration, ahead int) {
				say("%s acquired %d behind %d", name, token, ahead)
			},
			Released: func(name string, token int64, _ time.Duration) { say("%s released %d", name, token) },
			GaveUp:   func(name string, _ time.Duration, ahead int, err error) { say("%s gave up behind %d", name, ahead) },
			Lost:     func(name string, token int64, _ time.Duration, reason error) { say("%s lost %d", name, token) },
		}
		s := processIn(t, etcd, "a", etcdlock.WithTrace(trace))
		other := contract.MutexOf(t, processIn(t, etcd, "b"), "y")
		lockWithin(t, other, time.Second)
		in := allLater(s, "x", "y")
		time.Sleep(time.Second)
		require.NoError(t, other.Unlock(context.Background()))
		h := soonOr(t, in, "LockAll does not get in")
		token := h.Token()
		_, err := s.TryLockAll(context.Background(), "y", "z")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		done(t, h)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []string{
			"y queued behind 1, b",
			fmt.Sprintf("x acquired %d behind 0", token), fmt.Sprintf("y acquired %d behind 1", token),
			"y gave up behind 0", "z gave up behind 0",
			fmt.Sprintf("x released %d", token), fmt.Sprintf("y released %d", token),
		}, told)
	})
}

// IsOwner has a comparison for each name, all true while the Hold lasts and none afterwards.
func TestIsOwnerOfSeveralNames(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s, client := processIn(t, etcd, "a"), etcd.Client("operator")
		h := allWithin(t, s, time.Second, "x", "y", "z")
		holds := func(cmps []clientv3.Cmp) bool {
			resp, err := client.Txn(context.Background()).If(cmps...).Commit()
			require.NoError(t, err)
			return resp.Succeeded
		}
		owner := h.IsOwner()
		require.Len(t, owner, 3)
		require.True(t, holds(owner))
		require.Len(t, slices.CompactFunc(slices.Clone(owner), func(a, b clientv3.Cmp) bool {
			return string(a.KeyBytes()) == string(b.KeyBytes())
		}), 3)
		done(t, h)
		require.False(t, holds(owner))
		over := h.IsOwner()
		require.Len(t, over, 3)
		for _, cmp := range over {
			require.False(t, holds([]clientv3.Cmp{cmp}))
		}
	})
}

// A recall of one of the names recalls the whole hold. The holder learns of it by its
// context, which ends after the grace, and all keys go with its Unlock. The same is true if
// the request came while it waited.
func TestSeveralNamesAreRecalledTogether(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		t.Run(fmt.Sprintf("waiting %v", waiting), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				told := 0
				s := processIn(t, etcd, "a", listens, etcdlock.WithTrace(&etcdlock.Trace{
					Recalled: func(string, int64, etcdlock.RecallRequest) { told++ },
				}))
				other := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
				if waiting {
					lockWithin(t, other, time.Second)
				}
				in := allLater(s, "m", "n", "o")
				if waiting {
					recallAt(t, etcd, 1, 3*time.Second)
					require.NoError(t, other.Unlock(context.Background()))
				}
				h := <-in
				hold, start := h.Context(context.Background()), time.Now()
				if !waiting {
					time.Sleep(watchedBy)
					require.False(t, isRecalled(hold))
					start = time.Now()
					recall(t, etcd, 3*time.Second)
				}
				require.True(t, isRecalled(hold))
				require.Equal(t, start.Add(3*time.Second), h.Deadline())
				require.Equal(t, 3*time.Second, endsAfter(t, hold, start))
				require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
				time.Sleep(virtualTTL)
				for _, name := range []string{"m", "n", "o"} {
					require.Len(t, etcd.Keys(name+"/"), 1)
				}
				require.NoError(t, h.Unlock(context.Background()))
				synctest.Wait()
				require.Empty(t, etcd.Keys(""))
				require.Equal(t, 1, told)
			})
		})
	}
}

// A LockAll is first at one name while it waits at another. The first name is recalled. The
// watch that such a key has shows the recall, as early as if the key had been held from
// then on.
func TestARecallWhereALockAllIsTheFirst(t *testing.T) {
	for age := time.Duration(0); age < watchedBy+time.Second; age += 330 * time.Millisecond {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			other := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
			lockWithin(t, other, time.Second)
			in := allLater(processIn(t, etcd, "a", listens), "m", "n")
			first := time.Now()
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("operator"),
				placeOf(t, etcd, "m", 0), etcdlock.RecallRequest{Grace: 3 * time.Second}))
			time.Sleep(age)
			require.NoError(t, other.Unlock(context.Background()))
			h := <-in
			hold := h.Context(context.Background())
			recalledAfter(t, hold, first)
			require.LessOrEqual(t, time.Since(first), max(age, watchedBy), "it began after %v", age)
			require.NoError(t, h.Unlock(context.Background()))
		})
	}
}
