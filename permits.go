package etcdlock

import (
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// Permits have each a key of their own. Those of a Session keep the order of their calls: one of
// them at a time puts its key and waits in etcd's line, and owns the turn of the local line; those
// that hold have the turn beside it. So a Session has at most one key of a name that waits, and the
// next one is put when the one before holds, or has gone.
//
// Invariant: whoever has the turn beside the owner holds, or has lost its hold and not unlocked.
// (Do not let the next one put its key as soon as the one before stands in line. A large one would
// be overtaken if it has to queue anew. TestPermitsOfASessionKeepTheirOrder.)
//
// Who is exclusive, or reads, and comes later waits in the local line until all that have the turn
// have unlocked, and permits that come after that wait behind it.

// allAlikeLocked reports whether c may have the turn beside each of those who wait, once they
// have it.
func (n *localLine) allAlikeLocked(c *claim) bool {
	switch c.kind {
	case line.Read:
		return n.queue.AllShare()
	case line.Permit:
		return n.queue.AllStep()
	default:
		return false
	}
}

// leavesRoomLocked is the welcome of a permit that comes where c owns the turn, which is one, too.
func (c *claim) leavesRoomLocked() admission {
	p := c.place
	switch {
	case c.waiter.Standing() == turn.Holder:
		return admitted
	case p == nil || p.ticket.State() != ticket.InLine || p.removed != nil,
		p.staleLocked() || p.ahead.Clear() || p.ahead.Unread():
		return undecided // etcd has to tell first
	default:
		return mustQueue
	}
}

// stepLocked gives c, which comes, the turn, if those of its Session who have it all hold permits.
func (c *claim) stepLocked() bool {
	n := c.local
	if c.kind != line.Permit || n.queue.State() != turn.Taken || n.queue.Waiting() > 0 ||
		n.admissionLocked(c.kind, false) != admitted {
		return false
	}
	n.queue.Step(&c.waiter)
	return true
}

// mayFollow reports whether a call whose context comes from h queues, as any other does. One that
// asks for permits may while it has some.
func (w request) mayFollow(h *hold) bool {
	return w.kind == line.Permit && h.claim.kind == line.Permit
}
