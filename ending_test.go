package etcdlock_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
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
		hold := mu.Context(&slowContext{context.Background(), &e.slow, takes}) // each of a parent of its own
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
	soonOr(e.t, ended, "no context ends")
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				w := &stage{etcd: etcd, ending: ending{t: t}}
				w.s, w.other = processIn(t, etcd, "a"), processIn(t, etcd, "b")
				next := w.other
				if row.same {
					next = w.s
				}
				w.mu = contract.MutexOf(t, w.s, "x", row.opts...)
				theirs := contract.MutexOf(t, next, "x")
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
				left := soonOr(t, open, "the next one does not get in")
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				for range 3 {
					ours, other := processIn(t, etcd, "a"), processIn(t, etcd, "b")
					all := &ending{t: t}
					open := make(chan int, names)
					for i := range names {
						mu := contract.MutexOf(t, ours, fmt.Sprint("x", i))
						theirs := contract.MutexOf(t, other, mu.Name())
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

// A Close comes while an Unlock is ending the hold's contexts, and has sent nothing yet.
// The release counts as under way all the same, and Close waits for it.
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
					mu = contract.MutexOf(t, s, "x")
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

// If a Mutex is closed while its Unlock is under way, no key lingers.
func TestNothingLingersAfterAMutexThatWasClosedMeanwhile(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "x", etcdlock.WithLinger(time.Hour))
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

// closes calls Close in a while, with a context that lasts for the given time.
func closes(
	etcd *fake.Server, after, bound time.Duration, call func(context.Context) error,
) <-chan closed {
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

// etcd takes a second for whatever frees the name. Another Close meanwhile waits, too, as
// long as its own context lasts. A nil means that nothing is left, from whichever Close it
// comes.
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
					mu = contract.MutexOf(t, ours, "x")
					both.session = ours.Close
				}
				both.mutex = mu.Close
				require.NoError(t, mu.Lock(in(t, s)))
				etcd.Intercept(func(c fake.Call) fake.Effect {
					switch {
					case c.Method != fake.Revoke && len(c.Deletes) == 0: // a read whether a key is left
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

// permissionDenied is etcd's refusal.
var permissionDenied = status.Error(codes.PermissionDenied, "etcdserver: permission denied")

// held is a Mutex that holds, and what belongs to it.
type held struct {
	etcd *fake.Server
	s    *etcdlock.Session
	mu   *etcdlock.Mutex
}

// Whoever takes a lock away, the context of the hold, Unlock and Trace give the same
// reason, by errors.Is. (ErrSuspended has a test of its own: a bubble has no wall clock.)
func TestALossHasAReasonThatErrorsIsTells(t *testing.T) {
	deleted := func(h *held) { h.etcd.DeleteKey(h.mu.Key()) }
	putOver := func(h *held) { _ = h.etcd.PutKey(h.mu.Key(), 0) }
	revoked := func(h *held) { h.etcd.RevokeLease(h.s.Lease()) }
	refused := fake.Effect{Before: permissionDenied}
	silent := fake.Effect{Drop: true}
	renewals := func(effects ...fake.Effect) func(fake.Call) fake.Effect {
		return func(c fake.Call) fake.Effect {
			if c.Method != fake.KeepAlive {
				return fake.Effect{}
			}
			return effects[min(c.N, len(effects))-1]
		}
	}
	byAnother := fake.Effect{Edit: func(reply any) {
		reply.(*clientv3.LeaseKeepAliveResponse).MemberId = 2
	}}
	for name, row := range map[string]struct {
		opts    []etcdlock.Option
		network func(fake.Call) fake.Effect
		lose    func(*held)
		unseen  bool // Unlock notices first
		want    []error
		text    string // instead of theirs
	}{
		"no renewal is answered": {
			network: renewals(silent), want: []error{etcdlock.ErrExpired},
		},
		"renewals fail": {
			network: renewals(fake.Effect{Before: fake.Unavailable}),
			want:    []error{etcdlock.ErrExpired},
		},
		"renewals are refused": {
			network: renewals(refused),
			want:    []error{etcdlock.ErrExpired, rpctypes.ErrPermissionDenied},
		},
		"renewals are refused, then not answered": {
			network: renewals(refused, silent),
			want:    []error{etcdlock.ErrExpired, rpctypes.ErrPermissionDenied},
		},
		"a renewal is refused and the next one is not; then none is answered": {
			network: renewals(refused, fake.Effect{}, silent), want: []error{etcdlock.ErrExpired},
		},
		"a renewal is refused, and a read tells what an earlier one was worth": {
			network: renewals(silent, byAnother, byAnother, refused, silent),
			lose: func(h *held) {
				time.Sleep(virtualTTL/3*5/2 + 100*time.Millisecond) // the fourth has been sent
				other := contract.MutexOf(t, h.s, "y")
				_ = other.Lock(context.Background())
				_ = other.Unlock(context.Background())
			},
			want: []error{etcdlock.ErrExpired, rpctypes.ErrPermissionDenied},
		},
		"its key is deleted": {
			lose: deleted,
			want: []error{etcdlock.ErrKeyDeleted},
		},
		"its key is deleted, and a watch tells": {
			opts: []etcdlock.Option{etcdlock.WithLinger(time.Second)},
			lose: deleted,
			want: []error{etcdlock.ErrKeyDeleted},
		},
		"its key is deleted, and Unlock is the first to notice": {
			lose:   deleted,
			unseen: true,
			want:   []error{etcdlock.ErrKeyDeleted},
		},
		"its key is put over": {
			lose: putOver,
			want: []error{etcdlock.ErrKeyOverwritten},
		},
		"its key is put over, and a watch tells": {
			opts: []etcdlock.Option{etcdlock.WithLinger(time.Second)},
			lose: putOver,
			want: []error{etcdlock.ErrKeyOverwritten},
		},
		"its key is put over, and Unlock is the first to notice": {
			lose:   putOver,
			unseen: true,
			want:   []error{etcdlock.ErrKeyOverwritten},
		},
		"its key is taken, and etcd does not answer how": {
			lose: func(h *held) {
				deleted(h)
				h.etcd.Intercept(fromNth(len(h.etcd.Calls(fake.Txn))+2, fake.Txn, silent))
			},
			unseen: true,
			want:   []error{etcdlock.ErrKeyDeleted, etcdlock.ErrKeyOverwritten},
			text:   "its key was deleted, or put over",
		},
		"its lease is revoked, and a look at the keys tells": {
			lose: revoked,
			want: []error{etcdlock.ErrLeaseRevoked},
		},
		"its lease is revoked, and a renewal tells": {
			network: func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: c.Method == fake.TimeToLive || c.Method == fake.Watch}
			},
			lose: revoked,
			want: []error{etcdlock.ErrLeaseRevoked, rpctypes.ErrLeaseNotFound},
		},
		"its lease is revoked, and the next Lock tells": {
			lose: func(h *held) {
				revoked(h)
				other, _ := h.s.Mutex("y")
				_ = other.Lock(context.Background())
			},
			want: []error{etcdlock.ErrLeaseRevoked, rpctypes.ErrLeaseNotFound},
		},
		"it is held for too long": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)},
			want: []error{etcdlock.ErrMaxHold},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				told := make(chan error, 1)
				s := processIn(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					Lost: func(_ string, _ int64, _ time.Duration, reason error) { told <- reason },
				}))
				mu := contract.MutexOf(t, s, "x", row.opts...)
				etcd.Intercept(row.network)
				hold := lockWithin(t, mu, time.Second)
				synctest.Wait() // for the watch
				if row.lose != nil {
					row.lose(&held{etcd: etcd, s: s, mu: mu})
				}
				if !row.unseen {
					endsAfter(t, hold, time.Now())
					contract.RequireReasons(t, context.Cause(hold), row.want...)
				}
				err := mu.Unlock(in(t, 3*time.Second))
				require.ErrorIs(t, err, etcdlock.ErrLost)
				contract.RequireReasons(t, err, row.want...)
				contract.RequireReasons(t, soonOr(t, told, "no loss is told"), row.want...)
				for _, reason := range row.want {
					text := strings.TrimPrefix(reason.Error(), "etcdlock: ")
					if row.text != "" {
						text = row.text
					}
					require.ErrorContains(t, err, text)
				}
				etcd.Intercept(nil)
				synctest.Wait() // for the removal
			})
		})
	}
}

// An operator that takes a right away may give it back. As long as the lease lives, so does
// the hold.
func TestRenewalsThatAreRefusedForAWhileLoseNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "x")
		etcd.Intercept(fromNth(1, fake.KeepAlive, fake.Effect{Before: permissionDenied}))
		hold := lockWithin(t, mu, time.Second)
		time.Sleep(virtualTTL * 3 / 4)
		require.Greater(t, len(etcd.Calls(fake.KeepAlive)), 1)
		etcd.Intercept(nil)
		time.Sleep(10 * virtualTTL)
		require.NoError(t, hold.Err(), context.Cause(hold))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// Readiness checks call Held: it agrees with Token, whatever ends the hold.
func TestHeldIsWhetherThereIsAToken(t *testing.T) {
	require.False(t, (*etcdlock.Mutex)(nil).Held())
	require.False(t, new(etcdlock.Mutex).Held())
	forever := context.Background()
	for name, row := range map[string]struct {
		opts []etcdlock.Option
		end  func(*held) error
	}{
		"Unlock": {end: func(h *held) error { return h.mu.Unlock(forever) }},
		"Unlock of a key that lingers": {
			opts: []etcdlock.Option{etcdlock.WithLinger(time.Minute)},
			end:  func(h *held) error { return h.mu.Unlock(forever) },
		},
		"the longest hold": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)},
			end:  func(*held) error { time.Sleep(time.Second); return nil },
		},
		"the end of the trust": {end: func(h *held) error {
			h.etcd.Cut("a")
			time.Sleep(virtualTTL)
			return nil
		}},
		"an operator": {end: func(h *held) error {
			h.etcd.DeleteKey(h.mu.Key())
			time.Sleep(2 * time.Second)
			return nil
		}},
		"Close of the Mutex":   {end: func(h *held) error { return h.mu.Close(forever) }},
		"Close of the Session": {end: func(h *held) error { return h.s.Close(forever) }},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				mu := contract.MutexOf(t, s, "x", row.opts...)
				require.False(t, mu.Held(), "before")
				require.NoError(t, mu.Lock(in(t, time.Second)))
				require.True(t, mu.Held())
				require.False(t, contract.MutexOf(t, s, "x").Held(), "another Mutex of the name")
				require.NoError(t, row.end(&held{etcd: etcd, s: s, mu: mu}))
				require.False(t, mu.Held(), "after")
				require.Zero(t, mu.Token())
			})
		})
	}
}

// A copy of a Mutex would hold what its original holds, and release it twice.
func TestGoVetReportsACopyOfAMutexOrASession(t *testing.T) {
	const program = `package copies

import "github.com/etcdlock/etcdlock"

type server struct{ etcdlock.Mutex }

func ofAMutex(mu *etcdlock.Mutex) { other := *mu; _ = &other }
func ofAStruct(s *server) { other := *s; _ = &other }
func ofASession(s *etcdlock.Session) { other := *s; _ = &other }
func ofAPointer(mu *etcdlock.Mutex) { other := mu; _ = other }
`
	file := filepath.Join(t.TempDir(), "copies.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	// Where nothing is built yet it compiles clientv3 and gRPC first, which takes as long as it takes.
	report, err := exec.CommandContext(t.Context(), "go", "vet", "-copylocks", file).CombinedOutput()
	require.Error(t, err, "go vet finds nothing:\n%s", report)
	for line, what := range map[int]string{7: "Mutex", 8: "Mutex", 9: "Session"} {
		finding := fmt.Sprintf(`copies\.go:%d:.* copies .*etcdlock\.%s contains`, line, what)
		require.Regexp(t, finding, string(report))
	}
	require.NotContains(t, string(report), "copies.go:10:")
}

// The context of one hold may bound the release of another. To check that context is to
// check the clocks of the first hold, under the Session's mutex. If a release checked it
// under the mutex, it would stand still.
func TestTheContextOfOneHoldBoundsTheReleaseOfAnother(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		outer, inner := contract.MutexOf(t, s, "outer"), contract.MutexOf(t, s, "inner")
		lockWithin(t, outer, time.Second)
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

// An audit of the lease's keys that has no answer, for instance because an endpoint hangs,
// delays Close by at most half a second.
func TestCloseDoesNotWaitLongForALook(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		lockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
		etcd.Intercept(fromNth(1, fake.TimeToLive, fake.Effect{Drop: true}))
		for len(etcd.Calls(fake.TimeToLive)) == 0 {
			time.Sleep(time.Millisecond)
		}
		start := time.Now()
		require.NoError(t, s.Close(context.Background()))
		require.Equal(t, 500*time.Millisecond, time.Since(start))
	})
}
