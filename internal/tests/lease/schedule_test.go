package lease

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// atEachMargin runs test with safety margins of all sizes. span is how long an attempt is
// trusted then. period is the time that should pass between renewals: a third of the TTL
// while the margin is up to a quarter of it, and above that four ninths of the span.
func atEachMargin(
	t *testing.T,
	test func(t *testing.T, etcd *fake.Server, span, period time.Duration,
		opts []etcdlock.SessionOption),
) {
	t.Helper()
	run := func(name string, margin, period time.Duration, opts ...etcdlock.SessionOption) {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				test(t, etcd, tests.TTL-margin, period, opts)
			})
		})
	}
	run("the default", tests.TTL/8, tests.TTL/3)
	for _, percent := range []time.Duration{1, 5, 10, 16, 20, 25} {
		margin := tests.TTL / 100 * percent
		run(fmt.Sprint(int(percent), " percent"), margin, tests.TTL/3, etcdlock.WithSafetyMargin(margin))
	}
	for _, percent := range []time.Duration{26, 34, 40, 50, 60, 66, 67, 75, 80, 90, 93, 95} {
		margin := tests.TTL / 100 * percent
		run(fmt.Sprint(int(percent), " percent"), margin, (tests.TTL-margin)/9*4,
			etcdlock.WithSafetyMargin(margin))
	}
}

// Whatever the margin, a healthy etcd loses no hold. It is asked once in each period.
func TestNoMarginLosesTheHoldsOfAHealthyEtcd(t *testing.T) {
	const ttls = 50
	atEachMargin(t, func(t *testing.T, etcd *fake.Server, _, period time.Duration,
		opts []etcdlock.SessionOption) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", opts...), "n")
		start := time.Now()
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(ttls*tests.TTL + time.Millisecond)
		require.NoError(t, hold.Err(), "%v, until %v", context.Cause(hold), time.Since(start))
		sent := sentAfter(etcd.Calls(fake.KeepAlive), start)
		require.Len(t, sent, int(ttls*tests.TTL/period))
		for i, at := range sent {
			require.Equal(t, time.Duration(i+1)*period, at)
		}
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// Nor does an etcd that answers only after a third of the trust.
func TestNoMarginLosesTheHoldsOfASlowEtcd(t *testing.T) {
	atEachMargin(t, func(t *testing.T, etcd *fake.Server, span, _ time.Duration,
		opts []etcdlock.SessionOption) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", opts...), "n")
		hold := tests.LockWithin(t, mu, time.Second)
		for _, slow := range []fake.Effect{{Delay: span / 3}, {DelayReply: span / 3}} {
			etcd.Intercept(tests.FromNth(1, fake.KeepAlive, slow))
			time.Sleep(20 * tests.TTL)
			require.NoError(t, hold.Err(), context.Cause(hold))
		}
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// Nor does an etcd whose every second renewal fails, or has no answer.
func TestNoMarginLosesTheHoldsOfAnEtcdThatFailsNowAndThen(t *testing.T) {
	atEachMargin(t, func(t *testing.T, etcd *fake.Server, _, _ time.Duration,
		opts []etcdlock.SessionOption) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", opts...), "n")
		hold := tests.LockWithin(t, mu, time.Second)
		for _, fault := range []fake.Effect{{Before: fake.Unavailable}, {Drop: true}} {
			etcd.Intercept(func(c fake.Call) fake.Effect {
				if c.Method == fake.KeepAlive && c.N%2 == 0 {
					return fault
				}
				return fake.Effect{}
			})
			time.Sleep(20 * tests.TTL)
			require.NoError(t, hold.Err(), context.Cause(hold))
		}
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// With any margin a key that lingers does so at any time between two renewals, and a hold
// is passed on.
func TestWithAnyMarginKeysLingerAndHoldsArePassedOn(t *testing.T) {
	const times = 100
	atEachMargin(t, func(t *testing.T, etcd *fake.Server, span, _ time.Duration,
		opts []etcdlock.SessionOption) {
		s := tests.SessionOf(t, etcd, "a", opts...)
		lingers := contract.MutexOf(t, s, "lingers", etcdlock.WithLinger(time.Hour))
		passed := contract.MutexOf(t, s, "passed", etcdlock.WithHandoff(2*times))
		tests.LockWithin(t, lingers, time.Second)
		tests.LockWithin(t, passed, time.Second)
		for i := range times {
			time.Sleep(span / 17)
			require.NoError(t, lingers.Unlock(context.Background()))
			in := tests.LockLater(passed)
			token := passed.Token()
			require.NoError(t, passed.Unlock(context.Background()))
			require.NoError(t, <-in)
			require.Equal(t, token, passed.Token(), "not passed on in round %d", i)
			time.Sleep(span / 17)
			require.Len(t, etcd.Keys("lingers/"), 1, "round %d", i)
			tests.LockWithin(t, lingers, time.Second)
		}
		require.NoError(t, lingers.Unlock(context.Background()))
		require.NoError(t, passed.Unlock(context.Background()))
		writes := slices.DeleteFunc(etcd.Calls(fake.Txn), func(c fake.Call) bool {
			return len(c.Puts)+len(c.Deletes) == 0
		})
		require.Len(t, writes, 3, "one put of each, and one release")
	})
}

// With any margin, a silent etcd is reported while about half of the trust is left, and the
// hold ends at its end.
func TestWithAnyMarginASilentEtcdIsToldOfBeforeTheLoss(t *testing.T) {
	atEachMargin(t, func(t *testing.T, etcd *fake.Server, span, period time.Duration,
		opts []etcdlock.SessionOption) {
		var risks []time.Duration
		s := tests.SessionOf(t, etcd, "a", append(opts, etcdlock.WithTrace(&etcdlock.Trace{
			LeaseAtRisk: func(_ context.Context, e etcdlock.LeaseAtRiskEvent) {
				risks = append(risks, e.Remaining)
			},
		}))...)
		mu := contract.MutexOf(t, s, "n")
		etcd.Intercept(tests.FromNth(1, fake.KeepAlive, fake.Effect{Drop: true}))
		start := time.Now()
		hold := tests.LockWithin(t, mu, time.Second)
		require.Equal(t, span, tests.EndsAfter(t, hold, start))
		synctest.Wait()
		require.NotEmpty(t, risks, "nobody is told")
		require.Less(t, risks[0], span/2)
		require.GreaterOrEqual(t, risks[0], span/5, "told late")
		attempts := len(etcd.Calls(fake.KeepAlive))
		require.GreaterOrEqual(t, attempts, 5, "few attempts")
		require.LessOrEqual(t, attempts, 9, "many attempts")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// If the margin leaves hardly any trust, the library still asks etcd no more often than
// each 10 ms.
func TestAMarginThatLeavesNothingIsNoStorm(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(time.Second),
			etcdlock.WithSafetyMargin(time.Second-time.Millisecond))
		mu := contract.MutexOf(t, s, "n")
		start := time.Now()
		for time.Since(start) < 10*time.Second {
			require.NoError(t, mu.Lock(context.Background()))
			time.Sleep(500 * time.Millisecond)
			require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		}
		require.LessOrEqual(t, len(etcd.Calls(fake.KeepAlive)), 1000)
	})
}
