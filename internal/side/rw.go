package side

import (
	"context"
	"errors"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/etcdlock/etcdlock"
)

// ---- this library

type ourRWMutex struct{ *etcdlock.RWMutex }

func (s ourSession) RWMutex(name string) (RWMutex, error) {
	rw, err := s.Session.RWMutex(name)
	return ourRWMutex{rw}, err
}

// Hold is the context of the hold that writes.
func (rw ourRWMutex) Hold() context.Context { return rw.Context(context.Background()) }

func (rw ourRWMutex) Reader() Mutex { return &ourHolder{acquire: rw.RLock, try: rw.TryRLock} }

// ---- etcd's own

// A theirRWMutex is a recipe.RWMutex on the live session. It has no TryLock, and tells
// neither key nor token.
type theirRWMutex struct {
	s    *theirSession
	name string

	mu      sync.Mutex           // never held across a wait
	session *concurrency.Session // nil before the first Lock
	rw      *recipe.RWMutex      // of the session
}

func (s *theirSession) RWMutex(name string) (RWMutex, error) {
	m := &theirRWMutex{s: s, name: name}
	return theirWriter{m,
		&theirUser{m: m, lock: (*recipe.RWMutex).Lock, unlock: (*recipe.RWMutex).Unlock}}, nil
}

type theirWriter struct {
	m *theirRWMutex
	*theirUser
}

// Reader returns one more user of the same RWMutex.
func (w theirWriter) Reader() Mutex {
	return &theirUser{m: w.m, lock: (*recipe.RWMutex).RLock, unlock: (*recipe.RWMutex).RUnlock}
}

func (m *theirRWMutex) ready(ctx context.Context) (*concurrency.Session, *recipe.RWMutex, error) {
	session, err := m.s.live(ctx)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session != session {
		m.session, m.rw = session, recipe.NewRWMutex(session, m.name)
	}
	return m.session, m.rw, nil
}

// A theirUser is one user of a theirRWMutex. It reads or writes.
type theirUser struct {
	m            *theirRWMutex
	lock, unlock func(*recipe.RWMutex) error

	mu      sync.Mutex           // never held across a wait
	session *concurrency.Session // of the last Lock
	rw      *recipe.RWMutex      // of the session, nil if it is not held
}

// Lock returns when ctx ends, though the recipe takes no context. The recipe's wait goes on
// then, and Lock gives back what it gets.
func (r *theirUser) Lock(ctx context.Context) error {
	session, rw, err := r.m.ready(ctx)
	if err != nil {
		return err
	}
	locked := make(chan error)
	go func() { // ends when the lock is got, or the client is closed
		err := r.lock(rw)
		select {
		case locked <- err:
		case <-ctx.Done():
			if err == nil {
				_ = r.unlock(rw)
			}
		}
	}()
	select {
	case err := <-locked:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session, r.rw = session, rw
	return nil
}

func (r *theirUser) TryLock(context.Context) error { return errors.ErrUnsupported }

// Unlock returns when ctx ends, though the recipe takes no context.
func (r *theirUser) Unlock(ctx context.Context) error {
	r.mu.Lock()
	rw := r.rw
	r.rw = nil
	r.mu.Unlock()
	if rw == nil {
		return errReleased
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- r.unlock(rw) }() // ends with etcd's answer, or when the client is closed
	select {
	case err := <-unlocked:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Hold is the session's context. Before there is a session it is a context that does not
// end.
func (r *theirUser) Hold() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == nil {
		return context.Background()
	}
	return contextOf(r.session)
}

func (r *theirUser) Token() int64 { return 0 }
func (r *theirUser) Key() string  { return "" }

// IsOwner is never true, since the key is not known.
func (r *theirUser) IsOwner() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(r.m.name), "<", 0)
}
