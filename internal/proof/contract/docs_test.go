package contract_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// This is why the guide says to send the create revision while a fleet is mixed.
func TestHeaderRevisionDoesNotCompareWithTokens(t *testing.T) {
	t.Parallel()
	ctx := contract.Patient(t)
	client := etcdtest.Start(t, 1).Client(t)
	first, theirs, ours := contract.NewMutex(t, client, "a"), etcdsMutex(t, client, "a"),
		contract.NewMutex(t, client, "a")
	require.NoError(t, first.Lock(ctx))
	theirsIn := contract.Async(func() error { return theirs.Lock(ctx) })
	contract.WaitForLine(t, client, "a", 2)
	oursIn := contract.Async(func() error { return ours.Lock(ctx) })
	contract.WaitForLine(t, client, "a", 3)

	require.NoError(t, first.Unlock(ctx))
	require.NoError(t, receive(t, theirsIn, "etcd's turn"))
	header := theirs.Header().Revision
	token, err := createRevision(ctx, client, theirs)
	require.NoError(t, err)
	require.NoError(t, theirs.Unlock(ctx))
	require.NoError(t, receive(t, oursIn, "our turn"))
	require.Less(t, ours.Token(), header, "a later hold, and a lower number")
	require.Less(t, token, ours.Token())
	require.NoError(t, ours.Unlock(ctx))

	_, err = createRevision(context.WithoutCancel(ctx), client, theirs)
	require.ErrorIs(t, err, concurrency.ErrSessionExpired)
}
