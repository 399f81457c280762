package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
)

const (
	// removalGrace is how long a wait that failed waits for its key to be removed.
	removalGrace = 25 * time.Millisecond

	// crowded is how many keys are below a name whose line is long. A place there needs to know
	// little of it.
	crowded = 4 * fewAhead

	// pastWait is how long a place must have stood in line for the next one to watch from the
	// revision of its put. etcd serves such a watch within 100 ms.
	pastWait = 250 * time.Millisecond

	// keepLast is for how long the key behind which a place stood is watched when it is gone.
	keepLast = 2 * time.Second

	// lateCheck is when such a wait looks for the first time whether whom it waits for stands in
	// line.
	lateCheck = 5 * time.Second
)

var (
	// errQueueAnew says that a place is lost through no fault of its owner. The
	// owner takes a new one.
	errQueueAnew = errors.New("place in line lost")

	// errTaken says that TryLock found another contender.
	errTaken = errors.New("taken")
)

// wait waits until everybody ahead of p is gone. It returns nil if p is first and its
// key is there; errQueueAnew if its key or its lease is gone; errTaken if somebody is ahead
// of it and c only tries; the cause of ctx when ctx ends; or an error that a retry does not
// fix.
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
			if err = anew.Wait(ctx, p.s.etcd.Caller); err == nil {
				err = p.look(ctx, c, 0)
			}
		case ahead.Clear():
			return nil
		case ahead.Unread():
			err = p.look(ctx, c, 0)
		case c.try:
			err = errTaken
		case inView(ahead):
			err = p.waitInView(ctx, c)
		case p.ticket.Kind == line.Permit:
			p.s.dropView(c.local)
			err = p.waitBehindSome(ctx, c, ahead, &broken)
		default:
			p.s.dropView(c.local)
			err = p.waitBehind(ctx, c, ahead.Last[len(ahead.Last)-1], &broken)
		}
		if err != nil {
			return err
		}
	}
}

// waitBehind waits until the line ahead of p may have changed, and then reads it again.
//
// It watches the DELETE of the one key before its own, from now: etcd serves a watch
// from a past revision in a loop of 100 ms. Once the watch is there it checks by a read
// that the very key, by its create revision, is still there. So no deletion is missed:
// the read shows those before the watch, and those after it come as events.
//
// The order of departures may differ from that of the line, so one read at the event's
// revision shows who is ahead of p then. (Do not enter without it: if W between H and p
// is deleted while H holds, p would enter beside H.)
//
// If an event never comes, from a frozen member for instance, a slow recheck makes up
// for it. The longer the wait and the line, the slower the recheck. Events are heard while a check
// is under way. (Do not wait for its answer alone: an etcd that was frozen answers those of a long
// line one by one when it is back, and tells who is next at once.
// TestACheckKeepsNobodyFromHearingTheEvent.)
func (p *place) waitBehind(
	ctx context.Context, c *claim, before line.Entry, broken *attempt.Backoff,
) error {
	w, known := p.watchBefore(ctx, broken, before)
	defer func() { p.unwatchBefore(w) }()
	relied := time.Now() // since when it relies on the watch
	length := p.lengthOf()
	first := p.s.recheckAfter(relied, length)
	if known {
		first = min(first, attempt.Jitter(lateCheck))
	}
	again := time.NewTimer(first)
	defer again.Stop()
	var checking check
	defer func() { checking.end() }()
	for {
		select {
		case answer, open := <-w.Answers:
			n := w.Notice(answer, open)
			switch n.Kind {
			case etcd.Ended: // read the line, begin a new watch
				checking.end()
				if err := broken.Wait(ctx, p.s.etcd.Caller); err != nil {
					return err
				}
				return p.look(ctx, c, 0)
			case etcd.Created:
				broken.Reset()
				if !known {
					checking.end() // it may have been sent before
					checking = p.check(ctx, c, before, 0)
				}
			}
			if at := p.deletion(before.Key, n.Events); at != 0 {
				w.gone = true
				checking.end()
				return p.look(ctx, c, at)
			}
		case <-again.C:
			if checking.finished() {
				checking = p.check(ctx, c, before, length)
			}
		case r := <-checking.answer:
			checking.end()
			switch {
			case r.err != nil:
				return r.err
			case !r.still:
				return p.look(ctx, c, 0)
			}
			if r.length > 0 {
				length = r.length
			}
			again.Reset(p.s.recheckAfter(relied, length))
		case <-p.news:
			if over, err := p.isOutdated(); over {
				return err
			}
			relied = time.Now() // the client has reconnected
			again.Reset(p.s.recheckAfter(relied, length))
		case <-p.lease.dead:
			return errQueueAnew
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isOutdated reports whether p no longer waits for the key before it: p's own key is gone, which
// is errQueueAnew, or etcd was set back and the line must be read.
func (p *place) isOutdated() (over bool, err error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.ticket.Lost() {
		return true, errQueueAnew
	}
	return p.staleLocked(), nil
}

// A predecessor is the key behind which a place stands, as it is watched.
type predecessor struct {
	// Set once, then only read.
	key string
	etcd.Watch
	end context.CancelFunc // of the watch

	gone bool        // the key was deleted. Owned by whoever waits
	late *time.Timer // ends it while nobody needs it. Guarded by Session.mu
}

// watchBefore watches the key behind which p stands. known says that who was before p is known up
// to where the watch begins, so that it need not look whether that one still stands.
//
// Invariant: known is set only if the transaction that put p has read the key, and the watch tells
// whatever has become of it since. It is set where p has not asked who holds, either: a look that
// tells that is not needed then. (Do not set it for what was read later.
// TestAWatchFromThePutMissesNothing.)
func (p *place) watchBefore(ctx context.Context, broken *attempt.Backoff, before line.Entry) (
	w *predecessor, known bool,
) {
	last, same, from := p.knownBefore(before)
	if same {
		return last, true
	}
	opts := []clientv3.OpOption{clientv3.WithFilterPut()}
	if from != 0 {
		opts = append(opts, clientv3.WithRev(from))
	}
	w = &predecessor{key: before.Key}
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it may outlast the wait
	begins := context.AfterFunc(ctx, cancel)
	w.Watch = p.s.etcd.Watch(watching, broken, before.Key, opts...)
	begins()
	w.end = func() { w.Stop(); cancel() }
	if last != nil {
		last.end() // not before: clientv3 ends a stream with its last watch
	}
	return w, from != 0
}

// knownBefore takes the watch of the key behind which the last place of the Session stood, if there
// is one. It has begun before p was put, and is all that p needs if it is of the same key.
// Otherwise from is the revision from which p has to watch, 0 if from now and to look then.
//
// etcd serves a watch from a past revision late. That is for a line in which one waits for so
// long that it is served by far when the turn comes.
func (p *place) knownBefore(before line.Entry) (last *predecessor, same bool, from int64) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if last = p.local.last; last != nil {
		p.local.last = nil
		last.late.Stop()
	}
	if !p.asPut || !p.ahead.Brief() {
		return last, false, 0
	}
	if p.local.waited >= pastWait {
		from = p.ticket.Rev() + 1
	}
	return last, last != nil && last.key == before.Key && last.Epoch == p.epoch, from
}

// unwatchBefore ends the watch of the key behind which p stood, unless it is gone and p is the
// first now. Then the watch stays for a while. The one who held before p may queue again, and so
// may p's Session, which then stands behind the same key, and needs no other watch.
func (p *place) unwatchBefore(w *predecessor) {
	s, n := p.s, p.local
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !w.gone || !p.ahead.Clear() || p.epoch != w.Epoch || n.last != nil {
		s.mu.After(w.end)
		return
	}
	w.gone = false
	n.last = w
	if w.late != nil {
		w.late.Reset(keepLast)
		return
	}
	w.late = time.AfterFunc(keepLast, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n.last == w {
			s.unwatchLastLocked(n)
		}
	})
}

// unwatchLastLocked ends the watch of the key behind which the last place in n stood.
func (s *Session) unwatchLastLocked(n *localLine) {
	if n.last != nil {
		n.last.late.Stop()
		s.mu.After(n.last.end)
		n.last = nil
	}
}

// recheckAfter is how long to wait for the next recheck of one that has relied on its watch since a
// time, in a line of so many. An etcd that is slow is asked less.
func (s *Session) recheckAfter(relied time.Time, contenders int) time.Duration {
	from, to := recheck.Period(time.Since(relied), s.cfg.ttl, contenders)
	return s.etcd.Seldom(from) + rand.N(to-from+1)
}

// lengthOf is the length of p's line, as far as is known.
func (p *place) lengthOf() int {
	ahead, _ := p.rivals()
	return max(ahead.Keys, ahead.Count()+1)
}

// deletion finds among events the revision at which the key before was deleted, or 0 if
// it was not.
//
// Only events newer than p count, because the key was there when p was put. A member
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

// isGone reports whether p's key is known to be deleted by somebody else.
func (p *place) isGone() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.ticket.Lost()
}

// listen lets tellLocked wake the caller, unless nobody is ahead of p.
func (p *place) listen() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
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
