package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

const (
	members   = 3
	processes = 3
	workers   = 2 // goroutines of each Session, in the mutexes' story
	crowd     = 5 // Sessions of a process in a crowded world, of one goroutine each

	// faultsLast is how long there are faults. After that all is well, and everybody
	// must get in everywhere.
	faultsLast = 8 * time.Second
)

// A world is one run: a cluster, a network, and processes that contend for locks.
type world struct {
	seed     uint64
	side     Side
	scenario scenario
	story    story
	names    []string // of two locks, which must not block each other
	peer     int      // the slot of the process that uses the peer, beside ours; -1 if none does
	reading  int      // of ten contenders how many read, in the family's story
	recalls  bool     // an operator recalls holds, and waits
	several  int      // likewise, how many want all names at once
	permits  int      // likewise, how many want permits
	limit    int      // of these, 0 if nobody wants any; some processes count on one less
	each     int      // goroutines of each Session
	ttl      time.Duration
	crowd    int  // Sessions of each process, if more stand in a line than a view is for
	round    bool // all lock one name, again and again
	net      *Net
	cluster  *Cluster
	judge    *judge
	ends     time.Time // of the faults
	schedule []fault
	workers  sync.WaitGroup

	mu        sync.Mutex // never held across a wait
	processes []*process // those that died, too
	alive     []*process // by slot
	faults    int        // that last
	calmSince time.Time  // no faults since
}

// A process is a client with one or two Sessions, and the goroutines that use them.
type process struct {
	w        *world
	name     string
	side     Side
	client   *clientv3.Client
	sessions []side.Session
	limit    int // on which it counts; 0 if nobody wants permits

	mu     sync.Mutex // never held across a wait
	frozen int
	thawed chan struct{} // closed, and replaced, when frozen becomes 0
	dead   bool
}

// A worker is one goroutine of a process.
type worker struct {
	p       *process
	session int
	number  int
	rand    *rand.Rand
	locks   map[string][]contender // by name
	whole   *etcdlock.Session      // in the family's story, of this library
}

func (w *worker) String() string { return fmt.Sprintf("%s.%d.%d", w.p.name, w.session, w.number) }

// line names the local line that the worker waits in for a lock.
func (w *worker) line(name string) string { return fmt.Sprintf("%s.%d %s", w.p.name, w.session, name) }

// A story is who contends in a world.
type story string

// The stories.
const (
	mutexes story = "mutexes"
	family  story = "family" // mutexes, those who write, those who read; and the peer
)

// newFamily draws the world of a seed in which all kinds contend.
func newFamily(seed uint64) *world {
	w := newWorld(seed, Ours)
	r := generator(seed, "family")
	w.story, w.each = family, 2+r.IntN(3)
	w.reading = []int{5, 7, 9}[r.IntN(3)]
	w.several, w.recalls = r.IntN(4), r.IntN(2) == 0
	if r.IntN(3) == 0 {
		w.reading, w.permits, w.limit = w.reading/3, w.reading-w.reading/3, 1+r.IntN(4)
	}
	if r.IntN(3) == 0 && w.scenario != silent { // where the peer would wait for ever
		w.peer, w.names = r.IntN(processes), Theirs.names
	}
	if w.scenario == mixed && r.IntN(4) == 0 {
		w.schedule = append(w.schedule, busy([]time.Duration{20, 150}[r.IntN(2)]*time.Millisecond))
	}
	if w.scenario == calm && r.IntN(2) == 0 {
		w.judge.slow = time.Duration(100+r.IntN(300)) * time.Millisecond
	}
	w.judge.names = w.names
	return w
}

// newWorld draws the world of a seed. Make it inside the bubble that it runs in.
func newWorld(seed uint64, side Side) *world {
	r := generator(seed, "world")
	w := &world{
		seed: seed, side: side, scenario: scenarioOf(seed),
		story: mutexes, names: side.names, peer: -1, each: workers,
		ttl:  time.Duration(2+r.IntN(2)) * time.Second,
		net:  NewNet(seed),
		ends: time.Now().Add(faultsLast),
	}
	w.cluster = NewCluster(seed, w.net, members)
	w.judge = newJudge(side, w.cluster)
	w.judge.peaceful = w.scenario == calm || w.scenario == silent
	w.judge.strict = w.scenario == operator && seed/4%2 == 0
	w.judge.faulty = w.faulty
	w.judge.sharing = r.IntN(2) == 0
	if r.IntN(16) == 0 {
		w.crowd = crowd
	}
	if w.scenario == blackHole {
		w.judge.stale = w.ttl*3/4 + soon // as long as one attempt
	}
	w.alive = make([]*process, processes)
	w.schedule = schedule(seed, w.scenario, w.ttl)
	return w
}

// run runs the schedule, and has everything judged.
func (w *world) run() {
	switch {
	case w.scenario == calm:
		// A request that comes after the removal of what it puts, when its caller's
		// context has ended, leaves a key until the next look at the lease's keys.
		w.judge.watchTurns(1300*time.Millisecond + 4*w.judge.slow)
	case w.scenario == silent:
		w.judge.watchTurns(5 * time.Second)
	default:
		time.AfterFunc(faultsLast, func() { w.judge.watchTurns(w.bound()) })
	}
	for slot := range processes {
		w.start(slot, fmt.Sprint("p", slot))
	}
	var faults sync.WaitGroup
	for _, f := range w.schedule {
		faults.Go(func() { w.strike(f) })
	}
	if w.recalls {
		faults.Go(w.operator)
	}
	faults.Wait()
	time.Sleep(time.Until(w.ends))
	w.heal()
	w.settle()
}

// operator recalls holds and waits while there are faults.
func (w *world) operator() {
	r := generator(w.seed, "operator")
	client, err := w.net.Client(byOperator, w.endpoints(r))
	if err != nil {
		panic(err) // no I/O is done
	}
	defer client.Close()
	for time.Now().Before(w.ends) {
		time.Sleep(10*time.Millisecond + time.Duration(r.Int64N(int64(time.Second))))
		w.recall(client, r)
	}
}

// recall recalls one in line, mostly the first.
func (w *world) recall(client *clientv3.Client, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	line, err := etcdlock.Contenders(ctx, client, w.names[r.IntN(len(w.names))])
	if err != nil || len(line) == 0 {
		return
	}
	c := line[0]
	if r.IntN(3) == 0 {
		c = line[r.IntN(len(line))]
	}
	grace := time.Duration(r.Int64N(int64(time.Second)))
	err = etcdlock.Recall(ctx, client, c, etcdlock.RecallRequest{By: byOperator, Grace: grace})
	w.judge.note("recall of %s, token %d, with %v: %v", c.Key, c.Token, grace, err)
	if err == nil && w.scenario == calm {
		w.judge.recalled(c.Key, c.Token, noticeable+4*w.judge.slow)
	}
}

// failedLine begins the report of a seed that failed.
const failedLine = "sim: seed "

// report tells what broke, and how.
func (w *world) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, failedLine+"%d failed: %s\n", w.seed, w.judge.violations[0].invariant)
	for _, v := range w.judge.violations {
		fmt.Fprintf(&b, "\t%s: %s\n", v.invariant, v.text)
	}
	fmt.Fprintf(&b, "scenario: %s, TTL %v, faults:\n", w.scenario, w.ttl)
	for _, f := range w.schedule {
		fmt.Fprintf(&b, "\t%v\n", f)
	}
	b.WriteString("what happened until then:\n")
	until := slices.IndexFunc(w.judge.log, func(line string) bool { return strings.Contains(line, violationMark) })
	for _, line := range w.judge.log[max(0, until-60) : until+1] {
		fmt.Fprintf(&b, "\t%s\n", line)
	}
	command := "go test ./internal/sim -run 'TestSimulation$' -seeds 1"
	if w.story == family {
		command = "go test ./internal/sim -run 'TestSimulationOfTheFamily$' -family-seeds 1"
	}
	fmt.Fprintf(&b, "repeat: %s -first %d -count 20 -log\n", command, w.seed)
	return b.String()
}

// start starts a process.
func (w *world) start(slot int, name string) {
	p := &process{w: w, name: name, side: w.side, thawed: make(chan struct{})}
	if slot == w.peer {
		p.side = Theirs
		w.judge.leavesOut(name)
	}
	answers := path{members: everyMember(), down: true}
	answers.each(name, func(from, to string) { w.net.Slow(from, to, w.judge.slow) })
	r := generator(w.seed, "process", name)
	w.cluster.Rate(name, 0.9+0.2*r.Float64())
	var err error
	p.client, err = w.net.Client(name, w.endpoints(r))
	if err != nil {
		panic(err) // no I/O is done
	}
	if p.limit = w.limit; p.limit > 1 && r.IntN(4) == 0 {
		p.limit-- // as while a new limit is rolled out
	}
	shared := r.IntN(2) == 0
	sessions, workers := 1+r.IntN(2), w.each
	if w.crowd > 0 {
		sessions, workers = w.crowd, 1
	}
	for i := range sessions {
		s, err := p.side.open(p.client, w.ttl, w.sharing(r))
		if err != nil {
			panic(err)
		}
		p.sessions = append(p.sessions, s)
		locks := w.locksOf(p, s)
		for n := range workers {
			if !shared && n > 0 {
				locks = w.locksOf(p, s)
			}
			worker := &worker{p: p, session: i, number: n, rand: generator(w.seed, "worker", name, fmt.Sprint(i, n)), locks: locks}
			if w.story == family {
				worker.whole = side.OurSession(s)
			}
			w.workers.Go(worker.work)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive[slot] = p
	w.processes = append(w.processes, p)
}

// endpoints are all members, in an order of the process's own.
func (w *world) endpoints(r *rand.Rand) []string {
	var all []string
	for _, i := range r.Perm(members) {
		all = append(all, fmt.Sprint("http://m", i))
	}
	return all
}

// sharing draws how the holds of a Session share a key, for the side that can.
func (w *world) sharing(r *rand.Rand) (opts []etcdlock.Option) {
	handoff, linger := r.IntN(4), []time.Duration{0, 100 * time.Millisecond, 3 * time.Second}[r.IntN(3)]
	if w.recalls {
		opts = append(opts, etcdlock.WithRecall(1+time.Duration(r.Int64N(int64(2*time.Second)))))
	}
	if !w.judge.sharing {
		return opts
	}
	opts = append(opts, etcdlock.WithHandoff(handoff))
	if linger > 0 {
		opts = append(opts, etcdlock.WithLinger(linger))
	}
	return opts
}

func (w *world) locksOf(p *process, s side.Session) map[string][]contender {
	locks := make(map[string][]contender)
	for _, name := range w.names {
		locks[name] = w.contendersOf(p, s, name)
	}
	return locks
}

// ---- the life of a process

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *process) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
}

func (p *process) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen++
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen--; p.frozen == 0 {
		close(p.thawed)
		p.thawed = make(chan struct{})
	}
}

// goesOn waits while the process is frozen, and reports whether it lives.
func (p *process) goesOn() bool {
	for {
		p.mu.Lock()
		frozen, dead, thawed := p.frozen > 0, p.dead, p.thawed
		p.mu.Unlock()
		if dead || !frozen {
			return !dead
		}
		<-thawed
	}
}

// ---- the life of a worker

// upTo is a time between 0 and most, more often short than long.
func (w *worker) upTo(most time.Duration) time.Duration {
	x := w.rand.Float64()
	return time.Duration(x * x * float64(most))
}

// work locks what it can while there are faults, and afterwards must get in everywhere.
func (w *worker) work() {
	world := w.p.w
	time.Sleep(w.upTo(500 * time.Millisecond))
	for w.p.goesOn() && time.Now().Before(world.ends) {
		wait := w.upTo(4 * world.ttl)
		if world.scenario == silent {
			wait += 10 * time.Second // long enough for a missed event to be seen
		}
		name, pause := world.names[w.rand.IntN(len(world.names))], time.Second
		if world.round {
			name, pause = world.names[0], pause/100
		}
		if w.whole != nil && w.rand.IntN(10) < world.several {
			w.all(wait)
		} else {
			w.once(name, wait)
		}
		time.Sleep(w.upTo(pause))
	}
	time.Sleep(time.Until(world.allGetIn()))
	for _, name := range world.names {
		if !w.p.goesOn() {
			return
		}
		for _, c := range w.locks[name] {
			w.getsIn(name, c)
		}
	}
}

// picks draws in which way the worker asks for a name.
func (w *worker) picks(name string) contender {
	all := w.locks[name]
	if len(all) == 1 {
		return all[0]
	}
	const alone = 2 // that hold alone: a mutex and a writer
	switch n := w.rand.IntN(10); {
	case n < w.p.w.reading:
		return all[len(all)-1]
	case n < w.p.w.reading+w.p.w.permits:
		return all[alone+w.rand.IntN(len(all)-alone-1)]
	default:
		return all[w.rand.IntN(alone)]
	}
}

// once takes a lock, in one of the ways that there are, and works in it.
func (w *worker) once(name string, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	judge, began := w.p.w.judge, time.Now()
	lock := w.picks(name)
	way := w.rand.IntN(10)
	c := judge.asks(w, name, lock.kind(), ctx, way < 2)
	if 2 <= way && way < 4 {
		w.does(ctx, name, lock, c, wait)
		return
	}
	h, err := lock.lock(ctx, way < 2)
	judge.took(w, "lock "+name, began, wait)
	if err != nil {
		judge.failed(w, name, c, err)
		return
	}
	b := judge.enters(w, name, h, c)
	w.holds(b)

	ctx, cancel, bound := w.unlockContext()
	defer cancel()
	began = time.Now()
	certain := w.leaves(b)
	err = h.unlock(ctx)
	judge.took(w, "unlock "+name, began, bound)
	certain.judge(err)
}

// all takes all names at once, in any order.
func (w *worker) all(wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	judge, began := w.p.w.judge, time.Now()
	names := slices.Clone(w.p.w.names)
	w.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	lock, try := w.whole.LockAll, w.rand.IntN(5) == 0
	if try {
		lock = w.whole.TryLockAll
	}
	calls := make([]*call, len(names))
	for i, name := range names {
		calls[i] = judge.asks(w, name, alone{}, ctx, try)
	}
	h, err := holdOf(lock(ctx, names...))
	judge.took(w, fmt.Sprint("lock ", names), began, wait)
	if err != nil {
		for i, name := range names {
			judge.failed(w, name, calls[i], err)
		}
		return
	}
	var held []*belief
	for i, name := range names {
		held = append(held, judge.enters(w, name, h, calls[i]))
	}
	judge.together(held)
	for _, b := range held[1:] {
		defer context.AfterFunc(h.ctx, func() { judge.ends(b) })()
	}
	w.holds(held[0])

	ctx, cancel, bound := w.unlockContext()
	defer cancel()
	began = time.Now()
	var certain []leaving
	for _, b := range held {
		certain = append(certain, w.leaves(b))
	}
	err = h.unlock(ctx)
	judge.took(w, fmt.Sprint("unlock ", names), began, bound)
	for _, c := range certain {
		c.judge(err)
	}
}

// does is once by Do.
func (w *worker) does(ctx context.Context, name string, lock contender, c *call, wait time.Duration) {
	judge, began := w.p.w.judge, time.Now()
	var b *belief
	var certain leaving
	var left time.Time
	called, err := lock.do(ctx, func(h *hold) {
		judge.took(w, "lock "+name, began, wait)
		b = judge.enters(w, name, h, c)
		w.holds(b)
		left = time.Now()
		certain = w.leaves(b)
	})
	if !called {
		judge.took(w, "lock "+name, began, wait)
		judge.failed(w, name, c, err)
		return
	}
	bound := w.p.w.ttl
	if deadline, _ := ctx.Deadline(); deadline.After(left) {
		bound = deadline.Sub(left)
	}
	judge.took(w, "unlock "+name, left, bound)
	certain.judge(err)
}

// holds is the critical section: it lasts for a while, or until the hold is lost, which
// the worker is slow to see.
func (w *worker) holds(b *belief) {
	judge := w.p.w.judge
	stop := context.AfterFunc(b.hold.ctx, func() { judge.ends(b) })
	defer stop()
	most := 2 * w.p.w.ttl
	if w.p.w.round {
		most /= 50
	}
	done := time.NewTimer(w.whileFaulty(most))
	defer done.Stop()
	select {
	case <-done.C:
	case <-b.hold.ctx.Done():
		time.Sleep(w.whileFaulty(3 * w.p.w.ttl)) // slow to see it
	}
	w.p.goesOn()
}

// whileFaulty is upTo, but no longer than until everybody must get in.
func (w *worker) whileFaulty(most time.Duration) time.Duration {
	return min(w.upTo(most), max(0, time.Until(w.p.w.allGetIn())))
}

// allGetIn is when what was on its way under faults has arrived or been given up.
func (w *world) allGetIn() time.Time { return w.ends.Add(w.ttl) }

// A leaving is what was known when a belief was given up.
type leaving struct {
	w        *worker
	b        *belief
	whole    bool
	deadline time.Time // until when the hold was certain
}

func (w *worker) leaves(b *belief) leaving {
	l := leaving{w: w, b: b, deadline: b.hold.deadline()}
	l.whole = w.p.w.judge.leaves(b)
	return l
}

func (l leaving) judge(err error) {
	l.w.p.w.judge.unlocked(l.b, l.whole, time.Now().Before(l.deadline), err)
}

// unlockContext is a context for an Unlock, and what bounds the call.
func (w *worker) unlockContext() (ctx context.Context, cancel context.CancelFunc, bound time.Duration) {
	bound = 10 * time.Second
	switch w.rand.IntN(3) {
	case 0: // it has ended, as in a defer
		if w.p.side.judged { // which does not mind
			ctx, cancel = context.WithCancel(context.Background())
			cancel()
			return ctx, cancel, w.p.w.ttl
		}
	case 1:
		bound = time.Millisecond + w.upTo(w.p.w.ttl)
	}
	ctx, cancel = context.WithTimeout(context.Background(), bound)
	return ctx, cancel, bound
}

// getsIn takes a lock after the faults, when nothing is in the way but the others.
func (w *worker) getsIn(name string, lock contender) {
	world := w.p.w
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := world.judge.asks(w, name, lock.kind(), ctx, false)
	h, err := lock.lock(ctx, false)
	for err != nil && world.peer >= 0 && !w.p.side.judged && ctx.Err() == nil {
		time.Sleep(soon) // the peer tells of a session that has been lost since
		h, err = lock.lock(ctx, false)
	}
	if err != nil {
		world.judge.failed(w, name, c, err)
		world.judge.violated(stuck, "%s does not get %s after the faults: %v", w, name, err)
		return
	}
	b := world.judge.enters(w, name, h, c)
	time.Sleep(time.Millisecond)
	certain := w.leaves(b)
	unlocking, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	certain.judge(h.unlock(unlocking))
}

// bound is how long a lock may be held by nobody who lives after the faults: leases of
// the dead expire, whose TTLs a new leader may just have restarted, and what meets a member
// that is silent is tried again.
func (w *world) bound() time.Duration {
	return w.ttl*11/10 + electionTimeout + expiryStep + 5*time.Second
}
