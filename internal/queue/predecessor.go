package queue

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

const (
	// pastWait is how long a place must have stood in line for the next one to watch from the
	// revision of its put. etcd serves such a watch within 100 ms.
	pastWait = 250 * time.Millisecond

	// keepLast is for how long the key right before a place is watched when it is gone.
	keepLast = 2 * time.Second
)

// watchBefore watches the key before p. known says that the fate of this key is known up to where
// the watch begins, so that the waiter need not check whether it still stands.
//
// Invariant: known is set only if the watch tells whatever has become of the key since the revision
// at which p has last read what is ahead. It is set where p does not know the holder, either: the
// check that reads the holder is left out then.
//
// Do not set it for a watch from now on. (TestAWatchFromTheReadingMissesNothing.)
func (n *Line) watchBefore(
	ctx context.Context, p *Place, broken *attempt.Backoff, before line.Entry,
) (w *predecessor, known bool) {
	last, same, from := n.knownBefore(p, before)
	if same {
		return last, true
	}
	opts := []clientv3.OpOption{clientv3.WithFilterPut()}
	if from != 0 {
		opts = append(opts, clientv3.WithRev(from))
	}
	w = &predecessor{key: before.Key}
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it may outlast the wait
	begins := context.AfterFunc(ctx, cancel)
	w.Watch = n.keys.etcd.Watch(watching, broken, before.Key, opts...)
	begins()
	w.end = func() { w.Stop(); cancel() }
	if last != nil {
		last.end() // not before: clientv3 ends a stream with its last watch
	}
	return w, from != 0
}

// knownBefore takes the watch of the key right before the last place of the Session, if there is
// one. It has begun before p was put, and is all that p needs if p is behind the same key.
// Otherwise from is the revision from which p has to watch, 0 if from now and to look then.
//
// etcd serves a watch from a past revision late. That is for a line in which one waits for so
// long that it is served by far when the turn comes: the last place there did, or the line is vast.
func (n *Line) knownBefore(p *Place, before line.Entry) (last *predecessor, same bool, from int64) {
	n.keys.mu.Lock()
	defer n.keys.mu.Unlock()
	if last = n.last; last != nil {
		n.last = nil
		last.late.Stop()
	}
	if p.Ahead.Reading != line.Brief &&
		(p.Ahead.Keys <= crowded || p.Ticket.Kind != line.Exclusive) { // the line may be short
		return last, false, 0
	}
	if n.waited >= pastWait || p.Ahead.Keys >= vast {
		from = p.shown + 1
	}
	return last, last != nil && last.key == before.Key && last.Epoch == p.epoch, from
}

// unwatchBefore ends the watch of the key right before p, unless it is gone and p is the first now.
// Then the watch stays for a while. The holder before p may queue again, and so may p's
// Session, which then stands behind the same key, and needs no other watch.
func (n *Line) unwatchBefore(p *Place, w *predecessor) {
	k := n.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Leases.ClosedLocked() || !w.gone || !p.Ahead.Clear() || p.epoch != w.Epoch || n.last != nil {
		k.mu.After(w.end)
		return
	}
	w.gone = false
	n.last = w
	if w.late != nil {
		w.late.Reset(keepLast)
		return
	}
	w.late = time.AfterFunc(keepLast, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if n.last == w {
			n.unwatchLastLocked()
		}
	})
}
