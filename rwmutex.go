package etcdlock

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// An RWMutex is a read/write lock of a name: one writer holds it, or any number of readers do. It
// is first come, first served: readers in a row share the lock, every contender behind a writer
// waits for it, and no waiter starves. Make it with [NewRWMutex] or [Session.RWMutex]; the zero
// RWMutex returns errors. Do not copy one.
//
// A [Mutex] of the same name is a writer. So are etcd's concurrency.Mutex, etcdctl lock, and a
// version of this package that knows no readers. There is no upgrade from read to write and no
// downgrade: Lock inside a read, and RLock inside a write, return [ErrDeadlock], also with
// [WithReentrancy].
//
// The readers of one [Session] share one key in etcd. While one of them holds the lock and no
// writer waits, the next one costs at most a read and a watch, and further ones cost nothing. A
// writer waits for the reads that began before it came, plus about the time of one event.
//
// # Tokens
//
// Readers and writers take their tokens from one sequence: a writer's token is higher than the
// tokens of all holds before it, and lower than the tokens of all holds after it, readers included.
// (Readers that share the lock have any order, and readers of one Session may have the same token.
// So may writers of one Session, by [WithHandoff] and [WithLinger].) To refuse late
// writes only, a resource keeps the highest write token that it has seen and refuses lower ones. To
// refuse late reads too, and writes that come behind a later read, it keeps the highest token of a
// write and the highest of a read: it refuses a write below either, and a read below the highest
// write.
//
// All methods are safe for concurrent use. An Unlock of a writer synchronizes before the Lock or
// RLock that follows it in the same process, and an Unlock of a reader before the Lock that does.
type RWMutex struct {
	_ noCopy

	*Mutex // the writer's side; not to be changed
}

// NewRWMutex returns an RWMutex for name with a lease of its own. It validates name and options and
// does no I/O. It takes the options of [New]; [WithHandoff] and [WithLinger] are for its writers.
func NewRWMutex(client *clientv3.Client, name string, opts ...SessionOption) (*RWMutex, error) {
	m, err := newAlone(client, name, forRWMutex, opts)
	if err != nil {
		return nil, err
	}
	return &RWMutex{Mutex: m}, nil
}

// RLock waits until every writer that came before it is gone. ctx bounds the wait only: the Hold
// outlives it. Uncontended it is one request to etcd, or none beside other readers of the Session.
//
// After a nil error the caller may read until it calls Unlock on the Hold. Each RLock has its own
// Hold, and [Hold.Context] gives a context that ends with it. After an error there is no Hold, and
// nothing is left behind that could block other contenders. The errors are as for [Mutex.Lock]:
// [ErrDeadlock] comes at once if ctx comes from a hold of this name in this Session. With
// [WithReentrancy] RLock nests in a hold that reads: it has a Hold of its own, which ends with that
// one, and each Hold needs its Unlock.
//
// Waiting readers of one Session share one place in line, which shows the [WithOwner] of the first.
func (rw *RWMutex) RLock(ctx context.Context) (*Hold, error) {
	return rw.acquire(ctx, manner{})
}

// TryRLock acquires the lock for reading if no writer holds it or waits for it. It waits for etcd,
// but for no other contender: until ctx ends or, if ctx has no deadline, for at most the TTL. If
// there is a writer it returns a [*LockedError] at once, for which errors.Is(err, ErrLocked) is
// true, and has written nothing to etcd (but see [Mutex.TryLock] about nested names). The error
// names the first in line. That may be a reader: the writer in the way is behind it then. TryRLock
// is also refused if the Session has lost its reads of the name and not all of them have unlocked,
// or if they go on and are recalled or their lease is about to be replaced. Other errors, and what
// is true after them, are as for [RWMutex.RLock].
func (rw *RWMutex) TryRLock(ctx context.Context) (*Hold, error) {
	return rw.acquire(ctx, manner{try: true})
}

func (rw *RWMutex) acquire(ctx context.Context, how manner) (*Hold, error) {
	if err := rw.check(); err != nil {
		return nil, err
	}
	w := request{m: &rw.Mutex.lockHandle, Shape: line.Shape{Kind: line.Read}, manner: how}
	h, started, err := w.lock(ctx)
	if err != nil {
		return nil, err
	}
	return &Hold{m: &rw.Mutex.lockHandle, hold: h, started: started}, nil
}

// RDo is [Mutex.Do] with RLock: fn reads, with a context that ends with the hold. An error that is
// [ErrNotRun] says that fn was not called, and one that is [ErrLost] that the read was not
// protected throughout.
func (rw *RWMutex) RDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return doWith(ctx, "RDo", fn, func() (*Hold, error) {
		return rw.acquire(ctx, manner{runs: true})
	})
}

// TryRDo is RDo with TryRLock in place of RLock.
func (rw *RWMutex) TryRDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return doWith(ctx, "TryRDo", fn, func() (*Hold, error) {
		return rw.acquire(ctx, manner{try: true, runs: true})
	})
}

// check is the error of an RWMutex that was not made here.
func (rw *RWMutex) check() error {
	if rw.Mutex == nil {
		return errors.New("etcdlock: RWMutex not made with NewRWMutex or Session.RWMutex")
	}
	return nil
}

// Close is [Mutex.Close]: it ends what this RWMutex holds, to write or to read, and releases it.
// The contexts of its Holds end with the cause [ErrClosed], and their Unlock returns [ErrNotHeld]
// from then on. Reads of other RWMutexes that share the key go on.
func (rw *RWMutex) Close(ctx context.Context) error {
	if err := rw.check(); err != nil {
		return err
	}
	return rw.Mutex.Close(ctx)
}
