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
	// longTTL is far above the patience of a test. So what is gone when a test goes on was
	// removed, and has not just expired. And no machine is so busy that such a lease is lost.
	longTTL = 10 * time.Minute

	// lanes is how many subtests run at once.
	lanes = 16
)

// bounded is a context for what must come. It outlives t.Context, so Cleanup can use it.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), contract.Patience)
	t.Cleanup(cancel)
	return ctx
}

// receive waits for a value that must come.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(contract.Patience):
		require.FailNow(t, "it does not come: "+what)
		panic("not reached")
	}
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

// countedWorld is a cluster of one with a client whose requests are counted. Nothing may be
// left in etcd at its end.
func countedWorld(t *testing.T) (*clientv3.Client, *contract.Counter) {
	t.Helper()
	etcdtest.VerifyNoLeaks(t)
	counter := contract.NewCounter()
	client := etcdtest.Start(t, 1).Client(t, contract.With(counter))
	contract.VerifyClean(t, client, "")
	return client, counter
}

// nothing is a critical section that must not be entered.
func nothing(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("the critical section was entered")
		return nil
	}
}

// falseInEtcd fails the test unless a transaction that is guarded by cmp is
// carried out and does nothing.
func falseInEtcd(t *testing.T, client *clientv3.Client, cmp clientv3.Cmp) {
	t.Helper()
	resp, err := client.Txn(t.Context()).If(cmp).Then(clientv3.OpPut("unguarded", "")).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
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

// is waits until exactly these stand in line.
func (c *contest) is(owners ...string) {
	c.t.Helper()
	var now []string
	if !contract.Poll(func() bool { now = c.owners(); return slices.Equal(now, owners) }) {
		require.Equal(c.t, owners, now)
	}
}

// A party is one client: its own connections, faults and Session.
type party struct {
	*contest
	t      *testing.T
	who    string
	faults *etcdtest.Faults
	txns   *etcdtest.Injection // strikes when etcd answers a Txn, and does no harm
	reads  *etcdtest.Injection // the same for a read
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

func (c *contest) partyWith(
	who string, ttl time.Duration, options []etcdlock.SessionOption, opts ...contract.ClientOption,
) *party {
	c.t.Helper()
	p := &party{contest: c, t: c.t, who: who, faults: etcdtest.NewFaults(c.t), mend: func() {}}
	network := etcdtest.NewFaults(c.t)
	p.txns = network.Inject(etcdtest.DelayReply("Txn", time.Nanosecond))
	p.reads = network.Inject(etcdtest.DelayReply("Range", time.Nanosecond))
	p.client = c.w.cluster.Client(c.t, append(opts, contract.With(p.faults, network))...)
	var err error
	p.s, err = etcdlock.NewSession(p.client,
		append(options, etcdlock.WithTTL(ttl), etcdlock.WithOwner(who))...)
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
func (p *party) unlock(ctx context.Context) error {
	p.belief.Leave(p.who)
	return p.mu.Unlock(ctx)
}
func (p *party) close(ctx context.Context) error { p.belief.Leave(p.who); return p.s.Close(ctx) }
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

// locksAnother holds another name on the same lease.
func (p *party) locksAnother() {
	p.t.Helper()
	require.NoError(p.t, p.other.Lock(bounded(p.t)))
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

// loses waits until the hold's context ends by a loss.
func (p *party) loses() {
	p.t.Helper()
	receive(p.t, p.hold.Done(), p.who+" to know of its loss")
	require.ErrorIs(p.t, context.Cause(p.hold), etcdlock.ErrLost)
	require.Zero(p.t, p.mu.Token())
}

// unlockSaysLost unlocks after a loss: Unlock says so once, at once, and for good.
func (p *party) unlockSaysLost() {
	p.t.Helper()
	p.belief.Leave(p.who)
	require.ErrorIs(p.t, p.mu.Unlock(bounded(p.t)), etcdlock.ErrLost)
	require.ErrorIs(p.t, p.mu.Unlock(bounded(p.t)), etcdlock.ErrNotHeld)
	require.Zero(p.t, p.mu.Token())
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
	next.getsIn()
	p.unlocks()
}

// A wait is a Lock under way.
type wait struct {
	p    *party
	done chan struct{}
	err  error // once done
}

// starts begins a Lock in a goroutine, which ends with it.
func (p *party) starts(ctx context.Context) *wait {
	w := &wait{p: p, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = p.mu.Lock(ctx)
		if w.err == nil {
			p.believes()
		}
	}()
	p.t.Cleanup(func() { receive(p.t, w.done, p.who+" to return") })
	return w
}

// waits begins a Lock, and returns when it stands in line behind another and watches: it
// has put its key, and has read again once the watch was there.
func (p *party) waits() *wait {
	p.t.Helper()
	answered := p.txns.Strikes()
	w := p.starts(bounded(p.t))
	p.queues()
	p.txns.Await(answered + 1)
	p.reads.Await(1) // a later waiter may find the view that the first one needed
	return w
}

// queues waits until p stands in line, whoever is before it, and returns its place.
func (p *party) queues() (place etcdlock.Contender) {
	p.t.Helper()
	require.True(p.t, contract.Poll(func() bool {
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
func (w *wait) getsIn() {
	w.p.t.Helper()
	receive(w.p.t, w.done, w.p.who+" to get in")
	require.NoError(w.p.t, w.err)
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
