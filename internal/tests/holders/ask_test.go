package holders

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about waits that ask the holder to give way: WithAsk.

// asks is the option of most waits that ask.
var asks = etcdlock.WithAsk(etcdlock.RecallRequest{By: "op", Reason: "update",
	Grace: 3 * time.Second})

// asked returns the places in the line for "n" with a request in their value.
func asked(t *testing.T, etcd *fake.Server) (places []int) {
	t.Helper()
	line, err := etcdlock.Contenders(context.Background(), etcd.Client("operator"), "n")
	require.NoError(t, err)
	for i, c := range line {
		resp, err := etcd.Client("operator").Get(context.Background(), c.Key)
		require.NoError(t, err)
		if strings.Contains(string(resp.Kvs[0].Value), `"recall"`) {
			places = append(places, i)
		}
	}
	return places
}

// A wait asks the holder as soon as it has queued, by a read and a transaction, and watches it.
// Nothing else changes: the holder has its grace, and the wait goes on until its Unlock.
func TestAWaitAsksTheHolder(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		hold, token := tests.LockWithin(t, mu, time.Second), mu.Token()
		time.Sleep(tests.WatchedBy)
		start, since := time.Now(), tests.CallsSince(etcd)
		next := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", asks))
		tests.Costs(t, since, "Txn 2, Range 2, Watch 2, LeaseGrant 1", 2) // with the view of the wait
		require.Zero(t, tests.RecalledAfter(t, hold, start))
		tests.RequireWhole(t, mu)
		require.Equal(t, 3*time.Second, tests.EndsAfter(t, hold, start))
		requireRecalled(t, mu, hold, token)
		time.Sleep(time.Minute)
		tests.StillWaits(t, next, "the holder has not unlocked")
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
	})
}

// A holder that does not listen is left alone: nothing is written. The wait reads the line and
// watches the holder, however long the line is.
func TestAWaitLeavesAHolderAloneThatDoesNotListen(t *testing.T) {
	for _, behind := range []int{1, 3, 12} {
		var costs []map[string]int
		for _, opts := range [][]etcdlock.Option{nil, {asks}} {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				hold := tests.LockWithin(t, mu, time.Second)
				var waits []<-chan error
				var waiting []*etcdlock.Mutex
				for i := range behind {
					waiting = append(waiting,
						contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("w", i)), "n"))
					waits = append(waits, tests.LockLater(waiting[i]))
				}
				last := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", opts...)
				revision := etcd.Rev()
				in := tests.LockLater(last)
				require.EqualValues(t, 1, etcd.Rev()-revision)
				costs = append(costs, tests.CountByProcess(tests.CallsOf("b", etcd.Calls(""))))
				time.Sleep(time.Minute)
				require.Empty(t, asked(t, etcd))
				tests.RequireWhole(t, mu)
				require.Nil(t, etcdlock.RecallFrom(hold))
				require.NoError(t, mu.Unlock(context.Background()))
				for i, w := range waits {
					require.NoError(t, tests.SoonOr(t, w, "a waiter does not get in"))
					require.NoError(t, waiting[i].Unlock(context.Background()))
				}
				require.NoError(t, tests.SoonOr(t, in, "the last one does not get in"))
				require.NoError(t, last.Unlock(context.Background()))
			})
		}
		costs[0]["b "+fake.Range]++
		costs[0]["b "+fake.Watch]++
		require.Equal(t, costs[0], costs[1], "behind %d", behind)
	}
}

// In a line in which all listen and all ask, each holder is asked as its hold begins, however long
// the line is, once, and before that nobody is.
func TestEachHolderOfALineIsAsked(t *testing.T) {
	for _, waiters := range []int{2, 8, 12, 40} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				first := contract.MutexOf(t, tests.SessionOf(t, etcd, "first"), "n", tests.Listens)
				mutexes, waits := []*etcdlock.Mutex{first}, []<-chan error{nil}
				hold := tests.LockWithin(t, first, time.Second)
				time.Sleep(tests.WatchedBy)
				for i := range waiters {
					mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("w", i)), "n",
						tests.Listens, asks)
					mutexes, waits = append(mutexes, mu), append(waits, tests.LockLater(mu))
				}
				time.Sleep(10 * time.Second)
				revision := etcd.Rev()
				for i, mu := range mutexes {
					if i > 0 {
						require.NoError(t, tests.SoonOr(t, waits[i], "a waiter does not get in"))
						hold = mu.Context(context.Background())
					}
					if i == waiters {
						time.Sleep(time.Minute)
						require.False(t, tests.IsRecalled(hold), "by whom")
						require.NoError(t, mu.Unlock(context.Background()))
						break
					}
					require.Less(t, tests.RecalledAfter(t, hold, time.Now()), 200*time.Millisecond, "hold %d", i)
					synctest.Wait()
					require.Equal(t, []int{0}, asked(t, etcd))
					require.NoError(t, mu.Unlock(context.Background()))
					time.Sleep(time.Second)
				}
				require.EqualValues(t, 2*waiters, etcd.Rev()-revision,
					"a delete and a request each; the first request came before")
			})
		})
	}
}

// So it is in a crowd that goes round and round, which reads only keys when it queues.
func TestEachHolderOfACrowdIsAsked(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const crowd, rounds = 40, 3
		holds, goesOn := make(chan *etcdlock.Mutex), make(chan struct{})
		for i := range crowd {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("w", i), tests.Listens, asks), "n")
			go func() {
				for range rounds {
					require.NoError(t, mu.Lock(context.Background()))
					holds <- mu
					<-goesOn
				}
			}()
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		for n := range crowd * rounds {
			mu := <-holds
			hold := mu.Context(context.Background())
			if n < crowd*rounds-1 {
				require.LessOrEqual(t, tests.RecalledAfter(t, hold, time.Now()), 200*time.Millisecond,
					"hold %d", n)
			}
			require.NoError(t, mu.Unlock(context.Background()))
			goesOn <- struct{}{}
			time.Sleep(time.Second)
		}
	})
}

// Many that wait ask a holder once between them.
func TestManyWaitsAskAHolderOnce(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const waiters = 20
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.WatchedBy)
		sessions := make([]*etcdlock.Session, waiters)
		for i := range sessions {
			sessions[i] = tests.SessionOf(t, etcd, fmt.Sprint("w", i), etcdlock.WithAsk(
				etcdlock.RecallRequest{By: "op", Grace: 1500*time.Microsecond + 1})) // which is stored as 2 ms
			warm := contract.MutexOf(t, sessions[i], "warm")
			tests.LockWithin(t, warm, time.Second)
			require.NoError(t, warm.Unlock(context.Background()))
		}
		revision := etcd.Rev()
		for _, s := range sessions { // at once
			go contract.MutexOf(t, s, "n").Lock(context.Background())
		}
		require.Zero(t, tests.RecalledAfter(t, hold, time.Now()))
		time.Sleep(time.Minute)
		require.EqualValues(t, waiters+1, etcd.Rev()-revision)
		reads := 0
		for _, c := range etcd.Calls(fake.Range) {
			if strings.HasPrefix(c.Process, "w") && names(c, mu.Key()) {
				reads++
			}
		}
		require.LessOrEqual(t, reads, waiters)
		for _, s := range sessions {
			require.NoError(t, s.Close(context.Background()))
		}
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// A contender that waits is not asked, though it listens and stands before the one that asks. It is
// once it holds, in whatever order the others go.
func TestAWaiterIsNotAskedBeforeItHolds(t *testing.T) {
	for _, between := range []int{1, 3, 12} {
		for _, backward := range []bool{false, true} {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				keys, _ := tests.Strangers(t, etcd, "n", between)
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
				in := tests.LockLater(mu)
				last := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", asks))
				if backward {
					slices.Reverse(keys)
				}
				for _, key := range keys {
					time.Sleep(5 * time.Second)
					require.Empty(t, asked(t, etcd))
					etcd.DeleteKey(key)
				}
				require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
				hold := mu.Context(context.Background())
				require.LessOrEqual(t, tests.RecalledAfter(t, hold, time.Now()), 200*time.Millisecond)
				require.NoError(t, mu.Unlock(context.Background()))
				require.NoError(t, tests.SoonOr(t, last, "the last one does not get in"))
			})
		}
	}
}

// If the event is lost that shows that the one before holds now, a recheck shows it.
func TestAHolderIsAskedThoughTheEventIsLost(t *testing.T) {
	for _, between := range []int{3, 12} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			keys, _ := tests.Strangers(t, etcd, "n", between)
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			in := tests.LockLater(mu)
			last := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", asks))
			time.Sleep(5 * time.Second)
			etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: c.Method == fake.Event && c.Process == "b"}
			})
			for _, key := range keys {
				etcd.DeleteKey(key)
			}
			require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
			hold := mu.Context(context.Background())
			require.LessOrEqual(t, tests.RecalledAfter(t, hold, time.Now()), 3*time.Second)
			etcd.Intercept(nil)
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, tests.SoonOr(t, last, "the last one does not get in"))
		})
	}
}

// In a long line a wait may have read only keys as it queued. It asks the holder once a check has
// read it.
func TestAWaitThatHasReadOnlyKeysAsksTheHolder(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		hold := tests.LockWithin(t, mu, time.Second)
		keys, _ := tests.Strangers(t, etcd, "n", 40)
		time.Sleep(tests.WatchedBy)
		b := tests.SessionOf(t, etcd, "b")
		require.ErrorIs(t, contract.MutexOf(t, b, "n").Lock(tests.Within(t, time.Second)),
			context.DeadlineExceeded)
		in := tests.LockLater(contract.MutexOf(t, b, "n", asks))
		require.LessOrEqual(t, tests.RecalledAfter(t, hold, time.Now()), 200*time.Millisecond)
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the wait is not over"))
	})
}

// A permit in a long line asks those that come to hold before it.
func TestAPermitInALongLineAsksWhoComesToHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const limit, waiters = 4, 10
		var waits []<-chan *etcdlock.Hold
		for i := range limit + waiters {
			sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, fmt.Sprint("p", i)), limit, tests.Listens)
			waits = append(waits, tests.AcquireLater(sem, 1))
		}
		time.Sleep(tests.WatchedBy)
		last := tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), limit, asks), 1)
		for i, wait := range waits {
			h := tests.SoonOr(t, wait, "a permit does not get in")
			require.LessOrEqual(t, tests.RecalledAfter(t, h.Context(context.Background()), time.Now()),
				200*time.Millisecond, "hold %d", i)
			require.Len(t, asked(t, etcd), min(limit, len(waits)-i))
			tests.UnlockAll(t, h)
			time.Sleep(time.Second)
		}
		tests.UnlockAll(t, tests.SoonOr(t, last, "the permit does not get in"))
	})
}

// TryLock does not wait, and asks nobody. Nor does a Lock that nobody is before, or a wait without
// the option.
func TestWhoDoesNotWaitAsksNobody(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", tests.Listens)
		mu := contract.MutexOf(t, s, "n")
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.WatchedBy)
		b := tests.SessionOf(t, etcd, "b", asks)
		since := tests.CallsSince(etcd)
		tests.LockWithin(t, contract.MutexOf(t, b, "free"), time.Second)
		tests.Costs(t, since, "Txn 1, LeaseGrant 1", 1)
		since = tests.CallsSince(etcd)
		require.ErrorIs(t, contract.MutexOf(t, b, "n").TryLock(context.Background()), etcdlock.ErrLocked)
		require.ErrorIs(t, contract.MutexOf(t, s, "n", asks).TryLock(context.Background()),
			etcdlock.ErrLocked)
		time.Sleep(900 * time.Millisecond) // later the key of the other hold is watched
		tests.Costs(t, since, "Txn 1", 0)
		plain := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "n"))
		time.Sleep(time.Minute)
		require.False(t, tests.IsRecalled(hold))
		require.Empty(t, asked(t, etcd))
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, plain, "the next one does not get in"))
	})
}

// A wait in the Session of the holder tells it at once, without etcd. So does one that stands
// behind others there, and it asks the holder in etcd's line for which the first one waits.
func TestAWaitTellsTheHoldOfItsSession(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", tests.Listens)
		mu := contract.MutexOf(t, s, "n")
		hold, token := tests.LockWithin(t, mu, time.Second), mu.Token()
		plain := contract.MutexOf(t, s, "n")
		first := tests.LockLater(plain)
		require.False(t, tests.IsRecalled(hold))
		start, since := time.Now(), tests.CallsSince(etcd)
		last := contract.MutexOf(t, s, "n", asks)
		in := tests.LockLater(last)
		require.Zero(t, tests.RecalledAfter(t, hold, start))
		tests.Costs(t, since, "", 0)
		require.Equal(t, 3*time.Second, tests.EndsAfter(t, hold, start))
		requireRecalled(t, mu, hold, token)
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, first, "the first one does not get in"))
		require.Zero(t, tests.RecalledAfter(t, plain.Context(context.Background()), time.Now()),
			"that holds before the last one, too")
		require.NoError(t, plain.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the last one does not get in"))
		require.False(t, tests.IsRecalled(last.Context(context.Background())))

		there := tests.SessionOf(t, etcd, "b")
		tests.LockLater(contract.MutexOf(t, there, "n"))
		time.Sleep(tests.WatchedBy)
		require.Empty(t, asked(t, etcd))
		tests.LockLater(contract.MutexOf(t, there, "n", asks))
		require.True(t, tests.IsRecalled(last.Context(context.Background())))
		require.NoError(t, there.Close(context.Background()))
	})
}

// A writer asks all readers that hold before it, however many they are. A reader asks the writer.
func TestAWriterAsksAllReaders(t *testing.T) {
	for _, readers := range []int{1, 3, 20} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			var holds []*etcdlock.Hold
			for i := range readers {
				rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("r", i)), tests.Listens)
				holds = append(holds, tests.RLockWithin(t, rw, time.Second))
			}
			time.Sleep(tests.WatchedBy)
			start := time.Now()
			writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w"), tests.Listens, asks)
			in := tests.LockLater(writer)
			late := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "late"), tests.Listens, asks)
			read := tests.RLockLater(late)
			for _, h := range holds {
				require.Zero(t, tests.RecalledAfter(t, h.Context(context.Background()), start))
			}
			require.Len(t, asked(t, etcd), readers, "the writer is not asked before it holds")
			tests.UnlockAll(t, holds...)
			require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
			if readers < 8 {
				require.Zero(t, tests.RecalledAfter(t, writer.Context(context.Background()), time.Now()))
			}
			require.NoError(t, writer.Unlock(context.Background()))
			tests.UnlockAll(t, tests.SoonOr(t, read, "the reader does not get in"))
		})
	}
}

// A reader behind a writer that waits asks the readers that hold, and not the writer.
func TestAReaderAsksTheHolderAndNoWaiter(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		first := tests.RLockWithin(t, tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"), tests.Listens),
			time.Second)
		time.Sleep(tests.WatchedBy)
		writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w"), tests.Listens)
		in := tests.LockLater(writer)
		read := tests.RLockLater(tests.RWMutexOf(t, tests.SessionOf(t, etcd, "b"), asks))
		require.Equal(t, []int{0}, asked(t, etcd))
		time.Sleep(time.Minute)
		require.Equal(t, []int{0}, asked(t, etcd))
		tests.UnlockAll(t, first)
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		require.Zero(t, tests.RecalledAfter(t, writer.Context(context.Background()), time.Now()))
		require.NoError(t, writer.Unlock(context.Background()))
		tests.UnlockAll(t, tests.SoonOr(t, read, "the reader does not get in"))
	})
}

// A read that may join a hold of its Session does not wait for it, and asks nobody, even while a
// watch has to tell first. One that waits, since a writer has come, does.
func TestAReadThatJoinsAsksNobody(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"), tests.Listens, asks)
		first := tests.RLockWithin(t, rw, time.Second)
		second := tests.RLockWithin(t, rw, time.Second)
		time.Sleep(time.Second)
		require.False(t, tests.IsRecalled(first.Context(context.Background())))
		in := tests.LockLater(tests.RWMutexOf(t, tests.SessionOf(t, etcd, "w")))
		time.Sleep(time.Second)
		require.False(t, tests.IsRecalled(first.Context(context.Background())))
		third := tests.RLockLater(rw)
		require.True(t, tests.IsRecalled(first.Context(context.Background())))
		require.True(t, tests.IsRecalled(second.Context(context.Background())))
		tests.UnlockAll(t, first, second)
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		_ = third
	})
}

// A permit that waits asks all permits that hold, of its Session too.
func TestAPermitAsksAllThatHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		own := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 3, tests.Listens, asks)
		other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 3, tests.Listens)
		holds := []*etcdlock.Hold{
			tests.AcquireWithin(t, own, 1, time.Second), tests.AcquireWithin(t, other, 1, time.Second),
			tests.AcquireWithin(t, other, 1, time.Second),
		}
		time.Sleep(tests.WatchedBy)
		revision := etcd.Rev()
		in := tests.AcquireLater(own, 1)
		time.Sleep(time.Second)
		for i, h := range holds {
			require.True(t, tests.IsRecalled(h.Context(context.Background())), "hold %d", i)
		}
		require.EqualValues(t, 3, etcd.Rev()-revision, "its key, and two requests")
		tests.UnlockAll(t, holds...)
		tests.UnlockAll(t, tests.SoonOr(t, in, "the permit does not get in"))
	})
}

// A wait for several names asks the holder of each, and its own keys that stand first are asked of
// nothing.
func TestAWaitForSeveralNamesAsksAllHolders(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := tests.SessionOf(t, etcd, "a", tests.Listens)
		var holds []context.Context
		var mutexes []*etcdlock.Mutex
		for _, name := range []string{"x", "y"} {
			mutexes = append(mutexes, contract.MutexOf(t, a, name))
			holds = append(holds, tests.LockWithin(t, mutexes[len(mutexes)-1], time.Second))
		}
		time.Sleep(tests.WatchedBy)
		b := tests.SessionOf(t, etcd, "b", tests.Listens, asks)
		in := make(chan *etcdlock.Hold, 1)
		go func() {
			if h, err := b.LockAll(context.Background(), "x", "y", "free"); err == nil {
				in <- h
			}
		}()
		for i, hold := range holds {
			require.Zero(t, tests.RecalledAfter(t, hold, time.Now()))
			require.NoError(t, mutexes[i].Unlock(context.Background()))
			time.Sleep(time.Minute)
		}
		all := tests.SoonOr(t, in, "no hold")
		require.False(t, tests.IsRecalled(all.Context(context.Background())))
		tests.UnlockAll(t, all)
	})
}

// Of waits with several requests that with the shortest grace counts, and it is written once more.
func TestAWaitWithAShorterGraceAsksAgain(t *testing.T) {
	for _, same := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithRecall(time.Hour))
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			b := tests.SessionOf(t, etcd, "b")
			c := b
			if !same {
				c = tests.SessionOf(t, etcd, "c")
			}
			revision, start := etcd.Rev(), time.Now()
			for _, ask := range []struct {
				s     *etcdlock.Session
				grace time.Duration
			}{{b, time.Minute}, {c, 10 * time.Second}, {c, 20 * time.Second}} {
				tests.LockLater(contract.MutexOf(t, ask.s, "n",
					etcdlock.WithAsk(etcdlock.RecallRequest{By: "op", Grace: ask.grace})))
			}
			require.Equal(t, 10*time.Second, tests.EndsAfter(t, hold, start))
			puts := int64(2)
			if same {
				puts = 1
			}
			require.EqualValues(t, puts+2, etcd.Rev()-revision)
			require.NoError(t, b.Close(context.Background()))
			require.NoError(t, c.Close(context.Background()))
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
}

// names reports whether a request reads or puts a key.
func names(c fake.Call, key string) bool {
	return slices.Contains(c.Gets, key) || slices.Contains(c.Puts, key)
}

// onAsk has an effect on the requests by which a process reads or recalls a holder: all that name
// its key first.
func onAsk(process, key string, effect fake.Effect) func(fake.Call) fake.Effect {
	return func(c fake.Call) fake.Effect {
		if c.Process == process && names(c, key) {
			return effect
		}
		return fake.Effect{}
	}
}

// An etcd that does not answer the request, or refuses it, harms no wait. It is sent a few times,
// and then with each recheck, unless it was refused. What fails is logged once.
func TestARequestThatFailsHarmsNoWait(t *testing.T) {
	for name, effect := range map[string]fake.Effect{
		"no answer": {Drop: true}, "refused": {Before: tests.PermissionDenied}, "unavailable": {Before: fake.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var log tests.Told
				logger := etcdlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
				hold, key := tests.LockWithin(t, mu, time.Second), mu.Key()
				time.Sleep(tests.WatchedBy)
				etcd.Intercept(onAsk("b", key, effect))
				last := contract.MutexOf(t, tests.SessionOf(t, etcd, "b", logger), "n", asks)
				in := tests.LockLater(last)
				asksOf := func() (n int) {
					for _, c := range tests.CallsOf("b", etcd.Calls("")) {
						if names(c, key) {
							n++
						}
					}
					return n
				}
				time.Sleep(time.Minute)
				sent := asksOf()
				t.Log(sent, "requests in a minute")
				require.Positive(t, sent)
				time.Sleep(time.Hour)
				later := asksOf() - sent
				t.Log(later, "requests in an hour")
				if name == "refused" {
					require.Equal(t, 1, sent)
					require.Zero(t, later)
				} else {
					require.LessOrEqual(t, sent, 40)
					require.LessOrEqual(t, later, 3*int(time.Hour/tests.TTL))
				}
				require.False(t, tests.IsRecalled(hold))
				require.Equal(t, 1, strings.Count(
					strings.Join(log.Take(), ""), "holder not asked to give way"))
				etcd.Intercept(nil)
				if name != "refused" {
					require.Less(t, tests.RecalledAfter(t, hold, time.Now()), 2*tests.TTL)
				}
				require.NoError(t, mu.Unlock(context.Background()))
				require.NoError(t, tests.SoonOr(t, in, "the wait is not over"))
				require.NoError(t, last.Unlock(context.Background()))
			})
		})
	}
}

// A wait may go on though etcd has refused to tell it who holds: behind permits of its own Session
// it asks etcd for nothing else. Once the right to read is given back, it asks.
func TestAWaitThatMayNotReadAsksOnceItMay(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2, tests.Listens)
		first := tests.AcquireWithin(t, other, 1, time.Second)
		hold := first.Context(context.Background())
		s := tests.SessionOf(t, etcd, "b")
		own := tests.AcquireWithin(t, tests.SemaphoreOf(t, s, 2), 1, time.Second)
		time.Sleep(tests.WatchedBy)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process == "b" && c.Method == fake.Range {
				return fake.Effect{Before: tests.PermissionDenied}
			}
			return fake.Effect{}
		})
		mu := contract.MutexOf(t, s, "n", asks)
		in := tests.LockLater(mu)
		time.Sleep(time.Second)
		tests.StillWaits(t, in, "permits are held")
		etcd.Intercept(nil)
		require.Less(t, tests.RecalledAfter(t, hold, time.Now()), 2*time.Minute)
		tests.UnlockAll(t, own)
		require.NoError(t, first.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the wait is not over"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The request ends with the wait, and with the Session: nothing is written later.
func TestARequestEndsWithTheWait(t *testing.T) {
	for _, closes := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			etcd.Intercept(func(c fake.Call) fake.Effect {
				if c.Process == "b" && c.Method == fake.Range { // with that by which it asks
					return fake.Effect{DelayReply: 500 * time.Millisecond}
				}
				return fake.Effect{}
			})
			b := tests.SessionOf(t, etcd, "b")
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			err := contract.MutexOf(t, b, "n", asks).Lock(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			if closes {
				require.NoError(t, b.Close(context.Background()))
			}
			time.Sleep(time.Minute)
			require.False(t, tests.IsRecalled(hold))
			require.Empty(t, asked(t, etcd))
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
}

// After a set-back the holder may be another one. What was known of the line from before asks
// nobody; what is read then asks who holds then, even if it was asked before.
func TestAHolderOfBeforeARestoreIsNotAsked(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.WatchedBy)
		restore := etcd.Save()
		in := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", asks))
		require.Equal(t, []int{0}, asked(t, etcd))
		restore(1)
		require.Empty(t, asked(t, etcd))
		time.Sleep(2 * tests.SeldomLook)
		_ = in
		require.Equal(t, []int{0}, asked(t, etcd))
		_ = mu.Unlock(context.Background())
	})
}

// The option is checked where it is given.
func TestARequestThatCannotBeMadeIsRefused(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		for _, r := range []etcdlock.RecallRequest{
			{Grace: -time.Second}, {By: strings.Repeat("x", 257)}, {Reason: strings.Repeat("x", 257)}, {By: "\xff"}, {Reason: "\xff"},
		} {
			_, err := etcdlock.NewMutex(etcd.Client("a"), "n", etcdlock.WithAsk(r))
			require.ErrorContains(t, err, "etcdlock: WithAsk: ")
			_, err = tests.SessionOf(t, etcd, "a").Semaphore("n", 3, etcdlock.WithAsk(r))
			require.ErrorContains(t, err, "etcdlock: WithAsk: ")
		}
		_, err := etcdlock.NewMutex(etcd.Client("a"), "n",
			etcdlock.WithAsk(etcdlock.RecallRequest{Grace: -time.Second}))
		require.EqualError(t, err, "etcdlock: WithAsk: the grace -1s is negative")
	})
}
