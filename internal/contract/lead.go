package contract

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

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
