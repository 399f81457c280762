package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
)

// A Side is a library of locks that a schedule is run with.
type Side struct {
	Name  string
	names []string // of two locks, which must not block each other
	// open makes the Session of a process. It does no I/O.
	open func(client *clientv3.Client, ttl time.Duration, share sharing) (session, error)
	// judged says that it promises what the judge looks for. Otherwise the judge
	// counts, and looks only for what every lock must do.
	judged bool
}

// A sharing is how the holds of a Session share a key, for the side that can.
type sharing struct {
	handoff int
	linger  time.Duration
}

// The sides.
var (
	Ours   = Side{Name: "etcdlock", names: []string{"a", "a/b"}, open: openOurs, judged: true}
	Theirs = Side{Name: "concurrency", names: []string{"a", "b"}, open: openTheirs}
)

// A session is what the locks of a process share.
type session interface {
	mutex(name string) (mutex, error)
	close(ctx context.Context) error
}

// A mutex is a lock. Each hold is unlocked once.
type mutex interface {
	lock(ctx context.Context) (*hold, error)
	tryLock(ctx context.Context) (*hold, error)
	// do calls fn with a hold that it unlocks when fn has returned. It returns
	// whether fn was called, and the error of the one call or the other.
	do(ctx context.Context, fn func(*hold)) (called bool, err error)
}

// A hold is what its holder believes to have from lock to unlock, or until ctx ends.
type hold struct {
	token    int64
	ctx      context.Context
	deadline func() time.Time // until when it is certain
	unlock   func(ctx context.Context) error
}

// An outcome is what an error of a call means.
type outcome string

const (
	done        outcome = "done"
	ended       outcome = "ended" // with its context
	locked      outcome = "locked"
	lost        outcome = "lost"
	unconfirmed outcome = "unconfirmed"
	failed      outcome = "failed" // in another way
)

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return done
	case errors.Is(err, etcdlock.ErrUnconfirmed):
		return unconfirmed
	case errors.Is(err, etcdlock.ErrLost):
		return lost
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return ended
	case errors.Is(err, etcdlock.ErrLocked), errors.Is(err, concurrency.ErrLocked):
		return locked
	}
	return failed
}

// ---- ours

type ourSession struct{ *etcdlock.Session }

func openOurs(client *clientv3.Client, ttl time.Duration, share sharing) (session, error) {
	options := []etcdlock.Option{etcdlock.WithTTL(ttl), etcdlock.WithHandoff(share.handoff)}
	if share.linger > 0 {
		options = append(options, etcdlock.WithLinger(share.linger))
	}
	s, err := etcdlock.NewSession(client, options...)
	return ourSession{s}, err
}

func (s ourSession) mutex(name string) (mutex, error) {
	mu, err := s.Mutex(name)
	return ourMutex{mu}, err
}

func (s ourSession) close(ctx context.Context) error { return s.Close(ctx) }

type ourMutex struct{ *etcdlock.Mutex }

func (m ourMutex) hold(ctx context.Context) *hold {
	return &hold{token: m.Token(), ctx: ctx, deadline: m.Deadline, unlock: m.Unlock}
}

func (m ourMutex) lock(ctx context.Context) (*hold, error) {
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return m.hold(m.Context(context.Background())), nil
}

func (m ourMutex) tryLock(ctx context.Context) (*hold, error) {
	if err := m.TryLock(ctx); err != nil {
		return nil, err
	}
	return m.hold(m.Context(context.Background())), nil
}

func (m ourMutex) do(ctx context.Context, fn func(*hold)) (called bool, err error) {
	err = m.Do(ctx, func(context.Context) error {
		called = true
		fn(m.hold(m.Context(context.Background()))) // which does not end with ctx
		return nil
	})
	return called, err
}

// ---- theirs

// theirSession makes a concurrency.Session when one is needed, and another one when
// that is done, as a careful user would.
type theirSession struct {
	client *clientv3.Client
	ttl    time.Duration

	mu      sync.Mutex // never held across a wait
	mutexes map[string]*theirMutex
	current *concurrency.Session
	busy    chan struct{} // holds a token while one is being made
}

func openTheirs(client *clientv3.Client, ttl time.Duration, _ sharing) (session, error) {
	return &theirSession{
		client: client, ttl: ttl,
		mutexes: make(map[string]*theirMutex), busy: make(chan struct{}, 1),
	}, nil
}

// live returns a session. The lease is granted within ctx, but outlives it.
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
	if current != nil && current.Ctx().Err() == nil {
		return current, nil
	}
	lease, err := s.client.Grant(ctx, int64(s.ttl/time.Second))
	if err != nil {
		return nil, err
	}
	made, err := concurrency.NewSession(s.client, concurrency.WithTTL(int(s.ttl/time.Second)), concurrency.WithLease(lease.ID))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = made
	return made, nil
}

// mutex returns the one of that name: two of one Session would let both in.
func (s *theirSession) mutex(name string) (mutex, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mutexes[name] == nil {
		s.mutexes[name] = &theirMutex{s: s, name: name, free: make(chan struct{}, 1)}
	}
	return s.mutexes[name], nil
}

func (s *theirSession) close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil
	}
	return s.current.Close()
}

// theirMutex lets one goroutine in at a time, which concurrency.Mutex leaves to its
// users.
type theirMutex struct {
	s    *theirSession
	name string
	free chan struct{}
}

func (m *theirMutex) lock(ctx context.Context) (*hold, error) {
	return m.acquire(ctx, (*concurrency.Mutex).Lock)
}

func (m *theirMutex) tryLock(ctx context.Context) (*hold, error) {
	return m.acquire(ctx, (*concurrency.Mutex).TryLock)
}

func (m *theirMutex) acquire(ctx context.Context, lock func(*concurrency.Mutex, context.Context) error) (*hold, error) {
	select {
	case m.free <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s, err := m.s.live(ctx)
	if err != nil {
		<-m.free
		return nil, err
	}
	mu := concurrency.NewMutex(s, m.name)
	if err := lock(mu, ctx); err != nil {
		<-m.free
		return nil, err
	}
	owner := mu.IsOwner() // which is how it tells the create revision of its key
	return &hold{
		token: owner.GetCompare().GetCreateRevision(),
		ctx:   s.Ctx(),
		unlock: func(ctx context.Context) error {
			defer func() { <-m.free }()
			return mu.Unlock(ctx)
		},
	}, nil
}

func (m *theirMutex) do(ctx context.Context, fn func(*hold)) (called bool, err error) {
	h, err := m.lock(ctx)
	if err != nil {
		return false, err
	}
	fn(h)
	return true, h.unlock(ctx)
}
