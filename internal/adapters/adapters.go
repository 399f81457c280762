// Package adapters has what the tests of the modules below adapters/ share that need etcd's own
// server, a database or processes. They are packages below it, in a module of their own with all
// that the hosts require.
package adapters

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/child"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// InMemoryAndOnEtcd runs a test on an etcd in memory, and on one of etcd's own servers. client
// makes the client of another process.
func InMemoryAndOnEtcd(t *testing.T, test func(t *testing.T, client func() *clientv3.Client)) {
	t.Run("in memory", func(t *testing.T) { test(t, etcdlocktest.New(t).Client) })
	t.Run("etcd", func(t *testing.T) {
		etcd := etcdtest.Start(t, 1)
		test(t, func() *clientv3.Client { return etcd.Client(t) })
	})
}

// A Process runs this test binary once more.
type Process struct {
	*exec.Cmd
	In   io.WriteCloser // its standard input
	Said <-chan string  // the lines of its standard output; closed when there are no more
}

// Start starts a Process with an addition to the environment, by which its TestMain knows what it
// is, and with args. It is killed when t ends, if it lives yet.
func Start(t *testing.T, env string, args ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	said := make(chan string, 1)
	p := &Process{Cmd: exec.Command(self, args...), Said: said}
	p.Env, p.Stderr = append(os.Environ(), env), t.Output()
	p.In, err = p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start(p.Cmd, syscall.SIGKILL))
	go func() { // ends with the process
		defer close(said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may be dead
		for range said {
		}
		_ = p.Wait() // killed
	})
	return p
}

// Says is the next line that the process says.
func (p *Process) Says(t *testing.T) string {
	t.Helper()
	select {
	case line := <-p.Said:
		return line
	case <-contract.Patient(t).Done():
		t.Fatal("it says nothing")
		return ""
	}
}
