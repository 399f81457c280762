// Package keepalive sends the renewals of a client's leases on LeaseKeepAlive streams that stay
// open, and returns to each renewal its own answer. clientv3's KeepAliveOnce opens a stream for
// each renewal, and with user and password each stream is a login. clientv3's KeepAlive counts from
// the answer and has no bound. The package also says how often renewals that fail may be repeated.
package keepalive

import (
	"context"
	"errors"
	"io"
	"math"
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

	// After is the time after which its stream was opened: the time of the grant, as etcd may have
	// been set back before, or that of the last renewal that failed. With several endpoints, gRPC
	// opens the next stream to another one.
	After time.Time

	Where Where

	// Until is the end of the trust in the lease. If renewals wait for a stream, the one whose trust
	// ends first gets the first.
	Until time.Time

	// Patience is how long it may wait for a stream.
	Patience time.Duration

	by *Sender
}

// A Where is where a client's requests go. Other streams are of no use: gRPC lets an open stream
// go on to an endpoint that the client no longer has.
type Where struct {
	Endpoints string
	Since     time.Time // streams that were opened before may lead elsewhere
}

// A Sender sends the renewals of one lease.
//
// The streams do not require a leader (clientv3.WithRequireLeader). A renewal that waits at a
// member for the end of an election is then answered at that end; a refused one would be sent
// again later. A member that is cut off is silent; another stream helps.
type Sender struct {
	// Set once, then only read.
	id     clientv3.LeaseID
	period time.Duration // from one renewal to the next
	open   func(ctx context.Context) (rpc, error)
	wake   func() // says that a repeat may be sent
	client *client

	// Guarded by client.mu.
	member  uint64 // that has answered last
	repeats        // of its renewals
}

// A client is what the renewals of all leases of a client share.
type client struct {
	mu      sync.Mutex // not held across anything
	streams streams
	budget  budget
	alarm   *time.Timer // for renewals that wait, nil before the first
	rings   time.Time   // when it does, zero if it does not
}

var clients attempt.Shared[client]

// NewSender returns the Sender of a client's lease, whose renewals are sent once in each period.
// While nothing fails there is nothing to wake. The caller closes the Sender.
func NewSender(
	of *clientv3.Client, id clientv3.LeaseID, period time.Duration, wake func(),
) *Sender {
	s := &Sender{id: id, period: period, wake: wake}
	if conn := of.ActiveConnection(); conn != nil {
		leases := pb.NewLeaseClient(conn)
		s.open = func(ctx context.Context) (rpc, error) { // clientv3 gets a token for each stream
			return leases.LeaseKeepAlive(ctx, grpc.WaitForReady(true)) // as clientv3 does
		}
		most := mostOpenings
		if of.Username != "" {
			most = mostLogins
		}
		s.client = attempt.SharedBy(&clients, conn, func() *client {
			return &client{streams: streams{most: most}}
		})
	} else { // not made with clientv3.New
		s.open = func(ctx context.Context) (rpc, error) {
			return &single{ctx: ctx, lease: of, requests: make(chan clientv3.LeaseID, 1)}, nil
		}
		s.client = attempt.SharedBy(&clients, of, func() *client {
			return &client{streams: streams{alone: true}}
		})
	}
	s.join()
	return s
}

// join counts s.
func (s *Sender) join() {
	s.client.with(func(k *streams, b *budget, now time.Time) {
		k.senders++
		b.join(s, now)
	})
}

// Close says that no more renewals are sent. With the last lease of a client its streams end.
func (s *Sender) Close() {
	var ended []*stream
	s.client.with(func(k *streams, b *budget, now time.Time) {
		b.leave(s, now)
		k.senders--
		ended = k.endUnused(now)
	})
	for _, on := range ended {
		<-on.over
	}
}

// with calls f with what is shared, and then ends the streams that are of no use any more.
func (c *client) with(f func(k *streams, b *budget, now time.Time)) {
	c.mu.Lock()
	now := time.Now()
	f(&c.streams, &c.budget, now)
	c.setAlarmLocked(now)
	ended := c.streams.ended
	c.streams.ended = nil
	c.mu.Unlock()
	for _, on := range ended {
		on.end()
	}
}

// setAlarmLocked makes the alarm ring when a renewal that waits may be sent.
func (c *client) setAlarmLocked(now time.Time) {
	pause := min(c.streams.next(now), c.budget.next(now))
	if pause == never || !c.rings.IsZero() && !now.Add(pause).Before(c.rings) {
		return
	}
	c.rings = now.Add(pause)
	if c.alarm == nil {
		c.alarm = time.AfterFunc(pause, c.ring)
	} else {
		c.alarm.Reset(pause)
	}
}

// never is the pause before what is not going to happen by itself.
const never = math.MaxInt64

// pause is how long it takes until there is what is missing, by so much a second. It is an hour at
// most: then it is reckoned anew.
func pause(missing, aSecond float64) time.Duration {
	seconds := min(missing/aSecond, time.Hour.Seconds())
	return max(time.Duration(seconds*float64(time.Second)), 0) + 1 // it grows meanwhile
}

func (c *client) ring() {
	c.with(func(k *streams, b *budget, now time.Time) {
		c.rings = time.Time{}
		k.admit(now)
		b.pass(now)
	})
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

// errNoStream is the error of a renewal that was not sent: it had no stream in time.
type errNoStream struct{}

func (errNoStream) Error() string { return "etcd opens no stream for the renewal" }
func (errNoStream) Unwrap() error { return attempt.ErrUnreachable }

// Renew sends a renewal and waits for its answer. When ctx ends it gives up the renewal, and the
// stream with it.
func (s *Sender) Renew(ctx context.Context, r Renewal) (*pb.LeaseKeepAliveResponse, error) {
	r.by = s
	answers := make(chan answer, 1)
	on, opens := s.take(ctx, r, answers)
	if on == nil {
		return nil, errNoStream{}
	}
	defer context.AfterFunc(ctx, func() { s.client.giveUp(on, answers) })()
	var err error
	if opens {
		if on.rpc, err = s.open(on.ctx); err == nil {
			go s.client.receive(on)
		} else {
			close(on.over)
		}
	}
	if err == nil {
		err = on.rpc.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)})
		if errors.Is(err, io.EOF) {
			err = nil // Recv has the reason
		}
	}
	if err != nil {
		s.client.deliver(on, answer{err: err})
		on.end()
	}
	a := <-answers // the stream ends with ctx
	switch {
	case a.err != nil:
		<-on.over
		err = clientv3.ContextError(ctx, a.err)
		if !opens && ctx.Err() == nil {
			err = &streamError{err}
		}
		return nil, err
	case opens:
		s.client.prove(ctx, on)
	}
	if a.resp.TTL <= 0 {
		return nil, rpctypes.ErrLeaseNotFound
	}
	return a.resp, nil
}

// take returns the stream for a renewal, which will get the answer, or nil if there is none in
// time. opens says that the caller opens it.
func (s *Sender) take(
	ctx context.Context, r Renewal, answers chan<- answer,
) (on *stream, opens bool) {
	w := &wait{r: r, answers: answers, turn: make(chan *stream, 1)}
	s.client.with(func(k *streams, _ *budget, now time.Time) { on = k.take(w, now) })
	if on == nil {
		patience := time.NewTimer(r.Patience)
		defer patience.Stop()
		select {
		case on = <-w.turn:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	if on == nil {
		s.client.with(func(k *streams, _ *budget, now time.Time) { k.giveUp(w, now) })
		return nil, false
	}
	opens = on.rpc == nil
	if opens && !s.client.streams.alone {
		time.AfterFunc(openingTime, func() {
			s.client.with(func(k *streams, _ *budget, now time.Time) { k.opened(on, now) })
		})
	}
	return on, opens
}

// giveUp ends a stream if the renewal that waits for answers is still under way on it.
func (c *client) giveUp(on *stream, answers chan<- answer) {
	c.mu.Lock()
	awaited := on.state == carrying && on.answers == answers
	c.mu.Unlock()
	if awaited {
		on.end()
	}
}

// nobody is a lease that etcd never has. etcd answers its renewal with a TTL of 0. etcd's
// grpc-proxy answers with -1, which it got from TimeToLive.
const nobody = clientv3.NoLease

// prove asks, on a stream that has answered, whether etcd itself reads it. If the answer does not
// come in the time of a renewal, that of ctx, the stream is given up.
func (c *client) prove(ctx context.Context, on *stream) {
	deadline, bounded := ctx.Deadline()
	c.mu.Lock()
	asks := bounded && on.state == idle && !on.proven
	if asks {
		on.proof = time.AfterFunc(time.Until(deadline), on.end)
	}
	c.mu.Unlock()
	if asks {
		_ = on.rpc.Send(&pb.LeaseKeepAliveRequest{ID: int64(nobody)}) // Recv has the error
	}
}

// proved notes the answer to the question of prove.
func (c *client) proved(on *stream, etcd bool) {
	c.with(func(k *streams, _ *budget, now time.Time) {
		if on.proof != nil && on.proof.Stop() { // else it was not asked for, or comes too late
			k.proved(on, etcd, now)
		}
	})
}

// receive passes on what comes on a stream, until the stream has ended.
func (c *client) receive(on *stream) {
	defer close(on.over)
	defer on.end()
	for {
		resp, err := on.rpc.Recv()
		if err == nil && resp.ID == int64(nobody) {
			c.proved(on, resp.TTL == 0)
			continue
		}
		c.deliver(on, answer{resp, err})
		if err != nil {
			return
		}
	}
}

// deliver passes an answer to its renewal.
func (c *client) deliver(on *stream, a answer) {
	c.with(func(k *streams, _ *budget, now time.Time) {
		if a.err == nil && (on.state != carrying || a.resp.ID != int64(on.by.id)) {
			return // it belongs to no renewal that was sent
		}
		answers := on.answers
		if k.answered(on, a, now) {
			answers <- a
		}
	})
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
