//go:build timed

package etcdtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

func TestVerifyCleanReportsKeysAndLeases(t *testing.T) {
	client := etcdtest.Start(t, 1).Client(t)
	etcdtest.LosePatience(t)
	fake := &fakeTB{TB: t}
	contract.VerifyClean(fake, client, "lock/")
	require.NoError(t, put(bounded(t), client, "other/key"))
	require.Empty(t, fake.finish())

	lease, err := client.Grant(bounded(t), 60)
	require.NoError(t, err)
	failures := fake.finish()
	require.Len(t, failures, 1)
	require.Contains(t, failures[0], "\nlease ")
	require.NotContains(t, failures[0], "\nkey ")

	_, err = client.Put(bounded(t), "lock/key", "v", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	failures = fake.finish()
	require.Len(t, failures, 2)
	require.Contains(t, failures[1], `key "lock/key"`)
}

func TestVerifyCleanReportsWhatALockLeaves(t *testing.T) {
	client := etcdtest.Start(t, 1).Client(t)
	fake := &fakeTB{TB: t}
	contract.VerifyClean(fake, client, "lock/")
	mu, err := etcdlock.NewMutex(client, "lock")
	require.NoError(t, err)
	require.NoError(t, mu.Lock(bounded(t)))
	t.Run("held", func(t *testing.T) {
		etcdtest.LosePatience(t)
		failures := fake.finish()
		require.Len(t, failures, 1)
		for _, left := range []string{"\nkey ", "\nlease ", "\ngoroutine "} {
			require.Contains(t, failures[0], left)
		}
	})
	require.NoError(t, mu.Close(bounded(t)))
	require.Len(t, fake.finish(), 1, "nothing new")
}

func TestVerifyNoLeaksReportsGoroutines(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)

	fake := &fakeTB{TB: t}
	etcdtest.VerifyNoLeaks(fake)
	t.Run("a cluster, a client and a proxy leave none", func(t *testing.T) {
		cluster := etcdtest.Start(t, 3)
		faults := etcdtest.NewFaults(t)
		client := cluster.Client(t, etcdtest.Via(cluster.Proxy(t, 0)), contract.With(faults))
		require.NoError(t, put(bounded(t), client, "k"))
		client.Watch(t.Context(), "k")
	})
	require.Empty(t, fake.finish())

	etcdtest.LosePatience(t)
	stop := make(chan struct{})
	defer close(stop)
	go func() { <-stop }()
	failures := fake.finish()
	require.Len(t, failures, 1)
	require.Contains(t, failures[0], "clean_test.go")
}
