package etcdlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// How a hold ends: its contexts first, then what others see; and what the calls say that end
// it. All in virtual time, but for the last tests.

// A slowContext takes its time once it is slow: package context asks the parent of a context
// that ends for its Done, after that context and all that come from it have ended.
type slowContext struct {
	context.Context
	slow  *atomic.Bool
	takes time.Duration
}

func (c slowContext) Done() <-chan struct{} {
	if c.slow.Load() {
		time.Sleep(c.takes)
	}
	return nil
}

// An ending holds contexts that come from holds, and whose ends take time.
type ending struct {
	t       *testing.T
	slow    atomic.Bool
	derived []context.Context
}

// derive makes contexts of mu's hold, and one that comes from each.
func (e *ending) derive(mu *etcdlock.Mutex, n int, takes time.Duration) {
	e.t.Helper()
	for range n {
		hold := mu.Context(slowContext{context.Background(), &e.slow, takes})
		derived, cancel := context.WithCancel(hold)
		e.t.Cleanup(cancel)
		require.NoError(e.t, derived.Err())
		e.derived = append(e.derived, derived)
	}
}

// open is how many of the contexts have not ended.
func (e *ending) open() (n int) {
	for _, ctx := range e.derived {
		if ctx.Err() == nil {
			n++
		}
	}
	return n
}

// first waits until one of the contexts has ended.
func (e *ending) first() {
	e.t.Helper()
	ended := make(chan struct{}, len(e.derived))
	for _, ctx := range e.derived {
		context.AfterFunc(ctx, func() { ended <- struct{}{} })
	}
	soonOr(e.t, ended, "no context ends")
}

// Whatever ends a hold, and however long its contexts take to end, the next one does not get
// in before they all have: neither another Session nor another goroutine of this one.
func TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn(t *testing.T) {
	unlock := func(mu *etcdlock.Mutex) { _ = mu.Unlock(context.Background()) }
	closeMutex := func(mu *etcdlock.Mutex) { _ = mu.Close(context.Background()) }
	trustEnds := func(etcd *fake.Server) {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Process == "a" && c.Method == fake.KeepAlive}
		})
	}
	type stage struct {
		etcd  *fake.Server
		s     *etcdlock.Session
		mu    *etcdlock.Mutex
		other *etcdlock.Session
		ending
	}
	for name, row := range map[string]struct {
		opts []etcdlock.Option
		same bool          // the next one is in the same Session
		late time.Duration // the next one comes that much later than the end begins
		end  func(*stage)
	}{
		"Unlock":               {end: func(w *stage) { unlock(w.mu) }},
		"Close of the Mutex":   {end: func(w *stage) { closeMutex(w.mu) }},
		"Close of the Session": {end: func(w *stage) { _ = w.s.Close(context.Background()) }},
		"the longest hold": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)},
			end:  func(*stage) {},
		},
		"the longest hold, and Unlock": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)},
			end:  func(w *stage) { w.first(); unlock(w.mu) },
		},
		"the longest hold, and Close of the Session at that moment": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)},
			end:  func(w *stage) { w.first(); _ = w.s.Close(context.Background()) },
		},
		"the end of the trust, and Unlock": {
			end: func(w *stage) { trustEnds(w.etcd); w.first(); unlock(w.mu) },
		},
		"the end of the trust, and Close of the Mutex": {
			end: func(w *stage) { trustEnds(w.etcd); w.first(); closeMutex(w.mu) },
		},
		"the end of the trust, and Close of the Session": {
			end: func(w *stage) { trustEnds(w.etcd); w.first(); _ = w.s.Close(context.Background()) },
		},
		"an operator, and Unlock": {
			end: func(w *stage) {
				require.NoError(w.t, w.etcd.PutKey(w.mu.Key(), w.other.Lease()))
				w.first()
				unlock(w.mu)
			},
		},
		"Unlock, to the same Session": {
			same: true,
			end:  func(w *stage) { unlock(w.mu) },
		},
		"the end of the trust, and Unlock, to the same Session": {
			same: true,
			end:  func(w *stage) { trustEnds(w.etcd); w.first(); w.etcd.Intercept(nil); unlock(w.mu) },
		},
		"a hand-off": {
			opts: []etcdlock.Option{etcdlock.WithHandoff(1)},
			same: true,
			end:  func(w *stage) { unlock(w.mu) },
		},
		"a key that lingers": {
			opts: []etcdlock.Option{etcdlock.WithLinger(time.Minute)},
			same: true,
			late: 5 * time.Millisecond,
			end:  func(w *stage) { unlock(w.mu) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				w := &stage{etcd: etcd, ending: ending{t: t}}
				w.s, w.other = processIn(t, etcd, "a"), processIn(t, etcd, "b")
				next := w.other
				if row.same {
					next = w.s
				}
				w.mu = mutexIn(t, w.s, "x", row.opts...)
				theirs := mutexIn(t, next, "x")
				require.NoError(t, w.mu.Lock(in(t, time.Second)))
				w.derive(w.mu, 3, 10*time.Millisecond)
				synctest.Wait()
				w.slow.Store(true)
				defer w.slow.Store(false)

				open := make(chan int, 1)
				lock := func() {
					if theirs.Lock(in(t, 10*virtualTTL)) == nil {
						open <- w.open()
					}
				}
				if row.late > 0 {
					time.AfterFunc(row.late, lock)
				} else {
					go lock()
					synctest.Wait()
				}
				row.end(w)
				require.Zero(t, soonOr(t, open, "the next one does not get in"), "contexts that are open")
				require.NoError(t, theirs.Unlock(context.Background()))
			})
		})
	}
}

// 100 names, held by one Session that is closed while another waits for each.
func TestCloseEndsTheContextsOfAHundredNamesBeforeItFreesOne(t *testing.T) {
	const names = 100
	for _, takes := range []time.Duration{0, time.Millisecond} {
		t.Run(fmt.Sprintf("each takes %v to end", takes), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				for range 20 {
					ours, other := processIn(t, etcd, "a"), processIn(t, etcd, "b")
					all := &ending{t: t}
					open := make(chan int, names)
					for i := range names {
						mu := mutexIn(t, ours, fmt.Sprint("x", i))
						theirs := mutexIn(t, other, mu.Name())
						require.NoError(t, mu.Lock(in(t, time.Second)))
						all.derive(mu, 1, takes)
						go func() {
							if theirs.Lock(context.Background()) == nil {
								open <- all.open()
							}
						}()
					}
					synctest.Wait()
					all.slow.Store(takes > 0)
					require.NoError(t, ours.Close(context.Background()))
					for range names {
						require.Zero(t, soonOr(t, open, "nobody gets in"), "contexts that are open")
					}
					require.NoError(t, other.Close(context.Background()))
				}
			})
		})
	}
}

// whileEnding begins an end that takes its time, since contexts take theirs, and calls then.
func (e *ending) whileEnding(end func() error, then func()) (err error) {
	e.slow.Store(true)
	defer e.slow.Store(false)
	ended := async(end)
	time.Sleep(5 * time.Millisecond)
	then()
	return <-ended
}

// A Close comes while an Unlock is ending the hold's contexts, and has sent nothing yet: the
// release is under way all the same, and Close waits for it.
func TestAnUnlockThatIsFollowedByCloseIsNoLoss(t *testing.T) {
	forever := context.Background()
	for name, row := range map[string]struct {
		own   bool
		end   func(*etcdlock.Mutex) error
		close func(*etcdlock.Session, *etcdlock.Mutex) error
	}{
		"Unlock, and Close of the Session": {
			end:   func(mu *etcdlock.Mutex) error { return mu.Unlock(forever) },
			close: func(s *etcdlock.Session, _ *etcdlock.Mutex) error { return s.Close(forever) },
		},
		"Unlock, and Close of the Mutex, which has its own Session": {
			own:   true,
			end:   func(mu *etcdlock.Mutex) error { return mu.Unlock(forever) },
			close: func(_ *etcdlock.Session, mu *etcdlock.Mutex) error { return mu.Close(forever) },
		},
		"Close of the Mutex, and of the Session": {
			end:   func(mu *etcdlock.Mutex) error { return mu.Close(forever) },
			close: func(s *etcdlock.Session, _ *etcdlock.Mutex) error { return s.Close(forever) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var lost, released atomic.Int32
				trace := etcdlock.WithTrace(&etcdlock.Trace{
					Lost:     func(string, int64, time.Duration, error) { lost.Add(1) },
					Released: func(string, int64, time.Duration) { released.Add(1) },
				})
				var s *etcdlock.Session
				var mu *etcdlock.Mutex
				if row.own {
					var err error
					mu, err = etcdlock.New(etcd.Client("a"), "x", trace)
					require.NoError(t, err)
				} else {
					s = processIn(t, etcd, "a", trace)
					mu = mutexIn(t, s, "x")
				}
				require.NoError(t, mu.Lock(forever))
				e := &ending{t: t}
				e.derive(mu, 3, 10*time.Millisecond)
				require.NoError(t, e.whileEnding(
					func() error { return row.end(mu) },
					func() {
						require.NoError(t, row.close(s, mu))
						require.Empty(t, etcd.Leases())
					}))
				synctest.Wait()
				require.Zero(t, lost.Load(), "a loss is told")
				require.EqualValues(t, 1, released.Load())
			})
		})
	}
}

// An Unlock that is under way when its Mutex is closed leaves no key that lingers.
func TestNothingLingersAfterAMutexThatWasClosedMeanwhile(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := mutexIn(t, processIn(t, etcd, "a"), "x", etcdlock.WithLinger(time.Hour))
		require.NoError(t, mu.Lock(in(t, time.Second)))
		e := &ending{t: t}
		e.derive(mu, 1, 10*time.Millisecond)
		require.NoError(t, e.whileEnding(
			func() error { return mu.Unlock(context.Background()) },
			func() { require.NoError(t, mu.Close(context.Background())) }))
		require.Empty(t, etcd.Keys("x/"))
	})
}

// A call of Close, and when it returned.
type closed struct {
	err   error
	after time.Duration
	keys  int // below the name at that time
}

// closes calls Close after a while, counted from now, with that long to do it.
func closes(etcd *fake.Server, after, bound time.Duration, call func(context.Context) error) <-chan closed {
	began := time.Now()
	result := make(chan closed, 1)
	time.AfterFunc(after, func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		err := call(ctx)
		result <- closed{err: err, after: time.Since(began), keys: len(etcd.Keys("x/"))}
	})
	return result
}

// etcd takes a second for whatever frees the name. Whoever closes meanwhile waits, too, in
// its own time; and nil means that nothing is left, whoever says it.
func TestACloseBesideAnotherWaitsAsWell(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	type calls struct{ session, mutex func(context.Context) error }
	session := func(c calls) func(context.Context) error { return c.session }
	mutex := func(c calls) func(context.Context) error { return c.mutex }
	for name, row := range map[string]struct {
		own           bool
		refused       bool
		first, second func(calls) func(context.Context) error
		bounds        [2]time.Duration
		after         [2]time.Duration
		confirmed     [2]bool
	}{
		"both have time": {
			first: session, second: session, bounds: [2]time.Duration{9 * s, 9 * s},
			after: [2]time.Duration{s, s}, confirmed: [2]bool{true, true},
		},
		"the second one has no time": {
			first: session, second: session, bounds: [2]time.Duration{9 * s, 300 * ms},
			after: [2]time.Duration{s, 400 * ms}, confirmed: [2]bool{true, false},
		},
		"the first one has no time": {
			first: session, second: session, bounds: [2]time.Duration{300 * ms, 9 * s},
			after: [2]time.Duration{300 * ms, s}, confirmed: [2]bool{false, true},
		},
		"neither has time": {
			first: session, second: session, bounds: [2]time.Duration{300 * ms, 500 * ms},
			after: [2]time.Duration{300 * ms, 600 * ms},
		},
		"etcd refuses": {
			refused: true,
			first:   session, second: session, bounds: [2]time.Duration{9 * s, 9 * s},
			after: [2]time.Duration{s, s},
		},
		"of the Mutex, both have time": {
			first: mutex, second: mutex, bounds: [2]time.Duration{9 * s, 9 * s},
			after: [2]time.Duration{s, s}, confirmed: [2]bool{true, true},
		},
		"of the Mutex, the second one has no time": {
			first: mutex, second: mutex, bounds: [2]time.Duration{9 * s, 300 * ms},
			after: [2]time.Duration{s, 400 * ms}, confirmed: [2]bool{true, false},
		},
		"of the Mutex, the first one has no time": {
			first: mutex, second: mutex, bounds: [2]time.Duration{300 * ms, 9 * s},
			after: [2]time.Duration{300 * ms, 300 * ms},
		},
		"of the Mutex, which has its own Session": {
			own:   true,
			first: mutex, second: mutex, bounds: [2]time.Duration{9 * s, 9 * s},
			after: [2]time.Duration{s, s}, confirmed: [2]bool{true, true},
		},
		"of the Session, then of the Mutex": {
			first: session, second: mutex, bounds: [2]time.Duration{9 * s, 9 * s},
			after: [2]time.Duration{s, s}, confirmed: [2]bool{true, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var both calls
				var mu *etcdlock.Mutex
				if row.own {
					var err error
					mu, err = etcdlock.New(etcd.Client("a"), "x")
					require.NoError(t, err)
				} else {
					ours := processIn(t, etcd, "a")
					mu = mutexIn(t, ours, "x")
					both.session = ours.Close
				}
				both.mutex = mu.Close
				require.NoError(t, mu.Lock(in(t, s)))
				etcd.Intercept(func(c fake.Call) fake.Effect {
					switch {
					case c.Method != fake.Revoke && c.Method != fake.Txn:
						return fake.Effect{}
					case row.refused:
						return fake.Effect{Delay: s, Before: permissionDenied}
					default:
						return fake.Effect{Delay: s}
					}
				})
				first := closes(etcd, 0, row.bounds[0], row.first(both))
				second := closes(etcd, 100*ms, row.bounds[1], row.second(both))
				for i, result := range []closed{<-first, <-second} {
					require.Equal(t, row.after[i], result.after, "call %d: %v", i+1, result.err)
					if row.confirmed[i] {
						require.NoError(t, result.err, "call %d", i+1)
						require.Zero(t, result.keys, "call %d leaves keys behind, and says nil", i+1)
					} else {
						require.ErrorIs(t, result.err, etcdlock.ErrUnconfirmed, "call %d", i+1)
					}
				}
				require.NoError(t, mu.Close(context.Background()), "closed before")
			})
		})
	}
}

// permissionDenied is how etcd refuses.
var permissionDenied = status.Error(codes.PermissionDenied, "etcdserver: permission denied")
