//go:build linux || darwin || freebsd

package main

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A lock is what run holds: a Mutex, or a place beside others.
type lock interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) error
	Unlock(ctx context.Context) error
	Context(parent context.Context) context.Context
	Token() int64
	Key() string
	Status() etcdlock.Status
	Name() string
	Close(ctx context.Context) error
}

// open makes the lock that the flags ask for.
func (r *running) open(
	client *clientv3.Client, name string, opts ...etcdlock.SessionOption,
) (lock, error) {
	switch {
	case r.shared:
		rw, err := etcdlock.NewRWMutex(client, name, opts...)
		if err != nil {
			return nil, err
		}
		return &beside{name: name, acquire: rw.RLock, try: rw.TryRLock, close: rw.Close}, nil
	case r.limit > 0:
		s, err := etcdlock.NewSemaphore(client, name, r.limit, opts...)
		if err != nil {
			return nil, err
		}
		return &beside{
			name:    name,
			acquire: func(ctx context.Context) (*etcdlock.Hold, error) { return s.Acquire(ctx, 1) },
			try:     func(ctx context.Context) (*etcdlock.Hold, error) { return s.TryAcquire(ctx, 1) },
			close:   s.Close,
		}, nil
	}
	mu, err := etcdlock.NewMutex(client, name, opts...)
	if err != nil {
		return nil, err
	}
	return mu, nil
}

// A beside is a lock that is held beside others: with -s, or with -N. It is locked once.
type beside struct {
	name         string
	acquire, try func(context.Context) (*etcdlock.Hold, error)
	close        func(context.Context) error

	hold atomic.Pointer[etcdlock.Hold] // nil before it is locked
}

func (b *beside) lock(ctx context.Context, by func(context.Context) (*etcdlock.Hold, error)) error {
	hold, err := by(ctx)
	if err == nil {
		b.hold.Store(hold)
	}
	return err
}

func (b *beside) Lock(ctx context.Context) error    { return b.lock(ctx, b.acquire) }
func (b *beside) TryLock(ctx context.Context) error { return b.lock(ctx, b.try) }
func (b *beside) Unlock(ctx context.Context) error  { return b.hold.Load().Unlock(ctx) }
func (b *beside) Close(ctx context.Context) error   { return b.close(ctx) }
func (b *beside) Context(parent context.Context) context.Context {
	return b.hold.Load().Context(parent)
}
func (b *beside) Token() int64            { return b.hold.Load().Token() }
func (b *beside) Status() etcdlock.Status { return b.hold.Load().Status() }
func (b *beside) Name() string            { return b.name }

// Key is the key of the hold.
func (b *beside) Key() string {
	owner := b.hold.Load().IsOwner()[0]
	return string(owner.KeyBytes())
}
