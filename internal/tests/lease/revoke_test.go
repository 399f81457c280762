package lease

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// leasedIn is a Session that has a lease, and holds nothing.
func leasedIn(t *testing.T, etcd *fake.Server) *etcdlock.Session {
	t.Helper()
	s := tests.SessionOf(t, etcd, "a")
	mu := contract.MutexOf(t, s, "n")
	tests.LockWithin(t, mu, time.Second)
	require.NoError(t, mu.Unlock(context.Background()))
	return s
}

// deadEndpoint returns a function that reports whether a call meets a dead endpoint. The
// first call of each instant does.
func deadEndpoint() func(fake.Call) bool {
	met := make(map[time.Time]bool)
	return func(c fake.Call) bool {
		first := !met[c.At]
		met[c.At] = true
		return first
	}
}

// Leases that Close revokes side by side take turns on the endpoints. So each attempt of
// one of them may meet the same dead endpoint. If it sends two at once, only the first
// does.
func TestCloseIsConfirmedThoughADeadEndpointMeetsEveryRevocation(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := leasedIn(t, etcd)
		dead := deadEndpoint()
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Revoke && dead(c)}
		})
		require.NoError(t, s.Close(tests.Within(t, 5*time.Second)))
		require.Empty(t, etcd.Leases())
	})
}

// An idle lease is being given back, and etcd does not answer that for two TTLs, in which the lease
// must have expired. A Close that comes then has two TTLs of its own for the answer, and no more.
func TestCloseHasItsOwnTimeToRevokeALease(t *testing.T) {
	for _, answers := range []bool{true, false} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			mu := contract.MutexOf(t, s, "n")
			tests.LockWithin(t, mu, time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
			etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: c.Method == fake.Revoke}
			})
			for len(etcd.Calls(fake.Revoke)) == 0 {
				time.Sleep(time.Second)
			}
			time.Sleep(2*tests.TTL - 2*time.Second)
			if answers {
				time.AfterFunc(20*time.Second, func() { etcd.Intercept(nil) })
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			began := time.Now()
			err := s.Close(ctx)
			if answers {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
			// with an attempt and its pause
			require.WithinRange(t, time.Now(), began.Add(2*tests.TTL), began.Add(3*tests.TTL))
		})
	}
}

// The answer to a revocation is lost. Two at once follow, again and again: one meets a dead
// endpoint, and the other learns that there is no such lease. That is an answer.
func TestCloseIsConfirmedByAnAnswerThatTheLeaseIsGone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := leasedIn(t, etcd)
		dead := deadEndpoint()
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method != fake.Revoke || c.N == 1 {
				return fake.Effect{DropReply: c.Method == fake.Revoke}
			}
			return fake.Effect{Drop: dead(c)}
		})
		require.NoError(t, s.Close(tests.Within(t, 5*time.Second)))
	})
}
