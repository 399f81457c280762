package outages

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

const (
	// stormTTL is the default TTL.
	stormTTL = 15 * time.Second

	// budget is what a client may send a second of what it repeats, and atFirst what it may send
	// before that: they do not grow with the number of keys.
	budget, atFirst = 30, 150
)

// failing fails each request of process a at once, as a proxy before an etcd that is away does. A
// request takes a second if there were far too many: virtual time stands still in a storm.
func failing(with error) func(fake.Call) fake.Effect {
	var requests atomic.Int64
	return func(c fake.Call) fake.Effect {
		if c.Process != "a" || c.Method == fake.Event {
			return fake.Effect{}
		}
		e := fake.Effect{Before: with}
		if requests.Add(1) > 30_000 {
			e.Delay = time.Second
		}
		return e
	}
}

// near is an etcd that is a millisecond away.
func near(c fake.Call) fake.Effect { return fake.Effect{DelayReply: time.Millisecond} }

// crowdOf has n Mutexes of a Session, with a name each.
func crowdOf(t *testing.T, s *etcdlock.Session, n int, opts ...etcdlock.Option) []*etcdlock.Mutex {
	t.Helper()
	crowd := make([]*etcdlock.Mutex, n)
	for i := range crowd {
		crowd[i] = contract.MutexOf(t, s, fmt.Sprint("crowd", i), opts...)
	}
	return crowd
}

// together makes the call of each of a crowd at the same time, and returns the errors.
func together(crowd []*etcdlock.Mutex, call func(*etcdlock.Mutex) error) []error {
	var all sync.WaitGroup
	errs := make([]error, len(crowd))
	for i, mu := range crowd {
		all.Go(func() { errs[i] = call(mu) })
	}
	all.Wait()
	return errs
}

// lockAll locks a crowd.
func lockAll(t *testing.T, crowd []*etcdlock.Mutex) {
	t.Helper()
	for _, err := range together(crowd, func(mu *etcdlock.Mutex) error {
		return mu.Lock(context.Background())
	}) {
		require.NoError(t, err)
	}
}

// unlock is Unlock without a deadline.
func unlock(mu *etcdlock.Mutex) error { return mu.Unlock(context.Background()) }

// sent counts the requests of process a by some methods since it was made.
func sent(etcd *fake.Server, methods ...string) func() int {
	count := func() (n int) {
		synctest.Wait()
		for _, m := range methods {
			n += len(tests.CallsOf("a", etcd.Calls(m)))
		}
		return n
	}
	before := count()
	return func() int { return count() - before }
}

// However many Unlocks fail at once, each sends one request. Then all together send a few after
// each pause, which is as long as that of one Unlock would be.
func TestACrowdOfUnlocksThatFailAtOnceIsNoStorm(t *testing.T) {
	for _, n := range []int{1, 100, race.Fewer(10_000, 2_000)} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				crowd := crowdOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(stormTTL)), n)
				lockAll(t, crowd)
				txns := sent(etcd, fake.Txn)
				etcd.Intercept(failing(fake.Unavailable))
				began, told := time.Now(), make(chan []error, 1)
				go func() { told <- together(crowd, unlock) }()
				for i := range 35 {
					time.Sleep(time.Second)
					require.LessOrEqual(t, txns(), n+atFirst+(i+1)*budget, "after %d s", i+1)
				}
				for _, err := range tests.SoonOr(t, told, "an Unlock does not return") {
					require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
				}
				t.Logf("%d requests for %d Unlocks in %v", txns(), n, time.Since(began))
			})
		})
	}
}

// Once etcd answers again, all of a crowd get their answer: nil.
func TestACrowdOfUnlocksGetsThroughOnceEtcdAnswers(t *testing.T) {
	n := race.Fewer(10_000, 2_000)
	for _, failed := range []error{fake.Unavailable, rpctypes.ErrGRPCRequestTooManyRequests} {
		t.Run(failed.Error(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				crowd := crowdOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(stormTTL)), n)
				lockAll(t, crowd)
				txns := sent(etcd, fake.Txn)
				etcd.Intercept(failing(failed))
				time.AfterFunc(3*time.Second, func() { etcd.Intercept(near) })
				began := time.Now()
				for _, err := range together(crowd, unlock) {
					require.NoError(t, err)
				}
				t.Logf("%d requests for %d Unlocks in %v", txns(), n, time.Since(began))
				require.Less(t, time.Since(began), 4500*time.Millisecond)
				require.LessOrEqual(t, txns(), n+n/4+atFirst+5*budget, "they go together")
			})
		})
	}
}

// Waits that give up leave their keys to removals, which share one pace, too. Once no hold needs
// the lease its revocation removes all keys, and nothing else is sent.
func TestACrowdOfWaitsThatGiveUpIsNoStorm(t *testing.T) {
	n := race.Fewer(10_000, 1_000)
	names := func(t *testing.T, s, other *etcdlock.Session) (wait func(context.Context)) {
		lockAll(t, crowdOf(t, other, n))
		crowd := crowdOf(t, s, n)
		return func(ctx context.Context) {
			together(crowd, func(mu *etcdlock.Mutex) error { return mu.Lock(ctx) })
		}
	}
	permits := func(t *testing.T, s, other *etcdlock.Session) (wait func(context.Context)) {
		tests.AcquireWithin(t, tests.SemaphoreOf(t, other, 1), 1, time.Second)
		sem := tests.SemaphoreOf(t, s, 1)
		return func(ctx context.Context) {
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() { _, _ = sem.Acquire(ctx, 1) })
			}
			all.Wait()
		}
	}
	for _, row := range []struct {
		name  string
		waits func(t *testing.T, s, other *etcdlock.Session) (wait func(context.Context))
		holds bool // a hold needs the lease all the time
	}{
		{"a name each", names, false}, {"a name each, beside a hold", names, true},
		{"permits of one name, beside a hold", permits, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(time.Minute))
				other := tests.SessionOf(t, etcd, "other", etcdlock.WithTTL(stormTTL))
				if row.holds {
					tests.LockWithin(t, contract.MutexOf(t, s, "first"), time.Second)
				}
				wait := row.waits(t, s, other)
				ctx, giveUp := context.WithCancel(context.Background())
				var all sync.WaitGroup
				all.Go(func() { wait(ctx) })
				synctest.Wait()
				stands := len(etcd.Keys("")) // with those of the other Session

				txns := sent(etcd, fake.Txn)
				etcd.Intercept(failing(fake.Unavailable))
				giveUp()
				all.Wait()
				time.Sleep(time.Second)
				require.Len(t, etcd.Keys(""), stands)
				first := txns()
				require.LessOrEqual(t, first, atFirst+budget)
				time.Sleep(30 * time.Second)
				t.Logf("%d requests at first, %d in 30 s after that", first, txns()-first)
				require.LessOrEqual(t, txns()-first, 30*budget)
				if !row.holds {
					require.Equal(t, first, txns(), "the lease is being revoked")
				}
				etcd.Intercept(near)
				time.Sleep(2 * time.Second)
				mine := 0
				if row.holds {
					mine = 1
				}
				require.LessOrEqual(t, len(etcd.Keys("crowd")), n, "the waits' keys have gone")
				require.Len(t, etcd.Keys("first"), mine)
				require.LessOrEqual(t, len(etcd.Keys("n/")), 1)
			})
		})
	}
}

// Keys that have stayed for a least time have a lease each, which are given back at one pace.
func TestTheLeasesOfKeysThatHaveStayedAreNoStorm(t *testing.T) {
	const n, least = 500, 5 * time.Second
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(stormTTL))
		crowd := crowdOf(t, s, n, etcdlock.WithMinHold(least))
		lockAll(t, crowd)
		for _, err := range together(crowd, unlock) {
			require.NoError(t, err)
		}
		revokes := sent(etcd, fake.Revoke)
		etcd.Intercept(failing(fake.Unavailable))
		time.Sleep(least + 11*time.Second)
		t.Logf("%d requests for %d leases", revokes(), n)
		require.Positive(t, revokes())
		require.LessOrEqual(t, revokes(), atFirst+11*budget)
		etcd.Intercept(near)
		time.Sleep(time.Second)
		require.Empty(t, etcd.Keys(""))
	})
}

// A crowd that has to give its keys back takes nothing from calls that want one.
func TestLocksGetTheirShareBesideAStormOfUnlocks(t *testing.T) {
	const n = 500
	share := func(t *testing.T, crowded bool) (asked int, in time.Duration) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			crowd := crowdOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(stormTTL)), n)
			lockAll(t, crowd)
			grants := sent(etcd, fake.Grant)
			etcd.Intercept(failing(fake.Unavailable))
			var all sync.WaitGroup
			if crowded {
				all.Go(func() { together(crowd, unlock) })
				time.Sleep(100 * time.Millisecond)
			}
			next := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "next")
			locked := tests.LockLater(next)
			time.Sleep(4 * time.Second)
			asked = grants()
			etcd.Intercept(near)
			healed := time.Now()
			require.NoError(t, tests.SoonOr(t, locked, "it does not get in"))
			in = time.Since(healed)
			all.Wait()
		})
		return asked, in
	}
	alone, _ := share(t, false)
	beside, in := share(t, true)
	t.Logf("%d requests alone, %d beside a crowd; in after %v", alone, beside, in)
	require.GreaterOrEqual(t, beside, alone/2)
	require.Less(t, in, time.Second)
}

// An etcd that cannot keep up turns requests away. A crowd of calls asks it about once a second
// meanwhile, and all get in soon after it has caught up.
func TestCallsGetInSoonAfterEtcdTurnedRequestsAway(t *testing.T) {
	n := race.Fewer(1_000, 200)
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(time.Hour))
		first := contract.MutexOf(t, s, "first")
		tests.LockWithin(t, first, time.Second)
		asked := sent(etcd, fake.Txn, fake.Grant, fake.Revoke, fake.Range)
		turnsAway := failing(rpctypes.ErrGRPCRequestTooManyRequests)
		etcd.Intercept(turnsAway)
		var all sync.WaitGroup
		errs := make(chan error, 2*n+1)
		for _, crowd := range [][]*etcdlock.Mutex{
			crowdOf(t, s, n), // it has a lease
			{contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "one")},
		} {
			all.Go(func() {
				for _, err := range together(crowd, func(mu *etcdlock.Mutex) error {
					return mu.Lock(context.Background())
				}) {
					errs <- err
				}
			})
		}
		time.Sleep(time.Minute)
		t.Logf("%d requests in a minute", asked())
		require.LessOrEqual(t, asked(), 4*60)
		unlocked := contract.Async(func() error { return first.Unlock(tests.Within(t, time.Minute)) })
		time.Sleep(20 * time.Second)
		etcd.Intercept(near)
		over := time.Now()
		all.Wait()
		require.NoError(t, <-unlocked)
		t.Logf("all are in after %v", time.Since(over))
		require.LessOrEqual(t, time.Since(over), 2*time.Second)
		for len(errs) > 0 {
			require.NoError(t, <-errs)
		}
	})
}

// The puts of one name fail at once, and those of another are answered. So the pace of all puts
// goes on. What fails is sent a few times a second, and the others are as fast as ever.
func TestAPutThatAloneFailsIsRareAndSlowsNoOther(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		failed := 0
		etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
			if len(c.Puts) > 0 && strings.HasPrefix(c.Puts[0], "fails/") {
				failed++
				effect.Before = fake.Unavailable
			}
			return effect
		})
		const away, most = time.Millisecond, 10 * time.Second
		etcd.Delay("a", away)
		ctx, cancel := context.WithTimeout(t.Context(), most)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := s.Lock(ctx, "fails")
			ended <- err
		}()
		start, others := time.Now(), 0
		for ; time.Since(start) < most-time.Second; others++ {
			h, err := s.Lock(t.Context(), "n")
			require.NoError(t, err)
			require.NoError(t, h.Unlock(t.Context()))
		}
		require.ErrorIs(t, <-ended, context.DeadlineExceeded)
		require.LessOrEqual(t, failed, 40)
		require.Greater(t, others, int(most/(3*away)))
	})
}

// A key whose removal alone fails, while etcd answers all others, is seldom tried again, and is
// removed soon after etcd lets it: whether an Unlock or the end of a wait gives it back.
func TestARemovalThatAloneFailsIsRareAndSlowsNoOther(t *testing.T) {
	for _, row := range []struct {
		name   string
		others int // keys of the name that stay
	}{{"an Unlock", 0}, {"a wait that gives up", 1}} {
		t.Run(row.name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				const away, lasts = time.Millisecond, 10 * time.Second
				s, waits := tests.SessionOf(t, etcd, "a"), row.others > 0
				if waits {
					tests.LockWithin(t, contract.MutexOf(t, tests.SessionOf(t, etcd, "other"), "fails"),
						time.Second)
				}
				var failed atomic.Int64
				var fails atomic.Bool
				fails.Store(true)
				etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
					if fails.Load() && c.Process == "a" && slices.ContainsFunc(c.Deletes, isOfFails) {
						failed.Add(1)
						effect.Before = fake.Unavailable
					}
					return effect
				})
				etcd.Delay("a", away)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				h, err := s.Lock(ctx, "fails")
				ended := make(chan error, 1)
				if waits {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					ended <- nil
				} else {
					require.NoError(t, err)
					go func() { ended <- h.Unlock(t.Context()) }()
				}
				start, others := time.Now(), 0
				for ; time.Since(start) < lasts; others++ {
					h, err := s.Lock(t.Context(), "n")
					require.NoError(t, err)
					require.NoError(t, h.Unlock(t.Context()))
				}
				t.Logf("sent %d times beside %d holds", failed.Load(), others)
				require.NotZero(t, failed.Load())
				require.LessOrEqual(t, failed.Load(), int64(lasts/(50*time.Millisecond)))
				require.Greater(t, others, int(lasts/(3*away)))
				fails.Store(false)
				time.Sleep(200 * time.Millisecond)
				require.NoError(t, tests.SoonOr(t, ended, "it does not end"))
				require.Len(t, etcd.Keys("fails/"), row.others)
			})
		})
	}
}

// isOfFails reports whether a key is of the lock "fails".
func isOfFails(key string) bool { return strings.HasPrefix(key, "fails/") }
