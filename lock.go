package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/line"
)

// A Mutex is a lock that one holder has at a time, among all Mutexes of its name in all processes
// that use the same etcd.
//
//	err := mu.Lock(ctx) // then ctx = mu.Context(ctx), and mu.Unlock(ctx) at the end; or mu.Do
//
// Make it with [NewMutex] or [Session.Mutex]; the zero Mutex returns errors. Do not copy it.
//
// All methods are safe for concurrent use. As with sync.Mutex, any goroutine may call Unlock, and
// Unlock synchronizes before the Lock that follows it in the same process.
type Mutex struct {
	_ noCopy

	// Set once, then only read.
	lock *hold.Lock    // nil if m was not made here
	own  *hold.Session // that Close closes, nil for the Mutex of a Session
}

// noCopy makes go vet report a copied struct: vet takes it for a sync.Locker.
type noCopy struct{}

// Lock does nothing.
func (*noCopy) Lock() {}

// Unlock does nothing.
func (*noCopy) Unlock() {}

// NewMutex returns a Mutex for name with a lease of its own. It validates name and options and does
// no I/O: the first Lock gets the lease. Close it at the end, as a Session.
func NewMutex(client *clientv3.Client, name string, opts ...SessionOption) (*Mutex, error) {
	return newAlone(client, name, forMutex, opts)
}

// New is NewMutex.
//
// Deprecated: Use [NewMutex].
//
//go:fix inline
func New(client *clientv3.Client, name string, opts ...SessionOption) (*Mutex, error) {
	return NewMutex(client, name, opts...)
}

// newAlone returns the Mutex of something that has a lease of its own.
func newAlone(client *clientv3.Client, name string, of use, opts []SessionOption) (*Mutex, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s, err := openSession(client, of, opts)
	if err != nil {
		return nil, err
	}
	return &Mutex{lock: new(hold.Lock).Init(s, name, s.Config()), own: s}, nil
}

// Lock waits in line until it holds the lock. After nil the caller holds it until Unlock, and
// [Mutex.Context] gives a context that ends with the hold.
//
// ctx bounds the wait only: a hold outlives it. Uncontended it is one request to etcd. After an
// error the caller does not hold the lock; a key that may exist is removed in the background, or
// goes with its lease. The error is, by errors.Is,
//   - the cause of ctx and ctx.Err() if ctx ended, or context.DeadlineExceeded if the time of
//     [WithAcquireTimeout] is over; it wraps a [*LockedError] if another contender held the lock
//     then, and [ErrUnavailable] with the reason if etcd was not answering;
//   - [ErrDeadlock] at once if ctx comes from a hold of this name in this Session;
//   - [ErrClosed], and not ctx.Err(), if the Mutex or the Session is, or becomes, closed;
//   - etcd's own, if it refuses and a retry would not help (permission, for instance), or says that
//     the client is closed.
//
// While etcd is down Lock waits and retries. The logger and Trace.Unavailable report that, and the
// logger and Trace.Waiting a wait of 30 s.
//
// After a Session has lost a hold ([ErrLost]), its other calls cannot get that lock until the lost
// hold is unlocked, because its work may go on. So a goroutine that calls Lock again before Unlock
// waits for ever; its [*LockedError] says so, and the logger warns after 10 s. Other processes do
// not wait for that Unlock. If your work may overlap with other work of the same process after a
// loss, unlock the [Hold] when its context ends.
func (m *Mutex) Lock(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	_, _, err := m.lock.Acquire(ctx, hold.Request{})
	return err
}

// TryLock takes the lock if no contender holds it or waits for it. If it is taken, it returns
// a [*LockedError] at once, which is [ErrLocked] by errors.Is, and has put no key.
//
// It never waits for another contender. It waits for etcd's answer until ctx ends, or for at most
// the TTL if ctx has no deadline. Other errors, and what is true after them, are as for
// [Mutex.Lock]. A hold that this Session has lost and not unlocked counts as taken.
//
// It takes no request beside a contender of its own Session, and otherwise one; up to six beside
// keys of nested names. If another contender comes at the same moment, TryLock may put a key behind
// that one, and deletes it again.
func (m *Mutex) TryLock(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	_, _, err := m.lock.Acquire(ctx, hold.Request{Try: true})
	return err
}

// Unlock ends the hold and releases the lock. It returns nil only if the lock was held without a
// break until this call.
//
// Otherwise the error is, by errors.Is,
//   - [ErrLost] (a [*LostError] that says why): the hold had ended before. Its key, if there still
//     is one, is being removed; a newer holder's key is not touched;
//   - [ErrUnconfirmed]: etcd did not confirm in time, and the release goes on in the background
//     until it is confirmed or the lease has ended; or an answer was lost, the key is gone, and
//     nothing shows that it was there until this call, as the watch of a hold that has lasted for
//     more than a second does;
//   - [ErrNotHeld]: there is no hold, and nothing has happened.
//
// After each of these the Mutex holds nothing and may be locked again, unless it is closed. With
// [WithHandoff] or [WithLinger] the key is released later: nil then means that the lease has been
// renewed in time so far. A nested Unlock (see [WithReentrancy]) says whether the hold is whole.
//
// The end of ctx bounds the call. The bound is the TTL or 5 s,
// whichever is less, if ctx ended before the call (as is usual in a defer), if it never ends, and
// if it comes from the hold, unless its deadline is sooner. With a nil ctx Unlock returns an error
// and the hold goes on.
func (m *Mutex) Unlock(ctx context.Context) error {
	if m == nil || m.lock == nil {
		return ErrNotHeld
	}
	if ctx == nil {
		return failed("unlock", m.lock.Name(), errNilContext)
	}
	return m.lock.Unlock(ctx, nil)
}

// Do locks, calls fn, and unlocks, even if fn panics or calls runtime.Goexit. nil means that fn
// returned nil and was protected throughout, as the nil of [Mutex.Unlock] says. fn gets a context
// that comes from ctx and also ends with the hold; its cause says why.
//
// If Lock fails, fn is not called, and the error is Lock's and [ErrNotRun]. Otherwise it returns
// fn's error, joined with Unlock's unless fn's error wraps that already: [ErrLost] says that the
// work was not protected throughout, [ErrUnconfirmed] that the release was not confirmed, as with
// Unlock. ctx bounds the wait and fn; [WithAcquireTimeout] bounds the wait alone.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.do(ctx, "Do", fn, hold.Request{Runs: true})
}

// TryDo is Do with TryLock in place of Lock. If this lock was taken, the error is [ErrNotRun] and
// [ErrLocked]; without ErrNotRun, ErrLocked is fn's own.
func (m *Mutex) TryDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.do(ctx, "TryDo", fn, hold.Request{Try: true, Runs: true})
}

func (m *Mutex) do(
	ctx context.Context, op string, fn func(ctx context.Context) error, w hold.Request,
) error {
	if fn == nil {
		return notRun(errors.New("etcdlock: " + op + ": nil function"))
	}
	if err := m.check(); err != nil {
		return notRun(err)
	}
	h, started, err := m.lock.Acquire(ctx, w)
	if err != nil {
		return notRun(err)
	}
	return during(started, h, fn, func() error { return m.lock.Unlock(ctx, h) })
}

// Lead calls fn each time this process holds the lock, until ctx ends. Of all processes that call
// Lead for a name one leads at a time. Another takes over when it ends, loses the lock, or dies.
//
// fn gets a context that ends with the hold (see [Mutex.Context]). Lead releases the lock only
// after fn has returned: a leader that was asked to end, by ctx or by a [Recall], has no successor
// meanwhile. Only if the lock is lost, or [WithMaxHold] or Close ends the hold, another process may
// lead before that. Then Lead queues anew, behind all waiters, after a pause: about 100 ms, doubled
// up to 30 s each time that fn returns within the granted TTL, and 100 ms again after a longer
// term.
//
// An error of fn does not end Lead, nor does a panic, or a loss of the lock. [WithLogger] and
// Trace.Led report each, a panic with its stack: without them a fn that always fails is called
// again in silence. To end Lead, fn returns [ErrStopLeading], or an error that wraps it. If fn
// calls runtime.Goexit the lock is released, and Lead is over with its goroutine.
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
// During a hold the same parent, if comparable, gets the same context. The hold and the parent keep
// it until one of them ends: cancel a parent that is made for each call.
func (m *Mutex) Context(parent context.Context) context.Context {
	if parent == nil {
		return hold.EndedContext(context.Background(), errors.New("etcdlock: nil context"))
	}
	if m == nil || m.lock == nil {
		return hold.EndedContext(parent, ErrNotHeld)
	}
	return hold.WithHold(parent, m.lock.Hold())
}

// Token returns the fencing token of the current hold, and 0 when the lock is not held. It grows
// with each new key of a name: a resource that remembers the highest token it has seen, and
// refuses lower ones, is safe from a holder that was paused between its check and its write.
//
// Send it with the read of what you are going to change, too: then the resource has seen it. The
// token is the create revision of the hold's key; holds of a Session share one by [WithHandoff] and
// [WithLinger]. It is 0 also after a loss or the grace of a recall.
func (m *Mutex) Token() int64 { return m.Status().Token }

// Key returns the etcd key of the current hold, "" when the lock is not held.
func (m *Mutex) Key() string { return m.Status().Key }

// Status returns what is true of the current hold now, also after a pause of the process, in one
// reading. It is for dashboards, and costs no request.
//
// It does not protect work, because the answer may be old: check the [Mutex.Context] or send the
// Token along.
func (m *Mutex) Status() Status {
	if m == nil || m.lock == nil {
		return Status{}
	}
	return Status(m.lock.Hold().Status())
}

// SetInfo changes the Contender.Info of the current hold, which [WithInfo] has set at first. It
// returns nil only if the key was there and has the info.
//
// info is valid UTF-8 of at most 1 KiB. Others see it as they see the holder, by [WatchHolder]
// within milliseconds. All else of the hold stays as it is. The next hold has what WithInfo says.
// An error is, by errors.Is,
//   - [ErrNotHeld]: there is no hold, or it was unlocked or closed meanwhile;
//   - [ErrLost] (a [*LostError] that says why): the hold was lost, as this call may have found out;
//   - [ErrRecalled]: the grace of a recall was over;
//   - the cause of ctx and ctx.Err() if ctx ended;
//   - etcd's own, if it refuses and a retry would not help, or says that the client is closed.
//
// After an error the info may or may not be set: call SetInfo again if there is still a hold. While
// etcd is down SetInfo waits and retries, until ctx or the hold ends. Of several calls the last one
// wins; of calls at the same time any one may.
//
// It costs a read and a transaction, or the read alone if the key has that info. The key is then
// not handed on and does not linger (see [WithHandoff], [WithLinger]).
func (m *Mutex) SetInfo(ctx context.Context, info string) error {
	if m == nil || m.lock == nil {
		return ErrNotHeld
	}
	if err := checkSetInfo(ctx, m.lock.Name(), info); err != nil {
		return err
	}
	return m.lock.SetInfo(ctx, info)
}

// IsOwner returns a comparison for the If of an etcd transaction: it is true only while this very
// hold's key exists, whatever clocks say. When the lock is not held it is never true, and reads no
// key outside the lock's prefix.
//
// It does not order the writes of one hold. After a write whose outcome is unknown, unlock before
// the next write: the comparison would still let the late one through.
func (m *Mutex) IsOwner() clientv3.Cmp {
	if m == nil || m.lock == nil {
		return hold.NotOwner("")
	}
	if now := m.Status(); now.Held {
		return clientv3.Compare(clientv3.CreateRevision(now.Key), "=", now.Token)
	}
	return hold.NotOwner(m.lock.Name())
}

// Name returns the name of the lock.
func (m *Mutex) Name() string {
	if m == nil || m.lock == nil {
		return ""
	}
	return m.lock.Name()
}

// Locker returns a sync.Locker for code that needs one. Its Lock waits without bound until it holds
// the lock, whatever [WithAcquireTimeout] says.
//
// sync.Locker has no errors, so they become panics: Lock panics with an error that waiting does not
// fix ([ErrClosed], a refusal by etcd), Unlock with [ErrLost] and [ErrNotHeld]. [ErrUnconfirmed]
// goes only to the logger.
func (m *Mutex) Locker() sync.Locker { return locker{m} }

type locker struct{ m *Mutex }

func (lk locker) Lock() {
	err := lk.m.check()
	if err == nil {
		_, _, err = lk.m.lock.Acquire(context.Background(), hold.Request{Unbounded: true})
	}
	if err != nil {
		panic(err)
	}
}

func (lk locker) Unlock() {
	if err := lk.m.Unlock(context.Background()); err != nil && !errors.Is(err, ErrUnconfirmed) {
		panic(err)
	}
}

// Close ends the hold, if there is one, with everything that nests in it, and releases its key,
// also a lingering one. The hold's context ends with the cause [ErrClosed], and waiting calls of
// Lock return ErrClosed. What the Mutex has unlocked goes on for another one that nests in it.
//
// From then on Lock and TryLock return ErrClosed and Unlock returns [ErrNotHeld]. A Mutex from
// [NewMutex] is closed as a [Session] is; a Session's Mutex leaves the Session as it is.
//
// It returns nil if its hold left nothing behind, and when the Mutex was closed before.
// [ErrUnconfirmed] says that etcd did not confirm in time: what is left goes within the TTL. The
// bound of Close is the end of ctx, or 50 ms if ctx ended before the call. If ctx never ends, Close
// is bounded as Unlock is, and for a Mutex from NewMutex by two TTLs, as [Session.Close]. If
// another call is closing the Mutex or its Session, Close waits for that and returns its result.
// After a nil ctx nothing has happened.
func (m *Mutex) Close(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := checkContext(ctx, "close", m.lock.Name()); err != nil {
		return err
	}
	if m.own != nil {
		return m.own.Close(ctx)
	}
	return m.lock.Close(ctx)
}

// check returns an error if m was not made with NewMutex or Session.Mutex.
func (m *Mutex) check() error {
	if m == nil || m.lock == nil {
		return errors.New("etcdlock: Mutex not made with NewMutex or Session.Mutex")
	}
	return nil
}

// The pause of Lead before it queues again.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 30 * time.Second
)

// errGoexit is the error of a function that ended its goroutine.
var errGoexit = errors.New("etcdlock: lead: the function called runtime.Goexit")

// A candidate is a call of Lead.
type candidate struct {
	*Mutex
	fn func(ctx context.Context) error
}

// run is Lead.
func (m candidate) run(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := checkContext(ctx, "lead", m.Name()); err != nil {
		return err
	}
	if m.fn == nil {
		return failed("lead", m.Name(), errors.New("nil function"))
	}
	if m.lock.NestsIn(ctx) != nil { // to nest would be to lead without a turn, for ever
		return failed("lead", m.Name(), ErrDeadlock)
	}
	timeout := m.lock.Config().AcquireTimeout
	var pause time.Duration
	for {
		began := time.Now()
		h, started, err := m.lock.Acquire(ctx, hold.Request{})
		var took, long time.Duration
		switch {
		case err == nil:
			long = h.TTL()
			if took, err = m.term(started, h); errors.Is(err, ErrStopLeading) {
				return err
			}
		case ctx.Err() == nil && timeout > 0 && errors.Is(err, context.DeadlineExceeded):
			took, long = time.Since(began), m.lock.Config().TTL
		default:
			return err
		}
		pause = nextPause(pause, took >= long)
		m.lock.Rest(ctx, attempt.Jitter(pause))
	}
}

// nextPause follows a pause, and a term that was long or not.
func nextPause(pause time.Duration, long bool) time.Duration {
	if long || pause == 0 {
		return leastPause
	}
	return min(2*pause, mostPause)
}

// term is one term: it calls fn during h, and reports how fn ended. It returns how long fn took,
// and what fn has returned.
//
// (Do not release before fn has returned, whatever has ended its context: the next leader would
// work beside it. TestALeaderIsReleasedOnlyAfterItHasReturned.)
func (m candidate) term(ctx context.Context, h *hold.Hold) (took time.Duration, returned error) {
	began, err := time.Now(), errGoexit
	defer func() { m.traceLed(ctx, h.Token(), took, err) }()
	led := func(ctx context.Context) (err error) {
		defer func() {
			took = time.Since(began)
			if p := recover(); p != nil {
				err = panicked(p)
			}
		}()
		returned = m.fn(ctx)
		return returned
	}
	err = during(ctx, h, led, func() error {
		err := m.lock.Unlock(ctx, h)
		if errors.Is(err, ErrNotHeld) { // fn, or Close, has unlocked
			return nil
		}
		return err
	})
	return took, returned
}

// panicked is the error of a function that panicked with p. It wraps p, if p is an error.
func panicked(p any) error {
	text := fmt.Sprintf("etcdlock: lead: the function panicked: %v\n\n%s", p, debug.Stack())
	e := &opError{text: text}
	if err, ok := p.(error); ok {
		e.wraps = []error{err}
	}
	return e
}

// traceLed reports that a term is over. If its context has ended with the caller's, or fn has ended
// Lead, that is no failure.
func (m candidate) traceLed(ctx context.Context, token int64, took time.Duration, err error) {
	ends := ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
	failed := err != nil && !ends && !errors.Is(err, ErrStopLeading)
	m.lock.ReportLed(ctx, hold.Led{Name: m.Name(), Token: token, Held: took, Err: err}, failed)
}

// An RWMutex is a read/write lock of a name: one writer holds it, or any number of readers do.
//
//	h, err := rw.RLock(ctx) // then h.Context(ctx) and h.Unlock(ctx); rw.Lock returns an error
//
// The methods of the embedded Mutex are the writer's; a read is a [Hold].
//
// It is first come, first served: readers in a row share the lock, every contender behind a writer
// waits for it, and no waiter starves. Make it with [NewRWMutex] or [Session.RWMutex]; the zero
// RWMutex returns errors. Do not copy one. All methods are safe for concurrent use. In one process
// a writer's Unlock synchronizes before the Lock or RLock that follows it, and a reader's Unlock
// before the Lock that follows it.
//
// A [Mutex] of the same name is a writer. So are etcd's concurrency.Mutex, etcdctl lock, and a
// version of this package that knows no readers. There is no upgrade and no downgrade: Lock inside
// a read, and RLock inside a write, return [ErrDeadlock], also with [WithReentrancy].
//
// The readers of one [Session] share one key in etcd. A writer waits for the reads that began
// before it came, and for about the time of one event.
//
// A writer's token is higher than those of all holds before it, and lower than those of all holds
// after it, readers included, but for holds with its key ([WithHandoff]). docs/fencing.md says how
// a resource refuses late writes and reads.
type RWMutex struct {
	_ noCopy

	*Mutex // the writer's side; not to be changed
}

// NewRWMutex returns an RWMutex for name with a lease of its own. It validates name and options and
// does no I/O. Close it at the end. It takes the options of [NewMutex]; [WithHandoff] and
// [WithLinger] are for its writers.
func NewRWMutex(client *clientv3.Client, name string, opts ...SessionOption) (*RWMutex, error) {
	m, err := newAlone(client, name, forRWMutex, opts)
	if err != nil {
		return nil, err
	}
	return &RWMutex{Mutex: m}, nil
}

// RLock waits until every writer that came before it is gone. After nil the caller may read until
// it calls Unlock on the Hold, and [Hold.Context] gives a context that ends with it.
//
// ctx bounds the wait only: the Hold outlives it. After an error there is no Hold. The errors, and
// what is true after them, are as for [Mutex.Lock]: [ErrDeadlock] comes at once if ctx comes from a
// hold of this name in this Session. With [WithReentrancy] RLock nests in a read: its Hold ends
// with the outer one, and each Hold needs its Unlock.
//
// Readers of a Session that wait share a place in line, with the [WithOwner] of the first.
func (rw *RWMutex) RLock(ctx context.Context) (*Hold, error) {
	return rw.acquire(ctx, hold.Request{})
}

// TryRLock acquires the lock for reading if no writer holds it or waits for it. If there is a
// writer it returns a [*LockedError] at once, which is [ErrLocked] by errors.Is, and has put no
// key.
//
// It waits as [Mutex.TryLock] does. The error names the first in line, which may be a reader.
// TryRLock is also refused while reads of the Session are lost and not unlocked, are recalled, or
// their lease is about to be replaced. Other errors, and what is true after them, are as for
// [RWMutex.RLock].
func (rw *RWMutex) TryRLock(ctx context.Context) (*Hold, error) {
	return rw.acquire(ctx, hold.Request{Try: true})
}

func (rw *RWMutex) acquire(ctx context.Context, w hold.Request) (*Hold, error) {
	if err := rw.check(); err != nil {
		return nil, err
	}
	w.Kind = line.Read
	return acquire(ctx, rw.Mutex.lock, w)
}

// RDo is [Mutex.Do] with RLock: fn reads, with a context that ends with the hold.
func (rw *RWMutex) RDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return doWith(ctx, "RDo", fn, func() (*Hold, error) {
		return rw.acquire(ctx, hold.Request{Runs: true})
	})
}

// TryRDo is RDo with TryRLock, as [Mutex.TryDo] is Do with TryLock.
func (rw *RWMutex) TryRDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return doWith(ctx, "TryRDo", fn, func() (*Hold, error) {
		return rw.acquire(ctx, hold.Request{Try: true, Runs: true})
	})
}

// check is the error of an RWMutex that was not made here.
func (rw *RWMutex) check() error {
	if rw.Mutex == nil || rw.lock == nil {
		return errors.New("etcdlock: RWMutex not made with NewRWMutex or Session.RWMutex")
	}
	return nil
}

// Close is [Mutex.Close] for the writer and the readers: it ends what this RWMutex holds, and
// releases it. The contexts of its Holds end with the cause [ErrClosed], and their Unlock returns
// [ErrNotHeld] from then on. Reads of other RWMutexes that share the key go on.
func (rw *RWMutex) Close(ctx context.Context) error {
	if err := rw.check(); err != nil {
		return err
	}
	return rw.Mutex.Close(ctx)
}

// A Semaphore limits how many permits of a name all processes together hold at a time.
//
//	h, err := sem.Acquire(ctx, 1) // then h.Context(ctx), and h.Unlock(ctx) at the end
//
// Make it with [NewSemaphore] or [Session.Semaphore]; the zero Semaphore returns errors. Do not
// copy one. All methods are safe for concurrent use.
//
// It is first come, first served: a request for many permits is not overtaken by small ones behind
// it, and every request gets in. Within a [Session] that is the order of the calls. A [Mutex] of
// the same name takes all of it, as do the writers and readers of an [RWMutex], etcd's
// concurrency.Mutex, and a version of this package that knows no permits.
//
// The permits of a process that has died come back with its lease. While contenders disagree on
// the limit the lowest limit in line counts, so a new limit may be rolled out process by process.
//
// Holds of permits overlap, so a token says nothing about other holds. If the permits of a process
// are lost, another may get them while the first still works: more than the limit are at work until
// the first looks at its context. Within a Session, too, Acquire does not wait for the Unlock of
// lost permits: etcd no longer counts them.
type Semaphore struct {
	_ noCopy

	m     *Mutex // the name, the Session and the options; set once
	limit int    // set once
}

// NewSemaphore returns a Semaphore for name with a lease of its own. It validates name, limit (1 to
// 65,535) and options and does no I/O. Close it at the end. It takes the options of [NewMutex], but
// refuses [WithHandoff], [WithLinger], [WithMinHold] and [WithReentrancy].
func NewSemaphore(
	client *clientv3.Client, name string, limit int, opts ...SessionOption,
) (*Semaphore, error) {
	if err := checkLimit(name, limit); err != nil {
		return nil, err
	}
	m, err := newAlone(client, name, forSemaphore, opts)
	if err != nil {
		return nil, err
	}
	return &Semaphore{m: m, limit: limit}, nil
}

// Acquire waits until it has n permits: until its own and the permits of all contenders before it
// are within the limit. After nil the caller has them until it calls Unlock on the Hold, all n at
// once, and [Hold.Context] gives a context that ends with it.
//
// n must be 1 to the limit, or it is an error at once. ctx bounds the wait only. After an error
// there is no Hold. The errors, and what is true after them, are as for [Mutex.Lock], but a ctx
// that comes from permits is no [ErrDeadlock].
//
// A caller that has permits of the name already may wait for ever: for holders that wait for more,
// too, or behind a contender that waits for them. Ask for all at once, or bound the wait.
func (s *Semaphore) Acquire(ctx context.Context, n int) (*Hold, error) {
	return s.acquire(ctx, n, hold.Request{})
}

// TryAcquire takes n permits if they are free and there is no waiter. If they are not free it
// returns a [*LockedError] at once, which is [ErrLocked] by errors.Is, and has put no key.
//
// It waits as [Mutex.TryLock] does. Permits that change during the call may cost a few more
// requests. Other errors, and what is true after them, are as for [Semaphore.Acquire].
func (s *Semaphore) TryAcquire(ctx context.Context, n int) (*Hold, error) {
	return s.acquire(ctx, n, hold.Request{Try: true})
}

func (s *Semaphore) acquire(ctx context.Context, n int, w hold.Request) (*Hold, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if n < 1 || n > s.limit {
		return nil, failed("acquire", s.m.Name(),
			fmt.Errorf("%d permits: must be 1 to the limit of %d", n, s.limit))
	}
	w.Shape = line.Shape{Kind: line.Permit, Weight: uint16(n), Limit: uint16(s.limit)}
	return acquire(ctx, s.m.lock, w)
}

// Do is [Mutex.Do] with Acquire: fn has n permits, and a context that ends with them. An error that
// is [ErrNotRun] says that fn was not called.
func (s *Semaphore) Do(ctx context.Context, n int, fn func(ctx context.Context) error) error {
	return doWith(ctx, "Do", fn, func() (*Hold, error) {
		return s.acquire(ctx, n, hold.Request{Runs: true})
	})
}

// TryDo is Do with TryAcquire, as [Mutex.TryDo] is Do with TryLock.
func (s *Semaphore) TryDo(ctx context.Context, n int, fn func(ctx context.Context) error) error {
	return doWith(ctx, "TryDo", fn, func() (*Hold, error) {
		return s.acquire(ctx, n, hold.Request{Try: true, Runs: true})
	})
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() string {
	if s == nil {
		return ""
	}
	return s.m.Name()
}

// Close ends the waits and the holds of this Semaphore, and releases its permits, as [Mutex.Close]
// does. The contexts of its Holds end with the cause [ErrClosed], and their Unlock then returns
// [ErrNotHeld].
func (s *Semaphore) Close(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.m.Close(ctx)
}

// check is the error of a Semaphore that was not made here.
func (s *Semaphore) check() error {
	if s == nil || s.m == nil {
		return errors.New("etcdlock: Semaphore not made with NewSemaphore or Session.Semaphore")
	}
	return nil
}
