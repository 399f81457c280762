package queue

import (
	"maps"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
)

// TenantsLocked is as in lease.Config. They are the account of the keys on the lease.
func (k *Keys) TenantsLocked(granted *lease.Lease) lease.Tenants {
	a := &Account{
		keys: k, lease: granted, places: make(map[string]*Place), idleSince: time.Now(),
	}
	k.accounts[granted] = a
	k.followConnection(a)
	return a
}

// SetBackLocked follows the end of an epoch: every place is read before it counts again, names of
// keys are drawn again, and views and watches begin again. The lock delay of all lines begins: the
// last one ends at until, or would with the longest TTL that the Session has met. What concerns
// each line and each place follows soon: FollowSetBack.
func (k *Keys) SetBackLocked(present *etcd.Epoch) (until time.Time) {
	k.setBack = setBack{present.Noticed, k.Leases.LongestTTL()}
	until = present.Noticed.Add(max(k.setBack.own, k.met))
	k.suspectLocked()
	if !k.verifying && !k.Leases.ClosedLocked() {
		k.verifying = true
		k.tasks.Go(k.verify)
	}
	return until
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
// watch goes on as if it had missed nothing. followConnection ends with a's lease.
func (k *Keys) followConnection(a *Account) {
	k.etcd.FollowConnection(a.lease.Live(), func() {
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
			_ = k.etcd.ReadKeys(k.ctx, keysOf(places), k.etcd.Read, func(part etcd.Part) {
				some := places[part.From:]
				a.confirmMissing(some, part, a.isKnownBy(some, part))
			})
		}
		if k.verified(present) || pause.Wait(k.ctx, k.etcd.Caller) != nil {
			return
		}
	}
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
