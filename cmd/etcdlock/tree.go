//go:build linux || darwin || freebsd

package main

import (
	"sync"
	"syscall"
)

// A tree is the processes of a command: the one that was started, which leads a process group,
// and all its descendants, as far as the system can find them.
type tree struct {
	run      int // the process that started the command
	pid      int
	terminal *terminal
	before   sync.Map           // of pids: children of run that are not the command's
	exited   chan struct{}      // closed when the command has ended
	status   syscall.WaitStatus // then, its own
	gone     chan struct{}      // closed when no process is left
}

func newTree(run, pid int, others []int) *tree {
	t := &tree{run: run, pid: pid, exited: make(chan struct{}), gone: make(chan struct{})}
	for _, pid := range others {
		t.before.Store(pid, nil)
	}
	return t
}

// forward passes a signal on to the command's group, while the command runs.
func (t *tree) forward(s syscall.Signal) {
	select {
	case <-t.exited: // what is left is being ended
	default:
		_ = syscall.Kill(-t.pid, s)
	}
}

// terminate asks all processes to end, including stopped ones.
func (t *tree) terminate() {
	t.signal(syscall.SIGTERM)
	t.signal(syscall.SIGCONT)
}

func (t *tree) kill() { t.signal(syscall.SIGKILL) }

// The caller calls stopped when the command was stopped. If ^Z did that, stopped continues
// the command: a stopped run would not renew its lease, and the shell waits for run, which
// has not stopped.
func (t *tree) stopped(by syscall.Signal) {
	if by == syscall.SIGTSTP && t.terminal != nil {
		_ = syscall.Kill(-t.pid, syscall.SIGCONT)
	}
}
