package contract_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// The world of the fault tests: parties that contend for a lock, each a Session with a
// client of its own, and verbs for what they do and what must follow. When a test ends it
// has seen no two holders at once, and it leaves no key, lease or goroutine.

const (
	// longTTL is far above what any test takes. So what is gone within it was removed, and
	// has not just expired.
	longTTL = 15 * time.Second

	// slack is what a loaded machine may take for something that is due now.
	slack = 10 * time.Second

	// prompt is the bound for what needs no lease to expire. On an idle machine it takes
	// some milliseconds; the tests log that.
	prompt = longTTL / 2

	// lanes is how many subtests run at once.
	lanes = 16
)

// bounded is a context for what must come. It outlives t.Context, so Cleanup can use it.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*longTTL)
	t.Cleanup(cancel)
	return ctx
}

// steadyTTL is least, or up to three times that on a machine that is so busy that etcd is
// slow: where nothing is wrong, a lease must not run out. It takes half a second to find
// out, leaves nothing, and makes no revision.
func steadyTTL(t *testing.T, client *clientv3.Client, least time.Duration) time.Duration {
	t.Helper()
	const (
		looks = 500 * time.Millisecond
		share = 40 // of such answers make a TTL in which none of three renewals is late
	)
	var slowest time.Duration
	for began := time.Now(); time.Since(began) < looks; {
		asked := time.Now()
		lease, err := client.Grant(bounded(t), int64(longTTL/time.Second))
		require.NoError(t, err)
		slowest = max(slowest, time.Since(asked))
		_, err = client.Revoke(bounded(t), lease.ID)
		require.NoError(t, err)
	}
	ttl := min(max(least, share*slowest), 3*least).Round(time.Second)
	if ttl > least {
		t.Logf("a TTL of %v: a lease is granted after %v", ttl, slowest)
	}
	return ttl
}

// within waits for a message, and fails the test if it does not come.
func within[T any](t *testing.T, d time.Duration, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(d):
		require.Fail(t, "too late", "waited %v for %s", d, what)
	}
	return v
}

// atOnce runs n subtests at the same time, so that their waits overlap. With t.Parallel
// fewer would run at once, and the world that they share would end with the function.
func atOnce(t *testing.T, n int, name func(i int) string, run func(t *testing.T, i int)) {
	t.Helper()
	var all sync.WaitGroup
	free := make(chan struct{}, lanes)
	for i := range n {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(name(i), func(t *testing.T) { run(t, i) })
		})
	}
	all.Wait()
}

// A least is the least of some durations; a most is the greatest.
type (
	least struct {
		mu sync.Mutex
		n  int
		d  time.Duration
	}
	most struct {
		mu sync.Mutex
		n  int
		d  time.Duration
	}
)

func (l *least) note(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; l.n == 1 || d < l.d {
		l.d = d
	}
}

func (m *most) note(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	m.d = max(m.d, d)
}

// A world is a cluster that is clean in the end: no key, no lease, no goroutine.
type world struct {
	cluster *etcdtest.Cluster
	admin   *clientv3.Client
}

func newWorld(t *testing.T, members int, opts ...etcdtest.Option) *world {
	t.Helper()
	etcdtest.VerifyNoLeaks(t)
	w := &world{cluster: etcdtest.Start(t, members, opts...)}
	w.admin = w.cluster.Client(t)
	contract.VerifyClean(t, w.admin, "")
	return w
}

// A contest is about one name. No two beliefs to hold it may overlap.
type contest struct {
	t      *testing.T
	w      *world
	name   string
	belief *contract.Belief
}

func (w *world) contest(t *testing.T, name string) *contest {
	return &contest{t: t, w: w, name: name, belief: contract.NewBelief(t)}
}

// line returns the contenders in line, the holder first.
func (c *contest) line() []etcdlock.Contender {
	c.t.Helper()
	line, err := etcdlock.Contenders(bounded(c.t), c.w.admin, c.name)
	require.NoError(c.t, err)
	return line
}

func (c *contest) owners() []string {
	c.t.Helper()
	var owners []string
	for _, contender := range c.line() {
		owners = append(owners, contender.Owner)
	}
	return owners
}

// hasWithin waits until exactly these stand in line.
func (c *contest) hasWithin(d time.Duration, owners ...string) {
	c.t.Helper()
	var now []string
	if !contract.Eventually(d, func() bool { now = c.owners(); return slices.Equal(now, owners) }) {
		require.Equal(c.t, owners, now, "after %v", d)
	}
}

func (c *contest) isEmptyWithin(d time.Duration) {
	c.t.Helper()
	c.hasWithin(d)
}

// A party is one client: its own connections, faults and Session.
type party struct {
	*contest
	t      *testing.T
	who    string
	faults *etcdtest.Faults
	txns   *etcdtest.Injection // strikes when etcd answers a Txn, and does no harm
	reads  *etcdtest.Injection // the same for a read
	looks  *etcdtest.Injection // the same for an audit of the lease's keys
	client *clientv3.Client
	s      *etcdlock.Session
	mu     *etcdlock.Mutex
	other  *etcdlock.Mutex // of another name in the same Session
	hold   context.Context // of the last hold
	mend   func()          // what heals does besides healing the faults
}

func (c *contest) party(who string, ttl time.Duration, opts ...contract.ClientOption) *party {
	c.t.Helper()
	return c.partyWith(who, ttl, nil, opts...)
}

func (c *contest) partyWith(who string, ttl time.Duration, options []etcdlock.Option, opts ...contract.ClientOption) *party {
	c.t.Helper()
	p := &party{contest: c, t: c.t, who: who, faults: etcdtest.NewFaults(c.t), mend: func() {}}
	network := etcdtest.NewFaults(c.t)
	p.txns = network.Inject(etcdtest.DelayReply("Txn", time.Nanosecond))
	p.reads = network.Inject(etcdtest.DelayReply("Range", time.Nanosecond))
	p.looks = network.Inject(etcdtest.DelayReply("LeaseTimeToLive", time.Nanosecond))
	p.client = c.w.cluster.Client(c.t, append(opts, contract.With(p.faults, network))...)
	var err error
	p.s, err = etcdlock.NewSession(p.client, append(options, etcdlock.WithTTL(ttl), etcdlock.WithOwner(who))...)
	require.NoError(c.t, err)
	p.mu, err = p.s.Mutex(c.name)
	require.NoError(c.t, err)
	p.other, err = p.s.Mutex(c.name + "-another-of-" + who)
	require.NoError(c.t, err)
	c.t.Cleanup(func() {
		p.heals()
		p.closes()
	})
	return p
}

// mends says how to heal p's network, besides ending its faults.
func (p *party) mends(mend func()) { p.mend = mend }

func (p *party) heals() {
	p.faults.Heal()
	p.mend()
}

func (p *party) lock(ctx context.Context) error    { return p.mu.Lock(ctx) }
func (p *party) tryLock(ctx context.Context) error { return p.mu.TryLock(ctx) }
func (p *party) unlock(ctx context.Context) error  { p.belief.Leave(p.who); return p.mu.Unlock(ctx) }
func (p *party) close(ctx context.Context) error   { p.belief.Leave(p.who); return p.s.Close(ctx) }
func (p *party) do(ctx context.Context) error {
	return p.mu.Do(ctx, func(context.Context) error { return errors.New("never called") })
}

// tries calls Lock or TryLock, and records the belief if the call says nil.
func (p *party) tries(ctx context.Context, verb string) error {
	var err error
	if verb == "TryLock" {
		err = p.mu.TryLock(ctx)
	} else {
		err = p.mu.Lock(ctx)
	}
	if err == nil {
		p.believes()
	}
	return err
}

// believes records the hold that has begun.
func (p *party) believes() {
	p.hold = p.mu.Context(context.Background())
	if token := p.mu.Token(); token > 0 { // else it has been lost already
		p.belief.EnterUntil(p.hold, p.who, token)
	}
}

// believesUntilTold takes the belief back. An operator takes the lock away: the one case in
// which two may believe for some time.
func (p *party) believesUntilTold() { p.belief.Leave(p.who) }

func (p *party) locks() {
	p.t.Helper()
	require.NoError(p.t, p.tries(bounded(p.t), "Lock"))
}

// getsALease locks and unlocks, so that it has a lease.
func (p *party) getsALease() {
	p.t.Helper()
	p.locks()
	p.unlocks()
}

// locksAnother holds another name on the same lease.
func (p *party) locksAnother() {
	p.t.Helper()
	require.NoError(p.t, p.other.Lock(bounded(p.t)))
}

// locksWithin locks in less time than a lease needs to expire, and returns the time that it
// took.
func (p *party) locksWithin(d time.Duration) time.Duration {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(bounded(p.t), d)
	defer cancel()
	started := time.Now()
	require.NoError(p.t, p.tries(ctx, "Lock"))
	return time.Since(started)
}

func (p *party) unlocks() {
	p.t.Helper()
	p.belief.Leave(p.who)
	require.NoError(p.t, p.mu.Unlock(bounded(p.t)))
	require.ErrorIs(p.t, context.Cause(p.hold), etcdlock.ErrUnlocked)
}

func (p *party) closes() {
	p.t.Helper()
	p.belief.Leave(p.who)
	require.NoError(p.t, p.s.Close(bounded(p.t)))
}

// loses waits until the hold's context ends by a loss, and returns when it did.
func (p *party) loses(bound time.Duration) (knew time.Time) {
	p.t.Helper()
	within(p.t, bound, p.who+" to know of its loss", p.hold.Done())
	knew = time.Now()
	require.ErrorIs(p.t, context.Cause(p.hold), etcdlock.ErrLost)
	require.Zero(p.t, p.mu.Token())
	return knew
}

// unlockSaysLost unlocks after a loss: Unlock says so once, at once, and for good.
func (p *party) unlockSaysLost() {
	p.t.Helper()
	p.belief.Leave(p.who)
	require.ErrorIs(p.t, p.mu.Unlock(bounded(p.t)), etcdlock.ErrLost)
	require.ErrorIs(p.t, p.mu.Unlock(bounded(p.t)), etcdlock.ErrNotHeld)
	require.Zero(p.t, p.mu.Token())
}

// outlives checks that p holds on, whatever the party that lost the lock to it does in the
// end.
func (p *party) outlives(lost *party) {
	p.t.Helper()
	lost.unlockSaysLost()
	lost.heals()
	lost.closes() // by now it has removed whatever it had to remove
	p.stillHolds()
	p.unlocks()
}

// stillHolds asks the Mutex and etcd.
func (p *party) stillHolds() {
	p.t.Helper()
	require.NoError(p.t, p.hold.Err(), "%v", context.Cause(p.hold))
	line := p.line()
	require.NotEmpty(p.t, line)
	require.Equal(p.t, p.mu.Token(), line[0].Token)
	require.Equal(p.t, p.mu.Key(), line[0].Key)
	require.Equal(p.t, p.who, line[0].Owner)
	resp, err := p.w.admin.Txn(bounded(p.t)).If(p.mu.IsOwner()).Commit()
	require.NoError(p.t, err)
	require.True(p.t, resp.Succeeded)
}

// locksAfter queues behind a holder and gets in when that unlocks.
func (p *party) locksAfter(holder *party) {
	p.t.Helper()
	next := p.waits()
	holder.unlocks()
	next.getsIn(slack)
	p.unlocks()
}

// A wait is a Lock under way.
type wait struct {
	p    *party
	done chan struct{}
	err  error     // once done
	at   time.Time // when it returned
}

// starts begins a Lock in a goroutine, which ends with it.
func (p *party) starts(ctx context.Context) *wait {
	w := &wait{p: p, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = p.mu.Lock(ctx)
		w.at = time.Now()
		if w.err == nil {
			p.believes()
		}
	}()
	p.t.Cleanup(func() { within(p.t, 3*longTTL, p.who+" to return", w.done) })
	return w
}

// waits begins a Lock, and returns when it stands in line behind another and watches: it
// has put its key, and has read again once the watch was there.
func (p *party) waits() *wait {
	p.t.Helper()
	answered := p.txns.Strikes()
	w := p.starts(bounded(p.t))
	p.queues(slack)
	p.txns.Await(answered + 1)
	p.reads.Await(1) // a later waiter may find the view that the first one needed
	return w
}

// queues waits until p stands in line, whoever is before it, and returns its place.
func (p *party) queues(d time.Duration) (place etcdlock.Contender) {
	p.t.Helper()
	require.True(p.t, contract.Eventually(d, func() bool {
		for _, c := range p.line() {
			if c.Owner == p.who {
				place = c
				return true
			}
		}
		return false
	}), "%s does not stand in line", p.who)
	return place
}

// getsIn waits until the Lock says nil.
func (w *wait) getsIn(d time.Duration) {
	w.p.t.Helper()
	within(w.p.t, d, w.p.who+" to get in", w.done)
	require.NoError(w.p.t, w.err)
}

// fails waits until the Lock returns an error, and returns that.
func (w *wait) fails(d time.Duration) error {
	w.p.t.Helper()
	within(w.p.t, d, w.p.who+" to fail", w.done)
	require.Error(w.p.t, w.err)
	return w.err
}

// goesOnWaiting checks that the Lock has not returned, and does not for a while.
func (w *wait) goesOnWaiting(d time.Duration) {
	w.p.t.Helper()
	select {
	case <-w.done:
		require.Fail(w.p.t, w.p.who+" stopped waiting", "error: %v", w.err)
	case <-time.After(d):
	}
}
