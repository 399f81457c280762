package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
)

// A program has code of its own in gRPC: it falls at one of its calls.
type program struct {
	fall func()
	at   atomic.Int64 // at which it falls, 0 for none
	made atomic.Int64
}

// runs is a call of the program's code for a method. clientv3 opens the stream of its watches in a
// goroutine of its own, where what falls ends the process.
func (p *program) runs(method string) {
	if !strings.Contains(method, "etcdserverpb.Watch") && p.made.Add(1) == p.at.Load() {
		p.fall()
	}
}

// GetRequestMetadata is of the program's credentials (credentials.PerRPCCredentials).
func (p *program) GetRequestMetadata(
	_ context.Context, uri ...string,
) (map[string]string, error) {
	p.runs(uri[0])
	return nil, nil
}

func (*program) RequireTransportSecurity() bool { return false }

func (p *program) unary(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	p.runs(method)
	return invoke(ctx, method, in, out, cc, opts...)
}

func (p *program) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
	method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	p.runs(method)
	return stream(ctx, desc, cc, method, opts...)
}

// Credentials or an interceptor of the program fall, at each of their calls in turn, while 8 calls
// lock names. Some of these fall, as they would alone; no other goroutine does. Afterwards each
// name can be had, and Close ends.
func TestOnlyCallsFallWithWhatIsInGRPC(t *testing.T) {
	const names = 8
	for name, within := range map[string]func(p *program) grpc.DialOption{
		"credentials": func(p *program) grpc.DialOption { return grpc.WithPerRPCCredentials(p) },
		"a unary interceptor": func(p *program) grpc.DialOption {
			return grpc.WithChainUnaryInterceptor(p.unary)
		},
		"a stream interceptor": func(p *program) grpc.DialOption {
			return grpc.WithChainStreamInterceptor(p.stream)
		},
	} {
		for how, fall := range map[string]func(){
			"panic": func() { panic(errors.New("boom")) }, "Goexit": runtime.Goexit,
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				falls, fell := int64(0), 0
				for at := int64(1); at < 100; at++ {
					p := &program{fall: fall}
					p.at.Store(at)
					require.NoError(t, inBubble(t, 1, func(t *testing.T) {
						fell += p.locks(t, names, within(p))
					}), "at %d", at)
					if p.made.Load() < at {
						break
					}
					falls++
				}
				t.Logf("%d falls, and %d calls that fell with them", falls, fell)
				require.NotZero(t, falls)
				require.Equal(t, name != "a stream interceptor", fell > 0)
			})
		}
	}
}

// locks has names locked and unlocked, each by a call of its own and for two renewals, and returns
// how many of these calls have fallen.
func (p *program) locks(t *testing.T, names int, within grpc.DialOption) (fell int) {
	net := NewNet(1)
	cluster := NewCluster(1, net, 1)
	client, err := net.Client("one", []string{"http://m0"}, within)
	require.NoError(t, err)
	s, err := etcdlock.NewSession(client, etcdlock.WithTTL(3*time.Second))
	require.NoError(t, err)
	var (
		mu    sync.Mutex
		calls sync.WaitGroup
	)
	for i := range names {
		calls.Add(1)
		go func() {
			returned := false
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				if recover() != nil || !returned {
					fell++
				}
				calls.Done()
			}()
			err := s.Do(context.Background(), fmt.Sprint("n", i), func(context.Context) error {
				time.Sleep(3 * time.Second)
				return nil
			})
			returned = err == nil
		}()
	}
	calls.Wait()
	p.at.Store(0)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for i := range names {
		require.NoError(t, s.Do(ctx, fmt.Sprint("n", i), func(context.Context) error { return nil }))
	}
	require.NoError(t, s.Close(ctx))
	_ = client.Close()
	net.Close()
	cluster.Stop()
	return fell
}
