package kinds

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
	"github.com/etcdlock/etcdlock/internal/tests"
)

// manyNames returns n names.
func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("n", i))
	}
	return names
}

// allWithin is LockAll, and fails if that takes longer than most.
func allWithin(
	t *testing.T, s *etcdlock.Session, most time.Duration, names ...string,
) *etcdlock.Hold {
	t.Helper()
	h := tests.HoldWithin(t, most, func(ctx context.Context) (*etcdlock.Hold, error) {
		return s.LockAll(ctx, names...)
	})
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
	resp, err := etcd.Client("operator").Get(context.Background(), line.Prefix(name),
		clientv3.WithPrefix())
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
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			etcd.MaxTxnOps(128) // etcd's default
			s, names := tests.SessionOf(t, etcd, "a"), manyNames(n)
			tests.UnlockAll(t, allWithin(t, s, time.Second, names...)) // has a lease from here on

			now := tests.CallsSince(etcd)
			h := allWithin(t, s, time.Second, names...)
			tests.Costs(t, now, "Txn 1", 1)
			for _, name := range names {
				keys := keysBelow(t, etcd, name)
				require.Len(t, keys, 1)
				for _, rev := range keys {
					require.Equal(t, h.Token(), rev)
				}
			}
			now = tests.CallsSince(etcd)
			tests.UnlockAll(t, h)
			tests.Costs(t, now, "Txn 1", 1)

			now = tests.CallsSince(etcd)
			h, err := s.TryLockAll(context.Background(), names...)
			require.NoError(t, err)
			tests.Costs(t, now, "Txn 1", 1)
			// Its own Session holds it: TryLockAll sends nothing.
			now = tests.CallsSince(etcd)
			_, err = s.TryLockAll(context.Background(), append([]string{"free"}, names[n-1])...)
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			require.ErrorContains(t, err, names[n-1])
			tests.Costs(t, now, "", 0)
			tests.UnlockAll(t, h)

			other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), names[n-1])
			tests.LockWithin(t, other, time.Second)
			now = tests.CallsSince(etcd)
			_, err = s.TryLockAll(context.Background(), names...)
			var locked *etcdlock.LockedError
			ok := errors.As(err, &locked)
			require.True(t, ok, "%v", err)
			require.Equal(t, names[n-1], locked.Name)
			require.Equal(t, "b", locked.Holder.Owner)
			require.Equal(t, 1, locked.Ahead)
			tests.Costs(t, now, "Txn 1", 0)
			require.NoError(t, other.Unlock(context.Background()))
		})
	}
}

// Strays below a name block nobody, and neither does a nested name.
func TestTryLockAllBesideStrays(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		operator := etcd.Client("operator")
		for _, key := range []string{"x/stray", "y/z/stray"} {
			_, err := operator.Put(context.Background(), key, "")
			require.NoError(t, err)
		}
		s := tests.SessionOf(t, etcd, "a")
		nested := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "x/nested")
		tests.LockWithin(t, nested, time.Second)
		h, err := s.TryLockAll(context.Background(), "x", "y", "y/z", "free")
		require.NoError(t, err)
		now := tests.CallsSince(etcd)
		_, err = s.TryLockAll(context.Background(), "w", "x/nested")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		calls, revisions := now()
		require.Equal(t, "Txn 1", calls)
		require.Zero(t, revisions)
		tests.UnlockAll(t, h)
		require.NoError(t, nested.Unlock(context.Background()))
		_, err = operator.Delete(context.Background(), "", clientv3.WithPrefix())
		require.NoError(t, err)
	})
}

// What LockAll refuses, it refuses at once, and the text has the value.
func TestTheNamesOfALockAll(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		now := tests.CallsSince(etcd)
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
			for _, lock := range []func(context.Context, ...string) (*etcdlock.Hold, error){s.LockAll,
				s.TryLockAll} {
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy())
		mu := contract.MutexOf(t, s, "b")
		inside := tests.LockWithin(t, mu, time.Second)
		_, err := s.LockAll(inside, "a", "b", "c")
		require.ErrorIs(t, err, etcdlock.ErrDeadlock)
		require.ErrorContains(t, err, `"b"`)
		_, err = s.TryLockAll(inside, "b")
		require.ErrorIs(t, err, etcdlock.ErrDeadlock)
		free := allWithin(t, s, time.Second, "a", "c")
		require.NoError(t, mu.Unlock(context.Background()))
		tests.UnlockAll(t, free)

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
		tests.RequireEnded(t, h)
		tests.UnlockAll(t, allWithin(t, s, time.Second, "a", "b", "c"))
	})
}

// LockAll waits in each line, behind those that came before. All that come later wait for
// it, in each line, though it holds nothing yet.
func TestLockAllGetsInAsItCame(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "s")
		mutex := func(name string) *etcdlock.Mutex {
			return contract.MutexOf(t, tests.SessionOf(t, etcd, name+"'s"), name)
		}
		a, b, lateA, lateC := mutex("a"), mutex("b"), mutex("a"), mutex("c")
		tests.LockWithin(t, a, time.Second)
		tests.LockWithin(t, b, time.Second)
		in := allLater(s, "a", "b", "c")
		time.Sleep(time.Second)
		first, second := tests.LockLater(lateA), tests.LockLater(lateC)
		time.Sleep(time.Minute)
		tests.StillWaits(t, second, "LockAll came before it")
		tests.StillWaits(t, in, "both hold")
		now := tests.CallsSince(etcd)
		require.NoError(t, a.Unlock(context.Background()))
		tests.StillWaits(t, in, "one holds")
		tests.StillWaits(t, first, "LockAll came before it")
		calls, _ := now()
		require.Equal(t, "Txn 1", calls, "the hand-over costs no request")
		now = tests.CallsSince(etcd)
		require.NoError(t, b.Unlock(context.Background()))
		h := tests.SoonOr(t, in, "LockAll does not get in")
		calls, _ = now()
		require.Equal(t, "Txn 1", calls, "the hand-over costs no request")
		tests.StillWaits(t, first, "LockAll holds")
		tests.StillWaits(t, second, "LockAll holds")
		tests.UnlockAll(t, h)
		require.NoError(t, tests.SoonOr(t, first, "the first does not get in"))
		require.NoError(t, tests.SoonOr(t, second, "the second does not get in"))
		require.NoError(t, lateA.Unlock(context.Background()))
		require.NoError(t, lateC.Unlock(context.Background()))
	})
}

// The error of a wait that ends names the first name that is in the way. The wait leaves
// nothing in any line.
func TestALockAllThatGivesUp(t *testing.T) {
	for _, local := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			home := tests.SessionOf(t, etcd, "b")
			if local {
				home = s
			}
			other := contract.MutexOf(t, home, "y")
			tests.LockWithin(t, other, time.Second)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := s.LockAll(ctx, "x", "y", "z")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			var locked *etcdlock.LockedError
			ok := errors.As(err, &locked)
			require.True(t, ok, "%v", err)
			require.Equal(t, "y", locked.Name)
			require.ErrorContains(t, err, `"y": 2nd in line`)
			time.Sleep(time.Second)
			require.Empty(t, keysBelow(t, etcd, "x"))
			require.Len(t, keysBelow(t, etcd, "y"), 1)
			tests.UnlockAll(t, allWithin(t, s, time.Second, "x", "z"))
			tests.UnlockAll(t, allWithin(t, tests.SessionOf(t, etcd, "c"), time.Second, "x", "z"))
			require.NoError(t, other.Unlock(context.Background()))
			tests.UnlockAll(t, allWithin(t, s, time.Second, "x", "y", "z"))
		})
	}
}

// Goroutines of two Sessions take overlapping names in opposed orders, and single names
// beside them, with hand-offs and lingering keys. All get in, and nobody gets in beside
// another.
func TestSeveralNamesNeverWaitInACircle(t *testing.T) {
	options := map[string][]etcdlock.SessionOption{
		"strict": nil, "hand-offs": {etcdlock.WithHandoff(3)},
		"linger": {etcdlock.WithLinger(time.Second)},
		"both":   {etcdlock.WithHandoff(3), etcdlock.WithLinger(time.Second)},
	}
	sets := [][]string{
		{"a", "b"}, {"b", "a"}, {"b", "c"}, {"c", "b", "a"}, {"a", "c"}, {"a"}, {"b"}, {"c"},
	}
	for how, opts := range options {
		t.Run(how, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
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
					s := tests.SessionOf(t, etcd, home, opts...)
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
								if err := do(func(context.Context) error {
									work(who, names, i+g)
									return nil
								}); err != nil {
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithLinger(time.Hour))
		mu := contract.MutexOf(t, s, "y")
		tests.LockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		require.Len(t, keysBelow(t, etcd, "y"), 1)
		h, err := s.TryLockAll(context.Background(), "x", "y")
		require.NoError(t, err)
		tests.RequireHolds(t, h)
		tests.UnlockAll(t, h)
		tests.LockWithin(t, mu, time.Second)
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithLinger(time.Hour))
				mu := contract.MutexOf(t, s, "y")
				tests.LockWithin(t, mu, time.Second)
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

// The hooks report each name, with one token.
func TestWhatIsToldOfSeveralNames(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var mu sync.Mutex
		var told []string
		say := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf(format, args...))
		}
		trace := &etcdlock.Trace{
			Queued: func(_ context.Context, e etcdlock.QueuedEvent) {
				say("%s queued behind %d, %s", e.Name, e.Ahead, e.Holder.Owner)
			},
			Acquired: func(_ context.Context, e etcdlock.AcquiredEvent) {
				say("%s acquired %d behind %d", e.Name, e.Token, e.Ahead)
			},
			Released: func(_ context.Context, e etcdlock.ReleasedEvent) {
				say("%s released %d", e.Name, e.Token)
			},
			GaveUp: func(_ context.Context, e etcdlock.GaveUpEvent) {
				say("%s gave up behind %d", e.Name, e.Ahead)
			},
			Lost: func(_ context.Context, e etcdlock.LostEvent) { say("%s lost %d", e.Name, e.Token) },
		}
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(trace))
		other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "y")
		tests.LockWithin(t, other, time.Second)
		in := allLater(s, "x", "y")
		time.Sleep(time.Second)
		require.NoError(t, other.Unlock(context.Background()))
		h := tests.SoonOr(t, in, "LockAll does not get in")
		token := h.Token()
		_, err := s.TryLockAll(context.Background(), "y", "z")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		tests.UnlockAll(t, h)
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s, client := tests.SessionOf(t, etcd, "a"), etcd.Client("operator")
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
		tests.UnlockAll(t, h)
		require.False(t, holds(owner))
		over := h.IsOwner()
		require.Len(t, over, 3)
		for _, cmp := range over {
			require.False(t, holds([]clientv3.Cmp{cmp}))
		}
	})
}
