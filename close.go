package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// closeGrace is how long Close takes if its context ended before the call.
const closeGrace = 50 * time.Millisecond

// Close ends the hold, if there is one, with everything that nests in it, and releases its key,
// also a lingering one. The hold's context ends with the cause [ErrClosed], and waiting calls of
// Lock return ErrClosed.
//
// From then on Lock and TryLock return ErrClosed and Unlock returns [ErrNotHeld]. A Mutex from
// [New] gives its lease back and has no goroutine left; a Session's Mutex leaves the Session as it
// is.
//
// It returns nil if its hold left nothing behind, and when the Mutex was closed before. (Keys of
// waits that it ended are removed in the background.) [ErrUnconfirmed] says that etcd did not
// confirm in time: what is left goes within the TTL. The bound is the end of ctx, or that of an
// Unlock if ctx never ends, or 50 ms if ctx ended before the call. If another call is closing the
// Mutex or its Session, Close waits for that and returns its result. After a nil ctx nothing has
// happened.
func (m *Mutex) Close(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := checkContext(ctx, "close", m.name); err != nil {
		return err
	}
	s := m.s
	if m.own {
		return s.close(ctx)
	}
	ctx, cancel := releaseContext(ctx, s, m.covers, closeGrace)
	defer cancel()

	s.mu.Lock()
	underWay := m.closing
	switch {
	case s.closing > 0: // which frees all that m may have held
		m.closed = true
		return s.closesLocked(ctx)
	case underWay != nil:
		s.mu.Unlock()
		select {
		case <-underWay:
			return m.closingErr
		case <-ctx.Done():
			return failed("unlock", m.name, ErrUnconfirmed, context.Cause(ctx))
		}
	case m.closed:
		s.mu.Unlock()
		return nil
	}
	m.beginCloseLocked()
	given := m.giveLocked()
	s.mu.Unlock()

	err := m.free(ctx, given)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.closingErr = err
	close(m.closing)
	m.closing = nil
	return err
}

// beginCloseLocked begins to close m: no wait and no hold of m begins any more.
func (m *Mutex) beginCloseLocked() {
	m.closed = true
	m.closing = make(chan struct{})
	if m.closedNotice != nil {
		close(m.closedNotice)
	}
}

// giveLocked gives up the key of m that lingers, and returns its place, nil if there is none.
func (m *Mutex) giveLocked() (given *place) {
	if n := m.s.lines[m.name]; n != nil {
		if kept := n.queue.Lingering(); kept != nil && kept.hold.m == &m.lockHandle {
			given = kept
			n.GiveWayLocked()
		}
	}
	return given
}

// free frees the name for Close: it ends the waits of m, and its holds, and releases their keys.
// given is the place of a key that lingered, which was given up, nil if there is none.
//
// Invariant: each of the holds is freed, whatever becomes of the rest: no other call can
// give up its turn. (TestACloseThatIsNotConfirmedGivesUpEachPermit.)
func (m *Mutex) free(ctx context.Context, given *place) error {
	mu := &m.s.mu
	guard.Pieces(mu, m.waits.Firsts(), func(c *claim) { c.cancelLocked(errWaitClosed) })
	var holds []*hold
	ends := func(h *hold) {
		h.ofHandle.Remove()
		delete(m.nests, h)
		if h.depth == 0 {
			return // it is closed by another call
		}
		if endedBefore := h.closeLocked(); !endedBefore {
			h.place.Account.ReleaseLocked() // as in unlock
		}
		holds = append(holds, h)
	}
	mu.Lock()
	if held := m.hold.Swap(nil); held != nil { // lost, perhaps
		m.depth = 0
		ends(held)
	}
	mu.Unlock()
	guard.Pieces(mu, m.holds.Firsts(), ends)
	guard.Pieces(mu, maps.Keys(m.nests), ends)

	var failure error
	for _, h := range holds {
		given = h.place
		if r := h.free(false); r != nil {
			if err := r.send(ctx); errors.Is(err, ErrUnconfirmed) {
				failure = err
			}
		}
	}
	if failure != nil {
		return failure
	}
	if given == nil {
		return nil
	}
	if err := given.AwaitRemoved(ctx); err != nil {
		return failed("unlock", m.name, ErrUnconfirmed, err)
	}
	return nil
}

// close is Session.Close.
func (s *session) close(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	if ctx == nil {
		return errors.New("etcdlock: close: nil context")
	}
	ctx, cancel := releaseContext(ctx, s, func(h *hold) bool { return h.m.s == s }, closeGrace)
	defer cancel()
	if ctx.Done() == nil {
		ttl := s.leases.LongestTTL()
		twice := ttl + min(ttl, math.MaxInt64-ttl) // which may be more than a Duration can say
		over := &attempt.BoundError{Of: "a Close without a deadline", Most: twice}
		ctx, cancel = context.WithTimeoutCause(ctx, twice, over)
		defer cancel()
	}

	s.mu.Lock()
	switch {
	case s.closing > 0:
	case s.leases.ClosedLocked():
		s.mu.Unlock()
		return nil
	default:
		s.closeLocked()
	}
	return s.closesLocked(ctx)
}

// closeLocked begins to close s: no hold begins any more. The keepers revoke the leases, and before
// that end the contexts of all holds. The rest takes time where there is much, and Close waits for
// it.
func (s *session) closeLocked() {
	s.leases.CloseLocked()
	s.tasks.Go(s.endAll)
}

// endAll ends all waits, views, lingering keys, and holds.
func (s *session) endAll() {
	guard.Pieces(&s.mu, s.waits.Firsts(), func(c *claim) { c.cancelLocked(errWaitClosed) })
	guard.Pieces(&s.mu, maps.Keys(s.stays), (*stay).closeLocked)
	guard.Pieces(&s.mu, s.inOrder.Firsts(), func(n *localLine) {
		n.swept.Remove()
		n.GiveWayLocked()
		if n.due != nil {
			n.due.Stop()
		}
		n.EndLocked()
	})
	guard.Pieces(&s.mu, s.keys.Owners(), func(o queue.Owner) {
		o.EndsLocked()
	})
}

// closesLocked unlocks mu and waits until the Session is closed. The work goes on until the
// last call that waits for it has no time left.
func (s *session) closesLocked(ctx context.Context) error {
	s.closing++
	s.mu.Unlock()
	quiet := s.tasks.Idle()

	var over error
	select {
	case <-quiet:
	case <-ctx.Done():
		if !s.isLastClosing() {
			return closeUnconfirmed(context.Cause(ctx))
		}
		s.cancel() // makes every goroutine return
		<-quiet
		over = context.Cause(ctx)
	}
	s.cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing--
	if err := cmp.Or(s.keys.LeftoverLocked(), s.leftoverErr); err != nil {
		if over != nil && errors.Is(err, context.Canceled) { // by s.cancel
			err = over
		}
		return closeUnconfirmed(err)
	}
	return nil
}

// isLastClosing reports whether no other call waits until the Session is closed. Otherwise the
// caller stops waiting here too.
func (s *session) isLastClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == 1 {
		return true
	}
	s.closing--
	return false
}
