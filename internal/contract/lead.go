package contract

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A follower of the lock learns of each holder, by whatever package it holds. Each costs
// the follower one read. Lead releases after its function.
func TestAFollowerIsToldWhoLeads(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	follower := cluster.Client(t, With(counter))
	holders := make(chan etcdlock.Contender, 10)
	following, stop := context.WithCancel(t.Context())
	over := Async(func() error {
		for holder, err := range etcdlock.WatchHolder(following, follower, "x") {
			if err != nil {
				return err
			}
			holders <- holder
		}
		return nil
	})
	require.Zero(t, <-holders)

	client := cluster.Client(t)
	mu := NewMutex(t, client, "x", etcdlock.WithInfo("10.0.0.7:80"))
	begun, fn := make(chan int64), make(chan struct{})
	leading, step := context.WithCancel(t.Context())
	led := Async(func() error {
		return mu.Lead(leading, func(ctx context.Context) error {
			token, _ := etcdlock.TokenFrom(ctx)
			begun <- token
			<-fn
			return nil
		})
	})
	token, holder := <-begun, <-holders
	require.Equal(t, token, holder.Token)
	require.Equal(t, "10.0.0.7:80", holder.Info)
	require.True(t, holder.Holds)

	peer, in := theirsWaits(t, cluster, 2)
	step()
	require.Empty(t, in, "the function has not returned")
	require.Empty(t, holders)
	close(fn)
	require.NoError(t, <-in)
	require.ErrorIs(t, <-led, context.Canceled)
	holder = <-holders
	require.Equal(t, peer.Key(), holder.Key)
	require.Empty(t, holder.Info)
	require.NoError(t, peer.Unlock(Patient(t)))
	require.Zero(t, <-holders)
	if cost, exact := counter.Exactly(t, Counts{}); exact {
		require.LessOrEqual(t, cost.Of("Range"), 4, "one for each")
	}
	require.Zero(t, counter.Counts().Of("Put"))
	stop()
	require.NoError(t, <-over)
}

// A leader tells another address while it leads: a read, a transaction and one revision. A follower
// learns each, once. All else stays, a recall too: its place before a waiter of another package,
// its token, its lease. If the key is gone SetInfo says so, and leaves the next holder's key alone.
func TestAFollowerIsToldTheInfoOfTheLeader(t *testing.T, w World) {
	cluster := w.Start(t)
	counter := NewCounter()
	client, follower := cluster.Client(t, With(counter)), cluster.Client(t)
	mu := NewMutex(t, client, "x", etcdlock.WithInfo("starts"), etcdlock.WithRecall(time.Hour))
	require.NoError(t, mu.Lock(t.Context()))
	hold, token := mu.Context(t.Context()), mu.Token()
	infos := make(chan string, 10)
	following, stop := context.WithCancel(t.Context())
	over := Async(func() error {
		for holder, err := range etcdlock.WatchHolder(following, follower, "x") {
			if err != nil {
				return err
			}
			infos <- holder.Info
		}
		return nil
	})
	require.Equal(t, "starts", <-infos)
	peer, in := theirsWaits(t, cluster, 2)
	line := WaitForLine(t, follower, "x", 2)
	for _, info := range []string{"10.0.0.7:80", "10.0.0.7:81"} {
		before, revision := counter.Counts(), cluster.Revision(t)
		require.NoError(t, mu.SetInfo(hold, info))
		since, exact := counter.Exactly(t, before)
		if exact {
			require.Equal(t, 2, since.Of("Txn"), "the first one only reads")
			require.Zero(t, since.Of("Range")+since.Of("Put"))
		}
		require.Equal(t, revision+1, cluster.Revision(t))
		require.Equal(t, info, <-infos)
		line[0].Info = info
		require.Equal(t, line, WaitForLine(t, follower, "x", 2))
		lease, err := follower.TimeToLive(t.Context(), line[0].Lease, clientv3.WithAttachedKeys())
		require.NoError(t, err)
		require.Equal(t, [][]byte{[]byte(line[0].Key)}, lease.Keys)
		require.NoError(t, etcdlock.Recall(t.Context(), follower, line[0],
			etcdlock.RecallRequest{By: "op", Grace: time.Hour}))
	}
	Await(t, etcdlock.RecallFrom(hold), 1)
	resp, err := follower.Get(t.Context(), line[0].Key)
	require.NoError(t, err)
	require.Contains(t, string(resp.Kvs[0].Value), `"recall":{`)
	require.Empty(t, infos, "a recall is no change")
	require.Equal(t, token, mu.Token())
	require.NoError(t, hold.Err())

	require.NoError(t, etcdlock.Break(t.Context(), follower, line[0]))
	require.NoError(t, <-in)
	RequireIs(t, mu.SetInfo(Patient(t), "late"), etcdlock.ErrLost, etcdlock.ErrKeyDeleted)
	require.Empty(t, <-infos, "the peer has none")
	require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
	require.ErrorIs(t, mu.SetInfo(t.Context(), "later"), etcdlock.ErrNotHeld)
	require.NoError(t, peer.Unlock(Patient(t)))
	require.Empty(t, <-infos)
	stop()
	require.NoError(t, <-over)
}

// The keys of several names have another info at one revision.
func TestSeveralNamesChangeTheirInfoTogether(t *testing.T, w World) {
	cluster := w.Start(t)
	client := cluster.Client(t)
	s := NewSession(t, cluster.Client(t))
	h, err := s.LockAll(t.Context(), "x", "y", "z")
	require.NoError(t, err)
	revision := cluster.Revision(t)
	require.NoError(t, h.SetInfo(t.Context(), "10.0.0.7:80"))
	require.Equal(t, revision+1, cluster.Revision(t))
	for _, name := range h.Names() {
		require.Equal(t, "10.0.0.7:80", WaitForLine(t, client, name, 1)[0].Info)
	}
	require.NoError(t, h.Unlock(t.Context()))
	require.ErrorIs(t, h.SetInfo(t.Context(), "late"), etcdlock.ErrNotHeld)
}
