//go:build darwin || freebsd

package main

import (
	"os/exec"
	"syscall"
	"time"
)

// start starts a command. Only its process group can be found.
func start(cmd *exec.Cmd) (*tree, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := newTree(cmd.Process.Pid)
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

func (t *tree) signal(s syscall.Signal) { _ = syscall.Kill(-t.pid, s) }
