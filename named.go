package etcdlock

import (
	"context"
)

// A namedHold is a Hold with what it is of.
type namedHold struct {
	Hold
	of lockHandle
}

// lockNamed is Session.Lock, or TryLock. A call without options allocates no more than a Mutex that
// is used again does, but for the Hold.
func lockNamed(
	ctx context.Context, s *session, name string, opts []Option, how manner,
) (*Hold, error) {
	cfg, err := s.configured(name, forMutex, opts)
	if err != nil {
		return nil, err
	}
	n := &namedHold{of: lockHandle{s: s, name: name, cfg: cfg}}
	h, started, err := request{m: &n.of, manner: how}.lock(ctx)
	if err != nil {
		return nil, err
	}
	n.m, n.hold, n.started = &n.of, h, started
	return &n.Hold, nil
}
