//go:build linux || darwin || freebsd

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/race"
)

// A run that is stopped does not renew its lease. Its command has ended all the same when another
// begins, with TERM first, and so has what it has started. SIGCONT then finds the run at its end.
func TestACommandEndsThoughItsRunIsStopped(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command, daemon, next := file(t, "command"), file(t, "daemon"), file(t, "next")
	quick := []string{"--ttl", "6s", "--kill-after", "1s"}
	run := e.run(t, quick, "job", command, "deaf", "daemon="+daemon)
	first(t, command, "beat")
	waits := e.run(t, quick, "job", next)
	e.line(t, "job", 2)
	require.NoError(t, run.Process.Signal(syscall.SIGSTOP))

	began := first(t, next, "start")
	for _, worker := range []string{command, daemon} {
		isGone(t, number(t, worker, "pid"))
		require.True(t, last(t, worker, "beat").Before(began), "it works beside the next")
		require.True(t, first(t, worker, "signal=15").Before(last(t, worker, "beat")))
		require.Len(t, events(worker, "signal=15"), 1)
	}
	require.NoError(t, run.Process.Signal(syscall.SIGCONT))
	run.exits(exitLost).says("not renewed in time")
	require.NoError(t, waits.Process.Signal(syscall.SIGTERM))
	waits.exits(143)
}

// Three runs on each of some locks, and the one that holds is stopped again and again. Their
// commands note when they work, by a clock that all processes share and that only goes forward.
func TestNoTwoCommandsRunWhileRunsAreStopped(t *testing.T) {
	const locks = 5
	e := newEtcd(t)
	for i := range locks {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			e.stopsRuns(t, fmt.Sprint("job-", i), race.Fewer(10, 1))
		})
	}
}

// stopsRuns keeps three runs on a lock, and stops the one that holds, a number of times.
func (e *etcd) stopsRuns(t *testing.T, name string, times int) {
	dir := t.TempDir()
	runs, files := make(map[int]*program), make(map[int]string) // by pid
	begin := func() {
		file := filepath.Join(dir, fmt.Sprint(len(files)))
		run := e.run(t, []string{"--ttl", "3s", "--kill-after", "0s"}, name, file, "deaf", "shared")
		runs[run.Process.Pid], files[run.Process.Pid] = run, file
	}
	// works waits until the command of a run works that is not the one given.
	works := func(but int) (pid int) {
		eventually(t, func() bool {
			for _, c := range e.contenders(t, name) {
				if c.Holds && c.PID != but && len(events(files[c.PID], "beat")) > 0 {
					pid = c.PID
				}
			}
			return pid != 0
		}, "no command works")
		return pid
	}
	for range 3 {
		begin()
	}
	for range times {
		holder := works(0)
		require.NoError(t, runs[holder].Process.Signal(syscall.SIGSTOP))
		works(holder)
		require.NoError(t, runs[holder].Process.Signal(syscall.SIGCONT))
		runs[holder].exits(exitLost)
		begin()
	}
	type span struct{ from, to time.Time }
	var work []span
	for _, file := range files {
		if beats := events(file, "beat"); len(beats) > 0 {
			work = append(work, span{events(file, "start")[0], beats[len(beats)-1]})
		}
	}
	slices.SortFunc(work, func(a, b span) int { return a.from.Compare(b.from) })
	require.Greater(t, len(work), times)
	for i, later := range work[1:] {
		require.True(t, work[i].to.Before(later.from), "two worked for %v", work[i].to.Sub(later.from))
	}
}
