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
// one.
//
// It is first come, first served: a request for many permits is not overtaken by small ones behind
// it, and every request gets in. Within a [Session] that is the order of the calls; one of them at
// a time waits in etcd's line.
//
// Nothing is stored but the permits, each with the limit on which its holder counts. So nothing can
// be left over, and nothing needs a reset: the permits of a process that has died come back
// with its lease. While contenders disagree on the limit the lowest limit in line counts, so a
// new limit may be rolled out process by process. A Semaphore logs a warning once for each other
// limit that it meets.
//
// A [Mutex] of the same name takes all of it: it waits for all permits before it, and permits wait
// for it. So it is with the writers and readers of an [RWMutex], with etcd's concurrency.Mutex, and
// with a version of this package that knows no permits.
//
// Holds of permits overlap, so a token says nothing about other holds: a resource that refuses
// lower tokens would refuse holders. If the permits of a process are lost, another process may get
// them while the first still works. Then more than the limit are at work until the first looks at
// its context. So it is within a Session: unlike a Lock, an Acquire does not wait for the Unlock of
// permits that its Session has lost. The others that may be at work are counted by etcd, which
// knows nothing of the lost ones, so a wait in one process would keep no limit.
//
// All methods are safe for concurrent use.
type Semaphore struct {
	_ noCopy

	m *Mutex // the name, the Session and the options; set once
}

// NewSemaphore returns a Semaphore for name with a lease of its own. It validates name, limit and
// options and does no I/O. limit is 1 to 65,535. It takes the options of [New] but [WithHandoff],
// [WithLinger] and [WithReentrancy], which are errors.
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

// Acquire waits until it has n permits: until the permits of all contenders before it and its own
// are within the limit. n is 1 up to the limit, else it is an error at once. ctx bounds the wait
// only: the Hold outlives it. With permits free it is one request to etcd.
//
// After a nil error the caller has the permits until it calls Unlock on the Hold, all n at once.
// [Hold.Context] gives a context that ends with it. After an error there is no Hold, and nothing is
// left behind that could block other contenders. The errors are as for [Mutex.Lock]:
// [ErrDeadlock] comes at once if ctx comes from a hold of this name in this Session that is not of
// permits.
//
// A ctx that comes from a hold of permits of the same name is legal. The call waits in line as any
// other does. If the permits are out, and their holders wait for more, all of them wait for ever.
// This call also waits for ever behind a [Mutex], a read or a request for many permits that waits
// for the caller's own permits, even while other permits are free. Ask for all permits at once, or
// bound the wait.
func (s *Semaphore) Acquire(ctx context.Context, n int) (*Hold, error) {
	return s.acquire(ctx, n, manner{})
}

// TryAcquire takes n permits if they are free and there is no waiter. It waits for etcd, but for no
// other contender: until ctx ends or, if ctx has no deadline, for at most the TTL. If they are not
// free it returns a [*LockedError] at once, for which errors.Is(err, ErrLocked) is true, and has
// written nothing to etcd. (Permits that come and go meanwhile are to it what keys of nested names
// are to [Mutex.TryLock].) Other errors, and what is true after them, are as for
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
// does. The contexts of its Holds end with the cause [ErrClosed], and their Unlock returns
// [ErrNotHeld] from then on.
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
