package faults

import (
	"context"
	"testing"
	"time"
)

// freed is when the lock of a process that was killed must have passed on: the TTL and
// a second, and etcd's step, which looks for expired leases twice a second.
const freed = ttl + time.Second + 500*time.Millisecond

// S16. A holder that is killed blocks nobody for longer than its TTL.
//
//	a holds, b waits | a is killed | its lease expires, b gets in
func TestS16AHolderThatIsKilledBlocksNobodyForLong(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S16", name: "holder", quick: 4,
		fault: "holder killed (SIGKILL)",
		must:  "next owner in <= TTL + 1 s and the server's step of 0.5 s",
	}, func(tr *trial) {
		s := startServers(tr, 1)
		a := tr.process("a", ttl, s.endpoints()...)
		b := tr.partyOf("b", s.client(tr), 10*ttl)

		a.locks()
		next := b.starts(context.Background())
		tr.lineIs(s.client(tr), 2)
		tr.phase(ttl / 3)
		died := now()
		a.kill()
		next.follows("the holder's death", died, freed)
		b.stillHolds(s.client(tr))
	})
}

// S16. A waiter that is killed blocks those behind it for no longer than its TTL, and
// not at all once its lease has expired.
//
//	a holds, w waits, and b behind it | w is killed | a unlocks, at once or when w's
//	lease has expired | b gets in
func TestS16AWaiterThatIsKilledBlocksNobodyForLong(t *testing.T) {
	t.Parallel()
	deaths := []struct {
		name    string
		expires bool // before its turn comes
		within  time.Duration
		must    string
	}{
		{"waiter, when its turn comes", false, freed, "the one behind it in <= TTL + 1 s and the server's step of 0.5 s after its turn"},
		{"waiter, before its turn comes", true, time.Second, "the one behind it in <= 1 s after its turn, since the dead one's place is gone"},
	}
	for _, death := range deaths {
		t.Run(death.name, func(t *testing.T) {
			prove(t, row{
				id: "S16", name: death.name, quick: 4,
				fault: "waiter killed (SIGKILL): " + death.name, must: death.must,
			}, func(tr *trial) {
				s := startServers(tr, 1)
				admin := s.client(tr)
				a := tr.partyOf("a", s.client(tr), 10*ttl)
				w := tr.process("w", ttl, s.endpoints()...)
				b := tr.partyOf("b", s.client(tr), 10*ttl)

				a.locks()
				w.starts()
				tr.lineIs(admin, 2)
				next := b.starts(context.Background())
				tr.lineIs(admin, 3)
				tr.phase(ttl / 3)
				w.kill()
				if death.expires {
					tr.lineIs(admin, 2)
				}
				a.unlocks()
				turn := now()
				next.follows("its turn", turn, death.within)
				b.stillHolds(admin)
			})
		})
	}
}
