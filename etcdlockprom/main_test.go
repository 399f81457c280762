package etcdlockprom_test

import (
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

func must(err error) { contract.Must(err) }
