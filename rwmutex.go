package etcdlock

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// An RWMutex is a read/write lock of a name: one writer holds it, or any number of readers do. The
// methods of the embedded Mutex are those of the writer; a read is a [Hold], from [RWMutex.RLock].
//
// It is first come, first served: readers in a row share the lock, every contender behind a writer
// waits for it, and no waiter starves. Make it with [NewRWMutex] or [Session.RWMutex]; the zero
// RWMutex returns errors. Do not copy one. All methods are safe for concurrent use. An Unlock of a
// writer synchronizes before the Lock or RLock that follows it in the same process, and an Unlock
// of a reader before the Lock that does.
//
// A [Mutex] of the same name is a writer. So are etcd's concurrency.Mutex, etcdctl lock, and a
// version of this package that knows no readers. There is no upgrade and no downgrade: Lock inside
// a read, and RLock inside a write, return [ErrDeadlock], also with [WithReentrancy].
//
// The readers of one [Session] share one key in etcd. Beside one that holds, the next costs at most
// a read and a watch, and further ones nothing. A writer waits for the reads that began before it
// came, plus about the time of one event.
//
// A writer's token is higher than those of all holds before it, and lower than those of all holds
// after it, readers included. docs/fencing.md says how a resource refuses late writes, and late
// reads.
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

// RLock waits until every writer that came before it is gone. After nil the caller may read until
// it calls Unlock on the Hold, and [Hold.Context] gives a context that ends with it.
//
// ctx bounds the wait only: the Hold outlives it. Uncontended it is one request to etcd, or none
// beside other readers of the Session. After an error there is no Hold, and nothing is left behind
// that could block other contenders. The errors are as for [Mutex.Lock]: [ErrDeadlock] comes at
// once if ctx comes from a hold of this name in this Session. With [WithReentrancy] RLock nests in
// a read: it has a Hold of its own, which ends with that one, and each Hold needs its Unlock.
//
// Readers of a Session that wait share a place in line, with the [WithOwner] of the first.
func (rw *RWMutex) RLock(ctx context.Context) (*Hold, error) {
	return rw.acquire(ctx, manner{})
}

// TryRLock acquires the lock for reading if no writer holds it or waits for it. If there is a
// writer it returns a [*LockedError] at once, which is [ErrLocked] by errors.Is, and has written
// nothing to etcd.
//
// Like [Mutex.TryLock] it waits for etcd, but for no other contender. The error names the first in
// line, which may be a reader: the writer is behind it then. TryRLock is also refused while reads
// of the Session are lost and not unlocked, are recalled, or their lease is about to be replaced.
// Other errors, and what is true after them, are as for [RWMutex.RLock].
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

// RDo is [Mutex.Do] with RLock: fn reads, with a context that ends with the hold. As there, the
// error may be [ErrNotRun], or [ErrLost].
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

// Close is [Mutex.Close] for the writer and the readers: it ends what this RWMutex holds, and
// releases it. The contexts of its Holds end with the cause [ErrClosed], and their Unlock returns
// [ErrNotHeld] from then on. Reads of other RWMutexes that share the key go on.
func (rw *RWMutex) Close(ctx context.Context) error {
	if err := rw.check(); err != nil {
		return err
	}
	return rw.Mutex.Close(ctx)
}
