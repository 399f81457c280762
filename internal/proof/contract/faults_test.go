package contract_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/race"
)

// The faults of this file are about truth: who holds, who knows it, and what is left
// behind. Those of liveness_test.go are about getting in at all.

// ---- the holder's trust ends in time

// A holder that is cut off knows it before etcd gives the lock to the next one.
//
//	a holds, b waits | a's connection breaks | a knows | the lease expires | b gets in
func TestAHolderBehindABlackHoleKnowsBeforeTheNextOwnerGetsIn(t *testing.T) {
	waiting.enter(t)
	w := newWorld(t, 1)
	ttl := steadyTTL(t, w.admin, 2*time.Second) // of which Close has two to revoke the lease
	cuts := []struct {
		name string
		runs int
		cut  func(*etcdtest.Proxy)
	}{
		{"black hole", 20, func(p *etcdtest.Proxy) { p.BlackHole() }},
		{"bytes arrive later", 5, func(p *etcdtest.Proxy) { p.Hold() }},
		{"reset and refused", 5, func(p *etcdtest.Proxy) { p.Refuse(); p.Reset() }},
		{"requests lost", 5, func(p *etcdtest.Proxy) { p.BlackHole(etcdtest.Requests) }},
		{"answers lost", 5, func(p *etcdtest.Proxy) { p.BlackHole(etcdtest.Replies) }},
	}
	type run struct{ cut, n int }
	var runs []run
	for i, cut := range cuts {
		for n := range cut.runs {
			runs = append(runs, run{i, n})
		}
	}
	least := make([]least, len(cuts))
	atOnce(t, len(runs), func(i int) string { return fmt.Sprintf("%s %d", cuts[runs[i].cut].name, runs[i].n) },
		func(t *testing.T, i int) {
			c := w.contest(t, fmt.Sprintf("cut/%d", i))
			proxy := w.cluster.Proxy(t, 0)
			a := c.party("a", ttl, etcdtest.Via(proxy))
			b := c.party("b", 10*ttl)
			a.mends(proxy.Heal)

			a.locks()
			next := b.waits()
			cuts[runs[i].cut].cut(proxy)
			knew := a.loses(ttl + slack)
			next.getsIn(ttl + slack)
			// The contest judges, by what a's context says when b enters. The moment at
			// which a's goroutine notices is only a figure: on a busy machine it wakes
			// late.
			least[runs[i].cut].note(next.at.Sub(knew))

			b.outlives(a)
		})
	for i, cut := range cuts {
		t.Logf("%s: %d of %d, least margin %v", cut.name, least[i].n, cut.runs, least[i].d)
	}
}

// A renewal counts from when it was sent. So slow answers cost nothing, and never make a
// holder trust its lease for too long.
//
//	a holds, b waits | answers are slow | for some TTLs | requests are lost, the answers
//	under way still arrive | a knows | b gets in
func TestTrustCountsFromTheSend(t *testing.T) {
	waiting.enter(t)
	w := newWorld(t, 1)
	ttl := steadyTTL(t, w.admin, 3*time.Second)
	delays := []struct {
		delay   time.Duration
		harmful bool // the delay alone may lose the hold
	}{
		// After half of the TTL a 24th of it is left.
		// TestAnswersThatTakeHalfTheTTLLoseNothing has that in virtual time.
		{ttl / 4, false}, {ttl / 2, true}, {ttl * 6 / 10, true}, {ttl * 7 / 10, true}, {ttl * 9 / 10, true},
	}
	var margins least
	atOnce(t, len(delays), func(i int) string { return delays[i].delay.String() }, func(t *testing.T, i int) {
		c := w.contest(t, fmt.Sprintf("slow/%d", i))
		a := c.party("a", ttl)
		b := c.party("b", 10*ttl)
		a.locks()
		next := b.waits()
		a.faults.Inject(etcdtest.DelayReply("LeaseKeepAlive", delays[i].delay))
		select {
		case <-a.hold.Done():
			require.True(t, delays[i].harmful, "lost by slow answers alone: %v", context.Cause(a.hold))
		case <-time.After(2 * ttl):
		}
		a.faults.Inject(etcdtest.SwallowRequest("LeaseKeepAlive"))
		knew := a.loses(2*ttl + slack)
		next.getsIn(2*ttl + slack)
		margins.note(next.at.Sub(knew)) // the contest judges, as above
		b.outlives(a)
	})
	t.Logf("%d of %d, least margin %v", margins.n, len(delays), margins.d)
}

// An answer to a renewal that comes after the end of the hold revives nothing.
//
//	a holds | answers are held | a's deadline | the answers arrive
func TestALateAnswerRevivesNothing(t *testing.T) {
	waiting.enter(t)
	// A renewal waits for its answer for three quarters of this, or less: on a machine that is slow the
	// answers must arrive before that, too.
	const ttl = 8 * time.Second
	w := newWorld(t, 1)
	c := w.contest(t, "late")
	renewed := make(chan struct{}, 1000)
	a := c.partyWith("a", ttl, []etcdlock.Option{etcdlock.WithTrace(&etcdlock.Trace{
		LeaseRenewed: func(clientv3.LeaseID, time.Duration) { renewed <- struct{}{} },
	})})
	a.locks()
	held := a.faults.Inject(etcdtest.HoldReply("LeaseKeepAlive"))
	held.Await(1)
	a.loses(ttl + slack)
	for len(renewed) > 0 {
		<-renewed
	}
	held.Heal()
	within(t, slack, "an answer after the deadline", renewed)
	require.Zero(t, a.mu.Token())
	require.Zero(t, a.mu.Deadline())
	require.Empty(t, a.mu.Key())
	require.Error(t, a.hold.Err())
	require.Error(t, a.mu.Context(context.Background()).Err())
	require.ErrorIs(t, context.Cause(a.hold), etcdlock.ErrLost)
	a.unlockSaysLost()

	b := c.party("b", 10*ttl)
	b.locks()
	b.unlocks()
}

// If an operator takes a lock away, the holder notices within about a second, and its
// Unlock says so. The next holder is left alone.
//
//	a holds, b waits | an operator takes a's key | b gets in | a knows | a unlocks
func TestUnlockAfterLossLeavesTheNewHolderAlone(t *testing.T) {
	waiting.enter(t)
	const bound = 2500 * time.Millisecond
	w := newWorld(t, 1)
	for _, wait := range []bool{true, false} { // until a knows
		atOnce(t, len(takings), func(i int) string { return fmt.Sprintf("%s, a knows: %t", takings[i].name, wait) },
			func(t *testing.T, i int) {
				c := w.contest(t, fmt.Sprintf("taken/%d/%t", i, wait))
				a, b := c.party("a", longTTL), c.party("b", longTTL)
				a.locks()
				next := b.waits()
				a.believesUntilTold()
				taken := time.Now()
				takings[i].take(t, w.admin, c.line()[0])
				next.getsIn(bound)
				if wait {
					knew := a.loses(bound)
					t.Logf("told after %v", knew.Sub(taken))
				}
				a.unlockSaysLost()
				b.stillHolds()
				a.locksAfter(b) // and a can go on
			})
	}
}

var takings = []struct {
	name string
	take func(t *testing.T, admin *clientv3.Client, c etcdlock.Contender)
}{
	{"Break", func(t *testing.T, admin *clientv3.Client, c etcdlock.Contender) {
		require.NoError(t, etcdlock.Break(bounded(t), admin, c))
	}},
	{"revoke", func(t *testing.T, admin *clientv3.Client, c etcdlock.Contender) {
		_, err := admin.Revoke(bounded(t), c.Lease)
		require.NoError(t, err)
	}},
	{"delete", func(t *testing.T, admin *clientv3.Client, c etcdlock.Contender) {
		_, err := admin.Delete(bounded(t), c.Key)
		require.NoError(t, err)
	}},
}

// ---- answers and requests that are lost

// lossy has each way in which one write can go wrong, once.
var lossy = []struct {
	name  string
	fault func(method string) etcdtest.Fault
	ends  bool // the call's context ends while the message is lost
	runs  int
}{
	{"answer Unavailable", dropReply(codes.Unavailable), false, 20},
	{"answer DeadlineExceeded", dropReply(codes.DeadlineExceeded), false, 20},
	{"answer Canceled", dropReply(codes.Canceled), false, 20},
	{"answer swallowed", etcdtest.SwallowReply, false, 2},
	{"answer swallowed until the context ends", etcdtest.SwallowReply, true, 20},
	{"request Unavailable", dropRequest(codes.Unavailable), false, 5},
	{"request DeadlineExceeded", dropRequest(codes.DeadlineExceeded), false, 5},
	{"request Canceled", dropRequest(codes.Canceled), false, 5},
	{"request swallowed", etcdtest.SwallowRequest, false, 2},
	{"request swallowed until the context ends", etcdtest.SwallowRequest, true, 5},
}

func dropReply(code codes.Code) func(string) etcdtest.Fault {
	return func(method string) etcdtest.Fault { return etcdtest.DropReply(method, code) }
}

func dropRequest(code codes.Code) func(string) etcdtest.Fault {
	return func(method string) etcdtest.Fault { return etcdtest.DropRequest(method, code) }
}

// untilStruck returns a context for a call. If ends is set, the context ends when the fault
// strikes.
func untilStruck(t *testing.T, lost *etcdtest.Injection, ends bool) context.Context {
	ctx, cancel := context.WithCancel(bounded(t))
	t.Cleanup(cancel)
	if ends {
		go func() { // ends with the fault or with the test
			select {
			case <-lost.Struck():
			case <-ctx.Done():
			}
			cancel()
		}()
	}
	return ctx
}

// Whatever becomes of the acquiring transaction's answer or request, either the call holds
// the lock, or the lock is free for the next one at once, and not only when a lease
// expires.
//
//	a locks, one message is lost | a holds and unlocks, or has an error | b locks
func TestAnAnswerLostAfterTheCommitBlocksNobody(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	ways := []struct {
		verb string
		kept bool // another hold keeps the lease, so that its end cannot remove a key
	}{{"Lock", false}, {"TryLock", false}, {"Lock", true}, {"TryLock", true}}
	name := func(i int) string {
		way := ways[i%len(ways)]
		return fmt.Sprintf("%s, %s, lease kept: %t", way.verb, lossy[i/len(ways)].name, way.kept)
	}
	waits := make([]most, len(lossy)*len(ways))
	runs := make([]int, len(waits))
	atOnce(t, len(waits), name, func(t *testing.T, i int) {
		way, lossy := ways[i%len(ways)], lossy[i/len(ways)]
		c := w.contest(t, fmt.Sprintf("lost/%d", i))
		a, b := c.party("a", longTTL), c.party("b", longTTL)
		runs[i] = race.Fewer(lossy.runs, min(lossy.runs, 5))
		if way.kept {
			runs[i] = min(runs[i], 5)
		}
		for range runs[i] {
			a.locks() // so that the fault does not meet a first lease each time
			a.unlocks()
			if way.kept {
				a.locksAnother()
			}
			lost := a.faults.Inject(lossy.fault("Txn").When(etcdtest.Puts).Times(1))
			err := a.tries(untilStruck(t, lost, lossy.ends), way.verb)
			require.Equal(t, 1, lost.Strikes())
			if !lossy.ends {
				require.NoError(t, err)
				a.stillHolds()
				a.unlocks()
			} else {
				require.ErrorIs(t, err, context.Canceled)
				require.Zero(t, a.mu.Token())
			}
			lost.Heal()
			waits[i].note(b.locksWithin(prompt))
			b.unlocks()
			if way.kept {
				require.NoError(t, a.other.Unlock(bounded(t)))
			}
		}
		c.isEmptyWithin(prompt)
	})
	for i := range waits {
		t.Logf("%s: %d of %d, the next one in after %v at most", name(i), waits[i].n, runs[i], waits[i].d)
	}
}

// The same while another holds: the place of the wait whose message was lost is removed,
// and its neighbours get in.
//
//	a holds | b queues, one message is lost | b waits or gives up | c queues | a unlocks |
//	all who wait get in
func TestAnAnswerLostWhileQueuingBlocksNobody(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	atOnce(t, len(lossy), func(i int) string { return lossy[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, fmt.Sprintf("queuing/%d", i))
		a, b, d := c.party("a", longTTL), c.party("b", longTTL), c.party("d", longTTL)
		b.locks()
		b.unlocks()
		a.locks()
		lost := b.faults.Inject(lossy[i].fault("Txn").When(etcdtest.Puts).Times(1))
		second := b.starts(untilStruck(t, lost, lossy[i].ends))
		lost.Await(1)
		if lossy[i].ends {
			require.ErrorIs(t, second.fails(slack), context.Canceled)
			lost.Heal()
			c.hasWithin(prompt, "a")
		} else {
			c.hasWithin(prompt, "a", "b")
		}
		third := d.waits()
		a.unlocks()
		if !lossy[i].ends {
			second.getsIn(prompt)
			b.unlocks()
		}
		third.getsIn(prompt)
		d.unlocks()
	})
}

// A grant whose answer is lost leaves a lease that nobody knows. It blocks nobody and
// expires.
func TestALostGrantBlocksNobody(t *testing.T) {
	waiting.enter(t)
	const ttl = 5 * time.Second
	w := newWorld(t, 1)
	atOnce(t, len(lossy), func(i int) string { return lossy[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, fmt.Sprintf("grant/%d", i))
		a, b := c.party("a", ttl), c.party("b", ttl)
		lost := a.faults.Inject(lossy[i].fault("LeaseGrant").Times(1))
		err := a.tries(untilStruck(t, lost, lossy[i].ends), "Lock")
		require.Equal(t, 1, lost.Strikes())
		if !lossy[i].ends {
			require.NoError(t, err)
			a.unlocks()
		} else {
			require.ErrorIs(t, err, context.Canceled)
		}
		lost.Heal()
		b.locksWithin(slack)
		b.unlocks()
	})
}

// Unlock says nil if the release was confirmed in the end, and ErrUnconfirmed if it was not
// confirmed in time. It never says ErrLost. The next one gets in as soon as etcd answers.
//
//	a holds | a unlocks, one message is lost | b locks
func TestALostReleaseIsNeverCalledALoss(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	waits := make([]most, len(lossy))
	runs := make([]int, len(lossy))
	atOnce(t, len(lossy), func(i int) string { return lossy[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, fmt.Sprintf("release/%d", i))
		a, b := c.party("a", longTTL), c.party("b", longTTL)
		runs[i] = race.Fewer(lossy[i].runs, min(lossy[i].runs, 5))
		for range runs[i] {
			a.locks()
			lost := a.faults.Inject(lossy[i].fault("Txn").When(etcdtest.Deletes).Times(1))
			a.belief.Leave("a")
			err := a.mu.Unlock(untilStruck(t, lost, lossy[i].ends))
			require.Equal(t, 1, lost.Strikes())
			if !lossy[i].ends {
				require.NoError(t, err)
				require.NotContains(t, c.owners(), "a", "Unlock was nil and the key is still there")
			} else {
				require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
				require.NotErrorIs(t, err, etcdlock.ErrLost)
			}
			require.Zero(t, a.mu.Token())
			require.ErrorIs(t, a.mu.Unlock(bounded(t)), etcdlock.ErrNotHeld)
			lost.Heal()
			waits[i].note(b.locksWithin(prompt))
			b.unlocks()
		}
	})
	for i := range waits {
		t.Logf("%s: %d of %d, the next one in after %v at most", lossy[i].name, waits[i].n, runs[i], waits[i].d)
	}
}

// Close gives the lease back even if the answer to the revocation is lost.
func TestALostRevocationLeavesNothing(t *testing.T) {
	waiting.enter(t)
	w := newWorld(t, 1)
	atOnce(t, len(lossy), func(i int) string { return lossy[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, fmt.Sprintf("revoke/%d", i))
		ttl := longTTL
		if lossy[i].ends {
			ttl = 2 * time.Second // b has to wait for its end
		}
		a, b := c.party("a", ttl), c.party("b", longTTL)
		a.locks()
		a.belief.Leave("a")
		lost := a.faults.Inject(lossy[i].fault("LeaseRevoke").Times(1))
		err := a.s.Close(untilStruck(t, lost, lossy[i].ends))
		require.Equal(t, 1, lost.Strikes())
		if !lossy[i].ends {
			require.NoError(t, err)
			b.locksWithin(prompt)
			b.unlocks()
		} else {
			require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
			b.locksWithin(ttl + slack) // once the lease has expired
			b.unlocks()
		}
	})
}

// A copy of the acquiring transaction is applied after Unlock, under a lease that other
// holds keep alive. It puts a key for which nobody waits. The audit finds the key and
// removes it.
//
//	a holds another lock | a locks, the first request is late, the second works | a unlocks
//	| the first request applies | its key goes | b locks
func TestALateRequestLeavesNoGhost(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	type row struct {
		code    codes.Code
		give    bool // give up, with every request late
		another bool // lock on the lease
	}
	rows := []row{
		{codes.Unavailable, false, true}, {codes.DeadlineExceeded, false, true}, {codes.Canceled, false, true},
		{codes.Unavailable, true, true}, {codes.DeadlineExceeded, true, true},
		{codes.Unavailable, false, false}, {codes.DeadlineExceeded, false, false}, {codes.Unavailable, true, false},
	}
	atOnce(t, len(rows), func(i int) string { return fmt.Sprintf("%+v", rows[i]) }, func(t *testing.T, i int) {
		c := w.contest(t, fmt.Sprintf("ghost/%d", i))
		a, b := c.party("a", longTTL), c.party("b", longTTL)
		a.locksAnother()
		if !rows[i].another {
			require.NoError(t, a.other.Unlock(bounded(t)))
		}
		fault := etcdtest.LateRequest("Txn", rows[i].code).When(etcdtest.Puts)
		if !rows[i].give {
			fault = fault.Times(1)
		}
		late := a.faults.Inject(fault)
		err := a.tries(untilStruck(t, late, rows[i].give), "Lock")
		if rows[i].give {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.NoError(t, err)
			a.unlocks()
		}
		require.Positive(t, late.Strikes())
		puts := w.admin.Watch(bounded(t), c.name+"/", clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
		<-puts
		late.Heal()
		if rows[i].another { // the lease lives, so the request applies
			within(t, slack, "the ghost", puts)
		}
		t.Logf("the next one in after %v", b.locksWithin(prompt))
		b.unlocks()
		if rows[i].another {
			require.NoError(t, a.other.Unlock(bounded(t)))
		}
	})
}

// A copy of a release that is applied later releases no later hold, though the names of
// keys are used again.
//
//	a unlocks, the first request is late, the second works | a locks several times more |
//	the first request arrives
func TestALateReleaseTouchesNoLaterHold(t *testing.T) {
	computing.enter(t)
	w := newWorld(t, 1)
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded} {
		t.Run(code.String(), func(t *testing.T) {
			c := w.contest(t, "late-release/"+code.String())
			a, b := c.party("a", longTTL), c.party("b", longTTL)
			for cycles := range 4 {
				a.locks()
				late := a.faults.Inject(etcdtest.LateRequest("Txn", code).When(etcdtest.Deletes).Times(1))
				a.unlocks()
				for range cycles {
					a.locks()
					a.unlocks()
				}
				a.locks()
				next := b.waits()
				late.Heal()
				a.stillHolds()
				require.Equal(t, []string{"a", "b"}, c.owners())
				a.unlocks()
				next.getsIn(slack)
				b.unlocks()
			}
		})
	}
}

// ---- the release that puts the next place

// One transaction releases for one goroutine of a Session and puts the next one's place.
// Whatever becomes of it, both come out right.
//
//	a1 holds, a2 waits behind it in the same Session | a1 unlocks, one message is lost or
//	late | a2 gets in | b gets in
func TestAReleaseThatQueuesTheNextOneMayGetLost(t *testing.T) {
	computing.enter(t)
	type row struct {
		name  string
		fault etcdtest.Fault
		ends  bool // the context of Unlock ends while the message is lost
	}
	rows := []row{
		{"late, Unavailable", etcdtest.LateRequest("Txn", codes.Unavailable), false},
		{"late, DeadlineExceeded", etcdtest.LateRequest("Txn", codes.DeadlineExceeded), false},
		{"late, Canceled", etcdtest.LateRequest("Txn", codes.Canceled), false},
	}
	for _, l := range lossy {
		rows = append(rows, row{l.name, l.fault("Txn"), l.ends})
	}
	w := newWorld(t, 1)
	atOnce(t, 2*len(rows), func(i int) string { return fmt.Sprintf("%s, b waits too: %t", rows[i/2].name, i%2 == 1) },
		func(t *testing.T, i int) {
			row := rows[i/2]
			c := w.contest(t, fmt.Sprintf("handover/%d", i))
			a, b := c.party("a", longTTL), c.party("b", longTTL)
			mutex := func() *etcdlock.Mutex {
				mu, err := a.s.Mutex(c.name)
				require.NoError(t, err)
				return mu
			}
			first, second, third := mutex(), mutex(), mutex()
			require.NoError(t, first.Lock(bounded(t)))
			token := first.Token()
			c.belief.EnterUntil(first.Context(context.Background()), "a1", token)
			in := make(chan error, 1)
			go func() {
				err := second.Lock(bounded(t))
				if err == nil {
					c.belief.EnterUntil(second.Context(context.Background()), "a2", second.Token())
				}
				in <- err
			}()
			require.True(t, contract.Eventually(slack, func() bool {
				locked, ok := errors.AsType[*etcdlock.LockedError](third.TryLock(bounded(t)))
				return ok && locked.Ahead == 2
			}), "a2 waits in the local line")
			var next *wait
			if i%2 == 1 {
				next = b.waits()
			}

			lost := a.faults.Inject(row.fault.When(etcdtest.Puts).When(etcdtest.Deletes).Times(1))
			c.belief.Leave("a1")
			err := first.Unlock(untilStruck(t, lost, row.ends))
			require.Equal(t, 1, lost.Strikes(), "no transaction did both")
			if !row.ends {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
			}
			require.NotErrorIs(t, err, etcdlock.ErrLost)
			if next != nil { // it stood in line before a2's place was put
				next.getsIn(slack)
				b.unlocks()
			}
			require.NoError(t, within(t, slack, "a2 to get in", in))
			require.Greater(t, second.Token(), token)
			lost.Heal() // the late request arrives now
			require.Equal(t, second.Token(), c.line()[0].Token)
			require.NoError(t, second.Context(context.Background()).Err())
			c.belief.Leave("a2")
			require.NoError(t, second.Unlock(bounded(t)))
			c.isEmptyWithin(prompt)
		})
}

// ---- contexts

// A witness is a goroutine that sleeps for a millisecond, again and again, and notes how
// much later than that it woke. So long the machine and the runtime may keep any goroutine
// waiting.
type witness struct {
	mu    sync.Mutex
	wakes []wake
}

type wake struct {
	at   time.Time
	late time.Duration
}

func newWitness(t *testing.T) *witness {
	w := &witness{}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for last := time.Now(); ctx.Err() == nil; {
			time.Sleep(time.Millisecond)
			now := time.Now()
			w.mu.Lock()
			w.wakes = append(w.wakes, wake{now, now.Sub(last) - time.Millisecond})
			w.mu.Unlock()
			last = now
		}
	}()
	t.Cleanup(func() { stop(); <-stopped })
	return w
}

// excuse is how much time a call may have lost, between two times, to the machine and the
// runtime. It is the worst delay of the witness, times the wakings that a call may need,
// and never more than the sum of its delays.
func (w *witness) excuse(from, to time.Time) time.Duration {
	const wakings = 5
	for { // until it has woken since
		w.mu.Lock()
		n := len(w.wakes)
		seen := n > 0 && w.wakes[n-1].at.After(to)
		w.mu.Unlock()
		if seen {
			break
		}
		time.Sleep(time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var worst, sum time.Duration
	for _, wake := range slices.Backward(w.wakes) {
		if wake.at.Before(from) {
			break
		}
		if wake.at.Add(-wake.late).Before(to) {
			worst, sum = max(worst, wake.late), sum+wake.late
		}
	}
	return min(sum, wakings*worst)
}

// Every call returns when its context ends, whatever the network does. What it could not do
// is done later.
//
//	nothing answers any more | a call | its context ends | it returns
func TestEveryCallReturnsWhenItsContextEnds(t *testing.T) {
	waiting.enter(t)
	const ttl = 3 * time.Second
	const wait = 300 * time.Millisecond
	w := newWorld(t, 1)
	calls := []struct {
		name    string
		prepare func(a, b *party)
		call    func(a *party, ctx context.Context) error
		want    error
	}{
		{"first Lock", func(_, _ *party) {}, (*party).lock, context.DeadlineExceeded},
		{"first TryLock", func(_, _ *party) {}, (*party).tryLock, context.DeadlineExceeded},
		{"Lock", func(a, _ *party) { a.locks(); a.unlocks() }, (*party).lock, context.DeadlineExceeded},
		{"TryLock", func(a, _ *party) { a.locks(); a.unlocks() }, (*party).tryLock, context.DeadlineExceeded},
		{"Lock behind another", func(_, b *party) { b.locks() }, (*party).lock, context.DeadlineExceeded},
		{"Unlock", func(a, _ *party) { a.locks() }, (*party).unlock, etcdlock.ErrUnconfirmed},
		{"Close while held", func(a, _ *party) { a.locks() }, (*party).close, etcdlock.ErrUnconfirmed},
		{"Close", func(a, _ *party) { a.locks(); a.unlocks() }, (*party).close, etcdlock.ErrUnconfirmed},
		{"Do", func(_, _ *party) {}, (*party).do, context.DeadlineExceeded},
	}
	var latest, own most
	witness := newWitness(t)
	// late is how long after the end of its context a call returns, and how much of that
	// the machine caused.
	late := func(t *testing.T, i, try int) (over, excuse time.Duration) {
		call := calls[i/2]
		c := w.contest(t, fmt.Sprintf("ctx/%d/%d", i, try))
		a, b := c.party("a", ttl), c.party("b", ttl)
		call.prepare(a, b)
		mute := a.faults.Inject(etcdtest.SwallowRequest("*"))

		want := call.want
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		if i%2 == 1 {
			ctx, cancel = context.WithCancel(context.Background())
			time.AfterFunc(wait, cancel)
			if want == context.DeadlineExceeded {
				want = context.Canceled
			}
		}
		defer cancel()
		ends := time.Now().Add(wait)
		err := call.call(a, ctx)
		returned := time.Now()
		require.ErrorIs(t, err, want)
		over, excuse = returned.Sub(ends), witness.excuse(ends, returned)

		mute.Heal()
		if b.mu.Token() != 0 {
			b.unlocks()
		}
		b.locksWithin(ttl + slack)
		b.unlocks()
		return over, excuse
	}
	atOnce(t, 2*len(calls), func(i int) string { return fmt.Sprintf("%s, cancelled: %t", calls[i/2].name, i%2 == 1) },
		func(t *testing.T, i int) {
			// The witness does not always see what the machine does. So a call that is late
			// gets a second try.
			over, excuse := late(t, i, 0)
			for try := 1; try < 3 && over >= 100*time.Millisecond+excuse; try++ {
				t.Logf("%v late, of which %v are the machine's", over, excuse)
				over, excuse = late(t, i, try)
			}
			require.Less(t, over, 100*time.Millisecond+excuse, "of which %v are the machine's", excuse)
			latest.note(over)
			own.note(over - excuse)
		})
	t.Logf("%d of %d, at most %v after the end of the context, %v without what the machine took",
		latest.n, 2*len(calls), latest.d, own.d)
}

// Unlock with a context that had ended before is a release like any other.
func TestUnlockIgnoresAContextThatIsAlreadyDone(t *testing.T) {
	waiting.enter(t)
	w := newWorld(t, 1)
	done, cancel := context.WithCancel(context.Background())
	cancel()

	t.Run("etcd answers", func(t *testing.T) {
		c := w.contest(t, "done")
		a, b := c.party("a", longTTL), c.party("b", longTTL)
		a.locks()
		a.belief.Leave("a")
		require.NoError(t, a.mu.Unlock(done))
		require.Empty(t, c.line())
		b.locks()
		b.unlocks()
	})

	ttls := []time.Duration{3 * time.Second, longTTL}
	atOnce(t, len(ttls), func(i int) string { return fmt.Sprintf("etcd is silent, TTL %v", ttls[i]) },
		func(t *testing.T, i int) {
			c := w.contest(t, fmt.Sprintf("done/%d", i))
			a, b := c.party("a", ttls[i]), c.party("b", longTTL)
			a.locks()
			mute := a.faults.Inject(etcdtest.SwallowRequest("*"))
			a.belief.Leave("a")
			started := time.Now()
			err := a.mu.Unlock(done)
			took := time.Since(started)
			require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
			require.NotErrorIs(t, err, etcdlock.ErrLost)
			require.Less(t, took, min(ttls[i], 5*time.Second)+time.Second)
			require.Greater(t, took, min(ttls[i], 5*time.Second)/2, "gave up too soon")
			t.Logf("returned after %v", took)
			mute.Heal()
			b.locksWithin(prompt)
			b.unlocks()
		})
}

// Only a live context bounds Unlock, as long as the lease is renewed. While it is renewed
// the hold stays certain, and the release can be confirmed.
//
//	a holds | transactions are not answered, renewals are | a unlocks | more than the TTL |
//	etcd answers | Unlock says nil
func TestUnlockGoesOnWhileTheLeaseIsRenewed(t *testing.T) {
	waiting.enter(t)
	const ttl = 2 * time.Second
	w := newWorld(t, 1)
	c := w.contest(t, "patient")
	a, b := c.party("a", ttl), c.party("b", longTTL)
	a.locks()
	mute := a.faults.Inject(etcdtest.SwallowRequest("Txn"))
	unlocked := make(chan error, 1)
	go func() { unlocked <- a.unlock(bounded(t)) }()
	select {
	case err := <-unlocked:
		require.Fail(t, "Unlock gave up before its context ended", "error: %v", err)
	case <-time.After(2 * ttl):
	}
	mute.Heal()
	require.NoError(t, within(t, slack, "Unlock", unlocked))
	b.locksWithin(prompt)
	b.unlocks()
}
