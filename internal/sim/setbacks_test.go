package sim

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// The judge sees each doubt of a Session, where etcd was not set back: else it would judge nothing.
func TestTheJudgeSeesADoubt(t *testing.T) {
	require.NoError(t, inBubble(t, 1, func(t *testing.T) {
		net := NewNet(1)
		cluster := NewCluster(1, net, 1)
		client, err := net.Client("p0", []string{"http://m0"})
		require.NoError(t, err)
		j := newJudge(Ours, cluster)
		s, err := etcdlock.NewSession(client, j.watchesSetBacks("p0")...)
		require.NoError(t, err)
		h, err := s.Lock(t.Context(), "a")
		require.NoError(t, err)
		cluster.RevokeLease(int64(s.Lease()))
		other, err := etcdlock.NewSession(client)
		require.NoError(t, err)
		require.NoError(t, other.Do(t.Context(), "a/b", func(context.Context) error { return nil }))
		cluster.Compact()
		<-h.Context(t.Context()).Done()
		require.NoError(t, other.Close(t.Context()))
		require.NoError(t, s.Close(t.Context()))
		require.Len(t, j.violations, 1)
		require.Equal(t, foundBack, j.violations[0].invariant)
		_ = client.Close()
		net.Close()
		cluster.Stop()
	}))
}
