package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// watchAfter is the age from which a held key is watched. A shorter hold costs nothing.
	watchAfter = time.Second

	// seldomAudits is how many renewal periods there are per audit while every hold that lasts is
	// covered by a watch. idleAudits is that number while every key is also rechecked, and nothing
	// was put for a while.
	seldomAudits = 4
	idleAudits   = 32

	// firstPause is the pause before a key watch is made again. It doubles up to a renewal period,
	// because audits cover the key meanwhile.
	firstPause = 20 * time.Millisecond
)

// A keyWatch tells a holder what others do to its key. A hold that lasts has one, unless a view
// covers the key. It costs etcd nothing while nothing happens.
//
// The watch begins from now, so the key is read once the watch is there. The read shows what
// happened before, events show what happens after.
//
// Invariant: while sure is set, whatever was done to the key before the watch was created is
// known, and the watch has not ended since. It may have gone silent all the same. So the lease's
// keys are audited now and then, and once per renewal period where a key is not covered.
// (TestALossIsToldThoughAllWatchesAreSilent.)
type keyWatch struct {
	// Set once, then only read.
	place  *place
	ctx    context.Context // of its goroutine
	cancel context.CancelFunc
	again  chan struct{} // tells the goroutine to begin a new watch

	// Guarded by Session.mu.
	made int  // watches so far
	sure bool // there is a watch, and the key was read since it was created
}

// watchHolds begins to watch the keys of the lease's holds that last and that no view covers.
func (l *lease) watchHolds() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.hasEndedLocked() || l.s.closed || len(l.places) > manyPlaces {
		return
	}
	now := time.Now()
	for _, p := range l.places {
		if p.watch == nil && p.lastsForLocked(now, watchAfter) && !p.viewedLocked() {
			w := &keyWatch{place: p, again: make(chan struct{}, 1)}
			w.ctx, w.cancel = context.WithCancel(l.s.ctx)
			p.watch = w
			l.s.tasks.GoLocked(w.run)
		}
	}
}

// lastsForLocked reports whether p's key has been held for a time.
func (p *place) lastsForLocked(now time.Time, d time.Duration) bool {
	return p.ticket.State() == ticket.Held && now.Sub(p.held) >= d
}

// viewedLocked reports whether a view covers p's key: it has judged p by the last event, and will by
// the next one. (Not whether it has ever judged p: what happened while the Session waited for another
// permit has told p nothing. TestAPermitIsToldOfWhatHappensWhileAnotherOfItsSessionWaits.)
func (p *place) viewedLocked() bool {
	v := p.local.view
	return v.isLiveLocked() && v.judged == p && v.ownLocked() == p
}

// unwatchLocked ends the watch of p's key, if there is one: the key is not held any more.
func (p *place) unwatchLocked() {
	if w := p.watch; w != nil {
		p.watch = nil
		p.s.mu.After(w.cancel)
	}
}

// seldomLocked is how many renewal periods there are per audit of the lease's keys. It depends on
// what else covers them: 1 if the key of a hold that lasts is not covered by a watch; many if each
// key is rechecked, by a waiter, or by the view of a key that lingers or will linger, and the keys
// were audited a TTL after the last put.
//
// (Do not leave out the latter. clientv3 may repeat a put unseen, and the late copy of one blocks
// everybody until the next audit. TestAKeyThatALateRequestPutsIsSwept. In a long line it is rarer,
// as rechecks are: else a crowd that goes round would mostly audit.
// TestWhoWaitsInALongLineAuditsAsRarelyAsItRechecks.)
func (l *lease) seldomLocked(now time.Time, period time.Duration) time.Duration {
	some, rechecked := false, true
	contenders := 0 // in the longest line that it waits in
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
			contenders = max(contenders, p.ahead.Keys)
			some = true
		}
	}
	switch {
	case !some || !rechecked:
		return seldomAudits
	case l.sweptLocked():
		return idleAudits
	}
	asRechecks := time.Duration(contenders) * recheck.PerContender / period
	return min(max(seldomAudits, asRechecks), idleAudits)
}

// rewatchLocked begins new watches of the keys of the Session's holds: the old ones may be silent.
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
				default: // already told
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
		case attempt.Refused(err) && !etcd.IsOfToken(err):
			pause = etcd.DeniedRest // an operator may give the right back
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

// follow watches the key until the watch ends or a new one is wanted. It returns why the watch
// ended, if etcd has said so.
func (w *keyWatch) follow(broken *attempt.Backoff) error {
	watch := w.place.s.etcd.Watch(w.ctx, broken, w.place.ticket.Key)
	defer watch.Stop()
	defer w.unsure()
	for {
		select {
		case answer, open := <-watch.Answers:
			switch n := watch.Notice(answer, open); n.Kind {
			case etcd.Created:
				broken.Reset()
				w.created()
			case etcd.Events:
				w.apply(n.Events)
			case etcd.Ended:
				return n.Err
			}
		case <-w.again:
			return nil
		}
	}
}

// unsure notes that there is no watch.
func (w *keyWatch) unsure() {
	w.place.s.mu.Lock()
	defer w.place.s.mu.Unlock()
	w.made++
	w.sure = false
}

// apply observes what has happened to the key.
func (w *keyWatch) apply(events []*clientv3.Event) {
	p := w.place
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, event := range events {
		if p.watch != w {
			return // the release has deleted it, or is about to
		}
		p.observedLocked(ticket.Observation{
			Entry: line.EntryOf(event.Kv), At: event.Kv.GetModRevision(), AskFirst: true,
		})
	}
}

// An unread keyWatch was created, and its key is still to be read.
type unread struct {
	watch *keyWatch
	made  int
}

// created starts a read of the key, together with those of other watches that were just created.
func (w *keyWatch) created() {
	l := w.place.lease
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.unread = append(l.unread, unread{w, w.made})
	if !l.reading {
		l.reading = true
		l.s.tasks.GoLocked(l.readWatched)
	}
}

// readWatched reads the keys whose watches were created.
func (l *lease) readWatched() {
	s := l.s
	for {
		s.mu.Lock()
		created := l.unread
		l.unread, l.reading = nil, len(created) > 0
		s.mu.Unlock()
		if len(created) == 0 {
			return
		}
		places := make([]*place, len(created))
		for i, c := range created {
			places[i] = c.watch.place
		}
		present := s.etcd.Epoch()
		// If a key is not read, its watch stays unsure.
		_ = s.etcd.ReadKeys(l.live, keysOf(places), s.etcd.Read, func(part etcd.Part) {
			l.readSince(created[part.From:], part.Entries, present)
		})
	}
}

// readSince notes what was read of keys after their watches were created, since an epoch.
func (l *lease) readSince(created []unread, read []line.Entry, since *etcd.Epoch) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if since != s.etcd.Epoch() {
		return // new watches have begun
	}
	for i, e := range read {
		w, p := created[i].watch, created[i].watch.place
		if p.watch == w && p.observedLocked(ticket.Observation{Entry: e, AskFirst: true}) == ticket.Same {
			w.sure = w.made == created[i].made
		}
	}
}

// askWhyLocked ends the hold at p, whose key is gone, in the background.
func (l *lease) askWhyLocked(p *place) {
	l.deleted = append(l.deleted, p)
	if !l.asking {
		l.asking = true
		l.s.tasks.GoLocked(l.tellDeleted)
	}
}

// tellDeleted ends the holds whose keys are gone. The lease may be the reason, so it first asks
// etcd, for a moment, to give the right reason of the loss.
func (l *lease) tellDeleted() {
	known := l.isKnown()
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for _, p := range l.deleted {
		p.observedLocked(ticket.Observation{Entry: line.Entry{Key: p.ticket.Key}, LeaseGone: !known})
	}
	l.deleted, l.asking = nil, false
	if !known {
		l.suspectLocked() // and then a renewal decides
	}
}
