package faults

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

// patience bounds what has no bound of its own in a story. What exceeds it hangs.
const patience = 40 * time.Second

// A party is one client of the lock in this process: its own connections and faults.
type party struct {
	tr      *trial
	who     string
	use     use
	ttl     time.Duration
	client  *clientv3.Client
	faults  *etcdtest.Faults
	watched *etcdtest.Injection // strikes on each message of a watch, and does no harm
	lock    *lock
	belief  *span
	mend    []func() // what heals does besides healing the faults
}

// party makes a client of the cluster. opts may say that it goes through proxies.
func (tr *trial) party(
	who string, c *etcdtest.Cluster, ttl time.Duration, opts ...contract.ClientOption,
) *party {
	tr.Helper()
	return tr.partyFor(exclusive, who, c, ttl, opts...)
}

func (tr *trial) partyFor(
	u use, who string, c *etcdtest.Cluster, ttl time.Duration, opts ...contract.ClientOption,
) *party {
	tr.Helper()
	p := &party{tr: tr, who: who, use: u, ttl: ttl, faults: etcdtest.NewFaults(tr)}
	network := etcdtest.NewFaults(tr)
	p.watched = network.Inject(etcdtest.DelayReply("Watch", time.Nanosecond))
	p.client = c.Client(tr, append(opts, contract.With(p.faults, network))...)
	p.opens()
	return p
}

// partyOf makes a party with a client that the story has made.
func (tr *trial) partyOf(who string, client *clientv3.Client, ttl time.Duration) *party {
	tr.Helper()
	return tr.partyOfFor(exclusive, who, client, ttl)
}

func (tr *trial) partyOfFor(u use, who string, client *clientv3.Client, ttl time.Duration) *party {
	tr.Helper()
	p := &party{tr: tr, who: who, use: u, ttl: ttl, client: client, faults: etcdtest.NewFaults(tr)}
	p.opens()
	return p
}

// behindAProxy makes two parties. The proxy stands between one of them, with this TTL, and
// etcd. The other one will get in when the lease of the first has run out.
func (tr *trial) behindAProxy(
	c *etcdtest.Cluster, ttl time.Duration,
) (proxy *etcdtest.Proxy, a, b *party) {
	tr.Helper()
	proxy = c.Proxy(tr, 0)
	a = tr.party("a", c, ttl, etcdtest.Via(proxy))
	b = tr.party("b", c, 10*ttl)
	a.mends(proxy.Heal)
	return proxy, a, b
}

// memberThatIs returns the leader of a cluster of three, or a follower.
func (tr *trial) memberThatIs(role string, c *etcdtest.Cluster) int {
	tr.Helper()
	member := c.Leader(tr)
	if role == "follower" {
		member = (member + 1) % 3
	}
	return member
}

func (p *party) opens() {
	p.tr.Helper()
	var err error
	p.lock, err = opensFor(p.use, p.tr.side, p.client, p.tr.name, p.who, p.ttl)
	require.NoError(p.tr, err)
	p.tr.Cleanup(func() {
		p.heals()
		p.leaves()
		ctx, cancel := context.WithTimeout(context.Background(), p.ttl+slack)
		defer cancel()
		if err := p.lock.Close(ctx); err != nil && p.tr.side.Name == side.Ours.Name {
			p.tr.broke("%s: Close: %v", p.who, err)
		}
	})
}

// beside makes a party of the same session, with a lock of its own.
func (p *party) beside(who string, u use) *party {
	p.tr.Helper()
	l := &lock{session: p.lock.session}
	require.NoError(p.tr, l.use(u, p.tr.name))
	return p.with(who, u, l)
}

// again makes a party that reads by the same RWMutex.
func (p *party) again(who string) *party {
	l := *p.lock
	l.Mutex = l.rw.Reader()
	l.hold = l.Hold()
	return p.with(who, reading, &l)
}

func (p *party) with(who string, u use, l *lock) *party {
	q := &party{tr: p.tr, who: who, use: u, ttl: p.ttl, client: p.client, faults: p.faults,
		watched: p.watched, lock: l}
	p.tr.Cleanup(q.leaves)
	return q
}

// mends records how to heal p's network.
func (p *party) mends(mend func()) { p.mend = append(p.mend, mend) }

func (p *party) heals() {
	p.faults.Heal()
	for _, mend := range p.mend {
		mend()
	}
}

// believes records that p believes to hold the lock from now on, until it leaves or learns
// of a loss.
func (p *party) believes() {
	s := p.tr.beginsTo(p.use, p.who, p.lock.Token(), now())
	p.belief = s
	ended := p.lock.Ended()
	over := make(chan struct{})
	p.tr.Cleanup(func() { close(over) })
	go func() { // ends with the hold, or with the trial
		select {
		case <-ended:
			p.tr.ends(s, now(), true)
		case <-over:
		}
	}()
}

// leaves records that p no longer believes to hold the lock.
func (p *party) leaves() {
	if p.belief != nil {
		p.tr.ends(p.belief, now(), false)
	}
}

// tries calls Lock or TryLock, and records the belief if the call says nil.
func (p *party) tries(ctx context.Context, verb string) error {
	call := p.lock.Lock
	if verb == "TryLock" {
		call = p.lock.TryLock
	}
	err := call(ctx)
	if err == nil {
		p.believes()
	}
	return err
}

func (p *party) locks() {
	p.tr.Helper()
	p.locksWithin(patience)
}

// locksWithin locks, and returns the time that it took.
func (p *party) locksWithin(d time.Duration) time.Duration {
	p.tr.Helper()
	w := p.starts(context.Background())
	return w.getsIn(d)
}

// getsALease locks and unlocks, so that it has a lease.
func (p *party) getsALease() {
	p.tr.Helper()
	p.locks()
	p.unlocks()
}

// unlocks releases a hold that must have been whole.
func (p *party) unlocks() {
	p.tr.Helper()
	err := p.releases(patience)
	p.tr.must(err == nil, "%s: Unlock of a hold that was not lost: %v", p.who, err)
}

// endsItsHold releases a hold that may be lost: in stories that restart etcd, a busy machine may
// be without one for longer than a TTL, and what they prove is not that a hold outlasts that.
func (p *party) endsItsHold() {
	p.tr.Helper()
	err := p.releases(patience)
	told := err == nil || p.tr.side.Lost(err) || errors.Is(err, etcdlock.ErrUnconfirmed)
	p.tr.must(told, "%s: Unlock: %v", p.who, err)
}

// releases calls Unlock and returns its error.
func (p *party) releases(d time.Duration) error {
	p.tr.Helper()
	p.leaves()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return p.calls("Unlock", d+slack, func() error { return p.lock.Unlock(ctx) })
}

// calls makes a call that may hang, and breaks the trial if it does.
func (p *party) calls(what string, d time.Duration, call func() error) error {
	p.tr.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }() // ends with the call
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		p.tr.must(false, "%s: %s has not returned after %v", p.who, what, d)
		return nil
	}
}

// loses waits until p knows that it has lost the lock.
func (p *party) loses(d time.Duration) {
	p.tr.Helper()
	select {
	case <-p.lock.Ended():
	case <-time.After(d):
		p.tr.must(false, "%s does not know of its loss after %v", p.who, d)
	}
}

// holdsFor lets some time pass, or less if p loses the lock.
func (p *party) holdsFor(d time.Duration) {
	select {
	case <-p.lock.Ended():
	case <-time.After(d):
	}
}

// stillHolds asks the lock, and etcd by another client.
func (p *party) stillHolds(admin *clientv3.Client) {
	p.tr.Helper()
	p.tr.must(p.lock.Holds(), "%s has lost the lock", p.who)
	resp, err := admin.Txn(p.tr.bounded(patience)).If(p.lock.IsOwner()).Commit()
	require.NoError(p.tr, err)
	p.tr.must(resp.Succeeded, "the key of %s is gone", p.who)
}

// A wait is a Lock under way.
type wait struct {
	p       *party
	started time.Duration
	done    chan struct{}
	err     error         // once done
	at      time.Duration // when it returned
	cancel  context.CancelFunc
	left    bool // the story saw that it is in
}

// starts begins a Lock, which ends with the trial if not before.
func (p *party) starts(ctx context.Context) *wait {
	ctx, cancel := context.WithCancel(ctx)
	w := &wait{p: p, started: now(), done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(w.done)
		w.err = p.lock.Lock(ctx)
		w.at = now()
		if w.err == nil {
			p.believes()
		}
	}()
	p.tr.Cleanup(func() {
		cancel()
		select {
		case <-w.done:
		case <-time.After(patience):
			p.tr.broke("%s: Lock has not returned %v after its context ended", p.who, patience)
		}
	})
	return w
}

// waits begins a Lock, and returns once it stands in line and watches.
func (p *party) waits() *wait {
	p.tr.Helper()
	watched := p.watched.Strikes()
	w := p.starts(context.Background())
	p.watched.Await(watched + 1)
	return w
}

// getsIn waits until the Lock says nil, and returns the time since it began.
func (w *wait) getsIn(d time.Duration) time.Duration {
	w.p.tr.Helper()
	select {
	case <-w.done:
	case <-time.After(d):
		w.p.tr.must(false, "%s has not got in after %v", w.p.who, d)
	}
	w.p.tr.must(w.err == nil, "%s: Lock: %v", w.p.who, w.err)
	return w.at - w.started
}

// follows waits until the Lock says nil. That must be within d of an event.
func (w *wait) follows(event string, at, d time.Duration) {
	w.p.tr.Helper()
	w.getsIn(d + slack)
	took := w.at - at
	w.p.tr.figures.longest("time from "+event+" to in", took)
	w.p.tr.must(took <= d, "%s got in %v after %s", w.p.who, took, event)
}

// fails waits until the Lock returns an error.
func (w *wait) fails(d time.Duration) error {
	w.p.tr.Helper()
	select {
	case <-w.done:
	case <-time.After(d):
		w.p.tr.must(false, "%s: Lock has not returned after %v", w.p.who, d)
	}
	w.p.tr.must(w.err != nil, "%s: Lock said nil", w.p.who)
	return w.err
}

// goesOnWaiting checks that the Lock does not return for a while.
func (w *wait) goesOnWaiting(d time.Duration) {
	w.p.tr.Helper()
	select {
	case <-w.done:
		w.p.tr.must(false, "%s stopped waiting: %v", w.p.who, w.err)
	case <-time.After(d):
	}
}

// keys returns how many keys there are below the lock's name.
func (tr *trial) keys(admin *clientv3.Client) int {
	tr.Helper()
	resp, err := admin.Get(tr.bounded(patience), tr.name+"/", clientv3.WithPrefix(),
		clientv3.WithCountOnly())
	require.NoError(tr, err)
	return int(resp.Count)
}

// lineIs waits until there are n keys below the lock's name.
func (tr *trial) lineIs(admin *clientv3.Client, n int) {
	tr.Helper()
	tr.must(contract.Eventually(patience, func() bool {
		return tr.keys(admin) == n
	}), "%d keys instead of %d after %v", tr.keys(admin), n, patience)
}

// isEmptyWithin waits until no key is left below the lock's name.
func (tr *trial) isEmptyWithin(admin *clientv3.Client, d time.Duration) {
	tr.Helper()
	started := time.Now()
	tr.must(contract.Eventually(d, func() bool {
		return tr.keys(admin) == 0
	}), "%d keys are left after %v", tr.keys(admin), d)
	tr.figures.longest("time until no key was left", time.Since(started))
}
