package hold

import (
	"container/heap"
	"context"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/follow"
	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// askTries is how often a request is sent at first. While it fails it is sent once more after
	// each recheck.
	askTries = 3

	// mostTried is how many holders an asking remembers that it could not ask. One that is
	// forgotten costs a request.
	mostTried = 1000

	// askRest is how long a wait that has others before it lets these ask first, when a holder has
	// gone: the read that follows finds their request. askRestPerKey is the least for each key in
	// line, so that all that wait there send 500 reads a second together, however many they are and
	// however fast the holders change.
	askRest       = 100 * time.Millisecond
	askRestPerKey = 2 * time.Millisecond
)

// An asking is what the waits of a local line that ask have between them: one goroutine, which
// follows the holders in their way and recalls each of them. No wait depends on it.
//
// Invariant: a local line has an asking while a claim in it asks: from the moment at which the
// claim waits, for its turn or behind others in etcd's line, until it has a hold, or has left. The
// critical section that decides on the one decides on the other. So no request is made for a wait
// that is over, and a hold is never asked for its own wait. (Do not count the waits where the call
// returns: the hold has begun before that. TestAWaitThatIsOverAsksNobody.)
type asking struct {
	// Set once, then only read.
	n    *localLine
	ctx  context.Context // of the goroutine, and its requests
	stop context.CancelFunc
	news chan struct{} // tells the goroutine that something has changed in n

	waits askers // guarded by Session.mu

	// Owned by the goroutine.
	tries map[holder]int // how often a request is sent, the next time, to those that it failed to ask
}

// A holder is a contender that holds, whatever else was read of it.
type holder struct {
	key string
	rev int64
}

// beginsToAskLocked notes that c waits from now on, if it is to ask.
func beginsToAskLocked(c *claim) {
	n, s := c.local, c.m.s
	if c.m.cfg.Ask == nil || c.Try || c.asker != 0 || s.leases.ClosedLocked() {
		return
	}
	if n.asking == nil {
		a := &asking{n: n, news: make(chan struct{}, 1)}
		a.ctx, a.stop = context.WithCancel(s.ctx)
		n.asking = a
		s.tasks.Go(a.run)
	}
	heap.Push(&n.asking.waits, c)
	n.asking.tellLocked()
}

// endsToAskLocked notes that c, which asks, does not wait any more.
func endsToAskLocked(c *claim) {
	a := c.local.asking
	heap.Remove(&a.waits, c.asker-1)
	if len(a.waits) == 0 {
		c.local.asking = nil
		c.m.s.mu.After(a.stop)
	}
}

// tellLocked wakes the goroutine, once for all that happens until it runs.
func (a *asking) tellLocked() {
	select {
	case a.news <- struct{}{}:
	default: // it was woken, and has not looked yet
	}
}

// run is the goroutine of an asking. It ends with the last wait that asks.
func (a *asking) run() {
	defer a.stop()
	for a.ctx.Err() == nil {
		q := a.recallOurs()
		if q.follows {
			if err := a.follow(q); err != nil {
				q.failed(err)
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

// A quest is whom the waits of a local line ask in etcd's line. The zero quest asks nobody.
type quest struct {
	follows bool
	m       *Lock      // of the wait with the shortest grace
	own     line.Entry // the key of the Session that waits there; no revision if its permits hold
	ours    *place     // the key of the Session that is in their way instead, nil if none is
}

// recallOurs recalls the holds of the Session that are in the way of the waits, and returns whom
// they ask in etcd's line.
func (a *asking) recallOurs() quest {
	a.n.s.mu.Lock()
	defer a.n.s.mu.Unlock()
	q := a.nextLocked()
	if q.ours != nil {
		q.ours.RecallLocked(*q.m.cfg.Ask) // with all holds that share the key
	}
	return q
}

// next is whom the waits ask now.
func (a *asking) next() quest {
	a.n.s.mu.Lock()
	defer a.n.s.mu.Unlock()
	return a.nextLocked()
}

// nextLocked is whom the waits ask now.
//
// (Do not ask while the first waiter of the local line may get in beside its owner, or etcd has to
// tell first: it would have the hold ended that it is about to share. TestAReadThatJoinsAsksNobody.
// Once it is in, or has to wait, the line is marked.)
func (a *asking) nextLocked() (q quest) {
	n := a.n
	owner, first := n.queue.Owner(), n.queue.First()
	comes := first != nil && n.admissionLocked(first.Value) != home.MustQueue
	if len(a.waits) == 0 || owner == nil || owner.place == nil || comes {
		return quest{}
	}
	q.m = a.waits[0].m
	switch p := owner.place; {
	case owner.hold == nil:
		q.own, q.follows = p.Ticket.Entry(), p.waitsLocked()
	case owner.Kind == line.Permit: // and others beside it, each with a key
		q.follows = true
	case p.Ticket.State() == ticket.Held:
		q.ours = p
	}
	return q
}

// goesOn reports whether now is the same quest as q, with no shorter grace.
func (q quest) goesOn(now quest) bool {
	return now.follows && now.own.Key == q.own.Key && now.own.Rev == q.own.Rev &&
		now.m.cfg.Ask.Grace >= q.m.cfg.Ask.Grace
}

// is reports whether e is the own key.
func (q quest) is(e line.Entry) bool { return e.Key == q.own.Key && e.Rev == q.own.Rev }

// failed reports that a holder, or all of them, could not be asked.
func (q quest) failed(err error) {
	q.m.log(slog.LevelWarn, "holder not asked to give way", "name", q.m.name, "error", err)
}

// follow follows the holders and asks them, until the quest is another one. An error is one that
// retrying does not fix.
func (a *asking) follow(q quest) error {
	s := a.n.s
	a.tries = make(map[holder]int)
	f := &follow.Follower{
		Conn: s.etcd, Name: a.n.Name, All: true, TTL: s.cfg.TTL,
		News: a.news, GoesOn: func() bool { return q.goesOn(a.next()) },
	}
	f.See = func(seen *follow.Snapshot) bool {
		f.Rest = 0
		if q.own.Rev != 0 && !slices.ContainsFunc(seen.Line, q.is) {
			f.Rest = max(askRest, time.Duration(seen.Keys)*askRestPerKey)
		}
		return a.ask(q, seen)
	}
	return f.Run(a.ctx)
}

// ask recalls the contenders that hold, as seen shows, and were not asked. It reports whether the
// quest goes on.
//
// If the own key is among them the wait is about to get in beside them, or is first in one of
// several lines: it asks nobody.
func (a *asking) ask(q quest, seen *follow.Snapshot) (goesOn bool) {
	holding := seen.Line.Holding()
	if q.own.Rev != 0 && slices.ContainsFunc(holding, q.is) {
		return true
	}
	for i, e := range holding {
		if q.own.Rev != 0 && e.Rev > q.own.Rev {
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
func (a *asking) recallOwn(e line.Entry) (now quest, isOwn bool) {
	a.n.s.mu.Lock()
	defer a.n.s.mu.Unlock()
	if now = a.nextLocked(); now.follows {
		isOwn = a.n.s.keys.RecallOwnLocked(e, *now.m.cfg.Ask)
	}
	return now, isOwn
}

// recall writes the request of now into the value of e, unless e is gone or has such a request. It
// returns e as it is then, if that is known and it is there. While that fails it is tried less, and
// not at all after a refusal.
func (a *asking) recall(e line.Entry, now quest) (asked line.Entry, known bool) {
	who := holder{e.Key, e.Rev}
	tries, failed := a.tries[who]
	switch {
	case !failed:
		tries = askTries
	case tries == 0:
		return e, false
	}
	asked, err := WriteRecall(e.Rev, e, *now.m.cfg.Ask, a.commit(tries))
	switch {
	case err == nil || err == errs.NotRecallable: // it did listen when it was read
		return asked, asked.Rev == e.Rev
	case a.ctx.Err() != nil:
		return e, false
	case !failed:
		now.failed(err)
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

// commit returns what sends a transaction for WriteRecall, so often at most.
func (a *asking) commit(tries int) func(ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
	spare := attempt.Backoff{Policy: attempt.Spare} // many waits may send it now
	return func(t ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
		written, err := a.n.s.etcd.ReadBy(a.ctx, etcd.Request{Txn: t}, spare, func(err error) error {
			if tries--; tries > 0 {
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

// askers are the claims that ask, as container/heap has them: the first has the shortest grace.
type askers []*claim

func (w askers) Len() int           { return len(w) }
func (w askers) Less(i, j int) bool { return w[i].m.cfg.Ask.Grace < w[j].m.cfg.Ask.Grace }

func (w askers) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].asker, w[j].asker = i+1, j+1
}

// Push adds a claim.
func (w *askers) Push(c any) {
	*w = append(*w, c.(*claim))
	(*w)[len(*w)-1].asker = len(*w)
}

// Pop removes the last claim.
func (w *askers) Pop() any {
	last := len(*w) - 1
	c := (*w)[last]
	(*w)[last], *w = nil, (*w)[:last]
	c.asker = 0
	return c
}
