//go:build timed

package contract_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// namespaced puts parts of a client into a namespace, as etcd's documentation shows it.
func namespaced(client *clientv3.Client, prefix string, withLease bool) *clientv3.Client {
	client.KV = namespace.NewKV(client.KV, prefix)
	client.Watcher = namespace.NewWatcher(client.Watcher, prefix)
	if withLease {
		client.Lease = namespace.NewLease(client.Lease, prefix)
	}
	return client
}

// Rule 16. Without a namespaced Lease the audits of the lease's keys see other names. They
// must neither end a hold nor delete a key that is not the Session's.
func TestANamespacedClientHoldsLikeAnyOther(t *testing.T) {
	for about, withLease := range map[string]bool{
		"all of it in the namespace":     true,
		"the Lease not in the namespace": false,
	} {
		t.Run(about, func(t *testing.T) {
			cluster := etcdtest.Start(t, 1)
			faults := etcdtest.NewFaults(t)
			outside := cluster.Client(t)
			contract.VerifyClean(t, outside, "")
			const ttl = 4 * time.Second
			inside := namespaced(cluster.Client(t, contract.With(faults)), "tenant-7/", withLease)
			// The same name outside, and in a namespace inside the namespace, is another
			// lock.
			neighbour := contract.NewMutex(t, outside, "a")
			require.NoError(t, neighbour.Lock(contract.Patient(t)))

			ctx := contract.Patient(t)
			s := contract.NewSession(t, inside, etcdlock.WithTTL(ttl))
			mu, other := contract.MutexOf(t, s, "a"),
				contract.NewMutex(t, inside, "a", etcdlock.WithTTL(ttl))
			require.NoError(t, mu.Lock(ctx))
			began, lease, hold := time.Now(), s.Lease(), mu.Context(ctx)
			raw, err := outside.Get(ctx, "tenant-7/"+mu.Key())
			require.NoError(t, err)
			require.Len(t, raw.Kvs, 1, "the key is in the namespace")
			require.Equal(t, mu.Token(), raw.Kvs[0].CreateRevision)

			waited := contract.Async(func() error { return other.Lock(ctx) })
			contract.WaitForLine(t, inside, "a", 2)
			// When the holder sends its second audit, the first one is certainly complete.
			looks := faults.Inject(etcdtest.Delay("LeaseTimeToLive", 1))
			looks.Await(2)
			time.Sleep(time.Until(began.Add(ttl))) // nothing announces that only a renewed lease is left
			require.NoError(t, hold.Err(), "lost: %v", context.Cause(hold))
			contract.StillHolds(t, inside, mu)
			require.Len(t, contract.WaitForLine(t, inside, "a", 2), 2)
			require.ErrorIs(t, contract.MutexOf(t, s, "a").TryLock(ctx), etcdlock.ErrLocked)
			require.NoError(t, mu.Unlock(ctx))
			require.NoError(t, receive(t, waited, "the lock"))
			contract.StillHolds(t, inside, other)
			require.Equal(t, lease, s.Lease(), "nothing doubtful has happened")

			holders, err := etcdlock.Holders(ctx, inside, "")
			require.NoError(t, err)
			require.Len(t, holders, 1, "those inside only")
			require.Equal(t, other.Key(), holders[0].Key)
			require.NoError(t, other.Unlock(ctx))
			require.NoError(t, other.TryLock(ctx))
			require.NoError(t, other.Unlock(ctx))
			contract.StillHolds(t, outside, neighbour)
			require.NoError(t, neighbour.Unlock(ctx))
		})
	}
}

// A Session's lease may carry keys of its user, who learns its number from Lease. They
// block nobody, and the audits of the lease's keys leave them alone.
func TestWhatUsersAttachToTheLeaseIsTheirs(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	faults := etcdtest.NewFaults(t)
	client := cluster.Client(t, contract.With(faults))
	contract.VerifyClean(t, client, "")
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client, etcdlock.WithTTL(4*time.Second))
	mu := contract.MutexOf(t, s, "a")
	require.NoError(t, mu.Lock(ctx))
	lease := s.Lease()
	keys := []string{"a/config", "config", "members/api-7", "shards/0", "0", "shards/10",
		"a/sub/", "/"}
	for _, key := range keys {
		putKey(t, client, key, lease)
	}
	// When the second audit is sent, the first one is certainly complete.
	faults.Inject(etcdtest.Delay("LeaseTimeToLive", 1)).Await(2)
	for _, key := range keys {
		resp, err := client.Get(ctx, key)
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 1, "the key %q is still there", key)
	}
	contract.StillHolds(t, client, mu)
	require.Equal(t, lease, s.Lease(), "nothing doubtful has happened")
	require.NoError(t, mu.Unlock(ctx))
}
