package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/side"
)

// fleetCrowdCase is processesCase for a fleet, with the TTL of a fleet.
func fleetCrowdCase(n int) benchCase {
	c := benchCase{
		name: fmt.Sprintf("fleet-crowd-%d", n), kind: fleet, n: n, rate: true, whole: true, etcd: true,
		title: fmt.Sprintf("%d Sessions with a client each, empty critical section (TTL %v)",
			n, fleetTTL),
		start: startCrowd(n, n, fleetTTL),
	}
	if n > 256 {
		c.most = 3
	}
	return c
}

// A massStart is n Sessions over some clients. They begin at once, and go through the
// critical section.
type massStart struct {
	n, clients int
	ttl        time.Duration
	within     time.Duration
	once       bool // each goes through once, and the start is over when all have
	oneCore    bool // the servers and this process share one core
}

func (s massStart) benchCase() benchCase {
	name, over := fmt.Sprintf("fleet-start-%d", s.n), "a client each"
	switch {
	case s.clients == 1:
		name, over = name+"-one-client", "one client"
	case s.clients < s.n:
		over = fmt.Sprintf("%d clients", s.clients)
	}
	title := fmt.Sprintf("%d Sessions over %s begin at once (TTL %v)", s.n, over, s.ttl)
	if s.oneCore {
		title += ", on one core that they share with etcd"
	}
	if s.once {
		title += fmt.Sprintf("; each locks and unlocks once, within %v; the time is until the last is in",
			s.within)
	} else {
		title += fmt.Sprintf(", and lock and unlock again and again for %v", s.within)
	}
	return benchCase{
		name: name, kind: fleet, n: s.n, rate: !s.once, most: 3,
		whole: true, etcd: true,
		title: title,
		start: func(_ context.Context, a *arena) (*event, error) {
			return &event{func(ctx context.Context) (measure, error) {
				return s.measure(ctx, a)
			}, func() {}}, nil
		},
	}
}

func (s massStart) measure(ctx context.Context, a *arena) (m measure, err error) {
	if s.oneCore {
		release, err := shareOneCore(append(a.system.pids(), os.Getpid()))
		if err != nil {
			return m, err
		}
		defer release()
	}
	goroutines := runtime.NumGoroutine()
	opened, end, err := a.fleet(ctx, s.n, s.clients, s.ttl)
	if err != nil {
		return m, err
	}
	defer end()

	var most int
	ctx, cancel := context.WithTimeout(ctx, s.within)
	defer cancel()
	began := time.Now()
	f := a.beginFleet(ctx, opened, s.once)
	m.spent, err = a.spentButEtcd(func() error {
		tick, over := time.NewTicker(100*time.Millisecond), time.NewTimer(s.within+time.Minute)
		defer tick.Stop()
		defer over.Stop()
		for {
			most = max(most, runtime.NumGoroutine())
			select {
			case <-f.ended:
				return nil
			case <-tick.C:
			case <-over.C:
				return errors.New("contenders go on a minute after their context ended")
			}
		}
	})
	if err != nil {
		return m, err
	}
	m.goroutines = most - goroutines - s.n
	m.value = s.within
	for _, who := range f.contenders {
		for i, w := range who.waits {
			if i == 0 || !s.once {
				m.samples = append(m.samples, w.took)
			}
			if i == 0 {
				m.in++
			}
		}
	}
	if m.ops = len(m.samples); m.ops == 0 {
		return m, fmt.Errorf("nobody got in within %v, %d tries failed, the last so: %w", s.within,
			f.failures.Load(), f.failure())
	}
	if s.once && m.in == s.n {
		m.value = 0
		for _, who := range f.contenders {
			m.value = max(m.value, who.waits[0].until.Sub(began))
		}
	}
	if !s.once {
		m.value /= time.Duration(m.ops)
	}
	m.broken = f.verdict()
	return m, nil
}

// fleet opens n parties over some clients.
func (a *arena) fleet(
	ctx context.Context, n, clients int, ttl time.Duration,
) ([]party, func(), error) {
	owners, endOwners, err := a.parties(ctx, clients, ttl)
	if err != nil {
		return nil, nil, err
	}
	opened := owners
	end := func() {
		_ = inParallel(len(opened)-clients, func(i int) error {
			opened[clients+i].close()
			return nil
		})
		endOwners()
	}
	for i := clients; i < n; i++ {
		sibling, err := owners[i%clients].(sharer).sibling()
		if err != nil {
			end()
			return nil, nil, err
		}
		opened = append(opened, sibling)
	}
	return opened, end, nil
}

// A runningFleet is parties that go through one critical section, each for itself. If a
// call fails its party tries again, as a program would.
type runningFleet struct {
	contenders []*contender
	witness    witness
	entered    atomic.Int64
	failures   atomic.Int64
	ended      chan struct{} // closed when nobody contends any more

	mu   sync.Mutex
	last error
}

// beginFleet makes all parties contend for a new name until ctx ends, or until each has
// held it once.
func (a *arena) beginFleet(ctx context.Context, parties []party, once bool) *runningFleet {
	f := &runningFleet{contenders: make([]*contender, len(parties)), ended: make(chan struct{})}
	name := a.name()
	var running sync.WaitGroup
	for i, p := range parties {
		c := &contender{section: &section{witness: &f.witness, who: int64(i + 1)}}
		f.contenders[i] = c
		running.Go(func() { f.contend(ctx, p, name, c, once) })
	}
	go func() { // ends with the contenders
		running.Wait()
		close(f.ended)
	}()
	return f
}

func (f *runningFleet) contend(ctx context.Context, p party, name string, c *contender, once bool) {
	for began := time.Now(); ctx.Err() == nil; {
		err := error(nil)
		if c.lock == nil {
			c.lock, err = p.lock(ctx, name)
			if err != nil {
				c.lock = nil
			}
		}
		if err == nil {
			err = c.enter(ctx)
		}
		if err != nil {
			f.fails(ctx, err)
			continue
		}
		f.entered.Add(1)
		now := time.Now()
		c.waits = append(c.waits, wait{now, now.Sub(began)})
		began = now
		// It releases the last hold, too, for those whose wait has not ended yet.
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		err = c.leave(releasing)
		cancel()
		if err != nil {
			f.fails(ctx, err)
		}
		if once {
			return
		}
	}
}

// fails records that a call has failed, unless it failed because ctx has ended.
func (f *runningFleet) fails(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	f.failures.Add(1)
	f.mu.Lock()
	f.last = err
	f.mu.Unlock()
	_ = sleep(ctx, 100*time.Millisecond)
}

// failure returns the last failure.
func (f *runningFleet) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

func (f *runningFleet) verdict() string {
	holds := 0
	for _, c := range f.contenders {
		holds += c.holds
	}
	return f.witness.verdict(holds)
}

// frozenCase freezes etcd under n Sessions that contend, and measures how long after the
// freeze the next one gets in.
func frozenCase(n int, ttl, settle, frozen time.Duration) benchCase {
	return benchCase{
		name: "fleet-frozen", kind: fleet, n: n, most: 3, whole: true, etcd: true,
		title: fmt.Sprintf("etcd is frozen for %v under %d Sessions with a client each (TTL %v); "+
			"how long after it thaws the next one is in",
			frozen, n, ttl),
		start: func(_ context.Context, a *arena) (*event, error) {
			piece := func(ctx context.Context) (measure, error) {
				return a.freeze(ctx, n, ttl, settle, frozen)
			}
			return &event{piece, func() {}}, nil
		},
	}
}

func (a *arena) freeze(
	ctx context.Context, n int, ttl, settle, frozen time.Duration,
) (m measure, err error) {
	opened, end, err := a.parties(ctx, n, ttl)
	if err != nil {
		return m, err
	}
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	f := a.beginFleet(ctx, opened, false)
	defer func() { cancel(); <-f.ended }()
	if err := sleep(ctx, settle); err != nil {
		return m, err
	}
	a.eachMember(freeze)
	defer a.eachMember(thaw)
	if err := sleep(ctx, frozen); err != nil {
		return m, err
	}
	before := f.entered.Load()
	thawed := time.Now()
	a.eachMember(thaw)
	for f.entered.Load() == before {
		if err := sleep(ctx, time.Millisecond); err != nil {
			return m, fmt.Errorf("nobody got in within %v after etcd thawed: %w",
				time.Since(thawed).Round(time.Millisecond), err)
		}
	}
	m.value = time.Since(thawed)
	m.ops, m.samples = 1, []time.Duration{m.value}
	cancel()
	<-f.ended
	m.broken = f.verdict()
	return m, nil
}

func (a *arena) eachMember(do func(*os.Process) error) {
	for _, p := range a.system.(*etcd).members {
		_ = do(p.cmd.Process) // fails if it has ended
	}
}

// lineUpCase measures how long it takes until n new Sessions over some clients stand in one line.
func lineUpCase(n, clients int, ttl time.Duration) benchCase {
	return benchCase{
		name: fmt.Sprintf("lineup-%d", n), kind: lineUp, n: n, most: 3, whole: true, etcd: true,
		title: fmt.Sprintf("%d new Sessions over %d clients wait for one name (TTL %v); the time is "+
			"until all stand in line, an operation is one of them", n, clients, ttl),
		start: func(_ context.Context, a *arena) (*event, error) {
			piece := func(ctx context.Context) (measure, error) {
				return a.lineUp(ctx, n, clients, ttl)
			}
			return &event{piece, func() {}}, nil
		},
	}
}

func (a *arena) lineUp(
	ctx context.Context, n, clients int, ttl time.Duration,
) (m measure, err error) {
	opened, end, err := a.fleet(ctx, n, clients, ttl)
	if err != nil {
		return m, err
	}
	defer end()
	var l *standingLine
	defer func() { l.end() }()
	m.spent, err = a.spent(ctx, func() (err error) {
		began := time.Now()
		l, err = a.standInLine(ctx, opened, ttl)
		m.value = time.Since(began)
		return err
	})
	m.ops, m.samples = n, []time.Duration{m.value}
	return m, err
}

// leaveCase measures what it costs when n waiters give up at once, and how long it takes
// until their keys are gone.
func leaveCase(n int, ttl time.Duration) benchCase {
	return benchCase{
		name: fmt.Sprintf("fleet-leave-%d", n), kind: fleet, n: n, most: 3, whole: true, etcd: true,
		title: fmt.Sprintf("%d Sessions with a client each that wait in one line (TTL %v) give up at "+
			"once; the time is until their keys are gone", n, ttl),
		start: func(_ context.Context, a *arena) (*event, error) {
			piece := func(ctx context.Context) (measure, error) { return a.giveUp(ctx, n, ttl) }
			return &event{piece, func() {}}, nil
		},
	}
}

func (a *arena) giveUp(ctx context.Context, n int, ttl time.Duration) (m measure, err error) {
	opened, end, err := a.parties(ctx, n, ttl)
	if err != nil {
		return m, err
	}
	defer end()
	l, err := a.standInLine(ctx, opened, ttl)
	defer func() { l.end() }()
	if err != nil {
		return m, err
	}
	if err := sleep(ctx, a.inSlices(1)); err != nil { // by then the queuing itself is over
		return m, err
	}
	m.spent, err = a.spent(ctx, func() error {
		began := time.Now()
		l.leave()
		err := a.until(ctx, l.name, 1)
		m.value = time.Since(began)
		return err
	})
	m.ops, m.samples = n, []time.Duration{m.value}
	return m, err
}

// takenCase measures how soon n Sessions that have each held a name for a while learn that
// its key was deleted.
func takenCase(n int, old time.Duration) benchCase {
	return benchCase{
		name: "taken", kind: taken, n: n, most: 3, whole: true, etcd: true,
		title: fmt.Sprintf("the key of a hold that is %v old or older is deleted; "+
			"how long until the hold's context ends", old),
		start: func(_ context.Context, a *arena) (*event, error) {
			piece := func(ctx context.Context) (measure, error) { return a.takeAway(ctx, n, old) }
			return &event{piece, func() {}}, nil
		},
	}
}

// A teller reports the loss of its hold.
type teller interface {
	Context(ctx context.Context) context.Context
}

func (a *arena) takeAway(ctx context.Context, n int, old time.Duration) (m measure, err error) {
	opened, end, err := a.parties(ctx, n, fleetTTL)
	if err != nil {
		return m, err
	}
	defer end()
	prefix := a.name()
	held := make([]side.Lock, n)
	err = inParallel(n, func(i int) (err error) {
		if held[i], err = opened[i].lock(ctx, fmt.Sprintf("%s/%d", prefix, i)); err != nil {
			return err
		}
		return held[i].Lock(ctx)
	})
	if err != nil {
		return m, err
	}
	if err := sleep(ctx, old); err != nil {
		return m, err
	}
	admin := a.system.(*etcd).admin
	for i, l := range held {
		lost := l.(teller).Context(ctx).Done()
		began := time.Now()
		resp, err := admin.Delete(ctx, fmt.Sprintf("%s/%d/", prefix, i), clientv3.WithPrefix())
		if err != nil {
			return m, err
		}
		if resp.Deleted != 1 {
			return m, fmt.Errorf("%d keys of one hold", resp.Deleted)
		}
		select {
		case <-lost:
		case <-ctx.Done():
			return m, fmt.Errorf("not told: %w", ctx.Err())
		}
		m.samples = append(m.samples, time.Since(began))
		_ = l.Unlock(ctx) // its error is the loss
		// A lock that looks at regular times is thus met at different times of its period.
		if err := sleep(ctx, 130*time.Millisecond); err != nil {
			return m, err
		}
	}
	m.ops, m.value = n, median(m.samples)
	return m, nil
}
