package contract_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// To follow a holder, and to try, leaves no warning in clientv3's log, however it ends.
func TestFollowingIsNoWarning(t *testing.T) {
	t.Parallel()
	core, warned := observer.New(zap.WarnLevel)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t, func(cfg *clientv3.Config) { cfg.Logger = zap.New(core) })
	held := contract.NewMutex(t, cluster.Client(t), "n")
	require.NoError(t, held.Lock(contract.Patient(t)))
	for i := range 20 {
		ctx, cancel := context.WithCancel(contract.Patient(t))
		for who, err := range etcdlock.WatchHolder(ctx, client, "n") {
			require.NoError(t, err)
			require.Equal(t, held.Key(), who.Key)
			if i%2 == 0 {
				break
			}
			cancel()
		}
		cancel()
	}
	mu := contract.MutexOf(t, contract.NewSession(t, client), "n")
	for range 20 {
		require.ErrorIs(t, mu.TryLock(contract.Patient(t)), etcdlock.ErrLocked)
	}
	require.Empty(t, warned.All())
}
