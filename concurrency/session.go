package concurrency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcd "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/hold"
)

const (
	defaultTTL = 60 // seconds, as in etcd's package

	// mostTTL is above etcd's limit, and fits into a Duration.
	mostTTL = 9_000_000_001

	// openTime bounds the wait of NewSession for an etcd that does not answer.
	openTime = 5 * time.Second
)

var (
	errClosed   = errors.New("etcdlock: the Session was closed")
	errOrphaned = fmt.Errorf("%w: it was orphaned: lock before Orphan, or with another Session",
		ErrSessionExpired)
)

// A Session is a lease, kept alive, for locks and for keys of your own. It ends with the trust in
// its lease, with a lock of it that is lost, with its client, with the context of [WithContext],
// and by Orphan and Close. It does not come back: make another one.
type Session struct {
	// Set once, then only read.
	client *clientv3.Client
	opts   sessionOptions
	locks  *etcdlock.Session
	pin    *hold.Pin // of the lease
	lease  clientv3.LeaseID
	ttl    time.Duration // as granted
	ctx    context.Context
	end    context.CancelCauseFunc // of ctx
	etcds  func() *etcd.Session    // for an Election

	mu    sync.Mutex // guards what follows
	state state
	holds map[context.Context]struct{} // those of the locks that are held, each of which ends with its
}

// A state is whether a Session renews its leases.
type state uint8

const (
	renewing state = iota
	orphaned       // they are left to expire
	closed         // they are revoked
)

// NewSession returns a Session that has a lease, from etcd or from [WithLease]. It waits for an
// etcd that does not answer until the context of [WithContext] ends, and for at most 5 s.
func NewSession(client *clientv3.Client, opts ...SessionOption) (*Session, error) {
	if client == nil {
		return nil, errors.New("etcdlock: nil client")
	}
	s := &Session{client: client, holds: make(map[context.Context]struct{})}
	s.opts = sessionOptions{client: client, ttl: defaultTTL, ctx: client.Ctx()}
	for _, opt := range opts {
		opt(&s.opts)
	}
	var engine *hold.Session
	own := hold.Option(func(c *hold.Config) {
		c.Adopt, c.SlashNames = s.opts.lease, true
		c.Opened = func(e *hold.Session) { engine = e }
	}).(etcdlock.SessionOption)
	ttl := time.Duration(min(s.opts.ttl, mostTTL)) * time.Second
	var err error
	if s.locks, err = etcdlock.NewSession(client, etcdlock.WithTTL(ttl), own); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.opts.ctx, openTime)
	defer cancel()
	if s.pin, err = hold.NewPin(ctx, engine); err != nil {
		cancel()
		return nil, errors.Join(err, s.locks.Close(ctx))
	}
	s.lease, s.ttl = s.pin.Lease()
	s.ctx, s.end = context.WithCancelCause(s.opts.ctx)
	s.etcds = sync.OnceValue(s.etcdSession)
	go s.watch()
	return s, nil
}

// watch is the goroutine of s. It ends with s.
func (s *Session) watch() {
	select {
	case <-s.pin.Dead():
	case <-s.client.Ctx().Done():
	case <-s.ctx.Done():
	}
	s.check()
	s.becomes(orphaned)
	if s.client.Ctx().Err() != nil { // without its client nothing can go on, nor be given back
		s.locks.Close(s.client.Ctx())
	}
}

// becomes changes the state of s, if that goes on, and returns the one before. What was orphaned is
// renewed no more.
func (s *Session) becomes(next state) (before state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.state
	if s.state = max(before, next); before == renewing && next == orphaned {
		s.pin.Orphan()
	}
	return before
}

// Client is the etcd client that is attached to the Session.
func (s *Session) Client() *clientv3.Client { return s.client }

// Lease is the ID of the lease: attach your own keys to it.
func (s *Session) Lease() clientv3.LeaseID { return s.lease }

// Ctx returns a context that comes from the one of [WithContext], or from the client's, and ends
// with the Session. context.Cause says why. After a pause of the process its Err and Done tell the
// truth at the first call.
func (s *Session) Ctx() context.Context { return sessionContext{s.ctx, s} }

// Done returns a channel that is closed when the Session ends: before etcd can give a lock of it to
// another, unless an operator has taken its key or its lease away.
func (s *Session) Done() <-chan struct{} {
	s.check()
	return s.ctx.Done()
}

// check ends s if its client, its lease, or a lock of it, is over.
func (s *Session) check() {
	if s.ctx.Err() != nil {
		return
	}
	if client := s.client.Ctx(); client.Err() != nil {
		s.end(context.Cause(client))
		return
	}
	if why := s.pin.Over(); why != nil {
		s.end(why)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.holds {
		s.endIfLost(h)
	}
}

// endIfLost ends s if the lock that h ends with was lost.
func (s *Session) endIfLost(h context.Context) {
	if why := context.Cause(h); h.Err() != nil && errors.Is(why, etcdlock.ErrLost) {
		s.end(why)
	}
}

// over is why a Lock of s fails, nil while s goes on.
func (s *Session) over() error {
	s.check()
	switch {
	case s.ctx.Err() == nil:
		return nil
	case context.Cause(s.ctx) == errOrphaned:
		return errOrphaned
	}
	return ErrSessionExpired
}

// Orphan ends the Session, and leaves its lease to expire, with all keys and locks on it. A lock
// that is held goes earlier if it is unlocked.
func (s *Session) Orphan() {
	s.end(errOrphaned)
	s.becomes(orphaned)
}

// Close ends the Session, releases its locks and revokes its lease, with your own keys on it. It
// waits for at most a TTL, and only until the context of [WithContext] ends: after an error what is
// left expires.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(s.opts.ctx, s.ttl)
	defer cancel()
	before := s.becomes(closed)
	s.end(errClosed)
	err := s.locks.Close(ctx)
	if before == orphaned {
		_, err = s.client.Revoke(ctx, s.lease)
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // it has expired, or was revoked just now
		return nil
	}
	return err
}

// A sessionContext is the context of a Session. Each of its methods checks the clocks first.
type sessionContext struct {
	context.Context
	s *Session
}

func (c sessionContext) Err() error {
	c.s.check()
	return c.Context.Err()
}

func (c sessionContext) Done() <-chan struct{} { return c.s.Done() }

// Value implements [context.Context]. context.Cause comes through here.
func (c sessionContext) Value(key any) any {
	c.s.check()
	return c.Context.Value(key)
}

type sessionOptions struct {
	client *clientv3.Client
	ttl    int
	lease  clientv3.LeaseID
	ctx    context.Context
}

// A SessionOption is an option of [NewSession].
type SessionOption func(*sessionOptions)

// WithTTL sets the TTL of the lease, in seconds. It is 60 by default, and if ttl is not positive.
func WithTTL(ttl int) SessionOption {
	return func(o *sessionOptions) {
		if ttl > 0 {
			o.ttl = ttl
		} else {
			o.client.GetLogger().Warn("WithTTL(): TTL should be > 0, preserving current TTL")
		}
	}
}

// WithLease has the Session use a lease that there is, and renew it. Close revokes it. A lease that
// etcd does not know is an error of NewSession. The locks of an earlier Session on the lease are
// not taken over; see the package documentation.
func WithLease(id clientv3.LeaseID) SessionOption {
	return func(o *sessionOptions) { o.lease = id }
}

// WithContext sets the context that bounds NewSession and Close, and ends the Session. Without it
// the client's does. If it ends before Close, the lease is left to expire.
func WithContext(ctx context.Context) SessionOption {
	return func(o *sessionOptions) { o.ctx = ctx }
}
