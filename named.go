package etcdlock

import (
	"context"
	"errors"
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
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	n := &namedHold{of: lockHandle{s: s, name: name, cfg: s.cfg}}
	if len(opts) > 0 {
		cfg, err := configure(*s.cfg, forMutex, opts)
		if err != nil {
			return nil, err
		}
		n.of.cfg = &cfg
	}
	h, started, err := request{m: &n.of, try: try}.lock(ctx)
	if err != nil {
		return nil, err
	}
	n.m, n.hold, n.started = &n.of, h, started
	return &n.Hold, nil
}

// doNamed is Session.Do, or TryDo.
func doNamed(
	ctx context.Context, s *session, name string, fn func(ctx context.Context) error,
	opts []Option, try bool,
) error {
	if fn == nil {
		return notRun(errors.New("etcdlock: Do: nil function"))
	}
	h, err := lockNamed(ctx, s, name, opts, try)
	return h.do(ctx, err, fn)
}
