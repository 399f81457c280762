package concurrency

import (
	"context"
	"errors"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcd "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/hold"
)

var (
	// ErrLocked says that the lock is taken.
	ErrLocked = etcd.ErrLocked

	// ErrSessionExpired says that the Session of the Mutex has ended: make another one.
	ErrSessionExpired = etcd.ErrSessionExpired

	// ErrLockReleased says that there was nothing to unlock. (It is not the one of etcd's package,
	// which has none before version 3.6 of the client.)
	ErrLockReleased = errors.New("mutex: lock has already been released")
)

// A Mutex is a lock that at most one holder has at a time: m.Lock(ctx), m.Unlock(ctx). A copy is
// the same Mutex. All methods are safe for concurrent use.
type Mutex struct{ m *mutex }

// A mutex is what all copies of a Mutex share.
type mutex struct {
	// Set once, then only read.
	s    *Session
	pfx  string
	lock *etcdlock.Mutex
	err  error // why there is no lock

	mu     sync.Mutex      // guards what follows
	held   context.Context // ends with the hold, nil without one
	key    string
	rev    int64
	header *pb.ResponseHeader
}

// NewMutex returns a Mutex of a Session, for the lock that pfx names. A name that cannot be used is
// an error of Lock.
func NewMutex(s *Session, pfx string) *Mutex {
	m := &mutex{s: s, pfx: pfx}
	m.lock, m.err = s.locks.Mutex(pfx)
	return &Mutex{m}
}

// TryLock takes the lock if it is free, and otherwise returns [ErrLocked] and has put no key. It
// returns [ErrSessionExpired] if the Session has ended.
func (m *Mutex) TryLock(ctx context.Context) error { return m.m.acquire(ctx, true) }

// Lock waits until it holds the lock, in the order of the calls. If ctx ends it returns ctx.Err(),
// and [ErrSessionExpired] if the Session ends. After an error no key stays that blocks others.
func (m *Mutex) Lock(ctx context.Context) error { return m.m.acquire(ctx, false) }

// acquire is Lock, or TryLock.
func (m *mutex) acquire(ctx context.Context, try bool) error {
	if over := m.s.over(); over != nil {
		return over
	}
	if m.err != nil {
		return m.err
	}
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.s.ctx, func() { cancel(ErrSessionExpired) })()
	err := m.get(within, try)
	over := m.s.over()
	switch {
	case err == nil && over != nil:
		ctx, cancel := briefly()
		defer cancel()
		m.release(ctx)
		return over
	case err == nil, err == ErrLocked:
		return err
	case over != nil:
		return over
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err()
	}
	return err
}

// get gets the lock. It tries first: a lock that is free is held as of the revision of its key,
// and no other read is needed for the header. What it notes is of one hold, which may have ended.
func (m *mutex) get(ctx context.Context, try bool) error {
	if err := m.checkLease(ctx); err != nil {
		return err
	}
	err, waits := m.lock.TryLock(ctx), false
	if err != nil {
		waits = errors.Is(err, etcdlock.ErrLocked)
		switch {
		case !waits:
			return err
		case try:
			return ErrLocked
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if err := m.lock.Lock(ctx); err != nil {
			return err
		}
	}
	held := m.lock.Context(context.Background())
	h := hold.From(held)
	if h == nil { // the Session was closed
		m.giveBack()
		return ErrSessionExpired
	}
	header := &pb.ResponseHeader{Revision: h.Token()}
	if waits {
		if header, err = m.read(ctx, h); err != nil {
			m.giveBack()
			return err
		}
	}
	m.s.mu.Lock()
	m.s.holds[held] = struct{}{}
	m.s.mu.Unlock()
	context.AfterFunc(held, func() { m.s.endIfLost(held) })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held, m.key, m.rev, m.header = held, h.KeySafe(), h.Token(), header
	return nil
}

// giveBack unlocks what get does not return.
func (m *mutex) giveBack() {
	ctx, cancel := briefly()
	defer cancel()
	m.lock.Unlock(ctx)
}

// read reads the key of h, which has waited, and returns the header. What the holders before have
// written is in the header's revision, and may not be in the key's. If the key is gone, m.s ends.
func (m *mutex) read(ctx context.Context, h *hold.Hold) (*pb.ResponseHeader, error) {
	resp, err := m.s.client.Get(ctx, h.KeySafe(), clientv3.WithCountOnly())
	if err != nil {
		return nil, err
	}
	if resp.Count == 0 {
		m.s.end(&etcdlock.LostError{
			Name: m.lock.Name(), Token: h.Token(), Reason: etcdlock.ErrKeyDeleted,
		})
		return nil, ErrSessionExpired
	}
	return resp.Header, nil
}

// briefly is the context of the release of a lock that is not returned to the caller: longer the
// caller does not wait, and the release goes on.
func briefly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), hold.CloseGrace)
}

// checkLease returns an error if the lock has a key of etcd's package on the Session's lease: it
// would wait for itself.
func (m *mutex) checkLease(ctx context.Context) error {
	if m.s.opts.lease == clientv3.NoLease {
		return nil
	}
	key := fmt.Sprintf("%s/%x", m.pfx, int64(m.s.lease))
	resp, err := m.s.client.Get(ctx, key, clientv3.WithCountOnly())
	if err == nil && resp.Count > 0 {
		err = fmt.Errorf("etcdlock: lock %q: the lease of WithLease has the key %q already, and a lock "+
			"is not taken over: unlock it where it was locked, delete the key, or use another lease",
			m.pfx, key)
	}
	return err
}

// Unlock releases the lock. nil says that it was held until this call. If it was lost before, the
// error is [ErrSessionExpired] and etcdlock.ErrLost; if etcd did not answer in time it is
// etcdlock.ErrUnconfirmed, and the release goes on. After each of these it is unlocked. Without a
// lock the error is [ErrLockReleased].
func (m *Mutex) Unlock(ctx context.Context) error { return m.m.release(ctx) }

// release is Unlock.
func (m *mutex) release(ctx context.Context) error {
	if ctx == nil {
		return errors.New("etcdlock: nil context")
	}
	m.mu.Lock()
	h := m.held
	m.held, m.key, m.rev = nil, "", 0
	m.mu.Unlock()
	if h == nil {
		return ErrLockReleased
	}
	m.s.mu.Lock()
	delete(m.s.holds, h)
	m.s.mu.Unlock()
	err := m.lock.Unlock(ctx)
	switch {
	case errors.Is(err, etcdlock.ErrNotHeld): // the Session was closed
		return ErrLockReleased
	case errors.Is(err, etcdlock.ErrLost):
		return fmt.Errorf("%w: %w", ErrSessionExpired, err)
	}
	return err
}

// IsOwner returns a comparison for the If of an etcd transaction: it is true only while the key of
// this very lock exists. Without a lock it is never true.
func (m *Mutex) IsOwner() clientv3.Cmp {
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	if m.m.held == nil {
		return m.m.lock.IsOwner()
	}
	return clientv3.Compare(clientv3.CreateRevision(m.m.key), "=", m.m.rev)
}

// Key is the key of the lock in etcd, also once it is lost; empty without a lock.
func (m *Mutex) Key() string {
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	return m.m.key
}

// Header is of an answer of etcd after which the lock was held, nil before the first one. Its
// revision has all that earlier holders have written. The rest of it is set after a wait only.
func (m *Mutex) Header() *pb.ResponseHeader {
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	return m.m.header
}

type locker struct{ *Mutex }

func (l locker) Lock() {
	if err := l.Mutex.Lock(l.m.s.client.Ctx()); err != nil {
		panic(err)
	}
}

func (l locker) Unlock() {
	err := l.Mutex.Unlock(l.m.s.client.Ctx())
	if err != nil && !errors.Is(err, etcdlock.ErrUnconfirmed) {
		panic(err)
	}
}

// NewLocker returns a sync.Locker for the lock that pfx names. It panics where Lock and Unlock of a
// Mutex return an error, also for a lock that was lost; not for etcdlock.ErrUnconfirmed.
func NewLocker(s *Session, pfx string) sync.Locker { return locker{NewMutex(s, pfx)} }
