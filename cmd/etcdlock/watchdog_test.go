//go:build linux || darwin || freebsd

package main

import (
	"encoding/json"
	"fmt"
	"os"
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
	quick := []string{"--ttl", "9s", "--kill-after", "2s"}
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

// Only a renewal puts the watchdog off. Once run itself has sent TERM nothing does.
func TestOnlyARenewalPutsTheWatchdogOff(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { read.Close(); write.Close() })
	w := &watchdog{pipe: write}
	decoder := json.NewDecoder(read)
	heard := func() (d duty) { // what was told is in the pipe already
		require.NoError(t, read.SetReadDeadline(time.Now().Add(10*time.Second)))
		require.NoError(t, decoder.Decode(&d))
		return d
	}
	now, before := time.Now(), bootTime()
	require.NoError(t, w.trusts(now.Add(time.Minute), time.Second))
	first := heard()
	require.InDelta(t, 61*time.Second, first.Kill-before, float64(time.Second))
	require.Equal(t, first.Kill-time.Second+termLater, first.Term)
	require.NoError(t, w.trusts(now.Add(2*time.Minute), time.Second))
	second := heard()
	require.Greater(t, second.Kill, first.Kill+50*time.Second)
	require.NoError(t, w.trusts(now.Add(time.Minute), time.Second)) // nothing is told
	require.NoError(t, w.guards([]int{7}, 8))
	require.Equal(t, duty{[]int{7}, 8, second.Term, second.Kill}, heard())
	require.NoError(t, w.terminated(now.Add(10*time.Second)))
	lost := heard()
	require.Zero(t, lost.Term)
	require.Less(t, lost.Kill, first.Kill)
	require.NoError(t, w.trusts(now.Add(time.Hour), time.Second))
	require.NoError(t, w.guards(nil, 8))
	require.Equal(t, lost.Kill, heard().Kill)
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
		run := e.run(t, []string{"--ttl", "5s", "--kill-after", "0s"}, name, file, "deaf", "shared")
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
