//go:build bound

package bound_test

import (
	"context"
	"path"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// A call is one that locks a name.
type call struct {
	name  string
	locks func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error)
	kind  kind // of its begin
}

var calls = []call{
	{name: "Lock", locks: locks()},
	{name: "TryLock", locks: byMutex((*etcdlock.Mutex).TryLock)},
	{name: "RLock", locks: byRWMutex((*etcdlock.RWMutex).RLock)},
	{name: "TryRLock", locks: byRWMutex((*etcdlock.RWMutex).TryRLock)},
	{name: "Acquire", locks: bySemaphore((*etcdlock.Semaphore).Acquire)},
	{name: "TryAcquire", locks: bySemaphore((*etcdlock.Semaphore).TryAcquire)},
	{name: "LockAll", locks: withAnother((*etcdlock.Session).LockAll)},
	{name: "TryLockAll", locks: withAnother((*etcdlock.Session).TryLockAll)},
	{
		name:  "Lock that lingers",
		locks: locks(etcdlock.WithLinger(time.Second), etcdlock.WithHandoff(10)),
	},
	{
		name:  "Lock that lasts",
		locks: locks(etcdlock.WithMinHold(time.Second), etcdlock.WithMaxHold(time.Hour)),
	},
	{ // each of those that hold
		name: "Lock that asks", kind: each,
		locks: locks(etcdlock.WithAsk(etcdlock.RecallRequest{Grace: time.Hour})),
	},
}

type locksByName = func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error)

func locks(opts ...etcdlock.Option) locksByName {
	return byMutex((*etcdlock.Mutex).Lock, opts...)
}

func byMutex(
	lock func(m *etcdlock.Mutex, ctx context.Context) error, opts ...etcdlock.Option,
) locksByName {
	return func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		m, err := s.Mutex(name, opts...)
		if err != nil {
			return nil, nil, err
		}
		return m, m, lock(m, ctx)
	}
}

func byRWMutex(
	lock func(rw *etcdlock.RWMutex, ctx context.Context) (*etcdlock.Hold, error),
) locksByName {
	return func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		rw, err := s.RWMutex(name)
		if err != nil {
			return nil, nil, err
		}
		h, err := lock(rw, ctx)
		return h, rw, err
	}
}

func bySemaphore(
	lock func(s *etcdlock.Semaphore, ctx context.Context, n int) (*etcdlock.Hold, error),
) locksByName {
	return func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		sem, err := s.Semaphore(name, most)
		if err != nil {
			return nil, nil, err
		}
		h, err := lock(sem, ctx, 1)
		return h, sem, err
	}
}

func withAnother(
	lock func(s *etcdlock.Session, ctx context.Context, names ...string) (*etcdlock.Hold, error),
) locksByName {
	return func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		h, err := lock(s, ctx, name, "another")
		return h, nil, err
	}
}

// makes makes a call, asks and changes the hold, and ends it. A call that waits gives up.
func (w *world) makes(c call, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	type result struct {
		held
		closer
		err error
	}
	came := make(chan result, 1)
	what := c.name + " of " + name
	w.count(what, c.kind, func() {
		go func() {
			h, of, err := c.locks(ctx, w.s, name)
			came <- result{h, of, err}
		}()
	})
	var r result
	select {
	case r = <-came:
	default:
		w.count(what+": its wait ends", one, func() {
			cancel()
			time.Sleep(50 * time.Millisecond) // as it may wait for its removal
		})
		select {
		case r = <-came:
		case <-time.After(10 * time.Minute):
			require.FailNow(w, "a call does not end", what)
		}
	}
	if r.closer != nil {
		defer w.count(what+": its handle is closed", one, func() { _ = r.Close(context.Background()) })
	}
	if r.err != nil {
		return
	}
	var of context.Context
	w.count(what+": Context", one, func() { of = r.Context(ctx) })
	w.count(what+": Err", one, func() { _ = of.Err() })
	w.count(what+": Token", one, func() { r.Token() })
	w.count(what+": Key", one, func() { r.Key() })
	w.count(what+": Status", one, func() { r.Status() })
	w.count(what+": SetInfo", one, func() { _ = r.SetInfo(of, "info") })
	w.count(what+": Unlock", one, func() { _ = r.Unlock(ctx) })
}

// recall recalls the holder with a key, if it listens.
func (w *world) recall(key string) {
	client := w.etcd.Client("operator")
	contenders, err := etcdlock.Contenders(context.Background(), client, path.Dir(key))
	require.NoError(w, err)
	for _, c := range contenders {
		if c.Key == key {
			_ = etcdlock.Recall(context.Background(), client, c, etcdlock.RecallRequest{Grace: time.Hour})
		}
	}
}

// makeCalls makes all calls, and lets the little happen that leaves the others as they are.
func (w *world) makeCalls() {
	for _, c := range calls {
		for _, of := range []string{name, "free"} {
			w.makes(c, of)
		}
	}
	w.count("Lease", one, func() { w.s.Lease() })
	stray := name + "/stray"
	w.count("a key is put below the name", one, func() { _ = w.etcd.PutKey(stray, 0) })
	w.count("it is deleted", one, func() { w.etcd.DeleteKey(stray) })
}
