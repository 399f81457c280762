// Package embedded starts an etcd inside this process, for the demonstration and
// for the examples.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Config is an etcd of one member that only this machine can reach. It keeps its
// data in dir.
func Config(dir string) *embed.Config {
	// Port 0 makes the kernel choose a free port. A port that was tried out and closed
	// before could belong to another process by now.
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}

	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = loopback, loopback
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	// The data is thrown away at the end, so there is no need to wait for the disk.
	cfg.UnsafeNoFsync = true
	return cfg
}

// Start returns when the etcd serves. The caller closes it.
func Start(ctx context.Context, cfg *embed.Config) (*embed.Etcd, error) {
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(20 * time.Second):
		err = errors.New("not ready after 20s")
	}
	etcd.Close()
	return nil, err
}

// Run runs f beside an etcd that ends with it. It returns what f returns, or 1 if etcd did
// not start.
func Run(f func(endpoint string) (status int)) (status int) {
	status, err := beside(f)
	if err != nil {
		fmt.Fprintln(os.Stderr, "start etcd:", err)
		return 1
	}
	return status
}

func beside(f func(endpoint string) int) (int, error) {
	dir, err := os.MkdirTemp("", "etcdlock-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	etcd, err := Start(context.Background(), Config(dir))
	if err != nil {
		return 0, err
	}
	defer etcd.Close()
	endpoint := etcd.Clients[0].Addr().String()
	// Once etcd answers HTTP, all its goroutines run, and tests can tell their own from
	// them.
	resp, err := http.Get("http://" + endpoint + "/health")
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return f(endpoint), nil
}
