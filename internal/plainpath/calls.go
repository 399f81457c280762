package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/coverage"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// A call is made once to warm up, and then once a round, while its coverage is counted.
type call struct {
	name  string
	bound size // what it runs at most
	goal  size // what it is to run at most
	// prepare has what the call needs, and returns the call and what is to be done after it.
	prepare func(w *world) (makes, after func() error)
}

// A world is an etcd in memory with two Sessions, each warm: it has a lease, and has held before.
type world struct {
	ctx      context.Context
	mine     *etcdlock.Session
	others   *etcdlock.Session
	waitsFor func(key string) // returns once a contender waits for the key
}

var calls = []call{
	{"Lock of a free name", size{26, 126, 672}, size{26, 120, 600}, lock},
	{"Unlock, no waiter", size{24, 99, 532}, size{20, 85, 430}, unlock},
	{"Unlock with a waiter, and its Lock returns", size{33, 159, 838}, size{32, 130, 680}, handOver},
	{"TryLock, refused", size{29, 164, 814}, size{26, 120, 600}, refused},
	{"Session.Do of a free name", size{33, 192, 1049}, size{36, 170, 850}, do},
}

// lock is the Lock of a free name.
func lock(w *world) (makes, after func() error) {
	mu := w.mutexOf(w.mine)
	return func() error { return mu.Lock(w.ctx) }, func() error { return mu.Unlock(w.ctx) }
}

// unlock is the Unlock of a name that no other contender waits for.
func unlock(w *world) (makes, after func() error) {
	mu := w.mutexOf(w.mine)
	if err := mu.Lock(w.ctx); err != nil {
		return fails(err), nil
	}
	return func() error { return mu.Unlock(w.ctx) }, nil
}

// handOver is an Unlock beside a waiter of another Session, and the return of its Lock.
func handOver(w *world) (makes, after func() error) {
	mu, next := w.mutexOf(w.mine), w.mutexOf(w.others)
	if err := mu.Lock(w.ctx); err != nil {
		return fails(err), nil
	}
	in := make(chan error, 1)
	go func() { in <- next.Lock(w.ctx) }()
	w.waitsFor("n/")
	return func() error { return errors.Join(mu.Unlock(w.ctx), <-in) },
		func() error { return next.Unlock(w.ctx) }
}

// do is the Do of a free name, by name.
func do(w *world) (makes, after func() error) {
	return func() error {
		return w.mine.Do(w.ctx, "n", func(context.Context) error { return nil })
	}, nil
}

// refused is a TryLock of a name that another Session holds.
func refused(w *world) (makes, after func() error) {
	mu, holder := w.mutexOf(w.mine), w.mutexOf(w.others)
	if err := holder.Lock(w.ctx); err != nil {
		return fails(err), nil
	}
	return func() error {
		if err := mu.TryLock(w.ctx); !errors.Is(err, etcdlock.ErrLocked) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	}, func() error { return holder.Unlock(w.ctx) }
}

func (w *world) mutexOf(s *etcdlock.Session) *etcdlock.Mutex {
	mu, err := s.Mutex("n")
	if err != nil {
		panic(err) // the arguments are right
	}
	return mu
}

func fails(err error) func() error { return func() error { return err } }

// makeCalls makes each call in a world of its own, and writes the counters of each round.
func makeCalls(dir string) error {
	for i, c := range calls {
		err := c.make(rounds, func(round int, makes func() error) error {
			if err := coverage.ClearCounters(); err != nil {
				return err
			}
			if err := makes(); err != nil || round == 0 {
				return err
			}
			return save(filepath.Join(dir, folder(i, round)))
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// printAllocations prints how many objects each call allocates, with those of the etcd in memory.
// It is the least of a hundred rounds, since other work of the process can only add some.
func printAllocations() error {
	for _, c := range calls {
		least := uint64(math.MaxUint64)
		err := c.make(100, func(round int, makes func() error) error {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := makes()
			runtime.ReadMemStats(&after)
			if round > 0 {
				least = min(least, after.Mallocs-before.Mallocs)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("%s\t%d\n", c.name, least)
	}
	return nil
}

// make makes the call by way of measure, in round 0 to warm up and then in as many others.
func (c call) make(rounds int, measure func(round int, makes func() error) error) error {
	etcd := fake.NewServer()
	w := &world{ctx: context.Background()}
	for _, s := range []**etcdlock.Session{&w.mine, &w.others} {
		client := etcd.Client(fmt.Sprint("process ", len(etcd.Leases())))
		defer client.Close()
		session, err := etcdlock.NewSession(client, etcdlock.WithTTL(time.Hour))
		if err != nil {
			return err
		}
		defer session.Close(w.ctx)
		*s = session
		nothing := func(context.Context) error { return nil }
		if err := session.Do(w.ctx, "warm", nothing); err != nil {
			return err
		}
	}
	w.waitsFor = func(prefix string) {
		for len(etcd.Keys(prefix)) < 2 {
			time.Sleep(time.Millisecond)
		}
		settle()
	}
	for round := range rounds + 1 {
		makes, after := c.prepare(w)
		settle()
		if err := measure(round, makes); err != nil {
			return err
		}
		if after != nil {
			if err := after(); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle lets the goroutines of earlier calls end. What is still at work then is not counted, as it
// is not in each round.
func settle() { time.Sleep(20 * time.Millisecond) }

// folder is where the counters of a round are.
func folder(call, round int) string { return fmt.Sprintf("%d-%d", call, round) }

func save(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir))
}
