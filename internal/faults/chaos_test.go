package faults

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

var seed = flag.Uint64("seed", 0,
	"of the first trial with faults at random, which repeats its schedule; 0 draws one")

// firstSeed is the seed of the first trial, the same for both sides.
var firstSeed = sync.OnceValue(func() uint64 {
	if *seed != 0 {
		return *seed
	}
	return 1 + rand.Uint64N(1_000_000) // short enough to be typed
})

func (tr *trial) seed() uint64 { return firstSeed() + uint64(tr.i) }

// S10. Whatever happens, and however much at once, no two clients work under the lock at
// the same time. When it is over, nobody is blocked and nothing is left.
//
//	6 clients lock, work and unlock by 3 members | connections break, clients are frozen and
//	killed, members are frozen and killed, the leader moves, the history is compacted, all
//	at random | the faults end | each client gets in once and closes
func TestS10NoTwoWorkAtOnceThroughChaos(t *testing.T) {
	t.Parallel()
	const clients, members = 6, 3
	length := 20 * time.Second
	if *trials > 0 {
		length = time.Minute
	}
	prove(t, row{
		id: "S10", full: min(5, *trials), lanes: 2,
		fault: fmt.Sprintf("chaos: %d clients for %v, all faults at random, seeds from %d", clients,
			length, firstSeed()),
		must: "0 overlaps, porcupine says Ok of the history, at least one acquisition each 3 s; " +
			fmt.Sprintf("each client gets in within %v of the end of the faults, and no key is left", quiet),
		command: fmt.Sprintf("go test . -run '^%s$' -trials %d -seed %d -peer -timeout 30m", t.Name(),
			*trials, firstSeed()),
	}, func(tr *trial) {
		etcd := startServers(tr, members)
		admin := etcd.client(tr)
		s := tr.storm(length, 0)
		for i := range clients {
			var network []*etcdtest.Proxy
			for _, m := range etcd.members {
				network = append(network, etcdtest.NewProxy(tr, m.client))
			}
			c := s.contender(fmt.Sprintf("client %d", i), ttl, network, order{})
			s.strikes(c.who, 4, append(c.faults(true), c.killed())...)
		}
		s.strikes("whoever works", 1, s.faultsOfTheHolder()...)
		s.strikes("etcd", 4, etcdFaults(tr, etcd, admin)...)
		s.passes()
		etcd.serves()
		s.everybodyGetsInOnce()
		tr.isEmptyWithin(admin, expires)

		acquisitions := len(s.said("locked"))
		tr.must(acquisitions >= int(length/(3*time.Second)), "only %d acquisitions in %v",
			acquisitions, length)
	})
}

// etcdFaults are what happens to the members, one at a time. Two of three are down at once
// only for a moment, and nobody gets in then.
func etcdFaults(tr *trial, etcd *servers, admin *clientv3.Client) []fault {
	frozen := func(how string, members int, most time.Duration) fault {
		return fault{how, 0, most, func(r *rand.Rand) func() {
			which := r.Perm(len(etcd.members))[:members]
			for _, m := range which {
				etcd.freeze(m)
			}
			return func() {
				for _, m := range which {
					etcd.thaw(m)
				}
			}
		}}
	}
	return []fault{
		frozen("a member is frozen", 1, 3*time.Second),
		frozen("a majority is frozen", 2, 1500*time.Millisecond),
		{"a member is killed", 0, 3 * time.Second, func(r *rand.Rand) func() {
			m := r.IntN(len(etcd.members))
			etcd.kill(m)
			return func() { etcd.restart(m) }
		}},
		{"the leader is killed", 0, 3 * time.Second, func(*rand.Rand) func() {
			m := etcd.leader()
			etcd.kill(m)
			return func() { etcd.restart(m) }
		}},
		{"the leader moves", 0, time.Second, func(*rand.Rand) func() {
			from := etcd.leader()
			client := etcd.client(tr, etcd.at(from))
			defer client.Close()
			ctx, cancel := context.WithTimeout(context.Background(), ttl)
			defer cancel()
			to := etcd.members[(from+1)%len(etcd.members)]
			if status, err := client.Status(ctx, to.client); err == nil {
				_, _ = client.MoveLeader(ctx, status.Header.MemberId) // a new member may refuse it
			}
			return func() {}
		}},
		{"the history is compacted", 0, time.Second, func(*rand.Rand) func() {
			ctx, cancel := context.WithTimeout(context.Background(), ttl)
			defer cancel()
			if now, err := admin.Get(ctx, "x"); err == nil {
				_, _ = admin.Compact(ctx, now.Header.Revision) // nobody waits for it
			}
			return func() {}
		}},
	}
}

// ---- a storm: faults at random

// quiet is when each client must have got in after a storm: by then it has found the way to
// etcd again, and what others left has expired.
const quiet = expires + slack

// A storm is a time of faults that strike many things at once. Its seed decides what is
// random about it: in each lane the same faults follow each other after the same times,
// whatever they do.
type storm struct {
	tr         *trial
	seed       uint64
	began, end time.Duration
	lanes      sync.WaitGroup
	contenders []*contender

	mu     sync.Mutex
	faults []string
}

// storm begins the nth storm of a trial. The storm is judged when the trial ends.
func (tr *trial) storm(lasts time.Duration, nth uint64) *storm {
	s := &storm{tr: tr, seed: tr.seed() + nth<<32, began: now()}
	s.end = s.began + lasts
	tr.Cleanup(s.judge)
	return s
}

// A fault strikes something. It is mended after a random time.
type fault struct {
	name        string
	least, most time.Duration
	strike      func(*rand.Rand) (mend func())
}

// strikes starts a lane: one fault after the other until the storm ends. The pauses between
// them are calm times as long as the faults.
func (s *storm) strikes(whom string, calm int, faults ...fault) {
	r := rand.New(rand.NewPCG(s.seed, hashed(whom)))
	s.lanes.Go(func() { // ends with the storm
		for {
			f := faults[r.IntN(len(faults))]
			if !s.lets(between(r, 0, time.Duration(calm)*f.most)) {
				return
			}
			lasts, detail := between(r, f.least, f.most), r.Uint64()
			s.notes("%s: %s, for %v", whom, f.name, lasts)
			mend := f.strike(rand.New(rand.NewPCG(detail, 0)))
			s.lets(lasts)
			mend()
		}
	})
}

// faultsOfTheHolder strike whoever works for long, and they last for long.
func (s *storm) faultsOfTheHolder() (all []fault) {
	for i, f := range s.contenders[0].faults(false) {
		f.least = f.most / 2
		f.strike = func(r *rand.Rand) func() {
			for s.lets(time.Millisecond) {
				for _, c := range s.contenders {
					if c.worksLong() {
						return c.faults(false)[i].strike(r)
					}
				}
			}
			return func() {}
		}
		all = append(all, f)
	}
	return all
}

// lets lets some time pass, or less if the storm ends, and reports whether the storm goes
// on.
func (s *storm) lets(d time.Duration) bool {
	time.Sleep(min(d, s.end-now()))
	return now() < s.end
}

func (s *storm) notes(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Sprintf("%7.3f s ", (now()-s.began).Seconds())+
		fmt.Sprintf(format, args...))
}

// passes waits until the storm is over and all is mended.
func (s *storm) passes() { s.lanes.Wait() }

// everybodyGetsInOnce checks, after a storm, that nobody hangs and nobody is blocked.
func (s *storm) everybodyGetsInOnce() {
	over := now()
	for _, c := range s.contenders {
		c.life().order(order{Do: "visit", Bound: quiet})
	}
	for _, c := range s.contenders {
		does := func(what string, since time.Duration) event {
			e, ok := c.life().says(what, since, quiet-(now()-over))
			s.tr.must(ok, "%s: not %s %v after the faults have ended", c.who, what, quiet)
			return e
		}
		done := does("done", 0)
		in := does("locked", done.At)
		s.tr.figures.longest("time from the end of the faults to in", in.At-over)
		closed := does("closed", in.At)
		s.tr.must(closed.Err == "" || s.tr.side.Name == side.Theirs.Name, "%s: Close: %s",
			c.who, closed.Err)
	}
}

// said returns the events of a kind that all clients have reported in all their lives.
func (s *storm) said(what string) (all []event) {
	for _, c := range s.contenders {
		for _, p := range c.lives {
			for _, e := range p.said() {
				if e.What == what {
					all = append(all, e)
				}
			}
		}
	}
	return all
}

// judge judges what all clients have reported. Call it when they have ended.
func (s *storm) judge() {
	var all []*hold
	for i, c := range s.contenders {
		for _, p := range c.lives {
			all = append(all, holds(i, p.said())...)
		}
	}
	s.tr.believed(all)
	s.tr.figures.add("acquisitions", len(all))
	s.tr.figures.add("faults", len(s.faults))
	verdict, file := judged(s.tr, theLock, all)
	s.tr.figures.add(fmt.Sprintf("histories that are %s to porcupine", verdict), 1)
	if verdict != porcupine.Ok {
		s.tr.broke("porcupine says %s of the history: %s (kept with -artifacts)", verdict, file)
	}
	if len(s.tr.broken) > 0 {
		s.tr.Logf("to be repeated with -seed %d:\n%s", s.tr.seed(), strings.Join(s.faults, "\n"))
	}
}

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

func hashed(who string) uint64 {
	h := fnv.New64()
	h.Write([]byte(who))
	return h.Sum64()
}

// ---- the clients in a storm

// A contender is a client in a storm: a process that runs by itself, and is started anew
// when it was killed. It reaches each member through a proxy of its own.
type contender struct {
	s       *storm
	who     string
	ttl     time.Duration
	network []*etcdtest.Proxy
	run     order

	mu    sync.Mutex
	lives []*process // the last one runs
}

func (s *storm) contender(
	who string, ttl time.Duration, network []*etcdtest.Proxy, run order,
) *contender {
	c := &contender{s: s, who: who, ttl: ttl, network: network, run: run}
	s.contenders = append(s.contenders, c)
	c.starts()
	return c
}

func (c *contender) life() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lives[len(c.lives)-1]
}

// starts gives c a life that runs for the rest of the storm.
func (c *contender) starts() {
	var endpoints []string
	for _, p := range c.network {
		endpoints = append(endpoints, p.Addr())
	}
	p := c.s.tr.process(c.who, c.ttl, endpoints...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lives = append(c.lives, p)
	run := c.run
	run.Do, run.Bound, run.Seed = "run", c.s.end-now(), c.s.seed+uint64(len(c.lives))
	p.order(run)
}

// standsStill is a fault of a client, and none of its network.
const standsStill = "is frozen"

// faults break c's connections to all members, or sometimes to one, and freeze it.
func (c *contender) faults(sometimesOne bool) (all []fault) {
	for _, how := range []struct {
		name string
		cut  func(*etcdtest.Proxy, *rand.Rand)
	}{
		{"black hole", func(p *etcdtest.Proxy, _ *rand.Rand) { p.BlackHole() }},
		{"requests are lost", func(p *etcdtest.Proxy, _ *rand.Rand) { p.BlackHole(etcdtest.Requests) }},
		{"answers are lost", func(p *etcdtest.Proxy, _ *rand.Rand) { p.BlackHole(etcdtest.Replies) }},
		{"bytes are held and arrive later", func(p *etcdtest.Proxy, _ *rand.Rand) { p.Hold() }},
		{"answers are slow", func(p *etcdtest.Proxy, r *rand.Rand) { p.Delay(between(r, 0, c.ttl), etcdtest.Replies) }},
		{"reset", func(p *etcdtest.Proxy, _ *rand.Rand) { p.Reset() }},
		{"reset, then refused", func(p *etcdtest.Proxy, _ *rand.Rand) { p.Refuse(); p.Reset() }},
	} {
		all = append(all, fault{how.name, 0, 2 * c.ttl, func(r *rand.Rand) func() {
			struck := c.network
			if one := r.IntN(2 * len(c.network)); sometimesOne && one < len(c.network) {
				struck = c.network[one : one+1]
			}
			for _, p := range struck {
				how.cut(p, r)
			}
			return func() {
				for _, p := range struck {
					p.Heal()
				}
			}
		}})
	}
	stands := fault{standsStill, 0, 2 * c.ttl, func(*rand.Rand) func() {
		p := c.life()
		_ = p.cmd.Process.Signal(syscall.SIGSTOP) // it does not matter when the process stands still
		return p.thaw
	}}
	return append(all, stands, stands)
}

func (c *contender) killed() fault {
	return fault{"is killed", 0, c.ttl, func(*rand.Rand) func() {
		c.life().kill()
		return c.starts
	}}
}

// worksLong reports whether c works under one of the long holds.
func (c *contender) worksLong() bool {
	for _, e := range slices.Backward(c.life().said()) {
		switch e.What {
		case "locked":
			return now()-e.At > 2*shortWork
		case "failed", "ended", "unlocked":
			return false
		}
	}
	return false
}

// ---- the child's side

// runs locks, works and unlocks, as the order's seed says.
func (w *worker) runs(o order) {
	r := rand.New(rand.NewPCG(o.Seed, hashed(w.who)))
	for end := now() + o.Bound; now() < end; {
		call := w.lock.Lock
		if r.IntN(4) == 0 {
			call = w.lock.TryLock
		}
		if w.enters(call, between(r, 20*time.Millisecond, 3*time.Second)) {
			if o.Set != "" {
				w.addsMany(o, r)
			} else {
				w.worksOn(r)
			}
			w.unlocks(between(r, 20*time.Millisecond, 2*time.Second))
		}
		time.Sleep(between(r, 0, 20*time.Millisecond))
	}
	w.tell(event{What: "done"})
}

// shortWork and longWork are roughly how long the work of a hold takes. Most work is short.
// Some of it outlasts the lease unless that is renewed.
const (
	shortWork = 100 * time.Millisecond
	longWork  = 2 * ttl
)

// worksOn does the work of a hold in units of a millisecond. After a no it goes on asking,
// so that the test notices a lock that comes to life again.
func (w *worker) worksOn(r *rand.Rand) {
	takes := between(r, 0, shortWork)
	if r.IntN(8) == 0 {
		takes = between(r, longWork/2, longWork)
	}
	for range takes / time.Millisecond {
		w.asks()
		time.Sleep(time.Millisecond)
	}
}

// visits gets in once, and closes.
func (w *worker) visits(bound time.Duration) {
	if w.enters(w.lock.Lock, bound) {
		w.asks()
		w.unlocks(bound)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	closed := event{What: "closed"}
	if err := w.lock.Close(ctx); err != nil {
		closed.Err = err.Error()
	}
	w.tell(closed)
}
