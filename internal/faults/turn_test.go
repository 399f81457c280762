package faults

import (
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// S18. A waiter whose member is cut off from the majority gets in by another member.
//
//	a holds, b waits by a member | that is cut off from the others, which b can reach | a
//	unlocks | b gets in
func TestS18AWaiterOnAMemberThatIsCutOffGetsIn(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"leader", "follower"} {
		t.Run(role, func(t *testing.T) {
			prove(t, row{
				id: "S18", name: role, quick: 4, lanes: 4,
				fault: "the waiter's member, a " + role + ", is cut from the majority, others reachable",
				must:  "in <= 5 s after the release",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 3)
				cut := tr.memberThatIs(role, c)
				proxies := []*etcdtest.Proxy{c.Proxy(tr, 0), c.Proxy(tr, 1), c.Proxy(tr, 2)}
				reach := func(others bool) {
					for m, p := range proxies {
						if p.Heal(); m != cut && !others {
							p.Refuse()
						}
					}
				}
				reach(false) // so that b is on the member that will be cut off
				a := tr.party("a", c, 10*ttl, c.At((cut+1)%3, (cut+2)%3))
				b := tr.party("b", c, 10*ttl, etcdtest.Via(proxies...))
				b.mends(func() { c.Rejoin(cut) })

				a.locks()
				next := b.waits()
				reach(true)
				c.Isolate(cut)
				a.unlocks()
				released := now()
				next.getsIn(5 * time.Second)
				tr.figures.longest("time from release to in", next.at-released)
				b.unlocks()
			})
		})
	}
}
