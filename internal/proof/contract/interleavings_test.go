package contract_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// Each test here is one schedule, told by its timeline, in which a plausible lock goes
// wrong.

// laggingWatcher watches through a member that is behind: its "now" is an earlier
// revision.
type laggingWatcher struct {
	clientv3.Watcher
	now   int64
	heard chan struct{} // gets a value when an event was taken
}

func (w laggingWatcher) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	events := w.Watcher.Watch(ctx, key, append(opts, clientv3.WithRev(w.now))...)
	passedOn := make(chan clientv3.WatchResponse)
	go func() {
		defer close(passedOn)
		for resp := range events {
			select {
			case passedOn <- resp:
			case <-ctx.Done():
				return
			}
			if len(resp.Events) > 0 {
				w.heard <- struct{}{}
			}
		}
	}()
	return passedOn
}

// Key names are used again. A holds, releases and holds again with the same key. B watches
// through a member that has not seen the release yet, and learns of it late.
func TestADeletionOlderThanThePlaceLetsNobodyIn(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client, behind := cluster.Client(t), cluster.Client(t)
	a := contract.NewMutex(t, client, "x")
	require.NoError(t, a.Lock(t.Context()))
	first := a.Key()
	heard := make(chan struct{}, 10)
	behind.Watcher = laggingWatcher{behind.Watcher, cluster.Revision(t) + 1, heard}
	require.NoError(t, a.Unlock(t.Context()))
	require.NoError(t, a.Lock(t.Context()))
	require.Equal(t, first, a.Key(), "the schedule needs the same name")

	b := contract.NewMutex(t, behind, "x")
	in := contract.Async(func() error { return b.Lock(context.Background()) })
	<-heard
	// Another client puts its key after what B did on the late news.
	c := contract.NewMutex(t, client, "x")
	last := contract.Async(func() error { return c.Lock(context.Background()) })
	contract.WaitForLine(t, client, "x", 3)
	select {
	case err := <-in:
		t.Fatalf("B is in beside A: %v", err)
	default:
		require.NotZero(t, a.Token())
	}
	require.NoError(t, a.Unlock(t.Context()))
	require.NoError(t, <-in)
	require.NoError(t, b.Unlock(t.Context()))
	require.NoError(t, <-last)
	require.NoError(t, c.Unlock(t.Context()))
}

// Another client puts over the holder's key, without its lease. For all others the key is
// no contender any more.
func TestAHoldWhoseKeyWasPutOverIsLost(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	contract.VerifyClean(t, client, "x/")
	a, b := contract.NewMutex(t, client, "x"), contract.NewMutex(t, client, "x")
	for _, learnsFirst := range []bool{true, false} {
		require.NoError(t, a.Lock(t.Context()))
		ctx := a.Context(t.Context())
		_, err := client.Put(t.Context(), a.Key(), "edited")
		require.NoError(t, err)
		require.NoError(t, b.Lock(t.Context()))
		if learnsFirst {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrLost)
		}
		require.ErrorIs(t, a.Unlock(t.Context()), etcdlock.ErrLost)
		require.NoError(t, b.Unlock(t.Context()))
	}
}

// faultyClient returns the client of a cluster in which nothing about "x" may be left in
// the end.
func faultyClient(t *testing.T) (*clientv3.Client, *etcdtest.Faults) {
	t.Helper()
	etcdtest.VerifyNoLeaks(t)
	faults := etcdtest.NewFaults(t)
	client := etcdtest.Start(t, 1).Client(t, contract.With(faults))
	contract.VerifyClean(t, client, "x/")
	return client, faults
}

// A releases, and its transaction would put B's key, too. Meanwhile B is closed.
func TestAMutexClosedWhileItsTurnIsComingLetsOthersIn(t *testing.T) {
	t.Parallel()
	client, faults := faultyClient(t)
	s := contract.NewSession(t, client)
	a, b := contract.MutexOf(t, s, "x"), contract.MutexOf(t, s, "x")
	require.NoError(t, a.Lock(t.Context()))
	in := contract.Async(func() error { return b.Lock(context.Background()) })
	contract.LocalLine(t, s, "x", 2)
	release := faults.Inject(etcdtest.HoldRequest("Txn").Times(1))
	out := contract.Async(func() error { return a.Unlock(context.Background()) })
	release.Await(1)
	require.NoError(t, b.Close(t.Context()))
	require.ErrorIs(t, <-in, etcdlock.ErrClosed, "while the release is under way")
	release.Heal()
	require.NoError(t, <-out)
	require.NoError(t, a.Lock(t.Context()))
	require.NoError(t, a.Unlock(t.Context()))
}

// Even at the shortest TTL the library tells the answers to renewals and audits from the
// end of the lease: etcd rounds the remaining time down to 0 s.
func TestALostKeyIsNoticedWhateverTheTTL(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	for _, ttl := range []time.Duration{time.Second, longTTL} {
		mu := contract.NewMutex(t, client, "x", etcdlock.WithTTL(ttl))
		for _, taking := range takings {
			require.NoError(t, mu.Lock(t.Context()))
			ctx := mu.Context(t.Context())
			line, err := etcdlock.Contenders(t.Context(), client, "x")
			require.NoError(t, err)
			for _, c := range line { // none, if the machine is too slow for the shortest TTL
				taking.take(t, client, c)
			}
			receive(t, ctx.Done(), taking.name)
			require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
		}
	}
}

// After Close of a hold, nobody holds it, nor what nested in it.
func TestWhatNestedInAClosedHoldHoldsNothing(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	client := etcdtest.Start(t, 1).Client(t)
	s := contract.NewSession(t, client, etcdlock.WithReentrancy())
	a, b, c := contract.MutexOf(t, s, "x"), contract.MutexOf(t, s, "x"), contract.MutexOf(t, s, "x")
	require.NoError(t, a.Lock(t.Context()))
	require.NoError(t, c.Lock(a.Context(t.Context())))
	require.NoError(t, a.Close(t.Context()))
	require.Zero(t, c.Token())

	require.NoError(t, b.Lock(t.Context()))
	require.NoError(t, c.Lock(b.Context(t.Context())))
	require.NoError(t, c.Unlock(t.Context()))
	require.Zero(t, c.Token())
	require.ErrorIs(t, c.Unlock(t.Context()), etcdlock.ErrNotHeld)
	require.NotZero(t, b.Token())
	require.NoError(t, b.Unlock(t.Context()))
}

// A's put was sent twice. While A holds, an operator breaks the lock. Then the second copy
// comes and puts the key again: the same name, on the same lease.
func TestAHoldWhoseKeyWasPutAgainByALateRequestIsLost(t *testing.T) {
	t.Parallel()
	client, faults := faultyClient(t)
	mu := contract.NewMutex(t, client, "x")
	require.NoError(t, mu.Lock(t.Context())) // grants the lease
	require.NoError(t, mu.Unlock(t.Context()))
	faults.Inject(etcdtest.DropReply("Txn", codes.DeadlineExceeded).Times(1))
	require.NoError(t, mu.Lock(t.Context()))
	ctx := mu.Context(t.Context())

	line := contract.WaitForLine(t, client, "x", 1)
	stored, err := client.Get(t.Context(), mu.Key())
	require.NoError(t, err)
	require.NoError(t, etcdlock.Break(t.Context(), client, line[0]))
	_, err = client.Put(t.Context(), line[0].Key, string(stored.Kvs[0].Value),
		clientv3.WithLease(line[0].Lease))
	require.NoError(t, err)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrLost)
	require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
}

// The waiters for a thousand names, all without a lease, share one attempt at a time.
func TestManyWaitersShareTheAttemptsToGetALease(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	counter, faults := contract.NewCounter(), etcdtest.NewFaults(t)
	client := cluster.Client(t, contract.With(counter, faults))
	refusing := faults.Inject(etcdtest.DropRequest("LeaseGrant", codes.Unavailable))
	s := contract.NewSession(t, client)
	const names = 200
	results := make(chan error, names)
	for i := range names {
		mu := contract.MutexOf(t, s, string(rune('a'+i%26))+string(rune('a'+i/26)))
		go func() { results <- mu.Lock(context.Background()) }()
	}
	refusing.Await(6)
	require.Less(t, refusing.Strikes(), names)
	refusing.Heal()
	for range names {
		require.NoError(t, <-results)
	}
	require.LessOrEqual(t, counter.Counts().Of("LeaseGrant"), names/2)
}
