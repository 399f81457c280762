package watching

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about what a hold or a wait costs etcd while nothing happens.

// An idle hold costs at most 1.3 times the messages of its renewals, in the long run.
func TestAnIdleHoldCostsItsRenewalsAndLittleElse(t *testing.T) {
	for _, how := range []string{
		"plain", "after a wait behind few", "after a wait behind many", "with linger", "ten names",
	} {
		t.Run(how, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				names := 1
				switch how {
				case "after a wait behind few", "after a wait behind many":
					behind := 3
					if how == "after a wait behind many" {
						behind = 12
					}
					_, in, keys := tests.WaitsFor(t, etcd, s, "n", behind)
					for _, key := range keys {
						etcd.DeleteKey(key)
					}
					require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
				case "with linger":
					tests.LockWithin(t, contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Minute)), time.Second)
				default:
					names = 10
					fallthrough
				case "plain":
					for i := range names {
						tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprint("n", i)), time.Second)
					}
				}
				time.Sleep(10 * tests.TTL)
				synctest.Wait()
				require.LessOrEqual(t, etcd.Watches(), names)
				before := len(tests.CallsOf("a", etcd.Calls("")))
				renewals := len(etcd.Calls(fake.KeepAlive))
				time.Sleep(100 * tests.TTL)
				renewals = len(etcd.Calls(fake.KeepAlive)) - renewals
				sent := len(tests.CallsOf("a", etcd.Calls(""))) - before
				require.InDelta(t, 300, renewals, 1)
				t.Logf("%d messages, %d of them renewals", sent, renewals)
				require.LessOrEqual(t, float64(sent), 1.3*float64(renewals))
			})
		})
	}
}

// With any TTL that etcd grants, up to 285 years, a hold and a wait cost etcd next to nothing, and
// the wait ends with the hold.
func TestTheLongestTTLsCostNoMoreThanOthers(t *testing.T) {
	for _, ttl := range []time.Duration{400_000_000, 7_000_000_000, 9_000_000_000} {
		t.Run(fmt.Sprintf("%d s", ttl), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				long := etcdlock.WithTTL(ttl * time.Second)
				a := tests.SessionOf(t, etcd, "a", long)
				held := contract.MutexOf(t, a, "n")
				tests.LockWithin(t, held, time.Second)
				next := contract.MutexOf(t, tests.SessionOf(t, etcd, "b", long), "n")
				in := contract.Async(func() error { return next.Lock(context.Background()) })
				etcd.Intercept(func(fake.Call) fake.Effect { return fake.Effect{DelayReply: time.Second} })
				time.Sleep(time.Minute)
				brief := contract.MutexOf(t, a, "brief")
				tests.LockWithin(t, brief, time.Minute) // the keeper sees to the holds after it
				require.NoError(t, brief.Unlock(context.Background()))
				time.Sleep(time.Hour)
				before := etcd.Counts()
				time.Sleep(time.Hour)
				sent := 0
				for method, n := range etcd.Counts() {
					sent += n - before[method]
				}
				t.Logf("%d requests in an hour", sent)
				require.LessOrEqual(t, sent, 4)
				etcd.Intercept(nil)
				require.NoError(t, held.Unlock(context.Background()))
				require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
				require.NoError(t, next.Unlock(context.Background()))
			})
		})
	}
}

// So does an idle wait, in a short line and in one of a hundred. In the first minutes it
// rechecks more often.
func TestAnIdleWaitCostsItsRenewalsAndLittleElse(t *testing.T) {
	for _, behind := range []int{1, 8, 9, 100} {
		t.Run(fmt.Sprint("behind ", behind), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				_, in, keys := tests.WaitsFor(t, etcd, tests.SessionOf(t, etcd, "a"), "n", behind)
				time.Sleep(10 * tests.TTL)
				early := len(tests.CallsOf("a", etcd.Calls("")))
				require.LessOrEqual(t, early, 30+2+25)
				renewals := len(etcd.Calls(fake.KeepAlive))
				time.Sleep(100 * tests.TTL)
				require.Empty(t, in)
				renewals = len(etcd.Calls(fake.KeepAlive)) - renewals
				sent := len(tests.CallsOf("a", etcd.Calls(""))) - early
				t.Logf("%d messages, %d of them renewals", sent, renewals)
				require.LessOrEqual(t, float64(sent), 1.3*float64(renewals))
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
			})
		})
	}
}

// In a line of 1,000 waiters, each with a client of its own, all rechecks together are at
// most 20 requests a second. Their audits are one in 32 renewals at most.
func TestTheRechecksOfALongLineAreFew(t *testing.T) {
	line := race.Fewer(1000, 100)
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		tests.LockWithin(t, contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n"), time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, line)
		for i := range line {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("p", i)), "n")
			go func() { done <- mu.Lock(ctx) }()
		}
		time.Sleep(2 * time.Minute)
		counted := time.Now()
		const minutes = 5
		time.Sleep(minutes * time.Minute)
		renewals, rechecks, rest := 0, 0, 0
		for _, c := range etcd.Calls("") {
			switch {
			case !c.At.After(counted) || c.Process == "holder":
			case c.Method == fake.KeepAlive:
				renewals++
			case slices.Contains(c.Gets, "n/"):
				rechecks++
			default:
				rest++
			}
		}
		t.Logf("%.1f a second, and %d beside %d renewals",
			float64(rechecks)/minutes/60, rest, renewals)
		require.LessOrEqual(t, float64(rechecks)/minutes/60, 20.0)
		require.LessOrEqual(t, rest, renewals/32+line)
		cancel()
		for range line {
			require.ErrorIs(t, <-done, context.Canceled)
		}
	})
}

// What a fleet asks of etcd while nothing happens, as docs/scale.md has it. A holder renews
// its lease three times per TTL, and audits the lease's keys with each fourth renewal. A
// waiter renews as often, and rechecks its place once in a TTL and a third, or once in 60
// ms for each in the line if that is longer. The first two minutes do not count: a young
// wait rechecks more often then.
func TestAFleetAsksWhatTheFormulaSays(t *testing.T) {
	const ttl, counted = 15 * time.Second, 5 * time.Minute // without options
	period := ttl.Seconds()
	for _, n := range []int{100, 300, 600}[:race.Fewer(3, 1)] {
		for _, row := range []struct {
			name string
			line bool
			want float64 // requests of a Session in a second
		}{
			{"each holds a name", false, 3/period + 0.75/period},
			{"all wait in one line", true, 3/period + 1/max(4*period/3, 0.06*float64(n))},
		} {
			t.Run(fmt.Sprintf("%d, %s", n, row.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					etcd := fake.NewServer()
					var asked atomic.Int64
					ctx, leave := context.WithCancel(context.Background())
					defer leave()
					var ss []*etcdlock.Session
					var all sync.WaitGroup
					for i := range n + 1 { // the first one holds, and does not count
						process := fmt.Sprint(i)
						s, err := etcdlock.NewSession(etcd.Client(process))
						require.NoError(t, err)
						ss = append(ss, s)
						name := process
						if row.line {
							name = "n"
						}
						mu, err := s.Mutex(name)
						require.NoError(t, err)
						if i == 0 {
							require.NoError(t, mu.Lock(ctx))
							continue
						}
						all.Go(func() { _ = mu.Lock(ctx) })
					}
					time.Sleep(2 * time.Minute)
					etcd.Intercept(func(c fake.Call) fake.Effect {
						if c.Process != "0" && c.Method != fake.Event {
							asked.Add(1)
						}
						return fake.Effect{}
					})
					time.Sleep(counted)
					each := float64(asked.Load()) / float64(n) / counted.Seconds()
					t.Logf("%.4f requests a second each, of %.4f", each, row.want)
					require.InEpsilon(t, row.want, each, 0.05)
					leave()
					all.Wait()
					for _, s := range ss {
						require.NoError(t, s.Close(context.Background()))
					}
				})
			})
		}
	}
}
