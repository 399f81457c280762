//go:build linux || darwin || freebsd

package main

import (
	"sync"
	"syscall"
)

// A tree is the processes of a command: the one that was started, which leads a process group,
// and all that come from it, as far as the system lets them be found.
type tree struct {
	pid      int
	terminal *terminal
	before   sync.Map           // of pids: children that this process had already
	exited   chan struct{}      // closed when the command has ended
	status   syscall.WaitStatus // then, its own
	gone     chan struct{}      // closed when no process is left
}

func newTree(pid int) *tree {
	return &tree{pid: pid, exited: make(chan struct{}), gone: make(chan struct{})}
}

// forward passes a signal on to the command's group, while the command runs.
func (t *tree) forward(s syscall.Signal) {
	select {
	case <-t.exited: // what is left is being ended
	default:
		_ = syscall.Kill(-t.pid, s)
	}
}

// terminate asks all processes to end. One that is stopped is to hear of it, too.
func (t *tree) terminate() {
	t.signal(syscall.SIGTERM)
	t.signal(syscall.SIGCONT)
}

func (t *tree) kill() { t.signal(syscall.SIGKILL) }

// stopped is called when the command was stopped. It goes on if ^Z did that: nobody would wait
// for a run that stops to renew its lease, and a shell waits for run, which has not stopped.
func (t *tree) stopped(by syscall.Signal) {
	if by == syscall.SIGTSTP && t.terminal != nil {
		_ = syscall.Kill(-t.pid, syscall.SIGCONT)
	}
}
