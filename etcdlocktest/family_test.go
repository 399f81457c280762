package etcdlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// granted is the TTL of all leases here.
const granted = 15 * time.Second

// sessionOf returns a Session of a process of its own.
func sessionOf(t *testing.T, etcd *etcdlocktest.Etcd) (*clientv3.Client, *etcdlock.Session) {
	t.Helper()
	client := etcd.Client()
	s, err := etcdlock.NewSession(client, etcdlock.WithTTL(granted))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) }) // its client may be closed
	return client, s
}

// A reading process dies. A writer gets in when that process's lease has ended, and not
// before.
func TestAWriterWaitsForTheLeaseOfADeadReader(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		dying, reading := sessionOf(t, etcd)
		_, writing := sessionOf(t, etcd)
		reader, err := reading.RWMutex("catalog")
		require.NoError(t, err)
		writer, err := writing.RWMutex("catalog")
		require.NoError(t, err)
		hold, err := reader.RLock(t.Context())
		require.NoError(t, err)
		second, err := writer.TryRLock(t.Context())
		require.NoError(t, err, "readers share")
		require.NoError(t, second.Unlock(t.Context()))
		require.ErrorIs(t, writer.TryLock(t.Context()), etcdlock.ErrLocked)

		died := time.Now()
		_ = dying.Close()
		require.NoError(t, writer.Lock(t.Context()))
		require.GreaterOrEqual(t, time.Since(died), granted*2/3-time.Second, "it renews each third")
		require.LessOrEqual(t, time.Since(died), granted)
		require.ErrorIs(t, hold.Context(t.Context()).Err(), context.Canceled)
	})
}

// The holds of a process that is cut off end in time. Then its permits come back.
func TestThePermitsOfAProcessThatIsCutOffComeBack(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		away, here := sessionOf(t, etcd)
		_, there := sessionOf(t, etcd)
		lost, err := here.Semaphore("pool", 3)
		require.NoError(t, err)
		pool, err := there.Semaphore("pool", 3)
		require.NoError(t, err)
		hold, err := lost.Acquire(t.Context(), 2)
		require.NoError(t, err)
		_, err = pool.TryAcquire(t.Context(), 2)
		require.ErrorIs(t, err, etcdlock.ErrLocked)

		work := hold.Context(t.Context())
		heal := etcd.Cut(away)
		defer heal()
		permits, err := pool.Acquire(t.Context(), 3)
		require.NoError(t, err)
		require.ErrorIs(t, context.Cause(work), etcdlock.ErrExpired, "it ended before others got in")
		require.NoError(t, permits.Unlock(t.Context()))
	})
}

// One of several names is deleted: all end, and the error says which it was.
func TestSeveralNamesEndWithOneOfThem(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client, s := sessionOf(t, etcd)
		err := s.DoAll(t.Context(),
			[]string{"stock/pear", "stock/plum"}, func(ctx context.Context) error {
				line, err := etcdlock.Contenders(ctx, client, "stock/plum")
				if err != nil {
					return err
				}
				etcd.Delete(line[0].Key)
				<-ctx.Done()
				return nil
			})
		var lost *etcdlock.LostError
		ok := errors.As(err, &lost)
		require.True(t, ok, err)
		require.Equal(t, "stock/plum", lost.Name)
		require.ErrorIs(t, err, etcdlock.ErrKeyDeleted)
		synctest.Wait() // the other key is removed in the background
		left, err := client.Get(t.Context(), "stock/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.Zero(t, left.Count)
	})
}

// The leader's process dies. A follower sees the next leader within the TTL.
func TestWhoeverFollowsSeesTheNextLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		ctx, stop := context.WithCancel(t.Context())
		var processes []*clientv3.Client
		var ended []chan error
		for _, address := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
			client := etcd.Client()
			processes = append(processes, client)
			mu, err := etcdlock.NewMutex(client, "svc", etcdlock.WithTTL(granted),
				etcdlock.WithInfo(address))
			require.NoError(t, err)
			over := make(chan error, 1)
			ended = append(ended, over)
			go func() {
				err := mu.Lead(ctx, untilTold)
				_ = mu.Close(context.Background())
				over <- err
			}()
			time.Sleep(time.Second) // so that the first one leads
		}
		var died time.Time
		var seen []string
		for leader, err := range etcdlock.WatchHolder(ctx, etcd.Client(), "svc") {
			require.NoError(t, err)
			if seen = append(seen, leader.Info); len(seen) == 2 {
				break
			}
			died = time.Now()
			_ = processes[0].Close()
		}
		require.Equal(t, []string{"10.0.0.1:80", "10.0.0.2:80"}, seen)
		require.LessOrEqual(t, time.Since(died), granted)
		stop()
		require.ErrorIs(t, <-ended[1], context.Canceled)
		require.Error(t, <-ended[0])
	})
}
