package observe_test

import (
	"log"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/proof/embedded"
)

// endpoints are those of an embedded etcd that TestMain starts.
var endpoints []string

func TestMain(m *testing.M) {
	os.Exit(embedded.Run(func(endpoint string) int {
		endpoints = []string{endpoint}
		return m.Run()
	}))
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
