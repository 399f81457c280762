package faults

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

// prompt is the time in which the next client must be in, once etcd answers.
const prompt = time.Second

// A write is one of the requests by which a lock changes what is in etcd.
type write struct {
	name  string
	match etcdtest.Match
	calls []string // the calls that send it
}

var (
	grant = write{"grant", etcdtest.Match{Name: "grants", OK: is[*pb.LeaseGrantRequest]},
		[]string{"Lock", "TryLock"}}
	acquire = write{"acquire", etcdtest.Puts, []string{"Lock", "TryLock"}}
	release = write{"release", etcdtest.Deletes, []string{"Unlock"}}
	revoke  = write{"revoke", etcdtest.Match{Name: "revokes", OK: is[*pb.LeaseRevokeRequest]},
		[]string{"Close"}}
)

func is[M any](msg any) bool {
	_, ok := msg.(M)
	return ok
}

// A loss is what becomes of one message, and how the client learns of it.
type loss struct {
	message string // answer or request
	how     string
	code    codes.Code // OK: by its connection, which is reset with the message in it
}

var hows = []struct {
	name string
	code codes.Code
}{
	{"as Unavailable", codes.Unavailable},
	{"as DeadlineExceeded", codes.DeadlineExceeded},
	{"as a reset connection", codes.OK},
}

// S13. The answer to a write is lost after the commit. Either the call finds out the truth
// by itself, or it returns an error and the write is undone.
//
//	a calls | its write is committed, the answer is lost | etcd answers again, at once or
//	only after a's context has ended | b gets in
func TestS13AnAnswerLostAfterTheCommitLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, w := range []write{grant, acquire, release, revoke} {
		for _, how := range hows {
			name := w.name + ", " + how.name
			t.Run(name, func(t *testing.T) {
				prove(t, row{
					id: "S13", name: name, quick: 4,
					fault: "the answer to the " + w.name + " is lost after the commit, " + how.name,
					must:  "nil and true, or an error and no key: the next client in <= 1 s once etcd answers; no lease left",
				}, func(tr *trial) { tr.leavesNothing(w, loss{"answer", how.name, how.code}) })
			})
		}
	}
}

// S14. A write is lost before the commit. No call says that it happened.
//
//	a calls | its write is lost | etcd answers again, at once or only after a's context
//	has ended | b gets in
func TestS14ARequestLostBeforeTheCommitIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, w := range []write{grant, acquire, release, revoke} {
		for _, how := range hows {
			name := w.name + ", " + how.name
			must := "nil only if it is true; the next client in <= 1 s once etcd answers"
			if w.name == revoke.name {
				// After Close nobody is left to try again.
				must =
					"nil only if it is true; the next client in <= 1 s once etcd answers, or, if Close said that it was not confirmed, when the TTL is over"
			}
			t.Run(name, func(t *testing.T) {
				prove(t, row{
					id: "S14", name: name, quick: 4,
					fault: "the " + w.name + " is lost before the commit, " + how.name,
					must:  must + "; no lease left",
				}, func(tr *trial) { tr.leavesNothing(w, loss{"request", how.name, how.code}) })
			})
		}
	}
}

// leavesNothing is the story of a lost message.
func (tr *trial) leavesNothing(w write, l loss) {
	c := etcdtest.Start(tr, 1)
	admin := c.Client(tr)
	proxy := c.Proxy(tr, 0)
	own := 10 * ttl // so long that nothing goes because a lease expires
	if w.name == grant.name || w.name == revoke.name {
		own = ttl // nobody knows the lease, or nobody is there to give it back
	}
	a := tr.party("a", c, own, etcdtest.Via(proxy))
	b := tr.party("b", c, 10*ttl)
	a.mends(proxy.Heal)
	switch w.name {
	case grant.name:
		_, err := a.client.Get(tr.bounded(patience), tr.name) // connects
		require.NoError(tr, err)
	case acquire.name:
		a.locks()
		a.unlocks()
	default:
		a.locks()
	}
	verb := w.calls[tr.i/2%len(w.calls)]
	silent := tr.i%2 == 1 // until the call's context has ended

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	lost := a.losing(admin, proxy, w, l, silent)
	said := make(chan error, 1)
	go func() { said <- a.does(ctx, verb) }() // ends with the call
	lost()
	if silent {
		tr.phase(1750 * time.Millisecond) // since the pauses between attempts have grown
		cancel()
	}
	err := a.calls(verb, patience+slack, func() error { return <-said })
	locks := verb == "Lock" || verb == "TryLock"
	if err == nil && !locks {
		tr.must(tr.keys(admin) == 0, "%s said nil, and the key is there", verb)
	}
	if silent {
		a.heals()
	}
	answers := now()
	slow := measureStalls(tr)

	bound := prompt
	switch {
	case err != nil:
		tr.figures.add("errors", 1)
		tr.must(!errors.Is(err, etcdlock.ErrLost), "%s called it a loss: %v", verb, err)
		if l.message == "request" && verb == "Close" {
			bound = expires
		}
	case locks:
		a.stillHolds(admin)
		a.unlocks()
		answers = now()
	}
	next := b.starts(context.Background())
	next.getsInSoon("time to the next", answers, bound, slow)
	b.stillHolds(admin)
	b.unlocks()
	for _, p := range []*party{a, b} {
		_ = p.lock.Close(tr.bounded(slack)) // the check of what is left says more
	}
	tr.must(contract.Eventually(expires, func() bool { return tr.keys(admin)+leases(tr, admin) == 0 }),
		"%d keys and %d leases are left", tr.keys(admin), leases(tr, admin))
}

// losing arms the loss of one message. The function that it returns waits for the loss.
// From then on nothing is answered if silent is set.
func (p *party) losing(
	admin *clientv3.Client, proxy *etcdtest.Proxy, w write, l loss, silent bool,
) (lost func()) {
	if l.code == codes.OK {
		return p.losingTheConnection(admin, proxy, w, l, silent)
	}
	drop := etcdtest.DropReply
	if l.message == "request" {
		drop = etcdtest.DropRequest
	}
	fault := drop("*", l.code).When(w.match)
	if !silent {
		fault = fault.Times(1)
	}
	struck := p.faults.Inject(fault)
	return func() {
		struck.Await(1)
		if silent {
			p.faults.Inject(etcdtest.DropRequest("*", l.code))
		}
	}
}

func (p *party) losingTheConnection(
	admin *clientv3.Client, proxy *etcdtest.Proxy, w write, l loss, silent bool,
) (lost func()) {
	var await func()
	if l.message == "answer" {
		before := footprint(p.tr, admin)
		proxy.Hold(etcdtest.Replies)
		await = func() {
			committed := contract.Eventually(patience, func() bool {
				return footprint(p.tr, admin) != before
			})
			require.True(p.tr, committed, "no %s was committed", w.name)
		}
	} else {
		// If the request is not in the connection yet when that is reset, it goes out by
		// the next connection: that is no success either.
		sent := p.faults.Inject(etcdtest.Delay("*", time.Nanosecond).When(w.match))
		proxy.Hold(etcdtest.Requests)
		await = func() { sent.Await(1) }
	}
	return func() {
		await()
		proxy.Refuse()
		proxy.Reset()
		if !silent {
			proxy.Heal()
		}
	}
}

// footprint counts what each of the writes changes.
func footprint(tr *trial, admin *clientv3.Client) [2]int {
	return [2]int{tr.keys(admin), leases(tr, admin)}
}

// leases returns how many leases there are in etcd.
func leases(tr *trial, admin *clientv3.Client) int {
	resp, err := admin.Leases(tr.bounded(patience))
	require.NoError(tr, err)
	return len(resp.Leases)
}

// does makes a call by its name.
func (p *party) does(ctx context.Context, verb string) error {
	switch verb {
	case "Unlock":
		p.leaves()
		return p.lock.Unlock(ctx)
	case "Close":
		p.leaves()
		return p.lock.Close(ctx)
	default:
		return p.tries(ctx, verb)
	}
}

// S15. A call returns when its context ends, whatever the network does.
//
//	nothing answers a | a calls | its context ends | the call returns
//
// It does not run beside other tests, since they would delay its calls.
func TestS15ACallReturnsWhenItsContextEnds(t *testing.T) {
	const bound = 100 * time.Millisecond
	situations := []struct {
		name, verb string
		prepare    func(a, b *party)
	}{
		{"the first Lock", "Lock", func(a, b *party) {}},
		{"Lock", "Lock", func(a, b *party) { a.locks(); a.unlocks() }},
		{"Lock, in line", "Lock", func(a, b *party) { a.locks(); a.unlocks(); b.locks() }},
		{"TryLock", "TryLock", func(a, b *party) { a.locks(); a.unlocks() }},
		{"Unlock", "Unlock", func(a, b *party) { a.locks() }},
		{"Close", "Close", func(a, b *party) { a.locks() }},
	}
	networks := []struct {
		name string
		cut  func(*etcdtest.Proxy)
	}{
		{"black hole", func(p *etcdtest.Proxy) { p.BlackHole() }},
		{"refused", func(p *etcdtest.Proxy) { p.Refuse(); p.Reset() }},
	}
	for _, s := range situations {
		for _, network := range networks {
			name := s.name + ", " + network.name
			t.Run(name, func(t *testing.T) {
				prove(t, row{
					id: "S15", name: name, quick: 4,
					fault: fmt.Sprintf("nothing answers (%s) when the context of %s ends, "+
						"by its deadline or by a cancel", network.name, s.name),
					must: "returns <= 100 ms after, scheduling aside",
				}, func(tr *trial) {
					c := etcdtest.Start(tr, 1)
					proxy := c.Proxy(tr, 0)
					a := tr.party("a", c, 10*ttl, etcdtest.Via(proxy))
					b := tr.party("b", c, 10*ttl)
					a.mends(proxy.Heal)
					s.prepare(a, b)

					cut := func() { network.cut(proxy) }
					if s.name != "Lock, in line" {
						cut()
						cut = func() {}
					}
					slow := measureStalls(tr)
					watched := a.watched.Strikes()
					lasts := 300*time.Millisecond + 600*time.Millisecond*time.Duration(tr.i)/time.Duration(tr.n)
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					due := now() + lasts
					if tr.i%2 == 0 {
						ctx, cancel = context.WithTimeout(ctx, lasts)
						defer cancel()
					} else {
						time.AfterFunc(lasts, cancel)
					}
					var at time.Duration
					said := make(chan error, 1)
					go func() { // ends with the call
						err := a.does(ctx, s.verb)
						at = now()
						said <- err
					}()
					if s.name == "Lock, in line" {
						a.watched.Await(watched + 1)
					}
					cut()
					err := a.calls(s.verb, lasts+slack, func() error { return <-said })
					tr.must(err != nil, "%s said nil", s.verb)
					over := at - due
					tr.figures.longest("time after the end", over)
					tr.must(over <= bound+slow.between(due, at), "%s returned %v after its context had ended",
						s.verb, over)
				})
			})
		}
	}
}

// S17. After all of a lock's life, with losses and cancelled waits, Close leaves nothing.
//
//	10 locks, each: 50 cycles, 10 cancelled waits, 5 losses | all are closed | nothing is
//	left in this process or in etcd
//
// It does not run beside other tests, since it would count their goroutines.
func TestS17CloseLeavesNothing(t *testing.T) {
	const names, cycles, cancelled, losses = 10, 50, 10, 5
	// If the last watch on a stream was cancelled before etcd had answered it, clientv3
	// keeps the stream, in two goroutines. The stream ends with the client, or with the
	// next watch on it.
	const emptyStream = 2
	prove(t, row{
		id: "S17", full: 4, lanes: 1, // so that the test counts the goroutines of one trial
		fault: "500 cycles, 100 cancelled waits, 50 losses, Close",
		must:  "goroutines of the library and of etcd's client as before (but for an empty stream of clientv3's), 0 keys, 0 leases",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		client := c.Client(tr)
		live := func(i, cycles, cancelled, losses int) {
			l := &life{tr: tr, admin: admin, a: tr.opens(client, i, "a"), b: tr.opens(client, i, "b")}
			if err := l.lives(cycles, cancelled, losses); err != nil {
				tr.broke("lock %d: %v", i, err)
			}
			for _, l := range []*lock{l.a, l.b} {
				_ = l.Close(tr.bounded(patience)) // the check of what is left says more
			}
		}
		live(names, 1, 1, 1) // what the clients start and keep is there from here on
		clients, own := goroutines(tr.side)
		tr.figures.add("goroutines of the library before", own)

		var running sync.WaitGroup
		for i := range names {
			running.Go(func() { live(i, cycles, cancelled, losses) })
		}
		running.Wait()

		closed := now()
		var left, leftOwn int
		same := contract.Eventually(slack, func() bool {
			left, leftOwn = goroutines(tr.side)
			return left <= clients+emptyStream && leftOwn <= own
		})
		tr.figures.longest("time until goroutines were as before", now()-closed)
		tr.figures.add("goroutines of the library after", leftOwn)
		keys, err := admin.Get(tr.bounded(patience), tr.name, clientv3.WithPrefix(),
			clientv3.WithCountOnly())
		require.NoError(tr, err)
		leases := leases(tr, admin)
		tr.figures.add("keys left", int(keys.Count))
		tr.figures.add("leases left", leases)
		tr.must(same, "%d goroutines of the library instead of %d, %d of etcd's client instead of %d",
			leftOwn, own, left, clients)
		tr.must(keys.Count == 0 && leases == 0, "%d keys and %d leases are left", keys.Count, leases)
	})
}

// opens opens the i-th lock of a trial.
func (tr *trial) opens(client *clientv3.Client, i int, who string) *lock {
	l, err := opens(tr.side, client, fmt.Sprintf("%s-%d", tr.name, i), who, ttl)
	require.NoError(tr, err)
	return l
}

// A life is what happens to one lock of two sessions. It ends with the first unexpected
// error.
type life struct {
	tr    *trial
	admin *clientv3.Client
	a, b  *lock
}

func (l *life) lives(cycles, cancelled, losses int) error {
	for range cycles {
		if err := holding(l.a, func() error { return nil }); err != nil {
			return err
		}
	}
	for n := range cancelled {
		err := holding(l.b, func() error {
			// The wait ends on the way into the line, or in it.
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n)*2*time.Millisecond)
			defer cancel()
			if l.a.Lock(ctx) == nil {
				return errors.New("two hold")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for n := range losses {
		var taken bool
		err := holding(l.a, func() error {
			taken = true
			return l.takes(l.a.Key(), n%2 == 0)
		})
		switch {
		case !taken:
			return err
		case err == nil && l.tr.side.Name == side.Ours.Name: // S8 judges what the peer says
			return errors.New("Unlock after a loss said nil")
		case err != nil && !l.tr.side.Lost(err):
			return err
		}
	}
	return nil
}

// holding calls Lock, what happens, and Unlock.
func holding(l *lock, happens func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	if err := l.Lock(ctx); err != nil {
		return err
	}
	if err := happens(); err != nil {
		return err
	}
	return l.Unlock(ctx)
}

// takes takes the key away from its holder, alone or with the lease, and waits until the
// holder knows.
func (l *life) takes(key string, withLease bool) error {
	ctx := l.tr.bounded(patience)
	held, err := l.admin.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(held.Kvs) == 0 {
		return fmt.Errorf("the holder's key %q is not there", key)
	}
	if withLease {
		_, err = l.admin.Revoke(ctx, clientv3.LeaseID(held.Kvs[0].Lease))
	} else {
		_, err = l.admin.Delete(ctx, key)
	}
	select {
	case <-l.a.Ended():
	case <-time.After(3 * time.Second): // the peer does not learn of every loss: S8, too
	}
	return err
}

// goroutines counts the goroutines of etcd's client, and those that a function of the side
// runs in or has started. (etcd itself runs in this process, so the sum of all goroutines
// would include its own.)
func goroutines(s side.Side) (clients, own int) {
	functions := "github.com/etcdlock/etcdlock."
	if s.Name == side.Theirs.Name {
		functions = "go.etcd.io/etcd/client/v3/concurrency."
	}
	buf := make([]byte, 64<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "go.etcd.io/etcd/client/v3.") {
			clients++
		}
		if strings.Contains(stack, functions) {
			own++
		}
	}
	return clients, own
}

// stalls are the times when this process could not run what was due, because of other
// processes or its own tests.
type stalls struct {
	mu   sync.Mutex
	seen []stall
}

type stall struct{ at, late time.Duration }

// measureStalls measures until the trial ends.
func measureStalls(tr *trial) *stalls {
	const tick, noise = time.Millisecond, 3 * time.Millisecond
	s := &stalls{}
	over := make(chan struct{})
	tr.Cleanup(func() { close(over) })
	go func() { // ends with the trial
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for last := now(); ; {
			select {
			case <-ticks.C:
			case <-over:
				return
			}
			at := now()
			if late := at - last - tick; late > noise {
				s.mu.Lock()
				s.seen = append(s.seen, stall{at, late})
				s.mu.Unlock()
			}
			last = at
		}
	}()
	return s
}

// between returns for how long nothing ran in a span of time.
func (s *stalls) between(from, until time.Duration) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stall := range s.seen {
		if stall.at >= from && stall.at-stall.late <= until {
			sum += stall.late
		}
	}
	return sum
}

// getsInSoon is getsIn with a bound that counts from a moment and leaves out the stalls.
// what is the name of the figure that it records.
func (w *wait) getsInSoon(what string, since, bound time.Duration, slow *stalls) {
	w.p.tr.Helper()
	w.getsIn(bound + slack/2)
	took := w.at - since
	w.p.tr.figures.longest(what, took)
	w.p.tr.must(took <= bound+slow.between(since, w.at), "%s got in after %v", w.p.who, took)
}
