package faults

import (
	"context"
	"errors"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/record"
)

// A lock is what the table compares. Lock opens what it needs, and opens it anew
// after a loss, as a careful user of either library would.
type lock interface {
	Lock(context.Context) error
	TryLock(context.Context) error
	Unlock(context.Context) error
	Close(context.Context) error

	// Ended is closed once the current hold is over as far as the library knows:
	// what a user watches.
	Ended() <-chan struct{}
	// Holds is what a user asks before each step of the work.
	Holds() bool
	// Token grows with each hold.
	Token() int64
	// Key is the key of the hold, or of the place in line where that is known.
	Key() string
	// Guard is true in a transaction only while the hold's key exists.
	Guard() clientv3.Cmp
	// Share returns the same lock for another goroutine.
	Share() lock
}

// A side is a library.
type side struct {
	name string
	open func(c *clientv3.Client, name, who string, ttl time.Duration) (lock, error)
	lost func(error) bool // reports whether an Unlock said that the lock had been lost
}

var (
	ours = side{record.Ours, openOurs, func(err error) bool { return errors.Is(err, etcdlock.ErrLost) }}
	// ErrLockReleased comes from Unlock without a Lock only.
	theirs = side{record.Theirs, openTheirs, func(err error) bool { return err != nil }}
)

func sideNamed(name string) side {
	if name == theirs.name {
		return theirs
	}
	return ours
}

// sharing reports whether holds of a Session may have one key, and so one token.
func sharing() bool { return os.Getenv(shareEnv) != "" }

// grows reports whether a hold may have the token next after one that had last.
func grows(last, next int64) bool { return next > last || sharing() && next == last }

type etcdlockLock struct {
	*etcdlock.Mutex
	session *etcdlock.Session
	hold    context.Context
}

func openOurs(c *clientv3.Client, name, who string, ttl time.Duration) (lock, error) {
	opts := []etcdlock.Option{etcdlock.WithTTL(ttl), etcdlock.WithOwner(who)}
	if sharing() {
		opts = append(opts, etcdlock.WithHandoff(3), etcdlock.WithLinger(200*time.Millisecond))
	}
	s, err := etcdlock.NewSession(c, opts...)
	if err != nil {
		return nil, err
	}
	mu, err := s.Mutex(name)
	if err != nil {
		return nil, err
	}
	return &etcdlockLock{Mutex: mu, session: s, hold: mu.Context(context.Background())}, nil
}

func (l *etcdlockLock) Lock(ctx context.Context) error    { return l.held(l.Mutex.Lock(ctx)) }
func (l *etcdlockLock) TryLock(ctx context.Context) error { return l.held(l.Mutex.TryLock(ctx)) }

func (l *etcdlockLock) held(err error) error {
	if err == nil {
		l.hold = l.Mutex.Context(context.Background())
	}
	return err
}

func (l *etcdlockLock) Close(ctx context.Context) error { return l.session.Close(ctx) }
func (l *etcdlockLock) Ended() <-chan struct{}          { return l.hold.Done() }
func (l *etcdlockLock) Holds() bool                     { return l.hold.Err() == nil }
func (l *etcdlockLock) Guard() clientv3.Cmp             { return l.Mutex.IsOwner() }

func (l *etcdlockLock) Share() lock {
	return &etcdlockLock{Mutex: l.Mutex, session: l.session, hold: l.Mutex.Context(context.Background())}
}

type concurrencyLock struct {
	client  *clientv3.Client
	name    string
	ttl     time.Duration
	session *concurrency.Session
	mu      *concurrency.Mutex
}

func openTheirs(c *clientv3.Client, name, _ string, ttl time.Duration) (lock, error) {
	return &concurrencyLock{client: c, name: name, ttl: ttl}, nil
}

func (l *concurrencyLock) Lock(ctx context.Context) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	return l.mu.Lock(ctx)
}

func (l *concurrencyLock) TryLock(ctx context.Context) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	return l.mu.TryLock(ctx)
}

// ready makes a session that is not known to be lost. It grants the lease in ctx, and
// hands the session a context of its own, which must outlive the call.
func (l *concurrencyLock) ready(ctx context.Context) error {
	if l.session != nil && l.Holds() {
		return nil
	}
	seconds := int64((l.ttl + time.Second - 1) / time.Second)
	granted, err := l.client.Grant(ctx, seconds)
	if err != nil {
		return err
	}
	session, err := concurrency.NewSession(l.client, concurrency.WithLease(granted.ID), concurrency.WithTTL(int(seconds)))
	if err != nil {
		return err
	}
	l.session, l.mu = session, concurrency.NewMutex(session, l.name)
	return nil
}

func (l *concurrencyLock) Unlock(ctx context.Context) error {
	if l.mu == nil {
		return concurrency.ErrLockReleased
	}
	return l.mu.Unlock(ctx)
}

// Close is bounded by ctx, which the session's own Close does not take.
func (l *concurrencyLock) Close(ctx context.Context) error {
	if l.session == nil {
		return nil
	}
	closed := make(chan error, 1)
	go func() { closed <- l.session.Close() }() // ends after one TTL at the latest
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *concurrencyLock) Ended() <-chan struct{} {
	if l.session == nil {
		return nil
	}
	return l.session.Done()
}

func (l *concurrencyLock) Holds() bool {
	select {
	case <-l.Ended():
		return false
	default:
		return true
	}
}

func (l *concurrencyLock) Token() int64 {
	if l.mu == nil || l.mu.Header() == nil {
		return 0
	}
	return l.mu.Header().Revision
}

func (l *concurrencyLock) Key() string {
	if l.mu == nil {
		return ""
	}
	return l.mu.Key()
}

func (l *concurrencyLock) Guard() clientv3.Cmp { return l.mu.IsOwner() }

func (l *concurrencyLock) Share() lock {
	shared := *l
	return &shared
}
