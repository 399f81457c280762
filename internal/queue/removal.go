package queue

import (
	"context"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A Removal is how the key of a place that was given up is removed.
type Removal struct {
	Unsure   bool     // the lease is retired at once
	Lingered bool     // it has no owner, which would hear of it
	Tells    bool     // it also reads what was ahead of the place, for a failed call
	After    *Removal // if not nil, it waits until that is over

	over chan struct{} // closed when it is over
	err  error         // why it was given up itself, nil if it was not
}

// AbandonLocked gives p up. If its key may exist, it is removed in the background, as r says, until
// etcd confirms or the key is gone with the lease. The returned channel is closed then. The
// lease is retired if r is Unsure, or as soon as an attempt fails: a key that cannot be
// removed is not kept alive.
func (p *Place) AbandonLocked(r Removal) <-chan struct{} {
	if p.Removal != nil {
		return p.Removal.over
	}
	r.over = make(chan struct{})
	p.Removal = &r
	p.line.local.MarkLocked()
	p.Account.leftLocked()
	p.UnwatchLocked()
	p.Ticket.Leave()
	unsent := p.Ticket.State() == ticket.Removed
	if unsent {
		p.RemovedLocked()
	}
	// Close revokes the lease and then removes what is left
	if unsent || p.Account.keys.Leases.ClosedLocked() {
		close(p.Removal.over)
		return p.Removal.over
	}
	if r.Unsure {
		p.Account.retireLocked()
	}
	if !p.Removal.Lingered {
		p.owner.Removing()
	}
	p.Account.removals++
	p.Account.keys.tasks.Go(p.remove)
	return p.Removal.over
}

// removal is what remove sends.
func (p *Place) removal() ticket.Txn {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	return p.Ticket.Removal(p.Removal.Tells, *p.Ahead)
}

// remove removes p's key for certain.
func (p *Place) remove() {
	k, l := p.Account.keys, p.Account.Lease
	defer p.Account.removed()
	defer close(p.Removal.over)
	p.owner.EndContexts()
	ctx := l.Live() // when it ends, the key is gone, unless it was put over
	if after := p.Removal.After; after != nil {
		select {
		case <-after.over:
		case <-ctx.Done():
		}
	}
	warned := false
	fails := func(err error) {
		if !warned {
			warned = true
			p.removalFails(err)
		}
	}
	done := k.etcd.Remove(ctx, l.Goes(), p.removal, fails)
	if done.Err != nil && !attempt.Refused(done.Err) && !k.etcd.Closed() {
		<-ctx.Done()
		if p.outlivesLease() {
			done = k.etcd.Remove(k.ctx, nil, p.removal, fails)
		}
	}
	if done.Err == nil {
		k.mu.Lock()
		ahead := p.Ticket.RemovedBy(done.Answer, *p.Ahead)
		p.Ahead = &ahead
		p.RemovedLocked()
		k.mu.Unlock()
	} else {
		certain := p.giveUpRemoval(done.Err)
		if !certain {
			return
		}
	}
	if !p.Removal.Lingered {
		p.owner.Removed()
	}
}

// removalFails notes that p's key is not removed yet: its lease gets no new keys.
func (p *Place) removalFails(err error) {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	p.Account.retireLocked()
	p.owner.Stays(err)
}

// outlivesLease reports whether p's key may still be there after its lease has ended.
func (p *Place) outlivesLease() bool {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	return p.Ticket.Lost() && !p.Account.Lease.GoneLocked() && p.Account.keys.ctx.Err() == nil
}

// giveUpRemoval notes that the attempts to remove p's key are over and that the last one failed
// with err. It reports whether the key has gone with its lease.
func (p *Place) giveUpRemoval(err error) (certain bool) {
	k, l := p.Account.keys, p.Account.Lease
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.GoneLocked() {
		p.Ticket.Remove(0)
		p.RemovedLocked()
		return true
	}
	p.Removal.err = err
	if _, kept := k.accounts[l]; p.Ticket.Lost() && kept {
		p.Account.outlived = true
		return false // the keeper tries again when the lease has ended
	}
	if p.Ticket.Lost() {
		k.leftoverErr = err
	}
	p.Ticket.Remove(0) // the lease is no longer renewed for it, or has ended
	p.RemovedLocked()
	return false
}

// AwaitRemoved waits until p's key is removed, if it was given up. It returns why that is not
// certain.
func (p *Place) AwaitRemoved(ctx context.Context) error {
	p.Account.keys.mu.Lock()
	removal := p.Removal
	p.Account.keys.mu.Unlock()
	if removal == nil { // it was released
		return nil
	}
	select {
	case <-removal.over:
	case <-ctx.Done():
		return attempt.Cause(ctx)
	}
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	return removal.err
}

// GivenUpLocked reports whether p was given up: its key is being removed, or has gone.
func (p *Place) GivenUpLocked() bool { return p.Removal != nil }
