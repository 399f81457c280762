package etcdlock_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/sim"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// TestMain starts the etcd of the examples, which is in memory.
func TestMain(m *testing.M) {
	os.Exit(sim.Serving(&endpoints, func() int { return tests.Run(m) }))
}

// The lock's promises, on an etcd in memory. Package proof/contract runs the same table on
// clusters of etcd's own servers.
func TestContract(t *testing.T) {
	world := contract.World{Start: inMemory}
	world.Names, world.Cycles = race.Fewer(10_000, 1_000), race.Fewer(3_000, 600)
	contract.Run(t, world)
}

// memory is an etcd in memory that answers as a real one does (proof/conformance), at an address.
type memory struct {
	endpoint string
	etcd     *sim.Cluster
}

func inMemory(t *testing.T) contract.Etcd {
	t.Helper()
	endpoint, etcd, err := sim.Serve()
	require.NoError(t, err)
	t.Cleanup(etcd.Stop)
	return memory{endpoint, etcd}
}

func (m memory) Client(t testing.TB, opts ...contract.ClientOption) *clientv3.Client {
	t.Helper()
	return contract.ClientOf(t, []string{m.endpoint}, opts...)
}

func (m memory) Revision(testing.TB) (revision int64) {
	m.etcd.Now(func(view fake.View) { revision = view.Rev() })
	return revision
}
