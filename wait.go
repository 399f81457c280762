package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

const (
	// removalGrace is how long a wait that failed waits for its key to be removed.
	removalGrace = 25 * time.Millisecond

	// lateCheck is when a waiter that watches from the revision of its put checks for the first
	// time whether the key before it stands in line.
	lateCheck = 5 * time.Second
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

// waitInView waits until nobody is ahead of p, which c owns, or the line has become too long for
// views.
func (p *place) waitInView(ctx context.Context, c *claim) error {
	s, n := p.s, c.local
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return ErrClosed
		}
		if p.staleLocked() || !inView(p.ahead) {
			s.mu.Unlock()
			return nil
		}
		v := s.viewLocked(n, false)
		if !v.waiting {
			v.reliesLocked()
		}
		v.waiting, v.needed = true, time.Now()
		v.judgeLocked(false)
		first, gone := p.ahead.Clear(), p.ticket.Lost()
		s.mu.Unlock()

		var err error
		if !first && !gone {
			gone, err = p.awaitNews(ctx)
		}
		s.mu.Lock()
		v.waiting = false
		if gone || p.ticket.Lost() {
			err = errQueueAnew
		}
		if c.lastErr = v.err; v.refusal != nil {
			err = v.refusal
		}
		first = p.ahead.Clear()
		s.mu.Unlock()
		if err != nil || first {
			return err
		}
	}
}

// awaitNews waits until there is news for p, or p is gone with its lease.
func (p *place) awaitNews(ctx context.Context) (gone bool, err error) {
	select {
	case <-p.news:
		return false, nil
	case <-p.lease.dead:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
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
