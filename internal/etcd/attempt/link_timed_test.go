//go:build timed

package attempt

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An attempt that gives up costs about as much as one that begins, however many wait: the renewals
// of all holders with the same client wait for the same mutex.
func TestGivingUpCostsNoMoreThanBeginningHoweverManyWait(t *testing.T) {
	const n = 100_000
	// each returns how long one of n attempts takes to leave the queue, while all leave it.
	each := func(goes func(l *link, giveUp func())) time.Duration {
		ctx, giveUp := context.WithCancel(context.Background())
		defer giveUp()
		c := caller(context.Background())
		l := c.link
		l.limiter.others = window{size: 1, under: 1}
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				a := &flight{c: c, ctx: ctx, cancel: func() {}}
				_ = a.wait(ctx, time.Hour, &l.limiter.others)
				a.cancel()
			})
		}
		for waiting := 0; waiting < n; runtime.Gosched() {
			l.with(func(m *limiter, _ time.Time) { waiting = m.others.queue.Len() })
		}
		started := time.Now()
		goes(l, giveUp)
		all.Wait()
		return time.Since(started) / n
	}
	begins, ends := time.Hour, time.Hour
	for range 2 { // the least, because other work on the machine only adds
		begins = min(begins, each(func(l *link, _ func()) {
			l.with(func(m *limiter, _ time.Time) {
				m.others.size = n + 1
				m.others.end(time.Now())
			})
		}))
		ends = min(ends, each(func(_ *link, giveUp func()) { giveUp() }))
	}
	t.Logf("one of %d begins in %v, and gives up in %v", n, begins, ends)
	require.Less(t, ends, 8*begins)
}
