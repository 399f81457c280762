// Package lost drops errors of Unlock.
package lost

import (
	"context"

	"github.com/etcdlock/etcdlock"
)

func drops(ctx context.Context, mu *etcdlock.Mutex, s *etcdlock.Session) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	mu.Unlock(ctx) // want `the error of Unlock is dropped: it tells whether the lock was lost`
	if hold, err := s.Lock(ctx, "name"); err == nil {
		defer hold.Unlock(ctx) // want `the error of Unlock is dropped`
	}
	hold, err := s.Lock(ctx, "name")
	if err != nil {
		return err
	}
	go hold.Unlock(ctx) // want `the error of Unlock is dropped`
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	_ = mu.Unlock(ctx)
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	defer mu.Close(ctx)
	return mu.Unlock(ctx)
}
