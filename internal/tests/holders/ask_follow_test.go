package holders

import (
	"context"
	"fmt"
	"runtime"
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

// These tests are about what follows the holders while waits ask: whom it asks, and what it costs.

// The waits of a Session for a name that ask have one goroutine, one read, one watch and one
// request between them, however many they are, and nothing of it is left when they end at once.
func TestAllWaitsOfASessionAskByOneGoroutine(t *testing.T) {
	waits := race.Fewer(20_000, 2_000)
	type cost struct {
		goroutines int
		calls      map[string]int
	}
	var costs [2][2]cost // of waits that ask, or not: while they wait, and once they have ended
	for i, opts := range [][]etcdlock.Option{nil, {asks}} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			b := tests.SessionOf(t, etcd, "b")
			at, sent := runtime.NumGoroutine(), len(etcd.Calls(""))
			measure := func() cost {
				synctest.Wait()
				return cost{runtime.NumGoroutine() - at,
					tests.CountByProcess(tests.CallsOf("b", etcd.Calls("")[sent:]))}
			}
			ctx, cancel := context.WithCancel(context.Background())
			failed := make(chan error, waits)
			for range waits {
				mu := contract.MutexOf(t, b, "n", opts...)
				go func() { failed <- mu.Lock(ctx) }()
			}
			costs[i][0] = measure()
			require.Equal(t, i == 1, tests.IsRecalled(hold))
			cancel()
			for range waits {
				require.ErrorIs(t, <-failed, context.Canceled)
			}
			costs[i][1] = measure()
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
	t.Log(costs)
	plain, asking := costs[0][0], costs[1][0]
	for _, method := range []string{fake.Range, fake.Watch, fake.Txn} {
		require.Equal(t, plain.calls["b "+method]+1, asking.calls["b "+method], method)
	}
	const more = 10 // its own, that of its watch, and what others come and go meanwhile
	require.LessOrEqual(t, asking.goroutines, plain.goroutines+more)
	ended := costs[1][1].calls
	since := func(method string) int { return ended["b "+method] - asking.calls["b "+method] }
	for _, method := range []string{fake.Range, fake.Watch} { // one for each key that is put yet
		require.Less(t, since(method), since(fake.Txn), "%s as the waits end", method)
	}
	require.LessOrEqual(t, costs[1][1].goroutines, costs[0][1].goroutines+more)
}

// At rest all waits of a Session that ask recheck the holders between them, as often as a waiter
// rechecks its place: once in a TTL and a third.
func TestAtRestWaitsThatAskCostARecheck(t *testing.T) {
	const waits, hours = 10, 3
	var requests []int
	for _, opts := range [][]etcdlock.Option{nil, {asks}} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
			tests.LockWithin(t, mu, time.Second)
			b := tests.SessionOf(t, etcd, "b")
			for range waits {
				tests.LockLater(contract.MutexOf(t, b, "n", opts...))
			}
			time.Sleep(time.Hour)
			watches, sent := etcd.Watches(), len(tests.CallsOf("b", etcd.Calls("")))
			time.Sleep(hours * time.Hour)
			require.Equal(t, watches, etcd.Watches())
			requests = append(requests, len(tests.CallsOf("b", etcd.Calls("")))-sent)
			require.NoError(t, b.Close(context.Background()))
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
	t.Log(requests)
	require.InEpsilon(t, hours*float64(time.Hour)/float64(tests.TTL*4/3), requests[1]-requests[0], 0.1)
}

// A hand-over in a line in which all ask costs etcd a few transactions, and for each Session that
// waits an event, a read and a watch: the number of the Sessions, not its square.
func TestAHandOverTellsEachAskerOnce(t *testing.T) {
	const few = 2 * 9 // places that wait by a view
	for _, sessions := range []int{30, 60} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			holding := make(chan *etcdlock.Mutex, sessions)
			for i := range sessions {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("w", i)), "n",
					tests.Listens, asks)
				go func() {
					require.NoError(t, mu.Lock(context.Background()))
					holding <- mu
				}()
				synctest.Wait()
				etcd.Delay(fmt.Sprint("w", i), time.Millisecond) // all read before one has written
			}
			const rounds = 10
			counts := make(map[string]int)
			for range rounds {
				mu := <-holding
				sent := len(etcd.Calls(""))
				require.NoError(t, mu.Unlock(context.Background()))
				time.Sleep(200 * time.Millisecond)
				for _, c := range etcd.Calls("")[sent:] {
					counts[c.Method]++
				}
			}
			t.Logf("%d Sessions: %v in %d hand-overs", sessions, counts, rounds)
			require.LessOrEqual(t, counts[fake.Event], rounds*(sessions+3*few))
			require.LessOrEqual(t, counts[fake.Range], rounds*(sessions+few))
			require.LessOrEqual(t, counts[fake.Watch], rounds*(sessions+few))
			require.LessOrEqual(t, counts[fake.Txn], rounds*(sessions/10+few))
			for range sessions - rounds {
				require.NoError(t, (<-holding).Unlock(context.Background()))
			}
		})
	}
}

// A wait that gives up tells no other one, whether these ask or not: what etcd is told when all of
// a line give up grows with their number, not with its square.
func TestALineThatGivesUpTellsNoAsker(t *testing.T) {
	const waits = 40
	var events []int
	for _, opts := range [][]etcdlock.Option{nil, {asks}} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
			tests.LockWithin(t, mu, time.Second)
			var over []<-chan error
			for i := range waits {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("w", i)), "n", opts...)
				ctx := tests.Within(t, time.Minute+time.Duration(i)*time.Second)
				over = append(over, contract.Async(func() error { return mu.Lock(ctx) }))
				synctest.Wait()
			}
			for _, err := range over {
				require.ErrorIs(t, <-err, context.DeadlineExceeded)
			}
			events = append(events, len(etcd.Calls(fake.Event)))
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
	t.Log(events)
	require.LessOrEqual(t, events[1], events[0]+waits/2)
}

// Of many readers that go one by one a writer that asks reads nothing, before the last one has
// gone.
func TestReadersThatGoCostAnAskerNothing(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const readers = 30
		var holds []*etcdlock.Hold
		for i := range readers {
			rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("r", i)), tests.Listens)
			holds = append(holds, tests.RLockWithin(t, rw, time.Second))
		}
		time.Sleep(tests.WatchedBy)
		writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w"), asks)
		in := tests.LockLater(writer)
		sent := len(tests.CallsOf("w", etcd.Calls("")))
		for i, h := range holds {
			require.True(t, tests.IsRecalled(h.Context(context.Background())), "hold %d", i)
			if i < readers-9 { // the wait itself may come to have a view
				tests.UnlockAll(t, h)
			}
		}
		synctest.Wait()
		require.Len(t, tests.CallsOf("w", etcd.Calls("")), sent)
		tests.UnlockAll(t, holds[readers-9:]...)
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))
	})
}

// A reader that comes to hold because a writer before it gives up is asked at once, though all that
// held before still hold.
func TestAReaderThatComesToHoldAsAWriterGivesUpIsAsked(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		first := tests.RLockWithin(t, tests.RWMutexOf(t, tests.SessionOf(t, etcd, "r1")), time.Second)
		ctx, giveUp := context.WithCancel(context.Background())
		between := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w1"))
		gaveUp := contract.Async(func() error { return between.Lock(ctx) })
		synctest.Wait()
		read := tests.RLockLater(tests.RWMutexOf(t, tests.SessionOf(t, etcd, "r2"), tests.Listens))
		writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w2"), asks)
		in := tests.LockLater(writer)
		time.Sleep(5 * time.Second)
		require.Empty(t, asked(t, etcd))
		giveUp()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		second := tests.SoonOr(t, read, "the reader does not get in")
		require.LessOrEqual(t,
			tests.RecalledAfter(t, second.Context(context.Background()), time.Now()), 200*time.Millisecond)
		tests.UnlockAll(t, first, second)
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))
	})
}

// Reads of a Session that wait for one key get in together, and none of them has the hold asked
// that it is about to share, however the event that lets them in reaches the Session.
func TestReadsThatGetInTogetherAskNobody(t *testing.T) {
	for _, lost := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "r", tests.Listens, asks)
			own := tests.RWMutexOf(t, s)
			require.NoError(t, own.Lock(tests.Within(t, time.Second)))
			writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w"))
			in := tests.LockLater(writer)
			var reads []<-chan *etcdlock.Hold // they come before their key is put
			for range 5 {
				reads = append(reads, tests.RLockLater(own))
			}
			require.NoError(t, own.Unlock(context.Background()))
			require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
			behind := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w2"))
			in = tests.LockLater(behind)
			etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: lost && c.Method == fake.Event && c.Process == "r"}
			})
			require.NoError(t, writer.Unlock(context.Background()))
			var holds []*etcdlock.Hold
			for _, in := range reads {
				holds = append(holds, tests.SoonOr(t, in, "a read does not get in"))
			}
			time.Sleep(time.Minute)
			for _, h := range holds {
				require.Equal(t, holds[0].Token(), h.Token())
				require.False(t, tests.IsRecalled(h.Context(context.Background())))
			}
			tests.UnlockAll(t, holds...)
			require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
			require.NoError(t, behind.Unlock(context.Background()))
		})
	}
}

// A wait with a shorter grace counts while it lasts. A holder that comes later is asked with the
// grace of those that wait then.
func TestAShorterGraceCountsWhileItsWaitLasts(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		patient := func(grace time.Duration) etcdlock.Option {
			return etcdlock.WithAsk(etcdlock.RecallRequest{By: "op", Grace: grace})
		}
		listens := etcdlock.WithRecall(time.Hour)
		first := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", listens)
		second := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", listens)
		tests.LockWithin(t, first, time.Second)
		time.Sleep(tests.WatchedBy)
		next := tests.LockLater(second)
		c := tests.SessionOf(t, etcd, "c")
		waits := map[time.Duration]context.CancelFunc{}
		for _, grace := range []time.Duration{time.Minute, 10 * time.Second, 30 * time.Second} {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			waits[grace] = cancel
			mu := contract.MutexOf(t, c, "n", patient(grace))
			go func() { _ = mu.Lock(ctx) }()
			synctest.Wait()
		}
		hold := first.Context(context.Background())
		require.Equal(t, 10*time.Second, tests.EndsAfter(t, hold, time.Now()))
		waits[10*time.Second]()
		synctest.Wait()
		require.NoError(t, first.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
		hold = second.Context(context.Background())
		require.Equal(t, 30*time.Second, tests.EndsAfter(t, hold, time.Now()))
		require.NoError(t, c.Close(context.Background()))
		require.NoError(t, second.Unlock(context.Background()))
	})
}

// A wait asks a LockAll of its Session only once that holds all its names, and at once then.
func TestAWaitAsksSeveralNamesOfItsSessionOnceTheyAreHeld(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		other := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "y")
		tests.LockWithin(t, other, time.Second)
		s := tests.SessionOf(t, etcd, "b", tests.Listens)
		all := make(chan *etcdlock.Hold, 1)
		go func() {
			if h, err := s.LockAll(context.Background(), "x", "y"); err == nil {
				all <- h
			}
		}()
		synctest.Wait()
		last := contract.MutexOf(t, s, "x", asks)
		in := tests.LockLater(last)
		time.Sleep(time.Minute)
		require.NoError(t, other.Unlock(context.Background()))
		h := tests.SoonOr(t, all, "no hold of both")
		hold, start := h.Context(context.Background()), time.Now()
		require.Zero(t, tests.RecalledAfter(t, hold, start))
		require.Equal(t, 3*time.Second, tests.EndsAfter(t, hold, start), "it has the whole grace")
		require.NoError(t, h.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the wait does not get in"))
		require.NoError(t, last.Unlock(context.Background()))
	})
}

// Once its last wait is over a Session follows nobody, and asks nobody that comes to hold later. A
// wait that comes then asks again.
func TestAWaitThatIsOverAsksNobody(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		first := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		second := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", tests.Listens)
		tests.LockWithin(t, first, time.Second)
		next := tests.LockLater(second)
		s := tests.SessionOf(t, etcd, "c")
		require.ErrorIs(t, contract.MutexOf(t, s, "n", asks).Lock(tests.Within(t, time.Second)),
			context.DeadlineExceeded)
		time.Sleep(time.Minute) // its view ends
		sent := len(tests.CallsOf("c", etcd.Calls("")))
		require.NoError(t, first.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
		hold := second.Context(context.Background())
		time.Sleep(time.Second)
		require.False(t, tests.IsRecalled(hold))
		require.Len(t, tests.CallsOf("c", etcd.Calls("")), sent)
		last := contract.MutexOf(t, s, "n", asks)
		in := tests.LockLater(last)
		require.Zero(t, tests.RecalledAfter(t, hold, time.Now()))
		require.NoError(t, second.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the wait does not get in"))
		require.NoError(t, last.Unlock(context.Background()))
		closes := time.Now()
		require.NoError(t, s.Close(context.Background()))
		require.Less(t, time.Since(closes), time.Second, "it waits for what is left of a wait")
	})
}

// Whatever becomes of its watches, a wait asks each later holder: after they have ended, after a
// compaction, when etcd was away, and when it was frozen.
func TestAWaitGoesOnAskingWhateverHappensToEtcd(t *testing.T) {
	for name, fault := range map[string]func(etcd *fake.Server) (over func()){
		"watches end": func(etcd *fake.Server) func() { etcd.CancelWatches(); return func() {} },
		"compacted": func(etcd *fake.Server) func() {
			etcd.CancelWatches()
			etcd.Compact()
			return func() {}
		},
		"cut off": func(etcd *fake.Server) func() { etcd.Cut("z"); return func() { etcd.Heal("z") } },
		"frozen":  func(etcd *fake.Server) func() { etcd.Freeze(); return etcd.Thaw },
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				const holders = 5
				var mutexes []*etcdlock.Mutex
				var waits []<-chan error
				for i := range holders {
					mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("h", i)), "n", tests.Listens)
					mutexes, waits = append(mutexes, mu), append(waits, tests.LockLater(mu))
				}
				last := contract.MutexOf(t, tests.SessionOf(t, etcd, "z"), "n", asks)
				in := tests.LockLater(last)
				for i, mu := range mutexes {
					require.NoError(t, tests.SoonOr(t, waits[i], "no hold"))
					hold := mu.Context(context.Background())
					require.LessOrEqual(t, tests.RecalledAfter(t, hold, time.Now()), 2*time.Second, "hold %d", i)
					over := fault(etcd)
					time.Sleep(5 * time.Second)
					over()
					time.Sleep(5 * time.Second)
					require.NoError(t, mu.Unlock(context.Background()))
				}
				require.NoError(t, tests.SoonOr(t, in, "the last one does not get in"))
				require.NoError(t, last.Unlock(context.Background()))
			})
		})
	}
}

// A reader that comes to hold while another one is being asked is asked, too, without a recheck.
func TestAReaderThatComesToHoldWhileAnotherIsAskedIsAsked(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		first := tests.RLockWithin(t, tests.RWMutexOf(t, tests.SessionOf(t, etcd, "r1"), tests.Listens),
			time.Second)
		time.Sleep(tests.WatchedBy)
		ctx, giveUp := context.WithCancel(context.Background())
		between := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w1"))
		gaveUp := contract.Async(func() error { return between.Lock(ctx) })
		synctest.Wait()
		read := tests.RLockLater(tests.RWMutexOf(t, tests.SessionOf(t, etcd, "r2"), tests.Listens))
		etcd.Intercept(onAsk("w2", first.Key(), fake.Effect{Delay: 500 * time.Millisecond}))
		start := time.Now()
		writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w2"), asks)
		in := tests.LockLater(writer)
		time.Sleep(100 * time.Millisecond)
		giveUp()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		second := tests.SoonOr(t, read, "the reader does not get in")
		require.LessOrEqual(t, tests.RecalledAfter(t, second.Context(context.Background()), start),
			700*time.Millisecond)
		require.True(t, tests.IsRecalled(first.Context(context.Background())))
		tests.UnlockAll(t, first, second)
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))
	})
}

// A read that gets in beside another one asks it for nothing, however long it takes until it knows
// that.
func TestAReadThatGetsInBesideAnotherAsksNobody(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, _ := tests.Strangers(t, etcd, "n", 12)
		read := tests.RLockLater(tests.RWMutexOf(t, tests.SessionOf(t, etcd, "r1"), tests.Listens))
		in := tests.RLockLater(tests.RWMutexOf(t, tests.SessionOf(t, etcd, "r2"), asks))
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process == "r2" && c.Method == fake.Txn { // a look of the wait, and not of its asking
				return fake.Effect{Delay: 500 * time.Millisecond}
			}
			return fake.Effect{}
		})
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		first := tests.SoonOr(t, read, "the first one does not get in")
		start := time.Now()
		second := tests.SoonOr(t, in, "the second one does not get in")
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
		time.Sleep(time.Minute)
		require.False(t, tests.IsRecalled(first.Context(context.Background())))
		tests.UnlockAll(t, first, second)
	})
}
