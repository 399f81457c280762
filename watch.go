package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// removalGrace is how long a wait that failed waits for its key to be removed.
	removalGrace = 25 * time.Millisecond
)

var (
	// errQueueAnew says that a place is worth nothing any more, through no fault
	// of its owner, who takes a new one.
	errQueueAnew = errors.New("place in line lost")

	// errTaken says that TryLock found another contender.
	errTaken = errors.New("taken")

	// errUnsure says that a put is to be sent again.
	errUnsure = errors.New("not known whether the key was put")
)

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
		case ahead.Clear():
			return nil
		case ahead.Unread():
			err = p.look(ctx, c, 0)
		case inView(ahead):
			err = p.waitInView(ctx, c)
		default:
			p.s.dropView(c.local)
			err = p.waitBehind(ctx, c, ahead.Last[len(ahead.Last)-1], &broken)
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
// for by a slow re-check, the slower the longer the wait and the line.
func (p *place) waitBehind(ctx context.Context, c *claim, before line.Entry, broken *attempt.Backoff) error {
	events, on, stop := p.s.watch(ctx, broken, before.Key, clientv3.WithFilterPut())
	defer stop()
	relied := time.Now() // since when it relies on the watch
	length := p.lengthOf()
	again := time.NewTimer(p.s.recheckAfter(relied, length))
	defer again.Stop()
	for {
		check, counted := false, (*int)(nil)
		select {
		case resp, open := <-events:
			switch told, at := p.toldBy(resp, open, on, before.Key); told {
			case watchOver: // read the line, watch anew
				if err := broken.Wait(ctx, p.s.calls); err != nil {
					return err
				}
				return p.look(ctx, c, 0)
			case watchBegun:
				broken.Reset()
				check = true
			case deletionTold:
				return p.look(ctx, c, at)
			}
		case <-again.C:
			check, counted = true, &length
		case <-p.news:
			if over, err := p.isOutdated(); over {
				return err
			}
			relied = time.Now() // the client was connected anew
			again.Reset(p.s.recheckAfter(relied, length))
		case <-p.lease.dead:
			return errQueueAnew
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if check {
			still, err := p.stands(ctx, c, before, counted)
			if err != nil {
				return err
			}
			if !still {
				return p.look(ctx, c, 0)
			}
			again.Reset(p.s.recheckAfter(relied, length))
		}
	}
}

// A tiding is what the watch of the one key before a place tells.
type tiding uint8

const (
	nothingTold  tiding = iota
	watchOver           // no leader, compacted, cut off, refused, or another cluster
	watchBegun          // what was before it is to be looked at
	deletionTold        // of the key before, at a revision
)

// toldBy is what an answer of p's watch tells. open is false if there is none any more.
func (p *place) toldBy(
	resp clientv3.WatchResponse, open bool, on int64, before string,
) (told tiding, at int64) {
	if !open || resp.Err() != nil || p.s.elsewhere(resp.Header) {
		p.s.stream.fails(on, resp.Err())
		return watchOver, 0
	}
	p.s.stream.tells(on)
	if resp.Created {
		return watchBegun, 0
	}
	if at = p.deletion(before, resp.Events); at != 0 {
		return deletionTold, at
	}
	return nothingTold, 0
}

// isOutdated reports whether p no longer waits for the one before it: its key is gone, which is
// errQueueAnew, or etcd was set back, and the line is to be read.
func (p *place) isOutdated() (over bool, err error) {
	p.s.mu.Lock()
	defer p.s.unlock()
	if p.ticket.Lost() {
		return true, errQueueAnew
	}
	return p.staleLocked(), nil
}

// recheckAfter is how long to wait for the next look of one that has relied on its watch since a
// time, in a line of so many. An etcd that is slow is asked less.
func (s *Session) recheckAfter(relied time.Time, contenders int) time.Duration {
	from, to := recheck.Period(time.Since(relied), s.cfg.ttl, contenders)
	return s.calls.Seldom(from) + rand.N(to-from+1)
}

// lengthOf is how many are in p's line, as far as is known.
func (p *place) lengthOf() int {
	ahead, _ := p.rivals()
	return max(ahead.Keys, ahead.Count()+1)
}

// deletion finds among events the revision at which the key before was deleted, 0 if
// it was not.
//
// Only what is newer than p counts, since the key stood when p was there. A member
// that lags behind serves its own "now", and may report an earlier use of the same
// key name. (TestADeletionOlderThanThePlaceLetsNobodyIn.)
func (p *place) deletion(before string, events []*clientv3.Event) (at int64) {
	for _, event := range events {
		newer := event.Kv.GetModRevision() > p.ticket.Rev()
		if event.Type == clientv3.EventTypeDelete && newer && string(event.Kv.GetKey()) == before {
			at = event.Kv.GetModRevision()
		}
	}
	return at
}

// rivals are those before p, when last looked at, nobody for a nil p. They are stale if
// that was in an era before.
func (p *place) rivals() (ahead line.Ahead, stale bool) {
	if p == nil {
		return line.Nobody, false
	}
	p.s.mu.Lock()
	defer p.s.unlock()
	return p.ahead, p.staleLocked()
}

func (p *place) setLine(ahead line.Ahead, at *era) {
	p.s.mu.Lock()
	defer p.s.unlock()
	if p.era == at {
		ahead = ahead.Since(p.ahead)
	}
	p.seesLocked(ahead, at)
}

// seesLocked notes who is before p, as an answer of an era tells.
func (p *place) seesLocked(ahead line.Ahead, told *era) {
	p.ahead, p.era = ahead, told
	for _, e := range ahead.Last {
		p.s.strayLocked(e)
	}
}

// readOn looks who is before p, if what was read does not tell.
func (p *place) readOn(ctx context.Context, c *claim) error {
	if ahead, stale := p.rivals(); stale || ticket.Tells(ahead) {
		return nil
	}
	return p.look(ctx, c, 0)
}

// stands reports whether the very key before and p's own both stand in line now. It is a
// linearizable read of four compares, and tries until it is answered. It brings along who holds,
// if that is not known, and how many keys there are in all, if length is not nil.
//
// A key that was put over has the create revision that it had, but perhaps no lease: it
// stands in line no more, and no lease removes it.
func (p *place) stands(
	ctx context.Context, c *claim, before line.Entry, length *int,
) (bool, error) {
	ahead, _ := p.rivals()
	resp, err := readFor(ctx, p, c, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		// A range is what makes a transaction without writes linearizable.
		ask := []clientv3.Op{p.ticket.AskWhoHolds(ahead)}
		if length != nil {
			ask = append(ask, countBelow(p.m.name))
		}
		return p.s.txn(ctx, []clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(before.Key), "=", before.Rev),
			clientv3.Compare(clientv3.LeaseValue(before.Key), "=", before.Lease),
			p.ticket.Exists(),
			p.ticket.OnLease(),
		}, ask, ask)
	})
	if err != nil {
		return false, err
	}
	ranges := rangesOf(resp)
	if length != nil {
		*length = int(ranges[1].GetCount())
	}
	p.s.mu.Lock()
	defer p.s.unlock()
	p.ahead = p.ticket.WhoHolds(p.ahead, ranges[0])
	return resp.Succeeded, nil
}

// countBelow counts the keys below a name.
func countBelow(name string) clientv3.Op {
	return clientv3.OpGet(line.Prefix(name), clientv3.WithPrefix(), clientv3.WithCountOnly())
}

// look reads who is before p, at the revision at if that is not 0 and the member that answers
// knows it, otherwise as of now. It returns errQueueAnew if p's own key is not there, or not with
// its lease.
//
// It reads the nearest few, and after a deletion at first only whether there are any. If these
// are all no contenders it reads on.
func (p *place) look(ctx context.Context, c *claim, at int64) error {
	for look := p.ticket.Look(at != 0); ; {
		sent := p.s.era.Load()
		resp, err := p.readAhead(ctx, c, at, look.Range())
		if err != nil {
			return err
		}
		ahead, there := look.Judge((*pb.RangeResponse)(resp))
		if !there {
			p.disowned()
			return errQueueAnew
		}
		if ticket.Tells(ahead) {
			p.setLine(ahead, sent)
			return nil
		}
	}
}

// readAhead is one range of a look.
func (p *place) readAhead(
	ctx context.Context, c *claim, at int64, which []clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	if at != 0 {
		// What was at a revision does not change, so no quorum is needed. The
		// member may not be there yet, or have compacted it away.
		sent := p.s.era.Load()
		then := append(slices.Clip(which), clientv3.WithRev(at), clientv3.WithSerializable())
		get := func(ctx context.Context) (*clientv3.GetResponse, error) {
			return p.s.client.Get(ctx, p.ticket.Prefix(), then...)
		}
		resp, _, err := attempt.Do(ctx, p.s.calls, &attempt.Backoff{Urgent: true}, attempt.ReadTimeout, get)
		if err == nil {
			p.s.heard(resp.Header, sent, 0) // of the past, by a member that may be behind
			return resp, nil
		}
	}
	return readFor(ctx, p, c, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return p.s.get(ctx, p.ticket.Prefix(), which...)
	})
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
	return p.ticket.Lost()
}

// disowned notes that p's key is not what p had put. If etcd was set back, an earlier key of the
// Session may be there instead, and in everybody's way.
func (p *place) disowned() {
	p.s.mu.Lock()
	defer p.s.unlock()
	p.ticket.Lose()
	p.lease.suspectLocked()
}

// lostLocked notes that somebody else deleted p's key, or put it over.
func (p *place) lostLocked() {
	if !p.ticket.Lose() {
		return
	}
	p.unwatchLocked()
	p.tellLocked()
	if p.hold != nil {
		p.hold.endLocked(p.hold.lost(reasonOf(p.ticket.Taken())))
	}
	if p.lingersLocked() {
		p.local.giveWayLocked()
	}
}

// listen lets tellLocked wake the caller, unless nobody is before p.
func (p *place) listen() {
	p.s.mu.Lock()
	defer p.s.unlock()
	if p.news == nil && !p.ahead.Clear() {
		p.news = make(chan struct{}, 1)
	}
	if p.ticket.Lost() {
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
