package trust

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever the margin, more than half of the trust is left when a renewal is sent, and
// enough for further renewals if that one has no answer.
func TestTheScheduleFollowsFromWhatIsTrusted(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 2 * time.Second, 15 * time.Second,
		24 * time.Hour} {
		for percent := 1; percent < 100; percent++ {
			t.Run(fmt.Sprintf("%v, %d percent", ttl, percent), func(t *testing.T) {
				s := scheduleOf(ttl, ttl/100*time.Duration(percent))
				if s.Span < 10*leastPeriod {
					require.GreaterOrEqual(t, s.Period, leastPeriod)
					return
				}
				left := s.Span - s.Period
				require.False(t, s.AtRisk(left), "when a renewal is sent")
				require.True(t, s.Lasts(left))
				require.GreaterOrEqual(t, left, 2*s.Late(), "one is late, another is sent")
				require.LessOrEqual(t, s.Again(1, s.Span), s.Late())
				require.LessOrEqual(t, s.Next(0), s.Period)
				require.Greater(t, s.Next(s.Span), time.Duration(0), "never at once")
			})
		}
	}
}

func TestTheScheduleOfTheDefaults(t *testing.T) {
	s := scheduleOf(15*time.Second, 15*time.Second/8)
	require.Equal(t, 5*time.Second, s.Period)
	require.Equal(t, 2500*time.Millisecond, s.Late())
	for n, pause := range []time.Duration{50, 50, 100, 166, 166} {
		require.Equal(t, pause, s.Again(n, 0)/time.Millisecond, "the pause after %d failures", n)
	}
	require.Equal(t, 166*time.Millisecond, s.Again(1e9, 0).Truncate(time.Millisecond))
	require.Equal(t, 500*time.Millisecond, s.Again(1, 500*time.Millisecond),
		"as long as that one took")
	require.Equal(t, 937500*time.Microsecond, s.Again(9, time.Minute))
	require.Equal(t, 4*time.Second, s.Next(time.Second))
	require.True(t, s.AtRisk(6*time.Second))
	require.False(t, s.Lasts(5*time.Second))
}

// With a long TTL too, some dozens of attempts fit into what is left of the trust, and not more: in
// a fleet each lease asks by itself.
func TestFewAttemptsFailWhateverTheTTL(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 2 * time.Second, 15 * time.Second,
		3 * time.Minute, time.Hour, 24 * time.Hour, 9_000_000_000 * time.Second} {
		s := scheduleOf(ttl, max(ttl/8, 100*time.Millisecond))
		for name, took := range map[string]time.Duration{"at once": 0, "refused": s.Late()} {
			attempts := 0
			for left := s.Span - s.Period; left > 0; attempts++ {
				left -= s.Again(attempts+1, took)
			}
			t.Logf("TTL %v, %s: %d", ttl, name, attempts)
			require.LessOrEqual(t, attempts, 80, "TTL %v, %s", ttl, name)
			if took == 0 {
				require.GreaterOrEqual(t, attempts, 30, "TTL %v", ttl)
			}
		}
	}
}
