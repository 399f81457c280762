package lease

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// sentAfter returns when calls were sent, counted from start.
func sentAfter(calls []fake.Call, start time.Time) []time.Duration {
	var sent []time.Duration
	for _, c := range calls {
		sent = append(sent, c.At.Sub(start))
	}
	return sent
}

func TestTheLeaseIsRenewedEachThirdOfTheTTL(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 3 * time.Second, 15 * time.Second, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl))
				start := time.Now()
				hold := tests.LockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
				time.Sleep(10*ttl + ttl/6)
				require.NoError(t, hold.Err())
				sent := sentAfter(etcd.Calls(fake.KeepAlive), start)
				require.Len(t, sent, 30)
				for i, at := range sent {
					require.Equal(t, time.Duration(i+1)*(ttl/3), at)
				}
				require.Len(t, etcd.Leases(), 1)
			})
		})
	}
}

// When the answers stop, the hold ends at attemptStarted + granted TTL - margin, counted
// from the last attempt that was answered, to the nanosecond. The key is still in etcd
// then: nobody else can have the lock before.
func TestTheHolderHearsOfALossBeforeEtcdCanGiveTheLockAway(t *testing.T) {
	const s = time.Second
	hang := fake.Effect{Drop: true}
	rows := []struct {
		promise string
		options []etcdlock.SessionOption
		minTTL  int64
		faults  func(fake.Call) fake.Effect
		after   time.Duration
	}{
		{"no renewal is answered -> 24 s less 3 s", nil, 0,
			tests.FromNth(1, fake.KeepAlive, hang), 21 * s},
		{"the third and later renewals hang -> 21 s after the second was sent", nil, 0,
			tests.FromNth(3, fake.KeepAlive, hang), 16*s + 21*s},
		{"the third and later renewals fail -> the same", nil, 0,
			tests.FromNth(3, fake.KeepAlive, fake.Effect{Before: fake.Unavailable}), 16*s + 21*s},
		{"the third and later answers are lost -> the same", nil, 0,
			tests.FromNth(3, fake.KeepAlive, fake.Effect{DropReply: true}), 16*s + 21*s},
		{"the third and later answers are errors after the renewal -> the same", nil, 0,
			tests.FromNth(3, fake.KeepAlive, fake.Effect{After: fake.Unavailable}), 16*s + 21*s},
		{"the third renewals come too late -> the same", nil, 0,
			tests.FromNth(3, fake.KeepAlive, fake.Effect{Delay: 22 * s}), 16*s + 21*s},
		{"a margin of 5 s", []etcdlock.SessionOption{etcdlock.WithSafetyMargin(5 * s)}, 0,
			tests.FromNth(3, fake.KeepAlive, hang), 16*s + 19*s},
		{"a margin of 1 ms", []etcdlock.SessionOption{etcdlock.WithSafetyMargin(time.Millisecond)}, 0,
			tests.FromNth(1, fake.KeepAlive, hang), 24*s - time.Millisecond},
		{"etcd grants 48 s for 24 s -> that counts, with a margin of 6 s", nil, 48,
			tests.FromNth(3, fake.KeepAlive, hang), 32*s + 42*s},
		{"etcd grants 48 s for 24 s -> an explicit margin stays",
			[]etcdlock.SessionOption{etcdlock.WithSafetyMargin(5 * s)}, 48,
			tests.FromNth(1, fake.KeepAlive, hang), 43 * s},
		{"10.001 s are rounded up to 11 s",
			[]etcdlock.SessionOption{etcdlock.WithTTL(10_001 * time.Millisecond)}, 0,
			tests.FromNth(1, fake.KeepAlive, hang), 11 * s * 7 / 8},
		{"100 ms are rounded up to 1 s",
			[]etcdlock.SessionOption{etcdlock.WithTTL(100 * time.Millisecond)}, 0,
			tests.FromNth(1, fake.KeepAlive, hang), s * 7 / 8},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.MinTTL(row.minTTL)
				etcd.Intercept(row.faults)
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", row.options...), "n")
				start := time.Now()
				hold := tests.LockWithin(t, mu, time.Second)
				require.Equal(t, row.after, tests.EndsAfter(t, hold, start))
				require.Len(t, etcd.Keys("n/"), 1, "etcd gave the lock away before")
				tests.RequireLost(t, mu, hold)
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrNotHeld)
			})
		})
	}
}

// If trust counted from the answer, it would outlive the key by the answer's delay.
func TestTrustCountsFromTheSendInVirtualTime(t *testing.T) {
	const s = time.Second
	slow := fake.Effect{DelayReply: 3900 * time.Millisecond}
	rows := []struct {
		promise string
		faults  func(fake.Call) fake.Effect
		sent    time.Duration // the last attempt that is answered
	}{
		{"a slow grant", func(c fake.Call) fake.Effect {
			switch c.Method {
			case fake.Grant:
				return fake.Effect{DelayReply: 1900 * time.Millisecond}
			case fake.KeepAlive:
				return fake.Effect{Drop: true}
			}
			return fake.Effect{}
		}, 0},
		{"a slow renewal", func(c fake.Call) fake.Effect {
			if c.Method == fake.KeepAlive && c.N == 1 {
				return slow
			}
			return tests.FromNth(2, fake.KeepAlive, fake.Effect{Drop: true})(c)
		}, 8 * s},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(row.faults)
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				start := time.Now()
				hold := tests.LockWithin(t, mu, 5*s)
				if row.sent == 0 {
					require.Equal(t, start.Add(21*s), mu.Status().Deadline)
				}
				require.Equal(t, row.sent+21*s, tests.EndsAfter(t, hold, start))
				require.NotEmpty(t, etcd.Keys("n/"))
				time.Sleep(3*s - 1)
				require.NotEmpty(t, etcd.Keys("n/"), "the key goes no earlier than at sent + TTL")
			})
		})
	}
}

// 0 s lock, 8 s and 12 s renewals that etcd carries out and answers 15 s later,
// 21 s the trust is over, 23 s and 27 s the answers come.
func TestALateAnswerRevivesNothingInVirtualTime(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(tests.FromNth(1, fake.KeepAlive, fake.Effect{DelayReply: 15 * time.Second}))
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		start := time.Now()
		hold := tests.LockWithin(t, mu, time.Second)
		require.Equal(t, 21*time.Second, tests.EndsAfter(t, hold, start))
		for range 100 {
			tests.RequireLost(t, mu, hold)
			time.Sleep(100 * time.Millisecond)
		}
		require.NotEmpty(t, etcd.Keys("n/"), "etcd has renewed the lease")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		synctest.Wait()
		require.Empty(t, etcd.Keys("n/"), "the lost key is removed with Unlock")
	})
}

// The answers to all renewals are lost, so at 21 s the hold is lost. The loser neither
// stops nor unlocks. Its key goes with the lease all the same, a TTL after the last
// attempt.
func TestALostLeaseIsRenewedNoMore(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{DropReply: c.Process == "a" && c.Method == fake.KeepAlive}
		})
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		start := time.Now()
		hold := tests.LockWithin(t, mu, time.Second)
		require.Equal(t, 21*time.Second, tests.EndsAfter(t, hold, start))
		attempts := len(etcd.Calls(fake.KeepAlive))
		other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n",
			etcdlock.WithAcquireTimeout(tests.TTL))
		require.NoError(t, other.Lock(context.Background()))
		for _, c := range etcd.Calls(fake.KeepAlive)[attempts:] {
			require.Equal(t, "b", c.Process, "the lost lease was renewed after %v", c.At.Sub(start))
		}
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		require.NoError(t, other.Unlock(context.Background()))
	})
}

func TestAnswersThatTakeHalfTheTTLLoseNothing(t *testing.T) {
	for name, effect := range map[string]fake.Effect{
		"slow requests": {Delay: tests.TTL / 2},
		"slow answers":  {DelayReply: tests.TTL / 2},
		"slow both":     {Delay: tests.TTL / 4, DelayReply: tests.TTL / 4},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(tests.FromNth(1, fake.KeepAlive, effect))
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				hold := tests.LockWithin(t, mu, time.Second)
				for range 100 {
					time.Sleep(tests.TTL)
					require.NoError(t, hold.Err(), context.Cause(hold))
				}
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// Audits of the lease's keys have no answer here, and there is no watch. So the renewal at
// 8 s shows the loss.
func TestARenewalOfALeaseThatIsGoneEndsTheHoldAtOnce(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.TimeToLive || c.Method == fake.Watch}
		})
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		start := time.Now()
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(time.Second)
		etcd.RevokeLease(s.Lease())
		require.Equal(t, tests.TTL/3, tests.EndsAfter(t, hold, start))
		tests.RequireLost(t, mu, hold)
		require.ErrorContains(t, context.Cause(hold), "lease not found")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		tests.LockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

func TestAFailedRenewalIsFollowedByTwoAtOnce(t *testing.T) {
	const ms = time.Millisecond
	rows := []struct {
		promise     string
		effect      fake.Effect
		least, most time.Duration // from the first to the next two
	}{
		{"soon after an error that has come at once", fake.Effect{Before: fake.Unavailable}, 37 * ms, 63 * ms},
		{"about a second after a refusal", fake.Effect{Before: tests.PermissionDenied}, 750 * ms, 1250 * ms},
		{"as much later as the error took", fake.Effect{Before: fake.Unavailable, Delay: 400 * ms}, 700 * ms, 900 * ms},
		{"about a second after one that took long", fake.Effect{Before: fake.Unavailable, Delay: 3000 * ms}, 3750 * ms, 4250 * ms},
		{"without an answer after a sixth of the TTL", fake.Effect{Drop: true}, tests.TTL / 6, tests.TTL / 6},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				// Of the two the first one meets the dead endpoint again.
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.KeepAlive && c.N <= 2 {
						return row.effect
					}
					return fake.Effect{}
				})
				start := time.Now()
				hold := tests.LockWithin(t, contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n"),
					time.Second)
				time.Sleep(20 * time.Second)
				sent := sentAfter(etcd.Calls(fake.KeepAlive), start)
				require.GreaterOrEqual(t, len(sent), 3)
				require.Equal(t, sent[1], sent[2])
				require.GreaterOrEqual(t, sent[1]-sent[0], row.least)
				require.LessOrEqual(t, sent[1]-sent[0], row.most)
				time.Sleep(10 * tests.TTL)
				require.NoError(t, hold.Err())
			})
		})
	}
}

// A stream that has answered ends under a renewal: its token has expired, or its member
// stops. That is no failure yet. The renewal is sent again at once, alone, on another
// stream, and nothing is given up for it. The outcome of the second one is reported. A
// refusal by etcd is reported at once.
func TestARenewalWhoseStreamEndsIsSentAgainAtOnce(t *testing.T) {
	tokenExpired := status.Error(codes.Unauthenticated, "etcdserver: invalid auth token")
	for _, row := range []struct {
		what   string
		effect fake.Effect
		times  int // from the third renewal on
		told   int // reported failures
	}{
		{"the connection breaks", fake.Effect{Before: fake.Unavailable}, 1, 0},
		{"the token has expired", fake.Effect{Before: tokenExpired}, 1, 0},
		{"and the next one fails, too", fake.Effect{Before: fake.Unavailable}, 2, 1},
		{"it is refused", fake.Effect{Before: tests.PermissionDenied}, 1, 1},
	} {
		t.Run(row.what, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.KeepAlive && c.N >= 3 && c.N < 3+row.times {
						return row.effect
					}
					return fake.Effect{}
				})
				told := make(chan error, 9)
				trace := etcdlock.WithTrace(&etcdlock.Trace{
					RenewalFailed: func(_ context.Context, e etcdlock.RenewalFailedEvent) { told <- e.Err },
				})
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithLinger(time.Hour), trace)
				mu := contract.MutexOf(t, s, "n")
				start := time.Now()
				tests.LockWithin(t, mu, time.Second)
				require.NoError(t, mu.Unlock(context.Background())) // the key lingers
				time.Sleep(tests.TTL + tests.TTL/6)
				sent := sentAfter(etcd.Calls(fake.KeepAlive), start)
				require.Len(t, told, row.told)
				if row.times == 2 || row.told == 0 {
					require.Equal(t, sent[2], sent[3], "not at once")
				}
				if row.told == 0 {
					require.Len(t, sent, 4, "not alone")
					require.Len(t, etcd.Keys("n/"), 1, "the key is given up")
				} else {
					require.Greater(t, sent[1+row.times+1], sent[1+row.times], "without a pause")
				}
			})
		})
	}
}

// An operator takes from a user what hundreds of leases need, and leaves what a few others of the
// same client need. Each refusal ends a stream that all share. No hold on the other leases is lost,
// and etcd gets few renewals to refuse.
func TestTheRefusalOfManyLeasesLosesNoOther(t *testing.T) {
	const refused, others, rounds = 400, 5, 4
	var refusals atomic.Int64
	for range rounds { // of one the scheduler makes 640 to 810
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			client := etcd.Client("a")
			etcd.Delay("a", time.Millisecond)
			keeps := make(map[clientv3.LeaseID]context.Context)
			for i := range refused + others {
				s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
				require.NoError(t, err)
				t.Cleanup(func() { _ = s.Close(context.Background()) }) // of a hold that is lost
				hold := tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprint(i)), time.Second)
				if i%(refused/others) == 1 {
					keeps[s.Lease()] = hold
				}
				time.Sleep(tests.RenewalPeriod / refused)
			}
			time.Sleep(tests.TTL)
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Method == fake.KeepAlive && c.Lease != clientv3.NoLease && keeps[c.Lease] == nil {
					refusals.Add(1)
					e.Before = tests.PermissionDenied
				}
				return e
			})
			time.Sleep(2 * tests.TTL)
			etcd.Intercept(nil)
			for _, hold := range keeps {
				require.NoError(t, hold.Err(), "%v", context.Cause(hold))
			}
		})
	}
	require.Less(t, refusals.Load(), int64(rounds*2*refused))
}

// Two of three renewals fail at once, by their number. A renewal that was answered is followed by
// the next one a period later, whatever has become of the one that was sent with it. No lease is
// ever at risk.
func TestWhileTwoOfThreeFailOneRenewalAPeriodIsAnswered(t *testing.T) {
	const sessions, periods = 3, 400
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var atRisk, renewed atomic.Int64
		trace := etcdlock.WithTrace(&etcdlock.Trace{
			LeaseAtRisk:  func(context.Context, etcdlock.LeaseAtRiskEvent) { atRisk.Add(1) },
			LeaseRenewed: func(context.Context, etcdlock.LeaseRenewedEvent) { renewed.Add(1) },
		})
		for i := range sessions {
			s := tests.SessionOf(t, etcd, fmt.Sprint(i), trace)
			tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprint(i)), time.Second)
			time.Sleep(1300 * time.Millisecond)
		}
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Method == fake.KeepAlive && c.N%3 != 0 {
				e.Before = fake.Unavailable
			}
			return e
		})
		time.Sleep(periods * tests.TTL / 3)
		etcd.Intercept(nil)
		require.Zero(t, atRisk.Load())
		require.InDelta(t, sessions*periods, renewed.Load(), sessions*periods/20)
	})
}

// A dead endpoint meets every other attempt, or all of a whole period's attempts except
// one. Nothing is lost.
func TestOneAnswerPerPeriodKeepsTheHold(t *testing.T) {
	for _, every := range []int{2, 3, 4} {
		t.Run(fmt.Sprintf("one of %d", every), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(func(c fake.Call) fake.Effect {
					return fake.Effect{Drop: c.Method == fake.KeepAlive && c.N%every != 0}
				})
				hold := tests.LockWithin(t, contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n"),
					time.Second)
				time.Sleep(100 * tests.TTL)
				require.NoError(t, hold.Err(), context.Cause(hold))
			})
		})
	}
}

// A renewal without an answer says for how long it has waited.
func TestARenewalWithoutAnAnswerSaysHowLongItMayTake(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		failed := make(chan error, 100)
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
			RenewalFailed: func(_ context.Context, e etcdlock.RenewalFailedEvent) { failed <- e.Err },
		}))
		mu := contract.MutexOf(t, s, "n")
		hold := tests.LockWithin(t, mu, time.Second)
		etcd.Cut("a")
		<-hold.Done()
		err := <-failed
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Regexp(t, `^the bound of a renewal, [\d.]+m?s, is over: context deadline exceeded$`,
			err.Error())
		etcd.Heal("a")
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
	})
}
