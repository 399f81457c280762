package etcdlock_test

import (
	"context"
	"encoding/json"
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
)

// These tests are about Recall, and about holds that listen to it.

// listens is the option of most holds here.
var listens = etcdlock.WithRecall(10 * time.Second)

// placeOf returns the i-th in the line for a name, as an operator sees it.
func placeOf(t *testing.T, etcd *fake.Server, name string, i int) etcdlock.Contender {
	t.Helper()
	line, err := etcdlock.Contenders(context.Background(), etcd.Client("operator"), name)
	require.NoError(t, err)
	require.Greater(t, len(line), i)
	return line[i]
}

// recall recalls the first in the line for n.
func recall(t *testing.T, etcd *fake.Server, grace time.Duration) {
	t.Helper()
	recallAt(t, etcd, 0, grace)
}

// recallAt recalls the i-th in the line for n.
func recallAt(t *testing.T, etcd *fake.Server, i int, grace time.Duration) {
	t.Helper()
	require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("operator"), placeOf(t, etcd, "n", i),
		etcdlock.RecallRequest{By: "op", Reason: "update", Grace: grace}))
	synctest.Wait()
}

// isRecalled reports whether the hold of a context was recalled.
func isRecalled(hold context.Context) bool {
	select {
	case <-etcdlock.RecallFrom(hold):
		return true
	default:
		return false
	}
}

// recalledAfter waits for the recall of a hold, and returns how long after start it came.
func recalledAfter(t *testing.T, hold context.Context, start time.Time) time.Duration {
	t.Helper()
	require.NotNil(t, etcdlock.RecallFrom(hold))
	select {
	case <-etcdlock.RecallFrom(hold):
		return time.Since(start)
	case <-time.After(24 * time.Hour):
		require.FailNow(t, "the recall is not noticed")
		return 0
	}
}

// requireRecalled requires all that a hold must say of itself after the grace.
func requireRecalled(t *testing.T, mu *etcdlock.Mutex, hold context.Context, token int64) {
	t.Helper()
	require.ErrorIs(t, hold.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
	require.Equal(t, &etcdlock.RecalledError{Name: "n", Token: token, By: "op", Reason: "update"}, context.Cause(hold))
	require.Zero(t, mu.Token())
	require.Empty(t, mu.Key())
	require.Zero(t, mu.Deadline())
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
				hold := lockWithin(t, mu, time.Second)
				next := writesLater(contract.MutexOf(t, processIn(t, etcd, "b"), "n"))
				token, key := mu.Token(), mu.Key()
				time.Sleep(watchedBy)
				require.False(t, isRecalled(hold))

				start := time.Now()
				recall(t, etcd, row.grace)
				require.Zero(t, recalledAfter(t, hold, start))
				if row.ends > 0 {
					requireWhole(t, mu)
					require.Equal(t, token, mu.Token())
					require.Equal(t, start.Add(row.ends), mu.Deadline())
				}
				require.Equal(t, row.ends, endsAfter(t, hold, start))
				requireRecalled(t, mu, hold, token)

				time.Sleep(3 * virtualTTL)
				require.Contains(t, etcd.Keys("n/"), key, "the key went by itself")
				waits(t, next, "the recalled hold has not unlocked")
				require.NoError(t, mu.Unlock(context.Background()), "it was whole")
				require.NoError(t, soonOr(t, next, "the next one does not get in"))
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrNotHeld)
			})
		})
	}
}

// A recalled holder that unlocks in time has an ordinary Unlock.
func TestARecalledHoldThatUnlocksInTimeIsWhole(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
		err := mu.Do(context.Background(), func(ctx context.Context) error {
			time.Sleep(watchedBy)
			recall(t, etcd, 3*time.Second)
			<-etcdlock.RecallFrom(ctx)
			return ctx.Err()
		})
		require.NoError(t, err)
		require.Empty(t, etcd.Keys("n/"))
		lockWithin(t, mu, time.Second) // and the next hold was not recalled
		time.Sleep(time.Minute)
		requireWhole(t, mu)
	})
}

// Do returns what its function returns. If that is the cause, it says that the hold was
// recalled.
func TestDoOfARecalledHoldSaysWhatItsFunctionSays(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
		err := mu.Do(context.Background(), func(ctx context.Context) error {
			time.Sleep(watchedBy)
			recall(t, etcd, 0)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, etcdlock.ErrRecalled)
		require.NotErrorIs(t, err, etcdlock.ErrLost)
		require.EqualError(t, err, `etcdlock: lock "n" recalled (token 2) by op: update`)
	})
}

// A recall is one read, one transaction and one revision. Only the value changes, and in
// the value only the request is new.
func TestARecallKeepsPlaceTokenAndLease(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		operator := etcd.Client("operator")
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
		lockWithin(t, mu, time.Second)
		next := writesLater(contract.MutexOf(t, processIn(t, etcd, "b"), "n", listens))
		time.Sleep(watchedBy)
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
		since := callsSince(etcd)
		asked := etcdlock.Contender{Name: "n", Key: was[0].Key, Token: was[0].Token} // the lease does not matter
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
		require.Equal(t, clientv3.Compare(clientv3.CreateRevision(mu.Key()), "=", mu.Token()), mu.IsOwner())
		resp, err := operator.Txn(context.Background()).If(mu.IsOwner()).Commit()
		require.NoError(t, err)
		require.True(t, resp.Succeeded)

		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, soonOr(t, next, "the next one does not get in"))
	})
}

// A hold that may be recalled costs no more than one that may not, while nobody asks.
func TestAHoldThatMayBeRecalledCostsNothingMore(t *testing.T) {
	for _, how := range []string{"a hold", "that lingers", "ten names", "a reader", "a waiter behind few", "a waiter behind many"} {
		t.Run(how, func(t *testing.T) {
			var costs [2]map[string]int
			for i, opts := range [][]etcdlock.Option{nil, {listens}} {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					if how == "that lingers" {
						opts = append(opts, etcdlock.WithLinger(time.Minute))
					}
					s := processIn(t, etcd, "a", opts...)
					switch how {
					case "a hold", "that lingers":
						lockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
					case "ten names":
						for i := range 10 {
							lockWithin(t, contract.MutexOf(t, s, fmt.Sprint("n", i)), time.Second)
						}
					case "a reader":
						readWithin(t, rwIn(t, s), time.Second)
					default:
						behind := 3
						if how == "a waiter behind many" {
							behind = 12
						}
						_, _, keys := waitsFor(t, etcd, s, "n", behind)
						t.Cleanup(func() {
							for _, key := range keys {
								etcd.DeleteKey(key)
							}
						})
					}
					time.Sleep(10*virtualTTL + 500*time.Millisecond) // all is watched
					before := callsBy(by("a", etcd.Calls("")))
					time.Sleep(100 * virtualTTL)
					costs[i] = callsBy(by("a", etcd.Calls("")))
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
	for _, opts := range [][]etcdlock.Option{{listens}, {listens, etcdlock.WithLinger(time.Minute)}} {
		for age := time.Duration(0); age < 2*time.Second; age += 110 * time.Millisecond {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", opts...)
				hold := lockWithin(t, mu, time.Second)
				time.Sleep(age)
				start := time.Now()
				recall(t, etcd, 3*time.Second)
				after := recalledAfter(t, hold, start)
				require.LessOrEqual(t, after, max(0, watchedBy-age), "recalled after %v", age)
				require.Equal(t, after+3*time.Second, endsAfter(t, hold, start), "the grace begins with the notice")
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
		"no watch is answered": {noWatches, 2 * unwatchedLook},
		"every watch fails": {func(c fake.Call) fake.Effect {
			if c.Method != fake.Watch {
				return fake.Effect{}
			}
			return fake.Effect{Before: fake.Unavailable}
		}, 2 * unwatchedLook},
		"every event is lost": {func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Event}
		}, 2 * seldomLook},
	} {
		for _, linger := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", linger ", linger), func(t *testing.T) {
				for age := 5 * time.Second; age < 2*seldomLook; age += 7 * time.Second {
					inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						opts := []etcdlock.Option{listens}
						if linger {
							opts = append(opts, etcdlock.WithLinger(time.Minute))
						}
						mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", opts...)
						etcd.Intercept(row.faults)
						hold := lockWithin(t, mu, time.Second)
						time.Sleep(age)
						start := time.Now()
						recall(t, etcd, time.Second)
						require.LessOrEqual(t, recalledAfter(t, hold, start), row.within, "recalled after %v", age)
						endsAfter(t, hold, start)
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a", listens)
		const names = 250
		holds := make([]context.Context, names)
		mutexes := make([]*etcdlock.Mutex, names)
		for i := range names {
			mutexes[i] = contract.MutexOf(t, s, fmt.Sprint("m", i))
			holds[i] = lockWithin(t, mutexes[i], time.Second)
		}
		time.Sleep(time.Minute)
		require.Zero(t, etcd.Watches())
		for _, i := range []int{0, 99, 100, 249} {
			time.Sleep(1234 * time.Millisecond)
			start := time.Now()
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("operator"),
				placeOf(t, etcd, fmt.Sprint("m", i), 0), etcdlock.RecallRequest{}))
			require.LessOrEqual(t, recalledAfter(t, holds[i], start), unwatchedLook)
			require.ErrorIs(t, context.Cause(holds[i]), etcdlock.ErrRecalled)
			require.NoError(t, mutexes[i].Unlock(context.Background()))
		}
		require.False(t, isRecalled(holds[5]))
	})
}

// A waiter that is recalled waits on. When its hold begins, it has just noticed the recall.
// The contenders before and behind it in line stay there.
func TestAWaiterMayBeRecalled(t *testing.T) {
	for _, behind := range []int{1, 3, 12} {
		for _, faults := range []string{"", "the event is lost", "the put is answered late"} {
			for _, grace := range []time.Duration{0, 3 * time.Second} {
				t.Run(fmt.Sprint("behind ", behind, ", ", grace, ", ", faults), func(t *testing.T) {
					inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						if faults == "the put is answered late" {
							etcd.Intercept(onlyProcess("a", fake.Txn, fake.Effect{DelayReply: 400 * time.Millisecond}))
						}
						s := processIn(t, etcd, "a")
						mu, in, keys := waitsFor(t, etcd, s, "n", behind, listens)
						if faults == "the put is answered late" {
							time.Sleep(100 * time.Millisecond)
						} else {
							time.Sleep(time.Minute)
						}
						last := writesLater(contract.MutexOf(t, processIn(t, etcd, "b"), "n"))
						if faults == "the event is lost" { // a recheck shows the recall
							etcd.Intercept(func(c fake.Call) fake.Effect { return fake.Effect{Drop: c.Method == fake.Event} })
						}
						recallAt(t, etcd, behind, grace)
						if faults == "the event is lost" {
							etcd.Intercept(nil)
						}
						waits(t, in, "others are before it")
						time.Sleep(time.Minute)
						waits(t, in, "others are before it")
						for _, key := range keys {
							waits(t, last, "others are before it")
							etcd.DeleteKey(key)
						}
						start := time.Now()
						require.NoError(t, soonOr(t, in, "the waiter does not get in"))
						hold, token := mu.Context(context.Background()), placeOf(t, etcd, "n", 0).Token
						if grace == 0 { // the context of a hold that has ended
							require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
						} else {
							require.True(t, isRecalled(hold))
							require.Equal(t, grace, endsAfter(t, hold, start))
						}
						requireRecalled(t, mu, hold, token)
						waits(t, last, "the recalled hold has not unlocked")
						require.NoError(t, mu.Unlock(context.Background()))
						require.NoError(t, soonOr(t, last, "the last one does not get in"))
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var told []string
				trace := &etcdlock.Trace{Recalled: func(name string, token int64, r etcdlock.RecallRequest) {
					told = append(told, fmt.Sprint(name, " ", token, " ", r))
				}}
				mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens, etcdlock.WithTrace(trace))
				hold := lockWithin(t, mu, time.Second)
				time.Sleep(watchedBy)
				start := time.Now()
				recall(t, etcd, row.first)
				time.Sleep(row.later)
				before := etcd.Rev()
				recall(t, etcd, row.second)
				require.Equal(t, row.revisions, etcd.Rev()-before)
				require.Equal(t, row.ends, endsAfter(t, hold, start))
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
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
			hold := lockWithin(t, mu, time.Second)
			time.Sleep(watchedBy)
			place := placeOf(t, etcd, "n", 0)
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
			for who, grace := range map[string]time.Duration{"first": first, "second": 10*time.Second - first} {
				go func() {
					ends <- etcdlock.Recall(context.Background(), etcd.Client(who), place, etcdlock.RecallRequest{Grace: grace})
				}()
			}
			require.NoError(t, soonOr(t, ends, "no end"))
			require.NoError(t, soonOr(t, ends, "no end"))
			require.LessOrEqual(t, endsAfter(t, hold, start), 2*time.Second+400*time.Millisecond)
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
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
			key, place := "", etcdlock.Contender{}
			lockWithin(t, mu, time.Second)
			time.Sleep(watchedBy)
			key, place = mu.Key(), placeOf(t, etcd, "n", 0)
			etcd.Intercept(late(time.Minute))
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("first"), place, etcdlock.RecallRequest{Grace: time.Second}))
			require.NoError(t, mu.Unlock(context.Background()))
			hold := lockWithin(t, mu, time.Second)
			for mu.Key() != key { // names are used in turn
				require.NoError(t, mu.Unlock(context.Background()))
				hold = lockWithin(t, mu, time.Second)
			}
			before := etcd.Rev()
			time.Sleep(10 * time.Minute)
			require.Equal(t, before, etcd.Rev())
			require.False(t, isRecalled(hold))
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("first"), place, etcdlock.RecallRequest{}), "it is gone")
			require.Equal(t, before, etcd.Rev())
			require.NoError(t, mu.Unlock(context.Background()))
		})
	})
	t.Run("there is a newer request", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", etcdlock.WithRecall(time.Hour))
			hold := lockWithin(t, mu, time.Second)
			time.Sleep(watchedBy)
			place := placeOf(t, etcd, "n", 0)
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
			endsAfter(t, hold, time.Now())
			require.Equal(t, "second", context.Cause(hold).(*etcdlock.RecalledError).By)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	})
	t.Run("the client has repeated it", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
			lockWithin(t, mu, time.Second)
			time.Sleep(watchedBy)
			client := etcd.Client("first")
			client.KV = &copying{KV: client.KV}
			before := etcd.Rev()
			require.NoError(t, etcdlock.Recall(context.Background(), client, placeOf(t, etcd, "n", 0), etcdlock.RecallRequest{}))
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

// A recalled key is not handed to the next goroutine of its Session: others get their turn.
func TestARecalledKeyIsNotHandedOff(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a", listens, etcdlock.WithHandoff(100))
		mu, same := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		lockWithin(t, mu, time.Second)
		token := mu.Token()
		next := writesLater(same)
		other := writesLater(contract.MutexOf(t, processIn(t, etcd, "b"), "n"))
		time.Sleep(watchedBy)
		recall(t, etcd, 3*time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, soonOr(t, other, "the other Session does not get in"))
		waits(t, next, "the other Session holds")
		require.NotEqual(t, token, placeOf(t, etcd, "n", 1).Token)
	})
}

// Nor does the key linger after its Unlock.
func TestARecalledKeyDoesNotLinger(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens, etcdlock.WithLinger(time.Hour))
		lockWithin(t, mu, time.Second)
		time.Sleep(watchedBy)
		recall(t, etcd, 3*time.Second)
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
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens, etcdlock.WithLinger(time.Hour))
			etcd.Intercept(faults)
			hold := lockWithin(t, mu, time.Second)
			time.Sleep(watchedBy)
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(4 * virtualTTL) // from here on audits are rare
			require.Len(t, etcd.Keys("n/"), 1, "it lingers")
			recall(t, etcd, 3*time.Second)
			if faults != nil {
				time.Sleep(2 * virtualTTL) // the next recheck
			}
			synctest.Wait()
			require.Empty(t, etcd.Keys("n/"))
			require.False(t, isRecalled(hold))
			lockWithin(t, mu, time.Second)
			time.Sleep(time.Minute)
			requireWhole(t, mu)
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		patient, hasty, deaf := rwIn(t, s, listens), rwIn(t, s, etcdlock.WithRecall(time.Second)), rwIn(t, s)
		first := readWithin(t, patient, time.Second)
		second, third := readWithin(t, hasty, time.Second), readWithin(t, deaf, time.Second)
		contexts := make([]context.Context, 3)
		for i, h := range []*etcdlock.Hold{first, second, third} {
			contexts[i] = h.Context(context.Background())
		}
		token := first.Token()
		require.Equal(t, token, third.Token())
		require.Nil(t, etcdlock.RecallFrom(contexts[2]))
		time.Sleep(watchedBy)
		start := time.Now()
		recall(t, etcd, 3*time.Second)
		require.Zero(t, recalledAfter(t, contexts[0], start))
		require.True(t, isRecalled(contexts[1]))

		in := comesToRead(rwIn(t, s))
		waits(t, in, "the cohort is recalled")
		_, err := rwIn(t, s).TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked)

		require.Equal(t, time.Second, endsAfter(t, contexts[1], start))
		require.Equal(t, 3*time.Second, endsAfter(t, contexts[0], start))
		requireOver(t, first)
		time.Sleep(time.Minute)
		requireReads(t, third)
		require.NoError(t, first.Unlock(context.Background()))
		require.NoError(t, second.Unlock(context.Background()))
		waits(t, in, "one of the cohort reads still")
		require.NoError(t, third.Unlock(context.Background()))
		next := soonOr(t, in, "the reader does not get in")
		require.NotEqual(t, token, next.Token())
		done(t, next)
	})
}

// A reader that is recalled while it waits lets nobody join, and hands its place to nobody.
func TestNobodyJoinsARecalledWaiter(t *testing.T) {
	for _, givesUp := range []bool{false, true} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			writer := contract.MutexOf(t, processIn(t, etcd, "w"), "n")
			lockWithin(t, writer, time.Second)
			s := processIn(t, etcd, "a", listens)
			ctx, cancel := context.WithCancel(context.Background())
			type result struct {
				h   *etcdlock.Hold
				err error
			}
			first := make(chan result, 1)
			etcd.Intercept(onlyProcess("a", fake.Grant, fake.Effect{Delay: 100 * time.Millisecond}))
			rw := rwIn(t, s)
			go func() {
				h, err := rw.RLock(ctx)
				first <- result{h, err}
			}()
			synctest.Wait()
			second := comesToRead(rwIn(t, s)) // early: before the put
			time.Sleep(time.Second)
			place := placeOf(t, etcd, "n", 1)
			recallAt(t, etcd, 1, 3*time.Second)
			synctest.Wait()
			if givesUp {
				cancel()
				require.ErrorIs(t, soonOr(t, first, "no end").err, context.Canceled)
				synctest.Wait()
				require.NotEqual(t, place.Token, placeOf(t, etcd, "n", 1).Token, "the recalled place was handed down")
				require.NoError(t, writer.Unlock(context.Background()))
				done(t, soonOr(t, second, "the second reader does not get in"))
				return
			}
			require.NoError(t, writer.Unlock(context.Background()))
			r := soonOr(t, first, "the first reader does not get in")
			require.NoError(t, r.err)
			require.True(t, isRecalled(r.h.Context(context.Background())))
			waits(t, second, "the first one was recalled")
			done(t, r.h)
			done(t, soonOr(t, second, "the second reader does not get in"))
			cancel()
		})
	}
}

// Anything else that may end a hold still does, in the grace and after it. After the grace
// Unlock still says whether the key was there.
func TestARecalledHoldMayEndOtherwise(t *testing.T) {
	const grace = 3 * time.Second
	for name, row := range map[string]struct {
		opts   []etcdlock.Option
		then   func(etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex)
		cause  error // of the end in the grace
		unlock error
	}{
		"deleted": {
			then:  func(etcd *fake.Server, _ *etcdlock.Session, _ *etcdlock.Mutex) { etcd.DeleteKey(etcd.Keys("n/")[0]) },
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
				time.Sleep(virtualTTL)
			},
			cause: nil, unlock: etcdlock.ErrExpired,
		},
		"closed": {
			then:  func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) { _ = mu.Close(context.Background()) },
			cause: etcdlock.ErrClosed, unlock: etcdlock.ErrNotHeld,
		},
		"the Session closed": {
			then:  func(_ *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) { _ = s.Close(context.Background()) },
			cause: etcdlock.ErrClosed, unlock: etcdlock.ErrNotHeld,
		},
	} {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", after the grace ", over), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := processIn(t, etcd, "a")
					mu := contract.MutexOf(t, s, "n", listens)
					hold := lockWithin(t, mu, time.Second)
					time.Sleep(watchedBy)
					recall(t, etcd, grace)
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
		{2 * time.Second, watchedBy + 2*time.Second, etcdlock.ErrRecalled},
		{9 * time.Second, 5 * time.Second, etcdlock.ErrMaxHold},
	} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens, etcdlock.WithMaxHold(5*time.Second))
			start := time.Now()
			hold := lockWithin(t, mu, time.Second)
			next := writesLater(contract.MutexOf(t, processIn(t, etcd, "b"), "n"))
			time.Sleep(watchedBy)
			recall(t, etcd, row.grace)
			synctest.Wait()
			require.Equal(t, start.Add(row.ends), mu.Deadline())
			require.Equal(t, row.ends, endsAfter(t, hold, start))
			require.ErrorIs(t, context.Cause(hold), row.cause)
			require.NoError(t, soonOr(t, next, "the next one does not get in"))
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens, etcdlock.WithReentrancy())
		outer := lockWithin(t, mu, time.Second)
		require.NoError(t, mu.Lock(outer))
		inner := mu.Context(outer)
		time.Sleep(watchedBy)
		recall(t, etcd, 3*time.Second)
		synctest.Wait()
		require.True(t, isRecalled(inner))
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		operator := etcd.Client("operator")
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		hold := lockWithin(t, mu, time.Second)
		require.Nil(t, etcdlock.RecallFrom(hold))
		lease, err := operator.Grant(context.Background(), 60)
		require.NoError(t, err)
		require.NoError(t, etcd.PutKey(fmt.Sprintf("n/%x", lease.ID), lease.ID)) // as concurrency.Mutex does
		time.Sleep(watchedBy)
		before := etcd.Rev()
		for i := range 2 {
			err := etcdlock.Recall(context.Background(), operator, placeOf(t, etcd, "n", i), etcdlock.RecallRequest{})
			require.ErrorIs(t, err, etcdlock.ErrNotRecallable)
			require.EqualError(t, err, `etcdlock: recall "n": does not listen to a recall`)
		}
		require.Equal(t, before, etcd.Rev())

		place := placeOf(t, etcd, "n", 0)
		require.NoError(t, mu.Unlock(context.Background()))
		before = etcd.Rev()
		require.NoError(t, etcdlock.Recall(context.Background(), operator, place, etcdlock.RecallRequest{}), "it is gone")
		require.Equal(t, before, etcd.Rev())
	})
}

// Wrong arguments are an error at once, and nothing is sent.
func TestARecallNobodyCanMean(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var none context.Context
		kv := etcd.Client("operator")
		c := etcdlock.Contender{Name: "n", Key: "n/k", Token: 5}
		for name, call := range map[string]func() error{
			"nil context": func() error { return etcdlock.Recall(none, kv, c, etcdlock.RecallRequest{}) },
			"nil KV":      func() error { return etcdlock.Recall(context.Background(), nil, c, etcdlock.RecallRequest{}) },
			"no contender": func() error {
				return etcdlock.Recall(context.Background(), kv, etcdlock.Contender{Name: "n"}, etcdlock.RecallRequest{})
			},
			"negative grace": func() error {
				return etcdlock.Recall(context.Background(), kv, c, etcdlock.RecallRequest{Grace: -1})
			},
			"long By": func() error {
				return etcdlock.Recall(context.Background(), kv, c, etcdlock.RecallRequest{By: strings.Repeat("x", 257)})
			},
			"long Reason": func() error {
				return etcdlock.Recall(context.Background(), kv, c, etcdlock.RecallRequest{Reason: strings.Repeat("x", 257)})
			},
			"not UTF-8": func() error {
				return etcdlock.Recall(context.Background(), kv, c, etcdlock.RecallRequest{By: "\xff"})
			},
		} {
			require.Error(t, call(), name)
		}
		require.NoError(t, etcdlock.Recall(context.Background(), kv, c, etcdlock.RecallRequest{By: strings.Repeat("x", 256)}), "gone")
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
		hold := lockWithin(t, mu, time.Second)
		time.Sleep(watchedBy)
		operator := etcd.Client("operator")
		for _, request := range []string{
			`null`, `7`, `{}`, `{"id":"x"}`, `{"grace_ms":5}`, `{"id":"x","grace_ms":-1}`, `{"id":"x","grace_ms":"5"}`,
			`{"id":"x","grace_ms":5,"by":"` + strings.Repeat("x", 257) + `"}`, `{"id":7,"grace_ms":5}`,
		} {
			_, err := operator.Put(context.Background(), mu.Key(),
				`{"owner":"a","recallable":true,"recall":`+request+`}`, clientv3.WithIgnoreLease())
			require.NoError(t, err)
			synctest.Wait()
			require.False(t, isRecalled(hold), request)
		}
		time.Sleep(time.Minute)
		requireWhole(t, mu)
		recall(t, etcd, time.Second)
		synctest.Wait()
		require.True(t, isRecalled(hold))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// RecallFrom asks the innermost hold from which a context derives.
func TestRecallFromAsksTheInnermostHold(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		outer, inner := contract.MutexOf(t, s, "n", listens), contract.MutexOf(t, s, "inner", listens)
		deaf := contract.MutexOf(t, s, "deaf")
		ctx := lockWithin(t, outer, time.Second)
		lockWithin(t, inner, time.Second)
		lockWithin(t, deaf, time.Second)
		time.Sleep(watchedBy)
		recall(t, etcd, time.Minute)
		synctest.Wait()
		require.True(t, isRecalled(ctx))
		require.False(t, isRecalled(inner.Context(ctx)))
		require.NotNil(t, etcdlock.RecallFrom(inner.Context(ctx)))
		require.Nil(t, etcdlock.RecallFrom(deaf.Context(ctx)))
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		require.True(t, isRecalled(child))
	})
}

// What the hooks report about a recall, and in which order.
func TestARecallIsReported(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o told
		var log strings.Builder
		trace := o.trace()
		trace.Recalled = func(name string, token int64, r etcdlock.RecallRequest) { o.add("recalled %s %d %v", name, token, r) }
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens, etcdlock.WithTrace(trace),
			etcdlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		lockWithin(t, mu, time.Second)
		time.Sleep(watchedBy)
		o.take()
		recall(t, etcd, time.Hour)
		time.Sleep(time.Minute)
		require.NoError(t, mu.Unlock(context.Background()))
		synctest.Wait()
		events := o.take()
		require.Len(t, events, 2)
		require.Equal(t, "recalled n 2 {op update 1h0m0s}", events[0])
		require.Contains(t, events[1], "released")
		require.Contains(t, log.String(), `msg="etcdlock: lock recalled" name=n token=2 by=op reason=update grace=10s`)
		require.NotContains(t, log.String(), "lost")
	})
}

// After a set-back the keys are read again. If etcd has forgotten a recall, the hold that
// has noticed it has not. A later recall is noticed.
func TestARecallBesideASetBack(t *testing.T) {
	for _, before := range []bool{true, false} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n", listens)
			hold := lockWithin(t, mu, time.Second)
			time.Sleep(watchedBy)
			restore := etcd.Save()
			if before {
				recall(t, etcd, 9*time.Second)
				synctest.Wait()
			}
			start := time.Now()
			restore(1)
			if !before {
				time.Sleep(time.Second)
				recall(t, etcd, time.Second)
			}
			require.LessOrEqual(t, endsAfter(t, hold, start), 2*seldomLook)
			require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
}
