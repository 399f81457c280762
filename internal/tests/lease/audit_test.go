package lease

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A hold is watched when it is a second old, which the keeper sees within 0.35 s.
func TestALossFromOutsideIsNoticedWithinAboutASecond(t *testing.T) {
	const noticed = tests.WatchedBy + 50*time.Millisecond
	ways := map[string]func(*fake.Server, *etcdlock.Session, *etcdlock.Mutex){
		"the key is deleted": func(etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			etcd.DeleteKey(mu.Key())
		},
		"the lease is revoked": func(etcd *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) {
			etcd.RevokeLease(s.Lease())
		},
	}
	for name, takeAway := range ways {
		t.Run(name, func(t *testing.T) {
			for after := time.Duration(0); after < 10*time.Second; after += 130 * time.Millisecond {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					mu := contract.MutexOf(t, s, "n")
					hold := tests.LockWithin(t, mu, time.Second)
					time.Sleep(after)
					taken := time.Now()
					takeAway(etcd, s, mu)
					require.LessOrEqual(t, tests.EndsAfter(t, hold, taken), noticed, "taken away after %v", after)
					tests.RequireLost(t, mu, hold)
					require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
					requireUsable(t, mu)
				})
			}
		})
	}
}

// 0 s n is locked, 1 s unlocked, 3 s a late copy of the transaction that locked it puts its
// key again. No event shows that. The key blocks the others only until the next audit.
func TestAKeyThatALateRequestPutsIsSwept(t *testing.T) {
	// its other audits read values
	recallable := []etcdlock.SessionOption{etcdlock.WithRecall(time.Second)}
	rows := []struct {
		promise     string
		held, waits bool
		within      time.Duration
		options     []etcdlock.SessionOption
	}{
		{"while something is held", true, false, tests.SeldomLook, nil},
		{"while nothing is", false, false, tests.SeldomLook, nil},
		{"while it waits for something", false, true, tests.SeldomLook, nil},
		{"while a hold may be recalled", true, false, 2 * tests.SeldomLook, recallable},
		{"while a wait may be recalled", false, true, 2 * tests.SeldomLook, recallable},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(tests.OnlyNth(2, fake.Txn, fake.Effect{Again: 3 * time.Second}))
				s := tests.SessionOf(t, etcd, "a", row.options...)
				mu, held := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "held")
				hold := tests.LockWithin(t, held, time.Second)
				lease := s.Lease()
				tests.LockWithin(t, mu, time.Second)
				time.Sleep(time.Second)
				require.NoError(t, mu.Unlock(context.Background()))
				leave := func() {}
				if row.waits {
					awaited := contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "awaited")
					tests.LockWithin(t, awaited, time.Second)
					waiting, waited := contract.MutexOf(t, s, "awaited"), make(chan error, 1)
					go func() { waited <- waiting.Lock(context.Background()) }()
					leave = func() {
						require.NoError(t, awaited.Unlock(context.Background()))
						require.NoError(t, <-waited)
						require.NoError(t, waiting.Unlock(context.Background()))
					}
				}
				if !row.held {
					require.NoError(t, held.Unlock(context.Background()))
				}
				require.Empty(t, etcd.Keys("n/"))
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.Len(t, etcd.Keys("n/"), 1, "no late copy")

				other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				start := time.Now()
				tests.LockWithin(t, other, 3*tests.SeldomLook)
				require.LessOrEqual(t, time.Since(start), row.within)
				require.NoError(t, other.Unlock(context.Background()))

				// Another copy may come: what follows uses another lease.
				next := contract.MutexOf(t, s, "next")
				tests.LockWithin(t, next, time.Second)
				require.NotEqual(t, lease, s.Lease())
				require.NoError(t, next.Unlock(context.Background()))
				if row.held {
					require.NoError(t, hold.Err(), "the hold is not touched")
					require.NoError(t, held.Unlock(context.Background()))
				}
				leave()
				synctest.Wait()
				require.NotContains(t, etcd.Leases(), lease)
			})
		})
	}
}

// The first request of a removal fails, so a copy of a put may come late, and audits are frequent
// for a TTL. After another one they are again, though the lease serves no more since the first.
func TestAfterEachDoubtALateKeyIsSweptSoon(t *testing.T) {
	const soon = time.Second // an audit after a doubt is sent each 700 ms
	for after := 2 * tests.TTL; after < 2*tests.TTL+tests.RenewalPeriod; after += time.Second {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			held := contract.MutexOf(t, s, "held")
			tests.LockWithin(t, held, time.Second)
			waits := func(name string) (leave func()) {
				tests.Strangers(t, etcd, name, 1)
				ctx, stop := context.WithCancel(context.Background())
				left := make(chan error, 1)
				go func() { left <- contract.MutexOf(t, s, name).Lock(ctx) }()
				synctest.Wait()
				return func() {
					fails := fake.Effect{Before: fake.Unavailable}
					etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fails))
					stop()
					require.ErrorIs(t, <-left, context.Canceled)
				}
			}
			firstLeaves := waits("n")
			etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{Again: after}))
			comes := time.Now().Add(after)
			secondLeaves := waits("m")
			firstLeaves()
			time.Sleep(time.Until(comes) - time.Second)
			secondLeaves()
			time.Sleep(time.Until(comes) - 1)
			require.Len(t, etcd.Keys("m/"), 1)
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Len(t, etcd.Keys("m/"), 2, "no late copy")
			time.Sleep(soon)
			synctest.Wait()
			require.Len(t, etcd.Keys("m/"), 1, "the late copy blocks others, after %v", after)
			require.NoError(t, held.Unlock(context.Background()))
		})
	}
}

// If the Session itself waits behind that key, it has read it: an audit is due at once. (The key is
// a read's. A lock would use its name again.)
func TestAKeyThatALateRequestPutsInTheWayOfItsSessionIsSweptSoon(t *testing.T) {
	const soon = time.Second // an audit of suspected keys is sent each 700 ms
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(tests.OnlyNth(1, fake.Txn, fake.Effect{Again: 3 * time.Second}))
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		read, err := rw.RLock(tests.Within(t, time.Second))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, read.Unlock(context.Background()))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Len(t, etcd.Keys("n/"), 1, "no late copy")

		start := time.Now()
		require.NoError(t, rw.Lock(tests.Within(t, tests.SeldomLook)))
		require.LessOrEqual(t, time.Since(start), soon)
		require.NoError(t, rw.Unlock(context.Background()))
	})
}

// leavesAStray has a late copy of a put leave a key of n, which its Session has unlocked. From the
// Unlock on requests have an effect.
func leavesAStray(t *testing.T, etcd *fake.Server, effect func(fake.Call) fake.Effect) {
	t.Helper()
	etcd.Intercept(tests.OnlyNth(2, fake.Txn, fake.Effect{Again: 3 * time.Second}))
	s := tests.SessionOf(t, etcd, "a")
	tests.LockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
	mu := contract.MutexOf(t, s, "n")
	tests.LockWithin(t, mu, time.Second)
	require.NoError(t, mu.Unlock(context.Background()))
	etcd.Intercept(effect)
	time.Sleep(3100 * time.Millisecond) // between two ticks of the keeper, at 350 ms each
	require.Len(t, etcd.Keys("n/"), 1, "no late copy")
}

// The same holds if each answer takes more than half of the time of an attempt.
func TestAStrayIsSweptWhereAnswersAreSlow(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		leavesAStray(t, etcd, func(fake.Call) fake.Effect {
			return fake.Effect{DelayReply: 1200 * time.Millisecond}
		})
		time.Sleep(tests.SeldomLook + 4*time.Second)
		require.Empty(t, etcd.Keys("n/"))
	})
}

// One of three endpoints is dead, and the requests go to each in turn. To find a stray, read it and
// delete it are three requests. So the dead endpoint may get the same one of them each time.
func TestAStrayIsSweptBesideADeadEndpoint(t *testing.T) {
	for dead := range 3 {
		t.Run(fmt.Sprint("the first request that is lost is number ", dead), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var sent atomic.Int64
				leavesAStray(t, etcd, func(c fake.Call) fake.Effect {
					switch c.Method {
					case fake.Txn, fake.Range, fake.TimeToLive:

						return fake.Effect{Drop: int(sent.Add(1)-1)%3 == dead}
					}
					return fake.Effect{}
				})
				time.Sleep(tests.SeldomLook + 2*tests.RenewalPeriod)
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}

// What users attach to the Session's lease belongs to them.
func TestKeysOfTheUserOnTheLeaseAreNotSwept(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		keys := []string{"members/api-7", "members/" + uuid.NewString()}
		for _, key := range keys {
			require.NoError(t, etcd.PutKey(key, s.Lease()))
		}
		time.Sleep(10 * tests.TTL)
		require.Equal(t, keys, etcd.Keys("members/"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The request is under way for 5 s when the caller gives up, and is carried out then.
func TestARequestThatIsCarriedOutAfterItsCallerGaveUpLeavesNoKey(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("lease held with otherwise %v", held), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				if held {
					tests.LockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
				}
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.Txn && len(c.Puts) > 0 {
						return fake.Effect{Delay: 5 * time.Second}
					}
					return fake.Effect{}
				})
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				require.ErrorIs(t, contract.MutexOf(t, s, "n").Lock(ctx), context.DeadlineExceeded)
				time.Sleep(5*time.Second + 1100*time.Millisecond)
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}

// etcd has put the key, the answer is lost, and the caller gives up. The key's name is
// known, so the key is gone at once, although another hold keeps the lease.
func TestAKeyWhosePutWasNotAnsweredIsRemovedAtOnce(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		hold := tests.LockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
		etcd.Intercept(tests.OnlyNth(2, fake.Txn, fake.Effect{DropReply: true}))
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, contract.MutexOf(t, s, "n").Lock(ctx), context.DeadlineExceeded)
		synctest.Wait()
		require.Empty(t, etcd.Keys("n/"))
		require.NoError(t, hold.Err())
	})
}

// The key is deleted, and Unlock is called before any audit could show that.
func TestUnlockTellsOfALossThatNobodyHasNoticed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		hold := tests.LockWithin(t, mu, time.Second)
		etcd.DeleteKey(mu.Key())
		require.NoError(t, hold.Err())
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		requireUsable(t, mu)
	})
}

// An old leader answers with the keys as they were before. The linearizable read that
// follows shows that the hold is whole.
func TestALookThatOmitsALiveKeyEndsNothing(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(tests.FromNth(1, fake.TimeToLive, fake.Effect{Edit: func(reply any) {
			reply.(*clientv3.LeaseTimeToLiveResponse).Keys = nil
		}}))
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(13 * tests.TTL)
		require.NoError(t, hold.Err(), context.Cause(hold))
		require.NotEmpty(t, etcd.Calls(fake.TimeToLive))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The audit is sent before b is locked, and answered after that. What it says about b means
// nothing, so the library asks nothing because of it.
func TestALookJudgesNoHoldThatBeganAfterItWasSent(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(tests.OnlyNth(1, fake.TimeToLive, fake.Effect{DelayReply: 500 * time.Millisecond}))
		s := tests.SessionOf(t, etcd, "p")
		tests.LockWithin(t, contract.MutexOf(t, s, "a"), time.Second)
		for len(etcd.Calls(fake.TimeToLive)) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		hold := tests.LockWithin(t, contract.MutexOf(t, s, "b"), time.Second)
		asked := len(etcd.Calls(fake.Txn)) + len(etcd.Calls(fake.Range))
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, asked, len(etcd.Calls(fake.Txn))+len(etcd.Calls(fake.Range)))
		time.Sleep(5 * time.Second)
		require.NoError(t, hold.Err(), context.Cause(hold))
	})
}
