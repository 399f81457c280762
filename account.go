package etcdlock

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// manyPlaces is the number of a lease's keys above which no held key gets a watch of its own: an
// audit of all of them, once per renewal period, costs less.
const manyPlaces = 100

// An account is what its Session has of the keys on one lease.
type account struct {
	// Set once, then only read.
	s     *Session
	lease *lease.Lease

	// Guarded by Session.mu.
	places      map[string]*place  // by key: all that the Session accounts for
	placed      time.Time          // when the last place was taken
	users       int                // places that hold, wait or are being released
	idleSince   time.Time          // when users became 0
	releases    int                // releases under way, of holds that have ended whole
	ending      map[*hold]struct{} // holds that have ended while their contexts may not have
	doubted     time.Time          // when it was last learned that a copy of a put may come late
	leftoverErr error              // why the last removal was given up
	suspect     bool               // an audit of the keys is due now
	swept       time.Time          // when the last answered audit of the keys on the lease was sent
	audits      uint               // while places listen: by values, or in turn by the keys
	reads       watchReads         // of watched keys
	deleted     []*place           // places whose keys are gone and whose holds are about to end
	asking      bool               // whether the lease is gone too is being asked
}

// newPlaceLocked takes a place on k's lease, which is the current one and usable.
func (k *account) newPlaceLocked(c *claim) *place {
	shape := c.shape()
	slot := c.local.slotsLocked(shape).Free(k.lease, shape.Kind)
	p := &place{
		s:       k.s,
		m:       c.m,
		local:   c.local,
		lease:   k.lease,
		account: k,
		ticket:  ticket.New(c.m.name, int64(k.lease.ID), slot, k.drawer(shape)),
		using:   true,
	}
	k.places[p.ticket.Key] = p
	k.placed = time.Now()
	k.users++
	c.local.queue.Gather() // a waiter that comes from here on may come after the put
	return p
}

// drawer returns what draws the names of keys of a shape, on k's lease.
func (k *account) drawer(shape line.Shape) func(name string) string {
	return func(name string) string { return k.draw(name, shape) }
}

// draw returns a new name for a key of a shape for the lock name, on k's lease. Only this Session
// can have drawn it: the second half of the UUID, or the last quarter of a permit's, follows from
// the rest and from a secret. So the Session tells the keys that its late requests put from its
// user's keys for certain, and need not remember them.
//
// Invariant: no place has the name that is drawn. (Few of a permit's bits are random: among some
// thousand permits two would have one name. TestPermitsOfASessionHaveAKeyEach.)
func (k *account) draw(name string, shape line.Shape) (key string) {
	for {
		id, ok := line.Draw(uuid.New(), shape)
		key = line.Key(name, k.sign(id, name))
		if ok && k.places[key] == nil {
			return key
		}
	}
}

// hasDrawn reports whether key comes from draw.
func (k *account) hasDrawn(key string) bool {
	name, id, ok := line.ParseKey(key)
	return ok && k.sign(id, name) == id
}

// sign returns id with what the Session derives from its first bytes and the lease behind these.
func (k *account) sign(id uuid.UUID, name string) uuid.UUID {
	told := line.Told(id)
	from := fmt.Appendf(id[:told:told], "%x/%s", int64(k.lease.ID), name)
	signature := uuid.NewSHA1(k.s.secret, from)
	copy(id[told:], signature[told:]) // with the bits of the variant
	return id
}

// accountsForLocked reports whether e may be the key of a place. If the place's own key is gone, e
// is an earlier key of that name, which a set-back of etcd has brought back.
func (k *account) accountsForLocked(e line.Entry) bool {
	p := k.places[e.Key]
	return p != nil && (!p.ticket.Lost() || p.ticket.Rev() == e.Rev)
}

// putLocked notes the answer to a put on the lease.
func (k *account) putLocked(a ticket.Answer, prompt bool) {
	if a.Doubtful() {
		k.retireLocked()
	}
	if prompt {
		k.lease.AnsweredInTimeLocked()
	}
}

// retireLocked keeps new places off the lease: a request with it may still be under way.
func (k *account) retireLocked() {
	k.doubted = time.Now()
	k.lease.RetireLocked()
}

// leftLocked notes that a place needs the lease no more.
func (k *account) leftLocked() {
	k.users--
	if k.users == 0 {
		k.idleSince = time.Now()
		if !k.lease.ServesLocked() {
			k.lease.WakeKeeper()
		}
	}
}

// releasedLocked counts a release that is over. A hold that ends whole counts its release in
// the same critical section, so that Close does not revoke the lease under it.
func (k *account) releasedLocked() {
	k.releases--
	if k.s.closed {
		k.lease.WakeKeeper()
	}
}

// trackEndingLocked notes that h has ended and that its contexts are about to end.
func (k *account) trackEndingLocked(h *hold) {
	if k.ending == nil {
		k.ending = make(map[*hold]struct{})
	}
	k.ending[h] = struct{}{}
}

// askWhyLocked ends the hold at p, whose key is gone, in the background.
func (k *account) askWhyLocked(p *place) {
	k.deleted = append(k.deleted, p)
	if !k.asking {
		k.asking = true
		k.s.tasks.GoLocked(k.tellDeleted)
	}
}

// tellDeleted ends the holds whose keys are gone. The lease may be the reason, so it first asks
// etcd, for a moment, to give the right reason of the loss.
func (k *account) tellDeleted() {
	known := k.lease.IsKnown()
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	for _, p := range k.deleted {
		p.observedLocked(ticket.Observation{Entry: line.Entry{Key: p.ticket.Key}, LeaseGone: !known})
	}
	k.deleted, k.asking = nil, false
	if !known {
		k.SuspectLocked() // and then a renewal decides
	}
}

// What follows, with the audits, are the methods of lease.Tenants.

// UseLocked is as in lease.Tenants.
func (k *account) UseLocked() lease.Use {
	return lease.Use{Users: k.users, IdleSince: k.idleSince, Releases: k.releases}
}

// MarkLocked is as in lease.Tenants.
func (k *account) MarkLocked() {
	for _, p := range k.places {
		p.markLocked()
	}
}

// GiveWayLocked is as in lease.Tenants: keys that linger are given up.
func (k *account) GiveWayLocked() {
	for _, p := range k.places {
		p.giveWayLocked()
	}
}

// EndedLocked is as in lease.Tenants.
func (k *account) EndedLocked(why error) {
	for _, p := range k.places {
		p.leaseEndedLocked(why)
	}
}

// KeyLocked is as in lease.Tenants.
func (k *account) KeyLocked() string {
	for _, p := range k.places {
		if p.ticket.Rev() != 0 && !p.ticket.Lost() {
			return p.ticket.Key
		}
	}
	return ""
}

// Tick is as in lease.Tenants: it begins to watch the keys of holds that last and that no view
// covers.
func (k *account) Tick() {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if k.lease.HasEndedLocked() || k.s.closed || len(k.places) > manyPlaces {
		return
	}
	now := time.Now()
	for _, p := range k.places {
		if p.watch == nil && p.lastsForLocked(now, watchAfter) && !p.viewedLocked() {
			p.watchLocked()
		}
	}
}

// SuspectLocked is as in lease.Tenants.
func (k *account) SuspectLocked() {
	k.suspect = true
	k.lease.WakeKeeper()
}

// BeforeRevoke is as in lease.Tenants: it ends the contexts of all holds that have ended.
func (k *account) BeforeRevoke() {
	k.s.mu.Lock()
	holds := slices.Collect(maps.Keys(k.ending))
	k.s.mu.Unlock()
	for _, h := range holds {
		h.endContexts()
	}
}

// RemoveRest is as in lease.Tenants. It reads all keys that the Session accounts for: none if
// nothing was held.
func (k *account) RemoveRest(until time.Time) error {
	s := k.s
	ctx, cancel := context.WithDeadline(s.ctx, until)
	defer cancel()
	s.mu.Lock()
	var keys []string
	var revs []int64
	for _, p := range k.places {
		keys, revs = append(keys, p.ticket.Key), append(revs, p.ticket.Rev())
	}
	s.mu.Unlock()
	var rest []line.Entry
	err := s.etcd.ReadKeys(ctx, keys, s.etcd.Read, func(part etcd.Part) {
		for i, e := range part.Entries {
			if rev := revs[part.From+i]; e.Rev != 0 && (rev == 0 || rev == e.Rev) {
				rest = append(rest, e)
			}
		}
	})
	for _, e := range rest {
		if failure := s.etcd.DeleteUntilAnswered(ctx, e); failure != nil {
			err = failure
		}
	}
	if err != nil {
		s.log(slog.LevelWarn, "keys may have outlived their lease", "lease", k.lease.Hex(), "error", err)
	}
	return err
}

// RevokedLocked is as in lease.Tenants: it closes the account.
func (k *account) RevokedLocked(err error) {
	delete(k.s.accounts, k.lease)
	if err != nil && (k.s.closed || k.leavesLocked()) {
		k.s.leftoverErr = err
	}
}

// leavesLocked reports whether a key whose removal was given up may outlive the lease.
func (k *account) leavesLocked() bool {
	for _, p := range k.places {
		if p.ticket.Lost() && p.stuck {
			return true
		}
	}
	return false
}

// accounts are the accounts of a Session, by their leases.
type accounts map[*lease.Lease]*account

// suspectLocked makes an audit of all leases' keys due now.
func (all accounts) suspectLocked() {
	for _, k := range all {
		k.SuspectLocked()
	}
}

// suspectOrphanLocked makes an audit of a lease's keys due if e, which stands in a line, is on that
// lease and no place accounts for it: all contenders behind e wait for it.
func (all accounts) suspectOrphanLocked(e line.Entry) {
	for l, k := range all {
		if e.Lease == int64(l.ID) && !k.accountsForLocked(e) {
			k.SuspectLocked()
		}
	}
}

// rewatchLocked begins new watches of the keys of the Session's holds: the old ones may be silent.
func (all accounts) rewatchLocked() {
	for _, k := range all {
		if len(k.places) > manyPlaces {
			continue
		}
		for _, p := range k.places {
			if p.watch != nil {
				p.watch.renewLocked()
			}
		}
	}
}

// staleHoldsLocked are the places of holds from an earlier epoch, by account.
func (all accounts) staleHoldsLocked() map[*account][]*place {
	stale := make(map[*account][]*place)
	for _, k := range all {
		for _, p := range k.places {
			if p.refs > 0 && !p.ticket.Lost() && p.staleLocked() {
				stale[k] = append(stale[k], p)
			}
		}
	}
	return stale
}
