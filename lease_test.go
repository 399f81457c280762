package etcdlock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/trust"
)

func TestTheDefaultMarginIsAnEighthOfTheGrantedTTLButNotTooLittle(t *testing.T) {
	for granted, want := range map[time.Duration]time.Duration{
		16 * time.Second: 2 * time.Second, 2 * time.Second: 250 * time.Millisecond,
		time.Second: 125 * time.Millisecond, 800 * time.Millisecond: 100 * time.Millisecond, 0: 100 * time.Millisecond,
	} {
		require.Equal(t, want, (&config{}).marginOf(granted), "%v", granted)
		require.Equal(t, time.Minute, (&config{margin: time.Minute}).marginOf(granted))
	}
}

// trustUntil makes the trust in l last until a time.
func trustUntil(l *lease, until time.Time) {
	l.trust = trust.New(until.Add(-l.plan.Span), l.ttl, l.s.cfg.marginOf)
}

// A lease that has ended serves nobody again, and it is gone only once it has ended: then its keys
// are.
func TestALeaseGoesOnlyForward(t *testing.T) {
	states := []leaseState{leaseServing, leaseDraining, leaseEnded, leaseGone}
	legal := map[leaseState][]leaseState{
		leaseServing:  {leaseDraining, leaseEnded},
		leaseDraining: {leaseEnded},
		leaseEnded:    {leaseGone},
	}
	for _, from := range states {
		for _, to := range states {
			l, why := &lease{state: from, tenants: new(account)}, errors.New("a reason")
			become := func() { l.becomesLocked(to, why) }
			if !slices.Contains(legal[from], to) {
				require.Panics(t, become, "%v becomes %v", from, to)
				require.Equal(t, from, l.state)
				continue
			}
			require.NotPanics(t, become, "%v becomes %v", from, to)
			require.Equal(t, to, l.state)
			require.Equal(t, why, l.why)
			require.Equal(t, to >= leaseEnded, l.hasEndedLocked())
		}
	}
}
