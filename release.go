package etcdlock

import (
	"context"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// release does what r says, which deletes p's key, and in the same transaction puts that of
// next, if that is not nil. It returns nil when etcd confirmed that the key was there until
// now; a *LostError if it was not; and an error that is ErrUnconfirmed if etcd did not tell in
// time, after which the key is being removed in the background. next is queued after it if
// nextQueued.
//
// The hold is certain while its lease is renewed, and until most, the end of the longest hold,
// which may be zero for none.
func (p *place) release(
	ctx context.Context, most time.Time, r *ticket.Release, next *place,
) (nextQueued bool, err error) {
	s := p.s
	var retry attempt.Backoff
	for {
		var value string
		if r.Together() {
			value = next.m.cfg.value()
		}
		done := s.commit(ctx, &retry, r.Txn(value))
		final := done.err != nil && (attempt.Refused(done.err) || ctx.Err() != nil || s.clientClosed())
		f := p.released(r, done, most, final, next)
		nextQueued = nextQueued || f.Queued
		switch {
		case f.Verdict == ticket.Done:
			return nextQueued, nil
		case f.Verdict == ticket.Lost:
			lost := &LostError{Name: p.m.name, Token: p.ticket.Rev(), Reason: reasonOf(f.Reason)}
			return nextQueued, lost
		case f.Verdict == ticket.AgainAlone:
			continue
		case f.Verdict == ticket.Again && (done.err == nil || retry.Wait(ctx, s.calls) == nil):
			continue
		case f.Doubt == ticket.SetBack:
			return nextQueued, unconfirmed(p.m.name, errSetBack)
		case f.Doubt == ticket.Uncertain:
			return nextQueued, unconfirmed(p.m.name, ErrExpired)
		}
		reasons := []error{done.err}
		if ctx.Err() != nil {
			reasons = append(reasons, context.Cause(ctx))
		}
		p.abandon(true)
		return nextQueued, unconfirmed(p.m.name, reasons...)
	}
}

// released has the ticket judge the answer to a release, and notes what became of p and of
// next.
func (p *place) released(
	r *ticket.Release, done commit, most time.Time, final bool, next *place,
) ticket.Finding {
	p.s.mu.Lock()
	defer p.s.unlock()
	if r.Together() && done.err != nil && attempt.Is(done.err, rpctypes.ErrLeaseNotFound) {
		next.lease.endLocked(because(ErrLeaseRevoked, done.err)) // which p may be on, too
	}
	a := done.answer()
	now := ticket.Now{Stale: p.staleLocked(), Final: final}
	if !a.Succeeded {
		now.Certain = p.certainLocked(most)
	}
	f := r.Judge(a, now)
	if f.Queued {
		next.queuedLocked(f.Ahead, done.era)
	}
	switch {
	case p.ticket.State() == ticket.Removed:
		p.removedLocked()
	case f.Verdict == ticket.Lost:
		p.abandonLocked(false)
	}
	return f
}

// reasonOf is a Reason as a LostError has it. What is not told was a deletion.
func reasonOf(r ticket.Reason) error {
	switch r {
	case ticket.Overwritten:
		return ErrKeyOverwritten
	case ticket.Either:
		return errKeyTaken
	case ticket.LeaseRevoked:
		return ErrLeaseRevoked
	default:
		return ErrKeyDeleted
	}
}

// certainLocked reports whether a hold at p would be: its lease is trusted, and most, if there
// is one, has not passed.
func (p *place) certainLocked(most time.Time) bool {
	now := time.Now()
	p.lease.checkLocked(now)
	return p.lease.ended == nil && (most.IsZero() || before(now, most))
}

// removedLocked notes that p's key is gone, as its ticket says.
func (p *place) removedLocked() {
	p.stopUsingLocked()
	if p.lease.places[p.ticket.Key] == p {
		delete(p.lease.places, p.ticket.Key)
	}
	if p.staleLocked() && p.era != nil { // an earlier key of that name may be back
		p.lease.suspectLocked()
	}
}

// stopUsingLocked takes p off its lease's users.
func (p *place) stopUsingLocked() {
	if !p.using {
		return
	}
	p.using = false
	p.lease.users--
	if p.lease.users == 0 {
		p.lease.idleSince = time.Now()
		if p.lease.retired != nil {
			p.lease.wakeKeeper()
		}
	}
}

// abandon gives p up: its key, if it may exist, is removed in the background until
// etcd confirms or it is gone with the lease. It returns a channel that is closed then. The
// lease is retired if unsure is set, or as soon as an attempt fails: what cannot be
// removed is not kept alive.
func (p *place) abandon(unsure bool) <-chan struct{} {
	p.s.mu.Lock()
	defer p.s.unlock()
	return p.abandonLocked(unsure)
}

func (p *place) abandonLocked(unsure bool) <-chan struct{} {
	if p.removed != nil {
		return p.removed
	}
	p.removed = make(chan struct{})
	p.stopUsingLocked()
	p.ticket.Leave()
	unsent := p.ticket.State() == ticket.Removed
	if unsent {
		p.removedLocked()
	}
	if unsent || p.s.closed { // Close revokes the lease, and removes what is left then
		close(p.removed)
		return p.removed
	}
	if unsure {
		p.lease.retireLocked(errLeaseDoubtful)
	}
	if t := p.m.cfg.trace; t != nil && t.CleanupPending != nil && !p.spare {
		p.s.hooks.Run(func() { t.CleanupPending(p.ticket.Key) })
	}
	p.s.goLocked(p.remove)
	return p.removed
}

// endContexts ends the contexts of the hold that has ended at p.
func (p *place) endContexts() {
	p.s.mu.Lock()
	h := p.hold
	p.s.unlock()
	if h != nil {
		h.endContexts()
	}
}

// remove removes p's key for certain.
func (p *place) remove() {
	s := p.s
	defer close(p.removed)
	p.endContexts()
	ctx := p.lease.live // when it ends, so does the key, unless somebody has put it over
	if p.after != nil {
		select {
		case <-p.after:
		case <-ctx.Done():
		}
	}
	warned := false
	var retry attempt.Backoff
	for {
		done := s.commit(ctx, &retry, p.ticket.Removal())
		err := done.err
		if err == nil {
			s.mu.Lock()
			p.ahead = p.ticket.RemovedBy(done.answer())
			p.removedLocked()
			s.unlock()
			break
		}
		if !warned && ctx.Err() == nil {
			warned = true
			s.mu.Lock()
			p.lease.retireLocked(errLeaseDoubtful)
			s.unlock()
			p.m.log(slog.LevelWarn, "key not removed yet", "key", p.ticket.Key, "error", err)
		}
		if !attempt.Refused(err) && !s.clientClosed() {
			if retry.Wait(ctx, s.calls) == nil {
				continue
			}
			if ctx != s.ctx && p.outlivesLease() {
				ctx = s.ctx
				continue
			}
		}
		if !p.giveUpRemoval(err) {
			return
		}
		break
	}
	if t := p.m.cfg.trace; t != nil && t.CleanupDone != nil && !p.spare {
		s.hooks.Run(func() { t.CleanupDone(p.ticket.Key) })
	}
}

// outlivesLease reports whether p's key may be there when its lease has ended.
func (p *place) outlivesLease() bool {
	p.s.mu.Lock()
	defer p.s.unlock()
	return p.ticket.Lost() && !p.lease.revoked && p.s.ctx.Err() == nil
}

// giveUpRemoval notes that the attempts to remove p's key are over, of which the last one
// failed. It reports whether the key has gone with its lease.
func (p *place) giveUpRemoval(err error) (certain bool) {
	s, l := p.s, p.lease
	s.mu.Lock()
	defer s.unlock()
	if l.revoked {
		p.ticket.Remove(0)
		p.removedLocked()
		return true
	}
	p.stuck, l.left = true, err
	if _, kept := s.leases[l]; p.ticket.Lost() && kept {
		return false // the keeper tries again when the lease has ended
	}
	if p.ticket.Lost() {
		s.left = err
	}
	p.ticket.Remove(0) // the lease is renewed for it no more, or has ended
	p.removedLocked()
	return false
}
