package hold

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/ask"
	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A Request is what a call asks for.
type Request struct {
	line.Shape
	Try  bool // TryLock, or one like it: it waits for no other contender
	Runs bool // Do, or one like it: if it gets no hold, its error is ErrNotRun

	Unbounded bool // WithAcquireTimeout does not count
}

// A call is one call that locks. It has one claim, or one for each name of a LockAll, in their
// order. What only several claims need is in lockall.go.
//
// Invariant: all keys of a call have one revision, and a call that has keys waits only for keys of
// lower revisions. A call without keys waits only for earlier ones of its Session: it enters all
// its local lines in one critical section, and puts its keys, in one transaction, once it owns the
// turns of all. So no call waits in a circle. A key of the Session that is handed off, lingers, or
// is put with a release has a revision of its own: LockAll never gets one. (Do not put a key while
// another claim waits for its turn, and do not take one over. TestSeveralNamesNeverWaitInACircle,
// TestLockAllTakesOverNoKey.)
type call struct {
	// Set once, then only read.
	Request
	s        *Session
	cfg      *Config
	first    *claim // of claims
	claims   []*claim
	together bool  // it is a LockAll, perhaps of one name
	after    int64 // the token of the hold within which it is; see Lock.within
	ctx      context.Context
	started  time.Time

	keys ticket.Put // of the places that were taken, until it is known whether they are put

	cancel context.CancelCauseFunc // of its wait, nil once that is over; guarded by Session.mu

	one  wait // that of a call for one name
	self [1]*claim
}

// newCall is a call for one name that has not started. Its claim is in no queue yet.
func newCall(m *Lock, w Request, after int64) *call {
	c := &call{Request: w, s: m.s, cfg: m.cfg, after: after}
	c.self[0] = newClaim(&c.one, c, m)
	c.first, c.claims = c.self[0], c.self[:]
	return c
}

// A claim asks for one name: by its turn in the local line and its place in etcd's line, until it
// has a hold. Then it goes on as what has the turn, until the hold is unlocked.
type claim struct {
	// Set by the call, and cleared as it returns.
	*wait

	// Set once, then only read.
	m     *Lock
	local *localLine
	line.Shape
	queued bool // contenders were ahead of it; set with its hold

	// Guarded by Session.mu. While the claim owns the turn, and does not hold, only the goroutine
	// of the call changes its place and its hold, and reads them without mu.
	place  *place              // in etcd's line, nil while it has none; it may have been given up
	hold   *Hold               // the one that it got, which its waiter has; it stays here
	waiter home.Waiter[*claim] // in the line's queue; its Standing is the state of the claim
	begins Hold                // what hold points to, if not nil
}

// A wait is what a claim has until its call has returned.
//
// Invariant: once a claim has a hold, only the goroutine of its call looks at its wait. What lasts
// is in the claim and in the Hold, so a call that has returned takes no memory
// (TestWhatASessionTakes), unless the Trace is to be told of the end of its hold.
type wait struct {
	// Set once, then only read.
	call *call
	turn chan struct{} // tells that its turn has come; nil if it had it at once

	// Owned by the goroutine of the call.
	queue.Waiter
	ahead int // contenders ahead of the claim when it queued

	// Guarded by Session.mu.
	asks                *ask.Wait         // nil while it asks nobody
	ofSession, ofHandle list.Node[*claim] // in the waits of its Session and of its Lock
	trying              list.Node[*claim] // in the tries of its line
}

// newClaim returns the claim of a call for m, which waits by w.
func newClaim(w *wait, of *call, m *Lock) *claim {
	c := &claim{wait: w, m: m, Shape: of.Shape}
	c.call, c.Try, c.waiter.Try, c.waiter.Value = of, of.Try, of.Try, c
	c.waiter.Shares, c.waiter.Steps = c.Kind == line.Read, c.Kind == line.Permit
	return c
}

// reads reports whether c is of RLock or TryRLock.
func (c *claim) reads() bool { return c.Kind == line.Read }

// lostLocked reports whether c has a hold that is lost and not unlocked.
func (c *claim) lostLocked() bool { return c.hold != nil && c.hold.lossLocked() != nil }

// contenderLocked is c as other contenders see it: its place, once its key is there and while its
// hold is not lost. (Do not tell a lost key: another process may hold.
// TestALostHoldIsNotToldAsTheHolder.)
func (c *claim) contenderLocked() Contender {
	if c.place != nil && c.place.Ticket.Rev() != 0 && !c.lostLocked() {
		return c.place.contender()
	}
	who := c.m.contender()
	who.Mode = c.Kind.String()
	return who
}

// enterLocked brings c into its line by a way.
func (c *claim) enterLocked(way home.Way) {
	n := c.local
	if c.call.cancel != nil {
		n.s.waits.addLocked(c)
		c.m.waits.Add(&c.ofHandle, c)
	}
	switch way {
	case home.Owns:
		if n.kept != nil {
			n.GiveWayLocked()
		}
		n.queue.Enter(&c.waiter)
	case home.Waits:
		c.beginsToWaitLocked()
	case home.Steps:
		n.queue.Enter(&c.waiter)
		n.queue.Admit()
	case home.Joins:
		n.queue.Owner().place.newHoldLocked(c, nil, time.Now())
		n.queue.Enter(&c.waiter)
		n.queue.Admit()
		n.JoinedLocked()
	case home.TakesOver:
		n.kept.newHoldLocked(c, nil, time.Now())
		n.kept = nil
		n.queue.Enter(&c.waiter)
		n.queue.Hold(&c.waiter)
	}
	n.MarkLocked()
}

// beginsToWaitLocked has c wait for its turn.
func (c *claim) beginsToWaitLocked() {
	n := c.local
	n.checkOwnerLocked()
	busy := n.busyLocked(nil, c.Kind)
	if busy.Lost != 0 {
		n.firstLocked().hold.warnLocked()
	}
	if c.Try {
		if n.tries == nil {
			n.tries = new(list.List[*claim])
		}
		n.tries.Add(&c.trying, c)
	} else {
		c.ahead = busy.Ahead
		c.reportQueued(busy)
	}
	c.turn = make(chan struct{}, 1)
	n.queue.Enter(&c.waiter)
	c.beginsToAskLocked()
}

// reportQueued reports to Trace that c waits behind others. A holder takes parsing, so it is made
// only for a hook. (TestAWaitWithoutAHookParsesNoHolder.)
func (c *claim) reportQueued(behind *Busy) {
	if m := c.m; m.cfg.Hooks.Queued != nil {
		report(&m.s.hooks, m.cfg.Hooks.Queued, c.call.ctx, Queued{m.name, c.ahead, behind.Holder()})
	}
}

// behindLocked is what c, which waits, is behind, as far as it is known.
func (c *claim) behindLocked() *Busy {
	n := c.local
	if c.waiter.Standing() == home.Waiting {
		return n.busyLocked(&c.waiter, c.Kind)
	}
	ahead := n.ahead() // as the owner before it has seen it
	if p := c.place; p != nil && p.Ticket.Rev() != 0 {
		ahead = *p.Ahead
	}
	return n.busyBehindLocked(ahead, n.DelayLocked(time.Now(), c.Kind))
}

// leaveLocked takes c out of the local line after its wait has ended, or passes its turn on. locked
// is what was ahead of it. If c got a hold at the same moment it keeps the hold, and leaveLocked
// returns it: other holds may share its key by now.
func (c *claim) leaveLocked() (h *Hold, locked *Busy) {
	n, p := c.local, c.place
	c.endsWaitLocked()
	if c.waiter.Standing() == home.Waiting {
		n.checkOwnerLocked()
		locked = n.busyLocked(&c.waiter, c.Kind)
	}
	switch n.queue.Leave(&c.waiter) {
	case home.Waiting:
		c.trying.Remove()
		n.MarkLocked() // the waiters behind it may join a cohort
	case home.Next: // the release that is under way passes its turn on
		locked = n.aheadLocked(c.Kind)
	case home.Owner:
		if p != nil && p.GivenUpLocked() { // it was given up
			if p.Ticket.Rev() != 0 {
				n.before = p.Ahead
			}
			p = nil
		}
		c.place = nil
		locked = n.aheadLocked(c.Kind)
		n.endTurnLocked(c, p)
	default:
		return c.hold, nil
	}
	return nil, locked
}

// hasTurnLocked tells c that its turn has come, with the place that was put for it or nil.
func (c *claim) hasTurnLocked(put *place) {
	c.trying.Remove()
	c.place = put
	c.turn <- struct{}{}
}

// endsWaitLocked notes that c and its call wait no more, so nothing has to end their waits.
func (c *claim) endsWaitLocked() {
	c.call.cancel = nil
	if c.asks != nil {
		c.endsToAskLocked()
	}
	c.ofSession.Remove()
	c.ofHandle.Remove()
}

// beginsToAskLocked notes that c waits from now on, if it is to ask.
//
// Invariant: a claim that is to ask does so while it waits, for its turn or behind others in etcd's
// line: until it has a hold, or has left. The critical section that decides on the one decides on
// the other. So no request is made for a wait that is over, and a hold is never asked for its own
// wait. (Do not count the waits where the call returns: the hold has begun before that.
// TestAWaitThatIsOverAsksNobody.)
func (c *claim) beginsToAskLocked() {
	n, s := c.local, c.m.s
	if c.m.cfg.Ask == nil || c.Try || c.asks != nil || s.leases.ClosedLocked() {
		return
	}
	if n.asking == nil {
		n.asking = ask.New(ask.Session{
			Ctx: s.ctx, Etcd: s.etcd, Keys: s.keys, Mu: &s.mu, Tasks: s.tasks, TTL: s.cfg.TTL,
		}, n.Name, n)
	}
	m := c.m
	c.asks = n.asking.BeginLocked(*m.cfg.Ask, func(err error) {
		m.log(slog.LevelWarn, "holder not asked to give way", "name", m.name, "error", err)
	})
}

// endsToAskLocked notes that c, which asks, does not wait any more.
func (c *claim) endsToAskLocked() {
	over := c.local.asking.EndLocked(c.asks)
	c.asks = nil
	if over {
		c.local.asking = nil
	}
}

// cancelLocked ends the wait of c and its call, unless it is over.
func (c *claim) cancelLocked(cause error) {
	if cancel := c.call.cancel; cancel != nil {
		c.m.s.mu.After(func() { cancel(cause) })
	}
	c.endsWaitLocked()
}

// refuseLocked ends the wait of c, which waits for no other contender.
func (c *claim) refuseLocked(why *refusal) {
	c.trying.Remove()
	c.cancelLocked(why)
}

// mostTold is how often a wait is told at most: the last time after a year.
const mostTold = 21

// lasting are the claims of a Session that wait. Each list has the claims that were told as often,
// in the order of their calls: the first one is due first. One timer serves all. A wait that is
// over sooner costs no timer, and to tell one takes as long beside 20,000 others. Session.mu guards
// it.
type lasting struct {
	told  []*list.List[*claim] // by how often, up to the most that there were
	timer *time.Timer          // nil before the first wait that is to be told
	armed bool                 // the timer runs, or what it calls
}

// addLocked adds c, which begins to wait.
func (w *lasting) addLocked(c *claim) {
	w.putLocked(0, c)
	switch tells := c.m.cfg.Logger != nil || c.m.cfg.Hooks.Waiting != nil; {
	case w.armed || !tells:
		return
	case w.timer == nil:
		s := c.m.s
		w.timer = time.AfterFunc(events.Lasts, func() { w.tell(s) })
	default:
		w.timer.Reset(events.Lasts)
	}
	w.armed = true
}

// putLocked puts c among the waits that were told n times.
func (w *lasting) putLocked(n int, c *claim) {
	for len(w.told) <= n {
		w.told = append(w.told, new(list.List[*claim]))
	}
	w.told[n].Add(&c.ofSession, c)
}

// stopLocked stops the timer for good: the Session is closed.
func (w *lasting) stopLocked() {
	w.armed = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// firsts yields a wait that is the first of its list, again and again, until there is none. The
// caller removes each.
func (w *lasting) firsts() iter.Seq[*claim] {
	return func(yield func(*claim) bool) {
		for i := 0; i < len(w.told); {
			switch first, ok := w.told[i].First(); {
			case !ok:
				i++
			case !yield(first):
				return
			}
		}
	}
}

// nextLocked is the wait that is due first, how often it was told, and when it is due. Without one
// c is nil.
func (w *lasting) nextLocked() (c *claim, n int, due time.Time) {
	for i, told := range w.told[:min(len(w.told), mostTold)] {
		if first, ok := told.First(); ok {
			if at := first.call.started.Add(events.Lasts << i); c == nil || at.Before(due) {
				c, n, due = first, i, at
			}
		}
	}
	return c, n, due
}

// due yields the waits that are due, each as it is told once more.
func (w *lasting) due() iter.Seq[*claim] {
	return func(yield func(*claim) bool) {
		for {
			c, n, due := w.nextLocked()
			if c == nil || time.Now().Before(due) {
				return
			}
			w.putLocked(n+1, c)
			if !yield(c) {
				return
			}
		}
	}
}

// tell tells of the waits of s that are due, and sets the timer for the next one.
func (w *lasting) tell(s *Session) {
	guard.Pieces(&s.mu, w.due(), tellLocked)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases.ClosedLocked() {
		return
	}
	c, _, due := w.nextLocked()
	if w.armed = c != nil; c != nil {
		w.timer.Reset(time.Until(due))
	}
}

// tellLocked tells the logger and the Trace that c has waited for long, and what it waits for as
// far as it knows: no request is made for that. A call that only tries waits for no other
// contender, and of several names some may have nothing ahead.
//
// (Do not parse the holder here, with the mutex held.)
func tellLocked(c *claim) {
	c.local.checkOwnerLocked()
	m, waited, behind := c.m, time.Since(c.call.started), c.behindLocked()
	if c.Try || behind.Ahead == 0 && c.call.together {
		return
	}
	m.s.hooks.Run(func() {
		e, since := Waiting{m.name, waited, behind.Ahead, behind.Holder()}, ""
		if !e.Holder.Since.IsZero() {
			since = e.Holder.Since.Format(time.RFC3339)
		}
		m.log(slog.LevelInfo, "a wait lasts", "name", m.name, "waited", waited.Round(time.Millisecond),
			"ahead", e.Ahead, "holder", e.Holder.Owner, "since", since, "key", e.Holder.Key)
		if m.cfg.Hooks.Waiting != nil {
			m.cfg.Hooks.Waiting(c.call.ctx, e)
		}
	})
}
