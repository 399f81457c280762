package contract_test

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/race"
)

// The tests that lock_test.go runs on an etcd in memory, here on one of etcd's own servers. On
// three they are timed.
func TestContract(t *testing.T) { runsOn(t, 1, race.Fewer(10_000, 300)) }

// runsOn runs the table on a cluster, with so many names as count as many for one Session.
func runsOn(t *testing.T, members, names int) {
	start := func(t *testing.T) contract.Etcd {
		etcdtest.VerifyNoLeaks(t)
		return etcdtest.Start(t, members)
	}
	contract.Run(t, contract.World{Names: names, Cycles: race.Fewer(1_000, 150), Start: start})
}
