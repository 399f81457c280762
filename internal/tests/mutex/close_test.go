package mutex

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// Close waits for a release that is under way, and for no longer, however long the TTL is.
func TestCloseEndsAsSoonAsTheReleaseIsAnswered(t *testing.T) {
	const takes = 700 * time.Millisecond
	for _, ttl := range []time.Duration{tests.TTL, time.Hour} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl))
			mu := contract.MutexOf(t, s, "n")
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(5 * time.Second)
			etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{DelayReply: takes}))
			began := time.Now()
			unlocked := contract.Async(func() error { return mu.Unlock(context.Background()) })
			synctest.Wait()
			require.NoError(t, s.Close(context.Background()))
			require.Equal(t, takes, time.Since(began))
			require.NoError(t, <-unlocked)
			require.Empty(t, etcd.Leases())
		})
	}
}

// A hold of several names has one release, which counts once: otherwise Close would not wait for
// the next ones.
func TestAnUnlockThatIsFollowedByCloseIsNoLossAfterSeveralNames(t *testing.T) {
	for _, names := range [][]string{{"p"}, {"p", "q"}} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			forever := context.Background()
			s := tests.SessionOf(t, etcd, "a")
			mu := contract.MutexOf(t, s, "x")
			require.NoError(t, s.DoAll(forever, names, func(context.Context) error { return nil }))
			require.NoError(t, mu.Lock(forever))
			etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
				if c.Method == fake.Txn { // a revoke that does not wait for it overtakes it
					effect.Delay = 10 * time.Millisecond
				}
				return effect
			})
			unlocked := make(chan error, 1)
			go func() { unlocked <- mu.Unlock(forever) }()
			synctest.Wait()
			require.NoError(t, s.Close(forever))
			require.NoError(t, <-unlocked, names)
		})
	}
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var lost, released atomic.Int32
				trace := etcdlock.WithTrace(&etcdlock.Trace{
					Lost:     func(_ context.Context, _ etcdlock.LostEvent) { lost.Add(1) },
					Released: func(_ context.Context, _ etcdlock.ReleasedEvent) { released.Add(1) },
				})
				var s *etcdlock.Session
				var mu *etcdlock.Mutex
				if row.own {
					var err error
					mu, err = etcdlock.NewMutex(etcd.Client("a"), "x", trace)
					require.NoError(t, err)
				} else {
					s = tests.SessionOf(t, etcd, "a", trace)
					mu = contract.MutexOf(t, s, "x")
				}
				require.NoError(t, mu.Lock(forever))
				etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
					if c.Method == fake.Txn { // a revoke that does not wait for it overtakes it
						effect.Delay = 10 * time.Millisecond
					}
					return effect
				})
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x", etcdlock.WithLinger(time.Hour))
		require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var both calls
				var mu *etcdlock.Mutex
				if row.own {
					var err error
					mu, err = etcdlock.NewMutex(etcd.Client("a"), "x")
					require.NoError(t, err)
				} else {
					ours := tests.SessionOf(t, etcd, "a")
					mu = contract.MutexOf(t, ours, "x")
					both.session = ours.Close
				}
				both.mutex = mu.Close
				require.NoError(t, mu.Lock(tests.Within(t, s)))
				etcd.Intercept(func(c fake.Call) fake.Effect {
					switch {
					case c.Method != fake.Revoke && len(c.Deletes) == 0: // a read whether a key is left
						return fake.Effect{}
					case row.refused:
						return fake.Effect{Delay: s, Before: tests.PermissionDenied}
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

// An audit of the lease's keys that has no answer, for instance because an endpoint hangs,
// delays Close by at most half a second.
func TestCloseDoesNotWaitLongForALook(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		tests.LockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
		etcd.Intercept(tests.FromNth(1, fake.TimeToLive, fake.Effect{Drop: true}))
		for len(etcd.Calls(fake.TimeToLive)) == 0 {
			time.Sleep(time.Millisecond)
		}
		start := time.Now()
		require.NoError(t, s.Close(context.Background()))
		require.Equal(t, 500*time.Millisecond, time.Since(start))
	})
}

// A Close whose context never ends has a bound of its own: that of an Unlock for what is of a
// Session, and that of the Session for what has a lease of its own.
func TestACloseThatIsNotBoundedEnds(t *testing.T) {
	for name, row := range map[string]struct {
		alone bool
		most  time.Duration
	}{"a Mutex from NewMutex": {true, 2 * tests.TTL}, "a Session's Mutex": {false, 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.NewMutex(t, etcd.Client("a"), "n", etcdlock.WithTTL(tests.TTL))
				if !row.alone {
					mu = contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				}
				tests.LockWithin(t, mu, time.Second)
				etcd.Freeze()
				began := time.Now()
				require.ErrorIs(t, mu.Close(context.Background()), etcdlock.ErrUnconfirmed)
				require.Equal(t, row.most, time.Since(began))
				etcd.Thaw()
			})
		})
	}
}

// What is closed says so, also to a call whose context has ended: a program that ends both must not
// depend on which came first.
func TestWhatIsClosedSaysSoToACallWhoseContextHasEnded(t *testing.T) {
	of := func(_ *etcdlock.Hold, err error) error { return err }
	never := func(context.Context) error { panic("called") }
	for _, all := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			mu, rw, sem := contract.MutexOf(t, s, "n"), tests.RWMutexOf(t, s), tests.SemaphoreOf(t, s, 2)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			calls := map[string]func() error{
				"Lock":    func() error { return mu.Lock(ctx) },
				"TryLock": func() error { return mu.TryLock(ctx) },
				"Do":      func() error { return mu.Do(ctx, never) },
				"Lead":    func() error { return mu.Lead(ctx, never) },
				"RLock":   func() error { return of(rw.RLock(ctx)) },
				"Acquire": func() error { return of(sem.Acquire(ctx, 1)) },
			}
			if all {
				require.NoError(t, s.Close(t.Context()))
				calls["Session.Lock"] = func() error { return of(s.Lock(ctx, "n")) }
				calls["LockAll"] = func() error { return of(s.LockAll(ctx, "n", "o")) }
			} else {
				require.NoError(t, mu.Close(t.Context()))
				require.NoError(t, rw.Close(t.Context()))
				require.NoError(t, sem.Close(t.Context()))
			}
			for name, call := range calls {
				err := call()
				assert.ErrorIs(t, err, etcdlock.ErrClosed, name)
				assert.NotErrorIs(t, err, context.Canceled, name)
			}
		})
	}
}
