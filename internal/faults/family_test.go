package faults

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

// The peers of the rows about several names and about leaders.
const (
	inTurn   = "concurrency.Mutex, one name after the other"
	election = "concurrency.Election"
)

// S40. Callers that want the same names, in whatever order, never wait for each other in a
// circle.
//
//	a takes x and y, b takes y and x, at once, again and again
func TestS40SeveralNamesInOpposedOrdersNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	const rounds, soon = 30, 5 * time.Second
	prove(t, row{
		id: "S40", name: "opposed orders", quick: 2, peer: inTurn,
		fault: fmt.Sprintf(
			"two processes take the same two names in opposed orders, %d times each, at once", rounds),
		must: "each is in <= 5 s; no key is left",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		var all sync.WaitGroup
		for _, p := range []*party{tr.partyFor(several, "a", c, 10*ttl),
			tr.partyFor(opposed, "b", c, 10*ttl)} {
			all.Go(func() {
				for range rounds {
					asked := now()
					if err := p.tries(tr.bounded(soon), "Lock"); err != nil {
						tr.broke("%s is not in after %v: %v", p.who, now()-asked, err)
						return
					}
					tr.figures.longest("time to both names", now()-asked)
					p.leaves()
					if err := p.lock.Unlock(tr.bounded(patience)); err != nil {
						tr.broke("%s: Unlock of a hold that was not lost: %v", p.who, err)
					}
				}
			})
		}
		all.Wait()
		tr.isEmptyWithin(c.Client(tr), 3*time.Second)
	})
}

// S40. The names of a process that died come free together.
//
//	a holds x and y, b waits for both | a is killed | its lease expires | b gets in
func TestS40TheNamesOfADeadProcessComeFreeTogether(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S40", name: "holder killed", quick: 2, peer: inTurn,
		fault: "the holder of two names killed (SIGKILL), while another waits for both",
		must:  "the other in <= TTL + 1 s and the server's step of 0.5 s",
	}, func(tr *trial) {
		s := startServers(tr, 1)
		a := tr.processFor(several, "a", ttl, s.endpoints()...)
		b := tr.partyOfFor(opposed, "b", s.client(tr), 10*ttl)
		a.locks()
		held := tr.keys(s.client(tr))
		next := b.starts(context.Background())
		tr.must(contract.Eventually(patience, func() bool {
			return tr.keys(s.client(tr)) > held
		}), "b does not stand in line")
		a.diesBefore(next, "the holder's death")
		b.unlocks()
	})
}

// S40. A holder that loses one of several names learns of it. Nobody gets in beside it
// before it has let go of the other names.
//
//	a holds x and y, b waits for both | the key of x is deleted | a knows, b waits on | a
//	unlocks, b gets in
func TestS40TheLossOfOneOfSeveralNamesIsTold(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S40", name: "one key deleted", quick: 2, peer: inTurn,
		fault: "one of the two keys of a holder deleted, while another waits for both names",
		must:  "told in <= 2 s, Unlock says that the lock was lost; the other in <= 3 s after that, and not before; no key is left",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a, b := tr.partyFor(several, "a", c, 10*ttl), tr.partyFor(opposed, "b", c, 10*ttl)
		a.locks()
		next := b.waits()
		tr.phase(2 * time.Second)
		deleted := now()
		tr.deletes(admin, "x/")
		a.isTold(deleted, 2*time.Second)
		next.goesOnWaiting(ttl / 4)
		err := a.releases(patience)
		tr.must(tr.side.Lost(err), "Unlock said %v", err)
		next.follows("the Unlock", now(), 3*time.Second)
		b.unlocks()
		tr.isEmptyWithin(admin, 3*time.Second)
	})
}

// deletes deletes the oldest of the keys below the lock's name and a tail.
func (tr *trial) deletes(admin *clientv3.Client, tail string) {
	tr.Helper()
	resp, err := admin.Get(tr.bounded(patience), tr.name+"/"+tail, clientv3.WithFirstCreate()...)
	require.NoError(tr, err)
	require.NotEmpty(tr, resp.Kvs)
	_, err = admin.Delete(tr.bounded(patience), string(resp.Kvs[0].Key))
	require.NoError(tr, err)
}

// isTold waits until p knows that it has lost the lock. That must be within d of the moment
// when the lock was taken away.
func (p *party) isTold(of, d time.Duration) {
	p.tr.Helper()
	p.loses(d + slack)
	took := now() - of
	p.tr.figures.longest("time until the holder knew", took)
	p.tr.must(took <= d, "%s was told after %v", p.who, took)
}

// S41. The permits of a process that died come back. The permits held never exceed the
// limit.
//
//	a and b have a permit each, w waits for two | a is killed | its lease expires, w waits
//	on | b unlocks, w gets in
func TestS41ThePermitsOfADeadProcessComeBack(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S41", name: "holder killed", quick: 2, noPeer: true,
		fault: "one of two that have a permit each killed (SIGKILL), while a third waits for both permits",
		must:  "the dead one's permit is free in <= TTL + 1 s and the server's step of 0.5 s; the third in <= 1 s after the other one's Unlock",
	}, func(tr *trial) { tr.oneOfTwoDies(onePermit, allOfThem, "permit", "free") })
}

// S41. Small requests do not overtake a request for many permits, however many come.
//
//	permits come and go, so that one of them is always held | w asks for all | it gets in
func TestS41ALargeRequestIsNotOvertaken(t *testing.T) {
	t.Parallel()
	const overtakes, soon = time.Second, 5 * time.Second
	prove(t, row{
		id: "S41", name: "a large request", quick: 2, noPeer: true,
		fault: "six processes come and go with a permit each, so that all permits are hardly ever free, and one comes that asks for all",
		must:  "no permit begins more than 1 s after it came and before it was in; it is in <= 5 s, and so is each after it",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		w := tr.partyFor(allOfThem, "w", c, 10*ttl)
		w.getsALease()
		var stops []func() []time.Duration
		for i := range 6 {
			stops = append(stops, tr.partyFor(onePermit, fmt.Sprint("p", i), c, 10*ttl).readsOn())
		}
		time.Sleep(200 * time.Millisecond)
		in := w.staysAmong(soon, "wait for all permits", func() bool {
			return tr.standsFor(admin, permits)
		})
		tr.crowdGaveWay(stops, []stay{in}, overtakes, soon, "wait behind all permits")
	})
}

// standsFor reports whether a permit of that weight stands in line.
func (tr *trial) standsFor(admin *clientv3.Client, weight int) bool {
	tr.Helper()
	resp, err := admin.Get(tr.bounded(patience), fmt.Sprintf("%s/fffffffe-%04x-", tr.name, weight),
		clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(tr, err)
	return resp.Count > 0
}

// S41. A restart of etcd costs no permit, and the waiter gets in.
//
//	a and b have a permit each, w waits for both | etcd is killed and started again | both
//	unlock | w gets in
func TestS41PermitsOutlastARestartOfEtcd(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S41", name: "etcd killed and restarted", quick: 1, lanes: 2, noPeer: true,
		fault: "etcd killed and restarted under two that have a permit each, while a third waits for both; TTL 5 s",
		must:  "no permit lost (where etcd serves again within half a TTL); the third in <= 5 s after the last release",
	}, func(tr *trial) {
		s := startServers(tr, 1)
		a := tr.partyOfFor(onePermit, "a", s.client(tr), restartTTL)
		b := tr.partyOfFor(onePermit, "b", s.client(tr), restartTTL)
		a.locks()
		b.locks()
		tr.lineIs(s.client(tr), 2)
		tr.restartsUnder(s, []*party{a, b}, allOfThem)
	})
}

// restartTTL is the TTL of holds under which etcd restarts.
const restartTTL = 5 * time.Second

// restartsUnder kills etcd and starts it again while holders hold and another waits for all
// of them. They keep their holds, and the waiter gets in after the last of them.
func (tr *trial) restartsUnder(s *servers, holders []*party, waits use) {
	tr.Helper()
	const ttl = restartTTL
	admin := s.client(tr)
	w := tr.partyOfFor(waits, "w", s.client(tr), ttl)
	held := tr.keys(admin) // fewer than the holders, if some share one
	next := w.starts(context.Background())
	tr.lineIs(admin, held+1)
	tr.phase(ttl / 3)
	began := now()
	s.kill(0)
	s.restart(0)
	s.serves()
	away := now() - began
	tr.figures.longest("time without etcd", away)
	holders[0].holdsFor(began + ttl + time.Second - now())
	var released time.Duration
	for _, p := range holders {
		whole := p.lock.Holds()
		tr.must(whole || away >= ttl/2, "%s lost its hold", p.who)
		err := p.releases(patience)
		tr.must(err == nil || !whole, "%s: Unlock of a hold that was not lost: %v", p.who, err)
		released = now()
	}
	next.follows("the last release", released, 5*time.Second)
	w.unlocks()
}

// S42. A holder that was asked for the lock, and goes on working, has nobody beside it.
//
//	a holds and asks before each unit of work, b waits | an operator takes the lock from a,
//	as far as the library lets him | a knows and does not unlock yet | a unlocks, b gets in
func TestS42NobodyGetsInBesideAHolderThatWasAsked(t *testing.T) {
	t.Parallel()
	const grace = time.Second
	prove(t, row{
		id: "S42", name: "an operator wants the lock", quick: 2,
		fault: "an operator recalls the holder, with a grace of 1 s, while another waits (concurrency.Mutex: he deletes its key); the holder stops when it is told, and unlocks later",
		must:  "told after 1 s, and in <= 2 s more; Unlock says nil; the other in <= 1 s after that, and not before",
	}, func(tr *trial) {
		s := startServers(tr, 1)
		admin := s.client(tr)
		a := tr.processFor(listening, "a", 10*ttl, s.endpoints()...)
		b := tr.partyOfFor(exclusive, "b", s.client(tr), 10*ttl)
		a.locks()
		next := b.starts(context.Background())
		tr.lineIs(admin, 2)
		tr.phase(2 * time.Second)
		asked := now()
		tr.takesBack(admin, grace)
		told, ok := a.says("ended", asked, patience/4)
		tr.must(ok, "a does not know after %v", patience/4)
		after := told.At - asked
		tr.figures.longest("time until the holder ended its work", after)
		tr.must(after >= grace && after <= grace+2*time.Second, "it ended its work after %v", after)
		next.goesOnWaiting(ttl)
		e := a.releases()
		tr.must(e.Err == "", "Unlock said %s", e.Err)
		next.follows("the Unlock", e.Since, time.Second)
		b.unlocks()
	})
}

// takesBack is what an operator does to get the lock from its holder.
func (tr *trial) takesBack(admin *clientv3.Client, grace time.Duration) {
	tr.Helper()
	if tr.side.Name == side.Theirs.Name {
		tr.deletes(admin, "")
		return
	}
	line, err := etcdlock.Contenders(tr.bounded(patience), admin, tr.name)
	require.NoError(tr, err)
	require.NotEmpty(tr, line)
	require.NoError(tr, etcdlock.Recall(tr.bounded(patience), admin, line[0],
		etcdlock.RecallRequest{By: "operator", Reason: "maintenance", Grace: grace}))
}

// S42. A holder was asked for the lock, and was frozen before it could answer. Nobody gets
// in beside it before its lease has expired, and it knows of its loss when it wakes.
//
//	a holds and asks before each unit of work, b waits | a is asked, and frozen | its lease
//	expires, b gets in | a wakes
func TestS42AHolderThatWasFrozenWithARecallBeginsNothing(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S42", name: "frozen with a recall", quick: 2, noPeer: true,
		fault: "a holder recalled and frozen at once, for more than the TTL",
		must:  "asked first, no unit of work begins after the next owner got in; loss visible <= 50 ms after it wakes",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a := tr.processFor(listening, "a", ttl, c.Proxy(tr, 0).Addr())
		b := tr.partyFor(exclusive, "b", c, 10*ttl)
		tr.sleepsThrough(a, b, func() {
			tr.takesBack(admin, listens)
			a.freeze()
		})
		b.unlocks()
	})
}

// S43. When a leader has died and its lease has expired, the next one follows.
//
//	a leads, b waits | a is killed | its lease expires, b leads
func TestS43ALeaderThatDiedIsFollowed(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S43", name: "leader killed", quick: 2, peer: election,
		fault: "the leader killed (SIGKILL), while another candidate waits",
		must:  "the other leads in <= TTL + 1 s and the server's step of 0.5 s",
	}, func(tr *trial) {
		b, _ := tr.diesUnder(leading, leading, "the leader's death")
		b.unlocks()
	})
}

// S43. A leader that was frozen for longer than its TTL knows at its first look that its
// term is over.
//
//	a leads and asks before each unit of work, b waits | a is frozen | its lease expires, b
//	leads | a wakes
func TestS43ALeaderThatWasFrozenBeginsNothing(t *testing.T) {
	t.Parallel()
	sideBySide(t, pauses, func(how pause) row {
		return row{
			id: "S43", name: "leader " + how.name, quick: 1, peer: election,
			fault: "the leader " + how.name + ", for more than the TTL, while another candidate waits",
			must:  "asked first, no unit of work begins after the next one leads; loss visible <= 50 ms after it wakes",
		}
	}, func(tr *trial, how pause) {
		c := etcdtest.Start(tr, 1)
		proxy := c.Proxy(tr, 0)
		a := tr.processFor(leading, "a", ttl, proxy.Addr())
		b := tr.partyFor(leading, "b", c, 10*ttl)
		tr.sleepsThrough(a, b, func() { how.freeze(tr, a, proxy) })
		b.unlocks()
	})
}

// S43. Two candidates of one process lead in turn.
//
//	a leads, b of the same session waits | a resigns, b leads
func TestS43TwoCandidatesOfAProcessLeadInTurn(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S43", name: "two of one process", quick: 2, peer: election,
		fault: "two goroutines of a process are candidates, with one session",
		must:  "they lead one after the other; the second in <= 1 s after the first has resigned",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		a := tr.partyFor(leading, "a", c, 10*ttl)
		b := a.beside("b", leading)
		a.locks()
		next := b.starts(context.Background())
		next.goesOnWaiting(ttl / 2)
		a.unlocks()
		next.follows("the resignation", now(), time.Second)
		b.unlocks()
	})
}

// S43. A leader whose key was deleted learns of it.
//
//	a leads, b waits | the key of a is deleted | a knows | b leads
func TestS43ALeaderWhoseKeyWasDeletedIsTold(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S43", name: "leader's key deleted", quick: 2, peer: election,
		fault: "the key of a leader deleted, more than a second after its term began",
		must:  "told in <= 0.5 s; the other leads in <= 3 s after the deletion",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a, b := tr.partyFor(leading, "a", c, 10*ttl), tr.partyFor(leading, "b", c, 10*ttl)
		a.locks()
		next := b.waits()
		time.Sleep(1500 * time.Millisecond) // by then its key is watched
		// the deletion lets the next one in at once: what counts is when a knows
		a.leaves()
		deleted := now()
		tr.deletes(admin, "")
		a.isTold(deleted, 500*time.Millisecond)
		next.follows("the deletion", deleted, 3*time.Second)
		err := a.releases(patience)
		tr.must(tr.side.Lost(err), "the end of the term said %v", err)
		b.unlocks()
	})
}

// S43. A restart of etcd costs no term.
//
//	a leads, b waits | etcd is killed and started again | a still leads, and resigns | b leads
func TestS43ALeaderOutlastsARestartOfEtcd(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S43", name: "etcd killed and restarted", quick: 1, lanes: 2, peer: election,
		fault: "etcd killed and restarted under a leader, while another candidate waits; TTL 5 s",
		must:  "no term lost (where etcd serves again within half a TTL); the other in <= 5 s after the resignation",
	}, func(tr *trial) {
		s := startServers(tr, 1)
		a := tr.partyOfFor(leading, "a", s.client(tr), restartTTL)
		a.locks()
		tr.lineIs(s.client(tr), 1)
		tr.restartsUnder(s, []*party{a}, leading)
	})
}
