package etcdlockotel_test

import (
	"fmt"
	"log"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/sim"
)

// endpoints are those of an etcd in memory that TestMain starts.
var endpoints []string

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

func exampleClient() *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// must ends an example that went wrong.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
