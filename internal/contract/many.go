package contract

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
)

// Several names are held together or not at all. Any number of them costs one request and
// one revision, and they have one token. A TryLockAll that finds one name taken writes
// nothing.
func TestSeveralNamesAreHeldTogetherOrNotAtAll(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	client := cluster.Client(t, With(counter))
	s := NewSession(t, client)
	var names []string
	for i := range 32 {
		names = append(names, fmt.Sprint("item/", i))
	}
	warm, err := s.LockAll(Patient(t), names[0])
	require.NoError(t, err)
	require.NoError(t, warm.Unlock(t.Context()))

	before, revision := counter.Counts(), cluster.Revision(t)
	h, err := s.LockAll(Patient(t), names...)
	require.NoError(t, err)
	counter.Costs(t, before, "Txn 1")
	require.Equal(t, revision+1, h.Token())
	for _, name := range names {
		line := WaitForLine(t, client, name, 1)
		require.Equal(t, h.Token(), line[0].Token)
		require.True(t, line[0].Holds)
	}
	resp, err := client.Txn(t.Context()).If(h.IsOwner()...).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded)

	asks := NewCounter()
	elsewhere := NewSession(t, cluster.Client(t, With(asks)))
	warm, err = elsewhere.LockAll(Patient(t), "warm")
	require.NoError(t, err)
	require.NoError(t, warm.Unlock(t.Context()))
	before, revision = asks.Counts(), cluster.Revision(t)
	_, err = elsewhere.TryLockAll(t.Context(), "free", names[31], "free too")
	var locked *etcdlock.LockedError
	ok := errors.As(err, &locked)
	require.True(t, ok, "%v", err)
	require.Equal(t, names[31], locked.Name)
	require.Equal(t, h.Token(), locked.Holder.Token)
	asks.Costs(t, before, "Txn 1")
	require.Equal(t, revision, cluster.Revision(t))

	before, revision = counter.Counts(), cluster.Revision(t)
	require.NoError(t, h.Unlock(t.Context()))
	if counter.Costs(t, before, "Txn 1") {
		require.Equal(t, revision+1, cluster.Revision(t))
	}

	// A loss of one name is a loss of all.
	h, err = s.LockAll(Patient(t), "x", "y", "z")
	require.NoError(t, err)
	ctx := h.Context(t.Context())
	require.NoError(t, etcdlock.Break(t.Context(), client, WaitForLine(t, client, "y", 1)[0]))
	<-ctx.Done()
	var lost *etcdlock.LostError
	ok = errors.As(context.Cause(ctx), &lost)
	require.True(t, ok)
	require.Equal(t, "y", lost.Name)
	require.ErrorIs(t, h.Unlock(t.Context()), etcdlock.ErrLost)
	h, err = elsewhere.LockAll(Patient(t), "z", "y", "x")
	require.NoError(t, err)
	require.NoError(t, h.Unlock(t.Context()))
}

// Calls that name several locks in opposed orders exclude each other, and exclude single
// locks of either package. All get in.
func TestSeveralNamesExcludeInWhateverOrder(t *testing.T, w World) {
	cluster := w.Start(t)
	names := []string{"a", "b", "c"}
	var inside [3]atomic.Int32
	enter := func(of ...int) {
		for _, i := range of {
			if inside[i].Add(1) != 1 {
				t.Errorf("two hold %s", names[i])
			}
		}
		for _, i := range of {
			inside[i].Add(-1)
		}
	}
	var wg sync.WaitGroup
	for range 2 {
		s := NewSession(t, cluster.Client(t))
		for _, of := range [][]int{{0, 1}, {1, 0}, {1, 2}, {2, 1, 0}} {
			var set []string
			for _, i := range of {
				set = append(set, names[i])
			}
			wg.Go(func() {
				for range max(w.Cycles/20, 1) {
					err := s.DoAll(Patient(t), set, func(context.Context) error { enter(of...); return nil })
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	theirs, err := concurrency.NewSession(cluster.Client(t))
	require.NoError(t, err)
	defer theirs.Close()
	for i, name := range names {
		client := cluster.Client(t)
		wg.Go(func() {
			for range max(w.Cycles/40, 1) {
				if i == 0 {
					theirLock(t, theirs, name, func() { enter(i) })
				} else {
					ourLock(t, client, name, func() { enter(i) })
				}
			}
		})
	}
	wg.Wait()
}

// theirLock calls f under etcd's own lock of a name.
func theirLock(t *testing.T, s *concurrency.Session, name string, f func()) {
	mu := concurrency.NewMutex(s, name)
	if err := mu.Lock(Patient(t)); err != nil {
		t.Error(err)
		return
	}
	f()
	if err := mu.Unlock(context.Background()); err != nil {
		t.Error(err)
	}
}

// ourLock calls f under a lock that it makes for it.
func ourLock(t *testing.T, client *clientv3.Client, name string, f func()) {
	mu, err := etcdlock.NewMutex(client, name)
	if err != nil {
		t.Error(err)
		return
	}
	defer mu.Close(context.Background())
	if err := mu.Do(Patient(t), func(context.Context) error { f(); return nil }); err != nil {
		t.Error(err)
	}
}
