package recheck_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/recheck"
)

func TestWhoHasWaitedForLongLooksSeldom(t *testing.T) {
	const s, ttl = time.Second, 15 * time.Second
	for _, row := range []struct {
		relied     time.Duration
		ttl        time.Duration
		contenders int
		period     time.Duration
	}{
		{0, ttl, 2, 1500 * time.Millisecond},
		{12 * s, ttl, 2, 1500 * time.Millisecond},
		{13 * s, ttl, 2, 13 * s},
		{time.Minute, ttl, 2, 20 * s},
		{time.Hour, ttl, 2, 20 * s},
		{time.Hour, 3 * s, 2, 4 * s},
		{time.Hour, time.Second, 2, 1500 * time.Millisecond},
		{0, ttl, 25, 1500 * time.Millisecond},
		{0, ttl, 100, 6 * s},
		{time.Hour, ttl, 100, 20 * s},
		{0, ttl, 1000, time.Minute},
		{time.Hour, ttl, 1000, time.Minute},
		{time.Hour, 5 * time.Minute, 1000, 400 * s},
		{time.Hour, 7_000_000_000 * s, 2, time.Hour},
		{time.Hour, 9_000_000_000 * s, 2, time.Hour},
	} {
		t.Run(fmt.Sprintf("%v, TTL %v, %d", row.relied, row.ttl, row.contenders), func(t *testing.T) {
			from, to := recheck.Period(row.relied, row.ttl, row.contenders)
			require.InDelta(t, row.period.Seconds(), (from+to).Seconds()/2, 1e-6)
			require.Less(t, from, to)
		})
	}
}

// However long a line is, and however short its waits are, all its waiters together send at most
// 20 requests a second.
func TestAllInALineTogetherLookSeldom(t *testing.T) {
	for contenders := 1; contenders <= 20_000; contenders *= 2 {
		for _, ttl := range []time.Duration{0, time.Second, 15 * time.Second} {
			for relied := time.Duration(0); relied < time.Minute; relied += time.Second {
				from, to := recheck.Period(relied, ttl, contenders)
				require.LessOrEqual(t, float64(contenders)/((from+to)/2).Seconds(), 20.0)
			}
		}
	}
}

// A waiter that waits for long sends a quarter as many messages as its lease needs
// renewals.
func TestALongWaitCostsAFractionOfItsLease(t *testing.T) {
	for _, ttl := range []time.Duration{5 * time.Second, 15 * time.Second, time.Minute} {
		const waits = 6 * time.Hour
		looks := 0
		for at := time.Duration(0); at < waits; looks++ {
			from, to := recheck.Period(at, ttl, 2)
			at += (from + to) / 2
		}
		require.LessOrEqual(t, float64(looks), 0.25*float64(waits/(ttl/3))+12, "TTL %v", ttl)
	}
}
