//go:build linux || darwin || freebsd

package main

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// A terminal is that of stdin, lent to a process group. nil is none.
type terminal struct{ own int32 } // the process group that lent it

// lend makes a child's process group the foreground group of the terminal on stdin, if run is in
// the foreground there: only that group may read, and ^C signals that group.
func lend(child int) *terminal {
	own := int32(syscall.Getpgrp())
	var front int32
	if !ioctl(0, syscall.TIOCGPGRP, unsafe.Pointer(&front)) || front != own {
		return nil
	}
	group := int32(child)
	if !ioctl(0, syscall.TIOCSPGRP, unsafe.Pointer(&group)) {
		return nil
	}
	// It may have been stopped before, as a background group.
	_ = syscall.Kill(-child, syscall.SIGCONT)
	// Now run is in the background, and must not be stopped by what it writes, or by taking the
	// terminal back. The command has been started: it does not inherit this.
	signal.Ignore(syscall.SIGTTOU)
	return &terminal{own}
}

// giveBack takes the terminal back from a group that has ended.
func (t *terminal) giveBack() {
	if t != nil {
		ioctl(0, syscall.TIOCSPGRP, unsafe.Pointer(&t.own))
	}
}

// windowSize returns the size of the terminal to which f leads.
func windowSize(f *os.File) (rows, columns int, terminal bool) {
	var size struct{ rows, columns, x, y uint16 }
	terminal = ioctl(int(f.Fd()), syscall.TIOCGWINSZ, unsafe.Pointer(&size))
	return int(size.rows), int(size.columns), terminal
}

func ioctl(fd int, request uint, arg unsafe.Pointer) bool {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
	return errno == 0
}
