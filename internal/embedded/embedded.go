// Package embedded starts an etcd inside this process, for the demonstration and
// for the examples.
package embedded

import (
	"context"
	"errors"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Config is an etcd of one member that only this machine can reach. It keeps its
// data in dir.
func Config(dir string) *embed.Config {
	// Port 0 lets the kernel choose a free one. A port that was tried out and
	// closed beforehand could be somebody else's by now.
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}

	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = loopback, loopback
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	// The data is thrown away at the end: no need to wait for the disk.
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
