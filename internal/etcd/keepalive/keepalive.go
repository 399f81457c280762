// Package keepalive sends the renewals of a client's leases on a LeaseKeepAlive stream that stays
// open, and returns to each renewal its own answer. clientv3's KeepAliveOnce opens a stream for
// each renewal, and with user and password each stream is a login. clientv3's KeepAlive counts from
// the answer and has no bound.
package keepalive

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
)

// A Renewal is one attempt to renew.
type Renewal struct {
	Where Where

	// Until is the end of the trust in the lease. If renewals wait for a stream, the one whose trust
	// ends first gets the first.
	Until time.Time

	// Patience is how long it may wait for a stream.
	Patience time.Duration

	// Over is the error once the renewal has taken Over.Most; nil for no bound.
	Over *attempt.BoundError

	// Cut gives it up once it is closed.
	Cut <-chan struct{}

	// Anew says that the lease's last renewal has failed, or was worth nothing. It goes on none of
	// the streams that the lease has used. With several endpoints, gRPC opens the next stream to
	// another one.
	Anew bool

	// Refused says that etcd has refused a renewal of the lease since the last good one, and may
	// refuse this one: it shares no stream.
	Refused bool
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
	since  time.Time // streams that were opened before may lead to an etcd without the lease
	period time.Duration
	open   func(ctx context.Context) (rpc, error)
	client *client

	// Guarded by client.mu.
	last  int     // the number of the latest stream that has carried a renewal of the lease
	after int     // the number of the latest one that is of no use for it
	waits []*wait // the renewals that wait for a stream
}

// A client is what the renewals of all leases of a client share.
type client struct {
	began time.Time // when its first lease was granted

	mu      sync.Mutex // not held across anything
	streams streams
	alarm   *time.Timer // for renewals that wait, nil before the first
}

var clients attempt.Shared[client]

// NewSender returns the Sender of a client's lease, whose renewals are sent once in each period.
// The caller closes the Sender.
func NewSender(of *clientv3.Client, id clientv3.LeaseID, period time.Duration) *Sender {
	s := &Sender{id: id, since: time.Now(), period: period}
	if conn := of.ActiveConnection(); conn != nil {
		leases := pb.NewLeaseClient(conn)
		s.open = func(ctx context.Context) (rpc, error) { // clientv3 gets a token for each stream
			return leases.LeaseKeepAlive(ctx, grpc.WaitForReady(true)) // as clientv3 does
		}
		s.client = attempt.SharedBy(&clients, conn, func() *client {
			return &client{began: s.since, streams: streams{login: of.Username != ""}}
		})
	} else { // not made with clientv3.New
		s.open = func(ctx context.Context) (rpc, error) {
			return &single{ctx: ctx, lease: of, answers: make(chan chan answer, 100)}, nil
		}
		s.client = attempt.SharedBy(&clients, of, func() *client { return &client{began: s.since} })
	}
	s.client.with(func(k *streams) { k.join(period) })
	return s
}

// together is how many times in a period the renewals of a client go out.
const together = 8

// Together is when what is due at a time is done, so that the leases of a client do it at once: a
// sixteenth of a period earlier or later at most. What an answer takes moves a renewal only if it
// takes longer than that.
//
// (Do not send each renewal when it is due. Each then wakes an idle etcd and an idle client, which
// costs several times as much as the renewal. TestTheRenewalsOfAClientGoOutTogether.)
func (s *Sender) Together(due time.Time) time.Time {
	since, part := due.Sub(s.client.began), s.period/together
	whole := since / s.period * s.period
	if n := (since - whole + part/2) / part; n < together {
		return s.client.began.Add(whole + n*part)
	}
	return s.client.began.Add(whole + s.period)
}

// Close says that no more renewals are sent. With the last lease of a client its streams end. over
// waits until they have ended, or ctx has: one may be in the user's code, as in an interceptor.
func (s *Sender) Close() (over func(ctx context.Context)) {
	var left []*stream
	s.client.with(func(k *streams) { left = k.leave(s.period) })
	return func(ctx context.Context) {
		for _, on := range left {
			select {
			case <-on.over:
			case <-ctx.Done():
			}
		}
	}
}

// with calls f with the streams, and then sends what can be sent.
func (c *client) with(f func(k *streams)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.streams
	k.count(time.Now())
	f(k)
	k.admit(k.counted)
	for _, on := range k.begun {
		go c.run(on)
		time.AfterFunc(openingTime, func() { c.with(func(k *streams) { k.opened(on) }) })
	}
	k.begun = nil
	switch pause := k.next(); {
	case pause == never:
	case c.alarm == nil:
		c.alarm = time.AfterFunc(pause, func() { c.with(func(*streams) {}) })
	default:
		c.alarm.Reset(pause)
	}
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

// ErrNoStream is the error of a renewal that was not sent: it had no stream in time.
//
// (Do not say that no endpoint can be reached. The connection is up where etcd has too much to do.)
var ErrNoStream error = noStream{}

type noStream struct{}

func (noStream) Error() string { return "etcd has opened no stream for the renewal in time" }
func (noStream) Unwrap() error { return attempt.ErrUnreachable }

// Renew sends a renewal and waits for its answer, or gives it up when ctx or its time ends.
//
// (A context of its own for each renewal costs as much as all else that the client does for it.)
func (s *Sender) Renew(ctx context.Context, r Renewal) (*pb.LeaseKeepAliveResponse, error) {
	w, waits := &wait{Renewal: r, by: s, answer: make(chan answer, 1)}, false
	s.client.with(func(k *streams) {
		if ctx.Err() == nil { // else the lease may be about to be revoked
			k.put(w)
			k.admit(k.counted)
			waits = w.on == nil
		}
	})
	if waits { // for a stream
		defer time.AfterFunc(r.Patience, func() {
			s.client.with(func(k *streams) {
				if w.on == nil && k.giveUp(w) {
					w.answer <- answer{err: ErrNoStream}
				}
			})
		}).Stop()
	}
	var over <-chan time.Time
	if r.Over != nil {
		bound := time.NewTimer(r.Over.Most)
		defer bound.Stop()
		over = bound.C
	}
	var err error
	select {
	case a := <-w.answer:
		return a.resp, a.failure(ctx)
	case <-ctx.Done():
		err = ctx.Err()
	case <-over:
		err = r.Over
	case <-r.Cut:
		err = context.Canceled
	}
	s.client.with(func(k *streams) { k.giveUp(w) })
	return nil, err
}

// failure is why a renewal has failed that is answered by a, if it has.
func (a answer) failure(ctx context.Context) error {
	err := clientv3.ContextError(ctx, a.err)
	switch {
	case err != nil && a.ended:
		return &streamError{err}
	case err == nil && a.resp.TTL <= 0:
		return rpctypes.ErrLeaseNotFound
	}
	return err
}

// run is the goroutine of a stream. It opens the stream, and passes on what comes on it until it
// has ended, also by a Fall of the user's code.
func (c *client) run(on *stream) {
	var sending sync.WaitGroup
	c.until(on, func() error {
		rpc, err := on.open(on.ctx)
		if err == nil {
			sending.Go(func() { c.until(on, func() error { return c.send(on, rpc) }, func() {}) })
		}
		for err == nil {
			var resp *pb.LeaseKeepAliveResponse
			if resp, err = rpc.Recv(); err == nil {
				c.with(func(k *streams) { k.answered(on, resp) })
			}
		}
		return err
	}, func() {
		sending.Wait() // the stream's ctx has ended
		c.with(func(k *streams) {
			k.open = slices.DeleteFunc(k.open, func(o *stream) bool { return o == on })
		})
		close(on.over)
	})
}

// until calls f, which runs the user's code on a stream. The error of f, or its Fall, ends the
// stream. Then until calls over.
func (c *client) until(on *stream, f func() error, over func()) {
	var err error
	guard.Catch(func() { err = f() }, func(fall *guard.Fall) {
		if fall != nil {
			err = fall
		}
		if err != nil {
			c.with(func(k *streams) { k.failed(on, err) })
		}
		over()
	})
}

// send is the other goroutine of a stream: it sends the messages.
func (c *client) send(on *stream, rpc rpc) error {
	for {
		c.mu.Lock()
		ids := on.unsent
		on.unsent = nil
		c.mu.Unlock()
		for _, id := range ids {
			if rpc.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}) != nil {
				return nil // Recv has the reason
			}
		}
		select {
		case <-on.more:
		case <-on.ctx.Done():
			return nil
		}
	}
}

// A rpc is a LeaseKeepAlive stream.
type rpc interface {
	Send(*pb.LeaseKeepAliveRequest) error
	Recv() (*pb.LeaseKeepAliveResponse, error)
}

// A single is the stream of a client without a connection: it sends each renewal by itself.
type single struct {
	ctx     context.Context
	lease   clientv3.Lease
	answers chan chan answer // in the order of the requests
}

func (o *single) Send(r *pb.LeaseKeepAliveRequest) error {
	answered := make(chan answer, 1)
	go func() { // ends with ctx
		resp, err := guard.Apart(func() (*pb.LeaseKeepAliveResponse, error) {
			return o.renew(clientv3.LeaseID(r.ID))
		})
		answered <- answer{resp: resp, err: err}
	}()
	select {
	case o.answers <- answered:
		return nil
	case <-o.ctx.Done():
		return o.ctx.Err()
	}
}

func (o *single) renew(id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	if id == noLease {
		return &pb.LeaseKeepAliveResponse{}, nil
	}
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
}

func (o *single) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case answered := <-o.answers:
		a := <-answered // it comes with the end of ctx at the latest
		return a.resp, a.err
	case <-o.ctx.Done():
		return nil, o.ctx.Err()
	}
}
