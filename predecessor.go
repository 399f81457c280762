package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

const (
	// pastWait is how long a place must have stood in line for the next one to watch from the
	// revision of its put. etcd serves such a watch within 100 ms.
	pastWait = 250 * time.Millisecond

	// keepLast is for how long the key behind which a place stood is watched when it is gone.
	keepLast = 2 * time.Second
)

// A predecessor is the key behind which a place stands, as it is watched.
type predecessor struct {
	// Set once, then only read.
	key string
	etcd.Watch
	end context.CancelFunc // of the watch

	gone bool        // the key was deleted. Owned by the waiter
	late *time.Timer // ends it while no waiter has it. Guarded by Session.mu
}

// watchBefore watches the key behind which p stands. known says that what became of that key is
// known up to where the watch begins, so that the waiter need not check whether it still stands.
//
// Invariant: known is set only if the transaction that put p has read the key, and the watch tells
// whatever has become of it since. It is set where p does not know the holder, either: the check
// that reads the holder is left out then. (Do not set it for what was read later.
// TestAWatchFromThePutMissesNothing.)
func (p *place) watchBefore(ctx context.Context, broken *attempt.Backoff, before line.Entry) (
	w *predecessor, known bool,
) {
	last, same, from := p.knownBefore(before)
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
	w.Watch = p.s.etcd.Watch(watching, broken, before.Key, opts...)
	begins()
	w.end = func() { w.Stop(); cancel() }
	if last != nil {
		last.end() // not before: clientv3 ends a stream with its last watch
	}
	return w, from != 0
}

// knownBefore takes the watch of the key behind which the last place of the Session stood, if there
// is one. It has begun before p was put, and is all that p needs if it is of the same key.
// Otherwise from is the revision from which p has to watch, 0 if from now and to look then.
//
// etcd serves a watch from a past revision late. That is for a line in which one waits for so
// long that it is served by far when the turn comes.
func (p *place) knownBefore(before line.Entry) (last *predecessor, same bool, from int64) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if last = p.local.last; last != nil {
		p.local.last = nil
		last.late.Stop()
	}
	if !p.asPut || !p.ahead.Brief() {
		return last, false, 0
	}
	if p.local.waited >= pastWait {
		from = p.ticket.Rev() + 1
	}
	return last, last != nil && last.key == before.Key && last.Epoch == p.epoch, from
}

// unwatchBefore ends the watch of the key behind which p stood, unless it is gone and p is the
// first now. Then the watch stays for a while. The holder before p may queue again, and so may p's
// Session, which then stands behind the same key, and needs no other watch.
func (p *place) unwatchBefore(w *predecessor) {
	s, n := p.s, p.local
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !w.gone || !p.ahead.Clear() || p.epoch != w.Epoch || n.last != nil {
		s.mu.After(w.end)
		return
	}
	w.gone = false
	n.last = w
	if w.late != nil {
		w.late.Reset(keepLast)
		return
	}
	w.late = time.AfterFunc(keepLast, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n.last == w {
			s.unwatchLastLocked(n)
		}
	})
}

// unwatchLastLocked ends the watch of the key behind which the last place in n stood.
func (s *Session) unwatchLastLocked(n *localLine) {
	if n.last != nil {
		n.last.late.Stop()
		s.mu.After(n.last.end)
		n.last = nil
	}
}
