package hold

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A release gives the key of a hold that has ended whole back to etcd, and its turn to the next
// waiter in the local line, whose key the same transaction puts. The call that has ended the hold
// has counted the release among the lease's.
type release struct {
	ticket.Release
	h       *Hold
	unfreed bool   // h is yet to be freed; nothing else is set then
	over    bool   // it has ended
	put     *place // for the next waiter in the local line, nil if there is none
	queued  bool   // put stands in line
	stay    *stay  // of the key, by WithMinHold; nil if it goes now
}

// unlockLocked ends one Lock of h. The caller has taken it off h.depth. The last one ends h, and
// frees it if it may be freed now. It returns the release that is to be sent, or, if there is none,
// what the Unlock returns.
func (h *Hold) unlockLocked() (*release, error) {
	if slices.ContainsFunc(h.all(), func(o *Hold) bool { return o.depth > 0 }) { // some nest
		return nil, h.lossLocked()
	}
	whole := h.endLocked(errs.Unlocked)
	if whole {
		h.place.Account.ReleaseLocked() // from here on Close waits
	}
	if !h.mayFreeLocked() {
		return &release{h: h, unfreed: true}, nil
	}
	return h.freeLocked(true)
}

// free ends the contexts that h, which has ended, waits for, and then calls freeLocked.
func (h *Hold) free(keeps bool) (*release, error) {
	mu := &h.m.s.mu
	mu.Lock()
	defer mu.Unlock()
	for !h.mayFreeLocked() {
		mu.Unlock()
		h.EndContexts()
		h.place.EndContexts()
		mu.Lock()
	}
	return h.freeLocked(keeps)
}

// mayFreeLocked reports whether h, which has ended, may be freed: its contexts have ended and, if
// it is whole and no other hold needs the key, so have the contexts of all holds there. (A lost
// hold does not wait for the others: what removes the key ends their contexts first.)
func (h *Hold) mayFreeLocked() bool {
	return !h.life.Ending() && (h.state == holdGone || h.place.Refs > 1 || h.place.ending.Len() == 0)
}

// freeLocked decides what becomes of the key of h, which has ended:
//
//   - h was lost: the key is removed, and the loss is the error
//   - other holds need it: it stays
//   - keeps is set, and WithHandoff or WithLinger keeps it: the next claim of the Session has it
//   - otherwise it returns the release that is to be sent: of now, or at the end of WithMinHold
func (h *Hold) freeLocked(keeps bool) (*release, error) {
	if h.state == holdGone {
		h.clearLocked()
		return nil, h.lossLocked()
	}
	for _, o := range h.all() {
		o.becomesLocked(holdGone, nil)
	}
	if h.place.Refs > 0 {
		h.reportReleased()
		h.place.local.endTurnLocked(h.claim, nil)
		h.place.Account.ReleasedLocked()
		return nil, nil
	}
	var until time.Time
	if c := h.m.cfg; keeps && h.claim.Kind == line.Exclusive && !h.m.s.leases.ClosedLocked() &&
		(c.Handoff > 0 || c.Linger > 0 || c.MinHold > 0) {
		if least := h.began().Add(c.MinHold); time.Now().Before(least) {
			until = least
		} else {
			kept := h.place.local.keepLocked(h)
			if kept {
				h.place.Account.ReleasedLocked()
				return nil, nil
			}
		}
	}
	return h.releaseLocked(until), nil
}

// releaseLocked begins the release of h, which is to be sent. Its key goes now, or stays until a
// time.
func (h *Hold) releaseLocked(until time.Time) *release {
	r := &release{h: h}
	var next *ticket.Ticket
	if !until.IsZero() {
		r.stay = newStay(h.place, until)
	} else if r.put = h.place.local.nextLocked(h); r.put != nil {
		next = &r.put.Ticket
	}
	var others []*ticket.Ticket
	for _, o := range h.all() {
		o.place.ReleasesLocked()
		if o != h {
			others = append(others, &o.place.Ticket)
		}
	}
	r.Release = h.place.Ticket.Release(next, others...)
	return r
}

// send deletes the key and puts the next one in the same transaction. It returns nil if etcd
// confirmed that the key was there until now, a *LostError if it was not, and an error that is
// ErrUnconfirmed if etcd did not answer in time. Then the key is being removed in the background.
//
// With a nil r there is nothing to send: it returns otherwise. ctx comes from releaseContext.
func (r *release) send(ctx context.Context, otherwise error) error {
	if r == nil {
		return otherwise
	}
	if r.unfreed {
		begun, loss := r.h.free(true)
		return begun.send(ctx, loss)
	}
	s := r.h.m.s
	retry := attempt.Backoff{Policy: attempt.Release, Own: true, Most: attempt.RemovalPause}
	ctx, cancel := sendContext(ctx, s)
	defer func() {
		cancel()
		if !r.over { // as in call.fallOut
			_, _ = r.answered(etcd.Unanswered(s.etcd.Epoch()), true, nil)
		}
	}()
	for {
		done := r.attempt(ctx, &retry)
		var final bool
		var untold []error
		if done.Err != nil {
			// Called without mu: ctx may come from a hold of the Session, whose Err locks mu.
			final = attempt.Refused(done.Err) || done.Err == etcd.ErrUntold || ctx.Err() != nil ||
				s.etcd.Closed() || attempt.Fallen(done.Err) != nil
			untold = whyUntold(ctx, done.Err)
			retry.Policy = attempt.Removal // which sets the pace
		}
		verdict, err := r.answered(done, final, untold)
		if verdict != ticket.Again && verdict != ticket.AgainAlone {
			if err != nil {
				guard.Rethrow(done.Err)
			}
			return err
		}
		if done.Err != nil {
			_ = retry.Wait(ctx, s.etcd.Caller) // the next attempt sees the end of ctx
		}
	}
}

// attempt is one attempt at the release.
func (r *release) attempt(ctx context.Context, retry *attempt.Backoff) etcd.Outcome {
	if r.stay != nil {
		return r.stay.attempt(ctx, retry, &r.Release)
	}
	var value string
	if r.put != nil && r.Together() {
		ttl := r.put.Account.Lease.TTL
		value = r.put.m.cfg.Texts[r.put.Ticket.Kind].Since(time.Now(), ttl, r.put.after)
	}
	return r.h.m.s.etcd.Commit(ctx, retry, r.Txn(value))
}

// unconfirmed is the error of an Unlock that etcd has not confirmed, for some reasons.
func (r *release) unconfirmed(reasons ...error) error {
	return errs.Failed("unlock", r.h.m.name, append([]error{errs.Unconfirmed}, reasons...)...)
}

// whyUntold is why the outcome of a release is unknown: err, which is etcd's, and the end of ctx,
// if that has ended.
func whyUntold(ctx context.Context, err error) []error {
	cause := attempt.Cause(ctx)
	switch {
	case ctx.Err() == nil:
		return []error{err}
	case errors.Is(cause, err): // it says more
		return []error{cause}
	}
	return []error{err, cause}
}

// answered has the ticket judge the answer to a release, and notes what happened to the key and
// the next one. final says that no other attempt is possible, untold why there was no answer.
// Unless the verdict is to send the release again, it is over with the error that send returns.
func (r *release) answered(done etcd.Outcome, final bool, untold []error) (ticket.Verdict, error) {
	a, s := done.Answer, r.h.m.s
	if r.put != nil {
		r.Read(a)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var now ticket.Now // says nothing about a release that was carried out
	if !a.Succeeded {
		r.checkLeasesLocked(done)
		now = r.nowLocked(done, final)
	}
	f := r.Judge(a, now)
	if f.Queued {
		r.queued = true
		ahead := f.Ahead
		r.put.QueuedLocked(&ahead, done.Epoch)
	}
	switch f.Verdict {
	case ticket.Again, ticket.AgainAlone:
		return f.Verdict, nil
	case ticket.Done:
		return f.Verdict, r.overLocked(nil)
	}
	return f.Verdict, r.failsLocked(f, untold)
}

// checkLeasesLocked ends the leases of r's keys whose time is over, or which etcd does not know, as
// an answer says.
func (r *release) checkLeasesLocked(done etcd.Outcome) {
	if done.Err != nil && r.Together() && attempt.Is(done.Err, rpctypes.ErrLeaseNotFound) {
		r.put.Account.Lease.EndRevokedLocked(done.Err) // which h's key may be on, too
	}
	r.h.place.Account.Lease.CheckLocked(time.Now())
}

// nowLocked is what else is known when an answer does not say that the release was carried out.
func (r *release) nowLocked(done etcd.Outcome, final bool) ticket.Now {
	return ticket.Now{
		Certain: r.h.certainLocked(),
		Stale:   slices.ContainsFunc(r.h.all(), func(o *Hold) bool { return o.place.StaleLocked() }),
		Final:   final,
		Over:    r.stay != nil && !done.Sent.Before(r.stay.until),

		Witnessed: !slices.ContainsFunc(r.h.all(), (*Hold).unwitnessedLocked),
	}
}

// unwitnessedLocked reports whether no watch has seen h's key there when its release began.
func (h *Hold) unwitnessedLocked() bool { return !h.place.WitnessedLocked() }

// failsLocked ends a release that has failed, by what its ticket has found, and returns the error
// of the Unlock. untold is why there was no answer.
func (r *release) failsLocked(f ticket.Finding, untold []error) error {
	if f.Verdict == ticket.Lost || f.Doubt == ticket.TakenAway {
		for _, o := range r.h.all() {
			if o.place.Ticket.State() != ticket.Removed {
				o.place.AbandonLocked(queue.Removal{})
			}
		}
	}
	switch {
	case f.Verdict == ticket.Lost:
		return r.overLocked(r.holdOf(f.Of).lost(errs.OfTicket(f.Reason)))
	case f.Doubt == ticket.SetBack:
		return r.overLocked(r.unconfirmed(errs.SetBack))
	case f.Doubt == ticket.Uncertain:
		return r.overLocked(r.unconfirmed(errs.Expired))
	case f.Doubt == ticket.TakenAway:
		return r.overLocked(r.unconfirmed(errs.OfTicket(f.Reason), errs.SomeTime))
	case f.Doubt == ticket.Unwitnessed:
		return r.overLocked(r.unconfirmed(errs.Unwitnessed))
	}
	return r.giveUpLocked(untold)
}

// holdOf is the hold whose ticket it is.
func (r *release) holdOf(t *ticket.Ticket) *Hold {
	for _, o := range r.h.all() {
		if &o.place.Ticket == t {
			return o
		}
	}
	return r.h
}

// giveUpLocked ends a release that etcd did not answer in time. The key is removed in the
// background: from now on, or when the time of its stay is over.
func (r *release) giveUpLocked(untold []error) error {
	if y := r.stay; y != nil && time.Now().Before(y.until) {
		y.beginLocked(stayUnsure)
	} else {
		for _, o := range r.h.all() {
			o.place.AbandonLocked(queue.Removal{Unsure: true})
		}
	}
	return r.overLocked(r.unconfirmed(untold...))
}

// overLocked ends the release with err, nil if it is confirmed, passes the turns on, and returns
// err.
func (r *release) overLocked(err error) error {
	h := r.h
	r.over = true
	if y := r.stay; y != nil && y.state == stayMoving {
		if err == nil && r.Moves() {
			y.beginLocked(stayKept)
		} else {
			y.giveBackLocked()
		}
	}
	if r.put != nil && !r.queued {
		// The transaction that removes h's key may yet put the next one: the removal of the next
		// one is final only once that is impossible.
		r.put.AbandonLocked(queue.Removal{
			Unsure: errors.Is(err, errs.Unconfirmed), After: h.place.Removal,
		})
		r.put = nil
	}
	h.place.Account.ReleasedLocked()
	for _, h := range h.all() {
		h.place.UnwatchLocked()
		if h.place.Ticket.State() == ticket.Removed {
			h.place.RemovedLocked()
		}
		if err != nil || h.m.cfg.Hooks.Released != nil {
			h.reportUnlocked(err)
		}
		h.place.local.endTurnLocked(h.claim, r.put)
	}
	return err
}

// reportUnlocked reports how the release of h has ended.
func (h *Hold) reportUnlocked(err error) {
	if errors.Is(err, errs.Lost) {
		h.reportLost(err)
		return
	}
	h.reportReleased()
	if err != nil {
		h.m.log(slog.LevelWarn, "release not confirmed", "name", h.m.name, "error", err)
	}
}

// certainLocked reports whether h, which is being released, is certain: its lease is trusted, and
// its longest time has not passed.
func (h *Hold) certainLocked() bool {
	now := time.Now()
	return h.place.Account.Lease.Over(now) == nil && !h.bound.over(now)
}

// releaseBound is the longest time that Unlock takes if its context had ended before the call, or
// never ends. A shorter TTL takes its place.
const releaseBound = 5 * time.Second

// releaseContext returns the context that bounds a release that is called with ctx. If ctx has
// ended already it is ignored, and ifEnded is the bound. If it comes from a hold that the
// release ends, it would end with that hold. Then the bounds are its deadline, the end of
// the parent of the hold's context, and releaseBound. (A cancel below the hold's context
// looks the same as the hold's end.) If ctx never ends, it is that: see sendContext.
func releaseContext(
	ctx context.Context, s *Session, ends func(*Hold) bool, ifEnded time.Duration,
) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	most := min(s.cfg.TTL, releaseBound)
	if ctx.Err() != nil {
		own := context.WithoutCancel(ctx)
		return within(own, min(ifEnded, most), "a release whose context had ended")
	}
	var outermost *holdContext
	for c := holdContextOf(ctx); c != nil; c = c.outer() {
		if ends(c.hold) {
			outermost = c
		}
	}
	if outermost == nil {
		return ctx, func() {}
	}
	own := context.WithoutCancel(ctx)
	stop := func() {}
	if deadline, ok := ctx.Deadline(); ok {
		own, stop = context.WithDeadline(own, deadline)
	}
	own, cancel := within(own, most, "a release whose context ends with the hold")
	forget := context.AfterFunc(outermost.parent, cancel)
	return own, func() { forget(); cancel(); stop() }
}

// sendContext bounds a ctx that never ends, for releases that are to be sent: an etcd that does not
// answer would keep the caller until the lease has expired, and all that it could learn by then is
// that the hold is not certain any more.
//
// Do not bound it before: an Unlock that keeps its key sends nothing, and needs no timer.
// (TestLockingAKeyThatLingersAllocatesTwice.)
func sendContext(ctx context.Context, s *Session) (context.Context, context.CancelFunc) {
	if ctx.Done() != nil {
		return ctx, func() {}
	}
	return within(ctx, min(s.cfg.TTL, releaseBound), "a release without a deadline")
}
