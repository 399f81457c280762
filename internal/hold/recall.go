package hold

import (
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
)

// recallState is what a hold that listens has of a recall. That of one that does not is nil.
//
// Invariant: a recalled hold ends by itself. Its contexts end when the grace is over, at the
// latest, and its key goes with its own Unlock, or with its lease. So the next contender gets in
// after the contexts have ended. (Do not remove the key at the end of the grace: a holder that
// works on until it checks its context would do so beside the next one.
// TestTheKeyOfARecalledHoldGoesWithItsUnlock, TestSimulationOfTheFamily.)
type recallState struct {
	requested chan struct{} // closed by the first request

	// Guarded by Session.mu.
	ends  time.Time // of the grace, by the monotonic clock; zero before a request
	end   error     // what ends the contexts then
	timer *time.Timer
}

// noticeLocked begins the grace of h, which has noticed a request now, if it listens: c is its
// recall. A grace that ends later than an earlier one changes nothing.
func (c *recallState) noticeLocked(h *Hold, r line.Recall, now time.Time) {
	m, most := h.m, h.m.cfg.Recall
	ends := now.Add(min(r.Grace, most))
	if c == nil {
		return
	}
	h.checkLocked(now)
	if h.life.Cause(now) != nil || c.end != nil && !ends.Before(c.ends) {
		return
	}
	if c.end == nil {
		close(c.requested)
	}
	c.stopLocked()
	name, token := h.place.Ticket.Name, h.place.Ticket.Rev()
	c.end = errs.RecalledHold(name, token, r)
	c.ends = ends
	h.life.Cap(ends, c.end)
	c.timer = time.AfterFunc(ends.Sub(now), h.check)
	report(&m.s.hooks, m.cfg.Hooks.Recalled, h.told(), Recalled{name, token, r})
	m.log(slog.LevelWarn, "lock recalled", "name", name, "token", token, "by", r.By,
		"reason", r.Reason, "grace", min(r.Grace, most))
	h.checkLocked(now) // it may have none
}

// stopLocked stops the timer.
func (c *recallState) stopLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
