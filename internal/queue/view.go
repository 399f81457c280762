package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// FewAhead is how many may be ahead of a waiter that waits by a view of the line. Behind
	// more, each waiter watches one key: a view gets every change, so a crowd of n views
	// costs etcd n squared events (internal/bench, the cases processes-8 to 64).
	FewAhead = ticket.Few

	// longLine is the longest line that a view is kept of, with the contenders behind a place. It
	// leaves room above FewAhead, so that a line of that length does not make views come and go.
	longLine = 2 * FewAhead

	// viewReads is how many keys a view reads of a line that may be long. Some of them may be
	// strays.
	viewReads = 4 * longLine

	// viewIdle is how long an unneeded view stays, unless half of the TTL is less.
	viewIdle = 5 * time.Second
)

// A view is what stands in etcd's line for one name, kept up to date by one watch of
// all keys below the prefix. While a few processes contend for a name, a waiter needs
// no request for its turn, and a lingering key is given up when other contenders come.
//
// Invariant: keys is exactly what stood in line at revision, or revision is 0. A read
// that is sent after the watch was created brings both up to date. From then on every
// newer event is applied, whole revisions at a time and in order. So a place that is in
// keys, with no contender ahead of it, is the first in etcd and stays the first.
// (Do not apply events before that read: the events between an older read and the watch
// would be missing. TestAViewMissesNothingBeforeItsWatch.)
//
// A key's absence from keys proves nothing: etcd may have been set back unnoticed, and
// keys be from another epoch. A key is proven gone by its DELETE, newer than the key itself, or
// by a read that shows the place in question. (TestAViewFromBeforeASetBackLetsNobodyIn.)
//
// A watch may go silent without ending. So the line is rechecked now and then, and a watch
// that did not report what the recheck shows is replaced.
//
// A view gets every change of its line, and reads all of it. It ends when the line has become
// long, with the contenders behind the Session's place.
type view struct {
	// Set once, then only read.
	line   *Line
	epoch  *etcd.Epoch // in which it has begun
	from   string      // it is of the keys from here on
	to     clientv3.OpOption
	ctx    context.Context // of its goroutine
	cancel context.CancelFunc
	again  chan struct{} // tells the goroutine to begin a new watch

	// It leaves out the readers, which may be many: it tells only whether an exclusive contender
	// stands in line, for a read that may join a cohort. A contender that it leaves out beside
	// them, by the chance of its key, waits longer for its turn, and gets it all the same.
	partial bool

	// Guarded by Session.mu.
	revision int64
	keys     map[string]int64      // create revisions of the contenders
	read     map[string]int64      // keys as the last read told them
	deleted  map[string]int64      // the last DELETE of each key since then, while it may count
	putOver  map[string]line.Entry // of keys: values that are not the first; one may have a recall
	state    viewState             // changed by becomesLocked alone
	behind   bool                  // a read told what the watch did not, or not yet
	reading  bool                  // a recheck is under way
	waiting  bool                  // the line's owner waits by this view
	joined   bool                  // a read has joined a cohort by it, since the last recheck
	relied   time.Time             // since when the watch is relied on
	due      time.Time             // when the line is to be read again
	needed   time.Time             // when it last was
	judged   *Place                // the own place that the last events were judged for, if any
	err      error                 // of the last read, nil once one was answered
	refusal  error                 // why it is over, as the next would be: etcd's, or errTooLong
}

// A viewState is how far a view has come, and whether it may be relied on.
type viewState uint8

const (
	viewBegun  viewState = iota // its first watch is under way, and nothing was read yet
	viewBlind                   // it has no watch, or has not read the line since the watch began
	viewLive                    // it has one, and the last read was answered
	viewFailed                  // it has one, and the last read was not answered
	viewOver                    // it is off its line, for good
)

// String returns the state's name.
func (st viewState) String() string {
	return [...]string{"begun", "blind", "live", "failed", "over"}[st]
}

// becomesLocked is the one transition of a view's state. A view that is over stays so, whatever its
// goroutine learns yet. Only a blind view, or one that has begun, begins to have a watch.
func (v *view) becomesLocked(next viewState) {
	switch {
	case v.state == viewOver:
		return
	case next == viewBegun, next == viewFailed && v.state != viewLive:
		panic(fmt.Sprintf("etcdlock: view of %q: %v becomes %v", v.line.Name, v.state, next))
	}
	v.state = next
	if next != viewOver || v.refusal == nil {
		v.line.local.MarkLocked() // if v is over, a waiter that is to join begins another
	}
}

// isOverLocked reports whether v is over. One from before a set-back is.
func (v *view) isOverLocked() bool {
	v.line.viewLocked()
	return v.state == viewOver
}

// isLiveLocked reports whether v may be relied on: it shows whatever happens in the line. (What its
// watch does not show, as it is silent, the rechecks do.)
func (v *view) isLiveLocked() bool { return v != nil && v.state == viewLive }

// inView reports whether a waiter with ahead before it waits by a view: it does if it knows all
// contenders before it and the line is not long.
func inView(ahead line.Ahead) bool {
	return ahead.Whole && len(ahead.Last) <= FewAhead && ahead.Keys <= longLine
}

// run is the view's goroutine. It ends when the line gets long, when the view was not needed for a
// while, when etcd refuses, and with the Session.
func (v *view) run() {
	defer v.cancel()
	var broken attempt.Backoff
	for {
		v.follow(&broken)
		if !v.keepRunning() || broken.Wait(v.ctx, v.line.keys.etcd.Caller) != nil {
			break
		}
		v.readLine(false) // the waiter need not wait for the watch
	}
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	v.endLocked()
}

// follow watches the line until the watch ends or a new one is wanted.
func (v *view) follow(broken *attempt.Backoff) {
	watch := v.line.keys.etcd.Watch(v.ctx, broken, v.from, v.to)
	defer watch.Stop()
	defer v.unwatched()
	tick := time.NewTimer(recheck.Least)
	defer tick.Stop()
	for {
		select {
		case answer, open := <-watch.Answers:
			switch n := watch.Notice(answer, open); n.Kind {
			case etcd.Created:
				if !v.readLine(true) {
					return
				}
				broken.Reset()
			case etcd.Events:
				v.apply(n.Events)
			case etcd.Ended:
				return // run reads the line, which shows which cluster counts
			}
		case <-tick.C:
			next, goOn := v.recheck()
			if !goOn {
				return
			}
			tick.Reset(next)
		case <-v.again:
			return
		}
	}
}

// watchedLocked notes that there is a watch, and that everything before it was read.
func (v *view) watchedLocked() {
	v.becomesLocked(viewLive)
	v.behind = false
	v.reliesLocked()
}

// reliesLocked notes that the watch is relied on from now on: it has begun, or a waiter or a key
// that lingers comes to need it.
func (v *view) reliesLocked() {
	now := time.Now()
	v.relied = now
	from, to := recheck.Period(0, v.line.keys.TTL, len(v.keys))
	if due := now.Add(from + rand.N(to-from+1)); v.due.Before(now) || due.Before(v.due) {
		v.due = due
	}
}

// unwatched notes that there is no watch.
func (v *view) unwatched() {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	if v.state != viewBegun {
		v.becomesLocked(viewBlind)
	}
	v.blindLocked()
}

// blindLocked gives up the key that lingers by this view: without a watch the Session would not
// notice that other contenders wait for it.
func (v *view) blindLocked() {
	if v.state != viewOver {
		v.line.local.GiveWayLocked()
	}
}

// keepRunning reports whether the view is to be kept.
func (v *view) keepRunning() bool {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	return !v.isOverLocked() && !v.line.keys.Leases.ClosedLocked() && !v.idleLocked()
}

// neededLocked reports whether the view is needed: by a waiter, by a key that lingers or will
// linger, or by reads that have joined a cohort by it.
func (v *view) neededLocked() bool { return v.waiting || v.line.local.LingersLocked() || v.joined }

// idleLocked reports whether the view was not needed for a while. It stays while several reads hold
// beside each other: a watch costs nothing while nothing happens.
func (v *view) idleLocked() bool {
	if v.neededLocked() || v.line.local.SharesLocked() {
		v.needed = time.Now()
	}
	return time.Since(v.needed) >= min(viewIdle, v.line.keys.TTL/2)
}

// endLocked takes the view off its line and ends its goroutine.
func (v *view) endLocked() {
	if v.state != viewOver {
		v.blindLocked()
		v.becomesLocked(viewOver)
		v.line.view = nil
		v.tellLocked()
	}
	v.line.keys.mu.After(v.cancel)
}

// apply brings the view up to date with events.
func (v *view) apply(events []*clientv3.Event) {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	if v.isOverLocked() {
		return // it has ended meanwhile
	}
	v.behind = false
	revision := v.revision
	for _, event := range events {
		at := event.Kv.GetModRevision()
		if at <= v.revision {
			continue // known from the read
		}
		revision = max(revision, at)
		e := line.EntryOf(event.Kv)
		if event.Type != clientv3.EventTypeDelete && e.StandsIn(v.line.Name) {
			v.keys[e.Key] = e.Rev
			v.line.meetsLocked(e.Longest())
			if at != e.Rev {
				v.putOver[e.Key] = e
			}
		} else {
			delete(v.keys, e.Key)
			delete(v.putOver, e.Key)
			if e.MayStandIn(v.line.Name) {
				v.deleted[e.Key] = at
			}
		}
		v.observedLocked(e)
	}
	v.revision = revision
	v.line.keys.etcd.Reached(revision)
	if v.isTooLongLocked(len(v.keys)) {
		return
	}
	v.judgeLocked(false)
	v.forgetLocked()
}

// forgetLocked forgets the deletions by which the own place was judged: no key is ever put ahead of
// it. Deletions are needed only while it is not known which keys are ahead of the own place, or of
// the place that its release puts. If too many keys go meanwhile the view ends, and a waiter begins
// another. (TestADeletionThatIsToldBeforeTheAnswerToThePutCounts, TestWhatAViewRemembersIsBounded.)
func (v *view) forgetLocked() {
	known := true
	if p := v.ownLocked(); p != nil {
		switch p.Ticket.State() {
		case ticket.InLine:
			known = p.Ahead.Whole
		case ticket.Unsent, ticket.Sent, ticket.Leaving:
			known = false
		}
	}
	if known {
		clear(v.deleted)
	} else if len(v.deleted) > viewReads {
		v.endLocked()
	}
}

// errTooLong is why a partial view is over: too many contenders stand in line that do not read.
var errTooLong = errors.New("the line is too long")

// isTooLongLocked notes how long the line is, and ends the view if that is too long. A waiter goes
// on without it. A read that waits to join waits for its turn.
//
// Invariant: nothing that a partial view tells then has marked the line: its admission would begin
// another view, which would read the same. (Do not judge such a line first.
// TestALineThatIsTooLongForAViewIsSoughtOnce.)
func (v *view) isTooLongLocked(length int) bool {
	if v.waiting {
		v.ownLocked().Ahead.Keys = length
	}
	if length <= longLine {
		return false
	}
	if v.partial {
		v.refusal = errTooLong
		v.line.local.RefuseLocked(nil)
	}
	v.endLocked()
	return true
}

// renewLocked begins a new watch, if there is one: it may be silent.
func (v *view) renewLocked() {
	if v.state == viewLive || v.state == viewFailed {
		signal(v.again)
	}
}

// judgeLocked draws the conclusions of what is known, after a read or after events.
func (v *view) judgeLocked(afterRead bool) {
	if !v.partial {
		v.judgeOwnLocked(afterRead)
	}
	v.line.local.MarkLocked()
}

// judgeOwnLocked draws the conclusions for the place that the Session has in the line.
//
// Events alone tell nothing before the own key was seen: if the client's Watcher sees other
// keys than its KV, as with a namespace of only one of them, the reads tell.
func (v *view) judgeOwnLocked(afterRead bool) {
	p := v.ownLocked()
	v.judged = nil
	if p == nil || v.revision == 0 {
		return
	}
	// What was not put over is as its own ticket has put it, or is of another ticket.
	own := line.Entry{Key: p.Ticket.Key, Rev: v.keys[p.Ticket.Key], Lease: p.Ticket.Lease}
	if over, is := v.putOver[own.Key]; is {
		own = over
	}
	seen := p.observedLocked(ticket.Observation{
		Entry: own, At: v.revision, Unproven: p.seen != v && !afterRead,
	})
	if seen == ticket.Nothing {
		return
	}
	p.seen, v.judged = v, p
	switch {
	case seen.IsLoss():
	case p.lingersLocked():
		if v.othersLocked() {
			v.line.local.GiveWayLocked()
		}
	case p.Ahead.Whole && len(p.Ahead.Last) > 0:
		p.Ahead = p.Ahead.Without(v.goneLocked(p))
		if p.Ahead.Clear() {
			v.tellLocked()
		}
	}
}

// observedLocked has the own place observe e, as an event or a read has shown it: it may be the own
// key, recalled or put over. That the own key is gone, judgeOwnLocked finds.
func (v *view) observedLocked(e line.Entry) {
	if p := v.ownLocked(); p != nil {
		p.observedLocked(ticket.Observation{Entry: e, Unproven: true})
	}
}

// goneLocked returns whether a contender ahead of p, which is in the view, is proven gone.
func (v *view) goneLocked(p *Place) func(line.Entry) bool {
	shown := v.read[p.Ticket.Key] == p.Ticket.Rev()
	return func(e line.Entry) bool {
		return v.deleted[e.Key] > e.Rev || shown && v.read[e.Key] != e.Rev
	}
}

// ownLocked is the Session's place in the line, or nil.
func (v *view) ownLocked() *Place { return v.line.local.PlaceLocked() }

// othersLocked reports whether other keys than the Session's own stand in line.
func (v *view) othersLocked() bool { return len(v.keys) > 1 }

// tellLocked wakes the waiter of this view.
func (v *view) tellLocked() {
	if v.waiting {
		v.ownLocked().tellLocked()
	}
}
