package guard_test

import (
	"slices"
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
		var g guard.Group
		<-g.Idle()
		first, second := make(chan struct{}), make(chan struct{})
		g.Go(func() { <-first; g.Go(func() { <-second }) })
		idle, also := g.Idle(), g.Idle()
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

// Whoever has to touch many gives the mutex up between pieces of them.
func TestThoseWhoHaveManyToTouchGiveTheMutexUpInBetween(t *testing.T) {
	var mu guard.Mutex
	locks := 0
	mu.Settler = settler(func() { locks++ })
	touched, most := 0, 0
	last := 0
	guard.Pieces(&mu, slices.Values(make([]int, 10*guard.Piece)), func(int) {
		require.False(t, mu.TryLock())
		if locks != last {
			last, touched = locks, 0
		}
		touched++
		most = max(most, touched)
	})
	require.Equal(t, guard.Piece, most)
	require.Equal(t, 11, locks)
}

// What ends together with the one that is touched counts, too.
func TestWhatIsTouchedBesideCountsToo(t *testing.T) {
	var mu guard.Mutex
	locks := 0
	mu.Settler = settler(func() { locks++ })
	mu.Lock()
	mu.Touch(guard.Piece) // counts for that critical section
	mu.Unlock()
	guard.Pieces(&mu, slices.Values(make([]int, 3*guard.Piece)), func(int) {
		mu.Touch(guard.Piece/2 - 1)
	})
	require.Equal(t, 1+3*guard.Piece/2+1, locks)
}
