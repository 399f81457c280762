package watching

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
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about how a waiter watches, and what it takes for gone.

// twoRechecks is longer than a waiter needs to recheck the line twice.
const twoRechecks = 4 * time.Second

// getsInUnwatched waits until the rechecks have let a waiter in. Then the waiter unlocks.
func getsInUnwatched(t *testing.T, mu *etcdlock.Mutex, in <-chan error) {
	t.Helper()
	start := time.Now()
	require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
	require.LessOrEqual(t, time.Since(start), twoRechecks)
	require.NoError(t, mu.Unlock(context.Background()))
}

// Somebody puts a key over, without its lease, so it no longer stands in line. Behind many
// a waiter watches that key alone, and only for its deletion, which never comes.
func TestAPredecessorWhoseKeyHasLostItsLeaseBlocksNobody(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu, in := tests.WaitsBehind(t, etcd, 12)
		before := keys[len(keys)-1]
		require.NoError(t, etcd.PutKey(before, clientv3.NoLease))
		for _, key := range keys[:len(keys)-1] {
			require.Empty(t, in)
			etcd.DeleteKey(key)
		}
		getsInUnwatched(t, mu, in)
		etcd.DeleteKey(before)
	})
}

// The key of the one before gets another lease, and still stands in line. To wait for it
// costs no more requests than to wait for any other.
func TestAPredecessorWhoseKeyHasAnotherLeaseIsWaitedFor(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, _ := tests.Strangers(t, etcd, "n", 12)
		other, err := etcd.Client("other").Grant(context.Background(), 3000)
		require.NoError(t, err)
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		in := tests.LockLater(mu)
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
		require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// The waiter's own key is put over. Whatever lease the key has then, it is not the waiter's
// any more. The waiter queues anew, even if no audit reads the keys of the lease.
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				keys, another := tests.Strangers(t, etcd, "n", row.length)
				if !row.another {
					another = clientv3.NoLease
				}
				etcd.Intercept(tests.FromNth(1, fake.TimeToLive, fake.Effect{Drop: true}))
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n")
				in := tests.LockLater(mu)
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
				require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// swallowing is a user's Watcher that passes on responses with events, and nothing else.
type swallowing struct{ clientv3.Watcher }

func (w swallowing) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
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

// The first response that the view gets is an event, and not the created notice. The line
// before that is unknown, so the view reads it then.
func TestAWatcherThatSwallowsTheCreatedNoticeDoesNoHarm(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, lease := tests.Strangers(t, etcd, "n", 3)
		client := etcd.Client("a")
		client.Watcher = swallowing{client.Watcher}
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		mu := contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Hour))
		in := tests.LockLater(mu)
		require.NoError(t, etcd.PutKey("n/config", clientv3.NoLease))
		etcd.DeleteKey("n/config")
		require.NoError(t, etcd.PutKey("n/"+uuid.NewString(), lease))
		for _, key := range keys {
			synctest.Wait()
			require.Empty(t, in)
			etcd.DeleteKey(key)
		}
		start := time.Now()
		require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
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

// The recheck of a view is refused, as by an administrator that takes the right away and
// gives it back. The waiter of that time gets the error. A later waiter has a view of its
// own time.
func TestARefusalIsToldToNoLaterWaiter(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, _ := tests.Strangers(t, etcd, "n", 1)
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- mu.Lock(context.Background()) }()
		synctest.Wait()
		go func() { second <- mu.Lock(context.Background()) }()
		synctest.Wait()
		txns, reads := len(etcd.Calls(fake.Txn)), len(etcd.Calls(fake.Range)) // of one process
		etcd.Intercept(func(c fake.Call) fake.Effect {
			next := c.Method == fake.Txn && c.N == txns+1 || c.Method == fake.Range && c.N == reads+1
			if !next {
				return fake.Effect{}
			}
			return fake.Effect{Before: rpctypes.ErrGRPCPermissionDenied}
		})
		require.ErrorIs(t, tests.SoonOr(t, first, "nobody is told"), rpctypes.ErrPermissionDenied)
		time.Sleep(time.Minute)
		require.Empty(t, second, "the second one is told of what is over")
		etcd.DeleteKey(keys[0])
		require.NoError(t, tests.SoonOr(t, second, "the second one does not get in"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}
