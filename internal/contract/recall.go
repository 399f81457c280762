package contract

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A recall is one read and one transaction, which is one revision. It takes nothing away:
// the key keeps its place, its token and its lease. Those behind it wait until the holder
// has unlocked, whatever their package, and however long the grace has been over.
func TestARecallTakesNothingAway(t *testing.T, w World) {
	cluster := w.Start(t)
	client := cluster.Client(t)
	mu := NewMutex(t, client, "x", etcdlock.WithRecall(time.Minute))
	require.NoError(t, mu.Lock(t.Context()))
	hold, token := mu.Context(t.Context()), mu.Token()
	peer, in := theirsWaits(t, cluster, 2)
	ours := NewMutex(t, cluster.Client(t), "x")
	last := Async(func() error { return ours.Lock(Patient(t)) })
	line := WaitForLine(t, client, "x", 3)
	request := etcdlock.RecallRequest{By: "op", Reason: "update", Grace: 100 * time.Millisecond}

	counter := NewCounter()
	operator := cluster.Client(t, With(counter))
	before, revision := counter.Counts(), cluster.Revision(t)
	require.NoError(t, etcdlock.Recall(t.Context(), operator, line[0], request))
	counter.Costs(t, before, "Range 1, Txn 1")
	require.Equal(t, revision+1, cluster.Revision(t))
	require.Equal(t, line, WaitForLine(t, client, "x", 3))
	lease, err := client.TimeToLive(t.Context(), line[0].Lease, clientv3.WithAttachedKeys())
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte(line[0].Key)}, lease.Keys)
	owns, err := client.Txn(t.Context()).If(mu.IsOwner()).Commit()
	require.NoError(t, err)
	require.True(t, owns.Succeeded || hold.Err() != nil)
	require.ErrorIs(t, etcdlock.Recall(t.Context(), operator, line[1], request),
		etcdlock.ErrNotRecallable)
	require.Equal(t, revision+1, cluster.Revision(t))

	Await(t, etcdlock.RecallFrom(hold), 1)
	Await(t, hold.Done(), 1)
	recalled := &etcdlock.RecalledError{Name: "x", Token: token, By: "op", Reason: "update"}
	require.Equal(t, recalled, context.Cause(hold))
	require.Zero(t, mu.Token())
	require.Empty(t, in)
	WaitForLine(t, client, "x", 3)
	require.NoError(t, mu.Unlock(t.Context()))
	require.NoError(t, <-in)
	require.NoError(t, etcdlock.Recall(t.Context(), operator, line[0], request), "it is gone")
	require.NoError(t, peer.Unlock(Patient(t)))
	require.NoError(t, <-last)
	require.NoError(t, ours.Unlock(t.Context()))
}

// A waiter that is recalled waits on. When its hold begins, it has just noticed the recall.
// The readers of a Session are recalled together, and nobody joins them.
func TestWaitersAndReadersAreRecalled(t *testing.T, w World) {
	cluster := w.Start(t)
	client := cluster.Client(t)
	holder := NewMutex(t, client, "x")
	require.NoError(t, holder.Lock(t.Context()))
	s := NewSession(t, cluster.Client(t), etcdlock.WithRecall(time.Minute))
	rw, err := s.RWMutex("x")
	require.NoError(t, err)
	reads := make(chan *etcdlock.Hold, 2)
	in := Async(func() error {
		h, err := rw.RLock(Patient(t))
		reads <- h
		return err
	})
	waiter := WaitForLine(t, client, "x", 2)[1]
	require.NoError(t,
		etcdlock.Recall(t.Context(), client, waiter, etcdlock.RecallRequest{Grace: time.Hour}))
	require.NoError(t, holder.Unlock(t.Context()))
	require.NoError(t, <-in)
	first := <-reads
	Await(t, etcdlock.RecallFrom(first.Context(t.Context())), 1)
	require.Equal(t, waiter.Token, first.Token())
	require.Less(t, time.Until(first.Status().Deadline), time.Minute)

	_, err = rw.TryRLock(t.Context())
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	again := Async(func() error {
		h, err := rw.RLock(Patient(t))
		reads <- h
		return err
	})
	require.NoError(t, first.Unlock(t.Context()))
	require.NoError(t, <-again)
	second := <-reads
	require.NotEqual(t, waiter.Token, second.Token())
	require.NoError(t, second.Unlock(t.Context()))
}

// A wait that asks recalls the holder, by a read, a transaction and a watch. It leaves a contender
// alone that does not listen, and overtakes none.
func TestAWaitAsksWhoHolds(t *testing.T, w World) {
	cluster := w.Start(t)
	client := cluster.Client(t)
	mu := NewMutex(t, client, "x", etcdlock.WithRecall(time.Minute))
	require.NoError(t, mu.Lock(t.Context()))
	hold := mu.Context(t.Context())
	peer, in := theirsWaits(t, cluster, 2)

	counter, answered := NewCounter(), new(atomic.Int32)
	revision := cluster.Revision(t)
	asks := etcdlock.WithAsk(etcdlock.RecallRequest{By: "op", Reason: "update", Grace: time.Minute})
	ours := NewMutex(t, cluster.Client(t, With(counter), countAnswers(answered)), "x", asks)
	last := Async(func() error { return ours.Lock(Patient(t)) })
	Await(t, etcdlock.RecallFrom(hold), 1)
	all := func() bool { return answered.Load() >= 5 && counter.Counts().Of("Watch") >= 2 }
	require.True(t, Poll(all))
	// Half of it is the wait's own.
	counter.Costs(t, Counts{}, "LeaseGrant 1, Range 2, Txn 2, Watch 2")
	require.Equal(t, revision+2, cluster.Revision(t))
	require.NoError(t, hold.Err())
	require.Empty(t, in)

	require.NoError(t, mu.Unlock(t.Context()))
	require.NoError(t, <-in)
	require.Empty(t, last)
	require.NoError(t, peer.Unlock(Patient(t)))
	require.NoError(t, <-last)
	require.Equal(t, revision+4, cluster.Revision(t), "the peer does not listen")
	require.NoError(t, ours.Unlock(t.Context()))
}

// Where all wait so and listen, each holder is recalled once its hold has begun, and once, however
// many wait. They get in in the order of their keys.
func TestManyWaitsAskEachHolderOnce(t *testing.T, w World) {
	cluster := w.Start(t)
	const waiters = 20
	opts := []etcdlock.SessionOption{
		etcdlock.WithRecall(time.Hour), etcdlock.WithAsk(etcdlock.RecallRequest{Grace: time.Hour}),
	}
	first := NewMutex(t, cluster.Client(t), "x", opts...)
	require.NoError(t, first.Lock(t.Context()))
	revision := cluster.Revision(t)
	holding := make(chan *etcdlock.Mutex, waiters)
	failed := make(chan error, waiters)
	for range waiters {
		mu := NewMutex(t, cluster.Client(t), "x", opts...)
		go func() {
			if err := mu.Lock(Patient(t)); err != nil {
				failed <- err
				return
			}
			holding <- mu
		}()
	}
	WaitForLine(t, cluster.Client(t), "x", 1+waiters)
	mu, token := first, int64(0)
	for n := range 1 + waiters {
		if n > 0 {
			select {
			case mu = <-holding:
			case err := <-failed:
				require.NoError(t, err)
			}
		}
		require.Greater(t, mu.Token(), token)
		token = mu.Token()
		if n < waiters { // by the last one's hold no wait is left
			Await(t, etcdlock.RecallFrom(mu.Context(t.Context())), 1)
		}
		require.NoError(t, mu.Unlock(t.Context()))
	}
	require.Equal(t, revision+3*waiters+1, cluster.Revision(t), "a key, a request and a removal each")
}
