package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// counts are what work cost, in figures that noise hardly touches.
type counts struct {
	RPCs      int64 // to etcd: calls, and messages sent on streams
	Messages  int64 // to and from etcd
	Renewals  int64 // those RPCs that renew a lease
	Logins    int64 // those that ask for a token
	Grants    int64 // of leases
	Revokes   int64 // of leases
	Warnings  int64 // that the library logs
	Proposals int64 // that etcd's Raft committed
	Revisions int64 // of etcd's store
	Bytes     int64 // in both directions, on the connections of any system
	Allocs    int64 // of this process
	ServerCPU time.Duration
	ClientCPU time.Duration // of this process
}

func (c counts) minus(o counts) counts {
	return counts{
		RPCs:      c.RPCs - o.RPCs,
		Messages:  c.Messages - o.Messages,
		Renewals:  c.Renewals - o.Renewals,
		Logins:    c.Logins - o.Logins,
		Grants:    c.Grants - o.Grants,
		Revokes:   c.Revokes - o.Revokes,
		Warnings:  c.Warnings - o.Warnings,
		Proposals: c.Proposals - o.Proposals,
		Revisions: c.Revisions - o.Revisions,
		Bytes:     c.Bytes - o.Bytes,
		Allocs:    c.Allocs - o.Allocs,
		ServerCPU: c.ServerCPU - o.ServerCPU,
		ClientCPU: c.ClientCPU - o.ClientCPU,
	}
}

func (c counts) plus(o counts) counts { return c.minus(counts{}.minus(o)) }

// spent runs f and returns what it cost.
func (a *arena) spent(ctx context.Context, f func() error) (counts, error) {
	// It asks from the outside to the inside: an answer of etcd costs it processor time,
	// and reading that costs this process memory.
	etcd, err := a.askEtcd(ctx)
	if err != nil {
		return counts{}, err
	}
	c, err := a.spentButEtcd(f)
	if err != nil {
		return counts{}, err
	}
	etcdAfter, err := a.askEtcd(ctx)
	return c.plus(etcdAfter.minus(etcd)), err
}

// spentButEtcd is spent without what only etcd knows.
func (a *arena) spentButEtcd(f func() error) (counts, error) {
	cpu, err := cpuTime(a.system.pids())
	if err != nil {
		return counts{}, err
	}
	ownCPU, err := cpuTime([]int{os.Getpid()})
	if err != nil {
		return counts{}, err
	}
	own := a.look()
	if err := f(); err != nil {
		return counts{}, err
	}
	c := a.look().minus(own)
	ownCPUAfter, err := cpuTime([]int{os.Getpid()})
	if err != nil {
		return counts{}, err
	}
	c.ClientCPU = ownCPUAfter - ownCPU
	cpuAfter, err := cpuTime(a.system.pids())
	c.ServerCPU = cpuAfter - cpu
	return c, err
}

// look reads the counts of this process.
func (a *arena) look() (c counts) {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	c.Allocs = int64(mem.Mallocs)
	c.RPCs, c.Messages = a.wire.rpcs.Load(), a.wire.messages.Load()
	c.Renewals, c.Bytes = a.wire.renewals.Load(), a.wire.bytes.Load()
	c.Logins, c.Warnings = a.wire.logins.Load(), a.wire.warnings.Load()
	c.Grants, c.Revokes = a.wire.grants.Load(), a.wire.revokes.Load()
	return c
}

// askEtcd reads the counts that only etcd has, if etcd is measured.
func (a *arena) askEtcd(ctx context.Context) (c counts, err error) {
	e, ok := a.system.(*etcd)
	if !ok {
		return c, nil
	}
	if c.Proposals, err = e.proposals(ctx); err == nil {
		c.Revisions, err = e.revision(ctx)
	}
	return c, err
}

// A wire counts what goes over the connections of the clients that have it.
type wire struct {
	trip time.Duration // how much later each answer comes

	rpcs, messages, renewals, logins, bytes atomic.Int64
	grants, revokes, warnings               atomic.Int64

	audits   atomic.Int64 // requests for the keys on a lease
	auditing atomic.Int64 // the nanoseconds that they took
}

// log returns a logger that counts warnings and errors.
func (w *wire) log() *slog.Logger { return slog.New(warningCounter{w}) }

type warningCounter struct{ wire *wire }

func (warningCounter) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (c warningCounter) WithAttrs([]slog.Attr) slog.Handler         { return c }
func (c warningCounter) WithGroup(string) slog.Handler              { return c }

func (c warningCounter) Handle(context.Context, slog.Record) error {
	c.wire.warnings.Add(1)
	return nil
}

// dial is net.Dialer.DialContext.
func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if w.trip > 0 {
		conn = newFarConn(conn, w.trip)
	}
	return &countedConn{conn, w}, nil
}

// A farConn hands over what comes, in its order, a trip after it has come. Its reads have no
// deadline.
type farConn struct {
	net.Conn
	trip  time.Duration
	came  chan arrival
	open  context.Context
	close context.CancelFunc
	rest  []byte // of the last arrival
}

type arrival struct {
	data []byte
	err  error
	due  time.Time
}

func newFarConn(conn net.Conn, trip time.Duration) *farConn {
	c := &farConn{Conn: conn, trip: trip, came: make(chan arrival, 1024)}
	c.open, c.close = context.WithCancel(context.Background())
	go c.receive()
	return c
}

func (c *farConn) receive() {
	for {
		b := make([]byte, 32<<10)
		n, err := c.Conn.Read(b)
		select {
		case c.came <- arrival{b[:n], err, time.Now().Add(c.trip)}:
		case <-c.open.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (c *farConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		var a arrival
		select {
		case a = <-c.came:
		case <-c.open.Done():
			return 0, net.ErrClosed
		}
		if err := sleep(c.open, time.Until(a.due)); err != nil {
			return 0, net.ErrClosed
		}
		if a.err != nil {
			return copy(b, a.data), a.err // which has no data, as a rule
		}
		c.rest = a.data
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *farConn) Close() error {
	c.close()
	return c.Conn.Close()
}

type countedConn struct {
	net.Conn
	wire *wire
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wire.bytes.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.wire.bytes.Add(int64(n))
	return n, err
}

// dialOptions make a gRPC client count. The interceptors are behind etcd's own retries, so
// they see each attempt.
func (w *wire) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return w.dial(ctx, "tcp", addr)
		}),
		grpc.WithChainUnaryInterceptor(w.unary),
		grpc.WithChainStreamInterceptor(w.stream),
	}
}

func (w *wire) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	w.rpcs.Add(1)
	w.messages.Add(1)
	switch path.Base(method) {
	case "Authenticate":
		w.logins.Add(1)
	case "LeaseGrant":
		w.grants.Add(1)
	case "LeaseRevoke":
		w.revokes.Add(1)
	case "LeaseTimeToLive":
		w.audits.Add(1)
		defer func(began time.Time) { w.auditing.Add(int64(time.Since(began))) }(time.Now())
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil {
		w.messages.Add(1)
	}
	return err
}

func (w *wire) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
	method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &countedStream{s, w, path.Base(method) == "LeaseKeepAlive"}, nil
}

type countedStream struct {
	grpc.ClientStream
	wire   *wire
	renews bool
}

func (s *countedStream) SendMsg(msg any) error {
	s.wire.rpcs.Add(1)
	s.wire.messages.Add(1)
	if s.renews {
		s.wire.renewals.Add(1)
	}
	return s.ClientStream.SendMsg(msg)
}

func (s *countedStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if err == nil {
		s.wire.messages.Add(1)
	}
	return err
}
