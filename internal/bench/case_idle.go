package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/side"
)

// fleetTTL is the TTL of a fleet's leases: the library's default.
const fleetTTL = 15 * time.Second

// idleCase measures the cost of n Sessions, with a client each, that do nothing. An
// operation is a second of one of them.
func idleCase(
	name, title string, n int, ttl time.Duration, begin func(*idleness, context.Context) error,
) benchCase {
	return benchCase{
		name: name, kind: idle, n: n, most: 3, whole: true, etcd: true, title: title,
		start: func(_ context.Context, a *arena) (*event, error) {
			piece := func(ctx context.Context) (measure, error) { return a.idle(ctx, n, ttl, begin) }
			return &event{piece, func() {}}, nil
		},
	}
}

// waitersCase makes the Sessions wait in one line, behind a holder that does not count.
func waitersCase(n int, ttl time.Duration) benchCase {
	return idleCase("fleet-idle-waiters", fmt.Sprintf(
		"%d Sessions with a client each wait in one line (TTL %v); an operation is a second of one of them", n, ttl),
		n, ttl, (*idleness).queue)
}

// holdersCase makes each Session hold a name of its own.
func holdersCase(n int, ttl time.Duration) benchCase {
	return idleCase("fleet-idle-holders", fmt.Sprintf(
		"%d Sessions with a client each hold a name each (TTL %v); an operation is a second of one of them", n, ttl),
		n, ttl, (*idleness).hold)
}

// sized returns c under a name that says how many Sessions there are: docs/scale.md has a
// formula that must hold for each number.
func sized(c benchCase) benchCase {
	c.name, c.most = fmt.Sprintf("%s-%d", c.name, c.n), 1
	return c
}

// authCase is holdersCase with users that log in. An operation is a renewal.
func authCase(n int, ttl time.Duration) benchCase {
	c := benchCase{
		name: "fleet-auth", kind: idle, n: n, most: 3, whole: true, etcd: true,
		title: fmt.Sprintf("%d Sessions with a client each, with user and password, hold a name each "+
			"(TTL %v); an operation is a renewal", n, ttl),
	}
	c.start = func(ctx context.Context, a *arena) (*event, error) {
		dir, err := os.MkdirTemp(a.dir, "auth-")
		if err != nil {
			return nil, err
		}
		sys, err := startEtcd(ctx, dir, 1)
		if err != nil {
			return nil, err
		}
		e := sys.(*etcd)
		if err := e.requirePasswords(ctx); err != nil {
			e.stop()
			return nil, err
		}
		guarded := *a
		guarded.system = e
		piece := func(ctx context.Context) (measure, error) {
			m, err := guarded.idle(ctx, n, ttl, (*idleness).hold)
			m.ops = int(m.spent.Renewals)
			return m, err
		}
		return &event{piece, e.stop}, nil
	}
	return c
}

// An idleness is a number of parties that are about to do nothing.
type idleness struct {
	*arena
	parties []party
	ttl     time.Duration
	end     func() // ends what they do
}

// idle measures a TTL of idleness, once the idleness has lasted for a third of a TTL: by
// then each has renewed its lease.
func (a *arena) idle(
	ctx context.Context, n int, ttl time.Duration, begin func(*idleness, context.Context) error,
) (m measure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	goroutines := runtime.NumGoroutine()
	opened, end, err := a.parties(ctx, n, ttl)
	if err != nil {
		return m, err
	}
	defer end()
	i := &idleness{arena: a, parties: opened, ttl: ttl, end: func() {}}
	err = begin(i, ctx)
	defer func() { i.end() }()
	if err != nil {
		return m, err
	}
	if err := sleep(ctx, ttl/3); err != nil {
		return m, err
	}
	m.spent, err = a.spent(ctx, func() error { return sleep(ctx, ttl) })
	m.goroutines = runtime.NumGoroutine() - goroutines
	m.ops = max(1, int(float64(n)*ttl.Seconds()))
	return m, err
}

// hold makes each party hold a name of its own.
func (i *idleness) hold(ctx context.Context) error {
	prefix := i.name()
	held := make([]side.Lock, len(i.parties))
	err := inParallel(len(i.parties), func(n int) (err error) {
		if held[n], err = i.parties[n].lock(ctx, fmt.Sprintf("%s/%d", prefix, n)); err != nil {
			return err
		}
		return held[n].Lock(ctx)
	})
	i.end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		_ = inParallel(len(held), func(n int) error { return held[n].Unlock(ctx) })
	}
	return err
}

// queue makes all parties wait behind a holder.
func (i *idleness) queue(ctx context.Context) error {
	l, err := i.standInLine(ctx, i.parties, i.ttl)
	i.end = l.end
	return err
}

// A standingLine is a holder, and others that wait behind it.
type standingLine struct {
	name  string
	leave func() // makes all waiters give up, and returns at once
	end   func() // does the same, and releases the hold
}

// standInLine makes all parties wait for a name that one more party holds. The messages of
// that one do not count. It returns once the waiters' keys are there.
func (a *arena) standInLine(
	ctx context.Context, parties []party, ttl time.Duration,
) (l *standingLine, err error) {
	l = &standingLine{name: a.name(), leave: func() {}, end: func() {}}
	keeper, err := a.alternative.open(ctx, a.system.address(), ttl, &wire{})
	if err != nil {
		return l, err
	}
	l.end = keeper.close
	held, err := keeper.lock(ctx, l.name)
	if err != nil {
		return l, err
	}
	if err := held.Lock(ctx); err != nil {
		return l, err
	}
	waiting, leave := context.WithCancel(ctx)
	left := make(chan struct{})
	l.leave = leave
	l.end = func() {
		leave()
		<-left
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		_ = held.Unlock(ctx)
		keeper.close()
	}
	go func() { // ends with waiting; end waits for it
		defer close(left)
		stand(waiting, parties, l.name)
	}()
	return l, a.until(ctx, l.name, int64(len(parties)+1))
}

// stand makes each party wait for the name until ctx ends.
func stand(ctx context.Context, parties []party, name string) {
	done := make(chan struct{}, len(parties))
	for _, p := range parties {
		go func() { // ends with ctx
			defer func() { done <- struct{}{} }()
			l, err := p.lock(ctx, name)
			for err == nil && ctx.Err() == nil {
				if l.Lock(ctx) == nil { // the holder's lease is gone
					_ = l.Unlock(ctx)
				}
				_ = sleep(ctx, 100*time.Millisecond) // a crowd whose calls fail must not spin
			}
		}()
	}
	for range parties {
		<-done
	}
}

// until waits until n keys stand in the line of a name.
func (a *arena) until(ctx context.Context, name string, n int64) error {
	e := a.system.(*etcd)
	for {
		resp, err := e.admin.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return fmt.Errorf("until %d stand in line: %w", n, err)
		}
		if resp.Count == n {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d stand in line and not %d: %w", resp.Count, n, err)
		}
	}
}
