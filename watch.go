package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

const (
	// recheckEvery is how often a waiter looks whether it missed an event.
	recheckEvery = 1500 * time.Millisecond

	// removalGrace is how long a wait that failed waits for its key to be removed.
	removalGrace = 25 * time.Millisecond
)

var (
	// errQueueAnew says that a place is worth nothing any more, through no fault
	// of its owner, who takes a new one.
	errQueueAnew = errors.New("place in line lost")

	// errTaken says that TryLock found another contender.
	errTaken = errors.New("taken")
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

// wait waits until everybody before p is gone. It returns nil if p is first and its
// key is there; errQueueAnew if its key or its lease is gone; the cause of ctx when
// that ends; or what no retry mends.
//
// Behind a few it waits by the Session's view of the line, which needs no request of its
// own; behind many by a watch of one key.
func (p *place) wait(ctx context.Context, c *claim) error {
	p.listen()
	var broken, anew attempt.Backoff
	for {
		var err error
		switch ahead, stale := p.rivals(); {
		case stale:
			if err = anew.Wait(ctx, p.s.calls); err == nil {
				err = p.look(ctx, c, 0)
			}
		case len(ahead) == 0:
			return nil
		case len(ahead) <= fewAhead:
			err = p.waitInView(ctx, c)
		default:
			p.s.dropView(c.local)
			err = p.waitBehind(ctx, c, ahead[len(ahead)-1], &broken)
		}
		if err != nil {
			return err
		}
	}
}

// waitBehind waits until the line before p may have changed, and then reads it anew.
//
// It watches the DELETE of the one key before its own, from now: a watch from a
// past revision is served by a loop of 100 ms. Once the watch is there it looks
// whether that very key, by its create revision, still stands. So no deletion is
// missed: those before the watch are seen by the look, those after it come as
// events.
//
// Somebody else may have left before the predecessor did, so one read at the event's
// revision tells who is before p then. (Do not enter without it: if W between H and p
// is deleted while H holds, p would enter beside H.)
//
// An event that never comes, from a member that is frozen for instance, is made up
// for by a slow re-check.
func (p *place) waitBehind(ctx context.Context, c *claim, before line.Entry, broken *attempt.Backoff) error {
	events, on, stop := p.s.watch(ctx, broken, before.Key, clientv3.WithFilterPut())
	defer stop()
	recheck, checked := time.NewTimer(attempt.Jitter(recheckEvery)), time.Now()
	defer recheck.Stop()
	for {
		check := false
		select {
		case resp, open := <-events:
			switch {
			case !open || resp.Err() != nil || p.s.elsewhere(resp.Header):
				// No leader, compacted, cut off, refused: read the line, watch anew.
				p.s.stream.fails(on, resp.Err())
				if err := broken.Wait(ctx, p.s.calls); err != nil {
					return err
				}
				return p.look(ctx, c, 0)
			case resp.Created:
				p.s.stream.tells(on)
				broken.Reset()
				check = true
			default:
				p.s.stream.tells(on)
				if at := p.deletion(before.Key, resp.Events); at != 0 {
					return p.look(ctx, c, at)
				}
			}
		case <-recheck.C:
			recheck.Reset(attempt.Jitter(recheckEvery))
			pause := p.s.calls.Seldom(recheckEvery)
			check = pause == recheckEvery || time.Since(checked) >= pause
		case <-p.news:
			if p.isGone() {
				return errQueueAnew
			}
			if _, stale := p.rivals(); stale {
				return nil
			}
		case <-p.lease.dead:
			return errQueueAnew
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if check {
			checked = time.Now()
			still, err := p.stands(ctx, c, before)
			if err != nil {
				return err
			}
			if !still {
				return p.look(ctx, c, 0)
			}
		}
	}
}

// deletion finds among events the revision at which the key before was deleted, 0 if
// it was not.
//
// Only what is newer than p counts, since the key stood when p was there. A member
// that lags behind serves its own "now", and may report an earlier use of the same
// key name. (TestADeletionOlderThanThePlaceLetsNobodyIn.)
func (p *place) deletion(before string, events []*clientv3.Event) (at int64) {
	for _, event := range events {
		newer := event.Kv.GetModRevision() > p.rev
		if event.Type == clientv3.EventTypeDelete && newer && string(event.Kv.GetKey()) == before {
			at = event.Kv.GetModRevision()
		}
	}
	return at
}

// rivals are those before p, when last looked at, nobody for a nil p. They are stale if
// that was in an era before.
func (p *place) rivals() (ahead []line.Entry, stale bool) {
	if p == nil {
		return nil, false
	}
	p.s.mu.Lock()
	defer p.s.unlock()
	return p.ahead, p.staleLocked()
}

func (p *place) setLine(ahead []line.Entry, at *era) {
	p.s.mu.Lock()
	defer p.s.unlock()
	p.ahead, p.era = ahead, at
}

// stands reports whether the very key before and p's own both stand in line now. It is a
// linearizable read of four compares, and tries until it is answered.
//
// A key that was put over has the create revision that it had, but perhaps no lease: it
// stands in line no more, and no lease removes it.
func (p *place) stands(ctx context.Context, c *claim, before line.Entry) (bool, error) {
	resp, err := readFor(ctx, p, c, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		// The range is what makes a transaction without writes linearizable.
		count := []clientv3.Op{clientv3.OpGet(p.key, clientv3.WithCountOnly())}
		return p.s.txn(ctx, []clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(before.Key), "=", before.Rev),
			clientv3.Compare(clientv3.LeaseValue(before.Key), "=", before.Lease),
			p.exists(),
			clientv3.Compare(clientv3.LeaseValue(p.key), "=", p.lease.id),
		}, count, count)
	})
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

// look reads those before p, at the revision at if that is not 0 and the member
// that answers knows it, otherwise as of now. It returns errQueueAnew if p's own
// key is not there, or not with its lease.
func (p *place) look(ctx context.Context, c *claim, at int64) error {
	upToOwn := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMaxCreateRev(p.rev)}
	sent := p.s.era.Load()
	var resp *clientv3.GetResponse
	err := errors.New("no revision")
	if at != 0 {
		// What was at a revision does not change, so no quorum is needed. The
		// member may not be there yet, or have compacted it away.
		resp, _, err = attempt.Do(ctx, p.s.calls, &attempt.Backoff{}, attempt.ReadTimeout, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return p.s.client.Get(ctx, p.prefix(), append(upToOwn, clientv3.WithRev(at), clientv3.WithSerializable())...)
		})
		if err == nil {
			p.s.heard(resp.Header, sent, 0) // of the past, by a member that may be behind
		}
	}
	if err != nil {
		resp, err = readFor(ctx, p, c, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return p.s.get(ctx, p.prefix(), upToOwn...)
		})
		if err != nil {
			return err
		}
	}
	own, there := line.Find(resp.Kvs, p.key)
	if !there || own.Rev != p.rev || own.Lease != int64(p.lease.id) {
		p.disowned()
		return errQueueAnew
	}
	p.setLine(line.Of(p.m.name, resp.Kvs).Blocking(own), sent)
	return nil
}

// read calls get until it is answered, etcd refuses, or ctx ends. After each other
// error it asks failed whether to go on.
func read[R any](ctx context.Context, s *Session, get func(context.Context) (R, error), failed func(error) error) (R, error) {
	var retry attempt.Backoff
	for {
		resp, _, err := attempt.Do(ctx, s.calls, &retry, attempt.ReadTimeout, get)
		switch {
		case err == nil:
			return resp, nil
		case ctx.Err() != nil:
			return resp, context.Cause(ctx)
		case attempt.Refused(err):
			return resp, err
		case s.clientClosed():
			return resp, errClientClosed
		}
		if err := failed(err); err != nil {
			return resp, err
		}
		retry.Double() // another member may know more
		if err := retry.Wait(ctx, s.calls); err != nil {
			return resp, err
		}
	}
}

// readFor is read for c, which waits at p, and gives up when the lease or the key is gone.
func readFor[R any](ctx context.Context, p *place, c *claim, get func(context.Context) (R, error)) (R, error) {
	resp, err := read(ctx, p.s, get, func(err error) error {
		c.lastErr = err
		if p.isGone() || p.lease.isDead() {
			return errQueueAnew
		}
		return nil
	})
	if err == nil {
		c.lastErr = nil
	}
	return resp, err
}

// isGone reports whether somebody else was seen to have deleted p's key.
func (p *place) isGone() bool {
	p.s.mu.Lock()
	defer p.s.unlock()
	return p.gone
}

// disowned notes that p's key is not what p had put.
func (p *place) disowned() {
	p.s.mu.Lock()
	defer p.s.unlock()
	p.gone = true
}

// lostLocked notes that somebody else deleted p's key, or put it over.
func (p *place) lostLocked() {
	if p.gone {
		return
	}
	p.gone = true
	p.tellLocked()
	if p.taken == nil {
		p.taken = ErrKeyDeleted
	}
	if p.hold != nil {
		p.hold.endLocked(p.hold.lost(p.taken))
	}
	if p.lingersLocked() {
		p.local.giveWayLocked()
	}
}

// listen lets tellLocked wake the caller, unless nobody is before p.
func (p *place) listen() {
	p.s.mu.Lock()
	defer p.s.unlock()
	if p.news == nil && len(p.ahead) > 0 {
		p.news = make(chan struct{}, 1)
	}
	if p.gone {
		p.tellLocked() // it went before anybody listened
	}
}

// tellLocked wakes whoever waits at p.
func (p *place) tellLocked() {
	select {
	case p.news <- struct{}{}:
	default: // told already, or nobody waits
	}
}

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
