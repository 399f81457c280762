package outages

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// The kinds of requests in which the user's code falls.
const (
	get       = "get"
	reads     = "a transaction that reads"
	puts      = "a transaction that puts"
	deletes   = "a transaction that deletes"
	combined  = "a combined transaction"
	grants    = "grant"
	revokes   = "revoke"
	renews    = "renewal"
	lifetimes = "lifetime"
	watches   = "watch"
)

// A program is the user's code around a client: its KV, its Lease and its Watcher, which fall in
// the requests that a test chooses.
type program struct {
	clientv3.KV
	clientv3.Lease
	clientv3.Watcher
	fall func()
	sent bool // it falls once the request was carried out

	mu         sync.Mutex
	kind       string
	skip, left int // the requests of the kind that pass before, and that fall then
	parts      int // of the combined transactions that fell
}

// around has p between a client and etcd.
func (p *program) around(client *clientv3.Client) {
	p.KV, p.Lease, p.Watcher = client.KV, client.Lease, client.Watcher
	client.KV, client.Lease, client.Watcher = p, p, p
}

// Close is of three interfaces.
func (p *program) Close() error { return nil }

// falls has p fall in the next n requests of a kind, after others of it that pass.
func (p *program) falls(kind string, passes, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kind, p.skip, p.left = kind, passes, n
}

func (p *program) now(kind string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case kind != p.kind || p.left == 0:
		return false
	case p.skip > 0:
		p.skip--
		return false
	}
	p.left--
	return true
}

// rest is how often p is yet to fall.
func (p *program) rest() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left
}

// within is a request of a kind, which send sends.
func within[R any](p *program, kind string, send func() (R, error)) (R, error) {
	falls := p.now(kind)
	if !falls || p.sent {
		r, err := send()
		if !falls {
			return r, err
		}
	}
	p.fall()
	panic("it has not fallen")
}

func (p *program) Get(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	return within(p, get, func() (*clientv3.GetResponse, error) { return p.KV.Get(ctx, key, opts...) })
}

func (p *program) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return within(p, grants, func() (*clientv3.LeaseGrantResponse, error) {
		return p.Lease.Grant(ctx, ttl)
	})
}

func (p *program) Revoke(
	ctx context.Context, id clientv3.LeaseID,
) (*clientv3.LeaseRevokeResponse, error) {
	return within(p, revokes, func() (*clientv3.LeaseRevokeResponse, error) {
		return p.Lease.Revoke(ctx, id)
	})
}

func (p *program) KeepAliveOnce(
	ctx context.Context, id clientv3.LeaseID,
) (*clientv3.LeaseKeepAliveResponse, error) {
	return within(p, renews, func() (*clientv3.LeaseKeepAliveResponse, error) {
		return p.Lease.KeepAliveOnce(ctx, id)
	})
}

func (p *program) TimeToLive(
	ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption,
) (*clientv3.LeaseTimeToLiveResponse, error) {
	return within(p, lifetimes, func() (*clientv3.LeaseTimeToLiveResponse, error) {
		return p.Lease.TimeToLive(ctx, id, opts...)
	})
}

func (p *program) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	answers, _ := within(p, watches, func() (clientv3.WatchChan, error) {
		return p.Watcher.Watch(ctx, key, opts...), nil
	})
	return answers
}

func (p *program) Txn(ctx context.Context) clientv3.Txn {
	return &txn{Txn: p.KV.Txn(ctx), p: p, kind: reads}
}

// A txn is a transaction of a program.
type txn struct {
	clientv3.Txn
	p    *program
	kind string
	ops  int
}

func (t *txn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(cs...)
	return t
}

func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	for _, op := range ops {
		switch {
		case op.IsTxn():
			t.kind = combined
		case op.IsDelete():
			t.kind = deletes
		case op.IsPut() && t.kind == reads:
			t.kind = puts
		}
	}
	t.Txn, t.ops = t.Txn.Then(ops...), len(ops)
	return t
}

func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	if t.kind == combined {
		t.p.mu.Lock()
		if t.p.kind == combined && t.p.left > 0 { // none passes before
			t.p.parts += t.ops
		}
		t.p.mu.Unlock()
	}
	return within(t.p, t.kind, t.Txn.Commit)
}

// errBoom is what a program panics with.
var errBoom = fmt.Errorf("boom: %w", tests.PermissionDenied) // which is no answer of etcd

// A fallen call is one that the user's code has left.
type end struct {
	err    error
	value  any  // that it has panicked with
	exited bool // it has called runtime.Goexit
}

// fell reports whether the call has fallen as p does.
func (e end) fell() bool { return e.exited || e.value == errBoom }

// A world is a Session "a" of a program, beside other processes.
type world struct {
	*testing.T
	*program
	etcd   *fake.Server
	client *clientv3.Client
	s      *etcdlock.Session

	logged   chan string   // the falls
	names    []string      // that are used in the end
	patience time.Duration // in which they are free
}

// Write is for the log.
func (w *world) Write(line []byte) (int, error) {
	w.logged <- string(line)
	return len(line), nil
}

// calls makes a call in a goroutine of its own.
func (w *world) calls(f func(ctx context.Context) error) <-chan end {
	over := make(chan end, 1)
	go func() {
		e := end{exited: true}
		defer func() {
			if value := recover(); value != nil {
				e = end{value: value}
			}
			over <- e
		}()
		err := f(context.Background())
		e = end{err: err}
	}()
	synctest.Wait()
	return over
}

// locks is a Lock of "n" of w.s, which unlocks if it gets the lock.
func (w *world) locks(ctx context.Context) error { return w.s.Do(ctx, "n", nothing) }

// does is a Do of "n" of s.
func (w *world) does(s *etcdlock.Session) func(ctx context.Context) error {
	return func(ctx context.Context) error { return s.Do(ctx, "n", nothing) }
}

func nothing(context.Context) error { return nil }

// falls requires that a call falls soon.
func (w *world) mustFall(call <-chan end) {
	w.Helper()
	select {
	case e := <-call:
		require.True(w, e.fell(), "%+v", e)
	case <-time.After(tests.TTL):
		require.Fail(w, "the call has not ended")
	}
}

// mustReturn requires that a call returns without an error soon.
func (w *world) mustReturn(call <-chan end, most time.Duration) {
	w.Helper()
	select {
	case e := <-call:
		require.Equal(w, end{}, e)
	case <-time.After(most):
		require.Fail(w, "the call has not ended")
	}
}

// other is a Session of another process.
func (w *world) other(name string, opts ...etcdlock.SessionOption) *etcdlock.Session {
	return tests.SessionOf(w.T, w.etcd, name, opts...)
}

// held has another process hold "n". The result ends that.
func (w *world) held(opts ...etcdlock.Option) (unlock func()) {
	h, err := w.other("b").Lock(context.Background(), "n", opts...)
	require.NoError(w, err)
	return func() { require.NoError(w, h.Unlock(context.Background())) }
}

// crowded has many others wait for "n". The result ends the wait of the last one, and then of all.
func (w *world) crowded(
	lock func(ctx context.Context, s *etcdlock.Session) error,
) (last, all func()) {
	ctx, cancel := context.WithCancel(context.Background())
	for i := range 20 {
		var own context.Context
		own, last = context.WithCancel(ctx)
		s := w.other(fmt.Sprint("w", i))
		go func() { _ = lock(own, s) }()
		synctest.Wait()
	}
	return last, func() { cancel(); synctest.Wait() }
}

func exclusive(ctx context.Context, s *etcdlock.Session) error { return s.Do(ctx, "n", nothing) }

// fallsIn are the situations in which the user's code falls: in a goroutine of the library, or in
// that of a call.
var fallsIn = map[string]func(w *world){
	"puts that go together": func(w *world) {
		require.NoError(w, w.locks(context.Background())) // it has a lease
		w.etcd.Intercept(func(c fake.Call) fake.Effect { return fake.Effect{Delay: time.Millisecond} })
		for range 3 {
			w.parts = 0
			w.falls(combined, 0, 1)
			fell := w.together(16, func(ctx context.Context, name string) error {
				return w.s.Do(ctx, name, nothing)
			})
			require.GreaterOrEqual(w, fell, 2)
			require.Equal(w, w.parts, fell, "each call whose put was a part, and no other")
			time.Sleep(time.Second)
		}
	},
	"releases that go together": func(w *world) {
		holds := make(map[string]*etcdlock.Hold)
		for i := range 16 {
			name := fmt.Sprint("t", i)
			h, err := w.s.Lock(context.Background(), name)
			require.NoError(w, err)
			holds[name] = h
		}
		w.etcd.Intercept(func(c fake.Call) fake.Effect { return fake.Effect{Delay: time.Millisecond} })
		w.falls(combined, 0, 1)
		require.Equal(w, 15, w.together(16, func(ctx context.Context, name string) error {
			return holds[name].Unlock(ctx)
		}), "all but the one that went alone")
	},
	"a look, behind many": func(w *world) {
		unlock := w.held()
		last, all := w.crowded(exclusive)
		call := w.calls(w.locks)
		w.falls(get, 0, 1)
		last()
		w.mustFall(call)
		all()
		unlock()
	},
	"a look of LockAll": func(w *world) {
		unlock := w.held()
		last, all := w.crowded(exclusive)
		call := w.calls(func(ctx context.Context) error {
			return w.s.DoAll(ctx, []string{"m", "n"}, nothing)
		})
		w.falls(get, 0, 1)
		last()
		w.mustFall(call)
		all()
		unlock()
	},
	"a recheck, behind many": func(w *world) {
		unlock := w.held()
		_, all := w.crowded(exclusive)
		w.falls(reads, 0, 1)
		call := w.calls(w.locks)
		w.mustFall(call)
		all()
		unlock()
	},
	"the watch of a wait behind many": func(w *world) {
		unlock := w.held()
		_, all := w.crowded(exclusive)
		w.falls(watches, 0, 1)
		w.mustFall(w.calls(w.locks))
		all()
		unlock()
	},
	"a watch of a permit": func(w *world) {
		acquire := func(ctx context.Context, s *etcdlock.Session) error {
			sem, err := s.Semaphore("n", 1)
			require.NoError(w, err)
			return sem.Do(ctx, 1, nothing)
		}
		unlock := w.held()
		_, all := w.crowded(acquire)
		w.falls(watches, 0, 1)
		w.mustFall(w.calls(func(ctx context.Context) error { return acquire(ctx, w.s) }))
		all()
		unlock()
	},
	"the read of a view": func(w *world) {
		unlock := w.held()
		w.falls(get, 0, 1)
		w.mustFall(w.calls(w.locks))
		unlock()
	},
	"the watch of a view": func(w *world) {
		unlock := w.held()
		w.falls(watches, 0, 1)
		w.mustFall(w.calls(w.locks))
		unlock()
	},
	"the recheck of a view": func(w *world) {
		unlock := w.held()
		call := w.calls(w.locks)
		w.falls(reads, 0, 1)
		w.mustFall(call)
		unlock()
	},
	"the view of a key that lingers": func(w *world) {
		for _, kind := range []string{get, watches} {
			w.falls(kind, 0, 1)
			require.NoError(w, w.s.Do(context.Background(), "n", nothing, etcdlock.WithLinger(time.Hour)))
			synctest.Wait()
		}
	},
	"the grant of a lease, for all who wait": func(w *world) {
		fall := w.fall
		w.fall = func() { time.Sleep(time.Millisecond); fall() }
		w.falls(grants, 0, 1)
		var callers []<-chan end
		for _, name := range []string{"m", "n", "o"} {
			callers = append(callers, w.calls(func(ctx context.Context) error {
				return w.s.Do(ctx, name, nothing)
			}))
		}
		for _, c := range callers {
			w.mustFall(c)
		}
	},
	"a renewal": func(w *world) {
		told := 0
		s, err := etcdlock.NewSession(w.client, etcdlock.WithTTL(tests.TTL),
			etcdlock.WithTrace(&etcdlock.Trace{
				RenewalFailed: func(context.Context, etcdlock.RenewalFailedEvent) { told++ },
			}))
		require.NoError(w, err)
		h, err := s.Lock(context.Background(), "n")
		require.NoError(w, err)
		w.falls(renews, 1, 1) // on a stream that has answered
		time.Sleep(2 * tests.TTL)
		tests.RequireHolds(w.T, h)
		synctest.Wait()
		require.Equal(w, 1, told)
		require.NoError(w, s.Close(context.Background()))
	},
	"the read after a renewal": func(w *world) {
		h := w.holds()
		w.etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Edit: func(reply any) {
				if r, ok := reply.(*clientv3.LeaseKeepAliveResponse); ok {
					r.Revision = 0
				}
				if r, ok := reply.(*pb.LeaseKeepAliveResponse); ok {
					r.Header.Revision = 0
				}
			}}
		})
		w.falls(get, 0, 2)
		time.Sleep(2 * tests.TTL)
		tests.RequireHolds(w.T, h)
		require.NoError(w, h.Unlock(context.Background()))
	},
	"an audit": func(w *world) {
		require.NoError(w, w.holds().Unlock(context.Background()))
		h := w.holds() // after a key has gone, an audit is of all keys
		w.falls(lifetimes, 0, 1)
		time.Sleep(tests.SeldomLook)
		require.Zero(w, w.rest())
		require.Len(w, w.logged, 1)
		require.Contains(w, <-w.logged, "a request did not return")
		before := len(w.etcd.Calls(fake.TimeToLive))
		time.Sleep(tests.SeldomLook)
		require.Greater(w, len(w.etcd.Calls(fake.TimeToLive)), before, "the last audit was the last")
		require.NoError(w, h.Unlock(context.Background()))
	},
	"the watch of a held key": func(w *world) {
		h := w.holds()
		w.falls(watches, 0, 1)
		time.Sleep(tests.UnwatchedLook)
		require.Zero(w, w.rest())
		w.etcd.DeleteKey(h.Key())
		synctest.Wait()
		time.Sleep(time.Second)
		tests.RequireEnded(w.T, h)
		require.ErrorIs(w, h.Unlock(context.Background()), etcdlock.ErrLost)
	},
	"the read of a held key": func(w *world) {
		h := w.holds()
		w.falls(reads, 0, 1)
		time.Sleep(tests.WatchedBy)
		require.Zero(w, w.rest())
		w.etcd.DeleteKey(h.Key())
		time.Sleep(time.Second)
		tests.RequireEnded(w.T, h)
		require.ErrorIs(w, h.Unlock(context.Background()), etcdlock.ErrLost)
	},
	"the reason of a loss": func(w *world) {
		h := w.holds()
		time.Sleep(tests.WatchedBy)
		w.falls(lifetimes, 0, 1)
		w.etcd.DeleteKey(h.Key())
		time.Sleep(time.Second)
		tests.RequireEnded(w.T, h)
		require.ErrorIs(w, h.Unlock(context.Background()), etcdlock.ErrKeyDeleted)
	},
	"a removal": func(w *world) {
		unlock := w.held()
		w.falls(deletes, 0, 1) // then the key goes with its lease
		call := w.calls(func(context.Context) error { return w.locks(tests.Within(w.T, time.Second)) })
		require.ErrorIs(w, (<-call).err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.Len(w, w.etcd.Keys("n/"), 1, "that of the holder")
		unlock()
	},
	"a revocation": func(w *world) {
		require.NoError(w, w.locks(context.Background()))
		w.falls(revokes, 0, 3)
	},
	"the reads after a set-back": func(w *world) {
		h := w.holds()
		w.etcd.Restore(w.etcd.Snapshot(), 2)
		w.falls(reads, 0, 2)
		require.NoError(w, w.s.Do(tests.Within(w.T, time.Hour), "m", nothing))
		require.Zero(w, w.rest())
		time.Sleep(2 * tests.TTL)
		tests.RequireHolds(w.T, h)
		require.NoError(w, h.Unlock(context.Background()))
	},
	"the repeat of a put": func(w *world) {
		require.NoError(w, w.locks(context.Background())) // it has a lease
		w.etcd.Intercept(tests.OnlyNext(w.etcd, fake.Txn, fake.Effect{Drop: true}))
		w.falls(puts, 1, 2) // two repeats go out at once
		w.mustFall(w.calls(w.locks))
	},
	"what asks a holder": func(w *world) {
		require.NoError(w, w.locks(context.Background())) // it has a lease
		h, err := w.other("b").Lock(context.Background(), "n", etcdlock.WithRecall(time.Hour))
		require.NoError(w, err)
		_, all := w.crowded(exclusive) // so that no view reads
		w.falls(puts, 1, 1)
		call := w.calls(func(ctx context.Context) error {
			return w.s.Do(ctx, "n", nothing, etcdlock.WithAsk(etcdlock.RecallRequest{}))
		})
		select {
		case <-h.Context(context.Background()).Done():
		case <-time.After(5 * time.Second):
			require.Fail(w, "the holder was not asked")
		}
		require.NoError(w, h.Unlock(context.Background()))
		w.mustReturn(call, 5*time.Second)
		all()
	},
	"the lease of a key that stays": func(w *world) {
		w.falls(grants, 1, 1)
		call := w.calls(func(ctx context.Context) error {
			return w.s.Do(ctx, "n", nothing, etcdlock.WithMinHold(time.Minute))
		})
		w.mustFall(call)
		w.patience = time.Minute + time.Second // as without an answer
	},
	"the end of a key that stays": func(w *world) {
		require.NoError(w, w.s.Do(
			context.Background(), "n", nothing, etcdlock.WithMinHold(time.Minute)))
		w.falls(revokes, 0, 3)
		w.patience = time.Minute + time.Second
	},
	"the read of SetInfo": func(w *world) {
		h := w.holds()
		w.falls(reads, 0, 1)
		w.mustFall(w.calls(func(ctx context.Context) error { return h.SetInfo(ctx, "info") }))
		require.NoError(w, h.SetInfo(context.Background(), "info"))
		require.NoError(w, h.Unlock(context.Background()))
	},
	"the put of SetInfo": func(w *world) {
		h := w.holds()
		w.falls(puts, 0, 1)
		w.mustFall(w.calls(func(ctx context.Context) error { return h.SetInfo(ctx, "info") }))
		require.NoError(w, h.SetInfo(context.Background(), "info"))
		require.NoError(w, h.Unlock(context.Background()))
	},
	"the reads of WatchHolder": func(w *world) {
		for _, kind := range []string{get, watches, reads} {
			w.falls(kind, 0, 1)
			w.mustFall(w.calls(func(ctx context.Context) error {
				for _, err := range etcdlock.WatchHolder(ctx, w.client, "n") {
					if err != nil {
						return err
					}
				}
				return nil
			}))
		}
	},
	"the release of Close": func(w *world) {
		mu, err := w.s.Mutex("n")
		require.NoError(w, err)
		require.NoError(w, mu.Lock(context.Background()))
		w.falls(deletes, 0, 1)
		w.mustFall(w.calls(mu.Close))
		require.NoError(w, mu.Close(tests.Within(w.T, time.Second)), "it waits for the first Close")
		require.ErrorIs(w, mu.Lock(context.Background()), etcdlock.ErrClosed)
	},
	"Unlock": func(w *world) {
		h := w.holds()
		w.falls(deletes, 0, 1)
		w.mustFall(w.calls(h.Unlock))
	},
	"Lock": func(w *world) {
		gaveUp := make(chan error, 9)
		trace := etcdlock.WithTrace(&etcdlock.Trace{
			GaveUp: func(_ context.Context, e etcdlock.GaveUpEvent) { gaveUp <- e.Err },
		})
		w.falls(puts, 0, 1)
		w.mustFall(w.calls(func(ctx context.Context) error {
			_, err := w.s.Lock(ctx, "n", trace)
			return err
		}))
		synctest.Wait()
		require.Len(w, gaveUp, 1)
		require.Error(w, <-gaveUp)
	},
	"the hooks of events": func(w *world) {
		told, trace := 0, new(etcdlock.Trace)
		hooks := reflect.ValueOf(trace).Elem()
		for i := range hooks.NumField() {
			if hook := hooks.Field(i); hook.Type().NumOut() == 0 {
				hook.Set(reflect.MakeFunc(hook.Type(), func([]reflect.Value) []reflect.Value {
					told++
					w.fall()
					return nil
				}))
			}
		}
		s := w.other("traced", etcdlock.WithTrace(trace))
		w.mustReturn(w.calls(w.does(s)), time.Second)
		synctest.Wait()
		require.Equal(w, 3, told, "of the lease, of the hold, and of its end")
	},
	"a logger": func(w *world) {
		handler := &handler{fall: w.fall}
		s := w.other("logged", etcdlock.WithLogger(slog.New(handler)))
		w.mustReturn(w.calls(w.does(s)), time.Second)
		require.NoError(w, s.Close(context.Background()))
		synctest.Wait()
		require.Equal(w, 2, handler.told, "of the lease, and of its end")
	},
	"Start": func(w *world) {
		trace := etcdlock.WithTrace(&etcdlock.Trace{
			Start: func(context.Context, etcdlock.StartEvent) context.Context { w.fall(); return nil },
		})
		if e := <-w.calls(func(ctx context.Context) error {
			return w.s.Do(ctx, "n", nothing, trace)
		}); !e.exited {
			require.Equal(w, end{}, e, "the call goes on")
		}
	},
	"what is told of a hold at once": func(w *world) {
		trace := etcdlock.WithTrace(&etcdlock.Trace{
			Start: func(ctx context.Context, _ etcdlock.StartEvent) context.Context {
				return context.WithValue(ctx, events.CallKey{}, call{w.fall})
			},
		})
		s := w.other("traced", trace)
		rw, sem := tests.RWMutexOf(w.T, s), tests.SemaphoreOf(w.T, s, 3)
		for _, f := range []func(ctx context.Context) error{
			w.does(s),
			func(ctx context.Context) error { return rw.Mutex.Do(ctx, nothing) },
			func(ctx context.Context) error { return rw.RDo(ctx, nothing) },
			func(ctx context.Context) error { return sem.Do(ctx, 2, nothing) },
			func(ctx context.Context) error { return s.DoAll(ctx, []string{"m", "n"}, nothing) },
		} {
			if e := <-w.calls(f); !e.exited {
				require.Equal(w, end{}, e, "the call goes on")
			}
			require.Empty(w, w.etcd.Keys("n/"))
			require.Empty(w, w.etcd.Keys("m/"))
		}
	},
	"the function of Do": func(w *world) {
		w.mustFall(w.calls(func(ctx context.Context) error {
			return w.s.Do(ctx, "n", func(context.Context) error { w.fall(); return nil })
		}))
	},
	"the loop around WatchHolder": func(w *world) {
		w.mustFall(w.calls(func(ctx context.Context) error {
			for range etcdlock.WatchHolder(ctx, w.client, "n") {
				w.fall()
			}
			return nil
		}))
	},
}

// A handler is of a logger.
type handler struct {
	slog.Handler
	fall func()
	told int
}

func (h *handler) Enabled(context.Context, slog.Level) bool { return true }

func (h *handler) Handle(context.Context, slog.Record) error {
	h.told++
	h.fall()
	return nil
}

// A call is told of its hold.
type call struct{ fall func() }

func (c call) Holds(context.Context, time.Duration) context.Context {
	c.fall()
	return nil
}

// holds is a hold of "n".
func (w *world) holds() *etcdlock.Hold {
	h, err := w.s.Lock(context.Background(), "n")
	require.NoError(w, err)
	return h
}

// together makes n calls at once, for as many names, and returns how many have fallen. The others
// return nil.
func (w *world) together(n int, call func(ctx context.Context, name string) error) (fell int) {
	var callers []<-chan end
	for i := range n {
		name := fmt.Sprint("t", i)
		w.names = append(w.names, name)
		over := make(chan end, 1)
		callers = append(callers, over)
		go func() {
			e := end{exited: true}
			defer func() {
				if value := recover(); value != nil {
					e = end{value: value}
				}
				over <- e
			}()
			err := call(context.Background(), name)
			e = end{err: err}
		}()
	}
	for _, c := range callers {
		select {
		case e := <-c:
			require.NoError(w, e.err)
			if e.fell() {
				fell++
			}
		case <-time.After(5 * time.Second):
			require.Fail(w, "a call has not ended")
		}
	}
	return fell
}

// The user's code panics in a request, or calls runtime.Goexit, before the request was sent or once
// it was carried out. The calls for which the request is fall so themselves, and a program that
// recovers goes on. Nobody else falls, and nothing that others wait for stays undone: no name, no
// lease, no goroutine, no later call that takes longer; Close ends.
func TestNobodyElseFalls(t *testing.T) {
	for name, run := range fallsIn {
		for how, fall := range map[string]func(){
			"panic": func() { panic(errBoom) }, "Goexit": runtime.Goexit,
		} {
			for _, sent := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/sent=%v", name, how, sent), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						w := &world{
							T: t, program: &program{fall: fall, sent: sent}, etcd: etcd,
							client: etcd.Client("a"), names: []string{"n", "m"}, patience: time.Second,
						}
						w.around(w.client)
						w.logged = make(chan string, 99)
						s, err := etcdlock.NewSession(w.client, etcdlock.WithTTL(tests.TTL),
							etcdlock.WithLogger(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
								Level: slog.LevelError,
							}))))
						require.NoError(t, err)
						w.s = s
						run(w)
						synctest.Wait()
						etcd.Intercept(nil)
						if w.kind != revokes {
							require.Zero(t, w.rest(), "it has not fallen")
						}
						b := w.other("later")
						for _, name := range w.names {
							require.NoError(t, b.Do(tests.Within(t, w.patience), name, nothing), name)
						}
						time.Sleep(time.Second) // removals may be under way
						for _, name := range w.names {
							began := time.Now()
							require.NoError(t, w.s.Do(tests.Within(t, time.Second), name, nothing), name)
							require.Less(t, time.Since(began), time.Millisecond, name)
						}
						require.NoError(t, w.s.Close(tests.Within(t, 5*time.Second)))
						require.Zero(t, w.rest(), "it has not fallen")
					})
				})
			}
		}
	}
}
