// Package paths has locks that are not unlocked on each path.
package paths

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/etcdlock/etcdlock"
)

func check() error { return nil }

func early(ctx context.Context, mu *etcdlock.Mutex) error {
	if err := mu.Lock(ctx); err != nil { // want `not unlocked on each path: the return on line 20`
		return err
	}
	if err := check(); err != nil {
		return err
	}
	return mu.Unlock(ctx)
}

func never(ctx context.Context, s *etcdlock.Session) error {
	hold, err := s.Lock(ctx, "name") // want `hold is not unlocked on each path`
	if err != nil {
		return err
	}
	_ = hold.Token()
	return check()
}

func success(ctx context.Context, s *etcdlock.Session, skip bool) {
	hold, err := s.TryLock(ctx, "name") // want `on each path: the return on line 40`
	if errors.Is(err, etcdlock.ErrLocked) || err != nil {
		return
	}
	if skip {
		return
	}
	hold.Unlock(ctx)
}

func again(ctx context.Context, mu *etcdlock.Mutex) {
	for range 3 {
		if mu.Lock(ctx) != nil { // want `mu is locked again without an Unlock on a path`
			continue
		}
		if check() != nil {
			continue
		}
		mu.Unlock(ctx)
	}
}

type pair struct {
	mu     *etcdlock.Mutex
	hold   *etcdlock.Hold
	sess   *etcdlock.Session
	locked bool
}

// It returns with the lock held.
func (p *pair) lock(ctx context.Context) error {
	if err := p.mu.Lock(ctx); err != nil {
		return err
	}
	if err := check(); err != nil {
		p.mu.Unlock(ctx)
		return err
	}
	return nil
}

func (p *pair) forgets(ctx context.Context) error {
	if err := p.mu.Lock(ctx); err != nil { // want `on each path: the return on line 85`
		return err
	}
	if err := check(); err != nil {
		p.mu.Unlock(ctx)
		return err
	}
	if check() != nil {
		return errors.New("not ready")
	}
	return nil
}

func (p *pair) tries(ctx context.Context) bool {
	if err := p.mu.TryLock(ctx); err != nil {
		return false
	}
	if check() != nil {
		p.mu.Unlock(ctx)
		return false
	}
	return true
}

func (p *pair) unlock(ctx context.Context) error { return p.mu.Unlock(ctx) }

func (p *pair) byAnother(ctx context.Context) error {
	if err := p.mu.Lock(ctx); err != nil {
		return err
	}
	if check() == nil {
		return p.unlock(ctx)
	}
	return p.mu.Unlock(ctx)
}

func (p *pair) keeps(ctx context.Context) (err error) {
	p.hold, err = p.sess.Lock(ctx, "name")
	return err
}

func (p *pair) keepsLater(ctx context.Context) error {
	hold, err := p.sess.Lock(ctx, "name")
	if err == nil {
		p.hold = hold
	}
	return err
}

func deferred(ctx context.Context, mu *etcdlock.Mutex) (err error) {
	if err = mu.Lock(ctx); err != nil {
		return
	}
	defer func() { err = errors.Join(err, mu.Unlock(ctx)) }()
	return check()
}

func passesOn(ctx context.Context, s *etcdlock.Session) (*etcdlock.Hold, error) {
	if check() != nil {
		return s.Lock(ctx, "name")
	}
	hold, err := s.Lock(ctx, "name")
	return hold, err
}

func loop(ctx context.Context, s *etcdlock.Session) error {
	for {
		hold, err := s.TryLock(ctx, "name")
		if errors.Is(err, etcdlock.ErrLocked) {
			continue
		}
		if err != nil {
			return err
		}
		check()
		if err := hold.Unlock(ctx); err != nil {
			return err
		}
	}
}

func ends(ctx context.Context, s *etcdlock.Session) {
	hold, err := s.Lock(ctx, "name")
	if err != nil {
		os.Exit(1)
	}
	if check() != nil {
		os.Exit(1)
	}
	hold.Unlock(ctx)
}

func whole(ctx context.Context, s *etcdlock.Session) {
	defer s.Close(ctx)
	hold, err := s.Lock(ctx, "name")
	if hold == nil {
		return
	}
	_, _ = hold, err
}

func closes(ctx context.Context, s *etcdlock.Session) {
	hold, err := s.Lock(ctx, "name")
	if err != nil {
		return
	}
	hold.Token()
	s.Close(ctx)
}

func unknown(ctx context.Context, mu *etcdlock.Mutex, bad func(error) bool) {
	err := mu.Lock(ctx)
	if bad(err) {
		return
	}
	mu.Unlock(ctx)
}

func inSwitch(ctx context.Context, mu *etcdlock.Mutex) {
	switch err := mu.TryLock(ctx); err {
	case nil:
		mu.Unlock(ctx)
	case etcdlock.ErrLocked:
		return
	default:
		panic(err)
	}
}

func many(ctx context.Context, s *etcdlock.Session, names []string) error {
	defer s.Close(ctx)
	for _, name := range names {
		mu, err := s.Mutex(name)
		if err != nil {
			return err
		}
		if err := mu.Lock(ctx); err != nil {
			return err
		}
		hold, err := s.Lock(ctx, "another/"+name)
		if err != nil {
			return err
		}
		hold.Token()
	}
	return check()
}

func manyLeft(ctx context.Context, s *etcdlock.Session, names []string) error {
	for _, name := range names {
		hold, err := s.Lock(ctx, name) // want `hold is locked again without an Unlock`
		if err != nil {
			return err
		}
		hold.Token()
	}
	return check()
}

func byItsKey(ctx context.Context, s *etcdlock.Session) (string, error) {
	hold, err := s.Lock(ctx, "name")
	if err != nil {
		return "", err
	}
	return hold.Key(), nil
}

func nested(ctx context.Context, mu *etcdlock.Mutex, see func(error)) {
	if err := mu.Lock(ctx); err != nil {
		return
	}
	for range 2 {
		see(mu.TryLock(ctx))
	}
	mu.Unlock(ctx)
}

func drops(ctx context.Context, s *etcdlock.Session, sem *etcdlock.Semaphore) error {
	_, err := s.Lock(ctx, "name") // want `the Hold of this call is dropped`
	if err != nil {
		return err
	}
	_, _ = s.TryLock(ctx, "name")       // want `the Hold of this call is dropped`
	var _, failed = sem.Acquire(ctx, 1) // want `the Hold of this call is dropped`
	s.LockAll(ctx, "a", "b")            // want `the Hold of this call is dropped`
	return failed
}

func dropsAndCloses(ctx context.Context, s *etcdlock.Session) error {
	_, err := s.Lock(ctx, "name")
	return errors.Join(err, s.Close(ctx))
}

func noError(ctx context.Context, s *etcdlock.Session) {
	hold, _ := s.Lock(ctx, "name") // want `hold is not unlocked on each path`
	hold.Token()
}

func TestOfAnother(t *testing.T) {
	hold, err := new(etcdlock.Session).Lock(t.Context(), "name")
	if err != nil {
		t.Fatal(err)
	}
	hold.Token()
}
