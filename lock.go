package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// minSweep is the number of lines a Session keeps before it drops unused ones.
const minSweep = 1024

// releaseBound is the longest time that Unlock takes if its context had ended
// before the call. A shorter TTL takes its place.
const releaseBound = 5 * time.Second

// A Mutex is a lock that at most one holds at a time, among all Mutexes of its name
// in all processes that use the same etcd. Make it with [New] or [Session.Mutex];
// the zero Mutex returns errors. Do not copy one: go vet reports it.
//
// All methods are safe for concurrent use. As with sync.Mutex, a hold is not bound
// to a goroutine: any may call Unlock. Unlock synchronizes before the Lock that
// follows it in the same process.
type Mutex struct {
	_ noCopy

	// Set once, then only read.
	s    *Session
	own  bool // Close closes s
	name string
	cfg  *config

	// Guarded by s.mu.
	hold    *hold // the current one, until Unlock or Close, lost or not
	depth   int   // Locks of this Mutex that nest in hold
	closed  bool
	closing *closing // nil unless a call of Close is under way
}

// noCopy makes go vet report a struct that is copied, by what it asks of a sync.Locker.
type noCopy struct{}

// Lock does nothing.
func (*noCopy) Lock() {}

// Unlock does nothing.
func (*noCopy) Unlock() {}

// A hold is the time from a Lock to its Unlock.
//
// Invariant: once cause is set the hold has ended, and it is set before etcd can
// give the lock to another by expiry: with the lease, at trustedUntil.
//
// Invariant: what frees a name (a release, a removal, the revocation of the lease, the next
// turn in the local line) begins only after every context of the hold has been cancelled, and
// with it every context that comes from one of these. The contexts are cancelled without mu,
// so others may be at work meanwhile: whoever frees a name calls endContexts first, and does
// not count on the one who ended the hold. (Do not free a name in the critical section that
// ends the hold. TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn.)
type hold struct {
	// Set once, then only read.
	m     *Mutex
	place *place
	local *localLine
	began time.Time
	most  time.Time   // end by WithMaxHold, zero if there is none
	timer *time.Timer // for most

	// Guarded by Session.mu.
	depth    int                       // Locks that nest, of all Mutexes
	cause    error                     // why it ended, nil while it is whole
	contexts map[*holdContext]struct{} // fixed once cause is set, nil once all have ended
}

// A localLine is what a Session has of one name: the queue of its goroutines, of which the
// owner alone has a place in etcd's line, and what it knows of that line. Session.mu guards it.
type localLine struct {
	name  string
	queue turn.Queue[*claim, *place]
	ahead []line.Entry // before the last place, if it was given up without a hold
	lease *lease       // that slots are used with
	slots [2]*keySlot
	view  *view       // nil while nobody needs one
	due   *time.Timer // calls lingered; nil before a key lingers
}

// A claim is one call of Lock or TryLock.
type claim struct {
	// Set once, then only read.
	m       *Mutex
	local   *localLine
	started time.Time
	turn    chan *place // its turn has come, with the place put for it, or nil

	// Owned by the goroutine of the call, until it holds.
	lastErr error // of etcd, while it is tried again
	ahead   int   // contenders before it when it queued

	// Guarded by Session.mu.
	cancel context.CancelCauseFunc // of its wait, nil once that is over
	place  *place                  // in etcd's line, nil while it has none
	hold   *hold                   // once it holds
	waiter turn.Waiter[*claim]     // in the line's queue
}

// newClaim is a call that has started, and is in no queue yet.
func (m *Mutex) newClaim(l *localLine, started time.Time, cancel context.CancelCauseFunc) *claim {
	c := &claim{m: m, local: l, started: started, cancel: cancel}
	c.waiter.Who = c
	return c
}

// New returns a Mutex for name with a lease of its own, as [NewSession] and
// [Session.Mutex] would make it. It validates name and options and does no I/O.
func New(client *clientv3.Client, name string, opts ...Option) (*Mutex, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s, err := NewSession(client, opts...)
	if err != nil {
		return nil, err
	}
	return &Mutex{s: s, own: true, name: name, cfg: s.cfg}, nil
}

// Lock waits in line until it holds the lock. ctx bounds the wait only: a hold
// outlives it. Uncontended it is one request to etcd.
//
// After nil the caller holds the lock; [Mutex.Context] gives a context that ends
// with the hold. After an error the caller does not, and nothing is left behind
// that could block others: a key that may exist is removed in the background. The
// error is, by errors.Is,
//   - the cause of ctx (and ctx.Err()) if that ended, or context.DeadlineExceeded
//     if the time of [WithAcquireTimeout] did; if another held the lock then, the
//     error wraps a [*LockedError], and if etcd did not answer then, [ErrUnavailable]
//     and the reason;
//   - [ErrDeadlock] at once if ctx comes from a hold of this name in this Session;
//   - [ErrClosed] if the Mutex or the Session is, or becomes, closed;
//   - etcd's, if it refuses what no retry mends (permission, say), or that the client
//     is closed.
//
// While etcd is down Lock waits and tries again. A Session with a logger, or with the hook
// Trace.Unavailable, tells so after the first attempt without an answer, and each 10 s.
func (m *Mutex) Lock(ctx context.Context) error {
	_, err := m.lock(ctx, false)
	return err
}

// TryLock takes the lock if nobody holds it or waits for it. It waits for etcd, but
// for no other contender: until ctx ends or, if that has no deadline, for at most
// the TTL. If the lock is taken it returns a [*LockedError] at once, for which
// errors.Is(err, ErrLocked) is true, and has written nothing to etcd. Other errors,
// and what is true after them, are as of [Mutex.Lock].
func (m *Mutex) TryLock(ctx context.Context) error {
	_, err := m.lock(ctx, true)
	return err
}

// lock is Lock and TryLock. It returns the hold, so that Do releases that very one.
func (m *Mutex) lock(ctx context.Context, try bool) (*hold, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	if err := checkContext(ctx, "lock", m.name); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, waitFailed(ctx, m.name, nil, nil, nil)
	}
	if nested := m.nestsIn(ctx); nested != nil {
		return m.nest(nested)
	}
	started := time.Now()
	if m.cfg.linger > 0 { // otherwise it is rare, and enter sees to it
		if h := m.relock(started); h != nil {
			return h, nil
		}
	}
	h, ahead, err := m.queue(ctx, started, try)
	if err != nil {
		m.traceGaveUp(started, ahead, err)
	}
	return h, err
}

// queue waits in line. It also tells how many were before it when it queued.
func (m *Mutex) queue(ctx context.Context, started time.Time, try bool) (h *hold, ahead int, err error) {
	if _, bounded := ctx.Deadline(); try && !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.s.cfg.ttl)
		defer cancel()
	}
	if m.cfg.acquireTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.cfg.acquireTimeout)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer m.s.calls.Waits()()

	c, locked, err := m.enter(cancel, started, try)
	if err != nil {
		return nil, 0, err
	}
	if c.hold != nil {
		return c.hold, 0, nil
	}
	var put *place // by the one before, who released it in the same transaction, or held at it
	if locked != nil {
		m.traceQueued(locked.Ahead, locked.Holder)
		c.ahead = locked.Ahead
		select {
		case put = <-c.turn:
		case <-ctx.Done():
			// Whatever comes through turn after this is passed on by passLocked.
			return nil, c.ahead, waitFailed(ctx, m.name, m.s.leave(c), m.s.calls.Unavailable(), nil)
		}
	}
	h, err = c.acquire(ctx, put, try)
	return h, c.ahead, err
}

// enter puts a new claim into the local line. Its turn comes at once if nobody is
// there. Otherwise locked tells who is, and TryLock gets that as its error.
func (m *Mutex) enter(cancel context.CancelCauseFunc, started time.Time, try bool) (c *claim, locked *LockedError, err error) {
	s := m.s
	clientClosed := s.clientClosed()
	s.mu.Lock()
	defer s.unlock()
	if s.closed || m.closed {
		return nil, nil, failed("lock", m.name, ErrClosed)
	}
	l := s.lineLocked(m.name)
	c = m.newClaim(l, started, cancel)
	taken := l.queue.Owner() != nil
	if taken && try {
		return nil, nil, l.lockedLocked(nil)
	}
	if clientClosed {
		return nil, nil, failed("lock", m.name, errClientClosed)
	}
	if !taken {
		if c.relockLocked() == nil { // it may linger since relock has looked
			l.giveWayLocked()
			l.queue.Enter(&c.waiter)
		}
		return c, nil, nil
	}
	locked = l.lockedLocked(nil)
	c.turn = make(chan *place, 1)
	l.queue.Enter(&c.waiter)
	return c, locked, nil
}

// acquire takes c, whose turn has come, to the head of etcd's line. put is a place
// that stands there for it already, or nil. On an error it passes the turn on.
func (c *claim) acquire(ctx context.Context, put *place, try bool) (*hold, error) {
	m, s := c.m, c.m.s
	p := put
	var anew attempt.Backoff
	for {
		var err error
		var taken []line.Entry
		queued := p != nil
		if !queued {
			p, err = s.newPlace(ctx, c)
		}
		s.setPlace(c, p)
		switch {
		case err != nil || queued:
		case try:
			taken, err = p.tryQueue(ctx, c)
		default:
			err = p.queue(ctx, c)
		}
		if ahead, _ := p.rivals(); err == nil && len(ahead) > 0 && c.ahead == 0 {
			c.ahead = len(ahead)
			if m.cfg.trace != nil { // it takes parsing
				m.traceQueued(len(ahead), contenderOf(m.name, ahead[0]))
			}
		}
		for err == nil {
			if err = p.wait(ctx, c); err != nil {
				break
			}
			var h *hold
			if h, err = s.begin(c, p); err == nil {
				return h, nil
			}
			if err == errSetBack {
				err = nil // who was before p then tells nothing now
			}
		}

		away := s.calls.Unavailable()
		var removed <-chan struct{}
		if p != nil {
			removed = p.abandon(false)
		}
		if err == errQueueAnew && anew.Wait(ctx, s.calls) == nil || err == errTaken && s.awaitRemoval(ctx, taken[0]) {
			p = nil
			continue
		}
		if removed != nil && ctx.Err() != nil {
			// Usually at once, and the answer brings the line up to date.
			grace := time.NewTimer(removalGrace)
			defer grace.Stop()
			select {
			case <-removed:
			case <-grace.C:
			}
		}
		locked := c.giveUp(p)
		switch {
		case err == errTaken:
			return nil, &LockedError{Name: m.name, Holder: contenderOf(m.name, taken[0]), Ahead: len(taken)}
		case ctx.Err() != nil:
			return nil, waitFailed(ctx, m.name, locked, away, c.lastErr)
		default:
			return nil, failed("lock", m.name, err)
		}
	}
}

// awaitRemoval waits until the key of e is gone, if that is the Session's own, of a hold or
// wait that has ended: it is etcd that TryLock waits for then, and nobody else. It reports
// whether that is done.
func (s *Session) awaitRemoval(ctx context.Context, e line.Entry) bool {
	var removed <-chan struct{}
	s.mu.Lock()
	for l := range s.leases {
		if p := l.places[e.Key]; p != nil && p.rev == e.Rev && !p.stuck {
			removed = p.removed // nil while it is in use
		}
	}
	s.unlock()
	if removed == nil {
		return false
	}
	select {
	case <-removed:
		return true
	case <-ctx.Done():
		return false
	}
}

// giveUp passes on the turn of c, which did not come to hold at its last place p, and
// tells who was before it, nil if nobody was.
func (c *claim) giveUp(p *place) *LockedError {
	s, l := c.m.s, c.local
	s.mu.Lock()
	defer s.unlock()
	if p != nil && p.rev != 0 {
		l.ahead = p.ahead
	}
	c.place = nil
	locked := l.aheadLocked()
	s.passLocked(l, nil)
	return locked
}

// aheadLocked is the LockedError of the owner of l, who has no place in etcd's line.
// What the owner before it has seen there is what it knows.
func (l *localLine) aheadLocked() *LockedError {
	if len(l.ahead) == 0 {
		return nil
	}
	return &LockedError{Name: l.name, Holder: contenderOf(l.name, l.ahead[0]), Ahead: len(l.ahead)}
}

func (s *Session) setPlace(c *claim, p *place) {
	s.mu.Lock()
	defer s.unlock()
	c.place = p
}

// begin makes a hold of c's place at the head of the line. It returns errQueueAnew if
// the place is worth nothing: a hold never begins after its end; and errSetBack if its
// line is to be read first.
func (s *Session) begin(c *claim, p *place) (*hold, error) {
	s.mu.Lock()
	defer s.unlock()
	return s.beginLocked(c, p)
}

func (s *Session) beginLocked(c *claim, p *place) (*hold, error) {
	if s.closed || c.m.closed {
		return nil, ErrClosed
	}
	now := time.Now()
	p.lease.checkLocked(now)
	if p.lease.ended != nil || p.gone {
		return nil, errQueueAnew
	}
	if p.staleLocked() {
		return nil, errSetBack
	}
	h := &hold{m: c.m, place: p, local: c.local, began: now, depth: 1}
	if most := c.m.cfg.maxHold; most > 0 {
		h.most = h.began.Add(most)
		h.timer = time.AfterFunc(most, func() { h.check() })
	}
	p.hold, c.hold, c.m.hold, c.m.depth = h, h, h, 1
	p.ahead, c.local.ahead = nil, nil
	c.cancel = nil // nothing waits any more
	if t := c.m.cfg.trace; t != nil && t.Acquired != nil {
		m, waited := c.m, now.Sub(c.started)
		s.hooks.Run(func() { t.Acquired(m.name, p.rev, waited, c.ahead) })
	}
	if c.m.cfg.linger > 0 && c.ahead <= fewAhead {
		s.viewLocked(c.local)
	}
	return h, nil
}

// Unlock ends the hold and releases the lock. Uncontended it is one request.
//
// It returns nil only if the lock was held without a break until this release, which
// [WithHandoff] and [WithLinger] put off: then, as far as the lease tells.
// Otherwise, by errors.Is,
//   - [ErrLost] (a [*LostError] that says why): the hold had ended before. Its key,
//     if there still is one, is being removed; a newer holder's is not touched;
//   - [ErrUnconfirmed]: etcd did not confirm in time. The release goes on in the
//     background until it is confirmed or the lease has ended;
//   - [ErrNotHeld]: there is no hold, and nothing has happened.
//
// After each of these the Mutex holds nothing and may be locked again. With a nil
// ctx Unlock returns an error and the hold goes on.
//
// A ctx that ends bounds the call. One that had ended before the call, as is usual in a
// defer, is ignored: the release then takes at most the TTL or 5 s, whichever is less. So
// does one whose ctx comes from the hold, and so ends with it, unless its deadline is
// sooner. A nested Unlock (see [WithReentrancy]) says whether the hold is whole.
func (m *Mutex) Unlock(ctx context.Context) error {
	if m == nil || m.s == nil {
		return ErrNotHeld
	}
	if err := checkContext(ctx, "unlock", m.name); err != nil {
		return err
	}
	return m.unlock(ctx, nil)
}

// unlock releases m's hold, if it is the one given or that is nil.
func (m *Mutex) unlock(ctx context.Context, only *hold) error {
	s := m.s
	ctx, cancel := s.outlive(ctx, m.covers, s.releaseTime())
	defer cancel()

	s.mu.Lock()
	h := m.hold
	if h == nil || h.depth == 0 || only != nil && h != only {
		s.unlock()
		return failed("unlock", m.name, ErrNotHeld)
	}
	m.depth--
	h.depth--
	if m.depth == 0 {
		m.hold = nil
	}
	h.checkLocked(time.Now())
	if h.depth > 0 {
		err := h.lossLocked()
		s.unlock()
		return err
	}
	endedBefore := h.endLocked(ErrUnlocked)
	if !endedBefore {
		h.place.lease.releases++ // from here on Close waits
	}
	err := h.lossLocked()
	s.unlock()
	h.endContexts()
	switch {
	case endedBefore:
		h.clear()
		return err
	case h.keep():
		return nil
	default:
		return h.release(ctx)
	}
}

// clear has the key of a hold removed that was lost, and gives its turn to the next in the
// local line. It returns what abandon does.
func (h *hold) clear() (removed <-chan struct{}) {
	s := h.m.s
	s.mu.Lock()
	defer s.unlock()
	removed = h.place.abandonLocked(false)
	s.passLocked(h.local, nil)
	return removed
}

// keep keeps the key of a hold that has ended whole for the next one of the Session, if
// WithHandoff or WithLinger want that. Otherwise it is to be released.
func (h *hold) keep() bool {
	s := h.m.s
	s.mu.Lock()
	defer s.unlock()
	if s.closed || !s.passOnLocked(h) && !s.lingerLocked(h) {
		return false
	}
	h.place.lease.releasedLocked()
	return true
}

// covers reports whether h is a hold of m's name in m's Session.
func (m *Mutex) covers(h *hold) bool { return h.m.s == m.s && h.m.name == m.name }

// releaseTime is how long a release may take whose context has no say.
func (s *Session) releaseTime() time.Duration { return min(s.cfg.ttl, releaseBound) }

// outlive returns the context that bounds a release which is called with ctx. If ctx has
// ended already it is ignored, and ifEnded is the bound. If it comes from a hold that the
// release ends, it would end with that: its deadline, the end of what the hold's context
// came from, and releaseTime are the bounds. (A cancel below the hold's context cannot be
// told from the hold's end.)
func (s *Session) outlive(ctx context.Context, ends func(*hold) bool, ifEnded time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithTimeout(context.WithoutCancel(ctx), ifEnded)
	}
	var outermost *holdContext
	for c := holdContextOf(ctx); c != nil; c = c.outer() {
		if ends(c.hold) {
			outermost = c
		}
	}
	if outermost == nil {
		return ctx, func() {}
	}
	bound := time.Now().Add(s.releaseTime())
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(bound) {
		bound = deadline
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), bound)
	stop := context.AfterFunc(outermost.parent, cancel)
	return ctx, func() { stop(); cancel() }
}

// release gives the key of a hold that has ended whole back to etcd, and its turn to
// the next in the local line, whose key is put by the same transaction. Whoever ended the
// hold has counted the release among those of the lease.
func (h *hold) release(ctx context.Context) error {
	s := h.m.s
	s.mu.Lock()
	put := s.nextLocked(h.local)
	s.unlock()
	queued, err := h.place.release(ctx, h.most, put)
	if put != nil && !queued {
		// Its key may yet be put by the transaction that removes this one: only when
		// that cannot be any more is its removal for good.
		put.after = h.place.removed
		put.abandon(errors.Is(err, ErrUnconfirmed))
		put = nil
	}
	s.mu.Lock()
	defer s.unlock()
	h.place.lease.releasedLocked()
	if errors.Is(err, ErrLost) {
		h.reportLocked(err)
	} else {
		h.traceReleased()
	}
	if errors.Is(err, ErrUnconfirmed) {
		h.m.log(slog.LevelWarn, "release not confirmed", "name", h.m.name, "error", err)
	}
	s.passLocked(h.local, put)
	return err
}

// Do locks, calls fn, and unlocks, also if fn panics or calls runtime.Goexit. fn
// gets a context that comes from ctx and also ends with the hold; its cause says
// why. See [Mutex.Context].
//
// It returns the error of Lock, and then fn was not called; otherwise that of fn,
// joined with that of Unlock if there is one that it does not wrap already: [ErrLost] says
// that the work was not protected throughout, [ErrUnconfirmed] that the release was not
// confirmed. ctx bounds the wait and fn; [WithAcquireTimeout] bounds the wait alone.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.do(ctx, fn, false)
}

// TryDo is Do with TryLock in place of Lock.
func (m *Mutex) TryDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.do(ctx, fn, true)
}

func (m *Mutex) do(ctx context.Context, fn func(ctx context.Context) error, try bool) (err error) {
	if fn == nil {
		return errors.New("etcdlock: Do: nil function")
	}
	h, err := m.lock(ctx, try)
	if err != nil {
		return err
	}
	defer func() {
		if unlockErr := m.unlock(ctx, h); unlockErr != nil {
			switch {
			case err == nil:
				err = unlockErr
			case !errors.Is(err, unlockErr): // fn has not said so itself
				err = errors.Join(err, unlockErr)
			}
		}
	}()
	return fn(h.context(ctx))
}

// Token returns the fencing token of the current hold: the create revision of its
// key, which grows with every new hold of a name, except that the holds of a Session
// share one by [WithHandoff] and [WithLinger]. A resource that remembers the
// highest token it has seen, and refuses lower ones, is safe from a holder that was
// paused between its check and its write. It is 0 when the lock is not held, also
// after a loss.
func (m *Mutex) Token() int64 {
	var token int64
	m.whole(func(h *hold) { token = h.place.rev })
	return token
}

// Held reports whether the lock is held, that is, whether [Mutex.Token] is not 0: false
// before Lock and after Unlock, and from the moment at which the hold is lost, or at its end
// by [WithMaxHold] or Close. It is for readiness checks and dashboards, and costs no request. What
// must not happen without the lock asks for the [Mutex.Context] or sends the Token along, since
// the answer may be old when it is used.
func (m *Mutex) Held() bool { return m.Token() != 0 }

// Key returns the etcd key of the current hold, "" when the lock is not held.
func (m *Mutex) Key() string {
	var key string
	m.whole(func(h *hold) { key = h.place.key })
	return key
}

// Deadline returns until when the hold is certain unless it is renewed. As long as
// etcd answers it moves on. It is the zero time when the lock is not held.
func (m *Mutex) Deadline() time.Time {
	var deadline time.Time
	m.whole(func(h *hold) { deadline = h.deadlineLocked() })
	return deadline
}

// IsOwner returns a comparison for the If of an etcd transaction: it is true only
// while this very hold's key exists, whatever clocks say. When the lock is not held
// it returns one that is never true, and that asks for no key outside the lock's.
//
// It does not order the writes of one hold: after a write whose outcome is unknown, unlock
// before the next one, since the late write would still be let through.
func (m *Mutex) IsOwner() clientv3.Cmp {
	if m == nil || m.s == nil {
		return clientv3.Compare(clientv3.CreateRevision("/"), "=", -1)
	}
	cmp := clientv3.Compare(clientv3.CreateRevision(line.Prefix(m.name)), "=", -1)
	m.whole(func(h *hold) { cmp = h.place.exists() })
	return cmp
}

// Name returns the name of the lock.
func (m *Mutex) Name() string {
	if m == nil {
		return ""
	}
	return m.name
}

// whole calls f, with mu held, if there is a hold that has not ended.
func (m *Mutex) whole(f func(*hold)) {
	if m == nil || m.s == nil {
		return
	}
	m.s.mu.Lock()
	defer m.s.unlock()
	if m.hold != nil && m.hold.checkLocked(time.Now()) == nil {
		f(m.hold)
	}
}

// Close ends the hold, if there is one, for all that nest in it (its context ends with
// the cause [ErrClosed]), and releases it, or what lingers after it; makes waiting calls of Lock return [ErrClosed]; and
// leaves the Mutex closed: Lock and TryLock return ErrClosed from then on, Unlock
// ErrNotHeld. A Mutex from [New] gives its lease back and has no goroutine left; a
// Session's Mutex leaves the Session as it is.
//
// It returns nil if its hold left nothing behind, and when the Mutex was closed before. If
// another call is closing it, or its Session, it waits for that within ctx, and says what came
// of it. (Keys of waits that it ended are removed in the background.) An error that is
// [ErrUnconfirmed] says that etcd did not confirm before ctx ended; what is left goes
// within the TTL. A ctx that had ended before the call leaves 50 ms for it. After a nil
// ctx nothing has happened.
func (m *Mutex) Close(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := checkContext(ctx, "close", m.name); err != nil {
		return err
	}
	s := m.s
	if m.own {
		return s.Close(ctx)
	}
	ctx, cancel := s.outlive(ctx, m.covers, closeGrace)
	defer cancel()

	s.mu.Lock()
	underWay := m.closing
	switch {
	case s.closing > 0: // which frees all that m may have held
		m.closed = true
		return s.closesLocked(ctx)
	case underWay != nil:
		s.unlock()
		select {
		case <-underWay.done:
			return underWay.err
		case <-ctx.Done():
			return unconfirmed(m.name, context.Cause(ctx))
		}
	case m.closed:
		s.unlock()
		return nil
	}
	m.closed = true
	m.closing = &closing{done: make(chan struct{})}
	var given *place // whose removal is waited for
	if l := s.lines[m.name]; l != nil {
		l.cancelLocked(m)
		if kept := l.queue.Kept(); kept != nil && kept.hold.m == m {
			given = kept
			l.giveWayLocked()
		}
	}
	h := m.hold
	m.hold, m.depth = nil, 0
	if h != nil && h.depth == 0 {
		h = nil // it nested in a hold that was closed
	}
	endedBefore := h != nil && h.closeLocked()
	if h != nil && !endedBefore {
		h.place.lease.releases++ // as in unlock
	}
	s.unlock()

	err := m.free(ctx, h, endedBefore, given)
	s.mu.Lock()
	defer s.unlock()
	m.closing.err = err
	close(m.closing.done)
	m.closing = nil
	return err
}

// A closing is a call of Mutex.Close that is under way. Others wait for it.
type closing struct {
	done chan struct{}
	err  error // written before done is closed
}

// free frees the name for Close: of the hold h that it has ended, nil if there is none, or
// of a key that lingered, which was given up.
func (m *Mutex) free(ctx context.Context, h *hold, endedBefore bool, given *place) error {
	if h != nil {
		h.endContexts()
		given = h.place
		if endedBefore {
			h.clear()
		} else if err := h.release(ctx); errors.Is(err, ErrUnconfirmed) {
			return err
		}
	}
	return given.awaitRemoved(ctx)
}

// awaitRemoved waits until p's key is removed, if it was given up. A nil p has none.
func (p *place) awaitRemoved(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.s.mu.Lock()
	removed := p.removed
	p.s.unlock()
	if removed == nil { // it was released
		return nil
	}
	select {
	case <-removed:
	case <-ctx.Done():
		return unconfirmed(p.m.name, context.Cause(ctx))
	}
	p.s.mu.Lock()
	defer p.s.unlock()
	if p.stuck {
		return unconfirmed(p.m.name, p.lease.left)
	}
	return nil
}

// Locker returns a sync.Locker for code that wants one. Its Lock waits without
// bound, until it holds the lock. sync.Locker has no errors, so these become panics,
// rather than critical sections that are not protected: Lock panics with an error
// that no waiting mends ([ErrClosed], a refusal by etcd), Unlock with [ErrLost] and
// [ErrNotHeld]. [ErrUnconfirmed] is reported to the logger only.
func (m *Mutex) Locker() sync.Locker { return locker{m} }

type locker struct{ m *Mutex }

func (l locker) Lock() {
	if err := l.m.Lock(context.Background()); err != nil {
		panic(err)
	}
}

func (l locker) Unlock() {
	if err := l.m.Unlock(context.Background()); err != nil && !errors.Is(err, ErrUnconfirmed) {
		panic(err)
	}
}

// check is the error of a Mutex that was not made here.
func (m *Mutex) check() error {
	if m == nil || m.s == nil {
		return errors.New("etcdlock: Mutex not made with New or Session.Mutex")
	}
	return nil
}

// contender is what is known of the contenders of m before they queue.
func (m *Mutex) contender() Contender {
	host, pid := identity()
	return Contender{Name: m.name, Owner: m.cfg.owner, Host: host, PID: pid}
}

func (m *Mutex) log(level slog.Level, message string, args ...any) {
	m.cfg.tell(&m.s.hooks, level, message, args)
}

func (m *Mutex) traceGaveUp(started time.Time, ahead int, err error) {
	if t := m.cfg.trace; t != nil && t.GaveUp != nil {
		waited := time.Since(started)
		m.s.hooks.Run(func() { t.GaveUp(m.name, waited, ahead, err) })
	}
}

func (m *Mutex) traceQueued(ahead int, holder Contender) {
	if t := m.cfg.trace; t != nil && t.Queued != nil {
		m.s.hooks.Run(func() { t.Queued(m.name, ahead, holder) })
	}
}

// ---- the local line

// lineLocked returns the line for a name. Lines that nobody uses are kept for their
// key names, up to a number.
func (s *Session) lineLocked(name string) *localLine {
	if l := s.lines[name]; l != nil {
		return l
	}
	if len(s.lines) >= s.sweepAt {
		for name, l := range s.lines {
			if l.queue.State() == turn.Free && l.view == nil {
				delete(s.lines, name)
			}
		}
		s.sweepAt = max(minSweep, 2*len(s.lines))
	}
	l := &localLine{name: name}
	s.lines[name] = l
	return l
}

// slotLocked returns a slot that is not busy, for a key on the given lease. There
// are two, since a transaction may not delete and put the same key; beyond those a
// slot is used once.
func (l *localLine) slotLocked(on *lease) *keySlot {
	if l.lease != on {
		l.lease, l.slots = on, [2]*keySlot{{}, {}}
	}
	for _, slot := range l.slots {
		if !slot.busy {
			return slot
		}
	}
	return &keySlot{}
}

// lockedLocked is the LockedError of one that waits in the queue, or of one that comes now if
// w is nil. The queue has an owner.
func (l *localLine) lockedLocked(w *turn.Waiter[*claim]) *LockedError {
	e := &LockedError{Name: l.name, Ahead: l.queue.Ahead(w)}
	owner := l.queue.Owner()
	switch {
	case (owner.place == nil || owner.place.rev == 0) && len(l.ahead) > 0: // on its way
		e.Holder = contenderOf(l.name, l.ahead[0])
		e.Ahead += len(l.ahead)
	case owner.place == nil || owner.place.rev == 0: // the first to go
		e.Holder = owner.m.contender()
	case owner.hold == nil && len(owner.place.ahead) > 0:
		e.Holder = contenderOf(l.name, owner.place.ahead[0])
		e.Ahead += len(owner.place.ahead)
	default:
		e.Holder = owner.place.contender()
	}
	return e
}

// leave takes c out of the line after its wait has ended, and tells who was there.
func (s *Session) leave(c *claim) *LockedError {
	s.mu.Lock()
	defer s.unlock()
	l := c.local
	var locked *LockedError
	if c.waiter.Standing() == turn.Waiting {
		locked = l.lockedLocked(&c.waiter)
	} else { // its turn is coming, or has come at the same moment
		locked = l.aheadLocked()
	}
	if l.queue.Leave(&c.waiter) == turn.Owner {
		s.passLocked(l, <-c.turn)
	}
	return locked
}

// nextLocked chooses who is next in line, and takes a place for it if there is a lease. The
// owner's release is to put the place, and then to call passLocked.
func (s *Session) nextLocked(l *localLine) *place {
	next, waits := l.queue.Choose()
	if !waits || !s.usableLocked() {
		return nil
	}
	return s.newPlaceLocked(next)
}

// passLocked takes the turn from its owner. Whoever gets it gets put, the place that stands for
// it, or nil; if nobody does the line is free.
func (s *Session) passLocked(l *localLine, put *place) {
	if next, ok := l.queue.Pass(); ok {
		next.hasTurnLocked(put)
		return
	}
	if put != nil {
		put.abandonLocked(false)
	}
	l.ahead = nil
}

// hasTurnLocked tells c that its turn has come, with the place that stands for it or nil.
func (c *claim) hasTurnLocked(put *place) {
	c.place = put
	c.turn <- put
}

// passOnLocked gives the key of h, which has ended whole, to the next in the local line,
// unless others have waited for long enough; see WithHandoff.
func (s *Session) passOnLocked(h *hold) bool {
	p, most := h.place, h.m.cfg.handoff
	if most == 0 || h.local.queue.Waiting() == 0 || !p.lastsLocked() {
		return false
	}
	next, ok := h.local.queue.HandOff(p, most)
	if !ok {
		return false
	}
	h.traceReleased()
	next.hasTurnLocked(p)
	return true
}

// lingerLocked keeps the key of h, which has ended whole, if nobody waits for it; see
// WithLinger.
//
// Invariant: whoever comes takes over the key that lingers, or finds it given up; and it is
// given up once a view tells of others, or there is none.
func (s *Session) lingerLocked(h *hold) bool {
	l, p, linger := h.local, h.place, h.m.cfg.linger
	if linger == 0 || h.m.closed || l.queue.Waiting() > 0 || !p.lastsLocked() {
		return false
	}
	switch v := l.view; {
	case v == nil || v.err != nil:
		return false
	case v.revision == 0 && l.queue.Owner().ahead == 0:
		// The first watch is under way. Its end, or a read that fails, takes the key back.
	case !v.live || v.othersLocked():
		return false // if the first watch is under way, those who came before may be there
	}
	h.traceReleased()
	if l.queue.Linger(p, time.Now().Add(linger)) {
		s.setDueLocked(l, linger)
	}
	return true
}

// setDueLocked has lingered called after a while, and not when it was to be called before.
func (s *Session) setDueLocked(l *localLine, after time.Duration) {
	if l.due != nil {
		l.due.Stop()
	}
	l.due = time.AfterFunc(after, func() { s.lingered(l) })
}

// lingered gives up the key that lingers if its time is over.
func (s *Session) lingered(l *localLine) {
	s.mu.Lock()
	defer s.unlock()
	switch over, again := l.queue.Due(time.Now()); {
	case over:
		l.giveWayLocked()
	case again > 0:
		s.setDueLocked(l, again)
	}
}

// relock makes a hold of the key that lingers, nil if there is none that can be used.
func (m *Mutex) relock(now time.Time) *hold {
	s := m.s
	if s.clientClosed() {
		return nil
	}
	s.mu.Lock()
	defer s.unlock()
	l := s.lines[m.name]
	if l == nil || l.queue.Kept() == nil {
		return nil
	}
	return m.newClaim(l, now, nil).relockLocked()
}

// relockLocked makes c the owner, by a hold of the key that lingers, if there is one that
// can be used.
func (c *claim) relockLocked() *hold {
	l, p := c.local, c.local.queue.Kept()
	if p == nil || !p.lastsLocked() {
		return nil
	}
	h, err := c.m.s.beginLocked(c, p)
	if err != nil {
		return nil
	}
	c.place = p
	l.queue.Take(&c.waiter)
	return h
}

// giveWayLocked gives up the key that lingers, if one does. It returns what abandon does.
func (l *localLine) giveWayLocked() <-chan struct{} {
	if l.queue.Kept() == nil {
		return nil
	}
	p := l.queue.Yield()
	p.spare = true
	return p.abandonLocked(false)
}

// lingersLocked reports whether the line's key lingers, or will once it is unlocked.
func (l *localLine) lingersLocked() bool {
	h := l.holdLocked()
	return l.queue.Kept() != nil || h != nil && h.cause == nil && h.m.cfg.linger > 0
}

// holdLocked is the hold of the owner, nil if there is none.
func (l *localLine) holdLocked() *hold {
	if owner := l.queue.Owner(); owner != nil {
		return owner.hold
	}
	return nil
}

// lingersLocked reports whether p's key lingers.
func (p *place) lingersLocked() bool { return p.local.queue.Kept() == p }

// lastsLocked reports whether another hold may begin at p, where one has ended.
func (p *place) lastsLocked() bool {
	l := p.lease
	now := time.Now()
	l.checkLocked(now)
	return l.retired == nil && !p.gone && !p.staleLocked() && l.plan.Lasts(l.trust.Remaining(now))
}

// cancelLocked ends the waits of m's claims, of all if m is nil.
func (l *localLine) cancelLocked(m *Mutex) {
	for c := range l.queue.All() {
		if cancel := c.cancel; cancel != nil && (m == nil || c.m == m) {
			c.m.s.afterLocked(func() { cancel(ErrClosed) })
		}
	}
}

// ---- the hold

// deadlineLocked is until when h is certain.
func (h *hold) deadlineLocked() time.Time {
	until := h.place.lease.trust.Until()
	if !h.most.IsZero() && h.most.Before(until) {
		return h.most
	}
	return until
}

// check ends h if its time has passed, and returns why it ended, nil while it is
// whole. It looks at the clocks itself, so that it tells the truth after a pause of
// the process, before any timer has run.
func (h *hold) check() error {
	h.m.s.mu.Lock()
	defer h.m.s.unlock()
	return h.checkLocked(time.Now())
}

func (h *hold) checkLocked(now time.Time) error {
	h.place.lease.checkLocked(now)
	if h.cause == nil && !h.most.IsZero() && !before(now, h.most) {
		h.endLocked(ErrMaxHold)
		h.place.abandonLocked(false)
	}
	return h.cause
}

// before reports whether now is before t by the monotonic and by the wall clock.
func before(now, t time.Time) bool {
	return now.Before(t) && now.Round(0).Before(t.Round(0))
}

// endLocked ends h and its contexts with cause, unless it has ended before.
func (h *hold) endLocked(cause error) (endedBefore bool) {
	if h.cause != nil {
		return true
	}
	h.cause = cause
	if h.timer != nil {
		h.timer.Stop()
	}
	if len(h.contexts) > 0 {
		h.place.lease.endingLocked(h)
		h.m.s.afterLocked(h.endContexts)
	}
	if cause != ErrUnlocked && cause != ErrClosed {
		h.reportLocked(cause)
	}
	return false
}

// endContexts ends the contexts of h, which has ended itself. When it returns they all have,
// and all that come from them, whoever else is at it: to cancel a context is to wait for one
// who is just cancelling it.
func (h *hold) endContexts() {
	s := h.m.s
	s.mu.Lock()
	cause, contexts := h.cause, h.contexts
	s.unlock()
	if contexts == nil {
		return
	}
	for c := range contexts {
		c.end(cause)
	}
	s.mu.Lock()
	defer s.unlock()
	h.contexts = nil
	delete(h.place.lease.ending, h)
}

// closeLocked ends h for all Mutexes that nest in it.
func (h *hold) closeLocked() (endedBefore bool) {
	h.checkLocked(time.Now())
	h.depth = 0 // whoever unlocks it is told ErrNotHeld
	return h.endLocked(ErrClosed)
}

// reportLocked tells Trace and Logger of a loss.
func (h *hold) reportLocked(cause error) {
	m, held := h.m, time.Since(h.began)
	reason := cause
	if lost, ok := errors.AsType[*LostError](cause); ok {
		reason = lost.Reason
	}
	if t := m.cfg.trace; t != nil && t.Lost != nil {
		m.s.hooks.Run(func() { t.Lost(m.name, h.place.rev, held, reason) })
	}
	m.log(slog.LevelWarn, "lock lost", "name", m.name, "token", h.place.rev, "held", held, "reason", bare(reason))
}

func (h *hold) traceReleased() {
	if t := h.m.cfg.trace; t != nil && t.Released != nil {
		held := time.Since(h.began)
		h.m.s.hooks.Run(func() { t.Released(h.m.name, h.place.rev, held) })
	}
}

// lost is the LostError of h.
func (h *hold) lost(reason error) *LostError {
	return &LostError{Name: h.m.name, Token: h.place.rev, Reason: reason}
}

// lossLocked is what Unlock says of h, which has ended: a LostError, whose reason
// may be ErrMaxHold; nil if it is whole or was ended by its owner.
func (h *hold) lossLocked() error {
	if lost, ok := errors.AsType[*LostError](h.cause); ok {
		return lost
	}
	if errors.Is(h.cause, ErrMaxHold) {
		return h.lost(ErrMaxHold)
	}
	return nil
}

// ---- contexts

// Context returns a context that comes from parent and also ends the moment the hold
// does, or can no longer be trusted. Its Err is then context.Canceled, and
// context.Cause tells why: [ErrUnlocked], a [*LostError], [ErrMaxHold] or [ErrClosed].
// If the lock is not held it has ended already, with the cause [ErrNotHeld].
//
// After a pause of the process (a stopped container, a suspended machine) its Err,
// Done and Cause tell the truth at the first look. A context derived from it keeps
// its own state until a goroutine has run: before each write ask this one.
//
// Lock with this context, or one derived from it, is [ErrDeadlock] for the same name
// and Session, or nests with [WithReentrancy].
func (m *Mutex) Context(parent context.Context) context.Context {
	if parent == nil {
		return endedContext(context.Background(), errors.New("etcdlock: nil context"))
	}
	if m == nil || m.s == nil {
		return endedContext(parent, ErrNotHeld)
	}
	m.s.mu.Lock()
	h := m.hold
	held := h != nil && h.depth > 0
	m.s.unlock()
	if !held {
		return endedContext(parent, ErrNotHeld)
	}
	return h.context(parent)
}

func (h *hold) context(parent context.Context) context.Context {
	c := &holdContext{hold: h, parent: parent}
	c.Context, c.cancel = context.WithCancelCause(parent)
	// When parent ends first, the hold need not know this context any more.
	c.stopForget = context.AfterFunc(c.Context, func() { h.forget(c) })
	if cause := h.add(c); cause != nil {
		c.end(cause)
	}
	return c
}

func endedContext(parent context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	cancel(cause)
	return ctx
}

// TokenFrom returns the fencing token of the innermost hold that ctx came from, by
// [Mutex.Context], Do or TryDo. It stays the same after the hold has ended.
func TokenFrom(ctx context.Context) (token int64, ok bool) {
	if ctx == nil {
		return 0, false
	}
	if c := holdContextOf(ctx); c != nil {
		return c.hold.place.rev, true
	}
	return 0, false
}

// holdKey is the key of a context's innermost holdContext.
type holdKey struct{}

// A holdContext is a context that ends with a hold. Whoever looks at it makes it
// look at the clocks first.
type holdContext struct {
	context.Context // comes from parent
	parent          context.Context
	hold            *hold
	cancel          context.CancelCauseFunc
	stopForget      func() bool
}

// end ends c with the cause for which its hold did.
func (c *holdContext) end(cause error) {
	c.stopForget()
	c.cancel(cause)
}

func (c *holdContext) look() {
	if cause := c.hold.check(); cause != nil {
		c.end(cause)
	}
}

// Err is as in context.Context.
func (c *holdContext) Err() error {
	if c.Context.Err() == nil {
		c.look()
	}
	return c.Context.Err()
}

// Done is as in context.Context.
func (c *holdContext) Done() <-chan struct{} {
	if c.Context.Err() == nil {
		c.look()
	}
	return c.Context.Done()
}

// Value is as in context.Context. context.Cause comes through here.
func (c *holdContext) Value(key any) any {
	if key == (holdKey{}) {
		return c
	}
	if c.Context.Err() == nil {
		c.look()
	}
	return c.Context.Value(key)
}

// outer is the context of the hold around c's, nil if there is none.
func (c *holdContext) outer() *holdContext { return holdContextOf(c.parent) }

// holdContextOf is the innermost holdContext that ctx comes from, nil if there is none.
func holdContextOf(ctx context.Context) *holdContext {
	c, _ := ctx.Value(holdKey{}).(*holdContext)
	return c
}

// add makes c end with h. It returns the cause if h has ended already.
func (h *hold) add(c *holdContext) error {
	h.m.s.mu.Lock()
	defer h.m.s.unlock()
	if cause := h.checkLocked(time.Now()); cause != nil {
		return cause
	}
	if c.Context.Err() != nil { // its parent has ended, and forget may have run
		return nil
	}
	if h.contexts == nil {
		h.contexts = make(map[*holdContext]struct{})
	}
	h.contexts[c] = struct{}{}
	return nil
}

// forget takes c, which has ended with its parent, off h.
func (h *hold) forget(c *holdContext) {
	c.cancel(nil) // waits until those that come from it have ended, too
	h.m.s.mu.Lock()
	defer h.m.s.unlock()
	if h.cause == nil {
		delete(h.contexts, c)
	}
}

// nestsIn returns the hold of m's name and Session that ctx comes from, if that has
// not been unlocked.
func (m *Mutex) nestsIn(ctx context.Context) *hold {
	for c := holdContextOf(ctx); c != nil; c = c.outer() {
		h := c.hold
		if !m.covers(h) {
			continue
		}
		m.s.mu.Lock()
		current := h.local.holdLocked() == h && h.depth > 0
		m.s.unlock()
		if current {
			return h
		}
	}
	return nil
}

// nest makes a Lock whose context comes from h a part of h.
func (m *Mutex) nest(h *hold) (*hold, error) {
	if !m.cfg.reentrant {
		return nil, failed("lock", m.name, ErrDeadlock)
	}
	m.s.mu.Lock()
	defer m.s.unlock()
	switch {
	case m.closed || m.s.closed:
		return nil, failed("lock", m.name, ErrClosed)
	case h.checkLocked(time.Now()) != nil:
		reason := h.lossLocked()
		if reason == nil {
			reason = h.cause // it was unlocked, or closed, in between
		}
		return nil, failed("lock", m.name, reason)
	}
	if m.hold != h { // what it nested in before was closed
		m.hold, m.depth = h, 0
	}
	m.depth++
	h.depth++
	return h, nil
}
