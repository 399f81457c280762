package main

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// The kernel ties the death of a child to the thread that started it, not to the process. The
// first thread lives as long as that does, and main, which starts the command, stays on it.
func init() { runtime.LockOSThread() }

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER of linux/prctl.h.
const prSetChildSubreaper = 36

// adopt makes whatever a command leaves behind, by whatever detours, a child of this process. It
// returns the children that are there already: a shell that has replaced itself by this program had
// them.
func adopt() (others []int, err error) {
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	if errno != 0 {
		return nil, errno
	}
	for _, p := range children(processes(), os.Getpid()) {
		others = append(others, p.pid)
	}
	return others, nil
}

// start starts a command, after adopt. The command gets KILL when this process ends without having
// waited for it.
func start(cmd *exec.Cmd, others []int) (*tree, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := newTree(os.Getpid(), cmd.Process.Pid, others)
	t.terminal = lend(t.pid)
	go t.reap() // ends when no child is left, or with this process
	if t.terminal != nil {
		go t.unstick() // ends with the command
	}
	return t, nil
}

// unstick continues the command if ^Z has stopped a child of a shell between vfork and
// exec. The shell waits for the exec and cannot be stopped meanwhile, so reap learns
// nothing. Nobody else would continue the child.
func (t *tree) unstick() {
	looks := time.NewTicker(time.Second)
	defer looks.Stop()
	for {
		select {
		case <-t.exited:
			return
		case <-looks.C:
		}
		if t.isStuck() && !t.hasEnded() { // else the number may be somebody else's by now
			_ = syscall.Kill(-t.pid, syscall.SIGCONT)
		}
	}
}

// isStuck reports whether a process of the command's group waits for a stopped one, in the
// way in which only vfork waits.
func (t *tree) isStuck() bool {
	states := make(map[int]byte)
	group := t.left()
	for _, p := range group {
		states[p.pid] = p.state
	}
	return slices.ContainsFunc(group, func(p process) bool {
		return p.group == t.pid && p.state == 'T' && states[p.parent] == 'D'
	})
}

// reap waits for all children; orphaned descendants become children too. Nothing else waits.
func (t *tree) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil: // ECHILD: none is left
			close(t.gone)
			return
		case ws.Stopped():
			if pid == t.pid {
				t.stopped(ws.StopSignal())
			}
			continue
		case pid == t.pid:
			t.status = ws
			close(t.exited)
		}
		t.before.Delete(pid)
		if t.hasEnded() && t.hasOthers() && len(t.left()) == 0 {
			close(t.gone) // the kernel would not say so before the others end
			return
		}
	}
}

// hasOthers reports whether there are children that are not the command's.
func (t *tree) hasOthers() (others bool) {
	t.before.Range(func(any, any) bool { others = true; return false })
	return others
}

func (t *tree) hasEnded() bool {
	select {
	case <-t.exited:
		return true
	default:
		return false
	}
}

// signal sends a signal to each process: to the group as a whole, so that none escapes by a fork,
// and one by one to those that have left the group.
func (t *tree) signal(s syscall.Signal) {
	grouped := !t.hasEnded() // otherwise the number may belong to another by now
	if grouped {
		_ = syscall.Kill(-t.pid, s)
	}
	for _, p := range t.left() {
		switch {
		case p.group != t.pid:
			_ = syscall.Kill(p.pid, s)
		case !grouped:
			grouped = true
			_ = syscall.Kill(-t.pid, s)
		}
	}
}

// left returns the command's descendants.
func (t *tree) left() (left []process) {
	all := processes()
	for _, p := range children(all, t.run) {
		if _, other := t.before.Load(p.pid); !other {
			left = append(left, p)
		}
	}
	for i := 0; i < len(left); i++ {
		left = append(left, children(all, left[i].pid)...)
	}
	return left
}

func children(of []process, parent int) (children []process) {
	for _, p := range of {
		if p.parent == parent {
			children = append(children, p)
		}
	}
	return children
}

// A process is what /proc says about one.
type process struct {
	pid, parent, group int
	state              byte
}

func processes() (all []process) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid pgrp, and the name may have any character in it.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 || fields[0][0] == 'Z' {
			continue
		}
		parent, _ := strconv.Atoi(string(fields[1]))
		group, _ := strconv.Atoi(string(fields[2]))
		all = append(all, process{pid, parent, group, fields[0][0]})
	}
	return all
}
