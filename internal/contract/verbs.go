package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
)

// Patient is a context for calls that must not block.
func Patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// ClientOf makes a client of the etcd at these addresses. It is closed when t ends.
func ClientOf(t testing.TB, endpoints []string, opts ...ClientOption) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: endpoints}
	for _, opt := range opts {
		opt(&cfg)
	}
	client, err := clientv3.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// ExampleClient makes a client for an example, which has no test to fail.
func ExampleClient(endpoints []string) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	Must(err)
	return client
}

// Must ends an example that went wrong.
func Must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// steady is a TTL in which a busy machine renews a lease in time.
const steady = time.Minute

// NewMutex is that of the library for a test: the Cleanup closes the Mutex, and any error fails the
// test. Unless an option says otherwise the lease has a TTL of a minute.
func NewMutex(
	t *testing.T, client *clientv3.Client, name string, opts ...etcdlock.SessionOption,
) *etcdlock.Mutex {
	t.Helper()
	opts = append([]etcdlock.SessionOption{etcdlock.WithTTL(steady)}, opts...)
	mu, err := etcdlock.NewMutex(client, name, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mu.Close(context.Background())) })
	return mu
}

// NewSession is NewSession for a test, as NewMutex is.
func NewSession(
	t *testing.T, client *clientv3.Client, opts ...etcdlock.SessionOption,
) *etcdlock.Session {
	t.Helper()
	opts = append([]etcdlock.SessionOption{etcdlock.WithTTL(steady)}, opts...)
	s, err := etcdlock.NewSession(client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

// MutexOf is Session.Mutex for a test.
func MutexOf(
	t *testing.T, s *etcdlock.Session, name string, opts ...etcdlock.Option,
) *etcdlock.Mutex {
	t.Helper()
	mu, err := s.Mutex(name, opts...)
	require.NoError(t, err)
	return mu
}

// StillHolds fails the test unless mu holds its lock, in etcd's eyes too.
func StillHolds(t *testing.T, client *clientv3.Client, mu *etcdlock.Mutex) {
	t.Helper()
	require.NotZero(t, mu.Token())
	require.NoError(t, mu.Context(context.Background()).Err())
	resp, err := client.Txn(context.Background()).If(mu.IsOwner()).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded, "the key of the hold is there")
}

// WaitForLine waits until n contenders stand in etcd's line.
func WaitForLine(t *testing.T, client *clientv3.Client, name string, n int) []etcdlock.Contender {
	t.Helper()
	var line []etcdlock.Contender
	require.Eventually(t, func() bool {
		var err error
		line, err = etcdlock.Contenders(context.Background(), client, name)
		return err == nil && len(line) == n
	}, Patience, 2*time.Millisecond, "%d contenders for %q", n, name)
	return line
}

// theirsWaits makes a concurrency.Mutex wait for "x", as the last of n in line. The channel
// in gets the result of its Lock. It has a client of its own.
func theirsWaits(t *testing.T, cluster Etcd, n int) (peer *concurrency.Mutex, in <-chan error) {
	t.Helper()
	client := cluster.Client(t)
	s, err := concurrency.NewSession(client)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	peer = concurrency.NewMutex(s, "x")
	in = Async(func() error { return peer.Lock(Patient(t)) })
	line := WaitForLine(t, client, "x", n)
	require.Equal(t, etcdlock.ModeExclusive, line[n-1].Mode)
	require.False(t, line[n-1].Holds)
	return peer, in
}

// Await waits for n signals.
func Await(t testing.TB, signal <-chan struct{}, n int) {
	t.Helper()
	patience := time.After(Patience)
	for i := range n {
		select {
		case <-signal:
		case <-patience:
			t.Fatalf("%d signals came, want %d", i, n)
		}
	}
}

// Async runs f and returns a channel with its error.
func Async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// countdown is a critical section that fails the test when two are in it at once.
type countdown struct{ inside atomic.Int32 }

func (c *countdown) enter(t *testing.T) {
	if c.inside.Add(1) != 1 {
		t.Error("two hold the lock at once")
	}
	runtime.Gosched()
	c.inside.Add(-1)
}

// countAnswers counts the unary calls of a client that succeed.
func countAnswers(n *atomic.Int32) ClientOption {
	return func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if err == nil {
					n.Add(1)
				}
				return err
			}))
	}
}

// A WriterFunc is a function that is a Writer.
type WriterFunc func([]byte) (int, error)

func (f WriterFunc) Write(p []byte) (int, error) { return f(p) }

// LibraryGoroutines counts the goroutines that the library has started and that still run,
// without those in the functions named.
func LibraryGoroutines(except ...string) (n int) {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		in := func(function string) bool {
			return bytes.Contains(stack, []byte("github.com/etcdlock/etcdlock."+function+"("))
		}
		if bytes.Contains(stack, []byte("created by github.com/etcdlock/etcdlock.(")) &&
			!slices.ContainsFunc(except, in) {
			n++
		}
	}
	return n
}

// HoldMany locks n names by one Session, and returns the contexts of the holds.
func HoldMany(t *testing.T, s *etcdlock.Session, prefix string, n int) (holds []context.Context) {
	t.Helper()
	for i := range n {
		mu := MutexOf(t, s, fmt.Sprintf("%s%d", prefix, i))
		require.NoError(t, mu.Lock(Patient(t)))
		holds = append(holds, mu.Context(context.Background()))
	}
	return holds
}

// LocalLine waits until n goroutines of the Session stand in the local line for the name.
func LocalLine(t *testing.T, s *etcdlock.Session, name string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var locked *etcdlock.LockedError
		ok := errors.As(MutexOf(t, s, name).TryLock(t.Context()), &locked)
		return ok && locked.Ahead == n
	}, Patience, time.Millisecond, "%d in line", n)
}

// AddUser makes a user with a role of its own, of the same name.
func AddUser(ctx context.Context, t testing.TB, admin *clientv3.Client, user, password string) {
	t.Helper()
	_, err := admin.RoleAdd(ctx, user)
	require.NoError(t, err)
	_, err = admin.UserAdd(ctx, user, password)
	require.NoError(t, err)
	_, err = admin.UserGrantRole(ctx, user, user)
	require.NoError(t, err)
}
