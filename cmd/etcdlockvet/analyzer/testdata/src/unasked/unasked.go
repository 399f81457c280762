// Package unasked has work under locks whose context is asked for, or not.
package unasked

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock"
)

func work(ctx context.Context) error { return nil }

func span(ctx context.Context) (context.Context, func()) { return ctx, func() {} }

func reported(ctx context.Context, s *etcdlock.Session, rw *etcdlock.RWMutex) error {
	hold, err := s.Lock(ctx, "name")
	if err != nil {
		return work(ctx)
	}
	defer hold.Unlock(ctx)
	ctx, end := span(ctx)
	defer end()
	if err := work(ctx); err != nil { // want `nothing asks for the context of hold, locked on line 16`
		return err
	}
	return work(ctx)
}

func ofAMutex(ctx context.Context, mu *etcdlock.Mutex) {
	if err := mu.Lock(ctx); err != nil {
		return
	}
	work(ctx) // want `nothing asks for the context of mu`
	mu.Unlock(ctx)
	work(ctx)
}

func ofAReader(ctx context.Context, rw *etcdlock.RWMutex, f func(context.Context)) {
	hold, err := rw.RLock(ctx)
	switch {
	case errors.Is(err, context.Canceled):
		work(ctx)
	case err != nil:
		work(ctx)
	default:
		f(ctx) // want `nothing asks for the context of hold`
		hold.Unlock(ctx)
	}
}

func ofAnEmbeddedMutex(ctx context.Context, rw *etcdlock.RWMutex) {
	if rw.TryLock(ctx) == nil {
		defer rw.Unlock(ctx)
		work(ctx) // want `nothing asks for the context of rw`
	}
	work(ctx)
}

type service struct {
	mu, asked, given *etcdlock.Mutex
}

func (s *service) reported(ctx context.Context) error {
	if err := s.mu.Lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock(ctx)
	return work(ctx) // want `nothing asks for the context of s.mu`
}

func (s *service) fine(ctx context.Context) error {
	if err := s.asked.Lock(ctx); err != nil {
		return err
	}
	defer s.asked.Unlock(ctx)
	return s.inside(ctx)
}

func (s *service) inside(ctx context.Context) error { return work(s.asked.Context(ctx)) }

func (s *service) given_(ctx context.Context) error {
	if err := s.given.Lock(ctx); err != nil {
		return err
	}
	defer s.given.Unlock(ctx)
	return below(ctx, s.given)
}

func below(ctx context.Context, mu *etcdlock.Mutex) error { return work(mu.Context(ctx)) }

func fine(ctx context.Context, s *etcdlock.Session, mu *etcdlock.Mutex) error {
	hold, err := s.LockAll(ctx, "a", "b")
	if err != nil {
		return err
	}
	defer hold.Unlock(ctx)
	if err := work(hold.Context(ctx)); err != nil {
		return err
	}
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	defer mu.Unlock(ctx)
	ctx = mu.Context(ctx)
	return work(ctx)
}

func fenced(
	ctx context.Context, mu *etcdlock.Mutex, write func(context.Context, int64) error,
) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	defer mu.Unlock(ctx)
	return write(ctx, mu.Token())
}

func without(ctx context.Context, mu *etcdlock.Mutex, write func() error) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	defer mu.Unlock(ctx)
	return write()
}

func unlocksItself(ctx context.Context, mu *etcdlock.Mutex) error {
	err := mu.Lock(ctx)
	if !(err == nil) {
		return work(ctx)
	}
	if err := mu.Unlock(context.WithoutCancel(ctx)); err != nil {
		return work(ctx)
	}
	return nil
}

func pair(ctx context.Context, mu *etcdlock.Mutex) error {
	if err := mu.TryLock(ctx); err != nil && !errors.Is(err, etcdlock.ErrLocked) {
		return work(ctx)
	} else if err != nil {
		return work(ctx)
	}
	return nil
}

func outOfScope(ctx context.Context, s *etcdlock.Session) error {
	defer s.Close(ctx)
	for _, name := range []string{"a", "b"} {
		mu, err := s.Mutex(name)
		if err != nil {
			return err
		}
		if err := mu.Lock(ctx); err != nil {
			return err
		}
	}
	return work(ctx)
}
