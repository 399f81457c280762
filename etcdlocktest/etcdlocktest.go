// Package etcdlocktest is an etcd in memory for tests of code that locks.
//
//	func TestMyJobStopsWhenTheLockIsLost(t *testing.T) {
//		etcd := etcdlocktest.New(t)
//		client := etcd.Client()
//		...
//		etcd.Expire(session.Lease())
//	}
//
// Its clients are real ones, of type *clientv3.Client, whose KV, Lease and Watcher reach the
// etcd without a network. So it works inside a bubble of testing/synctest, where hours of a test
// pass at once, and outside. Tests may be parallel, each with an etcd of its own.
//
// KV has every operation but GetStream, Lease and Watcher have all of theirs. What is not there
// (GetStream, Auth, Cluster, Maintenance) answers codes.Unimplemented with a sentence.
// ActiveConnection is nil, there are no endpoints, and SetEndpoints must not be called.
//
// # Where it differs from etcd
//
//   - A lease is granted for the TTL that is asked for, 1 s at least. etcd grants no less than 1.5
//     election timeouts, 2 s as it comes. Code that counts on less than that works here only.
//   - A lease expires to the instant. etcd takes up to a second longer, and longer after a change
//     of leaders.
//   - Nothing takes time, unless [Etcd.Delay] says so, and no request fails without being told to.
//   - A client repeats nothing by itself. clientv3 repeats reads and KeepAliveOnce that were
//     answered with codes.Unavailable.
//   - There is one member, and so no member that lags behind.
//   - It keeps its whole history. Compaction hides what is older, and frees nothing.
//
// # With the race detector
//
// Go 1.26's race detector crashes when two timers of a bubble run at once
// (golang.org/issue/78156). New has the test's process use one processor then: if it is called in
// a bubble, with -race, built by Go 1.26.
package etcdlocktest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// An Etcd is one that all processes of a test share. Its methods may be called by several
// goroutines; those that are given a client of another Etcd call t.Fatal, and so belong to the
// goroutine of the test.
type Etcd struct {
	t      testing.TB
	server *fake.Server
	bubble bool // of testing/synctest

	mu        sync.Mutex // not held across anything
	processes map[*clientv3.Client]string
	cluster   uint64
}

// maxTxnOps is etcd's --max-txn-ops, as it comes.
const maxTxnOps = 128

// New returns an empty etcd, which ends with t. To use it in a bubble of testing/synctest call
// New there, with the bubble's t.
//
// When t ends each client is closed that is not. A Session or Mutex that was left open by then is
// an error of t, which names its last lock, its owner and its lease. The Sessions of a client
// that the test has closed are those of a process that has died, and none.
func New(t testing.TB) *Etcd {
	t.Helper()
	e := &Etcd{
		t:         t,
		server:    fake.NewServer(),
		bubble:    time.Now().Year() < 2020, // its clock begins in 2000
		processes: make(map[*clientv3.Client]string),
		cluster:   1,
	}
	if e.bubble {
		race.InBubbles()
	}
	e.server.MinTTL(1)
	e.server.MaxTxnOps(maxTxnOps)
	e.server.ForgetCalls()
	t.Cleanup(e.end)
	return e
}

// Client returns the client of another process. Close works: what it asks for then is answered
// with codes.Canceled, its watches end, and so do, within three TTLs, the goroutines of its
// Sessions. A client may be closed to play a process that dies: its leases run out. The client's
// fields may be replaced, by those of clientv3/namespace for example.
func (e *Etcd) Client() *clientv3.Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	process := fmt.Sprint("client ", len(e.processes)+1)
	client := e.server.Client(process)
	client.Auth = clientv3.NewAuthFromAuthClient(pb.NewAuthClient(absent{}), client)
	client.Cluster = clientv3.NewClusterFromClusterClient(pb.NewClusterClient(absent{}), client)
	client.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(pb.NewMaintenanceClient(absent{}), client)
	e.processes[client] = process
	return client
}

// absent is a connection on which no method is there.
type absent struct{}

func (absent) Invoke(_ context.Context, method string, _, _ any, _ ...grpc.CallOption) error {
	return fake.Absent(method)
}

func (absent) NewStream(
	_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, fake.Absent(method)
}

// process returns who c is.
func (e *Etcd) process(c *clientv3.Client) string {
	e.t.Helper()
	e.mu.Lock()
	process, known := e.processes[c]
	e.mu.Unlock()
	if !known {
		e.t.Fatal("etcdlocktest: this client is not one of this Etcd's")
	}
	return process
}

// Expire ends a lease and deletes its keys, as if it had run out. While the etcd is frozen that
// waits for the thaw. A lease that is not there is none.
func (e *Etcd) Expire(id clientv3.LeaseID) {
	e.server.UnlessFrozen(func() { e.server.RevokeLease(id) })
}

// Delete deletes a key, as an operator does. While the etcd is frozen that waits for the thaw.
func (e *Etcd) Delete(key string) {
	e.server.UnlessFrozen(func() { e.server.DeleteKey(key) })
}

// Counts are the messages that an etcd was sent, answered or not. A LeaseKeepAlive is one
// renewal, a Watch the request for one.
type Counts struct {
	Range, Put, DeleteRange, Txn, Compact                    int
	LeaseGrant, LeaseRevoke, LeaseKeepAlive, LeaseTimeToLive int
	Watch                                                    int
}

// Counts returns what all clients have sent so far.
func (e *Etcd) Counts() Counts {
	n := e.server.Counts()
	return Counts{
		Range:           n[fake.Range],
		Put:             n[fake.Put],
		DeleteRange:     n[fake.Delete],
		Txn:             n[fake.Txn],
		Compact:         n[fake.Compact],
		LeaseGrant:      n[fake.Grant],
		LeaseRevoke:     n[fake.Revoke],
		LeaseKeepAlive:  n[fake.KeepAlive],
		LeaseTimeToLive: n[fake.TimeToLive],
		Watch:           n[fake.Watch],
	}
}
