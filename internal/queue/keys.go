// Package queue has a Session's keys in etcd's lines: each from its put to its removal, how it
// waits for its turn, and how the Session learns what others do to it. Their owners, the claims
// that wait and the holds, stand above it: it knows them by the interfaces [Owner] and [Local].
package queue

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

var (
	// ErrAnew says that a place is lost through no fault of its owner. The owner takes a new one.
	ErrAnew = errors.New("place in line lost")

	// ErrTaken says that a waiter that only tries has found another contender.
	ErrTaken = errors.New("taken")
)

// A Config is what the Keys of a Session are given.
type Config struct {
	TTL    time.Duration // that is asked for
	Leases *lease.Pool

	Closed error // of a wait whose Session was closed

	Lines

	Log func(level slog.Level, message string, args ...any)
}

// Lines are what a Session knows of etcd's lines.
type Lines interface {
	// LinesLocked calls yield with each, until that reports false.
	LinesLocked(yield func(*Line) bool)
}

// Keys are all that a Session has of its keys in etcd's lines: their accounts, by their leases.
type Keys struct {
	// Set once, then only read.
	ctx   context.Context // of all goroutines
	etcd  *etcd.Conn
	mu    *guard.Mutex // the Session's
	tasks *guard.Group
	Config

	// Guarded by mu.
	accounts    map[*lease.Lease]*Account
	verifying   bool  // holds of an earlier epoch are being read
	leftoverErr error // why a lease could not be revoked, or a key removed

	// Of the lock delay; see delay.go.
	setBack setBack       // the last one
	met     time.Duration // the longest TTL of all contenders that the Session has met
	rest    delay         // of the lines that are not among the Lines
}

// New returns the Keys of a Session, which has a mutex, and goroutines that end with ctx.
func New(
	ctx context.Context, conn *etcd.Conn, mu *guard.Mutex, tasks *guard.Group, config Config,
) *Keys {
	k := &Keys{
		ctx: ctx, etcd: conn, mu: mu, tasks: tasks, Config: config,
		accounts: make(map[*lease.Lease]*Account),
	}
	if at := conn.Epoch().Noticed; !at.IsZero() {
		k.setBack = setBack{at, config.TTL}
	}
	return k
}

// AccountLocked is the account of the lease that may get new places, nil if there is none.
func (k *Keys) AccountLocked() *Account { return k.accounts[k.Leases.CurrentLocked()] }

// EndOwners tells the owners of all places that the Session was closed.
func (k *Keys) EndOwners() {
	guard.Pieces(k.mu, k.places(), func(p *Place) { p.owner.EndsLocked() })
}

// places yields all places, with the Session's mutex held.
func (k *Keys) places() iter.Seq[*Place] {
	return func(yield func(*Place) bool) {
		for _, a := range k.accounts {
			for _, p := range a.places {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// LeftoverLocked is why a lease could not be revoked, or a key removed, nil if all are.
func (k *Keys) LeftoverLocked() error { return k.leftoverErr }

// OwnLocked tells what e, which stands in a line, is to the Session. If it is one of its keys that
// was given up, goes is closed once it has gone. If the Session has drawn its name and no place
// accounts for it, it is an orphan: it has gone since it was read, or a late request has put it and
// an audit is about to remove it.
func (k *Keys) OwnLocked(e line.Entry) (goes <-chan struct{}, orphan bool) {
	for l, a := range k.accounts {
		p := a.places[e.Key]
		switch ours := p != nil && p.Ticket.Rev() == e.Rev; {
		case e.Lease != int64(l.ID):
		case ours && p.Removal.err == nil:
			goes = p.Removal.over // nil while it is in use
		case !ours && IsOwn(e):
			return nil, true
		}
	}
	return goes, false
}

// RecallOwnLocked recalls e if a hold of the Session is at that key. It reports whether e is one of
// the Session's keys.
func (k *Keys) RecallOwnLocked(e line.Entry, r line.Recall) (isOwn bool) {
	for l, a := range k.accounts {
		p := a.places[e.Key]
		if e.Lease != int64(l.ID) || p == nil || p.Ticket.Rev() != e.Rev {
			continue
		}
		if p.neededLocked() {
			p.RecallLocked(r)
		}
		return true
	}
	return false
}

// observedLocked has the place of e's key observe e, as an event or a read of the line has shown
// it, unless the place was given up: then its removal learns of it.
func (k *Keys) observedLocked(e line.Entry) {
	for _, a := range k.accounts {
		if p := a.places[e.Key]; p != nil && p.Removal.over == nil {
			p.observedLocked(ticket.Observation{Entry: e, At: e.Mod})
		}
	}
}

// wakeLocked has the keepers see to the keys of holds that a view has covered.
func (k *Keys) wakeLocked() {
	for _, a := range k.accounts {
		a.lease.WakeKeeper()
	}
}

// suspectLocked makes an audit of all leases' keys due now.
func (k *Keys) suspectLocked() {
	for _, a := range k.accounts {
		a.SuspectLocked()
	}
}

// suspectOrphanLocked makes an audit of a lease's keys due if e, which stands in a line, is on that
// lease and no place accounts for it: all contenders behind e wait for it.
func (k *Keys) suspectOrphanLocked(e line.Entry) {
	for l, a := range k.accounts {
		if e.Lease == int64(l.ID) && !a.accountsForLocked(e) {
			a.SuspectLocked()
		}
	}
}

// recheckAfter is how long to wait for the next recheck of one that has relied on its watch since a
// time, in a line of so many. An etcd that is slow is asked less.
func (k *Keys) recheckAfter(relied time.Time, contenders int) time.Duration {
	from, to := recheck.Period(time.Since(relied), k.TTL, contenders)
	return k.etcd.Seldom(from) + rand.N(to-from+1)
}
