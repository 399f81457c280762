package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/race"
)

// A leader that is cut off from the others goes on renewing leases until it steps down. Its
// successor counts a TTL from the last renewal that reached the successor itself. A holder
// that can reach both is cut off from all of them in between, or a little later. It must
// have stopped before the next one gets in.
func TestTheWordOfADeposedLeaderIsNotTrusted(t *testing.T) {
	const ttl = 2 * time.Second
	runs, broken := race.Fewer(1000, 100), 0
	for run := range uint64(runs) {
		require.NoError(t, inBubble(t, run, func(t *testing.T) {
			r := generator(run, "deposed")
			w := newClocks(run, ttl, 1)
			defer w.stop(t)
			one, two := w.mutex(t, "one"), w.mutex(t, "two")
			require.NoError(t, one.Lock(t.Context()))
			hold := one.Context(context.Background())
			got := make(chan error, 1)
			go func() { got <- two.Lock(context.Background()) }()

			time.Sleep(time.Duration(r.Int64N(int64(ttl))))
			leader := w.cluster.Leader()
			for m := range members {
				if m != leader && r.IntN(2) == 0 {
					w.net.Lose(fmt.Sprint("m", m), "one") // its renewals arrive there, and nobody tells
				}
			}
			w.cluster.Cut(leader)
			time.Sleep(electionTimeout + time.Duration(r.Int64N(int64(electionTimeout))))
			for m := range members {
				w.net.Lose("one", fmt.Sprint("m", m))
				w.net.Lose(fmt.Sprint("m", m), "one")
			}
			require.NoError(t, <-got)
			if hold.Err() == nil {
				broken++
				return
			}
			require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
		}))
	}
	require.Zero(t, broken, "holders of %d who believed when the next one got in", runs)
}

// A leader that was frozen while another was elected does not answer as a leader when it thaws, if
// it can reach a member that knows the newer term. (It would deny the leases that its successor has
// granted. The Sessions would lose them, and doubt that etcd's history is one.)
func TestALeaderThatThawsBesideASilentSuccessorStepsDown(t *testing.T) {
	for seed := range uint64(20) {
		require.NoError(t, inBubble(t, seed, func(t *testing.T) {
			net := NewNet(seed)
			cluster := NewCluster(seed, net, 3)
			all, err := net.Client("all", []string{"http://m0", "http://m1", "http://m2"})
			require.NoError(t, err)
			first := cluster.Leader()
			cluster.Freeze(first)
			time.Sleep(3 * electionTimeout)
			successor := cluster.Leader()
			require.NotEqual(t, first, successor)
			lease, err := all.Grant(t.Context(), 60)
			require.NoError(t, err)
			cluster.Freeze(successor)
			cluster.Thaw(first)
			time.Sleep(electionTimeout / 4)

			one, err := net.Client("one", []string{fmt.Sprint("http://m", first)})
			require.NoError(t, err)
			_, err = one.KeepAliveOnce(t.Context(), lease.ID)
			require.NoError(t, err)
			_, _ = all.Close(), one.Close()
			net.Close()
			cluster.Stop()
		}))
	}
}
