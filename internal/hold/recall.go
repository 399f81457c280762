package hold

import (
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// WriteRecall writes request into the value of the key of the contender with a token, by e, which
// was read of it, unless the contender is gone or has a request with no longer a grace. It returns
// the key as it is then, as far as is known. commit sends a transaction, and returns the revision
// at which it has put something, or what its Else has read.
func WriteRecall(
	token int64, e line.Entry, request line.Recall,
	commit func(ticket.Txn) (put int64, read []*mvccpb.KeyValue, err error),
) (line.Entry, error) {
	for {
		if e.Rev != token {
			return e, nil
		}
		if e.Lease == 0 || !e.Value().Recallable {
			return e, errs.NotRecallable
		}
		if earlier, ok := e.Recall(); ok && earlier.Grace <= request.Grace { // or it is this very one
			return e, nil
		}
		value, err := e.Recalled(request)
		if err != nil {
			return e, err
		}
		put, read, err := commit(ticket.Edit(e, value))
		switch {
		case err != nil:
			return e, err
		case put != 0:
			return e.With(value, put), nil
		}
		e, _ = line.Find(read, e.Key)
	}
}

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
	report(&m.s.hooks, m.cfg.Hooks.Recalled, h.claim.call.ctx, Recalled{name, token, r})
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
