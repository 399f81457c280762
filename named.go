package etcdlock

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// A namedHold is a Hold with what it is of.
type namedHold struct {
	Hold
	of lockHandle
}

// lockNamed is Session.Lock, or TryLock. A call without options allocates no more than a Mutex that
// is used again does, but for the Hold.
func lockNamed(
	ctx context.Context, s *session, name string, opts []Option, try bool,
) (*Hold, error) {
	cfg, err := s.configured(name, forMutex, opts)
	if err != nil {
		return nil, err
	}
	n := &namedHold{of: lockHandle{s: s, name: name, cfg: cfg}}
	h, started, err := request{m: &n.of, try: try}.lock(ctx)
	if err != nil {
		return nil, err
	}
	n.m, n.hold, n.started = &n.of, h, started
	return &n.Hold, nil
}

// adopt is Session.Adopt.
func adopt(ctx context.Context, s *session, d Detached, opts []Option) (*Hold, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	name, of, ok := d.parse()
	if !ok {
		return nil, fmt.Errorf("etcdlock: adopt: not from a Detach: %s", excerpt(string(d), 64))
	}
	if err := checkContext(ctx, "adopt", name); err != nil {
		return nil, err
	}
	cfg, err := configure(*s.cfg, forAdopted, opts)
	if err != nil {
		return nil, err
	}
	cfg.handoff, cfg.linger = 0, 0
	if ctx.Err() != nil {
		return nil, waitFailed(ctx, name, nil, nil, nil)
	}
	if goes := givenUp(s, of.Key); goes != nil && !isRemoved(ctx, goes) {
		return nil, failed("adopt", name, ErrUnconfirmed,
			waitFailed(ctx, name, nil, nil, s.etcd.Unavailable()))
	}
	n := &namedHold{of: lockHandle{s: s, name: name, cfg: &cfg}}
	c := request{m: &n.of}.newClaim()
	c.adopts = of
	h, started, err := call(c.alone[:]).lock(ctx)
	if err != nil {
		if lost, is := errors.AsType[*LostError](err); is {
			return nil, lost
		}
		if c.unsure {
			err = failed("adopt", name, ErrUnconfirmed, err)
		}
		return nil, err
	}
	n.m, n.hold, n.started = &n.of, h, started
	giveBack(s, clientv3.LeaseID(c.adopts.Lease))
	return &n.Hold, nil
}

// givenUp is closed once an earlier Adopt in s has given up the key for certain; nil if none does.
// (Do not say at once that the hold is lost: that is not known yet.
// TestAnAdoptWaitsForOneThatHasFailed.)
func givenUp(s *session, key string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys.GoesLocked(key)
}

// giveBack gives a lease back that has no key any more, and would expire by itself.
func giveBack(s *session, id clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leases.ClosedLocked() {
		s.tasks.GoLocked(func() { _ = s.etcd.Revoke(s.ctx, &attempt.Backoff{}, id) })
	}
}
