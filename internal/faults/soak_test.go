package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

var soak = flag.Duration("soak", 0,
	"how long the soak lasts, with a fleet of full size; 0 for a short one")

const (
	// soakTTL is longer than an election.
	soakTTL = 5 * time.Second

	// soakClients is how many clients a fleet of full size has, with ten Sessions on each.
	// Each client has a network of its own.
	soakClients = 30
)

// S32. A fleet that runs for long, through faults at random, leaves nothing behind. No two
// hold a lock at once. When it is over, goroutines, heap, keys and leases are what they
// were.
//
//	30 clients with 10 Sessions each lock 30 names, work and unlock by 3 members |
//	connections break, members are frozen and killed, the leader moves, the history is
//	compacted, all at random | the faults end | each Session gets in once and closes
func TestS32AFleetThatRunsForLongLeavesNothingBehind(t *testing.T) {
	// It is not parallel, since it counts the goroutines of the process.
	length, clients, sessions, calm := *soak, soakClients, 10, 20
	if length == 0 {
		length, clients, sessions, calm = 10*time.Second, 5, 4, 1
	}
	prove(t, row{
		id: "S32", lanes: 1, full: 1, noPeer: true,
		fault: fmt.Sprintf("a soak: %d Sessions of %d clients for %v, faults at random, seed %d",
			clients*sessions, clients, length, firstSeed()),
		must: "0 overlaps, tokens grow; each Session gets in once the faults have ended; " +
			"no key, no lease and no goroutine is left, and the heap is what it was",
		command: fmt.Sprintf("go test . -run '^%s$' -soak %v -seed %d -timeout %v",
			t.Name(), length, firstSeed(), length+time.Hour),
	}, func(tr *trial) {
		etcd := startServers(tr, 3)
		admin := etcd.client(tr)
		rooms := newRooms(tr, clients) // the names: ten contend for each, of ten clients
		before := tr.rests()

		s := &storm{tr: tr, seed: tr.seed(), began: now()}
		s.end = s.began + length
		var fleet []*soaker
		var shut []func()
		for i := range clients {
			var network []*etcdtest.Proxy
			var addrs []string
			for _, m := range etcd.members {
				p := etcdtest.NewProxy(tr, m.client)
				network, addrs = append(network, p), append(addrs, p.Addr())
			}
			client := etcd.client(tr, func(cfg *clientv3.Config) { cfg.Endpoints = addrs })
			shut = append(shut, func() { client.Close() })
			c := &contender{s: s, who: fmt.Sprintf("client %d", i), ttl: soakTTL, network: network}
			s.strikes(c.who, calm, c.cuts(true)...)
			for j := range sessions {
				fleet = append(fleet, rooms.soaker(client, i, j))
			}
		}
		s.strikes("etcd", max(calm/2, 1), etcdFaults(tr, etcd, admin)...)
		var all sync.WaitGroup
		for _, f := range fleet {
			all.Go(func() { f.runs(s) })
		}
		s.passes()
		etcd.serves()
		all.Wait()
		for _, f := range fleet {
			all.Go(f.visits)
		}
		all.Wait()
		before.isQuiet()
		for _, f := range shut {
			f()
		}
		tr.figures.add("acquisitions", int(rooms.acquired.Load()))
		tr.figures.add("holds lost", int(rooms.lost.Load()))
		tr.figures.add("faults", len(s.faults))
		tr.must(rooms.acquired.Load() > int64(len(fleet)), "only %d acquisitions", rooms.acquired.Load())
		before.isLeft(admin, len(fleet))
	})
}

// rooms are the locks of a soak, with the holder that each has by belief.
type rooms struct {
	tr             *trial
	names          []*room
	acquired, lost atomic.Int64
}

type room struct {
	name string

	mu     sync.Mutex
	inside *soaker // the one that believes to hold it
	token  int64   // the highest so far
}

func newRooms(tr *trial, n int) *rooms {
	l := &rooms{tr: tr}
	for i := range n {
		l.names = append(l.names, &room{name: fmt.Sprintf("%s/%d", tr.name, i)})
	}
	return l
}

// A soaker is one Session of the fleet, with a lock of one name.
type soaker struct {
	all  *rooms
	room *room
	lock *lock
	who  string
}

// soaker opens the jth Session of the ith client.
func (l *rooms) soaker(client *clientv3.Client, i, j int) *soaker {
	f := &soaker{all: l, room: l.names[(i+j)%len(l.names)],
		who: fmt.Sprintf("Session %d of client %d", j, i)}
	var err error
	f.lock, err = opens(side.Ours, client, f.room.name, f.who, soakTTL)
	require.NoError(l.tr, err)
	return f
}

// enters records that f believes to hold its lock.
func (f *soaker) enters() {
	l := f.room
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inside != nil && l.inside.lock.Holds() {
		f.all.tr.broke("%s got %s while %s held it", f.who, l.name, l.inside.who)
	}
	if token := f.lock.Token(); token > l.token {
		l.token = token
	} else if token != 0 { // else it was lost just now
		f.all.tr.broke("%s: token %d after %d", f.who, token, l.token)
	}
	l.inside = f
	f.all.acquired.Add(1)
}

func (f *soaker) leaves() {
	l := f.room
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inside == f {
		l.inside = nil
	}
}

// runs locks, works and unlocks until the storm ends.
func (f *soaker) runs(s *storm) {
	r := rand.New(rand.NewPCG(s.seed, hashed(f.who)))
	for now() < s.end {
		call := f.lock.Lock
		if r.IntN(4) == 0 {
			call = f.lock.TryLock
		}
		if f.locks(call, between(r, 20*time.Millisecond, 4*soakTTL)) {
			most := 100 * time.Millisecond
			if r.IntN(16) == 0 {
				most = 2 * soakTTL // outlasts its lease unless that is renewed
			}
			select {
			case <-f.lock.Ended():
			case <-time.After(between(r, 0, most)):
			}
			f.unlocks(between(r, 20*time.Millisecond, soakTTL))
		}
		time.Sleep(between(r, 0, 100*time.Millisecond)) // others come first, or nobody
	}
}

func (f *soaker) locks(call func(context.Context) error, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if call(ctx) != nil {
		return false
	}
	f.enters()
	return true
}

func (f *soaker) unlocks(most time.Duration) {
	f.leaves()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if err := f.lock.Unlock(ctx); err != nil && side.Ours.Lost(err) {
		f.all.lost.Add(1)
	}
}

// visits gets in once, and closes.
func (f *soaker) visits() {
	if f.locks(f.lock.Lock, quiet) {
		f.unlocks(quiet)
	} else {
		f.all.tr.broke("%s: not in %v after the faults have ended", f.who, quiet)
	}
	ctx, cancel := context.WithTimeout(context.Background(), quiet)
	defer cancel()
	if err := f.lock.Close(ctx); err != nil {
		f.all.tr.broke("%s: Close: %v", f.who, err)
	}
}

// cuts are the faults of a client's network.
func (c *contender) cuts(sometimesOne bool) []fault {
	return slices.DeleteFunc(c.faults(sometimesOne), func(f fault) bool {
		return f.name == standsStill
	})
}

// rest is what there is while nothing happens.
type rest struct {
	tr         *trial
	goroutines int // of the library
	heap       uint64
}

// rests returns what there is now.
func (tr *trial) rests() *rest {
	return &rest{tr, contract.LibraryGoroutines(), heap()}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // what the first one has freed by finalizers and cleanups
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// isQuiet waits until the library has no more goroutines than b. A Session that was left
// open has some for two TTLs.
func (b *rest) isQuiet() {
	b.tr.must(contract.Eventually(soakTTL, func() bool {
		return contract.LibraryGoroutines() <= b.goroutines
	}),
		"%d goroutines of the library, %d before", contract.LibraryGoroutines(), b.goroutines)
}

// isLeft waits until no more than b is left, after that many Sessions.
func (b *rest) isLeft(admin *clientv3.Client, sessions int) {
	tr := b.tr
	tr.isEmptyWithin(admin, quiet)
	leases := -1
	tr.must(contract.Eventually(quiet, func() bool {
		resp, err := admin.Leases(tr.bounded(patience))
		if err == nil {
			leases = len(resp.Leases)
		}
		return leases == 0
	}), "%d leases are left", leases)
	// What the trial itself and the connections keep does not grow with time.
	most := uint64(4<<20 + sessions*64<<10)
	tr.must(contract.Eventually(slack, func() bool { return heap() < b.heap+most }),
		"the heap has %d bytes, %d before", heap(), b.heap)
	tr.figures.add("KiB of heap more than before", int(max(0, int64(heap())-int64(b.heap)))>>10)
}
