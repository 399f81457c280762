package etcdlockotel_test

import (
	"log"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// endpoints are those of an etcd in memory that TestMain starts.
var endpoints []string

func TestMain(m *testing.M) { os.Exit(sim.Serving(&endpoints, m.Run)) }

func exampleClient() *clientv3.Client { return contract.ExampleClient(endpoints) }

// must ends an example that went wrong.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
