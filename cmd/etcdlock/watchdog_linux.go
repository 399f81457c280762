package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ownBinary is this program, also if its file has been replaced.
func ownBinary() (string, error) { return "/proc/self/exe", nil }

// bootTime is a time that goes on while this process, or the machine, sleeps. All processes have
// the same.
func bootTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every Linux that Go supports has it
	return time.Duration(now.Nano())
}

// A bootAlarm rings at a bootTime. Timers of Go stand still while the machine sleeps.
type bootAlarm struct {
	file  *os.File
	fd    int
	rings chan struct{}
}

func newBootAlarm() *bootAlarm {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		panic(err) // of no descriptors, or no memory
	}
	a := &bootAlarm{os.NewFile(uintptr(fd), "alarm"), fd, make(chan struct{})}
	go func() { // ends with the process
		for count := make([]byte, 8); ; {
			if _, err := a.file.Read(count); err != nil {
				return
			}
			a.rings <- struct{}{}
		}
	}()
	return a
}

// set makes it ring at a time, once, and not at the one that was set before.
func (a *bootAlarm) set(at time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, int64(at)))}
	_ = unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}
