package sim

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/sent"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A contender is a lock of one kind: one way in which a worker asks for a name.
type contender interface {
	kind() kind
	// lock takes the lock. With try it does so only if nobody is in the way.
	lock(ctx context.Context, try bool) (*hold, error)
	// do calls fn with a hold. The hold does not end with ctx, and it is unlocked when fn
	// has returned. do returns whether it called fn with a hold that was not late, and the error of
	// Lock or of Unlock.
	do(ctx context.Context, fn func(*hold)) (called bool, err error)
}

// A hold is what its holder believes to have from lock to unlock, or until ctx ends.
type hold struct {
	token   int64 // the create revision of its key
	ctx     context.Context
	status  func() etcdlock.Status // zero if the library has none
	unlock  func(ctx context.Context) error
	setInfo func(ctx context.Context, info string) error // nil if the hold has none
	least   time.Duration                                // how long its name stays taken at least

	// The context of the call had ended before the work began: it is a hold of nobody.
	late bool
}

// recalled reports whether a recall has asked the holder to give the hold back.
func (h *hold) recalled() bool {
	select {
	case <-etcdlock.RecallFrom(h.ctx):
		return true
	default:
		return false
	}
}

// contendersOf returns the locks of a name that a worker of a process has.
func (w *world) contendersOf(p *process, s side.Session, name string) []contender {
	mu, err := s.Mutex(name)
	if err != nil {
		panic(err)
	}
	all := []contender{exclusive{mu: mu}}
	if w.story == mutexes || !p.side.judged {
		return all
	}
	rw, err := side.OurSession(s).RWMutex(name)
	if err != nil {
		panic(err)
	}
	all = append(all, exclusive{mu: writer{rw}})
	most := p.limit
	if w.story == traced {
		most = 1
	}
	for weight := 1; weight <= most; weight++ {
		sem, err := side.OurSession(s).Semaphore(name, p.limit)
		if err != nil {
			panic(err)
		}
		all = append(all, wanted{sem, permit{weight, p.limit}})
	}
	return append(all, reader{rw})
}

// ---- those who hold alone

// An exclusive is a mutex of any library.
type exclusive struct {
	mu    side.Mutex
	least time.Duration // its name stays taken
}

// ours is what only this library's mutexes can do.
type ours interface {
	Status() etcdlock.Status
	Do(ctx context.Context, fn func(ctx context.Context) error) error
}

func (exclusive) kind() kind { return alone{} }

func (e exclusive) lock(ctx context.Context, try bool) (*hold, error) {
	lock := e.mu.Lock
	if try {
		lock = e.mu.TryLock
	}
	if err := lock(ctx); err != nil {
		return nil, err
	}
	return e.hold(), nil
}

// hold returns the hold of the caller, which has just locked.
func (e exclusive) hold() *hold {
	h := &hold{token: e.mu.Token(), ctx: e.mu.Hold(), status: noStatus, unlock: e.mu.Unlock,
		least: e.least}
	if mu, ok := e.mu.(ours); ok {
		h.status = mu.Status
	} else {
		owner := e.mu.IsOwner() // which is how it tells
		h.token = sent.Txn([]clientv3.Cmp{owner}, nil, nil).Compare[0].GetCreateRevision()
	}
	if mu, ok := e.mu.(interface {
		SetInfo(ctx context.Context, info string) error
	}); ok {
		h.setInfo = mu.SetInfo
	}
	return h
}

func (e exclusive) do(ctx context.Context, fn func(*hold)) (called bool, err error) {
	if mu, ok := e.mu.(ours); ok {
		err = mu.Do(ctx, func(context.Context) error {
			called = true
			fn(e.hold())
			return nil
		})
		return called, err
	}
	h, err := e.lock(ctx, false)
	if err != nil {
		return false, err
	}
	fn(h)
	return true, h.unlock(ctx)
}

// A writer is the writer's side of an RWMutex.
type writer struct{ *etcdlock.RWMutex }

// Hold is the hold's own context.
func (w writer) Hold() context.Context { return w.Context(context.Background()) }

// ---- those who limit how many hold

// A wanted is some permits of a Semaphore.
type wanted struct {
	sem *etcdlock.Semaphore
	permit
}

func (p wanted) kind() kind { return p.permit }

func (p wanted) lock(ctx context.Context, try bool) (*hold, error) {
	acquire := p.sem.Acquire
	if try {
		acquire = p.sem.TryAcquire
	}
	return holdOf(acquire(ctx, p.weight))
}

func (p wanted) do(ctx context.Context, fn func(*hold)) (called bool, err error) {
	return within(ctx, fn, func(ctx context.Context, fn func(context.Context) error) error {
		return p.sem.Do(ctx, p.weight, fn)
	})
}

// ---- those who read

// A reader is the reader's side of an RWMutex.
type reader struct{ rw *etcdlock.RWMutex }

func (reader) kind() kind { return read{} }

func (r reader) lock(ctx context.Context, try bool) (*hold, error) {
	lock := r.rw.RLock
	if try {
		lock = r.rw.TryRLock
	}
	return holdOf(lock(ctx))
}

func (r reader) do(ctx context.Context, fn func(*hold)) (called bool, err error) {
	return within(ctx, fn, r.rw.RDo)
}

// holdOf makes of a Hold what the judge sees.
func holdOf(h *etcdlock.Hold, err error) (*hold, error) {
	if err != nil {
		return nil, err
	}
	own := h.Context(context.Background())
	return &hold{token: h.Token(), ctx: own, status: h.Status, unlock: h.Unlock,
		setInfo: h.SetInfo}, nil
}

// within is do, for a method that gives its function the context of the hold. That context
// is derived from the context of the call. If that one ended just after the hold had begun the hold
// is late.
func within(
	ctx context.Context, fn func(*hold), do func(context.Context, func(context.Context) error) error,
) (called bool, err error) {
	waiting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer func() { stop() }()
	err = do(waiting, func(inside context.Context) error {
		token, _ := etcdlock.TokenFrom(inside)
		if called = stop(); !called {
			fn(&hold{token: token, late: true})
			return nil
		}
		// Until fn has returned, inside ends with the hold only.
		fn(&hold{token: token, ctx: inside, status: noStatus})
		if ctx.Err() != nil {
			end()
		}
		stop = context.AfterFunc(ctx, end)
		return nil
	})
	return called, err
}

// noStatus is that of a hold whose library has none.
func noStatus() etcdlock.Status { return etcdlock.Status{} }
