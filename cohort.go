package etcdlock

import (
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// A cohort is the reads of one Session that share a key, and the turn of their local line. One
// has put the key. Others join it:
//
//   - when the hold begins, those who were right behind it in the local line as it was about to put
//     the key: they came before the put, so they overtake nobody;
//   - later, while the key lasts, nobody waits in the local line, and a watch shows that nobody who
//     is exclusive stands in etcd's line. Whoever does joins the local line otherwise.
//
// So a writer waits only for reads that began before it came, and for the time of one event.
//
// Invariant: to join is safe at any moment at which the Session's mutex is held, the ticket is
// Held, and the lease is trusted: from the release or the removal on, which begin under the mutex,
// the ticket is Leaving. Whoever is exclusive and came to etcd's line in between waits for the key,
// so the watch is asked for the sake of order, and may be late. (Do not join a key whose lease does
// not last: it would end with the next renewal that is late.
// TestNobodyJoinsAKeyWhoseLeaseDoesNotLast.)
//
// Invariant: the key stays while a hold at it is whole, or has ended whole and is being freed
// (place.refs). The last of these releases it, or has it removed. The turn stays with the Session
// until everybody has unlocked, lost or not. (Do not release for one of several.
// TestAWriterWaitsForEveryReaderOfItsSession.)
//
// Who comes and who goes, by what has happened to the one that owns the turn:
//
//	it puts the key        others wait in the local line, TryRLock too: etcd decides
//	it waits in etcd's     others wait; TryRLock is refused
//	 line                  it gives up: the next one, if it came before the put, goes on
//	                       waiting at its place
//	it holds               others join, or wait: for the watch, or for their turn
//	it has unlocked, and   it goes; one of these owns the turn
//	 others hold
//	the last one unlocks   others wait: they take a place of their own
//	it is recalled         others wait; who listens goes on for its grace
//	its key is lost        all have lost it; others wait until everybody has unlocked
//
// A key that reads hold is not handed off, nor does it linger: to join does more.

// An admission is what becomes of one that comes to read, where others have the turn.
type admission int

const (
	admitted  admission = iota // it has the turn beside them
	undecided                  // etcd has to tell first
	mustQueue                  // it waits for their turn to end
)

// admissionLocked is that of the first that waits, or of one that comes when nobody does. early says
// that it came before the key was put.
func (n *localLine) admissionLocked(kind line.Kind, early bool) admission {
	switch owner := n.queue.Owner(); {
	case owner == nil || owner.kind != kind || kind == line.Exclusive:
		return mustQueue
	case kind == line.Permit:
		return owner.leavesRoomLocked()
	default:
		return n.admissionOfReadLocked(owner.place, early)
	}
}

// admissionOfReadLocked is that of one that reads, where others read or are about to, at p.
func (n *localLine) admissionOfReadLocked(p *place, early bool) admission {
	switch {
	case p == nil || p.ticket.Rev() == 0: // its put is under way
		return undecided
	case p.ticket.Lost() || p.removed != nil || p.ticket.State() == ticket.Removed:
		return mustQueue // those who have lost it are yet to unlock
	case p.recall != nil:
		return mustQueue // (Do not join. TestNobodyJoinsARecalledCohort.)
	case p.ticket.State() == ticket.InLine:
		if p.staleLocked() || p.ahead.Clear() || p.ahead.Unread() {
			return undecided
		}
		return mustQueue
	case p.ticket.State() != ticket.Held: // its release is under way
		return undecided
	case early:
		return admitted
	case p.lease.state != leaseServing:
		return mustQueue
	case !p.lastsLocked(): // a renewal is late, or etcd was set back
		return undecided
	}
	switch v := n.view; {
	case !v.isLiveLocked():
		return undecided
	case v.exclusive > 0:
		return mustQueue
	default:
		return admitted
	}
}

// admitLocked has those join who may, of those that read and wait before all others. Those who
// would have to wait for another contender, and do not want to, it refuses.
func (n *localLine) admitLocked() {
	for {
		first := n.queue.First()
		if first == nil || first.Value.exclusive() || n.queue.State() != turn.Taken {
			return
		}
		switch n.admissionLocked(first.Value.kind, first.Early()) {
		case admitted:
			if first.Steps {
				n.queue.StepNext().hasTurnLocked(nil)
				return
			}
			c, p := first.Value, n.queue.Owner().place
			now := time.Now()
			if c.m.s.checkCanBeginLocked(c, p, now) != nil {
				return
			}
			c.m.s.newHoldLocked(c, p, now)
			n.queue.Join()
			c.waitedLocked()
			c.turn <- struct{}{}
			if n.view != nil {
				n.view.joined = true
			}
			continue
		case undecided:
			n.seekLocked()
		case mustQueue:
			n.refuseLocked()
		}
		return
	}
}

// seekLocked has etcd's line watched for one that waits to join.
func (n *localLine) seekLocked() {
	if h := n.holdLocked(); h != nil && n.view == nil && !h.m.s.closed {
		h.m.s.viewLocked(n, true)
	}
}

// errRefused ends the wait of a TryRLock or TryAcquire for its turn: it would have to wait for
// another contender.
var errRefused = errors.New("refused")

// refuseLocked ends the waits of those who wait for no other contender.
func (n *localLine) refuseLocked() {
	if n.tries == 0 {
		return
	}
	for c := range n.queue.All() {
		if cancel := c.cancel; c.try && cancel != nil && c.waiter.Standing() == turn.Waiting {
			c.m.s.mu.After(func() { cancel(errRefused) })
		}
	}
}

// cohortLocked reports whether several share the turn, or one is about to join.
func (n *localLine) cohortLocked() bool {
	h := n.holdLocked()
	if h == nil || !h.claim.reads() {
		return false
	}
	first := n.queue.First()
	return n.queue.Sharing() > 0 || first != nil && first.Shares
}

// handDown gives the place at which c has waited in etcd's line to the next in the local line, if that
// came before the put: it goes on waiting there. It reports false, and does nothing, if there is
// nobody, or the place is of no use. locked tells c who is before it.
func (c *claim) handDown() (locked *LockedError, done bool) {
	s, n, p := c.m.s, c.local, c.place
	s.mu.Lock()
	defer s.mu.Unlock()
	next := n.queue.First()
	if s.closed || !c.reads() || p == nil || next == nil || !next.Early() || next.Value.try ||
		p.ticket.State() != ticket.InLine || p.removed != nil || p.lease.hasEndedLocked() ||
		p.recall != nil {
		return nil, false
	}
	n.ahead = p.ahead
	c.place = nil
	locked = n.aheadLocked()
	s.passTurnLocked(n, p)
	return locked, true
}
