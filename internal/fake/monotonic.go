package fake

import (
	"time"
	"unsafe"
)

// MoveMonotonic moves t's reading of the monotonic clock, and leaves its wall clock alone.
// Package time has no function for that.
func MoveMonotonic(t time.Time, by time.Duration) time.Time {
	type layout struct {
		wall      uint64
		monotonic int64
		location  *time.Location
	}
	moved := t
	(*layout)(unsafe.Pointer(&moved)).monotonic += int64(by)
	if moved.Sub(t) != by || !moved.Round(0).Equal(t.Round(0)) {
		panic("package time has another layout than this, or t has no monotonic reading")
	}
	return moved
}
