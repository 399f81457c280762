package matrix

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
)

// A story is what every setup of every version must tell the same way.
type story struct {
	name  string
	where func(setup) bool // which setups can tell it; nil: all
	alone bool             // it harms the cluster, so no other story runs meanwhile
	tell  func(*trial)
}

// stories are about the library. Those with guests follow, and those of contenders that do
// not hold one name alone.
var stories = slices.Concat([]story{
	{name: "lock and unlock", tell: locksAndUnlocks},
	{name: "hand-over in order", tell: handsOver},
	{name: "TryLock of what is taken", tell: tries},
	{name: "a revoked lease is learnt", tell: losesItsLease},
	{name: "Unlock after Break", tell: isBroken},
	{name: "a wait ends with its context", tell: waitsInVain},
	{name: "longer than TTL and token", tell: lasts},
	{name: "outside of the role", where: func(s setup) bool { return s.role }, tell: isRefused},
	{name: "members die under a waiter", alone: true, tell: survivesMembers},
}, companyStories(), readersStories(), familyStories())

// a locks and unlocks, three times. Nobody else finds a trace of that afterwards.
func locksAndUnlocks(tr *trial) {
	a := tr.party("a", lasting)
	for range 3 {
		a.locks()
		line := tr.lineIs(1)
		tr.must(line[0].Token == a.Token(), "the token is %d, the key's create revision %d", a.Token(),
			line[0].Token)
		a.unlocks()
		tr.lineIs(0)
	}
}

// a locks, b waits, c waits behind b | a unlocks, b gets in | b unlocks, c gets in.
func handsOver(tr *trial) {
	a, b, c := tr.party("a", lasting), tr.party("b", lasting), tr.party("c", lasting)
	a.locks()
	second := b.waits()
	third := c.waits()
	a.unlocks()
	second.getsIn(soon)
	third.stillWaits()
	b.unlocks()
	third.getsIn(soon)
	c.unlocks()
}

// a locks | b's TryLock says who holds, and leaves nothing | a unlocks, b's TryLock gets it.
func tries(tr *trial) {
	a, b := tr.party("a", lasting), tr.party("b", lasting)
	a.locks()
	err := b.TryLock(tr.bounded(soon))
	taken, is := errors.AsType[*etcdlock.LockedError](err)
	tr.must(errors.Is(err, etcdlock.ErrLocked) && is, "b: TryLock of what is taken: %v", err)
	tr.must(taken.Ahead == 1 && taken.Holder.Token == a.Token(),
		"b: TryLock says %d ahead, held with token %d", taken.Ahead, taken.Holder.Token)
	tr.lineIs(1)
	a.unlocks()
	err = b.TryLock(tr.bounded(soon))
	tr.must(err == nil, "b: TryLock of what is free: %v", err)
	b.believes()
	b.unlocks()
}

// a locks | its lease is revoked | a learns it long before the TTL has passed, and locks anew.
func losesItsLease(tr *trial) {
	a := tr.party("a", lasting)
	a.locks()
	_, err := tr.admin.Revoke(tr.bounded(soon), tr.lineIs(1)[0].Lease)
	tr.must(err == nil, "revoke: %v", err)
	a.loses(soon)
	a.unlockSaysLost()
	a.locks()
	a.unlocks()
}

// loses waits until the party knows that it no longer holds.
func (p *party) loses(d time.Duration) {
	select {
	case <-p.hold.Done():
		cause := context.Cause(p.hold)
		p.tr.must(errors.Is(cause, etcdlock.ErrLost), "%s: the hold's context ended by %v", p.who, cause)
	case <-time.After(d):
		p.tr.must(false, "%s does not know of its loss after %v", p.who, d)
	}
}

// a locks, b waits | an operator breaks a, b gets in | a's Unlock says lost, b's that all was well.
func isBroken(tr *trial) {
	a, b := tr.party("a", lasting), tr.party("b", lasting)
	a.locks()
	next := b.waits()
	tr.belief.Leave("a") // from here on its belief is wrong, for about a second
	err := etcdlock.Break(tr.bounded(soon), tr.admin, tr.lineIs(2)[0])
	tr.must(err == nil, "Break: %v", err)
	next.getsIn(soon)
	a.loses(soon)
	a.unlockSaysLost()
	line := tr.lineIs(1)
	tr.must(line[0].Token == b.Token(), "after a's Unlock not b holds")
	b.unlocks()
}

// a locks | b waits with a context of 5 seconds: it has the context's error in time,
// which says that a holds, and leaves the line.
func waitsInVain(tr *trial) {
	const bound = 5 * time.Second
	a, b := tr.party("a", lasting), tr.party("b", lasting)
	b.locks() // so that it has a lease and a token
	b.unlocks()
	a.locks()
	began := time.Now()
	err := b.Lock(tr.bounded(bound))
	took := time.Since(began)
	tr.must(errors.Is(err, context.DeadlineExceeded) && errors.Is(err, etcdlock.ErrLocked),
		"b waited for %v: Lock: %v", took, err)
	tr.must(took >= bound && took < bound+slack, "a wait of %v took %v", bound, took)
	tr.lineIs(1)
	a.unlocks()
}

// a locks, b waits | time passes, more than the TTL and than the life of a token, and d's
// token dies unused | a still holds and unlocks, b gets in.
func lasts(tr *trial) {
	const ttl = 5 * time.Second
	a, b, d := tr.party("a", ttl), tr.party("b", ttl), tr.party("d", lasting)
	d.locks()
	d.unlocks()
	refused := d.refused.Load()
	a.locks()
	next := b.waits()
	time.Sleep(ttl + tokenLife)
	tr.must(a.hold.Err() == nil, "a lost the lock: %v", context.Cause(a.hold))
	next.stillWaits()
	err := d.TryLock(tr.bounded(soon))
	tr.must(errors.Is(err, etcdlock.ErrLocked), "d, whose token has died: TryLock: %v", err)
	tr.must(tr.setup.token == "" || d.refused.Load() > refused, "d's token has not died")
	a.unlocks()
	next.getsIn(soon)
	b.unlocks()
}

// a has no right to a name | its calls are refused at once, and nothing is there.
func isRefused(tr *trial) {
	name := tr.name
	tr.name += "-of-others"
	a := tr.party("a", lasting)
	for verb, call := range map[string]func(context.Context) error{"Lock": a.Lock,
		"TryLock": a.TryLock} {
		began := time.Now()
		err := call(tr.bounded(soon))
		took := time.Since(began)
		tr.must(errors.Is(err, rpctypes.ErrPermissionDenied), "%s without the right to: %v", verb, err)
		tr.must(took < 2*slack, "%s was refused after %v", verb, took)
	}
	tr.lineIs(0)
	tr.name = name
	b := tr.party("b", lasting)
	b.locks()
	b.unlocks()
}

// For each member in turn: a locks, b waits | the member is killed; if it is the only one,
// it comes back | a unlocks, b gets in | the member comes back.
//
// Whichever member had the watch, or led, was killed once.
func survivesMembers(tr *trial) {
	a, b := tr.party("a", lasting), tr.party("b", lasting)
	for i, member := range tr.cluster.members {
		a.locks()
		next := b.waits()
		member.stop()
		if tr.setup.members == 1 {
			member.start()
		}
		a.unlocks()
		next.getsIn(soon)
		b.unlocks()
		if tr.setup.members > 1 {
			member.start()
		}
		tr.cluster.serves(i)
	}
}
