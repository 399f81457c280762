package outages

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// schedules is how many random schedules the test tries, a few milliseconds each.
var schedules = flag.Uint64("schedules", uint64(race.Fewer(200, 60)),
	"random schedules that TestRandomSchedules tries")

// Three processes of three goroutines contend for two names. Meanwhile requests, answers
// and events are late, lost, repeated or refused, processes are cut off, and the server
// stops, compacts and drops its watches. In every fourth schedule keys and leases are also
// taken away from outside. Then two may believe that they hold.
//
// The seed decides how bad it gets and, as far as goroutines run in the same order, what
// becomes of each request. To repeat one: -run 'TestRandomSchedules/seed_17$' -count 100.
func TestRandomSchedules(t *testing.T) {
	holds := 0
	for seed := range *schedules {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				c := newContest(t, etcd, seed)
				c.run()
				holds += c.holds
			})
		})
	}
	t.Logf("%d holds", holds)
}

type contest struct {
	t      *testing.T
	etcd   *fake.Server
	bad    float64 // how likely a request meets a fault
	taking bool    // keys and leases are taken away
	shared bool    // the goroutines of a process share their Mutexes
	ends   time.Time

	mu     sync.Mutex
	rand   *rand.Rand
	calm   bool               // the faults are over
	holder map[string]*belief // by name: the last one that believed to hold
	holds  int
}

type belief struct {
	who   string
	token int64
	hold  context.Context
	left  bool
}

const (
	contestTTL   = 3 * time.Second
	contestLasts = 12 * time.Second
)

func newContest(t *testing.T, etcd *fake.Server, seed uint64) *contest {
	return &contest{
		t: t, etcd: etcd,
		bad:    []float64{0.01, 0.05, 0.2, 0.5}[seed/2%4],
		taking: seed%4 == 3,
		shared: seed/4%2 == 1,
		ends:   time.Now().Add(contestLasts),
		rand:   rand.New(rand.NewPCG(seed, 0)),
		holder: make(map[string]*belief),
	}
}

func (c *contest) run() {
	c.etcd.Intercept(c.fault)
	var workers sync.WaitGroup
	for p := range 3 {
		process := fmt.Sprint("p", p)
		s := tests.SessionOf(c.t, c.etcd, process, etcdlock.WithTTL(contestTTL))
		locks := c.mutexes(s)
		for g := range 3 {
			own := locks
			if !c.shared {
				own = c.mutexes(s)
			}
			workers.Go(func() { c.work(fmt.Sprint(process, "/", g), own) })
		}
	}
	for time.Now().Before(c.ends) {
		time.Sleep(c.upTo(3 * time.Second))
		c.meddle()
	}
	c.mu.Lock()
	c.calm = true
	c.mu.Unlock()
	for p := range 3 {
		c.etcd.Heal(fmt.Sprint("p", p))
	}
	c.etcd.Thaw()
	workers.Wait()
}

func (c *contest) mutexes(s *etcdlock.Session) map[string]*etcdlock.Mutex {
	return map[string]*etcdlock.Mutex{
		"a": contract.MutexOf(c.t, s, "a"),
		"b": contract.MutexOf(c.t, s, "b", etcdlock.WithMaxHold(4*time.Second)),
	}
}

// chance is true with probability p.
func (c *contest) chance(p float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.Float64() < p
}

// upTo is a time between 0 and most, more often short than long.
func (c *contest) upTo(most time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.rand.Float64()
	return time.Duration(x * x * float64(most))
}

func (c *contest) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

// fault decides what becomes of a request.
func (c *contest) fault(call fake.Call) fake.Effect {
	effect := fake.Effect{Delay: c.upTo(2 * time.Millisecond),
		DelayReply: c.upTo(2 * time.Millisecond)}
	c.mu.Lock()
	calm := c.calm
	c.mu.Unlock()
	if calm || !c.chance(c.bad) {
		return effect
	}
	repeated := status.Error(codes.DeadlineExceeded, "fake: try again")
	switch c.pick(10) {
	case 0:
		effect.Delay = c.upTo(2 * contestTTL)
	case 1:
		effect.DelayReply = c.upTo(2 * contestTTL)
	case 2:
		effect.Drop = true
	case 3:
		effect.DropReply = true
	case 4:
		effect.Before = fake.Unavailable
	case 5:
		effect.After = fake.Unavailable
	case 6:
		effect.Before = repeated
	case 7:
		effect.After = repeated
	case 8:
		effect.Again = 1 + c.upTo(2*contestTTL)
	case 9:
		effect.After = rpctypes.ErrGRPCNoSpace
	}
	return effect
}

// meddle does something to a process or to the server.
func (c *contest) meddle() {
	switch c.pick(6) {
	case 0, 1:
		process := fmt.Sprint("p", c.pick(3))
		c.etcd.Cut(process)
		time.AfterFunc(c.upTo(3*contestTTL), func() { c.etcd.Heal(process) })
	case 2:
		c.etcd.Freeze()
		time.AfterFunc(c.upTo(2*contestTTL), c.etcd.Thaw)
	case 3:
		c.etcd.Compact()
	case 4:
		c.etcd.CancelWatches()
	case 5:
		if keys := c.etcd.Keys(""); c.taking && len(keys) > 0 {
			c.etcd.DeleteKey(keys[c.pick(len(keys))])
		}
		if leases := c.etcd.Leases(); c.taking && len(leases) > 0 && c.chance(0.3) {
			c.etcd.RevokeLease(leases[c.pick(len(leases))])
		}
	}
}

// work is the life of a goroutine. It locks what it can while there are faults. Afterwards
// it must get in everywhere.
func (c *contest) work(who string, locks map[string]*etcdlock.Mutex) {
	for time.Now().Before(c.ends) {
		name := []string{"a", "b"}[c.pick(2)]
		c.locksAndUnlocks(who, name, locks[name], c.upTo(10*time.Second))
		time.Sleep(c.upTo(time.Second))
	}
	time.Sleep(contestTTL) // by then what was on its way has arrived or been given up
	for name, mu := range locks {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := mu.Lock(ctx); err != nil {
			c.t.Errorf("%s: %q is not to be had after the faults: %v", who, name, err)
			continue
		}
		if waited := time.Since(start); waited > 8*contestTTL {
			c.t.Errorf("%s: waited %v for %q after the faults", who, waited, name)
		}
		b := c.enter(who, name, mu.Token(), mu.Context(context.Background()))
		time.Sleep(time.Millisecond)
		c.leave(b)
		if err := mu.Unlock(context.Background()); err != nil {
			c.t.Errorf("%s: unlock %q after the faults: %v", who, name, err)
		}
	}
}

// soon is the time in which a call returns after its context has ended.
const soon = 100 * time.Millisecond

func (c *contest) locksAndUnlocks(who, name string, mu *etcdlock.Mutex, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	start := time.Now()
	lock := mu.Lock
	if c.chance(0.2) {
		lock = mu.TryLock
	}
	err := lock(ctx)
	if took := time.Since(start); took > wait+soon {
		c.t.Errorf("%s: lock %q took %v with a context of %v", who, name, took, wait)
	}
	if err != nil {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, etcdlock.ErrLocked) {
			c.t.Errorf("%s: %v", who, err)
		}
		return
	}
	if until := mu.Status().Deadline; !until.After(time.Now()) {
		c.t.Errorf("%s: lock %q returned nil, deadline %v", who, name, until)
	}
	hold := mu.Context(context.Background())
	b := c.enter(who, name, mu.Token(), hold)
	work := time.NewTimer(c.upTo(2 * contestTTL))
	select {
	case <-work.C:
	case <-hold.Done():
		time.Sleep(c.upTo(contestTTL)) // it is slow to notice
	}

	bound := min(contestTTL, 5*time.Second)
	ctx, cancel = context.WithTimeout(context.Background(), c.upTo(5*time.Second))
	defer cancel()
	if c.chance(0.5) {
		cancel()
	} else if until, ok := ctx.Deadline(); ok && time.Until(until) > 0 {
		bound = time.Until(until)
	}
	start = time.Now()
	certain := mu.Status().Deadline.Add(contestTTL / 8) // its key is there until then
	whole := c.leave(b)
	err = mu.Unlock(ctx)
	if took := time.Since(start); took > bound+soon {
		c.t.Errorf("%s: unlock %q took %v with a bound of %v", who, name, took, bound)
	}
	switch {
	case err == nil && !whole:
		c.t.Errorf("%s: unlock %q returned nil, but the hold had ended: %v", who, name,
			context.Cause(hold))
	case err == nil, errors.Is(err, etcdlock.ErrLost), errors.Is(err, etcdlock.ErrUnconfirmed):
	default:
		c.t.Errorf("%s: unlock: %v", who, err)
	}
	if errors.Is(err, etcdlock.ErrLost) && whole && time.Now().Before(certain) && !c.taking {
		c.t.Errorf("%s: %v, though nobody took it and its context had not ended", who, err)
	}
}

// enter records that who believes to hold name. Nobody else may believe so, and the token
// must be greater than all before. The exception is when keys are taken away: an answer
// that is under way may then show a key that is there no more.
func (c *contest) enter(who, name string, token int64, hold context.Context) *belief {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &belief{who: who, token: token, hold: hold}
	if before := c.holder[name]; before != nil {
		if !before.left && before.hold.Err() == nil && !c.taking {
			c.t.Errorf("%s and %s hold %q at once, with tokens %d and %d", before.who, who, name,
				before.token, token)
		}
		if token <= before.token && !c.taking {
			c.t.Errorf("%s holds %q with token %d, %s had %d before", who, name, token, before.who,
				before.token)
		}
	}
	c.holder[name] = b
	c.holds++
	return b
}

// leave records that who is about to unlock, and reports whether the hold is whole.
func (c *contest) leave(b *belief) (whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.left = true
	return b.hold.Err() == nil
}
