package contract_test

import (
	"fmt"
	"testing"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/race"
)

// The tests that lock_test.go runs on an etcd in memory, here on clusters of etcd's own
// servers.
func TestContract(t *testing.T) {
	many := map[int]int{1: race.Fewer(10_000, 300), 3: race.Fewer(1_000, 300)}
	for members, names := range many {
		t.Run(fmt.Sprint("members=", members), func(t *testing.T) {
			start := func(t *testing.T) contract.Etcd {
				etcdtest.VerifyNoLeaks(t)
				return etcdtest.Start(t, members)
			}
			cycles := race.Fewer(1_000, 150)
			contract.Run(t, contract.World{Names: names, Cycles: cycles, Start: start})
		})
	}
}
