package matrix

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A use is what a party does with the lock.
type use string

const (
	exclusive use = "exclusive"
	reading   use = "reading"
	several   use = "several" // the two names of a story at once
	onePermit use = "1 permit"
	listening use = "listening" // to recalls
	leading   use = "leading"
)

const (
	permits = 2               // of a name
	most    = 2 * time.Second // how long a hold may go on after a recall
)

// shares reports whether two of a use may hold at once.
func (u use) shares() bool { return u == reading || u == onePermit }

// A sessionLock is a lock with a Session of its own.
type sessionLock struct {
	side.Mutex
	session side.Session
}

func (l sessionLock) Close(ctx context.Context) error { return l.session.Close(ctx) }

// open opens a lock of this library for any use.
func (u use) open(client *clientv3.Client, name string, ttl time.Duration) (lock, error) {
	if u == leading {
		return newLeader(client, name, ttl)
	}
	session, err := side.Ours.Open(client, ttl)
	if u == listening {
		session, err = side.Ours.Open(client, ttl, etcdlock.WithRecall(most))
	}
	if err != nil {
		return nil, err
	}
	l := sessionLock{session: session}
	switch u {
	case reading:
		var rw side.RWMutex
		if rw, err = session.RWMutex(name); err == nil {
			l.Mutex = rw.Reader()
		}
	case several:
		l.Mutex, err = side.Several(session, name, second(name))
	case onePermit:
		l.Mutex, err = side.Permits(session, name, permits, 1)
	default:
		l.Mutex, err = session.Mutex(name)
	}
	return l, err
}

// familyStories are about holds of several names, and holds that others share, beside
// contenders for which each of their keys is exclusive.
func familyStories() (all []story) {
	for _, g := range append(guests[:len(guests):len(guests)], theOlder) {
		// The lock service and etcdctl are concurrency.Mutex inside, so they stand in line
		// in the same way.
		where := func(s setup) bool { return s.name == setups[0].name }
		if g.name == older || g.name == "concurrency.Mutex" {
			where = nil
		}
		tells := func(what string, tell func(*trial, guest)) {
			all = append(all, story{name: g.name + ": " + what, where: where, tell: func(tr *trial) {
				tell(tr, g)
			}})
		}
		tells("several names beside it", severalBeside)
		tells("permits beside it", permitsBeside)
		tells("a recall beside it", recallBeside)
		tells("a leader beside it", leaderBeside)
	}
	return append(all,
		story{name: older + ": crashes among permits", tell: func(tr *trial) {
			tr.crashesAmong(onePermit)
		}},
		story{name: older + ": a crash before several names", tell: crashBeforeSeveral},
	)
}

// A guest holds the second name, a waits for both, b waits for the first behind a | c's
// TryLockAll does not get in | the guest leaves, a gets in | another guest waits at the second
// name | a unlocks, both get in.
func severalBeside(tr *trial, g guest) {
	other := tr.second()
	a, b, c := tr.partyFor(several, "a", lasting), tr.party("b", lasting),
		tr.partyFor(several, "c", lasting)
	first := g.visits(other, "1", lasting)
	first.getsIn(soon)
	second := a.waits()
	other.lineIs(2)
	third := b.waits()
	c.isRefused()
	other.lineIs(2)
	first.leaves()
	second.getsIn(soon)
	other.belief.EnterUntil(a.hold, a.who, a.Token())
	third.stillWaits()
	fourth := g.visits(other, "4", lasting)
	fourth.stillWaits()
	other.belief.Leave(a.who)
	a.unlocks()
	third.getsIn(soon)
	fourth.getsIn(soon)
	b.unlocks()
	fourth.leaves()
	other.lineIs(0)
}

// An old process holds the second name and is killed | a, which waits for both, gets in when
// its lease has run out.
func crashBeforeSeveral(tr *trial) {
	other := tr.second()
	a := tr.partyFor(several, "a", lasting)
	first := theOlder.visits(other, "1", briefly)
	first.getsIn(soon)
	next := a.waits()
	first.crashes()
	next.getsIn(expiry)
	a.unlocks()
	other.lineIs(0)
}

// a and b have all permits, a guest waits, c waits for a permit | d's TryAcquire does not get
// in | a unlocks: nobody overtakes the guest | b unlocks, the guest is in, alone | it leaves,
// c gets in.
func permitsBeside(tr *trial, g guest) {
	a, b := tr.partyFor(onePermit, "a", lasting), tr.partyFor(onePermit, "b", lasting)
	c, d := tr.partyFor(onePermit, "c", lasting), tr.partyFor(onePermit, "d", lasting)
	a.locks()
	b.locks()
	third := g.visits(tr, "3", lasting)
	fourth := c.waits()
	d.isRefused()
	a.unlocks()
	third.stillWaits()
	fourth.stillWaits()
	d.isRefused()
	b.unlocks()
	third.getsIn(soon)
	fourth.stillWaits()
	d.isRefused()
	third.leaves()
	fourth.getsIn(soon)
	c.unlocks()
}

// A guest holds, which cannot be recalled | it leaves, a gets in, another guest waits | a is
// recalled: its hold ends, the guest still waits | a unlocks, the guest gets in.
func recallBeside(tr *trial, g guest) {
	a := tr.partyFor(listening, "a", lasting)
	first := g.visits(tr, "1", lasting)
	first.getsIn(soon)
	second := a.waits()
	err := tr.recallsFirst()
	tr.must(errors.Is(err, etcdlock.ErrNotRecallable), "Recall of %s: %v", first.who, err)
	tr.must(tr.versionOfFirst() == 1, "Recall of %s has written", first.who)
	second.stillWaits()
	first.leaves()
	second.getsIn(soon)
	third := g.visits(tr, "3", lasting)
	err = tr.recallsFirst()
	tr.must(err == nil, "Recall of a: %v", err)
	a.ends(etcdlock.ErrRecalled)
	tr.lineStays(2)
	third.stillWaits()
	a.unlocks()
	third.getsIn(soon)
	third.leaves()
}

// recallsFirst recalls the first in line.
func (tr *trial) recallsFirst() (err error) {
	c := tr.line()[0]
	contract.Eventually(soon, func() bool { // as line
		err = etcdlock.Recall(tr.bounded(soon), tr.admin, c, etcdlock.RecallRequest{Grace: most / 4})
		return err == nil || errors.Is(err, etcdlock.ErrNotRecallable)
	})
	return err
}

// versionOfFirst is the version of the first key in line: 1 if nobody has put it again.
func (tr *trial) versionOfFirst() int64 {
	key := tr.line()[0].Key
	var got *clientv3.GetResponse
	answers := contract.Eventually(soon, func() bool { // as line
		var err error
		got, err = tr.admin.Get(tr.bounded(soon), key)
		return err == nil && len(got.Kvs) == 1
	})
	tr.must(answers, "etcd does not answer root")
	return got.Kvs[0].Version
}
