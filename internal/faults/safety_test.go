package faults

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

const (
	// ttl is long enough for an eighth of it to be far above the noise of a machine.
	ttl = 2 * time.Second

	// expires is when the lease of a party that is gone must have expired: after the TTL,
	// etcd's own step, and what a loaded machine takes.
	expires = ttl + time.Second + slack

	// leastMargin is the least time from the end of a hold by expiry to the next hold.
	leastMargin = 100 * time.Millisecond
)

// S1. A holder whose connection breaks knows that before etcd gives the lock to the next
// one.
//
//	a holds, b waits | a's connection breaks | a knows | a's lease expires | b gets in
func TestS01AHolderWhoseConnectionBreaksKnowsBeforeTheNextOneGetsIn(t *testing.T) {
	t.Parallel()
	breaks := []struct {
		name string
		cut  func(*etcdtest.Proxy)
	}{
		{"black hole", func(p *etcdtest.Proxy) { p.BlackHole() }},
		{"bytes are held and arrive later", func(p *etcdtest.Proxy) { p.Hold() }},
		{"reset, then refused", func(p *etcdtest.Proxy) { p.Refuse(); p.Reset() }},
		{"requests lost", func(p *etcdtest.Proxy) { p.BlackHole(etcdtest.Requests) }},
		{"answers lost", func(p *etcdtest.Proxy) { p.BlackHole(etcdtest.Replies) }},
	}
	for _, how := range breaks {
		t.Run(how.name, func(t *testing.T) {
			prove(t, row{
				id: "S1", name: how.name, quick: 4,
				fault: "the holder's connection: " + how.name,
				must:  "0 overlaps, least margin >= 100 ms", leastMargin: leastMargin,
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				proxy, a, b := tr.behindAProxy(c, ttl)
				a.locks()
				next := b.waits()
				tr.phase(ttl / 3)
				how.cut(proxy)
				next.getsIn(expires)
				a.loses(ttl)
				a.heals()
				b.stillHolds(c.Client(tr))
			})
		})
	}
}

// S2. A renewal counts from when it was sent. Answers that take up to half the TTL cost
// nothing. Slower ones never make a holder trust its lease for too long.
//
//	a holds, b waits | answers come ever later | requests are lost, and the answers under
//	way still arrive | a knows | b gets in
func TestS02SlowAnswersLengthenNoHold(t *testing.T) {
	t.Parallel()
	slows := []struct {
		name     string
		ttl      time.Duration
		eighths  int // of the TTL; the test reaches it step by step
		harmless bool
		must     string
	}{
		// With half a TTL of 2 s gone, a machine that stands still for 400 ms loses the
		// rest.
		{"half the TTL", 3 * ttl, 4, true, "nothing is lost while answers are slow; 0 overlaps once they stop"},
		{"nearly the TTL", ttl, 7, false, "0 overlaps"},
	}
	for _, slow := range slows {
		t.Run(slow.name, func(t *testing.T) {
			prove(t, row{
				id: "S2", name: slow.name, quick: 4,
				fault: "answers to renewals slowed step by step to " + slow.name + ", then cut",
				must:  slow.must + ", least margin >= 100 ms", leastMargin: leastMargin,
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				proxy, a, b := tr.behindAProxy(c, slow.ttl)
				a.locks()
				next := b.waits()
				for eighth := 1; eighth <= slow.eighths; eighth++ {
					proxy.Delay(slow.ttl*time.Duration(eighth)/8, etcdtest.Replies)
					a.holdsFor(slow.ttl / 2)
				}
				tr.phase(slow.ttl / 3)
				tr.must(!slow.harmless || a.lock.Holds(), "a lost the lock by slow answers alone")
				proxy.BlackHole(etcdtest.Requests)
				next.getsIn(2*slow.ttl + slack)
				a.loses(slow.ttl)
				a.heals()
				b.stillHolds(c.Client(tr))
			})
		})
	}
}

// S3. A member that is cut off from its peers renews nothing, whatever it was before.
//
//	a holds by one member, b waits by the others | that member is cut off from them |
//	a knows | b gets in
func TestS03AHolderOnAMemberThatIsCutOffKnowsBeforeTheNextOneGetsIn(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"leader", "follower"} {
		t.Run(role, func(t *testing.T) {
			prove(t, row{
				id: "S3", name: role, quick: 4, lanes: 4,
				fault: "the holder reaches only a member that is cut from its peers, a " + role,
				must:  "0 overlaps, least margin >= 100 ms", leastMargin: leastMargin,
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 3)
				cut := tr.memberThatIs(role, c)
				rest := c.At((cut+1)%3, (cut+2)%3)
				a := tr.party("a", c, ttl, c.At(cut))
				b := tr.party("b", c, 10*ttl, rest)
				a.mends(func() { c.Rejoin(cut) })

				a.locks()
				next := b.waits()
				tr.phase(ttl / 3)
				c.Isolate(cut)
				next.getsIn(2*ttl + slack) // a new leader starts all TTLs anew
				a.loses(ttl)
				a.heals()
				b.stillHolds(c.Client(tr, rest))
			})
		})
	}
}

// S6. A token is greater than all before it, whatever happens to the holder or to etcd in
// between. (The judge of all trials checks that in every other row, too.)
//
//	for each: a party holds | it is cut off, or the leader moves, or the history is
//	compacted, or all members are stopped and started again | the next one holds
func TestS06TokensGrowThroughEverything(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S6", quick: 2, full: 4, lanes: 4,
		fault: "a holder cut off, the leader moved, the history compacted, all members restarted, between one hold and the next",
		must:  "tokens strictly growing",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 3)
		admin := c.Client(tr)
		between := []func(){
			func() {},
			func() { c.MoveLeader(tr, (c.Leader(tr)+1)%3) },
			func() {
				_, err := admin.Compact(tr.bounded(patience), c.Revision(tr))
				require.NoError(tr, err)
			},
			func() {
				for m := range 3 {
					c.Stop(m)
				}
				var started sync.WaitGroup
				for m := range 3 {
					started.Go(func() { c.Restart(tr, m) })
				}
				started.Wait()
				c.Leader(tr)
			},
		}
		tokens := 0
		for range 2 {
			for _, happens := range between {
				proxy := c.Proxy(tr, 0)
				a := tr.party("a", c, ttl, etcdtest.Via(proxy))
				b := tr.party("b", c, ttl)
				a.mends(proxy.Heal)
				a.locks()
				a.endsItsHold()
				happens()
				a.locks()
				a.leaves() // S1 judges what it believes while it is cut off
				proxy.BlackHole()
				b.locks()
				a.heals()
				b.endsItsHold()
				tokens += 3
			}
		}
		tr.figures.add("tokens compared", tokens)
	})
}

// S7. Goroutines exclude each other as processes do, on sessions of their own and on one
// Mutex. Nothing but the lock synchronizes what they do in the critical section, so the
// race detector judges, too.
func TestS07GoroutinesExcludeEachOtherAsProcessesDo(t *testing.T) {
	t.Parallel()
	const goroutines = 16
	cycles := 125 // for each of them; 2,000 in all
	if *trials > 0 {
		cycles = 625
	}
	for _, sharing := range []struct {
		name    string
		each    int // goroutines on one Mutex
		noPeer  bool
		clients int
	}{
		{"each with a session of its own", 1, false, 2},
		// The peer's Mutex is not made for that: the race detector would fail this test.
		{"four on each Mutex, of two clients with two sessions each", 4, raceDetector, 2},
	} {
		t.Run(sharing.name, func(t *testing.T) {
			prove(t, row{
				id: "S7", name: sharing.name, full: 1, noPeer: sharing.noPeer,
				fault: "cycles of 16 goroutines of one process on one name, " + sharing.name,
				must:  "0 overlaps, no update lost in 10,000 cycles (and, with -race, 0 races)",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				clients := make([]*clientv3.Client, sharing.clients)
				for i := range clients {
					clients[i] = c.Client(tr)
				}
				sum := 0 // only the holder touches it
				var all sync.WaitGroup
				for i := range goroutines / sharing.each {
					p := tr.partyOf("opener", clients[i%len(clients)], 10*ttl)
					p.locks() // opens the session
					p.unlocks()
					for range sharing.each {
						l := p.lock.Share()
						all.Go(func() {
							for range cycles {
								if !tr.adds(l, &sum) {
									return
								}
							}
						})
					}
				}
				all.Wait()
				tr.figures.add("cycles", sum)
				tr.must(sum == goroutines*cycles, "%d of %d updates were made", sum, goroutines*cycles)
			})
		})
	}
}

// adds makes one update under a lock.
func (tr *trial) adds(l *lock, sum *int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	if err := l.Lock(ctx); err != nil {
		tr.broke("Lock: %v", err)
		return false
	}
	belief := tr.begins("a goroutine", l.Token(), now())
	before := *sum
	runtime.Gosched()
	*sum = before + 1
	tr.ends(belief, now(), false)
	if err := l.Unlock(ctx); err != nil {
		tr.broke("Unlock: %v", err)
	}
	return true
}

// S8. A holder whose key or lease is taken away learns of it, and its Unlock says so. Only
// here may two believe to hold, until the loser knows.
//
//	a holds, for a moment or for seconds | an operator deletes its key, or revokes its lease
//	| a knows
func TestS08AHolderIsToldThatItsKeyWasTakenAway(t *testing.T) {
	t.Parallel()
	type take func(tr *trial, admin *clientv3.Client, held *mvccpb.KeyValue) error
	deletes := func(tr *trial, admin *clientv3.Client, held *mvccpb.KeyValue) error {
		_, err := admin.Delete(tr.bounded(patience), string(held.Key))
		return err
	}
	revokes := func(tr *trial, admin *clientv3.Client, held *mvccpb.KeyValue) error {
		_, err := admin.Revoke(tr.bounded(patience), clientv3.LeaseID(held.Lease))
		return err
	}
	const (
		young = "told within about 1 s (1.5 s at most), Unlock says that the lock was lost"
		old   = "told by the watch of its key: within 0.5 s, Unlock says that the lock was lost"
	)
	takes := []struct {
		name   string
		take   take
		age    time.Duration // of the hold, at least
		must   string
		within time.Duration
	}{
		{"key deleted", deletes, 0, young, 1500 * time.Millisecond},
		{"lease revoked", revokes, 0, young, 1500 * time.Millisecond},
		{"key deleted, of a hold of 2 s", deletes, 2 * time.Second, old, 500 * time.Millisecond},
		{"lease revoked, of a hold of 2 s", revokes, 2 * time.Second, old, 500 * time.Millisecond},
	}
	for _, how := range takes {
		t.Run(how.name, func(t *testing.T) {
			prove(t, row{
				id: "S8", name: how.name, quick: 4,
				fault: how.name + " under the holder",
				must:  how.must,
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				admin := c.Client(tr)
				a := tr.party("a", c, 5*ttl)
				a.locks()
				held, err := admin.Get(tr.bounded(patience), a.lock.Key())
				require.NoError(tr, err)
				require.Len(tr, held.Kvs, 1)
				a.holdsFor(how.age)
				tr.phase(time.Second)
				a.leaves()
				require.NoError(tr, how.take(tr, admin, held.Kvs[0]))
				taken := time.Now()
				a.loses(how.within)
				tr.figures.longest("time until told", time.Since(taken))
				err = a.releases(patience)
				tr.must(tr.side.Lost(err), "Unlock said %v", err)
			})
		})
	}
}

// S9. An Unlock that comes after the lease has expired says that the lock was lost, and
// leaves the next owner alone.
//
//	a holds | a is cut off, its lease expires, b gets in | a is heard again | a unlocks
func TestS09UnlockAfterExpiryLeavesTheNextOwnerAlone(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S9", quick: 4,
		fault: "Unlock after expiry, with the next owner present",
		must:  "it says that the lock was lost, and the next owner's key is untouched",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		proxy, a, b := tr.behindAProxy(c, ttl)
		a.locks()
		next := b.waits()
		proxy.BlackHole()
		a.leaves() // S1 judges what it believes meanwhile
		next.getsIn(expires)
		a.heals()
		err := a.releases(patience)
		b.stillHolds(c.Client(tr))
		tr.must(tr.side.Lost(err), "Unlock said %v", err)
	})
}
