package hold

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// Acquire is one call that locks m, whatever kind of hold it asks for. It returns the hold, and the
// context of the call: ctx, or what the Trace has made of it.
func (m *Lock) Acquire(ctx context.Context, w Request) (*Hold, context.Context, error) {
	if ctx == nil {
		return nil, nil, errs.Failed("lock", m.name, errs.NilContext)
	}
	if ctx.Err() != nil {
		return nil, nil, m.refuseEnded(ctx)
	}
	nested, after := m.nestsIn(ctx)
	if nested != nil && !w.mayFollow(nested) {
		h, err := m.nest(nested, w)
		return h, ctx, err
	}
	return newCall(m, w, after).lock(ctx)
}

// refuseEnded returns the error of a call whose ctx had ended before. What is closed says so, and
// so does the loss of the hold in which the call would nest.
func (m *Lock) refuseEnded(ctx context.Context) error {
	h := m.NestsIn(ctx)
	m.s.mu.Lock()
	closed := m.closed || m.s.leases.ClosedLocked()
	var loss error
	if h != nil && m.cfg.Reentrant {
		h.checkLocked(time.Now())
		loss = h.lossLocked()
	}
	m.s.mu.Unlock()
	switch {
	case closed:
		return errs.Failed("lock", m.name, errs.Closed)
	case loss != nil:
		return errs.Failed("lock", m.name, ctx.Err(), loss)
	}
	return errs.WaitFailed(ctx, m.name, nil, nil, nil)
}

// mayFollow reports whether a call whose context comes from h queues, as any other does. A call for
// permits may, though its caller has some.
func (w Request) mayFollow(h *Hold) bool {
	return w.Kind == line.Permit && h.claim.Kind == line.Permit
}

// NestsIn returns the hold of m's name and Session that ctx comes from, if it has
// not been unlocked.
func (m *Lock) NestsIn(ctx context.Context) *Hold {
	h, _ := m.nestsIn(ctx)
	return h
}

// nestsIn is NestsIn, and the token of the hold within which a call with ctx is.
func (m *Lock) nestsIn(ctx context.Context) (nested *Hold, after int64) {
	for c := holdContextOf(ctx); c != nil; c = c.outer() {
		if after == 0 {
			after = m.within(c.hold)
		}
		h := m.coveredBy(c.hold)
		if h == nil {
			continue
		}
		m.s.mu.Lock()
		current := h.depth > 0 && !m.s.leases.ClosedLocked()
		m.s.mu.Unlock()
		if current {
			return h, after
		}
	}
	return nil, after
}

// within is the token of h, from which the context of a call for m comes, or 0 if the call's key
// does not tell: h is of another Session or is over, or one of the keys may go to another call of
// the Session. That call is not within h.
func (m *Lock) within(h *Hold) int64 {
	shares := func(cfg *Config) bool { return cfg.Handoff > 0 || cfg.Linger > 0 }
	if h.m.s != m.s || h.claim.reads() || shares(h.m.cfg) || shares(m.cfg) ||
		h.life.Cause(time.Now()) != nil {
		return 0
	}
	return h.place.Ticket.Rev()
}

// nest makes a Lock whose context comes from h a part of h. It holds as h does, or not at all: a
// write inside a read would wait for that read, and a read inside a write would give up the place.
func (m *Lock) nest(h *Hold, w Request) (*Hold, error) {
	if !m.cfg.Reentrant || w.Kind != h.claim.Kind {
		return nil, errs.Failed("lock", m.name, errs.Deadlock)
	}
	if m.cfg.MustNotNest {
		return nil, errs.Failed("lock", m.name, errs.NestsNot)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	now := time.Now()
	h.checkLocked(now)
	switch cause := h.life.Cause(now); {
	case m.closed || m.s.leases.ClosedLocked():
		return nil, errs.Failed("lock", m.name, errs.Closed)
	case cause != nil:
		reason := h.lossLocked()
		if reason == nil {
			reason = cause // it was unlocked, or closed, in between
		}
		return nil, errs.Failed("lock", m.name, reason)
	}
	if m != h.m {
		m.countNestsLocked(h, 1)
	} else {
		h.depth++
		m.holds.Add(&h.ofHandle, h)
	}
	if w.Kind == line.Exclusive {
		m.hold.Store(h)
	}
	return h, nil
}

// Unlock releases m's hold; if only is not nil, then only that very hold.
func (m *Lock) Unlock(ctx context.Context, only *Hold) error {
	s := m.s
	ctx, cancel := releaseContext(ctx, s, m.covers, releaseBound)
	defer cancel()

	s.mu.Lock()
	h := m.hold.Load()
	if h != nil {
		h.checkLocked(time.Now())
	}
	if h == nil || h.depth == 0 || only != nil && h != only {
		s.mu.Unlock()
		return errs.Failed("unlock", m.name, errs.NotHeld)
	}
	if m != h.m {
		m.countNestsLocked(h, -1)
	} else if h.depth--; h.depth == h.nested {
		h.ofHandle.Remove() // Close of m leaves alone what only others have
		m.hold.Store(nil)
	}
	r, err := h.unlockLocked()
	s.mu.Unlock()
	return r.send(ctx, err)
}

// covers reports whether h is a hold of m's name in m's Session, or has begun with one.
func (m *Lock) covers(h *Hold) bool { return m.coveredBy(h) != nil }

// coveredBy is the hold of m's name in m's Session, of the holds that have begun together with h;
// nil if there is none.
func (m *Lock) coveredBy(h *Hold) *Hold {
	for _, o := range h.all() {
		if o.m.s == m.s && o.m.name == m.name {
			return o
		}
	}
	return nil
}

// countNestsLocked counts n more Locks of m that nest in h, a hold of another Lock.
func (m *Lock) countNestsLocked(h *Hold, n int) {
	h.depth += int32(n)
	h.nested += int32(n)
	if m.nests == nil {
		m.nests = make(map[*Hold]int)
	}
	if m.nests[h] += n; m.nests[h] == 0 {
		delete(m.nests, h)
		m.hold.CompareAndSwap(h, nil)
	}
	if h.claim.Kind == line.Exclusive { // what a Mutex has nested in before was closed
		maps.DeleteFunc(m.nests, func(o *Hold, _ int) bool { return o.depth == 0 })
	}
}

// SetInfo sets the info of the key of m's current hold.
func (m *Lock) SetInfo(ctx context.Context, info string) error {
	h := m.hold.Load()
	if h == nil {
		return setInfo(ctx, m.name, info, nil)
	}
	return setInfo(ctx, m.name, info, h.self[:])
}

// Close ends what m holds, and its waits, and removes its keys. It returns nil if its holds left
// nothing behind. The first call does that itself, in its own time. The calls beside it wait for
// its result, and no work goes on for them: none joins a guard.Closing.
func (m *Lock) Close(ctx context.Context) error {
	s := m.s
	ctx, stop := releaseContext(ctx, s, m.covers, CloseGrace)
	defer stop()
	ctx, cancel := sendContext(ctx, s)
	defer cancel()

	s.mu.Lock()
	end := m.endsLocked()
	underWay := end.closing
	switch {
	case s.closing.UnderWayLocked(): // which frees all that m may have held
		m.closed = true
		s.closing.JoinLocked()
		s.mu.Unlock()
		return s.awaitClosed(ctx)
	case underWay != nil:
		s.mu.Unlock()
		select {
		case <-underWay:
			return end.err
		case <-ctx.Done():
			return errs.Failed("unlock", m.name, errs.Unconfirmed, attempt.Cause(ctx))
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
	end.err = err
	close(end.closing)
	end.closing = nil
	guard.Rethrow(err)
	return err
}

// beginCloseLocked begins to close m: no wait and no hold of m begins any more.
func (m *Lock) beginCloseLocked() {
	m.closed = true
	end := m.endsLocked()
	end.closing = make(chan struct{})
	if end.notice != nil {
		close(end.notice)
	}
}

// giveLocked gives up the key of m that lingers. It returns the place of the last one that has
// lingered, nil if that is not being removed any more, or there was none.
func (m *Lock) giveLocked() *place {
	if n := m.s.lines[m.name]; n != nil {
		if kept := n.kept; kept != nil && kept.hold.m == m {
			n.GiveWayLocked()
		}
	}
	if m.given == nil || m.given.Ticket.State() != ticket.Leaving {
		return nil
	}
	return m.given
}

// Rest pauses for d, or until ctx ends or m is closed.
func (m *Lock) Rest(ctx context.Context, d time.Duration) {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-ctx.Done():
	case <-m.closes():
	case <-m.s.ctx.Done():
	case <-pause.C:
	}
}

// closes is closed when m is, unless the Session is closed with it.
func (m *Lock) closes() <-chan struct{} {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	end := m.endsLocked()
	if end.notice == nil {
		end.notice = make(chan struct{})
		if m.closed {
			close(end.notice)
		}
	}
	return end.notice
}

// free frees the name for Close: it ends the waits of m, and its holds, and releases their keys.
// given is as giveLocked returns it.
//
// Invariant: each of the holds is freed, whatever becomes of the rest: no other call can
// give up its turn. (TestACloseThatIsNotConfirmedGivesUpEachPermit.)
func (m *Lock) free(ctx context.Context, given *place) error {
	guard.Pieces(&m.s.mu, m.waits.Firsts(), func(c *claim) { c.cancelLocked(errs.WaitClosed) })
	var failure error
	var left []*place // whose keys are being removed, perhaps
	if given != nil {
		left = append(left, given)
	}
	for _, h := range m.endHolds() {
		for _, o := range h.all() {
			left = append(left, o.place)
		}
		r, loss := h.free(false)
		_, err := guard.Apart(func() (none struct{}, err error) { return none, r.send(ctx, loss) })
		switch {
		case guard.FallIn(err) != nil: // it goes on once all are freed
			failure = errs.Failed("unlock", m.name, errs.Unconfirmed, err)
		case errors.Is(err, errs.Unconfirmed):
			failure = err
		}
	}
	if failure != nil {
		return failure
	}
	for _, p := range left {
		if err := p.AwaitRemoved(ctx); err != nil {
			return errs.Failed("unlock", m.name, errs.Unconfirmed, err)
		}
	}
	return nil
}

// endHolds ends the holds of m, and returns the ones to free.
func (m *Lock) endHolds() (holds []*Hold) {
	ends := func(h *Hold) {
		m.hold.CompareAndSwap(h, nil)
		delete(m.nests, h)
		if h.depth == 0 {
			return // it is closed by another call
		}
		whole := h.closeLocked()
		if whole {
			h.place.Account.ReleaseLocked() // as in unlock
		}
		holds = append(holds, h)
	}
	guard.Pieces(&m.s.mu, m.holds.Firsts(), ends)
	guard.Pieces(&m.s.mu, maps.Keys(m.nests), ends)
	return holds
}

// ReportLed reports that a term of a leader is over, and that it failed.
func (m *Lock) ReportLed(ctx context.Context, e Led, failed bool) {
	report(&m.s.hooks, m.cfg.Hooks.Led, ctx, e)
	if failed {
		m.log(slog.LevelWarn, "a leader's function failed", "name", m.name, "token", e.Token,
			"held", e.Held, "error", e.Err)
	}
}
