package holders

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about Recall, and about holds that listen to it.

// requireRecalled requires all that a hold must say of itself after the grace.
func requireRecalled(t *testing.T, mu *etcdlock.Mutex, hold context.Context, token int64) {
	t.Helper()
	require.ErrorIs(t, hold.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
	require.Equal(t, &etcdlock.RecalledError{Name: "n", Token: token, By: "op", Reason: "update"},
		context.Cause(hold))
	require.Zero(t, mu.Token())
	require.Empty(t, mu.Key())
	require.Zero(t, mu.Status().Deadline)
}

// The holder learns at once. The hold ends after the grace that was asked for, or after its
// own if that is less. It keeps its key until it unlocks, however long that takes. Only
// then does the next one get in.
func TestTheKeyOfARecalledHoldGoesWithItsUnlock(t *testing.T) {
	for _, row := range []struct{ grace, ends time.Duration }{
		{3 * time.Second, 3 * time.Second}, {time.Hour, 10 * time.Second}, {0, 0},
		{1500*time.Microsecond + 1, 2 * time.Millisecond}, // milliseconds, rounded up
		{1<<63 - 1, 10 * time.Second},
	} {
		t.Run(row.grace.String(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
				hold := tests.LockWithin(t, mu, time.Second)
				next := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n"))
				token, key := mu.Token(), mu.Key()
				time.Sleep(tests.WatchedBy)
				require.False(t, tests.IsRecalled(hold))

				start := time.Now()
				tests.Recall(t, etcd, row.grace)
				require.Zero(t, tests.RecalledAfter(t, hold, start))
				if row.ends > 0 {
					tests.RequireWhole(t, mu)
					require.Equal(t, token, mu.Token())
					require.Equal(t, start.Add(row.ends), mu.Status().Deadline)
				}
				require.Equal(t, row.ends, tests.EndsAfter(t, hold, start))
				requireRecalled(t, mu, hold, token)

				time.Sleep(3 * tests.TTL)
				require.Contains(t, etcd.Keys("n/"), key, "the key went by itself")
				tests.StillWaits(t, next, "the recalled hold has not unlocked")
				require.NoError(t, mu.Unlock(context.Background()), "it was whole")
				require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrNotHeld)
			})
		})
	}
}

// A recalled holder that unlocks in time has an ordinary Unlock.
func TestARecalledHoldThatUnlocksInTimeIsWhole(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		err := mu.Do(context.Background(), func(ctx context.Context) error {
			time.Sleep(tests.WatchedBy)
			tests.Recall(t, etcd, 3*time.Second)
			<-etcdlock.RecallFrom(ctx)
			return ctx.Err()
		})
		require.NoError(t, err)
		require.Empty(t, etcd.Keys("n/"))
		tests.LockWithin(t, mu, time.Second) // and the next hold was not recalled
		time.Sleep(time.Minute)
		tests.RequireWhole(t, mu)
	})
}

// Do returns what its function returns. If that is the cause, it says that the hold was
// recalled.
func TestDoOfARecalledHoldSaysWhatItsFunctionSays(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		err := mu.Do(context.Background(), func(ctx context.Context) error {
			time.Sleep(tests.WatchedBy)
			tests.Recall(t, etcd, 0)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, etcdlock.ErrRecalled)
		require.NotErrorIs(t, err, etcdlock.ErrLost)
		require.EqualError(t, err, `etcdlock: lock "n" recalled (token 2) by op: update`)
	})
}

// A recalled key is not handed to the next goroutine of its Session: others get their turn.
func TestARecalledKeyIsNotHandedOff(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", tests.Listens, etcdlock.WithHandoff(100))
		mu, same := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		token := mu.Token()
		next := tests.LockLater(same)
		other := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n"))
		time.Sleep(tests.WatchedBy)
		tests.Recall(t, etcd, 3*time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, other, "the other Session does not get in"))
		tests.StillWaits(t, next, "the other Session holds")
		require.NotEqual(t, token, tests.PlaceOf(t, etcd, "n", 1).Token)
	})
}

// Nor does the key linger after its Unlock.
func TestARecalledKeyDoesNotLinger(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens,
			etcdlock.WithLinger(time.Hour))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.WatchedBy)
		tests.Recall(t, etcd, 3*time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		require.Empty(t, etcd.Keys("n/"))
	})
}

// A key that lingers gives way at once. It belongs to no hold, so no hook reports the
// recall.
func TestAKeyThatLingersGivesWayToARecall(t *testing.T) {
	for _, faults := range []func(fake.Call) fake.Effect{nil, func(c fake.Call) fake.Effect {
		return fake.Effect{Drop: c.Method == fake.Event}
	}} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens,
				etcdlock.WithLinger(time.Hour))
			etcd.Intercept(faults)
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(4 * tests.TTL) // from here on audits are rare
			require.Len(t, etcd.Keys("n/"), 1, "it lingers")
			tests.Recall(t, etcd, 3*time.Second)
			if faults != nil {
				time.Sleep(2 * tests.TTL) // the next recheck
			}
			synctest.Wait()
			require.Empty(t, etcd.Keys("n/"))
			require.False(t, tests.IsRecalled(hold))
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(time.Minute)
			tests.RequireWhole(t, mu)
		})
	}
}

// comesToRead is an RLock that is under way. If it fails, it returns no Hold.
func comesToRead(rw *etcdlock.RWMutex) <-chan *etcdlock.Hold {
	in := make(chan *etcdlock.Hold, 1)
	go func() {
		h, _ := rw.RLock(context.Background())
		in <- h
	}()
	synctest.Wait()
	return in
}

// A recalled cohort closes: nobody joins it, neither new callers nor waiters. Each member's
// grace is at most its own, and a member that does not listen is not ended. The last member
// releases.
func TestNobodyJoinsARecalledCohort(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		patient := tests.RWMutexOf(t, s, tests.Listens)
		hasty := tests.RWMutexOf(t, s, etcdlock.WithRecall(time.Second))
		deaf := tests.RWMutexOf(t, s)
		first := tests.RLockWithin(t, patient, time.Second)
		second, third := tests.RLockWithin(t, hasty, time.Second), tests.RLockWithin(t, deaf, time.Second)
		contexts := make([]context.Context, 3)
		for i, h := range []*etcdlock.Hold{first, second, third} {
			contexts[i] = h.Context(context.Background())
		}
		token := first.Token()
		require.Equal(t, token, third.Token())
		require.Nil(t, etcdlock.RecallFrom(contexts[2]))
		time.Sleep(tests.WatchedBy)
		start := time.Now()
		tests.Recall(t, etcd, 3*time.Second)
		require.Zero(t, tests.RecalledAfter(t, contexts[0], start))
		require.True(t, tests.IsRecalled(contexts[1]))

		in := comesToRead(tests.RWMutexOf(t, s))
		tests.StillWaits(t, in, "the cohort is recalled")
		_, err := tests.RWMutexOf(t, s).TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked)

		require.Equal(t, time.Second, tests.EndsAfter(t, contexts[1], start))
		require.Equal(t, 3*time.Second, tests.EndsAfter(t, contexts[0], start))
		tests.RequireEnded(t, first)
		time.Sleep(time.Minute)
		tests.RequireHolds(t, third)
		require.NoError(t, first.Unlock(context.Background()))
		require.NoError(t, second.Unlock(context.Background()))
		tests.StillWaits(t, in, "one of the cohort reads still")
		require.NoError(t, third.Unlock(context.Background()))
		next := tests.SoonOr(t, in, "the reader does not get in")
		require.NotEqual(t, token, next.Token())
		tests.UnlockAll(t, next)
	})
}

// A reader that is recalled while it waits lets nobody join, and hands its place to nobody.
func TestNobodyJoinsARecalledWaiter(t *testing.T) {
	for _, givesUp := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			writer := contract.MutexOf(t, tests.SessionOf(t, etcd, "w"), "n")
			tests.LockWithin(t, writer, time.Second)
			s := tests.SessionOf(t, etcd, "a", tests.Listens)
			ctx, cancel := context.WithCancel(context.Background())
			type result struct {
				h   *etcdlock.Hold
				err error
			}
			first := make(chan result, 1)
			etcd.Intercept(onlyProcess("a", fake.Grant, fake.Effect{Delay: 100 * time.Millisecond}))
			rw := tests.RWMutexOf(t, s)
			go func() {
				h, err := rw.RLock(ctx)
				first <- result{h, err}
			}()
			synctest.Wait()
			second := comesToRead(tests.RWMutexOf(t, s)) // early: before the put
			time.Sleep(time.Second)
			place := tests.PlaceOf(t, etcd, "n", 1)
			tests.RecallAt(t, etcd, 1, 3*time.Second)
			synctest.Wait()
			if givesUp {
				cancel()
				require.ErrorIs(t, tests.SoonOr(t, first, "no end").err, context.Canceled)
				synctest.Wait()
				require.NotEqual(t, place.Token, tests.PlaceOf(t, etcd, "n", 1).Token,
					"the recalled place was handed down")
				require.NoError(t, writer.Unlock(context.Background()))
				tests.UnlockAll(t, tests.SoonOr(t, second, "the second reader does not get in"))
				return
			}
			require.NoError(t, writer.Unlock(context.Background()))
			r := tests.SoonOr(t, first, "the first reader does not get in")
			require.NoError(t, r.err)
			require.True(t, tests.IsRecalled(r.h.Context(context.Background())))
			tests.StillWaits(t, second, "the first one was recalled")
			tests.UnlockAll(t, r.h)
			tests.UnlockAll(t, tests.SoonOr(t, second, "the second reader does not get in"))
			cancel()
		})
	}
}

// Anything else that may end a hold still does, in the grace and after it. After the grace
// Unlock still says whether the key was there.
func TestARecalledHoldMayEndOtherwise(t *testing.T) {
	const grace = 3 * time.Second
	for name, row := range map[string]struct {
		opts   []etcdlock.SessionOption
		then   func(etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex)
		cause  error // of the end in the grace
		unlock error
	}{
		"deleted": {
			then: func(etcd *fake.Server, _ *etcdlock.Session, _ *etcdlock.Mutex) {
				etcd.DeleteKey(etcd.Keys("n/")[0])
			},
			cause: etcdlock.ErrKeyDeleted, unlock: etcdlock.ErrLost,
		},
		"put over without the lease": {
			then: func(etcd *fake.Server, _ *etcdlock.Session, _ *etcdlock.Mutex) {
				_ = etcd.PutKey(etcd.Keys("n/")[0], clientv3.NoLease)
			},
			cause: etcdlock.ErrKeyOverwritten, unlock: etcdlock.ErrKeyOverwritten,
		},
		"revoked": {
			then: func(etcd *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) {
				etcd.RevokeLease(s.Lease())
			},
			cause: etcdlock.ErrLeaseRevoked, unlock: etcdlock.ErrLeaseRevoked,
		},
		"cut off": {
			then: func(etcd *fake.Server, _ *etcdlock.Session, _ *etcdlock.Mutex) {
				etcd.Cut("a")
				time.Sleep(tests.TTL)
			},
			cause: nil, unlock: etcdlock.ErrExpired,
		},
		"closed": {
			then: func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
				_ = mu.Close(context.Background())
			},
			cause: etcdlock.ErrClosed, unlock: etcdlock.ErrNotHeld,
		},
		"the Session closed": {
			then: func(_ *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) {
				_ = s.Close(context.Background())
			},
			cause: etcdlock.ErrClosed, unlock: etcdlock.ErrNotHeld,
		},
	} {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", after the grace ", over), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					mu := contract.MutexOf(t, s, "n", tests.Listens)
					hold := tests.LockWithin(t, mu, time.Second)
					time.Sleep(tests.WatchedBy)
					tests.Recall(t, etcd, grace)
					cause := row.cause
					if over {
						time.Sleep(grace)
					}
					if over || cause == nil {
						cause = etcdlock.ErrRecalled
					}
					time.Sleep(time.Millisecond)
					row.then(etcd, s, mu)
					synctest.Wait()
					time.Sleep(200 * time.Millisecond)
					require.ErrorIs(t, context.Cause(hold), cause)
					require.Zero(t, mu.Token())
					err := mu.Unlock(context.Background())
					require.ErrorIs(t, err, row.unlock)
					require.NotErrorIs(t, err, etcdlock.ErrRecalled)
				})
			})
		}
	}
}

// WithMaxHold goes on counting in the grace and after it. It frees the name, with an Unlock
// or without.
func TestMaxHoldGoesOnAfterARecall(t *testing.T) {
	for _, row := range []struct {
		grace, ends time.Duration
		cause       error
	}{
		{2 * time.Second, tests.WatchedBy + 2*time.Second, etcdlock.ErrRecalled},
		{9 * time.Second, 5 * time.Second, etcdlock.ErrMaxHold},
	} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens,
				etcdlock.WithMaxHold(5*time.Second))
			start := time.Now()
			hold := tests.LockWithin(t, mu, time.Second)
			next := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n"))
			time.Sleep(tests.WatchedBy)
			tests.Recall(t, etcd, row.grace)
			synctest.Wait()
			require.Equal(t, start.Add(row.ends), mu.Status().Deadline)
			require.Equal(t, row.ends, tests.EndsAfter(t, hold, start))
			require.ErrorIs(t, context.Cause(hold), row.cause)
			require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
			require.Equal(t, 5*time.Second, time.Since(start))
			err := mu.Unlock(context.Background())
			require.ErrorIs(t, err, etcdlock.ErrMaxHold)
			require.ErrorIs(t, err, etcdlock.ErrLost)
		})
	}
}

// A call may nest in a recalled hold in the grace, and not after it. A nested Unlock says
// that the hold is whole. The last one releases.
func TestHoldsThatNestAreRecalledTogether(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens,
			etcdlock.WithReentrancy())
		outer := tests.LockWithin(t, mu, time.Second)
		require.NoError(t, mu.Lock(outer))
		inner := mu.Context(outer)
		time.Sleep(tests.WatchedBy)
		tests.Recall(t, etcd, 3*time.Second)
		synctest.Wait()
		require.True(t, tests.IsRecalled(inner))
		require.NoError(t, mu.Lock(inner), "the grace is not over")
		require.NoError(t, mu.Unlock(inner))
		time.Sleep(3 * time.Second)
		require.ErrorIs(t, context.Cause(inner), etcdlock.ErrRecalled)
		require.Error(t, mu.Lock(inner))
		require.ErrorIs(t, mu.Lock(context.WithoutCancel(inner)), etcdlock.ErrRecalled)
		require.NoError(t, mu.Unlock(context.Background()))
		require.Len(t, etcd.Keys("n/"), 1)
		require.NoError(t, mu.Unlock(context.Background()))
		require.Empty(t, etcd.Keys("n/"))
	})
}

// A holder that does not listen is not asked: nothing is written.
func TestWhoDoesNotListenIsNotRecalled(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		operator := etcd.Client("operator")
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		hold := tests.LockWithin(t, mu, time.Second)
		require.Nil(t, etcdlock.RecallFrom(hold))
		lease, err := operator.Grant(context.Background(), 60)
		require.NoError(t, err)
		// as concurrency.Mutex does
		require.NoError(t, etcd.PutKey(fmt.Sprintf("n/%x", lease.ID), lease.ID))
		time.Sleep(tests.WatchedBy)
		before := etcd.Rev()
		for i := range 2 {
			err := etcdlock.Recall(context.Background(), operator, tests.PlaceOf(t, etcd, "n", i),
				etcdlock.RecallRequest{})
			require.ErrorIs(t, err, etcdlock.ErrNotRecallable)
			require.EqualError(t, err, `etcdlock: recall "n": does not listen to a recall`)
		}
		require.Equal(t, before, etcd.Rev())

		place := tests.PlaceOf(t, etcd, "n", 0)
		require.NoError(t, mu.Unlock(context.Background()))
		before = etcd.Rev()
		require.NoError(t,
			etcdlock.Recall(context.Background(), operator, place, etcdlock.RecallRequest{}), "it is gone")
		require.Equal(t, before, etcd.Rev())
	})
}

// Wrong arguments are an error at once, and nothing is sent.
func TestARecallNobodyCanMean(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var none context.Context
		kv := etcd.Client("operator")
		c := etcdlock.Contender{Name: "n", Key: "n/k", Token: 5}
		for name, call := range map[string]func() error{
			"nil context": func() error { return etcdlock.Recall(none, kv, c, etcdlock.RecallRequest{}) },
			"nil KV": func() error {
				return etcdlock.Recall(context.Background(), nil, c, etcdlock.RecallRequest{})
			},
			"no contender": func() error {
				return etcdlock.Recall(context.Background(), kv, etcdlock.Contender{Name: "n"},
					etcdlock.RecallRequest{})
			},
			"negative grace": func() error {
				return etcdlock.Recall(context.Background(), kv, c, etcdlock.RecallRequest{Grace: -1})
			},
			"long By": func() error {
				return etcdlock.Recall(context.Background(), kv, c,
					etcdlock.RecallRequest{By: strings.Repeat("x", 257)})
			},
			"long Reason": func() error {
				return etcdlock.Recall(context.Background(), kv, c,
					etcdlock.RecallRequest{Reason: strings.Repeat("x", 257)})
			},
			"not UTF-8": func() error {
				return etcdlock.Recall(context.Background(), kv, c, etcdlock.RecallRequest{By: "\xff"})
			},
		} {
			require.Error(t, call(), name)
		}
		require.NoError(t, etcdlock.Recall(context.Background(), kv, c,
			etcdlock.RecallRequest{By: strings.Repeat("x", 256)}), "gone")
		require.Len(t, etcd.Calls(""), 1)
		for _, most := range []time.Duration{0, -1} {
			_, err := etcdlock.NewSession(kv, etcdlock.WithRecall(most))
			require.EqualError(t, err, fmt.Sprintf("etcdlock: WithRecall(%v): not positive", most))
		}
		require.Nil(t, etcdlock.RecallFrom(context.Background()))
		require.Nil(t, etcdlock.RecallFrom(none))
	})
}

// A request that is not well formed is ignored, and ends no hold: the key keeps its lease
// and place. A well-formed one after it counts.
func TestAMalformedRequestIsIgnored(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.WatchedBy)
		operator := etcd.Client("operator")
		for _, request := range []string{
			`null`, `7`, `{}`, `{"id":"x"}`, `{"grace_ms":5}`, `{"id":"x","grace_ms":-1}`,
			`{"id":"x","grace_ms":"5"}`,
			`{"id":"x","grace_ms":5,"by":"` + strings.Repeat("x", 257) + `"}`, `{"id":7,"grace_ms":5}`,
		} {
			_, err := operator.Put(context.Background(), mu.Key(),
				`{"owner":"a","recallable":true,"recall":`+request+`}`, clientv3.WithIgnoreLease())
			require.NoError(t, err)
			synctest.Wait()
			require.False(t, tests.IsRecalled(hold), request)
		}
		time.Sleep(time.Minute)
		tests.RequireWhole(t, mu)
		tests.Recall(t, etcd, time.Second)
		synctest.Wait()
		require.True(t, tests.IsRecalled(hold))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// RecallFrom asks the innermost hold from which a context derives.
func TestRecallFromAsksTheInnermostHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		outer, inner := contract.MutexOf(t, s, "n", tests.Listens),
			contract.MutexOf(t, s, "inner", tests.Listens)
		deaf := contract.MutexOf(t, s, "deaf")
		ctx := tests.LockWithin(t, outer, time.Second)
		tests.LockWithin(t, inner, time.Second)
		tests.LockWithin(t, deaf, time.Second)
		time.Sleep(tests.WatchedBy)
		tests.Recall(t, etcd, time.Minute)
		synctest.Wait()
		require.True(t, tests.IsRecalled(ctx))
		require.False(t, tests.IsRecalled(inner.Context(ctx)))
		require.NotNil(t, etcdlock.RecallFrom(inner.Context(ctx)))
		require.Nil(t, etcdlock.RecallFrom(deaf.Context(ctx)))
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		require.True(t, tests.IsRecalled(child))
	})
}

// What the hooks report about a recall, and in which order.
func TestARecallIsReported(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o tests.Told
		var log strings.Builder
		trace := o.Trace()
		trace.Recalled = func(_ context.Context, e etcdlock.RecalledEvent) {
			o.Add("recalled %s %d %v", e.Name, e.Token, e.Request)
		}
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens,
			etcdlock.WithTrace(trace),
			etcdlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.WatchedBy)
		o.Take()
		tests.Recall(t, etcd, time.Hour)
		time.Sleep(time.Minute)
		require.NoError(t, mu.Unlock(context.Background()))
		synctest.Wait()
		events := o.Take()
		require.Len(t, events, 2)
		require.Equal(t, "recalled n 2 {op update 1h0m0s}", events[0])
		require.Contains(t, events[1], "released")
		require.Contains(t, log.String(),
			`msg="etcdlock: lock recalled" name=n token=2 by=op reason=update grace=10s`)
		require.NotContains(t, log.String(), "lost")
	})
}
