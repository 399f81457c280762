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
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A release gives the key of a hold that has ended whole back to etcd, and its turn to the next
// waiter in the local line, whose key the same transaction puts. The call that has ended the hold
// has counted the release among the lease's.
type release struct {
	ticket.Release
	h      *Hold
	put    *place // for the next waiter in the local line, nil if there is none
	queued bool   // put stands in line
	stay   *stay  // of the key, by WithMinHold; nil if it goes now
}

// unlockLocked is one Unlock of h, which has had as many Locks at least. It unlocks mu.
func (h *Hold) unlockLocked(ctx context.Context) error {
	s := h.m.s
	h.depth--
	if slices.ContainsFunc(h.all, func(o *Hold) bool { return o.depth > 0 }) { // some nest
		err := h.lossLocked()
		s.mu.Unlock()
		return err
	}
	if endedBefore := h.endLocked(errs.Unlocked); !endedBefore {
		h.place.Account.ReleaseLocked() // from here on Close waits
	}
	for _, o := range h.all {
		o.ofHandle.Remove()
	}
	var err error
	if h.state == holdGone {
		err = h.lossLocked()
	}
	var r *release
	frees := h.freesLocked()
	if frees {
		r = h.freeLocked(true)
	}
	s.mu.Unlock()
	if !frees {
		r = h.free(true)
	}
	if r == nil {
		return err
	}
	return r.send(ctx)
}

// free is freeLocked for callers that do not hold mu, and after the contexts have ended.
func (h *Hold) free(spare bool) *release {
	s := h.m.s
	for {
		h.EndContexts()
		s.mu.Lock()
		if h.freesLocked() {
			defer s.mu.Unlock()
			return h.freeLocked(spare)
		}
		s.mu.Unlock()
		h.place.EndContexts()
	}
}

// freesLocked reports whether h, which has ended, may be freed: its contexts have ended and, if it
// is whole and no other hold needs the key, so have the contexts of all holds there. (A lost hold
// does not wait for the others: what removes the key ends their contexts first.)
func (h *Hold) freesLocked() bool {
	return !h.life.Ending() &&
		(h.state == holdGone || h.place.Refs > 1 || h.place.ending.Len() == 0)
}

// freeLocked leaves the key of h, which has ended, to the holds that share it. If spare is set and
// there are none, it keeps the key for the Session's next hold, by WithHandoff or WithLinger. The
// key of a hold that was lost it has removed. In these cases it returns nil, and otherwise the
// release that is to be sent.
func (h *Hold) freeLocked(spare bool) *release {
	s := h.m.s
	if h.state == holdGone {
		h.clearLocked()
		return nil
	}
	for _, o := range h.all {
		o.becomesLocked(holdGone, nil)
	}
	if h.place.Refs > 0 {
		h.reportReleased()
		h.place.local.endTurnLocked(h.claim, nil)
		h.place.Account.ReleasedLocked()
		return nil
	}
	var until time.Time
	if spare && h.mayKeep() && !s.leases.ClosedLocked() {
		if least := h.began.Add(h.m.cfg.MinHold); time.Now().Before(least) {
			until = least
		}
		n := h.place.local
		if until.IsZero() && (n.handOffLocked(h) || n.lingerLocked(h)) {
			h.place.Account.ReleasedLocked()
			return nil
		}
	}
	return h.releaseLocked(until)
}

// mayKeep reports whether the options of h may have its key stay after its Unlock.
func (h *Hold) mayKeep() bool {
	c := h.m.cfg
	return h.claim.Kind == line.Exclusive && (c.Handoff > 0 || c.Linger > 0 || c.MinHold > 0)
}

// releaseLocked begins the release of h, which is to be sent. Its key goes now, or stays until a
// time. Holders that shared the key, and have lost it, may be at work still: then it puts no key.
func (h *Hold) releaseLocked(until time.Time) *release {
	r := &release{h: h}
	if !until.IsZero() {
		r.stay = newStay(h.place, until)
	} else if exclusive := h.claim.Kind == line.Exclusive; len(h.all) == 1 &&
		(exclusive || h.place.local.queue.Sharing() == 0) {
		r.put = h.place.local.nextLocked()
	}
	var next *ticket.Ticket
	if r.put != nil {
		next = &r.put.Ticket
	}
	var others []*ticket.Ticket
	for _, o := range h.all {
		o.place.UnwatchLocked()
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
// If ctx never ends, releaseTime is the bound: an etcd that does not answer would keep the caller
// until the lease has expired, and all that it could learn by then is that the hold is not certain
// any more.
func (r *release) send(ctx context.Context) error {
	s := r.h.m.s
	if ctx.Done() == nil {
		over := &attempt.BoundError{Of: "a release without a deadline", Most: releaseTime(s)}
		bounded, cancel := context.WithTimeoutCause(ctx, over.Most, over)
		defer cancel()
		ctx = bounded
	}
	retry := attempt.Backoff{Policy: attempt.Urgent}
	for {
		done := r.attempt(ctx, &retry)
		var final bool
		var untold []error
		if done.Err != nil {
			// Called without mu: ctx may come from a hold of the Session, whose Err locks mu.
			final = attempt.Refused(done.Err) || ctx.Err() != nil || s.etcd.Closed()
			untold = whyUntold(ctx, done.Err)
		}
		switch verdict, err := r.answered(done, final, untold); verdict {
		case ticket.AgainAlone:
		case ticket.Again:
			if done.Err != nil && retry.Wait(ctx, s.etcd.Caller) != nil {
				return r.giveUp(whyUntold(ctx, done.Err))
			}
		default:
			return err
		}
	}
}

// attempt is one attempt at the release. A key that stays gets its lease first.
func (r *release) attempt(ctx context.Context, retry *attempt.Backoff) etcd.Outcome {
	s := r.h.m.s
	if y := r.stay; y != nil && !r.Moves() && time.Now().Before(y.until) {
		lease, err := y.lease.Grant(ctx, retry, y.until)
		if err != nil {
			return etcd.Unsent(s.etcd.Epoch(), err)
		}
		r.MoveTo(int64(lease))
	}
	var value string
	switch {
	case r.put != nil && r.Together():
		value = r.put.m.cfg.Texts[r.put.Ticket.Kind].Since(time.Now(), r.put.Lease.TTL)
	case r.stay != nil && r.Moves():
		value = r.h.place.kept(r.stay.until)
	}
	done := s.etcd.Commit(ctx, retry, r.Txn(value))
	if done.Err != nil && r.Moves() && attempt.Is(done.Err, rpctypes.ErrLeaseNotFound) {
		r.MoveTo(0) // it took so long that the lease has expired, or etcd was set back
	}
	return done
}

// unconfirmed is the error of a call if etcd did not confirm it in time.
func (r *release) unconfirmed(reasons ...error) error {
	return errs.Failed("unlock", r.h.m.name, append([]error{errs.Unconfirmed}, reasons...)...)
}

// whyUntold is why the outcome of a release is unknown: etcd's error alone, or that and the
// end of ctx.
func whyUntold(ctx context.Context, err error) []error {
	cause := context.Cause(ctx)
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
	s := r.h.m.s
	if r.put != nil {
		r.Read(done.Answer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if done.Err != nil && r.Together() && attempt.Is(done.Err, rpctypes.ErrLeaseNotFound) {
		r.put.Lease.EndRevokedLocked(done.Err) // which p may be on, too
	}
	a := done.Answer
	now := ticket.Now{Final: final, Over: r.stay != nil && !done.Sent.Before(r.stay.until)}
	for _, o := range r.h.all {
		now.Stale = now.Stale || o.place.StaleLocked()
	}
	if !a.Succeeded {
		now.Certain = r.h.certainLocked()
	}
	f := r.Judge(a, now)
	if f.Queued {
		r.queued = true
		r.put.QueuedLocked(f.Ahead, done.Epoch)
	}
	for _, o := range r.h.all {
		switch {
		case o.place.Ticket.State() == ticket.Removed:
			o.place.RemovedLocked()
		case f.Verdict == ticket.Lost, f.Doubt == ticket.TakenAway:
			o.place.AbandonLocked(false)
		}
	}
	if f.Verdict == ticket.Done {
		return f.Verdict, r.overLocked(nil)
	}
	return f.Verdict, r.endsLocked(f, untold)
}

// endsLocked ends a release that is not Done with the error that send returns, unless it is to be
// sent again.
func (r *release) endsLocked(f ticket.Finding, untold []error) error {
	switch f.Verdict {
	case ticket.Again, ticket.AgainAlone:
		return nil
	case ticket.Lost:
		return r.overLocked(r.holdOf(f.Of).lost(errs.OfTicket(f.Reason)))
	}
	switch f.Doubt {
	case ticket.SetBack:
		return r.overLocked(r.unconfirmed(errs.SetBack))
	case ticket.Uncertain:
		return r.overLocked(r.unconfirmed(errs.Expired))
	case ticket.TakenAway:
		return r.overLocked(r.unconfirmed(errs.OfTicket(f.Reason), errs.SomeTime))
	}
	return r.giveUpLocked(untold)
}

// holdOf is the hold whose ticket it is.
func (r *release) holdOf(t *ticket.Ticket) *Hold {
	for _, o := range r.h.all {
		if &o.place.Ticket == t {
			return o
		}
	}
	return r.h
}

// giveUp is giveUpLocked for callers that do not hold mu.
func (r *release) giveUp(untold []error) error {
	r.h.m.s.mu.Lock()
	defer r.h.m.s.mu.Unlock()
	return r.giveUpLocked(untold)
}

// giveUpLocked leaves the key to a removal in the background, now or when its time is over: etcd
// did not answer in time.
func (r *release) giveUpLocked(untold []error) error {
	if y := r.stay; y != nil && time.Now().Before(y.until) {
		y.beginLocked(stayUnsure)
	} else {
		for _, o := range r.h.all {
			o.place.AbandonLocked(true)
		}
	}
	return r.overLocked(r.unconfirmed(untold...))
}

// overLocked notes that the release is over with an error, passes the turn on, and returns the
// error.
func (r *release) overLocked(err error) error {
	h := r.h
	switch y := r.stay; {
	case y == nil || y.state != stayMoving:
	case err == nil && r.Moves():
		y.beginLocked(stayKept)
	default:
		y.giveBackLocked()
	}
	if r.put != nil && !r.queued {
		// The transaction that removes h's key may yet put the next one: the removal of the next
		// one is final only once that is impossible.
		r.put.AfterLocked(&h.place.Place)
		r.put.AbandonLocked(errors.Is(err, errs.Unconfirmed))
		r.put = nil
	}
	h.place.Account.ReleasedLocked()
	for _, h := range h.all {
		if errors.Is(err, errs.Lost) {
			h.reportLost(err)
		} else if h.m.cfg.Hooks.Released != nil {
			h.reportReleased()
		}
		if errors.Is(err, errs.Unconfirmed) {
			h.m.log(slog.LevelWarn, "release not confirmed", "name", h.m.name, "error", err)
		}
		h.place.local.endTurnLocked(h.claim, r.put)
	}
	return err
}

// certainLocked reports whether h, which is being released, is certain: its lease is trusted, and
// its longest time has not passed.
func (h *Hold) certainLocked() bool {
	now, l := time.Now(), h.place.Lease
	l.CheckLocked(now)
	return !l.HasEndedLocked() && (h.most.IsZero() || lease.Before(now, h.most))
}

// releaseContext returns the context that bounds a release that is called with ctx. If ctx has
// ended already it is ignored, and ifEnded is the bound. If it comes from a hold that the
// release ends, it would end with that hold. Then the bounds are its deadline, the end of
// the parent of the hold's context, and releaseTime. (A cancel below the hold's context
// looks the same as the hold's end.)
func releaseContext(
	ctx context.Context, s *Session, ends func(*Hold) bool, ifEnded time.Duration,
) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		over := &attempt.BoundError{Of: "a release whose context had ended", Most: ifEnded}
		return context.WithTimeoutCause(context.WithoutCancel(ctx), ifEnded, over)
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
	most := releaseTime(s)
	over := &attempt.BoundError{Of: "a release whose context ends with the hold", Most: most}
	own, cancel := context.WithTimeoutCause(own, most, over)
	forget := context.AfterFunc(outermost.parent, cancel)
	return own, func() { forget(); cancel(); stop() }
}

// releaseBound is the longest time that Unlock takes if its context had ended before the call, or
// never ends. A shorter TTL takes its place.
const releaseBound = 5 * time.Second

// releaseTime is how long a release may take if its context does not bound it.
func releaseTime(s *Session) time.Duration { return min(s.cfg.TTL, releaseBound) }
