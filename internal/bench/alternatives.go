package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// errTaken is TryLock's error for a taken lock that is not in etcd.
var errTaken = errors.New("taken")

// A party is what one process keeps of an alternative: its connection, and whatever its
// locks share.
type party interface {
	// lock returns a lock for one more goroutine, which uses it alone. Locks of one name
	// exclude each other, within one party as between parties.
	lock(ctx context.Context, name string) (side.Lock, error)

	// close ends everything. No goroutine is left in a Lock.
	close()
}

// A sharer is a party whose connection others may share.
type sharer interface {
	// sibling returns another party on the same connection. It is closed before this one.
	sibling() (party, error)
}

// An rwParty is a party that has read/write locks.
type rwParty interface {
	// rwLock returns the two sides of a read/write lock, for one more goroutine, which uses
	// them alone.
	rwLock(ctx context.Context, name string) (reader, writer side.Lock, err error)
}

// A severalParty is a party that can take several names at once.
type severalParty interface {
	severalLock(ctx context.Context, names []string) (side.Lock, error)
}

// A permitParty is a party that has semaphores.
type permitParty interface {
	// permit returns a semaphore for one more goroutine, which takes one permit of it at a
	// time.
	permit(name string, limit int) (side.Lock, error)
}

// A candidateParty is a party that has leaders.
type candidateParty interface {
	// candidate returns a candidate for a name: its Lock returns when it leads, and its Unlock
	// resigns.
	candidate(ctx context.Context, name string) (side.Lock, error)
}

// An opener makes a party. The ttl is how long a crashed holder may block others.
type opener func(ctx context.Context, address string, ttl time.Duration, w *wire) (party, error)

// An alternative is a way to lock.
type alternative struct {
	name   string
	system string
	open   opener
	kinds  []kind // of cases that it takes part in
	most   int    // contenders, if there is a limit
}

// Names that the report and the targets speak of.
const (
	library   = "etcdlock"
	handsOff  = "etcdlock, WithHandoff(16)"
	lingers   = "etcdlock, WithLinger(1m)"
	singly    = "etcdlock, one after another"
	atOnce    = "etcdlock, each name for itself, at once"
	baseline  = "concurrency.Mutex"
	recipes   = "recipe.RWMutex"
	elections = "concurrency.Election"
	floor     = "raw etcd requests"
	onceEach  = "KeepAliveOnce, again and again"
)

// alternatives is the table. An option of the library that changes something has a line of
// its own, with the kinds of cases in which it matters.
var alternatives = []alternative{
	{name: library, system: onEtcd, open: openLibrary(), kinds: append(slices.Clone(all), idle, fleet,
		lineUp, taken, renewal, mass, readers, mixes, several, permits, resign, leaderCrash)},
	{name: handsOff, system: onEtcd, open: openLibrary(etcdlock.WithHandoff(16)),
		kinds: []kind{crowd}},
	{name: lingers, system: onEtcd, open: openLibrary(etcdlock.WithLinger(time.Minute)),
		kinds: []kind{relock, turns}},
	{name: singly, system: onEtcd, open: openSingly, kinds: []kind{several}},
	{name: atOnce, system: onEtcd, open: openAtOnce, kinds: []kind{several}},
	{name: baseline, system: onEtcd, open: openConcurrency,
		kinds: append(slices.Clone(all), idle, fleet, lineUp, renewal, mass, several)},
	{name: recipes, system: onEtcd, open: openConcurrency, kinds: []kind{readers, mixes}},
	{name: elections, system: onEtcd, open: openConcurrency, kinds: []kind{resign, leaderCrash}},
	{name: "concurrency.Mutex, session per lock", system: onEtcd, open: openPerLock,
		kinds: except(names), most: 64},
	{name: "concurrency.Mutex behind a local lock", system: onEtcd, open: openLocalFirst,
		kinds: []kind{crowd, relock}},
	{name: floor, system: onEtcd, open: openRaw, kinds: []kind{uncontended, handover, crowd, each},
		most: 64},
	{name: onceEach, system: onEtcd, open: openRaw, kinds: []kind{renewal}},

	// Nothing renews a lock of redsync or a lease row, so neither holds names for long.
	{name: "redsync", system: onRedis, open: openRedsync, kinds: except(names)},
	{name: "redsync", system: onRedisAOF, open: openRedsync, kinds: except(names, crash)},
	{name: redissons, system: onRedis, open: openRedisson, kinds: []kind{readers, mixes}},
	{name: redissons, system: onRedisAOF, open: openRedisson, kinds: []kind{readers, mixes}},
	{name: sortedSet, system: onRedis, open: openRedisson, kinds: []kind{permits}},
	{name: sortedSet, system: onRedisAOF, open: openRedisson, kinds: []kind{permits}},
	{name: "rueidislock", system: onRedis, open: openRueidislock, kinds: all},
	{name: "rueidislock", system: onRedisAOF, open: openRueidislock, kinds: except(names, crash)},
	{name: "go-zookeeper Lock", system: onZooKeeper, open: openZooKeeper, kinds: except(trylock)},
	// Each waiter has a connection, and so a process in the server.
	{name: "pg_advisory_lock", system: onPostgres, open: openAdvisory, kinds: except(names),
		most: 512},
	{name: "lease row", system: onPostgres, open: openLeaseRow, kinds: except(names)},
}

// title is the alternative's name in full.
func (a alternative) title() string {
	if a.system == onRedisAOF {
		return a.name + " (appendfsync always)"
	}
	return a.name
}

// fits reports whether the alternative takes part in a case.
func (a alternative) fits(c benchCase) bool {
	return slices.Contains(a.kinds, c.kind) && (a.most == 0 || c.n <= a.most) &&
		(!c.etcd || a.system == onEtcd)
}

var all = []kind{uncontended, handover, crowd, each, trylock, names, relock, turns, crash}

func except(without ...kind) (kinds []kind) {
	for _, k := range all {
		if !slices.Contains(without, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// openLibrary is this library with options: one Session for each party.
func openLibrary(opts ...etcdlock.SessionOption) opener {
	return func(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
		client, err := dialEtcd(address, w)
		if err != nil {
			return nil, err
		}
		p, err := newLibraryParty(client,
			append([]etcdlock.SessionOption{etcdlock.WithTTL(ttl), etcdlock.WithLogger(w.log())}, opts...))
		if err != nil {
			client.Close()
			return nil, err
		}
		return p, nil
	}
}
