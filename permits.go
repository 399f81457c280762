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

// mayAdmitLocked reports whether c, which comes, and the waiters before it may all get the turn
// beside its owner: then it may be etcd alone that c waits for.
func (n *localLine) mayAdmitLocked(c *claim) bool {
	alike := c.kind == line.Read && n.queue.AllShare() || c.kind == line.Permit && n.queue.AllStep()
	return alike && n.admissionLocked(c.kind, false) != mustQueue
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

// mayFollow reports whether a call whose context comes from h queues, as any other does. One that
// asks for permits may while it has some.
func (w request) mayFollow(h *hold) bool {
	return w.kind == line.Permit && h.claim.kind == line.Permit
}
