package etcdlock

import (
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// lockedErrorLocked is the LockedError of a waiter in the queue, or of a claim that comes now if w
// is nil. The queue has an owner.
func (n *localLine) lockedErrorLocked(w *turn.Waiter[*claim]) *LockedError {
	e := &LockedError{Name: n.name, Ahead: n.queue.Ahead(w)}
	if h := n.holdLocked(); h != nil { // after a pause no timer may have run
		h.checkLocked(time.Now())
	}
	owner := n.queue.Owner()
	if owner.kind == line.Permit {
		e.Ahead += n.queue.Sharing() // each has a key
	}
	onItsWay := owner.place == nil || owner.place.ticket.Rev() == 0
	switch {
	case onItsWay && n.ahead.Count() > 0:
		e.behind(n.ahead)
	case !onItsWay && owner.hold == nil && owner.place.ahead.Count() > 0:
		e.behind(owner.place.ahead)
	default:
		first := n.firstLocked()
		e.Holder = first.contenderLocked()
		if first.lostLocked() {
			e.lost = first.place.ticket.Rev()
		}
	}
	return e
}

// firstLocked is the claim that has had the turn for longest, of the claims that have it and have
// not lost their holds. If all have lost theirs it is the owner. There is one.
func (n *localLine) firstLocked() *claim {
	first := n.queue.Owner()
	for c := range n.queue.Having() {
		if !c.lostLocked() {
			first = c
		}
	}
	return first
}

// lostLocked reports whether c has a hold that is lost and not unlocked.
func (c *claim) lostLocked() bool { return c.hold != nil && c.hold.lossLocked() != nil }

// contenderLocked is c as other contenders see it: its place, once its key is there and while its
// hold is not lost. (Do not tell a lost key: another process may hold.
// TestALostHoldIsNotToldAsTheHolder.)
func (c *claim) contenderLocked() Contender {
	if c.place != nil && c.place.ticket.Rev() != 0 && !c.lostLocked() {
		return c.place.contender()
	}
	who := c.m.contender()
	who.Mode = c.kind.String()
	return who
}

// aheadLocked is the LockedError of the owner of n, which has no place in etcd's line.
// It knows what the owner before it has seen there.
func (n *localLine) aheadLocked() *LockedError {
	if n.ahead.Count() == 0 {
		return nil
	}
	e := &LockedError{Name: n.name}
	e.behind(n.ahead)
	return e
}

// behind notes in e that the contenders ahead come first too.
func (e *LockedError) behind(ahead line.Ahead) {
	e.Holder = holderOf(e.Name, ahead)
	e.Ahead += ahead.Count()
}

// A wayIn is how a claim that comes gets its turn, or a hold.
type wayIn int

const (
	owns      wayIn = iota // it has the turn at once: the line is free
	waits                  // its turn comes later
	steps                  // it has the turn at once, beside permits that its Session holds
	joins                  // it has a hold at once, beside reads of its Session
	takesOver              // it has a hold at once, at the key that lingers
)

// wayInLocked is the way of c, which comes, into its line.
func (c *claim) wayInLocked() wayIn {
	n := c.local
	beside := n.queue.State() == turn.Taken && n.queue.Waiting() == 0 &&
		n.admissionLocked(c.kind, false) == admitted
	switch p := n.queue.Lingering(); {
	case beside && c.kind == line.Permit:
		return steps
	case beside:
		return joins
	case n.queue.Owner() != nil:
		return waits
	case p != nil && c.exclusive() && !c.together && p.tellsOf(c) && p.lastsLocked():
		return takesOver
	default:
		return owns
	}
}

// leaveLocked takes c out of the line after its wait has ended, or passes its turn on, and tells
// what was ahead of it. If c got a hold at the same moment it keeps that: other holds may share its
// key by now.
func (c *claim) leaveLocked() (h *hold, locked *LockedError) {
	n, p := c.local, c.place
	if c.waiter.Standing() == turn.Waiting {
		locked = n.lockedErrorLocked(&c.waiter)
	}
	switch n.queue.Leave(&c.waiter) {
	case turn.Waiting:
		c.waitedLocked()
		n.markLocked() // the waiters behind it may join a cohort
	case turn.Next: // the release that is under way passes its turn on
		locked = n.aheadLocked()
	case turn.Owner:
		if p != nil && p.removed != nil { // it was given up
			if p.ticket.Rev() != 0 {
				n.ahead = p.ahead
			}
			p = nil
		}
		c.place = nil
		locked = n.aheadLocked()
		c.leaveTurnLocked(p)
	default:
		return c.hold, nil
	}
	return nil, locked
}

// nextLocked chooses the next waiter, and takes a place for it if there is a lease. The owner's
// release must put the place's key and then call passTurnLocked.
func (n *localLine) nextLocked() *place {
	if first := n.queue.First(); first == nil || first.Value.try || first.Value.together {
		return nil // a key that is put so stands in line, whatever is before it, and alone
	}
	next, _ := n.queue.Choose()
	if k := n.s.accountLocked(); k != nil {
		return k.newPlaceLocked(next)
	}
	return nil
}

// passTurnLocked hands the turn to the next waiter, with put, the place whose key stands in line
// for it, or nil. Without a waiter the local line is free. A place is of no use to a claim that
// holds in another way, that does not wait in line, that puts several keys, or of which its value
// is not true. (A read may hold at a key with the value of another read: so it is in a cohort.)
func (n *localLine) passTurnLocked(put *place) {
	next, ok := n.queue.Pass()
	n.markLocked()
	if put != nil && (!ok || next.shape() != line.ShapeOf(put.ticket.Key) ||
		!next.reads() && !put.tellsOf(next) || next.try || next.together) {
		put.abandonLocked(false)
		put = nil
	}
	if ok {
		next.hasTurnLocked(put)
	} else {
		n.ahead = line.None
	}
}

// leaveTurnLocked ends the turn of c if other claims share it. Otherwise it passes the turn on,
// with put.
func (c *claim) leaveTurnLocked(put *place) {
	if c.local.queue.Part(&c.waiter) {
		c.local.markLocked()
		if put != nil {
			put.abandonLocked(false)
		}
	} else {
		c.local.passTurnLocked(put)
	}
}

// hasTurnLocked tells c that its turn has come, with the place that was put for it or nil.
func (c *claim) hasTurnLocked(put *place) {
	c.waitedLocked()
	c.place = put
	c.turn <- struct{}{}
}

// waitedLocked notes that c waits in the queue no more.
func (c *claim) waitedLocked() {
	if c.try {
		c.local.tries--
	}
}

// cancelLocked ends the waits of m's claims, or of all claims if m is nil.
func (n *localLine) cancelLocked(m *lockHandle) {
	for c := range n.queue.All() {
		if cancel := c.cancel; cancel != nil && (m == nil || c.m == m) {
			c.m.s.mu.After(func() { cancel(errWaitClosed) })
		}
	}
}
