package etcdlock

import (
	"context"
	"errors"
)

// Close ends the hold, if there is one, with everything that nests in it (its context ends with
// the cause [ErrClosed]), and releases its key, also a lingering one. Waiting calls of
// Lock return [ErrClosed]. From then on Lock and TryLock return ErrClosed and Unlock returns
// ErrNotHeld. A Mutex from [New] gives its lease back and has no goroutine left; a
// Session's Mutex leaves the Session as it is.
//
// It returns nil if its hold left nothing behind, and when the Mutex was closed before. If
// another call is closing it or its Session, Close waits for that call within ctx and returns
// its result. (Keys of waits that it ended are removed in the background.) An error that is
// [ErrUnconfirmed] says that etcd did not confirm before ctx ended; what is left goes
// within the TTL. If ctx ended before the call, Close takes 50 ms at most. After a nil
// ctx nothing has happened.
func (m *Mutex) Close(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := checkContext(ctx, "close", m.name); err != nil {
		return err
	}
	s := m.s
	if m.own {
		return s.Close(ctx)
	}
	ctx, cancel := s.outlive(ctx, m.covers, closeGrace)
	defer cancel()

	s.mu.Lock()
	underWay := m.closing
	switch {
	case s.closing > 0: // which frees all that m may have held
		m.closed = true
		return s.closesLocked(ctx)
	case underWay != nil:
		s.unlock()
		select {
		case <-underWay.done:
			return underWay.err
		case <-ctx.Done():
			return unconfirmed(m.name, context.Cause(ctx))
		}
	case m.closed:
		s.unlock()
		return nil
	}
	holds, given := m.closeLocked()
	s.unlock()

	err := m.free(ctx, holds, given)
	s.mu.Lock()
	defer s.unlock()
	m.closing.err = err
	close(m.closing.done)
	m.closing = nil
	return err
}

// closeLocked begins to close m. It ends the waits of m, and its hold, or its reads; given is the
// place of a key that lingered, which it gives up, nil if there is none.
func (m *Mutex) closeLocked() (holds []closedHold, given *place) {
	m.closed = true
	m.closing = &closing{done: make(chan struct{})}
	if m.over != nil {
		close(m.over)
	}
	held := m.hold
	m.hold, m.depth = nil, 0
	if held != nil && held.depth > 0 { // else it nested in a hold that was closed
		holds = append(holds, closedHold{hold: held})
	}
	if l := m.s.lines[m.name]; l != nil {
		l.cancelLocked(m)
		if kept := l.queue.Kept(); kept != nil && kept.hold.m == m {
			given = kept
			l.giveWayLocked()
		}
		for c := range l.queue.Having() {
			if h := c.hold; !c.exclusive() && h != nil && h.depth > 0 && (h.m == m || h.nests[m] > 0) {
				holds = append(holds, closedHold{hold: h})
			}
		}
	}
	for i := range holds {
		h := &holds[i]
		if h.before = h.closeLocked(); !h.before {
			h.place.lease.releases++ // as in unlock
		}
	}
	return holds, given
}

// A closedHold is one that was closed. It may have ended before.
type closedHold struct {
	*hold
	before bool
}

// A closing is a call of Mutex.Close that is under way. Others wait for it.
type closing struct {
	done chan struct{}
	err  error // written before done is closed
}

// free frees the name for Close: of the holds that it has ended, or of a key that lingered, which
// was given up.
//
// Invariant: each of the holds is cleared or freed, whatever becomes of the others: nobody else can
// give up its turn. (TestACloseThatIsNotConfirmedGivesUpEachRead.)
func (m *Mutex) free(ctx context.Context, holds []closedHold, given *place) error {
	var unconfirmed error
	for _, h := range holds {
		given = h.place
		if h.before {
			h.endContexts()
			h.clear()
		} else if r := h.hold.free(false); r != nil {
			if err := r.send(ctx); errors.Is(err, ErrUnconfirmed) {
				unconfirmed = err
			}
		}
	}
	if unconfirmed != nil {
		return unconfirmed
	}
	return given.awaitRemoved(ctx)
}

// awaitRemoved waits until p's key is removed, if it was given up. A nil p has none.
func (p *place) awaitRemoved(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.s.mu.Lock()
	removed := p.removed
	p.s.unlock()
	if removed == nil { // it was released
		return nil
	}
	select {
	case <-removed:
	case <-ctx.Done():
		return unconfirmed(p.m.name, context.Cause(ctx))
	}
	p.s.mu.Lock()
	defer p.s.unlock()
	if p.stuck {
		return unconfirmed(p.m.name, p.lease.left)
	}
	return nil
}
