package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A release gives the key of a hold that has ended whole back to etcd, and its turn to the next
// in the local line, whose key is put by the same transaction. Whoever ended the hold has
// counted the release among those of the lease.
type release struct {
	ticket.Release
	h      *hold
	put    *place // of the next in the local line, nil if there is none
	queued bool   // put stands in line
}

// free is freeLocked for callers that do not hold mu.
func (h *hold) free() *release {
	h.m.s.mu.Lock()
	defer h.m.s.unlock()
	return h.freeLocked()
}

// freeLocked keeps the key of h, which has ended whole, for the next hold of the Session, if
// WithHandoff or WithLinger want that, and returns nil. Otherwise it returns the release that is
// to be sent.
func (h *hold) freeLocked() *release {
	if s := h.m.s; !s.closed && (s.passOnLocked(h) || s.lingerLocked(h)) {
		h.place.lease.releasedLocked()
		return nil
	}
	return h.releaseLocked()
}

// release is releaseLocked for callers that do not hold mu.
func (h *hold) release() *release {
	h.m.s.mu.Lock()
	defer h.m.s.unlock()
	return h.releaseLocked()
}

// releaseLocked begins the release of h, which is to be sent.
func (h *hold) releaseLocked() *release {
	r := &release{h: h, put: h.m.s.nextLocked(h.local)}
	var next *ticket.Ticket
	if r.put != nil {
		next = &r.put.ticket
	}
	h.place.unwatchLocked()
	r.Release = h.place.ticket.Release(next)
	return r
}

// send deletes the key, and in the same transaction puts the next one. It returns nil when etcd
// confirmed that the key was there until now; a *LostError if it was not; and an error that is
// ErrUnconfirmed if etcd did not tell in time, after which the key is being removed in the
// background.
func (r *release) send(ctx context.Context) error {
	s := r.h.m.s
	retry := attempt.Backoff{Urgent: true}
	for {
		var value string
		if r.Together() {
			value = r.put.m.cfg.value()
		}
		done := s.commit(ctx, &retry, r.Txn(value))
		// Asked without mu: ctx may come from a hold of the Session, which looks at the clocks.
		final := done.err != nil && (attempt.Refused(done.err) || ctx.Err() != nil || s.clientClosed())
		switch verdict, err := r.answered(done, final, whyUntold(ctx, done)); verdict {
		case ticket.AgainAlone:
		case ticket.Again:
			if done.err != nil && retry.Wait(ctx, s.calls) != nil {
				return r.giveUp(whyUntold(ctx, done))
			}
		default:
			return err
		}
	}
}

// whyUntold is why etcd has not told what came of a release: nothing but its error, or that
// and the end of ctx.
func whyUntold(ctx context.Context, done commit) (reasons []error) {
	if done.err == nil {
		return nil
	}
	reasons = append(reasons, done.err)
	if ctx.Err() != nil {
		reasons = append(reasons, context.Cause(ctx))
	}
	return reasons
}

// answered has the ticket judge the answer to a release, and notes what became of the key and
// of the next one. final says that no other attempt is possible, and untold why there was no
// answer. Unless the verdict is to send it again the release is over, with the error that send
// returns.
func (r *release) answered(done commit, final bool, untold []error) (ticket.Verdict, error) {
	p, s := r.h.place, r.h.m.s
	s.mu.Lock()
	defer s.unlock()
	if r.Together() && done.err != nil && attempt.Is(done.err, rpctypes.ErrLeaseNotFound) {
		r.put.lease.endLocked(because(ErrLeaseRevoked, done.err)) // which p may be on, too
	}
	a := done.answer()
	now := ticket.Now{Stale: p.staleLocked(), Final: final}
	if !a.Succeeded {
		now.Certain = p.certainLocked(r.h.most)
	}
	f := r.Judge(a, now)
	if f.Queued {
		r.queued = true
		r.put.queuedLocked(f.Ahead, done.era)
	}
	switch {
	case p.ticket.State() == ticket.Removed:
		p.removedLocked()
	case f.Verdict == ticket.Lost:
		p.abandonLocked(false)
	}
	switch f.Verdict {
	case ticket.Again, ticket.AgainAlone:
		return f.Verdict, nil
	case ticket.Done:
		return f.Verdict, r.overLocked(nil)
	case ticket.Lost:
		return f.Verdict, r.overLocked(r.h.lost(reasonOf(f.Reason)))
	}
	switch f.Doubt {
	case ticket.SetBack:
		return f.Verdict, r.overLocked(unconfirmed(p.m.name, errSetBack))
	case ticket.Uncertain:
		return f.Verdict, r.overLocked(unconfirmed(p.m.name, ErrExpired))
	}
	return f.Verdict, r.giveUpLocked(untold)
}

// giveUp is giveUpLocked for callers that do not hold mu.
func (r *release) giveUp(untold []error) error {
	r.h.m.s.mu.Lock()
	defer r.h.m.s.unlock()
	return r.giveUpLocked(untold)
}

// giveUpLocked leaves the key to be removed in the background: etcd did not tell in time.
func (r *release) giveUpLocked(untold []error) error {
	r.h.place.abandonLocked(true)
	return r.overLocked(unconfirmed(r.h.m.name, untold...))
}

// overLocked notes that the release is over, with an error that it returns, and passes the turn
// on.
func (r *release) overLocked(err error) error {
	h, s := r.h, r.h.m.s
	if r.put != nil && !r.queued {
		// Its key may yet be put by the transaction that removes this one: only when
		// that cannot be any more is its removal for good.
		r.put.after = h.place.removed
		r.put.abandonLocked(errors.Is(err, ErrUnconfirmed))
		r.put = nil
	}
	h.place.lease.releasedLocked()
	if errors.Is(err, ErrLost) {
		h.reportLocked(err)
	} else {
		h.traceReleased()
	}
	if errors.Is(err, ErrUnconfirmed) {
		h.m.log(slog.LevelWarn, "release not confirmed", "name", h.m.name, "error", err)
	}
	s.passLocked(h.local, r.put)
	return err
}

// certainLocked reports whether a hold at p would be: its lease is trusted, and most, if there
// is one, has not passed.
func (p *place) certainLocked(most time.Time) bool {
	now := time.Now()
	p.lease.checkLocked(now)
	return p.lease.ended == nil && (most.IsZero() || before(now, most))
}
