package etcdlock

import (
	"time"

	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A keeping is what a local line has of keys that its Session keeps: for the next of its
// goroutines, or for its next hold.
type keeping struct {
	of  *localLine
	due *time.Timer // calls lingered; nil before a key lingers

	stays *time.Timer // removes the key that has outlasted its hold, by WithMinHold; nil before one does
}

// handOffLocked gives the key of h, which has ended whole, to the next waiter in the local line,
// unless the contenders behind the key have waited for long enough; see WithHandoff.
func (k *keeping) handOffLocked(h *hold) bool {
	n := k.of
	p, most := h.place, h.m.cfg.handoff
	first := n.queue.First()
	if most == 0 || first == nil || !first.Value.exclusive() || first.Value.together || !h.claim.exclusive() ||
		!p.tellsOf(first.Value) || !p.LastsLocked() {
		return false
	}
	next, ok := n.queue.HandOff(p, most)
	if !ok {
		return false
	}
	n.MarkLocked()
	h.reportReleased()
	next.hasTurnLocked(p)
	return true
}

// lingerLocked keeps the key of h, which has ended whole, if no contender waits for it; see
// WithLinger.
//
// Invariant: a new claim takes over the key that lingers, or finds it given up; and the key is
// given up once a view shows other keys in line, or there is no view.
func (k *keeping) lingerLocked(h *hold) bool {
	n := k.of
	p, linger := h.place, h.m.cfg.linger
	if linger == 0 || h.m.closed || !h.claim.exclusive() || n.queue.Waiting() > 0 ||
		!p.tellsOf(h.claim) || !p.LastsLocked() {
		return false
	}
	if !n.LingerLocked(n.queue.Owner().ahead == 0) {
		return false
	}
	h.reportReleased()
	p.UnwatchLocked() // the view covers what lingers
	if n.queue.Linger(p, time.Now().Add(linger)) {
		n.setDueLocked(linger)
	}
	return true
}

// setDueLocked makes the timer call lingered after a while, and no longer at an earlier time.
func (k *keeping) setDueLocked(after time.Duration) {
	n := k.of
	if n.due != nil {
		n.due.Stop()
	}
	n.due = time.AfterFunc(after, n.lingered)
}

// lingered gives up the key that lingers if its time is over.
func (k *keeping) lingered() {
	n := k.of
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	switch over, again := n.queue.Due(time.Now()); {
	case over:
		n.GiveWayLocked()
	case again > 0:
		n.setDueLocked(again)
	}
}

// staysLocked has the key of p, whose release is over, removed when its time is over. It is on a lease
// of its own by then, or, if etcd has not confirmed that, perhaps on the Session's.
//
// The key goes at that time though its lease may last for longer: etcd counts in seconds, and
// anew when it has elected a leader.
func (k *keeping) staysLocked(p *place, until time.Time) {
	n := k.of
	if n.s.leases.ClosedLocked() {
		return // Close leaves no timer behind
	}
	n.stays = time.AfterFunc(time.Until(until), func() {
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		switch {
		case n.s.leases.ClosedLocked():
		case p.Ticket.State() == ticket.Removed:
			n.s.tasks.GoLocked(func() {
				// An error is final: then the key goes with its lease.
				_ = n.s.etcd.DeleteUntilAnswered(n.s.ctx, p.Ticket.Moved())
			})
		default:
			p.AbandonLocked(true)
		}
	})
}

// LingersLocked is as in queue.Local.
func (k *keeping) LingersLocked() bool {
	n := k.of
	h := n.holdLocked()
	return n.queue.Lingering() != nil ||
		h != nil && h.state == holdWhole && h.m.cfg.linger > 0 && h.claim.exclusive() &&
			h.place.Recall == nil && h.place.tellsOf(h.claim)
}

// LingeringLocked is as in queue.Local.
func (k *keeping) LingeringLocked() *queue.Place {
	n := k.of
	if p := n.queue.Lingering(); p != nil {
		return &p.Place
	}
	return nil
}

// GiveWayLocked is as in queue.Local.
func (k *keeping) GiveWayLocked() {
	n := k.of
	if n.queue.Lingering() != nil {
		p := n.queue.Yield()
		p.Spare = true
		p.AbandonLocked(false)
	}
}
