package main

import (
	"fmt"
	"sync/atomic"
)

// A witness is what a lock protects here. It sees whether two were in at once, in two
// ways that the lock has no part in.
type witness struct {
	count    int // plain on purpose: two at once lose an increment
	inside   atomic.Int64
	sharers  atomic.Int64 // readers, or those that have a permit
	overlaps atomic.Int64
}

// enter is called by contender who (not 0) once it holds the lock, leave before it
// releases it.
func (w *witness) enter(who int64) {
	if !w.inside.CompareAndSwap(0, who) || w.sharers.Load() > 0 {
		w.overlaps.Add(1)
	}
	w.count++
}

// enterShared is called by one that reads, leaveShared before it releases.
func (w *witness) enterShared() {
	w.sharers.Add(1)
	if w.inside.Load() != 0 {
		w.overlaps.Add(1)
	}
}

// enterAmong is called by one that holds beside others, of whom there may be so many with it.
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

// verdict says what is wrong after holds critical sections, "" if nothing is.
func (w *witness) verdict(holds int) string {
	overlaps, lost := w.overlaps.Load(), holds-w.count
	if overlaps == 0 && lost == 0 {
		return ""
	}
	return fmt.Sprintf("%d overlaps, %d lost increments in %d holds", overlaps, lost, holds)
}
