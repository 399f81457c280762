package sim

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// A granting is a process whose requests for leases meet faults.
type granting struct {
	faulty atomic.Bool
	asked  atomic.Int32 // since it is faulty
	effect func(ctx context.Context, nth int, send func(context.Context) error) error
}

func (g *granting) unary(
	ctx context.Context, method string, in, out any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if !g.faulty.Load() || !strings.HasSuffix(method, "/LeaseGrant") {
		return invoke(ctx, method, in, out, cc, opts...)
	}
	return g.effect(ctx, int(g.asked.Add(1)), func(ctx context.Context) error {
		return invoke(ctx, method, in, out, cc, opts...)
	})
}

// How the answer to a request for a lease is lost.
func inSilence(ctx context.Context, send func(context.Context) error) error {
	_ = send(ctx)
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func asAnError(ctx context.Context, send func(context.Context) error) error {
	_ = send(ctx)
	return status.Error(codes.Unavailable, "the answer is lost")
}

func asNoSpace(ctx context.Context, send func(context.Context) error) error {
	_ = send(ctx)
	return rpctypes.ErrGRPCNoSpace // of etcd, after it has granted the lease
}

// An Unlock before a least time of 14 hours asks for a lease of as long. Whatever becomes of the
// requests and of their answers, no such lease is left but one, with the key for which it is.
func TestALeaseOfAKeyThatDoesNotStayIsGivenBack(t *testing.T) {
	type lost = func(ctx context.Context, send func(context.Context) error) error
	first := func(n int, how lost) func(context.Context, int, func(context.Context) error) error {
		return func(ctx context.Context, nth int, send func(context.Context) error) error {
			if nth > n {
				return send(ctx)
			}
			return how(ctx, send)
		}
	}
	const all = 1 << 30
	late := func(ctx context.Context, send func(context.Context) error) error {
		time.AfterFunc(time.Minute, func() { _ = send(context.WithoutCancel(ctx)) })
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	for _, row := range []struct {
		promise string
		effect  func(ctx context.Context, nth int, send func(context.Context) error) error
		deleted bool // the key, meanwhile
		says    error
		after   int // leases beside the Session's after ten minutes
		left    int // leases after Close
	}{
		{"all is well", first(0, nil), false, nil, 1, 1},
		{"the first answer is lost", first(1, inSilence), false, nil, 1, 1},
		{"the first answers are lost, as errors", first(9, asAnError), false, nil, 1, 1},
		{"all answers are lost", first(all, inSilence), false, etcdlock.ErrUnconfirmed, 1, 0},
		{"all answers are lost, as errors", first(all, asAnError), false, etcdlock.ErrUnconfirmed, 1, 0},
		{"etcd has no space", first(all, asNoSpace), false, etcdlock.ErrUnconfirmed, 1, 0},
		{"no request comes in time", first(all, late), false, etcdlock.ErrUnconfirmed, 1, 0},
		{"the key is gone", first(0, nil), true, etcdlock.ErrLost, 0, 0},
		{"the key is gone, and the first answer lost", first(1, inSilence), true, etcdlock.ErrLost, 0, 0},
		{"the key is gone, and the first answers lost, as errors", first(9, asAnError), true,
			etcdlock.ErrLost, 0, 0},
		{"the key is gone, and the first request comes late", first(1, late), true,
			etcdlock.ErrLost, 0, 0},
	} {
		t.Run(row.promise, func(t *testing.T) {
			require.NoError(t, inBubble(t, 1, func(t *testing.T) {
				net := NewNet(1)
				cluster := NewCluster(1, net, 1)
				g := &granting{effect: row.effect}
				client, err := net.Client("one", []string{"http://m0"},
					grpc.WithChainUnaryInterceptor(g.unary))
				require.NoError(t, err)
				s, err := etcdlock.NewSession(client)
				require.NoError(t, err)
				h, err := s.Lock(t.Context(), "n", etcdlock.WithMinHold(14*time.Hour))
				require.NoError(t, err)

				if row.deleted {
					cluster.DeleteKey(h.Key())
				}
				g.faulty.Store(true)
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				unlocked := h.Unlock(ctx)
				cancel()
				g.faulty.Store(false)
				if row.says == nil {
					require.NoError(t, unlocked)
				} else {
					require.ErrorIs(t, unlocked, row.says)
				}
				time.Sleep(10 * time.Minute)
				beside, kept := 0, 0
				count := func(view fake.View) {
					beside, kept = 0, 0
					for _, id := range view.Leases() {
						if id != int64(s.Lease()) {
							beside++
						}
						if _, keys, _ := view.Lease(id); len(keys) > 0 {
							kept++
						}
					}
				}
				cluster.Now(count)
				require.LessOrEqual(t, beside, row.after, "leases beside the Session's")
				require.NoError(t, s.Close(context.Background()))
				cluster.Now(count)
				require.Equal(t, row.left, beside, "leases after Close")
				require.Equal(t, row.left, kept, "of them, with a key")
				_ = client.Close()
				net.Close()
				cluster.Stop()
			}))
		})
	}
}

// Close says if it could not give such a lease back, though it has given back the Session's own.
func TestACloseSaysThatALeaseIsLeft(t *testing.T) {
	require.NoError(t, inBubble(t, 1, func(t *testing.T) {
		net := NewNet(1)
		cluster := NewCluster(1, net, 1)
		var own int64
		silent := func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			grant, grants := in.(*pb.LeaseGrantRequest)
			revoke, revokes := in.(*pb.LeaseRevokeRequest)
			if grants && grant.TTL > 3600 {
				return inSilence(ctx, func(ctx context.Context) error {
					return invoke(ctx, method, in, out, cc, opts...)
				})
			}
			if revokes && revoke.ID != own {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}
			return invoke(ctx, method, in, out, cc, opts...)
		}
		client, err := net.Client("one", []string{"http://m0"}, grpc.WithChainUnaryInterceptor(silent))
		require.NoError(t, err)
		s, err := etcdlock.NewSession(client)
		require.NoError(t, err)
		h, err := s.Lock(t.Context(), "n", etcdlock.WithMinHold(14*time.Hour))
		require.NoError(t, err)
		own = int64(s.Lease())
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, h.Unlock(ctx), etcdlock.ErrUnconfirmed)
		ctx, cancel = context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, s.Close(ctx), etcdlock.ErrUnconfirmed)
		var left []int64
		cluster.Now(func(view fake.View) { left = view.Leases() })
		require.Len(t, left, 1)
		require.NotEqual(t, own, left[0])
		_ = client.Close()
		net.Close()
		cluster.Stop()
	}))
}

// etcd says of a lease that it exists, and the client takes that for the answer to its own earlier
// request: the one that it asks for has an ID of its own, whatever it is granted for.
func TestEachKeyThatStaysHasALeaseOfItsOwn(t *testing.T) {
	var ids []int64
	require.NoError(t, inBubble(t, 1, func(t *testing.T) {
		net := NewNet(1)
		cluster := NewCluster(1, net, 1)
		client, err := net.Client("one", []string{"http://m0"}, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if grant, is := in.(*pb.LeaseGrantRequest); is && grant.TTL == 3600 {
					ids = append(ids, grant.ID)
				}
				return invoke(ctx, method, in, out, cc, opts...)
			}))
		require.NoError(t, err)
		s, err := etcdlock.NewSession(client)
		require.NoError(t, err)
		for _, name := range []string{"a", "b", "c"} {
			h, err := s.Lock(t.Context(), name, etcdlock.WithMinHold(time.Hour))
			require.NoError(t, err)
			require.NoError(t, h.Unlock(context.Background()))
		}
		time.Sleep(time.Hour + time.Second)
		var left []int64
		cluster.Now(func(view fake.View) { left = view.Leases() })
		require.LessOrEqual(t, len(left), 1, "the Session's")
		require.NoError(t, s.Close(context.Background()))
		cluster.Now(func(view fake.View) { left = view.Leases() })
		require.Empty(t, left)
		_ = client.Close()
		net.Close()
		cluster.Stop()
	}))
	require.Len(t, ids, 3)
	seen := make(map[int64]bool)
	for _, id := range ids {
		require.Positive(t, id)
		require.False(t, seen[id])
		seen[id] = true
	}
}
