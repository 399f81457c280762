package hold_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/race"
)

// A busyEtcd works through its requests one after another, as an etcd with one core does.
// It also works through those that their callers have given up.
type busyEtcd struct {
	takes    func(fake.Call) time.Duration
	mu       sync.Mutex
	busy     time.Time // until this time it is busy
	requests atomic.Int64
	most     time.Duration // the longest wait of a request
}

// service is how long a request takes. A put reads the whole line.
func service(c fake.Call) time.Duration {
	switch {
	case c.Method == fake.Txn && len(c.Puts) > 0:
		return 18 * time.Millisecond
	case c.Method == fake.Range:
		return 3 * time.Millisecond
	case c.Method == fake.Event:
		return 0
	case c.Method == fake.KeepAlive || c.Method == fake.TimeToLive:
		return 200 * time.Microsecond
	}
	return time.Millisecond
}

func (b *busyEtcd) handle(c fake.Call) fake.Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Method == fake.Event {
		return fake.Effect{}
	}
	b.requests.Add(1)
	now := time.Now()
	if b.busy.Before(now) {
		b.busy = now
	}
	b.busy = b.busy.Add(b.takes(c))
	b.most = max(b.most, b.busy.Sub(now))
	return fake.Effect{Delay: b.busy.Sub(now)}
}

// A crowd is Sessions that contend for one name. Each holds it once.
type crowd struct {
	sessions []*etcdlock.Session
	held     atomic.Int64
	all      sync.WaitGroup // of what is under way
}

// crowdOf begins the Lock of n Sessions that share the clients. Each client has several
// endpoints, or one.
func crowdOf(
	t *testing.T, ctx context.Context, etcd *fake.Server, sessions, clients int, several bool,
) *crowd {
	t.Helper()
	c := &crowd{}
	shared := make([]*clientv3.Client, min(sessions, clients))
	for i := range shared {
		shared[i] = etcd.Client(fmt.Sprint(i))
	}
	for i := range sessions {
		s, err := etcdlock.NewSession(shared[i%clients])
		require.NoError(t, err)
		hold.SessionOf(s).Conn().Several = func() bool { return several }
		c.sessions = append(c.sessions, s)
		mu, err := s.Mutex("n")
		require.NoError(t, err)
		c.all.Go(func() {
			if mu.Lock(ctx) == nil {
				c.held.Add(1)
				_ = mu.Unlock(ctx) // it may come late: then it is lost, and counts all the same
			}
		})
	}
	return c
}

func (c *crowd) closes() {
	for _, s := range c.sessions {
		c.all.Go(func() { _ = s.Close(context.Background()) })
	}
	c.all.Wait()
}

// Many Sessions begin at once to contend for one name, with an etcd that takes seconds for
// that many requests. All get in. They send a few times the requests that each needs
// anyway, which are eight: a grant, a put, a watch and the look behind it, a read when its
// turn comes, a release, and a renewal or two. To ask again for what etcd is working on
// makes it slower, and then nobody gets in.
func TestACrowdOfSessionsGetsThroughASlowEtcd(t *testing.T) {
	sessions := race.Fewer(400, 100)
	for _, world := range []struct {
		name    string
		clients int
		several bool
		most    float64 // requests for each Session
	}{
		{"a client each, one endpoint", sessions, false, 40},
		{"a client each, several endpoints", sessions, true, 100},
		{"four clients, one endpoint", 4, false, 20},
		{"four clients, several endpoints", 4, true, 20},
	} {
		t.Run(world.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd, busy := fake.NewServer(), &busyEtcd{takes: service}
				etcd.Intercept(busy.handle)
				started := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				crowd := crowdOf(t, ctx, etcd, sessions, world.clients, world.several)
				crowd.all.Wait()
				took, requests := time.Since(started), busy.requests.Load()
				busy.mu.Lock()
				latest := busy.most
				busy.mu.Unlock()
				t.Logf("%d of %d held in %v, by %d requests (%.1f each), the latest answered after %v",
					crowd.held.Load(), sessions, took.Round(time.Millisecond), requests,
					float64(requests)/float64(sessions), latest.Round(time.Millisecond))
				etcd.Intercept(nil)
				crowd.closes()
				require.EqualValues(t, sessions, crowd.held.Load())
				require.LessOrEqual(t, float64(requests)/float64(sessions), world.most)
				time.Sleep(time.Hour)
				require.Empty(t, etcd.Keys(""))
				require.Empty(t, etcd.Leases())
			})
		})
	}
}

// Two thousand Sessions begin at once, over twenty clients. etcd takes 36 s to put their
// keys, which is more than their leases last. Each puts its key once, under its first
// lease, and all get in: a client sends no more at a time than etcd answers soon, so that
// etcd answers the renewals, too. The same holds for fewer Sessions over four clients,
// where a put takes ninety times as long as the grant before it: the speed of grants says
// nothing about puts. If each Session has a client, nobody knows how many there are. If
// etcd then takes 6 s, none of them asks twice, since there is no other endpoint. If it
// takes 18 s, the leases run out, twice. Then the Sessions spread, and about the third
// lease of each is good.
func TestAMassStartSendsNoMoreThanEtcdAnswersSoon(t *testing.T) {
	sessions := race.Fewer(2000, 400)
	type world struct {
		sessions, clients int
		several           bool
		put               time.Duration
		most              int // grants, and puts
	}
	fewer := race.Fewer(400, 100)
	worlds := []world{
		{sessions, sessions, false, 6 * time.Second / time.Duration(sessions), sessions * 11 / 10},
		{fewer, fewer, false, 18 * time.Second / time.Duration(fewer), fewer * 5},
		{400, 4, true, 90 * time.Millisecond, 440},
	}
	if race.Whole {
		worlds = append(worlds,
			world{400, 4, false, 90 * time.Millisecond, 440},
			world{sessions, 20, false, 18 * time.Millisecond, sessions * 11 / 10},
			world{sessions, 20, true, 18 * time.Millisecond, sessions * 11 / 10})
	}
	for _, world := range worlds {
		sessions, clients, several := world.sessions, world.clients, world.several
		t.Run(fmt.Sprintf("%d clients, several endpoints: %t, %v", clients, several, world.put),
			func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					etcd, busy := fake.NewServer(), &busyEtcd{takes: func(c fake.Call) time.Duration {
						switch {
						case c.Method == fake.Txn && len(c.Puts) > 0:
							return world.put
						case c.Method == fake.Grant:
							return time.Millisecond
						}
						return 0 // but it waits for those before it
					}}
					etcd.Intercept(busy.handle)
					started := time.Now()
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
					defer cancel()
					crowd := crowdOf(t, ctx, etcd, sessions, clients, several)
					crowd.all.Wait()
					grants, puts := len(etcd.Calls(fake.Grant)), 0
					for _, c := range etcd.Calls(fake.Txn) {
						if len(c.Puts) > 0 {
							puts++
						}
					}
					busy.mu.Lock()
					latest := busy.most
					busy.mu.Unlock()
					t.Logf("%d held in %v, by %d grants and %d puts, the latest answered after %v",
						crowd.held.Load(), time.Since(started).Round(time.Millisecond), grants, puts, latest)
					etcd.Intercept(nil)
					crowd.closes()
					require.EqualValues(t, sessions, crowd.held.Load())
					require.Less(t, grants, world.most)
					require.Less(t, puts, world.most)
					if clients < sessions {
						require.Less(t, latest, 15*time.Second)
					}
				})
			})
	}
}

// A lease runs out before etcd has answered a renewal, or a put in time. It is replaced at
// once, since etcd may have been away. After the second such lease in a row, it takes a
// random time of up to one TTL until the next request for a lease, then of up to two, and
// never of more than four. One answered renewal ends that.
func TestLeasesThatRunOutUnansweredSpreadThoseThatFollow(t *testing.T) {
	const ttl, put, sessions = 8 * time.Second, 3 * time.Second, 40
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		var ss []*etcdlock.Session
		var ms []*etcdlock.Mutex
		for i := range sessions {
			s, err := etcdlock.NewSession(etcd.Client(fmt.Sprint(i)), etcdlock.WithTTL(ttl))
			require.NoError(t, err)
			mu, err := s.Mutex(fmt.Sprint(i))
			require.NoError(t, err)
			ss, ms = append(ss, s), append(ms, mu)
		}
		inParallel := func(f func(mu *etcdlock.Mutex) time.Duration) (longest time.Duration) {
			var mu sync.Mutex
			var all sync.WaitGroup
			for _, m := range ms {
				all.Go(func() {
					took := f(m)
					mu.Lock()
					defer mu.Unlock()
					longest = max(longest, took)
				})
			}
			all.Wait()
			return longest
		}
		// next returns how long the next hold of the longest waiter takes to come.
		next := func() time.Duration {
			return inParallel(func(mu *etcdlock.Mutex) time.Duration {
				started := time.Now()
				require.NoError(t, mu.Lock(context.Background()))
				return time.Since(started)
			})
		}
		runOut := func() {
			inParallel(func(mu *etcdlock.Mutex) time.Duration {
				<-mu.Context(context.Background()).Done()
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrExpired)
				return 0
			})
		}
		for range 2 {
			etcd.Intercept(func(c fake.Call) fake.Effect {
				if c.Method == fake.Txn && len(c.Puts) > 0 {
					return fake.Effect{Delay: put}
				}
				return fake.Effect{Drop: c.Method == fake.KeepAlive}
			})
			for i, most := range []time.Duration{0, 0, ttl, 2 * ttl, 4 * ttl, 4 * ttl} {
				took := next() - put
				t.Logf("after %d the longest took %v", i, took)
				require.LessOrEqual(t, took, most)
				require.GreaterOrEqual(t, took, most*2/3, "of %d one waits for nearly all of that", sessions)
				if i < 5 {
					runOut()
				}
			}
			etcd.Intercept(nil)
			inParallel(func(mu *etcdlock.Mutex) time.Duration {
				renewed := false
				for _ = mu.Unlock(context.Background()); !renewed; {
					require.NoError(t, mu.Lock(context.Background()))
					time.Sleep(2 * ttl)
					renewed = mu.Unlock(context.Background()) == nil
				}
				return 0
			})
			time.Sleep(time.Hour) // then no Session has a lease under which etcd has answered
		}
		for _, s := range ss {
			require.NoError(t, s.Close(context.Background()))
		}
		time.Sleep(time.Hour)
		require.Empty(t, etcd.Keys(""))
	})
}

// When a frozen etcd thaws, it has as many requests to work through as calls wait, and a
// few more for each client: all calls of a client share one credit for repeats, however
// many wait.
func TestAFrozenEtcdIsAskedOnceByEachCall(t *testing.T) {
	const names = 200
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s, err := etcdlock.NewSession(etcd.Client("a"))
		require.NoError(t, err)
		first, err := s.Mutex("first")
		require.NoError(t, err)
		require.NoError(t, first.Lock(context.Background()))
		before := len(etcd.Calls(fake.Txn))
		etcd.Freeze()
		var all sync.WaitGroup
		for i := range names {
			mu, err := s.Mutex(fmt.Sprint(i))
			require.NoError(t, err)
			all.Go(func() { require.NoError(t, mu.Lock(context.Background())) })
		}
		attempts := attempt.Patience * hold.SessionOf(s).Conn().Timeout
		time.Sleep(attempts - time.Second) // within the first attempt of each
		sent := len(etcd.Calls(fake.Txn)) - before
		t.Logf("%d requests for %d calls", sent, names)
		require.LessOrEqual(t, sent, names+2*attempt.ManyRepeats)
		etcd.Thaw()
		all.Wait()
		require.NoError(t, s.Close(context.Background()))
	})
}

// All waiters in a long line recheck while etcd is frozen. etcd gets few requests from
// each: none is in a hurry, and etcd would have to work through all of them when it thaws.
func TestAFrozenEtcdGetsFewRechecksOfALongLine(t *testing.T) {
	const waiters = 8 * queue.FewAhead
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		ctx, giveUp := context.WithCancel(context.Background())
		var all sync.WaitGroup
		var sessions []*etcdlock.Session
		for i := range 1 + waiters {
			s, err := etcdlock.NewSession(etcd.Client(fmt.Sprint(i)), etcdlock.WithTTL(time.Minute))
			require.NoError(t, err)
			sessions = append(sessions, s)
			mu, err := s.Mutex("n")
			require.NoError(t, err)
			if i == 0 {
				require.NoError(t, mu.Lock(ctx))
				continue
			}
			all.Go(func() { require.ErrorIs(t, mu.Lock(ctx), context.Canceled) })
			synctest.Wait()
		}
		time.Sleep(time.Minute) // until all know how long the line is
		before := len(etcd.Calls(fake.Txn))
		etcd.Freeze()
		time.Sleep(20 * time.Second)
		sent := len(etcd.Calls(fake.Txn)) - before
		etcd.Thaw()
		giveUp()
		all.Wait()
		for _, s := range sessions {
			require.NoError(t, s.Close(context.Background()))
		}
		t.Logf("%d requests of %d waiters", sent, waiters)
		require.GreaterOrEqual(t, sent, waiters/2, "some recheck")
		require.LessOrEqual(t, sent, 4*waiters)
	})
}

// usedSessions returns n Sessions of a client that have a lease each, and hold nothing.
func usedSessions(t *testing.T, client *clientv3.Client, n int) (ss []*etcdlock.Session) {
	t.Helper()
	for i := range n {
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(time.Minute))
		require.NoError(t, err)
		ss = append(ss, s)
		mu, err := s.Mutex(fmt.Sprint(i))
		require.NoError(t, err)
		require.NoError(t, mu.Lock(context.Background()))
		require.NoError(t, mu.Unlock(context.Background()))
	}
	return ss
}

// Many Sessions of a client end at once while etcd is frozen. When it thaws it has few
// revocations to work through, and then all leases are given back.
func TestAMassEndDoesNotRepeatItselfToAFrozenEtcd(t *testing.T) {
	const sessions = 200
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		client := etcd.Client("a")
		ss := usedSessions(t, client, sessions)
		for _, s := range ss {
			hold.SessionOf(s).Conn().Several = func() bool { return false }
		}
		etcd.Freeze()
		var all sync.WaitGroup
		for _, s := range ss {
			all.Go(func() { require.NoError(t, s.Close(context.Background())) })
		}
		// within the first attempt of each
		time.Sleep(attempt.Patience*hold.SessionOf(ss[0]).Conn().Timeout - time.Second)
		sent := len(etcd.Calls(fake.Revoke))
		t.Logf("%d revocations sent for %d leases", sent, sessions)
		require.Positive(t, sent)
		require.LessOrEqual(t, sent, 8) // as many as may be under way at first: none is repeated
		thawed := time.Now()
		etcd.Thaw()
		all.Wait()
		require.Empty(t, etcd.Leases())
		require.Less(t, time.Since(thawed), 10*time.Second)
	})
}

// Many Sessions of a client end at once, and a third of the revocations meet a frozen endpoint.
// Each is repeated in seconds, however many there are.
func TestAMassEndIsNotHeldUpByAFrozenEndpoint(t *testing.T) {
	const sessions = 200
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		client := etcd.Client("a")
		ss := usedSessions(t, client, sessions)
		var n atomic.Int64
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Revoke && n.Add(1)%3 == 0}
		})
		started := time.Now()
		var all sync.WaitGroup
		for _, s := range ss {
			all.Go(func() { require.NoError(t, s.Close(context.Background())) })
		}
		all.Wait()
		t.Logf("all closed in %v, by %d revocations", time.Since(started), n.Load())
		require.Empty(t, etcd.Leases())
		require.Less(t, time.Since(started), 8*time.Second)
	})
}

// One endpoint of three is frozen, and a third of all requests meet it, for good. Many
// calls ask at once. Another endpoint answers each after 2 s, or after as many more repeats
// as meet the frozen one, within a single attempt. A repeat that is answered, while what it
// repeats is not, costs no credit.
func TestAFrozenEndpointOfThreeIsOvercomeHoweverManyAsk(t *testing.T) {
	const names, rounds = 50, 20
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s, err := etcdlock.NewSession(etcd.Client("a"))
		require.NoError(t, err)
		var n, most atomic.Int64
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method != fake.Event && n.Add(1)%3 == 0}
		})
		timed := func(call func(context.Context) error) {
			started := time.Now()
			require.NoError(t, call(context.Background()))
			most.Store(max(most.Load(), int64(time.Since(started))))
		}
		var all sync.WaitGroup
		for i := range names {
			mu, err := s.Mutex(fmt.Sprint(i))
			require.NoError(t, err)
			all.Go(func() {
				for range rounds {
					timed(mu.Lock)
					timed(mu.Unlock)
				}
			})
		}
		all.Wait()
		t.Logf("%d calls, the slowest took %v", 2*names*rounds, time.Duration(most.Load()))
		require.Less(t, time.Duration(most.Load()), attempt.Patience*hold.SessionOf(s).Conn().Timeout)
		etcd.Intercept(nil)
		require.NoError(t, s.Close(context.Background()))
		time.Sleep(time.Hour)
		require.Empty(t, etcd.Keys(""))
	})
}

// transients are errors that come back at once and say nothing about the next request.
var transients = []error{
	status.Error(codes.Internal, "stream terminated by RST_STREAM"),
	status.Error(codes.Unavailable, "no upstream"),
	status.Error(codes.ResourceExhausted, "the gateway's quota"),
	status.Error(codes.Unknown, "unexpected HTTP status code received from server: 502"),
}

// fails makes a share of all requests fail at once with one of the errors. One of four that fail
// was carried out.
func fails(seed uint64, share float64, of []error) func(fake.Call) fake.Effect {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	return func(c fake.Call) fake.Effect {
		mu.Lock()
		defer mu.Unlock()
		if c.Method == fake.Event || r.Float64() >= share {
			return fake.Effect{}
		}
		err := of[r.IntN(len(of))]
		if r.IntN(4) == 0 {
			return fake.Effect{After: err}
		}
		return fake.Effect{Before: err}
	}
}

// holdsAmid holds a lock for ten minutes amid faults, or for as long as it can. It returns whether
// the hold was lost, and how many renewals were sent.
func holdsAmid(
	t *testing.T, ttl time.Duration, several bool, faults func(fake.Call) fake.Effect,
) (lost bool, renewals int) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s, err := etcdlock.NewSession(etcd.Client("a"), etcdlock.WithTTL(ttl))
		require.NoError(t, err)
		hold.SessionOf(s).Conn().Several = func() bool { return several }
		mu, err := s.Mutex("n")
		require.NoError(t, err)
		require.NoError(t, mu.Lock(context.Background()))
		etcd.Intercept(faults)
		hold := mu.Context(context.Background())
		select {
		case <-hold.Done():
			lost = true
		case <-time.After(10 * time.Minute):
		}
		renewals = len(etcd.Calls(fake.KeepAlive))
		etcd.Intercept(nil)
		require.Equal(t, !lost, mu.Unlock(context.Background()) == nil)
		require.NoError(t, s.Close(context.Background()))
	})
	return lost, renewals
}

// For ten minutes two of three requests fail at once, whatever the error, the TTL and the number of
// endpoints. A renewal that fails so is sent again soon, and so is the read that asks what a
// renewal is worth. No hold is lost.
func TestErrorsThatComeBackAtOnceLoseNoHold(t *testing.T) {
	type world struct {
		ttl     time.Duration
		several bool
		of      []error
	}
	var worlds []world
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 15 * time.Second} {
		worlds = append(worlds, world{ttl, false, transients}, world{ttl, true, transients})
	}
	for _, err := range transients {
		worlds = append(worlds, world{3 * time.Second, false, []error{err}})
	}
	for _, w := range worlds {
		t.Run(fmt.Sprintf("TTL %v, several endpoints: %t, %v", w.ttl, w.several, w.of),
			func(t *testing.T) {
				lost, _ := holdsAmid(t, w.ttl, w.several, fails(1, 2./3, w.of))
				require.False(t, lost)
			})
	}
}

// docs/ttl.md says what share of failures a hold survives. While nearly all requests fail the hold
// is lost, and until then the keeper has sent no more than some hundred renewals, or pairs of them.
func TestTheShareOfFailuresThatAHoldSurvives(t *testing.T) {
	runs := race.Fewer(3, 1)
	for _, ttl := range []time.Duration{2 * time.Second, 15 * time.Second, time.Minute} {
		for _, several := range []bool{false, true} {
			for _, row := range []struct {
				share       float64
				least, most int // holds that are lost
			}{
				{1. / 2, 0, 0},
				{2. / 3, 0, 0},
				{3. / 4, 0, 0},
				{1, runs, runs},
			} {
				lost, most := 0, 0
				for seed := range uint64(runs) {
					l, renewals := holdsAmid(t, ttl, several, fails(seed, row.share, transients))
					if l {
						lost++
					}
					most = max(most, renewals)
				}
				t.Logf("TTL %v, several endpoints: %t, %.0f %% fail: %d of %d lost, %d renewals at most",
					ttl, several, 100*row.share, lost, runs, most)
				require.GreaterOrEqual(t, lost, row.least)
				require.LessOrEqual(t, lost, row.most)
				if row.share == 1 {
					require.LessOrEqual(t, most, 200)
				}
			}
		}
	}
}
