package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// releaseBound is the longest time that Unlock takes if its context had ended
// before the call, or never ends. A shorter TTL takes its place.
const releaseBound = 5 * time.Second

// A Mutex is a lock that at most one holder has at a time, among all Mutexes of its name in all
// processes that use the same etcd. Make it with [New] or [Session.Mutex]; the zero Mutex returns
// errors. Do not copy it.
//
// All methods are safe for concurrent use. As with sync.Mutex, any goroutine may call Unlock, and
// Unlock synchronizes before the Lock that follows it in the same process.
type Mutex struct {
	lockHandle

	own bool // Close closes the Session; set once

	// Guarded by Session.mu.
	closing      chan struct{} // closed at the end of the Close that is under way, otherwise nil
	closingErr   error         // of that Close; written before closing is closed
	closedNotice chan struct{} // closed with the Mutex, nil while no call of Lead has needed it
}

// noCopy makes go vet report a copied struct: vet takes it for a sync.Locker.
type noCopy struct{}

// Lock does nothing.
func (*noCopy) Lock() {}

// Unlock does nothing.
func (*noCopy) Unlock() {}

// New returns a Mutex for name with a lease of its own, as [NewSession] and [Session.Mutex] would
// make it. It validates name and options and does no I/O: the first Lock gets the lease.
func New(client *clientv3.Client, name string, opts ...SessionOption) (*Mutex, error) {
	return newAlone(client, name, forMutex, opts)
}

// newAlone returns the Mutex of something that has a lease of its own.
func newAlone(client *clientv3.Client, name string, of use, opts []SessionOption) (*Mutex, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s := new(session)
	if err := s.open(client, of, opts); err != nil {
		return nil, err
	}
	return &Mutex{lockHandle: lockHandle{s: s, name: name, cfg: s.cfg}, own: true}, nil
}

// newMutex returns the Mutex of something on the lease of s.
func newMutex(s *session, name string, of use, opts []Option) (*Mutex, error) {
	cfg, err := s.configured(name, of, opts)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases.ClosedLocked() {
		return nil, failed("mutex", name, ErrClosed)
	}
	return &Mutex{lockHandle: lockHandle{s: s, name: name, cfg: cfg}}, nil
}

// Lock waits in line until it holds the lock. After nil the caller holds it until Unlock, and
// [Mutex.Context] gives a context that ends with the hold.
//
// ctx bounds the wait only: a hold outlives it. Uncontended it is one request to etcd. After an
// error the caller does not hold the lock, and nothing is left behind that could block other
// contenders: a key that may exist is removed in the background. The error is, by errors.Is,
//   - the cause of ctx and ctx.Err() if ctx ended, or context.DeadlineExceeded if the time of
//     [WithAcquireTimeout] is over; it wraps a [*LockedError] if another contender held the lock
//     then, and [ErrUnavailable] with the reason if etcd was not answering;
//   - [ErrDeadlock] at once if ctx comes from a hold of this name in this Session;
//   - [ErrClosed], and not ctx.Err(), if the Mutex or the Session is, or becomes, closed;
//   - etcd's own, if it refuses and a retry would not help (permission, for instance), or says that
//     the client is closed.
//
// While etcd is down Lock waits and retries. The logger and Trace.Unavailable report it after the
// first attempt without an answer, and every 10 s.
//
// After a Session has lost a hold ([ErrLost]), its other calls cannot get that lock until the lost
// hold is unlocked, because its work may go on: a Lock before the Unlock, in the same goroutine,
// waits for ever. Its [*LockedError] says so, and the logger warns after 10 s. (Another process
// does not wait for that.) If your work may overlap with other work of the same process after a
// loss, unlock the [Hold] when its context ends; see the example of [Session.Lock].
func (m *Mutex) Lock(ctx context.Context) error {
	_, _, err := m.lock(ctx, manner{})
	return err
}

// TryLock takes the lock if no contender holds it or waits for it. If it is taken, TryLock returns
// a [*LockedError] at once, which is [ErrLocked] by errors.Is, and has written nothing to etcd.
//
// It never waits for another contender. It waits for etcd's answer until ctx ends, or for at most
// the TTL if ctx has no deadline. Other errors, and what is true after them, are as for
// [Mutex.Lock]. A hold that this Session has lost and not unlocked counts as taken.
//
// It takes one request, or up to three beside keys of nested names, and up to six while such keys
// come and go. If another contender comes at the same moment, it puts its key behind that
// contender's, and deletes it.
func (m *Mutex) TryLock(ctx context.Context) error {
	_, _, err := m.lock(ctx, manner{try: true})
	return err
}

// lock is Lock, or TryLock. It returns the hold, so that Do releases that very hold, and the
// context of the call.
func (m *Mutex) lock(ctx context.Context, how manner) (*hold, context.Context, error) {
	if err := m.check(); err != nil {
		return nil, nil, err
	}
	return request{m: &m.lockHandle, manner: how}.lock(ctx)
}

// lock is one call that locks, whatever kind of hold it asks for. It returns the hold, and the
// context of the call: ctx, or what the Trace has made of it.
func (w request) lock(ctx context.Context) (*hold, context.Context, error) {
	m := w.m
	if err := checkContext(ctx, "lock", m.name); err != nil {
		return nil, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, waitFailed(ctx, m.name, nil, nil, nil)
	}
	if nested := m.nestsIn(ctx); nested != nil && !w.mayFollow(nested) {
		h, err := w.nest(nested)
		return h, ctx, err
	}
	return w.newClaim().lock(ctx)
}

// mayFollow reports whether a call whose context comes from h queues, as any other does. A call for
// permits may, though its caller has some.
func (w request) mayFollow(h *hold) bool {
	return w.Kind == line.Permit && h.claim.Kind == line.Permit
}

// nestsIn returns the hold of m's name and Session that ctx comes from, if it has
// not been unlocked.
func (m *lockHandle) nestsIn(ctx context.Context) *hold {
	for c := holdContextOf(ctx); c != nil; c = c.outer() {
		h := m.coveredBy(c.hold)
		if h == nil {
			continue
		}
		m.s.mu.Lock()
		current := h.depth > 0 && !m.s.leases.ClosedLocked()
		m.s.mu.Unlock()
		if current {
			return h
		}
	}
	return nil
}

// nest makes a Lock whose context comes from h a part of h. It holds as h does, or not at all: a
// write inside a read would wait for that read, and a read inside a write would give up the place.
func (w request) nest(h *hold) (*hold, error) {
	m := w.m
	if !m.cfg.reentrant || w.Kind != h.claim.Kind {
		return nil, failed("lock", m.name, ErrDeadlock)
	}
	if m.cfg.mustNotNest {
		return nil, failed("lock", m.name, errors.New("WithMinHold is not for a Lock that nests"))
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	switch {
	case m.closed || m.s.leases.ClosedLocked():
		return nil, failed("lock", m.name, ErrClosed)
	case h.checkLocked(time.Now()) != nil:
		reason := h.lossLocked()
		if reason == nil {
			reason = h.life.Cause(time.Now()) // it was unlocked, or closed, in between
		}
		return nil, failed("lock", m.name, reason)
	}
	h.depth++
	if w.Kind == line.Read {
		m.countNests(h, 1)
		return h, nil
	}
	if m.hold.Load() != h { // what it nested in before was closed
		m.hold.Store(h)
		m.depth = 0
	}
	m.depth++
	return h, nil
}

// Unlock ends the hold and releases the lock. It returns nil only if the lock was held without a
// break until this release.
//
// Otherwise the error is, by errors.Is,
//   - [ErrLost] (a [*LostError] that says why): the hold had ended before. Its key, if there still
//     is one, is being removed; a newer holder's key is not touched;
//   - [ErrUnconfirmed]: etcd did not confirm in time. The release goes on in the background until
//     it is confirmed or the lease has ended;
//   - [ErrNotHeld]: there is no hold, and nothing has happened.
//
// After each of these the Mutex holds nothing and may be locked again. With [WithHandoff] or
// [WithLinger] the key is released later: nil then means that the lease has been renewed in time so
// far. A nested Unlock (see [WithReentrancy]) says whether the hold is whole.
//
// Uncontended it is one request. The end of ctx bounds the call. A ctx that ended before the call,
// as is usual in a defer, is replaced by a bound of the TTL or 5 s, whichever is less. The same
// bound applies to a ctx that never ends, and to one that comes from the hold, and so ends with it,
// unless its deadline is sooner. With a nil ctx Unlock returns an error and the hold goes on.
func (m *Mutex) Unlock(ctx context.Context) error {
	if m == nil || m.s == nil {
		return ErrNotHeld
	}
	if err := checkContext(ctx, "unlock", m.name); err != nil {
		return err
	}
	return m.unlock(ctx, nil)
}

// unlock releases m's hold; if only is not nil, then only that very hold.
func (m *Mutex) unlock(ctx context.Context, only *hold) error {
	s := m.s
	ctx, cancel := releaseContext(ctx, s, m.covers, releaseTime(s))
	defer cancel()

	s.mu.Lock()
	h := m.hold.Load()
	if h == nil || !h.heldLocked() || only != nil && h != only {
		s.mu.Unlock()
		return failed("unlock", m.name, ErrNotHeld)
	}
	m.depth--
	if m.depth == 0 {
		m.hold.Store(nil)
	}
	return h.unlockLocked(ctx)
}

// Do locks, calls fn, and unlocks, even if fn panics or calls runtime.Goexit. fn gets a context
// that comes from ctx and also ends with the hold; its cause says why. See [Mutex.Context].
//
// If Lock fails, fn is not called, and Do returns Lock's error, which is then also [ErrNotRun].
// Otherwise it returns fn's error, joined with Unlock's unless fn's error wraps that already:
// [ErrLost] says that the work was not protected throughout, [ErrUnconfirmed] that the release was
// not confirmed. ctx bounds the wait and fn; [WithAcquireTimeout] bounds the wait alone.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.do(ctx, "Do", fn, manner{runs: true})
}

// TryDo is Do with TryLock in place of Lock.
func (m *Mutex) TryDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.do(ctx, "TryDo", fn, manner{try: true, runs: true})
}

func (m *Mutex) do(
	ctx context.Context, op string, fn func(ctx context.Context) error, how manner,
) error {
	if fn == nil {
		return notRun(errors.New("etcdlock: " + op + ": nil function"))
	}
	h, started, err := m.lock(ctx, how)
	if err != nil {
		return notRun(err)
	}
	return during(started, h, fn, func() error { return m.unlock(ctx, h) })
}

// Lead calls fn each time this process holds the lock, again and again until ctx ends. Of all
// processes that call Lead for a name one is the leader at a time, and another takes over when the
// leader ends, loses the lock, or dies.
//
// fn gets a context that ends with the hold (see [Mutex.Context]). Lead releases the lock only
// after fn has returned: a leader that was asked to end, by ctx or by a [Recall], has no successor
// meanwhile. Only if the lock is lost, or [WithMaxHold] ends the hold, another process may lead
// before that. Then Lead queues anew, behind all waiters, after a pause: about 100 ms, doubled up
// to 30 s each time that fn returns within the granted TTL, and 100 ms again after a longer term.
//
// An error of fn does not end Lead, nor does a loss of the lock: both go to the logger and to
// Trace.Led. So does a panic of fn, with its stack. If fn calls runtime.Goexit the lock is
// released, and Lead is over with its goroutine. To end Lead, fn returns [ErrStopLeading], or an
// error that wraps it.
//
// Lead always returns an error, and holds nothing then. (A release may go on in the background.)
// The error is, by errors.Is,
//   - fn's own, if that is ErrStopLeading; the lock is released, or was lost;
//   - the cause of ctx and ctx.Err() if ctx ended; fn was given the time to return;
//   - [ErrDeadlock] at once if ctx comes from a hold of this name in this Session;
//   - [ErrClosed], and not ctx.Err(), if the Mutex or the Session is, or becomes, closed;
//   - etcd's own, if it refuses and a retry would not help.
//
// While etcd is down, and after the time of [WithAcquireTimeout], Lead goes on. Calls of Lead and
// Lock of one Mutex take turns.
func (m *Mutex) Lead(ctx context.Context, fn func(ctx context.Context) error) error {
	return candidate{m, fn}.run(ctx)
}

// during calls fn with a context of h, and then unlock, whatever becomes of fn.
func during(
	ctx context.Context, h *hold, fn func(ctx context.Context) error, unlock func() error,
) (err error) {
	defer func() {
		if unlockErr := unlock(); unlockErr != nil {
			switch {
			case err == nil:
				err = unlockErr
			case !errors.Is(err, unlockErr): // fn has not said so itself
				err = errors.Join(err, unlockErr)
			}
		}
	}()
	return ran(fn(withHold(ctx, h)))
}

// Context returns a context that comes from parent and also ends the moment the hold ends or can no
// longer be trusted. context.Cause then says why: [ErrUnlocked], a [*LostError], [ErrMaxHold],
// [ErrClosed] or, after a [Recall], a [*RecalledError].
//
// Its Err is context.Canceled then. If the lock is not held it has ended already, with the cause
// [ErrNotHeld]. Lock with it, or with a context derived from it, is [ErrDeadlock] for the same name
// and Session, or nests with [WithReentrancy].
//
// Check this very context before each write: after a pause of the process its Err, Done and Cause
// tell the truth at the first call. A context derived from it keeps its own state until a goroutine
// has run.
//
// During a hold the same parent always gets the same context. The hold and the parent keep it until
// one of them ends: cancel a parent that is made for each call.
func (m *Mutex) Context(parent context.Context) context.Context {
	if parent == nil {
		return endedContext(context.Background(), errors.New("etcdlock: nil context"))
	}
	if m == nil || m.s == nil {
		return endedContext(parent, ErrNotHeld)
	}
	return withHold(parent, m.hold.Load())
}

// Token returns the fencing token of the current hold, and 0 when the lock is not held. It grows
// with every new hold of a name: a resource that remembers the highest token it has seen, and
// refuses lower ones, is safe from a holder that was paused between its check and its write.
//
// Send it with the read of what you are going to change, too: then the resource has seen it. The
// token is the create revision of the hold's key; holds of a Session share one by [WithHandoff] and
// [WithLinger]. It is 0 also after a loss or the grace of a recall.
func (m *Mutex) Token() int64 { return m.Status().Token }

// Key returns the etcd key of the current hold, "" when the lock is not held.
func (m *Mutex) Key() string { return m.Status().Key }

// Status returns what is true of the current hold now, also after a pause of the process, in one
// reading. It is for readiness checks and dashboards, and costs no request.
//
// It does not protect work, because the answer may be old when it is used: check the
// [Mutex.Context] or send the Token along.
func (m *Mutex) Status() Status {
	if m == nil || m.s == nil {
		return Status{}
	}
	return m.hold.Load().status()
}

// SetInfo changes the Contender.Info of the current hold, which [WithInfo] has set at first. It
// returns nil only if the key was there and has the info.
//
// info is valid UTF-8 of at most 1 KiB. Others see it as they see the holder, by [WatchHolder]
// within milliseconds. All else of the hold stays as it is. The next hold has what WithInfo says.
// An error is, by errors.Is,
//   - [ErrNotHeld]: there is no hold, or it was unlocked or closed meanwhile;
//   - [ErrLost] (a [*LostError] that says why): the hold was lost before, or this call has found
//     it;
//   - [ErrRecalled]: the grace of a recall was over;
//   - the cause of ctx and ctx.Err() if ctx ended;
//   - etcd's own, if it refuses and a retry would not help, or says that the client is closed.
//
// The info may or may not be set then: if there is still a hold call SetInfo again. A wrong
// argument changes nothing. While etcd is down SetInfo waits and retries, until ctx or the hold
// ends. Of several calls the last one wins, and any of those at the same time.
//
// It costs a read and a transaction, or the read alone if the key has that info. The key is then
// not handed on and does not linger (see [WithHandoff], [WithLinger]).
func (m *Mutex) SetInfo(ctx context.Context, info string) error {
	if m == nil || m.s == nil {
		return ErrNotHeld
	}
	h := m.hold.Load()
	if h == nil {
		return setInfo(ctx, m.name, info, nil)
	}
	return setInfo(ctx, m.name, info, h.alone[:])
}

// IsOwner returns a comparison for the If of an etcd transaction: it is true only while this very
// hold's key exists, whatever clocks say. When the lock is not held it is never true, and reads no
// key outside the lock's prefix.
//
// It does not order the writes of one hold. After a write whose outcome is unknown, unlock before
// the next write: the comparison would still let the late one through.
func (m *Mutex) IsOwner() clientv3.Cmp {
	if m == nil || m.s == nil {
		return clientv3.Compare(clientv3.CreateRevision("/"), "=", -1)
	}
	if now := m.Status(); now.Held {
		return clientv3.Compare(clientv3.CreateRevision(now.Key), "=", now.Token)
	}
	return m.notOwner()
}

// Name returns the name of the lock.
func (m *Mutex) Name() string {
	if m == nil {
		return ""
	}
	return m.name
}

// Locker returns a sync.Locker for code that needs one. Its Lock waits without bound until it holds
// the lock.
//
// sync.Locker has no errors, so they become panics rather than unprotected critical sections: Lock
// panics with an error that waiting does not fix ([ErrClosed], a refusal by etcd), Unlock with
// [ErrLost] and [ErrNotHeld]. [ErrUnconfirmed] goes only to the logger.
func (m *Mutex) Locker() sync.Locker { return locker{m} }

type locker struct{ m *Mutex }

func (lk locker) Lock() {
	if err := lk.m.Lock(context.Background()); err != nil {
		panic(err)
	}
}

func (lk locker) Unlock() {
	if err := lk.m.Unlock(context.Background()); err != nil && !errors.Is(err, ErrUnconfirmed) {
		panic(err)
	}
}

// check returns an error if m was not made with New or Session.Mutex.
func (m *Mutex) check() error {
	if m == nil || m.s == nil {
		return errors.New("etcdlock: Mutex not made with New or Session.Mutex")
	}
	return nil
}

// covers reports whether h is a hold of m's name in m's Session, or has begun with one.
func (m *lockHandle) covers(h *hold) bool { return m.coveredBy(h) != nil }

// coveredBy is the hold of m's name in m's Session, of the holds that have begun together with h;
// nil if there is none.
func (m *lockHandle) coveredBy(h *hold) *hold {
	for _, o := range h.all {
		if o.m.s == m.s && o.m.name == m.name {
			return o
		}
	}
	return nil
}

// countNests counts the reads of m that nest in h, a hold of another lockHandle, so that Close
// knows them.
func (m *lockHandle) countNests(h *hold, n int) {
	if m == h.m {
		return
	}
	if m.nests == nil {
		m.nests = make(map[*hold]int)
	}
	if m.nests[h] += n; m.nests[h] == 0 {
		delete(m.nests, h)
	}
}
