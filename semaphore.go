package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// mostPermits is the highest limit of a Semaphore: a key has two bytes for it.
const mostPermits = math.MaxUint16

// A Semaphore limits how many permits of a name are held at a time, by all processes together. Make
// it with [NewSemaphore] or [Session.Semaphore]; the zero Semaphore returns errors. Do not copy
// one. All methods are safe for concurrent use.
//
// It is first come, first served: a request for many permits is not overtaken by small ones behind
// it, and every request gets in. Within a [Session] that is the order of the calls. A [Mutex] of
// the same name takes all of it, as do the writers and readers of an [RWMutex], etcd's
// concurrency.Mutex, and a version of this package that knows no permits.
//
// Nothing is stored but the permits, so nothing needs a reset: those of a process that has died
// come back with its lease. While contenders disagree on the limit the lowest limit in line counts,
// so a new limit may be rolled out process by process. The logger warns once for each other limit.
//
// Holds of permits overlap, so a token says nothing about other holds. If the permits of a process
// are lost, another may get them while the first still works: more than the limit are at work until
// the first looks at its context. That is so within a Session, too: an Acquire does not wait for
// the Unlock of lost permits, which would not keep the limit among processes.
type Semaphore struct {
	_ noCopy

	m *Mutex // the name, the Session and the options; set once
}

// NewSemaphore returns a Semaphore for name with a lease of its own. It validates name, limit (1 to
// 65,535) and options and does no I/O. It takes the options of [New], but refuses [WithHandoff],
// [WithLinger], [WithMinHold] and [WithReentrancy].
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
	m.limit = uint16(limit)
	return &Semaphore{m: m}, nil
}

func checkLimit(name string, limit int) error {
	if limit < 1 || limit > mostPermits {
		return fmt.Errorf("etcdlock: semaphore %s: limit %d: must be 1 to %d",
			excerpt(name, maxNameLen), limit, mostPermits)
	}
	return nil
}

// Acquire waits until it has n permits: until those of all contenders before it and its own are
// within the limit. After nil the caller has them until it calls Unlock on the Hold, all n at once,
// and [Hold.Context] gives a context that ends with it.
//
// n is 1 up to the limit, else it is an error at once. ctx bounds the wait only. With permits free
// it is one request to etcd. After an error there is no Hold, and nothing is left behind that could
// block other contenders. The errors are as for [Mutex.Lock], but a ctx that comes from permits is
// no [ErrDeadlock].
//
// An Acquire by a caller that has permits of the name waits in line as any other. It waits for ever
// if the permits are out and their holders wait for more, or behind a contender that waits for the
// caller's own permits. Ask for all permits at once, or bound the wait.
func (s *Semaphore) Acquire(ctx context.Context, n int) (*Hold, error) {
	return s.acquire(ctx, n, manner{})
}

// TryAcquire takes n permits if they are free and there is no waiter. If they are not free it
// returns a [*LockedError] at once, which is [ErrLocked] by errors.Is, and has written nothing to
// etcd.
//
// Like [Mutex.TryLock] it waits for etcd, but for no other contender. Permits that change during
// the call may cost a few more requests. Other errors, and what is true after them, are as for
// [Semaphore.Acquire].
func (s *Semaphore) TryAcquire(ctx context.Context, n int) (*Hold, error) {
	return s.acquire(ctx, n, manner{try: true})
}

func (s *Semaphore) acquire(ctx context.Context, n int, how manner) (*Hold, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if limit := int(s.m.limit); n < 1 || n > limit {
		return nil, failed("acquire", s.m.name,
			fmt.Errorf("%d permits: must be 1 to the limit of %d", n, limit))
	}
	shape := line.Shape{Kind: line.Permit, Weight: uint16(n), Limit: s.m.limit}
	w := request{m: &s.m.lockHandle, Shape: shape, manner: how}
	h, started, err := w.lock(ctx)
	if err != nil {
		return nil, err
	}
	return &Hold{m: &s.m.lockHandle, hold: h, started: started}, nil
}

// Do is [Mutex.Do] with Acquire: fn has n permits, and a context that ends with them. An error that
// is [ErrNotRun] says that fn was not called.
func (s *Semaphore) Do(ctx context.Context, n int, fn func(ctx context.Context) error) error {
	return doWith(ctx, "Do", fn, func() (*Hold, error) {
		return s.acquire(ctx, n, manner{runs: true})
	})
}

// TryDo is Do with TryAcquire in place of Acquire.
func (s *Semaphore) TryDo(ctx context.Context, n int, fn func(ctx context.Context) error) error {
	return doWith(ctx, "TryDo", fn, func() (*Hold, error) {
		return s.acquire(ctx, n, manner{try: true, runs: true})
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
