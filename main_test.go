package etcdlock_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/etcdlock/etcdlock/internal/embedded"
)

// holderEnv makes this test binary a process that holds a lock of the etcd at the
// address that it contains.
const holderEnv = "ETCDLOCK_TEST_HOLDER"

// becomeHolder is what this binary does instead of testing when a test runs it as a
// process that holds a lock, where processes can be stopped.
var becomeHolder func(endpoint string) error

// TestMain starts the etcd of the examples. Tests start their own clusters.
func TestMain(m *testing.M) {
	if endpoint := os.Getenv(holderEnv); endpoint != "" {
		if err := becomeHolder(endpoint); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(embedded.Run(func(endpoint string) int {
		endpoints = []string{endpoint}
		return m.Run()
	}))
}
