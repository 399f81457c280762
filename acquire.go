package etcdlock

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// queue waits in line. It also tells how many were before it when it queued.
func (m *Mutex) queue(ctx context.Context, started time.Time, try bool) (h *hold, ahead int, err error) {
	if _, bounded := ctx.Deadline(); try && !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.s.cfg.ttl)
		defer cancel()
	}
	if m.cfg.acquireTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.cfg.acquireTimeout)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer m.s.calls.Waits()()

	c, locked, err := m.enter(cancel, started, try)
	if err != nil {
		return nil, 0, err
	}
	if c.hold != nil {
		return c.hold, 0, nil
	}
	var put *place // by the one before, who released it in the same transaction, or held at it
	if locked != nil {
		m.traceQueued(locked.Ahead, locked.Holder)
		c.ahead = locked.Ahead
		select {
		case put = <-c.turn:
		case <-ctx.Done():
			// Whatever comes through turn after this is passed on by passLocked.
			return nil, c.ahead, waitFailed(ctx, m.name, m.s.leave(c), m.s.calls.Unavailable(), nil)
		}
	}
	h, err = c.acquire(ctx, put, try)
	return h, c.ahead, err
}

// enter puts a new claim into the local line. Its turn comes at once if nobody is
// there. Otherwise locked tells who is, and TryLock gets that as its error.
func (m *Mutex) enter(cancel context.CancelCauseFunc, started time.Time, try bool) (c *claim, locked *LockedError, err error) {
	s := m.s
	clientClosed := s.clientClosed()
	s.mu.Lock()
	defer s.unlock()
	if s.closed || m.closed {
		return nil, nil, failed("lock", m.name, ErrClosed)
	}
	l := s.lineLocked(m.name)
	c = m.newClaim(l, started, cancel)
	taken := l.queue.Owner() != nil
	if taken && try {
		return nil, nil, l.lockedLocked(nil)
	}
	if clientClosed {
		return nil, nil, failed("lock", m.name, errClientClosed)
	}
	if !taken {
		if c.relockLocked() == nil { // it may linger since relock has looked
			l.giveWayLocked()
			l.queue.Enter(&c.waiter)
		}
		return c, nil, nil
	}
	locked = l.lockedLocked(nil)
	c.turn = make(chan *place, 1)
	l.queue.Enter(&c.waiter)
	return c, locked, nil
}

// acquire takes c, whose turn has come, to the head of etcd's line. put is a place
// that stands there for it already, or nil. On an error it passes the turn on.
func (c *claim) acquire(ctx context.Context, put *place, try bool) (*hold, error) {
	m, s := c.m, c.m.s
	p := put
	var anew attempt.Backoff
	for {
		var err error
		var taken []line.Entry
		queued := p != nil
		if !queued {
			p, err = s.newPlace(ctx, c)
		}
		s.setPlace(c, p)
		switch {
		case err != nil || queued:
		default:
			taken, err = p.queue(ctx, c, try)
		}
		if ahead, _ := p.rivals(); err == nil && len(ahead) > 0 && c.ahead == 0 {
			c.ahead = len(ahead)
			if m.cfg.trace != nil { // it takes parsing
				m.traceQueued(len(ahead), contenderOf(m.name, ahead[0]))
			}
		}
		for err == nil {
			if err = p.wait(ctx, c); err != nil {
				break
			}
			var h *hold
			if h, err = s.begin(c, p); err == nil {
				return h, nil
			}
			if err == errSetBack {
				err = nil // who was before p then tells nothing now
			}
		}

		away := s.calls.Unavailable()
		var removed <-chan struct{}
		if p != nil {
			removed = p.abandon(false)
		}
		if err == errQueueAnew && anew.Wait(ctx, s.calls) == nil || err == errTaken && s.awaitRemoval(ctx, taken[0]) {
			p = nil
			continue
		}
		if removed != nil && ctx.Err() != nil {
			// Usually at once, and the answer brings the line up to date.
			grace := time.NewTimer(removalGrace)
			defer grace.Stop()
			select {
			case <-removed:
			case <-grace.C:
			}
		}
		locked := c.giveUp(p)
		switch {
		case err == errTaken:
			return nil, &LockedError{Name: m.name, Holder: contenderOf(m.name, taken[0]), Ahead: len(taken)}
		case ctx.Err() != nil:
			return nil, waitFailed(ctx, m.name, locked, away, c.lastErr)
		default:
			return nil, failed("lock", m.name, err)
		}
	}
}

// awaitRemoval waits until the key of e is gone, if that is the Session's own, of a hold or
// wait that has ended: it is etcd that TryLock waits for then, and nobody else. It reports
// whether that is done.
func (s *Session) awaitRemoval(ctx context.Context, e line.Entry) bool {
	var removed <-chan struct{}
	s.mu.Lock()
	for l := range s.leases {
		if p := l.places[e.Key]; p != nil && p.ticket.Rev() == e.Rev && !p.stuck {
			removed = p.removed // nil while it is in use
		}
	}
	s.unlock()
	if removed == nil {
		return false
	}
	select {
	case <-removed:
		return true
	case <-ctx.Done():
		return false
	}
}

// giveUp passes on the turn of c, which did not come to hold at its last place p, and
// tells who was before it, nil if nobody was.
func (c *claim) giveUp(p *place) *LockedError {
	s, l := c.m.s, c.local
	s.mu.Lock()
	defer s.unlock()
	if p != nil && p.ticket.Rev() != 0 {
		l.ahead = p.ahead
	}
	c.place = nil
	locked := l.aheadLocked()
	s.passLocked(l, nil)
	return locked
}

func (s *Session) setPlace(c *claim, p *place) {
	s.mu.Lock()
	defer s.unlock()
	c.place = p
}
