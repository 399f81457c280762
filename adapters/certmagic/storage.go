// Package etcdlockcertmagic puts the locks of certmagic, and so of Caddy, in etcd. Of many servers
// one at a time obtains or renews a certificate, cleans the storage, or registers an account,
// wherever the certificates themselves are stored.
//
//	func secure(
//		ctx context.Context, s *etcdlock.Session, files certmagic.Storage, domains ...string,
//	) (*tls.Config, error) {
//		storage, err := etcdlockcertmagic.New(s, "certmagic/", files) // all servers share both
//		if err != nil {
//			return nil, err
//		}
//		certmagic.Default.Storage = storage
//		config := certmagic.NewDefault()
//		err = config.ManageSync(ctx, domains)
//		return config.TLSConfig(), err
//	}
//
// # Loss of a lock
//
// certmagic takes no context from a lock, so a loss does not stop an order that is under way. Until
// it is over, another server may order the same certificate, and the later one is stored. But
// before each attempt of an order in the background certmagic calls RenewLockLease. That locks
// anew, and then certmagic looks whether the certificate is there by now. If another server has the
// lock, the attempt does not begin, and certmagic tries again later.
//
// RenewLockLease and Unlock log a loss to [Storage.Logger]. The logger and the Trace of the Session
// report it at once.
//
// A server that dies leaves its locks for at most the TTL of the Session's lease.
package etcdlockcertmagic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock"
)

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// A Storage is another storage whose locks are in etcd. It is safe for concurrent use. Make one for
// each process, or for each Session: only the Storage that has locked a name can unlock it.
type Storage struct {
	certmagic.Storage // files; its own locks are not used

	// Logger gets a warning for each lock that was lost. Set it before the first call. If it is nil,
	// certmagic.Default.Logger gets it.
	Logger *zap.Logger

	session *etcdlock.Session
	prefix  string

	mu sync.Mutex // no request to etcd while it is held
	// Invariant: a name that is here belongs to one caller, from its Lock to its Unlock, although
	// its hold may be lost in between. The name is all that tells that caller from the next one.
	taken map[string]*lock
}

// A lock is a name that a caller has, or for which it asks etcd.
type lock struct {
	over chan struct{} // closed when the next caller of this process may have the name

	// Guarded by Storage.mu. Of the first two one is set at most, and none while etcd is asked for
	// the hold of a Lock.
	hold *etcdlock.Hold
	used chan struct{} // a call has taken the hold out; closed when that call is over
	lost error         // of a hold that RenewLockLease has given up
}

// New returns a Storage that keeps files in storage, and the lock of a name at the name behind
// prefix in the etcd of s. All servers need the same prefix, such as "certmagic/". It does no I/O.
//
// The caller closes s when nothing uses the Storage any more: after certmagic's Cache.Stop, and
// after certmagic.CleanUpOwnLocks, which unlocks. A Close before that gives the locks up, and each
// Unlock logs it. The TTL of s is how long the locks of a server that has died remain. s needs no
// options.
func New(s *etcdlock.Session, prefix string, storage certmagic.Storage) (*Storage, error) {
	if s == nil {
		return nil, errors.New("etcdlockcertmagic: nil Session")
	}
	if storage == nil {
		return nil, errors.New("etcdlockcertmagic: nil Storage")
	}
	if _, err := s.Mutex(prefix + "name"); err != nil {
		return nil, fmt.Errorf("etcdlockcertmagic: prefix: %w", err)
	}
	return &Storage{Storage: storage, session: s, prefix: prefix, taken: make(map[string]*lock)}, nil
}

// Lock waits until it has the lock of name, first come, first served among the servers. ctx bounds
// the wait only.
//
// After nil the caller has the lock until it calls Unlock with the same name, from whatever
// goroutine. After an error it does not. The error is ctx.Err() if ctx ended, and otherwise one of
// [etcdlock.Mutex.Lock]. A name may have any bytes but must have some: in etcd it is escaped as a
// part of a URL's path, and has at most 1,024 bytes with its prefix. It costs one request if the
// lock is free.
func (s *Storage) Lock(ctx context.Context, name string) error {
	if ctx == nil {
		return fmt.Errorf("etcdlockcertmagic: lock %q: nil context", name)
	}
	for {
		l, free := s.take(name)
		if free {
			return s.begin(name, l, func(key string) (*etcdlock.Hold, error) {
				return s.session.Lock(ctx, key)
			})
		}
		select {
		case <-l.over:
		case <-ctx.Done():
			return fmt.Errorf("etcdlockcertmagic: lock %q, taken in this process: %w", name, ctx.Err())
		}
	}
}

// TryLock is Lock, but it returns false at once if the lock is taken, or if servers wait for it. If
// this process has it that costs no request, and otherwise one.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	l, free := s.take(name)
	if !free {
		return false, nil
	}
	err := s.begin(name, l, func(key string) (*etcdlock.Hold, error) {
		return s.session.TryLock(ctx, key)
	})
	if errors.Is(err, etcdlock.ErrLocked) {
		return false, nil
	}
	return err == nil, err
}

// Unlock releases the lock of name. It costs one request. Afterwards the caller has the lock no
// more, whatever it returns:
//   - nil if nothing of the lock is left. If it was lost, [Storage.Logger] gets the reason, and
//     another server may have had it meanwhile. That is no error: certmagic wants one only for a
//     lock that could not be released, and then keeps its name;
//   - [etcdlock.ErrUnconfirmed] if etcd did not answer. The release goes on in the background, and
//     the lock is free once the lease has expired;
//   - [etcdlock.ErrNotHeld] if this Storage did not have the lock, and nothing has happened.
//
// A ctx that has ended is ignored, as by [etcdlock.Mutex.Unlock], but for this: while a
// RenewLockLease of the name is under way Unlock waits for it, and returns ctx.Err() if ctx ends
// before. Then the caller has the lock yet.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	l, hold, lost, err := s.out(ctx, "unlock", name)
	if err != nil {
		return err
	}
	defer s.free(name, l)
	if lost == nil { // otherwise RenewLockLease has ended the hold
		lost = s.end(ctx, name, hold)
	}
	if errors.Is(lost, etcdlock.ErrUnconfirmed) {
		return lost
	}
	return nil
}

// RenewLockLease says whether the caller may go on: nil if it has the lock of name. While it does,
// it costs no request: the Session renews the lease by itself, whatever the duration.
//
// If the lock was lost, it tries to lock name anew. Then nil says that the caller has the lock
// again, and that another server may have had it meanwhile. An [etcdlock.ErrLocked] says that one
// has it now, and also why the lock was lost. After that or another error the caller does not have
// the lock, may call RenewLockLease again later, and has to call Unlock. [etcdlock.ErrNotHeld]
// alone says that the caller has nothing to unlock.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	l, hold, lost, err := s.out(ctx, "renew", name)
	if err != nil {
		return err
	}
	defer func() { s.in(l, hold, lost) }()
	if hold.Status().Held {
		return nil
	}
	if lost == nil { // until the Unlock the Session lets none of its own calls in
		if lost = s.end(ctx, name, hold); lost == nil {
			lost = etcdlock.ErrRecalled // its hold was whole, but it is over
		}
	}
	again, err := s.session.TryLock(ctx, s.key(name))
	if err != nil {
		return fmt.Errorf("etcdlockcertmagic: renew %q: %w; before that: %w", name, err, lost)
	}
	hold, lost = again, nil
	return nil
}

// end unlocks a hold, and logs if it was lost.
func (s *Storage) end(ctx context.Context, name string, hold *etcdlock.Hold) error {
	err := hold.Unlock(ctx)
	if err != nil && !errors.Is(err, etcdlock.ErrUnconfirmed) {
		logger := cmp.Or(s.Logger, certmagic.Default.Logger, zap.L()) // the second may be nil, too
		logger.Warn("lock lost: another server may have had it", zap.String("lock_key", name),
			zap.Error(err))
	}
	return err
}

// String names the storage in the logs of certmagic.
func (s *Storage) String() string {
	return fmt.Sprintf("%v, with locks in etcd at %s", s.Storage, s.prefix)
}

func (s *Storage) key(name string) string { return s.prefix + url.PathEscape(name) }

// take takes name for the caller, or returns the lock of the caller that has it.
func (s *Storage) take(name string) (l *lock, free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.taken[name]; l != nil {
		return l, false
	}
	l = &lock{over: make(chan struct{})}
	s.taken[name] = l
	return l, true
}

// begin asks etcd for the lock of a name that take has taken, and frees the name if it gets none.
func (s *Storage) begin(name string, l *lock, ask func(key string) (*etcdlock.Hold, error)) error {
	hold, err := ask(s.key(name))
	if err != nil {
		s.free(name, l)
		return err
	}
	s.in(l, hold, nil)
	return nil
}

func (s *Storage) free(name string, l *lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, name)
	l.endUseLocked()
	close(l.over)
}

// out takes the hold of name out of its lock, so that two calls at once do not both use it: an
// Unlock beside a RenewLockLease, as by certmagic.CleanUpOwnLocks when a server ends, waits for
// that to be over, or for ctx.
//
// Invariant: a call that has waited takes the hold of the same lock, or none. (Do not look the name
// up anew: an Unlock beside another would release the hold of the next caller.)
func (s *Storage) out(
	ctx context.Context, op, name string,
) (l *lock, hold *etcdlock.Hold, lost, err error) {
	if ctx == nil {
		return nil, nil, nil, fmt.Errorf("etcdlockcertmagic: %s %q: nil context", op, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for l = s.taken[name]; l != nil && s.taken[name] == l && l.used != nil; {
		used := l.used
		s.mu.Unlock()
		select {
		case <-used:
		case <-ctx.Done():
			err = fmt.Errorf("etcdlockcertmagic: %s %q, which another call uses: %w", op, name, ctx.Err())
		}
		s.mu.Lock()
		if err != nil {
			return nil, nil, nil, err
		}
	}
	if l == nil || s.taken[name] != l || l.hold == nil {
		return nil, nil, nil, fmt.Errorf("etcdlockcertmagic: %s %q: %w", op, name, etcdlock.ErrNotHeld)
	}
	hold, l.hold, l.used = l.hold, nil, make(chan struct{})
	return l, hold, l.lost, nil
}

// in puts a hold into its lock.
func (s *Storage) in(l *lock, hold *etcdlock.Hold, lost error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.hold, l.lost = hold, lost
	l.endUseLocked()
}

// endUseLocked notes that no call uses the hold any more.
func (l *lock) endUseLocked() {
	if l.used != nil {
		close(l.used)
		l.used = nil
	}
}
