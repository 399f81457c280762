package etcdlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
)

// RecallFrom returns a channel that is closed once the innermost hold that ctx came from is
// recalled. The holder then has the grace of the request to come to a good point and unlock;
// [Mutex.Deadline], or [Hold.Deadline], says until when. It is nil, and a receive from it blocks
// for ever, if ctx comes from no hold, or from one that does not listen (see [WithRecall]). The
// channel stays as it is when the hold ends otherwise: wait for the end of ctx, too.
func RecallFrom(ctx context.Context) <-chan struct{} {
	if ctx == nil {
		return nil
	}
	c := holdContextOf(ctx)
	if c == nil || c.hold.recall == nil {
		return nil
	}
	return c.hold.recall.told
}

// recallState is what a hold that listens has of a recall. That of one that does not is nil.
//
// Invariant: whoever is recalled ends by itself. Its context ends when the grace is over, at the
// latest, and its key goes with its own Unlock after that, or with its lease. So the next one gets
// in after the context has ended, or has been unlocked. (Do not remove the key at the end of the
// grace: whoever works on until it looks would do so beside the next one.
// TestTheKeyOfARecalledHoldGoesWithItsUnlock, TestNobodyBelievesBesideARecalledHold.)
type recallState struct {
	told chan struct{} // closed by the first request

	// Guarded by Session.mu.
	ends  time.Time      // of the grace, by the monotonic clock; zero before a request
	end   *RecalledError // what ends the contexts then
	timer *time.Timer
}

// noteRecallLocked notes what e, which is p's key as it was read or as an event has told it, says of a
// recall. Of several requests the one with the shortest grace counts.
func (p *place) noteRecallLocked(e line.Entry) {
	if !p.listens() {
		return
	}
	r, ok := e.Recall()
	if !ok || p.recall != nil && p.recall.Grace <= r.Grace {
		return
	}
	p.recall = &r
	p.markLocked()
	if p.lingersLocked() {
		p.local.giveWayLocked()
		return
	}
	now := time.Now()
	for h := range p.holdsLocked() {
		h.recallLocked(r, now)
	}
}

// recallLocked begins the grace of h, which has noticed a request now, if it listens. One that ends
// later than that of an earlier request changes nothing.
func (h *hold) recallLocked(r line.Recall, now time.Time) {
	c, most := h.recall, h.m.cfg.recall
	ends := now.Add(min(r.Grace, most))
	if c == nil || h.checkLocked(now) != nil || c.end != nil && !ends.Before(c.ends) {
		return
	}
	if c.end == nil {
		close(c.told)
	}
	c.stopLocked()
	name, token := h.place.ticket.Name, h.place.ticket.Rev()
	c.ends, c.end = ends, &RecalledError{Name: name, Token: token, By: r.By, Reason: r.Reason}
	c.timer = time.AfterFunc(ends.Sub(now), func() { h.check() })
	h.m.trace().recalled(name, token, requestOf(r))
	h.m.log(slog.LevelWarn, "lock recalled", "name", name, "token", token, "by", r.By,
		"reason", r.Reason, "grace", min(r.Grace, most))
	h.checkLocked(now) // it may have none
}

// stopLocked stops the timer.
func (c *recallState) stopLocked() {
	if c != nil && c.timer != nil {
		c.timer.Stop()
	}
}

// overLocked reports whether a request has come, and its grace is over.
func (c *recallState) overLocked(now time.Time) bool {
	return c != nil && c.end != nil && !now.Before(c.ends)
}

// cappedLocked is until, or the end of the grace if that is sooner.
func (c *recallState) cappedLocked(until time.Time) time.Time {
	if c != nil && c.end != nil && c.ends.Before(until) {
		return c.ends
	}
	return until
}
