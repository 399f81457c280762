package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// lostWarning is how long after a loss the logger warns if other claims of the Session wait for the
// Unlock of the lost hold.
const lostWarning = 10 * time.Second

// errSetBack says that etcd was set back since something was learned from it.
var errSetBack = errors.New("etcd was set back: restored, wiped, or another cluster")

// A hold is the time from a Lock to its Unlock.
//
// Invariant: a hold is whole no more before etcd can give the lock to another by expiry: with the
// lease, at trustedUntil.
//
// Invariant: what frees a name (a release, a removal, the revocation of the lease, the next
// turn in the local line) begins only after every context of the hold has been cancelled, and
// with it every context that comes from one of these. The contexts are cancelled without mu,
// so other goroutines may run meanwhile: a call that frees a name calls EndContexts first, and
// does not rely on the call that ended the hold. (Do not free a name in the critical section that
// ends a hold with contexts. TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn.)
type hold struct {
	// Set once, then only read.
	m     *lockHandle
	claim *claim
	place *place
	began time.Time
	most  time.Time   // end by WithMaxHold, zero if there is none
	timer *time.Timer // for most
	alone [1]*hold    // h itself
	all   []*hold     // that begin and end together: the holds of a LockAll, or alone

	// Guarded by Session.mu.
	depth  int                 // Locks that nest, of all Mutexes
	nests  map[*lockHandle]int // reads that nest in it, of other lockHandles than m
	state  holdState           // changed by becomesLocked alone
	cause  error               // of its contexts' end, nil while it is whole
	why    error               // it has ended or is gone, nil before; mostly cause
	recall *recallState        // nil if it does not listen
	warns  *time.Timer         // of a loss that is not unlocked, nil while no claim waits for that
	// contexts are the contexts that have not ended, by their parents. They are fixed once the hold
	// is whole no more, and nil once all have ended.
	contexts map[context.Context]*holdContext
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

// becomesLocked is the one transition of a hold's state. It panics if that would not go on. A hold
// that is whole no more has its contexts ended, with the cause why.
func (h *hold) becomesLocked(next holdState, why error) {
	was := h.state
	if next <= was {
		panic(fmt.Sprintf("etcdlock: hold of %q: %v becomes %v", h.m.name, was, next))
	}
	h.state = next
	if was == holdWhole {
		h.cause = why
		if len(h.contexts) > 0 {
			h.place.Account.EndsLocked(h)
			h.m.s.mu.After(h.EndContexts)
		}
	}
	if was < holdEnded && next >= holdEnded {
		h.why = why
		if h.timer != nil {
			h.timer.Stop()
		}
		h.recall.stopLocked()
	}
	if next == holdGone {
		h.place.Refs--
	}
}

// checkCanBeginLocked returns an error if no hold of c can begin at p now: queue.ErrAnew if the
// place is lost (a hold never begins after its end), errSetBack if the line must be read first.
func (p *place) checkCanBeginLocked(c *claim, now time.Time) error {
	if c.m.s.leases.ClosedLocked() || c.m.closed {
		return ErrClosed
	}
	p.Lease.CheckLocked(now)
	if p.Lease.HasEndedLocked() || p.Ticket.Lost() {
		return queue.ErrAnew
	}
	if p.StaleLocked() {
		return errSetBack
	}
	return nil
}

// newHoldLocked makes the hold of c that begins at p now, where it can. The caller notes in the
// local queue that c has it.
func (p *place) newHoldLocked(c *claim, now time.Time) *hold {
	h := &hold{m: c.m, claim: c, place: p, began: now, depth: 1}
	h.alone[0] = h
	h.all = h.alone[:]
	if most := c.m.cfg.maxHold; most > 0 {
		h.most = h.began.Add(most)
		h.timer = time.AfterFunc(most, func() { h.check() })
	}
	if c.m.cfg.recall > 0 {
		h.recall = &recallState{told: make(chan struct{})}
	}
	p.HoldLocked(p.hold == nil, now)
	p.hold, c.hold, c.place = h, h, p
	if c.exclusive() {
		c.m.hold, c.m.depth = h, 1
	}
	c.local.ahead = line.None
	c.cancel = nil // nothing waits any more
	endsToAskLocked(c)
	h.reportAcquired()
	if c.m.cfg.linger > 0 && c.ahead <= queue.FewAhead && c.exclusive() {
		c.local.WatchLocked(false)
	}
	return h
}

// clearLocked has the key of a hold removed that was lost, and gives its turn to the next waiter in
// the local line, unless other claims share it. The key stays while a hold of one of them needs it.
func (h *hold) clearLocked() {
	for _, h := range h.all {
		h.place.clearLocked()
		h.claim.leaveTurnLocked(nil)
		if h.warns != nil {
			h.warns.Stop()
		}
	}
}

// warnLocked has the logger warn after a while if h, which is lost, is not unlocked: claims of its
// Session wait for that.
func (h *hold) warnLocked() {
	if h.warns != nil {
		return
	}
	h.warns = time.AfterFunc(lostWarning, func() {
		s := h.m.s
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := h.place.local.queue.Waiting(); n > 0 && !s.leases.ClosedLocked() {
			h.m.log(slog.LevelWarn, "a lost hold is not unlocked", "name", h.m.name,
				"token", h.place.Ticket.Rev(), "waiting", n)
		}
	})
}

// clearLocked has p's key removed, if no hold needs it and no release or removal has begun.
func (p *place) clearLocked() {
	if s := p.Ticket.State(); p.Refs == 0 && s != ticket.Leaving && s != ticket.Removed {
		p.AbandonLocked(false)
	}
}

// facts are what is true of a hold at a time. The zero facts say that it has ended.
type facts struct {
	token       int64
	key         string
	ttl, margin time.Duration
	deadline    time.Time // until when it is certain
}

// factsLocked are the facts of h now, which may be nil.
func (h *hold) factsLocked() facts {
	if h == nil || h.checkLocked(time.Now()) != nil {
		return facts{}
	}
	p := h.place
	until := p.Lease.UntilLocked()
	if !h.most.IsZero() && h.most.Before(until) {
		until = h.most
	}
	return facts{
		token: p.Ticket.Rev(), key: p.Ticket.Key, deadline: h.recall.cappedLocked(until),
		ttl: p.Lease.TTL, margin: h.m.s.cfg.marginOf(p.Lease.TTL),
	}
}

// check ends h if its time has passed, and returns why it ended, or nil while it is
// whole. It reads the clocks itself, so that it tells the truth after a pause of
// the process, before any timer has run.
func (h *hold) check() error {
	h.m.s.mu.Lock()
	defer h.m.s.mu.Unlock()
	return h.checkLocked(time.Now())
}

func (h *hold) checkLocked(now time.Time) error {
	h.place.Lease.CheckLocked(now)
	if h.state < holdEnded && !h.most.IsZero() && !before(now, h.most) {
		h.endLocked(ErrMaxHold)
		for _, h := range h.all {
			h.place.clearLocked()
		}
	}
	if h.recall.overLocked(now) {
		for _, o := range h.all {
			if o.state == holdWhole { // (TestTheKeyOfARecalledHoldGoesWithItsUnlock)
				o.becomesLocked(holdRecalled, h.recall.end)
			}
		}
	}
	return h.cause
}

// goesOnLocked is nil while h is whole. Otherwise it is why a call that needs h fails: a LostError,
// a RecalledError, or ErrNotHeld.
func (h *hold) goesOnLocked() error {
	cause := h.checkLocked(time.Now())
	if loss := h.lossLocked(); loss != nil {
		return loss
	}
	if cause == nil || errors.Is(cause, ErrRecalled) {
		return cause
	}
	return ErrNotHeld
}

// before reports whether now is before t by the monotonic and by the wall clock.
func before(now, t time.Time) bool {
	return now.Before(t) && now.Round(0).Before(t.Round(0))
}

// endLocked ends h with cause, unless it has ended. With it end all that began together with it.
func (h *hold) endLocked(cause error) (endedBefore bool) {
	switch {
	case h.state >= holdEnded:
		return true
	case cause == ErrUnlocked || cause == ErrClosed:
		h.becomesLocked(holdEnded, cause) // its owner frees it next
	default:
		h.becomesLocked(holdGone, cause)
		h.reportLost(cause)
		if h.place.local.queue.Waiting() > 0 {
			h.warnLocked()
		}
	}
	for _, o := range h.all {
		o.endLocked(cause)
	}
	return false
}

// EndContexts ends the contexts of h, which has ended itself, and of the holds that ended together
// with it. When it returns they all have ended, and all that come from them, even if other calls do
// the same at that time: to cancel a context is to wait for a cancel of it that is under way.
func (h *hold) EndContexts() {
	for _, h := range h.all {
		h.endOwnContexts()
	}
}

func (h *hold) endOwnContexts() {
	s := h.m.s
	s.mu.Lock()
	cause, contexts := h.cause, h.contexts
	s.mu.Unlock()
	if contexts == nil {
		return
	}
	for _, c := range contexts {
		c.end(cause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.contexts = nil
	h.place.Account.ContextsEndedLocked(h)
}

// holdsLocked are the holds at p, of the claims that have the turn. The last hold to begin is among
// them once it has ended, too.
func (p *place) holdsLocked() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		if p.hold == nil || !yield(p.hold) {
			return
		}
		for c := range p.local.queue.Having() {
			if h := c.hold; h != nil && h.place == p && h != p.hold && !yield(h) {
				return
			}
		}
	}
}

// LostLocked is as in queue.Owner: it ends the holds at p.
func (p *place) LostLocked() {
	for h := range p.holdsLocked() {
		h.endLocked(h.lost(reasonOf(p.Ticket.Taken())))
	}
}

// LeaseEndedLocked is as in queue.Owner: it ends the holds at p.
func (p *place) LeaseEndedLocked(why error) {
	for h := range p.holdsLocked() {
		h.endLocked(h.all[0].lost(why)) // of those that end together it names the first
	}
}

// EndContexts is as in queue.Owner.
func (p *place) EndContexts() {
	p.m.s.mu.Lock()
	open := p.contextsOpenLocked()
	p.m.s.mu.Unlock()
	for _, h := range open {
		h.EndContexts()
	}
}

// contextsOpenLocked reports whether h, or a hold that ends together with it, is whole no more
// while its contexts may not have ended.
func (h *hold) contextsOpenLocked() bool {
	for _, o := range h.all {
		if o.state != holdWhole && o.contexts != nil {
			return true
		}
	}
	return false
}

// contextsOpenLocked are the holds at p that are whole no more while their contexts may not have
// ended.
func (p *place) contextsOpenLocked() (open []*hold) {
	for h := range p.holdsLocked() {
		if h.contextsOpenLocked() {
			open = append(open, h)
		}
	}
	return open
}

// closeLocked ends h for all Mutexes that nest in it.
func (h *hold) closeLocked() (endedBefore bool) {
	h.checkLocked(time.Now())
	for _, o := range h.all {
		o.depth = 0 // its Unlock returns ErrNotHeld
	}
	return h.endLocked(ErrClosed)
}

// reportLost reports a loss to Trace and Logger.
func (h *hold) reportLost(cause error) {
	reason := cause
	if lost, ok := errors.AsType[*LostError](cause); ok {
		reason = lost.Reason
	}
	m, token, held := h.m, h.place.Ticket.Rev(), time.Since(h.began)
	report(&m.s.hooks, m.cfg.trace.Lost, h.claim.caller, LostEvent{m.name, token, held, reason})
	m.log(slog.LevelWarn, "lock lost", "name", m.name, "token", token, "held", held,
		"reason", bare(reason))
}

// reportAcquired reports to Trace that h has begun.
func (h *hold) reportAcquired() {
	c, m := h.claim, h.m
	report(&m.s.hooks, m.cfg.trace.Acquired, h.claim.caller, AcquiredEvent{
		Name: m.name, Token: h.place.Ticket.Rev(), Mode: modeOf(c.Kind),
		Weight: max(1, int(c.Weight)), Waited: h.waited(), Ahead: c.ahead,
	})
}

// waited is how long the call of h has waited for it.
func (h *hold) waited() time.Duration { return h.began.Sub(h.claim.started) }

// reportReleased reports to Trace that h has ended without a loss.
func (h *hold) reportReleased() {
	m, token, held := h.m, h.place.Ticket.Rev(), time.Since(h.began)
	report(&m.s.hooks, m.cfg.trace.Released, h.claim.caller, ReleasedEvent{m.name, token, held})
}

// lost is the LostError of h.
func (h *hold) lost(reason error) *LostError {
	return &LostError{Name: h.m.name, Token: h.place.Ticket.Rev(), Reason: reason}
}

// lossLocked is what Unlock says about h: a LostError, whose reason may be ErrMaxHold,
// or nil if h is whole or its owner ended it.
func (h *hold) lossLocked() error {
	if lost, ok := errors.AsType[*LostError](h.why); ok {
		return lost
	}
	if errors.Is(h.why, ErrMaxHold) {
		return h.lost(ErrMaxHold)
	}
	return nil
}

// countNests counts the reads of m that nest in h, so that Close knows them.
func (h *hold) countNests(m *lockHandle, n int) {
	if m == h.m {
		return
	}
	if h.nests == nil {
		h.nests = make(map[*lockHandle]int)
	}
	if h.nests[m] += n; h.nests[m] == 0 {
		delete(h.nests, m)
	}
}
