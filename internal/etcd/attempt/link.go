package attempt

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"
)

// reconnectEvery is the least time between two requests of a client to gRPC to connect at
// once, while a call waits for a connection. gRPC's own pause between attempts to connect
// grows from 1 s to 2 minutes.
const reconnectEvery = 500 * time.Millisecond

// A link is what all callers of one client share. It bounds how often the client connects and how
// often requests are repeated, however many callers wait.
type link struct {
	mu      sync.Mutex
	limiter limiter
	asked   time.Time // when the client last asked gRPC to connect
	flights int       // attempts under way, or waiting
	ticking bool      // a timer asks for connections
	landed  time.Time // when the last attempt ended
	reason  error     // gRPC's reason for having no connection
	told    time.Time // when gRPC gave it
}

var links Shared[link]

// linkOf returns the link of a client. It lives as long as the client's connection.
func linkOf(client *clientv3.Client) *link {
	create := func() *link { return &link{} }
	if conn := client.ActiveConnection(); conn != nil {
		return SharedBy(&links, conn, create)
	}
	return SharedBy(&links, client, create) // not made with clientv3.New
}

// with calls f with the limiter.
func (l *link) with(f func(m *limiter, now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.limiter, time.Now())
}

// state is the state of the client's connection. A client that was not made with clientv3.New has
// no connection, and counts as connected.
func (c *Caller) state() connectivity.State {
	if conn := c.client.ActiveConnection(); conn != nil {
		return conn.GetState()
	}
	return connectivity.Ready
}

// Disconnected reports whether gRPC has no connection and has failed to make one. clientv3
// then sends nothing, but retries many times a second.
func (c *Caller) Disconnected() bool { return c.state() == connectivity.TransientFailure }

// Closed reports whether the client was closed. Nothing works after that: clientv3 would retry
// a hundred times and warn each time.
func (c *Caller) Closed() bool {
	ctx := c.client.Ctx()
	return ctx != nil && ctx.Err() != nil
}

// reconnect asks gRPC to connect again at once if there is no connection, unless it has
// asked just now. Each time costs a connection to each endpoint.
func (c *Caller) reconnect() {
	if !c.Disconnected() {
		return
	}
	l := c.link
	l.mu.Lock()
	due := time.Since(l.asked) >= reconnectEvery
	if due {
		l.asked = time.Now()
	}
	l.mu.Unlock()
	if due {
		c.client.ActiveConnection().ResetConnectBackoff()
	}
}

// begin waits until the window for its policy lets an attempt begin. The caller calls end when the
// attempt is over. Within a window, the first to come is the first to begin. begun is false if ctx
// ends before; waited says whether there was a wait.
//
// (Do not search the queue for an attempt that gives up. A hundred thousand that give up at once
// then have the mutex for seconds, and the renewals of all holders wait for it.
// TestGivingUpCostsNoMoreThanBeginningHoweverManyWait.)
func (l *link) begin(ctx context.Context, p Policy) (waited, begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := time.Now()
	defer func() { l.limiter.turn = time.Since(asked) }()
	w := l.limiter.window(p)
	if !w.full() && w.queue.Len() == 0 {
		w.under++
		return false, true
	}
	turn := make(chan struct{}, 1)
	stands := w.queue.PushBack(turn)
	l.mu.Unlock()
	select {
	case <-turn:
		begun = true
	case <-ctx.Done():
	}
	l.mu.Lock()
	switch {
	case begun:
	case len(turn) == 0:
		w.queue.Remove(stands)
	default:
		w.end() // its turn has come just now
	}
	return true, begun
}

// end counts an attempt of a policy that is over.
func (l *link) end(p Policy) {
	l.with(func(m *limiter, _ time.Time) { m.window(p).end() })
}

// takeOff counts an attempt that begins, and land counts one that is over. While there are any,
// a timer asks for connections.
func (c *Caller) takeOff() {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flights == 0 && time.Since(l.landed) >= forgetSilence {
		l.limiter.rest()
	}
	l.flights++
	if !l.ticking && c.client.ActiveConnection() != nil {
		l.ticking = true
		time.AfterFunc(reconnectEvery, c.tick)
	}
}

func (c *Caller) land() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.flights--
	c.link.landed = time.Now()
}

func (c *Caller) tick() {
	l := c.link
	l.mu.Lock()
	l.ticking = l.flights > 0
	again := l.ticking
	l.mu.Unlock()
	if again {
		c.reconnect()
		time.AfterFunc(reconnectEvery, c.tick)
	}
}

// connected waits until there is a connection or one is being made. Without one clientv3
// would send nothing either, but retry by itself many times a second.
func (c *Caller) connected(ctx context.Context) error {
	if c.Closed() {
		return ErrClientClosed
	}
	conn := c.client.ActiveConnection()
	for c.Disconnected() {
		c.reconnect()
		reason := c.whyDisconnected(ctx)
		if !conn.WaitForStateChange(ctx, connectivity.TransientFailure) {
			return reason
		}
	}
	return nil
}

// whyDisconnected is gRPC's reason for having no connection. gRPC gives it only to a request that
// does not wait for a connection. clientv3's requests all wait, so this one bypasses clientv3. It
// is not sent, because there is no connection; if there is one just then, it asks for the member's
// health.
func (c *Caller) whyDisconnected(ctx context.Context) error {
	const method = "/grpc.health.v1.Health/Check"
	l := c.link
	l.mu.Lock()
	fresh := l.reason != nil && time.Since(l.told) < tellEvery/2
	reason := l.reason
	l.mu.Unlock()
	if fresh {
		return reason
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	message := &pb.ResponseHeader{} // an empty one, of whatever kind
	err := c.client.ActiveConnection().Invoke(ctx, method, message, message)
	if err == nil || ctx.Err() != nil {
		return ErrUnreachable // it is connected just now, or was cut short
	}
	reason = &unreachableError{err}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason, l.told = reason, time.Now()
	return reason
}

// CancelWhenUnreachable cancels a request once no endpoint is connected, and asks for a new
// connection: clientv3 itself would retry in a tight loop, and gRPC would wait for up to two
// minutes. Once ctx has ended, the returned channel says whether it cancelled the request.
func (c *Caller) CancelWhenUnreachable(ctx context.Context, cancel func()) <-chan bool {
	result := make(chan bool, 1)
	conn := c.client.ActiveConnection()
	if conn == nil { // not made with clientv3.New
		result <- false
		return result
	}
	go func() { // ends with ctx; the caller waits for it
		for {
			state := conn.GetState()
			if state == connectivity.TransientFailure {
				c.reconnect()
				cancel()
				result <- true
				return
			}
			if !conn.WaitForStateChange(ctx, state) {
				result <- false
				return
			}
		}
	}()
	return result
}

// Waits counts a waiting call of the user, until the returned function is called.
func (c *Caller) Waits() (done func()) {
	q := &c.silence
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits++
	q.tickLocked(c)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.waits--
	}
}

// Unavailable returns why etcd does not answer, or nil if it does, as far as is known. An attempt
// that has had no answer for a quarter of a second says that it does not.
func (c *Caller) Unavailable() error {
	q := &c.silence
	q.mu.Lock()
	now := time.Now()
	silent, reason := q.currentLocked(now), q.reason
	late := now.Sub(q.since) >= 250*time.Millisecond
	q.mu.Unlock()
	switch {
	case !silent:
		return nil
	case c.Disconnected():
		return c.whyDisconnected(c.ctx)
	case reason != nil:
		return reason
	case late && c.state() != connectivity.Ready:
		return ErrUnreachable
	case late:
		return ErrNoAnswer
	}
	return nil
}
