package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// Times of etcd.
const (
	electionTimeout = time.Second // etcd's default
	// how soon a member tries again to pass on a renewal
	forwardAgain   = 50 * time.Millisecond
	requestTimeout = 5*time.Second + 2*electionTimeout // EtcdServer.Cfg.ReqTimeout
	minTTL         = 2                                 // seconds: 1.5 election timeouts, rounded up
	expiryStep     = 500 * time.Millisecond            // lessor.runLoop
	syncStep       = 100 * time.Millisecond            // watchableStore.syncWatchersLoop
	maxNoLeader    = 3 * electionTimeout               // v3rpc.maxNoLeaderCnt
)

// A Cluster is etcd as clients see it: members that answer gRPC over a Net, agree on a
// fake.Store and elect leaders. They can be cut off from each other, frozen and restarted.
//
// Raft is not acted out. A member sends a proposal to the member that it takes for the
// leader. That one carries it out once it can reach a majority. The proposal is lost if
// that one learns of another leader first, or cannot be reached. So what etcd has not
// confirmed may have been carried out, or be carried out later, or never.
type Cluster struct {
	net     *Net
	members []*member

	mu       sync.Mutex // never held across a wait
	rand     *rand.Rand
	store    *fake.Store
	id       uint64  // of the cluster
	lives    int     // how often it was set back
	leastTTL int64   // that it grants, in seconds; set before the first process starts
	leader   *member // of the newest term, nil while there is none
	term     uint64
	election *time.Timer   // running while the leader has no majority
	changed  chan struct{} // closed, and replaced, whenever something changes
	// of the check for expired leases; 0 means that leases expire to the instant
	step      time.Duration
	entry     time.Duration  // how long a leader takes for one entry; 0 if it takes all at once
	compacted atomic.Bool    // by Compact
	combined  int            // transactions that came as parts of one
	repeat    time.Duration  // how much later some transactions come again; 0 if none does
	loses     map[string]int // how many answers to transactions are lost, by process
	// onlyReleases says that of all requests only releases that put nothing come again.
	onlyReleases bool
	rates        map[string]float64
	grants       map[int64]string // by lease: the process that has it
	audit        func(Change)
	saved        func() // a snapshot was taken
	wentBack     func(another bool)
	renewed      func(ctx context.Context, lease int64) // or granted: a request with ctx
	stopped      bool

	bug    bug                     // from which etcd suffers; see bugs.go
	struck int                     // how often that has shown
	paused time.Time               // when a member was last seen to be paused
	gone   map[int64]gone          // leases that have ended
	left   map[int64]time.Duration // of TTLs, by the leader before
}

// Combined is how many transactions have come as parts of one.
func (c *Cluster) Combined() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.combined
}

// A Change is one entry of the store that changed keys or ended a lease, and who did it.
type Change struct {
	By     string // a process, or one of the names below
	Rev    int64
	Events []*mvccpb.Event
	Ended  int64  // the lease that was revoked, or 0
	Owner  string // the process to which etcd granted Ended
}

// Who may change something, besides processes.
const (
	byExpiry   = "expiry"
	byOperator = "operator"
)

// A member is one etcd server. Its fields are guarded by Cluster.mu.
type member struct {
	c      *Cluster
	name   string
	id     uint64
	server *grpc.Server
	rand   *rand.Rand

	frozen, cut, down bool
	stale             bool    // it has just thawed, and has not heard from anybody yet
	lead              *member // the member that it takes for the leader
	term              uint64  // of that leader, or of the last one
	losing            *time.Timer
	applied           int           // how many entries it has carried out
	lag               time.Duration // added to the usual delay before it carries them out
	applying          bool          // a timer for the next entries runs
	inbox             []*proposal   // what it has to carry out as a leader
	busy              bool          // it carries out the first one of them
	expiry            map[int64]time.Time
	checking          *time.Timer
	streams           []*watchStream
}

// A proposal is an entry on its way into the store.
type proposal struct {
	carryOut func() // with Cluster.mu held
	index    int    // of the entry; 0 until it is carried out
}

// NewCluster starts members that are all well. Call it inside the bubble.
func NewCluster(seed uint64, n *Net, members int) *Cluster {
	c := &Cluster{
		net:      n,
		rand:     generator(seed, "cluster"),
		store:    fake.NewStore(),
		id:       1,
		changed:  make(chan struct{}),
		step:     expiryStep,
		rates:    make(map[string]float64),
		grants:   make(map[int64]string),
		gone:     make(map[int64]gone),
		audit:    func(Change) {},
		saved:    func() {},
		wentBack: func(bool) {},
		renewed:  func(context.Context, int64) {},
	}
	for i := range members {
		name := fmt.Sprint("m", i)
		c.members = append(c.members, &member{
			c: c, name: name, id: uint64(i + 1), rand: generator(seed, "member", name),
			expiry: make(map[int64]time.Time),
		})
	}
	c.mu.Lock()
	c.leadLocked(c.members[c.rand.IntN(members)])
	c.mu.Unlock()
	for _, m := range c.members {
		m.serve(n.Listen(m.name))
	}
	return c
}

// Stop ends all members. Close the Net before.
func (c *Cluster) Stop() {
	c.mu.Lock()
	c.stopped = true
	c.changedLocked()
	c.mu.Unlock()
	for _, m := range c.members {
		m.server.Stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		m.demoteLocked()
		m.stopLosingLocked()
	}
	if c.election != nil {
		c.election.Stop()
	}
}

// Leader is the index of the member that leads, or of the one that led last.
func (c *Cluster) Leader() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Index(c.members, c.leader)
}

// ---- what the schedule does to it

// Cut cuts a member off from the others, but not from clients.
func (c *Cluster) Cut(i int) { c.set(i, func(m *member) { m.cut = true }) }

// Heal ends Cut.
func (c *Cluster) Heal(i int) { c.set(i, func(m *member) { m.cut, m.stale = false, false }) }

// Freeze stops a member: what reaches it waits. The caller holds its bytes, too.
func (c *Cluster) Freeze(i int) {
	c.set(i, func(m *member) {
		m.frozen = true
		m.stopLosingLocked()
	})
}

// Thaw ends Freeze. For a moment the member believes what it believed before. If it is cut
// off it believes so for longer.
//
// A leader that has just thawed renews no lease, since it makes sure first that it still
// leads. etcd's leader does so for three ticks only (EtcdServer.ensureLeadership). After
// that, and until it steps down, it renews leases that the new leader may let expire. So
// the word of a leader that was frozen and is cut off is worth nothing, and no client can
// tell.
func (c *Cluster) Thaw(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[i]
	m.frozen, m.stale = false, true
	c.changedLocked()
	time.AfterFunc(time.Duration(m.rand.Int64N(int64(20*time.Millisecond))), func() {
		c.set(i, func(m *member) { m.stale = m.cut })
	})
}

// Kill ends a member's process; Boot starts it again. The caller resets its connections,
// and has new ones refused.
func (c *Cluster) Kill(i int) {
	c.set(i, func(m *member) {
		m.down = true
		m.followLocked(nil)
		m.stopLosingLocked()
	})
}

// Boot ends Kill.
func (c *Cluster) Boot(i int) { c.set(i, func(m *member) { m.down = false }) }

// Busy makes a leader take that long for each entry, one after the other; 0 ends that. An
// entry for which nobody waits any more takes as long.
func (c *Cluster) Busy(entry time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry = entry
}

// Repeat makes some transactions come again, up to that much after they were carried out; 0 ends
// that. (Those of concurrency.Mutex do not: it never removes a key that was put again.)
func (c *Cluster) Repeat(late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repeat = late
}

// LoseAnswers loses the answers to the next n transactions of a process that write: they are
// carried out, and answered with an error that says nothing.
func (c *Cluster) LoseAnswers(process string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loses == nil {
		c.loses = make(map[string]int)
	}
	c.loses[process] = n
}

// losesAnswer reports whether the answer to a transaction of a process is lost.
func (c *Cluster) losesAnswer(process string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loses[process] == 0 {
		return false
	}
	c.loses[process]--
	return true
}

// againLocked may make a transaction that was carried out come again, by m.
func (c *Cluster) againLocked(m *member, txn func()) {
	if c.repeat == 0 || m.rand.IntN(8) > 0 {
		return
	}
	time.AfterFunc(upTo(m.rand, c.repeat), func() { // ends after requestTimeout at the latest
		_ = c.propose(context.Background(), m, txn)
	})
}

// Lag makes a member carry out entries that much later.
func (c *Cluster) Lag(i int, d time.Duration) { c.set(i, func(m *member) { m.lag = d }) }

// MoveLeader makes the next reachable member the leader.
func (c *Cluster) MoveLeader() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader == nil || !c.leader.commitsLocked() {
		return
	}
	for i := range c.members {
		next := c.members[(int(c.leader.id)+i)%len(c.members)]
		if next != c.leader && next.reachableLocked() {
			c.leadLocked(next)
			return
		}
	}
}

// Compact forgets what was before the current revision.
func (c *Cluster) Compact() {
	c.compacted.Store(true)
	c.operate(func() { _ = c.store.Compact(c.store.Rev()) })
}

// A Snapshot is what SetBack goes back to.
type Snapshot struct{ life, index int }

// Snapshot takes a snapshot of the store as it is, or of the empty store at the beginning.
func (c *Cluster) Snapshot(empty bool) Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if empty {
		return Snapshot{life: c.lives}
	}
	c.saved()
	return Snapshot{c.lives, c.store.Index()}
}

// raisedBy is how much a restore raises the revision, as etcd's page on disaster recovery has it.
const raisedBy = 1_000_000_000

// SetBack restores all members from a snapshot, under another cluster id if another is set, and
// with a raised revision if raised is. It does nothing if they were set back since the snapshot was
// taken. What was under way is lost. If passed is set, others then write other keys first, until
// etcd is past the revision that it had. The caller has killed all members.
func (c *Cluster) SetBack(to Snapshot, another, passed, raised bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if to.life != c.lives {
		return
	}
	reached := c.store.Rev()
	c.store = c.store.Restored(to.index)
	if raised {
		c.store.Raise(raisedBy)
		_ = c.store.Compact(c.store.Rev())
	}
	if gap := reached - c.store.Rev(); passed && gap >= raisedBy {
		c.store.Raise(gap) // they were raised before
	}
	for passed && c.store.Rev() <= reached {
		key := []byte("something else")
		_, _ = c.store.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key}}},
		}})
		_, _ = c.store.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: key},
			}},
		}})
	}
	c.lives++
	if another {
		c.id++
	}
	for _, m := range c.members {
		m.demoteLocked()
		m.lead, m.applied, m.streams = nil, c.store.Index(), nil
	}
	c.leader = nil
	c.wentBack(another || raised)
	c.changedLocked()
}

// DeleteKey deletes a key by an operator's hand.
func (c *Cluster) DeleteKey(key string) {
	c.operate(func() { _, _ = c.deleteLocked(byOperator, []byte(key)) })
}

// RevokeLease revokes a lease by an operator's hand.
func (c *Cluster) RevokeLease(id int64) {
	c.operate(func() { c.revokeLocked(byOperator, id) })
}

// operate carries something out if some leader can.
func (c *Cluster) operate(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader != nil && c.leader.commitsLocked() {
		do()
		c.committedLocked()
	}
}

// Now shows the store as it is.
func (c *Cluster) Now(look func(fake.View)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	look(c.store.Now())
}

// Rate makes the leases of a process live that much longer than etcd says. To etcd's clock
// this looks as if the process's own clock were that much faster.
func (c *Cluster) Rate(process string, rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rates[process] = rate
}

// ExpireInTime makes leases expire to the instant, instead of at the next step.
func (c *Cluster) ExpireInTime() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step = 0
	c.leader.checkInTimeLocked()
}

func (c *Cluster) set(i int, change func(*member)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	change(c.members[i])
	c.reviewLocked()
}

// ---- leaders

// reachableLocked reports whether the other members can reach m.
func (m *member) reachableLocked() bool { return !m.cut && !m.frozen && !m.down && !m.stale }

// commitsLocked reports whether m leads and can reach a majority.
func (m *member) commitsLocked() bool {
	if m.c.leader != m || !m.reachableLocked() {
		return false
	}
	reachable := 0
	for _, other := range m.c.members {
		if other.reachableLocked() {
			reachable++
		}
	}
	return reachable > len(m.c.members)/2
}

// followsLocked reports whether m hears from a leader that has a majority.
func (m *member) followsLocked() bool {
	return m.reachableLocked() && m.c.leader != nil && m.c.leader.commitsLocked()
}

// deposedLocked reports whether m takes itself for the leader, and can reach a member that knows a
// newer term. Such a leader steps down at once, as the first answer to its heartbeat has that term,
// also if its successor is silent.
func (m *member) deposedLocked() bool {
	return m.lead == m && m.reachableLocked() &&
		slices.ContainsFunc(m.c.members, func(other *member) bool {
			return other.reachableLocked() && other.term > m.term
		})
}

// reviewLocked decides what follows from a change of who can reach whom.
func (c *Cluster) reviewLocked() {
	c.changedLocked()
	for _, m := range c.members {
		switch {
		case m.followsLocked():
			m.stopLosingLocked()
			m.followLocked(c.leader)
		case m.deposedLocked():
			m.followLocked(nil)
		case m.lead != nil && m.losing == nil && !m.frozen && !m.down:
			// A leader steps down when it has not heard from the others for one to two
			// election timeouts. A follower then forgets its leader.
			m.losing = time.AfterFunc(m.oneToTwoTimeouts(), func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				m.losing = nil
				if !m.followsLocked() && !m.frozen && !m.down && !c.stopped {
					m.stale = false
					m.followLocked(nil)
					c.changedLocked()
				}
			})
		}
	}
	if c.leader != nil && c.leader.commitsLocked() {
		if c.election != nil {
			c.election.Stop()
			c.election = nil
		}
		c.processLocked(c.leader)
		c.catchUpLocked()
	} else if c.election == nil {
		c.election = time.AfterFunc(c.members[0].oneToTwoTimeouts(), c.elect)
	}
}

func (m *member) oneToTwoTimeouts() time.Duration {
	return electionTimeout + time.Duration(m.rand.Int64N(int64(electionTimeout)))
}

func (m *member) stopLosingLocked() {
	if m.losing != nil {
		m.losing.Stop()
		m.losing = nil
	}
}

// elect makes one of the members that can reach each other the leader, if they are a
// majority.
func (c *Cluster) elect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.election = nil
	if c.stopped || c.leader != nil && c.leader.commitsLocked() {
		return
	}
	var candidates []*member
	for _, m := range c.members {
		if m.reachableLocked() {
			candidates = append(candidates, m)
		}
	}
	if len(candidates) <= len(c.members)/2 {
		c.election = time.AfterFunc(electionTimeout, c.elect)
		return
	}
	c.leadLocked(candidates[c.rand.IntN(len(candidates))])
}

// leadLocked makes m the leader. It has every entry, and restarts all TTLs.
func (c *Cluster) leadLocked(m *member) {
	c.term++
	if c.leader != nil {
		c.leader.checkpointLocked()
	}
	c.leader = m
	m.demoteLocked() // if it led before, and was re-elected
	m.lead, m.term = m, c.term
	m.applyLocked()
	for _, id := range c.store.Now().Leases() {
		m.expiry[id] = time.Now().Add(c.anewLocked(id))
	}
	if c.step > 0 {
		m.checking = time.AfterFunc(time.Duration(1+m.rand.Int64N(int64(c.step))), m.check)
	} else {
		m.checkInTimeLocked()
	}
	c.reviewLocked()
}

// followLocked makes m take another member for the leader, or nobody.
func (m *member) followLocked(lead *member) {
	if m.lead == lead {
		if lead != nil {
			m.term = m.c.term // it was elected again
		}
		return
	}
	if m.lead == m {
		m.demoteLocked()
		if m.c.leader == m {
			m.c.leader = nil
		}
	}
	m.lead = lead
	if lead != nil {
		m.term = m.c.term
	}
	if lead == nil {
		time.AfterFunc(maxNoLeader, func() {
			m.c.mu.Lock()
			defer m.c.mu.Unlock()
			if m.lead == nil && !m.frozen && !m.down {
				m.cancelLeaderlessLocked()
			}
		})
	}
}

// demoteLocked ends what m does as a leader. What it has not carried out is lost.
func (m *member) demoteLocked() {
	m.inbox = nil
	if m.c.leader == m && len(m.expiry) > 0 {
		m.checkpointLocked()
	}
	clear(m.expiry)
	if m.checking != nil {
		m.checking.Stop()
		m.checking = nil
	}
}

// ---- entries

// propose sends an entry to be carried out, and waits until m has it. After an error the
// entry may have been carried out, or be carried out later, or never.
func (c *Cluster) propose(ctx context.Context, m *member, carryOut func()) error {
	deadline := time.Now().Add(requestTimeout)
	p := &proposal{carryOut: carryOut}
	sent := false
	return c.await(ctx, deadline, func() bool {
		if m.frozen || m.down {
			return false
		}
		if !sent && m.lead != nil {
			sent = true
			lead := m.lead
			// A leader that cannot be reached never gets the entry. A frozen one gets it
			// late.
			if lead == m || m.reachableLocked() && !lead.cut && !lead.down {
				lead.inbox = append(lead.inbox, p)
				time.AfterFunc(m.delayLocked(), func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					c.processLocked(lead)
				})
			}
		}
		return p.index > 0 && m.applied >= p.index
	})
}

// delayLocked returns how long an entry takes to reach another member.
func (m *member) delayLocked() time.Duration {
	return 100*time.Microsecond + time.Duration(m.rand.Int64N(int64(time.Millisecond)))
}

// processLocked carries out the entries that wait for a leader.
func (c *Cluster) processLocked(m *member) {
	if !m.commitsLocked() || len(m.inbox) == 0 {
		return
	}
	if m.busy {
		return
	}
	if c.entry > 0 {
		m.busy = true
		time.AfterFunc(c.entry, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			m.busy = false
			if m.commitsLocked() && len(m.inbox) > 0 {
				c.carryOutLocked(m, 1)
			}
			c.processLocked(m)
		})
		return
	}
	c.carryOutLocked(m, len(m.inbox))
}

// carryOutLocked carries out the first n entries of a leader's inbox.
func (c *Cluster) carryOutLocked(m *member, n int) {
	first := m.inbox[:n]
	m.inbox = m.inbox[n:]
	for _, p := range first {
		p.carryOut()
		p.index = c.store.Index()
	}
	c.committedLocked()
}

// committedLocked tells the members about the entries that the leader has carried out.
func (c *Cluster) committedLocked() {
	c.leader.applyLocked()
	c.catchUpLocked()
	c.changedLocked()
}

func (c *Cluster) catchUpLocked() {
	for _, m := range c.members {
		if m.applying || m.applied == c.store.Index() || !m.followsLocked() {
			continue
		}
		m.applying = true
		time.AfterFunc(m.delayLocked()+m.lag, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			m.applying = false
			if m.followsLocked() {
				m.applyLocked()
				c.changedLocked()
			}
		})
	}
}

// applyLocked has m carry out all entries that there are.
func (m *member) applyLocked() {
	from := m.viewLocked().Rev()
	m.applied = m.c.store.Index()
	if to := m.viewLocked().Rev(); to > from {
		m.notifyLocked(m.c.store.Events(from+1, to))
	}
}

// viewLocked is the store as m has it.
func (m *member) viewLocked() fake.View { return m.c.store.At(m.applied) }

// changedLocked makes every await check again.
func (c *Cluster) changedLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// await waits until ok, which it calls with mu held, returns true. After the deadline it
// returns etcd's error; otherwise that of ctx.
func (c *Cluster) await(ctx context.Context, deadline time.Time, ok func() bool) error {
	timeout := time.NewTimer(time.Until(deadline))
	defer timeout.Stop()
	life := -1
	for {
		c.mu.Lock()
		if life < 0 {
			life = c.lives
		}
		stopped, changed := c.stopped || c.lives != life, c.changed
		done := !stopped && ok()
		c.mu.Unlock()
		switch {
		case stopped:
			return rpctypes.ErrGRPCStopped
		case done:
			return nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return rpctypes.ErrGRPCTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awake waits while m is frozen.
func (c *Cluster) awake(ctx context.Context, m *member) error {
	return c.await(ctx, time.Now().Add(time.Hour), func() bool { return !m.frozen })
}

// linearizable waits until m has all entries that were carried out before the call.
func (c *Cluster) linearizable(ctx context.Context, m *member) error {
	deadline := time.Now().Add(requestTimeout)
	index := -1
	term := uint64(0)
	changed := false
	err := c.await(ctx, deadline, func() bool {
		if index < 0 {
			if term == 0 {
				term = c.term
			}
			if changed = c.term != term && !m.frozen; changed {
				return true
			}
			if m.readsStaleLocked() {
				return true
			}
			if m.frozen || m.down || m.lead != c.leader || !m.followsLocked() {
				return false
			}
			index = c.store.Index()
		}
		return m.applied >= index && !m.frozen
	})
	if changed {
		return rpctypes.ErrGRPCLeaderChanged
	}
	return err
}

// ---- leases

// ttlLocked is how long a lease lives without being renewed.
func (c *Cluster) ttlLocked(id int64) time.Duration {
	ttl, _, _ := c.store.Now().Lease(id)
	rate := c.rates[c.grants[id]]
	if rate == 0 {
		rate = 1
	}
	return time.Duration(float64(ttl) * rate * float64(time.Second))
}

// grantLocked grants a lease to a process.
func (c *Cluster) grantLocked(
	process string, id, ttl int64,
) (granted, grantedTTL int64, err error) {
	ttl = max(ttl, minTTL, c.leastTTL)
	if id, err = c.store.Grant(id, ttl); err != nil {
		return 0, 0, err
	}
	c.grants[id] = process
	c.renewed(context.Background(), id)
	c.leader.expiry[id] = time.Now().Add(c.ttlLocked(id))
	c.leader.checkInTimeLocked()
	return id, ttl, nil
}

// revokeLocked ends a lease, and reports whether there was one.
func (c *Cluster) revokeLocked(by string, id int64) bool {
	before := c.store.Rev()
	if ttl, _, known := c.store.Now().Lease(id); known {
		c.gone[id] = gone{time.Now(), ttl}
	}
	known := c.store.Revoke(id)
	delete(c.leader.expiry, id)
	if known {
		c.auditLocked(by, before, id)
	}
	return known
}

// renew renews a lease at m. The TTL is 0 if there is no such lease.
func (c *Cluster) renew(ctx context.Context, m *member, id int64) (ttl int64, err error) {
	deadline := time.Now().Add(requestTimeout)
	var again time.Time
	err = c.await(ctx, deadline, func() bool {
		if m.frozen || m.down || time.Now().Before(again) {
			return false
		}
		at := m
		if m.lead != m {
			at = m.lead // it forwards the request
			if at == nil || !m.reachableLocked() || !at.reachableLocked() || at.lead != at {
				again = time.Now().Add(forwardAgain)
				time.AfterFunc(forwardAgain, func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					c.changedLocked()
				})
				return false
			}
		}
		if at.stale {
			return false // it makes sure first that it still leads
		}
		granted, _, known := at.viewLocked().Lease(id)
		if !known {
			ttl = c.confirmsLocked(id)
			return true
		}
		if !time.Now().Before(at.expiry[id]) {
			if c.strikesLocked(goneRenewals, true) {
				ttl = granted
				return true
			}
			return false // it is being revoked
		}
		at.expiry[id] = time.Now().Add(c.ttlLocked(id))
		at.checkInTimeLocked()
		ttl = granted
		c.renewed(ctx, id)
		return true
	})
	return ttl, err
}

// timeToLive returns what m's leader knows of a lease.
func (c *Cluster) timeToLive(
	ctx context.Context, m *member, id int64,
) (granted int64, remaining time.Duration, keys []string, known bool, err error) {
	err = c.await(ctx, time.Now().Add(requestTimeout), func() bool {
		if m.frozen || m.down || m.lead == nil {
			return false
		}
		at := m
		if m.lead != m {
			at = m.lead
			if !m.reachableLocked() || !at.reachableLocked() || at.lead != at {
				return false
			}
		}
		granted, keys, known = at.viewLocked().Lease(id)
		remaining = time.Until(at.expiry[id])
		return true
	})
	return granted, remaining, keys, known, err
}

// check revokes the leases that have expired, if m still leads.
func (m *member) check() {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.lead != m || c.stopped {
		return
	}
	if !m.frozen && !m.down {
		m.expireLocked()
	}
	if c.step > 0 {
		m.checking.Reset(c.step)
	} else {
		m.checkInTimeLocked()
	}
}

func (m *member) expireLocked() {
	c := m.c
	if !m.commitsLocked() {
		return // what it would propose is lost, or comes when it can
	}
	ids := make([]int64, 0, len(m.expiry))
	for id, expires := range m.expiry {
		if !time.Now().Before(expires) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		c.revokeLocked(byExpiry, id)
	}
	if len(ids) > 0 {
		c.committedLocked()
	}
}

// checkInTimeLocked makes m check at the instant when the next lease expires, if there is
// no step.
func (m *member) checkInTimeLocked() {
	if m.c.step > 0 || m.c.leader != m {
		return
	}
	if m.checking != nil {
		m.checking.Stop()
	}
	var next time.Time
	for _, expires := range m.expiry {
		if next.IsZero() || expires.Before(next) {
			next = expires
		}
	}
	if next.IsZero() {
		return
	}
	wait := time.Until(next)
	if wait <= 0 {
		wait = expiryStep // it could not be revoked for want of a majority
	}
	m.checking = time.AfterFunc(wait, m.check)
}

// ---- the books

// auditLocked tells the judge what has changed since a revision.
func (c *Cluster) auditLocked(by string, before, ended int64) {
	events := c.store.Events(before+1, c.store.Rev())
	if len(events) > 0 || ended != 0 {
		c.audit(Change{By: by, Rev: c.store.Rev(), Events: events, Ended: ended, Owner: c.grants[ended]})
	}
}
