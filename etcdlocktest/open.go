package etcdlocktest

import (
	"maps"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// end names what the test has left open, and closes its clients.
//
// A Session is one whose lease lives. Whoever closes it asks to revoke that, whether etcd hears of
// it or not: a Session that could not say good-bye is none that was left open
// (TestASessionThatWasClosedWhileEtcdWasAwayIsNoneLeftOpen).
func (e *Etcd) end() {
	e.t.Helper()
	e.mu.Lock()
	died := make(map[string]bool)
	clients := slices.Collect(maps.Keys(e.processes))
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
			e.t.Errorf("etcdlocktest: a Session or Mutex of %s was left open: "+
				"its last lock is %q, its owner %q, its lease %x; call Close before the test ends",
				use.Process, name, owner, int64(id))
		}
	}
	for _, client := range clients {
		_ = client.Close() // it says that it is closed
	}
	if e.bubble {
		time.Sleep(patience * longest)
	}
}

// patience is for how many TTLs a Session goes on whose client is closed, at most: until its
// trust has ended, and as long again as a loser may take to unlock.
const patience = 4

// lockOf tells whether a lease is that of a Session, by the last place in a line that was asked
// for on it, and which lock and owner that was of.
func lockOf(use fake.LeaseUse) (name, owner string, locks bool) {
	if use.Put == nil {
		return "", "", false
	}
	name, _, locks = line.ParseKey(string(use.Put.Key))
	return name, line.EntryOf(use.Put).Value().Owner, locks
}
