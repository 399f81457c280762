package board_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// fed is a board that is fed from an etcd in memory, and a client of that etcd.
func fed(t *testing.T, prefix string, opts ...grpc.DialOption) (
	b *board.Board, feed *board.Feed, client *clientv3.Client, server *sim.Cluster,
) {
	t.Helper()
	addr, server, err := sim.Serve()
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	client = contract.ClientOf(t, []string{addr})
	watching, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialOptions: opts,
		Logger: clientv3.NewCtxClient(t.Context()).GetLogger()})
	require.NoError(t, err)
	b = board.New()
	feed = &board.Feed{Board: b, Client: watching, Prefix: prefix, Timeout: 500 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with the test, which waits for it
		defer close(ended)
		feed.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended; watching.Close() })
	return b, feed, client, server
}

// shows waits until a picture is as a test wants it.
func shows(t *testing.T, b *board.Board, what string, is func(*board.Picture) bool) {
	t.Helper()
	for deadline := time.Now().Add(contract.Patience); ; time.Sleep(5 * time.Millisecond) {
		if is(b.Picture(time.Now(), 0)) {
			return
		}
		require.Falsef(t, time.Now().After(deadline), "the board does not show %s: %+v", what,
			b.Picture(time.Now(), 0))
	}
}

func holds(t *testing.T, client *clientv3.Client, name, owner string) *etcdlock.Mutex {
	t.Helper()
	mu, err := etcdlock.NewMutex(client, name, etcdlock.WithOwner(owner),
		etcdlock.WithTTL(time.Minute))
	require.NoError(t, err)
	t.Cleanup(func() { // after a set-back its lease is another's
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		mu.Close(ctx)
	})
	require.NoError(t, mu.Lock(t.Context()))
	return mu
}

// held is the owners of the locks that are held, by name.
func held(p *board.Picture) map[string]string {
	owners := make(map[string]string)
	for _, r := range p.Rows(nil) {
		if r.Holder != nil {
			owners[r.Name] = r.Holder.Owner
		}
	}
	return owners
}

// The board goes on through a compaction, a member that does not answer, an etcd that was set back
// and a lost event, as WatchHolder does.
func TestTheFeedHealsItself(t *testing.T) {
	t.Parallel()
	b, feed, client, server := fed(t, "jobs/")
	shows(t, b, "nothing", func(p *board.Picture) bool { return p.Revision > 0 })
	holds(t, client, "other", "elsewhere")
	first := holds(t, client, "jobs/a", "first")
	shows(t, b, "a hold", func(p *board.Picture) bool {
		return len(held(p)) == 1 && held(p)["jobs/a"] == "first"
	})
	feed.Look(b.Picture(time.Now(), 0).Locks)
	shows(t, b, "the lease", func(p *board.Picture) bool {
		return p.Leases[p.Locks[0].Places[0].Lease].Granted == 60
	})

	server.Freeze(0)
	shows(t, b, "that etcd is away", func(p *board.Picture) bool {
		return p.Trouble == fmt.Sprintf("etcd at %s did not answer in 500ms", client.Endpoints()[0])
	})
	server.Thaw(0)
	shows(t, b, "that it is back", func(p *board.Picture) bool { return p.Trouble == "" })

	// What is restored has as many keys as there were.
	before := server.Snapshot(false)
	require.NoError(t, first.Unlock(t.Context()))
	shows(t, b, "no hold", func(p *board.Picture) bool { return len(held(p)) == 0 })
	server.Compact()
	holds(t, client, "jobs/b", "second")
	shows(t, b, "the next", func(p *board.Picture) bool { return held(p)["jobs/b"] == "second" })
	server.Kill(0)
	server.SetBack(before, true, false, false)
	server.Boot(0)
	shows(t, b, "what was restored", func(p *board.Picture) bool {
		return len(held(p)) == 1 && held(p)["jobs/a"] == "first"
	})
	// A Session waits for a TTL after that; other programs do not.
	lease, err := client.Grant(t.Context(), 60)
	require.NoError(t, err)
	key := fmt.Sprintf("jobs/z/%x", int64(lease.ID))
	_, err = client.Put(t.Context(), key, `{"owner":"later"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	shows(t, b, "what comes later", func(p *board.Picture) bool {
		return held(p)["jobs/z"] == "later"
	})
}

// Each request of the first reading is bounded, and what is wrong names the address.
func TestAnEtcdThatNeverAnswersIsTroubleAtOnce(t *testing.T) {
	t.Parallel()
	bounds := make(chan time.Duration, 100)
	b, _, client, _ := fed(t, "", grpc.WithChainUnaryInterceptor(func(
		ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker,
		_ ...grpc.CallOption,
	) error {
		deadline, _ := ctx.Deadline()
		bounds <- time.Until(deadline)
		<-ctx.Done()
		return ctx.Err()
	}))
	require.LessOrEqual(t, <-bounds, 500*time.Millisecond)
	shows(t, b, "that etcd does not answer", func(p *board.Picture) bool {
		return p.Trouble == fmt.Sprintf("etcd at %s did not answer in 500ms", client.Endpoints()[0])
	})
	require.Zero(t, b.Picture(time.Now(), 0).Revision)
}

// A board of 10,000 locks takes little memory, and once it has read them few bytes.
func TestTenThousandLocks(t *testing.T) {
	const locks = 10_000
	var bytes atomic.Int64
	b, feed, client, _ := fed(t, "", grpc.WithContextDialer(
		func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			return counted{conn, &bytes}, err
		}))
	session, err := etcdlock.NewSession(client, etcdlock.WithTTL(10*time.Minute))
	require.NoError(t, err)
	t.Cleanup(func() { session.Close(context.Background()) })
	lease, err := client.Grant(t.Context(), 600)
	require.NoError(t, err)
	for i := 0; i < locks; i += 100 {
		var ops []clientv3.Op
		for n := i; n < i+100; n++ {
			key := fmt.Sprintf("orders/%06d/%08x-0000-4000-8000-%012x", n, n, n)
			value := fmt.Sprintf(`{"owner":"api-%d:1234","host":"vm-%d.example.net","pid":1234,`+
				`"info":"10.0.0.7:8080","ttl":600,"since":"2026-11-27T12:00:00.123456789Z"}`, n, n)
			ops = append(ops, clientv3.OpPut(key, value, clientv3.WithLease(lease.ID)))
		}
		_, err := client.Txn(t.Context()).Then(ops...).Commit()
		require.NoError(t, err)
	}
	shows(t, b, "all", func(p *board.Picture) bool { return len(p.Locks) == locks })

	// A second board reads them all at once.
	read := bytes.Load()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	second := board.New()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&board.Feed{Board: second, Client: feed.Client, Timeout: time.Minute}).Run(ctx)
	}()
	shows(t, second, "all", func(p *board.Picture) bool { return len(p.Locks) == locks })
	read = bytes.Load() - read
	runtime.GC()
	runtime.ReadMemStats(&after)
	memory := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	picture := time.Now()
	rows := second.Picture(picture, 0).Rows(nil)
	board.Sort(rows, board.ByWaiting)
	took := time.Since(picture)
	cancel()
	<-ended

	// Then it takes what its rechecks and questions about a lease take.
	idle := bytes.Load()
	time.Sleep(2 * time.Second)
	idle = (bytes.Load() - idle) / 2
	t.Logf("%d locks: %d kB read, %d kB of memory, %d bytes a second then; a picture takes %v",
		locks, read>>10, memory>>10, idle, took)
	require.Less(t, read, int64(locks*600))
	require.Less(t, memory, int64(locks*3000))
	require.Less(t, idle, int64(4<<10))
}

// Since when each holder holds is known soon, also of locks that are on no screen. An etcd that
// does not answer at first is asked again.
func TestSinceWhenEveryHolderHoldsIsAsked(t *testing.T) {
	t.Parallel()
	var refuse atomic.Int64
	refuse.Store(3)
	_, feed, client, _ := fed(t, "jobs/", grpc.WithChainUnaryInterceptor(func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if r, is := req.(*pb.RangeRequest); is && r.Revision > 0 && refuse.Add(-1) >= 0 {
			return status.Error(codes.Internal, "not now")
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}))
	var holders []*etcdlock.Mutex
	for n := range 20 {
		holders = append(holders, holds(t, client, fmt.Sprintf("jobs/%d", n), "first"))
	}
	next, err := etcdlock.NewMutex(client, "jobs/0", etcdlock.WithTTL(time.Minute))
	require.NoError(t, err)
	t.Cleanup(func() { next.Close(context.Background()) })
	locked := make(chan error, 1)
	go func() { locked <- next.Lock(t.Context()) }()
	require.Eventually(t, func() bool {
		line, err := etcdlock.Contenders(t.Context(), client, "jobs/0")
		return err == nil && len(line) == 2
	}, contract.Patience, time.Millisecond)
	require.NoError(t, holders[0].Unlock(t.Context()))
	require.NoError(t, <-locked)

	later := board.New()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		second := board.Feed{Board: later, Client: feed.Client, Prefix: "jobs/", Timeout: time.Second}
		second.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	shows(t, later, "since when all hold", func(p *board.Picture) bool {
		known := 0
		for _, l := range p.Locks {
			if !l.Places[0].Held.IsZero() {
				known++
			}
		}
		return known == 19 && len(p.Locks) == 20
	})
	shows(t, later, "that one has waited", func(p *board.Picture) bool {
		return p.Locks[0].Name == "jobs/0" && p.Locks[0].Places[0].Waited
	})
	require.Negative(t, refuse.Load())
}

// counted counts the bytes of a connection.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// An event that is lost on its way is found by a recheck.
func TestALostEventIsFound(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	b, _, client, _ := fed(t, "jobs/", grpc.WithChainStreamInterceptor(func(
		ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		streamer grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, conn, method, opts...)
		return lossy{stream, &lose}, err
	}))
	mu := holds(t, client, "jobs/a", "first")
	shows(t, b, "a hold", func(p *board.Picture) bool { return len(held(p)) == 1 })
	lose.Store(true)
	require.NoError(t, mu.Unlock(t.Context()))
	shows(t, b, "no hold", func(p *board.Picture) bool { return len(held(p)) == 0 })
	require.False(t, lose.Load(), "an event was lost")
}

// lossy loses an answer of a watch that has events.
type lossy struct {
	grpc.ClientStream
	lose *atomic.Bool
}

func (l lossy) RecvMsg(m any) error {
	err := l.ClientStream.RecvMsg(m)
	if watch, is := m.(*pb.WatchResponse); is && err == nil && len(watch.Events) > 0 &&
		l.lose.CompareAndSwap(true, false) {
		watch.Reset()
		return l.ClientStream.RecvMsg(m)
	}
	return err
}
