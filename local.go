package etcdlock

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// A localLine is what a Session has of one name: the queue of its goroutines, of which only the
// owner has a place in etcd's line, and what it knows about that line. Session.mu guards it.
type localLine struct {
	name  string
	queue turn.Queue[*claim, *place]
	ahead line.Ahead                   // before the last place, if it was given up without a hold
	slots map[line.Shape]*ticket.Slots // names of keys
	view  *view                        // nil while nobody needs one
	due   *time.Timer                  // calls lingered; nil before a key lingers
	tries int                          // claims in the queue that wait for no other contender

	// What the next place in etcd's line may expect there.
	crowded bool          // the line was long when the last one was put
	waited  time.Duration // for how long the last one that came to hold has stood in it
	last    *predecessor  // of that one, while it is watched yet
}

// A claim is one call of Lock or TryLock, of RLock or TryRLock, or of Acquire or TryAcquire.
type claim struct {
	// Set once, then only read.
	m       *Mutex
	kind    line.Kind
	permit  permit // if it is of that kind
	try     bool   // it waits for etcd, and for no other contender
	several bool   // it is one of those of a LockAll; see many.go
	local   *localLine
	caller  context.Context // of the call, only for the Trace
	started time.Time
	turn    chan *place // gets the place put for it, or nil, when its turn comes

	// Owned by the goroutine of the call, until it holds.
	lastErr error // of etcd, while it retries
	ahead   int   // contenders ahead of it when it queued

	// Guarded by Session.mu.
	cancel context.CancelCauseFunc // of its wait, nil once that is over
	place  *place                  // in etcd's line, nil while it has none
	hold   *hold                   // once it holds
	waiter turn.Waiter[*claim]     // in the line's queue
}

// newClaim is a call that has started, and is in no queue yet.
func (w want) newClaim(
	caller context.Context, l *localLine, started time.Time, cancel context.CancelCauseFunc,
) *claim {
	c := &claim{
		m: w.m, kind: w.kind, permit: w.permit, try: w.try,
		local: l, caller: caller, started: started, cancel: cancel,
	}
	c.waiter.Who, c.waiter.Shares, c.waiter.Steps = c, w.kind == line.Read, w.kind == line.Permit
	return c
}

// shape is what c's keys tell of it.
func (c *claim) shape() line.Shape {
	return line.Shape{Kind: c.kind, Weight: c.permit.weight, Limit: c.permit.limit}
}

// exclusive reports whether c is of Lock or TryLock.
func (c *claim) exclusive() bool { return c.kind == line.Exclusive }

// reads reports whether c is of RLock or TryRLock.
func (c *claim) reads() bool { return c.kind == line.Read }

// lineLocked returns the line for a name. Lines that nobody uses are kept for their
// key names, up to a number.
func (s *Session) lineLocked(name string) *localLine {
	if l := s.lines[name]; l != nil {
		return l
	}
	if len(s.lines) >= s.sweepAt {
		for name, l := range s.lines {
			if l.queue.State() == turn.Free && l.view == nil && l.last == nil {
				delete(s.lines, name)
			}
		}
		s.sweepAt = max(minSweep, 2*len(s.lines))
	}
	l := &localLine{name: name, ahead: line.Nobody}
	s.lines[name] = l
	return l
}

// lockedLocked is the LockedError of a waiter in the queue, or of a claim that comes now if w is
// nil. The queue has an owner.
func (l *localLine) lockedLocked(w *turn.Waiter[*claim]) *LockedError {
	e := &LockedError{Name: l.name, Ahead: l.queue.Ahead(w)}
	owner := l.queue.Owner()
	if owner.kind == line.Permit {
		e.Ahead += l.queue.Sharing() // each has a key
	}
	switch {
	case (owner.place == nil || owner.place.ticket.Rev() == 0) && l.ahead.Count() > 0: // on its way
		e.behind(l.ahead)
	case owner.place == nil || owner.place.ticket.Rev() == 0: // the first to go
		e.Holder = l.firstLocked().contender()
	case owner.hold == nil && owner.place.ahead.Count() > 0:
		e.behind(owner.place.ahead)
	default:
		e.Holder = owner.place.contender()
	}
	return e
}

// firstLocked is the one that has had the turn for longest, of those that have it. Somebody does.
func (l *localLine) firstLocked() (first *claim) {
	for c := range l.queue.Having() {
		first = c
	}
	return first
}

// contender is c as others see it: its place, once its key is there.
func (c *claim) contender() Contender {
	if c.place != nil && c.place.ticket.Rev() != 0 {
		return c.place.contender()
	}
	who := c.m.contender()
	who.Mode = c.kind.String()
	return who
}

// aheadLocked is the LockedError of the owner of l, which has no place in etcd's line.
// It knows what the owner before it has seen there.
func (l *localLine) aheadLocked() *LockedError {
	if l.ahead.Count() == 0 {
		return nil
	}
	e := &LockedError{Name: l.name}
	e.behind(l.ahead)
	return e
}

// behind notes in e that those ahead come first too.
func (e *LockedError) behind(ahead line.Ahead) {
	e.Holder = holderOf(e.Name, ahead)
	e.Ahead += ahead.Count()
}

// leave takes c out of the line after its wait has ended, and tells who was there. If it was let in
// beside others at the same moment it stays, with its hold.
func (s *Session) leave(c *claim) (*hold, *LockedError) {
	s.mu.Lock()
	defer s.unlock()
	return s.leaveLocked(c)
}

func (s *Session) leaveLocked(c *claim) (*hold, *LockedError) {
	l := c.local
	var locked *LockedError
	switch c.waiter.Standing() {
	case turn.Beside:
		return c.hold, nil
	case turn.Waiting:
		locked = l.lockedLocked(&c.waiter)
		c.waitedLocked()
	default: // its turn is coming, or has come at the same moment
		locked = l.aheadLocked()
	}
	first := l.queue.First()
	if l.queue.Leave(&c.waiter) == turn.Owner {
		s.partLocked(c, <-c.turn)
	}
	if l.queue.First() != first { // who was behind it may join others
		l.admitLocked()
	}
	return nil, locked
}

// takePlaceLocked takes a place for c, whose turn has come, or nil if there is no lease for it.
func (c *claim) takePlaceLocked() *place {
	if !c.m.s.usableLocked() {
		return nil
	}
	c.place = c.m.s.newPlaceLocked(c)
	return c.place
}

// nextLocked chooses who is next in line, and takes a place for it if there is a lease. The
// owner's release must put the place and then call passLocked.
func (s *Session) nextLocked(l *localLine) *place {
	if first := l.queue.First(); first == nil || first.Who.try || first.Who.several {
		return nil // a key that is put so stands in line, whoever is before it, and alone
	}
	next, _ := l.queue.Choose()
	if !s.usableLocked() {
		return nil
	}
	return s.newPlaceLocked(next)
}

// passLocked takes the turn from its owner. Whoever gets it gets put, the place that stands for
// it, or nil; if nobody does the line is free. A place is of no use to one that holds in another
// way, that does not wait in line, or that puts several keys.
func (s *Session) passLocked(l *localLine, put *place) {
	next, ok := l.queue.Pass()
	if put != nil && (!ok || next.shape() != line.ShapeOf(put.ticket.Key) || next.try || next.several) {
		put.abandonLocked(false)
		put = nil
	}
	if ok {
		next.hasTurnLocked(put)
	} else {
		l.ahead = line.Nobody
	}
}

// partLocked ends the turn of c, if others share it, and otherwise passes it on, with put.
func (s *Session) partLocked(c *claim, put *place) {
	if c.local.queue.Part(&c.waiter) {
		c.local.admitLocked() // or refuses them
		if put != nil {
			put.abandonLocked(false)
		}
	} else {
		s.passLocked(c.local, put)
	}
}

// hasTurnLocked tells c that its turn has come, with the place that was put for it or nil.
func (c *claim) hasTurnLocked(put *place) {
	c.waitedLocked()
	c.place = put
	c.turn <- put
}

// waitedLocked notes that c waits in the queue no more.
func (c *claim) waitedLocked() {
	if c.try {
		c.local.tries--
	}
}

// passOnLocked gives the key of h, which has ended whole, to the next in the local line,
// unless others have waited for long enough; see WithHandoff.
func (s *Session) passOnLocked(h *hold) bool {
	p, most := h.place, h.m.cfg.handoff
	first := h.local.queue.First()
	if most == 0 || first == nil || !first.Who.exclusive() || first.Who.several || !h.claim.exclusive() ||
		!p.lastsLocked() {
		return false
	}
	next, ok := h.local.queue.HandOff(p, most)
	if !ok {
		return false
	}
	h.traceReleased()
	next.hasTurnLocked(p)
	return true
}

// lingerLocked keeps the key of h, which has ended whole, if nobody waits for it; see
// WithLinger.
//
// Invariant: a new claim takes over the key that lingers, or finds it given up; and the key is
// given up once a view shows others, or there is no view.
func (s *Session) lingerLocked(h *hold) bool {
	l, p, linger := h.local, h.place, h.m.cfg.linger
	if linger == 0 || h.m.closed || !h.claim.exclusive() || l.queue.Waiting() > 0 || !p.lastsLocked() {
		return false
	}
	switch v := l.view; {
	case v == nil || v.err != nil || v.partial:
		return false
	case v.revision == 0 && l.queue.Owner().ahead == 0:
		// The first watch is under way. Its end, or a read that fails, takes the key back.
	case !v.live || v.othersLocked():
		return false // if the first watch is under way, those who came before may be there
	}
	h.traceReleased()
	p.unwatchLocked() // the view covers what lingers
	l.view.reliesLocked()
	if l.queue.Linger(p, time.Now().Add(linger)) {
		s.setDueLocked(l, linger)
	}
	return true
}

// setDueLocked makes the timer call lingered after a while, and no longer at an earlier time.
func (s *Session) setDueLocked(l *localLine, after time.Duration) {
	if l.due != nil {
		l.due.Stop()
	}
	l.due = time.AfterFunc(after, func() { s.lingered(l) })
}

// lingered gives up the key that lingers if its time is over.
func (s *Session) lingered(l *localLine) {
	s.mu.Lock()
	defer s.unlock()
	switch over, again := l.queue.Due(time.Now()); {
	case over:
		l.giveWayLocked()
	case again > 0:
		s.setDueLocked(l, again)
	}
}

// relock makes a hold of the key that lingers, or nil if there is none that can be used.
func (m *Mutex) relock(caller context.Context, now time.Time) *hold {
	s := m.s
	if s.clientClosed() {
		return nil
	}
	s.mu.Lock()
	defer s.unlock()
	l := s.lines[m.name]
	if l == nil || l.queue.Kept() == nil {
		return nil
	}
	return want{m: m}.newClaim(caller, l, now, nil).relockLocked()
}

// relockLocked makes c the owner with a hold of the key that lingers, if there is one that
// can be used.
func (c *claim) relockLocked() *hold {
	l, p := c.local, c.local.queue.Kept()
	if p == nil || !c.exclusive() || !p.lastsLocked() {
		return nil
	}
	h, err := c.m.s.beginLocked(c, p)
	if err != nil {
		return nil
	}
	c.place = p
	l.queue.Take(&c.waiter)
	return h
}

// giveWayLocked gives up the key that lingers, if one does. It returns what abandonLocked does.
func (l *localLine) giveWayLocked() <-chan struct{} {
	if l.queue.Kept() == nil {
		return nil
	}
	p := l.queue.Yield()
	p.spare = true
	return p.abandonLocked(false)
}

// lingersLocked reports whether the line's key lingers, or will linger after its Unlock.
func (l *localLine) lingersLocked() bool {
	h := l.holdLocked()
	return l.queue.Kept() != nil ||
		h != nil && h.cause == nil && h.m.cfg.linger > 0 && h.claim.exclusive() && h.place.recall == nil
}

// holdLocked is the owner's hold, nil if there is none.
func (l *localLine) holdLocked() *hold {
	if owner := l.queue.Owner(); owner != nil {
		return owner.hold
	}
	return nil
}

// lingersLocked reports whether p's key lingers.
func (p *place) lingersLocked() bool { return p.local.queue.Kept() == p }

// lastsLocked reports whether another hold may begin at p, after one has ended there.
func (p *place) lastsLocked() bool {
	l := p.lease
	now := time.Now()
	l.checkLocked(now)
	return l.retired == nil && p.recall == nil && !p.ticket.Lost() && !p.staleLocked() &&
		l.plan.Lasts(l.trust.Remaining(now))
}

// cancelLocked ends the waits of m's claims, or of all claims if m is nil.
func (l *localLine) cancelLocked(m *Mutex) {
	for c := range l.queue.All() {
		if cancel := c.cancel; cancel != nil && (m == nil || c.m == m) {
			c.m.s.afterLocked(func() { cancel(ErrClosed) })
		}
	}
}
