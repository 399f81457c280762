package guard_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/guard"
)

func TestWhatAfterIsGivenRunsOnceUnlockedAndInOrder(t *testing.T) {
	var mu guard.Mutex
	var ran []int
	mu.Lock()
	for i := range 3 {
		mu.After(func() {
			mu.Lock() // it is free
			defer mu.Unlock()
			ran = append(ran, i)
		})
	}
	require.Empty(t, ran)
	mu.Unlock()
	require.Equal(t, []int{0, 1, 2}, ran)
	mu.Lock()
	mu.After(func() { ran = append(ran, 3) })
	mu.Unlock()
	require.Equal(t, []int{0, 1, 2, 3}, ran, "once")
}

type settler func()

func (f settler) SettleLocked() { f() }

func TestEachUnlockSettlesBeforeItUnlocks(t *testing.T) {
	var mu guard.Mutex
	var ran []string
	mu.Settler = settler(func() {
		require.False(t, mu.TryLock())
		ran = append(ran, "settled")
		mu.After(func() { ran = append(ran, "after") })
	})
	mu.Lock()
	ran = append(ran, "changed")
	mu.Unlock()
	require.Equal(t, []string{"changed", "settled", "after"}, ran)
}

func TestAGroupIsIdleWhenItsLastGoroutineHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu guard.Mutex
		g := guard.NewGroup(&mu)
		isIdle := func() <-chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			return g.IdleLocked()
		}
		<-isIdle()
		first, second := make(chan struct{}), make(chan struct{})
		g.Go(func() { <-first; g.Go(func() { <-second }) })
		idle, also := isIdle(), isIdle()
		close(first)
		synctest.Wait()
		select {
		case <-idle:
			require.Fail(t, "a goroutine runs that another one has begun")
		default:
		}
		close(second)
		<-idle
		<-also
	})
}
