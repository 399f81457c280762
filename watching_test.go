package etcdlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
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
