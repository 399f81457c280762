package etcdlock

import (
	"time"

	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// handOffLocked gives the key of h, which has ended whole, to the next waiter in the local line,
// unless the contenders behind the key have waited for long enough; see WithHandoff.
func (n *localLine) handOffLocked(h *hold) bool {
	p, most := h.place, h.m.cfg.handoff
	first := n.queue.First()
	if most == 0 || !h.claim.exclusive() ||
		first == nil || !first.Value.exclusive() || first.Value.together ||
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
func (n *localLine) lingerLocked(h *hold) bool {
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
func (n *localLine) setDueLocked(after time.Duration) {
	if n.due != nil {
		n.due.Stop()
	}
	n.due = time.AfterFunc(after, n.lingered)
}

// lingered gives up the key that lingers if its time is over.
func (n *localLine) lingered() {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	switch over, again := n.queue.Due(time.Now()); {
	case over:
		n.GiveWayLocked()
	case again > 0:
		n.setDueLocked(again)
	}
}

// staysLocked has the key of p, whose release is over, removed when its time is over, by
// WithMinHold. It is on a lease of its own by then, or, if etcd has not confirmed that, perhaps on
// the Session's.
//
// The key goes at that time though its lease may last for longer: etcd counts in seconds, and
// anew when it has elected a leader.
func (n *localLine) staysLocked(p *place, until time.Time) {
	if n.s.leases.ClosedLocked() {
		return // Close leaves no timer behind
	}
	n.stays = time.AfterFunc(time.Until(until), func() {
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		switch {
		case n.s.leases.ClosedLocked():
		case p.Ticket.State() == ticket.Removed:
			n.s.tasks.Go(func() {
				// An error is final: then the key goes with its lease.
				_ = n.s.etcd.DeleteUntilAnswered(n.s.ctx, p.Ticket.Moved())
			})
		default:
			p.AbandonLocked(true)
		}
	})
}

// LingersLocked is as in queue.Local.
func (n *localLine) LingersLocked() bool {
	h := n.holdLocked()
	return n.queue.Lingering() != nil ||
		h != nil && h.state == holdWhole && h.m.cfg.linger > 0 && h.claim.exclusive() &&
			h.place.Recall == nil && h.place.tellsOf(h.claim)
}

// LingeringLocked is as in queue.Local.
func (n *localLine) LingeringLocked() *queue.Place {
	if p := n.queue.Lingering(); p != nil {
		return &p.Place
	}
	return nil
}

// GiveWayLocked is as in queue.Local.
func (n *localLine) GiveWayLocked() {
	if n.queue.Lingering() != nil {
		p := n.queue.Yield()
		p.Spare = true
		p.AbandonLocked(false)
	}
}
