package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run of the lock that a run around it has would wait for itself. It ends at once, or with
// --nested runs its command without the lock.
func TestARunInsideARunOfItsLock(t *testing.T) {
	t.Parallel()
	e, other := newEtcd(t), newEtcd(t)
	self, err := os.Executable()
	require.NoError(t, err)
	tells := []string{"sh", "-c", `echo "ran with $ETCDLOCK_KEY"`}
	run := func(addr string, args ...string) []string {
		return append([]string{self, "run", "--endpoints", addr}, args...)
	}
	join := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all[1:] // starts knows the program
	}
	const refused, ran = `"a" is held by a run around this one`, "ran with "
	for name, row := range map[string]struct {
		args   []string
		status int
		stdout string
		stderr string
	}{
		"of its lock":    {join(run(e.addr, "a", "--"), run(e.addr, "a", "--"), tells), exitUsage, "", refused},
		"that waits not": {join(run(e.addr, "a", "--"), run(e.addr, "-n", "a", "--"), tells), exitUsage, "", refused},
		"of the outermost": {join(run(e.addr, "a", "--"), run(e.addr, "b", "--"), run(e.addr, "a", "--"), tells),
			exitUsage, "", refused},
		"that reads":      {join(run(e.addr, "-s", "a", "--"), run(e.addr, "-s", "a", "--"), tells), exitUsage, "", refused},
		"of permits":      {join(run(e.addr, "-N", "2", "a", "--"), run(e.addr, "-N", "2", "a", "--"), tells), 0, ran + "a/", ""},
		"of a lock":       {join(run(e.addr, "-N", "2", "a", "--"), run(e.addr, "a", "--"), tells), exitUsage, "", refused},
		"of another":      {join(run(e.addr, "a", "--"), run(e.addr, "b", "--"), tells), 0, ran + "b/", ""},
		"of another etcd": {join(run(e.addr, "a", "--"), run(other.addr, "a", "--"), tells), 0, ran + "a/", ""},
		"nested": {join(run(e.addr, "a", "--"), run(e.addr, "b", "--"), run(e.addr, "--nested", "a", "--"), tells),
			0, ran + "a/", ""},
		"nested, of another": {join(run(e.addr, "a", "--"), run(e.addr, "--nested", "b", "--"), tells), 0, ran + "b/", ""},
		"nested, not there": {join(run(e.addr, "a", "--"), run(e.addr, "--nested", "a", "--"), []string{"/nowhere"}),
			exitNotFound, "", "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string(nil), row.args...)
			for i, arg := range args { // the rows do not wait for each other
				if arg == "a" || arg == "b" {
					args[i] = arg + "/" + strings.ReplaceAll(name, " ", "-")
				}
			}
			out := starts(t, args).exits(row.status)
			in := func(text string) string {
				text = strings.ReplaceAll(text, `"a"`, `"a/`+strings.ReplaceAll(name, " ", "-")+`"`)
				return text
			}
			require.Contains(t, out.stdout.String(), in(row.stdout))
			require.Contains(t, out.stderr.String(), in(row.stderr))
		})
	}
	starts(t, []string{"run", "--endpoints", e.addr, "c", "--", "true"},
		env(heldEnv+`=[{"key":"c/0b8d9f1e-6a55-4c7e-9a57-1f2f3a4b5c6d","token":7}]`)).exits(0)
	starts(t, []string{"run", "--endpoints", e.addr, "c", "--", "true"}, env(heldEnv+"=c")).exits(0)
}

// The command and the watchdog do not get the password, unless the command is to have it.
func TestTheCommandGetsNoPassword(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	secrets := env("ETCDCTL_PASSWORD=secret", "ETCDCTL_USER=")
	tells := []string{"a", "--", "sh", "-c", `for p in $PPID $(cat /proc/$PPID/task/*/children); do
		tr '\0' '\n' < /proc/$p/environ | grep -c -x ETCDCTL_PASSWORD=secret; done
		echo "has $ETCDCTL_PASSWORD"`}
	run := starts(t, append([]string{"run", "--endpoints", e.addr}, tells...), secrets).exits(0)
	require.Contains(t, run.stdout.String(), "has \n")
	require.Equal(t, 1, strings.Count(run.stdout.String(), "1\n"), "only run itself has it")
	args := append([]string{"run", "--endpoints", e.addr, "--keep-secrets"}, tells...)
	run = starts(t, args, secrets).exits(0)
	require.Contains(t, run.stdout.String(), "has secret\n")
	require.Equal(t, []string{"ETCDCTL_USER=root", "A=b"},
		withoutSecrets([]string{"ETCDCTL_USER=root:secret", "ETCDCTL_PASSWORD=secret", "A=b"}))
}
