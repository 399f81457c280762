package guard_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/guard"
)

// Three calls wait for an end that comes after 5 s, if it is not ended before. The last one whose
// time is over is told so, and no other.
func TestTheLastCallThatWaitsForACloseIsToldSo(t *testing.T) {
	const s = time.Second
	type result struct {
		done, last bool
		after      time.Duration
	}
	for name, row := range map[string]struct {
		bounds [3]time.Duration
		want   [3]result
	}{
		"all have time": {
			[3]time.Duration{9 * s, 8 * s, 7 * s},
			[3]result{{true, false, 5 * s}, {true, false, 5 * s}, {true, false, 5 * s}},
		},
		"one has": {
			[3]time.Duration{s, 9 * s, 2 * s},
			[3]result{{false, false, s}, {true, false, 5 * s}, {false, false, 2 * s}},
		},
		"none has": {
			[3]time.Duration{3 * s, s, 2 * s},
			[3]result{{false, true, 3 * s}, {false, false, s}, {false, false, 2 * s}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu guard.Mutex
				var c guard.Closing
				over, began := make(chan struct{}), time.Now()
				time.AfterFunc(5*s, func() { close(over) })
				got := make(chan struct{})
				var results [3]result
				for i, bound := range row.bounds {
					mu.Lock()
					c.JoinLocked()
					mu.Unlock()
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), bound)
						defer cancel()
						done, last := c.Await(ctx, &mu, over)
						results[i] = result{done, last, time.Since(began)}
						got <- struct{}{}
					}()
				}
				for range row.bounds {
					<-got
				}
				require.Equal(t, row.want, results)
				mu.Lock()
				defer mu.Unlock()
				require.True(t, c.UnderWayLocked(), "who is done, or the last, leaves by itself")
				<-over
			})
		})
	}
}
