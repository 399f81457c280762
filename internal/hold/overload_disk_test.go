package hold_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
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
