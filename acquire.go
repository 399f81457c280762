package etcdlock

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// queue waits in line. It also tells how many were before it when it queued.
func (w request) queue(ctx context.Context, started time.Time) (h *hold, ahead int, err error) {
	m, caller := w.m, ctx
	ctx, cancel, over := m.bounded(ctx, w.try)
	defer over()

	c, p, locked, err := w.enter(caller, cancel, started)
	if err != nil {
		return nil, 0, err
	}
	if locked == nil && c.hold != nil {
		return c.hold, 0, nil
	}
	if locked != nil {
		select {
		case p = <-c.turn: // put with the release of the previous owner's key, or that very key
		case <-ctx.Done():
			// Whatever comes through turn after this is passed on by passTurnLocked.
			h, locked := c.leave()
			if h == nil {
				err = c.refused(ctx, waitFailed(ctx, m.name, locked, m.s.etcd.Unavailable(), nil))
			}
			return h, c.ahead, err
		}
		if c.hold != nil { // it has joined others
			return c.hold, c.ahead, nil
		}
	}
	h, err = c.acquire(ctx, p)
	return h, c.ahead, c.refused(ctx, err)
}

// bounded is the context of a wait of a call with ctx, and what ends it. over is to be called when
// the wait is over.
func (m *lockHandle) bounded(ctx context.Context, try bool) (
	waiting context.Context, cancel context.CancelCauseFunc, over func(),
) {
	stop := func() {}
	most, bound := m.cfg.acquireTimeout, m.cfg.acquireTimeout > 0
	if _, bounded := ctx.Deadline(); try && !bounded && (!bound || m.s.cfg.ttl < most) {
		most, bound = m.s.cfg.ttl, true
	}
	if bound {
		ctx, stop = context.WithTimeout(ctx, most)
	}
	ctx, end := context.WithCancelCause(ctx)
	done := m.s.etcd.Waits()
	return ctx, end, func() { done(); end(nil); stop() }
}

// refused is err, or what TryRLock and TryAcquire return if they were refused as they waited for
// etcd.
func (c *claim) refused(ctx context.Context, err error) error {
	if err == nil || context.Cause(ctx) != errTaken {
		return err
	}
	if locked, ok := errors.AsType[*LockedError](err); ok {
		return locked
	}
	return &LockedError{Name: c.m.name, Holder: Contender{Name: c.m.name}, Ahead: 1}
}

// enter puts a new claim into the local line. Its turn comes at once if nobody is there: then p is
// its place, nil while there is no lease for one. So it does where all that are there hold permits,
// as the claim wants to. Otherwise locked tells who is there, and TryLock gets that as its error.
// So do TryRLock and TryAcquire, unless it may be etcd alone that they wait for.
func (w request) enter(
	caller context.Context, cancel context.CancelCauseFunc, started time.Time,
) (c *claim, p *place, locked *LockedError, err error) {
	m, s := w.m, w.m.s
	clientClosed := s.clientClosed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || m.closed {
		return nil, nil, nil, failed("lock", m.name, ErrClosed)
	}
	n := s.lineLocked(m.name)
	c = w.newClaim(caller, n, started, cancel)
	taken := n.queue.Owner() != nil
	waits := n.allAlikeLocked(c) && n.admissionLocked(c.kind, false) != mustQueue
	switch {
	case taken && w.try && !waits:
		return nil, nil, nil, n.lockedErrorLocked(nil)
	case clientClosed:
		return nil, nil, nil, failed("lock", m.name, errClientClosed)
	case c.joinLocked() != nil: // it could not when join has looked
	case c.stepLocked():
		p = c.takePlaceLocked()
	case taken:
		locked = n.lockedErrorLocked(nil)
		if !c.try {
			c.ahead = locked.Ahead
			m.trace().queued(caller, m.name, c.ahead, locked.Holder)
		}
		c.enterLocked()
	case n.relockLocked(c) != nil: // it may linger since relock has looked
	default:
		n.giveWayLocked()
		c.enterLocked()
		p = c.takePlaceLocked()
	}
	return c, p, locked, nil
}

// acquire takes c, whose turn has come, to the head of etcd's line. p is its place, which may
// stand there already, or nil. On an error it passes the turn on.
func (c *claim) acquire(ctx context.Context, p *place) (*hold, error) {
	m, s := c.m, c.m.s
	var anew attempt.Backoff
	for {
		var h *hold
		var taken line.Ahead
		var err error
		if p == nil {
			p, err = s.newPlace(ctx, c)
		}
		if err == nil {
			h, taken, err = c.advance(ctx, p)
		}
		if err == nil {
			return h, nil
		}

		away := s.etcd.Unavailable()
		if p != nil && ctx.Err() != nil {
			if locked, done := c.handDown(p); done {
				return nil, waitFailed(ctx, m.name, locked, away, c.lastErr)
			}
		}
		var removed <-chan struct{}
		if p != nil {
			removed = p.leave(ctx.Err() != nil)
		}
		if s.requeues(ctx, err, taken, &anew) {
			p = nil
			continue
		}
		if removed != nil && ctx.Err() != nil {
			awaitGrace(removed)
		}
		locked := c.giveUp(p)
		switch {
		case err == errTaken:
			locked := &LockedError{Name: m.name}
			locked.behind(taken)
			return nil, locked
		case ctx.Err() != nil:
			return nil, waitFailed(ctx, m.name, locked, away, c.lastErr)
		default:
			return nil, failed("lock", m.name, err)
		}
	}
}

// requeues reports, after a pause, whether a call whose place was given up for err takes another.
// taken is whom it found in line, if it only tries.
func (s *Session) requeues(
	ctx context.Context, err error, taken line.Ahead, anew *attempt.Backoff,
) bool {
	return err == errQueueAnew && anew.Wait(ctx, s.etcd.Caller) == nil ||
		err == errTaken && s.awaitRemoval(ctx, taken, anew)
}

// advance puts the key of p, unless it stands in line, waits for those ahead of it, and makes a
// hold of it. taken is whom TryLock found in line, if the error is errTaken.
func (c *claim) advance(ctx context.Context, p *place) (
	h *hold, taken line.Ahead, err error,
) {
	if p.ticket.Rev() == 0 {
		h, taken, err = p.queue(ctx, c)
		if h != nil || err != nil {
			return h, taken, err
		}
	}
	if err := p.readOn(ctx, c); err != nil {
		return nil, taken, err
	}
	c.tellQueued(p)
	for {
		if err := p.wait(ctx, c); err != nil {
			if err == errTaken {
				taken, _ = p.rivals()
			}
			return nil, taken, err
		}
		h, err = p.begin(c)
		if err != errSetBack { // who was ahead of p then says nothing now: wait reads the line
			return h, taken, err
		}
	}
}

// queue puts the key, unless it is there already, and reads who is ahead of it. It may be
// called again after an error.
//
// A nil error says that p stands in line: with p.ahead before it or, if nobody is and etcd was
// not set back meanwhile, with a hold at it. errTaken comes if c only tries, with those before it,
// if others stand in line, and then nothing was written. (Where it cannot find that out before, p
// is put behind them, and wait returns errTaken.) errQueueAnew says that p cannot be used. After
// any other error the key may be there or not.
func (p *place) queue(ctx context.Context, c *claim) (
	h *hold, taken line.Ahead, err error,
) {
	entering := p.ticket.Enter(c.try, p.m.cfg.trace.tellsQueued())
	if crowded, last := p.expectsCrowd(); crowded {
		entering.Crowd(last)
	}
	err = p.put(ctx, c, func() ticket.Txn { return entering.Txn(p.value()) }, func(done etcd.Outcome) (err error) {
		h, taken, err = p.entered(c, &entering, done)
		return err
	})
	return h, taken, err
}

// put sends the transaction that puts p's key, perhaps with others on its lease, until entered says
// what became of it: until that is not errUnsure, or no attempt may follow.
func (p *place) put(
	ctx context.Context, c *claim, txn func() ticket.Txn, entered func(etcd.Outcome) error,
) error {
	retry := attempt.Backoff{Puts: true}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		done := p.s.etcd.Commit(ctx, &retry, txn())
		if err := entered(done); err != errUnsure {
			return err
		}
		if done.Err != nil {
			if err := p.retryPut(ctx, c, done.Err, &retry); err != nil {
				return err
			}
		}
	}
}

// entered has p's ticket judge the answer to its put. It returns what queue returns, or errUnsure
// if the put must be sent again.
func (p *place) entered(c *claim, entering *ticket.Entering, done etcd.Outcome) (
	h *hold, taken line.Ahead, err error,
) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	a := done.Answer()
	entrance, ahead := entering.Judge(a)
	p.lease.putLocked(a, done.Prompt)
	if p.ticket.State() == ticket.InLine {
		p.queuedLocked(ahead, done.Epoch)
	}
	if entrance != ticket.Unsure {
		c.lastErr = nil
	}
	switch entrance {
	case ticket.Unsure:
		return nil, taken, errUnsure
	case ticket.Taken:
		c.m.meetLocked(ahead)
		return nil, ahead, errTaken
	case ticket.Useless:
		return nil, taken, errQueueAnew
	}
	if !ahead.Clear() || p.staleLocked() {
		return nil, taken, nil
	}
	h, err = p.beginLocked(c)
	return h, taken, err
}

// retryPut decides what follows an error of put: it returns nil after a pause if the
// put must be repeated.
func (p *place) retryPut(ctx context.Context, c *claim, err error, retry *attempt.Backoff) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case attempt.Is(err, rpctypes.ErrLeaseNotFound):
		p.s.mu.Lock()
		p.lease.endLocked(because(ErrLeaseRevoked, err))
		p.s.mu.Unlock()
		return errQueueAnew
	case attempt.Refused(err):
		return err
	case p.s.clientClosed():
		return errClientClosed
	}
	c.lastErr = err
	if err := retry.Wait(ctx, p.s.etcd.Caller); err != nil {
		return err
	}
	if p.lease.isDead() {
		return errQueueAnew
	}
	return nil
}

// tellQueued tells the Trace who is ahead of p in etcd's line, if nobody was ahead of c before. A
// call that only tries does not queue.
func (c *claim) tellQueued(p *place) {
	ahead, _ := p.rivals()
	if ahead.Count() == 0 || c.ahead > 0 || c.try {
		return
	}
	c.ahead = ahead.Count()
	if c.m.cfg.trace.tellsQueued() { // it takes parsing
		c.m.trace().queued(c.caller, c.m.name, c.ahead, holderOf(c.m.name, ahead))
	}
}

// awaitGrace waits a little for the removal of keys. The removal is usually over at once, and
// its answer brings the line up to date.
func awaitGrace(removed ...<-chan struct{}) {
	grace := time.NewTimer(removalGrace)
	defer grace.Stop()
	for _, r := range removed {
		select {
		case <-r:
		case <-grace.C:
			return
		}
	}
}

// awaitRemoval waits until the key of the first that is in the way is gone, if that is the
// Session's own, of a hold or wait that has ended: it is etcd that TryLock waits for then, and
// no other contender. It reports whether that is done.
//
// A key that no place accounts for has gone since it was read, or a late request has put it and an
// audit is about to remove it. (Do not refuse the call for it.
// TestATryIsNotRefusedForAKeyOfItsOwnSessionThatHasGone.)
func (s *Session) awaitRemoval(ctx context.Context, taken line.Ahead, anew *attempt.Backoff) bool {
	e := taken.Holder()
	if len(taken.Last) > 0 {
		e = taken.Last[0]
	}
	var removed <-chan struct{}
	gone := false
	s.mu.Lock()
	for l := range s.leases {
		if e.Lease != int64(l.id) {
			continue
		}
		if p := l.places[e.Key]; p == nil || p.ticket.Rev() != e.Rev {
			gone = l.hasDrawn(e.Key)
		} else if !p.stuck {
			removed = p.removed // nil while it is in use
		}
	}
	s.mu.Unlock()
	switch {
	case gone:
		return anew.Wait(ctx, s.etcd.Caller) == nil
	case removed == nil:
		return false
	}
	select {
	case <-removed:
		return true
	case <-ctx.Done():
		return false
	}
}

// giveUp passes on the turn of c, which did not get a hold at its last place p, and
// returns who was ahead of it, nil if nobody was.
func (c *claim) giveUp(p *place) *LockedError {
	c.m.s.mu.Lock()
	defer c.m.s.mu.Unlock()
	return c.giveUpLocked(p)
}

func (c *claim) giveUpLocked(p *place) *LockedError {
	n := c.local
	if p != nil && p.ticket.Rev() != 0 {
		n.ahead = p.ahead
	}
	c.place = nil
	locked := n.aheadLocked()
	c.leaveTurnLocked(nil)
	return locked
}
