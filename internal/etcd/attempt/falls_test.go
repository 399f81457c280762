package attempt

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/guard"
)

// What the user's code panics with is no answer of etcd, though it looks like one, and a write may
// have been carried out.
func TestAFallIsNoAnswer(t *testing.T) {
	for _, value := range []error{
		status.Error(codes.PermissionDenied, "etcdserver: permission denied"),
		status.Error(codes.Unavailable, "etcdserver: not capable"),
		ErrUnreachable, ErrNoAnswer, context.Canceled,
	} {
		_, err := guard.Apart(func() (int, error) { panic(value) })
		for _, err := range []error{err, errors.Join(errors.New("lock"), err)} {
			require.NotNil(t, guard.FallIn(err))
			require.Error(t, Fallen(err))
			require.False(t, Refused(err) || NotApplied(err) || IsAnswer(err), "%v", value)
			require.False(t, Absent(err) || Overloaded(err), "%v", value)
			require.True(t, Settles(err))
		}
	}
	require.NoError(t, Fallen(ErrNoAnswer))
	require.NoError(t, Fallen(nil))
}

// An attempt in which the user's code falls, in the goroutine of the call or apart, is over for the
// others. It says nothing of how fast etcd is.
func TestAnAttemptThatFallsIsOverAndNoAnswer(t *testing.T) {
	for name, fall := range map[string]func(){
		"panic": func() { panic("boom") }, "Goexit": runtime.Goexit,
	} {
		for how, f := range map[string]func(context.Context, bool) (int, error){
			"apart": func(context.Context, bool) (int, error) {
				return guard.Apart(func() (int, error) { fall(); return 0, nil })
			},
			"in the goroutine of the call": func(context.Context, bool) (int, error) {
				fall()
				return 0, nil
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, stop := context.WithCancel(context.Background())
					defer stop()
					c := caller(ctx)
					over := make(chan struct{})
					go func() {
						defer close(over)
						defer func() { _ = recover() }()
						_, _, err := Do(ctx, c, &Backoff{}, time.Second, f, nil)
						require.Error(t, Fallen(err))
					}()
					<-over
					m := &c.link.limiter
					require.Zero(t, m.answers)
					require.Zero(t, m.others.under)
					require.Zero(t, c.link.flights)
					require.Zero(t, c.asking)
				})
			})
		}
	}
}

// While the client has no connection the library asks gRPC for the reason, in the goroutine of a
// call, and with a mutex. The user's code may fall in that.
func TestTheCodeThatIsAskedWhyThereIsNoConnectionMayFall(t *testing.T) {
	for name, fall := range map[string]func(){
		"panic": func() { panic("boom") }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			closed, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			require.NoError(t, closed.Close())
			client, err := clientv3.New(clientv3.Config{
				Endpoints: []string{closed.Addr().String()},
				DialOptions: []grpc.DialOption{
					grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithChainUnaryInterceptor(func(context.Context, string, any, any,
						*grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
						fall()
						return nil
					}),
				},
			})
			require.NoError(t, err)
			defer client.Close()
			conn := client.ActiveConnection()
			conn.Connect()
			for s := conn.GetState(); s != connectivity.TransientFailure; s = conn.GetState() {
				require.True(t, conn.WaitForStateChange(t.Context(), s))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			c := NewCaller(ctx, client, time.Minute, func(f func()) { go f() }, nil)
			_, _, err = Do(ctx, c, &Backoff{}, time.Second, func(context.Context, bool) (int, error) {
				return 0, nil
			}, nil)
			require.ErrorIs(t, err, ErrUnreachable)
			require.ErrorContains(t, err, "the program's own code has")
			require.Zero(t, c.link.flights)
		})
	}
}
