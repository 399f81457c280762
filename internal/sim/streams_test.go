package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
)

// A watching is a process whose streams of watches the test counts.
type watching struct {
	guard  sync.Mutex // never held across a wait
	opened []context.Context
}

func (w *watching) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if strings.HasSuffix(method, "/Watch") {
		w.guard.Lock()
		w.opened = append(w.opened, ctx)
		w.guard.Unlock()
	}
	return open(ctx, desc, cc, method, opts...)
}

// open returns how many streams of watches are open, and how many were opened so far.
func (w *watching) open() (open, opened int) {
	w.guard.Lock()
	defer w.guard.Unlock()
	for _, ctx := range w.opened {
		if ctx.Err() == nil {
			open++
		}
	}
	return open, len(w.opened)
}

// Whenever a wait ends, and however the loop over a WatchHolder does, no stream of watches stays
// open in the client.
func TestNoStreamOfWatchesStaysOpen(t *testing.T) {
	type world struct {
		client  *clientv3.Client
		changes func()            // who holds, a second later
		s       *etcdlock.Session // of client
		streams *watching
	}
	waits := func(name string) func(_ *testing.T, ctx context.Context, end func(), w world) {
		return func(t *testing.T, _ context.Context, _ func(), w world) {
			mu, err := w.s.Mutex(name)
			require.NoError(t, err)
			const step = 10 * time.Millisecond
			for after := step; after < 300*time.Millisecond; after += step {
				ctx, cancel := context.WithTimeout(context.Background(), after)
				require.Error(t, mu.Lock(ctx))
				cancel()
				time.Sleep(10 * time.Second) // until its view, if it has one, is not needed any more
				open, _ := w.streams.open()
				require.Zero(t, open, "the wait ended after %v", after)
			}
		}
	}
	for what, follow := range map[string]func(t *testing.T, ctx context.Context, end func(), w world){
		"it breaks at once": func(_ *testing.T, ctx context.Context, _ func(), w world) {
			for range etcdlock.WatchHolder(ctx, w.client, "n") {
				break
			}
		},
		"it breaks after a change": func(_ *testing.T, ctx context.Context, _ func(), w world) {
			w.changes()
			seen := 0
			for range etcdlock.WatchHolder(ctx, w.client, "n") {
				if seen++; seen == 2 {
					break
				}
			}
		},
		"its context ends while it waits": func(_ *testing.T, ctx context.Context, end func(), w world) {
			time.AfterFunc(10*time.Second, end)
			for range etcdlock.WatchHolder(ctx, w.client, "n") {
			}
		},
		"its context ends in the loop": func(_ *testing.T, ctx context.Context, end func(), w world) {
			for range etcdlock.WatchHolder(ctx, w.client, "n") {
				end()
			}
		},
		"its context ends while a watch begins": func(_ *testing.T, ctx context.Context,
			end func(), w world) {
			for range etcdlock.WatchHolder(ctx, w.client, "n") {
				time.AfterFunc(20*time.Millisecond, end)
			}
		},
		"a wait behind few ends":  waits("n"),
		"a wait behind many ends": waits("many"),
	} {
		t.Run(what, func(t *testing.T) {
			require.NoError(t, inBubble(t, 1, func(t *testing.T) {
				net := NewNet(1)
				cluster := NewCluster(1, net, members)
				w := &watching{}
				endpoints := []string{"http://m0", "http://m1", "http://m2"}
				client, err := net.Client("one", endpoints, grpc.WithChainStreamInterceptor(w.stream))
				require.NoError(t, err)
				for m := range members { // a watch begins 40 ms after it is asked for
					net.Slow("one", fmt.Sprint("m", m), 20*time.Millisecond)
					net.Slow(fmt.Sprint("m", m), "one", 20*time.Millisecond)
				}
				other, err := net.Client("two", endpoints)
				require.NoError(t, err)
				holder, err := etcdlock.NewSession(other)
				require.NoError(t, err)
				mu, err := holder.Mutex("n")
				require.NoError(t, err)
				require.NoError(t, mu.Lock(t.Context()))
				changes := func() {
					time.AfterFunc(time.Second, func() {
						require.NoError(t, mu.Unlock(context.Background()))
						require.NoError(t, mu.Lock(context.Background()))
					})
				}
				for range 12 {
					_, err := other.Put(t.Context(), "many/"+uuid.NewString(), "",
						clientv3.WithLease(holder.Lease()))
					require.NoError(t, err)
				}
				s, err := etcdlock.NewSession(client)
				require.NoError(t, err)
				for range 3 {
					ctx, end := context.WithCancel(context.Background())
					follow(t, ctx, end, world{client, changes, s, w})
					end()
					time.Sleep(time.Second)
					open, opened := w.open()
					require.Zero(t, open, "of %d", opened)
				}
				require.NoError(t, s.Close(context.Background()))
				require.NoError(t, holder.Close(context.Background()))
				_ = client.Close()
				_ = other.Close()
				net.Close()
				cluster.Stop()
			}))
		})
	}
}
