//go:build linux || darwin || freebsd

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// With asEnv this binary is the program, or the worker that the program runs as its
// command. By the name of etcdlock, which the stories use, it is the program, too.
const (
	asEnv     = "ETCDLOCK_TEST_AS"
	sayWhyEnv = "ETCDLOCK_TEST_SAY_WHY"
	pageEnv   = "ETCDLOCK_TEST_PAGE"
)

func TestMain(m *testing.M) {
	if os.Getenv(asEnv) == "" {
		testscript.Main(tests{m}, map[string]func(){"etcdlock": main})
	}
	if len(os.Args) > 2 && os.Args[1] == "worker" {
		work(os.Args[2], os.Args[3:])
	}
	if d, err := time.ParseDuration(os.Getenv(sayWhyEnv)); err == nil {
		sayWhyAfter = d
	}
	if n, err := strconv.ParseInt(os.Getenv(pageEnv), 10, 64); err == nil {
		page = n
	}
	main()
}

// tests are all tests. They do not run in the programs that the stories start.
type tests struct{ *testing.M }

func (t tests) Run() int {
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most of the time they wait for other processes
	ignoreAlone()
	return t.M.Run()
}

// ignoreAlone keeps from the programs that the tests start what this process was started with: that
// HUP is ignored, as nohup does, or INT, as a shell does in the background. A program inherits
// that a signal is ignored, but not that it is caught, as it is now by a channel nobody reads.
func ignoreAlone() {
	for _, s := range forwarded {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// patience bounds what must happen, on a machine that has much else to do.
var patience = contract.Patience

// nobody is an address on which nobody listens. (A port that was closed may belong to
// another test by then.)
const nobody = "127.0.0.1:1"

// ---- the worker

// work writes to a file what happens to the worker, and that it lives. It goes on until
// something ends the worker, or the file is gone. After the test the file is gone, whatever
// became of the test.
//
//	deaf         the worker notes signals, and they do not end it
//	daemon=FILE  it starts another worker, deaf and in a session of its own
//	leave        it ends once that one lives
//	signals=N    it exits with status 7 after N signals
//	shared       its times are of the clock that all processes share, and that only goes forward
func work(file string, flags []string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	now := func() int64 { return time.Now().UnixNano() }
	note := func(what string) { fmt.Fprintf(f, "%s %d\n", what, now()) }
	signals := make(chan os.Signal, 16)
	left := -1
	leave := false
	for _, flag := range flags {
		name, value, _ := strings.Cut(flag, "=")
		switch name {
		case "deaf":
			signal.Notify(signals, forwarded...)
		case "daemon":
			daemon := exec.Command(os.Args[0], "worker", value, "deaf")
			daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := daemon.Start(); err != nil {
				panic(err)
			}
			for len(events(value, "beat")) == 0 {
				time.Sleep(time.Millisecond)
			}
		case "leave":
			leave = true
		case "shared":
			now = func() int64 { return int64(bootTime()) }
		case "signals":
			left, _ = strconv.Atoi(value)
		}
	}
	if leave {
		os.Exit(0)
	}
	note(fmt.Sprint("pid=", os.Getpid()))
	note(fmt.Sprint("group=", syscall.Getpgrp()))
	note("start")
	for {
		select {
		case s := <-signals:
			note(fmt.Sprint("signal=", int(s.(syscall.Signal))))
			if left--; left == 0 {
				os.Exit(7)
			}
		case <-time.After(4 * time.Millisecond):
			note("beat")
			if _, err := os.Stat(file); err != nil {
				os.Exit(1)
			}
		}
	}
}

// events returns the times at which a worker noted something.
func events(file, what string) (at []time.Time) {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		name, ns, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, err := strconv.ParseInt(ns, 10, 64); err == nil && name == what &&
			strings.HasSuffix(line, "\n") {
			at = append(at, time.Unix(0, n))
		}
	}
	return at
}

// number returns a number that a worker noted, as in pid=7.
func number(t *testing.T, file, what string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), what+"=")
	require.True(t, found, "%s: no %s", file, what)
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return n
}

// first and last wait until a worker has noted something.
func first(t *testing.T, file, what string) time.Time {
	t.Helper()
	eventually(t, func() bool { return len(events(file, what)) > 0 }, "%s: no %s", file, what)
	return events(file, what)[0]
}

func last(t *testing.T, file, what string) time.Time {
	t.Helper()
	first(t, file, what)
	all := events(file, what)
	return all[len(all)-1]
}

func eventually(t *testing.T, is func() bool, format string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		require.Falsef(t, time.Now().After(deadline), format, args...)
	}
}

// isGone requires that a process has ended, or that its parent only has to wait for it.
func isGone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") Z ") ||
			errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}, "process %d lives", pid)
}

// ---- etcd

// An etcd is an etcd in memory, at an address.
type etcd struct {
	addr   string
	client *clientv3.Client
	server *sim.Cluster
}

func newEtcd(t *testing.T) *etcd {
	t.Helper()
	addr, server, err := sim.Serve()
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return &etcd{addr, contract.ClientOf(t, []string{addr}), server}
}

// holds takes the lock name for the rest of the test.
func (e *etcd) holds(t *testing.T, name string, opts ...etcdlock.SessionOption) *etcdlock.Mutex {
	t.Helper()
	mu, err := etcdlock.NewMutex(e.client, name, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { mu.Close(context.Background()) })
	require.NoError(t, mu.Lock(t.Context()))
	return mu
}

// line waits until n contenders stand in line, and returns them.
func (e *etcd) line(t *testing.T, name string, n int) (line []etcdlock.Contender) {
	t.Helper()
	eventually(t, func() bool {
		line = e.contenders(t, name)
		return len(line) == n
	}, "%q: not %d in line", name, n)
	return line
}

// contenders returns the line as it is.
func (e *etcd) contenders(t *testing.T, name string) []etcdlock.Contender {
	t.Helper()
	line, err := etcdlock.Contenders(context.Background(), e.client, name)
	require.NoError(t, err)
	return line
}

// ---- the program

// A program is a running program, as a process of its own.
type program struct {
	*exec.Cmd
	t              *testing.T
	stdout, stderr *output
	ended          chan struct{}
}

// output is what a process has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Reset()
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// A setting changes a program before it starts.
type setting func(*exec.Cmd)

func env(vars ...string) setting { return func(c *exec.Cmd) { c.Env = append(c.Env, vars...) } }

func typed(text string) setting { return func(c *exec.Cmd) { c.Stdin = strings.NewReader(text) } }

// starts starts the program. The program, and all that it started, have ended when the test
// is over.
func starts(t *testing.T, args []string, settings ...setting) *program {
	t.Helper()
	p := &program{
		Cmd: exec.Command(os.Args[0], args...), t: t,
		stdout: new(output), stderr: new(output), ended: make(chan struct{}),
	}
	p.Env = append(cleanEnv(), asEnv+"=1", race.QuickExit())
	p.Stdout, p.Stderr = p.stdout, p.stderr
	p.WaitDelay = time.Second // a command left behind would keep the pipes open
	for _, set := range settings {
		set(p.Cmd)
	}
	require.NoError(t, p.Start())
	go func() { // ends with the process, for which the cleanup waits
		defer close(p.ended)
		_ = p.Wait()
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%q: %v\n%s%s", args, p.ProcessState, p.stdout, p.stderr)
		}
	})
	return p
}

// cleanEnv is the environment without the variables that etcdctl reads.
func cleanEnv() (vars []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "ETCDCTL_") && !strings.HasPrefix(v, "ETCDLOCK_") {
			vars = append(vars, v)
		}
	}
	return vars
}

// exits waits for the end of the program, and requires its status.
func (p *program) exits(status int) *program {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		require.Fail(p.t, "it does not end", "%q\n%s", p.Args[1:], p.stderr)
	}
	require.Equal(p.t, status, p.ProcessState.ExitCode(), "%q\n%s%s", p.Args[1:], p.stdout, p.stderr)
	return p
}

// says requires one line on stderr that contains a text.
func (p *program) says(text string) {
	p.t.Helper()
	lines := strings.Split(strings.TrimSuffix(p.stderr.String(), "\n"), "\n")
	require.Len(p.t, lines, 1)
	require.True(p.t, strings.HasPrefix(lines[0], "etcdlock: "), lines[0])
	require.Contains(p.t, lines[0], text)
}

// run is a run of this binary as a worker.
func (e *etcd) run(t *testing.T, flags []string, name string, worker ...string) *program {
	t.Helper()
	return starts(t, e.args(flags, name, worker...))
}

func (e *etcd) args(flags []string, name string, worker ...string) []string {
	args := append([]string{"run", "--endpoints", e.addr, "--ttl", "10m"}, flags...)
	return append(append(args, name, "--", os.Args[0], "worker"), worker...)
}

// runs runs the whole program with these arguments, in this process.
func runs(t *testing.T, answer string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	status = run(args, strings.NewReader(answer), &out, &errs)
	t.Logf("%v: status %d\n%s%s", args, status, out.String(), errs.String())
	return status, out.String(), errs.String()
}

// file is the path of a worker's file.
func file(t *testing.T, name string) string { return filepath.Join(t.TempDir(), name) }
