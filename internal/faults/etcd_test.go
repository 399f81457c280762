package faults

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
// election timeout of 1 s, and so a least TTL of 2 s. They end with their test, and with
// this process, however it ends.
type servers struct {
	t       testing.TB
	members []*server
}

type server struct {
	child.Server
	t      testing.TB
	args   []string
	client string // address, host:port
}

// startServers boots a cluster and waits until each member serves. It adds args to the
// command line of each member.
func startServers(t testing.TB, n int, args ...string) *servers {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	members, err := child.EtcdMembers(n, "http", dir)
	require.NoError(t, err)
	s := &servers{t: t}
	for _, member := range members {
		m := &server{t: t, client: member.Client}
		m.args = append(append(member.Args, "--unsafe-no-fsync", "--log-level", "warn"), args...)
		m.Log = filepath.Join(dir, member.Name+".log")
		m.Command = func() *exec.Cmd {
			cmd := exec.Command(self, m.args...)
			cmd.Env = append(os.Environ(), roleEnv+"=etcd")
			return cmd
		}
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
	require.NoError(m.t, m.Start())
}

// stop ends the process at once, if it runs.
func (m *server) stop() { m.stopBy(syscall.SIGKILL) }

// stopBy ends the process by a signal. If that does not end it in time, it kills the
// process.
func (m *server) stopBy(sig syscall.Signal) {
	m.Stop(sig, patience)
	if m.t.Failed() {
		m.t.Logf("the end of %s:\n%s", filepath.Base(m.Log), m.Said(20))
	}
}

func (s *servers) kill(member int)    { s.members[member].stop() }
func (s *servers) retire(member int)  { s.members[member].stopBy(syscall.SIGTERM) }
func (s *servers) restart(member int) { s.members[member].start() }
func (s *servers) freeze(member int)  { s.members[member].Process(freeze) }
func (s *servers) thaw(member int) {
	// fails if it has ended
	s.members[member].Process(func(p *os.Process) { _ = p.Signal(syscall.SIGCONT) })
}

// endpoints returns the addresses of these members, or of all.
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

// quietly makes a client without a log.
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

// serves waits until the cluster answers linearizable reads through these members, or
// through any.
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
	client := s.client(s.t, s.at(from)) // only the leader can hand over
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	status, err := client.Status(ctx, s.members[to].client)
	require.NoError(s.t, err)
	_, err = client.MoveLeader(ctx, status.Header.MemberId)
	require.NoError(s.t, err)
}
