package etcdlock_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/etcdlock/etcdlock/internal/sim"
)

// TestMain starts the etcd of the examples, which is in memory.
func TestMain(m *testing.M) {
	endpoint, etcd, err := sim.Serve()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start etcd:", err)
		os.Exit(1)
	}
	endpoints = []string{endpoint}
	status := m.Run()
	etcd.Stop()
	os.Exit(status)
}
