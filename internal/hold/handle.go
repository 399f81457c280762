package hold

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Handle is what the caller has of one acquisition that is not a Mutex's own, until its Unlock.
// Others may nest in the same hold. The zero Handle holds nothing.
type Handle struct {
	// Set once, then only read.
	Lock    *Lock           // of which it is
	Hold    *Hold           // of several names the first one's, nil of the zero Handle
	Started context.Context // of the call that it is of

	over atomic.Bool // Unlock was called; changed with Session.mu
}

// Acquire is one call that locks m; h has what it got.
func (h *Handle) Acquire(ctx context.Context, m *Lock, w Request) (err error) {
	h.Hold, h.Started, err = m.Acquire(ctx, w)
	h.Lock = m
	return err
}

// AcquireAll is one call that locks the names; h has what it got.
func (h *Handle) AcquireAll(
	ctx context.Context, s *Session, names []string, w Request,
) (err error) {
	if h.Hold, h.Started, err = acquireAll(ctx, s, names, w); err == nil {
		h.Lock = h.Hold.m
	}
	return err
}

// Unlock ends h.
func (h *Handle) Unlock(ctx context.Context) error {
	s := h.Lock.s
	together := h.Hold.all()
	ends := func(ended *Hold) bool { return slices.Contains(together, ended) }
	ctx, cancel := releaseContext(ctx, s, ends, releaseBound)
	defer cancel()

	s.mu.Lock()
	h.Hold.checkLocked(time.Now())
	held := h.Hold.depth > 0
	if !held {
		delete(h.Lock.nests, h.Hold)
	}
	if h.over.Swap(true) || !held {
		s.mu.Unlock()
		return errs.Failed("unlock", h.Lock.name, errs.NotHeld)
	}
	if nests := h.Lock != h.Hold.m; nests {
		h.Lock.countNestsLocked(h.Hold, -1)
	} else {
		for _, o := range h.Hold.all() {
			if o.depth--; o.depth == o.nested {
				o.ofHandle.Remove()
			}
		}
	}
	r, err := h.Hold.unlockLocked()
	s.mu.Unlock()
	return r.send(ctx, err)
}

// Current is the hold that h is of, nil once Unlock was called, and for the zero Handle.
func (h *Handle) Current() *Hold {
	if h.over.Load() {
		return nil
	}
	return h.Hold
}

// Names are the names that are, or were, held: one, or those of the LockAll in its order.
func (h *Handle) Names() []string {
	parts := h.parts()
	names := make([]string, len(parts))
	for i, h := range parts {
		names[i] = h.m.name
	}
	return names
}

// parts are the holds that h has: one for each name of a LockAll, otherwise one. A Lock that nests
// in one of several names has only that. (TestALockByNameNestsInOneOfSeveralNames.)
func (h *Handle) parts() []*Hold {
	if h.Lock == h.Hold.m {
		return h.Hold.all()
	}
	return h.Hold.self[:]
}

// IsOwner returns one comparison per held name, for the If of an etcd transaction.
func (h *Handle) IsOwner() []clientv3.Cmp {
	var owner []clientv3.Cmp
	held := h.Current().Status().Held
	for _, h := range h.parts() {
		if held {
			t := &h.place.Ticket
			owner = append(owner, clientv3.Compare(clientv3.CreateRevision(t.Key), "=", t.Rev()))
		} else {
			owner = append(owner, NotOwner(h.m.name))
		}
	}
	return owner
}

// SetInfo sets the info of all keys of h.
func (h *Handle) SetInfo(ctx context.Context, info string) error {
	if h.over.Load() {
		return setInfo(ctx, h.Lock.name, info, nil)
	}
	return setInfo(ctx, h.Lock.name, info, h.parts())
}

// setInfo is SetInfo for the keys of holds that end together: one of a name, several, or none.
func setInfo(ctx context.Context, name, info string, holds []*Hold) error {
	const op = "set the info of"
	if len(holds) == 0 {
		return errs.Failed(op, name, errs.NotHeld)
	}
	h := holds[0]
	places := make([]*queue.Place, len(holds))
	for i, h := range holds {
		places[i] = &h.place.Place
	}
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	check := func() error {
		now := time.Now()
		h.checkLocked(now)
		return h.goesOnLocked(now)
	}
	err := queue.SetInfo(WithHold(bounded, h), places, info, check)
	if err == nil {
		return nil
	}
	guard.Rethrow(err)
	h.m.s.mu.Lock()
	over := check()
	h.m.s.mu.Unlock()
	switch {
	case errors.Is(over, errs.Lost):
		return over
	case over != nil:
		return errs.Failed(op, name, over)
	}
	reasons := []error{err}
	ended, cause := ctx.Err(), context.Cause(ctx)
	if ended != nil && !errors.Is(err, ended) {
		reasons = append(reasons, ended)
	}
	if cause != ended && cause.Error() != err.Error() {
		reasons = append(reasons, attempt.Cause(ctx))
	}
	return errs.Failed(op, name, reasons...)
}

// NotOwner is a comparison that is never true, and that reads no key outside the prefix of the lock
// name.
func NotOwner(name string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(line.Prefix(name)), "=", -1)
}
