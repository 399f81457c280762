package etcdtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcdtest"
)

func TestALeaseOfOneSecondIsGranted(t *testing.T) {
	client := etcdtest.Start(t, 1).Client(t)
	lease, err := client.Grant(t.Context(), 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, lease.TTL)
}

func TestAClusterOutlivesItsMembersOneByOne(t *testing.T) {
	cluster := etcdtest.Start(t, 3)
	client := cluster.Client(t)
	for member := range cluster.Members {
		cluster.Stop(member)
		cluster.Leader(t)
		put(t, client, "k", "v")
		cluster.Restart(t, member)
	}
	cluster.Leader(t)
	require.Greater(t, cluster.Revision(t), int64(3))
}
