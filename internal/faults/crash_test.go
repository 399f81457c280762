package faults

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// freed is when the lock of a killed process must have passed on: after the TTL, a second,
// and one step of etcd, which looks for expired leases twice a second.
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
		b, admin := tr.diesUnder(exclusive, exclusive, "the holder's death")
		b.stillHolds(admin)
	})
}

// diesUnder kills a process that holds, while another party waits. That party gets in when
// the lease of the dead process has expired. diesUnder returns the party, and a client of
// etcd.
func (tr *trial) diesUnder(first, waits use, death string) (next *party, admin *clientv3.Client) {
	tr.Helper()
	s := startServers(tr, 1)
	admin = s.client(tr)
	a := tr.processFor(first, "a", ttl, s.endpoints()...)
	next = tr.partyOfFor(waits, "b", s.client(tr), 10*ttl)
	a.locks()
	in := next.starts(context.Background())
	tr.lineIs(admin, 2)
	a.diesBefore(in, death)
	return next, admin
}

// diesBefore kills p, which holds, before a waiter that must follow.
func (p *process) diesBefore(next *wait, death string) {
	p.tr.Helper()
	p.tr.phase(ttl / 3)
	died := now()
	p.kill()
	next.follows(death, died, freed)
}

// oneOfTwoDies kills a process that holds beside another, while a third party waits for
// both. What the dead process had (gone says it in words) is gone when its lease has
// expired. The third party gets in after the other one's Unlock.
func (tr *trial) oneOfTwoDies(hold, waits use, what, gone string) {
	tr.Helper()
	s := startServers(tr, 1)
	admin := s.client(tr)
	a := tr.processFor(hold, "a", ttl, s.endpoints()...)
	b := tr.partyOfFor(hold, "b", s.client(tr), 10*ttl)
	w := tr.partyOfFor(waits, "w", s.client(tr), 10*ttl)
	a.locks()
	b.locks()
	next := w.starts(context.Background())
	tr.lineIs(admin, 3)
	tr.phase(ttl / 3)
	died := now()
	a.kill()
	tr.lineIs(admin, 2)
	took := now() - died
	tr.figures.longest("time until the dead one's "+what+" was "+gone, took)
	tr.must(took <= freed, "the dead one's %s was %s after %v", what, gone, took)
	next.goesOnWaiting(ttl / 4)
	b.unlocks()
	next.follows("the last Unlock", now(), time.Second)
	w.unlocks()
}

// S16. A waiter that is killed blocks those behind it for no longer than its TTL, and no
// longer at all once its lease has expired.
//
//	a holds, w waits, and b behind it | w is killed | a unlocks, at once or when w's lease
//	has expired | b gets in
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
