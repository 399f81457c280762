package hold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// lostWarning is how long after a loss the logger warns if other claims of the Session wait for the
// Unlock of the lost hold.
const lostWarning = 10 * time.Second

// errDelayed says that the lock delay is not over; see delay.go of internal/queue.
var errDelayed = errors.New("the lock delay is not over")

// A Hold is the time from a Lock to its Unlock.
//
// Invariant: a hold is whole no more before etcd can give the lock to another by expiry: with the
// lease, at trustedUntil. That is the matter of its life, which waits for no mutex. What the
// Session has of the hold, its state, follows as soon as a call or a goroutine looks at it with the
// Session's mutex (checkLocked), and has no bound.
//
// Invariant: what frees a name (a release, a removal, the revocation of the lease, the next
// turn in the local line) begins only after every context of the hold has been cancelled, and
// with it every context that comes from one of these. The contexts are cancelled without mu,
// so other goroutines may run meanwhile: a call that frees a name asks mayFreeLocked first, and
// does not rely on the call that ended the hold. (Do not free a name in the critical section that
// ends a hold with contexts. TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn.)
type Hold struct {
	// Set once, then only read.
	*claim // that has it, with its Lock and its place
	*special
	after time.Duration // after the Since of its place it has begun
	self  [1]*Hold      // h itself
	life  *lease.Life   // of all that begin and end together
	own   lease.Life    // that, of the first of them

	// Guarded by Session.mu.
	depth    int32            // Locks that nest, of all Mutexes; 0 once it was unlocked, or closed
	nested   int32            // those of other Locks than m
	state    holdState        // changed by becomesLocked alone
	end      *end             // nil while there is nothing of it
	atPlace  list.Node[*Hold] // in the holds of its place, until it has ended
	ofHandle list.Node[*Hold] // in the holds of m while that has a Lock in it
}

// A special is what few holds have, by their options and their calls. It is set as a hold begins.
type special struct {
	bound    *bound       // by WithMaxHold, nil if there is none
	together *together    // the holds of a LockAll, nil of one name
	of       *call        // with whose context the Trace is told of its end, nil if it is not
	recall   *recallState // nil if it does not listen
}

// plain is the special of the holds that have nothing of it. It never changes.
var plain special

// specialOf is the special of h, to be changed: h begins.
func specialOf(h *Hold) *special {
	if h.special == &plain {
		h.special = new(special)
	}
	return h.special
}

// An end is what becomes of a hold beside its Unlock.
type end struct {
	contexts list.Node[*Hold] // in the ending holds of its place, while they may go on
	loss     error            // why it has ended or is gone, nil if its owner has ended it
	warns    *time.Timer      // of a loss that is not unlocked, nil while no claim waits for that
}

// ends is the end of h, to be changed.
func (h *Hold) ends() *end {
	if h.end == nil {
		h.end = new(end)
	}
	return h.end
}

// A bound is the longest time of a hold.
type bound struct {
	ends  time.Time
	timer *time.Timer
}

// over reports whether the time of a hold with a bound is over. A nil one is none.
func (b *bound) over(now time.Time) bool { return b != nil && !lease.Before(now, b.ends) }

// together is the holds of a LockAll, in the order of its names: they begin and end together.
type together struct{ holds []*Hold }

// all are the holds that begin and end together with h: those of a LockAll, or h.
func (h *Hold) all() []*Hold {
	if h.together != nil {
		return h.together.holds
	}
	return h.self[:]
}

// A holdState is how far a hold has come. It never goes back, and may leave states out.
type holdState uint8

const (
	holdWhole    holdState = iota // its contexts go on
	holdRecalled                  // its grace is over; it keeps its key until its Unlock
	holdEnded                     // its owner has ended it, and is about to free its key
	holdGone                      // it does not need its key: that was lost, or is freed
)

// String returns the state's name.
func (st holdState) String() string {
	return [...]string{"whole", "recalled", "ended", "gone"}[st]
}

// becomesLocked is the one transition of a hold's state. It panics if that would not go on. The
// life of a hold that is whole no more has ended.
func (h *Hold) becomesLocked(next holdState, why error) {
	was := h.state
	if next <= was {
		panic(fmt.Sprintf("etcdlock: hold of %q: %v becomes %v", h.m.name, was, next))
	}
	h.state = next
	if was == holdWhole && h.life.Ending() {
		h.place.ending.Add(&h.ends().contexts, h)
		if h == h.all()[0] {
			h.m.s.mu.After(h.EndContexts)
		}
	}
	if was < holdEnded && next >= holdEnded {
		h.atPlace.Remove()
		if why != errs.Unlocked && why != errs.Closed {
			h.ends().loss = why
		}
		if h.bound != nil {
			h.bound.timer.Stop()
		}
		if h.recall != nil {
			h.recall.stopLocked()
		}
	}
	if next == holdGone {
		h.place.Refs--
	}
}

// checkCanBeginLocked returns an error if no hold of c can begin at p now: queue.ErrAnew if the
// place is lost (a hold never begins after its end), SetBack if the line must be read first, and
// errDelayed if the lock delay is not over. All ways to a hold ask it.
func (p *place) checkCanBeginLocked(c *claim, now time.Time) error {
	if c.m.s.leases.ClosedLocked() || c.m.closed {
		return errs.Closed
	}
	if p.Account.Lease.Over(now) != nil || p.Ticket.Lost() {
		return queue.ErrAnew
	}
	if p.StaleLocked() {
		return errs.SetBack
	}
	if p.hold == nil && p.local.DelayLocked(now, c.Kind).Lasts > 0 {
		return errDelayed
	}
	return nil
}

// newHoldLocked makes the hold of c that begins at p now, where it can. If first, the first hold of
// several names, is not nil, it shares the life of that. The caller notes in the local queue that c
// has it.
func (p *place) newHoldLocked(c *claim, first *Hold, now time.Time) {
	m, h := c.m, &c.begins
	h.claim, h.special, h.self[0], h.life, h.after, h.depth = c, &plain, h, &h.own, now.Sub(p.Since), 1
	if to := m.cfg.Hooks; to.Released != nil || to.Lost != nil || to.Recalled != nil {
		specialOf(h).of = c.call
	}
	if m.cfg.Recall > 0 {
		specialOf(h).recall = &recallState{requested: make(chan struct{})}
	}
	p.HoldLocked(p.hold == nil, now)
	p.hold, c.hold, c.place, c.queued = h, h, p, c.ahead > 0
	p.holds.Add(&h.atPlace, h)
	m.holds.Add(&h.ofHandle, h)
	c.local.before = nil
	c.endsWaitLocked()
	if first == nil {
		h.own.Begin(p.Account.Lease, h)
	} else {
		h.life = first.life
	}
	if m.cfg.MaxHold > 0 {
		h.boundLocked(now.Add(m.cfg.MaxHold))
	}
	if m.cfg.Hooks.Acquired != nil {
		h.reportAcquired()
	}
	if c.Kind == line.Exclusive {
		m.hold.Store(h)
		if m.cfg.Linger > 0 && c.ahead <= queue.FewAhead {
			c.local.WatchLocked(false)
		}
	}
}

// boundLocked has h, which has just begun, end at a time.
func (h *Hold) boundLocked(ends time.Time) {
	h.life.Cap(ends, errs.MaxHold)
	timer := time.AfterFunc(time.Until(ends), h.check) // which looks at the life
	specialOf(h).bound = &bound{ends, timer}
}

// LostSafe is the cause of the end of h if its lease has ended for why (lease.Mortal). A hold on a
// lease that was closed was not lost.
func (h *Hold) LostSafe(why error) error {
	if why == errs.Closed {
		return errs.Closed
	}
	return h.lost(why)
}

// began is when h has begun.
func (h *Hold) began() time.Time { return h.place.Since.Add(h.after) }

// Token is the fencing token of h. It stays the same once h has ended.
func (h *Hold) Token() int64 { return h.place.Ticket.Rev() }

// TTL is that of the lease of h, as granted.
func (h *Hold) TTL() time.Duration { return h.place.Account.Lease.TTL }

// Recalled is closed once h is recalled, nil if h does not listen.
func (h *Hold) Recalled() <-chan struct{} {
	if h.recall == nil {
		return nil
	}
	return h.recall.requested
}

// KeySafe is the key of h, or one of them (lease.Mortal).
func (h *Hold) KeySafe() string { return h.place.Ticket.Key }

// OverSafe has h follow soon that its time is over (lease.Mortal).
func (h *Hold) OverSafe() { time.AfterFunc(0, h.check) }

// clearLocked has the key of a hold removed that was lost, and gives its turn to the next waiter in
// the local line, unless other claims share it. The key stays while a hold of one of them needs it.
func (h *Hold) clearLocked() {
	for _, h := range h.all() {
		h.place.removeUnneededLocked()
		h.place.local.endTurnLocked(h.claim, nil)
		if h.end != nil && h.end.warns != nil {
			h.end.warns.Stop()
		}
	}
}

// warnLocked has the logger warn after a while if h, which is lost, is not unlocked: claims of its
// Session wait for that.
func (h *Hold) warnLocked() {
	if h.ends().warns != nil {
		return
	}
	h.end.warns = time.AfterFunc(lostWarning, func() {
		s := h.m.s
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := h.place.local.queue.Waiting(); n > 0 && !s.leases.ClosedLocked() {
			h.m.log(slog.LevelWarn, "a lost hold is not unlocked", "name", h.m.name,
				"token", h.place.Ticket.Rev(), "waiting", n)
		}
	})
}

// removeUnneededLocked has p's key removed, unless a hold needs it, or it is being removed or
// released.
func (p *place) removeUnneededLocked() {
	if s := p.Ticket.State(); p.Refs == 0 && s != ticket.Leaving && s != ticket.Removed {
		p.AbandonLocked(queue.Removal{})
	}
}

// A Status is what is true of a hold now. The zero Status says that there is no hold.
type Status struct {
	Held              bool
	Token             int64
	Key               string
	Deadline          time.Time
	TTL, SafetyMargin time.Duration
}

// Status is what is true of h now; h may be nil. It does not wait for the Session's mutex.
func (h *Hold) Status() Status {
	if h == nil {
		return Status{}
	}
	until := h.life.Until(time.Now())
	if until.IsZero() {
		return Status{}
	}
	p := h.place
	return Status{
		Held: true, Token: p.Ticket.Rev(), Key: p.Ticket.Key, Deadline: until,
		TTL: p.Account.Lease.TTL, SafetyMargin: h.m.s.cfg.MarginOf(p.Account.Lease.TTL),
	}
}

// check ends h if its time has passed. Its contexts end first: they do not wait for the mutex.
func (h *Hold) check() {
	if h.life.Cause(time.Now()) != nil {
		h.life.EndContexts()
	}
	h.m.s.mu.Lock()
	defer h.m.s.mu.Unlock()
	h.checkLocked(time.Now())
}

// checkLocked has the state of h, and of all that began together with it, follow what has happened
// to its life, its lease, its keys and its Session. It comes before the questions about h.
func (h *Hold) checkLocked(now time.Time) {
	cause := h.life.Cause(now)
	lost := slices.IndexFunc(h.all(), func(o *Hold) bool { return o.place.Ticket.Lost() })
	has := happened{closed: h.m.s.leases.ClosedLocked(), keyLost: lost >= 0}
	if cause == nil && !has.keyLost && !has.closed {
		return // the life ends with the lease, and with the longest time of h
	}
	l := h.place.Account.Lease
	l.CheckLocked(now)
	has.leaseOver = l.HasEndedLocked()
	has.timeOver = cause == errs.MaxHold || h.bound.over(now)
	switch endOf(h.state, has) {
	case byClose:
		whole := h.closeLocked()
		if whole {
			for _, o := range h.all() {
				o.reportClosed() // its key goes with the lease
			}
		}
	case byLease:
		h.endLocked(h.all()[0].LostSafe(l.WhyLocked())) // it names the first
	case byKey:
		o := h.all()[lost]
		h.endLocked(o.lost(errs.OfTicket(o.place.Ticket.Loss())))
	case byTime:
		h.endLocked(errs.MaxHold)
		for _, o := range h.all() {
			o.place.removeUnneededLocked()
		}
	case byRecall:
		for _, o := range h.all() {
			o.becomesLocked(holdRecalled, cause)
		}
	}
}

// happened is what has happened to a hold, or to one that began with it. If it is none of these,
// the grace of a recall is over.
type happened struct {
	closed    bool // its Session
	leaseOver bool
	keyLost   bool
	timeOver  bool // that of WithMaxHold
}

// An endBy is what ends a hold.
type endBy uint8

const (
	byNothing endBy = iota // its state is as it was
	byClose
	byLease
	byKey
	byTime
	byRecall // which ends its contexts alone
)

// endOf is the table of what ends a hold in a state: testdata/ends.txt has it printed.
func endOf(st holdState, has happened) endBy {
	switch {
	case has.closed:
		return byClose // of a hold that has ended, too: no Lock is left in it
	case st >= holdEnded:
		return byNothing
	case has.leaseOver:
		return byLease
	case has.keyLost:
		return byKey
	case has.timeOver:
		return byTime // of a recalled hold, too: then its key goes
	case st == holdWhole: // (TestTheKeyOfARecalledHoldGoesWithItsUnlock)
		return byRecall
	}
	return byNothing
}

// goesOnLocked is nil while h is whole. Otherwise it is why a call that needs h fails: a LostError,
// a RecalledError, or ErrNotHeld.
func (h *Hold) goesOnLocked(now time.Time) error {
	cause := h.life.Cause(now)
	if loss := h.lossLocked(); loss != nil {
		return loss
	}
	if cause == nil || errors.Is(cause, errs.Recalled) {
		return cause
	}
	return errs.NotHeld
}

// endLocked ends h with cause, unless it has ended, and all that began together with it. If its
// life has ended before, by its lease or its own time, that is the cause. It reports whether h was
// whole until now, and its owner is to free it.
//
// (Do not rely on an earlier look. The time of a hold may be over since.
// TestAHoldWhoseTimeIsOverAsItEndsIsLost.)
func (h *Hold) endLocked(cause error) (whole bool) {
	if h.state >= holdEnded {
		return false
	}
	if h.state == holdWhole {
		if first := h.life.End(cause); !errors.Is(first, errs.Recalled) {
			cause = first
		}
	}
	for _, o := range h.all() {
		if cause == errs.Unlocked || cause == errs.Closed {
			o.becomesLocked(holdEnded, cause) // its owner frees it next
			continue
		}
		if o != h {
			h.m.s.mu.Touch(1)
		}
		o.becomesLocked(holdGone, cause)
		o.reportLost(cause)
		if o.place.local.queue.Waiting() > 0 {
			o.warnLocked()
		}
	}
	return h.state == holdEnded
}

// EndContexts ends the contexts of h, which has ended itself, and of the holds that ended together
// with it. When it returns they all have ended, and all that come from them, even if other calls do
// the same at that time: to cancel a context is to wait for a cancel of it that is under way.
func (h *Hold) EndContexts() {
	h.life.EndContexts()
	s := h.m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range h.all() {
		if o.end != nil {
			o.end.contexts.Remove()
		}
	}
}

// EndsLocked ends the holds at p, a few of them now, and the rest soon (queue.Owner).
func (p *place) EndsLocked() {
	now := time.Now()
	for range guard.Few {
		h, some := p.holds.First()
		if !some {
			return
		}
		h.checkLocked(now)
		if h.life.Cause(now) == nil {
			return
		}
	}
	if p.holds.Len() > 0 && !p.settling {
		p.settling = true
		p.m.s.tasks.Go(p.settle)
	}
}

// settle goes on with EndsLocked.
func (p *place) settle() {
	mu := &p.m.s.mu
	guard.Pieces(mu, p.holds.Firsts(), func(h *Hold) {
		h.checkLocked(time.Now())
		h.atPlace.Remove()
	})
	mu.Lock()
	defer mu.Unlock()
	p.settling = false
}

// EndContexts ends the contexts of all holds that have ended at p (queue.Owner).
func (p *place) EndContexts() {
	for {
		p.m.s.mu.Lock()
		h, some := p.ending.First()
		p.m.s.mu.Unlock()
		if !some {
			return
		}
		h.EndContexts()
	}
}

// closeLocked ends h for all Mutexes that nest in it.
func (h *Hold) closeLocked() (whole bool) {
	whole = h.endLocked(errs.Closed)
	for _, o := range h.all() {
		o.depth = 0 // its Unlock returns ErrNotHeld
		o.ofHandle.Remove()
	}
	return whole
}

// reportLost reports a loss to Trace and Logger.
func (h *Hold) reportLost(cause error) {
	reason := errs.ReasonOf(cause)
	m, token, held := h.m, h.place.Ticket.Rev(), time.Since(h.began())
	report(&m.s.hooks, m.cfg.Hooks.Lost, h.told(), Lost{m.name, token, held, reason})
	m.log(slog.LevelWarn, "lock lost", "name", m.name, "token", token, "held", held,
		"reason", strings.TrimPrefix(reason.Error(), "etcdlock: "))
}

// told is the context with which the Trace is told of h.
func (h *Hold) told() context.Context {
	if h.of == nil {
		return context.Background() // and no hook is called
	}
	return h.of.ctx
}

// reportAcquired reports to Trace that h has begun.
func (h *Hold) reportAcquired() {
	c, m := h.claim, h.m
	report(&m.s.hooks, m.cfg.Hooks.Acquired, c.call.ctx, Acquired{
		Name: m.name, Token: h.place.Ticket.Rev(), Kind: c.Kind,
		Weight: max(1, int(c.Weight)), Waited: h.began().Sub(c.call.started), Ahead: c.ahead,
	})
}

// reportReleased reports to Trace that h has ended without a loss.
func (h *Hold) reportReleased() { h.reportReleasedIn(h.told()) }

// reportClosed is reportReleased of an h that the end of its Session has ended: its owner did not.
func (h *Hold) reportClosed() {
	h.reportReleasedIn(context.WithValue(h.told(), events.ByClose{}, true))
}

func (h *Hold) reportReleasedIn(ctx context.Context) {
	m, token, held := h.m, h.place.Ticket.Rev(), time.Since(h.began())
	report(&m.s.hooks, m.cfg.Hooks.Released, ctx, Released{m.name, token, held})
}

// lost is the LostError of h.
func (h *Hold) lost(reason error) error {
	return errs.LostHold(h.m.name, h.place.Ticket.Rev(), reason)
}

// lossLocked is what Unlock says about h: a LostError, whose reason may be ErrMaxHold,
// or nil if h is whole or its owner ended it.
func (h *Hold) lossLocked() error {
	switch {
	case h.end == nil:
	case errors.Is(h.end.loss, errs.Lost):
		return h.end.loss
	case errors.Is(h.end.loss, errs.MaxHold):
		return h.lost(errs.MaxHold)
	}
	return nil
}
