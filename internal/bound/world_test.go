//go:build bound

package bound_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/bound/steps"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// ttl of all Sessions.
const ttl = 24 * time.Second

// A world is a Session beside n others.
type world struct {
	*testing.T
	n    int
	etcd *fake.Server
	s    *etcdlock.Session // the one that is looked at: of the process "a"
	rest []*etcdlock.Session

	mu     sync.Mutex // not held across anything
	holds  []held     // of the others
	all    sync.WaitGroup
	end    context.CancelFunc // of the waits of the others
	waits  context.Context
	counts []count
}

// held is a hold, of whatever kind.
type held interface {
	Unlock(ctx context.Context) error
	Context(parent context.Context) context.Context
	Token() int64
	Key() string
	Deadline() time.Time
}

// A count is what was counted of something that happened.
type count struct {
	what  string
	steps steps.Counts
}

// session is a Session of a process.
func (w *world) session(process string, opts ...etcdlock.SessionOption) *etcdlock.Session {
	opts = append([]etcdlock.SessionOption{
		etcdlock.WithTTL(ttl), etcdlock.WithOwner(process)}, opts...)
	s, err := etcdlock.NewSession(w.etcd.Client(process), opts...)
	require.NoError(w, err)
	w.rest = append(w.rest, s)
	return s
}

// inWorld calls f in a world, which it ends.
func inWorld(t *testing.T, n int, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, n: n, etcd: fake.NewServer()}
		w.etcd.ForgetCalls()
		w.waits, w.end = context.WithCancel(context.Background())
		w.s = w.session("a")
		f(w)
		w.end()
		w.etcd.Intercept(nil)
		w.etcd.Heal("a")
		for _, s := range w.rest {
			_ = s.Close(context.Background())
		}
		w.all.Wait()
		time.Sleep(time.Hour)
	})
}

// mutexOfSession is where the mutex of a Session is declared.
const mutexOfSession = "internal/guard/guard.go:13"

// counts what follows from f, until all have come to rest.
func (w *world) count(what string, f func()) {
	synctest.Wait()
	steps.Reset()
	f()
	synctest.Wait()
	w.counts = append(w.counts, count{what, steps.Read()[mutexOfSession]})
}

// has notes a hold of the others.
func (w *world) has(h held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = append(w.holds, h)
}

// each calls f in n goroutines, one after the other. Each has begun to wait, or has returned, when
// the next one begins.
func (w *world) each(f func(i int)) {
	for i := range w.n {
		w.all.Go(func() { f(i) })
		if i == 0 {
			synctest.Wait()
		}
	}
	synctest.Wait()
}

func (w *world) lock(s *etcdlock.Session, name string, opts ...etcdlock.Option) {
	h, err := s.Lock(w.waits, name, opts...)
	w.came(h, err)
}

func (w *world) came(h held, err error) {
	if err == nil {
		w.has(h)
	} else if !errors.Is(err, context.Canceled) && !errors.Is(err, etcdlock.ErrClosed) &&
		!errors.Is(err, etcdlock.ErrLocked) {
		w.Error(err)
	}
}

func (w *world) rw(s *etcdlock.Session, name string, opts ...etcdlock.Option) *etcdlock.RWMutex {
	rw, err := s.RWMutex(name, opts...)
	require.NoError(w, err)
	return rw
}

func (w *world) semaphore(s *etcdlock.Session, name string, limit int) *etcdlock.Semaphore {
	sem, err := s.Semaphore(name, limit)
	require.NoError(w, err)
	return sem
}

const name = "n"

// strangers puts n keys of processes without this library, of a shape.
func (w *world) strangers(shape line.Shape) {
	granted, err := w.etcd.Client("strangers").Grant(context.Background(), 100_000)
	require.NoError(w, err)
	for range w.n {
		for {
			if id, ok := line.Draw(uuid.New(), shape); ok {
				require.NoError(w, w.etcd.PutKey(line.Key(name, id), granted.ID))
				break
			}
		}
	}
	w.Cleanup(func() { w.etcd.RevokeLease(granted.ID) })
}

// A company is n others.
type company struct {
	name string
	come func(w *world)
}

var companies = []company{
	{"nobody", func(w *world) {}},
	{"reads that hold", func(w *world) {
		rw := w.rw(w.s, name)
		w.each(func(int) { w.came(rw.RLock(w.waits)) })
	}},
	{"reads that hold and listen", func(w *world) {
		rw := w.rw(w.s, name, etcdlock.WithRecall(time.Minute))
		w.each(func(int) { w.came(rw.RLock(w.waits)) })
	}},
	{"reads that hold, and reads that wait behind a lock", func(w *world) {
		rw := w.rw(w.s, name)
		w.each(func(int) { w.came(rw.RLock(w.waits)) })
		w.all.Go(func() { w.lock(w.s, name) })
		synctest.Wait()
		w.each(func(int) { w.came(rw.RLock(w.waits)) })
	}},
	{"reads that wait for another process", func(w *world) {
		w.lock(w.session("b"), name)
		rw := w.rw(w.s, name)
		w.each(func(int) { w.came(rw.RLock(w.waits)) })
	}},
	{"locks that wait", func(w *world) {
		w.lock(w.s, name)
		w.each(func(int) { w.lock(w.s, name) })
	}},
	{"locks that wait for another process", func(w *world) {
		w.lock(w.session("b"), name)
		w.each(func(int) { w.lock(w.s, name) })
	}},
	{"permits that hold", func(w *world) {
		sem := w.semaphore(w.s, name, 65_535)
		w.each(func(int) { w.came(sem.Acquire(w.waits, 1)) })
	}},
	{"permits that hold, and permits that wait", func(w *world) {
		sem := w.semaphore(w.s, name, w.n)
		w.each(func(int) { w.came(sem.Acquire(w.waits, 1)) })
		w.each(func(int) { w.came(sem.Acquire(w.waits, 1)) })
	}},
	{"permits that wait for another process", func(w *world) {
		w.came(w.semaphore(w.session("b"), name, 65_535).Acquire(w.waits, 65_535))
		sem := w.semaphore(w.s, name, 65_535)
		w.each(func(int) { w.came(sem.Acquire(w.waits, 1)) })
	}},
	{"tries to read, while the first read is put", func(w *world) {
		w.etcd.Delay("a", time.Second)
		rw := w.rw(w.s, name)
		w.all.Go(func() { w.came(rw.RLock(w.waits)) })
		synctest.Wait()
		w.each(func(int) { w.came(rw.TryRLock(w.waits)) })
	}},
	{"names that are held", func(w *world) {
		w.each(func(i int) { w.lock(w.s, fmt.Sprint("held-", i)) })
	}},
	{"names that are held, and listen", func(w *world) {
		w.each(func(i int) {
			w.lock(w.s, fmt.Sprint("held-", i), etcdlock.WithRecall(time.Minute))
		})
	}},
	{"names that are waited for", func(w *world) {
		b := w.session("b")
		w.each(func(i int) { w.lock(b, fmt.Sprint("held-", i)) })
		w.each(func(i int) { w.lock(w.s, fmt.Sprint("held-", i)) })
	}},
	{"names that are locked together", func(w *world) {
		w.each(func(i int) {
			if i%10 != 0 {
				return
			}
			var names []string
			for j := range 10 {
				names = append(names, fmt.Sprint("held-", i+j))
			}
			w.came(w.s.LockAll(w.waits, names...))
		})
	}},
	{"names that were locked", func(w *world) {
		w.each(func(i int) {
			h, err := w.s.Lock(w.waits, fmt.Sprint("held-", i))
			require.NoError(w, err)
			require.NoError(w, h.Unlock(context.Background()))
		})
	}},
	{"names that linger", func(w *world) {
		w.each(func(i int) {
			h, err := w.s.Lock(w.waits, fmt.Sprint("held-", i), etcdlock.WithLinger(time.Hour))
			require.NoError(w, err)
			require.NoError(w, h.Unlock(context.Background()))
		})
	}},
	{"contexts of a hold", func(w *world) {
		w.lock(w.s, name)
		type key struct{}
		for i := range w.n {
			w.holds[0].Context(context.WithValue(context.Background(), key{}, i))
		}
	}},
	{"reads that were lost", func(w *world) {
		rw := w.rw(w.s, name)
		w.each(func(int) { w.came(rw.RLock(w.waits)) })
		w.etcd.RevokeLease(w.s.Lease())
		time.Sleep(ttl)
	}},
	{"permits of another process", func(w *world) {
		sem := w.semaphore(w.session("b"), name, 65_535)
		w.each(func(int) { w.came(sem.Acquire(w.waits, 1)) })
	}},
	{"readers of other processes", func(w *world) { w.strangers(line.Shape{Kind: line.Read}) }},
	{"locks of other processes", func(w *world) { w.strangers(line.Shape{}) }},
}

// A probe is a call that is made, for a name, and then undone.
type probe struct {
	name string
	call func(ctx context.Context, w *world, name string) (held, error)
}

var probes = []probe{
	{"Lock", func(ctx context.Context, w *world, name string) (held, error) {
		return w.s.Lock(ctx, name)
	}},
	{"TryLock", func(ctx context.Context, w *world, name string) (held, error) {
		return w.s.TryLock(ctx, name)
	}},
	{"RLock", func(ctx context.Context, w *world, name string) (held, error) {
		return w.rw(w.s, name).RLock(ctx)
	}},
	{"TryRLock", func(ctx context.Context, w *world, name string) (held, error) {
		return w.rw(w.s, name).TryRLock(ctx)
	}},
	{"Acquire", func(ctx context.Context, w *world, name string) (held, error) {
		return w.semaphore(w.s, name, 65_535).Acquire(ctx, 1)
	}},
	{"TryAcquire", func(ctx context.Context, w *world, name string) (held, error) {
		return w.semaphore(w.s, name, 65_535).TryAcquire(ctx, 1)
	}},
	{"LockAll", func(ctx context.Context, w *world, name string) (held, error) {
		return w.s.LockAll(ctx, name, "beside-it")
	}},
	{"TryLockAll", func(ctx context.Context, w *world, name string) (held, error) {
		return w.s.TryLockAll(ctx, name, "beside-it")
	}},
}

// try makes the call, and undoes it.
func (w *world) try(p probe, name string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type result struct {
		h   held
		err error
	}
	came := make(chan result, 1)
	what := p.name + " of " + name
	w.count(what, func() {
		go func() {
			h, err := p.call(ctx, w, name)
			came <- result{h, err}
		}()
	})
	var r result
	select {
	case r = <-came:
	default:
		w.count("the end of its wait", func() { cancel(); synctest.Wait() })
		select {
		case r = <-came:
		case <-time.After(10 * time.Second):
			w.Fatal(what, "does not end")
		}
	}
	switch {
	case r.err == nil:
		w.count("Context", func() { r.h.Context(context.Background()) })
		w.count("Token", func() { r.h.Token() })
		w.count("Deadline", func() { r.h.Deadline() })
		w.count("Unlock", func() { _ = r.h.Unlock(context.Background()) })
	case errors.Is(r.err, etcdlock.ErrLocked):
		w.counts[len(w.counts)-1].what += ", refused"
	}
}

func TestExplore(t *testing.T) {
	for _, c := range companies {
		t.Run(c.name, func(t *testing.T) {
			var at [2][]count
			for i, n := range []int{200, 2000} {
				began := time.Now()
				inWorld(t, n, func(w *world) {
					w.count("they come", func() { c.come(w) })
					for _, p := range probes {
						for _, of := range []string{name, "free"} {
							w.try(p, of)
						}
					}
					w.count("a renewal", func() { time.Sleep(ttl / 3) })
					w.count("Close", func() { _ = w.s.Close(context.Background()) })
					at[i] = w.counts
				})
				t.Logf("%d: %v", n, time.Since(began))
			}
			for i := range min(len(at[0]), len(at[1])) {
				a, b := at[0][i], at[1][i]
				bad := " "
				if b.steps.Steps > a.steps.Steps*6/5+20 {
					bad = "*"
				}
				t.Logf("%s %-40s %8d %8d   longest %8d %8d  %v", bad, a.what+"/"+b.what, a.steps.Steps, b.steps.Steps,
					a.steps.Longest, b.steps.Longest, b.steps.Of[:min(2, len(b.steps.Of))])
			}
		})
	}
}

var _ = slices.Contains[[]int]
var _ clientv3.LeaseID
