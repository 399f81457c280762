package child_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/child"
)

const patience = 20 * time.Second

// shell is a Server that runs a script.
func shell(t *testing.T, script string) *child.Server {
	t.Helper()
	s := &child.Server{
		Command: func() *exec.Cmd { return exec.Command("sh", "-c", script) },
		Log:     filepath.Join(t.TempDir(), "log"),
	}
	require.NoError(t, s.Start())
	t.Cleanup(func() { s.Stop(syscall.SIGKILL, 0) })
	return s
}

func says(t *testing.T, s *child.Server, want string) {
	t.Helper()
	require.Eventually(t, func() bool { return s.Said(100) == want }, patience, time.Millisecond,
		"it has said %q", s.Said(100))
}

// A server that is started again adds to its output. Process finds its process while it
// runs.
func TestAServerIsStoppedAndStartedAgain(t *testing.T) {
	s := shell(t, "echo up; exec sleep 600")
	says(t, s, "up")
	pid := 0
	s.Process(func(p *os.Process) { pid = p.Pid })
	require.NotZero(t, pid)
	s.Stop(syscall.SIGKILL, 0)
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
	s.Process(func(*os.Process) { t.Error("it does not run") })
	s.Stop(syscall.SIGKILL, 0) // the program does not run: this does nothing
	require.NoError(t, s.Start())
	says(t, s, "up\nup")
	require.Equal(t, "up", s.Said(1))
}

// Stop waits for a server that cleans up, but no longer than its patience.
func TestAServerIsStoppedByASignalOrAtOnce(t *testing.T) {
	clean := shell(t, `trap 'echo bye; exit' TERM; echo up; while :; do sleep 0.01; done`)
	says(t, clean, "up")
	clean.Stop(syscall.SIGTERM, patience)
	require.Equal(t, "up\nbye", clean.Said(100))
	deaf := shell(t, `trap '' TERM; echo up; while :; do sleep 0.01; done`)
	says(t, deaf, "up")
	began := time.Now()
	deaf.Stop(syscall.SIGTERM, 100*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
}

// The members of a cluster know each other. No two share an address or a directory.
func TestMembersOfEtcdKnowEachOther(t *testing.T) {
	members, err := child.EtcdMembers(3, "https", "dir")
	require.NoError(t, err)
	value := func(m child.Member, flag string) string {
		for i, arg := range m.Args {
			if arg == flag {
				return m.Args[i+1]
			}
		}
		return ""
	}
	seen := make(map[string]bool)
	var cluster []string
	for _, m := range members {
		cluster = append(cluster, m.Name+"="+value(m, "--listen-peer-urls"))
		for _, own := range []string{m.Name, m.Client, value(m, "--data-dir"),
			value(m, "--listen-peer-urls")} {
			require.False(t, seen[own], own)
			seen[own] = true
		}
		require.Equal(t, "https://"+m.Client, value(m, "--listen-client-urls"))
		require.Equal(t, "https://"+m.Client, value(m, "--advertise-client-urls"))
		require.Equal(t, value(m, "--listen-peer-urls"), value(m, "--initial-advertise-peer-urls"))
	}
	for _, m := range members {
		require.Equal(t, strings.Join(cluster, ","), value(m, "--initial-cluster"))
	}
}
