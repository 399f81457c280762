package sim

import (
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A bug is one that etcd had, or has, by its record of robustness tests and its issues, or a
// feature of etcd that looks like one to a client. Cluster.Suffer switches one on. Each happens
// more often here, and goes further, than it did there.
type bug string

// The bugs.
const (
	noBug bug = ""

	// A watch that begins at a revision that its member has not reached yet gets events from before
	// (etcd issue 20221). A watch goes on so on a member that lags behind.
	oldEvents bug = "a watch at a future revision gets old events"

	// While a member is paused, and for an election timeout after, a linearizable read shows what the
	// asked member has (20418, in 3.5.0 and 3.4.20 and later).
	staleReads bug = "linearizable reads are stale while a member is paused"

	// An event is lost as a watch goes on at an earlier revision (18089, 19179: around a
	// compaction), or to a client that reads slowly (17529).
	lostEvents bug = "events are lost"

	// Events come twice: again at once (17247), or later, from the past (15271).
	doubledEvents bug = "events come twice"

	// A renewal that meets the end of its lease is confirmed: the keys are gone already (14758), or
	// the revocation is under way, of which FastLeaseKeepAlive of 3.7 does not wait for the end.
	goneRenewals bug = "a renewal of a lease that has ended is confirmed"

	// A new leader begins each TTL anew from the last checkpoint of its predecessor. etcd makes one
	// each five minutes, so that longer TTLs have them. Here the step is that of short TTLs.
	checkpoints bug = "a new leader goes on from checkpoints of TTLs"
)

// bugs are all of them, in the order of the table.
var bugs = []bug{oldEvents, staleReads, lostEvents, doubledEvents, goneRenewals, checkpoints}

// strikesLocked counts how often a bug shows, and reports whether it does.
func (c *Cluster) strikesLocked(b bug, shows bool) bool {
	if c.bug != b || !shows {
		return false
	}
	c.struck++
	return true
}

// Struck is how often the bug has shown.
func (c *Cluster) Struck() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.struck
}

// checkpointStep is how often a leader makes a checkpoint of a TTL.
const checkpointStep = time.Second

// Suffer switches a bug on.
func (c *Cluster) Suffer(b bug) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bug = b
}

// suffered has etcd suffer from a bug from soon after the beginning to the end, when there are no
// faults any more.
func suffered(b bug) fault {
	return fault{
		at: 100 * time.Millisecond, what: fmt.Sprint("bug: ", b),
		start: func(w *world) func() {
			w.cluster.Suffer(b)
			return func() {}
		},
	}
}

// newSuffering draws the world of a seed in which etcd has a bug. There are the faults in which it
// shows, and for our side in every other pair of seeds all others, too. Every other seed of ours is
// of the family.
func newSuffering(seed uint64, side Side, b bug) *world {
	ofMixed := [...]uint64{1, 2, 9, 10, 14} // see scenarioOf
	n := uint64(len(ofMixed))
	of := 16*(seed/n) + ofMixed[seed%n]
	var w *world
	if side.judged && seed%2 == 1 {
		w = newFamily(of)
	} else {
		w = newWorld(of, side)
	}
	w.seed, w.bug = seed, b
	// A read from before a revision that the client knows looks like an etcd that was set back, and
	// what a follower is told may go back with it.
	w.watched = w.watched && b != staleReads
	w.judge.goesBack = w.judge.goesBack || b == staleReads
	w.judge.mayGoBack = w.judge.mayGoBack || b == staleReads
	if b == lostEvents {
		w.peer = -1 // it would wait for ever
	}
	if !side.judged || seed%4 < 2 {
		w.schedule = nil
	}
	w.schedule = append(append(w.schedule, suffered(b)), provoked(seed, b, w.ttl)...)
	return w
}

// provoked are faults in which a bug shows.
func provoked(seed uint64, b bug, ttl time.Duration) (faults []fault) {
	r := generator(seed, "provoked")
	for at := upTo(r, time.Second); at < faultsLast; at += upTo(r, ttl) + 100*time.Millisecond {
		var f fault
		switch late := r.IntN(2) == 0; {
		case b == oldEvents && late:
			f = lag(r, ttl)
		case b == staleReads:
			f = freezeMember(r, ttl/4)
		case b == goneRenewals:
			f = holdUp(r, path{slot: r.IntN(processes), members: everyMember(), up: true}, ttl)
		case b == checkpoints && late:
			f = cut(r, ttl)
		case b == checkpoints:
			f = swallow(r, somePath(r), ttl)
		case late:
			f = atOnce(r)
		default:
			f = reset(r)
		}
		f.at, f.lasts = at, min(f.lasts, faultsLast-at)
		faults = append(faults, f)
	}
	return faults
}

// readsStaleLocked reports whether a linearizable read does not wait at m.
func (m *member) readsStaleLocked() bool {
	c := m.c
	paused := func(m *member) bool { return m.frozen || m.stale }
	if slices.ContainsFunc(c.members, paused) {
		c.paused = time.Now()
	}
	return !m.frozen && !m.down && c.strikesLocked(staleReads,
		!c.paused.IsZero() && time.Since(c.paused) < electionTimeout)
}

// losesLocked reports whether a delivery of m's is lost. behind says that its watch goes on at an
// earlier revision.
func (m *member) losesLocked(behind bool) bool {
	most := 1
	if behind {
		most = 4
	}
	return m.c.bug == lostEvents && m.c.strikesLocked(lostEvents, m.rand.IntN(8) < most)
}

// againLocked may deliver events of a watch once more, at once or later.
func (w *watchStream) againLocked(to *watch, events []*mvccpb.Event) {
	c := w.m.c
	if c.bug != doubledEvents || !c.strikesLocked(doubledEvents, w.m.rand.IntN(4) == 0) {
		return
	}
	if w.m.rand.IntN(2) == 0 {
		w.sendLocked(to, events)
		return
	}
	time.AfterFunc(upTo(w.m.rand, 3*time.Second), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if slices.Contains(w.watches, to) {
			w.sendLocked(to, events)
		}
	})
}

// A gone lease has ended a moment ago.
type gone struct {
	at  time.Time
	ttl int64
}

// confirmsLocked is the TTL that is confirmed of a lease that has ended, 0 if none is.
func (c *Cluster) confirmsLocked(id int64) (ttl int64) {
	if g := c.gone[id]; c.strikesLocked(goneRenewals, time.Since(g.at) < 2*expiryStep) {
		return g.ttl
	}
	return 0
}

// checkpointLocked notes what is left of the TTLs by the last checkpoints of m, which leads.
func (m *member) checkpointLocked() {
	m.c.left = make(map[int64]time.Duration)
	for id, expires := range m.expiry {
		ttl := m.c.ttlLocked(id)
		since := ttl - time.Until(expires)
		m.c.left[id] = ttl - since.Truncate(checkpointStep)
	}
}

// anewLocked is how long a lease lives when a new leader begins.
func (c *Cluster) anewLocked(id int64) time.Duration {
	ttl := c.ttlLocked(id)
	if left, known := c.left[id]; c.strikesLocked(checkpoints, known && left < ttl) {
		return left // and an election timeout, which is nothing beside five minutes
	}
	return electionTimeout + ttl
}
