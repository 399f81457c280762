// Package keepalive sends the renewals of a lease on a LeaseKeepAlive stream that stays open, and
// returns to each renewal its own answer. clientv3's KeepAliveOnce opens a stream for each
// renewal, and with user and password each stream is a login. clientv3's KeepAlive counts from the
// answer and has no bound.
package keepalive

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// A Renewal is one attempt to renew.
type Renewal struct {
	Sent time.Time // before anything was done for it

	// Anew makes it go on a stream of its own. With several endpoints, gRPC opens the next
	// stream to another one.
	Anew bool

	// Where says where the client's requests go. When that changes, the stream is replaced: gRPC
	// lets an open stream go on to an endpoint that the client no longer has.
	Where any
}

// A Sender sends the renewals of one lease.
//
// Each lease has its own stream, although a stream could carry the renewals of many. etcd works
// through a stream one renewal after the other, and a member that does not lead asks the leader
// for each: a thousand leases of a client would wait for each other. etcd also ends the stream with
// the first error, and since 3.4.42, 3.5.28, 3.6.9 and 3.7.0 it is an error if the user may not
// write one of a lease's keys. A process normally has one Session, and that has one lease.
//
// The streams do not require a leader (clientv3.WithRequireLeader). A renewal that waits at a
// member for the end of an election is then answered at that end; a refused one would be sent
// again later. A member that is cut off is silent; another stream helps.
type Sender struct {
	// Set once, then only read.
	ctx   context.Context // for the streams
	id    clientv3.LeaseID
	open  func(ctx context.Context) (rpc, error)
	alone bool // each renewal is sent by itself: there is nothing to prove
	spawn func(func())

	mu      sync.Mutex // not held across anything
	streams streams
}

// NewSender returns the Sender of a client's lease. Its streams end with ctx. It starts goroutines
// by spawn: one for each stream, which ends with the stream.
func NewSender(
	ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, spawn func(func()),
) *Sender {
	s := &Sender{ctx: ctx, id: id, spawn: spawn}
	conn := client.ActiveConnection()
	if conn == nil { // not made with clientv3.New
		s.alone = true
		s.open = func(ctx context.Context) (rpc, error) {
			return &single{ctx: ctx, lease: client, requests: make(chan clientv3.LeaseID, 1)}, nil
		}
		return s
	}
	leases := pb.NewLeaseClient(conn)
	s.open = func(ctx context.Context) (rpc, error) { // clientv3 gets a token for each stream
		return leases.LeaseKeepAlive(ctx, grpc.WaitForReady(true)) // as clientv3 does
	}
	return s
}

// ErrStreamEnded wraps the error of a renewal whose stream had answered earlier renewals. For
// instance, its token has expired, or its member has stopped. That says nothing about
// another stream.
var ErrStreamEnded = errors.New("the stream of the renewals ended")

// A streamError is ErrStreamEnded with a reason.
type streamError struct{ reason error }

func (e *streamError) Error() string        { return e.reason.Error() }
func (e *streamError) Unwrap() error        { return e.reason }
func (e *streamError) Is(target error) bool { return target == ErrStreamEnded }

// Renew sends a renewal and waits for its answer. When ctx ends it gives up the renewal, and the
// stream with it.
func (s *Sender) Renew(ctx context.Context, r Renewal) (*pb.LeaseKeepAliveResponse, error) {
	answers := make(chan answer, 1)
	on, kept := s.take(r, answers)
	defer context.AfterFunc(ctx, on.end)()
	var err error
	if !kept {
		if on.rpc, err = s.open(on.ctx); err == nil {
			s.spawn(func() { s.receive(on) })
		}
	}
	if err == nil {
		err = on.rpc.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)})
		if errors.Is(err, io.EOF) {
			err = nil // Recv has the reason
		}
	}
	if err != nil {
		s.deliver(on, answer{err: err})
		on.end()
	}
	a := <-answers // the stream ends with ctx
	if a.err == nil && !kept {
		s.prove(ctx, on)
	}
	switch {
	case a.err == nil && a.resp.TTL <= 0:
		return nil, rpctypes.ErrLeaseNotFound
	case a.err == nil:
		return a.resp, nil
	case kept && ctx.Err() == nil:
		return nil, &streamError{clientv3.ContextError(ctx, a.err)}
	default:
		return nil, clientv3.ContextError(ctx, a.err)
	}
}

// take returns the stream for a renewal, which will get the answer. kept says that the stream was
// there already.
func (s *Sender) take(r Renewal, answers chan<- answer) (on *stream, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	on, kept = s.streams.take(r)
	if !kept {
		on.ctx, on.end = context.WithCancel(s.ctx)
		on.proven = s.alone
	}
	on.answers = answers
	return on, kept
}

// nobody is a lease that etcd never has. etcd answers its renewal with a TTL of 0. etcd's
// grpc-proxy answers with -1, which it got from TimeToLive.
const nobody = clientv3.NoLease

// prove asks, on a stream that has answered, whether etcd itself reads it. If the answer does not
// come in the time of a renewal, that of ctx, the stream is given up.
func (s *Sender) prove(ctx context.Context, on *stream) {
	deadline, bounded := ctx.Deadline()
	s.mu.Lock()
	asks := bounded && !on.proven && !s.streams.proxied
	if asks {
		on.proof = time.AfterFunc(time.Until(deadline), on.end)
	}
	s.mu.Unlock()
	if asks {
		_ = on.rpc.Send(&pb.LeaseKeepAliveRequest{ID: int64(nobody)}) // Recv has the error
	}
}

// proved notes the answer to the question of prove.
func (s *Sender) proved(on *stream, etcd bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on.proof != nil && on.proof.Stop() { // else it was not asked for, or comes too late
		s.streams.proved(on, etcd)
	}
}

// receive passes on what comes on a stream, until the stream has ended.
func (s *Sender) receive(on *stream) {
	defer on.end()
	for {
		resp, err := on.rpc.Recv()
		if err == nil && resp.ID != int64(s.id) {
			if resp.ID == int64(nobody) {
				s.proved(on, resp.TTL == 0)
			}
			continue // it belongs to no renewal that was sent
		}
		s.deliver(on, answer{resp, err})
		if err != nil {
			return
		}
	}
}

// deliver passes an answer to its renewal.
func (s *Sender) deliver(on *stream, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams.answered(on, a.err == nil) {
		on.answers <- a
	}
}

// A rpc is a LeaseKeepAlive stream.
type rpc interface {
	Send(*pb.LeaseKeepAliveRequest) error
	Recv() (*pb.LeaseKeepAliveResponse, error)
}

// A single is the stream of a client without a connection: it sends each renewal by itself.
type single struct {
	ctx      context.Context
	lease    clientv3.Lease
	requests chan clientv3.LeaseID
}

func (o *single) Send(r *pb.LeaseKeepAliveRequest) error {
	o.requests <- clientv3.LeaseID(r.ID) // only one is under way at a time
	return nil
}

func (o *single) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case id := <-o.requests:
		resp, err := o.lease.KeepAliveOnce(o.ctx, id)
		switch {
		case attempt.Is(err, rpctypes.ErrLeaseNotFound):
			return &pb.LeaseKeepAliveResponse{ID: int64(id)}, nil // as etcd says it on a stream
		case err != nil:
			return nil, err
		}
		return &pb.LeaseKeepAliveResponse{
			Header: resp.ResponseHeader, ID: int64(resp.ID), TTL: resp.TTL,
		}, nil
	case <-o.ctx.Done():
		return nil, o.ctx.Err()
	}
}
