package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A meeting is what happens to one lock at one instant: each step wakes one goroutine of a Session,
// and the goroutines run one after the other.
//
//	holder   has the lock, and unlocks it
//	before   waits behind the holder, for all of the lock, and its context ends
//	another  waits behind that, to share the lock with the holder, and gets in
//	waiter   waits behind that, to share it, too, and its context ends
//	closer   closes the waiter's lock
type meeting struct {
	holder, waiter func(ctx context.Context) (*etcdlock.Hold, error) // another is as the holder
	before         func(ctx context.Context) error
	closer         func(ctx context.Context) error
}

// meetingOf is a meeting at a lock of reads, or at one of permits.
func meetingOf(t *testing.T, s *etcdlock.Session, kind string) meeting {
	t.Helper()
	exclusive, err := s.Mutex("n")
	require.NoError(t, err)
	if kind == "reads" {
		mine, other := tests.RWMutexOf(t, s), tests.RWMutexOf(t, s)
		return meeting{holder: mine.RLock, before: exclusive.Lock, waiter: other.RLock,
			closer: other.Close}
	}
	acquire := func(sem *etcdlock.Semaphore) func(context.Context) (*etcdlock.Hold, error) {
		return func(ctx context.Context) (*etcdlock.Hold, error) { return sem.Acquire(ctx, 1) }
	}
	mine, err := s.Semaphore("n", 2)
	require.NoError(t, err)
	other, err := s.Semaphore("n", 2)
	require.NoError(t, err)
	return meeting{holder: acquire(mine), before: exclusive.Lock, waiter: acquire(other),
		closer: other.Close}
}

// A waiter is let in beside the holder at the very instant at which its own context ends, the
// holder unlocks, and its lock is closed, in every order: it returns with a hold that excludes
// others until its Unlock, or with an error and nothing is left of it.
func TestAWaitThatEndsAsItIsLetInHasAHoldOrNothing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // goroutines run in the order in which they wake
	for _, kind := range []string{"reads", "permits"} {
		for _, order := range orders(4) {
			t.Run(fmt.Sprint(kind, order), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					meet(t, etcd, kind, order)
				})
			})
		}
	}
}

func meet(t *testing.T, etcd *fake.Server, kind string, order []int) {
	begun, ended := 0, 0 // holds, as the hooks tell
	m := meetingOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
		Acquired: func(_ context.Context, _ etcdlock.AcquiredEvent) { begun++ },
		Released: func(_ context.Context, _ etcdlock.ReleasedEvent) { ended++ },
	})), kind)
	held, err := m.holder(context.Background())
	require.NoError(t, err)
	beside, err := m.holder(context.Background()) // from here on the line is watched
	require.NoError(t, err)
	require.NoError(t, beside.Unlock(context.Background()))
	var steps []func()
	unlock := make(chan struct{})
	steps = append(steps, func() { close(unlock) })
	unlocked := make(chan error, 1)
	go func() {
		<-unlock
		unlocked <- held.Unlock(context.Background())
	}()

	ctx, giveUp := context.WithCancel(context.Background())
	steps = append(steps, giveUp)
	before := make(chan error, 1)
	go func() { before <- m.before(ctx) }()
	synctest.Wait()

	joined := make(chan *etcdlock.Hold, 1)
	go func() {
		another, err := m.holder(context.Background())
		require.NoError(t, err)
		joined <- another
	}()
	synctest.Wait()

	ctx, cancel := context.WithCancel(context.Background())
	steps = append(steps, cancel)
	var hold *etcdlock.Hold
	waited := make(chan error, 1)
	go func() {
		var err error
		hold, err = m.waiter(ctx)
		waited <- err
	}()
	synctest.Wait()

	closes := make(chan struct{})
	steps = append(steps, func() { close(closes) })
	closed := make(chan error, 1)
	go func() {
		<-closes
		closed <- m.closer(context.Background())
	}()
	synctest.Wait()

	other, err := tests.SessionOf(t, etcd, "b").Mutex("n")
	require.NoError(t, err)
	closing := false
	for _, i := range order {
		steps[i]()
		closing = closing || i == 3
	}
	synctest.Wait()
	require.NoError(t, <-unlocked)
	require.ErrorIs(t, <-before, context.Canceled)
	if err := <-waited; err != nil {
		require.True(t, errors.Is(err, context.Canceled) || errors.Is(err, etcdlock.ErrClosed), "%v", err)
	} else if hold.Token() != 0 {
		require.ErrorIs(t, other.TryLock(context.Background()), etcdlock.ErrLocked)
		tests.RequireHolds(t, hold)
		require.NoError(t, hold.Unlock(context.Background()))
	} else {
		require.ErrorIs(t, hold.Unlock(context.Background()), etcdlock.ErrNotHeld, "its lock is closed")
	}
	another := <-joined
	require.ErrorIs(t, other.TryLock(context.Background()), etcdlock.ErrLocked)
	tests.RequireHolds(t, another)
	require.NoError(t, another.Unlock(context.Background()))
	tests.LockWithin(t, other, time.Second)
	require.NoError(t, other.Unlock(context.Background()))
	if !closing {
		close(closes)
	}
	require.NoError(t, <-closed)
	synctest.Wait()
	require.Equal(t, begun, ended, "each hold that began has ended")
}

// orders are the orders in which n steps may come, with the last of them or without it.
func orders(n int) (all [][]int) {
	var extend func(order []int, left int)
	extend = func(order []int, left int) {
		if left == 0 {
			all = append(all, append([]int(nil), order...))
			return
		}
		for i := range n {
			taken := false
			for _, o := range order {
				taken = taken || o == i
			}
			if !taken {
				extend(append(order, i), left-1)
			}
		}
	}
	extend(nil, n)
	n--
	extend(nil, n)
	return all
}
