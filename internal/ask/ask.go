// Package ask asks the holders of a lock to give it back, for the waits of a Session that are to
// ask (WithAsk). No wait depends on it. It knows no claim and no hold: the engine tells it which
// waits begin and end, and that something has changed, and says who is in their way.
package ask

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/follow"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// tries is how often a request is sent at first. While it fails it is sent once more after each
	// recheck.
	tries = 3

	// mostTried is how many holders an Asking remembers that it could not ask. One that is forgotten
	// costs a request.
	mostTried = 1000

	// rest is how long a wait that has others before it lets these ask first, when a holder has
	// gone: the read that follows finds their request. restPerKey is the least for each key in line,
	// so that all that wait there send 500 reads a second together, however many they are and
	// however fast the holders change.
	rest       = 100 * time.Millisecond
	restPerKey = 2 * time.Millisecond
)

// A Local is a local line in which waits ask.
type Local interface {
	// InWayLocked says who is in the way of the waits.
	InWayLocked() InWay
}

// InWay is who is in the way of the waits of a local line. The zero InWay is nobody.
type InWay struct {
	Ours *queue.Place // a key at which the Session holds; nil if it is not that
	Line bool         // the contenders that hold in etcd's line
	Own  line.Entry   // the key of the Session that waits there; no revision if its permits hold
}

// A Session is what an Asking needs of its Session.
type Session struct {
	Ctx   context.Context // of all goroutines
	Etcd  *etcd.Conn
	Keys  *queue.Keys
	Mu    *guard.Mutex
	Tasks *guard.Group
	TTL   time.Duration
}

// A Wait is a wait that asks.
type Wait struct {
	request line.Recall
	failed  func(error) // says that holders could not be asked
	at      int         // in waits
}

// An Asking is what the waits of a local line that ask have between them: one goroutine, which
// follows the holders in their way and recalls each of them. It ends with the last wait.
type Asking struct {
	// Set once, then only read.
	s     Session
	name  string
	local Local
	ctx   context.Context // of the goroutine, and its requests
	stop  context.CancelFunc
	news  chan struct{} // tells the goroutine that something has changed

	waits waits // guarded by Session.Mu

	// Owned by the goroutine.
	tries map[holder]int // how often a request is sent, the next time, to those that it failed to ask
}

// A holder is a contender that holds, whatever else was read of it.
type holder struct {
	key string
	rev int64
}

// New returns the Asking of a local line for the lock name. It has no wait yet.
func New(s Session, name string, local Local) *Asking {
	a := &Asking{s: s, name: name, local: local, news: make(chan struct{}, 1)}
	a.ctx, a.stop = context.WithCancel(s.Ctx)
	s.Tasks.Go(a.run)
	return a
}

// BeginLocked begins to ask for a wait. failed says that holders could not be asked.
func (a *Asking) BeginLocked(request line.Recall, failed func(error)) *Wait {
	w := &Wait{request: request, failed: failed}
	heap.Push(&a.waits, w)
	a.TellLocked()
	return w
}

// EndLocked ends to ask for w. If it was the last wait, a is over.
func (a *Asking) EndLocked(w *Wait) (over bool) {
	heap.Remove(&a.waits, w.at)
	if over = len(a.waits) == 0; over {
		a.s.Mu.After(a.stop)
	}
	return over
}

// TellLocked wakes the goroutine, once for all that changes until it runs.
func (a *Asking) TellLocked() {
	select {
	case a.news <- struct{}{}:
	default: // it was woken, and has not looked yet
	}
}

// run is the goroutine of an Asking.
func (a *Asking) run() {
	defer a.stop()
	for a.ctx.Err() == nil {
		q := a.recallOurs()
		if q.Line {
			if err := a.follow(q); err != nil {
				q.wait.failed(err)
				select {
				case <-time.After(etcd.DeniedRest): // an operator may give the right back
				case <-a.ctx.Done(): // mostly soon: what etcd refuses to read ends the waits in its line
				}
			}
			continue
		}
		select {
		case <-a.news:
		case <-a.ctx.Done():
		}
	}
}

// A quest is whom the waits ask, and what for. The zero quest asks nobody.
type quest struct {
	wait *Wait // with the shortest grace
	InWay
}

// recallOurs recalls the holds of the Session that are in the way of the waits, if it is these, and
// returns whom the waits ask.
func (a *Asking) recallOurs() quest {
	a.s.Mu.Lock()
	defer a.s.Mu.Unlock()
	q := a.nextLocked()
	if q.Ours != nil {
		q.Ours.RecallLocked(q.wait.request) // with all holds that share the key
	}
	return q
}

// next is whom the waits ask now.
func (a *Asking) next() quest {
	a.s.Mu.Lock()
	defer a.s.Mu.Unlock()
	return a.nextLocked()
}

// nextLocked is whom the waits ask now.
func (a *Asking) nextLocked() quest {
	if len(a.waits) == 0 {
		return quest{}
	}
	return quest{a.waits[0], a.local.InWayLocked()}
}

// goesOn reports whether now is the same quest as q, with no shorter grace.
func (q quest) goesOn(now quest) bool {
	return now.Line && now.Own.Key == q.Own.Key && now.Own.Rev == q.Own.Rev &&
		now.wait.request.Grace >= q.wait.request.Grace
}

// is reports whether e is the own key.
func (q quest) is(e line.Entry) bool { return e.Key == q.Own.Key && e.Rev == q.Own.Rev }

// rest is how long the waits rest once a holder has gone, by what was seen before.
func (q quest) rest(seen *follow.Snapshot) time.Duration {
	if q.Own.Rev == 0 || slices.ContainsFunc(seen.Line, q.is) {
		return 0
	}
	return max(rest, time.Duration(seen.Keys)*restPerKey)
}

// follow follows the holders and asks them, until the quest is another one. An error is one that
// retrying does not fix.
func (a *Asking) follow(q quest) error {
	a.tries = make(map[holder]int)
	f := &follow.Follower{
		Conn: a.s.Etcd, Name: a.name, All: true, TTL: a.s.TTL,
		News: a.news, GoesOn: func() bool { return q.goesOn(a.next()) },
		See: func(seen *follow.Snapshot) (time.Duration, bool) { return q.rest(seen), a.ask(q, seen) },
	}
	return f.Run(a.ctx)
}

// ask recalls the contenders that hold, as seen shows, and were not asked. It reports whether the
// quest goes on.
//
// If the own key is among them the wait is about to get in beside them, or is first in one of
// several lines: it asks nobody.
func (a *Asking) ask(q quest, seen *follow.Snapshot) (goesOn bool) {
	holding := seen.Line.Holding()
	if q.Own.Rev != 0 && slices.ContainsFunc(holding, q.is) {
		return true
	}
	for i, e := range holding {
		if q.Own.Rev != 0 && e.Rev > q.Own.Rev {
			break // the own key is gone, and this one came later
		}
		now, isOwn := a.recallOwn(e)
		switch {
		case !q.goesOn(now):
			return false
		case isOwn:
			continue
		}
		if asked, known := a.recall(e, now); known {
			seen.Line[i] = asked
			if asked.Kind() == line.Exclusive { // it held when its value was put, and so no other one
				seen.Revision = max(seen.Revision, asked.Mod)
			}
		}
	}
	return true
}

// recallOwn recalls e if it is the key of a hold of the Session, and returns whom the waits ask
// now.
func (a *Asking) recallOwn(e line.Entry) (now quest, isOwn bool) {
	a.s.Mu.Lock()
	defer a.s.Mu.Unlock()
	if now = a.nextLocked(); now.Line {
		isOwn = a.s.Keys.RecallOwnLocked(e, now.wait.request)
	}
	return now, isOwn
}

// recall writes the request of now into the value of e, unless e is gone or has such a request. It
// returns e as it is then, if that is known and it is there. While that fails it is tried less, and
// not at all after a refusal.
func (a *Asking) recall(e line.Entry, now quest) (asked line.Entry, known bool) {
	who := holder{e.Key, e.Rev}
	left, failed := a.tries[who]
	switch {
	case !failed:
		left = tries
	case left == 0:
		return e, false
	}
	asked, _, err := Recall(e.Rev, e, now.wait.request, a.commit(left))
	switch {
	case err == nil: // if it does not listen now, it did when it was read
		return asked, asked.Rev == e.Rev
	case a.ctx.Err() != nil:
		return e, false
	case !failed:
		now.wait.failed(err)
	}
	if len(a.tries) >= mostTried {
		clear(a.tries)
	}
	a.tries[who] = 1
	if attempt.Refused(err) {
		a.tries[who] = 0
	}
	return e, false
}

// commit returns what sends a transaction for Recall, so often at most.
func (a *Asking) commit(left int) func(ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
	spare := attempt.Backoff{Policy: attempt.Spare} // many waits may send it now
	return func(t ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
		written, err := a.s.Etcd.ReadBy(a.ctx, etcd.Request{Txn: t}, spare, func(err error) error {
			if left--; left > 0 {
				return nil
			}
			return err
		})
		switch {
		case err != nil:
			return 0, nil, err
		case written.Holds:
			return written.Header.GetRevision(), nil, nil
		}
		return 0, written.Ranges[0].GetKvs(), nil
	}
}

// waits are a heap: the first one has the shortest grace.
type waits []*Wait

func (w waits) Len() int           { return len(w) }
func (w waits) Less(i, j int) bool { return w[i].request.Grace < w[j].request.Grace }

func (w waits) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].at, w[j].at = i, j
}

// Push adds a wait.
func (w *waits) Push(x any) {
	added := x.(*Wait)
	added.at = len(*w)
	*w = append(*w, added)
}

// Pop removes the last wait.
func (w *waits) Pop() any {
	last := len(*w) - 1
	removed := (*w)[last]
	(*w)[last], *w = nil, (*w)[:last]
	return removed
}
