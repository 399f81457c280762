package contract

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// acquire acquires permits for a test.
func acquire(t *testing.T, sem *etcdlock.Semaphore, n int) *etcdlock.Hold {
	t.Helper()
	h, err := sem.Acquire(Patient(t), n)
	require.NoError(t, err)
	return h
}

// semaphoreOf is Session.Semaphore for a test.
func semaphoreOf(t *testing.T, s *etcdlock.Session, limit int) *etcdlock.Semaphore {
	t.Helper()
	sem, err := s.Semaphore("x", limit)
	require.NoError(t, err)
	return sem
}

// twoHold asks that two contenders hold "x" beside each other in a mode.
func twoHold(t *testing.T, client *clientv3.Client, mode etcdlock.Mode) {
	t.Helper()
	for _, c := range WaitForLine(t, client, "x", 2) {
		require.Equal(t, mode, c.Mode)
		require.True(t, c.Holds)
	}
}

// holdsOnce starts a call for a Hold, and then unlocks it.
func holdsOnce(call func() (*etcdlock.Hold, error)) <-chan error {
	return Async(func() error {
		h, err := call()
		if err != nil {
			return err
		}
		return h.Unlock(context.Background())
	})
}

// Permits are held up to the limit, first come, first served, and a Mutex of either package
// takes all of them. If permits are free, Acquire is one request and one revision, and so
// is Unlock. If none is free, TryAcquire is one request and writes nothing.
func TestPermitsAreHeldUpToTheLimit(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	client := cluster.Client(t, With(counter))
	sem := semaphoreOf(t, NewSession(t, client), 3)
	require.NoError(t, acquire(t, sem, 1).Unlock(t.Context()))

	before, revision := counter.Counts(), cluster.Revision(t)
	first := acquire(t, sem, 1)
	second := acquire(t, sem, 2)
	counter.Costs(t, before, "Txn 2")
	require.Equal(t, revision+2, cluster.Revision(t))
	before = counter.Counts()
	_, err := sem.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	counter.Costs(t, before, "Txn 1")
	require.Equal(t, revision+2, cluster.Revision(t))
	before = counter.Counts()
	require.NoError(t, first.Unlock(t.Context()))
	require.ErrorIs(t, first.Unlock(t.Context()), etcdlock.ErrNotHeld)
	counter.Costs(t, before, "Txn 1")
	require.Equal(t, revision+3, cluster.Revision(t))

	other := semaphoreOf(t, NewSession(t, cluster.Client(t)), 3)
	third, err := other.TryAcquire(t.Context(), 1)
	require.NoError(t, err)
	require.Greater(t, third.Token(), second.Token())
	twoHold(t, client, "permit")

	peer, in := theirsWaits(t, cluster, 3)
	waiting := holdsOnce(func() (*etcdlock.Hold, error) { return other.Acquire(Patient(t), 1) })
	line := WaitForLine(t, client, "x", 4)
	require.Equal(t, etcdlock.ModePermit, line[3].Mode)
	require.False(t, line[3].Holds)
	require.NoError(t, second.Unlock(t.Context()))
	require.Empty(t, in, "a permit is held")
	require.NoError(t, third.Context(t.Context()).Err())
	require.NoError(t, third.Unlock(t.Context()))
	require.NoError(t, <-in)
	_, err = sem.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.Empty(t, waiting, "a Mutex holds")
	require.NoError(t, peer.Unlock(Patient(t)))
	require.NoError(t, <-waiting)
}

// Goroutines of some Sessions take permits of different weights, and a Mutex is among them.
// The sum of the weights held never exceeds the limit, and the Mutex holds alone.
func TestPermitsAreWithinTheLimit(t *testing.T, w World) {
	const limit, all = 4, 1000
	cluster := w.Start(t)
	var inside atomic.Int64 // the weights of those that have some, and all for a Mutex
	var wg sync.WaitGroup
	work := func(weight int64) error {
		if n := inside.Add(weight); n > limit && n != all {
			t.Errorf("%d are held", n)
		}
		runtime.Gosched()
		inside.Add(-weight)
		return nil
	}
	for range 3 {
		s := NewSession(t, cluster.Client(t))
		for g := range 4 {
			sem, m := semaphoreOf(t, s, limit), MutexOf(t, s, "x")
			wg.Go(func() {
				for i := range max(w.Cycles/16, 1) {
					var err error
					if n := 1 + (i+g)%limit; g == 3 && i%4 == 0 {
						err = m.Do(Patient(t), func(context.Context) error { return work(all) })
					} else {
						err = sem.Do(Patient(t), n, func(context.Context) error { return work(int64(n)) })
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// More processes wait for permits than a view of the line is for. They get in one by one,
// as permits are given back, in the order in which they came.
func TestPermitsInALongLine(t *testing.T, w World) {
	const limit, many = 3, 24
	cluster := w.Start(t)
	client := cluster.Client(t)
	holder := semaphoreOf(t, NewSession(t, client), limit)
	var holds []*etcdlock.Hold
	for range limit {
		holds = append(holds, acquire(t, holder, 1))
	}
	in := make(chan *etcdlock.Hold, many)
	for i := range many {
		sem := semaphoreOf(t, NewSession(t, cluster.Client(t)), limit)
		Async(func() error {
			h, err := sem.Acquire(Patient(t), 1)
			if err != nil {
				t.Error(fmt.Errorf("%d: %w", i, err))
			}
			in <- h
			return err
		})
		WaitForLine(t, client, "x", limit+i+1)
	}
	last := holds[limit-1].Token()
	for i := range many {
		at := (i * 2) % limit // not in order
		require.Empty(t, in, "all permits are held")
		require.NoError(t, holds[at].Unlock(t.Context()))
		holds[at] = <-in
		require.Greater(t, holds[at].Token(), last)
		last = holds[at].Token()
	}
	for _, h := range holds {
		require.NoError(t, h.Unlock(t.Context()))
	}
}
