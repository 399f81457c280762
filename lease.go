package etcdlock

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/hold"
)

// A Session is one lease, kept alive, that any number of locks share.
//
//	err := session.Do(ctx, name, fn) // or h, err := session.Lock(ctx, name), then h.Unlock(ctx)
//
// Use one Session for many names: they then cost one lease with its renewals, and, if it holds at
// most a hundred, one watch for each that is held for more than a second. If the lease is lost, so
// are all holds on it.
//
// A Session replaces a lost lease for the next acquisition. When nothing was held or waited for
// during two TTLs it gives the lease back by itself and has no goroutine until it is used again.
// All methods are safe for concurrent use.
type Session struct {
	_ noCopy

	engine *hold.Session // set once, nil if the Session was not made here
}

// NewSession returns a Session. It validates the options and does no I/O: the lease is granted when
// it is first needed. Options for a Mutex are defaults for the Mutexes of the Session.
//
// Close it before the process ends. Otherwise a key that it holds, or is removing, blocks others
// for up to the TTL.
func NewSession(client *clientv3.Client, opts ...SessionOption) (*Session, error) {
	s, err := openSession(client, forSession, opts)
	if err != nil {
		return nil, err
	}
	return &Session{engine: s}, nil
}

// Lease returns the lease that the next hold will have. It is clientv3.NoLease before the first
// use, after Close, and when the lease was lost, is in doubt, or was not used for two TTLs. The
// next use then gets another one. A hold keeps the one with which it began.
//
// Do not renew or revoke it, and attach no keys of your own: they go with it.
func (s *Session) Lease() clientv3.LeaseID {
	if s.check() != nil {
		return clientv3.NoLease
	}
	return s.engine.Lease()
}

// Mutex returns a Mutex for name on the Session's lease. It does no I/O. The Mutex needs no Close:
// the Session's ends what it holds.
func (s *Session) Mutex(name string, opts ...Option) (*Mutex, error) {
	return s.newMutex(name, forMutex, opts)
}

// RWMutex returns an RWMutex for name on the Session's lease, as [Session.Mutex] returns a Mutex.
func (s *Session) RWMutex(name string, opts ...Option) (*RWMutex, error) {
	m, err := s.newMutex(name, forRWMutex, opts)
	if err != nil {
		return nil, err
	}
	return &RWMutex{Mutex: m}, nil
}

// Semaphore returns a Semaphore for name on the Session's lease, as [Session.Mutex] returns a
// Mutex.
func (s *Session) Semaphore(name string, limit int, opts ...Option) (*Semaphore, error) {
	if err := checkLimit(name, limit); err != nil {
		return nil, err
	}
	m, err := s.newMutex(name, forSemaphore, opts)
	if err != nil {
		return nil, err
	}
	return &Semaphore{m: m, limit: limit}, nil
}

// newMutex returns the Mutex of something on the lease of s.
func (s *Session) newMutex(name string, of use, opts []Option) (*Mutex, error) {
	cfg, err := s.configured(name, of, opts)
	if err != nil {
		return nil, err
	}
	if s.engine.IsClosed() {
		return nil, failed("mutex", name, ErrClosed)
	}
	return &Mutex{lock: new(hold.Lock).Init(s.engine, name, cfg)}, nil
}

// configured is the config of a lock of s, with its options: s's own if nothing changes it.
func (s *Session) configured(name string, of use, opts []Option) (*hold.Config, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	own := s.engine.Config()
	checked := name
	if own.SlashNames {
		checked = strings.TrimRight(name, "/")
	}
	if err := checkName(checked); err != nil {
		return nil, err
	}
	ignores := of != forMutex && own.MinHold > 0 // a default of the Session
	if len(opts) == 0 && !ignores {
		return own, nil
	}
	cfg, err := configure(*own, of, opts)
	if ignores {
		cfg.MinHold = 0
	}
	return &cfg, err
}

// Lock waits in line until it holds the lock name, as [Mutex.Lock] does, with its errors. After nil
// the caller holds it until it calls Unlock on the Hold; nothing has to be closed.
//
// For names that come with the work. It costs as much as a Mutex that is used again.
func (s *Session) Lock(ctx context.Context, name string, opts ...Option) (*Hold, error) {
	return s.lock(ctx, name, opts, hold.Request{})
}

// TryLock takes the lock name if no contender holds it or waits for it, as [Mutex.TryLock] does.
func (s *Session) TryLock(ctx context.Context, name string, opts ...Option) (*Hold, error) {
	return s.lock(ctx, name, opts, hold.Request{Try: true})
}

// Do calls fn while it holds the lock name, with a context that ends with the hold. nil means that
// fn returned nil and was protected throughout. As with [Mutex.Do], an error that is [ErrNotRun]
// says that fn was not called, and one that is [ErrLost] that it was not protected throughout.
func (s *Session) Do(
	ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option,
) error {
	return doWith(ctx, "Do", fn, func() (*Hold, error) {
		return s.lock(ctx, name, opts, hold.Request{Runs: true})
	})
}

// TryDo is Do with TryLock in place of Lock. If this lock was taken, the error is [ErrNotRun] and
// [ErrLocked]; without ErrNotRun, ErrLocked is fn's own.
func (s *Session) TryDo(
	ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option,
) error {
	return doWith(ctx, "TryDo", fn, func() (*Hold, error) {
		return s.lock(ctx, name, opts, hold.Request{Try: true, Runs: true})
	})
}

// Lead calls fn each time this process holds the lock name, until ctx ends or fn returns
// [ErrStopLeading], as [Mutex.Lead] does.
func (s *Session) Lead(
	ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option,
) error {
	cfg, err := s.configured(name, forMutex, opts)
	if err != nil {
		return err
	}
	return candidate{&Mutex{lock: new(hold.Lock).Init(s.engine, name, cfg)}, fn}.run(ctx)
}

// A namedHold is a Hold with what it is of.
type namedHold struct {
	Hold
	of hold.Lock
}

// lock is Lock, or TryLock. A call without options allocates no more than a Mutex that is used
// again does, but for the Hold.
func (s *Session) lock(
	ctx context.Context, name string, opts []Option, w hold.Request,
) (*Hold, error) {
	cfg, err := s.configured(name, forMutex, opts)
	if err != nil {
		return nil, err
	}
	n := new(namedHold)
	if err := n.h.Acquire(ctx, n.of.Init(s.engine, name, cfg), w); err != nil {
		return nil, err
	}
	return &n.Hold, nil
}

// LockAll waits until it holds the locks of all the names: 1 to 32, each once, and all of them or
// none. After nil the caller holds them until it calls Unlock on the Hold.
//
// ctx bounds the wait only. Uncontended it is one request to etcd, and so is the Hold's Unlock. It
// stands in the line of each name, first come, first served, and cannot deadlock with any other
// LockAll or Lock, whatever the order of the names, unless the caller already holds another lock.
// While it waits for one name it keeps its places in the other lines, and counts as the holder
// where it is the first.
//
// The names have one token, and they end together: if one is lost all are, and the contexts of the
// Hold end with the [*LostError] of that name. After an error nothing is held, as after one of
// [Mutex.Lock]. Wrong names (none, too many, one twice, an invalid one) are an error before
// anything is sent. The other errors are as for [Mutex.Lock], about the first name in the way;
// [ErrDeadlock] comes also with [WithReentrancy].
//
// It has the options of the Session, without [WithHandoff], [WithLinger] and [WithMinHold]. The
// hooks of the Trace are called for each name, but Start once, and Recalled for the name recalled.
func (s *Session) LockAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.lockAll(ctx, names, hold.Request{})
}

// TryLockAll takes the locks of all the names if no contender holds or waits for any of them. If
// one is taken it returns the [*LockedError] of the first that is, which is [ErrLocked] by
// errors.Is, and has put no key.
//
// It waits as [Mutex.TryLock] does. It looks at this Session first, and asks etcd only if none is
// taken there. Other errors are as for [Session.LockAll].
func (s *Session) TryLockAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.lockAll(ctx, names, hold.Request{Try: true})
}

// DoAll is [Mutex.Do] with LockAll: the context of fn ends if one of the names is lost. [TokenFrom]
// has the token of all.
func (s *Session) DoAll(
	ctx context.Context, names []string, fn func(ctx context.Context) error,
) error {
	return doWith(ctx, "DoAll", fn, func() (*Hold, error) {
		return s.lockAll(ctx, names, hold.Request{Runs: true})
	})
}

// TryDoAll is DoAll with TryLockAll, as [Session.TryDo] is Do with TryLock.
func (s *Session) TryDoAll(
	ctx context.Context, names []string, fn func(ctx context.Context) error,
) error {
	return doWith(ctx, "TryDoAll", fn, func() (*Hold, error) {
		return s.lockAll(ctx, names, hold.Request{Try: true, Runs: true})
	})
}

// lockAll is LockAll, or TryLockAll.
func (s *Session) lockAll(ctx context.Context, names []string, w hold.Request) (*Hold, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := checkNames(names); err != nil {
		return nil, err
	}
	if err := checkContext(ctx, "lock", names[0]); err != nil {
		return nil, err
	}
	h := new(Hold)
	if err := h.h.AcquireAll(ctx, s.engine, names, w); err != nil {
		return nil, err
	}
	return h, nil
}

// Close ends every hold and every wait of the Session, releases all keys by revoking the lease, but
// for those that [WithMinHold] keeps, and stops every goroutine but that of a hook that blocks. The
// contexts of the holds end with the cause [ErrClosed], without a margin: let the work stop before.
// The waits return ErrClosed.
//
// It returns nil if nothing is left behind, and when the Session was closed before.
// [ErrUnconfirmed] says that etcd did not confirm in time: the Session is closed all the same, its
// lease is no longer renewed, and its keys go within the TTL, except a key that another program put
// over. If ctx ended before the call, Close takes 50 ms at most; if ctx never ends, two TTLs. After
// a nil ctx nothing has happened.
func (s *Session) Close(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	if ctx == nil {
		return errors.New("etcdlock: close: nil context")
	}
	return s.engine.Close(ctx)
}

// check returns an error if s was not made with NewSession.
func (s *Session) check() error {
	if s == nil || s.engine == nil {
		return errors.New("etcdlock: Session not made with NewSession")
	}
	return nil
}
