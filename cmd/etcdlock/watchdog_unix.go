//go:build darwin || freebsd

package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ownBinary is this program.
func ownBinary() (string, error) { return os.Executable() }

// bootTime is a time that goes on while this process sleeps. On macOS it goes on while the machine
// sleeps, too. All processes have the same.
func bootTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}

// A bootAlarm rings at a bootTime, or sooner: a timer of Go stands still while the machine sleeps.
type bootAlarm struct {
	timer *time.Timer
	rings <-chan time.Time
}

func newBootAlarm() *bootAlarm {
	timer := time.NewTimer(time.Hour)
	return &bootAlarm{timer, timer.C}
}

func (a *bootAlarm) set(at time.Duration) { a.timer.Reset(min(at-bootTime(), time.Second/2)) }
