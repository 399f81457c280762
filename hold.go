package etcdlock

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/hold"
)

// A Hold is what a call has acquired: a lock by its name ([Session.Lock]), a read
// ([RWMutex.RLock]), permits ([Semaphore.Acquire]), or several names ([Session.LockAll]). It lasts
// until its Unlock, which any goroutine may call. Its methods are safe for concurrent use. Do not
// copy one.
type Hold struct {
	_ noCopy

	h hold.Handle
}

// acquire is one call that locks, of an RWMutex or a Semaphore.
func acquire(ctx context.Context, m *hold.Lock, w hold.Request) (*Hold, error) {
	h := new(Hold)
	if err := h.h.Acquire(ctx, m, w); err != nil {
		return nil, err
	}
	return h, nil
}

// Unlock ends the hold. It returns nil only if the lock was held without a break until then.
//
// Otherwise it returns what [Mutex.Unlock] returns: [ErrLost], [ErrUnconfirmed], or [ErrNotHeld] if
// the Hold was unlocked before, or its RWMutex, Semaphore or Session was closed. After each of
// these the Hold is over. ctx is as in Mutex.Unlock: with a nil ctx the hold goes on. After the
// grace of a [Recall] Unlock returns nil: the hold was whole. If one of several names was lost it
// returns its [*LostError], and removes the other keys in the background.
//
// While other readers of the Session share the key, Unlock asks etcd nothing; the last reader
// removes the key. nil then means that the lease was renewed in time and that no deletion of the
// key was reported. A deletion in the last second may reach only the readers that go on.
func (h *Hold) Unlock(ctx context.Context) error {
	if h == nil || h.h.Hold == nil {
		return ErrNotHeld
	}
	if ctx == nil {
		return failed("unlock", h.h.Lock.Name(), errNilContext)
	}
	return h.h.Unlock(ctx)
}

// doWith is the method op, Do or one like it: it calls fn during the Hold that lock returns.
func doWith(
	ctx context.Context, op string, fn func(ctx context.Context) error, lock func() (*Hold, error),
) error {
	if fn == nil {
		return notRun(errors.New("etcdlock: " + op + ": nil function"))
	}
	h, err := lock()
	if err != nil {
		return notRun(err)
	}
	return during(h.h.Started, h.h.Hold, fn, func() error { return h.h.Unlock(ctx) })
}

// during calls fn with a context of h, and then unlock, whatever becomes of fn.
func during(
	ctx context.Context, h *hold.Hold, fn func(ctx context.Context) error, unlock func() error,
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
	if err = fn(hold.WithHold(ctx, h)); err != nil {
		err = ran(err)
	}
	return err
}

// Context returns a context that comes from parent and also ends with the hold, as [Mutex.Context]
// does, and with the same causes. After Unlock or Close it has ended already, with [ErrNotHeld].
func (h *Hold) Context(parent context.Context) context.Context {
	if parent == nil {
		return hold.EndedContext(context.Background(), errors.New("etcdlock: nil context"))
	}
	if h == nil {
		return hold.EndedContext(parent, ErrNotHeld)
	}
	return hold.WithHold(parent, h.h.Current())
}

// Token returns the fencing token, and 0 once the hold has ended. Several names have one token, and
// readers of one Session may share one. See [RWMutex] for the token of a read, and [Semaphore] for
// the token of permits.
func (h *Hold) Token() int64 { return h.Status().Token }

// Key returns the etcd key of the hold: the first name's if it has several, "" once the hold has
// ended.
func (h *Hold) Key() string { return h.Status().Key }

// Status returns what is true of the hold now, as [Mutex.Status] does.
func (h *Hold) Status() Status {
	if h == nil {
		return Status{}
	}
	return Status(h.h.Current().Status())
}

// Names returns the names that are, or were, held: one, or those of the LockAll in its order.
func (h *Hold) Names() []string {
	if h == nil || h.h.Hold == nil {
		return nil
	}
	return h.h.Names()
}

// IsOwner returns one comparison per held name, for the If of an etcd transaction. They are true
// only while the keys of this very hold exist, whatever clocks say. Those made after its end are
// never true. (A key may outlast its hold: by readers who share it, [WithHandoff], [WithLinger],
// [WithMinHold].) See [Mutex.IsOwner] for two writes of one hold.
func (h *Hold) IsOwner() []clientv3.Cmp {
	if h == nil || h.h.Hold == nil {
		return []clientv3.Cmp{hold.NotOwner("")}
	}
	return h.h.IsOwner()
}

// SetInfo changes the Contender.Info of the hold as [Mutex.SetInfo] does, with the same errors and
// costs. It changes the keys of several names at once. Readers that share a key, or join it later,
// have one info.
func (h *Hold) SetInfo(ctx context.Context, info string) error {
	if h == nil || h.h.Hold == nil {
		return ErrNotHeld
	}
	if err := checkSetInfo(ctx, h.h.Lock.Name(), info); err != nil {
		return err
	}
	return h.h.SetInfo(ctx, info)
}

// checkSetInfo returns an error if SetInfo was given what it cannot use.
func checkSetInfo(ctx context.Context, name, info string) error {
	if err := checkContext(ctx, "set the info of", name); err != nil {
		return err
	}
	return checkInfo("SetInfo", info)
}

// A Status is what is true of a hold now. The zero Status says that there is no hold.
type Status struct {
	Held  bool
	Token int64  // see [Mutex.Token]
	Key   string // in etcd; of several names the first one's

	// Deadline is the time until which the hold is certain without another renewal. It moves on as
	// long as etcd answers, up to the end by [WithMaxHold] or of a recall's grace.
	Deadline time.Time

	TTL, SafetyMargin time.Duration // as granted; see [WithTTL], [WithSafetyMargin]
}

// TokenFrom returns the fencing token of the innermost hold that ctx came from, by [Mutex.Context],
// [Hold.Context], Do or a method like it. It stays the same after the hold has ended. Without a
// hold ok is false.
func TokenFrom(ctx context.Context) (token int64, ok bool) {
	if ctx == nil {
		return 0, false
	}
	h := hold.From(ctx)
	if h == nil {
		return 0, false
	}
	return h.Token(), true
}

// RecallFrom returns a channel that is closed once the innermost hold that ctx came from is
// recalled. The holder then has the grace of the request, up to the Deadline of its [Status], to
// come to a good point and unlock.
//
// The channel stays as it is when the hold ends otherwise: wait for the end of ctx, too. It is nil,
// and a receive from it blocks for ever, if ctx comes from no hold, or from one that does not
// listen (see [WithRecall]).
func RecallFrom(ctx context.Context) <-chan struct{} {
	if ctx == nil {
		return nil
	}
	if h := hold.From(ctx); h != nil {
		return h.Recalled()
	}
	return nil
}
