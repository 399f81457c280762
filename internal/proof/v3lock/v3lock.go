// Package v3lock is a client of etcd's own lock service. The service takes a lock of
// package concurrency for its caller, so this is one of the other libraries that may stand
// in the same line as this one. Its test is in package contract: a test beside it would
// give its dependencies to the modules that import this one.
package v3lock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

// A Mutex is a lock that an etcd server takes, on a lease that its user renews.
type Mutex struct {
	service v3lockpb.LockClient
	name    string
	lease   clientv3.LeaseID
	key     []byte // of the hold
}

// New returns a Mutex of that name. It grants the lease within ctx, and renews it until the
// client is closed.
func New(
	ctx context.Context, client *clientv3.Client, name string, ttl time.Duration,
) (*Mutex, error) {
	lease, err := client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return nil, err
	}
	renewals, err := client.KeepAlive(client.Ctx(), lease.ID)
	if err != nil {
		return nil, err
	}
	go func() { // ends with the client
		for range renewals {
		}
	}()
	service := v3lockpb.NewLockClient(client.ActiveConnection())
	return &Mutex{service: service, name: name, lease: lease.ID}, nil
}

func (m *Mutex) Lock(ctx context.Context) error {
	resp, err := m.service.Lock(ctx,
		&v3lockpb.LockRequest{Name: []byte(m.name), Lease: int64(m.lease)})
	if err != nil {
		return err
	}
	m.key = resp.Key
	return nil
}

func (m *Mutex) Unlock(ctx context.Context) error {
	_, err := m.service.Unlock(ctx, &v3lockpb.UnlockRequest{Key: m.key})
	return err
}

// Key returns the key of the hold, or of the last one.
func (m *Mutex) Key() string { return string(m.key) }
