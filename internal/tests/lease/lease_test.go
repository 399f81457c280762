package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMaxHoldEndsTheHoldToTheInstantAndReleasesTheKey(t *testing.T) {
	for _, most := range []time.Duration{time.Millisecond, 5 * time.Second, 10 * tests.TTL} {
		t.Run(most.String(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithMaxHold(most)), "n")
				start := time.Now()
				hold := tests.LockWithin(t, mu, time.Second)
				require.False(t, mu.Status().Deadline.After(start.Add(most)))
				next := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				entered := make(chan time.Duration, 1)
				go func() {
					if next.Lock(context.Background()) == nil {
						entered <- time.Since(start)
					}
				}()
				require.Equal(t, most, tests.EndsAfter(t, hold, start))
				require.Equal(t, etcdlock.ErrMaxHold, context.Cause(hold))
				require.Zero(t, mu.Token())
				require.Equal(t, most, tests.SoonOr(t, entered, "the key is not released"))
				require.Len(t, etcd.Keys("n/"), 1)
				err := mu.Unlock(context.Background())
				require.ErrorIs(t, err, etcdlock.ErrLost)
				require.ErrorIs(t, err, etcdlock.ErrMaxHold)
				require.NoError(t, next.Unlock(context.Background()))
			})
		})
	}
}

func TestAcquireTimeoutBoundsTheWaitToTheInstant(t *testing.T) {
	const bound = 7 * time.Second
	rows := []struct {
		promise string
		faults  func(fake.Call) fake.Effect
		same    bool          // the holder is in the same Session
		slack   time.Duration // for a removal that etcd does not answer
	}{
		{"behind another process", nil, false, 0},
		{"behind a goroutine of the Session", nil, true, 0},
		{"no grant is answered", tests.FromNth(1, fake.Grant, fake.Effect{Drop: true}), false, 0},
		{"each grant fails", tests.FromNth(1, fake.Grant, fake.Effect{Before: fake.Unavailable}), false, 0},
		{"no transaction is answered", tests.FromNth(1, fake.Txn, fake.Effect{Drop: true}), false, 50 * time.Millisecond},
		{
			"each answer to a transaction is lost", tests.FromNth(1, fake.Txn, fake.Effect{DropReply: true}),
			false, 50 * time.Millisecond,
		},
		{"no watch is answered", tests.FromNth(1, fake.Watch, fake.Effect{Drop: true}), false, 0},
		{"no read and no watch is answered", func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Watch || c.Method == fake.Range ||
				c.Method == fake.Txn && len(c.Puts) == 0}
		}, false, 50 * time.Millisecond},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				holding := tests.SessionOf(t, etcd, "a")
				holder := contract.MutexOf(t, holding, "n")
				hold := tests.LockWithin(t, holder, time.Second)
				waiting := holding
				if !row.same {
					waiting = tests.SessionOf(t, etcd, "b")
				}
				mu := contract.MutexOf(t, waiting, "n", etcdlock.WithAcquireTimeout(bound))
				if row.faults != nil {
					etcd.Intercept(func(c fake.Call) fake.Effect {
						if c.Process == "b" {
							return row.faults(c)
						}
						return fake.Effect{}
					})
				}
				start := time.Now()
				err := mu.Lock(context.Background())
				took := time.Since(start)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.GreaterOrEqual(t, took, bound)
				require.LessOrEqual(t, took, bound+row.slack)
				etcd.Intercept(nil)
				time.Sleep(2 * tests.TTL)
				require.Equal(t, []string{holder.Key()}, etcd.Keys("n/"), "the wait left something behind")
				require.NoError(t, hold.Err())
				require.NoError(t, holder.Unlock(context.Background()))
			})
		})
	}
}

func TestAnIdleLeaseIsGivenBackAfterTwoTTLsAndReplacedOnUse(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
		var used []clientv3.LeaseID
		for range 3 {
			tests.LockWithin(t, mu, time.Second)
			used = append(used, s.Lease())
			time.Sleep(3 * time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(2*tests.TTL - 1)
			require.Equal(t, used[len(used)-1:], etcd.Leases(), "given back before two TTLs")
			require.Equal(t, used[len(used)-1], s.Lease())
			time.Sleep(time.Second)
			require.Empty(t, etcd.Leases(), "not given back after two TTLs")
			require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
			calls := len(etcd.Calls(""))
			time.Sleep(100 * tests.TTL)
			require.Len(t, etcd.Calls(""), calls, "a Session that is not used says nothing")
		}
		require.Len(t, etcd.Calls(fake.Grant), 3)
		require.NotEqual(t, used[0], used[1])
		require.NotEqual(t, used[1], used[2])
	})
}

// A hold is lost with its lease, or goes on where the lease gets no new holds, as a key on it is
// not removed: then the next hold has another lease.
func TestTheLeaseIsThatOfTheNextHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const none = clientv3.LeaseID(clientv3.NoLease)
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		leaseOf := func(mu *etcdlock.Mutex) clientv3.LeaseID {
			return tests.PlaceOf(t, etcd, mu.Name(), 0).Lease
		}
		tests.LockWithin(t, mu, time.Second)
		first := s.Lease()
		require.Equal(t, leaseOf(mu), first)

		etcd.RevokeLease(first)
		time.Sleep(tests.TTL)
		require.Equal(t, none, s.Lease(), "lost")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		tests.LockWithin(t, mu, time.Second)
		second := s.Lease()
		require.NotEqual(t, first, second)
		require.Equal(t, leaseOf(mu), second)

		other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "other")
		tests.LockWithin(t, other, time.Second)
		etcd.Intercept(tests.FromNth(2, fake.Txn, fake.Effect{Drop: true})) // after the put
		require.ErrorIs(t, contract.MutexOf(t, s, "other").Lock(tests.Within(t, time.Second)),
			context.DeadlineExceeded)
		time.Sleep(tests.TTL)
		require.Equal(t, none, s.Lease(), "in doubt")
		require.Equal(t, second, leaseOf(mu))
		etcd.Intercept(nil)
		third := contract.MutexOf(t, s, "third")
		tests.LockWithin(t, third, time.Second)
		require.NotEqual(t, second, s.Lease())
		require.Equal(t, leaseOf(third), s.Lease())
		require.Equal(t, second, leaseOf(mu), "the hold keeps its lease")
		tests.RequireWhole(t, mu)

		require.NoError(t, s.Close(context.Background()))
		require.Equal(t, none, s.Lease(), "closed")
	})
}

// A lock of a Session needs no Close: nothing keeps one that is not held. A Session should be
// closed, but one that is forgotten is gone two TTLs later.
func TestWhatIsForgottenIsGone(t *testing.T) {
	ctx := context.Background()
	used := func(t *testing.T, s *etcdlock.Session, opts ...etcdlock.Option) {
		mu, err := s.Mutex("n", opts...)
		require.NoError(t, err)
		require.NoError(t, mu.Lock(ctx))
		require.NoError(t, mu.Unlock(ctx))
		rw, err := s.RWMutex("n", opts...)
		require.NoError(t, err)
		h, err := rw.RLock(ctx)
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
		sem, err := s.Semaphore("n", 2, opts...)
		require.NoError(t, err)
		h, err = sem.Acquire(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
	}
	logger := func() *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }
	isGone := func(kept weak.Pointer[slog.Logger]) bool { // what has it as an option is gone
		runtime.GC()
		return kept.Value() == nil
	}
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		of := func() weak.Pointer[slog.Logger] {
			own := logger()
			used(t, s, etcdlock.WithLogger(own))
			return weak.Make(own)
		}()
		synctest.Wait()
		require.True(t, isGone(of), "a lock of the Session")
		tests.LockWithin(t, contract.MutexOf(t, s, "another"), time.Second)

		of = func() weak.Pointer[slog.Logger] {
			own := logger()
			forgotten, err := etcdlock.NewSession(etcd.Client("b"), etcdlock.WithTTL(tests.TTL),
				etcdlock.WithLogger(own))
			require.NoError(t, err)
			used(t, forgotten)
			return weak.Make(own)
		}()
		require.False(t, isGone(of), "it has a lease")
		time.Sleep(3 * tests.TTL)
		require.True(t, isGone(of), "a Session")
		require.Equal(t, []clientv3.LeaseID{s.Lease()}, etcd.Leases())
	})
}

// When the next Lock comes, the Revoke is under way, or was carried out and its answer was
// lost. That Lock gets another lease, and is not lost with this one.
func TestALeaseThatIsBeingGivenBackIsNotUsed(t *testing.T) {
	for name, effect := range map[string]fake.Effect{
		"slow request": {Delay: time.Second},
		"lost answer":  {DropReply: true},
		"lost request": {Drop: true},
		"a late copy":  {Again: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(tests.OnlyNth(1, fake.Revoke, effect))
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n")
				tests.LockWithin(t, mu, time.Second)
				old := s.Lease()
				require.NoError(t, mu.Unlock(context.Background()))
				for len(etcd.Calls(fake.Revoke)) == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				hold := tests.LockWithin(t, mu, time.Second)
				require.NotEqual(t, old, s.Lease())
				time.Sleep(10 * tests.TTL)
				require.NoError(t, hold.Err(), context.Cause(hold))
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// The grant's answer takes 300 ms, and the trust is 100 ms. A lease granted like that has
// ended before anything can be held with it.
func TestALeaseWhoseGrantComesTooLateIsNotHeldWith(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(tests.FromNth(1, fake.Grant, fake.Effect{DelayReply: 300 * time.Millisecond}))
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(2*time.Second),
			etcdlock.WithSafetyMargin(1900*time.Millisecond))
		mu := contract.MutexOf(t, s, "n")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		etcd.Intercept(nil)
		tests.LockWithin(t, mu, 3*time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The waiter's renewals hang, and its turn comes about when its trust ends, at 21 s. It
// holds with time left, or it queues anew, with another lease.
func TestLockNeverReturnsNilAfterItsDeadline(t *testing.T) {
	const step = 5 * time.Millisecond
	outcomes := map[bool]int{}
	for delay := -10 * step; delay <= 10*step; delay += step {
		for _, event := range []time.Duration{0, 1, 3 * step} {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(func(c fake.Call) fake.Effect {
					switch {
					case c.Method == fake.Event:
						return fake.Effect{Delay: event}
					case c.Process == "b" && c.Method == fake.KeepAlive && c.Lease == 0x1002:
						return fake.Effect{DropReply: true}
					}
					return fake.Effect{}
				})
				holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				tests.LockWithin(t, holder, time.Second)
				s := tests.SessionOf(t, etcd, "b")
				mu := contract.MutexOf(t, s, "n")
				start := time.Now()
				first := make(chan bool, 1)
				go func() {
					err := mu.Lock(context.Background())
					held, until := mu.Token(), mu.Status().Deadline
					if err != nil || held == 0 || !until.After(time.Now()) {
						t.Errorf("release after %v: Lock returned %v, token %d, deadline %v from now",
							time.Since(start), err, held, time.Until(until))
					}
					first <- s.Lease() == 0x1002
				}()
				time.Sleep(21*time.Second + delay)
				require.NoError(t, holder.Unlock(context.Background()))
				outcomes[<-first]++
				require.NoError(t, mu.Unlock(context.Background()))
			})
		}
	}
	require.Positive(t, outcomes[true], "the first lease never served")
	require.Positive(t, outcomes[false], "the first lease always served")
}

// etcd has carried out the renewals whose answers were lost, so the key is still
// there when the deadline has passed.
func TestUnlockAfterTheDeadlineIsErrLostEvenIfTheKeyIsThere(t *testing.T) {
	for _, late := range []time.Duration{0, 1, time.Second, 10 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(tests.FromNth(1, fake.KeepAlive, fake.Effect{DropReply: true}))
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				tests.LockWithin(t, mu, time.Second)
				time.Sleep(21*time.Second + late)
				require.NotEmpty(t, etcd.Keys("n/"))
				err := mu.Unlock(context.Background())
				var lost *etcdlock.LostError
				ok := errors.As(err, &lost)
				require.True(t, ok, "%v", err)
				require.NotZero(t, lost.Token)
				synctest.Wait()
				require.Empty(t, etcd.Keys("n/"))
				requireUsable(t, mu)
			})
		})
	}
}

// requireUsable requires that a Mutex holds nothing and can be locked.
func requireUsable(t *testing.T, mu *etcdlock.Mutex) {
	t.Helper()
	require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrNotHeld)
	tests.LockWithin(t, mu, time.Second)
	require.NoError(t, mu.Unlock(context.Background()))
}

func TestAThousandNamesCostOneLeaseAndOneRenewalPerThirdOfTheTTL(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		start := time.Now()
		for i := range 1000 {
			tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprintf("n%d", i)), time.Second)
		}
		require.Len(t, etcd.Calls(""), 1001, "one grant, and one transaction per Lock")
		time.Sleep(10*tests.TTL + time.Second)
		require.Len(t, etcd.Leases(), 1)
		require.Len(t, etcd.Keys(""), 1000)
		require.Len(t, etcd.Calls(fake.KeepAlive), 30)
		require.LessOrEqual(t, len(etcd.Calls(fake.TimeToLive)), 30, "%v",
			sentAfter(etcd.Calls(fake.TimeToLive), start))
		require.NotEmpty(t, etcd.Calls(fake.TimeToLive))
	})
}

// a is held on the first lease. The answer to b's transaction is lost, so a copy of it may
// still come. b holds on that lease; c does not.
func TestAfterADoubtfulLockTheNextOneUsesAnotherLease(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "p")
		a, b, c := contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "b"), contract.MutexOf(t, s, "c")
		holdA := tests.LockWithin(t, a, time.Second)
		first := s.Lease()
		etcd.Intercept(tests.OnlyNth(2, fake.Txn, fake.Effect{After: fake.Unavailable}))
		holdB := tests.LockWithin(t, b, time.Second)
		require.Len(t, etcd.Keys("b/"), 1)
		tests.LockWithin(t, c, time.Second)
		second := s.Lease()
		require.NotEqual(t, first, second)
		require.Equal(t, []clientv3.LeaseID{first, second}, etcd.Leases())

		time.Sleep(10 * tests.TTL)
		require.NoError(t, holdA.Err(), "the doubtful lease is renewed while it is held with")
		require.NoError(t, holdB.Err())
		require.NoError(t, a.Unlock(context.Background()))
		time.Sleep(10 * tests.TTL)
		require.Contains(t, etcd.Leases(), first)
		require.NoError(t, holdB.Err())
		require.NoError(t, b.Unlock(context.Background()))
		synctest.Wait()
		require.Equal(t, []clientv3.LeaseID{second}, etcd.Leases(),
			"the doubtful lease is revoked with its last hold")
		require.NoError(t, c.Unlock(context.Background()))
	})
}

// etcd has put the key, the answer is lost, and Lock asks again. It finds the same key, and
// does not wait for itself.
func TestALockWhoseAnswerWasLostStandsInLineOnce(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(tests.OnlyNth(1, fake.Txn, fake.Effect{After: fake.Unavailable}))
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		tests.LockWithin(t, mu, 100*time.Millisecond)
		require.Equal(t, []string{mu.Key()}, etcd.Keys("n/"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// An outage that outlives the lease ends the hold. Session and Mutex go on with a new lease
// by themselves as soon as etcd is back.
func TestAnExpiredLeaseIsReplacedAfterAnOutage(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		for range 3 {
			hold := tests.LockWithin(t, mu, time.Second)
			old := s.Lease()
			etcd.Cut("a")
			tests.EndsAfter(t, hold, time.Now())
			require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
			entered := make(chan error, 1)
			go func() { entered <- mu.Lock(context.Background()) }()
			time.Sleep(time.Hour)
			etcd.Heal("a")
			healed := time.Now()
			require.NoError(t, <-entered)
			require.LessOrEqual(t, time.Since(healed), 3*time.Second)
			require.NotEqual(t, old, s.Lease())
			require.NoError(t, mu.Unlock(context.Background()))
		}
	})
}
