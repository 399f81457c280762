package faults

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

const (
	// fleetTTL is longer than any fault of a fleet lasts, with what a loaded machine adds.
	fleetTTL = 60 * time.Second

	// fleetClients is how many clients the parties of a fleet share. One connection for
	// each party would cost the machine more than the fault does.
	fleetClients = 20
)

// fleetSize is how many parties a fleet has.
func fleetSize() int {
	if *trials > 0 {
		return 1000
	}
	return 100
}

// A fleet is many parties that want one lock.
type fleet struct {
	tr      *trial
	parties []*party
}

// fleet makes a fleet of parties. client makes the client of each.
func (tr *trial) fleet(client func() *clientv3.Client) *fleet {
	f := &fleet{tr: tr}
	var clients []*clientv3.Client
	for range fleetClients {
		clients = append(clients, client())
	}
	for i := range fleetSize() {
		who := fmt.Sprintf("party %d", i+1)
		f.parties = append(f.parties, tr.partyOf(who, clients[i%len(clients)], fleetTTL))
	}
	return f
}

// A march is a moving line of a fleet: each party holds once, and lets the next one in.
type march struct {
	f     *fleet
	begun time.Duration
	all   sync.WaitGroup

	mu    sync.Mutex
	in    int
	first time.Duration // when the first one got in
	last  time.Duration // when the last one got in
}

// march makes all parties queue. Each one that gets in lets the next one in at once.
func (f *fleet) march() *march {
	m := &march{f: f, begun: now()}
	for _, p := range f.parties {
		w := p.starts(context.Background())
		m.all.Go(func() { m.passes(w) })
	}
	return m
}

// passes waits until a party is in, for as long as its trial lasts, and makes it leave.
func (m *march) passes(w *wait) {
	<-w.done
	tr := m.f.tr
	if w.err != nil {
		tr.broke("%s: Lock: %v", w.p.who, w.err)
		return
	}
	m.mu.Lock()
	m.in++
	if m.first == 0 {
		m.first = w.at
	}
	m.last = w.at
	m.mu.Unlock()
	w.p.leaves()
	if err := w.p.lock.Unlock(tr.bounded(patience)); err != nil {
		tr.broke("%s: Unlock of a hold that was not lost: %v", w.p.who, err)
	}
}

// count returns how many have been in.
func (m *march) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.in
}

// isOver waits until all have been in and are out. In all that time the line must not stand
// still.
func (m *march) isOver() {
	tr := m.f.tr
	tr.Helper()
	over := make(chan struct{})
	go func() { m.all.Wait(); close(over) }() // ends with the parties' waits
	for {
		before := m.count()
		select {
		case <-over:
			tr.figures.longest("time until all were in", m.last-m.begun)
			return
		case <-time.After(patience):
			tr.must(m.count() > before, "nobody has got in for %v, and %d of %d have",
				patience, before, len(m.f.parties))
		}
	}
}

// S31. A fleet gets through what happens to its etcd: no hold is lost, and everybody gets
// in, though all waiters notice it at the same time.
//
//	a holds, the fleet waits | it happens | a unlocks | each one gets in, and out
func TestS31AFleetGetsThroughWhatHappensToItsEtcd(t *testing.T) {
	t.Parallel()
	// A world has a client to which nothing happens, makes the clients of the fleet, and
	// makes the fault happen.
	type world func(tr *trial) (
		admin *clientv3.Client, client func() *clientv3.Client, happens func(),
	)
	rolling := func(members int) world {
		return func(tr *trial) (*clientv3.Client, func() *clientv3.Client, func()) {
			s := startServers(tr, members)
			return s.client(tr), func() *clientv3.Client { return s.client(tr) }, func() {
				for m := range s.members {
					s.retire(m)
					s.restart(m)
					s.serves(m)
				}
			}
		}
	}
	frozen := func(members int, d time.Duration) world {
		return func(tr *trial) (*clientv3.Client, func() *clientv3.Client, func()) {
			s := startServers(tr, members)
			return s.client(tr), func() *clientv3.Client { return s.client(tr) }, func() {
				leader := s.leader()
				s.freeze(leader)
				time.Sleep(d) // the fault lasts that long
				s.thaw(leader)
				s.serves()
			}
		}
	}
	// Every watch of the fleet ends at once, with all its connections.
	watchless := func(tr *trial) (*clientv3.Client, func() *clientv3.Client, func()) {
		c := etcdtest.Start(tr, 1)
		proxy := c.Proxy(tr, 0)
		client := func() *clientv3.Client { return c.Client(tr, etcdtest.Via(proxy)) }
		return c.Client(tr), client, proxy.Reset
	}
	asleep := 20 * time.Second
	if *trials == 0 {
		asleep = 5 * time.Second
	}
	for _, fault := range []struct {
		name  string
		world world
	}{
		{"rolling restart of 3 members", rolling(3)},
		{"rolling restart of 5 members", rolling(5)},
		{fmt.Sprintf("the only member frozen for %v", asleep), frozen(1, asleep)},
		{fmt.Sprintf("the leader of 3 frozen for %v", asleep), frozen(3, asleep)},
		{"all connections reset at once", watchless},
	} {
		t.Run(fault.name, func(t *testing.T) {
			prove(t, row{
				id: "S31", name: fault.name, quick: 1, full: 3, lanes: 1,
				fault: fmt.Sprintf("a fleet of %d Sessions in one line: %s", fleetSize(), fault.name),
				must:  "no hold lost, everybody gets in; the first one <= 5 s after the release",
			}, func(tr *trial) {
				admin, client, happens := fault.world(tr)
				a := tr.partyOf("a", client(), fleetTTL)
				a.locks()
				f := tr.fleet(client)
				m := f.march()
				tr.lineIs(admin, 1+len(f.parties))
				happens()
				a.stillHolds(admin)
				err := a.releases(patience)
				released := now()
				tr.must(err == nil, "a: Unlock of a hold that was not lost: %v", err)
				m.isOver()
				took := m.first - released
				tr.figures.longest("time from release to the first in", took)
				tr.must(took <= 5*time.Second, "the first one got in %v after the release", took)
				tr.isEmptyWithin(admin, slack)
			})
		})
	}
}

// S31. A fleet that starts at once gets in, one after the other, and one that gives up at once
// leaves nothing behind.
//
//	the fleet starts | each one gets in, and out
//	a holds, the fleet waits | all give up | no key is left but a's
func TestS31AFleetStartsAndEndsAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("start", func(t *testing.T) {
		prove(t, row{
			id: "S31", name: "a mass start", quick: 1, full: 3, lanes: 1,
			fault: fmt.Sprintf("a fleet of %d Sessions starts at once, for one lock", fleetSize()),
			must:  "everybody gets in, and nobody stands still",
		}, func(tr *trial) {
			s := startServers(tr, 1)
			f := tr.fleet(func() *clientv3.Client { return s.client(tr) })
			f.march().isOver()
			tr.isEmptyWithin(s.client(tr), slack)
		})
	})
	t.Run("end", func(t *testing.T) {
		prove(t, row{
			id: "S31", name: "a mass end", quick: 1, full: 3, lanes: 1,
			fault: fmt.Sprintf("a fleet of %d Sessions that waits gives up at once", fleetSize()),
			must:  "every Lock returns, and no key is left in <= 10 s, while the holder goes on",
		}, func(tr *trial) {
			s := startServers(tr, 1)
			client := func() *clientv3.Client { return s.client(tr) }
			admin := client()
			a := tr.partyOf("a", client(), fleetTTL)
			a.locks()
			f := tr.fleet(client)
			ctx, giveUp := context.WithCancel(context.Background())
			var waits []*wait
			for _, p := range f.parties {
				waits = append(waits, p.starts(ctx))
			}
			tr.lineIs(admin, 1+len(f.parties))
			giveUp()
			for _, w := range waits {
				err := w.fails(slack)
				require.ErrorIs(tr, err, context.Canceled)
			}
			began := now()
			tr.must(contract.Eventually(slack, func() bool { return tr.keys(admin) == 1 }),
				"%d keys are left beside a's", tr.keys(admin)-1)
			tr.figures.longest("time until no key was left", now()-began)
			a.stillHolds(admin)
			a.unlocks()
		})
	})
}
