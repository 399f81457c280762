package holders

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A recall is one read, one transaction and one revision. Only the value changes, and in
// the value only the request is new.
func TestARecallKeepsPlaceTokenAndLease(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		operator := etcd.Client("operator")
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		tests.LockWithin(t, mu, time.Second)
		next := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", tests.Listens))
		time.Sleep(tests.WatchedBy)
		line := func() []etcdlock.Contender {
			all, err := etcdlock.Contenders(context.Background(), operator, "n")
			require.NoError(t, err)
			return all
		}
		fields := func(key string) (v map[string]any) {
			resp, err := operator.Get(context.Background(), key)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(resp.Kvs[0].Value, &v))
			return v
		}
		was, value := line(), fields(mu.Key())
		since := tests.CallsSince(etcd)
		// the lease does not matter
		asked := etcdlock.Contender{Name: "n", Key: was[0].Key, Token: was[0].Token}
		require.NoError(t, etcdlock.Recall(context.Background(), operator, asked,
			etcdlock.RecallRequest{By: "op", Reason: "<update>", Grace: 2500 * time.Millisecond}))
		calls, revisions := since()
		require.Equal(t, "Txn 1, Range 1", calls)
		require.EqualValues(t, 1, revisions)

		require.Equal(t, was, line())
		is := fields(mu.Key())
		request, _ := is["recall"].(map[string]any)
		require.NotEmpty(t, request["id"])
		delete(request, "id")
		require.Equal(t, map[string]any{"by": "op", "reason": "<update>", "grace_ms": 2500.0}, request)
		delete(is, "recall")
		require.Equal(t, true, is["recallable"])
		require.Equal(t, value, is)
		require.Equal(t, clientv3.Compare(clientv3.CreateRevision(mu.Key()), "=", mu.Token()),
			mu.IsOwner())
		resp, err := operator.Txn(context.Background()).If(mu.IsOwner()).Commit()
		require.NoError(t, err)
		require.True(t, resp.Succeeded)

		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
	})
}

// A hold that may be recalled costs no more than one that may not, while nobody asks.
func TestAHoldThatMayBeRecalledCostsNothingMore(t *testing.T) {
	for _, how := range []string{"a hold", "that lingers", "ten names", "a reader",
		"a waiter behind few", "a waiter behind many"} {
		t.Run(how, func(t *testing.T) {
			var costs [2]map[string]int
			for i, opts := range [][]etcdlock.SessionOption{nil, {tests.Listens}} {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					if how == "that lingers" {
						opts = append(opts, etcdlock.WithLinger(time.Minute))
					}
					s := tests.SessionOf(t, etcd, "a", opts...)
					switch how {
					case "a hold", "that lingers":
						tests.LockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
					case "ten names":
						for i := range 10 {
							tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprint("n", i)), time.Second)
						}
					case "a reader":
						tests.RLockWithin(t, tests.RWMutexOf(t, s), time.Second)
					default:
						behind := 3
						if how == "a waiter behind many" {
							behind = 12
						}
						_, _, keys := tests.WaitsFor(t, etcd, s, "n", behind)
						t.Cleanup(func() {
							for _, key := range keys {
								etcd.DeleteKey(key)
							}
						})
					}
					time.Sleep(10*tests.TTL + 500*time.Millisecond) // all is watched
					before := tests.CountByProcess(tests.CallsOf("a", etcd.Calls("")))
					time.Sleep(100 * tests.TTL)
					costs[i] = tests.CountByProcess(tests.CallsOf("a", etcd.Calls("")))
					for call, n := range before {
						costs[i][call] -= n
					}
				})
			}
			total := func(of map[string]int) (n int) {
				for _, calls := range of {
					n += calls
				}
				return n
			}
			t.Log(costs)
			if strings.Contains(how, "waiter") || how == "that lingers" { // rechecks have jitter
				require.InDelta(t, total(costs[0]), total(costs[1]), 0.05*float64(total(costs[0])))
				return
			}
			require.InDelta(t, total(costs[0]), total(costs[1]), 1) // one more may come at the very end
		})
	}
}

// A young hold is not watched yet. It learns of a recall when it is.
func TestARecallOfAYoungHoldIsNoticed(t *testing.T) {
	for _, opts := range [][]etcdlock.Option{{tests.Listens},
		{tests.Listens, etcdlock.WithLinger(time.Minute)}} {
		for age := time.Duration(0); age < 2*time.Second; age += 110 * time.Millisecond {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", opts...)
				hold := tests.LockWithin(t, mu, time.Second)
				time.Sleep(age)
				start := time.Now()
				tests.Recall(t, etcd, 3*time.Second)
				after := tests.RecalledAfter(t, hold, start)
				require.LessOrEqual(t, after, max(0, tests.WatchedBy-age), "recalled after %v", age)
				require.Equal(t, after+3*time.Second, tests.EndsAfter(t, hold, start),
					"the grace begins with the notice")
				require.NoError(t, mu.Unlock(context.Background()))
			})
		}
	}
}

// The watch is there and delivers nothing, or there is no watch. The audits show the
// recall.
func TestARecallIsNoticedThoughAllWatchesAreSilent(t *testing.T) {
	for name, row := range map[string]struct {
		faults func(fake.Call) fake.Effect
		within time.Duration
	}{
		"no watch is answered": {tests.NoWatches, 2 * tests.UnwatchedLook},
		"every watch fails": {func(c fake.Call) fake.Effect {
			if c.Method != fake.Watch {
				return fake.Effect{}
			}
			return fake.Effect{Before: fake.Unavailable}
		}, 2 * tests.UnwatchedLook},
		"every event is lost": {func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Event}
		}, 2 * tests.SeldomLook},
	} {
		for _, linger := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", linger ", linger), func(t *testing.T) {
				for age := 5 * time.Second; age < 2*tests.SeldomLook; age += 7 * time.Second {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						opts := []etcdlock.Option{tests.Listens}
						if linger {
							opts = append(opts, etcdlock.WithLinger(time.Minute))
						}
						mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", opts...)
						etcd.Intercept(row.faults)
						hold := tests.LockWithin(t, mu, time.Second)
						time.Sleep(age)
						start := time.Now()
						tests.Recall(t, etcd, time.Second)
						require.LessOrEqual(t, tests.RecalledAfter(t, hold, start), row.within, "recalled after %v",
							age)
						tests.EndsAfter(t, hold, start)
						require.NoError(t, mu.Unlock(context.Background()))
					})
				}
			})
		}
	}
}

// A Session with more names than it watches finds out within a renewal period, whatever the
// name.
func TestARecallOfOneOfManyNamesIsNoticed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", tests.Listens)
		const names = 250
		holds := make([]context.Context, names)
		mutexes := make([]*etcdlock.Mutex, names)
		for i := range names {
			mutexes[i] = contract.MutexOf(t, s, fmt.Sprint("m", i))
			holds[i] = tests.LockWithin(t, mutexes[i], time.Second)
		}
		time.Sleep(time.Minute)
		require.Zero(t, etcd.Watches())
		for _, i := range []int{0, 99, 100, 249} {
			time.Sleep(1234 * time.Millisecond)
			start := time.Now()
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("operator"),
				tests.PlaceOf(t, etcd, fmt.Sprint("m", i), 0), etcdlock.RecallRequest{}))
			require.LessOrEqual(t, tests.RecalledAfter(t, holds[i], start), tests.UnwatchedLook)
			synctest.Wait() // there is no grace, but the recall is told first
			require.ErrorIs(t, context.Cause(holds[i]), etcdlock.ErrRecalled)
			require.NoError(t, mutexes[i].Unlock(context.Background()))
		}
		require.False(t, tests.IsRecalled(holds[5]))
	})
}

// So it does where etcd is far away, but for the time of a few reads: the names take 25, and each
// read a third of the time of an attempt.
func TestARecallOfOneOfManyNamesIsNoticedFarFromEtcd(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", tests.Listens)
		const names, away = 2500, 700 * time.Millisecond
		holds := make([]*etcdlock.Hold, names)
		for i := range names {
			var err error
			holds[i], err = s.Lock(t.Context(), fmt.Sprint("m", i))
			require.NoError(t, err)
		}
		etcd.Delay("a", away)
		time.Sleep(time.Minute)
		for i := 0; i < names; i += names / 25 {
			time.Sleep(1234 * time.Millisecond)
			hold, start := holds[i].Context(t.Context()), time.Now()
			require.NoError(t, etcdlock.Recall(t.Context(), etcd.Client("operator"),
				tests.PlaceOf(t, etcd, fmt.Sprint("m", i), 0), etcdlock.RecallRequest{}))
			require.LessOrEqual(t, tests.RecalledAfter(t, hold, start), tests.UnwatchedLook+5*away)
		}
	})
}

// A waiter that is recalled waits on. When its hold begins, it has just noticed the recall.
// The contenders before and behind it in line stay there.
func TestAWaiterMayBeRecalled(t *testing.T) {
	for _, behind := range []int{1, 3, 12} {
		for _, faults := range []string{"", "the event is lost", "the put is answered late"} {
			for _, grace := range []time.Duration{0, 3 * time.Second} {
				t.Run(fmt.Sprint("behind ", behind, ", ", grace, ", ", faults), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						if faults == "the put is answered late" {
							etcd.Intercept(onlyProcess("a", fake.Txn, fake.Effect{DelayReply: 400 * time.Millisecond}))
						}
						s := tests.SessionOf(t, etcd, "a")
						mu, in, keys := tests.WaitsFor(t, etcd, s, "n", behind, tests.Listens)
						if faults == "the put is answered late" {
							time.Sleep(100 * time.Millisecond)
						} else {
							time.Sleep(time.Minute)
						}
						last := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n"))
						if faults == "the event is lost" { // a recheck shows the recall
							etcd.Intercept(func(c fake.Call) fake.Effect {
								return fake.Effect{Drop: c.Method == fake.Event}
							})
						}
						tests.RecallAt(t, etcd, behind, grace)
						if faults == "the event is lost" {
							etcd.Intercept(nil)
						}
						tests.StillWaits(t, in, "others are before it")
						time.Sleep(time.Minute)
						tests.StillWaits(t, in, "others are before it")
						for _, key := range keys {
							tests.StillWaits(t, last, "others are before it")
							etcd.DeleteKey(key)
						}
						start := time.Now()
						require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
						hold, token := mu.Context(context.Background()), tests.PlaceOf(t, etcd, "n", 0).Token
						if grace == 0 { // the context of a hold that has ended
							require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
						} else {
							require.True(t, tests.IsRecalled(hold))
							require.Equal(t, grace, tests.EndsAfter(t, hold, start))
						}
						requireRecalled(t, mu, hold, token)
						tests.StillWaits(t, last, "the recalled hold has not unlocked")
						require.NoError(t, mu.Unlock(context.Background()))
						require.NoError(t, tests.SoonOr(t, last, "the last one does not get in"))
					})
				})
			}
		}
	}
}

// Of two requests the one with the shorter grace stays, in whatever order they come. A
// request that would change nothing is not written.
func TestTheShorterGraceStays(t *testing.T) {
	for _, row := range []struct {
		first, second, later, ends time.Duration
		revisions                  int64
	}{
		{8 * time.Second, 2 * time.Second, time.Second, 3 * time.Second, 1},
		{8 * time.Second, 2 * time.Second, 7 * time.Second, 8 * time.Second, 1},
		{2 * time.Second, 8 * time.Second, time.Second, 2 * time.Second, 0},
		{2 * time.Second, 2 * time.Second, time.Second, 2 * time.Second, 0},
		{2 * time.Second, 0, time.Second, time.Second, 1},
	} {
		t.Run(fmt.Sprint(row), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var told []string
				trace := &etcdlock.Trace{Recalled: func(_ context.Context, e etcdlock.RecalledEvent) {
					told = append(told, fmt.Sprint(e.Name, " ", e.Token, " ", e.Request))
				}}
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens,
					etcdlock.WithTrace(trace))
				hold := tests.LockWithin(t, mu, time.Second)
				time.Sleep(tests.WatchedBy)
				start := time.Now()
				tests.Recall(t, etcd, row.first)
				time.Sleep(row.later)
				before := etcd.Rev()
				tests.Recall(t, etcd, row.second)
				require.Equal(t, row.revisions, etcd.Rev()-before)
				require.Equal(t, row.ends, tests.EndsAfter(t, hold, start))
				synctest.Wait()
				want := []string{fmt.Sprintf("n 2 {op update %v}", row.first)}
				if row.ends < row.first {
					want = append(want, fmt.Sprintf("n 2 {op update %v}", row.second))
				}
				require.Equal(t, want, told)
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// Two recalls at the same moment do not undo each other: the shorter grace stays.
func TestTwoRecallsAtOnceDoNotUndoEachOther(t *testing.T) {
	for _, first := range []time.Duration{2 * time.Second, 8 * time.Second} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			place := tests.PlaceOf(t, etcd, "n", 0)
			etcd.Intercept(func(c fake.Call) (e fake.Effect) { // both read, and then put
				if c.Method == fake.Txn && c.Process == "second" {
					e.Delay = 200 * time.Millisecond
				} else if c.Method == fake.Txn && c.Process == "first" {
					e.Delay = 100 * time.Millisecond
				}
				return e
			})
			ends := make(chan error, 2)
			start := time.Now()
			for who, grace := range map[string]time.Duration{"first": first,
				"second": 10*time.Second - first} {
				go func() {
					ends <- etcdlock.Recall(context.Background(), etcd.Client(who), place,
						etcdlock.RecallRequest{Grace: grace})
				}()
			}
			require.NoError(t, tests.SoonOr(t, ends, "no end"))
			require.NoError(t, tests.SoonOr(t, ends, "no end"))
			require.LessOrEqual(t, tests.EndsAfter(t, hold, start), 2*time.Second+400*time.Millisecond)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
}

// A late copy of the request meets a key that is gone, or one that has a newer request.
func TestALateCopyOfARecallDoesNothing(t *testing.T) {
	late := func(after time.Duration) func(fake.Call) fake.Effect {
		return onlyProcess("first", fake.Txn, fake.Effect{Again: after})
	}
	t.Run("the key is another one of its name", func(t *testing.T) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			key, place := "", etcdlock.Contender{}
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			key, place = mu.Key(), tests.PlaceOf(t, etcd, "n", 0)
			etcd.Intercept(late(time.Minute))
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("first"), place,
				etcdlock.RecallRequest{Grace: time.Second}))
			require.NoError(t, mu.Unlock(context.Background()))
			hold := tests.LockWithin(t, mu, time.Second)
			for mu.Key() != key { // names are used in turn
				require.NoError(t, mu.Unlock(context.Background()))
				hold = tests.LockWithin(t, mu, time.Second)
			}
			before := etcd.Rev()
			time.Sleep(10 * time.Minute)
			require.Equal(t, before, etcd.Rev())
			require.False(t, tests.IsRecalled(hold))
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("first"), place,
				etcdlock.RecallRequest{}), "it is gone")
			require.Equal(t, before, etcd.Rev())
			require.NoError(t, mu.Unlock(context.Background()))
		})
	})
	t.Run("there is a newer request", func(t *testing.T) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithRecall(time.Hour))
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			place := tests.PlaceOf(t, etcd, "n", 0)
			etcd.Intercept(late(5 * time.Second))
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("first"), place,
				etcdlock.RecallRequest{By: "first", Grace: time.Hour}))
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("operator"), place,
				etcdlock.RecallRequest{By: "second", Grace: time.Minute}))
			before := etcd.Rev()
			time.Sleep(10 * time.Second)
			require.Equal(t, before, etcd.Rev())
			resp, err := etcd.Client("operator").Get(context.Background(), mu.Key())
			require.NoError(t, err)
			require.Contains(t, string(resp.Kvs[0].Value), "second")
			tests.EndsAfter(t, hold, time.Now())
			require.Equal(t, "second", context.Cause(hold).(*etcdlock.RecalledError).By)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	})
	// After the set-back the same revision puts another value.
	t.Run("etcd was set back", func(t *testing.T) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			hold := tests.LockWithin(t, mu, time.Second)
			restore := etcd.Save()
			puts := func(info string) *mvccpb.KeyValue {
				require.NoError(t, mu.SetInfo(t.Context(), info))
				resp, err := etcd.Client("operator").Get(t.Context(), mu.Key())
				require.NoError(t, err)
				return resp.Kvs[0]
			}
			before := puts("b")
			etcd.Intercept(onlyProcess("first", fake.Txn, fake.Effect{Delay: time.Minute}))
			recalled, place := make(chan error, 1), tests.PlaceOf(t, etcd, "n", 0)
			go func() {
				recalled <- etcdlock.Recall(context.Background(), etcd.Client("first"), place,
					etcdlock.RecallRequest{Grace: time.Hour})
			}()
			synctest.Wait()
			restore(1)
			require.Equal(t, before.ModRevision, puts("c").ModRevision)
			require.NoError(t, <-recalled)
			resp, err := etcd.Client("operator").Get(t.Context(), mu.Key())
			require.NoError(t, err)
			require.Contains(t, string(resp.Kvs[0].Value), `"recall"`)
			require.Contains(t, string(resp.Kvs[0].Value), `"info":"c"`)
			require.NoError(t, hold.Err())
			require.NoError(t, mu.Unlock(t.Context()))
		})
	})
	t.Run("the client has repeated it", func(t *testing.T) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			client := etcd.Client("first")
			client.KV = &tests.Copying{KV: client.KV}
			before := etcd.Rev()
			place := tests.PlaceOf(t, etcd, "n", 0)
			require.NoError(t,
				etcdlock.Recall(context.Background(), client, place, etcdlock.RecallRequest{}))
			require.EqualValues(t, 1, etcd.Rev()-before)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	})
}

// onlyProcess makes an effect for a method of one process, once.
func onlyProcess(process, method string, effect fake.Effect) func(fake.Call) fake.Effect {
	return func(c fake.Call) fake.Effect {
		if c.Process == process && c.Method == method && c.N == 1 {
			return effect
		}
		return fake.Effect{}
	}
}

// After a set-back the keys are read again. If etcd has forgotten a recall, the hold that
// has noticed it has not. A later recall is noticed.
func TestARecallBesideASetBack(t *testing.T) {
	for _, before := range []bool{true, false} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			restore := etcd.Save()
			if before {
				tests.Recall(t, etcd, 9*time.Second)
				synctest.Wait()
			}
			start := time.Now()
			restore(1)
			if !before {
				time.Sleep(time.Second)
				tests.Recall(t, etcd, time.Second)
			}
			require.LessOrEqual(t, tests.EndsAfter(t, hold, start), 2*tests.SeldomLook)
			require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
}
