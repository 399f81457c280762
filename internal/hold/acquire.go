package hold

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// removalGrace is how long a wait that failed waits for its key to be removed.
const removalGrace = 25 * time.Millisecond

// lock is acquire of a call with ctx, and tells the Trace how the call begins and how it ends. It
// returns the hold, of several names the first, and the context of the call: ctx, or what the Trace
// has made of it.
func (c *call) lock(ctx context.Context) (*Hold, context.Context, error) {
	began, hooks := time.Now(), c.cfg.Hooks
	if hooks.Start != nil {
		ctx = hooks.start(ctx, c.event())
	}
	c.ctx, c.started = ctx, began
	h, err := c.acquire(ctx)
	if err != nil {
		if c.Runs {
			err = errs.NotRun(err)
		}
		if hooks.GaveUp != nil {
			c.reportGaveUp(ctx, err)
		}
		guard.Rethrow(err)
		return nil, nil, err
	}
	if hooks.Start != nil {
		ctx = c.tellHolds(ctx, h)
	}
	c.first.wait = nil
	return h, ctx, nil
}

// tellHolds tells the Trace at once that h has begun, of the call with ctx. If the user's code ends
// the goroutine h is released: its caller never gets it.
func (c *call) tellHolds(ctx context.Context, h *Hold) context.Context {
	told := false
	defer func() {
		if !told {
			got := Handle{Lock: c.first.m, Hold: h}
			_ = got.Unlock(context.WithoutCancel(ctx))
		}
	}()
	ctx = c.cfg.Hooks.holds(ctx, h.began().Sub(c.started))
	told = true
	return ctx
}

// reportGaveUp reports to Trace that the call with ctx got no hold.
func (c *call) reportGaveUp(ctx context.Context, err error) {
	for _, o := range c.claims {
		report(&o.m.s.hooks, o.m.cfg.Hooks.GaveUp, ctx,
			GaveUp{o.m.name, time.Since(c.started), o.ahead, err})
	}
}

// event is what the Trace is told of c as it begins.
func (c *call) event() Call {
	e := Call{
		Name: c.first.m.name, Kind: c.Kind, Weight: max(1, int(c.Weight)), Try: c.Try,
	}
	if len(c.claims) > 1 {
		for _, o := range c.claims {
			e.Names = append(e.Names, o.m.name)
		}
	}
	return e
}

// acquire takes the claims of c through their local lines, puts their keys, waits until these are
// first in etcd's lines, begins the holds, and returns the first of them. After an error no claim
// is in a line, and its key, if it may exist, is being removed.
func (c *call) acquire(ctx context.Context) (h *Hold, err error) {
	if c.Kind == line.Read || c.Kind == line.Exclusive && c.cfg.Linger > 0 {
		if h := c.holdAtOnce(); h != nil {
			return h, nil
		}
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel(nil)
	c.s.etcd.Waits.Add(1)
	defer c.s.etcd.Waits.Add(-1)
	if err := c.enter(cancel); err != nil {
		return nil, err
	}
	for _, o := range c.claims {
		if o.turn == nil {
			continue // it had it at once
		}
		select {
		case <-o.turn:
		case <-ctx.Done():
			return c.leavesWithout(ctx)
		}
	}
	if h := c.first.hold; h != nil { // it has joined a cohort, or taken over a key
		return h, nil
	}
	defer func() {
		if h == nil && err == nil { // a request has not returned
			c.fallOut()
		}
	}()
	var anew attempt.Backoff
	for placed := c.first.place != nil; ; placed = false {
		got, why := c.advance(ctx, placed)
		if why == nil || c.first.waiter.Standing() == home.Gone {
			return got, why
		}
		if err := c.retreat(ctx, why, &anew); err != nil {
			return nil, err
		}
	}
}

// leavesWithout ends the wait of c for its turns, because ctx has ended. It returns the hold if c
// has got one at the same moment. If a turn has come at that moment, leaveLocked passes it on.
func (c *call) leavesWithout(ctx context.Context) (*Hold, error) {
	h, locked := c.leave()
	if h == nil {
		return nil, c.gaveUp(ctx, attempt.Cause(ctx), locked, c.s.etcd.Unavailable())
	}
	return h, nil
}

// fallOut takes c out of all lines, because a request has not returned: the user's code in it, such
// as an interceptor, has panicked, or has called runtime.Goexit.
//
// (Do not take that for the end of the process. net/http recovers, and the key would stay for as
// long as the Session lives. TestAPanicInARequestBlocksNobody.)
func (c *call) fallOut() {
	if c.keys != nil { // they may be there
		_, _, _ = c.entered(c.keys, etcd.Unanswered(c.s.etcd.Epoch()))
	}
	c.s.mu.Lock()
	c.leavePlacesLocked(false)
	c.s.mu.Unlock()
	_, _ = c.leave()
	if c.cfg.Hooks.GaveUp != nil {
		c.reportGaveUp(c.ctx, errs.Failed("lock", c.first.m.name, errFallen))
	}
}

// errFallen is why a call got no hold whose request has not returned.
var errFallen = errors.New("a request did not return")

// retreat follows an attempt that has failed with err. It gives up the places, and returns nil,
// after a pause, if the call is to take new ones: they were lost, or what was in the way of a call
// that only tries was a key of its own Session, which is being removed. Otherwise it passes the
// turns on, and returns the error of the call. If ctx has ended, the place may go on with the next
// waiter of the Session.
func (c *call) retreat(ctx context.Context, err error, anew *attempt.Backoff) error {
	s := c.s
	var taken *Busy
	var goes <-chan struct{}
	away, ended := s.etcd.Unavailable(), ctx.Err() != nil
	s.mu.Lock()
	if err == queue.ErrTaken {
		if taken, goes = c.inWayLocked(); taken == nil {
			err = queue.ErrAnew
		}
	}
	n := c.first.local
	if ended && !s.leases.ClosedLocked() && n.queue.HandsDown(n.keyLocked(c.first)) {
		n.before = c.first.place.Ahead
		_, locked := c.first.leaveLocked()
		s.mu.Unlock()
		return c.gaveUp(ctx, err, locked, away)
	}
	removed := c.leavePlacesLocked(ended)
	s.mu.Unlock()
	switch {
	case ended:
	case err == queue.ErrAnew:
		if anew.Wait(ctx, s.etcd.Caller) == nil {
			return nil
		}
	case goes != nil:
		select {
		case <-goes:
			return nil
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		awaitGrace(removed)
	}
	if _, locked := c.leave(); taken == nil {
		return c.gaveUp(ctx, err, locked, away)
	}
	return errs.Locked(taken)
}

// bounded is the context of a wait of a call with ctx, with what ends it.
func (c *call) bounded(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	m := c.first.m
	most, of := m.cfg.AcquireTimeout, "WithAcquireTimeout" // 0: none
	if c.Unbounded {
		most = 0
	}
	if _, bounded := ctx.Deadline(); c.Try && !bounded && (most == 0 || m.s.cfg.TTL < most) {
		most, of = m.s.cfg.TTL, "a try without a deadline"
	}
	if most == 0 {
		return context.WithCancelCause(ctx)
	}
	ctx, stop := within(ctx, most, of)
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, func(cause error) { cancel(cause); stop() }
}

// enter puts the claims into their local lines, all at once, and takes their places if all own
// their turns. A call that only tries gets a LockedError, without a request, if it would wait for
// another claim of its Session or for the lock delay.
func (c *call) enter(cancel context.CancelCauseFunc) error {
	m, s := c.first.m, c.s
	clientClosed := s.etcd.Closed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases.ClosedLocked() || m.closed {
		return errs.Failed("lock", m.name, errs.Closed)
	}
	if c.Try {
		for _, o := range c.claims {
			o.local = lineAtLocked(s, o.m.name)
			o.local.checkOwnerLocked()
			if locked := o.busyAtHomeLocked(); locked != nil {
				return errs.Locked(locked)
			}
		}
	}
	if clientClosed {
		return errs.Failed("lock", m.name, attempt.ErrClientClosed)
	}
	c.cancel = cancel
	own := true
	for _, o := range c.claims {
		o.local = lineAtLocked(s, o.m.name) // a new line may drop one that is not in use
		way := o.local.queue.Way(&o.waiter, o.local.keyLocked(o))
		o.enterLocked(way)
		own = own && (way == home.Owns || way == home.Steps)
	}
	if own {
		c.takePlacesLocked()
	}
	return nil
}

// busyAtHomeLocked is what is in the way of c, which only tries, if c is refused without a request:
// another claim of its Session, or the lock delay. Otherwise it is nil. The delay is in the way of
// a claim that is to have a key of its own, and of none that holds at a key of its Session.
func (c *claim) busyAtHomeLocked() *Busy {
	n, key := c.local, c.local.keyLocked(c)
	if n.queue.Refuses(&c.waiter, key) {
		return n.busyLocked(nil, c.Kind)
	}
	delay := n.DelayLocked(time.Now(), c.Kind)
	if delay.Lasts > 0 && (c.Kind == line.Permit || n.queue.Way(&c.waiter, key) == home.Owns) {
		return busyBehind(n.Name, line.None, delay)
	}
	return nil
}

// holdAtOnce gives c a hold, and returns it, if it gets one without a wait for anything, etcd
// included. Otherwise it returns nil.
func (c *call) holdAtOnce() *Hold {
	s := c.s
	clientClosed := s.etcd.Closed()
	s.mu.Lock()
	defer s.mu.Unlock()
	closed := clientClosed || s.leases.ClosedLocked() || c.first.m.closed
	if c.first.local = s.lines[c.first.m.name]; c.first.local == nil || closed {
		return nil
	}
	way := c.first.local.queue.Way(&c.first.waiter, c.first.local.keyLocked(c.first))
	if way == home.Joins || way == home.TakesOver {
		c.first.enterLocked(way)
	}
	return c.first.hold
}

// takePlacesLocked takes a place for each claim, all on one lease, and begins to put the keys. It
// reports false if there is no lease for them.
func (c *call) takePlacesLocked() bool {
	k := c.s.keys.AccountLocked()
	if k == nil {
		return false
	}
	for _, o := range c.claims {
		o.place = newPlaceLocked(o, k)
	}
	if len(c.claims) > 1 {
		c.keys = enteringAll(c)
		return true
	}
	e := c.first.place.Ticket.Enter(c.Try, c.cfg.Hooks.Queued != nil)
	if !c.Try {
		c.first.place.ExpectsLocked(&e)
	}
	c.keys = &e
	return true
}

// advance takes places, unless the claims are placed, puts their keys, unless these stand in line,
// waits for the contenders ahead of them, and begins the holds. The error is queue.ErrTaken if the
// call only tries and a contender is ahead, and queue.ErrAnew if a place is lost.
func (c *call) advance(ctx context.Context, placed bool) (*Hold, error) {
	if !placed {
		failure, err := c.s.leases.Take(ctx, c.takePlacesLocked)
		if err == nil || failure != nil {
			c.first.LastErr = failure
		}
		if err != nil {
			return nil, err
		}
	}
	if c.first.place.Ticket.Rev() == 0 {
		if h, err := c.put(ctx); h != nil || err != nil {
			return h, err
		}
	}
	for {
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
		c.s.mu.Lock()
		h, err := c.beginLocked()
		c.s.mu.Unlock()
		switch {
		case err == errs.SetBack, err == errDelayed && len(c.claims) > 1:
			// what was read says nothing now: wait reads again
		case err == errDelayed && c.Try:
			return nil, queue.ErrTaken
		case err == errDelayed:
			if err := c.first.StayFirstFor(ctx, &c.first.place.Place, c.delayLocked); err != nil {
				return nil, err
			}
		default:
			return h, err
		}
	}
}

// put puts the keys in one transaction, which it sends until it knows what has become of it.
//
// With a nil error the keys stand in line, with holds if no contender is ahead of any.
// queue.ErrTaken says that a contender is ahead of one, and the call only tries; then nothing was
// written. (Where a ticket cannot find that out before, the keys are put, and wait returns
// queue.ErrTaken.) queue.ErrAnew says that the places cannot be used. After any other error the
// keys may be there or not.
func (c *call) put(ctx context.Context) (*Hold, error) {
	keys, values := c.keys, make([]string, len(c.claims))
	retry := attempt.Backoff{Policy: attempt.Put, Own: true}
	for {
		if ctx.Err() != nil {
			return nil, attempt.Cause(ctx)
		}
		for i, o := range c.claims {
			values[i] = o.m.cfg.Texts[o.Kind].Since(time.Now(), o.place.Account.Lease.TTL, o.place.after)
		}
		done := c.s.etcd.Commit(ctx, &retry, keys.Txn(values...))
		if h, known, err := c.entered(keys, done); known {
			c.keys = nil // it is for one put
			return h, err
		}
		if done.Err != nil {
			if err := c.retryPut(ctx, done.Err, &retry); err != nil {
				return nil, err
			}
		}
	}
}

// entered has the tickets judge the answer to their put, and begins the holds if no contender is
// ahead. It returns what put returns, unless known is false: then the put must be sent again.
func (c *call) entered(keys ticket.Put, done etcd.Outcome) (h *Hold, known bool, err error) {
	s, answer := c.s, done.Answer
	keys.Read(answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	entrance := keys.Judge(answer)
	c.first.place.Account.AnsweredLocked(answer, done.Prompt)
	for i, o := range c.claims {
		if ahead := keys.Ahead(i); o.place.Ticket.State() == ticket.InLine {
			o.place.QueuedLocked(ahead, done.Epoch)
		} else {
			o.place.KnowsLocked(ahead)
		}
	}
	switch entrance {
	case ticket.Unsure:
		return nil, false, nil
	case ticket.Taken:
		err = c.endTryLocked()
	case ticket.Useless:
		err = queue.ErrAnew
	case ticket.Queued:
		if h, err = c.beginLocked(); err == errs.SetBack || err == errDelayed { // c has to wait
			err = nil
			for _, o := range c.claims {
				o.beginsToAskLocked()
			}
		}
	}
	c.first.LastErr = nil
	return h, true, err
}

// retryPut decides what follows an error of put: it returns nil after a pause if the put must be
// repeated.
//
// (Do not leave the pause to the window of the puts: any answer ends that, and a put that alone
// fails is sent as often as others are answered. TestAPutThatAloneFailsIsRareAndSlowsNoOther.)
func (c *call) retryPut(ctx context.Context, err error, retry *attempt.Backoff) error {
	s, l := c.s, c.first.place.Account.Lease
	switch {
	case ctx.Err() != nil:
		return attempt.Cause(ctx)
	case attempt.Is(err, rpctypes.ErrLeaseNotFound):
		s.mu.Lock()
		l.EndRevokedLocked(err)
		s.mu.Unlock()
		return queue.ErrAnew
	case attempt.Refused(err), attempt.Fallen(err) != nil:
		return err
	case s.etcd.Closed():
		return attempt.ErrClientClosed
	}
	c.first.LastErr = err
	if err := retry.Wait(ctx, s.etcd.Caller); err != nil {
		return err
	}
	if l.IsDead() {
		return queue.ErrAnew
	}
	return nil
}

// wait waits until no contender is ahead of any place. It returns nil then, and otherwise what
// Waiter.Wait returns.
func (c *call) wait(ctx context.Context) error {
	if len(c.claims) > 1 {
		return waitForAll(ctx, c)
	}
	return c.first.Wait(ctx, &c.first.place.Place, c.first.tellQueued)
}

// delayLocked is for how long none of the holds may begin, because etcd was set back.
func (c *call) delayLocked() (delay time.Duration) {
	for _, o := range c.claims {
		if o.place.hold == nil { // else it was handed off
			delay = max(delay, o.local.DelayLocked(time.Now(), o.Kind).Lasts)
		}
	}
	return delay
}

// tellQueued tells the Trace what is ahead of c in etcd's line, if nothing was in the local line. A
// call that only tries does not queue.
func (c *claim) tellQueued() {
	ahead, _ := c.place.Predecessors()
	if ahead.Count() == 0 || c.ahead > 0 || c.Try {
		return
	}
	c.ahead = ahead.Count()
	c.reportQueued(busyBehind(c.m.name, ahead, queue.LockDelay{}))
}

// beginLocked makes holds of the claims at their places, which are first in their lines, and
// returns the first hold: all begin, or none. The error is SetBack if the lines must be read
// first, and otherwise what checkCanBeginLocked returns.
func (c *call) beginLocked() (*Hold, error) {
	now := time.Now()
	for _, o := range c.claims {
		err := o.place.checkCanBeginLocked(o, now)
		if (err == nil || err == errDelayed) && !o.place.Ahead.Clear() {
			err = errs.SetBack
		}
		if err != nil {
			return nil, err
		}
	}
	for _, o := range c.claims {
		o.place.newHoldLocked(o, c.first.hold, now)
	}
	if len(c.claims) > 1 {
		endTogetherLocked(c)
	}
	for _, o := range c.claims {
		o.local.queue.Hold(&o.waiter)
		o.local.MarkLocked()
		if r := o.place.Recall; r != nil { // while it waited
			o.hold.recall.noticeLocked(o.hold, *r, now)
		}
	}
	return c.first.hold, nil
}

// endTryLocked ends a call that only tries, if it is certain that a contender stands in its way and
// that no request can have put a key: the claims leave their lines, and the call returns the error.
// Otherwise it does nothing, and returns ErrTaken.
func (c *call) endTryLocked() error {
	mayBeThere := func(o *claim) bool { return o.place.Ticket.State() != ticket.Unsent }
	locked, goes := c.inWayLocked()
	if locked == nil || goes != nil || slices.ContainsFunc(c.claims, mayBeThere) {
		return queue.ErrTaken
	}
	for _, o := range c.claims {
		o.place.NeverPutLocked()
		o.place = nil
		o.endsWaitLocked()
		o.local.endTurnLocked(o, nil)
	}
	return errs.Locked(locked)
}

// inWayLocked returns what is in the way of a call that only tries: the contender before it, in the
// first line that has one. If that is a key that its Session has given up, goes is closed once the
// key is removed. The call waits for that: it is a wait for etcd, and for no other contender.
//
// The result is nil for a key of the Session that no place accounts for: it has gone since it was
// read, or a late request has put it and an audit is about to remove it. (Do not refuse the call
// for it. TestATryIsNotRefusedForAKeyOfItsOwnSessionThatHasGone.)
func (c *call) inWayLocked() (locked *Busy, goes <-chan struct{}) {
	first, before := c.first, line.Entry{}
	for _, o := range c.claims {
		e := o.place.Ahead.Holder()
		if last := o.place.Ahead.Last; len(last) > 0 {
			e = last[0]
		}
		if e.Rev != 0 {
			first, before = o, e
			break
		}
	}
	goes, orphan := c.s.keys.OwnLocked(before)
	if orphan {
		return nil, nil
	}
	delay := first.local.DelayLocked(time.Now(), first.Kind)
	return first.local.busyBehindLocked(*first.place.Ahead, delay), goes
}

// leavePlacesLocked gives up the places after an attempt that has failed. With tells, their
// removals also read what was ahead of them. The channels are closed when the keys are gone.
func (c *call) leavePlacesLocked(tells bool) (removed []<-chan struct{}) {
	c.keys = nil
	for _, o := range c.claims {
		switch p := o.place; {
		case p == nil:
		case p.GivenUpLocked(): // that of an earlier attempt: there was no lease for another
			o.place = nil
		default:
			removed = append(removed, p.AbandonLocked(queue.Removal{Tells: tells}))
		}
	}
	return removed
}

// awaitGrace waits a little for the removal of keys. The removal is usually over at once, and
// its answer brings the line up to date.
func awaitGrace(removed []<-chan struct{}) {
	grace := time.NewTimer(removalGrace)
	defer grace.Stop()
	for _, r := range removed {
		select {
		case <-r:
		case <-grace.C:
			return
		}
	}
}

// leave takes the claims out of their local lines, or passes their turns on. locked is what is
// ahead of the first claim that waits for something. If the only claim got a hold at the same
// moment it keeps the hold, and leave returns it: other holds may share its key by now.
func (c *call) leave() (h *Hold, locked *Busy) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, o := range c.claims {
		kept, inWay := o.leaveLocked()
		if h = kept; locked == nil {
			locked = inWay
		}
	}
	return h, locked
}

// gaveUp returns the error of a call that failed because of why. locked is what was in its way, nil
// if unknown; away is why etcd does not answer.
func (c *call) gaveUp(ctx context.Context, why error, locked *Busy, away error) error {
	name := c.first.m.name
	if locked != nil {
		name = locked.Name
	}
	refused, ok := attempt.Cause(ctx).(*refusal)
	switch {
	case ok && refused.answer != nil:
		return errs.Failed("lock", name, refused.answer)
	case ok && locked != nil:
		return errs.Locked(locked)
	case ok:
		return errs.Locked(&Busy{Name: name, Ahead: 1})
	case ctx.Err() == nil:
		return errs.Failed("lock", name, why)
	}
	var lastErr error
	for _, o := range c.claims {
		if lastErr == nil {
			lastErr = o.LastErr
		}
	}
	return errs.WaitFailed(ctx, name, locked, away, lastErr)
}

// within is a context that comes from ctx and ends after most, the bound of something.
func within(
	ctx context.Context, most time.Duration, of string,
) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, most, &attempt.BoundError{Of: of, Most: most})
}
