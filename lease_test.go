package etcdlock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/fake"
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

// The Session has heard of a term, and no later linearizable answer knows it. Then it was
// the term of a leader that nobody elected, or of one before a restore.
func TestATermThatEtcdDoesNotKnowAnyMoreIsForgotten(t *testing.T) {
	s, err := NewSession(fake.NewServer().Client("a"))
	require.NoError(t, err)
	term := func(term uint64) header { return &pb.ResponseHeader{RaftTerm: term} }
	epoch := s.epoch.Load()
	before := s.sending()
	s.heard(term(3), epoch, 0)
	s.heardNow(term(2), before)
	require.EqualValues(t, 3, epoch.term.Load(), "asked before")
	s.heard(term(2), epoch, 0)
	require.EqualValues(t, 3, epoch.term.Load(), "a member that is behind")
	s.heardNow(term(2), s.sending())
	require.EqualValues(t, 2, epoch.term.Load())
	s.heardNow(term(4), s.sending())
	require.EqualValues(t, 4, epoch.term.Load())
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
			l, why := &lease{state: from}, errors.New("a reason")
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
