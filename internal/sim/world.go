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

	// faultsLast is how long there are faults. After that all is well, and everybody must
	// get in everywhere.
	faultsLast = 8 * time.Second
)

// A world is one run: a cluster, a network, and processes that contend for locks.
type world struct {
	seed     uint64
	side     Side
	bug      bug // from which etcd suffers
	scenario scenario
	story    story
	names    []string      // of two locks that must not block each other
	peer     int           // the slot of the process that uses the peer; -1 if there is none
	reading  int           // in the family's story: how many of ten contenders read
	several  int           // likewise, how many want several names at once
	leading  int           // likewise, how many are candidates
	times    int           // how many times as many goroutines there are as usual
	recalls  bool          // an operator recalls holds and waiters
	informs  bool          // holders change their infos
	asks     bool          // likewise, some waits ask the holder, and some holds do not listen
	permits  int           // likewise, how many want permits
	limit    int           // the number of permits, 0 without any; some processes count on one less
	keeping  int           // likewise, how many of ten holds of a Mutex have a least time
	longest  bool          // likewise, some Sessions bound how long their holds last
	watched  bool          // likewise, each process follows who holds
	each     int           // goroutines of each Session
	ttl      time.Duration // that Sessions ask for, if they do not differ
	mostTTL  time.Duration // that Sessions have
	raises   bool          // a restore raises the revision
	crowd    int           // Sessions of each process, if more stand in a line than a view is for
	round    bool          // all lock one name, again and again
	brisk    bool          // holds and pauses are short, so that names are used again
	many     bool          // names, and goroutines that pause only briefly
	rush     bool          // many in each Session, and at first all lock one name with little time
	net      *Net
	cluster  *Cluster
	judge    *judge
	ends     time.Time // of the faults
	schedule []fault
	workers  sync.WaitGroup
	meetings meetings

	ctx       context.Context // of the followers
	unfollow  context.CancelFunc
	following sync.WaitGroup

	mu        sync.Mutex // never held across a wait
	followers []*follower
	processes []*process // those that died, too
	alive     []*process // by slot
	faults    int        // that have not ended
	calmSince time.Time  // since when there have been no faults
}

// A process is a client with one or two Sessions, and the goroutines that use them.
type process struct {
	w      *world
	name   string
	side   Side
	client *clientv3.Client
	rate   float64 // of the leases' lives
	limit  int     // the limit of permits on which it counts; 0 if nobody wants any
	last   int     // how many holds its workers take after the faults

	lasting  int       // how many Sessions it has from the beginning to the end
	sessions []session // those and the brief ones; guarded by world.mu

	mu     sync.Mutex // never held across a wait
	frozen int
	thawed chan struct{} // closed, and replaced, when frozen becomes 0
	dead   bool
}

// A story says who contends in a world.
type story string

// The stories.
const (
	mutexes story = "mutexes"
	family  story = "family" // mutexes, writers, readers and the peer
	traced  story = "traced" // what the specification has; see newTraced
)

// newFamily draws a seed's world in which all kinds contend.
func newFamily(seed uint64) *world {
	w := newWorld(seed, Ours)
	r := generator(seed, "family")
	w.story, w.each = family, w.each+r.IntN(3)
	w.reading = []int{5, 7, 9}[r.IntN(3)]
	w.several, w.recalls = r.IntN(4), r.IntN(2) == 0
	w.informs = generator(seed, "infos").IntN(3) == 0
	if r.IntN(3) == 0 {
		w.reading, w.permits, w.limit = w.reading/3, w.reading-w.reading/3, 1+r.IntN(4)
	}
	if r.IntN(3) == 0 && w.scenario != silent && !w.many { // there the peer waits for ever
		w.peer, w.names = r.IntN(processes), Theirs.names
	}
	if r.IntN(3) == 0 { // those who want several need not all want the same
		w.names = append(slices.Clone(w.names), "c")
	}
	w.leading = r.IntN(3)
	if w.scenario == mixed && r.IntN(4) == 0 {
		w.schedule = append(w.schedule, busy([]time.Duration{20, 150}[r.IntN(2)]*time.Millisecond))
	}
	if w.scenario == calm && r.IntN(2) == 0 {
		w.judge.slow = time.Duration(100+r.IntN(300)) * time.Millisecond
		if w.crowd > 0 {
			// Of the trust in a lease, which counts from before there is a connection, four answers must
			// leave enough for the last of more renewals than begin their streams at once.
			w.judge.slow = min(w.judge.slow, 350*time.Millisecond)
		}
	}
	// Where many ask, an answer takes longer.
	if r.IntN(8) == 0 && w.crowd == 0 && !w.many && w.scenario != silent {
		w.rush, w.each = true, 6+r.IntN(7)
		w.several, w.leading = 0, 0
		if w.limit > 0 {
			w.reading, w.permits = 0, 9
		} else {
			w.reading = 9
		}
	}
	if w.asks = w.recalls && r.IntN(2) == 0; w.asks {
		w.judge.asking, w.judge.grace = true, grace(r)
	}
	if r := generator(seed, "outlasting"); !w.rush {
		w.keeping = []int{0, 0, 3, 3, 5, 8}[r.IntN(6)]
		if w.outlasts() && r.IntN(2) == 0 {
			w.reading, w.permits = w.reading/3, w.permits/3
		}
	}
	r = generator(seed, "longest")
	w.longest = !w.outlasts() && r.IntN(3) == 0
	w.watched = w.scenario != setBack && r.IntN(4) == 0 // where tokens may go back
	if w.recalls && !w.judge.peaceful {
		w.schedule = append(w.schedule, troubles(seed, w.ttl)...)
	}
	w.judge.names = w.names
	return w
}

// outlasts reports whether keys outlast their holds.
func (w *world) outlasts() bool { return w.keeping > 0 }

// newWorld draws the world of a seed. Call it inside the bubble in which the world runs.
func newWorld(seed uint64, side Side) *world {
	r := generator(seed, "world")
	w := &world{
		seed: seed, side: side, scenario: scenarioOf(seed),
		story: mutexes, names: side.names, peer: -1, each: workers, times: 1,
		ttl:  time.Duration(2+r.IntN(2)) * time.Second,
		net:  NewNet(seed),
		ends: time.Now().Add(faultsLast),
	}
	w.cluster = NewCluster(seed, w.net, members)
	w.judge = newJudge(side, w.cluster)
	w.judge.calm = w.scenario == calm
	w.judge.peaceful = w.scenario == calm || w.scenario == silent
	w.judge.goesBack = w.scenario == setBack
	w.judge.mayGoBack = w.scenario == setBack || w.scenario == operator
	w.judge.strict = w.scenario == operator && seed/4%2 == 0
	w.judge.faulty = w.faulty
	w.judge.sharing = r.IntN(2) == 0
	if r.IntN(16) == 0 {
		w.crowd = crowd
	}
	if generator(seed, "names").IntN(8) == 0 && side.judged && w.crowd == 0 {
		w.many, w.each = true, 3*workers
		w.names = append(slices.Clone(w.names), "d", "e", "f", "g", "h", "i")
		w.judge.names = w.names
	}
	if w.scenario == blackHole {
		w.judge.stale = w.ttl*3/4 + soon // as long as one attempt
	}
	w.mostTTL = w.ttl
	if r := generator(seed, "set back"); w.scenario == setBack && side.judged {
		w.raises = r.IntN(2) == 0
		if r.IntN(2) == 0 {
			w.mostTTL = []time.Duration{20 * time.Second, 2 * time.Minute, 10 * time.Minute}[r.IntN(3)]
		}
		if r.IntN(4) == 0 {
			w.cluster.leastTTL = 10
			w.mostTTL = max(w.mostTTL, 10*time.Second)
		}
	}
	w.ctx, w.unfollow = context.WithCancel(context.Background())
	w.alive = make([]*process, processes)
	w.schedule = schedule(seed, w.scenario, w.ttl)
	if r := generator(seed, "repeated"); w.scenario == mixed && r.IntN(3) == 0 {
		w.schedule = append(w.schedule, repeated(upTo(r, 2*w.ttl)))
	}
	return w
}

// run runs the schedule, and makes the judge judge everything.
func (w *world) run() {
	switch {
	case w.scenario == calm:
		// If a caller's context has ended, its put may reach etcd after the removal of its
		// key. The key then stays until the next audit of the lease's keys.
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
	faults.Go(w.meet)
	faults.Wait()
	time.Sleep(time.Until(w.ends))
	w.heal()
	w.settle()
}

// operator recalls holds and waiters while there are faults.
func (w *world) operator() {
	r := generator(w.seed, "operator")
	client, err := w.net.Client(byOperator, w.endpoints(r))
	if err != nil {
		panic(err) // it has no I/O to fail at
	}
	defer client.Close()
	for time.Now().Before(w.ends) {
		time.Sleep(10*time.Millisecond + time.Duration(r.Int64N(int64(time.Second))))
		w.recall(client, r)
	}
}

// recall recalls one contender in line, mostly the first.
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
	grace := grace(r)
	w.judge.asksBack(c.Token, grace)
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
	until := slices.IndexFunc(w.judge.log, func(line string) bool {
		return strings.Contains(line, violationMark)
	})
	for _, line := range w.judge.log[max(0, until-60) : until+1] {
		fmt.Fprintf(&b, "\t%s\n", line)
	}
	command := "go test ./internal/sim -run 'TestSimulation$' -seeds 1"
	if w.story == family {
		command = "go test ./internal/sim -run 'TestSimulationOfTheFamily$' -family-seeds 1"
	}
	if w.bug != noBug {
		command = fmt.Sprintf("go test ./internal/sim -run 'TestSimulationOfEtcdsBugs/%s$' -bug-seeds 1",
			strings.ReplaceAll(string(w.bug), " ", "_"))
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
	p.rate = 0.9 + 0.2*r.Float64()
	w.cluster.Rate(name, p.rate)
	var err error
	p.client, err = w.net.Client(name, w.endpoints(r), w.judge.trace.options(name)...)
	if err != nil {
		panic(err) // it has no I/O to fail at
	}
	if p.limit = w.limit; p.limit > 1 && w.story == family && r.IntN(4) == 0 {
		p.limit-- // as while a new limit is rolled out
	}
	shared := r.IntN(2) == 0
	sessions, workers := 1+r.IntN(2), w.each
	if w.story == traced {
		sessions = 1
	}
	if w.crowd > 0 {
		sessions, workers = w.crowd, 1
	}
	p.lasting = sessions
	for i := range sessions {
		_, opened := p.opens(r)
		s := opened.Session
		locks := w.locksOf(p, s)
		for n := range workers {
			if !shared && n > 0 {
				locks = w.locksOf(p, s)
			}
			for _, all := range locks {
				p.last += len(all)
			}
			worker := &worker{
				p: p, session: i, number: n, rand: generator(w.seed, "worker", name, fmt.Sprint(i, n)),
				most: opened.most, longest: opened.longest, locks: locks,
			}
			if w.scenario == operator && p.side.judged {
				worker.meddled = generator(w.seed, "meddled", name, fmt.Sprint(i, n))
			}
			if w.story == family {
				worker.whole = side.OurSession(s)
			}
			w.workers.Go(worker.work)
		}
	}
	if w.watched && p.side.judged {
		w.follow(p, w.names[0])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive[slot] = p
	w.processes = append(w.processes, p)
}

// endpoints returns all members, in an order of the process's own.
func (w *world) endpoints(r *rand.Rand) []string {
	var all []string
	for _, i := range r.Perm(members) {
		all = append(all, fmt.Sprint("http://m", i))
	}
	return all
}

// grace draws the grace of a recall.
func grace(r *rand.Rand) time.Duration {
	return time.Millisecond + time.Duration(r.Int64N(int64(time.Second)))
}

// sharing draws how the holds of a Session share a key and are recalled, if the side can do
// that.
func (w *world) sharing(r *rand.Rand) (opts []etcdlock.SessionOption, most time.Duration) {
	handoff, linger := r.IntN(4),
		[]time.Duration{0, 100 * time.Millisecond, 3 * time.Second}[r.IntN(3)]
	if w.recalls && !(w.asks && r.IntN(4) == 0) {
		most = time.Millisecond + time.Duration(r.Int64N(int64(2*time.Second)))
		opts = append(opts, etcdlock.WithRecall(most))
	}
	if w.asks && r.IntN(3) > 0 {
		asks := etcdlock.RecallRequest{By: byWaiter, Grace: w.judge.grace}
		opts = append(opts, etcdlock.WithAsk(asks))
	}
	if !w.judge.sharing {
		return opts, most
	}
	opts = append(opts, etcdlock.WithHandoff(handoff))
	if linger > 0 {
		opts = append(opts, etcdlock.WithLinger(linger))
	}
	return opts, most
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

// allGetIn is when everything under way during the faults has arrived or was given up.
func (w *world) allGetIn() time.Time { return w.ends.Add(w.mostTTL) }

// bound is how long a lock may be held by no living process after the faults. The leases of
// dead processes expire, and a new leader may just have restarted their TTLs. A request
// that meets a silent member is repeated.
func (w *world) bound() time.Duration {
	return w.mostTTL*11/10 + electionTimeout + expiryStep + 5*time.Second
}
