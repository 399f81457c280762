// Package etcdlocktest is an in-memory etcd for tests of code that locks.
//
//	func TestMyJobStopsWhenTheLockIsLost(t *testing.T) {
//		etcd := etcdlocktest.New(t)
//		client := etcd.Client()
//		...
//		etcd.Expire(session.Lease())
//	}
//
// [Start] makes one without a test.
//
// Its clients are real, of type *clientv3.Client. Their KV, Lease and Watcher reach the etcd
// without a network. So it works outside a testing/synctest bubble and inside, where hours of a
// test pass at once. Tests may be parallel if each has its own etcd.
//
// KV has every operation except GetStream; Lease and Watcher are complete. Anything else
// (GetStream, Auth, Cluster, Maintenance) answers codes.Unimplemented with a sentence.
// ActiveConnection is nil, there are no endpoints, and SetEndpoints must not be called.
//
// # Where it differs from etcd
//
//   - It grants the TTL that is asked for, at least 1 s. etcd grants no less than 1.5 election
//     timeouts, 2 s by default. Code that relies on a shorter TTL works only here.
//   - A lease expires to the instant. etcd takes up to a second longer, and more after a change
//     of leader.
//   - Nothing takes time, and no request fails, unless told to.
//   - A client repeats nothing by itself. clientv3 repeats reads and KeepAliveOnce that were
//     answered with codes.Unavailable.
//   - There is one member, so no member lags behind.
//   - It keeps its whole history. Compaction hides old revisions but frees nothing.
//
// # With the race detector
//
// Go 1.26's race detector crashes when two timers of a bubble run at once
// (golang.org/issue/78156). So New limits the process to one processor if it is called in a
// bubble, with -race, built by Go 1.26.
package etcdlocktest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// An Etcd is shared by all processes of a test. Its methods are safe for concurrent use. A method
// that is given a client of another Etcd calls t.Fatal, which works only in the test's goroutine.
// It panics if the Etcd is from [Start].
type Etcd struct {
	t      testing.TB
	server *fake.Server
	bubble bool // of testing/synctest

	mu        sync.Mutex // not held across anything
	processes map[*clientv3.Client]string
	cluster   uint64
	order     *order     // nil unless LockOrder was called
	forgotten *forgotten // nil unless ForgottenUnlocks was called
	closed    bool
}

// maxTxnOps is the default of etcd's --max-txn-ops.
const maxTxnOps = 128

// New returns an empty etcd that ends with t. To use it in a testing/synctest bubble, call New
// there with the bubble's t.
//
// When t ends, New's cleanup closes every open client. A Session or Mutex that is still open then,
// with a lease, fails t with its last lock, its owner and its lease. Sessions of a client that the
// test itself has closed do not count: their process has died.
func New(t testing.TB) *Etcd {
	t.Helper()
	e := open(t)
	t.Cleanup(func() {
		t.Helper()
		for _, left := range e.end() {
			t.Errorf("%v", left)
		}
	})
	return e
}

// Start returns an empty etcd that belongs to no test: for TestMain, an init function, an Example
// or a program. [Etcd.Close] ends it. The error is always nil for now.
//
// In a testing/synctest bubble use [New], or call Start and Close there.
func Start() (*Etcd, error) { return open(noTest{}), nil }

// Close closes every open client. It returns an error for each Session or Mutex that still has a
// lease then, joined: with its last lock, its owner and that lease. Sessions of a client that was
// closed before do not count: their process has died. After the first call Close does nothing and
// returns nil. The end of a test closes an Etcd from [New].
func (e *Etcd) Close() error { return errors.Join(e.end()...) }

// noTest is the t of an Etcd that belongs to no test.
type noTest struct{ testing.TB }

func (noTest) Helper()           {}
func (noTest) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// open returns an empty etcd.
func open(t testing.TB) *Etcd {
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
	return e
}

// Client returns the client of another process. Close works: later requests are answered with
// codes.Canceled, watches end, and the goroutines of the client's Sessions end within three TTLs.
// Close a client to simulate a process that dies: its leases run out. The client's fields may be
// replaced, by those of clientv3/namespace for example.
func (e *Etcd) Client() *clientv3.Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	process := fmt.Sprint("client ", len(e.processes)+1)
	client := e.server.Client(process)
	client.Auth = clientv3.NewAuthFromAuthClient(
		fake.Lacking[pb.AuthClient](client, pb.NewAuthClient), client)
	client.Cluster = clientv3.NewClusterFromClusterClient(
		fake.Lacking[pb.ClusterClient](client, pb.NewClusterClient), client)
	client.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(
		fake.Lacking[pb.MaintenanceClient](client, pb.NewMaintenanceClient), client)
	e.processes[client] = process
	return client
}

// process returns the name of c's process.
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

// Expire ends a lease and deletes its keys, as if it had run out. While the etcd is frozen this
// happens at the thaw. Expire does nothing if there is no such lease.
func (e *Etcd) Expire(id clientv3.LeaseID) {
	e.server.UnlessFrozen(func() { e.server.RevokeLease(id) })
}

// Delete deletes a key, as an operator does. While the etcd is frozen this happens at the thaw.
func (e *Etcd) Delete(key string) {
	e.server.UnlessFrozen(func() { e.server.DeleteKey(key) })
}

// Counts are the messages that an etcd has received, answered or not. A LeaseKeepAlive is one
// renewal, a Watch one request to begin a watch.
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
