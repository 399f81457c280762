package contract_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/proof/v3lock"
)

// The service's lock stands in this library's line. First it holds, then this library does.
// The key that it reports is the one in the line.
//
//	a holds by the service | b's TryLock says so | a unlocks, b locks | a waits, its context
//	ends, and its lease
func TestTheServiceStandsInTheSameLine(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	a, err := v3lock.New(t.Context(), cluster.Client(t), "x", longTTL)
	require.NoError(t, err)
	b := contract.NewMutex(t, client, "x")

	require.NoError(t, a.Lock(t.Context()))
	locked := new(etcdlock.LockedError)
	require.ErrorAs(t, b.TryLock(t.Context()), &locked)
	require.Equal(t, locked.Holder.Key, a.Key())
	require.NoError(t, a.Unlock(t.Context()))

	require.NoError(t, b.TryLock(t.Context()))
	ctx, cancel := context.WithCancel(contract.Patient(t))
	left := contract.Async(func() error { return a.Lock(ctx) })
	line := contract.WaitForLine(t, client, "x", 2)
	cancel()
	require.Error(t, <-left)
	require.NoError(t, b.Unlock(t.Context()))
	// The service removes its key, but not if its caller goes before the service learns of
	// the put.
	_, err = client.Revoke(t.Context(), line[1].Lease)
	require.NoError(t, err)
	contract.WaitForLine(t, client, "x", 0)
}
