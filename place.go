package etcdlock

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// A place is one place in etcd's line: a key below the lock's prefix, which may
// exist or not.
//
// Its life: taken from a lease by newPlaceLocked, put by queue, waited in by wait,
// and then either held and released, or abandoned. Until etcd has confirmed that
// its key is gone, the lease accounts for it.
//
// Invariant: rev, once it is known, is the create revision of the key that this
// very place put. Every check and every removal compares it. The names of keys are
// used again, create revisions never are, so that a late event, answer or request
// cannot mean another place. (Do not delete a key without the revision: it may be
// the next owner's. TestUnlockAfterLossLeavesTheNewHolderAlone.)
type place struct {
	// Set once, then only read.
	s     *Session
	m     *Mutex
	local *localLine
	lease *lease
	slot  *keySlot // where key is from
	key   string
	floor int64 // create revisions up to here are of earlier uses of key

	// Guarded by Session.mu.
	rev   int64        // create revision of the key, 0 until it is known
	since time.Time    // when rev became known
	ahead []line.Entry // before this place, when last looked at
	hold  *hold        // nil while waiting
	sent  bool         // a put may have been carried out
	doubt bool         // a copy of the put may still be under way
	gone  bool         // somebody else has deleted the key, or put it over
	taken error        // what is known of how it went, nil if it was deleted
	using bool         // counted among the lease's users
	era   *era         // of the answer that told rev, or the line, last
	seen  *view        // that has had it
	spare bool         // what lingered at it, and is of no use to anybody, is removed
	stuck bool         // its removal was given up; lease.left says why

	news chan struct{} // to whoever waits: gone, or nobody is before it

	removed chan struct{}   // closed when the removal is over; nil before abandon
	after   <-chan struct{} // if not nil, the removal waits for that of another place
}

// A keySlot holds one of the key names that a line uses in turn: a name whose key
// was deleted costs etcd less to put again than a new one, until it compacts.
type keySlot struct {
	key   string // "" to be drawn anew
	floor int64  // the revision at which the key was last known to be gone
	busy  bool
}

// newPlaceLocked takes a place on the current lease, which the caller has found
// usable.
func (s *Session) newPlaceLocked(c *claim) *place {
	l := s.current
	slot := c.local.slotLocked(l)
	if slot.key == "" {
		*slot = keySlot{key: l.draw(c.m.name)}
	}
	slot.busy = true
	p := &place{
		s:     s,
		m:     c.m,
		local: c.local,
		lease: l,
		slot:  slot,
		key:   slot.key,
		floor: slot.floor,
		using: true,
	}
	l.places[p.key] = p
	l.users++
	return p
}

// contender is p as others see it.
func (p *place) contender() Contender {
	c := p.m.contender()
	c.Key, c.Token, c.Lease, c.Since = p.key, p.rev, p.lease.id, p.since
	return c
}

// exists compares the key with the one that p put.
func (p *place) exists() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(p.key), "=", p.rev)
}

// prefix is what the keys of the line begin with.
func (p *place) prefix() string { return line.Prefix(p.m.name) }

// entry is p's own key, as it is in etcd: without a revision while that is not known.
func (p *place) entry() line.Entry {
	return line.Entry{Key: p.key, Rev: p.rev, Lease: int64(p.lease.id)}
}

// A callContext is the context of one write. It notices when clientv3 repeats the
// request by itself: after an answer of DeadlineExceeded or Canceled the client
// asks whether the context has ended, and if not sends the request again. Nothing
// else in clientv3 or gRPC asks the context itself; gRPC asks its own child of it. An
// interceptor of the user's that asks makes a request look repeated: that costs a new
// lease, and lets Unlock return nil where a key was deleted just before.
type callContext struct {
	context.Context
	asked atomic.Bool
}

// Err is as in context.Context.
func (c *callContext) Err() error {
	err := c.Context.Err()
	if err == nil {
		c.asked.Store(true)
	}
	return err
}

// A commit is the outcome of one attempt at a transaction that writes.
type commit struct {
	resp     *clientv3.TxnResponse
	era      *era // in which it was sent
	repeated bool // it may have been sent more than once
	err      error
}

// commit is one of a call's attempts at a transaction that writes. It may be sent several
// times: each transaction here may be carried out any number of times. If there is no Else, a
// repeat has again in its place, which tells whether the first one was carried out.
func (s *Session) commit(ctx context.Context, retry *attempt.Backoff, ifs []clientv3.Cmp, then, otherwise []clientv3.Op, again clientv3.Op) commit {
	var calls atomic.Int32
	txn := func(ctx context.Context) (commit, error) {
		call := &callContext{Context: ctx}
		otherwise := otherwise
		if calls.Add(1) > 1 && otherwise == nil {
			otherwise = []clientv3.Op{again}
		}
		resp, err := s.txn(call, ifs, then, otherwise)
		return commit{resp: resp, repeated: call.asked.Load()}, err
	}
	sent := s.era.Load()
	c, several, err := attempt.Do(ctx, s.calls, retry, s.calls.Timeout(), txn)
	c.era, c.err = sent, err
	c.repeated = c.repeated || several
	return c
}

// queue puts the key, unless it is there already, and reads the line. It may be
// called again after an error: the same put may be carried out many times, and
// makes one key.
//
// A nil error says that p stands in line, with p.ahead before it. errQueueAnew says
// that p cannot be used. After any other error the key may be there or not.
func (p *place) queue(ctx context.Context, c *claim) error {
	absent := clientv3.Compare(clientv3.CreateRevision(p.key), "=", 0)
	var otherwise []clientv3.Op // it costs time, and the key is hardly ever there at first
	var retry attempt.Backoff
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		done := p.put(ctx, &retry, []clientv3.Cmp{absent}, otherwise)
		if done.err == nil && len(done.resp.Responses) > 0 {
			_, queued, err := p.adopt(done)
			if err == nil && !queued {
				err = errQueueAnew // it was there, and was deleted before it was read
			}
			c.lastErr = nil
			return err
		}
		if done.err != nil {
			if err := p.again(ctx, c, done.err, &retry); err != nil {
				return err
			}
		}
		otherwise = []clientv3.Op{p.readLine()} // tells whose it is
	}
}

// tryQueue puts the key only if nobody else stands in line, and otherwise writes
// nothing and returns errTaken with the line. Errors are as of queue.
//
// It first asks that nothing be below the prefix. If something is, but it is no
// contender, it asks that nothing below the prefix be newer than what it has seen.
func (p *place) tryQueue(ctx context.Context, c *claim) ([]line.Entry, error) {
	absent := clientv3.Compare(clientv3.CreateRevision(p.key), "=", 0)
	alone := clientv3.Compare(clientv3.CreateRevision(p.prefix()), "=", 0).WithPrefix()
	var retry attempt.Backoff
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		done := p.put(ctx, &retry, []clientv3.Cmp{absent, alone}, []clientv3.Op{p.readLine()})
		if done.err != nil {
			if err := p.again(ctx, c, done.err, &retry); err != nil {
				return nil, err
			}
			continue
		}
		c.lastErr = nil
		// Queued by this request, or by an earlier one whose answer was lost.
		contenders, queued, err := p.adopt(done)
		ahead := contenders.Blocking(p.entry())
		switch {
		case err != nil:
			return nil, err
		case queued && len(ahead) == 0:
			return nil, nil
		case len(ahead) > 0:
			return ahead, errTaken
		}
		seen := done.resp.Header.GetRevision()
		alone = clientv3.Compare(clientv3.ModRevision(p.prefix()), "<", seen+1).WithPrefix()
	}
}

// readLine reads all that is below the name.
func (p *place) readLine() clientv3.Op { return clientv3.OpGet(p.prefix(), clientv3.WithPrefix()) }

// putKey puts the key.
func (p *place) putKey() clientv3.Op {
	return clientv3.OpPut(p.key, p.m.cfg.value(), clientv3.WithLease(p.lease.id))
}

// put is one attempt to put the key if all of ifs hold, and to read the line then.
func (p *place) put(ctx context.Context, retry *attempt.Backoff, ifs []clientv3.Cmp, otherwise []clientv3.Op) commit {
	done := p.s.commit(ctx, retry, ifs, []clientv3.Op{p.putKey(), p.readLine()}, otherwise, p.readLine())
	p.s.mu.Lock()
	defer p.s.unlock()
	if done.err == nil && done.resp.Succeeded {
		p.sent = true
	}
	if done.repeated || done.err != nil && !attempt.NotApplied(done.err) {
		// A copy may come late, and apply as long as the lease lives.
		p.sent, p.doubt = true, true
		p.lease.retireLocked(errLeaseDoubtful)
	}
	return done
}

// again decides what follows on an error of put: it returns nil after a pause if
// the put is to be repeated.
func (p *place) again(ctx context.Context, c *claim, err error, retry *attempt.Backoff) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case attempt.Is(err, rpctypes.ErrLeaseNotFound):
		p.s.mu.Lock()
		p.lease.endLocked(because(ErrLeaseRevoked, err))
		p.s.unlock()
		return errQueueAnew
	case attempt.Refused(err):
		return err
	case p.s.clientClosed():
		return errClientClosed
	}
	c.lastErr = err
	if err := retry.Wait(ctx, p.s.calls); err != nil {
		return err
	}
	if p.lease.isDead() {
		return errQueueAnew
	}
	return nil
}

// lastRange is the answer to the range with which each transaction here ends.
func lastRange(resp *clientv3.TxnResponse) []*mvccpb.KeyValue {
	return resp.Responses[len(resp.Responses)-1].GetResponseRange().GetKvs()
}

// adopt finds p in the line that a transaction has read, and notes its revision and those
// before it. It returns the line, and whether p stands in it; errQueueAnew says that what is
// there under p's name is not what p has put: a leftover of an earlier use, or a key that
// somebody put over.
func (p *place) adopt(done commit) (contenders line.Line, queued bool, err error) {
	read := lastRange(done.resp)
	contenders = line.Of(p.m.name, read)
	own, there := line.Find(read, p.key)
	if !there {
		return contenders, false, nil
	}
	p.s.mu.Lock()
	defer p.s.unlock()
	p.sent = true
	if own.Lease != int64(p.lease.id) || own.Rev <= p.floor {
		p.doubt, p.gone = true, true
		return contenders, false, errQueueAnew
	}
	p.rev, p.since, p.ahead, p.era = own.Rev, time.Now(), contenders.Blocking(own), done.era
	return contenders, true, nil
}
