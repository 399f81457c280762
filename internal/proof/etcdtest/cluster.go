// Package etcdtest makes the world in which the lock is tested: an etcd
// cluster inside the test's process, clients whose calls can be counted and
// can go wrong in every way that a network has, a TCP proxy, and checks of what
// must hold when a test ends.
//
//	cluster := etcdtest.Start(t, 3)
//	faults := etcdtest.NewFaults(t)
//	client := cluster.Client(t, contract.With(faults))
//	lost := faults.Inject(etcdtest.DropReply("Txn", codes.Unavailable).Times(1))
//	...
//	lost.Await(1)
//
// Each cluster, client and proxy ends with its test, by t.Cleanup, in the
// reverse order of their making. Nothing here changes the working directory or
// forbids t.Parallel, and nothing is logged.
package etcdtest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/internal/contract"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/pkg/v3/grpctesting"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/tests/v3/framework/integration"
	"go.uber.org/zap"
)

const (
	// An election timeout of 0.5 s makes the least TTL that the servers grant 1 s: they
	// round one and a half timeouts up to whole seconds. With a shorter one the leader
	// would change whenever the machine is busy.
	tick          = 10 * time.Millisecond
	electionTicks = 50
)

// A Cluster is a number of etcd members that run in this process and talk TCP
// on the loopback interface, to clients and to each other. Its methods are safe
// for concurrent use.
type Cluster struct {
	// Members gives access to what has no verb here, such as Server. Do not read it beside
	// Stop and Restart.
	Members []*integration.Member

	mu sync.Mutex // guards what Stop and Restart change in the members
}

// An Option changes a member before it starts: its QuotaBackendBytes, AuthToken, TokenTTL,
// ClientTLSInfo and whatever else an etcd can be configured with.
type Option func(*integration.Member)

// Start boots a cluster, waits for its leader, and stops it when t ends. It takes 0.1 to
// 0.5 s. The members do not sync their files, and log nothing.
func Start(t testing.TB, members int, opts ...Option) *Cluster {
	t.Helper()
	c := &Cluster{}
	dir := t.TempDir()
	t.Cleanup(c.terminate)

	peers := types.URLsMap{}
	for i := range members {
		m, err := newMember(i, filepath.Join(dir, strconv.Itoa(i)), opts)
		if err != nil {
			t.Fatalf("etcdtest: prepare member %d: %v", i, err)
		}
		c.Members = append(c.Members, m)
		peers[m.Name] = m.PeerURLs
	}
	launched := make(chan error)
	for _, m := range c.Members {
		m.InitialPeerURLsMap = peers
		go func() { launched <- m.Launch() }()
	}
	for range c.Members {
		if err := <-launched; err != nil {
			t.Fatalf("etcdtest: launch a member: %v", err)
		}
	}
	for _, m := range c.Members {
		eventually(t, "the members to agree on the cluster's version", func() bool {
			return m.Server.ClusterVersion() != nil
		})
	}
	c.Leader(t)
	return c
}

// newMember does what the framework's MustNewMember does, with two differences. Peers talk
// TCP: the framework's unix sockets have names relative to the working directory, which the
// whole process would have to change. And the log is off.
func newMember(i int, dir string, opts []Option) (*integration.Member, error) {
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	client, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("m%d", i)
	lg := zap.NewNop()
	m := &integration.Member{
		MemberNumber:       i,
		PeerListeners:      []net.Listener{peer},
		GRPCListener:       client,
		GRPCServerRecorder: &grpctesting.GRPCRecorder{},
		UseTCP:             true,
		UseIP:              true,
	}
	m.ServerConfig = config.ServerConfig{
		Name:                        name,
		DataDir:                     dir,
		NewCluster:                  true,
		InitialClusterToken:         "etcdtest",
		BootstrapTimeout:            tick,
		TickMs:                      uint(tick / time.Millisecond),
		ElectionTicks:               electionTicks,
		InitialElectionTickAdvance:  true,
		PreVote:                     true,
		StrictReconfigCheck:         true,
		SnapshotCount:               etcdserver.DefaultSnapshotCount,
		SnapshotCatchUpEntries:      etcdserver.DefaultSnapshotCatchUpEntries,
		MaxTxnOps:                   embed.DefaultMaxTxnOps,
		MaxRequestBytes:             embed.DefaultMaxRequestBytes,
		WarningApplyDuration:        embed.DefaultWarningApplyDuration,
		WarningUnaryRequestDuration: embed.DefaultWarningUnaryRequestDuration,
		AuthToken:                   "simple",
		BcryptCost:                  4, // the least that bcrypt takes, for speed
		MaxLearners:                 1,
		V2Deprecation:               config.V2DeprDefault,
		UnsafeNoFsync:               true,
		Logger:                      lg,
		ServerFeatureGate:           features.NewDefaultServerFeatureGate(name, lg),
	}
	for _, opt := range opts {
		opt(m)
	}
	scheme := "http"
	if m.ClientTLSInfo != nil {
		scheme = "https"
	}
	m.GRPCURL = scheme + "://" + client.Addr().String()
	m.ClientURLs = types.MustNewURLs([]string{m.GRPCURL})
	m.PeerURLs = types.MustNewURLs([]string{"http://" + peer.Addr().String()})
	return m, nil
}

func (c *Cluster) terminate() {
	for i, m := range c.Members {
		if m.Client != nil {
			m.Client.Close()
		}
		c.Stop(i)
	}
}

// Stop ends a member at once: its connections break in the middle of whatever
// they carry. Its data stays for Restart.
func (c *Cluster) Stop(member int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.Members[member]
	if m.Closed {
		return
	}
	if m.GRPCServer != nil {
		m.GRPCServer.Stop()
	}
	m.Close()
	m.ServerClosers = nil
	for _, l := range append([]net.Listener{m.GRPCListener}, m.PeerListeners...) {
		l.Close()
	}
}

// Restart starts a stopped member on the addresses and the data that it had.
func (c *Cluster) Restart(t testing.TB, member int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.Members[member]
	m.GRPCListener = listenAgain(t, m.GRPCListener)
	m.PeerListeners = []net.Listener{listenAgain(t, m.PeerListeners[0])}
	if err := m.Launch(); err != nil {
		t.Fatalf("etcdtest: restart member %d: %v", member, err)
	}
	m.Closed = false
}

// AddLearner starts one more member, as a learner, which has no vote before it is promoted.
func (c *Cluster) AddLearner(t testing.TB, name int) (id uint64) {
	t.Helper()
	m, err := newMember(name, t.TempDir(), nil)
	if err != nil {
		t.Fatalf("etcdtest: prepare member %d: %v", name, err)
	}
	client := c.Client(t)
	eventually(t, "a cluster that has been healthy for long enough", func() bool {
		added, err := client.MemberAddAsLearner(context.Background(), m.PeerURLs.StringSlice())
		if err == nil {
			id = added.Member.ID
		}
		return err == nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	m.NewCluster = false
	m.InitialPeerURLsMap = types.URLsMap{m.Name: m.PeerURLs}
	for _, other := range c.Members {
		m.InitialPeerURLsMap[other.Name] = other.PeerURLs
	}
	if err := m.Launch(); err != nil {
		t.Fatalf("etcdtest: launch member %d: %v", name, err)
	}
	c.Members = append(c.Members, m)
	return id
}

// Promote gives a learner its vote, once it has caught up.
func (c *Cluster) Promote(t testing.TB, id uint64) {
	t.Helper()
	client := c.Client(t)
	eventually(t, "the learner to catch up", func() bool {
		_, err := client.MemberPromote(context.Background(), id)
		return err == nil
	})
}

// Remove takes the first member out of the cluster, and stops it.
func (c *Cluster) Remove(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	id := uint64(c.Members[0].Server.MemberID())
	c.mu.Unlock()
	client := c.Client(t, c.At(1))
	eventually(t, "a cluster that has been healthy for long enough", func() bool {
		_, err := client.MemberRemove(context.Background(), id)
		return err == nil
	})
	c.Stop(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	if removed := c.Members[0]; removed.Client != nil {
		removed.Client.Close()
	}
	c.Members = c.Members[1:]
}

// listenAgain waits for the port, in case something else on this machine got it meanwhile.
func listenAgain(t testing.TB, closed net.Listener) net.Listener {
	t.Helper()
	var l net.Listener
	eventually(t, "the port of a stopped member to be free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", closed.Addr().String())
		return err == nil
	})
	return l
}

// Isolate cuts a member off from all others, both ways. Its clients still reach it.
func (c *Cluster) Isolate(member int) {
	c.eachPeer(member, func(a, b *integration.Member) { a.Server.CutPeer(b.Server.MemberID()) })
}

// Rejoin ends Isolate.
func (c *Cluster) Rejoin(member int) {
	c.eachPeer(member, func(a, b *integration.Member) { a.Server.MendPeer(b.Server.MemberID()) })
}

func (c *Cluster) eachPeer(member int, f func(a, b *integration.Member)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.Members[member]
	for i, other := range c.Members {
		if i != member {
			f(m, other)
			f(other, m)
		}
	}
}

// Leader waits until a majority of the running members agree on one of theirs
// as the leader, and returns its index.
func (c *Cluster) Leader(t testing.TB) int {
	t.Helper()
	leader := -1
	eventually(t, "a leader", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		votes := map[uint64]int{}
		for _, m := range c.Members {
			if !m.Closed {
				votes[m.Server.Lead()]++
			}
		}
		leader = slices.IndexFunc(c.Members, func(m *integration.Member) bool {
			return !m.Closed && votes[uint64(m.Server.MemberID())] > len(c.Members)/2
		})
		return leader >= 0
	})
	return leader
}

// MoveLeader makes another member the leader.
func (c *Cluster) MoveLeader(t testing.TB, to int) {
	t.Helper()
	from := c.Leader(t)
	if from == to {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), contract.Patience)
	defer cancel()
	c.mu.Lock()
	old, next := c.Members[from].Server, c.Members[to].Server
	c.mu.Unlock()
	if err := old.MoveLeader(ctx, uint64(old.MemberID()), uint64(next.MemberID())); err != nil {
		t.Fatalf("etcdtest: move the leader from member %d to %d: %v", from, to, err)
	}
}

// Endpoint returns the address of a member, host:port.
func (c *Cluster) Endpoint(member int) string {
	return c.Members[member].ClientURLs[0].Host
}

// Revision returns the revision of the store, by a linearizable read.
func (c *Cluster) Revision(t testing.TB) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), contract.Patience)
	defer cancel()
	client := c.Members[c.Leader(t)].Client
	resp, err := client.Get(ctx, "etcdtest", clientv3.WithCountOnly())
	if err != nil {
		t.Fatalf("etcdtest: read the revision: %v", err)
	}
	return resp.Header.Revision
}

// At gives a client the endpoints of these members only.
func (c *Cluster) At(members ...int) contract.ClientOption {
	return func(cfg *clientv3.Config) {
		cfg.Endpoints = nil
		for _, member := range members {
			cfg.Endpoints = append(cfg.Endpoints, c.Members[member].GRPCURL)
		}
	}
}

// Client makes a client with its own connections to all members, unless an option says
// otherwise. It is closed when t ends.
func (c *Cluster) Client(t testing.TB, opts ...contract.ClientOption) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{DialTimeout: 2 * time.Second, Logger: zap.NewNop()}
	for _, m := range c.Members {
		cfg.Endpoints = append(cfg.Endpoints, m.GRPCURL)
		if m.ClientTLSInfo != nil {
			tls, err := m.ClientTLSInfo.ClientConfig()
			if err != nil {
				t.Fatalf("etcdtest: TLS of %s: %v", m.Name, err)
			}
			cfg.TLS = tls
		}
	}
	for _, opt := range opts {
		opt(&cfg)
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		t.Fatalf("etcdtest: make a client: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// eventually fails the test if what it waits for does not come. No channel announces that.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !contract.Poll(ok) {
		t.Fatalf("etcdtest: waited %v for %s", contract.Patience, what)
	}
}
