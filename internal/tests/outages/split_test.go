package outages

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A Session uses the names of its keys again. After a set-back the key of an earlier hold
// may be back under the name of the present one, on a lease that the Session keeps alive.
// It is in nobody's way for long, whether the loser has unlocked or not.
func TestAKeyThatASetBackBroughtBackUnderTheNameOfAHoldIsSweptSoon(t *testing.T) {
	for _, unlocks := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
			b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
			tests.LockWithin(t, a, time.Second)
			snapshot := etcd.Snapshot()
			require.NoError(t, a.Unlock(context.Background()))
			hold := tests.LockWithin(t, a, time.Second)
			time.Sleep(5 * time.Second)
			etcd.Restore(snapshot, 1)
			select {
			case <-hold.Done():
			case <-time.After(tests.TTL):
				t.Error("the hold was not told within a TTL that its key is gone")
			}
			if unlocks {
				require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrLost)
			}
			began := time.Now()
			err := lockFor(b, 4*tests.TTL)
			t.Log("unlocks:", unlocks, "b waited", time.Since(began), err)
			require.NoError(t, err)
			require.Less(t, time.Since(began), goesOn, "unlocks: %v", unlocks)
			require.NoError(t, b.Unlock(context.Background()))
			if !unlocks {
				require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrLost)
			}
		})
	}
}

// The endpoints of a client belong to two clusters that were restored from one snapshot,
// and they answer in turn. The library pauses between the requests that follow from that.
func TestTwoClustersThatAnswerInTurnAreNotBesieged(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		hold := tests.LockWithin(t, a, time.Second)
		var n atomic.Uint64
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Event || c.Method == fake.Watch {
				return fake.Effect{}
			}
			cluster := 1 + n.Add(1)%2
			return fake.Effect{DelayReply: time.Millisecond, Edit: func(reply any) {
				switch r := reply.(type) {
				case *clientv3.LeaseTimeToLiveResponse:
					r.ResponseHeader.ClusterId = cluster
				case *clientv3.LeaseKeepAliveResponse:
					r.ResponseHeader.ClusterId = cluster
				case *pb.TxnResponse:
					r.Header.ClusterId = cluster
				case *pb.RangeResponse:
					r.Header.ClusterId = cluster
				}
			}}
		})
		time.Sleep(10 * time.Second)
		etcd.Intercept(nil)
		require.NoError(t, hold.Err())
		t.Log("requests in 10 s:", n.Load())
		require.Less(t, n.Load(), uint64(200))
		require.NoError(t, a.Unlock(context.Background()))
	})
}

// A member answers renewals and nothing else. Close without a deadline ends after two TTLs,
// as its comment says, even while an Unlock without one is under way.
func TestCloseEndsWhileAnUnlockHasNoAnswer(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		a := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, a, time.Second)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method != fake.KeepAlive}
		})
		go func() { _ = a.Unlock(context.Background()) }()
		time.Sleep(time.Second)
		closed := make(chan error, 1)
		go func() { closed <- s.Close(context.Background()) }()
		select {
		case err := <-closed:
			require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		case <-time.After(20 * tests.TTL):
			etcd.Intercept(nil)
			t.Error("Close hangs")
			<-closed
		}
	})
}
