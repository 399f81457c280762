//go:build bound

package bound_test

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// A call is one that locks a name.
type call struct {
	name string
	make func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error)
}

var calls = []call{
	{"Lock", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		m, err := s.Mutex(name)
		if err != nil {
			return nil, nil, err
		}
		return m, m, m.Lock(ctx)
	}},
	{"TryLock", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		m, err := s.Mutex(name)
		if err != nil {
			return nil, nil, err
		}
		return m, m, m.TryLock(ctx)
	}},
	{"RLock", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		rw, err := s.RWMutex(name)
		if err != nil {
			return nil, nil, err
		}
		h, err := rw.RLock(ctx)
		return h, rw, err
	}},
	{"TryRLock", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		rw, err := s.RWMutex(name)
		if err != nil {
			return nil, nil, err
		}
		h, err := rw.TryRLock(ctx)
		return h, rw, err
	}},
	{"Acquire", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		sem, err := s.Semaphore(name, most)
		if err != nil {
			return nil, nil, err
		}
		h, err := sem.Acquire(ctx, 1)
		return h, sem, err
	}},
	{"TryAcquire", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		sem, err := s.Semaphore(name, most)
		if err != nil {
			return nil, nil, err
		}
		h, err := sem.TryAcquire(ctx, 1)
		return h, sem, err
	}},
	{"LockAll", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		h, err := s.LockAll(ctx, name, "another")
		return h, nil, err
	}},
	{"TryLockAll", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		h, err := s.TryLockAll(ctx, name, "another")
		return h, nil, err
	}},
	{"Lock, lingers", func(
		ctx context.Context, s *etcdlock.Session, name string,
	) (held, closer, error) {
		m, err := s.Mutex(name, etcdlock.WithLinger(time.Second), etcdlock.WithHandoff(10))
		if err != nil {
			return nil, nil, err
		}
		return m, m, m.Lock(ctx)
	}},
	{"Lock, asks", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		m, err := s.Mutex(name, etcdlock.WithAsk(etcdlock.RecallRequest{Grace: time.Hour}))
		if err != nil {
			return nil, nil, err
		}
		return m, m, m.Lock(ctx)
	}},
	{"Lock, lasts", func(ctx context.Context, s *etcdlock.Session, name string) (held, closer, error) {
		m, err := s.Mutex(name, etcdlock.WithMinHold(time.Second), etcdlock.WithMaxHold(time.Minute))
		if err != nil {
			return nil, nil, err
		}
		return m, m, m.Lock(ctx)
	}},
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
	w.count(what, one, func() {
		go func() {
			h, of, err := c.make(ctx, w.s, name)
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
	w.count(what+": Deadline", one, func() { r.Deadline() })
	w.count(what+": SetInfo", one, func() { _ = r.SetInfo(of, "info") })
	w.count(what+": Unlock", one, func() { _ = r.Unlock(ctx) })
}

// recall recalls the holder with a key, if it listens.
func (w *world) recall(key string) {
	client := w.etcd.Client("operator")
	contenders, err := etcdlock.Holders(context.Background(), client, key)
	require.NoError(w, err)
	for _, c := range contenders {
		_ = etcdlock.Recall(context.Background(), client, c, etcdlock.RecallRequest{Grace: time.Hour})
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
