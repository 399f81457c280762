package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/internal/child"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// servers are etcd members as processes of their own, with etcd's default timing: an
// election timeout of 1 s, and so a least TTL of 2 s. They end with their test, and
// with this process, however it ends.
type servers struct {
	t       testing.TB
	members []*server
}

type server struct {
	t      testing.TB
	args   []string
	client string // address, host:port
	log    string // file

	mu  sync.Mutex
	cmd *exec.Cmd
}

// startServers boots a cluster and waits until each member serves. Args are added to the
// command line of each member.
func startServers(t testing.TB, n int, args ...string) *servers {
	t.Helper()
	dir := t.TempDir()
	s := &servers{t: t}
	ports, err := child.FreePorts(2 * n)
	require.NoError(t, err)
	var cluster []string
	for i := range n {
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, ports[2*i]))
	}
	for i := range n {
		m := &server{t: t, client: ports[2*i+1], log: filepath.Join(dir, fmt.Sprintf("m%d.log", i))}
		m.args = append([]string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(dir, fmt.Sprintf("m%d", i)),
			"--listen-peer-urls", "http://" + ports[2*i], "--initial-advertise-peer-urls", "http://" + ports[2*i],
			"--listen-client-urls", "http://" + m.client, "--advertise-client-urls", "http://" + m.client,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--unsafe-no-fsync", "--log-level", "warn",
		}, args...)
		s.members = append(s.members, m)
		m.start()
		t.Cleanup(m.stop)
	}
	for i := range n {
		s.serves(i)
	}
	return s
}

func (m *server) start() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	self, err := os.Executable()
	require.NoError(m.t, err)
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	require.NoError(m.t, err)
	defer log.Close()
	m.cmd = exec.Command(self, m.args...)
	m.cmd.Env = append(os.Environ(), roleEnv+"=etcd")
	m.cmd.Stderr = log
	require.NoError(m.t, child.Start(m.cmd, syscall.SIGKILL))
}

// stop ends the process at once, if it runs.
func (m *server) stop() { m.stopBy(syscall.SIGKILL) }

// stopBy ends the process by a signal, or in the end at once.
func (m *server) stopBy(sig syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return
	}
	process := m.cmd.Process
	late := time.AfterFunc(patience, func() { _ = process.Kill() })
	defer late.Stop()
	_ = process.Signal(sig)
	_ = m.cmd.Wait() // says only how it was stopped
	m.cmd = nil
	if m.t.Failed() {
		if log, err := os.ReadFile(m.log); err == nil {
			lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
			m.t.Logf("the end of %s:\n%s", filepath.Base(m.log), bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
		}
	}
}

func (m *server) signal(sig syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Signal(sig) // fails if it has ended
	}
}

func (m *server) freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		freeze(m.cmd.Process)
	}
}

func (s *servers) kill(member int)    { s.members[member].stop() }
func (s *servers) retire(member int)  { s.members[member].stopBy(syscall.SIGTERM) }
func (s *servers) restart(member int) { s.members[member].start() }
func (s *servers) freeze(member int)  { s.members[member].freeze() }
func (s *servers) thaw(member int)    { s.members[member].signal(syscall.SIGCONT) }

// endpoints are the addresses of these members, or of all.
func (s *servers) endpoints(members ...int) (addrs []string) {
	for i, m := range s.members {
		if len(members) == 0 || slices.Contains(members, i) {
			addrs = append(addrs, m.client)
		}
	}
	return addrs
}

// client makes a client of all members, unless opts say otherwise. It is closed when t
// ends.
func (s *servers) client(t testing.TB, opts ...contract.ClientOption) *clientv3.Client {
	t.Helper()
	return contract.ClientOf(t, s.endpoints(), append(opts, quietly)...)
}

// quietly is a client without a log.
func quietly(cfg *clientv3.Config) { cfg.Logger = zap.NewNop() }

// at gives a client the endpoints of these members only, or of all.
func (s *servers) at(members ...int) contract.ClientOption {
	return func(cfg *clientv3.Config) { cfg.Endpoints = s.endpoints(members...) }
}

// memberAt returns the index of the member with an address.
func (s *servers) memberAt(addr string) int {
	s.t.Helper()
	m := slices.Index(s.endpoints(), addr)
	require.NotEqual(s.t, -1, m, "no member at %s", addr)
	return m
}

// serves waits until the cluster answers linearizable reads, by these members or by any.
func (s *servers) serves(members ...int) {
	s.t.Helper()
	client := s.client(s.t, s.at(members...))
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := client.Get(ctx, "x")
	require.NoError(s.t, err, "etcd does not serve")
}

// leader waits until a member says that it leads, and returns its index.
func (s *servers) leader() (leader int) {
	s.t.Helper()
	client := s.client(s.t)
	defer client.Close()
	require.True(s.t, contract.Eventually(patience, func() bool {
		for i, m := range s.members {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := client.Status(ctx, m.client)
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				leader = i
				return true
			}
		}
		return false
	}), "no member leads")
	return leader
}

// moveLeader makes a member the leader, if it is not.
func (s *servers) moveLeader(to int) {
	s.t.Helper()
	from := s.leader()
	if from == to {
		return
	}
	client := s.client(s.t, s.at(from)) // who alone can hand over
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	status, err := client.Status(ctx, s.members[to].client)
	require.NoError(s.t, err)
	_, err = client.MoveLeader(ctx, status.Header.MemberId)
	require.NoError(s.t, err)
}
