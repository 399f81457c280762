package events

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Callbacks run one at a time and in order, whatever one of them does.
func TestCallbacksRunInOrderWhateverOneDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		var ran []int
		for i := range 100 {
			q.Run(func() {
				ran = append(ran, i)
				switch i % 10 {
				case 3:
					panic("a callback's own")
				case 7:
					runtime.Goexit()
				}
			})
		}
		synctest.Wait()
		require.Len(t, ran, 100)
		require.IsIncreasing(t, ran)
	})
}

// A callback that blocks holds up the other callbacks, and nothing else. Callbacks beyond
// the limit are dropped.
func TestACallbackThatBlocksHoldsUpOthersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		release := make(chan struct{})
		q.Run(func() { <-release })
		synctest.Wait()
		ran := 0
		for range MaxPending + 10 {
			q.Run(func() { ran++ })
		}
		synctest.Wait()
		require.Zero(t, ran)
		close(release)
		synctest.Wait()
		require.Equal(t, MaxPending, ran)
		q.Run(func() { ran++ })
		synctest.Wait()
		require.Equal(t, MaxPending+1, ran)
	})
}
