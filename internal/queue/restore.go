package queue

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
)

// TenantsLocked returns the account of the keys on a lease that was just granted (lease.Config).
func (k *Keys) TenantsLocked(granted *lease.Lease) lease.Tenants {
	a := &Account{
		keys: k, Lease: granted, places: make(map[string]*Place), idleSince: time.Now(),
	}
	k.accounts[granted] = a
	a.unfollow = k.followConnection(a)
	return a
}

// SetBackLocked follows the end of an epoch: every place is read before it counts again, names of
// keys are drawn again, and views and watches begin again. The lock delay of all lines begins: it
// ends at until where the Session has no place in line. What concerns each line and each place
// follows soon: FollowSetBack.
//
// Invariant: no place of a lease that is over spares its line the floor, for others may have got in
// since. The lease may be over unsaid, as the process was suspended, and many places are told one
// piece after another. (TestALeaseThatIsOverSparesNoRestoreDelay.)
func (k *Keys) SetBackLocked(present *etcd.Epoch) (until time.Time) {
	k.Leases.CheckLocked(time.Now())
	k.setBack = k.setBackOf(present, k.Leases.LongestTTL())
	until = k.setBack.until(line.TTLs{}, false)
	k.suspectLocked()
	if !k.verifying && !k.Leases.ClosedLocked() {
		k.verifying = true
		k.tasks.Go(k.verify)
	}
	return until
}

// setBackOf is the set-back that has begun an epoch, for a Session whose longest TTL is own.
func (k *Keys) setBackOf(present *etcd.Epoch, own time.Duration) setBack {
	if present.Number == 0 {
		return setBack{}
	}
	b := setBack{
		era: era(present.Number), noticed: present.Noticed, own: max(own, present.Trusted),
		floor: k.RestoreDelay,
	}
	for l, a := range k.accounts {
		b.unsure = b.unsure || l.HasEndedLocked() && len(a.places) > guard.Piece
	}
	return b
}

// FollowSetBack begins new watches, and wakes the waiters.
func (k *Keys) FollowSetBack() {
	guard.Pieces(k.mu, k.LinesLocked, (*Line).SetBackLocked)
	guard.Pieces(k.mu, k.places(), (*Place).tellLocked)
	k.rewatch()
}

// rewatch begins new watches of the keys of the Session's holds: the old ones may be silent.
//
// (Do not leave out the holds of a lease that has many. When few are left, their watches count.
// TestTheWatchesOfManyHoldsAreMadeAnew.)
func (k *Keys) rewatch() {
	guard.Pieces(k.mu, k.places(), func(p *Place) {
		if p.watch != nil {
			p.watch.renewLocked()
		}
	})
}

// WatchAnew begins new watches for all views of the Session and for the keys of its holds.
func (k *Keys) WatchAnew() {
	k.rewatch()
	guard.Pieces(k.mu, k.LinesLocked, func(n *Line) {
		if v := n.viewLocked(); v != nil {
			v.renewLocked()
		}
	})
}

// followConnection begins all views again when the client has lost its connection, and makes an
// audit of all keys due when it has another. A restore stops etcd first. If the restored etcd
// passes its old revision before the Session reads, no answer shows that it was set back, and a
// watch goes on as if it had missed nothing. It ends with a's lease, by end.
func (k *Keys) followConnection(a *Account) (end func()) {
	return k.etcd.FollowConnection(func() {
		guard.Pieces(k.mu, k.LinesLocked, (*Line).EndLocked)
		k.rewatch()
	}, func() {
		k.mu.Lock()
		k.suspectLocked()
		k.mu.Unlock()
		// A waiter behind many, which watches one key, rechecks soon.
		guard.Pieces(k.mu, maps.Values(a.places), (*Place).tellLocked)
	})
}

// verify reads the keys of the holds that began in an earlier epoch. Waiters read the line by
// themselves. Keys that the user may not read are left to the audits.
//
// It does not read what is ahead of a hold. No key is ever put ahead of another, but a set-back
// brings keys back that had gone before the hold began: no process holds by them, and they go, by
// their Session or with their lease. (TestAHoldBehindAKeyThatASetBackRevivedGoesOn.)
func (k *Keys) verify() {
	var pause attempt.Backoff
	for {
		present := k.etcd.Epoch()
		for a, places := range k.staleHolds() {
			k.verifyAll(a, places)
		}
		if k.verified(present) || pause.Wait(k.ctx, k.etcd.Caller) != nil {
			return
		}
	}
}

// verifyShares is how many reads of verify go side by side, as far as the limiter of the client
// lets them. Then 10,000 keys are read within 13 round trips.
const verifyShares = 8

// verifyAll reads the keys of places of an account.
//
// (Do not read one part after the other: no renewal counts before the last. With 10,000 names and
// 150 ms to etcd all holds would be lost though all keys are there.
// TestManyHoldsOutliveARestoreThatHasTheirKeys.)
func (k *Keys) verifyAll(a *Account, places []*Place) {
	var reads sync.WaitGroup
	for share := range slices.Chunk(places, max(manyPlaces, len(places)/verifyShares+1)) {
		reads.Go(func() {
			_ = k.etcd.ReadKeys(k.ctx, keysOf(share), k.etcd.Read, func(part etcd.Part) {
				some := share[part.From:]
				a.confirmMissing(some, part, a.isKnownBy(some, part))
			})
		})
	}
	reads.Wait()
}

// staleHolds are the places of holds from an earlier epoch, by account.
func (k *Keys) staleHolds() map[*Account][]*Place {
	stale := make(map[*Account][]*Place)
	guard.Pieces(k.mu, k.places(), func(p *Place) {
		if p.neededLocked() && p.StaleLocked() {
			stale[p.Account] = append(stale[p.Account], p)
		}
	})
	return stale
}

// verified reports whether verify is over: everything was read in the present epoch, or the
// Session is closed. A lease whose holds all have their keys there may be trusted again.
func (k *Keys) verified(read *etcd.Epoch) bool {
	stale := k.staleHolds() // no hold begins at a stale place
	k.mu.Lock()
	defer k.mu.Unlock()
	k.verifying = k.etcd.Epoch() != read && !k.Leases.ClosedLocked()
	if k.verifying {
		return false
	}
	for l, a := range k.accounts {
		if len(stale[a]) == 0 {
			l.Read(read)
		}
	}
	return true
}

// A doubt is whether etcd was set back unnoticed: a key of the Session that stood in line is gone,
// and no event has told that it was deleted. An operator may have deleted it, and the event be on
// its way, or none be sent to this Session. Or etcd was restored to before the key.
//
// etcd's history tells: if it has the key at its own create revision, etcd was not set back to
// before. Until it has told, no hold begins in that line, for a TTL of the Session at most.
//
// Invariant: of several keys the one that was put last decides. If that is in etcd's history, so
// are all.
type doubt struct {
	doubted []*Place // whose lines wait for the next decision
	newest  *Place   // of them, the one whose key was put last
	decides bool     // a decision is under way

	// decided ends with the next decision; nil while no line has waited for one.
	decided context.Context
	decide  context.CancelFunc
}

// decideDoubts asks etcd's history until no doubt is left.
func (k *Keys) decideDoubts() {
	for {
		k.mu.Lock()
		doubted := k.doubted
		k.doubted, k.decides = nil, len(doubted) > 0
		if !k.decides {
			k.mu.Unlock()
			return
		}
		last := k.newest // (do not seek it here: a lease may have had 10,000 keys)
		key, put := last.Ticket.Key, last.Ticket.Rev()
		k.newest = nil
		k.mu.Unlock()
		k.decideBy(doubted, key, put, max(k.TTL, last.Account.Lease.TTL))
	}
}

// decideBy decides about lines by the key that was put last, in a time. If etcd's history does not
// tell, the doubt goes on until it ends. (Do not log one that no answer has ended: it is over.)
func (k *Keys) decideBy(doubted []*Place, key string, put int64, most time.Duration) {
	ctx, cancel := context.WithTimeout(k.ctx, most)
	defer cancel()
	epoch := k.etcd.Epoch()
	was := k.etcd.WasThere(ctx, key, put)
	if !was && ctx.Err() == nil && k.etcd.Epoch() == epoch {
		k.MayBeSetBack(fmt.Sprintf("%s, put at revision %d, is gone, and no event tells why", key, put),
			most)
	}
	guard.Pieces(k.mu, slices.Values(doubted), func(p *Place) {
		p.doubtful = false
		p.standsLocked(nowhere)
		if bars := p.line.delay.change(); was && bars.doubting == p.Ticket.Rev() {
			bars.doubting, bars.doubted = 0, time.Time{}
			p.line.local.MarkLocked()
		}
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.decided != nil {
		k.mu.After(k.decide)
		k.decided = nil
	}
}

// MayBeSetBack logs a sign that etcd was set back, which is no proof, and for how long no hold
// begins.
func (k *Keys) MayBeSetBack(why string, delay time.Duration) {
	k.Log(slog.LevelWarn, "etcd may have been set back", "why", why, "delay", delay)
}

// DelayContext returns a context that ends after a delay, or with the next decision of a doubt:
// then the delay may be shorter.
//
// (Do not ask for the delay before: a decision in between would have shortened it, and the caller
// would wait for a TTL. TestALossFromOutsideIsNoticedWithinAboutASecond.)
func (k *Keys) DelayContext(
	delayLocked func() time.Duration,
) (context.Context, context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delay := delayLocked()
	if !k.decides {
		return context.WithTimeout(context.Background(), delay)
	}
	if k.decided == nil {
		k.decided, k.decide = context.WithCancel(context.Background())
	}
	return context.WithTimeout(k.decided, delay)
}
