//go:build linux || darwin || freebsd

package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// A watchdog is a process of run, of the same binary. It ends the command when run does not, since
// run itself has been stopped: by SIGSTOP, a debugger, or a freezer that has run alone. It has no
// connection to etcd, a session of its own, and ends with run.
//
// Invariant: while the command lives the watchdog knows a time of KILL that lies before the end of
// the lease. A later one comes only from a renewal. (Do not count that time from when the watchdog
// hears of it: run may have been stopped in between. TestNoTwoCommandsRunWhileRunsAreStopped.)
type watchdog struct {
	mu   sync.Mutex
	pipe *os.File
	duty duty
}

// A duty is what the watchdog has to do, and when by bootTime. Each duty replaces the one before.
type duty struct {
	Others []int         // children of run that are not the command's
	Group  int           // the command's process group; 0 before it has been started
	Term   time.Duration // 0: run itself has sent TERM
	Kill   time.Duration
}

// startWatchdog starts one that has nothing to do yet. It is a child of this process, and so has to
// be there before the others are counted.
func startWatchdog() (*watchdog, error) {
	self, err := ownBinary()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd := exec.Command(self, "watchdog")
	cmd.Args[0] = os.Args[0]
	cmd.Dir = "/"
	cmd.Env = withoutSecrets(os.Environ())
	cmd.ExtraFiles = []*os.File{read}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what stops run's group does not stop it
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, err
	}
	return &watchdog{pipe: write}, nil
}

// termLater is how long after run the watchdog sends TERM. A run that has not been stopped is
// first, and so the command gets one.
const termLater = 100 * time.Millisecond

// trusts tells the watchdog that the hold may be trusted until a time. An earlier time changes
// nothing: nor does one that comes when run has noticed that its hold is over.
//
// bootTime is read first. A stop behind that makes the duty earlier, and no later.
func (w *watchdog) trusts(until time.Time, killAfter time.Duration) error {
	now := bootTime()
	end := now + time.Until(until)
	return w.tell(func(d *duty) bool {
		later := d.Kill == 0 || d.Term != 0 && end+killAfter > d.Kill
		if later {
			d.Term, d.Kill = end+termLater, end+killAfter
		}
		return later
	})
}

// guards tells the watchdog what to end: all children of run but the others, and a group.
func (w *watchdog) guards(others []int, group int) error {
	return w.tell(func(d *duty) bool { d.Others, d.Group = others, group; return true })
}

// terminated tells the watchdog that run has sent TERM, and when KILL is due.
func (w *watchdog) terminated(kill time.Time) error {
	now := bootTime()
	due := now + time.Until(kill)
	return w.tell(func(d *duty) bool { d.Term, d.Kill = 0, min(d.Kill, due); return true })
}

// tell changes the duty, and tells the watchdog. One that was stopped holds up nothing.
func (w *watchdog) tell(change func(*duty) bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !change(&w.duty) {
		return nil
	}
	text, err := json.Marshal(w.duty)
	if err != nil {
		return err
	}
	_ = w.pipe.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = w.pipe.Write(text)
	return err
}

// dismiss ends the watchdog: nothing of the command is left.
func (w *watchdog) dismiss() { w.pipe.Close() }

// watchdogCommand is that process. It is for run alone, and the help does not list it.
func watchdogCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "watchdog",
		Short:  "end the command of a run that was stopped",
		Hidden: true,
		Args:   atMost(0),
		RunE: func(*cobra.Command, []string) error {
			const fromRun = 3
			var stat syscall.Stat_t
			if syscall.Fstat(fromRun, &stat) != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
				return misused("watchdog is for run alone")
			}
			signal.Ignore(forwarded...) // a supervisor signals all of a service
			watch(os.NewFile(fromRun, "run"), os.Getppid())
			return nil
		},
	}
}

// watch is the watchdog of run, the process whose pid is given. It returns once run has closed its
// end of the pipe, or has ended.
func watch(from io.Reader, run int) {
	duties, over := make(chan duty), make(chan struct{})
	go func() { // ends with run
		defer close(over)
		for decoder := json.NewDecoder(from); ; {
			var d duty
			if decoder.Decode(&d) != nil {
				return
			}
			duties <- d
		}
	}()
	alarm := newBootAlarm()
	command, d, again := new(tree), duty{}, killAgain
	for {
		select {
		case <-over:
			return
		case d = <-duties:
			command, again = treeOf(run, d), killAgain
		case <-alarm.rings:
		}
		switch now := bootTime(); {
		case d.Kill == 0: // it has not heard of a lease yet
		case now >= d.Kill:
			command.kill()
			alarm.set(now + again) // for processes started meanwhile
			again = min(2*again, time.Second)
		case d.Term != 0 && now >= d.Term:
			command.terminate()
			d.Term = 0
			alarm.set(d.Kill)
		case d.Term != 0:
			alarm.set(min(d.Term, d.Kill))
		default:
			alarm.set(d.Kill)
		}
	}
}

// treeOf is the processes of a command that another process, run, has started. The first of them
// may have ended, and so its number alone says nothing.
func treeOf(run int, d duty) *tree {
	t := newTree(run, d.Group, d.Others)
	close(t.exited)
	return t
}
