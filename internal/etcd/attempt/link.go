package attempt

import (
	"container/list"
	"context"
	"runtime"
	"sync"
	"time"
	"weak"

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
	budget  budget
	windows windows
	queues  [kinds]list.List // of chan struct{}: attempts that wait for a window, in order
	asked   time.Time        // when the client last asked gRPC to connect
	flights int              // attempts under way, or waiting
	ticking bool             // a timer asks for connections
	landed  time.Time        // when the last attempt ended
	reason  error            // gRPC's reason for having no connection
	told    time.Time        // when gRPC gave it
}

var links = struct {
	mu sync.Mutex
	of map[any]*link // by a weak pointer to the connection, or to the client that has none
}{of: make(map[any]*link)}

// linkOf returns the link of a client. It lives as long as the client's connection.
func linkOf(client *clientv3.Client) *link {
	if conn := client.ActiveConnection(); conn != nil {
		return linkTo(conn)
	}
	return linkTo(client) // not made with clientv3.New
}

func linkTo[T any](p *T) *link {
	links.mu.Lock()
	defer links.mu.Unlock()
	key := any(weak.Make(p))
	l := links.of[key]
	if l == nil {
		l = &link{}
		links.of[key] = l
		runtime.AddCleanup(p, func(key any) {
			links.mu.Lock()
			defer links.mu.Unlock()
			delete(links.of, key)
		}, key)
	}
	return l
}

// with calls f with the budget.
func (l *link) with(f func(b *budget, now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.budget, time.Now())
}

// heardSince reports whether etcd has answered anything since then.
func (l *link) heardSince(t time.Time) (heard bool) {
	l.with(func(b *budget, _ time.Time) { heard = b.heard.After(t) })
	return heard
}

// usual is budget.usual.
func (l *link) usual(first time.Duration) (d time.Duration) {
	l.with(func(b *budget, _ time.Time) { d = b.usual(first) })
	return d
}

// is reports whether the client's connection is in a state. A client that was not made with
// clientv3.New has no connection, and is in no state.
func (c *Caller) is(state connectivity.State) bool {
	conn := c.client.ActiveConnection()
	return conn != nil && conn.GetState() == state
}

// unconnected reports whether gRPC has no connection, or is making the first one.
func (c *Caller) unconnected() bool {
	return c.client.ActiveConnection() != nil && !c.is(connectivity.Ready)
}

// Disconnected reports whether gRPC has no connection and has failed to make one. clientv3
// then sends nothing, but retries many times a second.
func (c *Caller) Disconnected() bool { return c.is(connectivity.TransientFailure) }

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

// begin waits until the window of its kind lets an attempt begin. The caller calls end when the
// attempt is over. Within a kind, the first to come is the first to begin. begun is false if ctx
// ends before; waited says whether there was a wait.
//
// (Do not search the queue for an attempt that gives up. A hundred thousand that give up at once
// then have the mutex for seconds, and the renewals of all holders wait for it.
// TestGivingUpCostsNoMoreThanBeginningHoweverManyWait.)
func (l *link) begin(ctx context.Context, kind int) (waited, begun bool) {
	l.mu.Lock()
	window, queue := &l.windows[kind], &l.queues[kind]
	if !window.full() && queue.Len() == 0 {
		window.under++
		l.mu.Unlock()
		return false, true
	}
	turn := make(chan struct{}, 1)
	stands := queue.PushBack(turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return true, true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(turn) == 0 {
		queue.Remove(stands)
		return true, false
	}
	l.endLocked(kind) // its turn has come just now
	return true, false
}

// end counts an attempt that is over, and lets the next ones of its kind begin.
func (l *link) end(kind int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(kind)
}

func (l *link) endLocked(kind int) {
	window, queue := &l.windows[kind], &l.queues[kind]
	window.under--
	for queue.Len() > 0 && !window.full() {
		window.under++
		queue.Remove(queue.Front()).(chan struct{}) <- struct{}{}
	}
}

// takeOff counts an attempt that begins, and land counts one that is over. While there are any,
// a timer asks for connections.
func (c *Caller) takeOff() {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.flights == 0 && now.Sub(l.landed) >= forgetSilence {
		l.budget.began(now)
		l.windows.rest()
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

// Unavailable returns why etcd does not answer, or nil if it does, as far as is known.
func (c *Caller) Unavailable() error {
	q := &c.silence
	q.mu.Lock()
	now := time.Now()
	silent, reason := q.currentLocked(now), q.reason
	late := now.Sub(q.since) >= lateAnswer
	q.mu.Unlock()
	switch {
	case !silent:
		return nil
	case c.Disconnected():
		return c.whyDisconnected(c.ctx)
	case reason != nil:
		return reason
	case late && c.unconnected():
		return ErrUnreachable
	case late:
		return ErrNoAnswer
	}
	return nil
}

// tellSilence reports that etcd has not answered since then, if it still does not.
func (c *Caller) tellSilence(since time.Time) {
	if reason := c.Unavailable(); reason != nil { // otherwise it has answered just now
		c.tell(reason, time.Since(since))
	}
}
