package contract_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/embedded"
)

// holderEnv holds the address of an etcd. If it is set, this test binary is a process that
// holds a lock there.
const holderEnv = "ETCDLOCK_TEST_HOLDER"

// becomeHolder is what this binary does instead of testing when a test runs it as a process
// that holds a lock. It is set where processes can be stopped.
var becomeHolder func(endpoint string) error

// endpoints are those of the etcd that TestMain starts for the examples.
var endpoints []string

// TestMain starts the etcd of the examples, and checks that no goroutine is left in the
// end. Tests start their own clusters.
func TestMain(m *testing.M) {
	if endpoint := os.Getenv(holderEnv); endpoint != "" {
		if err := becomeHolder(endpoint); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		_ = flag.Set("test.parallel", "8") // they mostly wait
	}
	os.Exit(embedded.Run(func(endpoint string) int {
		endpoints = []string{endpoint}
		now := goleak.IgnoreCurrent()
		processors := runtime.GOMAXPROCS(0)
		status := m.Run()
		// Each test has checked its own goroutines, except those of timers.
		if err := goleak.Find(now); err != nil && status == 0 {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if runtime.GOMAXPROCS(0) != processors {
			// race.InBubbles: one processor is too slow for the rest.
			fmt.Fprintln(os.Stderr, "a bubble of testing/synctest belongs into another package")
			return 1
		}
		return status
	}))
}

// exampleClient is a client of that etcd.
func exampleClient() *clientv3.Client { return contract.ExampleClient(endpoints) }
