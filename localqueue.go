package etcdlock

import (
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// A localLine is what a Session has of one name: the queue of its goroutines, of which only the
// owner has a place in etcd's line, and what it knows about that line. Session.mu guards it.
type localLine struct {
	queue.Line // etcd's line, as it is known
	keeping
	s      *session
	queue  turn.Queue[*claim, *place]
	ahead  line.Ahead // before the last place, if it was given up without a hold
	tries  int        // claims in the queue that wait for no other contender
	asking asking

	marked     bool       // its admission follows at the Unlock
	markedNext *localLine // the one that was marked before it
}

// lineLocked returns the local line of s for a name. Unused lines are kept for their key names, up
// to a number.
func lineLocked(s *session, name string) *localLine { return lineAtLocked(s, name, name) }

// lineAtLocked is the local line of s for a name, which s finds as at.
func lineAtLocked(s *session, at, name string) *localLine {
	if n := s.lines[at]; n != nil {
		return n
	}
	if len(s.lines) >= s.sweepAt {
		for name, n := range s.lines {
			if n.queue.State() == turn.Free && n.IdleLocked() {
				delete(s.lines, name)
			}
		}
		s.sweepAt = max(minSweep, 2*len(s.lines))
	}
	n := &localLine{s: s, ahead: line.None}
	n.keeping.of, n.asking.of = n, n
	n.Init(s.keys, name, n)
	s.lines[at] = n
	return n
}

// adoptedLineLocked is the local line of s for a key of the name that a call adopts, nil if the
// Session has that key. Nothing waits in it: the claims of the name wait in etcd's line behind the
// key, whichever Session they are of, and a call that adopts does not wait for them.
func adoptedLineLocked(s *session, name, key string) *localLine {
	n := lineAtLocked(s, "\x00"+key, name) // no name begins so
	if n.queue.Owner() != nil || s.keys.AccountsForLocked(key) {
		return nil
	}
	return n
}

// holdLocked is the owner's hold, nil if there is none.
func (n *localLine) holdLocked() *hold {
	if owner := n.queue.Owner(); owner != nil {
		return owner.hold
	}
	return nil
}

// PlaceLocked is as in queue.Local.
func (n *localLine) PlaceLocked() *queue.Place {
	p := n.queue.Lingering()
	if owner := n.queue.Owner(); owner != nil {
		p = owner.place
	}
	if p == nil {
		return nil
	}
	return &p.Place
}

// lockedErrorLocked is the LockedError of a waiter in the queue, or of a claim that comes now if w
// is nil. The queue has an owner.
func (n *localLine) lockedErrorLocked(w *turn.Waiter[*claim]) *LockedError {
	e := &LockedError{Name: n.Name, Ahead: n.queue.Ahead(w)}
	if h := n.holdLocked(); h != nil { // after a pause no timer may have run
		h.checkLocked(time.Now())
	}
	owner := n.queue.Owner()
	if owner.kind == line.Permit {
		e.Ahead += n.queue.Sharing() // each has a key
	}
	onItsWay := owner.place == nil || owner.place.Ticket.Rev() == 0
	switch {
	case onItsWay && n.ahead.Count() > 0:
		e.behind(n.ahead)
	case !onItsWay && owner.hold == nil && owner.place.Ahead.Count() > 0:
		e.behind(owner.place.Ahead)
	default:
		first := n.firstLocked()
		e.Holder = first.contenderLocked()
		if first.lostLocked() {
			e.lost = first.place.Ticket.Rev()
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

// aheadLocked is the LockedError of the owner of n, which has no place in etcd's line.
// It knows what the owner before it has seen there.
func (n *localLine) aheadLocked() *LockedError {
	if n.ahead.Count() == 0 {
		return nil
	}
	e := &LockedError{Name: n.Name}
	e.behind(n.ahead)
	return e
}

// nextLocked chooses the next waiter, and takes a place for it if there is a lease. The owner's
// release must put the place's key and then call passTurnLocked.
func (n *localLine) nextLocked() *place {
	if first := n.queue.First(); first == nil || first.Value.Try || first.Value.together {
		return nil // a key that is put so stands in line, whatever is before it, and alone
	}
	next, _ := n.queue.Choose()
	if k := n.s.keys.AccountLocked(); k != nil {
		return newPlaceLocked(next, k)
	}
	return nil
}

// passTurnLocked hands the turn to the next waiter, with put, the place whose key stands in line
// for it, or nil. Without a waiter the local line is free. A place is of no use to a claim that
// holds in another way, that does not wait in line, that puts several keys, or of which its value
// is not true. (A read may hold at a key with the value of another read: so it is in a cohort.)
func (n *localLine) passTurnLocked(put *place) {
	next, ok := n.queue.Pass()
	n.MarkLocked()
	if put != nil && (!ok || next.shape() != line.ShapeOf(put.Ticket.Key) ||
		!next.reads() && !put.tellsOf(next) || next.Try || next.together) {
		put.AbandonLocked(false)
		put = nil
	}
	if ok {
		next.hasTurnLocked(put)
	} else {
		n.ahead = line.None
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
