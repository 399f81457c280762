package mutex

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// What calls say, and how long they take to say it, in the corners: one timeline each.

// b waits behind a and gives up; a unlocks; two minutes later b is cut off: its Lock fails,
// and the error does not say that somebody held the lock.
func TestALockThatIsFreeIsNotSaidToBeHeld(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "x")
		require.NoError(t, a.Lock(tests.Within(t, time.Second)))
		require.ErrorIs(t, b.Lock(tests.Within(t, time.Second)), etcdlock.ErrLocked)
		require.NoError(t, a.Unlock(tests.Within(t, time.Second)))
		time.Sleep(2 * time.Minute)
		etcd.Cut("b")
		err := b.Lock(tests.Within(t, time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, etcdlock.ErrLocked)
		etcd.Heal("b")
	})
}

// An Unlock without a bound is under way, with its requests in pairs; Close has 100 ms.
func TestCloseDoesNotWaitForAnUnlockBeyondItsContext(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "x")
		require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
		etcd.Cut("a")
		unlocked := contract.Async(func() error { return mu.Unlock(context.Background()) })
		time.Sleep(2100 * time.Millisecond) // the first attempt has failed
		began := time.Now()
		require.ErrorIs(t, s.Close(tests.Within(t, 100*time.Millisecond)), etcdlock.ErrUnconfirmed)
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		require.ErrorIs(t, <-unlocked, etcdlock.ErrUnconfirmed)
		etcd.Heal("a")
		time.Sleep(time.Minute) // the lease expires in etcd
	})
}

// A context below the hold's own is cancelled while Unlock waits. Unlock cannot tell that
// from the hold's end, so the release takes at most its own time.
func TestUnlockWithTheHoldsContextIsBounded(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
		etcd.Cut("a")
		began := time.Now()
		require.ErrorIs(t, mu.Unlock(mu.Context(context.Background())), etcdlock.ErrUnconfirmed)
		require.Equal(t, 5*time.Second, time.Since(began))
		etcd.Heal("a")
	})
}

// The requests of a release get no answer for two TTLs, while the lease is renewed. Unlock goes on
// for as long as its context lasts, and is nil once one of them is answered: the hold was whole.
func TestUnlockGoesOnWhileTheLeaseIsRenewed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
		etcd.Intercept(func(c fake.Call) fake.Effect { return fake.Effect{Drop: c.Method == fake.Txn} })
		unlocked := contract.Async(func() error { return mu.Unlock(tests.Within(t, 4*tests.TTL)) })
		time.Sleep(2 * tests.TTL)
		synctest.Wait()
		require.Empty(t, unlocked, "it gave up before its context ended")
		etcd.Intercept(nil)
		require.NoError(t, <-unlocked)
		require.Empty(t, etcd.Keys("x/"))
	})
}

// Somebody puts over the held key, without its lease; the first request of the release is
// lost. Unlock says so, and the name is not used again.
func TestUnlockOfAKeyThatWasPutOverIsALossWhateverGotLost(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
		require.NoError(t, etcd.PutKey(mu.Key(), 0))
		etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{Before: fake.Unavailable}))
		require.ErrorIs(t, mu.Unlock(tests.Within(t, 10*time.Second)), etcdlock.ErrLost)
		require.NoError(t, mu.Lock(tests.Within(t, 10*time.Second)))
		require.NoError(t, mu.Unlock(tests.Within(t, 10*time.Second)))
		require.NoError(t, mu.TryLock(tests.Within(t, 10*time.Second)))
		require.NoError(t, mu.Unlock(tests.Within(t, 10*time.Second)))
		synctest.Wait() // for the removal
		require.Empty(t, etcd.Keys("x/"))
	})
}

// Somebody deletes the held key, and the first request of the release is answered by a member that
// does not carry it out: a learner, for instance. The next one finds no key. No earlier copy can
// have deleted it, so that is a loss.
func TestARequestThatWasNotCarriedOutDoesNotMakeALossLookLikeARelease(t *testing.T) {
	for _, answer := range []error{
		status.Error(codes.FailedPrecondition, "etcdserver: rpc not supported for learner"),
		rpctypes.ErrGRPCNotCapable,
		rpctypes.ErrGRPCAuthOldRevision,
		rpctypes.ErrGRPCRequestTooManyRequests,
	} {
		t.Run(answer.Error(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
				require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
				etcd.DeleteKey(mu.Key())
				etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{Before: answer}))
				require.ErrorIs(t, mu.Unlock(tests.Within(t, 10*time.Second)), etcdlock.ErrLost)
			})
		})
	}
}

// The release finds no key, and asks what became of it. Whatever becomes of that question,
// and of all later ones, the result is a loss: neither a release of its own nor a doubt.
func TestAReleaseThatFoundNoKeyStaysALossWhateverGetsLost(t *testing.T) {
	const unsure = "its key was deleted, or put over"
	for name, row := range map[string]struct {
		effect fake.Effect
		copied bool // clientv3 may have sent the question twice
		reason string
	}{
		"answered":                       {reason: "its key was deleted"},
		"answered to a copy":             {copied: true, reason: "its key was deleted"},
		"lost before it was carried out": {effect: fake.Effect{Before: fake.Unavailable}, reason: unsure},
		"lost after it was carried out":  {effect: fake.Effect{After: fake.Unavailable}, reason: unsure},
		"never answered":                 {effect: fake.Effect{Drop: true}, reason: unsure},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				client := etcd.Client("a")
				kv := &tests.Copying{KV: client.KV}
				client.KV = kv
				s, err := etcdlock.NewSession(client)
				require.NoError(t, err)
				defer s.Close(context.Background())
				mu := contract.MutexOf(t, s, "x")
				require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
				etcd.DeleteKey(mu.Key())
				question := len(etcd.Calls(fake.Txn)) + 2
				etcd.Intercept(tests.FromNth(question, fake.Txn, row.effect))
				if row.copied {
					kv.From.Store(int64(question))
				}
				err = mu.Unlock(tests.Within(t, 10*time.Second))
				etcd.Intercept(nil)
				require.ErrorIs(t, err, etcdlock.ErrLost)
				var lost *etcdlock.LostError
				ok := errors.As(err, &lost)
				require.True(t, ok)
				require.EqualError(t, lost.Reason, "etcdlock: "+row.reason)
			})
		})
	}
}

// A key that is no contender stands where the Session's next key would go.
func TestANameThatIsTakenByAStrayKeyIsNotUsed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		for _, lock := range []func(context.Context) error{mu.Lock, mu.TryLock} {
			require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
			key := mu.Key()
			require.NoError(t, mu.Unlock(tests.Within(t, time.Second)))
			require.NoError(t, etcd.PutKey(key, 0))
			before := len(etcd.Calls(fake.Txn))
			require.NoError(t, lock(tests.Within(t, 10*time.Second)))
			require.NotEqual(t, key, mu.Key())
			require.LessOrEqual(t, len(etcd.Calls(fake.Txn))-before, 6)
			require.NoError(t, mu.Unlock(tests.Within(t, time.Second)))
		}
	})
}

// One answer is lost when b queues. Then an hour of good answers follows: the error is
// about the line.
func TestAnErrorThatWasMadeUpForIsForgotten(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "x")
		require.NoError(t, a.Lock(tests.Within(t, time.Second)))
		etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{Before: fake.Unavailable}))
		err := b.Lock(tests.Within(t, time.Hour))
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.NotErrorIs(t, err, fake.Unavailable)
		require.NoError(t, a.Unlock(tests.Within(t, time.Second)))
	})
}

// The margin leaves less time than a grant takes. So no lease is any good, and the attempts
// are spaced.
func TestGrantsThatComeTooLateAreSpacedAndExplained(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(2*time.Second),
			etcdlock.WithSafetyMargin(1950*time.Millisecond))
		etcd.Intercept(func(fake.Call) fake.Effect {
			return fake.Effect{DelayReply: 60 * time.Millisecond}
		})
		err := contract.MutexOf(t, s, "x").Lock(tests.Within(t, 10*time.Second))
		require.ErrorContains(t, err, "safety margin too large")
		require.LessOrEqual(t, len(etcd.Calls(fake.Grant)), 40)
	})
}

// WithMaxHold ends the hold while etcd is away. Its key is still there when Close returns.
func TestCloseOfALostHoldTellsWhetherItsKeyIsGone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x", etcdlock.WithMaxHold(time.Second))
		require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
		etcd.Cut("a")
		time.Sleep(2 * time.Second)
		require.ErrorIs(t, mu.Close(tests.Within(t, time.Second)), etcdlock.ErrUnconfirmed)
		require.ErrorIs(t, context.Cause(mu.Context(context.Background())), etcdlock.ErrNotHeld)
		etcd.Heal("a")
	})
}

// A key that lingers is given up, by its time or by Close, while etcd is away. No other call can
// tell that it is still there. Once it has gone with its lease, nothing is left.
func TestCloseTellsWhetherAKeyThatLingeredIsGone(t *testing.T) {
	for _, after := range []time.Duration{0, 4 * time.Second, time.Hour} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x",
				etcdlock.WithLinger(3*time.Second))
			tests.LockWithin(t, mu, time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
			require.Len(t, etcd.Keys("x/"), 1)
			etcd.Cut("a")
			time.Sleep(after)
			if after == time.Hour {
				etcd.Heal("a")
				time.Sleep(time.Hour)
				require.NoError(t, mu.Close(tests.Within(t, time.Second)))
				return
			}
			require.ErrorIs(t, mu.Close(tests.Within(t, time.Second)), etcdlock.ErrUnconfirmed)
			require.Len(t, etcd.Keys("x/"), 1)
			etcd.Heal("a")
		})
	}
}

// The key is deleted. Unlock's request finds that, and Close revokes the lease before the
// answer has come.
func TestCloseDoesNotMakeUnlockSayNilForADeletedKey(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		for _, deleted := range []bool{true, false} {
			s := tests.SessionOf(t, etcd, "a")
			mu := contract.MutexOf(t, s, "x")
			require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
			if deleted {
				etcd.DeleteKey(mu.Key())
			}
			etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{DelayReply: 200 * time.Millisecond}))
			unlocked := contract.Async(func() error { return mu.Unlock(context.Background()) })
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, s.Close(context.Background()))
			if deleted {
				require.ErrorIs(t, <-unlocked, etcdlock.ErrLost)
			} else {
				require.NoError(t, <-unlocked)
			}
		}
	})
}

// The revocation by Close comes before the release, which finds nothing. Nothing was lost.
func TestUnlockThatCloseOvertakesIsNoLoss(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "x")
		require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
		etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{Delay: 200 * time.Millisecond}))
		unlocked := contract.Async(func() error { return mu.Unlock(context.Background()) })
		time.Sleep(100 * time.Millisecond)
		closed := contract.Async(func() error { return s.Close(context.Background()) })
		require.NoError(t, <-unlocked)
		require.NoError(t, <-closed)
	})
}

// The usual order of defers: the Mutex, then the client.
func TestAClosedMutexOfAClosedClientSaysClosed(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	closed := contract.NewMutex(t, client, "x")
	open := contract.NewMutex(t, client, "x")
	require.NoError(t, closed.Close(context.Background()))
	require.NoError(t, client.Close())
	require.ErrorIs(t, closed.Lock(t.Context()), etcdlock.ErrClosed)
	require.ErrorIs(t, closed.TryLock(t.Context()), etcdlock.ErrClosed)
	require.ErrorContains(t, open.Lock(t.Context()), "the etcd client is closed")
	require.False(t, errors.Is(open.Lock(t.Context()), etcdlock.ErrClosed))
}

// A hook that ends its goroutine ends no other hook.
func TestAHookThatExitsHarmsNoOther(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		acquired := make(chan struct{}, 3)
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
			LeaseGranted: func(_ context.Context, _ etcdlock.LeaseGrantedEvent) { runtime.Goexit() },
			Acquired:     func(_ context.Context, _ etcdlock.AcquiredEvent) { acquired <- struct{}{} },
		}))
		mu := contract.MutexOf(t, s, "x")
		for range 3 {
			require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
			require.NoError(t, mu.Unlock(tests.Within(t, time.Second)))
			<-acquired
		}
	})
}

// A TryLock that was refused has nothing to remove, unless a copy of its put may come late.
func TestATryThatIsRefusedRemovesOnlyAKeyThatMayCome(t *testing.T) {
	for name, row := range map[string]struct {
		put     fake.Effect // of its first put
		removes []string    // what becomes of its key
	}{
		"its put was answered": {},
		"its put comes late":   {fake.Effect{Delay: 20 * time.Second}, []string{"pending", "done"}},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var removes []string
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					CleanupPending: func(context.Context, etcdlock.CleanupPendingEvent) {
						removes = append(removes, "pending")
					},
					CleanupDone: func(context.Context, etcdlock.CleanupDoneEvent) {
						removes = append(removes, "done")
					},
				}))
				mu, other := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "other")
				tests.LockWithin(t, other, time.Second)
				rival := contract.MutexOf(t, tests.SessionOf(t, etcd, "rival"), "n")
				if row.put.Delay == 0 {
					tests.LockWithin(t, rival, time.Second)
				}
				etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, row.put))
				refused := contract.Async(func() error { return mu.TryLock(tests.Within(t, time.Minute)) })
				synctest.Wait()
				if row.put.Delay > 0 {
					tests.LockWithin(t, rival, time.Second)
				}
				require.ErrorIs(t, <-refused, etcdlock.ErrLocked)
				require.NoError(t, rival.Unlock(t.Context()))
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, row.removes, removes)
				require.Empty(t, etcd.Keys("n/"))
				require.NoError(t, mu.TryLock(t.Context()), "the turn was not passed on")
				require.NoError(t, mu.Unlock(t.Context()))
				require.NoError(t, other.Unlock(t.Context()))
			})
		})
	}
}
