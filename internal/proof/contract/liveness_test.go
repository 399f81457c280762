package contract_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// The faults of this file are about getting in: a waiter's turn comes, whatever happens to
// its key, its lease, its watch and its members.

// ---- the waiter's key and lease

// A waiter never gets in without its own key. If that goes, the waiter queues anew.
//
//	a holds, b waits | an operator takes b's key | b queues anew | a unlocks | b gets in
func TestAWaiterWhoseKeyIsTakenQueuesAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	atOnce(t, len(takings), func(i int) string { return takings[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, "requeue/"+takings[i].name)
		a, b := c.party("a", longTTL), c.party("b", longTTL)
		a.locks()
		next := b.waits()
		for range 3 {
			place := b.queues()
			takings[i].take(t, w.admin, place)
			c.changes(place)
			require.Equal(t, []string{"a", "b"}, c.owners())
		}
		next.goesOnWaiting(200 * time.Millisecond)
		a.stillHolds()
		a.unlocks()
		next.getsIn()
		b.stillHolds()
		b.unlocks()
	})
}

// A waiter that moves up behind a holder does not enter beside it.
//
//	h holds, then w, then x | w's key is taken | w queues behind x | h unlocks | x gets in,
//	then w
func TestWhoMovesUpBehindTheHolderDoesNotEnterBesideIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	atOnce(t, len(takings), func(i int) string { return takings[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, "moveup/"+takings[i].name)
		h, second, third := c.party("h", longTTL), c.party("w", longTTL), c.party("x", longTTL)
		h.locks()
		wWaits := second.waits()
		xWaits := third.waits()
		takings[i].take(t, w.admin, second.queues())
		c.is("h", "x", "w")
		xWaits.goesOnWaiting(300 * time.Millisecond)
		wWaits.goesOnWaiting(0)
		h.stillHolds()
		h.unlocks()
		xWaits.getsIn()
		wWaits.goesOnWaiting(100 * time.Millisecond)
		third.unlocks()
		wWaits.getsIn()
		second.unlocks()
	})
}

// The key of a waiter and that of the holder before it may go at the same moment, in one
// transaction or in two. Only a waiter that has its own key gets in.
//
//	h holds, then w, then x | the keys of h and w are deleted | x gets in | x unlocks | w
//	gets in
func TestAWaiterThatIsFirstWithoutAKeyDoesNotEnter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ways := []string{"together", "waiter first", "holder unlocks"}
	const runs = 5
	atOnce(t, runs*len(ways), func(i int) string {
		return ways[i%len(ways)]
	}, func(t *testing.T, i int) {
		c := w.contest(t, "both/"+t.Name())
		h, second, third := c.party("h", longTTL), c.party("w", longTTL), c.party("x", longTTL)
		h.locks()
		wWaits := second.waits()
		xWaits := third.waits()
		line := c.line()
		h.believesUntilTold()
		remove := func(contenders ...etcdlock.Contender) {
			var ops []clientv3.Op
			for _, contender := range contenders {
				ops = append(ops, clientv3.OpDelete(contender.Key))
			}
			_, err := w.admin.Txn(bounded(t)).Then(ops...).Commit()
			require.NoError(t, err)
		}
		switch ways[i%len(ways)] {
		case "together":
			remove(line[0], line[1])
		case "waiter first":
			remove(line[1])
			remove(line[0])
		case "holder unlocks":
			remove(line[1])
			h.unlocks()
		}
		xWaits.getsIn()
		third.stillHolds()
		wWaits.goesOnWaiting(100 * time.Millisecond)
		third.unlocks()
		wWaits.getsIn()
		second.unlocks()
		if ways[i%len(ways)] != "holder unlocks" {
			h.unlockSaysLost()
		}
	})
}

// ---- long life

// A Mutex that the program forgets gives its lease back by itself, and has no goroutine.
func TestAForgottenMutexGivesItsLeaseBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	mu, err := etcdlock.NewMutex(w.cluster.Client(t), "forgotten", etcdlock.WithTTL(2*time.Second))
	require.NoError(t, err)
	require.NoError(t, mu.Lock(bounded(t)))
	require.NoError(t, mu.Unlock(bounded(t)))
	require.True(t, contract.Poll(func() bool {
		resp, err := w.admin.Leases(bounded(t))
		require.NoError(t, err)
		return len(resp.Leases) == 0
	}))
	// The Mutex can be used again, and forgotten again. In the end the world is clean.
	require.NoError(t, mu.Lock(bounded(t)))
	_ = mu.Unlock(bounded(t)) // a machine that is slow may have lost it
}

// ---- more verbs

// changes waits until a place is gone from the line and its owner stands in line anew.
func (c *contest) changes(place etcdlock.Contender) {
	c.t.Helper()
	require.True(c.t, contract.Poll(func() bool {
		for _, contender := range c.line() {
			if contender.Owner == place.Owner {
				return contender.Token > place.Token
			}
		}
		return false
	}), "%s does not queue anew", place.Owner)
}
