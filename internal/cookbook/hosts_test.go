package cookbook_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock"
)

// The recipes of docs/adapters.md.

// connect returns the client and the Session of a process.
func connect(endpoints ...string) (*clientv3.Client, *etcdlock.Session, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialKeepAliveTime:    10 * time.Second, // pings find a dead connection
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, nil, err
	}
	session, err := etcdlock.NewSession(client, etcdlock.WithLogger(slog.Default()))
	return client, session, err
}

// A keyed locker keeps the holds of callers that have nothing but a name.
type keyedLocker struct {
	session *etcdlock.Session
	mu      sync.Mutex
	holds   map[string]*etcdlock.Hold
}

func (k *keyedLocker) Lock(ctx context.Context, name string) error {
	hold, err := k.session.Lock(ctx, "keyed/"+url.PathEscape(name))
	return k.keep(name, hold, err)
}

func (k *keyedLocker) TryLock(ctx context.Context, name string) (bool, error) {
	hold, err := k.session.TryLock(ctx, "keyed/"+url.PathEscape(name))
	if errors.Is(err, etcdlock.ErrLocked) {
		return false, nil
	}
	return err == nil, k.keep(name, hold, err)
}

func (k *keyedLocker) keep(name string, hold *etcdlock.Hold, err error) error {
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.holds[name] = hold
	}
	return err
}

func (k *keyedLocker) Unlock(ctx context.Context, name string) error {
	k.mu.Lock()
	hold := k.holds[name]
	delete(k.holds, name) // before the next caller gets in
	k.mu.Unlock()
	if hold == nil {
		return etcdlock.ErrNotHeld
	}
	return hold.Unlock(ctx) // ErrLost tells of a loss
}

// A plainLocker is for a host without contexts.
type plainLocker struct {
	mu   *etcdlock.Mutex
	most time.Duration // less than the time after which the host gives up
}

func (l plainLocker) Lock() error {
	ctx, cancel := context.WithTimeout(context.Background(), l.most)
	defer cancel()
	return l.mu.Lock(ctx)
}

func (l plainLocker) Unlock() error { return l.mu.Unlock(context.Background()) } // within 5 s

// endWith ends work, whose context is there before the hold, when the hold ends.
func endWith(hold *etcdlock.Hold, end context.CancelCauseFunc) {
	ctx := hold.Context(context.Background())
	context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
}

// Trillian's election2.Election.
type trillianElection interface {
	Await(ctx context.Context) error
	WithMastership(ctx context.Context) (context.Context, error)
	Resign(ctx context.Context) error
	Close(ctx context.Context) error
}

// An election is one candidate. Its methods are called one at a time.
type election struct {
	session *etcdlock.Session
	name    string
	hold    *etcdlock.Hold // the last one, or nil
}

var _ trillianElection = (*election)(nil)

func (e *election) Await(ctx context.Context) error {
	if e.hold != nil && e.hold.Status().Held {
		return nil
	}
	if err := e.Resign(ctx); err != nil { // a lost hold: the candidate queues again
		return err
	}
	hold, err := e.session.Lock(ctx, e.name)
	if err == nil {
		e.hold = hold
	}
	return err
}

func (e *election) WithMastership(ctx context.Context) (context.Context, error) {
	if e.hold == nil {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(etcdlock.ErrNotHeld)
		return ctx, nil
	}
	return e.hold.Context(ctx), nil // has ended if the hold is lost
}

func (e *election) Resign(ctx context.Context) error {
	if e.hold == nil {
		return nil
	}
	err := e.hold.Unlock(ctx)
	e.hold = nil
	if errors.Is(err, etcdlock.ErrLost) {
		return nil // it leads no more, which is what was asked for
	}
	return err
}

func (e *election) Close(ctx context.Context) error { return e.Resign(ctx) }

// The requests and answers of dapr's lock.Store.
type (
	tryLockRequest struct {
		ResourceID      string
		LockOwner       string
		ExpiryInSeconds int32
	}
	unlockRequest struct{ ResourceID, LockOwner string }
	unlockStatus  int32
)

const (
	unlocked unlockStatus = iota
	lockDoesNotExist
	lockBelongsToOthers
	internalError
)

// A lockStore keeps nothing itself: any of the processes may unlock what another one has locked.
type lockStore struct {
	client  *clientv3.Client
	session *etcdlock.Session
}

func (s *lockStore) TryLock(ctx context.Context, r tryLockRequest) (bool, error) {
	if r.LockOwner == "" || r.ExpiryInSeconds <= 0 {
		return false, errors.New("a lock needs an owner and an expiry")
	}
	name := "dapr/" + url.PathEscape(r.ResourceID)
	hold, err := s.session.TryLock(ctx, name, etcdlock.WithOwner(r.LockOwner),
		etcdlock.WithMinHold(time.Duration(r.ExpiryInSeconds)*time.Second))
	if errors.Is(err, etcdlock.ErrLocked) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// From here on the key expires by itself, whether this process lives or not.
	err = hold.Unlock(ctx)
	return err == nil, err
}

func (s *lockStore) Unlock(ctx context.Context, r unlockRequest) (unlockStatus, error) {
	line, err := etcdlock.Contenders(ctx, s.client, "dapr/"+url.PathEscape(r.ResourceID))
	switch {
	case err != nil:
		return internalError, err
	case len(line) == 0:
		return lockDoesNotExist, nil
	case line[0].Owner != r.LockOwner:
		return lockBelongsToOthers, nil
	}
	if err := etcdlock.Break(ctx, s.client, line[0]); err != nil { // this key, and no later one
		return internalError, err
	}
	return unlocked, nil
}

// Vault's physical.HABackend and physical.Lock.
type (
	vaultBackend interface {
		LockWith(key, value string) (vaultLock, error)
		HAEnabled() bool
	}
	vaultLock interface {
		Lock(stop <-chan struct{}) (lost <-chan struct{}, err error)
		Unlock() error
		Value() (held bool, value string, err error)
	}
)

type haBackend struct {
	client  *clientv3.Client
	session *etcdlock.Session
}

func (b *haBackend) HAEnabled() bool { return true }

func (b *haBackend) LockWith(key, value string) (vaultLock, error) {
	mu, err := b.session.Mutex("vault/"+key, etcdlock.WithInfo(value))
	return &haLock{b.client, mu}, err
}

type haLock struct {
	client *clientv3.Client
	mu     *etcdlock.Mutex
}

// Lock returns nil and nil if stop ends the wait, as Vault's own backends do.
func (l *haLock) Lock(stop <-chan struct{}) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the call
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := l.mu.Lock(ctx); errors.Is(err, context.Canceled) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return l.mu.Context(context.Background()).Done(), nil
}

func (l *haLock) Unlock() error { return l.mu.Unlock(context.Background()) }

func (l *haLock) Value() (bool, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	line, err := etcdlock.Contenders(ctx, l.client, l.mu.Name())
	if err != nil || len(line) == 0 {
		return false, "", err
	}
	return true, line[0].Info, nil
}

// Valkeyrie's store.Locker.
type storeLocker interface {
	Lock(ctx context.Context) (lost <-chan struct{}, err error)
	Unlock(ctx context.Context) error
}

// newLock is NewLock of valkeyrie's store.Store. The TTL is that of the Session.
func newLock(s *etcdlock.Session, key string, value []byte) (storeLocker, error) {
	mu, err := s.Mutex("locks/"+key, etcdlock.WithInfo(string(value)))
	return locker{mu}, err
}

type locker struct{ mu *etcdlock.Mutex }

func (l locker) Lock(ctx context.Context) (<-chan struct{}, error) {
	if err := l.mu.Lock(ctx); err != nil {
		return nil, err
	}
	return l.mu.Context(context.Background()).Done(), nil
}

func (l locker) Unlock(ctx context.Context) error { return l.mu.Unlock(ctx) }
