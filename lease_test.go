package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// The tests here and in line_test.go run in virtual time, in a bubble of testing/synctest,
// against a simulated etcd. It answers at once unless a test says otherwise. So durations
// are exact, and a goroutine that is left behind makes the bubble panic.

// virtualTTL makes round numbers: the margin is 3 s, a renewal is sent each 8 s.
const virtualTTL = 24 * time.Second

// inVirtualTime runs test in a bubble with an etcd of its own. In the end, when all
// Sessions are closed and every TTL is over, no key and no lease may be left.
func inVirtualTime(t *testing.T, test func(t *testing.T, etcd *fake.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		t.Cleanup(func() {
			time.Sleep(time.Hour)
			require.Empty(t, etcd.Keys(""), "keys left behind")
			require.Empty(t, etcd.Leases(), "leases left behind")
		})
		test(t, etcd)
	})
}

// processIn returns a Session of a process of its own, with virtualTTL unless opts say
// otherwise. It is closed in the end, when the faults are over.
func processIn(t *testing.T, etcd *fake.Server, name string, opts ...etcdlock.Option) *etcdlock.Session {
	t.Helper()
	opts = append([]etcdlock.Option{etcdlock.WithTTL(virtualTTL), etcdlock.WithOwner(name)}, opts...)
	s, err := etcdlock.NewSession(etcd.Client(name), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		etcd.Intercept(nil)
		etcd.Heal(name)
		etcd.Thaw()
		require.NoError(t, s.Close(context.Background()))
	})
	return s
}

// lockWithin locks mu, and fails if that takes longer than most. It returns the context of
// the hold.
func lockWithin(t *testing.T, mu *etcdlock.Mutex, most time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	require.NoError(t, mu.Lock(ctx))
	requireWhole(t, mu)
	return mu.Context(context.Background())
}

// requireWhole requires that a hold is whole in every way in which it can be asked.
func requireWhole(t *testing.T, mu *etcdlock.Mutex) {
	t.Helper()
	require.NoError(t, mu.Context(context.Background()).Err())
	require.NotZero(t, mu.Token())
	require.NotEmpty(t, mu.Key())
	require.True(t, mu.Deadline().After(time.Now()), "deadline %v is over", mu.Deadline())
}

// requireLost is the contrary of requireWhole, for the context of a hold that was lost.
func requireLost(t *testing.T, mu *etcdlock.Mutex, hold context.Context) {
	t.Helper()
	require.ErrorIs(t, hold.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
	require.Zero(t, mu.Token())
	require.Empty(t, mu.Key())
	require.Zero(t, mu.Deadline())
}

// endsAfter waits for the end of a hold and returns how long after start it came.
func endsAfter(t *testing.T, hold context.Context, start time.Time) time.Duration {
	t.Helper()
	select {
	case <-hold.Done():
		return time.Since(start)
	case <-time.After(24 * time.Hour):
		require.FailNow(t, "the hold does not end")
		return 0
	}
}

// asksNothing asks that etcd is asked for nothing, for so long.
func asksNothing(t *testing.T, etcd *fake.Server, d time.Duration) {
	t.Helper()
	before := len(etcd.Calls(""))
	time.Sleep(d)
	require.Empty(t, etcd.Calls("")[before:])
}

// sentAfter returns when calls were sent, counted from start.
func sentAfter(calls []fake.Call, start time.Time) []time.Duration {
	var sent []time.Duration
	for _, c := range calls {
		sent = append(sent, c.At.Sub(start))
	}
	return sent
}

// fromNth makes an effect for the nth and all later calls of a method.
func fromNth(n int, method string, effect fake.Effect) func(fake.Call) fake.Effect {
	return func(c fake.Call) fake.Effect {
		if c.Method == method && c.N >= n {
			return effect
		}
		return fake.Effect{}
	}
}

// onlyNth makes an effect for the nth call of a method alone.
func onlyNth(n int, method string, effect fake.Effect) func(fake.Call) fake.Effect {
	return func(c fake.Call) fake.Effect {
		if c.Method == method && c.N == n {
			return effect
		}
		return fake.Effect{}
	}
}

func TestTheLeaseIsRenewedEachThirdOfTheTTL(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 3 * time.Second, 15 * time.Second, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a", etcdlock.WithTTL(ttl))
				start := time.Now()
				hold := lockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
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
		options []etcdlock.Option
		minTTL  int64
		faults  func(fake.Call) fake.Effect
		after   time.Duration
	}{
		{"no renewal is answered -> 24 s less 3 s", nil, 0,
			fromNth(1, fake.KeepAlive, hang), 21 * s},
		{"the third and later renewals hang -> 21 s after the second was sent", nil, 0,
			fromNth(3, fake.KeepAlive, hang), 16*s + 21*s},
		{"the third and later renewals fail -> the same", nil, 0,
			fromNth(3, fake.KeepAlive, fake.Effect{Before: fake.Unavailable}), 16*s + 21*s},
		{"the third and later answers are lost -> the same", nil, 0,
			fromNth(3, fake.KeepAlive, fake.Effect{DropReply: true}), 16*s + 21*s},
		{"the third and later answers are errors after the renewal -> the same", nil, 0,
			fromNth(3, fake.KeepAlive, fake.Effect{After: fake.Unavailable}), 16*s + 21*s},
		{"the third renewals come too late -> the same", nil, 0,
			fromNth(3, fake.KeepAlive, fake.Effect{Delay: 22 * s}), 16*s + 21*s},
		{"a margin of 5 s", []etcdlock.Option{etcdlock.WithSafetyMargin(5 * s)}, 0,
			fromNth(3, fake.KeepAlive, hang), 16*s + 19*s},
		{"a margin of 1 ms", []etcdlock.Option{etcdlock.WithSafetyMargin(time.Millisecond)}, 0,
			fromNth(1, fake.KeepAlive, hang), 24*s - time.Millisecond},
		{"etcd grants 48 s for 24 s -> that counts, with a margin of 6 s", nil, 48,
			fromNth(3, fake.KeepAlive, hang), 32*s + 42*s},
		{"etcd grants 48 s for 24 s -> an explicit margin stays", []etcdlock.Option{etcdlock.WithSafetyMargin(5 * s)}, 48,
			fromNth(1, fake.KeepAlive, hang), 43 * s},
		{"10.001 s are rounded up to 11 s", []etcdlock.Option{etcdlock.WithTTL(10_001 * time.Millisecond)}, 0,
			fromNth(1, fake.KeepAlive, hang), 11 * s * 7 / 8},
		{"a millisecond is rounded up to 1 s", []etcdlock.Option{etcdlock.WithTTL(time.Millisecond)}, 0,
			fromNth(1, fake.KeepAlive, hang), s * 7 / 8},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.MinTTL(row.minTTL)
				etcd.Intercept(row.faults)
				mu := contract.MutexOf(t, processIn(t, etcd, "a", row.options...), "n")
				start := time.Now()
				hold := lockWithin(t, mu, time.Second)
				require.Equal(t, row.after, endsAfter(t, hold, start))
				require.Len(t, etcd.Keys("n/"), 1, "etcd gave the lock away before")
				requireLost(t, mu, hold)
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
			return fromNth(2, fake.KeepAlive, fake.Effect{Drop: true})(c)
		}, 8 * s},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(row.faults)
				mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
				start := time.Now()
				hold := lockWithin(t, mu, 5*s)
				if row.sent == 0 {
					require.Equal(t, start.Add(21*s), mu.Deadline())
				}
				require.Equal(t, row.sent+21*s, endsAfter(t, hold, start))
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(fromNth(1, fake.KeepAlive, fake.Effect{DelayReply: 15 * time.Second}))
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		start := time.Now()
		hold := lockWithin(t, mu, time.Second)
		require.Equal(t, 21*time.Second, endsAfter(t, hold, start))
		for range 100 {
			requireLost(t, mu, hold)
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{DropReply: c.Process == "a" && c.Method == fake.KeepAlive}
		})
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		start := time.Now()
		hold := lockWithin(t, mu, time.Second)
		require.Equal(t, 21*time.Second, endsAfter(t, hold, start))
		attempts := len(etcd.Calls(fake.KeepAlive))
		other := contract.MutexOf(t, processIn(t, etcd, "b"), "n", etcdlock.WithAcquireTimeout(virtualTTL))
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
		"slow requests": {Delay: virtualTTL / 2},
		"slow answers":  {DelayReply: virtualTTL / 2},
		"slow both":     {Delay: virtualTTL / 4, DelayReply: virtualTTL / 4},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(fromNth(1, fake.KeepAlive, effect))
				mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
				hold := lockWithin(t, mu, time.Second)
				for range 100 {
					time.Sleep(virtualTTL)
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.TimeToLive || c.Method == fake.Watch}
		})
		s := processIn(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		start := time.Now()
		hold := lockWithin(t, mu, time.Second)
		time.Sleep(time.Second)
		etcd.RevokeLease(s.Lease())
		require.Equal(t, virtualTTL/3, endsAfter(t, hold, start))
		requireLost(t, mu, hold)
		require.ErrorContains(t, context.Cause(hold), "lease not found")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		lockWithin(t, mu, time.Second)
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
		{"about a second after a refusal", fake.Effect{Before: permissionDenied}, 750 * ms, 1250 * ms},
		{"as much later as the error took", fake.Effect{Before: fake.Unavailable, Delay: 400 * ms}, 700 * ms, 900 * ms},
		{"about a second after one that took long", fake.Effect{Before: fake.Unavailable, Delay: 3000 * ms}, 3750 * ms, 4250 * ms},
		{"without an answer after a sixth of the TTL", fake.Effect{Drop: true}, virtualTTL / 6, virtualTTL / 6},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				// Of the two the first one meets the dead endpoint again.
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.KeepAlive && c.N <= 2 {
						return row.effect
					}
					return fake.Effect{}
				})
				start := time.Now()
				hold := lockWithin(t, contract.MutexOf(t, processIn(t, etcd, "a"), "n"), time.Second)
				time.Sleep(20 * time.Second)
				sent := sentAfter(etcd.Calls(fake.KeepAlive), start)
				require.GreaterOrEqual(t, len(sent), 3)
				require.Equal(t, sent[1], sent[2])
				require.GreaterOrEqual(t, sent[1]-sent[0], row.least)
				require.LessOrEqual(t, sent[1]-sent[0], row.most)
				time.Sleep(10 * virtualTTL)
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
		{"it is refused", fake.Effect{Before: permissionDenied}, 1, 1},
	} {
		t.Run(row.what, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.KeepAlive && c.N >= 3 && c.N < 3+row.times {
						return row.effect
					}
					return fake.Effect{}
				})
				told := make(chan error, 9)
				trace := etcdlock.WithTrace(&etcdlock.Trace{
					RenewalFailed: func(_ clientv3.LeaseID, err error) { told <- err },
				})
				s := processIn(t, etcd, "a", etcdlock.WithLinger(time.Hour), trace)
				mu := contract.MutexOf(t, s, "n")
				start := time.Now()
				lockWithin(t, mu, time.Second)
				require.NoError(t, mu.Unlock(context.Background())) // the key lingers
				time.Sleep(virtualTTL + virtualTTL/6)
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

// A dead endpoint meets every other attempt, or all of a whole period's attempts except
// one. Nothing is lost.
func TestOneAnswerPerPeriodKeepsTheHold(t *testing.T) {
	for _, every := range []int{2, 3, 4} {
		t.Run(fmt.Sprintf("one of %d", every), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(func(c fake.Call) fake.Effect {
					return fake.Effect{Drop: c.Method == fake.KeepAlive && c.N%every != 0}
				})
				hold := lockWithin(t, contract.MutexOf(t, processIn(t, etcd, "a"), "n"), time.Second)
				time.Sleep(100 * virtualTTL)
				require.NoError(t, hold.Err(), context.Cause(hold))
			})
		})
	}
}

func TestMaxHoldEndsTheHoldToTheInstantAndReleasesTheKey(t *testing.T) {
	for _, most := range []time.Duration{time.Millisecond, 5 * time.Second, 10 * virtualTTL} {
		t.Run(most.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, processIn(t, etcd, "a", etcdlock.WithMaxHold(most)), "n")
				start := time.Now()
				hold := lockWithin(t, mu, time.Second)
				require.False(t, mu.Deadline().After(start.Add(most)))
				next := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
				entered := make(chan time.Duration, 1)
				go func() {
					if next.Lock(context.Background()) == nil {
						entered <- time.Since(start)
					}
				}()
				require.Equal(t, most, endsAfter(t, hold, start))
				require.Equal(t, etcdlock.ErrMaxHold, context.Cause(hold))
				require.Zero(t, mu.Token())
				require.Equal(t, most, soonOr(t, entered, "the key is not released"))
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
		{"no grant is answered", fromNth(1, fake.Grant, fake.Effect{Drop: true}), false, 0},
		{"each grant fails", fromNth(1, fake.Grant, fake.Effect{Before: fake.Unavailable}), false, 0},
		{"no transaction is answered", fromNth(1, fake.Txn, fake.Effect{Drop: true}), false, 50 * time.Millisecond},
		{"each answer to a transaction is lost", fromNth(1, fake.Txn, fake.Effect{DropReply: true}), false, 50 * time.Millisecond},
		{"no watch is answered", fromNth(1, fake.Watch, fake.Effect{Drop: true}), false, 0},
		{"no read and no watch is answered", func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Watch || c.Method == fake.Range || c.Method == fake.Txn && len(c.Puts) == 0}
		}, false, 50 * time.Millisecond},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				holding := processIn(t, etcd, "a")
				holder := contract.MutexOf(t, holding, "n")
				hold := lockWithin(t, holder, time.Second)
				waiting := holding
				if !row.same {
					waiting = processIn(t, etcd, "b")
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
				time.Sleep(2 * virtualTTL)
				require.Equal(t, []string{holder.Key()}, etcd.Keys("n/"), "the wait left something behind")
				require.NoError(t, hold.Err())
				require.NoError(t, holder.Unlock(context.Background()))
			})
		})
	}
}

func TestAnIdleLeaseIsGivenBackAfterTwoTTLsAndReplacedOnUse(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
		var used []clientv3.LeaseID
		for range 3 {
			lockWithin(t, mu, time.Second)
			used = append(used, s.Lease())
			time.Sleep(3 * time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(2*virtualTTL - 1)
			require.Equal(t, used[len(used)-1:], etcd.Leases(), "given back before two TTLs")
			require.Equal(t, used[len(used)-1], s.Lease())
			time.Sleep(time.Second)
			require.Empty(t, etcd.Leases(), "not given back after two TTLs")
			require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
			calls := len(etcd.Calls(""))
			time.Sleep(100 * virtualTTL)
			require.Len(t, etcd.Calls(""), calls, "a Session that is not used says nothing")
		}
		require.Len(t, etcd.Calls(fake.Grant), 3)
		require.NotEqual(t, used[0], used[1])
		require.NotEqual(t, used[1], used[2])
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(onlyNth(1, fake.Revoke, effect))
				s := processIn(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n")
				lockWithin(t, mu, time.Second)
				old := s.Lease()
				require.NoError(t, mu.Unlock(context.Background()))
				for len(etcd.Calls(fake.Revoke)) == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				hold := lockWithin(t, mu, time.Second)
				require.NotEqual(t, old, s.Lease())
				time.Sleep(10 * virtualTTL)
				require.NoError(t, hold.Err(), context.Cause(hold))
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// The grant's answer takes 300 ms, and the trust is 100 ms. A lease granted like that has
// ended before anything can be held with it.
func TestALeaseWhoseGrantComesTooLateIsNotHeldWith(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(fromNth(1, fake.Grant, fake.Effect{DelayReply: 300 * time.Millisecond}))
		s := processIn(t, etcd, "a", etcdlock.WithTTL(2*time.Second), etcdlock.WithSafetyMargin(1900*time.Millisecond))
		mu := contract.MutexOf(t, s, "n")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		etcd.Intercept(nil)
		lockWithin(t, mu, 3*time.Second)
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(func(c fake.Call) fake.Effect {
					switch {
					case c.Method == fake.Event:
						return fake.Effect{Delay: event}
					case c.Process == "b" && c.Method == fake.KeepAlive && c.Lease == 0x1002:
						return fake.Effect{DropReply: true}
					}
					return fake.Effect{}
				})
				holder := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
				lockWithin(t, holder, time.Second)
				s := processIn(t, etcd, "b")
				mu := contract.MutexOf(t, s, "n")
				start := time.Now()
				first := make(chan bool, 1)
				go func() {
					err := mu.Lock(context.Background())
					held, until := mu.Token(), mu.Deadline()
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(fromNth(1, fake.KeepAlive, fake.Effect{DropReply: true}))
				mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
				lockWithin(t, mu, time.Second)
				time.Sleep(21*time.Second + late)
				require.NotEmpty(t, etcd.Keys("n/"))
				err := mu.Unlock(context.Background())
				lost, ok := errors.AsType[*etcdlock.LostError](err)
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
	lockWithin(t, mu, time.Second)
	require.NoError(t, mu.Unlock(context.Background()))
}

func TestAThousandNamesCostOneLeaseAndOneRenewalPerThirdOfTheTTL(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		start := time.Now()
		for i := range 1000 {
			lockWithin(t, contract.MutexOf(t, s, fmt.Sprintf("n%d", i)), time.Second)
		}
		require.Len(t, etcd.Calls(""), 1001, "one grant, and one transaction per Lock")
		time.Sleep(10*virtualTTL + time.Second)
		require.Len(t, etcd.Leases(), 1)
		require.Len(t, etcd.Keys(""), 1000)
		require.Len(t, etcd.Calls(fake.KeepAlive), 30)
		require.LessOrEqual(t, len(etcd.Calls(fake.TimeToLive)), 30, "%v", sentAfter(etcd.Calls(fake.TimeToLive), start))
		require.NotEmpty(t, etcd.Calls(fake.TimeToLive))
	})
}

// A hold is watched when it is a second old, which the keeper sees within 0.35 s.
func TestALossFromOutsideIsNoticedWithinAboutASecond(t *testing.T) {
	const noticed = watchedBy + 50*time.Millisecond
	ways := map[string]func(*fake.Server, *etcdlock.Session, *etcdlock.Mutex){
		"the key is deleted":   func(etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) { etcd.DeleteKey(mu.Key()) },
		"the lease is revoked": func(etcd *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) { etcd.RevokeLease(s.Lease()) },
	}
	for name, takeAway := range ways {
		t.Run(name, func(t *testing.T) {
			for after := time.Duration(0); after < 10*time.Second; after += 130 * time.Millisecond {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := processIn(t, etcd, "a")
					mu := contract.MutexOf(t, s, "n")
					hold := lockWithin(t, mu, time.Second)
					time.Sleep(after)
					taken := time.Now()
					takeAway(etcd, s, mu)
					require.LessOrEqual(t, endsAfter(t, hold, taken), noticed, "taken away after %v", after)
					requireLost(t, mu, hold)
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
	recallable := []etcdlock.Option{etcdlock.WithRecall(time.Second)} // its other audits read values
	rows := []struct {
		promise     string
		held, waits bool
		within      time.Duration
		options     []etcdlock.Option
	}{
		{"while something is held", true, false, seldomLook, nil},
		{"while nothing is", false, false, seldomLook, nil},
		{"while it waits for something", false, true, seldomLook, nil},
		{"while a hold may be recalled", true, false, 2 * seldomLook, recallable},
		{"while a wait may be recalled", false, true, 2 * seldomLook, recallable},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(onlyNth(2, fake.Txn, fake.Effect{Again: 3 * time.Second}))
				s := processIn(t, etcd, "a", row.options...)
				mu, held := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "held")
				hold := lockWithin(t, held, time.Second)
				lease := s.Lease()
				lockWithin(t, mu, time.Second)
				time.Sleep(time.Second)
				require.NoError(t, mu.Unlock(context.Background()))
				leave := func() {}
				if row.waits {
					awaited := contract.MutexOf(t, processIn(t, etcd, "c"), "awaited")
					lockWithin(t, awaited, time.Second)
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

				other := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
				start := time.Now()
				lockWithin(t, other, 3*seldomLook)
				require.LessOrEqual(t, time.Since(start), row.within)
				require.NoError(t, other.Unlock(context.Background()))

				// Another copy may come: what follows uses another lease.
				next := contract.MutexOf(t, s, "next")
				lockWithin(t, next, time.Second)
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

// The same holds if each answer takes more than half of the time of an attempt.
func TestAStrayIsSweptWhereAnswersAreSlow(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(onlyNth(2, fake.Txn, fake.Effect{Again: 3 * time.Second}))
		s := processIn(t, etcd, "a")
		lockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
		mu := contract.MutexOf(t, s, "n")
		lockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		etcd.Intercept(func(fake.Call) fake.Effect { return fake.Effect{DelayReply: 1200 * time.Millisecond} })
		time.Sleep(3100 * time.Millisecond) // between two ticks of the keeper, at 350 ms each
		require.Len(t, etcd.Keys("n/"), 1, "no late copy")
		time.Sleep(seldomLook + 4*time.Second)
		require.Empty(t, etcd.Keys("n/"))
	})
}

// What users attach to the Session's lease belongs to them.
func TestKeysOfTheUserOnTheLeaseAreNotSwept(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		lockWithin(t, mu, time.Second)
		keys := []string{"members/api-7", "members/" + uuid.NewString()}
		for _, key := range keys {
			require.NoError(t, etcd.PutKey(key, s.Lease()))
		}
		time.Sleep(10 * virtualTTL)
		require.Equal(t, keys, etcd.Keys("members/"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// a is held on the first lease. The answer to b's transaction is lost, so a copy of it may
// still come. b holds on that lease; c does not.
func TestAfterADoubtfulLockTheNextOneUsesAnotherLease(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "p")
		a, b, c := contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "b"), contract.MutexOf(t, s, "c")
		holdA := lockWithin(t, a, time.Second)
		first := s.Lease()
		etcd.Intercept(onlyNth(2, fake.Txn, fake.Effect{After: fake.Unavailable}))
		holdB := lockWithin(t, b, time.Second)
		require.Len(t, etcd.Keys("b/"), 1)
		lockWithin(t, c, time.Second)
		second := s.Lease()
		require.NotEqual(t, first, second)
		require.Equal(t, []clientv3.LeaseID{first, second}, etcd.Leases())

		time.Sleep(10 * virtualTTL)
		require.NoError(t, holdA.Err(), "the doubtful lease is renewed while it is held with")
		require.NoError(t, holdB.Err())
		require.NoError(t, a.Unlock(context.Background()))
		time.Sleep(10 * virtualTTL)
		require.Contains(t, etcd.Leases(), first)
		require.NoError(t, holdB.Err())
		require.NoError(t, b.Unlock(context.Background()))
		synctest.Wait()
		require.Equal(t, []clientv3.LeaseID{second}, etcd.Leases(), "the doubtful lease is revoked with its last hold")
		require.NoError(t, c.Unlock(context.Background()))
	})
}

// The request is under way for 5 s when the caller gives up, and is carried out then.
func TestARequestThatIsCarriedOutAfterItsCallerGaveUpLeavesNoKey(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("lease held with otherwise %v", held), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				if held {
					lockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		hold := lockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
		etcd.Intercept(onlyNth(2, fake.Txn, fake.Effect{DropReply: true}))
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, contract.MutexOf(t, s, "n").Lock(ctx), context.DeadlineExceeded)
		synctest.Wait()
		require.Empty(t, etcd.Keys("n/"))
		require.NoError(t, hold.Err())
	})
}

// etcd has put the key, the answer is lost, and Lock asks again. It finds the same key, and
// does not wait for itself.
func TestALockWhoseAnswerWasLostStandsInLineOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(onlyNth(1, fake.Txn, fake.Effect{After: fake.Unavailable}))
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		lockWithin(t, mu, 100*time.Millisecond)
		require.Equal(t, []string{mu.Key()}, etcd.Keys("n/"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The key is deleted, and Unlock is called before any audit could show that.
func TestUnlockTellsOfALossThatNobodyHasNoticed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		hold := lockWithin(t, mu, time.Second)
		etcd.DeleteKey(mu.Key())
		require.NoError(t, hold.Err())
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		requireUsable(t, mu)
	})
}

// An old leader answers with the keys as they were before. The linearizable read that
// follows shows that the hold is whole.
func TestALookThatOmitsALiveKeyEndsNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(fromNth(1, fake.TimeToLive, fake.Effect{Edit: func(reply any) {
			reply.(*clientv3.LeaseTimeToLiveResponse).Keys = nil
		}}))
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		hold := lockWithin(t, mu, time.Second)
		time.Sleep(2 * seldomLook)
		require.NoError(t, hold.Err(), context.Cause(hold))
		require.NotEmpty(t, etcd.Calls(fake.TimeToLive))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The audit is sent before b is locked, and answered after that. What it says about b means
// nothing, so the library asks nothing because of it.
func TestALookJudgesNoHoldThatBeganAfterItWasSent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(onlyNth(1, fake.TimeToLive, fake.Effect{DelayReply: 500 * time.Millisecond}))
		s := processIn(t, etcd, "p")
		lockWithin(t, contract.MutexOf(t, s, "a"), time.Second)
		for len(etcd.Calls(fake.TimeToLive)) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		hold := lockWithin(t, contract.MutexOf(t, s, "b"), time.Second)
		asked := len(etcd.Calls(fake.Txn)) + len(etcd.Calls(fake.Range))
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, asked, len(etcd.Calls(fake.Txn))+len(etcd.Calls(fake.Range)))
		time.Sleep(5 * time.Second)
		require.NoError(t, hold.Err(), context.Cause(hold))
	})
}

// An outage that outlives the lease ends the hold. Session and Mutex go on with a new lease
// by themselves as soon as etcd is back.
func TestAnExpiredLeaseIsReplacedAfterAnOutage(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		for range 3 {
			hold := lockWithin(t, mu, time.Second)
			old := s.Lease()
			etcd.Cut("a")
			endsAfter(t, hold, time.Now())
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

// leasedIn is a Session that has a lease, and holds nothing.
func leasedIn(t *testing.T, etcd *fake.Server) *etcdlock.Session {
	t.Helper()
	s := processIn(t, etcd, "a")
	mu := contract.MutexOf(t, s, "n")
	lockWithin(t, mu, time.Second)
	require.NoError(t, mu.Unlock(context.Background()))
	return s
}

// deadEndpoint returns a function that reports whether a call meets a dead endpoint. The
// first call of each instant does.
func deadEndpoint() func(fake.Call) bool {
	met := make(map[time.Time]bool)
	return func(c fake.Call) bool {
		first := !met[c.At]
		met[c.At] = true
		return first
	}
}

// Leases that Close revokes side by side take turns on the endpoints. So each attempt of
// one of them may meet the same dead endpoint. If it sends two at once, only the first
// does.
func TestCloseIsConfirmedThoughADeadEndpointMeetsEveryRevocation(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := leasedIn(t, etcd)
		dead := deadEndpoint()
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Revoke && dead(c)}
		})
		require.NoError(t, s.Close(in(t, 5*time.Second)))
		require.Empty(t, etcd.Leases())
	})
}

// An idle lease is being given back, and etcd does not answer that for two TTLs, in which the lease
// must have expired. A Close that comes then has two TTLs of its own for the answer, and no more.
func TestCloseHasItsOwnTimeToRevokeALease(t *testing.T) {
	for _, answers := range []bool{true, false} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := processIn(t, etcd, "a")
			mu := contract.MutexOf(t, s, "n")
			lockWithin(t, mu, time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
			etcd.Intercept(func(c fake.Call) fake.Effect { return fake.Effect{Drop: c.Method == fake.Revoke} })
			for len(etcd.Calls(fake.Revoke)) == 0 {
				time.Sleep(time.Second)
			}
			time.Sleep(2*virtualTTL - 2*time.Second)
			if answers {
				time.AfterFunc(20*time.Second, func() { etcd.Intercept(nil) })
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			began := time.Now()
			err := s.Close(ctx)
			if answers {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
			require.WithinRange(t, time.Now(), began.Add(2*virtualTTL), began.Add(3*virtualTTL)) // with an attempt and its pause
		})
	}
}

// The answer to a revocation is lost. Two at once follow, again and again: one meets a dead
// endpoint, and the other learns that there is no such lease. That is an answer.
func TestCloseIsConfirmedByAnAnswerThatTheLeaseIsGone(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := leasedIn(t, etcd)
		dead := deadEndpoint()
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method != fake.Revoke || c.N == 1 {
				return fake.Effect{DropReply: c.Method == fake.Revoke}
			}
			return fake.Effect{Drop: dead(c)}
		})
		require.NoError(t, s.Close(in(t, 5*time.Second)))
	})
}
