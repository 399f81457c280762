package queue

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// watchAfter is the age from which a held key is watched. A shorter hold costs nothing.
	watchAfter = time.Second

	// firstPause is the pause before a key watch is made again. It doubles up to a renewal period,
	// because audits cover the key meanwhile, or up to longestPause.
	firstPause = 20 * time.Millisecond

	// longestPause is a renewal period of a usual TTL. The pause after a watch that took as long is
	// the first one.
	//
	// (Do not count in renewal periods only. With a TTL of an hour nothing would watch a hold for
	// minutes after an outage, or behind a proxy that ends each watch after a minute.
	// TestALongTTLDelaysNoWatch, TestAWatchThatHasLastedIsMadeAnewAtOnce.)
	longestPause = 10 * time.Second
)

// A keyWatch tells a holder what other programs do to its key. A hold that lasts has one, unless a
// view covers the key. It costs etcd nothing while nothing happens.
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
	place  *Place
	ctx    context.Context // of its goroutine
	cancel context.CancelFunc
	again  chan struct{} // tells the goroutine to begin a new watch

	// Guarded by Session.mu.
	made int  // watches so far
	sure bool // there is a watch, and the key was read since it was created
}

// newKeyWatchLocked begins to watch p's key.
func newKeyWatchLocked(p *Place) *keyWatch {
	w := &keyWatch{place: p, again: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(p.Account.keys.ctx)
	p.Account.keys.tasks.Go(w.run)
	return w
}

// run is the goroutine of a keyWatch. It ends with the hold, once that is released.
func (w *keyWatch) run() {
	defer w.cancel()
	period := w.place.Account.Lease.Period()
	pause, longest := firstPause, min(max(period, firstPause), longestPause)
	var broken attempt.Backoff
	for {
		began := time.Now()
		err := w.follow(&broken)
		switch {
		case attempt.Refused(err) && !etcd.IsOfToken(err):
			pause = etcd.DeniedRest // an operator may give the right back
		case time.Since(began) >= longest:
			pause = firstPause
		default:
			pause = min(2*pause, longest)
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
//
// A new one that was wanted during the pause before is this one. (Do not end it for that. The next
// pause is twice as long, which may be minutes. TestAWatchThatWasWantedInAPauseStays.)
func (w *keyWatch) follow(broken *attempt.Backoff) error {
	select {
	case <-w.again:
	default:
	}
	defer w.unsure()
	return w.place.Account.keys.etcd.Follow(w.ctx, broken, etcd.Following{
		Created: func() bool {
			broken.Reset()
			w.created()
			return true
		},
		Events: w.apply, News: w.again,
	}, w.place.Ticket.Key)
}

// renewLocked begins a new watch: the old one may be silent.
func (w *keyWatch) renewLocked() {
	w.sure = false
	signal(w.again)
}

// unsure notes that there is no watch.
func (w *keyWatch) unsure() {
	w.place.Account.keys.mu.Lock()
	defer w.place.Account.keys.mu.Unlock()
	w.made++
	w.sure = false
	if p := w.place; p.watch == w {
		p.Account.Lease.WakeKeeper() // the audits have to cover the key
	}
}

// apply observes what has happened to the key.
func (w *keyWatch) apply(events []*clientv3.Event) {
	p := w.place
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	for _, event := range events {
		if p.watch != w {
			return // its release is over, or it was given up
		}
		if event.Type != clientv3.EventTypeDelete && p.Ticket.State() == ticket.Leaving {
			continue // the release may have moved it
		}
		p.observedLocked(ticket.Observation{
			Entry: line.EntryOf(event.Kv), At: event.Kv.ModRevision, AskFirst: true,
		})
	}
}

// An unread keyWatch was created, and its key is still to be read.
type unread struct {
	watch *keyWatch
	made  int
}

// created starts a read of the key, together with the keys of other watches that were just created.
func (w *keyWatch) created() {
	a := w.place.Account
	a.keys.mu.Lock()
	defer a.keys.mu.Unlock()
	a.unread = append(a.unread, unread{w, w.made})
	if !a.reading {
		a.reading = true
		a.keys.tasks.Go(func() { readWatched(a) })
	}
}

// readWatched reads the keys whose watches were created: many at once.
func readWatched(a *Account) {
	k := a.keys
	for {
		k.mu.Lock()
		created := a.unread
		a.unread, a.reading = nil, len(created) > 0
		k.mu.Unlock()
		if len(created) == 0 {
			return
		}
		places := make([]*Place, len(created))
		for i, c := range created {
			places[i] = c.watch.place
		}
		present := k.etcd.Epoch()
		// If a key is not read, its watch stays unsure.
		_ = k.etcd.ReadKeys(a.Lease.Live(), keysOf(places), k.etcd.Read, func(part etcd.Part) {
			watchedSince(a, created[part.From:], part.Entries, present)
		})
	}
}

// watchedSince notes what was read of keys after their watches were created, since an epoch.
func watchedSince(a *Account, created []unread, read []line.Entry, epoch *etcd.Epoch) {
	a.keys.mu.Lock()
	defer a.keys.mu.Unlock()
	if epoch != a.keys.etcd.Epoch() {
		return // new watches have begun
	}
	for i, e := range read {
		w, p := created[i].watch, created[i].watch.place
		if p.watch == w {
			seen := p.observedLocked(ticket.Observation{Entry: e, AskFirst: true})
			if seen == ticket.Same {
				w.sure = w.made == created[i].made
			}
		}
	}
}
