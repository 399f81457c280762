package queue

import (
	"cmp"
	"context"
	"time"

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

// Wait waits until no contender is ahead of p, and calls queued once it is known what is. It
// returns what wait returns.
func (c *Waiter) Wait(ctx context.Context, p *Place, queued func()) error {
	if ahead, stale := p.Predecessors(); !stale && ahead.Reading == line.Unread {
		if err := c.look(ctx, p, 0); err != nil {
			return err
		}
	}
	queued()
	return c.wait(ctx, p)
}

// wait waits until no contender is ahead of p. It returns nil then; ErrAnew if p's key or its lease
// is gone; ErrTaken if a contender is ahead of it and c only tries; the cause of ctx when ctx ends;
// or an error that a retry does not fix.
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
			if err = anew.Wait(ctx, p.Account.keys.etcd.Caller); err == nil {
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

// waitInView waits until the view has news for p: no contender is ahead of it, or the view is over.
func (c *Waiter) waitInView(ctx context.Context, p *Place) (err error) {
	k := p.Account.keys
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
		case <-p.Account.Lease.Dead():
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
	last, known := p.line.watchBefore(ctx, p, broken, before)
	defer p.line.unwatchBefore(p, last)
	w := watches{
		watched: []string{before.Key}, unbegun: 1,
		answers: last.Answers, last: last, before: before, known: known,
	}
	return c.waitBy(ctx, p, w, broken)
}

// waitBehindSome waits until the line ahead of p, a permit, may have become one that lets it in,
// and has read that line then. ahead is the line as p has found it.
//
// Do not ask p for it once more: a view may have cleared it meanwhile.
// (TestAPermitWaitsForThoseThatItHasFound.)
//
// p may hold only after one of some keys has gone: line.Ahead.Awaited. Where these are few and the
// line is long it watches each of them; otherwise it watches all permits. Either way it watches its
// own key, too. A watch begins from now, and once all are there it reads the line. So no deletion
// is missed: the read shows a deletion before the watches, and a later one comes as an event.
//
// Where it knows all that are before it, it counts the events itself, and reads the line once, at
// the end. In a long line it does that when it is among the first. So what a hand-over costs grows
// with the limit, and not with the line.
//
// It does not enter by the events alone: they come by several watches, in any order.
func (c *Waiter) waitBehindSome(
	ctx context.Context, p *Place, ahead line.Ahead, broken *attempt.Backoff,
) error {
	w, end := watchSome(ctx, p, ahead, *broken)
	defer end()
	return c.waitBy(ctx, p, w, broken)
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
func (c *Waiter) waitBy(ctx context.Context, p *Place, w watches, broken *attempt.Backoff) error {
	by := longWait{Waiter: c, Place: p, watches: w, broken: broken,
		relied: time.Now(), length: p.lengthOf(), early: w.known}
	first := p.Account.keys.recheckAfter(by.relied, by.length)
	if by.early {
		first = min(first, attempt.Jitter(lateCheck))
	}
	by.recheck = time.NewTimer(first)
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

// A longWait is a wait by watches, behind many.
type longWait struct {
	*Waiter
	*Place
	watches
	broken   *attempt.Backoff
	relied   time.Time // since when it relies on the watches
	length   int       // of the line
	recheck  *time.Timer
	early    bool // the first recheck is due sooner than by the length
	checking check
}

// An outcome is what follows for a longWait from what it has heard. Of two, the later counts.
type outcome uint8

const (
	keepWaiting      outcome = iota
	checkPredecessor         // in the background: whether the key before, and the own one, stand
	readLine                 // and wait on if the watches cover what is ahead then
	rewatch                  // read the line, and then begin new watches
	leave                    // find out anew what is ahead
)

// A heard is what a wait has heard, and what follows.
type heard struct {
	outcome
	at      int64 // the revision at which the line is read, 0 for now
	counted int   // what the line's length was, if it is counted again
	fell    error // as in notice
}

// next waits for the next news. The error is what ends the wait.
func (by *longWait) next(ctx context.Context) (h heard, err error) {
	select {
	case answer, open := <-by.answers:
		return by.noticed(by.judge(by.Place, answer, open)), nil
	case told := <-by.notices:
		return by.noticed(told), nil
	case <-by.recheck.C:
		h.outcome = by.shows()
		if !by.early || by.length < vast {
			h.counted = by.length
		}
		by.early = false
		return h, nil
	case r := <-by.checking.answer:
		return by.checked(r)
	case <-by.news:
		return by.renewed()
	case <-by.Account.Lease.Dead():
		return h, ErrAnew
	case <-ctx.Done():
		return h, attempt.Cause(ctx)
	}
}

// noticed is what follows from a notice.
func (by *longWait) noticed(n notice) heard {
	h := heard{fell: n.fell}
	if n.kind == etcd.Ended {
		if n.late {
			by.broken.Unanswered()
		}
		h.outcome = rewatch
		return h
	}
	if n.at != 0 && by.departed(by.Place, n.keys) {
		h.outcome, h.at = readLine, n.at
	}
	if n.kind != etcd.Created {
		return h
	}
	if by.unbegun--; by.unbegun == 0 {
		by.broken.Reset()
		if missed := by.shows(); !by.known && missed >= h.outcome {
			h.outcome, h.at = missed, 0 // as of now: it shows what was before the watches
		}
	}
	return h
}

// checked is what follows from the answer to a check.
func (by *longWait) checked(r checked) (h heard, err error) {
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

// renewed is what follows from news of the place: its key is gone, etcd was set back, or, if it is
// neither, the client has reconnected.
func (by *longWait) renewed() (h heard, err error) {
	if by.isGone() {
		return h, ErrAnew
	}
	by.relied = time.Now()
	switch _, stale := by.Predecessors(); {
	case stale: // etcd was set back
		h.outcome = leave
	case by.shows() == readLine:
		h.outcome = readLine
	default:
		by.relies()
	}
	return h, nil
}

// relies has the next recheck come after a while.
func (by *longWait) relies() {
	by.recheck.Reset(by.Account.keys.recheckAfter(by.relied, by.length))
}

// follow does what follows from what was heard, and reports whether the wait goes on. If it does
// not, err is what waitBy returns.
func (by *longWait) follow(ctx context.Context, h heard) (goesOn bool, err error) {
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
		if err := by.look(ctx, by.Place, h.at); err != nil {
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
		if err := by.broken.Wait(ctx, by.Account.keys.etcd.Caller); err != nil {
			return false, err
		}
		return false, by.look(ctx, by.Place, 0)
	case leave:
		return false, nil
	}
	return true, nil
}

// StayFirst waits at the head of the line for the other places of a call. It returns nil once all
// are first, and otherwise what wait returns.
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
		case <-p.Account.Lease.Dead():
			return ErrAnew
		case <-ctx.Done():
			return attempt.Cause(ctx)
		}
	}
}

// StayFirstFor waits at the head of the line until a delay is over, or may have become shorter: the
// caller asks again. It returns what StayFirst returns.
func (c *Waiter) StayFirstFor(
	ctx context.Context, p *Place, delayLocked func() time.Duration,
) error {
	over, cancel := p.Account.keys.DelayContext(delayLocked)
	defer cancel()
	return c.StayFirst(ctx, p, over.Done())
}
