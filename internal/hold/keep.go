package hold

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// keepLocked leaves the key of h, which has ended whole, to a claim of its Session, as its fate is.
// It reports false if the key is to be released.
//
// Invariant: a claim that comes takes over the key that lingers, or finds it given up; and the key
// is given up once a view shows other keys in line, or there is no view.
func (n *localLine) keepLocked(h *Hold) bool {
	p, cfg := h.place, h.m.cfg
	suits := p.tellsOf(h.claim) // a claim that comes is asked for itself (keyLocked)
	if first := n.queue.First(); first != nil {
		suits = p.suits(first.Value)
	}
	switch n.queue.Fate(home.Left{
		Suits: suits, Lasts: p.LastsLocked(), Handed: int(p.handed), Handoff: cfg.Handoff,
		Linger: cfg.Linger > 0 && !h.m.closed,
	}) {
	case home.HandedOn:
		p.handed++
		h.reportReleased()
		n.endTurnLocked(h.claim, p)
		return true
	case home.Lingers:
		if !n.LingerLocked(!n.queue.Owner().queued) {
			return false
		}
		n.keepsForLocked(h, cfg.Linger)
		return true
	default:
		return false
	}
}

// keepsForLocked keeps the key of h in line for a while, for the claim that comes next.
func (n *localLine) keepsForLocked(h *Hold, linger time.Duration) {
	p := h.place
	h.reportReleased()
	p.UnwatchLocked() // the view covers what lingers
	n.endTurnLocked(h.claim, nil)
	p.handed = 0
	n.kept = p
	if n.lingering == nil {
		n.lingering = new(lingering)
	}
	l := n.lingering
	l.until = time.Now().Add(linger)
	if l.dueAt.IsZero() || l.until.Before(l.dueAt) {
		n.setDueLocked(linger)
	}
}

// setDueLocked makes the timer call lingered after a while, and no longer at an earlier time.
func (n *localLine) setDueLocked(after time.Duration) {
	l := n.lingering
	if l.due != nil {
		l.due.Stop()
	}
	l.dueAt = time.Now().Add(after)
	l.due = time.AfterFunc(after, n.lingered)
}

// lingered gives up the key that lingers if its time is over.
func (n *localLine) lingered() {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	l := n.lingering
	l.dueAt = time.Time{}
	if left := time.Until(l.until); n.kept != nil && left > 0 {
		n.setDueLocked(left)
	} else {
		n.GiveWayLocked()
	}
}

// A stay is the rest of the least time of a hold whose Unlock came before, by WithMinHold. Its key
// stays in line until then, on a lease of its own, to which the release of the hold moves it.
//
// Invariant: the Session has each stay until its lease was given back, or need not be: at the end
// of the time, or once it is clear that no key is to stay. Then Close leaves only the leases on
// which etcd has confirmed a key, which expire with their time. (Do not leave a lease that may have
// been granted to expire: that may take a day. TestALeaseOfAKeyThatDoesNotStayIsGivenBack.)
type stay struct {
	// Set once, then only read.
	s     *Session
	place *place
	until time.Time

	lease etcd.Loan // owned by the release, then by the goroutine that gives it back

	// Guarded by Session.mu.
	state stayState
	timer *time.Timer   // of what follows, unless the release or a goroutine does that
	pause time.Duration // before it is given back again
}

// A stayState is what becomes of a stay's key.
type stayState uint8

const (
	stayMoving  stayState = iota // its release is under way
	stayKept                     // etcd has confirmed that it is on the stay's lease
	stayUnsure                   // it may be there, or on the Session's lease
	stayReturns                  // a goroutine gives the lease back
	stayOver                     // the lease was given back; a late request may grant it again
)

// newStay returns the stay of p, whose hold was unlocked before a time.
func newStay(p *place, until time.Time) *stay {
	s := p.m.s
	return &stay{s: s, place: p, until: until, lease: etcd.NewLoan(s.etcd)}
}

// beginLocked begins the stay, as etcd has confirmed the move of the key, or has not answered.
//
// The key goes at the end of the time though its lease may last for longer: etcd counts in seconds,
// and anew when it has elected a leader.
func (y *stay) beginLocked(state stayState) {
	y.state = state
	y.s.stays[y] = struct{}{}
	if y.s.leases.ClosedLocked() {
		y.closeLocked()
	} else {
		y.timer = time.AfterFunc(time.Until(y.until), y.ends)
	}
}

// attempt is one attempt at the release of the hold. The key gets its lease first.
func (y *stay) attempt(
	ctx context.Context, retry *attempt.Backoff, r *ticket.Release,
) etcd.Outcome {
	var value string
	if !r.Moves() && time.Now().Before(y.until) {
		lease, err := y.lease.Grant(ctx, retry, y.until)
		if err != nil {
			return etcd.Unsent(y.s.etcd.Epoch(), err)
		}
		r.MoveTo(int64(lease))
	}
	if r.Moves() {
		value = y.place.kept(y.until)
	}
	done := y.s.etcd.Commit(ctx, retry, r.Txn(value))
	if done.Err != nil && r.Moves() && attempt.Is(done.Err, rpctypes.ErrLeaseNotFound) {
		r.MoveTo(0) // it took so long that the lease has expired, or etcd was set back
	}
	return done
}

// The timer calls ends when the time of the key is over, or of a pause before the lease is given
// back again.
func (y *stay) ends() {
	y.s.mu.Lock()
	defer y.s.mu.Unlock()
	if _, has := y.s.stays[y]; has { // else the Session was closed
		y.endLocked()
	}
}

func (y *stay) endLocked() {
	if y.state == stayUnsure {
		y.place.AbandonLocked(queue.Removal{Unsure: true})
	}
	y.giveBackLocked()
}

// closeLocked ends what Close has to end of the stay.
func (y *stay) closeLocked() {
	if y.timer != nil {
		y.timer.Stop()
	}
	switch y.state {
	case stayKept: // for the rest of its time, as its Unlock has said
		delete(y.s.stays, y)
	case stayUnsure, stayOver: // its place goes with the Session's lease
		y.giveBackLocked()
	}
}

// giveBackLocked gives the lease back, and with it the key if that is there.
func (y *stay) giveBackLocked() {
	if !y.lease.Granted() {
		delete(y.s.stays, y)
		return
	}
	y.s.stays[y] = struct{}{}
	kept := y.state == stayKept
	y.state = stayReturns
	y.s.tasks.Go(func() { y.giveBack(kept) })
}

// giveBack gives the lease back. It does so again, ever more seldom until the time is over, if a
// request may come late that grants the lease. kept says that a key was kept on it.
func (y *stay) giveBack(kept bool) {
	s := y.s
	err := y.lease.GiveBack(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	closed := s.leases.ClosedLocked()
	if err != nil {
		s.leases.NotRevoked(y.lease.Hex(), err)
		if closed && !kept {
			s.leftoverErr = err
		}
	} else if y.lease.MayComeLate() && !closed && time.Now().Before(y.until) {
		y.state, y.pause = stayOver, max(2*y.pause, s.cfg.TTL)
		y.timer = time.AfterFunc(y.pause, y.ends)
		return
	}
	delete(s.stays, y)
}

// LingersLocked reports whether a key lingers, or will after the Unlock of its hold (queue.Local).
func (n *localLine) LingersLocked() bool {
	h := n.holdLocked()
	return n.kept != nil ||
		h != nil && h.state == holdWhole && h.m.cfg.Linger > 0 && h.claim.Kind == line.Exclusive &&
			h.place.Recall == nil && h.place.tellsOf(h.claim)
}

// LingeringLocked returns the place whose key lingers, nil if none does (queue.Local).
func (n *localLine) LingeringLocked() *queue.Place {
	if n.kept == nil {
		return nil
	}
	return &n.kept.Place
}

// GiveWayLocked gives up the key that lingers, if one does (queue.Local).
func (n *localLine) GiveWayLocked() {
	if p := n.kept; p != nil {
		n.kept = nil
		p.hold.m.given = p
		p.AbandonLocked(queue.Removal{Lingered: true})
	}
}
