package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/etcdlock/etcdlock/internal/side"
)

type zkParty struct{ conn *zk.Conn }

func openZooKeeper(ctx context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		return w.dial(ctx, network, addr)
	}
	conn, events, err := zk.Connect([]string{address}, ttl, zk.WithDialer(dial),
		zk.WithLogger(quiet{}))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case event := <-events:
			if event.State == zk.StateHasSession {
				return zkParty{conn}, nil
			}
		case <-ctx.Done():
			conn.Close()
			return nil, fmt.Errorf("no session with ZooKeeper: %w", context.Cause(ctx))
		}
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (p zkParty) lock(_ context.Context, name string) (side.Lock, error) {
	path := "/" + strings.ReplaceAll(name, "/", "-")
	return zkLock{p.conn, zk.NewLock(p.conn, path, zk.WorldACL(zk.PermAll))}, nil
}

func (p zkParty) close() { p.conn.Close() }

type zkLock struct {
	conn *zk.Conn
	l    *zk.Lock
}

// Lock cannot be cancelled. If its context ends, which it does here only when the party is
// about to be closed, the connection goes, and all its waits with it.
func (l zkLock) Lock(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.conn.Close)()
	return l.l.Lock()
}

func (zkLock) TryLock(context.Context) error { return errors.ErrUnsupported }

func (l zkLock) Unlock(context.Context) error { return l.l.Unlock() }
