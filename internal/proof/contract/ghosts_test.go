package contract_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// The same with etcd itself.
func TestLossesAreNoticedWhereEtcdTakesFewOperations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(m *integration.Member) { m.MaxTxnOps = 16 })
	s := contract.NewSession(t, w.cluster.Client(t))
	kept, lost := contract.HoldMany(t, s, "kept", 5), contract.HoldMany(t, s, "lost", 60)
	_, err := w.admin.Delete(bounded(t), "lost", clientv3.WithPrefix())
	require.NoError(t, err)
	for _, hold := range lost {
		receive(t, hold.Done(), "the loss to be noticed")
		require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
	}
	for _, hold := range kept {
		require.NoError(t, hold.Err())
	}
}
