package side

import (
	"context"
	"errors"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
)

// Several returns a Mutex that holds all of some names. This library does that by one
// LockAll; the other side locks one Mutex after another, in the given order.
func Several(s Session, names ...string) (Mutex, error) {
	if ours := OurSession(s); ours != nil {
		return &ourHolder{
			acquire: func(ctx context.Context) (*etcdlock.Hold, error) {
				return ours.LockAll(ctx, names...)
			},
			try: func(ctx context.Context) (*etcdlock.Hold, error) {
				return ours.TryLockAll(ctx, names...)
			},
		}, nil
	}
	all := make(oneByOne, len(names))
	for i, name := range names {
		mu, err := s.Mutex(name)
		if err != nil {
			return nil, err
		}
		all[i] = mu
	}
	return all, nil
}

// Permits returns a Mutex that holds n permits of a limit. The other side has none.
func Permits(s Session, name string, limit, n int) (Mutex, error) {
	ours := OurSession(s)
	if ours == nil {
		return nil, errors.ErrUnsupported
	}
	sem, err := ours.Semaphore(name, limit)
	if err != nil {
		return nil, err
	}
	return &ourHolder{
		acquire: func(ctx context.Context) (*etcdlock.Hold, error) { return sem.Acquire(ctx, n) },
		try:     func(ctx context.Context) (*etcdlock.Hold, error) { return sem.TryAcquire(ctx, n) },
	}, nil
}

// Candidate returns a Mutex that is held while its owner leads. With this library that is
// from a call of Lead's function to its return, with the other side from Campaign to
// Resign. It has no TryLock.
func Candidate(s Session, name string) (Mutex, error) {
	if theirs, ok := s.(*theirSession); ok {
		return &theirCandidate{s: theirs, name: name}, nil
	}
	mu, err := s.Mutex(name)
	if err != nil {
		return nil, err
	}
	return &ourCandidate{mu: mu.(OurMutex).Mutex}, nil
}

// ---- this library

// An ourHolder keeps the Hold that it got last.
type ourHolder struct {
	acquire, try func(context.Context) (*etcdlock.Hold, error)

	mu   sync.Mutex // never held across a wait
	hold *etcdlock.Hold
}

func (h *ourHolder) Lock(ctx context.Context) error    { return h.keep(h.acquire(ctx)) }
func (h *ourHolder) TryLock(ctx context.Context) error { return h.keep(h.try(ctx)) }

func (h *ourHolder) keep(hold *etcdlock.Hold, err error) error {
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = hold
	return nil
}

// last is the last Hold. Before the first one it is nil: the methods of a nil Hold say that
// nothing is held.
func (h *ourHolder) last() *etcdlock.Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hold
}

func (h *ourHolder) Unlock(ctx context.Context) error { return h.last().Unlock(ctx) }
func (h *ourHolder) Hold() context.Context {
	return h.last().Context(context.Background())
}
func (h *ourHolder) Token() int64          { return h.last().Token() }
func (h *ourHolder) IsOwner() clientv3.Cmp { return h.last().IsOwner()[0] }

// Key may be called only while the lock is held. For several names it returns the key of
// the first.
func (h *ourHolder) Key() string {
	owns := h.IsOwner()
	return string(owns.KeyBytes())
}

// An ourCandidate is Lead as two calls: one until it leads, and one that ends the term.
type ourCandidate struct {
	mu *etcdlock.Mutex

	guard  sync.Mutex // never held across a wait
	term   context.Context
	resign context.CancelFunc
	over   chan error // has what Lead returned
}

func (c *ourCandidate) Lock(ctx context.Context) error {
	candidacy, resign := context.WithCancel(context.WithoutCancel(ctx))
	leads, over := make(chan context.Context), make(chan error, 1)
	go func() { // ends with the candidacy
		over <- c.mu.Lead(candidacy, func(ctx context.Context) error {
			select {
			case leads <- ctx:
				<-ctx.Done()
			case <-candidacy.Done():
			}
			return context.Cause(ctx)
		})
	}()
	select {
	case term := <-leads:
		c.guard.Lock()
		defer c.guard.Unlock()
		c.term, c.resign, c.over = term, resign, over
		return nil
	case <-ctx.Done():
		resign()
		<-over
		return context.Cause(ctx)
	case err := <-over:
		resign()
		return err
	}
}

func (c *ourCandidate) TryLock(context.Context) error { return errors.ErrUnsupported }

// Unlock says why the term was over, if it had ended before.
func (c *ourCandidate) Unlock(ctx context.Context) error {
	c.guard.Lock()
	term, resign, over := c.term, c.resign, c.over
	c.guard.Unlock()
	if term == nil {
		return etcdlock.ErrNotHeld
	}
	lost := context.Cause(term)
	resign()
	select {
	case <-over:
		return lost
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Hold is the context of the last term.
func (c *ourCandidate) Hold() context.Context {
	c.guard.Lock()
	defer c.guard.Unlock()
	if c.term == nil {
		return c.mu.Context(context.Background())
	}
	return c.term
}

func (c *ourCandidate) Token() int64 {
	token, _ := etcdlock.TokenFrom(c.Hold())
	return token
}

func (c *ourCandidate) Key() string           { return c.mu.Key() }
func (c *ourCandidate) IsOwner() clientv3.Cmp { return c.mu.IsOwner() }

// ---- etcd's own

// oneByOne is some locks, in the order in which they are locked.
type oneByOne []Mutex

func (all oneByOne) Lock(ctx context.Context) error {
	return all.take(ctx, func(m Mutex) error { return m.Lock(ctx) })
}

func (all oneByOne) TryLock(ctx context.Context) error {
	return all.take(ctx, func(m Mutex) error { return m.TryLock(ctx) })
}

// take locks all, or gives back those that it has.
func (all oneByOne) take(ctx context.Context, lock func(Mutex) error) error {
	for i, m := range all {
		if err := lock(m); err != nil {
			return errors.Join(err, all[:i].Unlock(context.WithoutCancel(ctx)))
		}
	}
	return nil
}

func (all oneByOne) Unlock(ctx context.Context) (err error) {
	for _, m := range all {
		err = errors.Join(err, m.Unlock(ctx))
	}
	return err
}

// Hold, Token, Key and IsOwner are those of the last lock, which was locked after all
// others.
func (all oneByOne) Hold() context.Context { return all[len(all)-1].Hold() }
func (all oneByOne) Token() int64          { return all[len(all)-1].Token() }
func (all oneByOne) Key() string           { return all[len(all)-1].Key() }
func (all oneByOne) IsOwner() clientv3.Cmp { return all[len(all)-1].IsOwner() }

// A theirCandidate is a concurrency.Election on the live session.
type theirCandidate struct {
	s    *theirSession
	name string

	mu       sync.Mutex           // never held across a wait
	session  *concurrency.Session // nil before the first term
	election *concurrency.Election
}

func (c *theirCandidate) Lock(ctx context.Context) error {
	session, err := c.s.live(ctx)
	if err != nil {
		return err
	}
	election := concurrency.NewElection(session, c.name)
	if err := election.Campaign(ctx, "a candidate"); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.election = session, election
	return nil
}

func (c *theirCandidate) last() (*concurrency.Session, *concurrency.Election) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, c.election
}

func (c *theirCandidate) TryLock(context.Context) error { return errors.ErrUnsupported }

func (c *theirCandidate) Unlock(ctx context.Context) error {
	_, election := c.last()
	if election == nil {
		return concurrency.ErrElectionNotLeader
	}
	return election.Resign(ctx)
}

// Hold is the session's context. Before there is a session it is a context that does not
// end.
func (c *theirCandidate) Hold() context.Context {
	session, _ := c.last()
	if session == nil {
		return context.Background()
	}
	return contextOf(session)
}

// Token is the revision at which the term began.
func (c *theirCandidate) Token() int64 {
	_, election := c.last()
	if election == nil || election.Header() == nil {
		return 0
	}
	return election.Header().Revision
}

func (c *theirCandidate) Key() string {
	_, election := c.last()
	if election == nil {
		return ""
	}
	return election.Key()
}

// IsOwner may be called while it leads, and after that.
func (c *theirCandidate) IsOwner() clientv3.Cmp {
	_, election := c.last()
	return clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev())
}
