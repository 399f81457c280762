package mutex

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// detached returns a context that derives from ctx, does not end with it, and does not last
// for ever.
func detached(t *testing.T, ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), contract.Patience)
	t.Cleanup(cancel)
	return ctx
}

// contextsFrom returns contexts that derive from a hold's context in each possible way.
func contextsFrom(t *testing.T, hold context.Context) map[string]context.Context {
	cancelled, cancel := context.WithCancel(hold)
	t.Cleanup(cancel)
	bounded, cancel := context.WithTimeout(hold, time.Hour)
	t.Cleanup(cancel)
	type key struct{}
	return map[string]context.Context{
		"the hold's own context":     hold,
		"one that can be cancelled":  cancelled,
		"one with a deadline":        bounded,
		"one with a value":           context.WithValue(hold, key{}, 1),
		"one without cancellation":   detached(t, hold),
		"one from all of the former": detached(t, context.WithValue(bounded, key{}, 1)),
	}
}

func TestLockWithAContextOfItsOwnHoldIsADeadlock(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		s := contract.NewSession(t, client)
		mu, twin, other := contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "a"),
			contract.MutexOf(t, s, "b")
		require.NoError(t, mu.Lock(ctx))
		token := mu.Token()
		for _, from := range contextsFrom(t, mu.Context(ctx)) {
			for _, lock := range contract.Locking {
				refuses(t, etcd, etcdlock.ErrDeadlock, `"a"`, func() error { return lock(mu, from) })
				refuses(t, etcd, etcdlock.ErrDeadlock, `"a"`, func() error { return lock(twin, from) })
			}
		}
		contract.StillHolds(t, client, mu)
		require.Equal(t, token, mu.Token())

		// The hold of another name in between hides nothing.
		require.NoError(t, other.Lock(mu.Context(ctx)), "another name is no deadlock")
		between := other.Context(mu.Context(ctx))
		refuses(t, etcd, etcdlock.ErrDeadlock, `"a"`, func() error { return mu.Lock(between) })
		refuses(t, etcd, etcdlock.ErrDeadlock, `"b"`, func() error { return other.Lock(between) })
		require.NoError(t, other.Unlock(ctx))

		// Once the hold is over, its contexts are contexts like any other.
		old := detached(t, mu.Context(ctx))
		require.NoError(t, mu.Unlock(ctx))
		require.NoError(t, mu.Lock(old))
		require.NoError(t, mu.Unlock(ctx))
	})
}

func TestReentrantLocksAreCountedAndTheLastUnlockReleases(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		s := contract.NewSession(t, client, etcdlock.WithReentrancy())
		mu := contract.MutexOf(t, s, "a")
		rival := contract.NewMutex(t, client, "a")
		require.NoError(t, mu.Lock(ctx))
		token, before := mu.Token(), etcd.Counts()
		nested := 0
		for about, from := range contextsFrom(t, mu.Context(ctx)) {
			require.NoError(t, mu.Lock(from), about)
			require.NoError(t, mu.TryLock(from), about)
			require.NoError(t, mu.Do(from, func(ctx context.Context) error {
				inner, ok := etcdlock.TokenFrom(ctx)
				require.True(t, ok)
				require.Equal(t, token, inner)
				return nil
			}), about)
			nested += 2
		}
		require.Equal(t, before, etcd.Counts())
		for range nested {
			require.NoError(t, mu.Unlock(ctx))
			require.Equal(t, token, mu.Token(), "the same hold goes on")
		}
		contract.StillHolds(t, client, mu)
		require.ErrorIs(t, rival.TryLock(ctx), etcdlock.ErrLocked)
		hold := mu.Context(ctx)
		require.NoError(t, mu.Unlock(ctx), "the last one")
		require.Equal(t, etcdlock.ErrUnlocked, context.Cause(hold))
		require.NoError(t, rival.TryLock(ctx), "the last Unlock released")
		require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrNotHeld)
		contract.StillHolds(t, client, rival)
		require.NoError(t, rival.Unlock(ctx))
	})
}

func TestReentrancyGoesByTheContextAlone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		mu := contract.NewMutex(t, client, "a", etcdlock.WithReentrancy())
		require.NoError(t, mu.Lock(ctx))
		require.ErrorIs(t, mu.TryLock(ctx), etcdlock.ErrLocked, "another context is another caller")
		other := contract.NewMutex(t, client, "a", etcdlock.WithReentrancy())
		require.ErrorIs(t, other.TryLock(mu.Context(ctx)), etcdlock.ErrLocked,
			"another Session is another holder")
		require.NoError(t, mu.Unlock(ctx))
	})
}

func TestAHoldMayBeNestedInByAnotherMutexOfTheSession(t *testing.T) {
	for order, unlockFirst := range map[string]int{"the inner one unlocks first": 1,
		"the outer one unlocks first": 0} {
		t.Run(order, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				client, ctx := etcd.Client("a"), contract.Patient(t)
				s := contract.NewSession(t, client, etcdlock.WithReentrancy())
				both := []*etcdlock.Mutex{contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "a")}
				rival := contract.NewMutex(t, client, "a")
				require.NoError(t, both[0].Lock(ctx))
				require.NoError(t, both[1].Lock(both[0].Context(ctx)))
				require.Equal(t, both[0].Token(), both[1].Token(), "one hold")

				first, last := both[unlockFirst], both[1-unlockFirst]
				require.NoError(t, first.Unlock(ctx))
				require.ErrorIs(t, first.Unlock(ctx), etcdlock.ErrNotHeld, "each unlocks its own only")
				require.Zero(t, first.Token())
				contract.StillHolds(t, client, last)
				require.ErrorIs(t, rival.TryLock(ctx), etcdlock.ErrLocked)
				require.NoError(t, last.Unlock(ctx))
				require.NoError(t, rival.TryLock(ctx))
				require.NoError(t, rival.Unlock(ctx))
			})
		})
	}
}

// A Mutex of the Session without the option keeps its own rule.
func TestReentrancyIsTheOptionOfTheOneThatNests(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		s := contract.NewSession(t, client)
		plain, reentrant := contract.MutexOf(t, s, "a"),
			contract.MutexOf(t, s, "a", etcdlock.WithReentrancy())
		require.NoError(t, reentrant.Lock(ctx))
		require.ErrorIs(t, plain.Lock(reentrant.Context(ctx)), etcdlock.ErrDeadlock)
		require.NoError(t, reentrant.Unlock(ctx))
		require.NoError(t, plain.Lock(ctx))
		require.NoError(t, reentrant.Lock(plain.Context(ctx)))
		require.NoError(t, reentrant.Unlock(ctx))
		require.NoError(t, plain.Unlock(ctx))
	})
}

// Nesting in a hold that is lost would be a critical section without a lock.
func TestNobodyNestsInALostHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		s := contract.NewSession(t, client, etcdlock.WithReentrancy())
		mu := contract.MutexOf(t, s, "a")
		require.NoError(t, mu.Lock(ctx))
		hold := mu.Context(ctx)
		_, err := client.Delete(ctx, mu.Key())
		require.NoError(t, err)
		<-hold.Done()
		synctest.Wait() // for the question why the key is gone
		for _, from := range []context.Context{hold, detached(t, hold)} {
			for _, lock := range contract.Locking {
				refuses(t, etcd, etcdlock.ErrLost, `"a"`, func() error { return lock(mu, from) })
			}
		}
		require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrLost)
		require.NoError(t, mu.Lock(ctx), "free for the next Lock")
		require.NoError(t, mu.Unlock(ctx))
	})
}

// A Lock that nests is part of the hold around it: of its own options only WithReentrancy counts.
func TestALockThatNestsHasTheOptionsOfTheHoldAroundIt(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		opts := []etcdlock.Option{etcdlock.WithReentrancy(), etcdlock.WithMaxHold(time.Second),
			tests.Listens, etcdlock.WithInfo("nested")}
		outer, err := s.Lock(t.Context(), "n")
		require.NoError(t, err)
		nested, err := s.Lock(outer.Context(t.Context()), "n", opts...)
		require.NoError(t, err)
		require.Nil(t, etcdlock.RecallFrom(nested.Context(t.Context())))
		require.Empty(t, tests.PlaceOf(t, etcd, "n", 0).Info)
		time.Sleep(time.Minute)
		tests.RequireHolds(t, nested)
		require.NoError(t, nested.Unlock(t.Context()))
		tests.UnlockAll(t, outer)

		rw := tests.RWMutexOf(t, s)
		outer, err = rw.RLock(t.Context())
		require.NoError(t, err)
		nested, err = tests.RWMutexOf(t, s, opts...).RLock(outer.Context(t.Context()))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		tests.RequireHolds(t, nested)
		tests.UnlockAll(t, nested, outer)
	})
}

// A nester is one of two locks of a name, each with a Lock in the same hold.
type nester struct {
	lock    func(ctx context.Context) (hold context.Context, unlock func() error, err error)
	closing func(ctx context.Context) error
}

// nesters are the ways in which locks nest, by what makes one of a Session.
var nesters = map[string]func(t *testing.T, s *etcdlock.Session) nester{
	"Mutex": func(t *testing.T, s *etcdlock.Session) nester {
		return nesterOf(contract.MutexOf(t, s, "n"))
	},
	"writer": func(t *testing.T, s *etcdlock.Session) nester {
		return nesterOf(tests.RWMutexOf(t, s).Mutex)
	},
	"reader": func(t *testing.T, s *etcdlock.Session) nester {
		rw := tests.RWMutexOf(t, s)
		return nester{func(ctx context.Context) (context.Context, func() error, error) {
			h, err := rw.RLock(ctx)
			return h.Context(context.Background()), func() error {
				return h.Unlock(context.Background())
			}, err
		}, rw.Close}
	},
}

func nesterOf(m *etcdlock.Mutex) nester {
	return nester{func(ctx context.Context) (context.Context, func() error, error) {
		err := m.Lock(ctx)
		return m.Context(context.Background()), func() error {
			return m.Unlock(context.Background())
		}, err
	}, m.Close}
}

// Close ends what its lock has not unlocked, and nothing else: neither the hold that it has
// begun, once only another lock of the name nests in it, nor the one in which it has nested.
func TestCloseOfALockThatHasUnlockedLeavesWhatNestsAlone(t *testing.T) {
	for kind, open := range nesters {
		for about, unlocks := range map[string]int{"the outer one": 0, "the inner one": 1} {
			t.Run(kind+", "+about, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					ctx := context.Background()
					s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy())
					both := []nester{open(t, s), open(t, s)}
					var holds [2]context.Context
					var unlock, again [2]func() error
					var err error
					from := ctx
					for i := range both {
						holds[i], unlock[i], err = both[i].lock(from)
						require.NoError(t, err)
						from = holds[0]
						_, again[i], err = both[i].lock(from)
						require.NoError(t, err)
					}
					rests := 1 - unlocks
					require.NoError(t, unlock[unlocks]())
					require.NoError(t, again[unlocks]())
					require.NoError(t, both[unlocks].closing(ctx))
					require.NoError(t, holds[rests].Err(), "the hold goes on for the other one")
					require.NoError(t, unlock[rests]())
					require.NoError(t, holds[rests].Err(), "it is locked once more")
					require.Len(t, etcd.Keys("n/"), 1)
					require.NoError(t, again[rests]())
					require.Equal(t, etcdlock.ErrUnlocked, context.Cause(holds[rests]))
					require.Empty(t, etcd.Keys("n/"))
				})
			})
			t.Run(kind+", which nests anew, "+about, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					ctx := context.Background()
					s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy())
					both := []nester{open(t, s), open(t, s)}
					hold, unlockOuter, err := both[0].lock(ctx)
					require.NoError(t, err)
					_, unlockInner, err := both[1].lock(hold)
					require.NoError(t, err)
					require.NoError(t, []func() error{unlockOuter, unlockInner}[unlocks]())
					_, unlockAnew, err := both[unlocks].lock(hold)
					require.NoError(t, err)
					require.NoError(t, both[unlocks].closing(ctx))
					require.Equal(t, etcdlock.ErrClosed, context.Cause(hold))
					require.ErrorIs(t, unlockAnew(), etcdlock.ErrNotHeld)
				})
			})
			t.Run(kind+", one of two Locks of "+about, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					ctx := context.Background()
					s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy())
					both := []nester{open(t, s), open(t, s)}
					hold, unlockOuter, err := both[0].lock(ctx)
					require.NoError(t, err)
					_, unlockInner, err := both[1].lock(hold)
					require.NoError(t, err)
					_, unlockAgain, err := both[unlocks].lock(hold)
					require.NoError(t, err)
					unlock := []func() error{unlockOuter, unlockInner}
					require.NoError(t, unlock[unlocks]())
					require.NoError(t, both[unlocks].closing(ctx))
					require.Equal(t, etcdlock.ErrClosed, context.Cause(hold))
					require.ErrorIs(t, unlockAgain(), etcdlock.ErrNotHeld)
					require.ErrorIs(t, unlock[1-unlocks](), etcdlock.ErrNotHeld)
					require.Empty(t, etcd.Keys("n/"))
				})
			})
		}
	}
}
