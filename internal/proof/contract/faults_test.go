package contract_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// The faults of this file are about truth: who holds, who knows it, and what is left behind.
// The fault table (internal/faults) has many more, with their times, and internal/tests has them
// to the nanosecond.

// ---- the holder's trust ends in time

// A holder that is cut off knows it before etcd gives the lock to the next one.
//
//	a holds, b waits | a's connection breaks | a knows | the lease expires | b gets in
func TestAHolderBehindABlackHoleKnowsBeforeTheNextOwnerGetsIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	cuts := []struct {
		name string
		cut  func(*etcdtest.Proxy)
	}{
		{"black hole", func(p *etcdtest.Proxy) { p.BlackHole() }},
		{"bytes arrive later", func(p *etcdtest.Proxy) { p.Hold() }},
		{"reset and refused", func(p *etcdtest.Proxy) { p.Refuse(); p.Reset() }},
		{"requests lost", func(p *etcdtest.Proxy) { p.BlackHole(etcdtest.Requests) }},
		{"answers lost", func(p *etcdtest.Proxy) { p.BlackHole(etcdtest.Replies) }},
	}
	atOnce(t, len(cuts), func(i int) string { return cuts[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, "cut/"+cuts[i].name)
		proxy := w.cluster.Proxy(t, 0)
		a, b := c.party("a", 4*time.Second, etcdtest.Via(proxy)), c.party("b", longTTL)
		a.mends(proxy.Heal)

		a.locks()
		next := b.starts(bounded(t)) // a may lose its lease at any time, if the machine is slow
		b.queues()
		cuts[i].cut(proxy)
		a.loses()
		next.getsIn() // the contest judges, by what a's context says when b enters

		a.unlockSaysLost()
		a.heals()
		a.closes() // by now it has removed whatever it had to remove
		b.stillHolds()
		b.unlocks()
	})
}

// If an operator takes a lock away, the holder notices, and its Unlock says so. The next holder
// is left alone.
//
//	a holds, b waits | an operator takes a's key | b gets in | a knows | a unlocks
func TestUnlockAfterLossLeavesTheNewHolderAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for _, wait := range []bool{true, false} { // until a knows
		atOnce(t, len(takings), func(i int) string {
			return fmt.Sprintf("%s, a knows: %t", takings[i].name, wait)
		},
			func(t *testing.T, i int) {
				c := w.contest(t, fmt.Sprintf("taken/%d/%t", i, wait))
				a, b := c.party("a", longTTL), c.party("b", longTTL)
				a.locks()
				next := b.waits()
				a.believesUntilTold()
				takings[i].take(t, w.admin, c.line()[0])
				next.getsIn()
				if wait {
					a.loses()
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

// lossy has ways in which one transaction can go wrong.
var lossy = []struct {
	name  string
	fault etcdtest.Fault
	ends  bool // the call's context ends while the message is lost
}{
	{"answer Unavailable", etcdtest.DropReply("Txn", codes.Unavailable), false},
	{"answer swallowed until the context ends", etcdtest.SwallowReply("Txn"), true},
	{"request DeadlineExceeded", etcdtest.DropRequest("Txn", codes.DeadlineExceeded), false},
	{"request swallowed until the context ends", etcdtest.SwallowRequest("Txn"), true},
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

// Whatever becomes of the acquiring transaction's answer or request, either the call holds the
// lock, or the lock is free for the next one. Another hold keeps the lease, so the end of the
// lease cannot be what removes a key.
//
//	a locks, one message is lost | a holds and unlocks, or has an error | b locks
func TestAnAnswerLostAfterTheCommitBlocksNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	verbs := []string{"Lock", "TryLock"}
	name := func(i int) string { return verbs[i%2] + ", " + lossy[i/2].name }
	atOnce(t, len(lossy)*len(verbs), name, func(t *testing.T, i int) {
		lossy := lossy[i/2]
		c := w.contest(t, fmt.Sprintf("lost/%d", i))
		a, b := c.party("a", longTTL), c.party("b", longTTL)
		a.locksAnother()
		lost := a.faults.Inject(lossy.fault.When(etcdtest.Puts).Times(1))
		err := a.tries(untilStruck(t, lost, lossy.ends), verbs[i%2])
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
		b.locks()
		b.unlocks()
		c.is()
		require.NoError(t, a.other.Unlock(bounded(t)))
	})
}

// A copy of the acquiring transaction is applied after Unlock, under a lease that other
// holds keep alive. It puts a key for which nobody waits. The audit finds the key and
// removes it.
//
//	a holds another lock | a locks, the first request is late, the second works | a unlocks
//	| the first request applies | its key goes | b locks
func TestALateRequestLeavesNoGhost(t *testing.T) {
	t.Parallel()
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
	atOnce(t, len(rows), func(i int) string {
		return fmt.Sprintf("%+v", rows[i])
	}, func(t *testing.T, i int) {
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
		puts := w.admin.Watch(bounded(t), c.name+"/", clientv3.WithPrefix(), clientv3.WithFilterDelete(),
			clientv3.WithCreatedNotify())
		<-puts
		late.Heal()
		if rows[i].another { // the lease lives, so the request applies
			receive(t, puts, "the ghost")
		}
		b.locks()
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
	t.Parallel()
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
				next.getsIn()
				b.unlocks()
			}
		})
	}
}

// ---- the release that puts the next place

// One transaction releases for one goroutine of a Session and puts the next one's place.
// Whatever becomes of it, both come out right.
//
//	a1 holds, a2 waits behind it in the same Session | a1 unlocks, one message is lost | a2
//	gets in | b gets in
func TestAReleaseThatQueuesTheNextOneMayGetLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	atOnce(t, 2*len(lossy), func(i int) string {
		return fmt.Sprintf("%s, b waits too: %t", lossy[i/2].name, i%2 == 1)
	},
		func(t *testing.T, i int) {
			row := lossy[i/2]
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
			require.True(t, contract.Poll(func() bool {
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
				next.getsIn()
				b.unlocks()
			}
			require.NoError(t, receive(t, in, "a2 to get in"))
			require.Greater(t, second.Token(), token)
			lost.Heal()
			require.Equal(t, second.Token(), c.line()[0].Token)
			require.NoError(t, second.Context(context.Background()).Err())
			c.belief.Leave("a2")
			require.NoError(t, second.Unlock(bounded(t)))
			c.is()
		})
}

// ---- contexts

// Every call returns when its context ends, while etcd is still silent. What it could not do is
// done later.
//
//	nothing answers any more | a call | its context ends | it returns | etcd answers | b locks
func TestEveryCallReturnsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second // after which the last lease is gone
	w := newWorld(t, 1)
	calls := []struct {
		name    string
		prepare func(a, b *party)
		call    func(a *party, ctx context.Context) error
		want    error
	}{
		{"first Lock", func(_, _ *party) {}, (*party).lock, context.Canceled},
		{"first TryLock", func(_, _ *party) {}, (*party).tryLock, context.Canceled},
		{"Lock", func(a, _ *party) { a.locks(); a.unlocks() }, (*party).lock, context.Canceled},
		{"TryLock", func(a, _ *party) { a.locks(); a.unlocks() }, (*party).tryLock, context.Canceled},
		{"Lock behind another", func(_, b *party) { b.locks() }, (*party).lock, context.Canceled},
		{"Unlock", func(a, _ *party) { a.locks() }, (*party).unlock, etcdlock.ErrUnconfirmed},
		{"Close while held", func(a, _ *party) { a.locks() }, (*party).close, etcdlock.ErrUnconfirmed},
		{"Close", func(a, _ *party) { a.locks(); a.unlocks() }, (*party).close, etcdlock.ErrUnconfirmed},
		{"Do", func(_, _ *party) {}, (*party).do, context.Canceled},
	}
	atOnce(t, len(calls), func(i int) string { return calls[i].name }, func(t *testing.T, i int) {
		c := w.contest(t, fmt.Sprintf("ctx/%d", i))
		a, b := c.party("a", ttl), c.party("b", longTTL)
		calls[i].prepare(a, b)
		mute := a.faults.Inject(etcdtest.SwallowRequest("*"))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		returned := contract.Async(func() error { return calls[i].call(a, ctx) })
		mute.Await(1)
		cancel()
		require.ErrorIs(t, receive(t, returned, "its return"), calls[i].want)

		mute.Heal()
		if b.mu.Token() != 0 {
			b.unlocks()
		}
		b.locks()
		b.unlocks()
	})
}
