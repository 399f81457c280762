package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/proof/v3lock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// isDue is when a client must have got a free lock, or one that was released.
const isDue = 5 * time.Second

// S28. A lock below the name of another is a lock of its own.
//
//	d holds a/b, or e does a | a locks a, b waits for it | d and e come and go | a unlocks, b gets in
func TestS28NestedNamesAreIndependent(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"the inner one", "the outer one"} {
		t.Run(first, func(t *testing.T) {
			prove(t, row{
				id: "S28", name: "nested names, " + first + " first", quick: 2,
				fault: "locks named a, a/b and a/<UUID>, held at the same time, " + first + " first",
				must:  "each is got at once, waited for and handed over (<= 5 s), whoever holds the others",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				a, b := tr.party("a", c, 10*ttl), tr.party("b", c, 10*ttl)
				inner := c.Client(tr)
				var below []*lock
				for _, name := range []string{tr.name + "/b", tr.name + "/" + uuid.NewString()} {
					l, err := opens(tr.side, inner, name, "inner", 10*ttl)
					require.NoError(tr, err)
					below = append(below, l)
					tr.Cleanup(func() { l.Close(tr.bounded(slack)) })
				}
				locksBelow := func() {
					for _, l := range below {
						err := a.calls("Lock", isDue+slack, func() error { return l.Lock(tr.bounded(isDue)) })
						tr.must(err == nil, "Lock of a nested name: %v", err)
					}
				}
				if first == "the inner one" {
					locksBelow()
				}
				tr.figures.longest("time to get the outer one", a.locksWithin(isDue))
				if first == "the outer one" {
					locksBelow()
				}
				next := b.waits()
				next.goesOnWaiting(ttl / 4)
				a.unlocks()
				next.getsIn(isDue)
				for _, l := range below {
					err := b.calls("Unlock", patience, func() error { return l.Unlock(tr.bounded(isDue)) })
					tr.must(err == nil, "Unlock of a nested name: %v", err)
				}
				b.stillHolds(inner)
				b.unlocks()
			})
		})
	}
}

// S28. A key below the name that is no contender's blocks nobody, and is left alone.
//
//	a key stands below the name | a locks and unlocks | a locks, the key comes again, b
//	waits | a unlocks, b gets in | the key is still there
func TestS28AForeignKeyBlocksNobody(t *testing.T) {
	t.Parallel()
	keys := strayKeys()
	prove(t, row{
		id: "S28", name: "foreign keys", quick: len(keys), full: len(keys),
		fault: fmt.Sprintf(
			"%d kinds of keys below the prefix that are no contender's, one in each trial, before the holder and before the waiter", len(keys)),
		must:    "Lock, TryLock and a waiter get in (<= 5 s); the key stays",
		command: "go test . -run '^TestS28AForeignKeyBlocksNobody$' -peer",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a, b := tr.party("a", c, 10*ttl), tr.party("b", c, 10*ttl)
		lease, err := admin.Grant(tr.bounded(patience), 600)
		require.NoError(tr, err)
		key, on := keys[tr.i](tr.name, lease.ID)
		put := func() int64 {
			resp, err := admin.Put(tr.bounded(patience), key, "not a contender's", clientv3.WithLease(on))
			require.NoError(tr, err)
			return resp.Header.Revision
		}

		put()
		tr.figures.longest("time to get in", a.locksWithin(isDue))
		a.unlocks()
		err = a.triesFor(isDue, "TryLock")
		tr.must(err == nil, "TryLock: %v", err)
		_, err = admin.Delete(tr.bounded(patience), key)
		require.NoError(tr, err)
		created := put()
		next := b.waits()
		a.unlocks()
		next.getsIn(isDue)
		b.stillHolds(admin)
		b.unlocks()
		left, err := admin.Get(tr.bounded(patience), key)
		require.NoError(tr, err)
		tr.must(len(left.Kvs) == 1 && left.Kvs[0].CreateRevision == created, "%s was touched", key)
	})
}

// strayKeys returns keys below a name, with or without a lease, that are nearly a
// contender's.
func strayKeys() []func(name string, lease clientv3.LeaseID) (key string, on clientv3.LeaseID) {
	const id = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	type leaseID = clientv3.LeaseID
	return []func(string, leaseID) (string, leaseID){
		func(name string, _ leaseID) (string, leaseID) { return name + "/config", 0 },
		func(name string, l leaseID) (string, leaseID) { return name + "/config", l },
		func(name string, _ leaseID) (string, leaseID) { return name + "/", 0 },
		func(name string, l leaseID) (string, leaseID) { return name + "/", l },
		// No UUID, or not a whole one, or one on no lease.
		func(name string, _ leaseID) (string, leaseID) { return name + "/" + id, 0 },
		func(name string, l leaseID) (string, leaseID) { return name + "/" + strings.ToUpper(id), l },
		func(name string, l leaseID) (string, leaseID) { return name + "/{" + id + "}", l },
		func(name string, l leaseID) (string, leaseID) {
			return name + "/" + strings.ReplaceAll(id, "-", ""), l
		},
		func(name string, l leaseID) (string, leaseID) { return name + "/urn:uuid:" + id, l },
		func(name string, l leaseID) (string, leaseID) { return name + "/" + id + "x", l },
		// A contender of another lock.
		func(name string, l leaseID) (string, leaseID) { return name + "/sub/" + id, l },
		func(name string, l leaseID) (string, leaseID) { return name + "//" + id, l },
		func(name string, l leaseID) (string, leaseID) { return fmt.Sprintf("%s/sub/%x", name, l), l },
		// A lease that is not the key's own, or is not written as etcd writes it.
		func(name string, l leaseID) (string, leaseID) { return fmt.Sprintf("%s/%x", name, l+1), l },
		func(name string, l leaseID) (string, leaseID) { return fmt.Sprintf("%s/%x", name, l), 0 },
		func(name string, l leaseID) (string, leaseID) { return fmt.Sprintf("%s/0%x", name, l), l },
		func(name string, l leaseID) (string, leaseID) { return fmt.Sprintf("%s/%d", name, l), l },
	}
}

// guests are the other libraries of a mixed fleet.
var guests = []struct {
	name string
	open func(tr *trial, client *clientv3.Client) guest
}{
	{"concurrency.Mutex, as etcdctl lock has it", func(tr *trial, client *clientv3.Client) guest { return opened(tr, side.Theirs, client) }},
	{"etcd's lock service", openService},
	{"etcdlock", func(tr *trial, client *clientv3.Client) guest { return opened(tr, side.Ours, client) }},
}

// A guest is a lock of a library that is not the row's.
type guest interface {
	Lock(context.Context) error
	Unlock(context.Context) error
	Key() string
}

func opened(tr *trial, s side.Side, client *clientv3.Client) guest {
	tr.Helper()
	l, err := opens(s, client, tr.name, "a guest", 10*ttl)
	require.NoError(tr, err)
	tr.Cleanup(func() { l.Close(tr.bounded(slack)) })
	return l
}

func openService(tr *trial, client *clientv3.Client) guest {
	tr.Helper()
	mu, err := v3lock.New(tr.bounded(patience), client, tr.name, 10*ttl)
	require.NoError(tr, err)
	return mu
}

// visits makes a guest hold the lock once. The guest holds it until leave is closed. Its
// error comes through done.
func (tr *trial) visits(
	admin *clientv3.Client, who string, g guest, leave <-chan struct{},
) (in chan struct{}, done chan error) {
	in, done = make(chan struct{}), make(chan error, 1)
	ctx := tr.bounded(patience)
	go func() { // ends with ctx at the latest
		err := g.Lock(ctx)
		at := now()
		if err != nil {
			done <- err
			return
		}
		token, err := tr.tokenOf(ctx, admin, g.Key())
		belief := tr.begins(who, token, at)
		close(in)
		if err == nil {
			<-leave
		}
		tr.ends(belief, now(), false)
		if unlockErr := g.Unlock(ctx); err == nil {
			err = unlockErr
		}
		done <- err
	}()
	return in, done
}

// tokenOf returns the token of a guest that holds the lock, to compare with those of the
// row's own side. For ours it is the create revision; for theirs it is the revision at
// which the guest got the lock.
func (tr *trial) tokenOf(ctx context.Context, admin *clientv3.Client, key string) (int64, error) {
	resp, err := admin.Get(ctx, key)
	switch {
	case err != nil:
		return 0, err
	case len(resp.Kvs) == 0:
		return 0, fmt.Errorf("the key %q of the holder is gone", key)
	case tr.side.Name == side.Theirs.Name:
		return resp.Header.Revision, nil
	}
	return resp.Kvs[0].CreateRevision, nil
}

// S28. The keys of etcd's own locks count: a fleet of several libraries stands in one line.
//
//	a guest holds | a does not get it by TryLock, and waits, another guest waits behind a |
//	the guest unlocks, a gets in | a unlocks, the other guest gets in
func TestS28OtherClientsStandInTheSameLine(t *testing.T) {
	t.Parallel()
	for _, kind := range guests {
		t.Run(kind.name, func(t *testing.T) {
			prove(t, row{
				id: "S28", name: "keys of other clients: " + kind.name, quick: 2,
				fault: "others who hold and wait: " + kind.name,
				must:  "first come first served, 0 overlaps, in <= 5 s after the release",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				admin := c.Client(tr)
				a := tr.party("a", c, 10*ttl)
				leave, leaveToo := make(chan struct{}), make(chan struct{})
				lets := sync.OnceFunc(func() { close(leave) })
				letsToo := sync.OnceFunc(func() { close(leaveToo) })
				defer letsToo()
				defer lets()

				in, left := tr.visits(admin, "the guest", kind.open(tr, c.Client(tr)), leave)
				comes(tr, in, "the guest to get in")
				err := a.triesFor(isDue, "TryLock")
				tr.must(side.Taken(err), "TryLock of what a guest holds: %v", err)
				next := a.waits()
				inToo, leftToo := tr.visits(admin, "the other guest", kind.open(tr, c.Client(tr)), leaveToo)
				tr.must(contract.Eventually(isDue, func() bool {
					return tr.keys(admin) == 3
				}), "the other guest does not wait")
				next.goesOnWaiting(ttl / 4)
				lets()
				err = comes(tr, left, "the guest to leave")
				tr.must(err == nil, "the guest: %v", err)
				next.getsIn(isDue)
				a.holdsFor(ttl / 4)
				select {
				case <-inToo:
					tr.must(false, "the other guest got in beside a")
				default:
				}
				a.stillHolds(admin)
				a.unlocks()
				comes(tr, inToo, "the other guest to get in")
				letsToo()
				err = comes(tr, leftToo, "the other guest to leave")
				tr.must(err == nil, "the other guest: %v", err)
				tr.isEmptyWithin(admin, slack)
			})
		})
	}
}

// comes waits for a value that is due.
func comes[T any](tr *trial, from <-chan T, what string) (v T) {
	tr.Helper()
	select {
	case v = <-from:
	case <-time.After(isDue + slack):
		tr.must(false, "waited %v for %s", isDue+slack, what)
	}
	return v
}

// S28. The same in a crowd: one of each library, all at once, again and again.
func TestS28AMixedFleetExcludesEachOther(t *testing.T) {
	t.Parallel()
	const cycles = 10
	prove(t, row{
		id: "S28", name: "a mixed fleet", quick: 2, lanes: 2,
		fault: fmt.Sprintf("two of the library and one of each other kind, %d holds each, all at once",
			cycles),
		must: "0 overlaps, nobody is left out",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		left := make(chan struct{}) // each leaves as soon as it has been in
		close(left)
		parties := []*party{tr.party("a", c, 10*ttl), tr.party("b", c, 10*ttl)}
		visitors := make([]guest, len(guests))
		for i, kind := range guests {
			visitors[i] = kind.open(tr, c.Client(tr))
		}
		var all sync.WaitGroup
		for i, g := range visitors {
			all.Go(func() {
				for range cycles {
					_, done := tr.visits(admin, guests[i].name, g, left)
					if err := <-done; err != nil {
						tr.broke("%s: %v", guests[i].name, err)
						return
					}
				}
			})
		}
		for _, p := range parties {
			all.Go(func() {
				for range cycles {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					err := p.tries(ctx, "Lock")
					if err == nil {
						p.leaves()
						err = p.lock.Unlock(ctx)
					}
					cancel()
					if err != nil {
						tr.broke("%s: %v", p.who, err)
						return
					}
				}
			})
		}
		all.Wait()
		tr.figures.add("holds", cycles*(len(parties)+len(visitors)))
		tr.isEmptyWithin(admin, slack)
	})
}
