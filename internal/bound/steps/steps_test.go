package steps_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/bound/steps"
)

type outer struct{}

func (outer) Declaration() string { return "outer" }

type inner struct{}

func (inner) Declaration() string { return "inner" }

// counted are the sections, the steps and the longest section of a mutex.
func counted(name string) [3]int {
	c := steps.Read()[name]
	return [3]int{c.Sections, c.Steps, c.Longest}
}

func TestStepsCountForTheMutexesThatTheGoroutineHas(t *testing.T) {
	steps.Reset()
	var o steps.Mutex[outer]
	var i steps.Mutex[inner]
	steps.At(1)
	o.Lock()
	steps.At(1)
	i.Lock()
	steps.At(2)
	steps.Slice(3, make([]string, 10))
	i.Unlock()
	steps.At(1)
	o.Unlock()
	steps.At(1)
	o.Lock()
	steps.Map(4, map[int]bool{1: true, 2: true})
	steps.Len(5, 4)
	for range steps.Seq(6, func(yield func(int) bool) { _ = yield(1) && yield(2) && yield(3) }) {
		break
	}
	o.Unlock()
	require.Equal(t, [3]int{2, 1 + 11 + 1 + 2 + 4 + 1, 13}, counted("outer"))
	require.Equal(t, [3]int{1, 11, 11}, counted("inner"))
	require.Equal(t, []steps.Site{{Name: "site 3", Steps: 10}, {Name: "site 2", Steps: 1}},
		steps.Read()["inner"].Of)
	steps.Reset()
	require.Empty(t, steps.Read())
}

func TestMutexesMayBeUnlockedInAnyOrder(t *testing.T) {
	steps.Reset()
	var o steps.Mutex[outer]
	var i steps.Mutex[inner]
	o.Lock()
	i.Lock()
	steps.At(1)
	o.Unlock()
	steps.At(1)
	i.Unlock()
	steps.At(1)
	require.Equal(t, [3]int{1, 1, 1}, counted("outer"))
	require.Equal(t, [3]int{1, 2, 2}, counted("inner"))
}

// A goroutine that a section begins is none of its steps, and neither is any other goroutine.
func TestStepsOfAnotherGoroutineDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps.Reset()
		var o steps.Mutex[outer]
		go func() {
			time.Sleep(time.Second)
			steps.At(1)
		}()
		o.Lock()
		go func() {
			steps.Began()
			steps.At(1)
		}()
		time.Sleep(2 * time.Second)
		steps.At(1)
		o.Unlock()
		require.Equal(t, [3]int{1, 1, 1}, counted("outer"))
	})
}

// What closes a channel makes each goroutine run that waits for it.
func TestTheReceiversOfAChannelThatIsClosedCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps.Reset()
		var o steps.Mutex[outer]
		c, never := make(chan struct{}), make(chan struct{})
		for range 7 {
			go func() { <-c }()
			go func() {
				select {
				case <-c:
				case <-never:
				}
			}()
		}
		synctest.Wait()
		o.Lock()
		close(steps.Closed(1, c))
		o.Unlock()
		require.Equal(t, [3]int{1, 14, 14}, counted("outer"))
	})
}

// Time goes on while a goroutine waits for a mutex. They get it in the order in which they came.
func TestAMutexIsHeldWhileTimeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o steps.Mutex[outer]
		var got []int
		o.Lock()
		for i := range 3 {
			go func() {
				o.Lock()
				defer o.Unlock()
				got = append(got, i)
			}()
			synctest.Wait()
		}
		require.False(t, o.TryLock())
		time.Sleep(time.Hour)
		require.Empty(t, got)
		o.Unlock()
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2}, got)
		require.True(t, o.TryLock())
		o.Unlock()
	})
}
