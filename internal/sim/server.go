package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// The services of a member. What neither the lock nor its peer needs is Unimplemented.
type (
	kvServer struct {
		pb.UnimplementedKVServer
		m *member
	}
	leaseServer struct {
		pb.UnimplementedLeaseServer
		m *member
	}
	watchServer struct {
		pb.UnimplementedWatchServer
		m *member
	}
)

func (m *member) serve(l net.Listener) {
	// Small buffers and reused goroutines make it fast.
	m.server = grpc.NewServer(grpc.NumStreamWorkers(4), grpc.ReadBufferSize(4096),
		grpc.WriteBufferSize(4096))
	pb.RegisterKVServer(m.server, &kvServer{m: m})
	pb.RegisterLeaseServer(m.server, &leaseServer{m: m})
	pb.RegisterWatchServer(m.server, &watchServer{m: m})
	go func() { _ = m.server.Serve(l) }() // ends with Cluster.Stop
}

// Serve starts an etcd of one member in real time, and returns its address on this machine.
// Any client can use it. Stop ends it.
func Serve() (endpoint string, c *Cluster, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	c = NewCluster(0, NewNet(0), 1)
	server := c.members[0].server
	go func() { _ = server.Serve(l) }() // ends with Cluster.Stop
	return l.Addr().String(), c, nil
}

// Serving starts an etcd as Serve does, fills in its endpoints, and runs f. It returns what
// f returns, or 1 if etcd did not start. It is for TestMain.
func Serving(endpoints *[]string, f func() (status int)) (status int) {
	endpoint, etcd, err := Serve()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start etcd:", err)
		return 1
	}
	defer etcd.Stop()
	*endpoints = []string{endpoint}
	return f()
}

// processOf returns the process that sent a request.
func processOf(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	return p.Addr.String()
}

// requiresLeader reports whether a stream is to end when its member has no leader.
func requiresLeader(ctx context.Context) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(rpctypes.MetadataRequireLeaderKey)
	return len(values) > 0 && values[0] == rpctypes.MetadataHasLeader
}

// fillLocked completes a header as etcd does: with m's own revision if there is none.
func (m *member) fillLocked(h *pb.ResponseHeader) *pb.ResponseHeader {
	h.ClusterId, h.MemberId, h.RaftTerm = m.c.id, m.id, m.term
	if h.Revision == 0 {
		h.Revision = m.viewLocked().Rev()
	}
	return h
}

func (m *member) fill(h *pb.ResponseHeader) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.fillLocked(h)
}

// ---- KV

func (s *kvServer) Range(ctx context.Context, in *pb.RangeRequest) (*pb.RangeResponse, error) {
	view, err := s.view(ctx, in.Serializable)
	if err != nil {
		return nil, err
	}
	s.m.c.mu.Lock()
	defer s.m.c.mu.Unlock()
	reply, err := view.Range(in)
	if err != nil {
		return nil, err
	}
	s.m.fillLocked(reply.Header)
	return reply, nil
}

// view returns the store as a read sees it.
func (s *kvServer) view(ctx context.Context, serializable bool) (v fake.View, err error) {
	c := s.m.c
	if serializable {
		err = c.awake(ctx, s.m)
	} else {
		err = c.linearizable(ctx, s.m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.m.viewLocked(), err
}

func (s *kvServer) Txn(ctx context.Context, in *pb.TxnRequest) (*pb.TxnResponse, error) {
	c, m := s.m.c, s.m
	if fake.ReadOnly(in) {
		view, err := s.view(ctx, serializable(in))
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		reply, err := view.Txn(in)
		if err != nil {
			return nil, err
		}
		m.fillLocked(reply.Header)
		return reply, nil
	}
	by := processOf(ctx)
	if len(in.Success) > 1 && in.Success[0].GetRequestTxn() != nil {
		c.mu.Lock()
		c.combined += len(in.Success)
		c.mu.Unlock()
	}
	var reply *pb.TxnResponse
	var refused error
	if err := c.propose(ctx, m, func() {
		reply, refused = c.txnLocked(by, in)
		if !putsAsPeer(in) && (!c.onlyReleases || putOf(in) == nil) {
			c.againLocked(m, func() { _, _ = c.txnLocked(by, in) })
		}
	}); err != nil {
		return nil, err // it may yet be carried out: nobody may read what it writes
	}
	if refused != nil {
		return nil, refused
	}
	if c.losesAnswer(by) {
		return nil, fake.Unavailable
	}
	m.fill(reply.Header)
	return reply, nil
}

// putsAsPeer reports whether a transaction puts a key as concurrency.Mutex does.
func putsAsPeer(in *pb.TxnRequest) bool {
	for _, op := range in.Success {
		if put := op.GetRequestPut(); put != nil {
			_, _, ours := line.ParseKey(string(put.Key))
			return !ours
		}
	}
	return false
}

// serializable reports whether a transaction that writes nothing needs no quorum.
func serializable(in *pb.TxnRequest) bool {
	for _, ops := range [][]*pb.RequestOp{in.Success, in.Failure} {
		for _, op := range ops {
			if !op.GetRequestRange().GetSerializable() {
				return false
			}
		}
	}
	return true
}

func (c *Cluster) txnLocked(by string, in *pb.TxnRequest) (*pb.TxnResponse, error) {
	before := c.store.Rev()
	reply, err := c.store.Txn(in)
	c.auditLocked(by, before, 0)
	return reply, err
}

func (c *Cluster) deleteLocked(by string, key []byte) (*pb.TxnResponse, error) {
	return c.txnLocked(by, &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key}}},
	}})
}

func (s *kvServer) Put(ctx context.Context, in *pb.PutRequest) (*pb.PutResponse, error) {
	reply, err := s.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestPut{RequestPut: in}},
	}})
	if err != nil {
		return nil, err
	}
	return &pb.PutResponse{Header: reply.Header, PrevKv: reply.Responses[0].GetResponsePut().PrevKv},
		nil
}

func (s *kvServer) DeleteRange(
	ctx context.Context, in *pb.DeleteRangeRequest,
) (*pb.DeleteRangeResponse, error) {
	reply, err := s.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: in}},
	}})
	if err != nil {
		return nil, err
	}
	deleted := reply.Responses[0].GetResponseDeleteRange()
	deleted.Header = reply.Header
	return deleted, nil
}

func (s *kvServer) Compact(
	ctx context.Context, in *pb.CompactionRequest,
) (*pb.CompactionResponse, error) {
	c := s.m.c
	var refused error
	if err := c.propose(ctx, s.m, func() { refused = c.store.Compact(in.Revision) }); err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	reply := &pb.CompactionResponse{Header: &pb.ResponseHeader{}}
	s.m.fill(reply.Header)
	return reply, nil
}

// ---- Lease

func (s *leaseServer) LeaseGrant(
	ctx context.Context, in *pb.LeaseGrantRequest,
) (*pb.LeaseGrantResponse, error) {
	c := s.m.c
	by := processOf(ctx)
	reply := &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{}}
	var refused error
	if err := c.propose(ctx, s.m, func() {
		reply.ID, reply.TTL, refused = c.grantLocked(by, in.ID, in.TTL)
	}); err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	s.m.fill(reply.Header)
	return reply, nil
}

func (s *leaseServer) LeaseRevoke(
	ctx context.Context, in *pb.LeaseRevokeRequest,
) (*pb.LeaseRevokeResponse, error) {
	c := s.m.c
	by := processOf(ctx)
	known := false
	if err := c.propose(ctx, s.m, func() { known = c.revokeLocked(by, in.ID) }); err != nil {
		return nil, err
	}
	if !known {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	reply := &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{}}
	s.m.fill(reply.Header)
	return reply, nil
}

func (s *leaseServer) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	ctx, m := stream.Context(), s.m
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := m.c.awake(ctx, m); err != nil {
			return err
		}
		reply := &pb.LeaseKeepAliveResponse{ID: in.ID, Header: &pb.ResponseHeader{}}
		m.fill(reply.Header)
		if reply.TTL, err = m.c.renew(ctx, m, in.ID); err != nil {
			return err
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

func (s *leaseServer) LeaseTimeToLive(
	ctx context.Context, in *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	granted, remaining, keys, known, err := s.m.c.timeToLive(ctx, s.m, in.ID)
	if err != nil {
		return nil, err
	}
	reply := &pb.LeaseTimeToLiveResponse{Header: &pb.ResponseHeader{}, ID: in.ID, TTL: -1}
	s.m.fill(reply.Header)
	if !known {
		return reply, nil
	}
	reply.TTL, reply.GrantedTTL = int64(remaining/time.Second), granted
	if in.Keys {
		for _, key := range keys {
			reply.Keys = append(reply.Keys, []byte(key))
		}
	}
	return reply, nil
}

func (s *leaseServer) LeaseLeases(
	ctx context.Context, _ *pb.LeaseLeasesRequest,
) (*pb.LeaseLeasesResponse, error) {
	if err := s.m.c.awake(ctx, s.m); err != nil {
		return nil, err
	}
	c := s.m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	reply := &pb.LeaseLeasesResponse{Header: s.m.fillLocked(&pb.ResponseHeader{})}
	for _, id := range s.m.viewLocked().Leases() {
		reply.Leases = append(reply.Leases, &pb.LeaseStatus{ID: id})
	}
	return reply, nil
}
