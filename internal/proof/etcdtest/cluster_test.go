//go:build timed

package etcdtest_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"

	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

func TestALeaseOfOneSecondIsGranted(t *testing.T) {
	client := etcdtest.Start(t, 1).Client(t)
	lease, err := client.Grant(bounded(t), 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, lease.TTL)
}

func TestAClusterLeavesTheWorkingDirectoryAlone(t *testing.T) {
	before, err := os.ReadDir(".")
	require.NoError(t, err)
	wd, err := os.Getwd()
	require.NoError(t, err)
	etcdtest.Start(t, 3)
	after, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Equal(t, wd, must(os.Getwd()))
}

func TestMembersStopAndRestartWithTheirDataWhileTheOthersServe(t *testing.T) {
	cluster := etcdtest.Start(t, 3)
	client := cluster.Client(t)
	for member := range cluster.Members {
		cluster.Stop(member)
		other := (member + 1) % 3
		cluster.Leader(t)
		require.NoError(t, put(bounded(t), cluster.Client(t, cluster.At(other)), "k"))
		cluster.Restart(t, member)
		require.True(t, exists(t, cluster.Client(t, cluster.At(member)), "k"))
	}
	for member := range cluster.Members {
		cluster.Stop(member)
	}
	for member := range cluster.Members {
		cluster.Restart(t, member)
	}
	cluster.Leader(t)
	require.True(t, exists(t, client, "k"))
	require.EqualValues(t, 4, cluster.Revision(t))
}

func TestTheLeaderMovesWhereItIsTold(t *testing.T) {
	cluster := etcdtest.Start(t, 3)
	for member := range cluster.Members {
		cluster.MoveLeader(t, member)
		require.Equal(t, member, cluster.Leader(t))
	}
}

func TestAnIsolatedMemberServesOnlyWhatNeedsNoQuorum(t *testing.T) {
	cluster := etcdtest.Start(t, 3)
	follower := (cluster.Leader(t) + 1) % 3
	client := cluster.Client(t, cluster.At(follower))
	require.NoError(t, put(bounded(t), client, "k"))

	cluster.Isolate(follower)
	require.Error(t, put(brief(t), client, "k"))
	resp, err := client.Get(bounded(t), "k", clientv3.WithSerializable())
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.Count)

	cluster.Rejoin(follower)
	require.Eventually(t, func() bool { return put(brief(t), client, "k") == nil }, within, moment/10)
}

func TestOptionsReachTheServerAndTheClient(t *testing.T) {
	cluster := etcdtest.Start(t, 1, func(m *integration.Member) { m.MaxTxnOps = 1 })
	client := cluster.Client(t, func(cfg *clientv3.Config) { cfg.MaxCallSendMsgSize = 1000 })
	_, err := client.Txn(bounded(t)).Then(clientv3.OpPut("a", ""), clientv3.OpPut("b", "")).Commit()
	require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
	_, err = client.Put(bounded(t), "k", string(make([]byte, 2000)))
	require.ErrorContains(t, err, "larger than max")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
