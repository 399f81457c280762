package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// watchAfter is the age from which a held key is watched. A shorter hold costs nothing.
	watchAfter = time.Second

	// seldomLooks is how many renewals there are to a look while every hold that lasts is
	// covered by a watch, and idleLooks while every key is re-checked besides.
	seldomLooks = 4
	idleLooks   = 32

	// causeTime is for how long a deleted key waits for etcd's word that its lease is gone,
	// too, which is then the reason of the loss.
	causeTime = 100 * time.Millisecond

	// firstPause is the pause before a watch of a key is made anew. It doubles up to a renewal
	// period, since the looks at the lease's keys do meanwhile.
	firstPause = 20 * time.Millisecond
)

// A keyWatch tells a holder of what others do to its key. A hold that lasts has one, unless a
// view covers the key: it costs etcd nothing while nothing happens.
//
// The watch begins from now, so the key is read once it is there. What was before is in the
// read, what comes after is an event.
//
// Invariant: while sure is set, whatever was done to the key before the watch was created is
// known, and the watch has not ended since. It may be silent all the same; so the lease's keys
// are looked at now and then, and once per renewal period where a key is not covered.
// (TestALossIsToldThoughAllWatchesAreSilent.)
//
// Invariant: an event ends a hold only by its revisions: a DELETE that is newer than the key, or
// a put that left the create revision and not the lease. The names of keys are used again, and a
// member that is behind tells of their earlier uses. (Do not end a hold by the key's name alone.
// TestAnEventOfAnEarlierUseOfTheNameEndsNoHold.)
type keyWatch struct {
	// Set once, then only read.
	place  *place
	ctx    context.Context // of its goroutine
	cancel context.CancelFunc
	again  chan struct{} // tells the goroutine to watch anew

	// Guarded by Session.mu.
	made int  // watches so far
	sure bool // there is one, and the key was read since
}

// watchHolds begins to watch the keys of the lease's holds that last, and that no view covers.
func (l *lease) watchHolds() {
	l.s.mu.Lock()
	defer l.s.unlock()
	if l.ended != nil || l.s.closed || len(l.places) > manyPlaces {
		return
	}
	now := time.Now()
	for _, p := range l.places {
		if p.watch == nil && p.lastsForLocked(now, watchAfter) && !p.viewedLocked() {
			w := &keyWatch{place: p, again: make(chan struct{}, 1)}
			w.ctx, w.cancel = context.WithCancel(l.s.ctx)
			p.watch = w
			l.s.goLocked(w.run)
		}
	}
}

// lastsForLocked reports whether p's key has been held for a time.
func (p *place) lastsForLocked(now time.Time, d time.Duration) bool {
	return p.ticket.State() == ticket.Held && now.Sub(p.held) >= d
}

// viewedLocked reports whether a view tells what becomes of p's key.
func (p *place) viewedLocked() bool {
	v := p.local.view
	return v != nil && v.live && v.err == nil && p.seen == v
}

// unwatchLocked ends the watch of p's key, if there is one: it is not held any more.
func (p *place) unwatchLocked() {
	if w := p.watch; w != nil {
		p.watch = nil
		p.s.afterLocked(w.cancel)
	}
}

// seldomLocked is how many renewal periods there are to a look at the lease's keys, by what else
// tells of them: 1 if the key of a hold that lasts is not covered by a watch; many if each key is
// re-checked, by who waits, or by the view by which it lingers or will.
func (l *lease) seldomLocked(now time.Time) time.Duration {
	some, rechecked := false, true
	for _, p := range l.places {
		switch p.ticket.State() {
		case ticket.Held:
			viewed := p.viewedLocked()
			if !viewed && p.lastsForLocked(now, watchAfter) && (p.watch == nil || !p.watch.sure) {
				return 1
			}
			rechecked = rechecked && viewed && p.local.view.neededLocked()
			some = true
		case ticket.InLine:
			some = true
		}
	}
	if some && rechecked {
		return idleLooks
	}
	return seldomLooks
}

// rewatchLocked has the keys of the Session's holds watched anew: their watches may be silent.
func (s *Session) rewatchLocked() {
	for l := range s.leases {
		if len(l.places) > manyPlaces {
			continue
		}
		for _, p := range l.places {
			if w := p.watch; w != nil {
				w.sure = false
				select {
				case w.again <- struct{}{}:
				default: // it is told already
				}
			}
		}
	}
}

// run is the goroutine of a keyWatch. It ends with the hold.
func (w *keyWatch) run() {
	defer w.cancel()
	period := w.place.lease.plan.Period
	pause := firstPause
	var broken attempt.Backoff
	for {
		began := time.Now()
		err := w.follow(&broken)
		switch {
		case attempt.Refused(err) && !isOfToken(err):
			pause = deniedRest // an operator may give the right back
		case time.Since(began) >= period:
			pause = firstPause
		default:
			pause = min(2*pause, max(period, firstPause))
		}
		timer := time.NewTimer(attempt.Jitter(pause))
		select {
		case <-timer.C:
		case <-w.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// follow watches the key until the watch ends, or is to be made anew. It returns why it ended,
// if etcd has told.
func (w *keyWatch) follow(broken *attempt.Backoff) error {
	s, p := w.place.s, w.place
	events, on, stop := s.watch(w.ctx, broken, p.ticket.Key)
	defer stop()
	defer w.unsure()
	for known := false; ; {
		select {
		case resp, open := <-events:
			switch {
			case !open:
				return nil
			case resp.Err() != nil || s.elsewhere(resp.Header):
				s.stream.fails(on, resp.Err())
				return resp.Err()
			case !known: // created; a Watcher of the user's may tell of events only
				known = true
				s.stream.tells(on)
				broken.Reset()
				w.created()
			default:
				s.stream.tells(on)
				w.apply(resp.Events)
			}
		case <-w.again:
			return nil
		}
	}
}

// unsure notes that there is no watch.
func (w *keyWatch) unsure() {
	w.place.s.mu.Lock()
	defer w.place.s.unlock()
	w.made++
	w.sure = false
}

// apply judges what has happened to the key.
func (w *keyWatch) apply(events []*clientv3.Event) {
	p := w.place
	p.s.mu.Lock()
	defer p.s.unlock()
	for _, event := range events {
		e, at := line.EntryOf(event.Kv), event.Kv.GetModRevision()
		switch {
		case p.watch != w || p.ticket.State() != ticket.Held:
			return // the release has deleted it, or is about to
		case e.Key != p.ticket.Key || at <= p.ticket.Rev(): // of an earlier use of the name
		case event.Type == clientv3.EventTypeDelete:
			p.lease.deletedLocked(p)
		case p.ticket.Is(e): // a put that keeps the lease keeps the place
		case e.Rev == p.ticket.Rev():
			p.ticket.PutOver()
			p.lostLocked()
		default: // it was put anew; a read tells
			p.lease.suspectLocked()
		}
	}
}

// An unread keyWatch is one that was created, and whose key is to be read.
type unread struct {
	watch *keyWatch
	made  int
}

// created has the key read, together with those of other watches that were just created.
func (w *keyWatch) created() {
	l := w.place.lease
	l.s.mu.Lock()
	defer l.s.unlock()
	l.unread = append(l.unread, unread{w, w.made})
	if !l.reading {
		l.reading = true
		l.s.goLocked(l.readWatched)
	}
}

// readWatched reads the keys whose watches were created.
func (l *lease) readWatched() {
	s := l.s
	for {
		s.mu.Lock()
		created := l.unread
		l.unread, l.reading = nil, len(created) > 0
		s.unlock()
		if len(created) == 0 {
			return
		}
		places := make([]*place, len(created))
		for i, c := range created {
			places[i] = c.watch.place
		}
		sent := s.era.Load()
		// Of a key that is not read the watch stays unsure.
		_ = s.readKeys(l.live, keysOf(places), s.readUntilAnswered, func(from int, read []line.Entry) {
			l.readSince(created[from:], read, sent)
		})
	}
}

// readSince notes what was read of keys since their watches were created, in an era.
func (l *lease) readSince(created []unread, read []line.Entry, sent *era) {
	s := l.s
	s.mu.Lock()
	defer s.unlock()
	if sent != s.era.Load() {
		return // the watches are made anew
	}
	for i, e := range read {
		w, p := created[i].watch, created[i].watch.place
		switch {
		case p.watch != w || p.ticket.State() != ticket.Held:
		case p.ticket.Is(e):
			w.sure = w.made == created[i].made
		case e.Rev == 0:
			l.deletedLocked(p)
		case e.Rev == p.ticket.Rev():
			p.ticket.PutOver()
			p.lostLocked()
		default: // another key of that name is there
			l.suspectLocked()
			l.deletedLocked(p)
		}
	}
}

// deletedLocked has the hold at p ended, whose key is gone.
func (l *lease) deletedLocked(p *place) {
	l.deleted = append(l.deleted, p)
	if !l.asking {
		l.asking = true
		l.s.goLocked(l.tellDeleted)
	}
}

// tellDeleted ends the holds whose keys are gone. The lease may be the reason: etcd is asked
// for a moment, so that the loss says so.
func (l *lease) tellDeleted() {
	known := l.isKnown()
	l.s.mu.Lock()
	defer l.s.unlock()
	for _, p := range l.deleted {
		if p.ticket.State() != ticket.Held {
			continue // it was released meanwhile, which has told
		}
		if !known {
			p.ticket.Revoked()
		}
		p.lostLocked()
	}
	l.deleted, l.asking = nil, false
	if !known {
		l.suspectLocked() // and then a renewal tells
	}
}

// isKnown reports whether etcd knows the lease, as far as it tells at once.
func (l *lease) isKnown() bool {
	s := l.s
	if s.calls.Disconnected() || s.calls.Closed() {
		return true // clientv3 would try many times a second
	}
	ctx, cancel := context.WithTimeout(l.live, causeTime)
	defer cancel()
	resp, err := s.client.TimeToLive(ctx, l.id)
	return err != nil || resp.TTL >= 0
}
