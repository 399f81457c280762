// Package fake is a small etcd in memory for tests in virtual time: it waits by
// package time and channels only, and so runs in a bubble of testing/synctest.
//
// It keeps what the library builds on: revisions, transactions that are refused
// whole, reads of the past, leases that expire to the instant (etcd takes up to a
// second longer), and watches from now. A request that is delayed is carried out
// even if its caller has gone away meanwhile, as a network may do. There are no
// members and no auth. Package sim has members, and a network below gRPC; both keep
// their keys and leases in a Store.
package fake

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
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
	Watch      = "Watch"      // the request for a watch; its reply is the created notice
	Event      = "WatchEvent" // what a watch delivers; Delay and Drop apply
)

// A Call is one request to the server.
type Call struct {
	Process string // that sent it
	Method  string
	N       int // 1 for the first one of its process and method
	At      time.Time
	Lease   clientv3.LeaseID // of the methods of leases, 0 for Grant
	Puts    []string         // keys, in the Then of a Txn
	Deletes []string         // keys, in the Then of a Txn
	Gets    []string         // keys, in the Then of a Txn
}

// An Effect is what becomes of a Call. The zero Effect lets it pass.
type Effect struct {
	Delay      time.Duration // before the request is carried out, caller or not
	Drop       bool          // it is never carried out, nor answered
	Before     error         // the answer instead of carrying it out
	Again      time.Duration // if not 0, a copy is carried out that much later
	DelayReply time.Duration
	DropReply  bool
	After      error     // the answer after it was carried out
	Edit       func(any) // changes the reply
}

// Unavailable is how gRPC says that it does not know what became of a request.
var Unavailable = status.Error(codes.Unavailable, "fake: connection lost")

// Server is the one etcd that all processes of a test share.
type Server struct {
	mu        sync.Mutex // never held across a wait
	store     *Store
	cluster   uint64
	leases    map[int64]*lease // that live
	minTTL    int64
	maxOps    int // of a transaction; 0 for any number
	watches   map[*watch]struct{}
	intercept func(Call) Effect
	calls     []Call
	numbers   map[[2]string]int // of calls, by process and method
	cut       map[string]chan struct{}
	frozen    bool
	parked    []func() // requests that wait for Thaw
}

type lease struct {
	id      int64
	ttl     time.Duration
	expires time.Time
	expiry  *time.Timer
}

// NewServer returns an empty etcd. Make it inside the bubble.
func NewServer() *Server {
	return &Server{
		store:   NewStore(),
		cluster: 1,
		leases:  make(map[int64]*lease),
		watches: make(map[*watch]struct{}),
		numbers: make(map[[2]string]int),
		cut:     make(map[string]chan struct{}),
	}
}

// Client returns the client of a process.
func (s *Server) Client(process string) *clientv3.Client {
	return &clientv3.Client{
		KV:      clientv3.NewKVFromKVClient(&kvClient{s: s, process: process}, nil),
		Lease:   &leaseClient{s: s, process: process},
		Watcher: &watcher{s: s, process: process},
	}
}

// ---- hooks

// Intercept has f decide what becomes of each request from now on. f must not call
// the Server. A nil f lets everything pass.
func (s *Server) Intercept(f func(Call) Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// MinTTL is the least TTL that is granted, in seconds.
func (s *Server) MinTTL(seconds int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minTTL = seconds
}

// MaxTxnOps is how many operations a transaction may have, as etcd's --max-txn-ops.
func (s *Server) MaxTxnOps(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxOps = most
}

// Cut loses what process sends and what is on its way to it, until Heal. Events of
// its watches come in order after Heal, as by TCP.
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

// Freeze stops the server. Requests are carried out after Thaw; leases expire.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = true
}

// Thaw ends Freeze.
func (s *Server) Thaw() {
	s.mu.Lock()
	s.frozen = false
	parked := s.parked
	s.parked = nil
	s.mu.Unlock()
	for _, carryOut := range parked {
		carryOut()
	}
}

// Calls returns the requests so far, of one method, or of all if that is "".
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
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return int(a.CreateRevision - b.CreateRevision) })
	keys := make([]string, len(kvs))
	for i, kv := range kvs {
		keys[i] = string(kv.Key)
	}
	return keys
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

// PutKey puts a key from outside, on a lease or 0.
func (s *Server) PutKey(key string, on clientv3.LeaseID) error {
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Lease: int64(on)}}}
	_, err := s.txn(&pb.TxnRequest{Success: []*pb.RequestOp{op}})
	return err
}

// DeleteKey deletes a key from outside.
func (s *Server) DeleteKey(key string) {
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
	_, _ = s.txn(&pb.TxnRequest{Success: []*pb.RequestOp{op}})
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

// Watches is the number of watches that there are.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// CancelWatches ends all watches with an error, as a member does that restarts.
func (s *Server) CancelWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.addLocked(clientv3.WatchResponse{Canceled: true})
		delete(s.watches, w)
	}
}

// Snapshot takes a snapshot, which Restore goes back to.
func (s *Server) Snapshot() (index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Index()
}

// Restore is etcd restored from a snapshot, in no time; 0 is an empty one. Leases begin
// their TTL anew. The watches that there are go on as clientv3's do: silent until etcd has
// passed the revision that they had reached. A cluster of 1 is that of the beginning.
func (s *Server) Restore(index int, cluster uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.from = max(w.from, s.store.Rev()+1)
	}
	for _, l := range s.leases {
		l.expiry.Stop()
	}
	clear(s.leases)
	s.store, s.cluster = s.store.Restored(index), cluster
	for _, id := range s.store.Now().Leases() {
		ttl, _, _ := s.store.Now().Lease(id)
		s.runLocked(id, ttl)
	}
}

// ---- the network

// send takes a request through the network: apply carries it out.
//
// It never asks ctx for its Err while ctx lives, except to repeat a request that
// was answered with DeadlineExceeded or Canceled, as clientv3 does.
func send[R any](ctx context.Context, s *Server, c Call, apply func() (R, error)) (R, error) {
	for {
		r, err := sendOnce(ctx, s, c, apply)
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Canceled || ctx.Err() != nil {
			return r, err
		}
	}
}

func sendOnce[R any](ctx context.Context, s *Server, c Call, apply func() (R, error)) (none R, _ error) {
	type result struct {
		reply R
		err   error
	}
	select {
	case <-ctx.Done():
		return none, errEnded
	default:
	}
	effect := s.arrive(c)
	if effect.Drop || s.cutOff(c.Process) {
		<-ctx.Done()
		return none, errEnded
	}
	if effect.Before != nil && effect.Delay == 0 {
		return none, effect.Before
	}
	done := make(chan result, 1)
	carryOut := func() {
		if effect.Before != nil {
			done <- result{none, effect.Before}
			return
		}
		reply, err := apply()
		if effect.Again > 0 {
			time.AfterFunc(effect.Again, func() { _, _ = apply() })
		}
		done <- result{reply, err}
	}
	if effect.Delay > 0 {
		time.AfterFunc(effect.Delay, func() { s.unlessFrozen(carryOut) })
	} else {
		s.unlessFrozen(carryOut)
	}
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		return none, errEnded
	}
	if effect.DelayReply > 0 {
		select {
		case <-time.After(effect.DelayReply):
		case <-ctx.Done():
			return none, errEnded
		}
	}
	if effect.DropReply || s.cutOff(c.Process) {
		<-ctx.Done()
		return none, errEnded
	}
	if effect.After != nil {
		return none, effect.After
	}
	if effect.Edit != nil && r.err == nil {
		effect.Edit(r.reply)
	}
	return r.reply, r.err
}

// errEnded is what gRPC says when the caller's context ends; clientv3 replaces it
// by that context's own error.
var errEnded = status.Error(codes.Canceled, "context canceled")

// arrive counts a call and returns what is to become of it.
func (s *Server) arrive(c Call) Effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := [2]string{c.Process, c.Method}
	s.numbers[id]++
	c.N, c.At = s.numbers[id], time.Now()
	s.calls = append(s.calls, c)
	if s.intercept == nil {
		return Effect{}
	}
	return s.intercept(c)
}

func (s *Server) cutOff(process string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut[process] != nil
}

func (s *Server) unlessFrozen(carryOut func()) {
	s.mu.Lock()
	frozen := s.frozen
	if frozen {
		s.parked = append(s.parked, carryOut)
	}
	s.mu.Unlock()
	if !frozen {
		carryOut()
	}
}

// ---- the store

func (s *Server) header() *pb.ResponseHeader { return s.fill(&pb.ResponseHeader{}) }

// fill completes a header.
func (s *Server) fill(h *pb.ResponseHeader) *pb.ResponseHeader {
	h.ClusterId = s.cluster
	if h.Revision == 0 {
		h.Revision = s.store.Rev()
	}
	return h
}

// txn carries out a transaction, or refuses it whole.
func (s *Server) txn(in *pb.TxnRequest) (*pb.TxnResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maxOps > 0 && max(len(in.Compare), len(in.Success), len(in.Failure)) > s.maxOps {
		return nil, rpctypes.ErrGRPCTooManyOps
	}
	before := s.store.Rev()
	reply, err := s.store.Txn(in)
	s.notifyLocked(before)
	if err == nil {
		s.fill(reply.Header)
	}
	return reply, err
}

// ---- KV

type kvClient struct {
	s       *Server
	process string
}

var errUnsupported = status.Error(codes.Unimplemented, "fake: not supported")

func (k *kvClient) Txn(ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	c := Call{Process: k.process, Method: Txn}
	for _, op := range in.Success {
		if put := op.GetRequestPut(); put != nil {
			c.Puts = append(c.Puts, string(put.Key))
		}
		if del := op.GetRequestDeleteRange(); del != nil {
			c.Deletes = append(c.Deletes, string(del.Key))
		}
		if get := op.GetRequestRange(); get != nil {
			c.Gets = append(c.Gets, string(get.Key))
		}
	}
	return send(ctx, k.s, c, func() (*pb.TxnResponse, error) { return k.s.txn(in) })
}

func (k *kvClient) Range(ctx context.Context, in *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return send(ctx, k.s, Call{Process: k.process, Method: Range}, func() (*pb.RangeResponse, error) {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		reply, err := k.s.store.Now().Range(in)
		if err == nil {
			k.s.fill(reply.Header)
		}
		return reply, err
	})
}

func (k *kvClient) Put(ctx context.Context, in *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: in}}
	c := Call{Process: k.process, Method: Put, Puts: []string{string(in.Key)}}
	return send(ctx, k.s, c, func() (*pb.PutResponse, error) {
		reply, err := k.s.txn(&pb.TxnRequest{Success: []*pb.RequestOp{op}})
		return &pb.PutResponse{Header: reply.GetHeader()}, err
	})
}

func (k *kvClient) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: in}}
	c := Call{Process: k.process, Method: Delete, Deletes: []string{string(in.Key)}}
	return send(ctx, k.s, c, func() (*pb.DeleteRangeResponse, error) {
		reply, err := k.s.txn(&pb.TxnRequest{Success: []*pb.RequestOp{op}})
		return &pb.DeleteRangeResponse{Header: reply.GetHeader()}, err
	})
}

func (k *kvClient) Compact(context.Context, *pb.CompactionRequest, ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return nil, errUnsupported
}

func (k *kvClient) RangeStream(context.Context, *pb.RangeRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[pb.RangeStreamResponse], error) {
	return nil, errUnsupported
}

// ---- Lease

type leaseClient struct {
	s       *Server
	process string
}

// sendLease is send for the methods of leases, with errors as clientv3 gives them.
func sendLease[R any](ctx context.Context, l *leaseClient, method string, id clientv3.LeaseID, apply func() (R, error)) (R, error) {
	r, err := send(ctx, l.s, Call{Process: l.process, Method: method, Lease: id}, func() (R, error) {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		return apply()
	})
	return r, clientv3.ContextError(ctx, err)
}

func (l *leaseClient) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return sendLease(ctx, l, Grant, 0, func() (*clientv3.LeaseGrantResponse, error) {
		s := l.s
		ttl := max(ttl, s.minTTL)
		id, err := s.store.Grant(0, ttl)
		if err != nil {
			return nil, err
		}
		s.runLocked(id, ttl)
		return &clientv3.LeaseGrantResponse{ResponseHeader: s.header(), ID: clientv3.LeaseID(id), TTL: ttl}, nil
	})
}

// runLocked begins the TTL of a lease, in seconds.
func (s *Server) runLocked(id, ttl int64) {
	l := &lease{id: id, ttl: time.Duration(ttl) * time.Second}
	l.expires = time.Now().Add(l.ttl)
	l.expiry = time.AfterFunc(l.ttl, func() { s.expire(l) })
	s.leases[id] = l
}

// expire revokes a lease whose time has come.
func (s *Server) expire(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[l.id] == l && !time.Now().Before(l.expires) {
		s.revokeLocked(l.id)
	}
}

// revokeLocked ends a lease and deletes its keys, all at one revision.
func (s *Server) revokeLocked(id int64) (known bool) {
	if l := s.leases[id]; l != nil {
		l.expiry.Stop()
		delete(s.leases, id)
	}
	before := s.store.Rev()
	known = s.store.Revoke(id)
	s.notifyLocked(before)
	return known
}

func (l *leaseClient) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	return sendLease(ctx, l, Revoke, id, func() (*clientv3.LeaseRevokeResponse, error) {
		if !l.s.revokeLocked(int64(id)) {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		return &clientv3.LeaseRevokeResponse{Header: l.s.header()}, nil
	})
}

func (l *leaseClient) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	return sendLease(ctx, l, KeepAlive, id, func() (*clientv3.LeaseKeepAliveResponse, error) {
		kept := l.s.leases[int64(id)]
		if kept == nil {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		kept.expires = time.Now().Add(kept.ttl)
		kept.expiry.Reset(kept.ttl)
		return &clientv3.LeaseKeepAliveResponse{ResponseHeader: l.s.header(), ID: id, TTL: int64(kept.ttl / time.Second)}, nil
	})
}

// TimeToLive always tells the keys: options cannot be read back.
func (l *leaseClient) TimeToLive(ctx context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return sendLease(ctx, l, TimeToLive, id, func() (*clientv3.LeaseTimeToLiveResponse, error) {
		reply := &clientv3.LeaseTimeToLiveResponse{ResponseHeader: l.s.header(), ID: id, TTL: -1}
		if known := l.s.leases[int64(id)]; known != nil {
			reply.TTL = int64(time.Until(known.expires) / time.Second)
			reply.GrantedTTL = int64(known.ttl / time.Second)
			_, keys, _ := l.s.store.Now().Lease(known.id)
			for _, key := range keys {
				reply.Keys = append(reply.Keys, []byte(key))
			}
		}
		return reply, nil
	})
}

func (l *leaseClient) Leases(context.Context) (*clientv3.LeaseLeasesResponse, error) {
	return nil, errUnsupported
}

func (l *leaseClient) KeepAlive(context.Context, clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	return nil, errUnsupported
}

func (l *leaseClient) Close() error { return nil }

// ---- Watcher

type watcher struct {
	s       *Server
	process string
}

// A watch delivers what happens, in order, and nothing twice.
type watch struct {
	s        *Server
	process  string
	key, end []byte
	noPut    bool
	from     int64                    // what is older is not delivered; guarded by Server.mu
	more     chan struct{}            // tells pump that queue is not empty
	queue    []clientv3.WatchResponse // guarded by Server.mu
}

// Watch watches a range, or a key, from now, beginning with the created notice. (That is
// what the library asks for.) Like clientv3's it returns once etcd has answered, or ctx has
// ended.
func (w *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	made := &watch{
		s: w.s, process: w.process, key: op.KeyBytes(), end: op.RangeBytes(),
		noPut: reflect.ValueOf(op).FieldByName("filterPut").Bool(), // an Op does not tell it otherwise
		more:  make(chan struct{}, 1),
	}
	ch := make(chan clientv3.WatchResponse)
	_, err := send(ctx, w.s, Call{Process: w.process, Method: Watch}, func() (*watch, error) {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.s.watches[made] = struct{}{}
		made.addLocked(clientv3.WatchResponse{Header: w.s.header(), Created: true})
		return made, nil
	})
	if op.Rev() != 0 {
		err = errUnsupported
	}
	if err != nil {
		made.stop()
		if ctx.Err() != nil {
			close(ch)
			return ch
		}
		made.fail()
	}
	go made.pump(ctx, ch) // ends with ctx, or with the watch
	return ch
}

// notifyLocked tells the watches of what has happened since a revision, by one entry.
func (s *Server) notifyLocked(before int64) {
	changes := s.store.Events(before+1, s.store.Rev())
	for w := range s.watches {
		var events []*clientv3.Event
		for _, event := range changes {
			filtered := w.noPut && event.Type == mvccpb.Event_PUT
			if event.Kv.ModRevision >= w.from && !filtered && Within(event.Kv.Key, w.key, w.end) {
				events = append(events, (*clientv3.Event)(event))
			}
		}
		if len(events) > 0 {
			w.addLocked(clientv3.WatchResponse{Header: s.header(), Events: events})
		}
	}
}

func (w *watch) addLocked(resp clientv3.WatchResponse) {
	w.queue = append(w.queue, resp)
	select {
	case w.more <- struct{}{}:
	default: // it is told already
	}
}

func (w *watch) next() (resp clientv3.WatchResponse, found bool) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if len(w.queue) == 0 {
		return resp, false
	}
	resp = w.queue[0]
	w.queue = w.queue[1:]
	return resp, true
}

func (w *watch) stop() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	delete(w.s.watches, w)
}

// fail makes the watch end with an error.
func (w *watch) fail() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.queue = nil
	w.addLocked(clientv3.WatchResponse{Canceled: true})
}

// pump delivers what is in the queue.
func (w *watch) pump(ctx context.Context, ch chan<- clientv3.WatchResponse) {
	defer close(ch)
	defer w.stop()
	for {
		select {
		case <-w.more:
		case <-ctx.Done():
			return
		}
		for {
			resp, found := w.next()
			if !found {
				break
			}
			if !w.travel(ctx, resp) {
				return
			}
			select {
			case ch <- resp:
			case <-ctx.Done():
				return
			}
			if resp.Canceled {
				return
			}
		}
	}
}

// travel takes a response through the network. A watch whose event is dropped
// delivers nothing any more, until ctx ends: TCP loses nothing in between.
func (w *watch) travel(ctx context.Context, resp clientv3.WatchResponse) (arrived bool) {
	if len(resp.Events) > 0 {
		c := Call{Process: w.process, Method: Event}
		for _, event := range resp.Events {
			if event.Type != mvccpb.Event_DELETE {
				continue
			}
			c.Deletes = append(c.Deletes, string(event.Kv.Key))
		}
		effect := w.s.arrive(c)
		if effect.Drop {
			<-ctx.Done()
			return false
		}
		if effect.Delay > 0 {
			select {
			case <-time.After(effect.Delay):
			case <-ctx.Done():
				return false
			}
		}
	}
	w.s.mu.Lock()
	healed := w.s.cut[w.process]
	w.s.mu.Unlock()
	if healed == nil {
		return true
	}
	select {
	case <-healed:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *watcher) RequestProgress(context.Context) error { return errUnsupported }

func (w *watcher) Close() error { return nil }
