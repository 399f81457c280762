package contract_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// The keys of the recipe for a read/write lock are no contenders, so a migration from it
// needs another name. Its writers do wait for every key below the name.
//
//	theirs writes: ours reads and writes | ours writes: theirs reads, and waits to write
func TestARecipeRWMutexIsNoContender(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	session, err := concurrency.NewSession(client)
	require.NoError(t, err)
	defer session.Close()
	theirs := recipe.NewRWMutex(session, "a")
	ours, err := etcdlock.NewRWMutex(client, "a")
	require.NoError(t, err)
	defer ours.Close(ctx)

	require.NoError(t, theirs.Lock())
	read, err := ours.TryRLock(ctx)
	require.NoError(t, err)
	require.NoError(t, read.Unlock(ctx))
	require.NoError(t, ours.TryLock(ctx))
	require.NoError(t, theirs.Unlock())

	require.NoError(t, theirs.RLock(), "its readers do not look at ours")
	require.NoError(t, theirs.RUnlock())
	wrote := contract.Async(theirs.Lock)
	select {
	case err := <-wrote:
		require.FailNow(t, "it did not wait", "%v", err)
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, ours.Unlock(ctx))
	require.NoError(t, receive(t, wrote, "the lock"))
	require.NoError(t, theirs.Unlock())
}
