package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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

// A view is the Session's one watch of a short line: of all keys below the prefix. While a few
// processes contend for a name, a waiter needs no request for its turn, and a lingering key is
// given up when other contenders come.
//
// Invariant: while it is up, its Watched shows the line at a revision, and every later event comes.
// A read that is sent after the watch was created brings both up to date.
//
// Do not apply events before that read. (TestAViewMissesNothingBeforeItsWatch.)
//
// A watch may go silent without ending. So the line is rechecked now and then, and a watch
// that did not report what the recheck shows is replaced.
//
// A view gets every change of its line, and reads all of it. It ends when the line has become
// long, with the contenders behind the Session's place.
type view struct {
	// Set once, then only read.
	line   *Line
	epoch  *etcd.Epoch     // in which it has begun
	of     line.Range      // the keys
	ctx    context.Context // of its goroutine
	cancel context.CancelFunc
	again  chan struct{} // tells the goroutine to begin a new watch

	// It leaves out the readers, which may be many: it tells only whether an exclusive contender
	// stands in line, for a read that may join a cohort. A contender that it leaves out beside
	// them, by the chance of its key, waits longer for its turn, and gets it all the same.
	partial bool

	// Guarded by Session.mu. It is over once it is not its line's view any more.
	up bool // there is a watch, and the line was read since it was created
	line.Watched

	missed  bool      // a read has shown what the watch has not told, or not yet
	reading bool      // a recheck is under way
	waiting bool      // the line's owner waits by this view
	joined  bool      // a read has joined a cohort by it, since the last recheck
	relied  time.Time // since when the watch is relied on
	due     time.Time // when the line is to be read again
	needed  time.Time // when it last was
	err     error     // of the last read, nil once one was answered
	refusal error     // why it is over, as the next would be: etcd's, errTooLong, or a Fall
}

// isOverLocked reports whether v is over. One from before a set-back is.
func (v *view) isOverLocked() bool { return v.line.viewLocked() != v }

// isLiveLocked reports whether v may be relied on: it shows whatever happens in the line. (What its
// watch does not show, as it is silent, the rechecks do.)
func (v *view) isLiveLocked() bool { return v != nil && v.up && v.err == nil }

// coversLocked reports whether v shows whatever happens to p's key.
func (v *view) coversLocked(p *Place) bool {
	return v.isLiveLocked() && v.Shows(p.Ticket.Entry())
}

// inView reports whether a waiter with ahead before it waits by a view: it does if it knows all
// contenders before it and the line is not long.
func inView(ahead line.Ahead) bool {
	return ahead.Reading == line.All && len(ahead.Last) <= FewAhead && ahead.Keys <= longLine
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

// follow watches the line until the watch ends or a new one is wanted. Then run reads the line,
// which shows which cluster counts.
func (v *view) follow(broken *attempt.Backoff) {
	err := v.line.keys.etcd.Follow(v.ctx, broken, etcd.Following{
		Created: func() bool {
			goesOn := v.readLine(true)
			if goesOn {
				broken.Reset()
			}
			return goesOn
		},
		Events: v.apply, Tick: v.recheck, First: recheck.Least, News: v.again,
	}, v.of.From, clientv3.WithRange(v.of.To))
	if attempt.Fallen(err) != nil {
		v.refuse(err)
	}
	v.unwatched()
}

// unwatched notes that there is no watch.
func (v *view) unwatched() {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	v.up = false
	v.blindLocked()
}

// blindLocked gives up the key that lingers by this view: without a watch the Session would not
// notice that other contenders wait for it.
func (v *view) blindLocked() {
	if !v.isOverLocked() {
		v.line.local.GiveWayLocked()
		v.line.local.MarkLocked()
	}
}

// reliesLocked notes that the watch is relied on from now on: it has begun, or a waiter or a key
// that lingers comes to need it.
func (v *view) reliesLocked() {
	now := time.Now()
	v.relied = now
	due := now.Add(v.line.keys.recheckAfter(now, v.Len()))
	if v.due.Before(now) || due.Before(v.due) {
		v.due = due
	}
}

// renewLocked begins a new watch, if there is one: it may be silent.
func (v *view) renewLocked() {
	if v.up {
		signal(v.again)
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
//
// Do not mark the line if the next view would end as this one: a waiter that is to join begins
// another.
func (v *view) endLocked() {
	if v.line.view == v {
		v.line.local.GiveWayLocked()
		v.line.view = nil
		if v.refusal == nil {
			v.line.local.MarkLocked()
		}
		v.tellLocked()
		v.line.keys.wakeLocked()
	}
	v.line.keys.mu.After(v.cancel)
}

// apply brings the view up to date with events.
func (v *view) apply(events []*clientv3.Event) {
	told, last := []line.Entry(nil), int64(0)
	for _, event := range events {
		last = max(last, event.Kv.ModRevision)
		if e := line.EntryOf(event.Kv); e.MayStandIn(v.line.Name) { // nested names may be many
			told = append(told, e)
		}
	}
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	if v.isOverLocked() {
		return // it has ended meanwhile
	}
	v.missed = false
	for _, e := range v.Apply(v.line.Name, told, last) {
		v.line.keys.observedLocked(e)
	}
	v.meetsLocked()
	v.epoch.Reach(last)
	tooLong := v.endIfTooLongLocked()
	if tooLong {
		return
	}
	v.judgeLocked()
}

// errTooLong is why a partial view is over: too many contenders stand in line that do not read.
var errTooLong = errors.New("the line is too long")

// endIfTooLongLocked notes how long the line is, and ends the view if that is too long. A waiter
// goes on without it. A read that waits to join waits for its turn.
//
// Invariant: nothing that a partial view tells then has marked the line: its admission would begin
// another view, which would read the same.
//
// Do not judge such a line first. (TestALineThatIsTooLongForAViewIsSoughtOnce.)
func (v *view) endIfTooLongLocked() (over bool) {
	if v.waiting {
		v.line.local.PlaceLocked().Ahead.Keys = v.Len()
	}
	if v.Len() <= longLine {
		return false
	}
	if v.partial {
		v.refusal = errTooLong
		v.line.local.RefuseLocked(nil)
	}
	v.endLocked()
	return true
}

// judgeLocked draws the conclusions of what is known for the Session's place in the line: whether
// it still waits, or has to give way as its key lingers.
//
// Do not let the place in where its key is not shown.
// (TestAKeyThatGoesBeforeItsPutIsAnsweredLetsNobodyIn.)
func (v *view) judgeLocked() {
	v.line.local.MarkLocked()
	p := v.line.local.PlaceLocked()
	if v.partial || p == nil {
		return
	}
	own := p.Ticket.Entry()
	shown, at := v.Own(own)
	seen := p.observedLocked(ticket.Observation{Entry: shown, At: at})
	if seen != ticket.Same {
		return
	}
	switch {
	case p.Ahead.Reading == line.All && len(p.Ahead.Last) > 0:
		left := p.Ahead.Without(func(e line.Entry) bool { return v.Gone(e, own) })
		p.Ahead = &left
		if v.waiting && p.Ahead.Clear() {
			p.tellLocked()
		}
	case v.othersLocked():
		p.giveWayLocked()
	}
}

// meetsLocked notes what v shows of the TTLs of contenders. A partial one does not show them all.
func (v *view) meetsLocked() {
	d := &v.line.delay
	d.settle(v.line.keys.setBack)
	if met := v.TTLs(); v.partial {
		d.met = d.met.And(met)
	} else {
		d.met = met
	}
}

// othersLocked reports whether other keys than the Session's own stand in line.
func (v *view) othersLocked() bool { return v.Len() > 1 }

// tellLocked wakes the waiter of this view.
func (v *view) tellLocked() {
	if v.waiting {
		v.line.local.PlaceLocked().tellLocked()
	}
}

// readLine brings the view up to date by a linearizable read, and retries until that is
// answered. watched says that the watch was created before. It reports false if the view is over.
//
// Invariant: the view is live from the critical section on that has noted the read.
//
// Do not have it blind in between: an Unlock that comes just then gives back a key that would
// linger before and after. (TestAViewIsLiveOnceTheReadAfterItsWatchIsKnown.)
func (v *view) readLine(watched bool) (goesOn bool) {
	read, err := v.readKeys(clientv3.WithLimit(viewReads))
	if err == nil && read.Ranges[0].More && len(line.Of(v.line.Name, read.Ranges[0].Kvs)) <= longLine {
		read, err = v.readKeys() // those were mostly strays
	}
	var keys []line.Entry
	if err == nil {
		keys = line.Below(v.line.Name, read.Ranges[0].Kvs)
	}
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	switch {
	case err == nil:
		v.answeredLocked()
	case attempt.Refused(err) || err == attempt.ErrClientClosed || attempt.Fallen(err) != nil:
		v.refuseLocked(err)
	}
	if err != nil || v.isOverLocked() {
		return false
	}
	goesOn = v.readLocked(keys, read.Header.GetRevision())
	if !goesOn {
		return false
	}
	if watched {
		v.up, v.missed = true, false
		v.reliesLocked()
		v.line.local.MarkLocked()
	}
	return true
}

// refuse is refuseLocked.
func (v *view) refuse(err error) {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	v.refuseLocked(err)
}

// refuseLocked ends the view for an error that also ends the calls that wait by it.
func (v *view) refuseLocked(err error) {
	v.refusal = err
	if v.partial && !v.isOverLocked() {
		v.line.local.RefuseLocked(err) // they would wait for a view that is not to come
	}
	v.endLocked() // it wakes the waiter of now, and affects none that comes later
}

// readLocked brings the view up to date by the keys that a read of the line has shown at a
// revision. It reports false if the view is over.
func (v *view) readLocked(keys []line.Entry, at int64) (goesOn bool) {
	changed, fresh := v.Read(v.line.Name, keys, at)
	if !fresh {
		return true // events have told more
	}
	for _, e := range keys {
		if e.StandsIn(v.line.Name) {
			v.line.keys.suspectOrphanLocked(e)
		}
		v.line.keys.observedLocked(e)
	}
	v.meetsLocked()
	tooLong := v.endIfTooLongLocked()
	if tooLong {
		return false
	}
	v.missed = v.missed || changed
	if p := v.line.local.PlaceLocked(); p != nil && !v.partial {
		own := line.Entry{Key: p.Ticket.Key}
		if i := slices.IndexFunc(keys, func(e line.Entry) bool { return e.Key == own.Key }); i >= 0 {
			own = keys[i]
		}
		p.observedLocked(ticket.Observation{Entry: own, At: at})
	}
	v.judgeLocked()
	return v.line.view == v
}

// readKeys is one linearizable read of all keys below the prefix, or of as many as opts allow.
func (v *view) readKeys(opts ...clientv3.OpOption) (etcd.Reading, error) {
	keys := etcd.Range(v.of.From, append(opts, clientv3.WithRange(v.of.To))...)
	return v.line.keys.etcd.ReadBy(v.ctx, keys, attempt.Backoff{}, v.failed)
}

// failed notes why a read was not answered. It returns an error if the view is not needed, or the
// user's code has fallen.
func (v *view) failed(err error) error {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	v.err = err
	v.blindLocked()
	if v.idleLocked() {
		return err
	}
	return attempt.Fallen(err)
}

// answeredLocked notes that a read was answered.
func (v *view) answeredLocked() {
	if v.err != nil && !v.isOverLocked() {
		v.line.local.MarkLocked()
	}
	v.err = nil
}

// compareLine asks etcd whether what matters to the place that depends on the view is as it knows
// it: all contenders ahead of it are still in line, or, if it has none, no key has come that the
// view does not know; and if it listens, it was not recalled. Unlike a read of the line this takes
// a few bytes. It may return false for any reason: a read of the line then shows more.
func (v *view) compareLine() (same bool) {
	k, name := v.line.keys, v.line.Name
	k.mu.Lock()
	p := v.line.local.PlaceLocked()
	if p == nil || p.Ticket.Rev() == 0 || p.StaleLocked() || p.Ahead.Reading != line.All {
		k.mu.Unlock()
		return false
	}
	known := append(p.knownLocked(), ticket.Contend(p.Ahead.Last...)...)
	first, ask := p.Ahead.Clear(), []*pb.RequestOp{ticket.CountBelow(name)}
	if first {
		// One of the two shows whether a contender has come that the view does not know: what was put
		// after p's key, whatever has become of etcd, or what was put since the view's revision. Each
		// reads too few keys if many of nested names are among them.
		ask = nil
		for _, newer := range []*pb.RangeRequest{
			{MinCreateRevision: p.Ticket.Rev() + 1}, {MinModRevision: v.At() + 1},
		} {
			newer.Key, newer.RangeEnd = []byte(v.of.From), []byte(v.of.To)
			newer.KeysOnly, newer.Limit = true, longLine
			ask = append(ask, ticket.Range(newer))
		}
	}
	k.mu.Unlock()
	read, err := k.etcd.ReadBy(v.ctx, etcd.Meeting(known, ask...), attempt.Backoff{}, v.failed)
	switch {
	case attempt.Fallen(err) != nil:
		v.refuse(err)
		return true // the view is over
	case err != nil:
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v.answeredLocked()
	return read.Holds && (!first || slices.ContainsFunc(read.Ranges, func(r *pb.RangeResponse) bool {
		return line.NoneBut(p.Ticket.Key, name, r)
	}))
}

// recheck reads the line if the view is needed and a recheck is due. It returns when to call it
// again. goOn is false if a new watch is needed, or the view was not needed for a while.
func (v *view) recheck() (next time.Duration, goOn bool) {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	now := time.Now()
	switch {
	case v.isOverLocked() || v.line.keys.Leases.ClosedLocked():
		return 0, false
	case v.idleLocked():
		v.endLocked()
		return 0, false
	case v.missed:
		return 0, false // only this one begins a new watch: other watches may be fine
	case !v.neededLocked() || v.reading:
		return recheck.Least, true
	case now.Before(v.due):
		return min(v.due.Sub(now), recheck.Least), true
	}
	v.reading, v.joined = true, false
	v.due = now.Add(v.line.keys.recheckAfter(v.relied, v.Len()))
	v.line.keys.tasks.Go(func() {
		same := v.compareLine()
		if !same {
			v.readLine(false)
		}
		v.line.keys.mu.Lock()
		defer v.line.keys.mu.Unlock()
		v.reading = false
	})
	return recheck.Least, true
}
