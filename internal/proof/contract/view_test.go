package contract_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// A client whose KV is namespaced and whose Watcher is not sees other keys come and go.
// They end no hold.
func TestEventsOfOtherKeysEndNoHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	client := w.cluster.Client(t)
	client.KV = namespace.NewKV(client.KV, "tenant/")
	mu := contract.MutexOf(t, contract.NewSession(t, client), "events", etcdlock.WithLinger(longTTL))
	require.NoError(t, mu.Lock(bounded(t)))
	require.NoError(t, mu.Unlock(bounded(t)))
	lease, err := w.admin.Grant(bounded(t), 60)
	require.NoError(t, err)
	put := func() {
		_, err = w.admin.Put(bounded(t), "events/"+uuid.NewString(), "", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
	}
	require.True(t, contract.Poll(func() bool { // until the view is there, sees it, and gives way
		put()
		resp, err := w.admin.Get(bounded(t), "tenant/events/", clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 0
	}))
	require.NoError(t, mu.Lock(bounded(t)))
	hold := mu.Context(context.Background())
	for range 20 {
		put()
	}
	require.NoError(t, hold.Err(), "%v", context.Cause(hold))
	require.NoError(t, mu.Unlock(bounded(t)))
	_, err = w.admin.Revoke(bounded(t), lease.ID)
	require.NoError(t, err)
}
