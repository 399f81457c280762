package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// maxNames is the most names of a LockAll. Its put has three operations for each, and etcd allows
// 128 in a transaction by default.
const maxNames = 32

// LockAll waits until it holds the locks of all the names: 1 to 32, each once. ctx bounds the wait
// only. Uncontended it is one request to etcd, and so is the Hold's Unlock.
//
// It takes all of them or none. It stands in the line of each name, first come, first served, and
// cannot deadlock with any other LockAll or Lock, in whatever order they have their names. (It can
// if the caller holds something while it waits, as with any lock.) While it waits for one name it
// keeps its places in the lines of the others, so the others wait for it, and it counts as the
// holder of those names at which it is the first.
//
// After a nil error the caller holds all names until it calls Unlock on the Hold. They have one
// token, and they end together: if one is lost all are, and the contexts of the Hold end with the
// [*LostError] of that name. After an error nothing is held and nothing is left behind that could
// block others. An error about the names (none, too many, one twice, one that no lock may have)
// comes at once, before anything was sent. The others are those of [Mutex.Lock]; one about a wait
// names the first name that is in the way, and [ErrDeadlock] the name that ctx comes from a hold
// of, also with [WithReentrancy].
//
// The options are those of the Session, without [WithHandoff] and [WithLinger]: LockAll takes over
// no key. The hooks of its Trace are called for each name.
func (s *Session) LockAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.lockAll(ctx, names, false)
}

// TryLockAll takes the locks of all the names if nobody holds or waits for any of them. Like
// [Mutex.TryLock] it waits for etcd, but for no other contender. If one is taken it returns the
// [*LockedError] of the first that is, for which errors.Is(err, ErrLocked) is true, and has written
// nothing to etcd (but see [Mutex.TryLock] about nested names). It looks at this Session first, and asks
// etcd only if none is taken there.
// Other errors are those of [Session.LockAll].
func (s *Session) TryLockAll(ctx context.Context, names ...string) (*Hold, error) {
	return s.lockAll(ctx, names, true)
}

// DoAll is [Mutex.Do] with LockAll: it calls fn while it holds all the names, with a context that
// ends if one of them is lost. [TokenFrom] has the token of all.
func (s *Session) DoAll(
	ctx context.Context, names []string, fn func(ctx context.Context) error,
) error {
	if fn == nil {
		return notRun(errors.New("etcdlock: DoAll: nil function"))
	}
	h, err := s.lockAll(ctx, names, false)
	if err != nil {
		return notRun(err)
	}
	return during(ctx, h.hold, fn, func() error { return h.Unlock(ctx) })
}

// A several is one call of LockAll or TryLockAll: a claim for each name, each in its local line and
// then with a place in etcd's.
//
// Invariant: a claim that has a key waits only for keys of lower revisions, and all keys of a
// several have one. A claim without a key waits only for earlier ones of its Session: a several
// enters all its local lines in one critical section, and puts its keys, in one transaction, once
// it owns the turns of all. So nobody waits in a circle. A key of the Session that is handed off,
// lingers, or is put with a release has a revision of its own: a several never gets one. (Do not
// put a key while another claim waits for its turn, and do not take one over.
// TestSeveralNamesNeverWaitInACircle, TestLockAllTakesOverNoKey.)
//
// Its places are given up together, and it takes new ones, if one is lost.
type several struct {
	s      *Session
	m      *lockHandle // of the first name: the options of all
	try    bool
	claims []*claim
	places []*place // of the claims, in their order; nil while there are none
}

func (s *Session) lockAll(ctx context.Context, names []string, try bool) (*Hold, error) {
	if s == nil || s.etcd == nil {
		return nil, errors.New("etcdlock: Session not made with NewSession")
	}
	if err := checkNames(names); err != nil {
		return nil, err
	}
	if err := checkContext(ctx, "lock", names[0]); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, waitFailed(ctx, names[0], nil, nil, nil)
	}
	cfg := *s.cfg
	cfg.handoff, cfg.linger = 0, 0
	parties := make([]*lockHandle, len(names))
	for i, name := range names {
		parties[i] = &lockHandle{s: s, name: name, cfg: &cfg}
		if parties[i].nestsIn(ctx) != nil {
			return nil, failed("lock", name, ErrDeadlock)
		}
	}
	started := time.Now()
	a := &several{s: s, m: parties[0], try: try}
	h, err := a.queue(ctx, parties, started)
	if err == nil {
		return &Hold{m: h.m, hold: h}, nil
	}
	for i, m := range parties {
		ahead := 0
		if i < len(a.claims) {
			ahead = a.claims[i].ahead
		}
		m.trace().gaveUp(ctx, m.name, time.Since(started), ahead, err)
	}
	return nil, err
}

// checkNames returns an error if names cannot be those of a LockAll.
func checkNames(names []string) error {
	switch n := len(names); {
	case n == 0:
		return errors.New("etcdlock: LockAll: no names")
	case n > maxNames:
		return fmt.Errorf("etcdlock: LockAll: %d names, more than %d", n, maxNames)
	}
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("etcdlock: LockAll: name %s twice", excerpt(name, maxNameLen))
		}
		seen[name] = true
	}
	return nil
}

// queue waits in all lines. It returns the hold of the first name.
func (a *several) queue(
	caller context.Context, parties []*lockHandle, started time.Time,
) (*hold, error) {
	ctx, cancel, over := a.m.bounded(caller, a.try)
	defer over()
	if err := a.enter(caller, cancel, parties, started); err != nil {
		return nil, err
	}
	for _, c := range a.claims {
		if c.turn == nil {
			continue // it had it at once
		}
		select {
		case <-c.turn:
		case <-ctx.Done():
			return nil, a.giveUp(ctx, context.Cause(ctx), nil)
		}
	}
	return a.acquire(ctx)
}

// enter puts a claim into each local line, all at once: so whoever comes before one of them comes
// before all in the lines that they share.
func (a *several) enter(
	caller context.Context, cancel context.CancelCauseFunc, parties []*lockHandle, started time.Time,
) error {
	s := a.s
	clientClosed := s.clientClosed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return failed("lock", a.m.name, ErrClosed)
	}
	for _, m := range parties {
		if n := s.lines[m.name]; a.try && n != nil && n.queue.Owner() != nil {
			return n.lockedErrorLocked(nil)
		}
	}
	if clientClosed {
		return failed("lock", a.m.name, errClientClosed)
	}
	for _, m := range parties {
		n := s.lineLocked(m.name)
		c := request{m: m, try: a.try}.newClaim(caller, n, started, cancel)
		c.together = true
		n.giveWayLocked()
		if n.queue.Owner() != nil {
			locked := n.lockedErrorLocked(nil)
			c.ahead = locked.Ahead
			m.trace().queued(caller, m.name, c.ahead, locked.Holder)
		}
		c.enterLocked()
		a.claims = append(a.claims, c)
	}
	return nil
}

// acquire takes the claims, whose turns have come, to the heads of etcd's lines. On an error it
// passes the turns on.
func (a *several) acquire(ctx context.Context) (*hold, error) {
	var anew attempt.Backoff
	for {
		h, taken, err := a.advance(ctx)
		if err == nil {
			return h, nil
		}
		var removed []<-chan struct{}
		for _, p := range a.places {
			removed = append(removed, p.leave(ctx.Err() != nil))
		}
		first, isTaken := firstAhead(taken)
		if a.s.requeues(ctx, err, first, &anew) {
			a.places = nil
			continue
		}
		if ctx.Err() != nil {
			awaitGrace(removed...)
		}
		if err == errTaken {
			err = a.lockedBy(isTaken, first)
		}
		return nil, a.giveUp(ctx, err, a.places)
	}
}

// firstAhead is the first that is not clear, and which it is.
func firstAhead(ahead []line.Ahead) (line.Ahead, int) {
	for i, those := range ahead {
		if those.Count() > 0 {
			return those, i
		}
	}
	return line.None, 0
}

// lockedBy is the error of TryLockAll if it found others in the line of its i-th name.
func (a *several) lockedBy(i int, ahead line.Ahead) error {
	locked := &LockedError{Name: a.claims[i].m.name}
	locked.behind(ahead)
	return locked
}

// advance takes places, puts their keys, waits for those ahead of them, and makes holds of them. It
// returns the hold of the first. taken is whom TryLockAll found in the lines, if the error is
// errTaken.
func (a *several) advance(ctx context.Context) (h *hold, taken []line.Ahead, err error) {
	if err := a.s.onLease(ctx, a.claims[0], a.takePlacesLocked); err != nil {
		return nil, nil, err
	}
	h, taken, err = a.put(ctx)
	for h == nil && err == nil {
		switch err = a.wait(ctx); err {
		case nil:
			h, err = a.begin()
		case errTaken:
			for _, p := range a.places {
				ahead, _ := p.rivals()
				if ahead.Unread() { // another one was taken meanwhile
					ahead = line.None
				}
				taken = append(taken, ahead)
			}
		}
		if err == errSetBack { // who was ahead says nothing now: wait reads the lines
			err = nil
		}
	}
	return h, taken, err
}

// takePlacesLocked takes a place for each claim, all on one lease. It reports false if there is
// none.
func (a *several) takePlacesLocked() bool {
	if !a.s.usableLocked() {
		return false
	}
	for _, c := range a.claims {
		c.place = a.s.newPlaceLocked(c)
		a.places = append(a.places, c.place)
	}
	return true
}

// put puts all keys, as place.queue puts one. A nil error says that all stand in line: with holds
// at them if nobody is ahead of any.
func (a *several) put(ctx context.Context) (h *hold, taken []line.Ahead, err error) {
	tickets := make([]*ticket.Ticket, len(a.places))
	for i, p := range a.places {
		tickets[i] = &p.ticket
	}
	entering := ticket.EnterAll(tickets, a.try, a.m.cfg.trace.tellsQueued())
	txn := func() ticket.Txn {
		values := make([]string, len(a.places))
		for i, p := range a.places {
			values[i] = p.value()
		}
		return entering.Txn(values)
	}
	err = a.places[0].put(ctx, a.claims[0], txn, func(done etcd.Outcome) (err error) {
		h, taken, err = a.entered(&entering, done)
		return err
	})
	return h, taken, err
}

// entered is place.entered for all.
func (a *several) entered(entering *ticket.Several, done etcd.Outcome) (
	h *hold, taken []line.Ahead, err error,
) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	answer := done.Answer()
	entrance, ahead := entering.Judge(answer)
	a.places[0].lease.putLocked(answer, done.Prompt)
	if entrance != ticket.Unsure {
		a.claims[0].lastErr = nil
	}
	switch entrance {
	case ticket.Unsure:
		return nil, nil, errUnsure
	case ticket.Taken:
		return nil, ahead, errTaken
	case ticket.Useless:
		return nil, nil, errQueueAnew
	}
	clear := true
	for i, p := range a.places {
		p.queuedLocked(ahead[i], done.Epoch)
		clear = clear && ahead[i].Clear()
	}
	if !clear {
		return nil, nil, nil
	}
	h, err = a.beginLocked()
	if err == errSetBack {
		return nil, nil, nil
	}
	return h, nil, err
}

// wait waits until nobody is ahead of any place. It returns nil then, errQueueAnew if one of the
// keys or the lease is gone, errTaken if somebody is ahead of one and a only tries, the cause of
// ctx when ctx ends, or an error that a retry does not fix.
func (a *several) wait(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var others, all sync.WaitGroup // all: those that are not yet first in their lines
	first := make(chan struct{})
	all.Add(len(a.places))
	for i, p := range a.places {
		others.Go(func() {
			err := a.claims[i].waitAt(ctx, p)
			all.Done()
			if err == nil {
				err = p.staysFirst(ctx, a.claims[i], first)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	close(first)
	others.Wait()
	return context.Cause(ctx)
}

// waitAt waits until nobody is ahead of p.
func (c *claim) waitAt(ctx context.Context, p *place) error {
	if err := p.readOn(ctx, c); err != nil {
		return err
	}
	c.tellQueued(p)
	return p.wait(ctx, c)
}

// staysFirst waits, at the head of the line, for the other places of p's call: until all are first,
// which is nil, or p is lost.
//
// The ticket is Held meanwhile, as that of a hold is, and so the key is watched and audited as that
// of a hold: whoever gets in after it is deleted, the call does not rely on it for longer than a
// hold would. (TestAKeyOfSeveralThatIsDeletedIsMissed.)
func (p *place) staysFirst(ctx context.Context, c *claim, all <-chan struct{}) error {
	for {
		p.standsFirst()
		select {
		case <-all:
			return nil
		case <-p.news:
			if p.isGone() {
				return errQueueAnew
			}
			if err := p.wait(ctx, c); err != nil { // it reads the line if etcd was set back
				return err
			}
		case <-p.lease.dead:
			return errQueueAnew
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// standsFirst notes that p is at the head of its line.
func (p *place) standsFirst() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.news == nil {
		p.news = make(chan struct{}, 1)
	}
	if p.ticket.Lost() {
		p.tellLocked() // it went before anybody listened
		return
	}
	if p.ticket.State() == ticket.InLine {
		p.ticket.Hold()
		p.held = time.Now()
	}
}

// begin is beginLocked for callers that do not hold mu.
func (a *several) begin() (*hold, error) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.beginLocked()
}

// beginLocked makes a hold of each place, all at the heads of their lines, and returns the first:
// all begin, or none. The errors are those of place.begin.
func (a *several) beginLocked() (*hold, error) {
	now := time.Now()
	for i, p := range a.places {
		if err := p.checkCanBeginLocked(a.claims[i], now); err != nil {
			return nil, err
		}
		if !p.ahead.Clear() {
			return nil, errSetBack
		}
	}
	holds := make([]*hold, len(a.places))
	for i, p := range a.places {
		holds[i] = p.newHoldLocked(a.claims[i], now)
		holds[i].all, holds[i].recall = holds, holds[0].recall // who recalls one recalls all
	}
	for i, p := range a.places {
		if p.recall != nil { // while it waited
			holds[i].recallLocked(*p.recall, now)
		}
	}
	for _, c := range a.claims {
		c.holdsLocked()
	}
	return holds[0], nil
}

// giveUp takes all claims out of their lines, or passes their turns on, after the last places were
// given up, if there are any. It returns the error of the call for why.
func (a *several) giveUp(ctx context.Context, why error, last []*place) error {
	var way *LockedError // who is in the way, of the first name that somebody is
	var lastErr error
	away := a.s.etcd.Unavailable()
	a.s.mu.Lock()
	for i, c := range a.claims {
		var locked *LockedError
		if c.waiter.Standing() == turn.Waiting {
			_, locked = c.leaveLocked()
		} else if last != nil {
			locked = c.giveUpLocked(last[i])
		} else {
			locked = c.giveUpLocked(nil)
		}
		if way == nil {
			way = locked
		}
		if lastErr == nil {
			lastErr = c.lastErr
		}
	}
	a.s.mu.Unlock()
	locked, taken := errors.AsType[*LockedError](why)
	name := a.m.name
	if way != nil {
		name = way.Name
	}
	switch {
	case taken:
		return locked
	case ctx.Err() != nil:
		return waitFailed(ctx, name, way, away, lastErr)
	default:
		return failed("lock", name, why)
	}
}
