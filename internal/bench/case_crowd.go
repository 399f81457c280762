package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// crowdParties is how many clients share a crowd.
func crowdParties(n int) int { return min(n, 4) }

// startCrowd measures hand-overs when n contenders do nothing but go through the
// critical section, once they have settled.
func startCrowd(n, parties int, ttl time.Duration) func(context.Context, *arena) (*event, error) {
	return func(_ context.Context, a *arena) (*event, error) {
		goroutines := runtime.NumGoroutine()
		// Each round opens parties of its own. A crowd that stood still until its next turn
		// would still renew leases while others are measured.
		piece := func(ctx context.Context) (measure, error) {
			opened, end, err := a.parties(ctx, parties, ttl)
			if err != nil {
				return measure{}, err
			}
			defer end()
			s, err := a.sections(ctx, opened, n)
			if err != nil {
				return measure{}, err
			}
			m, err := a.watchCrowd(ctx, s, parties)
			m.goroutines -= goroutines
			return m, err
		}
		return &event{piece, func() {}}, nil
	}
}

// startEach measures holds when each of n goroutines of one process goes through a critical section
// of its own, again and again.
func startEach(n int) func(context.Context, *arena) (*event, error) {
	return func(_ context.Context, a *arena) (*event, error) {
		goroutines := runtime.NumGoroutine()
		piece := func(ctx context.Context) (measure, error) {
			opened, end, err := a.parties(ctx, 1, ttl)
			if err != nil {
				return measure{}, err
			}
			defer end()
			s := make([]*section, n)
			for i := range s {
				own, err := a.sections(ctx, opened, 1)
				if err != nil {
					return measure{}, err
				}
				s[i] = own[0]
			}
			m, err := a.watchCrowd(ctx, s, 1)
			m.goroutines -= goroutines
			return m, err
		}
		return &event{piece, func() {}}, nil
	}
}

// times are how long a crowd of n may settle, and how long it is then measured, in slices.
// Thousands of leases take concurrency.Mutex half a minute, and once around a line of
// thousands takes seconds.
func times(n int) (settle, window float64) {
	switch {
	case n >= 2000:
		return 30, 5
	case n >= 512:
		return 5, 2
	default:
		return 0.5, 1
	}
}

// A contender is one goroutine of a crowd.
type contender struct {
	*section
	waits []wait
}

type wait struct {
	until time.Time
	took  time.Duration
}

func (a *arena) watchCrowd(ctx context.Context, s []*section, parties int) (m measure, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	crowd := make([]*contender, len(s))
	var running sync.WaitGroup
	var entered atomic.Int64
	for i := range s {
		crowd[i] = &contender{section: s[i]}
		running.Go(func() { // ends with ctx
			if err := crowd[i].contend(ctx, &entered); err != nil {
				stop(fmt.Errorf("contender %d: %w", i+1, err))
			}
		})
	}

	settle, window := times(len(s))
	var from, to time.Time
	var etcd tally
	if err = sleep(ctx, a.inSlices(settle)); err == nil {
		etcd, err = a.during(ctx, &entered, func() (err error) {
			m.spent, err = a.spentButEtcd(func() error {
				from = time.Now()
				before := entered.Load()
				err := sleep(ctx, a.inSlices(window))
				for i := 1; err == nil && entered.Load() < before+fewest && i < 20; i++ {
					err = sleep(ctx, a.inSlices(window))
				}
				m.goroutines = runtime.NumGoroutine() - len(s)
				to = time.Now()
				return err
			})
			return err
		})
	}
	stop(errors.New("the round is over"))
	if !endWithinAMinute(&running) {
		return m, errors.New("contenders go on a minute after their context ended")
	}
	if err != nil {
		return m, err
	}

	held := make([]int, parties)
	for i, c := range crowd {
		for _, w := range c.waits {
			if w.until.After(from) && w.until.Before(to) {
				m.samples = append(m.samples, w.took)
				held[i%parties]++
			}
		}
	}
	m.broken = verdict(s...)
	if m.ops = len(m.samples); m.ops == 0 {
		return m, fmt.Errorf("no hand-over in %v", to.Sub(from).Round(time.Millisecond))
	}
	m.spent = m.spent.plus(etcd.of(m.ops))
	m.value = to.Sub(from) / time.Duration(m.ops)
	if parties > 1 {
		m.busiest = float64(maxOf(held)) * float64(parties) / float64(m.ops)
	}
	return m, nil
}

// endWithinAMinute waits for the end of a crowd. A lock that takes no context leaves no
// other way than to wait.
func endWithinAMinute(running *sync.WaitGroup) bool {
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	select {
	case <-ended:
		return true
	case <-time.After(time.Minute):
		return false
	}
}

// fewest is how many hand-overs make a measurement. A crowd that had fewer in its time gets
// more time.
const fewest = 5

// A tally is what etcd did for a number of hand-overs. The crowd goes on while the
// benchmark asks etcd, so these are more than those that are measured.
type tally struct {
	counts
	holds int64
}

// of returns what etcd did for n hand-overs.
func (t tally) of(n int) counts {
	share := func(count int64) int64 {
		return int64(math.Round(float64(count) * float64(n) / float64(max(t.holds, 1))))
	}
	return counts{Proposals: share(t.Proposals), Revisions: share(t.Revisions)}
}

// during runs f, and tallies what etcd did meanwhile.
func (a *arena) during(
	ctx context.Context, entered *atomic.Int64, f func() error,
) (t tally, err error) {
	before, err := a.askEtcd(ctx)
	holds := entered.Load()
	if err != nil {
		return t, err
	}
	if err := f(); err != nil {
		return t, err
	}
	after, err := a.askEtcd(ctx)
	return tally{after.minus(before), entered.Load() - holds}, err
}

// inSlices is some slices of time.
func (a *arena) inSlices(n float64) time.Duration { return time.Duration(n * float64(a.slice)) }

// contend goes through the critical section until ctx ends.
func (c *contender) contend(ctx context.Context, entered *atomic.Int64) error {
	releasing, cancel := outliving(ctx)
	defer cancel()
	for ctx.Err() == nil {
		began := time.Now()
		if err := c.enter(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		entered.Add(1)
		now := time.Now()
		c.waits = append(c.waits, wait{now, now.Sub(began)})
		// It releases the last hold, too, for those whose wait has not ended yet.
		if err := c.leave(releasing); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// outliving returns a context that ends closeWithin after ctx. A contender has one for all
// its releases: to make one for each would take longer than a read of this library takes.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(closeWithin, cancel) })
	return longer, cancel
}
