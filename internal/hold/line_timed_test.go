//go:build timed

package hold_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/hold"
)

// Many goroutines that stop waiting at once do not each search the line: they hold the
// Session's mutex, and a renewal waits for it. So it takes about as long however many wait.
func TestGoingAwayCostsNoSearchOfTheLine(t *testing.T) {
	m := hold.LockOf(heldMutex(t))
	for name, arrange := range departures {
		t.Run(name, func(t *testing.T) {
			// each returns how long one takes to leave, while about n wait: the best of some, since
			// one may be interrupted.
			each := func(n int) time.Duration {
				least := time.Duration(math.MaxInt64)
				for range 3 {
					claims := m.WaitAtHome(t, n)
					arrange(claims)
					for few := range slices.Chunk(claims[:n/4], n/40) {
						started := time.Now()
						for _, c := range few {
							c.Leave()
						}
						least = min(least, time.Since(started)/time.Duration(len(few)))
					}
					for _, c := range claims[n/4:] {
						c.Leave()
					}
				}
				return least
			}
			few, many := each(6_400), each(102_400)
			t.Logf("%v each of few, %v each of many", few, many)
			require.Less(t, many, 5*few, "sixteen times as many wait")
		})
	}
}
