//go:build linux || darwin || freebsd

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// A stderr that nobody reads holds up nothing.
func TestAReaderThatIsStuckHoldsUpNoKill(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { read.Close(); write.Close() })
	require.NoError(t, write.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err == nil { // until it is full
		_, err = write.Write(make([]byte, 4096))
	}
	command := file(t, "command")
	loser := starts(t, e.args([]string{"--kill-after", "100ms"}, "job", command, "deaf"),
		func(c *exec.Cmd) { c.Stderr = write })
	first(t, command, "beat")
	e.server.DeleteKey(e.line(t, "job", 1)[0].Key)
	isGone(t, number(t, command, "pid"))
	e.line(t, "job", 0)
	_, err = io.CopyN(io.Discard, read, 8192)
	require.NoError(t, err)
	loser.exits(exitLost)
}

// A command that ends when it is asked to has lost the lock all the same.
func TestACommandThatHearsEndsAtOnce(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := file(t, "command")
	loser := e.run(t, []string{"--ttl", "1h", "--kill-after", "15m"}, "job", command)
	first(t, command, "beat")
	e.server.RevokeLease(int64(e.line(t, "job", 1)[0].Lease))
	loser.exits(exitLost).says("lost") // long before it would be killed
}

// A run that was stopped notices the end of trust late. KILL counts from the end of trust.
func TestKillAtCountsFromTheEndOfTrust(t *testing.T) {
	r := running{killAfter: 3 * time.Second}
	trusted := time.Now()
	require.Equal(t, trusted.Add(3*time.Second), r.killAt(trusted, trusted, true))
	require.Equal(t, trusted.Add(3*time.Second), r.killAt(trusted.Add(2*time.Second), trusted, true))
	require.Equal(t, trusted.Add(3*time.Second), r.killAt(trusted.Add(time.Hour), trusted, true),
		"at once")
	now := trusted.Add(-10 * time.Second) // the key was deleted
	require.Equal(t, now.Add(time.Second), r.killAt(now, trusted, false))
	r.killAfter = 200 * time.Millisecond
	require.Equal(t, now.Add(r.killAfter), r.killAt(now, trusted, false))
}

// Each signal reaches the command, once, and none of them starts the kill.
func TestSignalsArePassedOnOnce(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := file(t, "command")
	run := e.run(t, []string{"--kill-after", "50ms"}, "job", command, "deaf", "signals=6")
	first(t, command, "beat")
	for i, s := range forwarded {
		require.NoError(t, run.Process.Signal(s))
		at := first(t, command, fmt.Sprint("signal=", int(s.(syscall.Signal))))
		if i < len(forwarded)-1 { // the command lives on, longer than kill-after
			eventually(t, func() bool {
				return last(t, command, "beat").Sub(at) > 100*time.Millisecond
			}, "%v ended it", s)
		}
	}
	run.exits(7)
	require.Empty(t, run.stderr.String())
	for _, s := range forwarded {
		require.Len(t, events(command, fmt.Sprint("signal=", int(s.(syscall.Signal)))), 1)
	}
	require.Equal(t, number(t, command, "pid"), number(t, command, "group"), "a group of its own")
	e.line(t, "job", 0)
}

// A signal that was ignored when run started is ignored by all of it, as HUP is under nohup.
func TestAnIgnoredSignalIsNotPassedOn(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := file(t, "command")
	args := e.args(nil, "job", command, "deaf", "signals=1")
	run := starts(t, args, func(c *exec.Cmd) {
		c.Path = "/bin/sh"
		c.Args = append([]string{"sh", "-c", `trap '' HUP INT; exec "$0" "$@"`}, c.Args...)
	})
	first(t, command, "beat")
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1} {
		require.NoError(t, run.Process.Signal(s))
	}
	run.exits(7)
	require.Len(t, events(command, fmt.Sprint("signal=", int(syscall.SIGUSR1))), 1,
		"another came first")
}

// A signal during the wait ends the wait, and the run leaves the line.
func TestASignalEndsTheWait(t *testing.T) {
	for _, flags := range [][]string{nil, {"-w", "1m"}} {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1} {
			t.Run(fmt.Sprint(flags, s), func(t *testing.T) {
				t.Parallel()
				e := newEtcd(t)
				e.holds(t, "job")
				run := e.run(t, flags, "job", file(t, "command"))
				e.line(t, "job", 2)
				require.NoError(t, run.Process.Signal(s))
				run.exits(exitSignal + int(s)).says(s.String())
				e.line(t, "job", 1)
			})
		}
	}
}

// A signal also ends the wait while etcd is away, and the run has neither a place nor a
// login yet.
func TestASignalEndsTheWaitForEtcd(t *testing.T) {
	t.Parallel()
	away := &etcd{addr: nobody}
	for _, user := range []string{"", "api:secret"} {
		run := starts(t, away.args([]string{"--user", user}, "job", file(t, "command")),
			env(sayWhyEnv+"=1ms"))
		eventually(t, func() bool { return run.stderr.String() != "" }, "it does not wait")
		require.NoError(t, run.Process.Signal(syscall.SIGTERM))
		run.exits(exitSignal + int(syscall.SIGTERM))
		require.Contains(t, run.stderr.String(), "ended by a signal: terminated\n")
	}
}

// With -w 0 a run does not wait. (Of flock's timeout its manual says: "The zero number of seconds
// is interpreted as --nonblock.")
func TestATimeoutOfZeroDoesNotWait(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "job")
	run := e.run(t, []string{"-w", "0"}, "job", file(t, "command"))
	eventually(t, func() bool {
		select {
		case <-run.ended:
			return true
		default:
			line, err := etcdlock.Contenders(t.Context(), e.client, "job")
			require.NoError(t, err)
			require.Len(t, line, 1, "it waits")
			return false
		}
	}, "it does not end")
	run.exits(exitTaken).says("held by")
}

// Each status of a run, with one line for each that is its own.
func TestExitStatuses(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "taken")
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("no program"), 0o600))
	alien := filepath.Join(dir, "alien")
	require.NoError(t, os.WriteFile(alien, []byte("\x7fnothing that runs"), 0o700))
	away := nobody
	for name, row := range map[string]struct {
		args   []string // after run --endpoints
		status int
		says   string
	}{
		"good":                {[]string{e.addr, "a", "--", "true"}, 0, ""},
		"its own":             {[]string{e.addr, "b", "--", "sh", "-c", "exit 3"}, 3, ""},
		"by a signal":         {[]string{e.addr, "c", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		"75 of its own":       {[]string{e.addr, "d", "--", "sh", "-c", "exit 75"}, 75, ""},
		"not waiting":         {[]string{e.addr, "-n", "taken", "--", "true"}, 75, "held by"},
		"-w 0s of a free one": {[]string{e.addr, "-w", "0s", "free", "--", "true"}, 0, ""},
		"-n and -w 0":         {[]string{e.addr, "-n", "-w", "0", "taken", "--", "true"}, 75, "held by"},
		"another conflict":    {[]string{e.addr, "-n", "--conflict-exit-code", "3", "taken", "--", "true"}, 3, "held by"},
		"no conflict":         {[]string{e.addr, "-n", "--conflict-exit-code", "0", "taken", "--", "true"}, 0, "held by"},
		"not there":           {[]string{e.addr, "e", "--", "no-such-command"}, 127, "no-such-command"},
		"no such file":        {[]string{e.addr, "e", "--", filepath.Join(dir, "nothing")}, 127, "no such file"},
		"not executable":      {[]string{e.addr, "e", "--", text}, 126, "permission denied"},
		"of no format":        {[]string{e.addr, "e", "--", alien}, 126, "exec format error"},
		"etcd away, -w":       {[]string{away, "-w", "300ms", "e", "--", "true"}, 125, "etcd did not answer in 300ms: dial tcp"},
		"etcd away, log-in":   {[]string{away, "-w", "300ms", "--user", "a:b", "e", "--", "true"}, 125, "etcd did not answer in 300ms"},
		"an owner too long":   {[]string{e.addr, "--owner", strings.Repeat("a", 1025), "a", "--", "true"}, 64, "--owner: not"},
		"info too long":       {[]string{e.addr, "--info", strings.Repeat("a", 1025), "a", "--", "true"}, 64, "--info: not"},
		"a name of nothing":   {[]string{e.addr, "", "--", "true"}, 64, `name "" is empty`},
		"a name with a /":     {[]string{e.addr, "a/", "--", "true"}, 64, `ends with "/"`},
		"no name":             {[]string{e.addr, "--", "true"}, 64, "needs the name"},
		"two names":           {[]string{e.addr, "a", "b", "--", "true"}, 64, "unexpected argument"},
		"no --":               {[]string{e.addr, "a", "true"}, 64, `"--" and a command are needed`},
		"no command":          {[]string{e.addr, "a", "--"}, 64, `"--" and a command are needed`},
		"TTL too short":       {[]string{e.addr, "--ttl", "11s", "a", "--", "true"}, 64, "less than 12s"},
		"kill-after too long": {[]string{e.addr, "--kill-after", "5s", "a", "--", "true"}, 64, "less than 18s"},
		"-n and -w":           {[]string{e.addr, "-n", "-w", "1s", "a", "--", "true"}, 64, "only one of them"},
		"-w of nothing":       {[]string{e.addr, "-w", "-1s", "a", "--", "true"}, 64, "--timeout -1s: negative"},
		"a password in a URL": {[]string{"http://root:secret@" + nobody, "a", "--", "true"}, 64,
			"--endpoints: a user or a password in an address"},
		"too short a time":    {[]string{e.addr, "-w", "15ns", "a", "--", "true"}, 64, "--timeout 15ns: below 1ms"},
		"a time without unit": {[]string{e.addr, "-w", "15", "a", "--", "true"}, 64, "missing unit"},
		"a negative time":     {[]string{e.addr, "--at-least", "-1s", "a", "--", "true"}, 64, "negative"},
		"a least time and -s": {[]string{e.addr, "--at-least", "1s", "-s", "a", "--", "true"}, 64, "only one of them"},
		"a least time and -N": {[]string{e.addr, "--at-least", "1s", "-N", "2", "a", "--", "true"}, 64, "only one of them"},
		"an unknown flag":     {[]string{e.addr, "--nonsense", "a", "--", "true"}, 64, "unknown flag"},
		"a wrong status":      {[]string{e.addr, "--conflict-exit-code", "256", "a", "--", "true"}, 64, "0 to 255"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := starts(t, append([]string{"run", "--endpoints"}, row.args...)).exits(row.status)
			if row.says == "" {
				require.Empty(t, run.stderr.String())
			} else {
				run.says(row.says)
			}
			require.NotContains(t, run.stderr.String(), "secret")
		})
	}
}

// A run whose stderr has no reader any more waits, holds, and exits as ever. Its command has the
// default action for SIGPIPE.
func TestAStderrWithoutAReaderEndsNoRun(t *testing.T) {
	t.Parallel()
	reader, stderr, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	t.Cleanup(func() { stderr.Close() })
	unread := func(c *exec.Cmd) { c.Stderr = stderr }
	e := newEtcd(t)
	mu := e.holds(t, "job")
	starts(t, e.args([]string{"-n"}, "job", file(t, "command")), unread).exits(exitTaken)

	run := starts(t, []string{"run", "--endpoints", e.addr, "job", "--", "sh", "-c",
		"kill -PIPE $$; exit 3"},
		unread, env(sayWhyEnv+"=1ms"))
	e.line(t, "job", 2)
	require.NoError(t, mu.Unlock(context.Background()))
	run.exits(exitSignal + int(syscall.SIGPIPE))

	away := &etcd{addr: nobody}
	starts(t, away.args([]string{"-w", "1s"}, "job", file(t, "command")), unread,
		env(sayWhyEnv+"=1ms")).
		exits(exitFailed)
}

// A release that etcd does not confirm is no reason to call a good run bad.
func TestAReleaseThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := file(t, "command")
	run := e.run(t, []string{"--ttl", "60s"}, "job", command, "deaf", "signals=1")
	first(t, command, "beat")
	e.server.Freeze(0)
	require.NoError(t, run.Process.Signal(syscall.SIGUSR1))
	run.exits(7).says("release not confirmed")
}

// A run of nothing with a least time pauses a job: it waits for the run under way, and the slots
// after it are skipped, until the place is broken.
func TestAPauseSkipsTheSlotsOfAJob(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	slot := func() *program {
		return starts(t, []string{"run", "--endpoints", e.addr, "-n", "--at-least", "1ms",
			"--conflict-exit-code", "0", "cron/report", "--", "echo", "ran"})
	}
	mu := e.holds(t, "cron/report")
	pause := starts(t, []string{"run", "--endpoints", e.addr, "--at-least", "1h", "cron/report",
		"--", "true"})
	e.line(t, "cron/report", 2)
	require.NoError(t, mu.Unlock(context.Background()))
	pause.exits(0)
	skipped := slot().exits(0)
	skipped.says("kept until")
	require.Empty(t, skipped.stdout.String())

	status, _, stderr := runs(t, "", "break", "cron/report", "--endpoints", e.addr, "--token",
		fmt.Sprint(e.line(t, "cron/report", 1)[0].Token))
	require.Equal(t, exitGood, status, stderr)
	require.Equal(t, "ran\n", slot().exits(0).stdout.String())
}

func TestTheCommandKnowsItsLock(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	run := starts(t, []string{"run", "--endpoints", e.addr, "--owner", "batch 7", "--info", "v 1.2",
		"orders/42", "--", "sh", "-c",
		`echo "$ETCDLOCK_NAME $ETCDLOCK_KEY $ETCDLOCK_TOKEN $0 $1"; cat; kill -STOP $$`, "a b", "--"},
		env("ETCDLOCK_NAME=outer", "ETCDLOCK_TOKEN=1"), typed("from stdin\n"))
	eventually(t, func() bool { return strings.Contains(run.stdout.String(), "stdin\n") }, "no output")
	c := e.line(t, "orders/42", 1)[0]
	require.Equal(t, fmt.Sprintf("orders/42 %s %d a b --\nfrom stdin\n", c.Key, c.Token),
		run.stdout.String())
	require.Equal(t, run.Process.Pid, c.PID)
	require.Equal(t, "batch 7", c.Owner)
	require.Equal(t, "v 1.2", c.Info)
	require.NoError(t, run.Process.Signal(syscall.SIGTERM)) // the signal waits for the stopped run
	e.server.DeleteKey(c.Key)                               // and the loss wakes it
	run.exits(exitLost)
}
