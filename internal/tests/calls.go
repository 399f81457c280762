package tests

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// Within returns a context that ends after d of virtual time.
func Within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// LockWithin locks mu, and fails if that takes longer than most. It returns the context of
// the hold.
func LockWithin(t *testing.T, mu *etcdlock.Mutex, most time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	require.NoError(t, mu.Lock(ctx))
	RequireWhole(t, mu)
	return mu.Context(context.Background())
}

// RLockWithin reads, and fails if that takes longer than most.
func RLockWithin(t *testing.T, rw *etcdlock.RWMutex, most time.Duration) *etcdlock.Hold {
	t.Helper()
	return HoldWithin(t, most, rw.RLock)
}

// AcquireWithin acquires permits, and fails if that takes longer than most.
func AcquireWithin(t *testing.T, s *etcdlock.Semaphore, n int, most time.Duration) *etcdlock.Hold {
	t.Helper()
	return HoldWithin(t, most, func(ctx context.Context) (*etcdlock.Hold, error) {
		return s.Acquire(ctx, n)
	})
}

// HoldWithin is the Hold of a call, which must not take longer than most.
func HoldWithin(
	t *testing.T, most time.Duration, call func(context.Context) (*etcdlock.Hold, error),
) *etcdlock.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	h, err := call(ctx)
	require.NoError(t, err)
	RequireHolds(t, h)
	return h
}

// LockLater is a Lock that is under way. It has begun to wait when this returns.
func LockLater(l interface{ Lock(context.Context) error }) <-chan error {
	in := contract.Async(func() error { return l.Lock(context.Background()) })
	synctest.Wait()
	return in
}

// RLockLater is an RLock that is under way. It has begun to wait when this returns. If it fails the
// channel stays empty.
func RLockLater(rw *etcdlock.RWMutex) <-chan *etcdlock.Hold {
	in := make(chan *etcdlock.Hold, 1)
	go func() {
		if h, err := rw.RLock(context.Background()); err == nil {
			in <- h
		}
	}()
	synctest.Wait()
	return in
}

// AcquireLater is an Acquire that is under way. It has begun to wait when this returns. If
// it fails the channel stays empty.
func AcquireLater(s *etcdlock.Semaphore, n int) <-chan *etcdlock.Hold {
	in := make(chan *etcdlock.Hold, 1)
	go func() {
		if h, err := s.Acquire(context.Background(), n); err == nil {
			in <- h
		}
	}()
	synctest.Wait()
	return in
}

// StillWaits requires that a call has returned nothing by now.
func StillWaits[T any](t *testing.T, in <-chan T, why string) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, in, "it got in, though %s", why)
}

// SoonOr returns what comes within an hour, and otherwise fails: in virtual time a test
// that waits for ever would spin.
func SoonOr[T any](t *testing.T, ch <-chan T, failure string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(time.Hour):
		require.FailNow(t, failure)
	}
	return v
}

// EndsAfter waits for the end of a hold and returns how long after start it came.
func EndsAfter(t *testing.T, hold context.Context, start time.Time) time.Duration {
	t.Helper()
	select {
	case <-hold.Done():
		return time.Since(start)
	case <-time.After(24 * time.Hour):
		require.FailNow(t, "the hold does not end")
		return 0
	}
}

// UnlockAll ends holds that are whole.
func UnlockAll(t *testing.T, holds ...*etcdlock.Hold) {
	t.Helper()
	for _, h := range holds {
		require.NoError(t, h.Unlock(context.Background()))
		RequireEnded(t, h)
	}
}

// RequireWhole requires that a hold is whole in every way in which it can be asked.
func RequireWhole(t *testing.T, mu *etcdlock.Mutex) {
	t.Helper()
	require.NoError(t, mu.Context(context.Background()).Err())
	require.NotZero(t, mu.Token())
	require.NotEmpty(t, mu.Key())
	now := mu.Status()
	require.True(t, now.Held)
	require.True(t, now.Deadline.After(time.Now()), "deadline %v is over", now.Deadline)
}

// RequireLost is the contrary of RequireWhole, for the context of a hold that was lost.
func RequireLost(t *testing.T, mu *etcdlock.Mutex, hold context.Context) {
	t.Helper()
	require.ErrorIs(t, hold.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
	require.Zero(t, mu.Token())
	require.Empty(t, mu.Key())
	require.Zero(t, mu.Status())
}

// RequireHolds requires all that a hold must say of itself while it is whole.
func RequireHolds(t *testing.T, h *etcdlock.Hold) {
	t.Helper()
	require.NoError(t, h.Context(context.Background()).Err())
	require.NotZero(t, h.Token())
	require.True(t, h.Status().Deadline.After(time.Now()))
}

// RequireEnded requires all that a hold must say of itself once it has ended.
func RequireEnded(t *testing.T, h *etcdlock.Hold) {
	t.Helper()
	require.Error(t, h.Context(context.Background()).Err())
	require.Zero(t, h.Token())
	require.Zero(t, h.Status())
}
