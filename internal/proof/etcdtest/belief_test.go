package etcdtest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

func TestBeliefsThatFollowEachOtherAreRight(t *testing.T) {
	fake := &fakeTB{TB: t}
	b := etcdtest.NewBelief(fake)
	var mu sync.Mutex
	var token int64
	var workers sync.WaitGroup
	for _, who := range []string{"a", "b", "c", "d"} {
		workers.Go(func() {
			for range 100 {
				mu.Lock()
				token++
				b.Enter(who, token)
				b.Leave(who)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	require.Empty(t, fake.finish())
	require.Equal(t, 400, b.Entries())
}

func TestTwoBeliefsAtOnceFailTheTest(t *testing.T) {
	fake := &fakeTB{TB: t}
	b := etcdtest.NewBelief(fake)
	b.Enter("a", 1)
	b.Enter("b", 2)
	require.Equal(t, []string{
		"etcdtest: two believe to hold the lock: a with token 1, and b with token 2",
	}, fake.finish())
}

func TestATokenThatDoesNotGrowFailsTheTest(t *testing.T) {
	fake := &fakeTB{TB: t}
	b := etcdtest.NewBelief(fake)
	for range 2 {
		b.Enter("a", 7)
		b.Leave("a")
	}
	require.Equal(t, []string{"etcdtest: a holds the lock with token 7, after token 7"}, fake.finish())
}

func TestABeliefEndsWithItsContext(t *testing.T) {
	fake := &fakeTB{TB: t}
	b := etcdtest.NewBelief(fake)
	hold, lose := context.WithCancel(t.Context())
	defer lose()
	b.EnterUntil(hold, "a", 1)
	b.Enter("b", 2)
	require.Len(t, fake.failures, 1, "a's context has not ended")
	b.Leave("a")
	b.Leave("b")
	_, lost := b.LeastMargin()
	require.False(t, lost)

	b.EnterUntil(hold, "a", 3)
	lose()
	time.Sleep(moment) // the margin to measure
	b.Enter("b", 4)
	b.Leave("a") // of the belief that has ended
	require.Len(t, fake.finish(), 1)
	margin, lost := b.LeastMargin()
	require.True(t, lost)
	require.InDelta(t, moment, margin, float64(moment/2))
}
