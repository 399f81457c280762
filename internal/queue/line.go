package queue

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A Line is what a Session knows of etcd's line for a name. Session.mu guards it.
type Line struct {
	Name  string
	keys  *Keys
	local Local

	slots ticket.Slots[drawn] // names of keys
	view  *view               // nil while none is needed

	// What the next place may expect there.
	waited time.Duration // for how long the last one that came to hold has stood in it
	last   *predecessor  // of the last one that came to hold, while it is watched yet

	delay delay // for how long no hold begins, as etcd was set back
}

// drawn is on which lease, and in which epoch, the names of keys were drawn.
type drawn struct {
	on *lease.Lease
	in *etcd.Epoch
}

// A predecessor is the key right before a place, as it is watched.
type predecessor struct {
	// Set once, then only read.
	key string
	etcd.Watch
	end context.CancelFunc // of the watch

	gone bool        // the key was deleted. Owned by the waiter
	late *time.Timer // ends it while no waiter has it. Guarded by Session.mu
}

// A Local is the local line for a name: the Session's goroutines. One at a time has a place in
// etcd's line.
type Local interface {
	// PlaceLocked is the place of the goroutine that has the turn, or of the key that lingers. It
	// is nil if there is none.
	PlaceLocked() *Place

	// LingersLocked reports whether a key lingers, or will linger after the Unlock of its hold.
	LingersLocked() bool

	// LingeringLocked is the place whose key lingers, nil if there is none.
	LingeringLocked() *Place

	// GiveWayLocked gives up the key that lingers, if one does.
	GiveWayLocked()

	// SharesLocked reports whether several reads share the turn, or one is about to join.
	SharesLocked() bool

	// MarkLocked says that something has changed: waiters may get in now.
	MarkLocked()

	// RefuseLocked ends the waits of all that wait for no other contender: no view shows whether there
	// is one, as the line is too long, or etcd has refused the read, with an answer.
	RefuseLocked(answer error)
}

// Init makes n the line for a name.
func (n *Line) Init(k *Keys, name string, local Local) {
	n.keys, n.Name, n.local = k, name, local
}

// IdleLocked reports whether nothing watches the line, and nothing has to be remembered of it.
func (n *Line) IdleLocked() bool {
	return n.viewLocked() == nil && n.last == nil && !n.isKeptLocked()
}

// viewLocked is the view of n, nil if there is none. One from before a set-back counts no more.
//
// Invariant: nothing is learned from a view of an earlier epoch: each use of a view asks here.
func (n *Line) viewLocked() *view {
	if v := n.view; v != nil && v.epoch == n.keys.etcd.Epoch() {
		return v
	}
	return nil
}

// EndOldViewLocked ends the view of n if that is from before a set-back.
//
// Do not end all views as etcd is found set back: there may be thousands.
func (n *Line) EndOldViewLocked() {
	if n.view != nil && n.viewLocked() == nil {
		n.view.endLocked()
	}
}

// SetBackLocked ends what watches n since before a set-back.
func (n *Line) SetBackLocked() {
	n.EndOldViewLocked()
	if n.last != nil && n.last.Epoch != n.keys.etcd.Epoch() {
		n.unwatchLastLocked()
	}
}

// EndLocked ends all that watches the line.
func (n *Line) EndLocked() {
	if n.view != nil {
		n.view.endLocked()
	}
	n.unwatchLastLocked()
}

// WatchedLocked reports whether there is a view of n, whatever its state.
func (n *Line) WatchedLocked() bool { return n.viewLocked() != nil }

// JoinedLocked notes that a read has joined a cohort: it relies on the view, if there is one.
func (n *Line) JoinedLocked() {
	if v := n.viewLocked(); v != nil {
		v.joined = true
	}
}

// ExclusiveLocked reports whether an exclusive contender stands in the line. live is false if no
// view shows it.
func (n *Line) ExclusiveLocked() (stands, live bool) {
	v := n.viewLocked()
	if !v.isLiveLocked() {
		return false, false
	}
	return v.AnyBut(line.Read), true
}

// LingerLocked has the view of n watched for a key that is to linger. It reports false if the view
// does not show that no other contender waits for it. wasFirst says that no contender stood in line
// when the key was put.
func (n *Line) LingerLocked(wasFirst bool) bool {
	v := n.viewLocked()
	switch {
	case v == nil || v.partial:
		return false
	case !v.up && v.At() == 0 && v.err == nil && wasFirst:
		// The first watch is under way. Its end, or a read that fails, takes the key back.
	case !v.isLiveLocked() || v.othersLocked():
		return false // if the first watch is under way, contenders from before may be there
	}
	v.reliesLocked()
	return true
}

// WatchLocked returns the view of n, which is begun if there is none. A partial one does only where
// partial is set.
func (n *Line) WatchLocked(partial bool) *view {
	n.EndOldViewLocked()
	if v := n.view; v != nil && v.partial && !partial {
		v.endLocked()
	}
	if n.view == nil {
		v := &view{
			line: n, epoch: n.keys.etcd.Epoch(), partial: partial,
			of:    line.Whole(n.Name),
			again: make(chan struct{}, 1), needed: time.Now(),
		}
		if partial {
			v.of = line.Ranges(n.Name)[0]
		}
		v.ctx, v.cancel = context.WithCancel(n.keys.ctx)
		n.view = v
		n.keys.tasks.Go(v.run)
	}
	return n.view
}

// dropView ends the view of n because the line has become too long for views, unless a
// key lingers or will linger by it.
func (n *Line) dropView() {
	n.keys.mu.Lock()
	defer n.keys.mu.Unlock()
	if n.view != nil && !n.local.LingersLocked() {
		n.view.endLocked()
	}
}

// unwatchLastLocked ends the watch of the key right before the last place in n.
func (n *Line) unwatchLastLocked() {
	if n.last != nil {
		n.last.late.Stop()
		n.keys.mu.After(n.last.end)
		n.last = nil
	}
}

// meetsLocked notes what a reading of n shows of the TTLs of contenders. A view shows all, until
// its next reading.
func (n *Line) meetsLocked(shown line.TTLs) {
	n.delay.settle(n.keys.setBack)
	if v := n.view; v != nil && v.isLiveLocked() {
		shown = shown.And(v.TTLs())
	}
	n.delay.met = shown
}

// isKeptLocked reports whether n has to stay, though nothing uses it: a hold there may be delayed
// for longer than at any other name.
func (n *Line) isKeptLocked() bool {
	d, last := &n.delay, n.keys.setBack
	d.settle(last)
	most := max(last.own, last.floor, n.keys.TTL)
	return d.met.Longest > most || time.Now().Before(d.until(line.Exclusive)) &&
		d.until(line.Exclusive).After(last.until(line.TTLs{}, false))
}

// DelayLocked is for how long no hold of a kind begins in n at a key that was not held before.
func (n *Line) DelayLocked(now time.Time, kind line.Kind) LockDelay {
	k := n.keys
	doubted := k.etcd.Epoch().Doubted()
	if k.setBack.era == 0 && doubted.IsZero() && n.delay.bars == nil {
		return LockDelay{}
	}
	n.delay.settle(k.setBack)
	end := n.delay.until(kind)
	if !doubted.IsZero() {
		end = later(end, doubted.Add(k.Leases.LongestTTL()))
	}
	return LockDelay{max(0, end.Sub(now)), n.delay.proven(kind).After(now)}
}
