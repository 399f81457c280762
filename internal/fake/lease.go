package fake

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A lease is a lease that lives.
type lease struct {
	id      int64
	ttl     time.Duration
	expires time.Time
	expiry  *time.Timer
}

// maxTTL is the most seconds that etcd grants.
const maxTTL = 9_000_000_000

// runLocked begins the TTL of a lease, in seconds.
func (s *Server) runLocked(id, ttl int64) {
	l := &lease{id: id, ttl: time.Duration(ttl) * time.Second}
	l.expires = time.Now().Add(l.ttl)
	l.expiry = time.AfterFunc(l.ttl, func() { s.expire(l) })
	s.leases[id] = l
}

// expire revokes a lease that has run out.
func (s *Server) expire(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[l.id] == l && l.ranOut() && s.frozen == 0 {
		s.revokeLocked(l.id)
	}
}

func (l *lease) ranOut() bool { return !time.Now().Before(l.expires) }

// runOutLocked returns the leases that have run out, in the order in which they did.
func (s *Server) runOutLocked() []*lease {
	var over []*lease
	for _, l := range s.leases {
		if l.ranOut() {
			over = append(over, l)
		}
	}
	slices.SortFunc(over, sooner)
	return over
}

// sooner orders leases by when they run out.
func sooner(a, b *lease) int {
	if a.expires.Equal(b.expires) {
		return int(a.id - b.id)
	}
	return a.expires.Compare(b.expires)
}

// revokeLocked ends a lease and deletes its keys, all at one revision.
func (s *Server) revokeLocked(id int64) (known bool) {
	if l := s.leases[id]; l != nil {
		l.expiry.Stop()
		delete(s.leases, id)
	}
	if use := s.origins[id]; use != nil {
		use.Ended = true
		if use.Revoked {
			delete(s.origins, id)
		}
	}
	before := s.store.Rev()
	known = s.store.Revoke(id)
	s.notifyLocked(before)
	return known
}

// A LeaseUse says what a lease was granted for.
type LeaseUse struct {
	Process string // the process that asked for it
	TTL     time.Duration
	Revoked bool // a client has asked to revoke it, whether the request arrived or not
	Ended   bool // it has run out, or was ended from outside

	// Put is the last put on it that a client asked for, carried out or not. It has no
	// revisions.
	Put *mvccpb.KeyValue
}

// LeaseUses returns the leases that were granted and not given back.
func (s *Server) LeaseUses() map[clientv3.LeaseID]LeaseUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	uses := make(map[clientv3.LeaseID]LeaseUse)
	for id, use := range s.origins {
		uses[clientv3.LeaseID(id)] = *use
	}
	return uses
}

// useLocked records the puts of a transaction.
func (s *Server) useLocked(in *pb.TxnRequest) {
	for _, op := range slices.Concat(in.Success, in.Failure) {
		put := op.GetRequestPut()
		if use := s.origins[put.GetLease()]; use != nil {
			use.Put = &mvccpb.KeyValue{Key: put.Key, Value: put.Value, Lease: put.Lease}
		}
	}
}

// A leaseClient is clientv3's, except for KeepAliveOnce. clientv3 repeats that for as long
// as it has no answer.
type leaseClient struct {
	clientv3.Lease
	remote *leaseService
}

func newLeaseClient(p *port, client *clientv3.Client) *leaseClient {
	remote := &leaseService{p}
	return &leaseClient{clientv3.NewLeaseFromLeaseClient(remote, client, time.Second), remote}
}

// LeaseGrant grants a lease of an ID that is asked for, as the connection of a client does.
func (l *leaseClient) LeaseGrant(
	ctx context.Context, in *pb.LeaseGrantRequest, opts ...grpc.CallOption,
) (*pb.LeaseGrantResponse, error) {
	return l.remote.LeaseGrant(ctx, in, opts...)
}

func (l *leaseClient) KeepAliveOnce(
	ctx context.Context, id clientv3.LeaseID,
) (*clientv3.LeaseKeepAliveResponse, error) {
	reply, err := l.remote.renew(ctx, id)
	return reply, clientv3.ContextError(ctx, err)
}

// A leaseService answers as etcd does. An Effect's Edit sees the replies of clientv3.
type leaseService struct{ *port }

// sendLease is send for the methods of leases.
func sendLease[R any](
	ctx context.Context, l *leaseService, method string, id int64, apply func() (R, error),
) (R, error) {
	return send(ctx, l.port, Call{Method: method, Lease: clientv3.LeaseID(id)}, func() (R, error) {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		return apply()
	})
}

func (l *leaseService) LeaseGrant(
	ctx context.Context, in *pb.LeaseGrantRequest, _ ...grpc.CallOption,
) (*pb.LeaseGrantResponse, error) {
	reply, err := sendLease(ctx, l, Grant, 0, func() (*clientv3.LeaseGrantResponse, error) {
		if in.TTL > maxTTL {
			return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
		}
		ttl := max(in.TTL, l.s.minTTL)
		id, err := l.s.store.Grant(in.ID, ttl)
		if err != nil {
			return nil, err
		}
		l.s.origins[id] = &LeaseUse{Process: l.process, TTL: time.Duration(ttl) * time.Second}
		l.s.runLocked(id, ttl)
		return &clientv3.LeaseGrantResponse{ResponseHeader: l.s.header(), ID: clientv3.LeaseID(id),
			TTL: ttl}, nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.LeaseGrantResponse{Header: reply.ResponseHeader, ID: int64(reply.ID), TTL: reply.TTL},
		nil
}

func (l *leaseService) LeaseRevoke(
	ctx context.Context, in *pb.LeaseRevokeRequest, _ ...grpc.CallOption,
) (*pb.LeaseRevokeResponse, error) {
	reply, err := sendLease(ctx, l, Revoke, in.ID, func() (*clientv3.LeaseRevokeResponse, error) {
		if !l.s.revokeLocked(in.ID) {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		return &clientv3.LeaseRevokeResponse{Header: l.s.header()}, nil
	})
	return (*pb.LeaseRevokeResponse)(reply), err
}

// renew carries out one renewal.
func (l *leaseService) renew(
	ctx context.Context, id clientv3.LeaseID,
) (*clientv3.LeaseKeepAliveResponse, error) {
	return sendLease(ctx, l, KeepAlive, int64(id), func() (*clientv3.LeaseKeepAliveResponse, error) {
		kept := l.s.leases[int64(id)]
		if kept == nil {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		kept.expires = time.Now().Add(kept.ttl)
		kept.expiry.Reset(kept.ttl)
		return &clientv3.LeaseKeepAliveResponse{ResponseHeader: l.s.header(), ID: id,
			TTL: int64(kept.ttl / time.Second)}, nil
	})
}

func (l *leaseService) LeaseTimeToLive(
	ctx context.Context, in *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption,
) (*pb.LeaseTimeToLiveResponse, error) {
	reply, err := sendLease(ctx, l, TimeToLive, in.ID, func() (*clientv3.LeaseTimeToLiveResponse,
		error) {
		reply := &clientv3.LeaseTimeToLiveResponse{ResponseHeader: l.s.header(),
			ID: clientv3.LeaseID(in.ID), TTL: -1}
		if known := l.s.leases[in.ID]; known != nil {
			reply.TTL = int64(time.Until(known.expires) / time.Second)
			reply.GrantedTTL = int64(known.ttl / time.Second)
			if in.Keys {
				_, keys, _ := l.s.store.Now().Lease(known.id)
				for _, key := range keys {
					reply.Keys = append(reply.Keys, []byte(key))
				}
			}
		}
		return reply, nil
	})
	if err != nil {
		return nil, err
	}
	return &pb.LeaseTimeToLiveResponse{
		Header: reply.ResponseHeader, ID: int64(reply.ID), TTL: reply.TTL, GrantedTTL: reply.GrantedTTL,
		Keys: reply.Keys,
	}, nil
}

func (l *leaseService) LeaseLeases(
	ctx context.Context, _ *pb.LeaseLeasesRequest, _ ...grpc.CallOption,
) (*pb.LeaseLeasesResponse, error) {
	return sendLease(ctx, l, Leases, 0, func() (*pb.LeaseLeasesResponse, error) {
		reply := &pb.LeaseLeasesResponse{Header: l.s.header()}
		living := make([]*lease, 0, len(l.s.leases))
		for _, known := range l.s.leases {
			living = append(living, known)
		}
		slices.SortFunc(living, sooner) // as etcd does
		for _, known := range living {
			reply.Leases = append(reply.Leases, &pb.LeaseStatus{ID: known.id})
		}
		return reply, nil
	})
}

func (l *leaseService) LeaseKeepAlive(
	ctx context.Context, _ ...grpc.CallOption,
) (pb.Lease_LeaseKeepAliveClient, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &renewals{on: l, ctx: ctx, cancel: cancel, more: make(chan struct{}, 1)}, nil
}

// renewals is a stream of renewals. The answers come in the order of the requests.
type renewals struct {
	grpc.ClientStream // nil: clientv3 calls only the methods below
	on                *leaseService
	ctx               context.Context
	cancel            context.CancelFunc

	more   chan struct{} // tells Recv that sent is not empty
	mu     sync.Mutex    // not held across anything
	sent   []chan renewal
	failed error
}

type renewal struct {
	reply *pb.LeaseKeepAliveResponse
	err   error
}

func (s *renewals) Context() context.Context { return s.ctx }

func (s *renewals) CloseSend() error { return nil }

// Send starts a goroutine, which ends with the answer or the stream.
func (s *renewals) Send(in *pb.LeaseKeepAliveRequest) error {
	answered := make(chan renewal, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return io.EOF // Recv says why
	}
	s.sent = append(s.sent, answered)
	select {
	case s.more <- struct{}{}:
	default: // Recv knows already
	}
	go func() {
		reply, err := s.on.renew(s.ctx, clientv3.LeaseID(in.ID))
		switch {
		case err == rpctypes.ErrGRPCLeaseNotFound: // as etcd says it on a stream
			s.on.s.mu.Lock()
			defer s.on.s.mu.Unlock()
			answered <- renewal{reply: &pb.LeaseKeepAliveResponse{Header: s.on.s.header(), ID: in.ID}}
		case err != nil:
			answered <- renewal{err: err}
		default:
			answered <- renewal{reply: &pb.LeaseKeepAliveResponse{Header: reply.ResponseHeader, ID: in.ID,
				TTL: reply.TTL}}
		}
	}()
	return nil
}

// Recv ends the stream with the first error.
func (s *renewals) Recv() (*pb.LeaseKeepAliveResponse, error) {
	for {
		next, err := s.next()
		if err != nil {
			return nil, err
		}
		if next != nil {
			answer := <-next // it comes at the end of the stream at the latest
			if answer.err != nil {
				s.mu.Lock()
				s.failed = answer.err
				s.mu.Unlock()
				s.cancel()
			}
			return answer.reply, answer.err
		}
		if err := s.on.wait(s.ctx, s.more); err != nil {
			return nil, err
		}
	}
}

func (s *renewals) next() (answered chan renewal, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || len(s.sent) == 0 {
		return nil, s.failed
	}
	answered = s.sent[0]
	s.sent = s.sent[1:]
	return answered, nil
}
