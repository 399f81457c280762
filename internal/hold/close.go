package hold

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
)

// CloseGrace is how long Close takes if its context ended before the call.
const CloseGrace = 50 * time.Millisecond

// Close ends all waits and holds of s, and revokes its lease.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := releaseContext(ctx, s, func(h *Hold) bool { return h.m.s == s }, CloseGrace)
	defer cancel()
	if ctx.Done() == nil {
		ttl := s.leases.LongestTTL()
		twice := ttl + min(ttl, math.MaxInt64-ttl) // which may be more than a Duration can say
		ctx, cancel = within(ctx, twice, "a Close without a deadline")
		defer cancel()
	}

	s.mu.Lock()
	switch {
	case s.closing.UnderWayLocked():
	case s.leases.ClosedLocked():
		s.mu.Unlock()
		return nil
	default:
		s.closeLocked()
	}
	s.closing.JoinLocked()
	s.mu.Unlock()
	return s.awaitClosed(ctx)
}

// closeLocked begins to close s: no hold begins any more. The keepers revoke the leases, and before
// that end the contexts of all holds. The rest takes time where there is much, and Close waits for
// it.
func (s *Session) closeLocked() {
	s.leases.CloseLocked()
	s.waits.stopLocked()
	s.tasks.Go(s.endAll)
}

// endAll ends all waits, views, lingering keys, and holds.
func (s *Session) endAll() {
	guard.Pieces(&s.mu, s.waits.firsts(), func(c *claim) { c.cancelLocked(errs.WaitClosed) })
	guard.Pieces(&s.mu, maps.Keys(s.stays), (*stay).closeLocked)
	guard.Pieces(&s.mu, s.inOrder.taken, func(n *localLine) {
		n.GiveWayLocked()
		if n.lingering != nil {
			n.lingering.due.Stop()
		}
		n.EndLocked()
	})
	s.keys.EndOwners()
}

// awaitClosed waits until the Session is closed, in a call that has joined s.closing. The work goes
// on until the last call that waits for it has no time left.
func (s *Session) awaitClosed(ctx context.Context) error {
	quiet := s.tasks.Idle()

	var over error
	switch done, last := s.closing.Await(ctx, &s.mu, quiet); {
	case last:
		s.cancel() // makes every goroutine return
		s.leases.WakeKeepers()
		<-quiet
		over = attempt.Cause(ctx)
	case !done:
		return errs.CloseUnconfirmed(attempt.Cause(ctx))
	}
	s.cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.LeaveLocked()
	if err := cmp.Or(s.keys.LeftoverLocked(), s.leftoverErr); err != nil {
		if over != nil && errors.Is(err, context.Canceled) { // by s.cancel
			err = over
		}
		return errs.CloseUnconfirmed(err)
	}
	return nil
}
