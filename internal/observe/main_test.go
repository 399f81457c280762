package observe_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/embedded"
)

// endpoints are those of an embedded etcd that TestMain starts.
var endpoints []string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "etcdlock-observe-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	etcd, err := embedded.Start(context.Background(), embedded.Config(dir))
	if err != nil {
		fmt.Fprintln(os.Stderr, "start etcd:", err)
		return 1
	}
	defer etcd.Close()
	endpoints = []string{etcd.Clients[0].Addr().String()}
	return m.Run()
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
