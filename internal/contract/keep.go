package contract

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

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
	long := NewMutex(t, cluster.Client(t, With(counter)), "x", etcdlock.WithMinHold(1))
	require.NoError(t, long.Lock(t.Context()))
	before := counter.Counts()
	require.NoError(t, long.Unlock(t.Context()))
	counter.Costs(t, before, "Txn 1")
	WaitForLine(t, cluster.Client(t), "x", 0)
}

// A hold goes on in another process, with its key and its token. Nobody gets in between, of either
// package. Of several that adopt it one does.
func TestAHoldGoesOnInAnotherProcess(t *testing.T, w World) {
	const keep = time.Minute
	cluster := w.Start(t)
	mu := NewMutex(t, cluster.Client(t), "x")
	require.NoError(t, mu.Lock(t.Context()))
	token, key, hold, owns := mu.Token(), mu.Key(), mu.Context(t.Context()), mu.IsOwner()
	peer, in := theirsWaits(t, cluster, 2)
	d, err := mu.Detach(t.Context(), keep)
	require.NoError(t, err)
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrDetached)
	require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrNotHeld)
	require.NoError(t, mu.Close(t.Context()), "the process ends")
	require.WithinRange(t, WaitForLine(t, cluster.Client(t), "x", 2)[0].Until, time.Now(),
		time.Now().Add(keep))

	type result struct {
		h   *etcdlock.Hold
		err error
	}
	results := make(chan result)
	for range 4 {
		s := NewSession(t, cluster.Client(t))
		go func() {
			h, err := s.Adopt(Patient(t), d)
			results <- result{h, err}
		}()
	}
	var h *etcdlock.Hold
	for range 4 {
		if r := <-results; r.err == nil {
			require.Nil(t, h, "two have adopted it")
			h = r.h
		} else {
			require.ErrorIs(t, r.err, etcdlock.ErrLost)
		}
	}
	require.NotNil(t, h)
	require.Equal(t, token, h.Token())
	require.Equal(t, key, h.Key())
	is, err := cluster.Client(t).Txn(t.Context()).If(append(h.IsOwner(), owns)...).Commit()
	require.NoError(t, err)
	require.True(t, is.Succeeded, "it is one hold")
	require.Empty(t, in, "somebody got in between")
	require.NoError(t, h.Unlock(t.Context()))
	require.NoError(t, <-in)
	require.NoError(t, peer.Unlock(Patient(t)))
	_, err = NewSession(t, cluster.Client(t)).Adopt(t.Context(), d)
	require.ErrorIs(t, err, etcdlock.ErrLost)

	// An adopted key that somebody puts over goes, wherever it is then.
	lost := NewMutex(t, cluster.Client(t), "x")
	require.NoError(t, lost.Lock(t.Context()))
	d, err = lost.Detach(t.Context(), keep)
	require.NoError(t, err)
	h, err = NewSession(t, cluster.Client(t)).Adopt(t.Context(), d)
	require.NoError(t, err)
	hold = h.Context(t.Context())
	client := cluster.Client(t)
	_, err = client.Put(t.Context(), h.Key(), "without a lease")
	require.NoError(t, err)
	Await(t, hold.Done(), 1)
	require.ErrorIs(t, h.Unlock(t.Context()), etcdlock.ErrKeyOverwritten)
	require.Eventually(t, func() bool {
		resp, err := client.Get(t.Context(), "x/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == 0
	}, Patience, 2*time.Millisecond, "it stays")

	// Nobody adopts this one.
	late := NewMutex(t, cluster.Client(t), "x")
	require.NoError(t, late.Lock(t.Context()))
	d, err = late.Detach(t.Context(), time.Second)
	require.NoError(t, err)
	WaitForLine(t, cluster.Client(t), "x", 0)
	_, err = NewSession(t, cluster.Client(t)).Adopt(t.Context(), d)
	require.ErrorIs(t, err, etcdlock.ErrLost)
}
