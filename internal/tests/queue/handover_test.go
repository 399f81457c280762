package queue

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestAHandOverAtHomeIsOneTransaction(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu, next := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		for range 20 {
			entered := tests.LockLater(next)
			before, rev := len(etcd.Calls("")), etcd.Rev()
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, <-entered)
			require.Equal(t, map[string]int{"a Txn": 1}, tests.CountByProcess(etcd.Calls("")[before:]))
			require.Equal(t, rev+1, etcd.Rev())
			require.Len(t, etcd.Keys("n/"), 1)
			mu, next = next, mu
		}
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// queuesAs makes the i-th process stand in line, and report when it is in.
func queuesAs(t *testing.T, etcd *fake.Server, i int, entered chan<- int) *etcdlock.Mutex {
	t.Helper()
	mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint(i)), "n")
	go func() { // ends with its turn
		if err := mu.Lock(context.Background()); err != nil {
			t.Error(err)
		}
		entered <- i
	}()
	synctest.Wait()
	return mu
}

// The line is 0, 1, 2, ... A process behind at most eight sees the whole line, and reads
// nothing when its turn comes. The others read once.
func TestAHandOverInEtcdCostsAtMostOneRead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const n = 14
		var line []*etcdlock.Mutex
		entered := make(chan int, n)
		for i := range n {
			line = append(line, queuesAs(t, etcd, i, entered))
		}
		require.Equal(t, 0, <-entered)
		for i := range n - 1 {
			time.Sleep(10 * time.Millisecond)
			before := len(etcd.Calls(""))
			require.NoError(t, line[i].Unlock(context.Background()))
			require.Equal(t, i+1, <-entered)
			synctest.Wait()
			want := map[string]int{fmt.Sprint(i, " Txn"): 1}
			if i+1 > 8 {
				want[fmt.Sprint(i+1, " Range")] = 1
			}
			require.Equal(t, want, tests.CountByProcess(etcd.Calls("")[before:]))
		}
		require.NoError(t, line[n-1].Unlock(context.Background()))
	})
}

func TestKeyNamesAreUsedAgain(t *testing.T) {
	rows := []struct {
		way   string
		names int
		cycle func(t *testing.T, mu, other *etcdlock.Mutex)
	}{
		{"one goroutine", 2, func(t *testing.T, mu, _ *etcdlock.Mutex) {
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(time.Millisecond)
			require.NoError(t, mu.Unlock(context.Background()))
		}},
		{"two in turn", 2, func(t *testing.T, mu, other *etcdlock.Mutex) {
			tests.LockWithin(t, mu, time.Second)
			entered := tests.LockLater(other)
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, <-entered)
			require.NoError(t, other.Unlock(context.Background()))
		}},
	}
	for _, row := range rows {
		t.Run(row.way, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu, other := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
				for range 100 {
					row.cycle(t, mu, other)
				}
				names := make(map[string]bool)
				for _, c := range etcd.Calls(fake.Txn) {
					for _, key := range c.Puts {
						names[key] = true
					}
				}
				require.LessOrEqual(t, len(names), row.names)
				require.Len(t, etcd.Leases(), 1)
			})
		})
	}
}

// A name whose put may still be under way is not used again: the Session would take the
// late copy for the new hold's key.
func TestANameWithADoubtfulPutIsNotUsedAgain(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, contract.MutexOf(t, s, "keeps the lease"), time.Second)
		etcd.Intercept(tests.OnlyNth(2, fake.Txn,
			fake.Effect{After: fake.Unavailable, Again: 3 * time.Second}))
		tests.LockWithin(t, mu, time.Second)
		doubtful := mu.Key()
		require.NoError(t, mu.Unlock(context.Background()))
		for range 50 {
			hold := tests.LockWithin(t, mu, 2*time.Second)
			require.NotEqual(t, doubtful, mu.Key())
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, hold.Err())
			require.NoError(t, mu.Unlock(context.Background()))
		}
	})
}

// 0 s the release that puts the next place is sent, 1 s Unlock gives up, 5 s the release
// arrives, and until 6 s the removal of its own key does not get through. Audits show
// nothing, and another hold keeps the lease. If the next place were removed before the
// release's own key, that removal would find nothing, and leave what the release then puts.
func TestTheNextPlaceIsRemovedAfterTheReleaseThatMayPutIt(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		tests.LockWithin(t, contract.MutexOf(t, s, "keeps the lease"), time.Second)
		mu, next := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		in := contract.Async(func() error { return next.Lock(context.Background()) })
		synctest.Wait()
		start := time.Now()
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method == fake.TimeToLive:
				return fake.Effect{Drop: true}
			case len(c.Deletes) > 0 && len(c.Puts) > 0:
				return fake.Effect{Delay: 5 * time.Second}
			case len(c.Deletes) > 0 && time.Since(start) < 6*time.Second:
				return fake.Effect{Before: fake.Unavailable}
			}
			return fake.Effect{}
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrUnconfirmed)
		require.NoError(t, <-in)
		require.Equal(t, 5*time.Second, time.Since(start), "when the release arrives")
		time.Sleep(3 * time.Second)
		require.Equal(t, []string{next.Key()}, etcd.Keys("n/"), "others wait behind a key of nobody's")
		require.NoError(t, next.Unlock(context.Background()))
	})
}

// The holder that a local waiter queues behind is parsed from etcd's keys for the Queued hook
// alone: a Session hands its turn on as often as etcd lets it.
func TestAWaitWithoutAHookParsesNoHolder(t *testing.T) {
	objects := func(trace *etcdlock.Trace) (each float64) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
			require.NoError(t, holder.Lock(t.Context()))
			b := tests.SessionOf(t, etcd, "b", etcdlock.WithTrace(trace))
			first, second := contract.MutexOf(t, b, "n"), contract.MutexOf(t, b, "n")
			in := contract.Async(func() error { return first.Lock(t.Context()) })
			synctest.Wait() // it waits in etcd's line, and second behind it
			const rounds = 200
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
				assert.ErrorIs(t, second.Lock(ctx), context.DeadlineExceeded)
				cancel()
			}
			runtime.ReadMemStats(&after)
			each = float64(after.Mallocs-before.Mallocs) / rounds
			require.NoError(t, holder.Unlock(t.Context()))
			require.NoError(t, <-in)
			require.NoError(t, first.Unlock(t.Context()))
		})
		return each
	}
	without := objects(&etcdlock.Trace{})
	with := objects(&etcdlock.Trace{Queued: func(context.Context, etcdlock.QueuedEvent) {}})
	require.Greater(t, with-without, 10.0, "%.1f objects with the hook, %.1f without", with, without)
}
