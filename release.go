package etcdlock

import (
	"context"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// release deletes p's key, and in the same transaction puts that of next, if that
// is not nil. It returns nil when etcd confirmed that the key was there until now;
// a *LostError if it was not; and an error that is ErrUnconfirmed if etcd did not
// tell in time, after which the key is being removed in the background. next is
// queued after it if nextQueued.
//
// The answer to a copy says nothing of what the first request did: when the key is
// gone and a copy may have been sent, the release itself is taken to have removed
// it, as long as the hold was certain: its lease is renewed meanwhile, and most, the end
// of the longest hold, may be zero for none.
func (p *place) release(ctx context.Context, most time.Time, next *place) (nextQueued bool, err error) {
	s := p.s
	del := clientv3.OpDelete(p.key)
	// A key that was put over, without the lease, stands in line no more.
	bound := clientv3.Compare(clientv3.LeaseValue(p.key), "=", p.lease.id)
	var otherwise []clientv3.Op // it costs time, and the key hardly ever fails to be there
	copies, missed := false, false
	var retry attempt.Backoff
	for {
		ifs, then := []clientv3.Cmp{p.exists(), bound}, []clientv3.Op{del}
		together := next != nil
		if together {
			ifs = append(ifs, clientv3.Compare(clientv3.CreateRevision(next.key), "=", 0))
			then, otherwise = append(then, next.putKey(), p.readLine()), []clientv3.Op{p.readLine()}
		}
		done := s.commit(ctx, &retry, ifs, then, otherwise, clientv3.OpGet(p.key))
		resp, err := done.resp, done.err
		copies = copies || done.repeated
		if together {
			// Once p's key is gone no copy can put next's any more.
			nextQueued = s.settle(next, done)
			next = nil
		}
		switch {
		case err == nil && resp.Succeeded:
			p.removedAt(resp.Header.GetRevision())
			return nextQueued, nil
		case err == nil && nextQueued:
			// Only this very transaction puts next's key: a first copy ran.
			p.removedAt(resp.Header.GetRevision())
			return true, nil
		case err == nil && len(resp.Responses) == 0:
			missed = missed || !copies // for certain, whatever the next answer says
			otherwise = []clientv3.Op{clientv3.OpGet(p.key)}
			continue
		case err == nil && p.in(lastRange(resp)):
			if together {
				continue // next's name may have been in use: release alone
			}
			p.disowned()
			p.abandon(false)
			return false, &LostError{Name: p.m.name, Token: p.rev, Reason: ErrKeyOverwritten}
		case err == nil && (missed || !copies):
			p.removedAt(resp.Header.GetRevision())
			return false, &LostError{Name: p.m.name, Token: p.rev, Reason: ErrKeyDeleted}
		case err == nil:
			certain := p.certain(most)
			_, stale := p.rivals()
			p.removedAt(resp.Header.GetRevision())
			switch {
			case stale: // a copy may have removed it, or etcd was restored without it
				return false, unconfirmed(p.m.name, errSetBack)
			case !certain:
				return false, unconfirmed(p.m.name, ErrExpired)
			}
			return false, nil
		}
		if missed { // it is lost, whatever became of it
			p.disowned()
			p.abandon(false)
			return false, &LostError{Name: p.m.name, Token: p.rev, Reason: errKeyTaken}
		}
		copies = copies || !attempt.NotApplied(err)
		if !attempt.Refused(err) && ctx.Err() == nil && !s.clientClosed() && p.certain(most) {
			if together || retry.Wait(ctx, s.calls) == nil {
				continue
			}
		}
		reasons := []error{err}
		if ctx.Err() != nil {
			reasons = append(reasons, context.Cause(ctx))
		}
		p.abandon(true)
		return false, unconfirmed(p.m.name, reasons...)
	}
}

// certain reports whether a hold at p would be: its lease is trusted, and most, if there
// is one, has not passed.
func (p *place) certain(most time.Time) bool {
	p.s.mu.Lock()
	defer p.s.unlock()
	now := time.Now()
	p.lease.checkLocked(now)
	return p.lease.ended == nil && (most.IsZero() || before(now, most))
}

// settle finds next in the answer to the transaction that was to put it, and
// reports whether it stands in line.
func (s *Session) settle(next *place, done commit) bool {
	if done.err != nil {
		s.mu.Lock()
		defer s.unlock()
		next.sent = next.sent || done.repeated || !attempt.NotApplied(done.err)
		if attempt.Is(done.err, rpctypes.ErrLeaseNotFound) {
			next.lease.endLocked(because(ErrLeaseRevoked, done.err))
		}
		return false
	}
	_, queued, err := next.adopt(done)
	return queued && err == nil
}

// in reports whether p's very key is among those that were read.
func (p *place) in(read []*mvccpb.KeyValue) bool {
	own, there := line.Find(read, p.key)
	return there && own.Rev == p.rev
}

// removedAt notes that etcd confirmed p's key to be gone at a revision.
func (p *place) removedAt(revision int64) {
	p.s.mu.Lock()
	defer p.s.unlock()
	p.removedLocked(revision)
}

func (p *place) removedLocked(revision int64) {
	p.stopUsingLocked()
	if p.lease.places[p.key] == p {
		delete(p.lease.places, p.key)
	}
	if p.staleLocked() && p.era != nil { // an earlier key of that name may be back
		p.lease.suspectLocked()
	}
	if p.doubt {
		*p.slot = keySlot{} // a copy may put the key again: never use its name
	} else {
		p.slot.floor, p.slot.busy = max(p.slot.floor, revision), false
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
	if !p.sent {
		p.removedLocked(0)
	}
	if !p.sent || p.s.closed { // Close revokes the lease, and removes what is left then
		close(p.removed)
		return p.removed
	}
	if unsure {
		p.lease.retireLocked(errLeaseDoubtful)
	}
	if t := p.m.cfg.trace; t != nil && t.CleanupPending != nil && !p.spare {
		p.s.hooks.Run(func() { t.CleanupPending(p.key) })
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

// remove removes p's key for certain. Without a known revision it removes whatever
// is there under p's name, which is nobody else's and will not be used again.
func (p *place) remove() {
	s := p.s
	defer close(p.removed)
	p.endContexts()
	read, del := p.readLine(), clientv3.OpDelete(p.key)
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
		ifs, then, otherwise := []clientv3.Cmp{p.exists()}, []clientv3.Op{del, read}, []clientv3.Op{read}
		if p.rev == 0 {
			then, otherwise = otherwise, then // exists compares with 0
		}
		done := s.commit(ctx, &retry, ifs, then, otherwise, read)
		err := done.err
		if err == nil {
			s.mu.Lock()
			p.ahead = nil
			if p.rev != 0 {
				p.ahead = line.Of(p.m.name, lastRange(done.resp)).Blocking(p.entry())
			} else {
				p.doubt = true
			}
			p.removedLocked(done.resp.Header.GetRevision())
			s.unlock()
			break
		}
		if !warned && ctx.Err() == nil {
			warned = true
			s.mu.Lock()
			p.lease.retireLocked(errLeaseDoubtful)
			s.unlock()
			p.m.log(slog.LevelWarn, "key not removed yet", "key", p.key, "error", err)
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
		s.hooks.Run(func() { t.CleanupDone(p.key) })
	}
}

// outlivesLease reports whether p's key may be there when its lease has ended.
func (p *place) outlivesLease() bool {
	p.s.mu.Lock()
	defer p.s.unlock()
	return p.gone && !p.lease.revoked && p.s.ctx.Err() == nil
}

// giveUpRemoval notes that the attempts to remove p's key are over, of which the last one
// failed. It reports whether the key has gone with its lease.
func (p *place) giveUpRemoval(err error) (certain bool) {
	s, l := p.s, p.lease
	s.mu.Lock()
	defer s.unlock()
	if l.revoked {
		p.removedLocked(0)
		return true
	}
	p.stuck, l.left = true, err
	if _, kept := s.leases[l]; p.gone && kept {
		return false // the keeper tries again when the lease has ended
	}
	if p.gone {
		s.left = err
	}
	p.removedLocked(0) // the lease is renewed for it no more, or has ended
	return false
}
