// Package keyed has the tests of a locker by names whose callers have no handle: the shape in which
// programs that host an adapter ask for locks. They are written once. Each adapter of that shape
// runs them, on an etcd in memory and on one of etcd's servers.
package keyed

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// A Locker locks names. TryLock returns false if the name is taken. Unlock of a name that this
// Locker does not hold is an error.
type Locker interface {
	Lock(ctx context.Context, name string) error
	TryLock(ctx context.Context, name string) (bool, error)
	Unlock(ctx context.Context, name string) error
}

// Run runs the tests. open opens the Locker of another process, on the same etcd for all of one t.
func Run(t *testing.T, open func(t *testing.T) Locker) {
	t.Run("OnlyTheHolderUnlocksAndOnce", func(t *testing.T) {
		onlyTheHolderUnlocks(t, open(t), open(t))
	})
	t.Run("GoroutinesAndProcessesExcludeEachOther", func(t *testing.T) {
		exclude(t, open(t), open(t))
	})
	t.Run("ALockWaitsForTheUnlock", func(t *testing.T) {
		a := open(t)
		t.Run("here", func(t *testing.T) { lockWaits(t, a, a) })
		t.Run("elsewhere", func(t *testing.T) { lockWaits(t, a, open(t)) })
	})
	t.Run("AWaitEndsWithItsContextAndLeavesNothing", func(t *testing.T) {
		a := open(t)
		t.Run("here", func(t *testing.T) { waitEnds(t, a, a) })
		t.Run("elsewhere", func(t *testing.T) { waitEnds(t, a, open(t)) })
	})
	t.Run("ATakenNameIsNoErrorOfTryLock", func(t *testing.T) {
		a := open(t)
		t.Run("here", func(t *testing.T) { tryLock(t, a, a) })
		t.Run("elsewhere", func(t *testing.T) { tryLock(t, a, open(t)) })
	})
	t.Run("UnlockWorksWithAnEndedContext", func(t *testing.T) { endedContext(t, open(t), open(t)) })
	t.Run("AnyNamesAreDifferentLocks", func(t *testing.T) { names(t, open(t), open(t)) })
}

func onlyTheHolderUnlocks(t *testing.T, a, b Locker) {
	ctx := contract.Patient(t)
	require.ErrorIs(t, a.Unlock(ctx, "own"), etcdlock.ErrNotHeld)
	require.NoError(t, a.Lock(ctx, "own"))
	require.ErrorIs(t, b.Unlock(ctx, "own"), etcdlock.ErrNotHeld)
	require.ErrorIs(t, a.Unlock(ctx, "another"), etcdlock.ErrNotHeld)
	taken, err := b.TryLock(ctx, "own")
	require.NoError(t, err)
	require.False(t, taken, "the hold is whole")

	var unlocked atomic.Int64
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			switch err := a.Unlock(ctx, "own"); {
			case err == nil:
				unlocked.Add(1)
			case !errors.Is(err, etcdlock.ErrNotHeld):
				t.Error(err)
			}
		})
	}
	calls.Wait()
	require.EqualValues(t, 1, unlocked.Load())
}

// Two goroutines of each of two processes lock five names again and again.
func exclude(t *testing.T, lockers ...Locker) {
	ctx := contract.Patient(t)
	var inside [5]atomic.Int64
	var total [5]int64 // guarded by nothing but the locks
	var workers sync.WaitGroup
	for i := range inside {
		name := "name-" + string(rune('a'+i))
		for _, l := range append(lockers, lockers...) {
			workers.Go(func() {
				for range 5 {
					if err := l.Lock(ctx, name); err != nil {
						t.Error(err)
						return
					}
					if n := inside[i].Add(1); n != 1 {
						t.Errorf("%d hold %s", n, name)
					}
					total[i]++
					inside[i].Add(-1)
					if err := l.Unlock(ctx, name); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	workers.Wait()
	for i := range total {
		require.EqualValues(t, 10*len(lockers), total[i])
	}
}

func lockWaits(t *testing.T, holder, waiter Locker) {
	ctx := contract.Patient(t)
	require.NoError(t, holder.Lock(ctx, "waited"))
	var released atomic.Bool
	in := contract.Async(func() error {
		if err := waiter.Lock(ctx, "waited"); err != nil {
			return err
		}
		if !released.Load() {
			return errors.New("two hold it")
		}
		return waiter.Unlock(ctx, "waited")
	})
	released.Store(true)
	require.NoError(t, holder.Unlock(ctx, "waited"))
	require.NoError(t, <-in)
}

func waitEnds(t *testing.T, holder, waiter Locker) {
	ctx := contract.Patient(t)
	require.NoError(t, holder.Lock(ctx, "given up"))
	for range 3 {
		short, cancel := context.WithCancel(ctx)
		gaveUp := contract.Async(func() error { return waiter.Lock(short, "given up") })
		cancel()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
	}
	require.NoError(t, holder.Unlock(ctx, "given up"))
	require.NoError(t, waiter.Lock(ctx, "given up"), "it is free for the next")
	require.NoError(t, waiter.Unlock(ctx, "given up"))
}

func tryLock(t *testing.T, holder, other Locker) {
	ctx := contract.Patient(t)
	try := func(l Locker, want bool) {
		t.Helper()
		got, err := l.TryLock(ctx, "tried")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	try(holder, true)
	try(other, false)
	try(holder, false)
	require.NoError(t, holder.Unlock(ctx, "tried"))
	try(other, true)
	require.NoError(t, other.Unlock(ctx, "tried"))
}

func endedContext(t *testing.T, a, b Locker) {
	ctx := contract.Patient(t)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, a.Lock(ctx, "ended"))
	require.ErrorIs(t, a.Lock(ended, "ended"), context.Canceled)
	require.ErrorIs(t, b.Lock(ended, "ended"), context.Canceled)
	require.NoError(t, a.Unlock(ended, "ended"))
	require.NoError(t, b.Lock(ctx, "ended"))
	require.NoError(t, b.Unlock(ctx, "ended"))
}

func names(t *testing.T, a, b Locker) {
	ctx := contract.Patient(t)
	all := []string{
		"a", "A", "a/", "/a", "a/b", "a//b", "a%2Fb", "%", " ", "..", "*.example.com", "*",
		"issue_cert_example.com",
		"[::1]:443", "ä", "\xff", "a\x00b", "a\nb", `"`,
	}
	for _, name := range all {
		require.NoError(t, a.Lock(ctx, name), "%q", name)
	}
	for _, name := range all {
		got, err := b.TryLock(ctx, name)
		require.NoError(t, err)
		require.False(t, got, "%q", name)
	}
	for _, name := range all {
		require.NoError(t, a.Unlock(ctx, name), "%q", name)
	}
}
