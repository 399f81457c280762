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
	return &countedConn{conn, w}, nil
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
