package outages

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A chaos is goroutines of some Sessions that use locks while much goes wrong. In the end
// all get in.
type chaos struct {
	each    int                        // goroutines of each Session
	options [][]etcdlock.SessionOption // of a Session, one of these; nil for the usual ones
	does    func(s *etcdlock.Session, home int, who string) chaotic

	harm     func(random *rand.Rand) // harm that is done now and then, besides the usual
	beside   func(over time.Time)    // runs meanwhile
	operator int                     // how many times as often faults hit an operator's requests
}

// A chaotic is what a goroutine does in the chaos.
type chaotic struct {
	call func(own *rand.Rand, patience time.Duration)
	last []func(context.Context) error // each must work once the faults are over
}

// eachChaos runs a test of a chaos by some seeds.
func eachChaos(t *testing.T, test func(t *testing.T, etcd *fake.Server, seed uint64)) {
	t.Helper()
	for seed := range uint64(race.Fewer(60, 12)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) { test(t, etcd, seed) })
		})
	}
}

func nothing(context.Context) error { return nil }

// readsAndWrites returns the last calls of a goroutine that uses an RWMutex.
func readsAndWrites(rw *etcdlock.RWMutex) []func(context.Context) error {
	return []func(context.Context) error{
		func(ctx context.Context) error { return rw.RDo(ctx, nothing) },
		func(ctx context.Context) error { return rw.Do(ctx, nothing) },
	}
}

func (c chaos) run(t *testing.T, etcd *fake.Server, seed uint64) {
	const faulty = 3 * time.Minute
	names := []string{"a", "b", "c"}
	if c.options == nil {
		c.options = [][]etcdlock.SessionOption{
			nil, {etcdlock.WithHandoff(2), etcdlock.WithLinger(3 * time.Second)},
			{etcdlock.WithMaxHold(2500 * time.Millisecond)},
		}
	}
	var homes []*etcdlock.Session
	random := rand.New(rand.NewPCG(seed, 1))
	for _, name := range names {
		homes = append(homes, tests.SessionOf(t, etcd, name, c.options[random.IntN(len(c.options))]...))
	}
	stop := faultsAtRandom(etcd, seed, max(1, c.operator))
	over := time.Now().Add(faulty)
	var wg sync.WaitGroup
	for home, s := range homes {
		for g := range c.each {
			own := rand.New(rand.NewPCG(seed, uint64(100+10*home+g)))
			does := c.does(s, home, fmt.Sprintf("%s%d", names[home], g))
			wg.Go(func() {
				for time.Now().Before(over) {
					does.call(own, time.Duration(own.Int64N(int64(20*time.Second))))
					time.Sleep(time.Duration(own.Int64N(int64(time.Second))))
				}
			})
		}
	}
	if c.beside != nil {
		wg.Go(func() { c.beside(over) })
	}
	for time.Now().Before(over) {
		time.Sleep(time.Duration(1+random.IntN(20)) * time.Second)
		if c.harm != nil && random.IntN(5) == 0 {
			c.harm(random)
		} else {
			misfortune(etcd, random, names[random.IntN(len(names))])
		}
	}
	wg.Wait()
	stop()
	synctest.Wait()
	for home, s := range homes { // all get in at last
		for i, do := range c.does(s, home, names[home]).last {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*tests.TTL)
				defer cancel()
				if err := do(ctx); err != nil {
					t.Errorf("%s, %d: %v", names[home], i, err)
				}
			})
		}
	}
	wg.Wait()
}

// faultsAtRandom loses, delays and doubles requests and answers by a seed, until stop is
// called. It hits those of an operator that many times as often.
func faultsAtRandom(etcd *fake.Server, seed uint64, operator int) (stop func()) {
	faults := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex // of faults
	etcd.Intercept(func(c fake.Call) (e fake.Effect) {
		mu.Lock()
		defer mu.Unlock()
		some := func(most time.Duration) time.Duration {
			return 1 + time.Duration(faults.Int64N(int64(most)))
		}
		n := faults.IntN(1000)
		if c.Process == "operator" {
			n /= operator
		}
		switch {
		case n < 15:
			e.DropReply = true
		case n < 30:
			e.Drop = true
		case n < 45:
			e.Again = some(20 * time.Second)
		case n < 75:
			e.Delay = some(3 * time.Second)
		case n < 100:
			e.DelayReply = some(3 * time.Second)
		}
		return e
	})
	return func() { etcd.Intercept(nil) }
}

// misfortune is one thing that happens, to a process or to all.
func misfortune(etcd *fake.Server, random *rand.Rand, process string) {
	switch random.IntN(4) {
	case 0:
		etcd.Cut(process)
		time.Sleep(time.Duration(random.Int64N(int64(tests.TTL * 3 / 2))))
		etcd.Heal(process)
	case 1:
		etcd.CancelWatches()
	case 2:
		etcd.Freeze()
		time.Sleep(time.Duration(random.Int64N(int64(tests.TTL / 2))))
		etcd.Thaw()
	case 3:
		etcd.LoseAnswers(process, 1+random.IntN(3))
	}
}
