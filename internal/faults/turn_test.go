package faults

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
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

// pings are those of the pages: with them a client gives a dead connection up.
func pings(cfg *clientv3.Config) {
	cfg.DialKeepAliveTime, cfg.DialKeepAliveTimeout = 10*time.Second, 3*time.Second
}

// S45. A connection that dies without a sign, with one endpoint. A client with pings makes a new
// one, and keeps a hold whose TTL is above the pings. Without pings no new one is made.
//
//	a holds, b waits by its own connection | a's connection dies | with pings: a is back, and
//	unlocks | without: a knows | b gets in
func TestS45PingsEndAConnectionThatDiedWithoutASign(t *testing.T) {
	t.Parallel()
	const (
		back = 15 * time.Second // 10 s until the ping, 3 s until its end, and the next connection
		long = 30 * time.Second
	)
	cases := []struct {
		name   string
		ttl    time.Duration
		must   string
		pinged bool
		opts   []contract.ClientOption
	}{
		{"with pings, TTL 30 s", long, "etcd answers the client again in <= 15 s, and the hold is kept",
			true, []contract.ClientOption{pings}},
		{"without pings, TTL 2 s", ttl, "0 overlaps, least margin >= 100 ms " +
			"(the control: in 20 s no answer comes)", false, nil},
	}
	for _, how := range cases {
		t.Run(how.name, func(t *testing.T) {
			prove(t, row{
				id: "S45", name: how.name, quick: 2, lanes: 10,
				fault: "the only connection dies without FIN or RST, a new one would work: " + how.name,
				must:  how.must, leastMargin: leastMargin,
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				proxy := c.Proxy(tr, 0)
				a := tr.party("a", c, how.ttl, append(how.opts, etcdtest.Via(proxy))...)
				b := tr.party("b", c, 10*ttl)
				a.mends(proxy.Heal)

				a.locks()
				next := b.waits()
				tr.phase(how.ttl / 3)
				proxy.Lose()
				lost := now()
				if !how.pinged {
					next.getsIn(expires)
					a.loses(ttl)
					_, err := a.client.Get(tr.bounded(20*time.Second), tr.name)
					tr.must(err != nil, "a dead connection has answered")
					return
				}
				_, err := a.client.Get(tr.bounded(patience), tr.name)
				tr.must(err == nil, "a is not back after %v: %v", now()-lost, err)
				took := now() - lost
				tr.figures.longest("time until etcd answers again", took)
				tr.must(took <= back, "a is back after %v", took)
				a.holdsFor(lost + long + time.Second - now())
				a.stillHolds(c.Client(tr))
				a.unlocks()
				next.getsIn(5 * time.Second)
				b.unlocks()
			})
		})
	}
}

// S45. A follower is frozen, and a client has its connections to all three members. With pings it
// gives up the dead one, and its calls take their usual time. Without pings a part of its requests
// goes there for as long as the follower is frozen, and is repeated.
//
//	a holds now and then | a follower freezes | for a while | how long a's calls take
func TestS45PingsEndTheConnectionToAFrozenFollower(t *testing.T) {
	t.Parallel()
	const back, usual = 15 * time.Second, 500 * time.Millisecond
	for _, pinged := range []bool{true, false} {
		name, must := "with pings", "no call fails; after 15 s each Lock and Unlock takes <= 0.5 s"
		if !pinged {
			name, must = "without pings", "no call fails (the control: after 15 s some take longer)"
		}
		t.Run(name, func(t *testing.T) {
			prove(t, row{
				id: "S45", name: "a follower frozen, " + name, lanes: 2,
				fault: "one of three members, a follower, is frozen; a client of all three, " + name,
				must:  must,
			}, func(tr *trial) {
				s := startServers(tr, 3)
				follower := (s.leader() + 1) % 3
				opts := []contract.ClientOption{pings}
				if !pinged {
					opts = nil
				}
				a := tr.partyOf("a", s.client(tr, opts...), 5*ttl)
				a.getsALease()
				s.freeze(follower)
				tr.Cleanup(func() { s.thaw(follower) })
				frozen := now()
				longest := time.Duration(0)
				for now() < frozen+2*back {
					began := now()
					a.locks()
					a.holdsFor(10 * time.Millisecond)
					a.unlocks()
					if began > frozen+back {
						longest = max(longest, now()-began)
					}
				}
				tr.figures.longest("time of a Lock and Unlock after 15 s", longest)
				tr.must(longest <= usual == pinged, "the longest has taken %v", longest)
			})
		})
	}
}
