package contract_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v3rpc "go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// The faults of this file are about getting in: a waiter's turn comes, whatever happens to
// its key, its lease, its watch and its members.

// missed is how long a waiter may take if no event comes, and it has to find out by its
// slow recheck.
const missed = 3500 * time.Millisecond

// ---- the waiter's key and lease

// A waiter never gets in without its own key. If that goes, the waiter queues anew.
//
//	a holds, b waits | an operator takes b's key | b queues anew | a unlocks | b gets in
func TestAWaiterWhoseKeyIsTakenQueuesAnew(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	atOnce(t, len(takings), func(i int) string { return takings[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, "requeue/"+takings[i].name)
		a, b := c.party("a", longTTL), c.party("b", longTTL)
		a.locks()
		next := b.waits()
		for range 3 {
			place := b.queues(slack)
			takings[i].take(t, w.admin, place)
			taken := time.Now()
			c.changes(missed+slack, place)
			t.Logf("queued anew after %v", time.Since(taken))
			require.Equal(t, []string{"a", "b"}, c.owners())
		}
		next.goesOnWaiting(200 * time.Millisecond)
		a.stillHolds()
		a.unlocks()
		next.getsIn(slack)
		b.stillHolds()
		b.unlocks()
	})
}

// A waiter that moves up behind a holder does not enter beside it.
//
//	h holds, then w, then x | w's key is taken | w queues behind x | h unlocks | x gets in,
//	then w
func TestWhoMovesUpBehindTheHolderDoesNotEnterBesideIt(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	atOnce(t, len(takings), func(i int) string { return takings[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, "moveup/"+takings[i].name)
		h, second, third := c.party("h", longTTL), c.party("w", longTTL), c.party("x", longTTL)
		h.locks()
		wWaits := second.waits()
		xWaits := third.waits()
		takings[i].take(t, w.admin, second.queues(slack))
		c.hasWithin(missed+slack, "h", "x", "w")
		xWaits.goesOnWaiting(300 * time.Millisecond)
		wWaits.goesOnWaiting(0)
		h.stillHolds()
		h.unlocks()
		xWaits.getsIn(slack)
		wWaits.goesOnWaiting(100 * time.Millisecond)
		third.unlocks()
		wWaits.getsIn(slack)
		second.unlocks()
	})
}

// The key of a waiter and that of the holder before it may go at the same moment, in one
// transaction or in two. Only a waiter that has its own key gets in.
//
//	h holds, then w, then x | the keys of h and w are deleted | x gets in | x unlocks | w
//	gets in
func TestAWaiterThatIsFirstWithoutAKeyDoesNotEnter(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	ways := []string{"together", "waiter first", "holder unlocks"}
	const runs = 5
	atOnce(t, runs*len(ways), func(i int) string { return ways[i%len(ways)] }, func(t *testing.T, i int) {
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
		xWaits.getsIn(missed + slack)
		third.stillHolds()
		wWaits.goesOnWaiting(100 * time.Millisecond)
		third.unlocks()
		wWaits.getsIn(missed + slack)
		second.unlocks()
		if ways[i%len(ways)] != "holder unlocks" {
			h.unlockSaysLost()
		}
	})
}

// ---- the waiter's watch

// A waiter gets in even if its watch delivers nothing, breaks or is cut off.
//
//	a holds, b waits | b's watch is harmed | a unlocks | b gets in
func TestAWaiterGetsInWhateverHappensToItsWatch(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	harms := []struct {
		name string
		harm func(b *party, p *etcdtest.Proxy)
		late func(b *party, p *etcdtest.Proxy) // after a's Unlock
	}{
		{"events swallowed", inject(etcdtest.SwallowReply("Watch").When(etcdtest.Events)), nil},
		{"all messages swallowed", inject(etcdtest.SwallowReply("Watch")), nil},
		{"the event is the stream's end", inject(etcdtest.DropReply("Watch", codes.Unavailable).When(etcdtest.Events).Times(1)), nil},
		{"the stream ends for good", inject(etcdtest.DropReply("Watch", codes.Internal)), nil},
		{"refused with every attempt", inject(etcdtest.DropReply("Watch", codes.Unavailable)), nil},
		{"reset", func(_ *party, p *etcdtest.Proxy) { p.Reset() }, nil},
		{"reset and refused for a while",
			func(_ *party, p *etcdtest.Proxy) { p.Refuse(); p.Reset() },
			func(_ *party, p *etcdtest.Proxy) { p.Heal() }},
		{"black hole for a while",
			func(_ *party, p *etcdtest.Proxy) { p.BlackHole() },
			func(_ *party, p *etcdtest.Proxy) { p.Heal() }},
		{"answers held for a while",
			func(_ *party, p *etcdtest.Proxy) { p.Hold(etcdtest.Replies) },
			func(_ *party, p *etcdtest.Proxy) { p.Heal() }},
	}
	atOnce(t, len(harms), func(i int) string { return harms[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, "watch/"+harms[i].name)
		proxy := w.cluster.Proxy(t, 0)
		a, b := c.party("a", longTTL), c.party("b", longTTL, etcdtest.Via(proxy))
		b.mends(proxy.Heal)
		a.locks()
		next := b.waits()
		harms[i].harm(b, proxy)
		a.unlocks()
		if harms[i].late != nil {
			next.goesOnWaiting(500 * time.Millisecond)
			harms[i].late(b, proxy)
		}
		released := time.Now()
		next.getsIn(missed + slack/4)
		t.Logf("in after %v", next.at.Sub(released))
		b.unlocks()
	})
}

func inject(f etcdtest.Fault) func(*party, *etcdtest.Proxy) {
	return func(b *party, _ *etcdtest.Proxy) { b.faults.Inject(f) }
}

// A compaction of the revisions from which a waiter watches is no error.
//
//	a holds, b waits | everything is compacted, once while b is cut off | a unlocks | b gets
//	in
func TestACompactionDoesNotEndAWait(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	for _, cut := range []bool{false, true} {
		c := w.contest(t, "compacted")
		proxy := w.cluster.Proxy(t, 0)
		a, b, d := c.party("a", longTTL), c.party("b", longTTL, etcdtest.Via(proxy)), c.party("d", longTTL, etcdtest.Via(proxy))
		a.locks()
		second := b.waits() // it watches one key and its own
		third := d.waits()  // it watches b's key
		if cut {
			proxy.Refuse()
			proxy.Reset()
		}
		for range 10 {
			_, err := w.admin.Put(bounded(t), "other", "x")
			require.NoError(t, err)
		}
		a.unlocks()
		resp, err := w.admin.Delete(bounded(t), "other")
		require.NoError(t, err)
		_, err = w.admin.Compact(bounded(t), resp.Header.Revision, clientv3.WithCompactPhysical())
		require.NoError(t, err)
		proxy.Heal()
		second.getsIn(missed + slack)
		b.unlocks()
		third.getsIn(missed + slack)
		d.unlocks()
	}
}

// ---- members

// A waiter gets in even if the member through which it watches is cut off from the others.
//
//	a holds, b waits on one member | that member is cut off | a unlocks | b gets in by
//	another
func TestAWaiterOnAMemberThatIsCutOffGetsInByAnother(t *testing.T) {
	computing.enter(t)
	for _, which := range []string{"follower", "leader"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 3)
			leader := w.cluster.Leader(t)
			cut := leader
			if which == "follower" {
				cut = (leader + 1) % 3
			}
			others := []int{(cut + 1) % 3, (cut + 2) % 3}
			c := w.contest(t, "member")
			a, b := c.party("a", longTTL, w.cluster.At(others...)), c.party("b", longTTL, w.cluster.At(cut))
			a.locks()
			next := b.waits() // so its watch is on that member
			b.client.SetEndpoints(w.urls(cut, others[0], others[1])...)
			w.cluster.Isolate(cut)
			a.unlocks()
			released := time.Now()
			next.getsIn(6*time.Second + slack/4)
			t.Logf("in after %v", next.at.Sub(released))
			b.unlocks()
			w.cluster.Rejoin(cut)
			w.cluster.Leader(t)
		})
	}
}

// The leader stops and comes back: no hold is lost, and the waiter gets in.
//
//	a holds, b waits | the leader stops | a unlocks | b gets in | the old leader starts
func TestAHoldAndAWaitSurviveTheLeader(t *testing.T) {
	waiting.enter(t)
	const ttl = 8 * time.Second
	w := newWorld(t, 3)
	for _, verb := range []string{"stop", "move"} {
		t.Run(verb, func(t *testing.T) {
			c := w.contest(t, "leader/"+verb)
			a, b := c.party("a", ttl), c.party("b", ttl)
			a.locks()
			next := b.waits()
			leader := w.cluster.Leader(t)
			if verb == "stop" {
				w.cluster.Stop(leader)
			} else {
				w.cluster.MoveLeader(t, (leader+1)%3)
			}
			w.cluster.Leader(t)
			a.stillHolds()
			a.unlocks()
			released := time.Now()
			next.getsIn(missed + slack)
			t.Logf("in after %v", next.at.Sub(released))
			if verb == "stop" {
				w.cluster.Restart(t, leader)
				w.cluster.Leader(t)
			}
			b.stillHolds()
			b.unlocks()
		})
	}
}

// All members stop and start again within the TTL: no hold is lost, and the waiter
// gets in.
//
//	a holds, b waits | all stop | all start | a still holds, for two TTLs | a unlocks | b gets in
func TestAHoldAndAWaitSurviveARestartOfAllMembers(t *testing.T) {
	waiting.enter(t)
	const ttl = 8 * time.Second
	w := newWorld(t, 3)
	c := w.contest(t, "restart")
	a, b := c.party("a", ttl), c.party("b", ttl)
	a.locks()
	next := b.waits()
	token := a.mu.Token()
	stopped := time.Now()
	for member := range w.cluster.Members {
		w.cluster.Stop(member)
	}
	for member := range w.cluster.Members {
		w.cluster.Restart(t, member)
	}
	w.cluster.Leader(t)
	t.Logf("etcd was away for %v", time.Since(stopped))
	deadline := a.mu.Deadline()
	require.True(t, contract.Eventually(ttl, func() bool { return a.mu.Deadline().After(deadline) }), "a is not renewed any more")
	require.Equal(t, token, a.mu.Token())
	next.goesOnWaiting(0)
	a.stillHolds()
	a.unlocks()
	released := time.Now()
	next.getsIn(missed + slack)
	t.Logf("in after %v", next.at.Sub(released))
	require.Greater(t, b.mu.Token(), token)
	b.unlocks()
}

// One dead member of three loses nothing.
//
//	a member stops | locks come and go | a holds for two TTLs | b gets in
func TestOneDeadMemberOfThreeLosesNothing(t *testing.T) {
	waiting.enter(t)
	w := newWorld(t, 3)
	ttl := steadyTTL(t, w.admin, 4*time.Second)
	c := w.contest(t, "dead-member")
	a, b := c.party("a", ttl), c.party("b", ttl)
	a.locks()
	next := b.waits()
	dead := (w.cluster.Leader(t) + 1) % 3
	w.cluster.Stop(dead)
	select {
	case <-a.hold.Done():
		require.Fail(t, "lost", "%v", context.Cause(a.hold))
	case <-time.After(2 * ttl):
	}
	next.goesOnWaiting(0)
	a.unlocks()
	next.getsIn(missed + slack)
	b.unlocks()
	for range 10 {
		a.locksWithin(slack)
		a.unlocks()
	}
	w.cluster.Restart(t, dead)
	w.cluster.Leader(t)
}

// One endpoint of three that swallows everything loses no lease.
//
//	a holds, b waits | the connections to one member fall silent | more than a TTL | a
//	unlocks | b gets in
func TestOneSilentEndpointOfThreeLosesNothing(t *testing.T) {
	waiting.enter(t)
	w := newWorld(t, 3)
	ttl := steadyTTL(t, w.admin, 6*time.Second)
	contest := func(t *testing.T, i int) {
		c := w.contest(t, t.Name())
		proxies := []*etcdtest.Proxy{w.cluster.Proxy(t, 0), w.cluster.Proxy(t, 1), w.cluster.Proxy(t, 2)}
		silent := proxies[i]
		a, b := c.party("a", ttl, etcdtest.Via(proxies...)), c.party("b", ttl, etcdtest.Via(proxies...))
		a.mends(silent.Heal)
		b.mends(silent.Heal)
		a.locks()
		next := b.waits()
		silent.BlackHole()
		select {
		case <-a.hold.Done():
			require.Fail(t, "lost", "%v", context.Cause(a.hold))
		case <-time.After(ttl * 5 / 4):
		}
		next.goesOnWaiting(0)
		a.unlocks()
		released := time.Now()
		next.getsIn(missed + slack)
		t.Logf("in after %v", next.at.Sub(released))
		b.unlocks()
	}
	for _, round := range []string{"a", "b"} { // six at once are too many for a busy machine
		atOnce(t, 3, func(i int) string { return fmt.Sprint(round, i) }, contest)
	}
}

// An etcd without space refuses every put: a lock can be released, but not taken. A Lock
// that failed leaves nothing behind. When there is space again, locking goes on.
//
//	a holds, b waits | no space | a unlocks, b gets in, d cannot | b unlocks | d gives up, e
//	waits | space | e gets in
func TestWithoutSpaceALockIsReleasedAndNotTaken(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1, func(m *integration.Member) { m.QuotaBackendBytes = 1 << 20 })
	c := w.contest(t, "space")
	a, b, d, e := c.party("a", longTTL), c.party("b", longTTL), c.party("d", longTTL), c.party("e", longTTL)
	d.getsALease()
	e.getsALease()
	a.locks()
	next := b.waits()
	var filled int
	for ; ; filled++ {
		_, err := w.admin.Put(bounded(t), "filler", strings.Repeat("x", 50_000))
		if err != nil {
			require.ErrorIs(t, err, v3rpc.ErrNoSpace)
			break
		}
	}
	a.stillHolds()
	a.unlocks()
	next.getsIn(slack)
	for _, lock := range []func(context.Context) error{d.lock, d.tryLock} {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		err := lock(ctx)
		cancel()
		require.Error(t, err)
		require.Zero(t, d.mu.Token())
	}
	c.hasWithin(slack, "b")
	b.stillHolds()
	last := e.starts(bounded(t))
	b.unlocks()
	c.isEmptyWithin(slack)
	last.goesOnWaiting(200 * time.Millisecond)

	w.makeSpace(t)
	spaced := time.Now()
	last.getsIn(slack)
	t.Logf("in %v after there was space", last.at.Sub(spaced))
	e.unlocks()
	d.locks()
	d.unlocks()
}

// The first refusal for want of space comes after the transaction was applied. (Here a
// fault has the same code, because it is chance which transaction meets the end of the
// space.)
//
//	a's acquiring transaction is carried out and refused | a holds, or has an error and no
//	key | b locks
func TestTheFirstRefusalForWantOfSpaceLeavesNoKey(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1, func(m *integration.Member) { m.QuotaBackendBytes = 1 << 20 })
	c := w.contest(t, "first-refusal")
	a, b := c.party("a", longTTL), c.party("b", longTTL)
	a.locks()
	a.unlocks()
	lost := a.faults.Inject(etcdtest.DropReply("Txn", codes.ResourceExhausted).When(etcdtest.Puts).Times(1))
	err := a.tries(bounded(t), "Lock")
	lost.Await(1)
	if err == nil {
		a.stillHolds()
		a.unlocks()
	}
	b.locksWithin(longTTL / 5)
	b.unlocks()
	c.isEmptyWithin(slack)
}

// ---- long life

// Many holds, cancelled waits and losses leave nothing behind.
func TestALongLifeLeavesNothingBehind(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	c := w.contest(t, "life")
	a, b := c.party("a", longTTL), c.party("b", longTTL)
	last := int64(0)
	for range 200 {
		a.locks()
		require.Greater(t, a.mu.Token(), last)
		last = a.mu.Token()
		a.unlocks()
	}
	for range 50 {
		b.locks()
		ctx, cancel := context.WithCancel(bounded(t))
		given := a.starts(ctx)
		a.queues(slack)
		cancel()
		require.ErrorIs(t, given.fails(slack), context.Canceled)
		b.unlocks()
	}
	for range 10 {
		a.locks()
		a.believesUntilTold()
		require.NoError(t, etcdlock.Break(bounded(t), w.admin, c.line()[0]))
		a.unlockSaysLost()
	}
	c.isEmptyWithin(slack)
	a.closes()
	b.closes()
}

// A Mutex that the program forgets gives its lease back by itself, and has no goroutine.
func TestAForgottenMutexGivesItsLeaseBack(t *testing.T) {
	waiting.enter(t)
	const ttl = 3 * time.Second
	w := newWorld(t, 1)
	client := w.cluster.Client(t)
	mu, err := etcdlock.New(client, "forgotten", etcdlock.WithTTL(ttl))
	require.NoError(t, err)
	require.NoError(t, mu.Lock(bounded(t)))
	require.NoError(t, mu.Unlock(bounded(t)))
	unlocked := time.Now()
	require.NotEmpty(t, w.leases(t))
	require.True(t, contract.Eventually(2*ttl+slack, func() bool { return len(w.leases(t)) == 0 }))
	t.Logf("given back after %v", time.Since(unlocked))
	require.GreaterOrEqual(t, time.Since(unlocked), ttl, "so soon it is of no use for the next Lock")
	// The Mutex can be used again, and forgotten again. In the end the world is clean.
	require.NoError(t, mu.Lock(bounded(t)))
	require.NoError(t, mu.Unlock(bounded(t)))
}

// ---- more verbs

func (w *world) leases(t *testing.T) []clientv3.LeaseStatus {
	t.Helper()
	resp, err := w.admin.Leases(bounded(t))
	require.NoError(t, err)
	return resp.Leases
}

func (w *world) urls(members ...int) []string {
	var urls []string
	for _, member := range members {
		urls = append(urls, "http://"+w.cluster.Endpoint(member))
	}
	return urls
}

// makeSpace ends the alarm for want of space.
func (w *world) makeSpace(t *testing.T) {
	t.Helper()
	resp, err := w.admin.Delete(bounded(t), "filler")
	require.NoError(t, err)
	_, err = w.admin.Compact(bounded(t), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = w.admin.Defragment(bounded(t), w.cluster.Endpoint(0))
	require.NoError(t, err)
	_, err = w.admin.AlarmDisarm(bounded(t), &clientv3.AlarmMember{})
	require.NoError(t, err)
}

// changes waits until a place is gone from the line and its owner stands in line anew.
func (c *contest) changes(d time.Duration, place etcdlock.Contender) {
	c.t.Helper()
	require.True(c.t, contract.Eventually(d, func() bool {
		for _, contender := range c.line() {
			if contender.Owner == place.Owner {
				return contender.Token > place.Token
			}
		}
		return false
	}), "%s does not queue anew", place.Owner)
}
