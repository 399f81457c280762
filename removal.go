package etcdlock

import (
	"context"
	"log/slog"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// removedLocked notes that p's key is gone, as its ticket says.
func (p *place) removedLocked() {
	p.stopUsingLocked()
	if p.account.places[p.ticket.Key] == p {
		delete(p.account.places, p.ticket.Key)
	}
	if p.staleLocked() && p.epoch != nil { // an earlier key of that name may be back
		p.account.SuspectLocked()
	}
}

// stopUsingLocked takes p off its lease's users.
func (p *place) stopUsingLocked() {
	if !p.using {
		return
	}
	p.using = false
	p.account.leftLocked()
}

// abandonLocked gives p up. If its key may exist, it is removed in the background until
// etcd confirms or the key is gone with the lease. The returned channel is closed then. The
// lease is retired if unsure is set, or as soon as an attempt fails: a key that cannot be
// removed is not kept alive.
func (p *place) abandonLocked(unsure bool) <-chan struct{} {
	if p.removed != nil {
		return p.removed
	}
	p.removed = make(chan struct{})
	p.markLocked()
	p.stopUsingLocked()
	p.unwatchLocked()
	p.ticket.Leave()
	unsent := p.ticket.State() == ticket.Removed
	if unsent {
		p.removedLocked()
	}
	if unsent || p.s.closed { // Close revokes the lease and then removes what is left
		close(p.removed)
		return p.removed
	}
	if unsure {
		p.account.retireLocked()
	}
	if !p.spare {
		p.m.trace().cleanupPending(p.ticket.Key)
	}
	p.s.tasks.GoLocked(p.remove)
	return p.removed
}

// removal is what remove sends.
func (p *place) removal() ticket.Txn {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.ticket.Removal(p.tells, p.ahead)
}

// remove removes p's key for certain.
func (p *place) remove() {
	s := p.s
	defer close(p.removed)
	p.endContexts()
	ctx := p.lease.Live() // when it ends, the key is gone, unless it was put over
	if p.after != nil {
		select {
		case <-p.after:
		case <-ctx.Done():
		}
	}
	warned := false
	retry := attempt.Backoff{Urgent: true}
	for {
		done := s.etcd.Commit(ctx, &retry, p.removal())
		err := done.Err
		if err == nil {
			s.mu.Lock()
			p.ahead = p.ticket.RemovedBy(done.Answer(), p.ahead)
			p.removedLocked()
			s.mu.Unlock()
			break
		}
		if !warned && ctx.Err() == nil {
			warned = true
			p.stays(err)
		}
		if !attempt.Refused(err) && !s.etcd.Closed() {
			if retry.Wait(ctx, s.etcd.Caller) == nil {
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
	if !p.spare {
		p.m.trace().cleanupDone(p.ticket.Key)
	}
}

// stays notes that p's key is not removed yet: its lease gets no new keys.
func (p *place) stays(err error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.account.retireLocked()
	p.m.log(slog.LevelWarn, "key not removed yet", "key", p.ticket.Key, "error", err)
}

// outlivesLease reports whether p's key may still be there after its lease has ended.
func (p *place) outlivesLease() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.ticket.Lost() && !p.lease.GoneLocked() && p.s.ctx.Err() == nil
}

// giveUpRemoval notes that the attempts to remove p's key are over and that the last one failed
// with err. It reports whether the key has gone with its lease.
func (p *place) giveUpRemoval(err error) (certain bool) {
	s, l := p.s, p.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.GoneLocked() {
		p.ticket.Remove(0)
		p.removedLocked()
		return true
	}
	p.stuck, p.account.leftoverErr = true, err
	if _, kept := s.accounts[l]; p.ticket.Lost() && kept {
		return false // the keeper tries again when the lease has ended
	}
	if p.ticket.Lost() {
		s.leftoverErr = err
	}
	p.ticket.Remove(0) // the lease is no longer renewed for it, or has ended
	p.removedLocked()
	return false
}

// awaitRemoved waits until p's key is removed, if it was given up. A nil p has none.
func (p *place) awaitRemoved(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.s.mu.Lock()
	removed := p.removed
	p.s.mu.Unlock()
	if removed == nil { // it was released
		return nil
	}
	select {
	case <-removed:
	case <-ctx.Done():
		return unconfirmed(p.m.name, context.Cause(ctx))
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.stuck {
		return unconfirmed(p.m.name, p.account.leftoverErr)
	}
	return nil
}
