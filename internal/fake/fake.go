// Package fake is a small etcd in memory for tests in virtual time: it waits by package
// time and channels only, so it runs in a bubble of testing/synctest.
//
// It has all of etcd's KV, Lease and Watch, except streams of ranges. Leases expire to the
// instant (etcd takes up to a second longer). A delayed request is carried out even if its
// caller has gone away meanwhile, as may happen in a network. There are no members and no
// auth. Package etcdlocktest offers it to the tests of users. Package sim has members, and
// a network below gRPC. Both keep their keys and leases in a Store.
package fake

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The methods, as a Call names them.
const (
	Txn        = "Txn"
	Range      = "Range"
	Put        = "Put"
	Delete     = "DeleteRange"
	Grant      = "LeaseGrant"
	Revoke     = "LeaseRevoke"
	KeepAlive  = "LeaseKeepAlive"
	TimeToLive = "LeaseTimeToLive"
	Leases     = "LeaseLeases"
	Compact    = "Compact"
	Watch      = "Watch"      // the request for a watch; its reply is the created notice
	Event      = "WatchEvent" // what a watch delivers; Delay and Drop apply
)

// A Call is one request to the server.
type Call struct {
	Process string // the process that sent it
	Method  string
	N       int // 1 for the first one of its process and method
	At      time.Time
	Lease   clientv3.LeaseID // for the methods of leases; 0 for Grant
	Puts    []string         // keys, in the Then of a Txn
	Deletes []string         // keys, in the Then of a Txn
	Gets    []string         // keys, in the Then of a Txn, or where a Range begins
	Nested  int              // transactions, in the Then of a Txn
	Past    bool             // a Range that any member may answer, without asking the others
}

// An Effect says what becomes of a Call. The zero Effect lets it pass.
type Effect struct {
	Delay      time.Duration // until the request is carried out, even if the caller is gone
	Drop       bool          // it is never carried out, nor answered
	Before     error         // the answer; the request is not carried out
	Again      time.Duration // if not 0, a copy is carried out that much later
	DelayReply time.Duration
	DropReply  bool
	After      error     // the answer after it was carried out
	Edit       func(any) // changes the reply
}

// Unavailable is gRPC's error when it does not know what became of a request.
var Unavailable = status.Error(codes.Unavailable, "fake: connection lost")

// Server is the one etcd that all processes of a test share.
type Server struct {
	mu        sync.Mutex // never held across a wait
	store     *Store
	cluster   uint64
	leases    map[int64]*lease // that live
	minTTL    int64
	maxOps    int // the most operations of a transaction; 0 for any number
	watches   map[*watch]struct{}
	intercept func(Call) Effect
	uncalled  bool // calls are counted, and not kept
	calls     []Call
	numbers   map[[2]string]int // of calls, by process and method
	cut       map[string]chan struct{}
	links     map[string]*link
	frozen    int                 // how many Freezes had no Thaw yet
	parked    []func()            // what waits for Thaw
	origins   map[int64]*LeaseUse // of the leases that were granted
}

// NewServer returns an empty etcd. Call it inside the bubble.
func NewServer() *Server {
	return &Server{
		store:   NewStore(),
		cluster: 1,
		leases:  make(map[int64]*lease),
		watches: make(map[*watch]struct{}),
		numbers: make(map[[2]string]int),
		cut:     make(map[string]chan struct{}),
		links:   make(map[string]*link),
		origins: make(map[int64]*LeaseUse),
	}
}

// Client returns the client of a process. It can be closed.
func (s *Server) Client(process string) *clientv3.Client {
	client := clientv3.NewCtxClient(context.Background())
	p := &port{s: s, process: process, closed: client.Ctx().Done()}
	remote := newKVClient(p)
	client.KV = kv{clientv3.NewKVFromKVClient(remote, nil), remote}
	client.Lease = newLeaseClient(p, client)
	client.Watcher = &watcher{p}
	return client
}

// ---- hooks

// Intercept lets f decide what becomes of each request from now on. f must not call the
// Server. A nil f lets everything pass.
func (s *Server) Intercept(f func(Call) Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// MinTTL sets the least TTL that the server grants, in seconds.
func (s *Server) MinTTL(seconds int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minTTL = seconds
}

// MaxTxnOps sets how many operations a transaction may have, as etcd's --max-txn-ops does.
func (s *Server) MaxTxnOps(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxOps = most
}

// Cut loses what process sends and what is on its way to it, until Heal. Events of its
// watches come in order after Heal, as they would over TCP.
func (s *Server) Cut(process string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut[process] == nil {
		s.cut[process] = make(chan struct{})
	}
}

// Heal ends Cut.
func (s *Server) Heal(process string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if healed := s.cut[process]; healed != nil {
		close(healed)
		delete(s.cut, process)
	}
}

// Freeze stops the server. Requests are carried out after Thaw. Leases run out meanwhile.
// The thaw ends them before it carries out any request: etcd renews no lease that has run
// out.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen++
}

// Thaw ends a Freeze. The last one thaws the server.
func (s *Server) Thaw() {
	s.mu.Lock()
	if s.frozen > 0 {
		s.frozen--
	}
	var parked []func()
	if s.frozen == 0 {
		parked, s.parked = s.parked, nil
		for _, l := range s.runOutLocked() {
			s.revokeLocked(l.id)
		}
	}
	s.mu.Unlock()
	for _, carryOut := range parked {
		carryOut()
	}
}

// Hold keeps back what process sends and what is on its way to it, until Release. A request
// whose ctx ends meanwhile is lost. Holds add up.
func (s *Server) Hold(process string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.linkLocked(process)
	if l.holds++; l.holds == 1 {
		l.released = make(chan struct{})
	}
}

// Release ends a Hold. What was kept back arrives with the last one.
func (s *Server) Release(process string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.linkLocked(process)
	if l.holds--; l.holds == 0 {
		close(l.released)
		l.released = nil
	}
}

// Delay makes each round trip of process take d longer from now on, and what process
// receives on a stream, too.
func (s *Server) Delay(process string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linkLocked(process).latency = d
}

// LoseAnswers loses the answers to the next n requests of process. The requests are carried
// out, and the process gets Unavailable. Watches do not count.
func (s *Server) LoseAnswers(process string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linkLocked(process).lose = n
}

// ForgetCalls makes Calls return none from now on. The server still counts them.
func (s *Server) ForgetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncalled, s.calls = true, nil
}

// Counts returns how many calls of each method there were.
func (s *Server) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[string]int)
	for of, n := range s.numbers {
		counts[of[1]] += n
	}
	return counts
}

// Calls returns the requests so far of one method, or of all methods if method is "".
func (s *Server) Calls(method string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []Call
	for _, c := range s.calls {
		if method == "" || c.Method == method {
			calls = append(calls, c)
		}
	}
	return calls
}

// Rev returns the current revision.
func (s *Server) Rev() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Rev()
}

// Keys returns the keys that begin with prefix, sorted by create revision.
func (s *Server) Keys(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	kvs := s.store.within([]byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)), s.store.Rev())
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		return int(a.CreateRevision - b.CreateRevision)
	})
	keys := make([]string, len(kvs))
	for i, kv := range kvs {
		keys[i] = string(kv.Key)
	}
	return keys
}

// Stands reports whether at a revision there is a key below name/ that was created at another.
func (s *Server) Stands(name string, created, rev int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	prefix := name + "/"
	kvs := s.store.within([]byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)), rev)
	return slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return kv.CreateRevision == created
	})
}

// Leases returns the leases that live, oldest first.
func (s *Server) Leases() []clientv3.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []clientv3.LeaseID
	for _, id := range s.store.Now().Leases() {
		ids = append(ids, clientv3.LeaseID(id))
	}
	return ids
}

// PutKey puts a key from outside, on a lease or on none (0).
func (s *Server) PutKey(key string, on clientv3.LeaseID) error {
	_, err := s.txn(putting(&pb.PutRequest{Key: []byte(key), Lease: int64(on)}))
	return err
}

// DeleteKey deletes a key from outside.
func (s *Server) DeleteKey(key string) {
	_, _ = s.txn(deleting(&pb.DeleteRangeRequest{Key: []byte(key)}))
}

// DeleteKeyBehind deletes a key from outside if the key before, with the create revision
// rev, is there at that moment.
func (s *Server) DeleteKeyBehind(key, before string, rev int64) {
	req := deleting(&pb.DeleteRangeRequest{Key: []byte(key)})
	req.Compare = []*pb.Compare{{
		Key: []byte(before), Target: pb.Compare_CREATE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: rev},
	}}
	_, _ = s.txn(req)
}

// RevokeLease revokes a lease from outside.
func (s *Server) RevokeLease(id clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revokeLocked(int64(id))
}

// Compact forgets what was before the current revision.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.store.Compact(s.store.Rev()) // it may have been compacted already
}

// Watches returns the number of watches that there are.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// CancelWatches ends all watches with an error, as a restarting member does.
func (s *Server) CancelWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.addLocked(clientv3.WatchResponse{Canceled: true})
		delete(s.watches, w)
	}
}

// Snapshot takes a snapshot for Restore.
func (s *Server) Snapshot() (index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Index()
}

// Restore restores etcd from a snapshot of itself, or of the store that it went on from;
// index 0 is an empty one. It takes no time. Leases begin their TTL anew. The existing
// watches go on as those of clientv3 do: they are silent until etcd has passed the revision
// that they had reached. At the beginning the cluster id is 1.
func (s *Server) Restore(index int, cluster uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restoreLocked(s.store, index, cluster)
}

// RestoreRaised is Restore in the same cluster with a raised revision, as with --bump-revision. If
// compacts is set, what was before is compacted, as with --mark-compacted, and watches end.
func (s *Server) RestoreRaised(index int, by int64, compacts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restoreLocked(s.store, index, s.cluster)
	s.store.Raise(by)
	if !compacts {
		return
	}
	_ = s.store.Compact(s.store.Rev())
	for w := range s.watches {
		w.addLocked(Answered(s.header(), clientv3.WatchResponse{
			Canceled: true, CompactRevision: s.store.Rev(),
		}))
		delete(s.watches, w)
	}
}

// Raise raises the revision, as many writes of other programs do.
func (s *Server) Raise(by int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.Raise(by)
}

// Save takes a snapshot. restore goes back to it, whatever was restored meanwhile, and may
// be called more than once. It does what Restore does.
func (s *Server) Save() (restore func(cluster uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	store, index := s.store, s.store.Index() // what was after an entry never changes
	return func(cluster uint64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.restoreLocked(store, index, cluster)
	}
}

func (s *Server) restoreLocked(from *Store, index int, cluster uint64) {
	for w := range s.watches {
		w.from = max(w.from, s.store.Rev()+1)
	}
	for _, l := range s.leases {
		l.expiry.Stop()
		if use := s.origins[l.id]; use != nil {
			use.Ended = true // its holder has none now, though the id may be there again
		}
	}
	clear(s.leases)
	lastID := s.store.lastID // the server grants no id twice
	s.store, s.cluster = from.Restored(index), cluster
	s.store.lastID = max(s.store.lastID, lastID)
	for _, id := range s.store.Now().Leases() {
		ttl, _, _ := s.store.Now().Lease(id)
		s.runLocked(id, ttl)
	}
}
