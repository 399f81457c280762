package main

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/race"
)

// demoEnv in the environment makes the test binary the demo. So the tests see what a shell
// would: processes and exit statuses.
const demoEnv = "ETCDLOCK_DEMO_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(demoEnv) != "" || os.Getenv(workerEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// demo runs the demo as a process, and requires it to clear up.
func demo(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	tmp := t.TempDir()
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), demoEnv+"=1", "TMPDIR="+tmp, "TMP="+tmp, race.QuickExit())
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		_, exited := errors.AsType[*exec.ExitError](err)
		require.True(t, exited, "%v", err)
	}
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	requireNarrow(t, out.String())
	t.Logf("%v: %v\n%s%s", args, cmd.ProcessState, out.String(), errs.String())
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// demoEnds runs the demo, which must end with a status and have no error to tell.
func demoEnds(t *testing.T, want int, args ...string) (stdout string) {
	t.Helper()
	status, stdout, stderr := demo(t, args...)
	require.Equal(t, want, status)
	require.Empty(t, stderr)
	return stdout
}

func TestSaleWithTheLock(t *testing.T) {
	t.Parallel()
	stdout := demoEnds(t, exitGood, "-ttl", "1m", "-workers", "3", "-requests", "60", "-stock", "40")
	requireRow(t, stdout, "sold", "40")
	requireRow(t, stdout, "refused", "20")
	requireRow(t, stdout, "oversold", "0")
	requireRow(t, stdout, "lost updates", "0")
	requireRow(t, stdout, "tokens going back", "0")
	requireRow(t, stdout, "keys left in etcd", "0")
	require.Contains(t, stdout, "\nOK: ")
}

func TestSaleWithoutTheLockOversells(t *testing.T) {
	t.Parallel()
	stdout := demoEnds(t, exitFailed, "-no-lock", "-requests", "60", "-stock", "40")
	require.Contains(t, stdout, "there is no lock")
	require.Contains(t, stdout, "\nFAILED: ")
	require.NotContains(t, stdout, "tokens")
}

func TestOrdersAreSoldEntirelyOrNotAtAll(t *testing.T) {
	t.Parallel()
	stdout := demoEnds(t, exitGood, "-orders", "-ttl", "1m", "-workers", "3", "-requests", "60",
		"-stock", "80")
	requireRow(t, stdout, "oversold", "0")
	requireRow(t, stdout, "lost updates", "0")
	requireRow(t, stdout, "tokens going back", "0")
	requireRow(t, stdout, "keys left in etcd", "0")
	require.Contains(t, stdout, "\nOK: each order")
}

func TestOrdersWithoutTheLocksGoWrong(t *testing.T) {
	t.Parallel()
	stdout := demoEnds(t, exitFailed, "-orders", "-no-lock", "-requests", "60", "-stock", "80")
	require.Contains(t, stdout, "\nFAILED: ")
}

// requireRow requires that the line of the report that begins with name goes on with value.
func requireRow(t *testing.T, report, name, value string) {
	t.Helper()
	require.Regexp(t, `(?m)^`+regexp.QuoteMeta(name)+` +`+regexp.QuoteMeta(value)+`( |$)`, report)
}
