package contract_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// Auth is enabled while a lock is held by a client without a user: etcd refuses what it asks
// for from then on, and the loss says so.
func TestALossByARefusalSaysWhatEtcdRefused(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	ctx := contract.Patient(t)
	mu, err := etcdlock.New(client, "x", etcdlock.WithTTL(3*time.Second))
	require.NoError(t, err)
	require.NoError(t, mu.Lock(ctx))
	hold := mu.Context(context.Background())

	contract.AddUser(ctx, t, client, "root", "secret")
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
	within(t, slack, "the loss", hold.Done())
	t.Log(context.Cause(hold))
	contract.RequireReasons(t, context.Cause(hold), etcdlock.ErrExpired, rpctypes.ErrUserEmpty)
	require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrLost)
	require.ErrorIs(t, mu.Close(ctx), etcdlock.ErrUnconfirmed)
}
