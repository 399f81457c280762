package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

// recipe is the peer of the rows about readers and writers, of
// go.etcd.io/etcd/client/v3/experimental/recipes.
const recipe = "recipe.RWMutex"

// sideBySide proves the cases of a row at once, since they wait most of the time.
func sideBySide[C any](t *testing.T, cases []C, row func(C) row, story func(*trial, C)) {
	t.Helper()
	var all sync.WaitGroup
	for _, c := range cases {
		all.Go(func() {
			r := row(c)
			t.Run(r.name, func(t *testing.T) { prove(t, r, func(tr *trial) { story(tr, c) }) })
		})
	}
	all.Wait()
}

// readsOn makes a party read again and again, for a moment each, until stop is called. stop
// returns when each read began.
func (p *party) readsOn() (stop func() []time.Duration) {
	var over atomic.Bool
	var began []time.Duration
	var all sync.WaitGroup
	all.Go(func() {
		for !over.Load() {
			if err := p.tries(p.tr.bounded(patience), "Lock"); err != nil {
				p.tr.broke("%s: RLock: %v", p.who, err)
				return
			}
			began = append(began, now())
			time.Sleep(30 * time.Millisecond)
			p.leaves()
			if err := p.lock.Unlock(p.tr.bounded(patience)); err != nil {
				p.tr.broke("%s: Unlock of a read that was not lost: %v", p.who, err)
				return
			}
		}
	})
	stop = sync.OnceValue(func() []time.Duration {
		over.Store(true)
		all.Wait()
		return began
	})
	p.tr.Cleanup(func() { stop() })
	return stop
}

// isIn reports whether the Lock has returned.
func (w *wait) isIn() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// writers returns how many of the keys below the lock's name are no reader's, of either
// library.
func (tr *trial) writers(admin *clientv3.Client) (n int) {
	tr.Helper()
	resp, err := admin.Get(tr.bounded(patience), tr.name+"/", clientv3.WithPrefix(),
		clientv3.WithKeysOnly())
	require.NoError(tr, err)
	for _, kv := range resp.Kvs {
		tail := strings.TrimPrefix(string(kv.Key), tr.name+"/")
		if !strings.HasPrefix(tail, "ffffffff-") && !strings.HasPrefix(tail, "read/") {
			n++
		}
	}
	return n
}

// S33. Readers do not overtake a writer that waits, however many come. They go on when it
// has been.
//
//	readers come and go, so that one of them always reads | w comes to write | the reads
//	end, w gets in | w unlocks, the readers get in
func TestS33ReadersDoNotOvertakeAWriterThatWaits(t *testing.T) {
	t.Parallel()
	const (
		event = time.Second     // by then those who share a key know that a writer waits
		blind = 3 * time.Second // or, if they get no event, by then they have rechecked
		soon  = 5 * time.Second // by then waiters must be in
	)
	type crowd struct {
		name     string
		sessions int
		blind    bool // the readers' watches deliver nothing
	}
	sideBySide(t, []crowd{
		{"of six processes", 6, false},
		{"of one Session", 1, false},
		{"of one Session, who see no event", 1, true},
	}, func(how crowd) row {
		overtakes := event
		if how.blind {
			overtakes = blind
		}
		return row{
			id: "S33", name: how.name, quick: 2, peer: recipe,
			fault: "six readers " + how.name +
				" come and go, so that the lock is hardly ever free, and a writer comes",
			must: fmt.Sprintf("no read begins more than %v after the writer came and before it was in; "+
				"it is in <= 5 s, and so is each reader after it", overtakes),
		}
	}, func(tr *trial, how crowd) {
		c := etcdtest.Start(tr, 1)
		admin, event := c.Client(tr), event
		var readers []*party
		for i := range 6 {
			who := fmt.Sprint("reader ", i)
			if i < how.sessions {
				readers = append(readers, tr.partyFor(reading, who, c, 10*ttl))
			} else {
				readers = append(readers, readers[i%how.sessions].beside(who, reading))
			}
		}
		if how.blind {
			event = blind
			readers[0].faults.Inject(etcdtest.SwallowReply("Watch").When(etcdtest.Events))
		}
		w := tr.partyFor(writing, "w", c, 10*ttl)
		w.getsALease()
		var stops []func() []time.Duration
		for _, r := range readers {
			stops = append(stops, r.readsOn())
			tr.phase(20 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		var stays []stay
		for range 2 {
			stays = append(stays, w.staysAmong(soon, "wait of the writer", func() bool {
				return tr.writers(admin) > 0
			}))
		}
		tr.crowdGaveWay(stops, stays, event, soon, "wait of a reader behind the writer")
	})
}

// A stay is one hold of a party to which a crowd gives way.
type stay struct {
	came time.Duration // it stood in line by then
	in   time.Duration
	left time.Duration
}

// staysAmong makes w come to a crowd whose members come and go. It must be in soon, and
// then it leaves. stands reports whether it stands in line.
func (w *party) staysAmong(soon time.Duration, figure string, stands func() bool) (s stay) {
	w.tr.Helper()
	next := w.starts(context.Background())
	w.tr.must(contract.Eventually(patience, func() bool { return next.isIn() || stands() }),
		"%s does not stand in line", w.who)
	s.came = now()
	next.getsIn(soon + slack)
	waited := next.at - next.started
	w.tr.figures.longest(figure, waited)
	w.tr.must(waited <= soon, "%s waited for %v", w.who, waited)
	s.in = next.at
	w.unlocks()
	s.left = now()
	time.Sleep(500 * time.Millisecond) // the crowd goes on meanwhile
	return s
}

// crowdGaveWay ends a crowd. A stay may be overtaken only by holds that began within
// overtakes of its arrival in line. After each stay, each member of the crowd must be in
// soon.
func (tr *trial) crowdGaveWay(
	stops []func() []time.Duration, stays []stay, overtakes, soon time.Duration, figure string,
) {
	tr.Helper()
	overtook := 0
	for _, stop := range stops {
		began := stop()
		for _, s := range stays {
			after := patience
			for _, at := range began {
				if at > s.came+overtakes && at < s.in {
					overtook++
				}
				if at > s.left {
					after = min(after, at-s.left)
				}
			}
			tr.figures.longest(figure, after)
			tr.must(after <= soon, "one of the crowd was in %v after the one it gave way to", after)
		}
	}
	tr.must(overtook == 0, "%d holds of the crowd began before the one that waited", overtook)
}

// S34. The entry of a reader that died goes with its lease, whoever reads beside it.
//
//	a reads, and b beside it or not, w waits to write | a is killed | its lease expires | b
//	unlocks | w gets in
func TestS34TheEntryOfAReaderThatDiedGoesWithItsLease(t *testing.T) {
	t.Parallel()
	sideBySide(t, []bool{false, true}, func(beside bool) row {
		name := "alone"
		must := "the writer in <= TTL + 1 s and the server's step of 0.5 s"
		if beside {
			name = "beside one that lives"
			must =
				"the dead reader's entry is gone in that time, while the other one reads; the writer in <= 1 s after that one's Unlock"
		}
		return row{
			id: "S34", name: name, quick: 2, peer: recipe,
			fault: "a reader, " + name + ", killed (SIGKILL) while a writer waits", must: must,
		}
	}, func(tr *trial, beside bool) {
		if beside {
			tr.oneOfTwoDies(reading, writing, "entry", "gone")
			return
		}
		w, _ := tr.diesUnder(reading, writing, "the reader's death")
		w.unlocks()
	})
}

// S35. Each read of a process is one of its own, even by the same RWMutex.
//
//	a and b read by the same RWMutex, w waits to write | a unlocks, w goes on waiting | b
//	unlocks, w gets in
func TestS35TwoReadsOfOneRWMutexEndByThemselves(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S35", name: "two reads of one RWMutex", quick: 2, peer: recipe,
		fault: "a process reads twice at once by one RWMutex, and ends the first of the reads, then the other",
		must:  "a writer waits for both, and is in <= 3 s after the second; no key is left",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a := tr.partyFor(reading, "a", c, 10*ttl)
		b := a.again("b")
		w := tr.partyFor(writing, "w", c, 10*ttl)
		a.locks()
		b.locks()
		next := w.waits()
		a.unlocks()
		next.goesOnWaiting(ttl / 4)
		b.unlocks()
		next.follows("the last Unlock", now(), 3*time.Second)
		w.unlocks()
		tr.isEmptyWithin(admin, 3*time.Second)
	})
}

// S35. A reader waits for those that came before it, but for no writer behind it.
//
//	w writes, r waits to read, x waits to write | w unlocks, r gets in | r unlocks, x gets
//	in
func TestS35AReaderDoesNotWaitForAWriterBehindIt(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S35", name: "a writer behind a reader", quick: 2, peer: recipe,
		fault: "a reader between the writer before it and one behind it, who comes before the first has left",
		must:  "the reader in <= 3 s after the first writer's release, the other one in <= 3 s after the reader's",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		w := tr.partyFor(writing, "w", c, 10*ttl)
		r := tr.partyFor(reading, "r", c, ttl)
		x := tr.partyFor(writing, "x", c, 10*ttl)
		w.locks()
		reader := r.waits()
		behind := x.waits()
		reader.goesOnWaiting(ttl) // so that it rechecks, and sees who is behind it
		w.unlocks()
		reader.follows("the release", now(), 3*time.Second)
		behind.goesOnWaiting(ttl / 4)
		r.unlocks()
		behind.follows("the release", now(), 3*time.Second)
		x.unlocks()
	})
}

// S36. If the key or the lease of readers is taken away, each of them learns of it, and
// their own process writes only when they all have unlocked. (A writer elsewhere is in at
// once. As in S8, beliefs may overlap here until the readers know.)
//
//	five goroutines of a process read, w waits to write, there or elsewhere | an operator
//	deletes what they have, or revokes its lease | all five know | they unlock: lost | w
//	gets in
func TestS36ReadersAreToldThatTheirKeyWasTakenAway(t *testing.T) {
	t.Parallel()
	const told = 1500 * time.Millisecond
	type taking struct{ revokes, local bool }
	sideBySide(t, []taking{{false, false}, {false, true}, {true, false}, {true, true}},
		func(how taking) row {
			name := "key deleted"
			if how.revokes {
				name = "lease revoked"
			}
			r := row{
				id: "S36", name: name, quick: 1, peer: recipe,
				fault: name + " under five readers of a Session, while a writer of another process waits",
				must:  "all five are told in <= 1.5 s, each Unlock says that the lock was lost; the writer is in <= 3 s after that",
			}
			if how.local {
				r.name += ", a writer of the same Session"
				r.fault = name + " under five readers of a Session, while a writer of theirs waits"
				r.must =
					"all five are told in <= 1.5 s, each Unlock says that the lock was lost; the writer is in after the last of them, and <= 3 s after it"
			}
			return r
		}, func(tr *trial, how taking) {
			c := etcdtest.Start(tr, 1)
			admin := c.Client(tr)
			readers := []*party{tr.partyFor(reading, "reader 0", c, 5*ttl)}
			readers[0].locks()
			for i := range 4 {
				r := readers[0].beside(fmt.Sprint("reader ", i+1), reading)
				r.locks()
				readers = append(readers, r)
			}
			held, err := admin.Get(tr.bounded(patience), tr.name+"/", clientv3.WithPrefix())
			require.NoError(tr, err)
			require.NotEmpty(tr, held.Kvs)
			w := readers[0].beside("w", writing)
			if !how.local {
				w = tr.partyFor(writing, "w", c, 5*ttl)
			}
			next := w.starts(context.Background())
			if !how.local {
				tr.lineIs(admin, len(held.Kvs)+1)
			}
			tr.phase(time.Second)
			for _, r := range readers {
				r.leaves()
			}
			for _, kv := range held.Kvs {
				if how.revokes {
					_, err = admin.Revoke(tr.bounded(patience), clientv3.LeaseID(kv.Lease))
				} else {
					_, err = admin.Delete(tr.bounded(patience), string(kv.Key))
				}
				require.NoError(tr, err)
				if how.revokes {
					break // of all keys
				}
			}
			taken := now()
			for _, r := range readers {
				r.loses(told + slack)
				took := now() - taken
				tr.figures.longest("time until told", took)
				tr.must(took <= told, "%s was told after %v", r.who, took)
			}
			for i, r := range readers {
				if how.local {
					next.goesOnWaiting(50 * time.Millisecond)
				}
				err := r.releases(patience)
				tr.must(tr.side.Lost(err), "%s: Unlock said %v", readers[i].who, err)
			}
			next.follows("the last Unlock", now(), 3*time.Second)
			w.unlocks()
			tr.isEmptyWithin(admin, 3*time.Second)
		})
}

// S37. A process that reads and was frozen for longer than its TTL knows at its first look
// that it has lost the lock, whatever answers it finds waiting.
//
//	a reads, and asks before each unit, w waits to write | a is frozen | its lease expires,
//	w gets in | a wakes
func TestS37AReaderThatWasFrozenBeginsNoReadAfterTheWriterGotIn(t *testing.T) {
	t.Parallel()
	sideBySide(t, pauses, func(how pause) row {
		return row{
			id: "S37", name: how.name, quick: 2, peer: recipe,
			fault: "a reader " + how.name + ", for more than the TTL, while a writer waits",
			must:  "asked first, no read begins after the writer got in; loss visible <= 50 ms after it wakes; never revived",
		}
	}, func(tr *trial, how pause) {
		c := etcdtest.Start(tr, 1)
		proxy := c.Proxy(tr, 0)
		a := tr.processFor(reading, "a", ttl, proxy.Addr())
		w := tr.partyFor(writing, "w", c, 10*ttl)
		tr.sleepsThrough(a, w, func() { how.freeze(tr, a, proxy) })
		w.unlocks()
	})
}

// S38. Readers on a member that is cut off from its peers know that before the writer gets
// in.
//
//	three goroutines read by one member, w waits by the others | that member is cut off from
//	them | the readers know | w gets in
func TestS38ReadersOnAMemberThatIsCutOffKnowBeforeTheWriterGetsIn(t *testing.T) {
	t.Parallel()
	sideBySide(t, []string{"leader", "follower"}, func(role string) row {
		return row{
			id: "S38", name: "member cut off, " + role, quick: 1, lanes: 4, peer: recipe,
			fault: "three readers of a Session reach only a member that is cut from its peers, a " + role +
				", while a writer waits elsewhere",
			must: "0 overlaps, least margin >= 100 ms", leastMargin: leastMargin,
		}
	}, func(tr *trial, role string) {
		c := etcdtest.Start(tr, 3)
		member := tr.memberThatIs(role, c)
		others := []int{(member + 1) % 3, (member + 2) % 3}
		readers := []*party{tr.partyFor(reading, "reader 0", c, ttl, c.At(member))}
		readers[0].locks()
		for i := range 2 {
			r := readers[0].beside(fmt.Sprint("reader ", i+1), reading)
			r.locks()
			readers = append(readers, r)
		}
		w := tr.partyFor(writing, "w", c, 10*ttl, c.At(others...))
		next := w.waits()
		tr.phase(ttl / 3)
		c.Isolate(member)
		tr.Cleanup(func() { c.Rejoin(member) })
		next.getsIn(expires)
		for _, r := range readers {
			r.loses(ttl)
		}
		w.unlocks()
	})
}

// S38. A restart of etcd costs no read, and the writer that waits gets in.
//
//	readers of two processes read, w waits to write | etcd is killed and started again | the
//	readers still read, and unlock | w gets in
func TestS38ReadersOutlastARestartOfEtcd(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S38", name: "etcd killed and restarted", quick: 1, lanes: 2, peer: recipe,
		fault: "etcd killed and restarted under readers of two processes, while a writer waits; TTL 5 s",
		must:  "no read lost (where etcd serves again within half a TTL); the writer in <= 5 s after the last release",
	}, func(tr *trial) {
		s := startServers(tr, 1)
		a := tr.partyOfFor(reading, "a", s.client(tr), restartTTL)
		b := a.beside("b", reading)
		d := tr.partyOfFor(reading, "d", s.client(tr), restartTTL)
		readers := []*party{a, b, d}
		for _, r := range readers {
			r.locks()
		}
		tr.restartsUnder(s, readers, writing)
	})
}

// S38. A waiter gets in even if the event for which it waits never reaches it.
//
//	a writes, r waits to read, and w behind it to write | every event is lost | a unlocks, r
//	gets in | r unlocks, w gets in
func TestS38ReadersAndWritersGetInWithoutEvents(t *testing.T) {
	t.Parallel()
	const bound = 3 * time.Second
	prove(t, row{
		id: "S38", name: "every event swallowed", quick: 2, peer: recipe,
		fault: "every event is swallowed when the writer before a reader releases, and when that reader does before another writer",
		must:  "each is in <= 3 s after the release",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		a := tr.partyFor(writing, "a", c, 10*ttl)
		r := tr.partyFor(reading, "r", c, 10*ttl)
		w := tr.partyFor(writing, "w", c, 10*ttl)
		a.locks()
		second, third := r.waits(), w.waits()
		for _, p := range []*party{r, w} {
			p.faults.Inject(etcdtest.SwallowReply("Watch").When(etcdtest.Events))
		}
		tr.phase(2 * time.Second)
		slow := measureStalls(tr)
		a.unlocks()
		second.getsInSoon("time from release to in", now(), bound, slow)
		r.unlocks()
		third.getsInSoon("time from release to in", now(), bound, slow)
		w.unlocks()
	})
}

// S39. When etcd is set back, readers whose key came back keep the lock, and readers whose
// key went learn of it. The writer that waits gets in.
//
//	a and b of one process and d of another read, w waits to write | etcd is restored, from
//	before or after that | the readers unlock: nil or a loss | w gets in
func TestS39WhereEtcdIsSetBackReadersKeepTheLockOrAreTold(t *testing.T) {
	t.Parallel()
	sideBySide(t, []bool{true, false}, func(kept bool) row {
		name, must := "with the readers", "no read lost; the writer in <= 5 s after the last release, "+
			"a TTL later if it has noticed it"
		if !kept {
			name, must = "before the readers",
				"each reader is told in <= 2 s, Unlock says that the lock was lost; the writer in <= a TTL + 5 s "+
					"after that"
		}
		return row{
			id: "S39", name: name, quick: 1, lanes: 2, noPeer: true,
			fault: "etcd restored from a snapshot " + name + ", while a writer waits", must: must,
		}
	}, func(tr *trial, kept bool) {
		s := startServers(tr, 1)
		admin := s.client(tr)
		saved := s.save(tr)
		const long = 10 * ttl
		a := tr.partyOfFor(reading, "a", s.client(tr), long)
		b := a.beside("b", reading)
		d := tr.partyOfFor(reading, "d", s.client(tr), long)
		w := tr.partyOfFor(writing, "w", s.client(tr), long)
		readers := []*party{a, b, d}
		for _, r := range readers {
			r.locks()
		}
		next := w.starts(context.Background())
		tr.lineIs(admin, 3)
		if kept {
			saved = s.save(tr)
		} else {
			for _, r := range readers {
				r.leaves() // as with any key that is taken away, w may get in before they know
			}
			tr.forgets()
		}
		writeOthers(tr, admin, 100)
		s.goBack(tr, saved, 0)
		served := now()
		for _, r := range readers {
			if kept {
				r.unlocks()
				continue
			}
			r.loses(patience)
			told := now() - served
			tr.figures.longest("time until a reader was told", told)
			tr.must(told <= 2*time.Second, "%s was told %v after etcd was back", r.who, told)
		}
		for _, r := range readers {
			if !kept {
				tr.must(side.Ours.Lost(r.releases(patience)), "%s is not told of its loss", r.who)
			}
		}
		next.follows("the last release", now(), long+5*time.Second)
		w.unlocks()
		tr.must(contract.Eventually(patience, func() bool {
			return tr.keys(admin) == 0
		}), "keys are left")
	})
}
