//go:build darwin || freebsd

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// adopt does nothing: only the process group of a command can be found.
func adopt() (others []int, err error) { return nil, nil }

// start starts a command.
func start(cmd *exec.Cmd, _ []int) (*tree, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := newTree(os.Getpid(), cmd.Process.Pid, nil)
	t.terminal = lend(t.pid)
	go t.reap() // ends when the group is empty, or with this process
	return t, nil
}

func (t *tree) reap() {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(t.pid, &ws, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err == nil && ws.Stopped() {
			t.stopped(ws.StopSignal())
			continue
		}
		t.status = ws
		close(t.exited)
		break
	}
	for syscall.Kill(-t.pid, 0) == nil {
		time.Sleep(killAgain) // there is no event for processes that are not children
	}
	close(t.gone)
}

func (t *tree) signal(s syscall.Signal) {
	if t.pid != 0 { // a watchdog has heard of it
		_ = syscall.Kill(-t.pid, s)
	}
}
