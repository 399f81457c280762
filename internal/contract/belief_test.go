package contract_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/contract"
)

// reports are the failures that a Belief reports to its test.
type reports struct{ failures []string }

func (r *reports) Helper() {}

func (r *reports) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestBeliefsThatFollowEachOtherAreRight(t *testing.T) {
	said := new(reports)
	b := contract.NewBelief(said)
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
	require.Empty(t, said.failures)
	require.Equal(t, 400, b.Entries())
}

func TestTwoBeliefsAtOnceFailTheTest(t *testing.T) {
	said := new(reports)
	b := contract.NewBelief(said)
	b.Enter("a", 1)
	b.Enter("b", 2)
	require.Equal(t, []string{
		"two believe to hold the lock: a with token 1, and b with token 2",
	}, said.failures)
}

func TestATokenThatDoesNotGrowFailsTheTest(t *testing.T) {
	said := new(reports)
	b := contract.NewBelief(said)
	for range 2 {
		b.Enter("a", 7)
		b.Leave("a")
	}
	require.Equal(t, []string{"a holds the lock with token 7, after token 7"}, said.failures)
}

func TestABeliefEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := new(reports)
		b := contract.NewBelief(said)
		hold, lose := context.WithCancel(t.Context())
		defer lose()
		b.EnterUntil(hold, "a", 1)
		b.Enter("b", 2)
		require.Len(t, said.failures, 1, "a's context has not ended")
		b.Leave("a")
		b.Leave("b")
		_, lost := b.LeastMargin()
		require.False(t, lost)

		b.EnterUntil(hold, "a", 3)
		lose()
		time.Sleep(time.Second) // the margin to measure
		b.Enter("b", 4)
		b.Leave("a") // of the belief that has ended
		require.Len(t, said.failures, 1)
		margin, lost := b.LeastMargin()
		require.True(t, lost)
		require.Equal(t, time.Second, margin)
	})
}

// A belief without a known token counts like any other. The tokens of the beliefs before
// and after it must still grow.
func TestABeliefWithoutATokenIsJudgedByTimeAlone(t *testing.T) {
	said := new(reports)
	b := contract.NewBelief(said)
	b.Enter("a", 7)
	b.Leave("a")
	b.Enter("b", 0)
	require.Empty(t, said.failures)
	b.Enter("c", 8)
	b.Leave("b")
	b.Leave("c")
	require.Len(t, said.failures, 1)
	b.Enter("d", 8)
	require.Len(t, said.failures, 2)
}

func TestBeliefsOfReadersMayOverlap(t *testing.T) {
	said := new(reports)
	b := contract.NewBelief(said)
	ctx := context.Background()
	b.EnterUntil(ctx, "w", 1)
	b.Leave("w")
	b.ReadUntil(ctx, "a", 3)
	b.ReadUntil(ctx, "b", 2)
	require.Empty(t, said.failures)
	b.EnterUntil(ctx, "w", 4)
	require.Len(t, said.failures, 2, "a writer beside two readers")
	b.Leave("a")
	b.Leave("b")
	b.Leave("w")
	b.ReadUntil(ctx, "c", 4)
	require.Len(t, said.failures, 3, "a read with the token of a write")
	b.Leave("c")
	b.ReadUntil(ctx, "d", 9)
	b.Leave("d")
	b.EnterUntil(ctx, "w", 8)
	require.Len(t, said.failures, 4, "a write with a token below that of a read")
}
