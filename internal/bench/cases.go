package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/etcdlock/etcdlock/internal/side"
)

// A kind says what a case is about. The alternatives choose by it.
type kind string

const (
	uncontended kind = "uncontended"
	handover    kind = "handover"
	crowd       kind = "crowd"
	trylock     kind = "trylock"
	names       kind = "names"
	relock      kind = "relock"
	turns       kind = "turns"
	crash       kind = "crash"
	each        kind = "each"

	// Of the locks that are not a mutex.
	readers     kind = "readers" // of read/write locks, without a writer
	mixes       kind = "mixes"   // of readers and writers
	several     kind = "several" // names at once
	permits     kind = "permits" // of semaphores
	resign      kind = "resign"  // of a leader
	leaderCrash kind = "leader-crash"

	// Of a fleet: each process has a Session of its own.
	idle    kind = "idle"
	fleet   kind = "fleet"
	lineUp  kind = "lineup"
	taken   kind = "taken"
	renewal kind = "renewal"

	mass kind = "mass" // much at once, of one client
)

// crashes reports whether a case measures mostly the wait for a lease to end.
func (k kind) crashes() bool { return k == crash || k == leaderCrash }

// A benchCase is one thing to measure.
type benchCase struct {
	name  string
	kind  kind
	title string
	note  string // on the page, about what is not measured; "" if there is none
	n     int    // the case's number of contenders, names or the like, for alternatives with a limit
	rate  bool   // reported as how many a second, not as the time of one
	most  int    // rounds, if there is a limit
	whole bool   // a round cannot be cut into pieces
	etcd  bool   // only for alternatives in etcd
	drawn bool   // a point of the chart
	start func(ctx context.Context, a *arena) (*event, error)
}

// pieces is how many pieces a round has, if it can be cut. The alternatives take turns
// piece by piece, so that each has its share of whatever else the machine does.
const pieces = 10

func (c benchCase) pieces() int {
	if c.whole {
		return 1
	}
	return pieces
}

// An event is a case, set up for one alternative.
type event struct {
	piece func(ctx context.Context) (measure, error) // measures a round, or a piece of one
	end   func()
}

// A measure is the result of a round.
type measure struct {
	// of one operation, for comparisons; of pieces, the median of all samples
	value      time.Duration
	samples    []time.Duration // of single operations
	ops        int             // spent is divided by this number
	spent      counts
	goroutines int     // beyond those of the contenders
	in         int     // how many parties have held at all, if the case asks
	busiest    float64 // holds of the busiest party, divided by the mean; 0 if there is one party
	heap       float64 // bytes per name
	renewals   float64 // per TTL/3
	ttls       float64 // value in TTLs
	broken     string  // how exclusion broke, "" if it held
}

// add adds a piece of the same round.
func (m *measure) add(piece measure) {
	if m.ops == 0 {
		*m = piece
		return
	}
	m.samples = append(m.samples, piece.samples...)
	m.ops += piece.ops
	m.spent = m.spent.plus(piece.spent)
	m.broken = cmp.Or(piece.broken, m.broken)
}

// cases is the table.
var cases = []benchCase{
	{
		name: "uncontended", kind: uncontended,
		title: "Lock and Unlock, nobody else there",
		start: startUncontended(0),
	},
	{
		name: "uncontended-worn", kind: uncontended,
		title: "Lock and Unlock, after 10,000 holds of the same name without a compaction",
		start: startUncontended(10_000),
	},
	handoverCase("handover-5ms", 5*time.Millisecond, 0),
	handoverCase("handover-30ms", 30*time.Millisecond, 0),
	handoverCase("handover-150ms", 150*time.Millisecond, 0),
	handoverCase("handover-5ms-busy", 5*time.Millisecond, 200),
	eachCase(1),
	eachCase(2),
	eachCase(4),
	eachCase(8),
	eachCase(16),
	eachCase(64),
	eachCase(256),
	eachCase(1000),
	crowdCase(2),
	crowdCase(8),
	crowdCase(64),
	crowdCase(512),
	crowdCase(2000),
	processesCase(8),
	processesCase(16),
	processesCase(64),
	waitersCase(100, fleetTTL),
	holdersCase(100, fleetTTL),
	sized(waitersCase(300, fleetTTL)),
	sized(waitersCase(1000, fleetTTL)),
	sized(holdersCase(300, fleetTTL)),
	sized(holdersCase(1000, fleetTTL)),
	authCase(20, fleetTTL),
	fleetCrowdCase(16),
	fleetCrowdCase(64),
	fleetCrowdCase(256),
	fleetCrowdCase(1000),
	fleetCrowdCase(2000),
	massStart{n: 1000, clients: 1000, ttl: fleetTTL, within: 30 * time.Second,
		oneCore: true}.benchCase(),
	massStart{n: 1000, clients: 1, ttl: fleetTTL, within: 60 * time.Second, once: true}.benchCase(),
	massStart{n: 2000, clients: 2000, ttl: fleetTTL, within: 80 * time.Second, once: true}.benchCase(),
	massStart{n: 5000, clients: 100, ttl: fleetTTL, within: 100 * time.Second, once: true}.benchCase(),
	frozenCase(1000, time.Minute, 10*time.Second, 20*time.Second),
	lineUpCase(1000, 20, fleetTTL),
	lineUpCase(3000, 20, fleetTTL),
	lineUpCase(5000, 20, fleetTTL),
	leaveCase(500, fleetTTL),
	takenCase(20, 2*time.Second),
	renewalsCase(1000, 1000, 6*time.Second),
	renewalsCase(2000, 10, 6*time.Second),
	renewalsCase(5000, 10, 6*time.Second),
	beginCase(1000),
	closeCase(5000),
	auditCase(5000, fleetTTL),
	{
		name: "trylock", kind: trylock,
		title: "TryLock of a taken name",
		start: startTryLock,
	},
	readersCase(1),
	readersCase(8),
	readersCase(64),
	{
		name: "readers-beside", kind: readers, rate: true,
		title: "one more goroutine of a process reads beside two that hold",
		start: startBeside,
	},
	mixCase(10),
	mixCase(50),
	namesCase(1),
	namesCase(1_000),
	namesCase(10_000),
	{
		name: "relock", kind: relock,
		title: "one goroutine of one process locks again and again",
		start: startUncontended(0),
	},
	{
		name: "relock-8", kind: relock, n: 8, rate: true, whole: true,
		title: "8 goroutines of one process lock again and again, nobody else there",
		start: startCrowd(8, 1, ttl),
	},
	{
		name: "turns", kind: turns,
		title: "two processes lock in turn, the lock being free each time",
		start: startTurns,
	},
	{
		name: "crash", kind: crash, most: 3, whole: true,
		title: fmt.Sprintf("the holder's process is killed; how long until the waiter is in (TTL %v)",
			crashTTL),
		start: startCrash(aLock),
	},
	severalCase(2),
	severalCase(8),
	severalCase(32),
	besideCase(8, 56),
	permitsCase(1),
	permitsCase(4),
	permitsCase(16),
	resignCase(150 * time.Millisecond),
	leaderCrashCase,
}

func handoverCase(name string, hold time.Duration, puts int) benchCase {
	title :=
		fmt.Sprintf(
			"one hand-over, after a hold of %v: from the call of Unlock to the return of the other's Lock",
			hold)
	if puts > 0 {
		title += fmt.Sprintf(
			", under %d unrelated puts a second (the proposals and revisions have these in them)", puts)
	}
	return benchCase{name: name, kind: handover, n: 2, etcd: puts > 0, title: title,
		start: startHandover(hold, puts)}
}

// eachCase is of one process that locks many names, each for itself.
func eachCase(n int) benchCase {
	goroutines := "goroutines"
	if n == 1 {
		goroutines = "goroutine"
	}
	return benchCase{
		name: fmt.Sprintf("each-%d", n), kind: each, n: n, rate: true, whole: true, drawn: true,
		title: fmt.Sprintf("%d %s of one process, a name each, empty critical section", n, goroutines),
		start: startEach(n),
	}
}

func crowdCase(n int) benchCase {
	c := benchCase{
		name: fmt.Sprintf("crowd-%d", n), kind: crowd, n: n, rate: true, whole: true, drawn: true,
		title: fmt.Sprintf("%d contenders over %d clients, empty critical section", n, crowdParties(n)),
		start: startCrowd(n, crowdParties(n), ttl),
	}
	if n >= 2000 {
		c.most = 3 // they take a minute for each alternative
	}
	return c
}

// processesCase is a crowd in which each contender has a client of its own, so that each
// has a place in etcd's line.
func processesCase(n int) benchCase {
	return benchCase{
		name: fmt.Sprintf("processes-%d", n), kind: crowd, n: n, rate: true, whole: true, etcd: true,
		title: fmt.Sprintf("%d contenders with a client each, empty critical section", n),
		start: startCrowd(n, n, ttl),
	}
}

func namesCase(n int) benchCase {
	title := fmt.Sprintf("%d names held by one process, time to lock one", n)
	if n == 1 {
		title = "1 name held by one process, time to lock it"
	}
	return benchCase{name: fmt.Sprintf("names-%d", n), kind: names, n: n, most: 3, whole: true,
		title: title, start: startNames(n)}
}

func caseNames() (names []string) {
	for _, c := range cases {
		names = append(names, c.name)
	}
	return names
}

const (
	// ttl is the TTL of all leases except in crash cases: the default of
	// concurrency.Session. With a shorter one, its many sessions would have more to renew
	// than the library's few.
	ttl = 60 * time.Second

	// crashTTL is the TTL in cases that wait for the end of a lease.
	crashTTL = 4 * time.Second
)

// An arena is what a case needs to measure an alternative.
type arena struct {
	alternative alternative
	system      system
	wire        *wire
	slice       time.Duration
	dir         string // for data
	serial      *int   // of lock names
}

// name returns a name of a lock that was not used before.
func (a *arena) name() string {
	*a.serial++
	return fmt.Sprintf("bench/%d", *a.serial)
}

// parties opens n parties. The function that it returns closes them.
func (a *arena) parties(ctx context.Context, n int, ttl time.Duration) ([]party, func(), error) {
	opened := make([]party, n)
	end := func() {
		_ = inParallel(n, func(i int) error {
			if opened[i] != nil {
				opened[i].close()
			}
			return nil
		})
	}
	for i := range opened {
		p, err := a.alternative.open(ctx, a.system.address(), ttl, a.wire)
		if err != nil {
			end()
			return nil, nil, err
		}
		opened[i] = p
	}
	return opened, end, nil
}

// A section is a lock with what it protects, as one contender uses it.
type section struct {
	lock    side.Lock
	witness *witness
	who     int64
	holds   int // so far, without others beside it

	// For a read/write lock. lock is its writer's side.
	reader side.Lock
	writes int // of 100 holds
	due    int // hundredths of a hold that must still write
	reads  bool

	limit int64 // of a semaphore
}

func (s *section) enter(ctx context.Context) error {
	if s.reader != nil {
		return s.enterEither(ctx)
	}
	if err := s.lock.Lock(ctx); err != nil {
		return err
	}
	if s.limit > 0 {
		s.witness.enterAmong(s.limit)
		return nil
	}
	s.witness.enter(s.who)
	s.holds++
	return nil
}

func (s *section) leave(ctx context.Context) error {
	if s.reads {
		s.reads = false
		s.witness.leaveShared()
		return s.reader.Unlock(ctx)
	}
	if s.limit > 0 {
		s.witness.leaveShared()
	} else {
		s.witness.leave(s.who)
	}
	return s.lock.Unlock(ctx)
}

// enterEither reads or writes, so that the section keeps its mix.
func (s *section) enterEither(ctx context.Context) error {
	reads := s.due+s.writes < 100
	lock := s.lock
	if reads {
		lock = s.reader
	}
	if err := lock.Lock(ctx); err != nil {
		return err
	}
	s.due = (s.due + s.writes) % 100
	if s.reads = reads; reads {
		s.witness.enterShared()
		return nil
	}
	s.witness.enter(s.who)
	s.holds++
	return nil
}

// through goes through the critical section once.
func (s *section) through(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	return s.leave(ctx)
}

// sections makes n sections for one new name, and deals them to the parties in turn.
func (a *arena) sections(ctx context.Context, parties []party, n int) ([]*section, error) {
	name, w := a.name(), &witness{}
	made := make([]*section, n)
	return made, inParallel(n, func(i int) error {
		l, err := parties[i%len(parties)].lock(ctx, name)
		made[i] = &section{lock: l, witness: w, who: int64(i + 1)}
		return err
	})
}

// verdict returns what the witnesses of sections say about all that they did.
func verdict(sections ...*section) (broken string) {
	holds := make(map[*witness]int)
	for _, s := range sections {
		holds[s.witness] += s.holds
	}
	for w, n := range holds {
		broken = cmp.Or(broken, w.verdict(n))
	}
	return broken
}
