//go:build timed

package contract_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// counted counts what etcd sends to the watches of a client.
type counted struct {
	clientv3.Watcher
	asked, begun, refused atomic.Int64 // asked counts those without an answer yet
}

func (w *counted) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	out := make(chan clientv3.WatchResponse)
	w.asked.Add(1)
	in := w.Watcher.Watch(ctx, key, opts...)
	w.asked.Add(-1)
	go func() { // ends with ctx, or the watch
		defer close(out)
		for resp := range in {
			switch {
			case resp.Err() != nil:
				w.refused.Add(1)
			case resp.Created:
				w.begun.Add(1)
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// The same with etcd and clientv3 as they are. A JWT expires while watches live, one of the
// user's and one of the library's. etcd refuses later requests on their streams.
func TestATokenThatExpiresHoldsUpNoWatch(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("a secret of sixteen bytes and more"), 0o600))
	cluster := etcdtest.Start(t, 1, func(m *integration.Member) {
		m.AuthToken = "jwt,sign-method=HS256,ttl=1s,priv-key=" + secret
	})
	admin := cluster.Client(t)
	contract.AddUser(bounded(t), t, admin, "root", "password")
	_, err := admin.AuthEnable(bounded(t))
	require.NoError(t, err)
	as := func(cfg *clientv3.Config) { cfg.Username, cfg.Password = "root", "password" }

	client := cluster.Client(t, as)
	w := &counted{Watcher: client.Watcher}
	client.Watcher = w
	other := contract.NewSession(t, cluster.Client(t, as))
	holds, holder := contract.MutexOf(t, other, "held"), contract.MutexOf(t, other, "n")
	s := contract.NewSession(t, client)
	long, mu := contract.MutexOf(t, s, "held"), contract.MutexOf(t, s, "n")
	lingers := contract.MutexOf(t, s, "lingers", etcdlock.WithLinger(15*time.Second))

	users, stop := context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	defer stop()
	require.True(t, contract.Poll(func() bool { // a token of one second may expire at once
		_, err := client.Get(bounded(t), "config") // with another token if need be
		require.NoError(t, err)
		first := <-client.Watch(users, "config", clientv3.WithCreatedNotify())
		return first.Err() == nil
	}), "the user's watch")
	require.NoError(t, holds.Lock(bounded(t)))
	longIn := contract.Async(func() error { return long.Lock(bounded(t)) })
	require.True(t, contract.Poll(func() bool { return w.begun.Load() >= 2 }), "the library's watch")

	require.True(t, contract.Poll(func() bool {
		ctx, cancel := context.WithCancel(users)
		defer cancel()
		first := <-client.Watch(ctx, "config", clientv3.WithCreatedNotify())
		err = first.Err()
		return err != nil
	}), "the token does not expire")
	require.ErrorContains(t, err, "etcdserver: invalid auth token", "what etcd says to a watch")
	time.Sleep(2 * time.Second) // nothing announces that the library's token has expired, too

	var took []time.Duration
	for range 11 {
		require.NoError(t, holder.Lock(bounded(t)))
		begun := w.begun.Load()
		in := contract.Async(func() error { return mu.Lock(bounded(t)) })
		contract.WaitForLine(t, client, "n", 2)
		if len(took) == 0 {
			require.True(t, contract.Poll(func() bool { return w.begun.Load() > begun }),
				"no watch can be made: %d were refused", w.refused.Load())
		}
		start := time.Now()
		require.NoError(t, holder.Unlock(bounded(t)))
		require.NoError(t, receive(t, in, "the turn"))
		took = append(took, time.Since(start))
		require.NoError(t, mu.Unlock(bounded(t)))
	}
	slices.Sort(took)
	t.Logf("hand-overs took %v (median), %v at most; %d watches were refused", took[5], took[10],
		w.refused.Load())
	require.True(t, contract.Poll(func() bool {
		require.NoError(t, lingers.Lock(bounded(t)))
		require.NoError(t, lingers.Unlock(bounded(t)))
		resp, err := client.Get(bounded(t), "lingers/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == 1
	}), "no key lingers")
	require.NoError(t, holds.Unlock(bounded(t)))
	require.NoError(t, receive(t, longIn, "the turn"))
	require.NoError(t, long.Unlock(bounded(t)))
	// clientv3 has a race of its own. If the last watch of a stream ends at the moment when
	// etcd refuses another one, Client.Close waits for ever.
	require.True(t, contract.Poll(func() bool { return w.asked.Load() == 0 }), "a watch begins")
}
