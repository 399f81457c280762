package holders

import (
	"context"
	"errors"
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

// In a line whose holders are recalled as soon as they hold, each hears of it at once: while
// contenders are behind it, a hold that listens is watched from its beginning.
func TestAYoungHoldWithContendersBehindItHearsOfARecallAtOnce(t *testing.T) {
	const trip = time.Millisecond
	for _, n := range []int{2, 5, 20} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			operator := etcd.Client("operator")
			var heard []time.Duration
			recalled := make(map[int64]time.Time)
			done := make(chan struct{}, n)
			for i := range n {
				process := string(rune('a' + i))
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, process, tests.Listens), "n")
				etcd.Delay(process, trip)
				go func() {
					require.NoError(t, mu.Lock(context.Background()))
					ctx := mu.Context(context.Background())
					select {
					case <-etcdlock.RecallFrom(ctx):
					case <-ctx.Done():
					}
					heard = append(heard, time.Since(recalled[mu.Token()]))
					require.NoError(t, mu.Unlock(context.Background()))
					done <- struct{}{}
				}()
				time.Sleep(10 * trip)
			}
			synctest.Wait()
			for c, err := range etcdlock.WatchHolder(t.Context(), operator, "n") {
				require.NoError(t, err)
				if c.Key == "" {
					break
				}
				recalled[c.Token] = time.Now()
				err := etcdlock.Recall(t.Context(), operator, c, etcdlock.RecallRequest{Grace: time.Minute})
				require.True(t, err == nil || errors.Is(err, etcdlock.ErrNotRecallable), "%v", err)
			}
			for range n {
				<-done
			}
			require.Len(t, heard, n)
			slices.Sort(heard)
			t.Logf("of %d: %v", n, heard)
			// No contender was behind the first one when it began, nor is one behind the last.
			require.LessOrEqual(t, heard[max(0, n-3)], 100*trip)
			require.LessOrEqual(t, heard[(n-1)/2], 20*trip)
		})
	}
}

// A hold that listens, and is short, costs nothing more than one that does not where no contender
// is behind it, also where keys of nested names are.
func TestAShortHoldThatListensCostsNothingWithoutContendersBehindIt(t *testing.T) {
	for _, nested := range []int{0, 5} {
		var costs []map[string]int
		for _, opts := range [][]etcdlock.SessionOption{nil, {tests.Listens}} {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				strangers, err := etcd.Client("strangers").Grant(t.Context(), 3600)
				require.NoError(t, err)
				for i := range nested {
					require.NoError(t, etcd.PutKey(fmt.Sprintf("n/nested/%d", i), strangers.ID))
				}
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", opts...), "n")
				for range 10 {
					require.NoError(t, mu.Lock(t.Context()))
					time.Sleep(300 * time.Millisecond)
					require.NoError(t, mu.Unlock(t.Context()))
				}
				costs = append(costs, tests.CountByProcess(tests.CallsOf("a", etcd.Calls(""))))
			})
		}
		require.Equal(t, costs[0], costs[1], "%d keys of nested names", nested)
	}
}
