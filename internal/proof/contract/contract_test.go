package contract_test

import (
	"fmt"
	"testing"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// What lock_test.go runs on an etcd in memory, on clusters of etcd's own servers.
func TestContract(t *testing.T) {
	for members, names := range map[int]int{1: 10_000, 3: 1_000} {
		t.Run(fmt.Sprint("members=", members), func(t *testing.T) {
			start := func(t *testing.T) contract.Etcd {
				etcdtest.VerifyNoLeaks(t)
				return etcdtest.Start(t, members)
			}
			contract.Run(t, contract.World{Names: names, Cycles: 1_000, Start: start})
		})
	}
}
