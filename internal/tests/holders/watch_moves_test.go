package holders

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// WatchHolder tells that a hold was detached, who has adopted it, and that its name stays taken.
func TestWatchHolderFollowsAHoldThatMoves(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithOwner("a"))
		tests.LockWithin(t, mu, time.Second)
		seen := make(chan etcdlock.Contender, 10)
		go func() {
			for holder, err := range etcdlock.WatchHolder(ctx, etcd.Client("follower"), "n") {
				if err == nil {
					seen <- holder
				}
			}
		}()
		next := func() etcdlock.Contender { return tests.SoonOr(t, seen, "nothing is told") }
		first := next()
		require.Equal(t, "a", first.Owner)
		require.Zero(t, first.Until)

		time.Sleep(time.Minute)
		at := time.Now()
		d, err := mu.Detach(ctx, keep)
		require.NoError(t, err)
		moved := next()
		require.Equal(t, first.Token, moved.Token)
		require.True(t, moved.Until.Equal(at.Add(keep)))

		b := tests.SessionOf(t, etcd, "b")
		h := adopted(t, b, d, etcdlock.WithOwner("b"), etcdlock.WithMinHold(least))
		at = time.Now()
		adoptedBy := next()
		require.Equal(t, "b", adoptedBy.Owner)
		require.Equal(t, first.Token, adoptedBy.Token)
		require.Zero(t, adoptedBy.Until)

		require.NoError(t, h.Unlock(ctx))
		kept := next()
		require.Equal(t, "b", kept.Owner)
		require.True(t, kept.Until.Equal(at.Add(least)))
		require.Zero(t, next().Token)
		require.Equal(t, least, time.Since(at))
		synctest.Wait()
		require.Empty(t, seen)
	})
}
