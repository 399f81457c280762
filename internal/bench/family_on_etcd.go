package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// ---- several names

func (p *libraryParty) severalLock(_ context.Context, names []string) (side.Lock, error) {
	return &libraryLockAll{session: p.session, names: names}, nil
}

type libraryLockAll struct {
	session *etcdlock.Session
	names   []string
	hold    *etcdlock.Hold
}

func (l *libraryLockAll) Lock(ctx context.Context) (err error) {
	l.hold, err = l.session.LockAll(ctx, l.names...)
	return err
}

func (l *libraryLockAll) TryLock(ctx context.Context) (err error) {
	l.hold, err = l.session.TryLockAll(ctx, l.names...)
	return err
}

func (l *libraryLockAll) Unlock(ctx context.Context) error { return l.hold.Unlock(ctx) }

// openSingly is this library without LockAll.
func openSingly(ctx context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	p, err := openLibrary()(ctx, address, ttl, w)
	return struct{ party }{p}, err
}

// openAtOnce is this library without LockAll, with a goroutine for each name.
func openAtOnce(ctx context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	p, err := openSingly(ctx, address, ttl, w)
	return atOnceParty{p}, err
}

type atOnceParty struct{ party }

func (p atOnceParty) severalLock(ctx context.Context, names []string) (side.Lock, error) {
	locks, err := locksOf(ctx, p.party, names)
	return allAtOnce(locks), err
}

// allAtOnce is several locks, each with a goroutine of its own. Its users must not contend: two of
// them might wait for each other.
type allAtOnce []side.Lock

func (l allAtOnce) Lock(ctx context.Context) error {
	return l.each(func(one side.Lock) error { return one.Lock(ctx) })
}

func (l allAtOnce) TryLock(context.Context) error { return errors.ErrUnsupported }

func (l allAtOnce) Unlock(ctx context.Context) error {
	return l.each(func(one side.Lock) error { return one.Unlock(ctx) })
}

func (l allAtOnce) each(do func(side.Lock) error) error {
	errs := make([]error, len(l))
	var all sync.WaitGroup
	for i, one := range l {
		all.Go(func() { errs[i] = do(one) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// ---- semaphores

func (p *libraryParty) permit(name string, limit int) (side.Lock, error) {
	s, err := p.session.Semaphore(name, limit)
	return &libraryPermit{semaphore: s}, err
}

type libraryPermit struct {
	semaphore *etcdlock.Semaphore
	hold      *etcdlock.Hold
}

func (l *libraryPermit) Lock(ctx context.Context) (err error) {
	l.hold, err = l.semaphore.Acquire(ctx, 1)
	return err
}

func (l *libraryPermit) TryLock(ctx context.Context) (err error) {
	l.hold, err = l.semaphore.TryAcquire(ctx, 1)
	return err
}

func (l *libraryPermit) Unlock(ctx context.Context) error { return l.hold.Unlock(ctx) }

// ---- leaders

func (p *libraryParty) candidate(_ context.Context, name string) (side.Lock, error) {
	m, err := p.session.Mutex(name)
	return &libraryCandidate{m: m}, err
}

// A libraryCandidate is Lead as two calls: one until it leads, and one to resign.
type libraryCandidate struct {
	m      *etcdlock.Mutex
	resign context.CancelFunc
	over   chan error // has what Lead returned
	lost   error      // why the term ended before resign; read after over
}

func (c *libraryCandidate) Lock(ctx context.Context) error {
	term, resign := context.WithCancel(context.WithoutCancel(ctx))
	leads := make(chan struct{})
	c.resign, c.over, c.lost = resign, make(chan error, 1), nil
	go func() { // ends with term
		c.over <- c.m.Lead(term, func(ctx context.Context) error {
			select {
			case leads <- struct{}{}:
			case <-ctx.Done():
			}
			<-ctx.Done()
			if term.Err() == nil {
				c.lost = context.Cause(ctx)
			}
			return nil
		})
	}()
	select {
	case <-leads:
		return nil
	case err := <-c.over:
		resign()
		return err
	case <-ctx.Done():
		resign()
		<-c.over
		return context.Cause(ctx)
	}
}

func (c *libraryCandidate) TryLock(context.Context) error { return errors.ErrUnsupported }

func (c *libraryCandidate) Unlock(ctx context.Context) error {
	c.resign()
	select {
	case err := <-c.over:
		if !errors.Is(err, context.Canceled) {
			return err
		}
		return c.lost
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *concurrencyParty) candidate(ctx context.Context, name string) (side.Lock, error) {
	s, err := p.another(ctx, name)
	if err != nil {
		return nil, err
	}
	return electionLock{concurrency.NewElection(s, name)}, nil
}

type electionLock struct{ e *concurrency.Election }

func (l electionLock) Lock(ctx context.Context) error   { return l.e.Campaign(ctx, "a candidate") }
func (l electionLock) TryLock(context.Context) error    { return errors.ErrUnsupported }
func (l electionLock) Unlock(ctx context.Context) error { return l.e.Resign(ctx) }
