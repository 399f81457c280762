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
	s     *Session
	name  string
	queue turn.Queue[*claim, *place]
	ahead line.Ahead                   // before the last place, if it was given up without a hold
	slots map[line.Shape]*ticket.Slots // names of keys
	view  *view                        // nil while none is needed
	due   *time.Timer                  // calls lingered; nil before a key lingers
	tries int                          // claims in the queue that wait for no other contender

	marked     bool       // its admission follows at the Unlock
	markedNext *localLine // the one that was marked before it

	// What the next place in etcd's line may expect there.
	crowded bool          // the line was long when the last one was put
	waited  time.Duration // for how long the last one that came to hold has stood in it
	last    *predecessor  // of that one, while it is watched yet
}

// A claim is one call of Lock or TryLock, of RLock or TryRLock, or of Acquire or TryAcquire.
type claim struct {
	// Set once, then only read.
	m        *lockHandle
	kind     line.Kind
	permit   permit // if it is of that kind
	try      bool   // it waits for etcd, and for no other contender
	together bool   // it is one of the claims of a LockAll; see lockall.go
	local    *localLine
	caller   context.Context // of the call, only for the Trace
	started  time.Time
	turn     chan struct{} // tells that its turn has come; nil if it had it at once
	alone    [1]*claim     // c itself

	// Owned by the goroutine of the call, until it holds.
	lastErr error // of etcd, while it retries
	ahead   int   // contenders ahead of it when it queued

	// Guarded by Session.mu. While the claim owns the turn, and does not hold, only the goroutine
	// of the call changes its place and its hold, and reads them without mu.
	cancel context.CancelCauseFunc // of its wait, nil once that is over
	place  *place                  // in etcd's line, nil while it has none; it may have been given up
	hold   *hold                   // the one that it got, which its waiter has; it stays here
	waiter turn.Waiter[*claim]     // in the line's queue; its Standing is the state of the claim
}

// A request is what a call asks for.
type request struct {
	m      *lockHandle
	kind   line.Kind
	permit permit // if it is of that kind
	try    bool
}

// A permit is what is asked for: n of a limit.
type permit struct{ weight, limit uint16 }

// newClaim is a claim of a call that has started. It is in no queue yet.
func (w request) newClaim(caller context.Context, started time.Time) *claim {
	c := &claim{m: w.m, kind: w.kind, permit: w.permit, try: w.try, caller: caller, started: started}
	c.alone[0] = c
	c.waiter.Value, c.waiter.Shares, c.waiter.Steps = c, w.kind == line.Read, w.kind == line.Permit
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

// lineLocked returns the line for a name. Unused lines are kept for their key names, up to a
// number.
func (s *Session) lineLocked(name string) *localLine {
	if n := s.lines[name]; n != nil {
		return n
	}
	if len(s.lines) >= s.sweepAt {
		for name, n := range s.lines {
			if n.queue.State() == turn.Free && n.view == nil && n.last == nil {
				delete(s.lines, name)
			}
		}
		s.sweepAt = max(minSweep, 2*len(s.lines))
	}
	n := &localLine{s: s, name: name, ahead: line.None}
	s.lines[name] = n
	return n
}

// The markedLines of a Session are the local lines whose admissions follow at the Unlock; they are
// the Settler of its mutex.
type markedLines struct{ last *localLine }

// markLocked notes that something has changed on which n's admission depends.
func (n *localLine) markLocked() {
	if !n.marked {
		n.marked, n.markedNext, n.s.marked.last = true, n.s.marked.last, n
	}
}

// holdLocked is the owner's hold, nil if there is none.
func (n *localLine) holdLocked() *hold {
	if owner := n.queue.Owner(); owner != nil {
		return owner.hold
	}
	return nil
}

// slotsLocked are the names of n's keys of a shape. Few shapes are in use at a time.
func (n *localLine) slotsLocked(shape line.Shape) *ticket.Slots {
	const many = 16
	slots := n.slots[shape]
	if slots == nil {
		if n.slots == nil || len(n.slots) >= many {
			n.slots = make(map[line.Shape]*ticket.Slots)
		}
		slots = &ticket.Slots{}
		n.slots[shape] = slots
	}
	return slots
}
