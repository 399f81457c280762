//go:build linux || darwin || freebsd

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// With -N at most that many runs have their commands at a time, and with -s any number.
// They exclude all other runs, also those with another flag. The lowest limit counts.
func TestRunsBesideEachOther(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for _, row := range []struct {
		name, mode string
		flags      []string
		// the status of a run with -n beside one with these flags, and when there is one more
		beside, full int
		refused      [][]string
	}{
		{"limited", "permit", []string{"-N", "3"}, exitGood, exitTaken, [][]string{{}, {"-s"}, {"-N", "2"}}},
		{"shared", "read", []string{"-s"}, exitGood, exitGood, [][]string{{}, {"-N", "9"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			tries := func(flags ...string) int {
				args := append([]string{"run", "--endpoints", e.addr, "-n"}, flags...)
				// this waits for all children of its process
				run := starts(t, append(args, row.name, "--", "true"))
				<-run.ended
				return run.ProcessState.ExitCode()
			}
			var there []*program
			begins := func() {
				command := file(t, "command")
				there = append(there, e.run(t, row.flags, row.name, command))
				first(t, command, "beat")
			}
			begins()
			begins()
			for i, c := range e.line(t, row.name, 2) {
				require.EqualValues(t, row.mode, c.Mode)
				require.True(t, c.Holds)
				require.Equal(t, there[i].Process.Pid, c.PID)
			}
			require.Equal(t, row.beside, tries(row.flags...))
			for _, flags := range row.refused {
				require.Equal(t, exitTaken, tries(flags...), "%v", flags)
			}
			begins()
			require.Equal(t, row.full, tries(row.flags...))
			for _, p := range there {
				require.NoError(t, p.Process.Signal(syscall.SIGTERM))
			}
			for _, p := range there {
				<-p.ended
			}
			e.line(t, row.name, 0)
		})
	}
}

// The command knows its key and token. The run ends it when its place is taken away.
func TestARunWithALimitKnowsItsPlaceAndLosesIt(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for _, flags := range [][]string{{"-N", "2"}, {"-s"}} {
		args := append([]string{"run", "--endpoints", e.addr}, flags...)
		run := starts(t, append(args, "job", "--", "sh", "-c",
			`echo "$ETCDLOCK_NAME $ETCDLOCK_KEY $ETCDLOCK_TOKEN"; exec sleep 60`))
		eventually(t, func() bool { return strings.HasSuffix(run.stdout.String(), "\n") }, "no output")
		c := e.line(t, "job", 1)[0]
		require.Equal(t, fmt.Sprintf("job %s %d\n", c.Key, c.Token), run.stdout.String())
		e.server.DeleteKey(c.Key)
		run.exits(exitLost).says("its key was deleted")
	}
}

func TestFlagsOfRunsBesideEachOther(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-N", "0"}, {"-N", "65536"}, {"-N", "x"}, {"-N", "2", "-s"}} {
		status, _, stderr := runs(t, "", append(append([]string{"run"}, args...), "job", "--", "true")...)
		require.Equal(t, exitUsage, status)
		require.Contains(t, stderr, "-N")
	}
}
