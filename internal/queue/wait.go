package queue

import (
	"cmp"
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// lateCheck is when a waiter that watches from a past revision checks for the first time whether
// the key before it stands in line.
const lateCheck = 5 * time.Second

// A Waiter is a call that waits at a place, and what it has learned from etcd. Its goroutine owns
// it.
type Waiter struct {
	Try     bool  // it waits for etcd, and for no other contender
	LastErr error // of etcd, while it retries
}

// Wait waits until p waits for no contender, and tells in between what is ahead of it, once that is
// known. It returns what wait returns.
func (c *Waiter) Wait(ctx context.Context, p *Place, queued func()) error {
	if ahead, stale := p.Predecessors(); !stale && ahead.Reading == line.Unread {
		if err := c.look(ctx, p, 0); err != nil {
			return err
		}
	}
	queued()
	return c.wait(ctx, p)
}

// wait waits until p waits for no contender. It returns nil if so and its key is there;
// ErrAnew if its key or its lease is gone; ErrTaken if a contender is ahead of it and c only
// tries; the cause of ctx when ctx ends; or an error that a retry does not fix.
//
// Behind a few it waits by the Session's view of the line, which needs no request of its
// own; behind many by a watch of one key, or by the watches of a permit.
func (c *Waiter) wait(ctx context.Context, p *Place) error {
	p.listen()
	var broken, anew attempt.Backoff
	for {
		var err error
		switch ahead, stale := p.Predecessors(); {
		case stale:
			if err = anew.Wait(ctx, p.keys.etcd.Caller); err == nil {
				err = c.look(ctx, p, 0)
			}
		case ahead.Clear():
			return nil
		case ahead.Reading == line.Unread:
			err = c.look(ctx, p, 0)
		case c.Try:
			err = ErrTaken
		case inView(ahead):
			err = c.waitInView(ctx, p)
		case p.Ticket.Kind == line.Permit:
			p.line.dropView()
			err = c.waitBehindSome(ctx, p, ahead, &broken)
		default:
			p.line.dropView()
			err = c.waitBehind(ctx, p, ahead.Last[len(ahead.Last)-1], &broken)
		}
		if err != nil {
			return err
		}
	}
}

// waitInView waits by the view until it has news for p, which c owns: no contender is ahead of p,
// or the line has become too long for views.
func (c *Waiter) waitInView(ctx context.Context, p *Place) (err error) {
	k := p.keys
	k.mu.Lock()
	if k.Leases.ClosedLocked() {
		k.mu.Unlock()
		return k.Closed
	}
	if p.StaleLocked() {
		k.mu.Unlock()
		return nil
	}
	v := p.line.WatchLocked(false)
	v.reliesLocked()
	v.waiting, v.needed = true, time.Now()
	v.judgeLocked()
	waits := !p.Ahead.Clear() && !p.Ticket.Lost()
	k.mu.Unlock()

	if waits {
		select {
		case <-p.news:
		case <-p.Lease.Dead():
			err = ErrAnew
		case <-ctx.Done():
			err = attempt.Cause(ctx)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v.waiting = false
	if p.Ticket.Lost() {
		err = ErrAnew
	}
	if c.LastErr = v.err; v.refusal != nil {
		err = v.refusal
	}
	return err
}

// waitBehind waits until the line ahead of p may have changed, and then reads it again.
//
// It watches the DELETE of the one key before its own, from now: etcd serves a watch
// from a past revision in a loop of 100 ms. Once the watch is there it checks by a read
// that the very key, by its create revision, is still there. So no deletion is missed:
// the read shows a deletion before the watch, and a later one comes as an event.
//
// Contenders may leave in another order than they came, so one read at the event's revision shows
// what is ahead of p then.
//
// Do not enter without it: if W between H and p is deleted while H holds, p would enter beside H.
// (TestWhoMovesUpBehindTheHolderDoesNotEnterBesideIt.)
func (c *Waiter) waitBehind(
	ctx context.Context, p *Place, before line.Entry, broken *attempt.Backoff,
) error {
	w, known := p.line.watchBefore(ctx, p, broken, before)
	defer p.line.unwatchBefore(p, w)
	by := source{
		answers: w.Answers, judge: w.Notice, unbegun: 1, before: before,
		begun: checkPredecessor, due: checkPredecessor,
		departed: func(keys []string) bool {
			w.gone = w.gone || slices.Contains(keys, before.Key)
			return w.gone
		},
	}
	if known {
		by.begun, by.first = keepWaiting, attempt.Jitter(lateCheck)
	}
	return c.waitBy(ctx, p, by, broken)
}

// waitBehindSome waits until the line ahead of p, a permit, may have become one that lets it in,
// and has read that line then. ahead is the line as p has found it.
//
// Do not ask p for it once more: a view may have cleared it meanwhile.
// (TestAPermitWaitsForThoseThatItHasFound.)
//
// At least one of some keys goes before it may hold: line.Ahead.Awaited. Where these are few and
// the line is long it watches each of them; otherwise, all permits. Either way it watches its own
// key, too. A watch begins from now, and once all are there it reads the line. So no deletion is
// missed: the read shows a deletion before the watches, and a later one comes as an event.
//
// Where it knows all that are before it, it counts the events itself, and reads the line once, at
// the end. In a long line it does that when it is among the first. So what a hand-over costs grows
// with the limit, and not with the line.
//
// It does not enter by the events alone: they come by several watches, in any order.
func (c *Waiter) waitBehindSome(
	ctx context.Context, p *Place, ahead line.Ahead, broken *attempt.Backoff,
) error {
	w := watchSome(ctx, p, ahead, *broken)
	defer w.end()
	return c.waitBy(ctx, p, source{
		notices: w.notices, unbegun: max(1, len(w.keys)), covers: w.covers,
		begun: readLine, due: readLine,
		departed: func(keys []string) bool { return w.departed(p, keys) },
	}, broken)
}

// A source is the watches that tell a waiter that the line ahead of it may have changed: the watch
// of the key before, or the watches of a permit.
type source struct {
	// The waiter judges the answers of one watch itself. Of several, each has a goroutine that does.
	answers clientv3.WatchChan
	judge   func(answer clientv3.WatchResponse, open bool) etcd.Notice
	notices <-chan notice
	unbegun int // how many have not begun

	begun    outcome                     // when all have begun: it shows what was before them
	due      outcome                     // when a recheck is due: it shows whether an event was missed
	first    time.Duration               // when the first check is due at the latest, if not 0
	before   line.Entry                  // the predecessor that is checked
	departed func(keys []string) bool    // whether the line is read when keys were deleted
	covers   func(ahead line.Ahead) bool // whether the wait goes on after that; nil if it never does
}

// An outcome is what follows for a waiter from what it has heard. Of two, the later counts.
type outcome uint8

const (
	keepWaiting      outcome = iota
	checkPredecessor         // in the background: whether the key before, and the own one, stand
	readLine                 // and wait on if the watches cover what is ahead then
	rewatch                  // read the line, and then begin new watches
	leave                    // find out anew what is ahead
)

// A notice is what a watch of deletions reports.
type notice struct {
	kind etcd.NoticeKind
	keys []string // that were deleted
	at   int64    // the revision of the last of these
	late bool     // the watch has not begun in time
	fell error    // the Fall of the user's code, as the watch began
}

// noticeOf is what n says to p's waiter.
func noticeOf(p *Place, n etcd.Notice) notice {
	told := notice{kind: n.Kind, fell: attempt.Fallen(n.Err)}
	for _, event := range n.Events {
		at := event.Kv.ModRevision
		if event.Type == clientv3.EventTypeDelete && p.counts(at) {
			told.keys = append(told.keys, string(event.Kv.Key))
			told.at = max(told.at, at)
		}
	}
	return told
}

// hear is what follows from a notice, and the revision at which the line is read, 0 for now.
func (w *source) hear(n notice, broken *attempt.Backoff) (next outcome, at int64) {
	if n.kind == etcd.Ended {
		if n.late {
			broken.Unanswered()
		}
		return rewatch, 0
	}
	if n.at != 0 && w.departed(n.keys) {
		next, at = readLine, n.at
	}
	if n.kind != etcd.Created {
		return next, at
	}
	if w.unbegun--; w.unbegun == 0 {
		broken.Reset()
		if w.begun >= next {
			next, at = w.begun, 0 // a read as of now shows what was before the watches
		}
	}
	return next, at
}

// waitBy waits by w until the line ahead of p may have changed, and has read it then.
//
// If an event never comes, from a frozen member for instance, a slow recheck makes up
// for it. The longer the wait and the line, the slower the recheck. Events are heard while a check
// is under way.
//
// Do not wait for its answer alone: an etcd that was frozen answers the checks of a long line one
// by one when it is back, and sends the event to the next waiter at once.
// (TestACheckKeepsNobodyFromHearingTheEvent.)
func (c *Waiter) waitBy(ctx context.Context, p *Place, w source, broken *attempt.Backoff) error {
	by := sourced{Waiter: c, Place: p, source: w, broken: broken,
		relied: time.Now(), length: p.lengthOf()}
	first := p.keys.recheckAfter(by.relied, by.length)
	by.recheck = time.NewTimer(min(first, cmp.Or(w.first, first)))
	defer by.recheck.Stop()
	defer func() { by.checking.end() }()
	for {
		heard, err := by.next(ctx)
		if err != nil {
			return err
		}
		if goesOn, err := by.follow(ctx, heard); !goesOn {
			return err
		}
	}
}

// A sourced is a wait by a source.
type sourced struct {
	*Waiter
	*Place
	source
	broken   *attempt.Backoff
	relied   time.Time // since when it relies on the watches
	length   int       // of the line
	recheck  *time.Timer
	checking check
}

// A heard is what a wait has heard, and what follows.
type heard struct {
	outcome
	at      int64 // the revision at which the line is read, 0 for now
	counted int   // what the line's length was, if it is counted again
	fell    error // as in notice
}

// next waits for the next news. The error is what ends the wait.
func (by *sourced) next(ctx context.Context) (h heard, err error) {
	select {
	case answer, open := <-by.answers:
		return by.noticed(noticeOf(by.Place, by.judge(answer, open))), nil
	case told := <-by.notices:
		return by.noticed(told), nil
	case <-by.recheck.C:
		h.outcome = by.due
		if by.first == 0 || by.length < vast {
			h.counted = by.length
		}
		by.first = 0
		return h, nil
	case r := <-by.checking.answer:
		return by.checked(r)
	case <-by.news:
		return by.renewed()
	case <-by.Lease.Dead():
		return h, ErrAnew
	case <-ctx.Done():
		return h, attempt.Cause(ctx)
	}
}

func (by *sourced) noticed(n notice) (h heard) {
	h.outcome, h.at = by.hear(n, by.broken)
	h.fell = n.fell
	return h
}

// checked is what follows from the answer to a check.
func (by *sourced) checked(r checked) (h heard, err error) {
	by.checking.end()
	switch {
	case r.err != nil:
		return h, r.err
	case !r.still: // an event was missed
		h.outcome = readLine
	default:
		by.length = cmp.Or(r.length, by.length)
		by.relies()
	}
	return h, nil
}

// renewed is what follows from news of the place: the client has reconnected, if nothing else.
func (by *sourced) renewed() (h heard, err error) {
	if by.isGone() {
		return h, ErrAnew
	}
	by.relied = time.Now()
	switch _, stale := by.Predecessors(); {
	case stale: // etcd was set back
		h.outcome = leave
	case by.due == readLine:
		h.outcome = readLine
	default:
		by.relies()
	}
	return h, nil
}

// relies has the next recheck come after a while.
func (by *sourced) relies() { by.recheck.Reset(by.keys.recheckAfter(by.relied, by.length)) }

// follow does what follows from what was heard, and reports whether the wait goes on. If not, it is
// over with err.
func (by *sourced) follow(ctx context.Context, h heard) (goesOn bool, err error) {
	switch h.outcome {
	case checkPredecessor:
		if h.counted == 0 {
			by.checking.end() // it may have been sent before the watch had begun
		}
		if by.checking.finished() {
			by.checking = by.check(ctx, by.Place, by.before, h.counted)
		}
	case readLine:
		by.checking.end()
		if err := by.look(ctx, by.Place, h.at); err != nil || by.covers == nil {
			return false, err
		}
		if ahead, stale := by.Predecessors(); stale || !by.covers(ahead) {
			return false, nil
		}
		by.length = by.lengthOf()
		by.relies()
	case rewatch:
		by.checking.end()
		if h.fell != nil {
			return false, h.fell
		}
		if err := by.broken.Wait(ctx, by.keys.etcd.Caller); err != nil {
			return false, err
		}
		return false, by.look(ctx, by.Place, 0)
	case leave:
		return false, nil
	}
	return true, nil
}

// StayFirst waits, at the head of the line, for the other places of a call: until all are first,
// which is nil, or p is lost.
//
// The ticket is Held meanwhile. So the key is watched and audited as that of a hold: if it is
// deleted, and another contender gets in, the call does not rely on it for longer than a hold
// would. (TestAKeyOfSeveralThatIsDeletedIsMissed.)
func (c *Waiter) StayFirst(ctx context.Context, p *Place, all <-chan struct{}) error {
	for {
		p.standsFirst()
		select {
		case <-all:
			return nil
		case <-p.news:
			if p.isGone() {
				return ErrAnew
			}
			if err := c.wait(ctx, p); err != nil { // it reads the line if etcd was set back
				return err
			}
		case <-p.Lease.Dead():
			return ErrAnew
		case <-ctx.Done():
			return attempt.Cause(ctx)
		}
	}
}

// StayFirstFor waits at the head of the line for a delay, or until that may be shorter. It returns
// what StayFirst returns.
func (c *Waiter) StayFirstFor(
	ctx context.Context, p *Place, delayLocked func() time.Duration,
) error {
	over, cancel := p.keys.DelayContext(delayLocked)
	defer cancel()
	return c.StayFirst(ctx, p, over.Done())
}
