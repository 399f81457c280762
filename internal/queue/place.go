package queue

import (
	"math"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// crowded is how many keys are below a name whose line is long. A place there needs to know
	// little of it.
	crowded = 4 * FewAhead

	// vast is how many keys are below a name whose line is so long that etcd takes a millisecond to
	// find the oldest one: only a recheck reads who holds. By then a place there has waited for
	// longer than etcd takes to serve a watch from a past revision, even if each hold is short.
	vast = 16 * crowded
)

// A Place is a key of the Session in etcd's line: its ticket, with the lease and the line.
//
// Its life: taken from a lease by Account.TakeLocked, put by its owner, waited in by Waiter.Wait,
// and then either held and released, or abandoned. Until etcd has confirmed that its key is gone,
// the account accounts for it. The ticket says where its key stands.
type Place struct {
	// Set once, then only read.
	Account *Account // of the keys on its lease
	line    *Line
	owner   Owner
	listens bool // its value says that it may be recalled

	// Guarded by Session.mu.
	Ticket ticket.Ticket
	Since  time.Time // when its revision became known
	reading
	keeping
	Recall  *line.Recall // the one with the shortest grace that its value has had, nil without any
	changed *line.Entry  // as last seen, once SetInfo was called: not as it was put; nil before
	Removal *Removal     // of its key, nil before it was given up
	witness

	news chan struct{} // wakes the waiter at it: its key, its view or the connection has changed
}

// nothing is what a place knows of the line as it is taken.
var nothing line.Ahead

// A reading is what is known of the line ahead of a place.
type reading struct {
	Ahead *line.Ahead // never nil; what it points to is not changed here
	epoch *etcd.Epoch // of the last answer with the line, or with the key
	shown int64       // the revision at which that has shown the line ahead
	asPut bool        // the transaction that put the key has read it
	told  bool        // the TTLs of all contenders ahead were asked for

	stands   standing // what that says of holds; changed by standsLocked alone
	doubtful bool     // it is gone without that, and etcd is yet to tell why
	stoodIn  era      // in which that was said
}

// A keeping is what a place has while its ticket is Held.
type keeping struct {
	Refs  int           // how many holds need the key: that are whole, or being freed
	held  time.Duration // since when, after Place.Since; 0 if it is not
	watch *keyWatch     // of the key; nil for short holds
}

// A witness is what a place knows of its key's end, once its release has begun.
//
// Invariant: it has seen the key there at that time if a watch that covered the key has told no
// deletion until then, and tells it afterwards, at a revision that etcd had not told before. So a
// watch that has gone silent is no witness, nor one that is behind what etcd has answered since.
//
// (What a watch is late by, while the Session hears nothing from etcd, stays open, for a TTL at
// most: no answer that comes later shows when that was. TestALateWatchIsNoWitness. A progress
// notice that was asked for then would not close that: a member that is behind gives it, too. Only
// a linearizable answer to a request of after the Unlock does, and the first such request is the
// release. A read before it costs each Unlock a round trip.)
type witness struct {
	// known is the highest revision that etcd had told when its release began; the highest of all if
	// no watch covered the key then.
	known   int64
	deleted int64 // the revision of the deletion that an event has told, 0 if none has
}

// An Owner is what has a place: a claim that waits, and then the holds at its key.
type Owner interface {
	// EndsLocked says that the key is lost, as its ticket says, or that the lease has ended, or that
	// the Session was closed: so have the holds.
	EndsLocked()

	// RecalledLocked says that the key was recalled: Place.Recall is the request.
	RecalledLocked()

	// MeetsLocked says which permits ahead of the place count on another limit, one for each.
	MeetsLocked(unlike line.Line)

	// EndContexts ends the contexts of the holds that have ended at the place.
	EndContexts()

	// Removing says that the key is about to be removed, and is not released; Removed, that it has
	// gone; Stays, that it has not yet, and why.
	Removing()
	Removed()
	Stays(why error)
}

// observedLocked has p's ticket judge what was observed of a key, and draws the conclusions. All
// that events, views and reads show of p's key comes here.
func (p *Place) observedLocked(o ticket.Observation) ticket.Seen {
	known := p.Ticket.Lost()
	seen := p.Ticket.Observe(o)
	if seen == ticket.Missing {
		p.deleted = max(p.deleted, o.Mod) // 0 of a read
	}
	if seen == ticket.Same {
		if p.listens {
			if r, recalled := o.Recall(); recalled {
				p.RecallLocked(r)
			}
		}
		if p.changed != nil && o.Mod != 0 {
			e := o.Entry
			p.changed = &e
		}
	}
	released := p.Ticket.State() == ticket.Leaving
	if known || !seen.IsLoss() {
		return seen
	}
	if seen == ticket.Replaced { // that key blocks the line
		p.Account.SuspectLocked()
	}
	if seen != ticket.PutOver {
		p.doubtLocked()
	}
	switch {
	case p.Ticket.Lost():
		p.lostLocked()
	case !released:
		p.Account.endDeletedLocked(p)
	}
	return seen
}

// ReleasesLocked notes that the release of p's key begins. The watches of the key go on until it is
// over: they may be needed as witnesses.
func (p *Place) ReleasesLocked() {
	p.known = math.MaxInt64
	if p.line.viewLocked().coversLocked(p) || p.watch != nil && p.watch.sure {
		p.known = p.Account.keys.etcd.Epoch().Reached()
	}
	p.standsNoMoreLocked()
}

// WitnessedLocked reports whether a watch has seen p's key there when its release began.
func (p *Place) WitnessedLocked() bool { return p.deleted > p.known }

// lostLocked draws the conclusions of the loss of p's key.
func (p *Place) lostLocked() {
	p.UnwatchLocked()
	p.tellLocked()
	p.owner.EndsLocked()
	p.giveWayLocked()
	p.line.local.MarkLocked()
}

// RecallLocked recalls p, if it listens, and no earlier request has as short a grace.
func (p *Place) RecallLocked(r line.Recall) {
	if !p.listens || p.Recall != nil && p.Recall.Grace <= r.Grace {
		return
	}
	p.Recall = &r
	p.line.local.MarkLocked()
	p.giveWayLocked()
	p.owner.RecalledLocked()
}

// counts reports whether a DELETE at a revision, of a key ahead of p, is news for p: if it is newer
// than p's own key. The put has read the rest at its own revision. (A member that lags behind
// reports an earlier use of the same key name. TestADeletionOlderThanThePlaceLetsNobodyIn.)
func (p *Place) counts(deleted int64) bool { return deleted > p.Ticket.Rev() }

// observeLook observes p's own key, as a look has read it, and reports whether p is lost. If etcd
// was set back, an earlier key of the Session may be beyond what the look has read, and block the
// line.
func (p *Place) observeLook(own ticket.Observation) (lost bool) {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	lost = p.observedLocked(own).IsLoss()
	if lost {
		p.Account.SuspectLocked()
	}
	return lost
}

// neededLocked reports whether a hold needs p's key, which is not lost.
func (p *Place) neededLocked() bool { return p.Refs > 0 && !p.Ticket.Lost() }

// isGone reports whether p's key is known to be lost: deleted or put over by another request.
func (p *Place) isGone() bool {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	return p.Ticket.Lost()
}

// tellLocked wakes the waiter at p, if a call waits.
func (p *Place) tellLocked() { signal(p.news) }

// signal wakes the receiver of c, unless that was woken and has not received yet.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// listen lets tellLocked wake the caller, unless no contender is ahead of p.
func (p *Place) listen() {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	if !p.Ahead.Clear() {
		p.listenLocked()
	}
}

func (p *Place) listenLocked() {
	if p.news == nil {
		p.news = make(chan struct{}, 1)
	}
	if p.Ticket.Lost() {
		p.tellLocked() // the key went before the call listened
	}
}

// standsFirst notes that p is at the head of its line, and lets tellLocked wake the caller.
func (p *Place) standsFirst() {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	p.listenLocked()
	if p.Ticket.State() == ticket.InLine && !p.Ticket.Lost() {
		p.Ticket.Hold()
		p.heldLocked(time.Now())
	}
}

// heldLocked notes that p's key is held from now on. Once that lasts it is watched.
func (p *Place) heldLocked(now time.Time) {
	p.held = max(now.Sub(p.Since), 1)
	p.Account.Lease.DueLocked(now.Add(watchAfter))
}

// knownLocked is what is known of p's key: if p listens and was not recalled, that it is as it was
// put, or was last seen if that was changed. So a recheck shows that an event was lost.
func (p *Place) knownLocked() []ticket.Known {
	known := ticket.Contend(p.Ticket.Entry())
	if !p.listens || p.Recall != nil {
		return known
	}
	known[0].Mod = p.Ticket.Rev()
	if p.changed != nil {
		known[0].Mod = p.changed.Mod
	}
	return known
}

// ChangedLocked reports whether SetInfo was called for p's key, and the info that it was last seen
// to have then.
func (p *Place) ChangedLocked() (info string, changed bool) {
	if p.changed == nil {
		return "", false
	}
	return p.changed.Value().Info, true
}

// QueuedLocked notes what the answer to p's put says about its line, in an epoch.
func (p *Place) QueuedLocked(ahead *line.Ahead, at *etcd.Epoch) {
	p.Since = time.Now()
	p.setAheadLocked(ahead, at, p.Ticket.Rev())
	p.asPut = true
}

// Predecessors are the contenders ahead of p as of the last read. They are stale if that was in an
// earlier epoch.
func (p *Place) Predecessors() (ahead line.Ahead, stale bool) {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	return *p.Ahead, p.StaleLocked()
}

// setLine notes what was ahead of p at a revision, as it was read in an epoch.
func (p *Place) setLine(ahead line.Ahead, at *etcd.Epoch, shown int64) {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	if p.epoch == at {
		ahead = ahead.Since(*p.Ahead)
	}
	p.asPut = false
	p.setAheadLocked(&ahead, at, shown)
}

// departs notes that only rest of ahead still stands before p. It reports false, and does nothing,
// if something else is known by now.
func (p *Place) departs(ahead, rest line.Ahead) bool {
	p.Account.keys.mu.Lock()
	defer p.Account.keys.mu.Unlock()
	if !p.Ahead.Is(ahead) {
		return false
	}
	p.Ahead = &rest
	return true
}

// setAheadLocked notes what was ahead of p at a revision, by an answer of an epoch.
func (p *Place) setAheadLocked(ahead *line.Ahead, at *etcd.Epoch, shown int64) {
	p.epoch, p.shown = at, shown
	p.line.local.MarkLocked()
	p.KnowsLocked(ahead)
	if ahead.Reading != line.Unread && !p.StaleLocked() {
		p.standsLocked(standingOf(p.Ticket.Shape))
	}
	for _, e := range ahead.Last[max(0, len(ahead.Last)-guard.Piece):] { // a permit may have many
		p.Account.keys.suspectOrphanLocked(e)
	}
}

// KnowsLocked notes what is ahead of p, whose key may not be there.
//
// Do not leave out the TTLs where a call is refused: it may come again after a set-back, and the
// holder from before may still hold. (TestACallThatWasRefusedKnowsForHowLongTheHolderMayHold.)
func (p *Place) KnowsLocked(ahead *line.Ahead) {
	p.Ahead = ahead
	if ahead.Reading != line.Unread {
		p.line.meetsLocked(ahead.TTLs)
	}
	if len(ahead.Unlike) > 0 {
		p.owner.MeetsLocked(ahead.Unlike)
	}
}

// lengthOf is the length of p's line, as far as is known.
func (p *Place) lengthOf() int {
	ahead, _ := p.Predecessors()
	return max(ahead.Keys, ahead.Count()+1)
}

// ExpectsLocked has e, by which Lock puts p's key, expect the key that the Session's place before p
// was behind, if it is watched yet.
func (p *Place) ExpectsLocked(e *ticket.Entering) {
	if w := p.line.last; w != nil {
		e.Behind(w.key)
	}
}

// HoldLocked notes that p's key is held from now on. With first it is the first hold there.
//
// A key that listens is watched from the beginning of its first hold if a reading after its put has
// shown other keys: a contender behind it may recall it. (What the put has read is all before it. A
// short hold costs nothing beside keys of nested names.)
func (p *Place) HoldLocked(first bool, now time.Time) {
	p.Ticket.Hold()
	if first {
		p.line.waited = now.Sub(p.Since)
	}
	if p.held == 0 { // else it was first in its line before the other places of a LockAll were
		p.heldLocked(now)
	}
	if p.listens && p.watch == nil && !p.asPut && p.Ahead.Keys > 1 &&
		!p.line.viewLocked().coversLocked(p) && len(p.Account.places) <= manyPlaces {
		p.watch = newKeyWatchLocked(p)
	}
	p.Ahead = &line.None
	p.Refs++
	if first {
		p.headsLocked()
	}
}

// doubtLocked begins a doubt, as p's key is gone. It does not if p was last seen before a set-back:
// the lock delay is under way.
func (p *Place) doubtLocked() {
	k, d := p.Account.keys, &p.line.delay
	if p.stands == nowhere || p.deleted != 0 || p.doubtful || p.StaleLocked() {
		return
	}
	p.doubtful = true
	bars := d.change()
	bars.doubting, bars.doubted = p.Ticket.Rev(), time.Now().Add(max(k.TTL, p.Account.Lease.TTL))
	if k.newest == nil || p.Ticket.Rev() > k.newest.Ticket.Rev() {
		k.newest = p
	}
	if k.doubted = append(k.doubted, p); !k.decides {
		k.decides = true
		k.tasks.Go(k.decideDoubts)
	}
}

// standsLocked notes what p says of holds from now on.
func (p *Place) standsLocked(as standing) {
	if p.line == nil {
		return
	}
	d := &p.line.delay
	d.settle(p.Account.keys.setBack)
	if p.stands != nowhere && p.stoodIn == d.era {
		d.stands[p.stands]--
	}
	p.stands, p.stoodIn = as, d.era
	if as != nowhere {
		d.stands[as]++
	}
}

// standsNoMoreLocked notes that p's key is gone, or is about to go. While there is a doubt, etcd
// may have been set back when it stood.
func (p *Place) standsNoMoreLocked() {
	if !p.doubtful {
		p.standsLocked(nowhere)
	}
}

// headsLocked notes that p's key was seen where it is held, and what that says of other holds.
func (p *Place) headsLocked() {
	p.standsLocked(standingOf(p.Ticket.Shape))
}

// StaleLocked reports whether p was last seen in an epoch before.
func (p *Place) StaleLocked() bool { return p.epoch != p.Account.keys.etcd.Epoch() }

// LastsLocked reports whether another hold may begin at p, after one has ended there.
func (p *Place) LastsLocked() bool {
	return p.Account.Lease.ServesLocked() && p.Recall == nil && !p.Ticket.Lost() && !p.StaleLocked() &&
		p.Account.Lease.Lasts(time.Now())
}

// NeverPutLocked gives up p, whose key no request can have put.
func (p *Place) NeverPutLocked() {
	p.Ticket.Leave()
	p.RemovedLocked()
}

// RemovedLocked notes that p's key is gone, as its ticket says.
func (p *Place) RemovedLocked() {
	if p.Removal == nil { // it was released: else it has left the lease's users already
		p.Account.leftLocked()
	}
	if p.Account.places[p.Ticket.Key] == p {
		delete(p.Account.places, p.Ticket.Key)
		p.Account.left = time.Now()
		if len(p.Account.places) == manyPlaces { // the holds among them are watched, if they stay
			p.Account.Lease.DueLocked(p.Account.left.Add(watchAfter))
		}
	}
	if p.epoch != nil && p.StaleLocked() { // an earlier key of that name may be back
		p.Account.SuspectLocked()
	}
}

// giveWayLocked gives p's key up if that lingers.
func (p *Place) giveWayLocked() {
	if p.line.local.LingeringLocked() == p {
		p.line.local.GiveWayLocked()
	}
}

// UnwatchLocked ends the watch of p's key, if there is one: the key is not held any more, and not
// being released.
func (p *Place) UnwatchLocked() {
	p.standsNoMoreLocked()
	if w := p.watch; w != nil {
		p.watch = nil
		p.Account.keys.mu.After(w.cancel)
	}
}

// keysOf are the keys of places.
func keysOf(places []*Place) []string {
	keys := make([]string, len(places))
	for i, p := range places {
		keys[i] = p.Ticket.Key
	}
	return keys
}
