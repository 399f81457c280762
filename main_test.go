package etcdlock_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// TestMain starts the etcd of the examples, which is in memory, and checks that no
// goroutine of the library is left in the end.
func TestMain(m *testing.M) {
	race.InBubbles()
	os.Exit(sim.Serving(&endpoints, func() int {
		status := m.Run()
		if !contract.Poll(func() bool { return contract.LibraryGoroutines() == 0 }) {
			fmt.Fprintln(os.Stderr, contract.LibraryGoroutines(), "goroutines of the library are left")
			return 1
		}
		return status
	}))
}
