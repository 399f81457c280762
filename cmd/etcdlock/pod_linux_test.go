package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What docs/kubernetes.md says of pods that run etcdlock.

// ofThePage returns the commands of the containers of the page, but for etcdlock itself.
func ofThePage(t *testing.T) (commands [][]string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubernetes.md"))
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)^ +command: \[etcdlock, (.*)\]$`)
	for _, found := range command.FindAllStringSubmatch(string(page), -1) {
		commands = append(commands, strings.Split(strings.ReplaceAll(found[1], `"`, ""), ", "))
	}
	require.Len(t, commands, 2)
	return commands
}

// pod starts a pod of a container's command, with this worker in place of the program.
func (e *etcd) pod(t *testing.T, command []string, name string, worker ...string) *program {
	t.Helper()
	args := make([]string, 0, len(command))
	for _, arg := range command[:len(command)-1] {
		args = append(args, strings.ReplaceAll(arg, "$(POD_NAME)", name))
	}
	args = append(append(args, os.Args[0], "worker"), worker...)
	return starts(t, args, env("ETCDCTL_ENDPOINTS="+e.addr))
}

// The preStop hook of the page, in each pod of two, recalls the lock only where the pod holds it.
// Then the command has ended, though it ignores TERM, and the other pod's begins.
func TestAPodThatStopsRecallsOnlyItsOwnHold(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := ofThePage(t)[0]
	for i, arg := range command {
		if arg == "20s" {
			command[i] = "100ms"
		}
	}
	hook := preStop(t)
	leader, next := file(t, "leader"), file(t, "next")
	holds := e.pod(t, command, "mailer-1", leader, "deaf")
	first(t, leader, "beat")
	waits := e.pod(t, command, "mailer-2", next)
	e.line(t, "leader/mailer", 2)

	require.Empty(t, e.hook(t, hook, "mailer-2"), "the pod that waits recalls nothing")
	require.Empty(t, e.hook(t, hook, "mailer"), "nor does a pod whose name is a part of the holder's")
	require.Contains(t, e.hook(t, hook, "mailer-1"), "gone leader/mailer/")
	holds.exits(exitRecalled)
	require.True(t, last(t, leader, "beat").Before(first(t, next, "start")))
	require.NoError(t, waits.Process.Kill())
}

// preStop returns the script of the hook of the page.
func preStop(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubernetes.md"))
	require.NoError(t, err)
	_, hook, found := strings.Cut(string(page), "\n              - |\n")
	require.True(t, found)
	hook, _, found = strings.Cut(hook, "\n```\n")
	require.True(t, found)
	return hook
}

// hook runs the hook in a pod, with this binary as etcdlock.
func (e *etcd) hook(t *testing.T, script, pod string) (said string) {
	t.Helper()
	bin := t.TempDir()
	require.NoError(t, os.Symlink(must(os.Executable()), filepath.Join(bin, "etcdlock")))
	shell := exec.Command("sh", "-c", script)
	shell.Env = append(cleanEnv(), asEnv+"=1", "POD_NAME="+pod, "ETCDCTL_ENDPOINTS="+e.addr,
		"PATH="+bin+":"+os.Getenv("PATH"))
	text, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return string(text)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// asFirst makes a program the first process of a container: of a PID namespace with its own /proc.
func asFirst(t *testing.T) setting {
	return func(c *exec.Cmd) {
		const mount = "mount --make-rprivate / && mount -t proc proc /proc"
		c.Args = append([]string{"sh", "-c", mount + ` && exec "$@"`, "sh", c.Path}, c.Args[1:]...)
		c.Path = must(exec.LookPath("sh"))
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
		if os.Getuid() != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		}
		probe := exec.Command(c.Path, "-c", mount)
		probe.SysProcAttr = c.SysProcAttr
		if text, err := probe.CombinedOutput(); err != nil {
			t.Skipf("this system gives a test no PID namespace: %v: %s", err, text)
		}
	}
}

// As process 1 of a container run handles TERM, waits for what its command leaves behind, and has
// released the lock when it ends.
func TestARunIsTheFirstProcessOfAPod(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command, daemon := file(t, "command"), file(t, "daemon")
	run := starts(t, e.args([]string{"--kill-after", "50ms"}, "job", command, "daemon="+daemon),
		asFirst(t))
	first(t, command, "beat")
	require.Equal(t, 1, e.line(t, "job", 1)[0].PID)
	require.NoError(t, run.Process.Signal(syscall.SIGTERM))
	run.exits(143)
	require.Empty(t, e.contenders(t, "job"))
	ended := len(events(daemon, "beat"))
	require.NotZero(t, ended)
	time.Sleep(20 * time.Millisecond) // five beats
	require.Len(t, events(daemon, "beat"), ended)
}

// Two Jobs of one slot run its command once. If the command fails, a second try within the least
// time finds the lock taken, and says that all is well.
func TestAFailedJobIsNotRetriedWithinItsLeastTime(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	job := ofThePage(t)[1]
	report := file(t, "report")
	run := e.pod(t, job, "", report, "deaf", "signals=1") // fails with 7
	first(t, report, "beat")
	twin := file(t, "twin")
	e.pod(t, job, "", twin).exits(0).says("held by")
	require.NoError(t, syscall.Kill(number(t, report, "pid"), syscall.SIGUSR1)) // not by way of run
	run.exits(7)
	e.pod(t, job, "", twin).exits(0).says("kept until")
	require.Empty(t, events(twin, "start"))
}
