package contract

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// After an Unlock before its least time the name stays taken, for contenders of either package, and
// though the process may be gone. That costs a lease and one revision. A longer hold costs nothing
// more.
func TestAShortHoldKeepsItsName(t *testing.T, w World) {
	const least = time.Second
	cluster := w.Start(t)
	for _, gone := range []bool{false, true} {
		counter := NewCounter()
		s := NewSession(t, cluster.Client(t, With(counter)))
		mu := MutexOf(t, s, "x", etcdlock.WithMinHold(least))
		began := time.Now()
		require.NoError(t, mu.Lock(t.Context()))
		token, hold := mu.Token(), mu.Context(t.Context())
		peer, in := theirsWaits(t, cluster, 2)

		before, revision := counter.Counts(), cluster.Revision(t)
		require.NoError(t, mu.Unlock(t.Context()))
		if time.Since(began) < least { // otherwise the machine was too busy for a short hold
			counter.Costs(t, before, "LeaseGrant 1, Txn 1")
			require.LessOrEqual(t, revision+1, cluster.Revision(t))
		}
		require.ErrorIs(t, context.Cause(hold), etcdlock.ErrUnlocked)
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrNotHeld)
		line, err := etcdlock.Contenders(t.Context(), cluster.Client(t), "x")
		require.NoError(t, err)
		if len(line) > 0 && line[0].Token == token {
			require.WithinRange(t, line[0].Until, began.Add(least), time.Now().Add(least))
		}
		if gone {
			require.NoError(t, s.Close(t.Context()))
		}
		require.NoError(t, <-in)
		require.GreaterOrEqual(t, time.Since(began), least)
		require.NoError(t, peer.Unlock(Patient(t)))
	}

	counter := NewCounter()
	long := NewMutex(t, cluster.Client(t, With(counter)), "x", etcdlock.WithMinHold(time.Millisecond))
	require.NoError(t, long.Lock(t.Context()))
	time.Sleep(time.Millisecond) // longer than it must
	before := counter.Counts()
	require.NoError(t, long.Unlock(t.Context()))
	counter.Costs(t, before, "Txn 1")
	WaitForLine(t, cluster.Client(t), "x", 0)
}
