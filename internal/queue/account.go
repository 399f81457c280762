package queue

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// manyPlaces is the number of a lease's keys above which no held key gets a watch of its own: an
// audit of all of them, once per renewal period, costs less.
const manyPlaces = 100

// An Account is what its Session has of the keys on one lease.
type Account struct {
	// Set once, then only read.
	keys  *Keys
	lease *lease.Lease

	// Guarded by Session.mu.
	places    map[string]*Place // by key: all that the Session accounts for
	left      time.Time         // when the last key was gone, zero if none is
	users     int               // places that hold, wait or are being released
	idleSince time.Time         // when users became 0
	releases  int               // releases under way, of holds that have ended whole
	doubted   time.Time         // when it was last learned that a copy of a put may come late
	suspect   bool              // an audit of the keys is due now
	swept     time.Time         // when the last answered audit of the keys on the lease was sent
	byValues  bool              // the last audit was by values; see auditsBy
	unread    []unread          // watches that were created, whose keys are still to be read
	reading   bool              // these are being read
	outlived  bool              // a key that was lost was not removed: it may outlive the lease
	deleted   []*Place          // whose keys are gone; whether the lease is, too, is being asked
}

// A Seat is what a place is like.
type Seat struct {
	Line    *Line
	Shape   line.Shape
	Listens bool // its value says that it may be recalled
	Owner   Owner
}

// TakeLocked makes p a place on a's lease, which is the current one and usable.
func (a *Account) TakeLocked(p *Place, of Seat) {
	*p = Place{
		Account: a, Lease: a.lease, keys: a.keys,
		line: of.Line, owner: of.Owner, listens: of.Listens,
	}
	slot := of.Line.slots.Free(a.lease, a.keys.etcd.Epoch(), of.Shape)
	draw := func(name string) string { return a.draw(name, of.Shape) }
	p.Ticket = ticket.New(of.Line.Name, int64(a.lease.ID), slot, draw)
	a.places[p.Ticket.Key] = p
	a.users++
}

// draw returns a new name for a key of a shape for the lock name, on a's lease. Only this Session
// can have drawn it: the second half of the UUID, or the last quarter of a permit's, follows from
// the rest, from the lease and from a secret of the process. So the Session tells the keys that its
// late requests put from its user's keys for certain, and need not remember them.
//
// Invariant: no place has the name that is drawn. (Few of a permit's bits are random: among some
// thousand permits two would have one name. TestPermitsOfASessionHaveAKeyEach.)
func (a *Account) draw(name string, shape line.Shape) (key string) {
	for {
		id, ok := line.Draw(uuid.New(), shape)
		key = line.Key(name, sign(id, name, int64(a.lease.ID)))
		if ok && a.places[key] == nil {
			return key
		}
	}
}

// IsOwn reports whether a Session of this process has put e: its key comes from draw, for the
// account of its lease.
func IsOwn(e line.Entry) bool {
	name, id, ok := line.ParseKey(e.Key)
	return ok && sign(id, name, e.Lease) == id
}

// secret marks the names of the keys that this process puts.
var secret = sync.OnceValue(uuid.New)

// sign returns id with what follows from its first bytes, the lease and the secret behind these.
func sign(id uuid.UUID, name string, lease int64) uuid.UUID {
	told := line.Told(id)
	from := fmt.Appendf(id[:told:told], "%x/%s", lease, name)
	signature := uuid.NewSHA1(secret(), from)
	copy(id[told:], signature[told:]) // with the bits of the variant
	return id
}

// accountsForLocked reports whether e may be the key of a place. If the place's own key is gone, e
// is an earlier key with its name, which a set-back of etcd has brought back.
func (a *Account) accountsForLocked(e line.Entry) bool {
	p := a.places[e.Key]
	return p != nil && (!p.Ticket.Lost() || p.Ticket.Rev() == e.Rev)
}

// AnsweredLocked notes the answer to a put on the lease.
func (a *Account) AnsweredLocked(put ticket.Answer, prompt bool) {
	if put.Doubtful() {
		a.retireLocked()
	}
	if prompt {
		a.lease.AnsweredInTime()
	}
}

// retireLocked keeps new places off the lease: a request with it may still be under way.
func (a *Account) retireLocked() {
	a.doubted = time.Now()
	a.lease.RetireLocked()
	a.lease.WakeKeeper() // an audit is due soon, though the lease may serve no more
}

// leftLocked notes that a place needs the lease no more.
func (a *Account) leftLocked() {
	a.users--
	if a.users == 0 {
		a.idleSince = time.Now()
		if !a.lease.ServesLocked() {
			a.lease.WakeKeeper()
		}
	}
}

// ReleaseLocked counts a release that begins. A hold that ends whole counts its release in the same
// critical section, so that Close does not revoke the lease under it.
func (a *Account) ReleaseLocked() { a.releases++ }

// ReleasedLocked counts a release that is over.
func (a *Account) ReleasedLocked() {
	a.releases--
	if a.keys.Leases.ClosedLocked() {
		a.lease.WakeKeeper()
	}
}

// endDeletedLocked ends the hold at p, whose key is gone, in the background.
func (a *Account) endDeletedLocked(p *Place) {
	a.deleted = append(a.deleted, p)
	if len(a.deleted) == 1 {
		a.keys.tasks.Go(a.tellDeleted)
	}
}

// tellDeleted ends the holds whose keys are gone. The lease may be the reason, so it first asks
// etcd, for a moment, to give the right reason of the loss.
func (a *Account) tellDeleted() {
	known := a.lease.IsKnown()
	a.keys.mu.Lock()
	deleted := a.deleted
	a.deleted = nil
	if !known {
		a.SuspectLocked() // and then a renewal decides
	}
	a.keys.mu.Unlock()
	guard.Pieces(a.keys.mu, slices.Values(deleted), func(p *Place) {
		p.observedLocked(ticket.Observation{Entry: line.Entry{Key: p.Ticket.Key}, LeaseGone: !known})
	})
}

// eachLocked calls f with each place, now if they are few. Otherwise it does so in a goroutine, a
// piece of them at a time.
func (a *Account) eachLocked(f func(*Place)) {
	if len(a.places) > guard.Piece {
		a.keys.tasks.Go(func() { guard.Pieces(a.keys.mu, maps.Values(a.places), f) })
		return
	}
	for _, p := range a.places {
		f(p)
	}
}

// What follows, with the audits, are the methods of lease.Tenants.

// UseLocked is as in lease.Tenants.
func (a *Account) UseLocked() lease.Use {
	return lease.Use{Users: a.users, IdleSince: a.idleSince, Releases: a.releases}
}

// MarkLocked is as in lease.Tenants.
func (a *Account) MarkLocked() {
	a.eachLocked(func(p *Place) { p.line.local.MarkLocked() })
}

// GiveWayLocked is as in lease.Tenants: keys that linger are given up.
func (a *Account) GiveWayLocked() {
	a.eachLocked((*Place).giveWayLocked)
}

// EndedLocked is as in lease.Tenants.
func (a *Account) EndedLocked() {
	a.eachLocked(func(p *Place) {
		p.UnwatchLocked()
		p.owner.EndsLocked()
	})
}

// KeyLocked is as in lease.Tenants. Of many places it looks at some.
func (a *Account) KeyLocked() string {
	looked := 0
	for _, p := range a.places {
		if p.Ticket.Rev() != 0 && !p.Ticket.Lost() {
			return p.Ticket.Key
		}
		if looked++; looked == guard.Piece {
			break
		}
	}
	return ""
}

// SuspectLocked is as in lease.Tenants.
func (a *Account) SuspectLocked() {
	a.suspect = true
	a.lease.WakeKeeper()
}

// RemoveRest is as in lease.Tenants. It reads all keys that the Session accounts for: none if
// nothing was held.
func (a *Account) RemoveRest(until time.Time) error {
	k := a.keys
	ctx, cancel := context.WithDeadline(k.ctx, until)
	defer cancel()
	var keys []string
	var tickets []ticket.Ticket
	guard.Pieces(k.mu, maps.Values(a.places), func(p *Place) {
		keys, tickets = append(keys, p.Ticket.Key), append(tickets, p.Ticket)
	})
	var rest []line.Entry
	err := k.etcd.ReadKeys(ctx, keys, k.etcd.Read, func(part etcd.Part) {
		for i, e := range part.Entries {
			if tickets[part.From+i].MayLeave(e) {
				rest = append(rest, e)
			}
		}
	})
	for _, e := range rest {
		if _, failure := k.etcd.Read(ctx, etcd.Deletion(e)); failure != nil {
			err = failure
		}
	}
	if err != nil {
		k.Log(slog.LevelWarn, "keys may have outlived their lease", "lease", a.lease.Hex(), "error", err)
	}
	return err
}

// RevokedLocked is as in lease.Tenants: it closes the account.
func (a *Account) RevokedLocked(err error) {
	delete(a.keys.accounts, a.lease)
	if err != nil && (a.outlived || a.keys.Leases.ClosedLocked()) {
		a.keys.leftoverErr = err
	}
}
