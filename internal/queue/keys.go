// Package queue has a Session's keys in etcd's lines: each from its put to its removal, how it
// waits for its turn, and how the Session learns what others do to it. Their owners, the claims
// that wait and the holds, stand above it: it knows them by the interfaces [Owner] and [Local].
package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
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
	TTL          time.Duration // that is asked for
	RestoreDelay time.Duration // the floor of the lock delay
	Leases       *lease.Pool

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
	verifying   bool      // holds of an earlier epoch are being read
	leftoverErr error     // why a lease could not be revoked, or a key removed
	leftErr     error     // why a lease could not be revoked that expires by itself
	left        time.Time // by then it has

	setBack setBack // the last one; see delay.go
	doubt
}

// New returns the Keys of a Session, which has a mutex, and goroutines that end with ctx.
func New(
	ctx context.Context, conn *etcd.Conn, mu *guard.Mutex, tasks *guard.Group, config Config,
) *Keys {
	k := &Keys{
		ctx: ctx, etcd: conn, mu: mu, tasks: tasks, Config: config,
		accounts: make(map[*lease.Lease]*Account),
	}
	k.setBack = k.setBackOf(conn.Epoch(), config.TTL)
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

// LeftoverLocked is why a lease could not be revoked, or a key removed, nil if all are or have gone
// by themselves.
func (k *Keys) LeftoverLocked() error {
	if k.leftoverErr == nil && time.Now().Before(k.left) {
		return k.leftErr
	}
	return k.leftoverErr
}

// OwnLocked tells what e, which stands in a line, is to the Session. If it is one of its keys that
// was given up, goes is closed once it has gone. If the Session has drawn its name and no place
// accounts for it, it is an orphan: it has gone since it was read, or a late request has put it and
// an audit is about to remove it.
func (k *Keys) OwnLocked(e line.Entry) (goes <-chan struct{}, orphan bool) {
	for l, a := range k.accounts {
		p := a.places[e.Key]
		switch ours := p != nil && p.Ticket.Rev() == e.Rev; {
		case e.Lease != int64(l.ID):
		case ours && p.Removal == nil: // it is in use
		case ours && p.Removal.err == nil:
			goes = p.Removal.over
		case !ours && IsOwn(e):
			return nil, true
		}
	}
	return goes, false
}

// HasLocked reports whether e is on a lease of the Session.
func (k *Keys) HasLocked(e line.Entry) bool {
	for l := range k.accounts {
		if e.Lease == int64(l.ID) {
			return true
		}
	}
	return false
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
		if p := a.places[e.Key]; p != nil && p.Removal == nil {
			p.observedLocked(ticket.Observation{Entry: e, At: e.Mod})
		}
	}
}

// wakeLocked has the keepers see to the keys of holds that a view has covered.
func (k *Keys) wakeLocked() {
	for _, a := range k.accounts {
		a.Lease.WakeKeeper()
	}
}

// suspectLocked makes an audit of all leases' keys due now.
func (k *Keys) suspectLocked() {
	for _, a := range k.accounts {
		a.SuspectLocked()
	}
}

// suspectOrphanLocked makes an audit due if e, which stands in a line, is on a lease of the Session
// and belongs to no place: a late request has put it, and it blocks all behind it.
func (k *Keys) suspectOrphanLocked(e line.Entry) {
	for l, a := range k.accounts {
		if e.Lease == int64(l.ID) && !a.accountsForLocked(e) {
			a.SuspectLocked()
		}
	}
}

// recheckAfter is how long a waiter or a view waits for its next recheck. It has relied on its
// watch since a time, in a line of so many contenders. It asks a slow etcd less often. The rechecks
// of a client meet.
func (k *Keys) recheckAfter(relied time.Time, contenders int) time.Duration {
	from, to := recheck.Period(time.Since(relied), k.TTL, contenders)
	return k.etcd.OnBeat(from, to)
}

// manyPlaces is the number of a lease's keys above which no held key gets a watch of its own: an
// audit of all of them, once per renewal period, costs less.
const manyPlaces = 100

// An Account is what its Session has of the keys on one lease.
type Account struct {
	// Set once, then only read.
	keys     *Keys
	Lease    *lease.Lease
	unfollow func() // the client's connection

	// Guarded by Session.mu.
	places    map[string]*Place // by key: all that the Session accounts for
	left      time.Time         // when the last key was gone, zero if none is
	users     int               // places that hold, wait or are being released, and pins
	idleSince time.Time         // when users became 0
	releases  int               // releases under way, of holds that have ended whole
	removals  int               // removals under way, of keys that were given up
	doubted   time.Time         // when it was last learned that a copy of a put may come late
	suspect   bool              // an audit of the keys is due now
	swept     time.Time         // when the last answered audit of the keys on the lease was sent
	byValues  bool              // the last audit was by values; see auditsBy
	listed    time.Time         // when an audit was last not brief, or the first was
	unheard   bool              // one of the last audit's requests had no answer
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
		Account: a, line: of.Line, owner: of.Owner, listens: of.Listens,
		reading: reading{Ahead: &nothing},
	}
	slot := of.Line.slots.Free(drawn{a.Lease, a.keys.etcd.Epoch()}, of.Shape)
	draw := func(name string) string { return a.draw(name, of.Shape) }
	p.Ticket = ticket.New(of.Line.Name, int64(a.Lease.ID), slot, draw)
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
		key = line.Key(name, sign(id, name, int64(a.Lease.ID)))
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
		a.Lease.AnsweredInTime()
	}
}

// retireLocked keeps new places off the lease: a request with it may still be under way.
func (a *Account) retireLocked() {
	a.doubted = time.Now()
	a.Lease.RetireLocked()
	a.Lease.WakeKeeper() // an audit is due soon, though the lease may serve no more
}

// PinLocked has the lease renewed as a place would, until UnpinLocked.
func (a *Account) PinLocked() *lease.Lease {
	a.users++
	return a.Lease
}

// UnpinLocked undoes PinLocked.
func (a *Account) UnpinLocked() { a.leftLocked() }

// leftLocked notes that a place needs the lease no more.
func (a *Account) leftLocked() {
	if a.users--; a.users == 0 {
		a.idleSince = time.Now()
		if !a.Lease.ServesLocked() {
			a.Lease.WakeKeeper()
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
		a.Lease.WakeKeeper()
	}
}

// removed notes that a removal is over.
func (a *Account) removed() {
	a.keys.mu.Lock()
	defer a.keys.mu.Unlock()
	if a.removals--; a.keys.Leases.OrphanedLocked() {
		a.Lease.WakeKeeper()
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
	known := a.Lease.IsKnown()
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

// UseLocked is what needs the lease of a (lease.Tenants).
func (a *Account) UseLocked() lease.Use {
	return lease.Use{
		Users: a.users, IdleSince: a.idleSince, Releases: a.releases, Removals: a.removals,
	}
}

// MarkLocked marks the lines of all places of a (lease.Tenants).
func (a *Account) MarkLocked() {
	a.eachLocked(func(p *Place) { p.line.local.MarkLocked() })
}

// GiveWayLocked gives up the keys that linger (lease.Tenants).
func (a *Account) GiveWayLocked() {
	a.eachLocked((*Place).giveWayLocked)
}

// EndedLocked has the places of a follow the end of the lease (lease.Tenants).
func (a *Account) EndedLocked() {
	unknown := a.Lease.IsUnknown()
	a.eachLocked(func(p *Place) {
		if unknown {
			p.doubtLocked()
		}
		p.UnwatchLocked()
		p.owner.EndsLocked()
	})
}

// KeyLocked is a key on the lease, empty if none is found (lease.Tenants). Of many places it looks
// at some.
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

// SuspectLocked makes an audit of the keys due now (lease.Tenants).
func (a *Account) SuspectLocked() {
	a.suspect = true
	a.Lease.WakeKeeper()
}

// RemoveRest removes the keys that the end of the lease has not removed (lease.Tenants). It asks of
// all keys that the Session accounts for whether they are gone: of none if nothing was held.
func (a *Account) RemoveRest(until time.Time) error {
	k := a.keys
	ctx, cancel := context.WithDeadline(k.ctx, until)
	defer cancel()
	var rest []line.Entry
	err := k.etcd.ReadKeys(ctx, a.leftOver(ctx), k.etcd.Read, func(part etcd.Part) {
		guard.Pieces(k.mu, slices.Values(part.Entries), func(e line.Entry) {
			if p := a.places[e.Key]; p != nil && p.Ticket.MayLeave(e) {
				rest = append(rest, e)
			}
		})
	})
	for _, failure := range a.removeAll(ctx, rest) {
		err = cmp.Or(failure, err)
	}
	if err != nil {
		k.Log(slog.LevelWarn, "keys may have outlived their lease", "lease", a.Lease.Hex(), "error", err)
	}
	return err
}

// leftOver are the keys of places that may be there, once their lease has gone.
func (a *Account) leftOver(ctx context.Context) []string {
	var keys []string
	guard.Pieces(a.keys.mu, maps.Keys(a.places), func(key string) { keys = append(keys, key) })
	var mu sync.Mutex
	var left []string
	abreast(keys, func(some []string) {
		some = a.keys.etcd.Left(ctx, some)
		mu.Lock()
		defer mu.Unlock()
		left = append(left, some...)
	})
	return left
}

// removeAll removes the very keys that were read, as long as ctx goes on. It returns an error, or
// nil, for each.
func (a *Account) removeAll(ctx context.Context, read []line.Entry) []error {
	k, errs := a.keys, make([]error, len(read))
	var all sync.WaitGroup
	for i, e := range read {
		all.Add(1)
		k.tasks.Go(func() {
			defer all.Done()
			deletion := func() ticket.Txn { return ticket.Deletion(e) }
			errs[i] = k.etcd.Remove(ctx, nil, deletion, func(error) {}).Err
			if errs[i] != nil && ctx.Err() != nil {
				errs[i] = context.Cause(ctx)
			}
		})
	}
	all.Wait()
	return errs
}

// RevokedLocked closes the account: the lease needs it no more (lease.Tenants).
//
// (Do not forget a lease that is left because the Session was not closed yet. Close would return
// nil while a key blocks others. TestCloseDoesNotSayNilForALeaseThatStays.)
func (a *Account) RevokedLocked(err error, left time.Time) {
	k := a.keys
	delete(k.accounts, a.Lease)
	a.unfollow()
	switch {
	case err == nil:
	case a.outlived || k.Leases.ClosedLocked():
		k.leftoverErr = err
	case left.After(k.left):
		k.leftErr, k.left = err, left
	}
}
