package sim

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A Net carries bytes between processes and members, in memory and in virtual time. Between
// any two hosts there are two lanes, one for each direction. A lane can be slow, hold what
// is sent, or lose it.
type Net struct {
	seed uint64

	mu        sync.Mutex // never held across a wait
	lanes     map[route]*lane
	listeners map[string]*listener
	refused   map[route]bool // by process and member
	conns     []*conn        // in the order of their making
}

type route struct{ from, to string }

// A lane is one direction between two hosts. Its fields are guarded by Net.mu.
//
// Invariant: what a lane delivers of one connection is what was written, in order, up to
// the first byte that was lost. TCP delivers nothing behind a hole.
//
// The usual delay is drawn once for a lane, and not for each segment, because two runs of a
// seed do not have the same number of segments.
type lane struct {
	usual      time.Duration
	slow       time.Duration // added to the usual delay
	held, lost int           // faults that hold, or lose, what is sent
}

func (l *lane) delay() time.Duration { return l.usual + l.slow }

// NewNet returns a Net without hosts. Call it inside the bubble.
func NewNet(seed uint64) *Net {
	return &Net{
		seed:      seed,
		lanes:     make(map[route]*lane),
		listeners: make(map[string]*listener),
		refused:   make(map[route]bool),
	}
}

func (n *Net) laneLocked(from, to string) *lane {
	r := route{from, to}
	if n.lanes[r] == nil {
		drawn := generator(n.seed, "lane", from, to).Int64N(int64(time.Millisecond))
		n.lanes[r] = &lane{usual: 50*time.Microsecond + time.Duration(drawn)}
	}
	return n.lanes[r]
}

// Hold holds what is on its way and what is sent from one host to another, until Release.
// Holds add up.
func (n *Net) Hold(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.laneLocked(from, to).held++
}

// Release ends one Hold: what it held arrives, in order.
func (n *Net) Release(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.laneLocked(from, to).held--
	n.wakeLocked()
}

// Lose makes everything vanish that is sent from one host to another, until Find. Neither
// host learns of it. A connection that has lost something never delivers anything again.
func (n *Net) Lose(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.laneLocked(from, to).lost++
}

// Find ends Lose for what is sent from now on.
func (n *Net) Find(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.laneLocked(from, to).lost--
}

// Slow adds to the delay from one host to another.
func (n *Net) Slow(from, to string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.laneLocked(from, to).slow += d
}

// Reset breaks the connections of a process to a member at both ends.
func (n *Net) Reset(process, member string) {
	n.resetIf(func(c *conn) bool { return c.local == process && c.remote == member })
}

// ResetHoles breaks the connections that have lost something, as TCP does in the end.
func (n *Net) ResetHoles(spared func(process, member string) bool) {
	n.resetIf(func(c *conn) bool { return (c.in.hole || c.out.hole) && !spared(c.local, c.remote) })
}

func (n *Net) resetIf(which func(*conn) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if which(c) {
			c.in.breakLocked(syscall.ECONNRESET)
			c.out.breakLocked(syscall.ECONNRESET)
		}
	}
}

// Refuse makes the member refuse new connections of the process, or accept them again.
func (n *Net) Refuse(process, member string, refuse bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[route{process, member}] = refuse
}

// Close breaks all connections.
func (n *Net) Close() { n.resetIf(func(*conn) bool { return true }) }

// wakeLocked makes all readers check again.
func (n *Net) wakeLocked() {
	for _, c := range n.conns {
		c.in.wakeLocked()
		c.out.wakeLocked()
	}
}

// resend is when TCP repeats a SYN that had no answer. The time doubles with each repeat.
const resend = time.Second

// Dial connects a process to a member.
func (n *Net) Dial(ctx context.Context, process, member string) (net.Conn, error) {
	for pause := resend; ; pause *= 2 {
		n.mu.Lock()
		up, down := n.laneLocked(process, member), n.laneLocked(member, process)
		delay := up.delay() + down.delay()
		through := up.held+up.lost+down.held+down.lost == 0
		refused := n.refused[route{process, member}]
		l := n.listeners[member]
		n.mu.Unlock()
		if !through {
			delay = pause
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !through {
			continue
		}
		if refused || l == nil {
			return nil, syscall.ECONNREFUSED
		}
		near, far := n.connect(process, member)
		select {
		case l.accept <- far:
			return near, nil
		case <-l.closed:
			return nil, syscall.ECONNREFUSED
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// noLog is a logger that logs nothing: clientv3 uses it for a client without a logger. The
// module does not require the package of its type.
var noLog = clientv3.NewCtxClient(context.Background()).GetLogger()

// Client returns the client of a process. Small buffers make it fast.
func (n *Net) Client(
	process string, endpoints []string, opts ...grpc.DialOption,
) (*clientv3.Client, error) {
	return n.clientIn(context.Background(), process, endpoints, opts...)
}

// clientIn is Client with a context for clientv3's Config.
func (n *Net) clientIn(
	ctx context.Context, process string, endpoints []string, opts ...grpc.DialOption,
) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Context:   ctx,
		Endpoints: endpoints,
		Logger:    noLog,
		DialOptions: append([]grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, member string) (net.Conn, error) {
				return n.Dial(ctx, process, member)
			}),
			grpc.WithReadBufferSize(4096), grpc.WithWriteBufferSize(4096),
		}, opts...),
	})
}

func (n *Net) connect(process, member string) (near, far *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	up := &pipe{n: n, lane: n.laneLocked(process, member), wake: make(chan struct{}, 1)}
	down := &pipe{n: n, lane: n.laneLocked(member, process), wake: make(chan struct{}, 1)}
	near = &conn{local: process, remote: member, in: down, out: up}
	far = &conn{local: member, remote: process, in: up, out: down}
	n.conns = append(n.conns, near)
	return near, far
}

// Listen makes a member accept connections.
func (n *Net) Listen(member string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{name: member, accept: make(chan *conn), closed: make(chan struct{})}
	n.listeners[member] = l
	return l
}

type listener struct {
	name   string
	accept chan *conn
	close  sync.Once
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return addr(l.name) }

// An addr is the name of a host.
type addr string

func (addr) Network() string  { return "sim" }
func (a addr) String() string { return string(a) }

// A conn is one end of a connection.
type conn struct {
	local, remote string
	in, out       *pipe
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }

// Close closes this end at once. The other end learns of it in the way of everything sent.
func (c *conn) Close() error {
	c.in.n.mu.Lock()
	defer c.in.n.mu.Unlock()
	c.out.sendLocked(nil)
	c.out.broken = net.ErrClosed
	c.in.breakLocked(net.ErrClosed)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return addr(c.local) }
func (c *conn) RemoteAddr() net.Addr { return addr(c.remote) }

// gRPC sets deadlines for the handshake only, and that ends with the connection anyway.

func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// A pipe is one direction of a connection. Its fields are guarded by Net.mu.
type pipe struct {
	n      *Net
	lane   *lane
	wake   chan struct{} // tells read to look again
	queue  []segment
	hole   bool  // something was lost
	ended  error // for read, once set
	broken error // for write
}

// A segment is bytes on their way. No bytes mean the end of the stream.
type segment struct {
	bytes   []byte
	arrives time.Time
}

func (p *pipe) write(b []byte) (int, error) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.broken != nil {
		return 0, p.broken
	}
	p.sendLocked(append([]byte{}, b...))
	return len(b), nil
}

func (p *pipe) sendLocked(b []byte) {
	if p.lane.lost > 0 {
		p.hole = true
	}
	if p.hole || p.broken != nil {
		return
	}
	arrives := time.Now().Add(p.lane.delay())
	if len(p.queue) > 0 && p.queue[len(p.queue)-1].arrives.After(arrives) {
		arrives = p.queue[len(p.queue)-1].arrives
	}
	p.queue = append(p.queue, segment{b, arrives})
	p.wakeLocked()
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		n, wait, err := p.take(b)
		if n > 0 || err != nil {
			return n, err
		}
		if wait == 0 {
			<-p.wake
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// take takes what has arrived, or returns how long until something will arrive; 0 means not
// known.
func (p *pipe) take(b []byte) (n int, wait time.Duration, err error) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	switch {
	case p.ended != nil:
		return 0, 0, p.ended
	case len(p.queue) == 0 || p.lane.held > 0:
		return 0, 0, nil
	}
	first := &p.queue[0]
	if wait := time.Until(first.arrives); wait > 0 {
		return 0, wait, nil
	}
	if len(first.bytes) == 0 {
		p.ended = io.EOF
		return 0, 0, io.EOF
	}
	n = copy(b, first.bytes)
	if first.bytes = first.bytes[n:]; len(first.bytes) == 0 {
		p.queue = p.queue[1:]
	}
	return n, 0, nil
}

func (p *pipe) breakLocked(why error) {
	if p.ended == nil {
		p.ended = why
	}
	if p.broken == nil {
		p.broken = why
	}
	p.wakeLocked()
}

func (p *pipe) wakeLocked() {
	select {
	case p.wake <- struct{}{}:
	default: // the reader knows already
	}
}
