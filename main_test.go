package etcdlock_test

import (
	"context"
	"fmt"
	"net/http"
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
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "etcdlock-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	etcd, err := embedded.Start(context.Background(), embedded.Config(dir))
	if err != nil {
		fmt.Fprintln(os.Stderr, "start etcd for the examples:", err)
		return 1
	}
	defer etcd.Close()
	endpoints = []string{etcd.Clients[0].Addr().String()}
	// Once it answers HTTP all its goroutines run, and tests can tell their own.
	resp, err := http.Get("http://" + endpoints[0] + "/health")
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd for the examples:", err)
		return 1
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return m.Run()
}
