package etcdlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// These are tests of how a waiter watches, and of what it takes for gone.

// twoRechecks is longer than a waiter needs to look at the line twice.
const twoRechecks = 4 * time.Second

// strangers puts n keys of contenders, which are no processes, before those of the test.
func strangers(t *testing.T, etcd *fake.Server, name string, n int) (keys []string, lease clientv3.LeaseID) {
	t.Helper()
	granted, err := etcd.Client("strangers").Grant(context.Background(), 3000)
	require.NoError(t, err)
	for range n {
		keys = append(keys, name+"/"+uuid.NewString())
		require.NoError(t, etcd.PutKey(keys[len(keys)-1], granted.ID))
	}
	return keys, granted.ID
}

// Somebody puts a key over, without its lease: it stands in line no more, as isIn says.
// Behind many a waiter watches that key alone, and only for its deletion, which never comes.
func TestAPredecessorWhoseKeyHasLostItsLeaseBlocksNobody(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, _ := strangers(t, etcd, "n", 12)
		mu := mutexIn(t, processIn(t, etcd, "a"), "n")
		in := make(chan error, 1)
		go func() { in <- mu.Lock(context.Background()) }()
		synctest.Wait()
		before := keys[len(keys)-1]
		require.NoError(t, etcd.PutKey(before, clientv3.NoLease))
		for _, key := range keys[:len(keys)-1] {
			require.Empty(t, in)
			etcd.DeleteKey(key)
		}
		start := time.Now()
		require.NoError(t, soonOr(t, in, "the waiter does not get in"))
		require.LessOrEqual(t, time.Since(start), twoRechecks)
		require.NoError(t, mu.Unlock(context.Background()))
		etcd.DeleteKey(before)
	})
}

// A predecessor whose key has another lease still stands in line. It is waited for without
// more requests than for any.
func TestAPredecessorWhoseKeyHasAnotherLeaseIsWaitedFor(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, _ := strangers(t, etcd, "n", 12)
		other, err := etcd.Client("other").Grant(context.Background(), 3000)
		require.NoError(t, err)
		mu := mutexIn(t, processIn(t, etcd, "a"), "n")
		in := make(chan error, 1)
		go func() { in <- mu.Lock(context.Background()) }()
		synctest.Wait()
		before := keys[len(keys)-1]
		require.NoError(t, etcd.PutKey(before, other.ID))
		for _, key := range keys[:len(keys)-1] {
			etcd.DeleteKey(key)
		}
		sent := len(etcd.Calls(fake.Range)) + len(etcd.Calls(fake.Watch))
		time.Sleep(time.Minute)
		require.Empty(t, in, "it got in beside one who stands before it")
		require.LessOrEqual(t, len(etcd.Calls(fake.Range))+len(etcd.Calls(fake.Watch)), sent+60)
		etcd.DeleteKey(before)
		require.NoError(t, soonOr(t, in, "the waiter does not get in"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The waiter's own key is put over. Whatever lease it has then, it is not the waiter's any
// more: it queues anew, also if nobody looks at the keys of the lease.
func TestAWaiterWhoseOwnKeyIsPutOverQueuesAnew(t *testing.T) {
	rows := []struct {
		promise string
		length  int
		another bool // lease, or none
	}{
		{"behind few, without a lease", 3, false},
		{"behind many, without a lease", 12, false},
		{"behind many, with another lease", 12, true},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				keys, another := strangers(t, etcd, "n", row.length)
				if !row.another {
					another = clientv3.NoLease
				}
				etcd.Intercept(fromNth(1, fake.TimeToLive, fake.Effect{Drop: true}))
				s := processIn(t, etcd, "a")
				mu := mutexIn(t, s, "n")
				in := make(chan error, 1)
				go func() { in <- mu.Lock(context.Background()) }()
				synctest.Wait()
				own := func() etcdlock.Contender {
					line, err := etcdlock.Contenders(context.Background(), etcd.Client("b"), "n")
					require.NoError(t, err)
					require.Len(t, line, row.length+1)
					return line[row.length]
				}
				place := own()
				require.NoError(t, etcd.PutKey(place.Key, another))
				time.Sleep(twoRechecks)
				require.Len(t, etcd.Keys("n/"), row.length+1)
				require.Greater(t, own().Token, place.Token, "it stands in line with a key that is not its own")
				require.Equal(t, s.Lease(), own().Lease)
				for _, key := range keys {
					require.Empty(t, in)
					etcd.DeleteKey(key)
				}
				require.NoError(t, soonOr(t, in, "the waiter does not get in"))
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// swallowing is a Watcher of the user's that hands on what has events, and nothing else.
type swallowing struct{ clientv3.Watcher }

func (w swallowing) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	out := make(chan clientv3.WatchResponse)
	in := w.Watcher.Watch(ctx, key, opts...)
	go func() { // ends with ctx
		defer close(out)
		for resp := range in {
			if len(resp.Events) == 0 && !resp.Canceled {
				continue
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// The first that the view hears is an event, and not that there is a watch. The line before
// that is unknown, so the view reads it then.
func TestAWatcherThatSwallowsTheCreatedNoticeDoesNoHarm(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, lease := strangers(t, etcd, "n", 3)
		client := etcd.Client("a")
		client.Watcher = swallowing{client.Watcher}
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(virtualTTL))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		mu := mutexIn(t, s, "n", etcdlock.WithLinger(time.Hour))
		in := make(chan error, 1)
		go func() { in <- mu.Lock(context.Background()) }()
		synctest.Wait()
		require.NoError(t, etcd.PutKey("n/config", clientv3.NoLease))
		etcd.DeleteKey("n/config")
		require.NoError(t, etcd.PutKey("n/"+uuid.NewString(), lease))
		for _, key := range keys {
			synctest.Wait()
			require.Empty(t, in)
			etcd.DeleteKey(key)
		}
		start := time.Now()
		require.NoError(t, soonOr(t, in, "the waiter does not get in"))
		require.Zero(t, time.Since(start), "the events have told")
		require.NoError(t, mu.Unlock(context.Background()))
		require.Len(t, etcd.Keys("n/"), 1, "the view knows of one who came later")
		etcd.DeleteKey(etcd.Keys("n/")[0])
		require.NoError(t, mu.Lock(context.Background()))
		synctest.Wait()
		require.NoError(t, mu.Unlock(context.Background()))
		time.Sleep(time.Minute)
		require.Len(t, etcd.Keys("n/"), 1, "the key does not linger")
	})
}

// The re-check of a view is refused, as by an administrator who takes the right away and
// gives it back. That is told to the one who waits then. Whoever waits after that has a view
// of its own time.
func TestARefusalIsToldToNoLaterWaiter(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, _ := strangers(t, etcd, "n", 1)
		s := processIn(t, etcd, "a")
		mu := mutexIn(t, s, "n")
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- mu.Lock(context.Background()) }()
		synctest.Wait()
		go func() { second <- mu.Lock(context.Background()) }()
		synctest.Wait()
		read := len(etcd.Calls(fake.Range))
		etcd.Intercept(onlyNth(read+1, fake.Range, fake.Effect{Before: rpctypes.ErrGRPCPermissionDenied}))
		require.ErrorIs(t, soonOr(t, first, "nobody is told"), rpctypes.ErrPermissionDenied)
		time.Sleep(time.Minute)
		require.Empty(t, second, "the second one is told of what is over")
		etcd.DeleteKey(keys[0])
		require.NoError(t, soonOr(t, second, "the second one does not get in"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}
