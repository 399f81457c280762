package mutex

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// How a hold ends: its contexts end first, and only then do others see its end. And what
// the calls say that end it. All is in virtual time, except for the last tests.

// A slowContext takes its time once it is slow. When a context ends, package context asks
// its parent for its Done, after that context and all that derive from it have ended.
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

// An ending holds contexts that derive from holds, and take time to end.
type ending struct {
	t       *testing.T
	slow    atomic.Bool
	derived []context.Context
}

// derive makes contexts of mu's hold, and one that derives from each.
func (e *ending) derive(mu *etcdlock.Mutex, n int, takes time.Duration) {
	e.t.Helper()
	for range n {
		// each of a parent of its own
		hold := mu.Context(&slowContext{context.Background(), &e.slow, takes})
		derived, cancel := context.WithCancel(hold)
		e.t.Cleanup(cancel)
		require.NoError(e.t, derived.Err())
		e.derived = append(e.derived, derived)
	}
}

// open returns how many of the contexts have not ended.
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
	tests.SoonOr(e.t, ended, "no context ends")
}

// Whatever ends a hold, and however long its contexts take to end, the next one gets in
// only after they all have ended. That holds for another Session and for another goroutine
// of this one.
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
		late time.Duration // how much later than the beginning of the end the next one comes
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
			end: func(w *stage) {
				trustEnds(w.etcd)
				w.first()
				_ = w.s.Close(context.Background())
			},
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
			end: func(w *stage) {
				trustEnds(w.etcd)
				w.first()
				w.etcd.Intercept(nil)
				unlock(w.mu)
			},
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				w := &stage{etcd: etcd, ending: ending{t: t}}
				w.s, w.other = tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
				next := w.other
				if row.same {
					next = w.s
				}
				w.mu = contract.MutexOf(t, w.s, "x", row.opts...)
				theirs := contract.MutexOf(t, next, "x")
				require.NoError(t, w.mu.Lock(tests.Within(t, time.Second)))
				w.derive(w.mu, 10, 10*time.Millisecond) // more than the calls that end them at once
				synctest.Wait()
				w.slow.Store(true)
				defer w.slow.Store(false)

				open := make(chan int, 1)
				lock := func() {
					if theirs.Lock(tests.Within(t, 10*tests.TTL)) == nil {
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
				left := tests.SoonOr(t, open, "the next one does not get in")
				require.Zero(t, left, "contexts that are open")
				require.NoError(t, theirs.Unlock(context.Background()))
			})
		})
	}
}

// One Session holds 100 names, and another waits for each. The first one is closed.
func TestCloseEndsTheContextsOfAHundredNamesBeforeItFreesOne(t *testing.T) {
	const names = 100
	for _, takes := range []time.Duration{0, time.Millisecond} {
		t.Run(fmt.Sprintf("each takes %v to end", takes), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				for range 3 {
					ours, other := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
					all := &ending{t: t}
					open := make(chan int, names)
					for i := range names {
						mu := contract.MutexOf(t, ours, fmt.Sprint("x", i))
						theirs := contract.MutexOf(t, other, mu.Name())
						require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
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
						require.Zero(t, tests.SoonOr(t, open, "nobody gets in"), "contexts that are open")
					}
					require.NoError(t, other.Close(context.Background()))
				}
			})
		})
	}
}

// whileEnding begins an end that takes its time, since contexts take theirs, and then calls
// then.
func (e *ending) whileEnding(end func() error, then func()) (err error) {
	e.slow.Store(true)
	defer e.slow.Store(false)
	ended := contract.Async(end)
	time.Sleep(5 * time.Millisecond)
	then()
	return <-ended
}

// The context of one hold may bound the release of another. To check that context is to
// check the clocks of the first hold, under the Session's mutex. If a release checked it
// under the mutex, it would stand still.
func TestTheContextOfOneHoldBoundsTheReleaseOfAnother(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		outer, inner := contract.MutexOf(t, s, "outer"), contract.MutexOf(t, s, "inner")
		tests.LockWithin(t, outer, time.Second)
		parent, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		ctx := outer.Context(parent)
		require.NoError(t, inner.Lock(ctx))
		before := len(etcd.Calls(fake.Txn))
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method != fake.Txn:
				return fake.Effect{}
			case c.N == before+1:
				return fake.Effect{Before: fake.Unavailable} // ctx is whole, and is checked
			default:
				return fake.Effect{Drop: true}
			}
		})
		err := inner.Unlock(ctx)
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		etcd.Intercept(nil)
		require.NoError(t, outer.Unlock(context.Background()))
	})
}
