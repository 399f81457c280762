package etcdlockgocron_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockgocron "github.com/etcdlock/etcdlock/adapters/gocron"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// electorOf returns an Elector of a process of its own, and its Mutex, which the test closes.
func electorOf(t *testing.T, client *clientv3.Client) (*etcdlockgocron.Elector, *etcdlock.Mutex) {
	t.Helper()
	mu, err := etcdlock.NewMutex(client, "cron/leader")
	require.NoError(t, err)
	e, err := etcdlockgocron.NewElector(mu)
	require.NoError(t, err)
	return e, mu
}

// lead takes part in the election until stop is called.
func lead(t *testing.T, e *etcdlockgocron.Elector) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- e.Lead(ctx) }()
	return func() {
		cancel()
		require.ErrorIs(t, <-over, context.Canceled)
	}
}

// A lead is over before another scheduler leads, and comes back.
//
//	a leads ── a is cut off ── a leads no more ── b leads ── a is healed ── b stops ── a leads
func TestALossEndsTheLeadBeforeAnotherLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		a, aMutex := electorOf(t, client)
		b, bMutex := electorOf(t, etcd.Client())
		leads := func(e *etcdlockgocron.Elector) bool {
			err := e.IsLeader(t.Context())
			if err != nil {
				require.ErrorIs(t, err, etcdlock.ErrNotHeld)
				require.ErrorContains(t, err, "cron/leader")
			}
			return err == nil
		}
		await := func(e *etcdlockgocron.Elector) {
			for !leads(e) {
				require.False(t, leads(a) && leads(b))
				time.Sleep(time.Millisecond)
			}
			require.False(t, leads(a) && leads(b))
		}

		require.False(t, leads(a))
		stopA := lead(t, a)
		await(a)
		stopB := lead(t, b)
		time.Sleep(time.Hour)
		require.True(t, leads(a))

		heal := etcd.Cut(client)
		await(b)
		require.False(t, leads(a))
		time.Sleep(time.Minute)
		require.False(t, leads(a))
		heal()
		time.Sleep(time.Minute)
		require.False(t, leads(a))
		require.True(t, leads(b))
		stopB()
		require.False(t, leads(b))
		await(a)

		stopA()
		require.False(t, leads(a))
		require.NoError(t, aMutex.Close(t.Context()))
		require.NoError(t, bMutex.Close(t.Context()))
	})
}

// The jobs run on the scheduler whose process holds the Mutex, in every slot.
func TestJobsRunWhereTheMutexIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		a, aMutex := electorOf(t, etcd.Client())
		b, bMutex := electorOf(t, etcd.Client())
		require.NoError(t, aMutex.Lock(t.Context()))
		first := start(t, 0, gocron.WithDistributedElector(a), works)
		second := start(t, 0, gocron.WithDistributedElector(b), works)
		time.Sleep(interval * 7 / 2) // between the third and the fourth slot
		require.NoError(t, aMutex.Unlock(t.Context()))
		require.NoError(t, bMutex.Lock(t.Context()))
		require.Equal(t, once, runs(first, second))
		require.Equal(t, [slots]int{1, 1, 1}, first.ran)
		require.NoError(t, aMutex.Close(t.Context()))
		require.NoError(t, bMutex.Close(t.Context()))
		require.ErrorIs(t, b.IsLeader(t.Context()), etcdlock.ErrNotHeld)
	})
}

func TestAnElectorNeedsAMutex(t *testing.T) {
	e, err := etcdlockgocron.NewElector(nil)
	require.EqualError(t, err, "etcdlockgocron: nil Mutex")
	require.Nil(t, e)
}
