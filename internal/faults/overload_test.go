package faults

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/tests/v3/framework/integration"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

const (
	quota  = 1 << 20
	goesOn = 2 * time.Second // after a shortage has ended
)

// S26. Without space a lock can be released, but not taken.
//
//	a holds, b waits | no space | a's lease is renewed, a unlocks, b gets in | d cannot, and
//	leaves nothing | e waits or has an error, b unlocks | space | e gets in
func TestS26WithoutSpaceALockIsReleasedAndNotTaken(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S26", name: "NOSPACE alarm", quick: 4,
		fault: "the database outgrows its quota: an alarm, under which etcd refuses what puts or grants",
		must:  "holders are renewed and release, waiters in line get in; others: an error or a wait, no hold, no key; in <= 2 s after the disarm",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1, func(m *integration.Member) { m.QuotaBackendBytes = quota })
		admin := c.Client(tr)
		a, b := tr.party("a", c, lasting), tr.party("b", c, lasting)
		d, e := tr.party("d", c, 10*ttl), tr.party("e", c, 10*ttl)
		d.getsALease() // so that etcd does not refuse the grant
		e.getsALease()
		a.locks()
		next := b.waits()
		fill(tr, admin)

		next.goesOnWaiting(3 * lasting / 2)
		a.stillHolds(admin)
		a.unlocks()
		next.getsIn(slack)
		for _, verb := range []string{"Lock", "TryLock"} {
			err := d.triesFor(500*time.Millisecond, verb)
			tr.must(err != nil, "%s took the lock without space", verb)
			tr.must(verb == "TryLock" || errors.Is(err, rpctypes.ErrNoSpace), "%s: %v", verb, err)
		}
		tr.must(contract.Eventually(slack, func() bool {
			return tr.keys(admin) == 1
		}), "%d keys beside b's", tr.keys(admin)-1)
		b.stillHolds(admin)
		last := e.starts(context.Background())
		b.unlocks()
		told := last.returnsWithin(500 * time.Millisecond)
		tr.must(!told || last.err != nil, "e took the lock without space")

		makeSpace(tr, admin)
		last.getsInAfter(told)
		e.unlocks()
		tr.isEmptyWithin(admin, slack)
	})
}

// triesFor calls Lock or TryLock with a context that lasts that long.
func (p *party) triesFor(d time.Duration, verb string) error {
	p.tr.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return p.calls(verb, d+slack, func() error { return p.tries(ctx, verb) })
}

// returnsWithin reports whether the Lock returns in that time.
func (w *wait) returnsWithin(d time.Duration) bool {
	select {
	case <-w.done:
		return true
	case <-time.After(d):
		return false
	}
}

// getsInAfter waits for a waiter that has waited since before a shortage, which has just
// ended. If its Lock returned an error (told), it asks again.
func (w *wait) getsInAfter(told bool) {
	w.p.tr.Helper()
	ended := now()
	if told {
		w = w.p.starts(context.Background())
	}
	w.follows("the end of the shortage", ended, goesOn)
}

// fill puts keys until etcd has no space.
func fill(tr *trial, admin *clientv3.Client) {
	tr.Helper()
	for {
		_, err := admin.Put(tr.bounded(patience), "filler", string(make([]byte, 50_000)))
		if err != nil {
			require.ErrorIs(tr, err, rpctypes.ErrNoSpace)
			return
		}
	}
}

// makeSpace frees some space, and ends the alarm.
func makeSpace(tr *trial, admin *clientv3.Client) {
	tr.Helper()
	ctx := tr.bounded(patience)
	resp, err := admin.Delete(ctx, "filler")
	require.NoError(tr, err)
	_, err = admin.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(tr, err)
	_, err = admin.Defragment(ctx, admin.Endpoints()[0])
	require.NoError(tr, err)
	_, err = admin.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	require.NoError(tr, err)
}

// S26. The first refusal for want of space comes after the transaction was carried out:
// etcd puts the key, and says that it did not.
//
//	a calls Lock | its key is put, and etcd answers "no space" | a gives up, or waits |
//	space | b gets in, or a does
func TestS26TheFirstRefusalForWantOfSpaceLeavesNoKey(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"given up", "waited through"} {
		t.Run(then, func(t *testing.T) {
			prove(t, row{
				id: "S26", name: "the first refusal, " + then, quick: 4,
				fault: "NOSPACE: the first Txn that is refused, after it was applied; then " + then,
				must:  "an error and no key (<= 5 s), or a wait; no false hold; in <= 2 s after the disarm",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1, smallAndPrompt)
				admin := c.Client(tr)
				a, b := tr.party("a", c, 10*ttl), tr.party("b", c, 10*ttl)
				for _, p := range []*party{a, b} {
					p.locks()
					p.unlocks()
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var first *wait
				put := meetsTheQuota(tr, c, func() { first = a.starts(ctx) })
				require.EqualValues(tr, 1, tr.keysAt(admin, put), "the Txn was not applied")
				told := first.returnsWithin(500 * time.Millisecond)
				tr.must(!told || first.err != nil, "a took the lock, and was refused")
				if then == "given up" {
					cancel()
					err := first.fails(slack)
					tr.must(errors.Is(err, rpctypes.ErrNoSpace), "Lock: %v", err)
				}
				if told || then == "given up" {
					tr.isEmptyWithin(admin, 5*time.Second)
				}
				shrink(tr, c, admin)
				if then == "waited through" {
					first.getsInAfter(told)
					a.unlocks()
				}
				tr.figures.longest("time until the next one was in", b.locksWithin(goesOn))
				b.unlocks()
				tr.isEmptyWithin(admin, slack)
			})
		})
	}
}

// S26. The same for a transaction that releases a lock and puts the key of the next one in
// the Session. It is sent again without that put, and the answer shows that key, so the next one
// holds there although etcd has no space.
//
//	a holds, its twin waits in the same process | a unlocks: its key is deleted, its twin's
//	is put, and etcd answers "no space" | Unlock says nil, the twin gets in | it unlocks
func TestS26AReleaseThatIsRefusedAfterItWasCarriedOutIsARelease(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S26", name: "the first refusal, of a release", quick: 4,
		fault:  "NOSPACE: the first Txn that is refused, after it was applied, hands over inside a Session",
		must:   "Unlock says nil, the next one holds at the key that was put (<= 2 s), and releases it",
		noPeer: true, // its release puts nothing, and its session has one key for all goroutines
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1, smallAndPrompt)
		admin := c.Client(tr)
		a := tr.party("a", c, 10*ttl)
		twin := &party{tr: tr, who: "a's twin", ttl: a.ttl, client: a.client, lock: a.lock.Share()}
		a.locks()
		next := twin.starts(context.Background())
		require.True(tr, contract.Eventually(patience, func() bool {
			locked, ok := errors.AsType[*etcdlock.LockedError](twin.lock.TryLock(tr.bounded(patience)))
			return ok && locked.Ahead == 2
		}), "the twin does not wait")
		var released error
		var returned sync.WaitGroup
		put := meetsTheQuota(tr, c, func() {
			a.leaves()
			returned.Go(func() { released = a.lock.Unlock(tr.bounded(patience)) })
		})
		returned.Wait()
		refused := now()
		require.EqualValues(tr, 1, tr.keysAt(admin, put), "the Txn was not applied")
		tr.must(released == nil, "Unlock: %v", released)
		next.follows("the refusal", refused, goesOn)
		require.EqualValues(tr, put, twin.lock.Token(), "the twin holds at another key")
		twin.unlocks()
		tr.isEmptyWithin(admin, slack)
	})
}

// smallAndPrompt makes a member with a small quota. The member sees the size of its
// database after each change, and not some time later.
func smallAndPrompt(m *integration.Member) {
	m.QuotaBackendBytes = quota
	m.BackendBatchLimit = 1
}

// meetsTheQuota makes the Txn that call sends pass etcd's first check of the quota, when it
// comes in, and fail the second one, when it is applied. It returns the revision that the
// Txn makes. Nothing else may write meanwhile.
//
// It stops the member from applying, puts a key on which the loop that applies blocks,
// makes the Txn queue behind that, and lets the database grow before all goes on.
func meetsTheQuota(tr *trial, c *etcdtest.Cluster, call func()) (revision int64) {
	tr.Helper()
	server := c.Members[0].Server
	ctx := tr.bounded(patience)
	tx := stopApplying(c)
	logged := server.CommittedIndex()
	var blocked *pb.PutResponse
	var err error
	var done sync.WaitGroup
	done.Go(func() { blocked, err = server.Put(ctx, &pb.PutRequest{Key: []byte("blocked")}) })
	first := contract.Eventually(slack, func() bool { return server.CommittedIndex() == logged+1 })
	call()
	second := contract.Eventually(slack, func() bool { return server.CommittedIndex() == logged+2 })
	tx.UnsafeCreateBucket(schema.Test)
	tx.UnsafePut(schema.Test, []byte("filler"), make([]byte, quota))
	tx.Unlock()
	done.Wait()
	require.NoError(tr, err)
	require.True(tr, first && second, "the two requests are not in the log")
	require.True(tr, contract.Eventually(slack, func() bool {
		alarms, err := server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
		return err == nil && len(alarms.Alarms) == 1
	}), "etcd has refused nothing")
	return blocked.Header.Revision + 1
}

// stopApplying keeps a cluster of one from applying anything until the caller unlocks what
// it returns.
func stopApplying(c *etcdtest.Cluster) backend.BatchTx {
	tx := c.Members[0].Server.Backend().BatchTx()
	tx.LockOutsideApply()
	return tx
}

// shrink undoes meetsTheQuota.
func shrink(tr *trial, c *etcdtest.Cluster, admin *clientv3.Client) {
	tr.Helper()
	tx := stopApplying(c)
	tx.UnsafeDeleteBucket(schema.Test)
	tx.Unlock()
	makeSpace(tr, admin)
}

// keysAt returns how many keys there were below the lock's name at a revision.
func (tr *trial) keysAt(admin *clientv3.Client, revision int64) int64 {
	tr.Helper()
	resp, err := admin.Get(tr.bounded(patience), tr.name+"/", clientv3.WithPrefix(),
		clientv3.WithRev(revision))
	require.NoError(tr, err)
	return resp.Count
}

// S26. An etcd that cannot keep up refuses all writes until it has caught up.
//
//	a holds, b waits | too many requests | a unlocks, d gives up, e waits or has an error |
//	etcd has caught up | a has unlocked, b gets in, then e
func TestS26AnEtcdThatCannotKeepUpIsWaitedFor(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S26", name: "too many requests", quick: 2, lanes: 2,
		fault: "a member that is more than 5,000 entries behind with applying: it refuses what writes, and answers no read",
		must:  "an error or a wait, no false hold, no orphan; Unlock, the waiter and the next one go on <= 2 s after it has caught up",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a, b := tr.party("a", c, 10*ttl), tr.party("b", c, 10*ttl)
		d, e := tr.party("d", c, 10*ttl), tr.party("e", c, 10*ttl)
		d.getsALease()
		e.getsALease()
		a.locks()
		next := b.waits()
		catchUp := overload(tr, c)

		a.leaves()
		ctx := tr.bounded(patience)
		unlocked := make(chan error, 1)
		go func() { unlocked <- a.lock.Unlock(ctx) }() // ends with its ctx at the latest
		last := e.starts(context.Background())
		errs := []error{d.triesFor(time.Second, "Lock"), d.triesFor(time.Second/2, "TryLock")}
		told := last.returnsWithin(100 * time.Millisecond)
		catchUp()
		caughtUp := now()

		for _, err := range errs {
			tr.must(err != nil, "d took the lock meanwhile")
		}
		tr.must(errors.Is(errs[0], rpctypes.ErrTooManyRequests), "Lock: %v", errs[0])
		err := a.calls("Unlock", goesOn, func() error { return <-unlocked })
		if err != nil { // it had an error, and asks again
			tr.figures.add("Unlocks to be called again", 1)
			err = a.releases(goesOn)
		}
		tr.must(err == nil, "Unlock: %v", err)
		next.follows("the end of the shortage", caughtUp, goesOn)
		b.unlocks()
		last.getsInAfter(told)
		e.unlocks()
		tr.isEmptyWithin(admin, slack)
	})
}

// overload keeps a cluster of one from applying until it refuses writes. catchUp lets it
// catch up.
func overload(tr *trial, c *etcdtest.Cluster) (catchUp func()) {
	tr.Helper()
	const most = 5_000 // etcd's own limit
	server := c.Members[0].Server
	ctx := tr.bounded(patience)
	tx := stopApplying(c)
	var puts sync.WaitGroup
	for range most + 1 {
		// some may time out
		puts.Go(func() { _, _ = server.Put(ctx, &pb.PutRequest{Key: []byte("load")}) })
	}
	tr.Cleanup(puts.Wait)
	behind := func() bool { return server.CommittedIndex() > server.AppliedIndex()+most }
	if !contract.Eventually(patience, behind) {
		tx.Unlock()
		require.Fail(tr, "etcd has caught up by itself")
	}
	return func() {
		tx.Unlock()
		require.True(tr, contract.Eventually(patience, func() bool {
			return server.AppliedIndex() == server.CommittedIndex()
		}))
	}
}
