package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// A scenario is the kind of a schedule.
type scenario string

// The scenarios.
const (
	blackHole scenario = "black hole" // what processes send, and what is sent to them, vanishes
	mixed     scenario = "mixed"      // everything but an operator
	// keys and leases are taken away, some of them at a step of their release, and answers to
	// releases are lost, in every other seed beside mixed
	operator scenario = "operator"
	// etcd is restored from a snapshot or wiped, in every other seed beside mixed
	setBack scenario = "set back"
	silent  scenario = "silent" // one member answers nobody, for ever: no hold may be lost
	calm    scenario = "calm"   // nothing: no hold may be lost
)

// scenarios are all of them, in the order of the tables.
var scenarios = []scenario{blackHole, mixed, operator, setBack, silent, calm}

// scenarioOf is the scenario of a seed.
func scenarioOf(seed uint64) scenario {
	switch seed % 16 {
	case 5:
		return calm
	case 13:
		return silent
	case 6, 11:
		return setBack
	}
	return []scenario{blackHole, mixed, mixed, operator}[seed%4]
}

// A fault is something that goes wrong for a while.
type fault struct {
	at, lasts time.Duration
	what      string
	start     func(*world) (stop func())
}

func (f fault) String() string {
	if f.lasts == 0 {
		return fmt.Sprintf("%9.4fs  %s", f.at.Seconds(), f.what)
	}
	return fmt.Sprintf("%9.4fs  %s, until %.4fs", f.at.Seconds(), f.what, (f.at + f.lasts).Seconds())
}

// schedule draws the faults of a seed.
func schedule(seed uint64, scenario scenario, ttl time.Duration) []fault {
	r := generator(seed, "schedule")
	switch scenario {
	case calm:
		return nil
	case silent:
		return silence(r)
	}
	alone := seed/4%2 == 0
	if scenario == setBack {
		alone = seed/16%2 == 0
	}
	most := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}[r.IntN(3)]
	var faults []fault
	for at := upTo(r, time.Second); at < faultsLast; at += upTo(r, most) + 100*time.Millisecond {
		var f fault
		switch {
		case scenario == blackHole:
			f = swallow(r, somePath(r), ttl)
		case scenario == operator && (alone || r.IntN(2) == 0):
			f = takeAway(r)
		case scenario == setBack && (alone || r.IntN(4) == 0):
			f = goBack(r, ttl, false)
		default:
			f = anyFault(r, ttl)
		}
		f.at = at
		f.lasts = min(f.lasts, faultsLast-at)
		faults = append(faults, f)
	}
	return faults
}

// upTo is a time between 0 and most, more often short than long.
func upTo(r *rand.Rand, most time.Duration) time.Duration {
	x := r.Float64()
	return time.Duration(x * x * float64(most))
}

func anyFault(r *rand.Rand, ttl time.Duration) fault {
	switch r.IntN(16) {
	case 0, 1:
		return swallow(r, somePath(r), ttl)
	case 2, 3:
		return holdUp(r, somePath(r), ttl)
	case 4:
		return slow(r, somePath(r), ttl)
	case 5:
		return reset(r)
	case 6:
		return refuse(r, ttl)
	case 7:
		return freezeProcess(r, ttl)
	case 8:
		return kill(r, ttl)
	case 9:
		return freezeMember(r, ttl)
	case 10:
		return cut(r, ttl)
	case 11:
		return restart(r, ttl)
	case 12:
		return lag(r, ttl)
	case 13:
		return atOnce(r)
	default:
		return slowThenCut(r, ttl)
	}
}

// ---- the network

// A path is the set of lanes that a fault affects: between a process and one member or all
// of them, one way or both.
type path struct {
	slot     int
	members  []int
	up, down bool
}

func somePath(r *rand.Rand) path {
	p := path{slot: r.IntN(processes), up: true, down: true}
	p.members = everyMember()
	if r.IntN(2) == 0 {
		p.members = []int{r.IntN(members)}
	}
	switch r.IntN(3) {
	case 0:
		p.up = false
	case 1:
		p.down = false
	}
	return p
}

func everyMember() []int {
	var all []int
	for i := range members {
		all = append(all, i)
	}
	return all
}

func (p path) String() string {
	to, way := "all members", "and back"
	if len(p.members) == 1 {
		to = fmt.Sprint("m", p.members[0])
	}
	switch {
	case !p.up:
		way = "back only"
	case !p.down:
		way = "one way"
	}
	return fmt.Sprintf("p%d to %s %s", p.slot, to, way)
}

// theOperators is the slot of the operator that recalls, behind those of the processes.
const theOperators = processes

// process is the name of the process at the beginning of the path.
func (p path) process(w *world) string {
	if p.slot == theOperators {
		return byOperator
	}
	return w.at(p.slot).name
}

// each calls f for every lane of the path.
func (p path) each(process string, f func(from, to string)) {
	for _, i := range p.members {
		member := fmt.Sprint("m", i)
		if p.up {
			f(process, member)
		}
		if p.down {
			f(member, process)
		}
	}
}

// onPath is a fault that begins and ends on every lane of a path.
func onPath(
	p path, what string, lasts time.Duration, begin, end func(n *Net, from, to string),
) fault {
	return fault{lasts: lasts, what: fmt.Sprintf("%s: %s", what, p), start: func(w *world) func() {
		process := p.process(w)
		p.each(process, func(from, to string) { begin(w.net, from, to) })
		return func() { p.each(process, func(from, to string) { end(w.net, from, to) }) }
	}}
}

func swallow(r *rand.Rand, p path, ttl time.Duration) fault {
	if r.IntN(2) == 0 {
		p.members, p.up, p.down = everyMember(), true, true
	}
	f := onPath(p, "black hole", ttl/4+upTo(r, 3*ttl), (*Net).Lose, (*Net).Find)
	start := f.start
	f.start = func(w *world) func() {
		w.holes()
		return start(w)
	}
	return f
}

func holdUp(r *rand.Rand, p path, ttl time.Duration) fault {
	return onPath(p, "held", upTo(r, 3*ttl), (*Net).Hold, (*Net).Release)
}

func slow(r *rand.Rand, p path, ttl time.Duration) fault {
	d := upTo(r, ttl)
	return onPath(p, fmt.Sprint("slow by ", d), upTo(r, 3*ttl),
		func(n *Net, from, to string) { n.Slow(from, to, d) },
		func(n *Net, from, to string) { n.Slow(from, to, -d) })
}

// slowThenCut makes answers come later, but in time, and then not at all. A holder that
// counted its trust from an answer would believe too long.
func slowThenCut(r *rand.Rand, ttl time.Duration) fault {
	p := path{slot: r.IntN(processes), members: everyMember(), up: true, down: true}
	d, cut := ttl/6+upTo(r, ttl/2), ttl/2+upTo(r, ttl)
	what := fmt.Sprintf("answers slow by %v for %v, then black hole: %v", d, cut, p)
	return fault{lasts: cut + 2*ttl, what: what, start: func(w *world) func() {
		w.holes()
		process := w.at(p.slot).name
		answers := path{members: p.members, down: true}
		answers.each(process, func(from, to string) { w.net.Slow(from, to, d) })
		lost := false
		timer := time.AfterFunc(cut, func() {
			lost = true
			p.each(process, w.net.Lose)
		})
		return func() {
			answers.each(process, func(from, to string) { w.net.Slow(from, to, -d) })
			if !timer.Stop() && lost {
				p.each(process, w.net.Find)
			}
		}
	}}
}

// troubles are faults of the operator's network: its recalls come late, or never.
func troubles(seed uint64, ttl time.Duration) (faults []fault) {
	r := generator(seed, "troubles")
	for at := upTo(r, time.Second); at < faultsLast; at += upTo(r, ttl) + 100*time.Millisecond {
		p := somePath(r)
		p.slot = theOperators
		f := []func(*rand.Rand, path, time.Duration) fault{swallow, holdUp, slow}[r.IntN(3)](r, p, ttl)
		f.at, f.lasts = at, min(f.lasts, faultsLast-at)
		faults = append(faults, f)
	}
	return faults
}

// silence makes one member silent, for one process or for all.
func silence(r *rand.Rand) []fault {
	member, way := r.IntN(members), r.IntN(3)
	slots := []int{0, 1, 2}
	if r.IntN(2) == 0 {
		slots = slots[r.IntN(processes):][:1]
	}
	at := upTo(r, 4*time.Second)
	var faults []fault
	for _, slot := range slots {
		p := path{slot: slot, members: []int{member}, up: way != 0, down: way != 1}
		f := onPath(p, "black hole", faultsLast-at, (*Net).Lose, func(*Net, string, string) {})
		f.at = at
		faults = append(faults, f)
	}
	return faults
}

func reset(r *rand.Rand) fault {
	p := somePath(r)
	p.up, p.down = true, false // each connection once
	return onPath(p, "reset", 0, (*Net).Reset, func(*Net, string, string) {})
}

func refuse(r *rand.Rand, ttl time.Duration) fault {
	p := somePath(r)
	p.up, p.down = true, false
	return onPath(p, "reset and refused", upTo(r, 2*ttl), func(n *Net, process, member string) {
		n.Refuse(process, member, true)
		n.Reset(process, member)
	}, func(n *Net, process, member string) { n.Refuse(process, member, false) })
}

// ---- processes

// freezeProcess stops a process: its bytes wait, both ways, and so do its workers. Its
// timers run on, unlike those of a process that is really stopped.
func freezeProcess(r *rand.Rand, ttl time.Duration) fault {
	p := path{slot: r.IntN(processes), members: everyMember(), up: true, down: true}
	return fault{lasts: upTo(r, 3*ttl), what: fmt.Sprintf("frozen: p%d", p.slot),
		start: func(w *world) func() {
			process := w.at(p.slot)
			process.freeze()
			p.each(process.name, w.net.Hold)
			return func() {
				p.each(process.name, w.net.Release)
				process.thaw()
			}
		}}
}

// kill ends a process without a word to anybody, and starts another one in its place.
func kill(r *rand.Rand, ttl time.Duration) fault {
	p := path{slot: r.IntN(processes), members: everyMember(), up: true, down: true}
	return fault{lasts: upTo(r, ttl), what: fmt.Sprintf("killed: p%d", p.slot),
		start: func(w *world) func() {
			process := w.at(p.slot)
			if process.isDead() {
				return func() {}
			}
			process.die()
			if !process.side.judged && w.side.judged {
				_ = process.client.Close() // no call of the peer then waits for an answer
			}
			p.each(process.name, w.net.Lose)
			return func() { w.start(p.slot, process.name+"'") }
		}}
}

// ---- members

// onMember is a fault of one member.
func onMember(i int, what string, lasts time.Duration, begin, end func(c *Cluster, i int)) fault {
	return fault{lasts: lasts, what: fmt.Sprintf("%s: m%d", what, i), start: func(w *world) func() {
		begin(w.cluster, i)
		return func() { end(w.cluster, i) }
	}}
}

func freezeMember(r *rand.Rand, ttl time.Duration) fault {
	i := r.IntN(members)
	return fault{lasts: upTo(r, 3*ttl), what: fmt.Sprintf("frozen: m%d", i),
		start: func(w *world) func() {
			held := w.processNames()
			p := path{members: []int{i}, up: true, down: true}
			for _, name := range held {
				p.each(name, w.net.Hold)
			}
			w.cluster.Freeze(i)
			return func() {
				w.cluster.Thaw(i)
				for _, name := range held {
					p.each(name, w.net.Release)
				}
			}
		}}
}

func cut(r *rand.Rand, ttl time.Duration) fault {
	return onMember(r.IntN(members), "cut off from the others", upTo(r, 3*ttl), (*Cluster).Cut,
		(*Cluster).Heal)
}

func lag(r *rand.Rand, ttl time.Duration) fault {
	d := upTo(r, ttl)
	return onMember(r.IntN(members), fmt.Sprintf("behind by %v", d), upTo(r, 3*ttl),
		func(c *Cluster, i int) { c.Lag(i, d) }, func(c *Cluster, i int) { c.Lag(i, 0) })
}

func restart(r *rand.Rand, ttl time.Duration) fault {
	i := r.IntN(members)
	return fault{lasts: 100*time.Millisecond + upTo(r, ttl), what: fmt.Sprint("down: m", i),
		start: func(w *world) func() {
			return w.kill(i)
		}}
}

// kill ends a member's process until boot.
func (w *world) kill(i int) (boot func()) {
	member := fmt.Sprint("m", i)
	refused := w.processNames()
	w.cluster.Kill(i)
	for _, name := range refused {
		w.net.Refuse(name, member, true)
		w.net.Reset(name, member)
	}
	return func() {
		w.cluster.Boot(i)
		for _, name := range refused {
			w.net.Refuse(name, member, false)
		}
	}
}

// busy makes etcd take long for an entry, for nearly all the time that there are faults.
func busy(entry time.Duration) fault {
	return fault{
		at: 200 * time.Millisecond, lasts: faultsLast - 200*time.Millisecond,
		what: fmt.Sprintf("each entry takes %v", entry),
		start: func(w *world) func() {
			w.cluster.Busy(entry)
			return func() { w.cluster.Busy(0) }
		},
	}
}

// repeated makes transactions come twice, for nearly all the time that there are faults.
func repeated(late time.Duration) fault {
	return fault{
		at: 100 * time.Millisecond, lasts: faultsLast - 100*time.Millisecond,
		what: fmt.Sprintf("some transactions come again up to %v later", late),
		start: func(w *world) func() {
			w.cluster.Repeat(late)
			return func() { w.cluster.Repeat(0) }
		},
	}
}

// atOnce is a fault of the whole cluster in an instant.
func atOnce(r *rand.Rand) fault {
	if r.IntN(2) == 0 {
		return fault{what: "compacted", start: func(w *world) func() {
			w.cluster.Compact()
			return func() {}
		}}
	}
	return fault{what: "leader moved", start: func(w *world) func() {
		w.cluster.MoveLeader()
		return func() {}
	}}
}

// ---- the operator

// takeAway deletes a key or revokes its lease. The key is that of a holder more often than
// that of a waiter.
func takeAway(r *rand.Rand) fault {
	lock, nth, lease := r.IntN(2), r.IntN(2)*r.IntN(3), r.IntN(3) == 0
	what := fmt.Sprintf("deleted: the key of number %d in line %d", nth+1, lock+1)
	if lease {
		what = fmt.Sprintf("revoked: the lease of number %d in line %d", nth+1, lock+1)
	}
	return fault{what: what, start: func(w *world) func() {
		var kv *mvccpb.KeyValue
		w.cluster.Now(func(v fake.View) {
			if kvs := contenders(v, w.names[lock]); nth < len(kvs) {
				kv = kvs[nth]
			}
		})
		switch {
		case kv == nil:
		case lease:
			w.cluster.RevokeLease(kv.Lease)
		default:
			w.cluster.DeleteKey(string(kv.Key))
		}
		return func() {}
	}}
}

// goBack takes a snapshot. Later it stops all members and restores them from it. One process may
// reach them later than the others do. If plain is set each client can tell by the cluster's id.
func goBack(r *rand.Rand, ttl time.Duration, plain bool) fault {
	age, down := upTo(r, 3*time.Second), 10*time.Millisecond+upTo(r, ttl)
	wiped, another, passed := r.IntN(4) == 0, r.IntN(2) == 0, r.IntN(3) == 0
	if plain {
		wiped, another, passed = false, true, false
	}
	slot, late := r.IntN(processes), time.Duration(r.IntN(2))*upTo(r, 2*ttl)
	what := fmt.Sprintf("set back by %v, wiped %v, another cluster %v, passed %v, p%d %v later", age,
		wiped, another, passed, slot, late)
	return fault{lasts: age + down, what: what, start: func(w *world) func() {
		snapshot := w.cluster.Snapshot(wiped)
		var mu sync.Mutex
		var boots []func()
		over := false
		back := time.AfterFunc(age, func() {
			mu.Lock()
			defer mu.Unlock()
			if over {
				return
			}
			for i := range members {
				boots = append(boots, w.kill(i))
			}
			w.cluster.SetBack(snapshot, another, passed, w.raises && !another && !passed)
		})
		return func() {
			back.Stop()
			mu.Lock()
			defer mu.Unlock()
			over = true
			for _, boot := range boots {
				boot()
			}
			if len(boots) > 0 && late > 0 {
				w.shutOut(w.at(slot).name, late)
			}
		}
	}}
}

// shutOut has all members refuse a process for a while, at most as long as there are faults.
func (w *world) shutOut(process string, lasts time.Duration) {
	for i := range members {
		w.net.Refuse(process, fmt.Sprint("m", i), true)
		w.net.Reset(process, fmt.Sprint("m", i))
	}
	time.AfterFunc(min(lasts, time.Until(w.ends)), func() {
		for i := range members {
			w.net.Refuse(process, fmt.Sprint("m", i), false)
		}
	})
}

// ---- the course of a run

// at returns the process in a slot.
func (w *world) at(slot int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.alive[slot]
}

// processNames returns the names of all processes that there were. A lasting fault of a
// member does not strike a process that is started later; the member itself does.
func (w *world) processNames() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, p := range w.processes {
		all = append(all, p.name)
	}
	return all
}

// strike makes a fault happen.
func (w *world) strike(f fault) {
	time.Sleep(f.at)
	w.judge.note("fault: %s, for %v", f.what, f.lasts)
	w.mu.Lock()
	w.faults++
	w.mu.Unlock()
	stop := f.start(w)
	time.Sleep(f.lasts)
	stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults--
	w.calmSince = time.Now()
}

// aftermath is how long the effects of a fault may be felt after it.
const aftermath = 5 * time.Second

// faulty reports whether there are faults, or were a moment ago.
func (w *world) faulty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.judge.strict && (w.faults > 0 || time.Since(w.calmSince) < aftermath)
}

// holes records that connections lose bytes. That is felt until they are reset.
func (w *world) holes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults++
}

// heal ends what faults have left. It resets connections with holes, as TCP does in the
// end. In some runs those of one process to one member stay as they are for ever.
func (w *world) heal() {
	r := generator(w.seed, "heal")
	forever := r.IntN(4) == 0 && w.peer < 0 // the peer may wait for ever there
	process, member := w.at(r.IntN(processes)).name, fmt.Sprint("m", r.IntN(members))
	w.net.ResetHoles(func(p, m string) bool {
		return w.scenario == silent || forever && p == process && m == member
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults, w.calmSince = 0, time.Now()
	w.judge.note("faults are over")
}

const closing = 5 * time.Second

// patience is how long the workers may take for all that they have to do: they get in one
// after the other, in each way, everywhere. While a member is silent, each of these may
// cost the time after which a request is repeated.
func (w *world) patience() time.Duration {
	holds := 0
	for _, p := range w.processes {
		holds += p.last
	}
	return time.Duration(w.times)*3*time.Minute + w.lockDelay() + w.bound() +
		time.Duration(holds)*w.ttl/3
}

// settle waits for the workers, and judges what they leave behind.
func (w *world) settle() {
	back, patience := make(chan struct{}), w.patience()
	go func() { // ends with the workers
		w.workers.Wait()
		close(back)
	}()
	select {
	case <-back:
	case <-time.After(patience):
		w.judge.violated(stuck, "workers are not back %v after the faults", patience)
	}
	// What the workers gave up at the last moment is being removed.
	for wait := time.Duration(0); wait < closing && w.judge.keysLeft() > 0; wait += closing / 20 {
		time.Sleep(closing / 20)
	}
	w.judge.noKeys("before Close")
	for _, p := range w.processes {
		if p.isDead() {
			continue
		}
		for _, s := range p.sessions {
			ctx, cancel := context.WithTimeout(context.Background(), closing)
			w.judge.note("%s closes a Session", p.name)
			if err := s.Close(ctx); err != nil && p.side.judged {
				w.judge.violated(left, "%s: %v", p.name, err)
			}
			cancel()
		}
	}
	// By then the leases have expired of processes that died, and those whose grant had no
	// answer.
	time.Sleep(w.bound())
	w.judge.noKeys("in the end")
	w.judge.noLeases("in the end")
	w.followed()
	w.unfollow()
	w.following.Wait()
	w.judge.rest()

	for _, p := range w.processes {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if p.isDead() && p.side.judged {
			for _, s := range p.sessions {
				_ = s.Close(ctx) // nobody learns of it
			}
		}
		_ = p.client.Close()
	}
	<-back
	w.net.Close()
	w.cluster.Stop()
}
