package etcdlock

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// removalGrace is how long a wait that failed waits for its key to be removed.
const removalGrace = 25 * time.Millisecond

// A call is one that locks, as its claims: one for each of its names, in their order. Lock has one,
// and LockAll as many as it has names. What only several claims need is in lockall.go.
//
// Invariant: a claim that has a key waits only for keys of lower revisions, and all keys of a call
// have one. A claim without a key waits only for earlier ones of its Session: a call enters all its
// local lines in one critical section, and puts its keys, in one transaction, once it owns the
// turns of all. So no call waits in a circle. A key of the Session that is handed off, lingers, or
// is put with a release has a revision of its own: LockAll never gets one. (Do not put a key while
// another claim waits for its turn, and do not take one over. TestSeveralNamesNeverWaitInACircle,
// TestLockAllTakesOverNoKey.)
type call []*claim

// lock is acquire of a call with ctx, and tells the Trace how the call begins and how it ends. It
// returns the first hold, and the context of the call: ctx, or what the Trace has made of it.
func (a call) lock(ctx context.Context) (*hold, context.Context, error) {
	began, trace := time.Now(), a[0].m.cfg.trace
	if trace.Start != nil {
		ctx = trace.start(ctx, a.event())
	}
	for _, c := range a {
		c.caller, c.started = ctx, began
	}
	h, err := a.acquire(ctx)
	if err != nil {
		if a[0].runs {
			err = notRun(err)
		}
		for _, c := range a {
			report(&c.m.s.hooks, trace.GaveUp, ctx,
				GaveUpEvent{c.m.name, time.Since(began), c.ahead, err})
		}
		return nil, nil, err
	}
	return h, trace.holds(ctx, h.waited()), nil
}

// event is a as the Trace is told that it begins.
func (a call) event() StartEvent {
	c := a[0]
	e := StartEvent{
		Name: c.m.name, Mode: modeOf(c.Kind), Weight: max(1, int(c.Weight)), Try: c.Try,
	}
	if c.together {
		for _, c := range a {
			e.Names = append(e.Names, c.m.name)
		}
	}
	return e
}

// acquire takes the claims through their local lines, puts their keys, waits until these are first
// in etcd's lines, and begins the holds, of which it returns the first. After an error no claim is
// in a line, and its key, if it may exist, is being removed.
func (a call) acquire(ctx context.Context) (*hold, error) {
	if h := a[0].holdAtOnce(); h != nil {
		return h, nil
	}
	ctx, cancel, over := a.bounded(ctx)
	defer over()
	if err := a.enter(cancel); err != nil {
		return nil, err
	}
	for _, c := range a {
		if c.turn == nil {
			continue // it had it at once
		}
		select {
		case <-c.turn:
		case <-ctx.Done():
			// What comes through turn after this is passed on by leaveLocked.
			h, locked := a.leave()
			if h == nil {
				return nil, a.gaveUp(ctx, context.Cause(ctx), locked, c.m.s.etcd.Unavailable())
			}
			return h, nil
		}
	}
	if h := a[0].hold; h != nil { // it has joined a cohort, or taken over a key
		return h, nil
	}
	var anew attempt.Backoff
	for placed := a[0].place != nil; ; placed = false {
		h, err := a.advance(ctx, placed)
		if err == nil {
			return h, nil
		}
		if err := a.retreat(ctx, err, &anew); err != nil {
			return nil, err
		}
	}
}

// retreat gives up the places after an attempt that has failed. It returns nil, after a pause, if
// the call takes new ones. Otherwise it passes the turns on, and returns the error of the call.
func (a call) retreat(ctx context.Context, err error, anew *attempt.Backoff) error {
	s := a[0].m.s
	var taken *LockedError
	var goes <-chan struct{}
	if err == queue.ErrTaken {
		if taken, goes = a.taken(); taken == nil {
			err = queue.ErrAnew
		}
	}
	away := s.etcd.Unavailable()
	if ctx.Err() != nil {
		if locked, done := a[0].handDown(); done {
			return a.gaveUp(ctx, err, locked, away)
		}
	}
	removed := a.leavePlaces(ctx.Err() != nil)
	if err == queue.ErrAnew && anew.Wait(ctx, s.etcd.Caller) == nil || isRemoved(ctx, goes) {
		return nil
	}
	if ctx.Err() != nil {
		awaitGrace(removed)
	}
	if _, locked := a.leave(); taken == nil {
		return a.gaveUp(ctx, err, locked, away)
	}
	return taken
}

// bounded is the context of a wait of a call with ctx, and what ends it. over is to be called when
// the wait is over.
func (a call) bounded(ctx context.Context) (
	waiting context.Context, cancel context.CancelCauseFunc, over func(),
) {
	m := a[0].m
	stop := func() {}
	most, of := m.cfg.acquireTimeout, "WithAcquireTimeout" // 0: none
	if _, bounded := ctx.Deadline(); a[0].Try && !bounded && (most == 0 || m.s.cfg.ttl < most) {
		most, of = m.s.cfg.ttl, "a try without a deadline"
	}
	if most > 0 {
		ctx, stop = context.WithTimeoutCause(ctx, most, &attempt.BoundError{Of: of, Most: most})
	}
	ctx, end := context.WithCancelCause(ctx)
	waits := &m.s.etcd.Waits
	waits.Add(1)
	return ctx, end, func() { waits.Add(-1); end(nil); stop() }
}

// enter puts the claims into their local lines, all at once, and takes their places if all own
// their turns. TryLock gets a LockedError if a line is taken. So do TryRLock and TryAcquire, unless
// it may be etcd alone that they wait for. So does each of them, without a request, if no hold may
// begin because etcd was set back.
func (a call) enter(cancel context.CancelCauseFunc) error {
	m, s := a[0].m, a[0].m.s
	clientClosed := s.etcd.Closed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases.ClosedLocked() || m.closed {
		return failed("lock", m.name, ErrClosed)
	}
	for _, c := range a {
		n := s.lines[c.m.name]
		if c.Try && n != nil && n.queue.Owner() != nil && !n.mayAdmitLocked(c) {
			return n.lockedErrorLocked(nil)
		}
		if !c.Try {
			continue
		}
		if delay := c.delayOfTryLocked(n); delay > 0 {
			return lockedBehind(c.m.name, line.None, delay)
		}
	}
	if clientClosed {
		return failed("lock", m.name, attempt.ErrClientClosed)
	}
	own := true
	for _, c := range a {
		c.local = lineAtLocked(s, c.m.name)
		c.enterLocked(c.wayInLocked(), cancel)
		own = own && c.waiter.Standing() == turn.Owner
	}
	if own {
		a.takePlacesLocked()
	}
	return nil
}

// holdAtOnce is the hold of c if it gets one without a wait for anything, etcd included, and
// otherwise nil.
func (c *claim) holdAtOnce() *hold {
	s := c.m.s
	if !c.reads() && (!c.exclusive() || c.m.cfg.linger == 0) {
		return nil // it is rare, and enter sees to it
	}
	clientClosed := s.etcd.Closed()
	s.mu.Lock()
	defer s.mu.Unlock()
	closed := clientClosed || s.leases.ClosedLocked() || c.m.closed
	if c.local = s.lines[c.m.name]; c.local == nil || closed {
		return nil
	}
	if way := c.wayInLocked(); way == joins || way == takesOver {
		c.enterLocked(way, nil)
	}
	return c.hold
}

// takePlacesLocked takes a place for each claim, all on one lease. It reports false if there is no
// lease for them.
func (a call) takePlacesLocked() bool {
	k := a[0].m.s.keys.AccountLocked()
	if k == nil {
		return false
	}
	for _, c := range a {
		c.place = newPlaceLocked(c, k)
	}
	return true
}

// advance takes places, unless the claims are placed, puts their keys, unless these stand in line,
// waits for the contenders ahead of them, and begins the holds. The error is queue.ErrTaken if the
// call only tries and a contender is ahead, and queue.ErrAnew if a place is lost.
func (a call) advance(ctx context.Context, placed bool) (*hold, error) {
	if !placed {
		failure, err := a[0].m.s.leases.Take(ctx, a.takePlacesLocked)
		if err == nil || failure != nil {
			a[0].LastErr = failure
		}
		if err != nil {
			return nil, err
		}
	}
	if a[0].place.Ticket.Rev() == 0 {
		if h, err := a.put(ctx); h != nil || err != nil {
			return h, err
		}
	}
	for {
		if err := a.wait(ctx); err != nil {
			return nil, err
		}
		if h, err := a.begin(); err != errSetBack { // what was read says nothing now: wait reads again
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
func (a call) put(ctx context.Context) (*hold, error) {
	var one [1]ticket.Entering
	entering, values := a.entering(one[:0]), make([]string, len(a))
	retry := attempt.Backoff{Policy: attempt.Put}
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for i, c := range a {
			values[i] = c.place.value()
		}
		done := a[0].m.s.etcd.Commit(ctx, &retry, entering.Txn(values))
		if h, known, err := a.entered(entering, done); known {
			return h, err
		}
		if done.Err != nil {
			if err := a.retryPut(ctx, done.Err, &retry); err != nil {
				return nil, err
			}
		}
	}
}

// entering begins to put the keys. It appends to e.
func (a call) entering(e ticket.Several) ticket.Several {
	tickets := make([]*ticket.Ticket, len(a))
	for i, c := range a {
		tickets[i] = &c.place.Ticket
	}
	e = ticket.EnterAll(e, tickets, a[0].Try, a[0].m.cfg.trace.Queued != nil)
	if len(a) == 1 {
		if crowded, last := a[0].place.ExpectsCrowd(); crowded {
			e[0].Crowd(last)
		}
	}
	return e
}

// entered has the tickets judge the answer to their put, and begins the holds if no contender is
// ahead. It returns what put returns, unless known is false: then the put must be sent again.
func (a call) entered(entering ticket.Several, done etcd.Outcome) (h *hold, known bool, err error) {
	s, answer := a[0].m.s, done.Answer
	entering.Read(answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	entrance := entering.Judge(answer)
	a[0].place.Account.AnsweredLocked(answer, done.Prompt)
	for i, c := range a {
		if ahead := entering.Ahead(i); c.place.Ticket.State() == ticket.InLine {
			c.place.QueuedLocked(ahead, done.Epoch)
		} else {
			c.place.Ahead = ahead
			c.place.MeetsLocked(ahead)
		}
	}
	switch entrance {
	case ticket.Unsure:
		return nil, false, nil
	case ticket.Taken:
		err = queue.ErrTaken
	case ticket.Useless:
		err = queue.ErrAnew
	case ticket.Queued:
		if h, err = a.beginLocked(); err == errSetBack { // contenders are ahead
			err = nil
			for _, c := range a {
				beginsToAskLocked(c)
			}
		}
	}
	a[0].LastErr = nil
	return h, true, err
}

// retryPut decides what follows an error of put: it returns nil after a pause if the put must be
// repeated.
func (a call) retryPut(ctx context.Context, err error, retry *attempt.Backoff) error {
	s, l := a[0].m.s, a[0].place.Lease
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case attempt.Is(err, rpctypes.ErrLeaseNotFound):
		s.mu.Lock()
		l.EndRevokedLocked(err)
		s.mu.Unlock()
		return queue.ErrAnew
	case attempt.Refused(err):
		return err
	case s.etcd.Closed():
		return attempt.ErrClientClosed
	}
	a[0].LastErr = err
	if err := retry.Wait(ctx, s.etcd.Caller); err != nil {
		return err
	}
	if l.IsDead() {
		return queue.ErrAnew
	}
	return nil
}

// wait waits until no contender is ahead of any place, and the lock delay is over. It returns nil
// then, and otherwise what place.wait returns.
func (a call) wait(ctx context.Context) error {
	if len(a) > 1 {
		return a.waitForAll(ctx)
	}
	if err := a[0].wait(ctx); err != nil {
		return err
	}
	delay := a.delay()
	switch {
	case delay == 0:
		return nil
	case a[0].Try:
		return queue.ErrTaken
	default:
		return a[0].Waiter.StayFirstFor(ctx, &a[0].place.Place, delay)
	}
}

// delay is for how long no hold of a may begin, because etcd was set back.
func (a call) delay() (delay time.Duration) {
	s := a[0].m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range a {
		if c.place.hold == nil { // else it was handed off
			delay = max(delay, c.local.DelayLocked(time.Now()))
		}
	}
	return delay
}

// wait waits until no contender is ahead of c's place.
func (c *claim) wait(ctx context.Context) error {
	return c.Waiter.Wait(ctx, &c.place.Place, c.tellQueued)
}

// tellQueued tells the Trace what is ahead of c in etcd's line, if nothing was in the local line. A
// call that only tries does not queue.
func (c *claim) tellQueued() {
	ahead, _ := c.place.Rivals()
	if ahead.Count() == 0 || c.ahead > 0 || c.Try {
		return
	}
	c.ahead = ahead.Count()
	c.reportQueued(func() Contender { return holderOf(c.m.name, ahead) })
}

// begin is beginLocked for callers that do not hold mu.
func (a call) begin() (*hold, error) {
	a[0].m.s.mu.Lock()
	defer a[0].m.s.mu.Unlock()
	return a.beginLocked()
}

// beginLocked makes holds of the claims at their places, which are first in their lines, and
// returns the first hold: all begin, or none. The error is errSetBack if the lines must be read
// first, and queue.ErrAnew if a place is lost: a hold never begins after its end.
func (a call) beginLocked() (*hold, error) {
	now := time.Now()
	for _, c := range a {
		if err := c.place.checkCanBeginLocked(c, now); err != nil {
			return nil, err
		}
		if !c.place.Ahead.Clear() {
			return nil, errSetBack
		}
	}
	if len(a) == 1 {
		a[0].place.newHoldLocked(a[0], now)
	} else {
		a.beginTogetherLocked(now)
	}
	for _, c := range a {
		if r := c.place.Recall; r != nil { // while it waited
			c.hold.recall.noticeLocked(c.hold, *r, now)
		}
	}
	for _, c := range a {
		c.local.queue.Hold(&c.waiter)
		c.local.MarkLocked()
	}
	return a[0].hold, nil
}

// taken is the error of a call that only tries, for the first of its names in whose line a
// contender is before it. If that is a key of the Session's own, of a hold or wait that has ended,
// TryLock waits for etcd, and for no other contender: until goes is closed, if it is not nil.
//
// The result is nil for a key that no place accounts for: it has gone since it was read, or a late
// request has put it and an audit is about to remove it. (Do not refuse the call for it.
// TestATryIsNotRefusedForAKeyOfItsOwnSessionThatHasGone.)
func (a call) taken() (locked *LockedError, goes <-chan struct{}) {
	s := a[0].m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	first, before := a[0], line.Entry{}
	for _, c := range a {
		e := c.place.Ahead.Holder()
		if last := c.place.Ahead.Last; len(last) > 0 {
			e = last[0]
		}
		if e.Rev != 0 {
			first, before = c, e
			break
		}
	}
	goes, orphan := s.keys.OwnLocked(before)
	if orphan {
		return nil, nil
	}
	delay := first.local.DelayLocked(time.Now())
	return lockedBehind(first.m.name, first.place.Ahead, delay), goes
}

// isRemoved waits until goes is closed, and reports whether it is. A nil one never is.
func isRemoved(ctx context.Context, goes <-chan struct{}) bool {
	if goes == nil {
		return false
	}
	select {
	case <-goes:
		return true
	case <-ctx.Done():
		return false
	}
}

// leavePlaces gives up the places after an attempt that has failed. With tells, their removals also
// read what was ahead of them. The channels are closed when the keys are gone.
func (a call) leavePlaces(tells bool) (removed []<-chan struct{}) {
	a[0].m.s.mu.Lock()
	defer a[0].m.s.mu.Unlock()
	for _, c := range a {
		switch p := c.place; {
		case p == nil:
		case p.GivenUpLocked(): // that of an earlier attempt: there was no lease for another
			c.place = nil
		default:
			p.Removal.Tells = tells
			removed = append(removed, p.AbandonLocked(false))
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

// leave takes the claims out of their local lines, or passes their turns on. locked tells what is
// ahead of the first claim that has something ahead. If the only claim got a hold at the same
// moment it keeps that: other holds may share its key by now.
func (a call) leave() (h *hold, locked *LockedError) {
	a[0].m.s.mu.Lock()
	defer a[0].m.s.mu.Unlock()
	for _, c := range a {
		kept, inWay := c.leaveLocked()
		if h = kept; locked == nil {
			locked = inWay
		}
	}
	return h, locked
}

// gaveUp is the error of a call that has given up for why. locked tells what was in its way, and
// away why etcd does not answer.
func (a call) gaveUp(ctx context.Context, why error, locked *LockedError, away error) error {
	name := a[0].m.name
	if locked != nil {
		name = locked.Name
	}
	refused, ok := context.Cause(ctx).(*refusal)
	switch {
	case ok && refused.answer != nil:
		return failed("lock", name, refused.answer)
	case ok && locked != nil:
		return locked
	case ok:
		return &LockedError{Name: name, Holder: Contender{Name: name}, Ahead: 1}
	case ctx.Err() == nil:
		return failed("lock", name, why)
	}
	var lastErr error
	for _, c := range a {
		if lastErr == nil {
			lastErr = c.LastErr
		}
	}
	return waitFailed(ctx, name, locked, away, lastErr)
}
