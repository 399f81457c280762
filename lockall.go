package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/ticket"
)

// maxNames is the most names of a LockAll. Its put has three operations for each, and etcd allows
// 128 in a transaction by default.
const maxNames = 32

// LockAll waits until it holds the locks of all the names: 1 to 32, each once. ctx bounds the wait
// only. Uncontended it is one request to etcd, and so is the Hold's Unlock.
//
// It takes all of them or none. It stands in the line of each name, first come, first served, and
// cannot deadlock with any other LockAll or Lock, in whatever order they have their names. (It can
// if the caller holds something while it waits, as with any lock.) While it waits for one name it
// keeps its places in the lines of the other names, so the contenders there wait for it, and it
// counts as the holder of each name at which it is the first.
//
// After a nil error the caller holds all names until it calls Unlock on the Hold. They have one
// token, and they end together: if one is lost all are, and the contexts of the Hold end with the
// [*LostError] of that name. After an error nothing is held and nothing is left behind that could
// block other contenders. An error about the names (none, too many, one twice, one that no lock may
// have) comes at once, before anything was sent. The other errors are as for [Mutex.Lock]; one
// about a wait names the first name that is in the way, and [ErrDeadlock] the name that ctx comes
// from a hold of, also with [WithReentrancy].
//
// It has the options of the Session, without [WithHandoff] and [WithLinger]: LockAll takes over no
// key. The hooks of the Trace are called for each name.
func (s *Session) LockAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.lockAll(ctx, names, false)
}

// TryLockAll takes the locks of all the names if no contender holds or waits for any of them. Like
// [Mutex.TryLock] it waits for etcd, but for no other contender. If one is taken it returns the
// [*LockedError] of the first that is, for which errors.Is(err, ErrLocked) is true, and has written
// nothing to etcd (but see [Mutex.TryLock] about nested names). It looks at this Session first, and
// asks etcd only if none is taken there. Other errors are as for [Session.LockAll].
func (s *Session) TryLockAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.lockAll(ctx, names, true)
}

// DoAll is [Mutex.Do] with LockAll: it calls fn while it holds all the names, with a context that
// ends if one of them is lost. [TokenFrom] has the token of all.
func (s *Session) DoAll(
	ctx context.Context, names []string, fn func(ctx context.Context) error,
) error {
	if fn == nil {
		return notRun(errors.New("etcdlock: DoAll: nil function"))
	}
	h, err := s.lockAll(ctx, names, false)
	if err != nil {
		return notRun(err)
	}
	return during(ctx, h.hold, fn, func() error { return h.Unlock(ctx) })
}

func (s *Session) lockAll(ctx context.Context, names []string, try bool) (*Hold, error) {
	if s == nil || s.etcd == nil {
		return nil, errors.New("etcdlock: Session not made with NewSession")
	}
	if err := checkNames(names); err != nil {
		return nil, err
	}
	if err := checkContext(ctx, "lock", names[0]); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, waitFailed(ctx, names[0], nil, nil, nil)
	}
	cfg, started := *s.cfg, time.Now()
	cfg.handoff, cfg.linger = 0, 0
	a := make(call, len(names))
	for i, name := range names {
		m := &lockHandle{s: s, name: name, cfg: &cfg}
		if m.nestsIn(ctx) != nil {
			return nil, failed("lock", name, ErrDeadlock)
		}
		a[i] = request{m: m, try: try}.newClaim(ctx, started)
		a[i].together = true
	}
	h, err := a.lock(ctx)
	if err != nil {
		return nil, err
	}
	return &Hold{m: h.m, hold: h}, nil
}

// checkNames returns an error if names cannot be the names of a LockAll.
func checkNames(names []string) error {
	switch n := len(names); {
	case n == 0:
		return errors.New("etcdlock: LockAll: no names")
	case n > maxNames:
		return fmt.Errorf("etcdlock: LockAll: %d names, more than %d", n, maxNames)
	}
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("etcdlock: LockAll: name %s twice", excerpt(name, maxNameLen))
		}
		seen[name] = true
	}
	return nil
}

// waitForAll waits until no contender is ahead of any place: all are first at the same time.
func (a call) waitForAll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var waits, all sync.WaitGroup // all: the places that are not yet first in their lines
	first := make(chan struct{})
	all.Add(len(a))
	for _, c := range a {
		waits.Go(func() {
			err := c.wait(ctx)
			all.Done()
			if err == nil {
				err = c.place.staysFirst(ctx, c, first)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	close(first)
	waits.Wait()
	return context.Cause(ctx)
}

// staysFirst waits, at the head of the line, for the other places of p's call: until all are first,
// which is nil, or p is lost.
//
// The ticket is Held meanwhile, as that of a hold is, and so the key is watched and audited as that
// of a hold: if it is deleted, and another contender gets in, the call does not rely on it for
// longer than a hold would. (TestAKeyOfSeveralThatIsDeletedIsMissed.)
func (p *place) staysFirst(ctx context.Context, c *claim, all <-chan struct{}) error {
	for {
		p.standsFirst()
		select {
		case <-all:
			return nil
		case <-p.news:
			if p.isGone() {
				return errQueueAnew
			}
			if err := p.wait(ctx, c); err != nil { // it reads the line if etcd was set back
				return err
			}
		case <-p.lease.Dead():
			return errQueueAnew
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// standsFirst notes that p is at the head of its line.
func (p *place) standsFirst() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.news == nil {
		p.news = make(chan struct{}, 1)
	}
	if p.ticket.Lost() {
		p.tellLocked() // it went before the call listened
		return
	}
	if p.ticket.State() == ticket.InLine {
		p.ticket.Hold()
		p.held = time.Now()
	}
}

// bindLocked makes the holds of the claims end together, and with them their recalls.
func (a call) bindLocked() {
	all := make([]*hold, len(a))
	for i, c := range a {
		all[i] = c.hold
	}
	for _, h := range all {
		h.all, h.recall = all, all[0].recall
	}
}
