package etcdlocktest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// end closes all clients, and returns an error for each Session that was left open, and for what
// LockOrder and ForgottenUnlocks have found.
//
// A Session is open if its lease lives and nobody has asked to revoke the lease. Closing a Session
// asks for that even if etcd does not hear it, so such a Session does not count as left open
// (TestASessionThatWasClosedWhileEtcdWasAwayIsNoneLeftOpen).
func (e *Etcd) end() (left []error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	died := make(map[string]bool)
	clients, order, forgotten := slices.Collect(maps.Keys(e.processes)), e.order, e.forgotten
	for client, process := range e.processes {
		died[process] = client.Ctx().Err() != nil
	}
	e.mu.Unlock()
	uses := e.server.LeaseUses()
	var longest time.Duration
	for _, id := range slices.Sorted(maps.Keys(uses)) {
		use := uses[id]
		name, owner, locks := lockOf(use)
		if !locks || use.Revoked {
			continue
		}
		longest = max(longest, use.TTL)
		if !use.Ended && !died[use.Process] {
			left = append(left, fmt.Errorf("etcdlocktest: a Session or Mutex of %s was left open: "+
				"its last lock is %q, its owner %q, its lease %x; call Close before the etcd ends",
				use.Process, name, owner, int64(id)))
		}
	}
	for _, client := range clients {
		_ = client.Close() // it says that it is closed
	}
	if order != nil {
		left = append(left, order.cycles()...)
	}
	if forgotten != nil {
		left = append(left, forgotten.all()...)
	}
	if e.bubble {
		time.Sleep(patience * longest)
	}
	return left
}

// patience is how many TTLs a Session goes on at most after its client was closed: until its
// trust has ended, and as long as a loser may then take to unlock.
const patience = 4

// lockOf reports whether a lease belongs to a Session, by the last place in a line that was asked
// for on it, and returns the lock and the owner of that place. A key that outlasts its hold is on a
// lease of its own (TestAKeyThatOutlastsItsHoldIsNoSessionLeftOpen).
func lockOf(use fake.LeaseUse) (name, owner string, locks bool) {
	if use.Put == nil {
		return "", "", false
	}
	name, _, locks = line.ParseKey(string(use.Put.Key))
	value := line.EntryOf(use.Put).Value()
	return name, value.Owner, locks && value.Until.IsZero()
}
