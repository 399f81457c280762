package hold_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A slowDisk commits in batches what is written: while it syncs one, which takes as long as it
// says, the next one gathers. A read waits for the batch under way, unless it is of the past.
type slowDisk struct {
	syncs time.Duration
	mu    sync.Mutex
	until time.Time // the end of the batch under way
	next  time.Time // the end of the one that gathers, if that is later
}

func (d *slowDisk) handle(c fake.Call) fake.Effect {
	writes := len(c.Puts)+len(c.Deletes)+c.Nested > 0
	switch c.Method {
	case fake.Grant, fake.Revoke, fake.Delete, fake.Put:
		writes = true
	case fake.Txn:
	case fake.Range:
		if c.Past {
			return fake.Effect{}
		}
	default:
		return fake.Effect{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !now.Before(d.until) {
		d.until = d.next
	}
	if !writes {
		return fake.Effect{Delay: max(d.until.Sub(now), 0)}
	}
	if !now.Before(d.until) {
		d.until = now.Add(d.syncs)
		d.next = d.until
	} else if !d.next.After(d.until) {
		d.next = d.until.Add(d.syncs)
	}
	return fake.Effect{Delay: d.next.Sub(now)}
}

// Hundreds of Sessions begin at once over two clients, while etcd's disk takes a second for each
// batch of writes. It takes half a minute until all have a lease, as few are asked for at a time.
// What the first in line read waits for none of these grants: from the start on the lock goes on
// to the next one, in the time of two batches, as the release waits for one that is under way.
func TestGrantsDelayNoHandOver(t *testing.T) {
	const sessions, clients, syncs, within = 500, 2, time.Second, 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		etcd, disk := fake.NewServer(), &slowDisk{syncs: syncs}
		etcd.Intercept(disk.handle)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		crowd := crowdOf(t, ctx, etcd, sessions, clients, false)
		time.Sleep(within)
		held, granted := crowd.held.Load(), len(etcd.Leases())
		t.Logf("%d held in %v, by %d leases, %d in line", held, within, granted, len(etcd.Keys("n/")))
		etcd.Intercept(nil)
		cancel()
		crowd.closes()
		require.Less(t, granted, sessions, "some still wait for a lease")
		require.GreaterOrEqual(t, held, int64(within/(3*syncs)))
	})
}

// A thousand Sessions begin at once over four clients, while etcd's disk takes half a second for
// each batch of writes. So each answer takes up to a second, however few are under way. Renewals
// and watches need no disk, so the clients see that it is the disk, and send more: all stand in
// line about as soon as with concurrency.Mutex, which sends everything at once. From then on the
// lock goes on as often as there, too, as no batch of theirs is under way.
func TestASlowDiskFillsTheLineSoon(t *testing.T) {
	const clients, syncs = 4, 500 * time.Millisecond
	sessions := race.Watched(1000, 500)
	const filled, within = 10 * time.Second, 30 * time.Second
	begin := func(t *testing.T, of side.Side) (line, early, late int64) {
		synctest.Test(t, func(t *testing.T) {
			etcd, disk := fake.NewServer(), &slowDisk{syncs: syncs}
			etcd.ForgetCalls()
			etcd.Intercept(disk.handle)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			shared := make([]*clientv3.Client, clients)
			for i := range shared {
				shared[i] = etcd.Client(fmt.Sprint(i))
			}
			var held atomic.Int64
			var all sync.WaitGroup
			for i := range sessions {
				s, err := of.Open(shared[i%clients], 15*time.Second)
				require.NoError(t, err)
				mu, err := s.Mutex("n")
				require.NoError(t, err)
				all.Go(func() {
					if mu.Lock(ctx) == nil {
						held.Add(1)
						_ = mu.Unlock(ctx)
					}
					<-ctx.Done()
					_ = s.Close(context.Background())
				})
			}
			time.Sleep(filled)
			line, early = int64(len(etcd.Keys("n/"))), held.Load()
			time.Sleep(within - filled)
			late = held.Load()
			etcd.Intercept(nil)
			cancel()
			all.Wait()
			for _, c := range shared {
				_ = c.Close() // its context has ended
			}
		})
		t.Logf("%s: %d in line after %v, %d held; %d held after %v",
			of.Name, line, filled, early, late, within)
		return line, early, late
	}
	line, early, late := begin(t, side.Ours)
	peersLine, peersEarly, peersLate := begin(t, side.Theirs)
	require.GreaterOrEqual(t, line, peersLine*9/10)
	require.GreaterOrEqual(t, late-early, (peersLate-peersEarly)*9/10)
}

// A thousand Sessions over four clients, and an etcd without a disk, that works through one request
// after another. Each put takes it 18 ms, so with eight of each client under way an answer takes as
// long as on a slow disk. But so does the answer to a renewal, and that a watch has begun: more
// requests would only wait there in place of here, and the renewals behind them.
func TestABusyEtcdGetsNoMoreForBeingSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions, clients := race.Watched(1000, 200), 4
		etcd, busy := fake.NewServer(), &busyEtcd{takes: service}
		etcd.ForgetCalls()
		etcd.Intercept(busy.handle)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		crowd := crowdOf(t, ctx, etcd, sessions, clients, false)
		crowd.all.Wait()
		busy.mu.Lock()
		latest := busy.most
		busy.mu.Unlock()
		t.Logf("the latest answered after %v", latest)
		etcd.Intercept(nil)
		crowd.closes()
		require.Less(t, latest, 1200*time.Millisecond)
	})
}
