package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Hold is one acquisition that is not a Mutex's own: a lock by its name ([Session.Lock]), a read
// ([RWMutex.RLock]), permits ([Semaphore.Acquire]), or several names ([Session.LockAll]). It lasts
// until its Unlock, which any goroutine may call. Its methods are safe for concurrent use. Do not
// copy one.
type Hold struct {
	_ noCopy

	// Set once, then only read.
	m       *lockHandle     // of which it is
	hold    *hold           // of several names the first one's; calls may nest in it
	started context.Context // of the call that it is of

	over atomic.Bool // Unlock was called; changed with Session.mu
}

// Unlock ends the hold. It returns nil only if the lock was held without a break until then.
//
// Otherwise it returns what [Mutex.Unlock] returns: [ErrLost], [ErrUnconfirmed], or [ErrNotHeld] if
// the Hold was unlocked before, or its RWMutex, Semaphore or Session was closed. After each of
// these the Hold is over. ctx is as in Mutex.Unlock: with a nil ctx the hold goes on. After the
// grace of a [Recall] Unlock is nil: the hold was whole. If one of several names was lost it
// returns its [*LostError], and removes the other keys in the background.
//
// While other readers of the Session share the key, Unlock asks etcd nothing; the last reader
// removes the key. nil then means that the lease was renewed in time and that no deletion of the
// key was reported. A deletion in the last second may reach only the readers that go on.
func (h *Hold) Unlock(ctx context.Context) error {
	if h == nil || h.hold == nil {
		return ErrNotHeld
	}
	if err := checkContext(ctx, "unlock", h.m.name); err != nil {
		return err
	}
	s := h.m.s
	together := h.hold.all
	ends := func(ended *hold) bool { return slices.Contains(together, ended) }
	ctx, cancel := releaseContext(ctx, s, ends, releaseTime(s))
	defer cancel()

	s.mu.Lock()
	over := h.over.Swap(true)
	if !over && h.m.nests[h.hold] > 0 {
		h.m.countNests(h.hold, -1)
	}
	if over || !h.hold.heldLocked() {
		s.mu.Unlock()
		return failed("unlock", h.m.name, ErrNotHeld)
	}
	for _, o := range h.parts() {
		if o != h.hold {
			o.depth--
		}
	}
	return h.hold.unlockLocked(ctx)
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
	return during(h.started, h.hold, fn, func() error { return h.Unlock(ctx) })
}

// Context returns a context that comes from parent and also ends with the hold, as [Mutex.Context]
// does, and with the same causes. After Unlock or Close it has ended already, with [ErrNotHeld].
func (h *Hold) Context(parent context.Context) context.Context {
	if parent == nil {
		return endedContext(context.Background(), errors.New("etcdlock: nil context"))
	}
	if h == nil || h.hold == nil {
		return endedContext(parent, ErrNotHeld)
	}
	if h.over.Load() {
		return endedContext(parent, ErrNotHeld)
	}
	return withHold(parent, h.hold)
}

// Token returns the fencing token, and 0 once the hold has ended. It is the create revision of the
// key, which readers of one Session may share, and of all keys of several names. [RWMutex] says how
// to use the token of a read, and [Semaphore] that of permits.
func (h *Hold) Token() int64 { return h.Status().Token }

// Key returns the etcd key of the hold, of several names that of the first. It is "" once the hold
// has ended.
func (h *Hold) Key() string { return h.Status().Key }

// Status returns what is true of the hold now, as [Mutex.Status] does.
func (h *Hold) Status() Status {
	if h == nil || h.hold == nil || h.over.Load() {
		return Status{}
	}
	return h.hold.status()
}

// Names returns the names that are, or were, held: one, or those of the LockAll in its order.
func (h *Hold) Names() []string {
	if h == nil || h.hold == nil {
		return nil
	}
	parts := h.parts()
	names := make([]string, len(parts))
	for i, h := range parts {
		names[i] = h.m.name
	}
	return names
}

// parts are the holds that h has: one for each name of a LockAll, otherwise one. A Lock that nests
// in one of several names has only that. (TestALockByNameNestsInOneOfSeveralNames.)
func (h *Hold) parts() []*hold {
	if h.m == h.hold.m {
		return h.hold.all
	}
	return h.hold.alone[:]
}

// IsOwner returns one comparison per held name, for the If of an etcd transaction. All of them are
// true only while the keys of this very hold exist, whatever clocks say, and none is once it has
// ended. (A key that readers of one Session share exists until the last has unlocked.) See
// [Mutex.IsOwner] for two writes of one hold.
func (h *Hold) IsOwner() []clientv3.Cmp {
	if h == nil || h.hold == nil {
		return []clientv3.Cmp{(*Mutex)(nil).IsOwner()}
	}
	var owner []clientv3.Cmp
	held := h.Status().Held
	for _, h := range h.parts() {
		if held {
			owner = append(owner, h.place.Ticket.Exists())
		} else {
			owner = append(owner, h.m.notOwner())
		}
	}
	return owner
}

// SetInfo changes the Contender.Info of the hold as [Mutex.SetInfo] does, with the same errors and
// costs: that of several names at all keys at once. Readers of a Session that share a key, or join
// it later, have its info in common.
func (h *Hold) SetInfo(ctx context.Context, info string) error {
	if h == nil || h.hold == nil {
		return ErrNotHeld
	}
	if h.over.Load() {
		return setInfo(ctx, h.m.name, info, nil)
	}
	return setInfo(ctx, h.m.name, info, h.parts())
}

// setInfo is SetInfo for the keys of holds that end together: one of a name, several, or none.
func setInfo(ctx context.Context, name, info string, holds []*hold) error {
	const op = "set the info of"
	if err := checkContext(ctx, op, name); err != nil {
		return err
	}
	if err := checkInfo("SetInfo", info); err != nil {
		return err
	}
	if len(holds) == 0 {
		return failed(op, name, ErrNotHeld)
	}
	h := holds[0]
	places := make([]*queue.Place, len(holds))
	for i, h := range holds {
		places[i] = &h.place.Place
	}
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	err := queue.SetInfo(withHold(bounded, h), places, info, h.goesOnLocked)
	if err == nil {
		return nil
	}
	h.m.s.mu.Lock()
	over := h.goesOnLocked()
	h.m.s.mu.Unlock()
	switch {
	case errors.Is(over, ErrLost):
		return over
	case over != nil:
		return failed(op, name, over)
	}
	reasons := []error{err}
	for _, why := range []error{ctx.Err(), context.Cause(ctx)} {
		if why != nil && !errors.Is(errors.Join(reasons...), why) {
			reasons = append(reasons, why)
		}
	}
	return failed(op, name, reasons...)
}
