package main

import (
	"fmt"
	"sync/atomic"
)

// A witness is what a lock protects here. It sees in two ways whether two were in at once.
// The lock has no part in either.
type witness struct {
	count    int // plain on purpose: two at once lose an increment
	inside   atomic.Int64
	sharers  atomic.Int64 // readers, or those that have a permit
	overlaps atomic.Int64
}

// Contender who (not 0) calls enter once it holds the lock, and leave before it releases
// the lock.
func (w *witness) enter(who int64) {
	if !w.inside.CompareAndSwap(0, who) || w.sharers.Load() > 0 {
		w.overlaps.Add(1)
	}
	w.count++
}

// A reader calls enterShared once it holds, and leaveShared before it releases.
func (w *witness) enterShared() {
	w.sharers.Add(1)
	if w.inside.Load() != 0 {
		w.overlaps.Add(1)
	}
}

// enterAmong is for a contender that holds beside others, with at most limit in all.
func (w *witness) enterAmong(limit int64) {
	if w.sharers.Add(1) > limit {
		w.overlaps.Add(1)
	}
}

func (w *witness) leaveShared() { w.sharers.Add(-1) }

func (w *witness) leave(who int64) {
	if !w.inside.CompareAndSwap(who, 0) {
		w.overlaps.Add(1)
		w.inside.Store(0)
	}
}

// verdict says what is wrong after some critical sections, "" if nothing is.
func (w *witness) verdict(holds int) string {
	overlaps, lost := w.overlaps.Load(), holds-w.count
	if overlaps == 0 && lost == 0 {
		return ""
	}
	return fmt.Sprintf("%d overlaps, %d lost increments in %d holds", overlaps, lost, holds)
}
