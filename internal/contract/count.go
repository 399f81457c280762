package contract

import (
	"context"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A ClientOption changes the configuration of a client before it is made.
type ClientOption func(*clientv3.Config)

// An Interceptor stands between a client and the network: a *Counter, or the faults of
// package etcdtest.
type Interceptor interface {
	Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error
	Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error)
}

// With puts interceptors into a client, the first one nearest to the caller. A Counter
// before a Faults counts what the client tried; a Counter behind it counts what went to the
// network. The interceptors are behind the client's own retries, so they see each attempt.
func With(interceptors ...Interceptor) ClientOption {
	return func(cfg *clientv3.Config) {
		for _, i := range interceptors {
			cfg.DialOptions = append(cfg.DialOptions,
				grpc.WithChainUnaryInterceptor(i.Unary),
				grpc.WithChainStreamInterceptor(i.Stream))
		}
	}
}

// A Counter counts the calls of all clients that have it.
type Counter struct {
	mu     sync.Mutex
	counts Counts // at is when the Counter was made
}

// NewCounter returns a Counter that stands at zero.
func NewCounter() *Counter { return &Counter{counts: newCounts()} }

// Counts are numbers of calls by the method's short name, such as "Txn".
type Counts struct {
	Unary   map[string]int // attempts of unary calls
	Streams map[string]int // streams opened
	Sent    map[string]int // messages sent on streams

	at time.Time // of the reading
}

func newCounts() Counts {
	return Counts{
		Unary: map[string]int{}, Streams: map[string]int{}, Sent: map[string]int{}, at: time.Now(),
	}
}

const (
	// unrepeated is a time within which no attempt is repeated, and so no key and no lease in
	// doubt.
	unrepeated = 400 * time.Millisecond

	// unwatched is a time within which no hold gets a key watch, no waiter rechecks, and no
	// lease is renewed or audited.
	unwatched = 900 * time.Millisecond
)

// Exactly returns what was sent since an earlier reading, or since the Counter was made. ok is
// false if so much time has passed that it may have added to that, and Exactly has logged it.
// With exact times, the tests in virtual time ask for the same counts.
func (c *Counter) Exactly(t testing.TB, earlier Counts) (since Counts, ok bool) {
	t.Helper()
	since = c.Since(earlier)
	if earlier.at.IsZero() {
		earlier = c.counts
	}
	took, age := since.at.Sub(earlier.at), since.at.Sub(c.counts.at)
	if took >= unrepeated || age >= unwatched {
		t.Logf("%v in %v, %v after the first: not compared", since, took, age)
		return since, false
	}
	return since, true
}

// Costs compares what was sent since an earlier reading with a text as Counts.String has it, if
// it is exact, and returns whether it is.
func (c *Counter) Costs(t testing.TB, earlier Counts, want string) (exact bool) {
	t.Helper()
	since, exact := c.Exactly(t, earlier)
	if exact {
		require.Equal(t, want, since.String())
	}
	return exact
}

// Counts returns the counts so far.
func (c *Counter) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counts{
		Unary:   maps.Clone(c.counts.Unary),
		Streams: maps.Clone(c.counts.Streams),
		Sent:    maps.Clone(c.counts.Sent),
		at:      time.Now(),
	}
}

// Since returns the counts since an earlier reading.
func (c *Counter) Since(earlier Counts) Counts {
	now := c.Counts()
	for m, n := range earlier.Unary {
		now.Unary[m] -= n
	}
	for m, n := range earlier.Streams {
		now.Streams[m] -= n
	}
	for m, n := range earlier.Sent {
		now.Sent[m] -= n
	}
	return now
}

// Of returns the number of requests of a method: unary calls, or messages sent on its
// streams.
func (c Counts) Of(method string) int {
	MustKnow(method)
	return c.Unary[method] + c.Sent[method]
}

// Total returns the number of requests of all methods.
func (c Counts) Total() int {
	total := 0
	for _, n := range c.Unary {
		total += n
	}
	for _, n := range c.Sent {
		total += n
	}
	return total
}

// String lists the requests by method, such as "Txn 2, Watch 1".
func (c Counts) String() string {
	requests := maps.Clone(c.Unary)
	for m, n := range c.Sent {
		requests[m] += n
	}
	var parts []string
	for _, m := range slices.Sorted(maps.Keys(requests)) {
		if requests[m] != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", m, requests[m]))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func (c *Counter) add(kind map[string]int, method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind[path.Base(method)]++
}

func (c *Counter) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	c.add(c.counts.Unary, method)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *Counter) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
	method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	c.add(c.counts.Streams, method)
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &countedStream{ClientStream: s, counter: c, method: method}, nil
}

type countedStream struct {
	grpc.ClientStream
	counter *Counter
	method  string
}

func (s *countedStream) SendMsg(msg any) error {
	s.counter.add(s.counter.counts.Sent, s.method)
	return s.ClientStream.SendMsg(msg)
}

// methods are the short names of all methods of etcd, streams those that are streams.
var methods, streams = func() (map[string]bool, map[string]bool) {
	methods, streams := map[string]bool{"*": true}, map[string]bool{}
	for _, service := range []reflect.Type{
		reflect.TypeFor[pb.KVServer](), reflect.TypeFor[pb.WatchServer](),
		reflect.TypeFor[pb.LeaseServer](), reflect.TypeFor[pb.ClusterServer](),
		reflect.TypeFor[pb.MaintenanceServer](), reflect.TypeFor[pb.AuthServer](),
	} {
		for m := range service.NumMethod() {
			if m := service.Method(m); m.IsExported() {
				methods[m.Name] = true
				if m.Type.NumOut() == 1 { // only an error: it sends its answers by the stream
					streams[m.Name] = true
				}
			}
		}
	}
	return methods, streams
}()

// MustKnow panics if etcd has no method of that short name, or "*".
func MustKnow(method string) {
	if !methods[method] {
		panic("etcd has no method " + method)
	}
}

// IsStream reports whether a method is a stream.
func IsStream(method string) bool { return streams[method] }
