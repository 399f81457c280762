package queue

import (
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// readLine brings the view up to date by a linearizable read, and retries until that is
// answered. watched says that the watch was created before. It reports false if the view is over.
//
// Invariant: the view is live from the critical section on that has noted the read. (Do not have it
// blind in between: an Unlock that comes just then gives back a key that would linger before and
// after. TestAViewIsLiveOnceTheReadAfterItsWatchIsKnown.)
func (v *view) readLine(watched bool) (goesOn bool) {
	read, err := v.readKeys(clientv3.WithLimit(viewReads))
	if err == nil && read.Ranges[0].More && len(line.Of(v.line.Name, read.Ranges[0].Kvs)) <= longLine {
		read, err = v.readKeys() // those were mostly strays
	}
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	if err != nil {
		if attempt.Refused(err) || err == attempt.ErrClientClosed {
			v.refusal = err
			if v.partial && !v.isOverLocked() {
				v.line.local.RefuseLocked(err) // they would wait for a view that is not to come
			}
			v.endLocked() // it wakes the waiter of now, and affects none that comes later
		}
		return false
	}
	v.answeredLocked()
	if goesOn = v.readLocked(read); goesOn && watched {
		v.watchedLocked()
	}
	return goesOn
}

// readLocked brings the view up to date by the answer to a read of the line. It reports false if
// the view is over.
func (v *view) readLocked(read etcd.Reading) (goesOn bool) {
	at := read.Header.GetRevision()
	if v.isOverLocked() || at < v.revision { // it has ended meanwhile, or events have told more
		return v.state != viewOver
	}
	keys := make(map[string]int64, len(read.Ranges[0].Kvs))
	over := make(map[string]line.Entry)
	for _, kv := range read.Ranges[0].Kvs {
		e := line.EntryOf(kv)
		if e.StandsIn(v.line.Name) {
			keys[e.Key] = e.Rev
			v.line.meetsLocked(e.Longest())
			if e.Mod != e.Rev {
				over[e.Key] = e
			}
			v.line.keys.suspectOrphanLocked(e)
		}
		v.observedLocked(e)
	}
	if v.isTooLongLocked(len(keys)) {
		return false
	}
	same := func(a, b line.Entry) bool { return a.Mod == b.Mod }
	v.behind = v.behind || !maps.Equal(v.keys, keys) || !maps.EqualFunc(v.putOver, over, same)
	v.revision, v.keys, v.putOver = at, keys, over
	if v.state == viewBegun {
		v.becomesLocked(viewBlind)
	}
	v.read, v.deleted = maps.Clone(keys), make(map[string]int64)
	v.judgeLocked(true)
	return v.state != viewOver
}

// readKeys is one linearizable read of all keys below the prefix, or of as many as opts allow.
func (v *view) readKeys(opts ...clientv3.OpOption) (etcd.Reading, error) {
	keys := etcd.Range(v.from, append(opts, v.to)...)
	return v.line.keys.etcd.ReadBy(v.ctx, keys, attempt.Backoff{}, v.failed)
}

// failed notes why a read was not answered. It returns an error if the view is not needed.
func (v *view) failed(err error) error {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	v.err = err
	switch v.state {
	case viewBegun:
		v.becomesLocked(viewBlind)
	case viewLive:
		v.becomesLocked(viewFailed)
	}
	v.blindLocked()
	if v.idleLocked() {
		return err
	}
	return nil
}

// answeredLocked notes that a read was answered.
func (v *view) answeredLocked() {
	v.err = nil
	if v.state == viewFailed {
		v.becomesLocked(viewLive)
	}
}

// isAsKnown reports whether what matters to the place that depends on the view is as it knows it:
// all contenders ahead of it are still in line, or, if it has none, no key has come that the view
// does not know; and if it listens, it was not recalled. Unlike a read of the line this takes a few
// bytes. It may report false for any reason: a read of the line then shows more.
func (v *view) isAsKnown() bool {
	k, name := v.line.keys, v.line.Name
	k.mu.Lock()
	p := v.ownLocked()
	if p == nil || p.Ticket.Rev() == 0 || p.StaleLocked() || !p.Ahead.Whole {
		k.mu.Unlock()
		return false
	}
	ifs := append(p.asKnownLocked(), p.Ticket.Exists(), p.Ticket.OnLease())
	for _, e := range p.Ahead.Last {
		ifs = append(ifs, ticket.Contends(e)...)
	}
	first, ask := p.Ahead.Clear(), []clientv3.Op{countBelow(name)}
	if first {
		ask = v.newerLocked(p)
	}
	k.mu.Unlock()
	read, err := k.etcd.ReadBy(v.ctx, etcd.Ranges(ifs, ask...), attempt.Backoff{}, v.failed)
	if err != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v.answeredLocked()
	return read.Holds && (!first || slices.ContainsFunc(read.Ranges, func(r *pb.RangeResponse) bool {
		return line.NoneBut(p.Ticket.Key, name, r)
	}))
}

// newerLocked reads a few of the keys that were put after p's key, and of the keys that were put
// since the view's revision: one of the two shows whether a contender has come that the view does
// not know. The first shows it whatever has become of etcd, if few keys of nested names are newer
// than p's; the second, if few of these come and go at a time.
func (v *view) newerLocked(p *Place) []clientv3.Op {
	return []clientv3.Op{
		fewKeys(v.from, v.to, clientv3.WithMinCreateRev(p.Ticket.Rev()+1)),
		fewKeys(v.from, v.to, clientv3.WithMinModRev(v.revision+1)),
	}
}

// fewKeys reads some of the keys from one on, without their values.
func fewKeys(from string, which ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(from,
		append(which, clientv3.WithKeysOnly(), clientv3.WithLimit(longLine))...)
}

// countBelow counts the keys below a name.
func countBelow(name string) clientv3.Op {
	return clientv3.OpGet(line.Prefix(name), clientv3.WithPrefix(), clientv3.WithCountOnly())
}

// recheck reads the line if the view is needed and a recheck is due. It returns when to call it
// again. goOn is false if a new watch is needed, or the view was not needed for a while.
func (v *view) recheck() (next time.Duration, goOn bool) {
	v.line.keys.mu.Lock()
	defer v.line.keys.mu.Unlock()
	now := time.Now()
	switch {
	case v.isOverLocked() || v.line.keys.Leases.ClosedLocked():
		return 0, false
	case v.idleLocked():
		v.endLocked()
		return 0, false
	case v.behind:
		return 0, false // only this one begins a new watch: other watches may be fine
	case !v.neededLocked() || v.reading:
		return recheck.Least, true
	case now.Before(v.due):
		return min(v.due.Sub(now), recheck.Least), true
	}
	v.reading, v.joined = true, false
	v.due = now.Add(v.line.keys.recheckAfter(v.relied, len(v.keys)))
	v.line.keys.tasks.Go(func() {
		if !v.isAsKnown() {
			v.readLine(false)
		}
		v.line.keys.mu.Lock()
		defer v.line.keys.mu.Unlock()
		v.reading = false
	})
	return recheck.Least, true
}
