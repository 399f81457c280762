package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A run that is killed takes its command along.
func TestARunThatIsKilledTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := file(t, "command")
	run := e.run(t, nil, "job", command, "deaf")
	first(t, command, "beat")
	require.NoError(t, run.Process.Kill())
	run.exits(-1)
	isGone(t, number(t, command, "pid"))
}

// A run whose watchdog is gone says so and goes on.
func TestARunGoesOnWithoutItsWatchdog(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := file(t, "command")
	run := e.run(t, []string{"--ttl", "9s", "--kill-after", "0s"}, "job", command)
	first(t, command, "beat")
	for _, p := range children(processes(), run.Process.Pid) {
		if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid)); strings.Contains(
			string(text), "\x00watchdog\x00") {
			require.NoError(t, syscall.Kill(p.pid, syscall.SIGKILL))
		}
	}
	eventually(t, func() bool { return run.stderr.String() != "" }, "it does not say so")
	require.NoError(t, run.Process.Signal(syscall.SIGTERM))
	run.exits(143).says("the watchdog has ended")
}

// A shell that replaces itself by a run has children that are not the command's. The run
// neither waits for them nor ends them.
func TestChildrenFromBeforeAreLeftAlone(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	sidecar, daemon := file(t, "sidecar"), file(t, "daemon")
	shell := exec.Command("sh", "-c", fmt.Sprintf(
		`"$0" worker %s & exec "$0" run --kill-after 100ms --endpoints %s job -- "$0" worker %s daemon=%s leave`,
		sidecar, e.addr, file(t, "command"), daemon), os.Args[0])
	shell.Env = append(cleanEnv(), asEnv+"=1")
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, shell.Start())
	ended := make(chan error, 1)
	go func() { ended <- shell.Wait() }() // ends with the shell, which is killed below
	t.Cleanup(func() { _ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) })
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "it waits for the sidecar")
	}
	isGone(t, number(t, daemon, "pid"))
	at := last(t, sidecar, "beat")
	eventually(t, func() bool { return last(t, sidecar, "beat").After(at) }, "the sidecar was ended")
}

// ---- terminals

// A pty is a terminal whose other end the test has.
type pty struct {
	master *os.File
	slave  string
	shows  *output
}

func newPty(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	var number, unlock int32
	require.True(t, ioctl(int(master.Fd()), syscall.TIOCGPTN, unsafe.Pointer(&number)))
	require.True(t, ioctl(int(master.Fd()), syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)))
	size := [4]uint16{5, 40}
	require.True(t, ioctl(int(master.Fd()), syscall.TIOCSWINSZ, unsafe.Pointer(&size)))
	p := &pty{master, fmt.Sprint("/dev/pts/", number), new(output)}
	t.Cleanup(func() { master.Close() })
	return p
}

// on makes a program lead a session on the terminal.
func (p *pty) on(t *testing.T) setting {
	slave, err := os.OpenFile(p.slave, os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { slave.Close() })
	go func() { // ends when the last one has closed the terminal
		buf := make([]byte, 4096)
		for {
			n, err := p.master.Read(buf)
			if err != nil {
				return
			}
			_, _ = p.shows.Write(buf[:n])
		}
	}()
	return func(c *exec.Cmd) {
		c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
}

// detached makes a program lead a session without a terminal.
func detached(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

func (p *pty) types(t *testing.T, keys string) {
	t.Helper()
	_, err := p.master.WriteString(keys)
	require.NoError(t, err)
}

// front returns the process group in the foreground.
func (p *pty) front(t *testing.T) int {
	t.Helper()
	var group int32
	require.True(t, ioctl(int(p.master.Fd()), syscall.TIOCGPGRP, unsafe.Pointer(&group)))
	return int(group)
}

// On a terminal the command is in the foreground: it reads, ^C reaches it alone, and ^Z
// does not stop it. Then the terminal belongs to the run again.
func TestOnATerminalTheCommandIsInTheForeground(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	terminal := newPty(t)
	run := starts(t, []string{"run", "--endpoints", e.addr, "--kill-after", "1s", "job",
		"--", "sh", "-c",
		`read line; echo "got $line by $$"; trap 'echo interrupted; (trap "" TERM; while :; do sleep 1; done) & exit 5' INT; while :; do /bin/true; echo on; done`},
		terminal.on(t))
	terminal.types(t, "words\n")
	shown := func(text string) func() bool {
		return func() bool { return strings.Contains(terminal.shows.String(), text) }
	}
	eventually(t, shown("got words by"), "the command cannot read")
	require.NotEqual(t, run.Process.Pid, terminal.front(t))
	require.True(t, shown(fmt.Sprint("got words by ", terminal.front(t)))(),
		"another is in the foreground")

	for range 10 { // sometimes the shell is just about to begin a program
		before := len(terminal.shows.String())
		terminal.types(t, "\x1a") // ^Z
		eventually(t, func() bool {
			return strings.Contains(terminal.shows.String()[before:], "^Z")
		}, "no echo")
		echoed := len(terminal.shows.String())
		eventually(t, func() bool {
			return strings.Count(terminal.shows.String()[echoed:], "on") > 50
		}, "it was stopped")
	}

	terminal.types(t, "\x03") // ^C
	eventually(t, shown("interrupted"), "the command was not interrupted")
	eventually(t, func() bool {
		return terminal.front(t) == run.Process.Pid
	}, "the terminal is not given back")
	run.exits(5)
}

// A run whose command has the terminal is in the background there. "stty tostop" stops
// background processes that write. It must not stop the run between TERM and KILL.
func TestNoTerminalStopsARunThatHasLostItsLock(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	terminal := newPty(t)
	run := starts(t, []string{"run", "--endpoints", e.addr, "job", "--", "sh", "-c",
		"trap '' TERM; stty tostop; echo ready; while :; do sleep 0.1; done"}, terminal.on(t))
	shown := func(text string) {
		t.Helper()
		is := func() bool { return strings.Contains(terminal.shows.String(), text) }
		eventually(t, is, "%q is not shown", text)
	}
	shown("ready\r\n")
	e.server.DeleteKey(e.line(t, "job", 1)[0].Key)
	run.exits(exitLost)
	shown("etcdlock: lock \"job\" lost")
}

// The live table stays within the window, and each one replaces the one before.
func TestTheLiveTableStaysInTheWindow(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for i := range 9 {
		e.holds(t, fmt.Sprint("job-", i))
	}
	terminal := newPty(t)
	starts(t, []string{"who", "--watch", "--endpoints", e.addr}, terminal.on(t))
	eventually(t, func() bool {
		return strings.Count(terminal.shows.String(), "\x1b[H") >= 2
	}, "no second table")
	_, first, _ := strings.Cut(terminal.shows.String(), "\x1b[H")
	first, _, _ = strings.Cut(first, "\x1b[H")
	lines := strings.Split(strings.TrimSuffix(first, "\x1b[J"), "\r\n")
	require.Len(t, lines, 5, "%q", lines) // 4, and what is behind the last one
	require.Contains(t, lines[0], "NAME")
	require.Contains(t, lines[3], "(7 more)")
	for _, line := range lines[:4] {
		require.LessOrEqual(t, len(strings.TrimSuffix(line, "\x1b[K")), 40)
	}
}
