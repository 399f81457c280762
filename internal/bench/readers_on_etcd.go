package main

import (
	"context"
	"errors"

	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// ---- this library

func (p *libraryParty) rwLock(
	_ context.Context, name string,
) (reader, writer side.Lock, err error) {
	rw, err := p.session.RWMutex(name)
	return &libraryReader{rw: rw}, rw, err
}

// A libraryReader is the reader's side, for one goroutine.
type libraryReader struct {
	rw   *etcdlock.RWMutex
	hold *etcdlock.Hold
}

func (l *libraryReader) Lock(ctx context.Context) (err error) {
	l.hold, err = l.rw.RLock(ctx)
	return err
}

func (l *libraryReader) TryLock(ctx context.Context) (err error) {
	l.hold, err = l.rw.TryRLock(ctx)
	return err
}

func (l *libraryReader) Unlock(ctx context.Context) error { return l.hold.Unlock(ctx) }

// ---- etcd's own: it takes no context, and each goroutine has one of its own, since an
// RWMutex remembers only one hold

func (p *concurrencyParty) rwLock(
	ctx context.Context, name string,
) (reader, writer side.Lock, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sessions) == 0 {
		s, err := side.NewSession(ctx, p.client, p.ttl)
		if err != nil {
			return nil, nil, err
		}
		p.sessions = []*concurrency.Session{s}
	}
	rw := recipe.NewRWMutex(p.sessions[0], name)
	return recipeLock{rw.RLock, rw.RUnlock}, recipeLock{rw.Lock, rw.Unlock}, nil
}

type recipeLock struct{ lock, unlock func() error }

func (l recipeLock) Lock(context.Context) error    { return l.lock() }
func (l recipeLock) TryLock(context.Context) error { return errors.ErrUnsupported }
func (l recipeLock) Unlock(context.Context) error  { return l.unlock() }
