package side

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
)

// NewSession makes a session of etcd's. It grants the lease within ctx, but the session
// outlives ctx.
func NewSession(
	ctx context.Context, client *clientv3.Client, ttl time.Duration,
) (*concurrency.Session, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	lease, err := client.Grant(ctx, seconds)
	if err != nil {
		return nil, err
	}
	return concurrency.NewSession(client, concurrency.WithLease(lease.ID),
		concurrency.WithTTL(int(seconds)))
}

// errReleased says that nothing is held. (Theirs, ErrLockReleased, is not in clientv3 3.5.)
var errReleased = errors.New("side: the lock is released")

// contextOf is the context of a session, which clientv3 3.5 does not have.
func contextOf(s *concurrency.Session) context.Context {
	if s, ok := any(s).(interface{ Ctx() context.Context }); ok {
		return s.Ctx()
	}
	return untilDone{context.Background(), s.Done()}
}

// untilDone is a context that ends with a channel.
type untilDone struct {
	context.Context
	done <-chan struct{}
}

func (c untilDone) Done() <-chan struct{} { return c.done }

func (c untilDone) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// A theirSession makes a concurrency.Session when one is needed, and another one when that
// has ended.
type theirSession struct {
	client *clientv3.Client
	ttl    time.Duration
	busy   chan struct{} // full while one is being made

	mu      sync.Mutex // never held across a wait
	current *concurrency.Session
}

func openTheirs(
	client *clientv3.Client, ttl time.Duration, _ ...etcdlock.SessionOption,
) (Session, error) {
	return &theirSession{client: client, ttl: ttl, busy: make(chan struct{}, 1)}, nil
}

// live returns a session that is not known to be lost.
func (s *theirSession) live(ctx context.Context) (*concurrency.Session, error) {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	current := s.current
	s.mu.Unlock()
	if current != nil && contextOf(current).Err() == nil {
		return current, nil
	}
	made, err := NewSession(ctx, s.client, s.ttl)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = made
	return made, nil
}

// Mutex returns a lock for one goroutine at a time: a session has one key for a name, and a
// second Lock on that session finds the key and gets in.
func (s *theirSession) Mutex(name string) (Mutex, error) {
	return &theirMutex{s: s, name: name}, nil
}

// ctx bounds Close, though the session's own Close takes no context.
func (s *theirSession) Close(ctx context.Context) error {
	s.mu.Lock()
	current := s.current
	s.mu.Unlock()
	if current == nil {
		return nil
	}
	closed := make(chan error, 1)
	go func() { closed <- current.Close() }() // ends after one TTL at the latest
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A theirMutex is a concurrency.Mutex on the live session.
type theirMutex struct {
	s    *theirSession
	name string

	mu      sync.Mutex           // never held across a wait
	session *concurrency.Session // nil before the first Lock
	mutex   *concurrency.Mutex   // of the session
}

// ready returns the mutex to lock.
func (m *theirMutex) ready(ctx context.Context) (*concurrency.Mutex, error) {
	session, err := m.s.live(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session != session {
		m.session, m.mutex = session, concurrency.NewMutex(session, m.name)
	}
	return m.mutex, nil
}

// last returns what ready returned last. Before that it returns nil and nil.
func (m *theirMutex) last() (*concurrency.Session, *concurrency.Mutex) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.session, m.mutex
}

func (m *theirMutex) Lock(ctx context.Context) error {
	mutex, err := m.ready(ctx)
	if err != nil {
		return err
	}
	return mutex.Lock(ctx)
}

func (m *theirMutex) TryLock(ctx context.Context) error {
	mutex, err := m.ready(ctx)
	if err != nil {
		return err
	}
	return mutex.TryLock(ctx)
}

func (m *theirMutex) Unlock(ctx context.Context) error {
	_, mutex := m.last()
	if mutex == nil {
		return errReleased
	}
	return mutex.Unlock(ctx)
}

// Hold is the session's context. Before there is a session it is a context that does not
// end.
func (m *theirMutex) Hold() context.Context {
	session, _ := m.last()
	if session == nil {
		return context.Background()
	}
	return contextOf(session)
}

// Token is the revision at which the lock was got. It grows with each hold even if a key is
// used twice.
func (m *theirMutex) Token() int64 {
	_, mutex := m.last()
	if mutex == nil || mutex.Header() == nil {
		return 0
	}
	return mutex.Header().Revision
}

func (m *theirMutex) Key() string {
	_, mutex := m.last()
	if mutex == nil {
		return ""
	}
	return mutex.Key()
}

// IsOwner may be called while the lock is held, and after that.
func (m *theirMutex) IsOwner() clientv3.Cmp {
	_, mutex := m.last()
	return mutex.IsOwner()
}
