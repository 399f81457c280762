package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/side"
)

// massCase is of one client that does much at once.
func massCase(
	name string, n int, title string, measured func(*arena, context.Context, int) (measure, error),
) benchCase {
	return benchCase{
		name: fmt.Sprintf("%s-%d", name, n), kind: mass, n: n, most: 3, whole: true, etcd: true,
		title: title,
		start: func(_ context.Context, a *arena) (*event, error) {
			piece := func(ctx context.Context) (measure, error) { return measured(a, ctx, n) }
			return &event{piece, func() {}}, nil
		},
	}
}

func beginCase(n int) benchCase {
	return massCase("begin", n, fmt.Sprintf("%d Sessions of one client begin at once, a name each; "+
		"the time is until all hold, an operation is one of them", n), (*arena).begin)
}

// begin makes n parties of one client each lock a name of its own, all at once.
func (a *arena) begin(ctx context.Context, n int) (m measure, err error) {
	opened, end, err := a.fleet(ctx, n, 1, fleetTTL)
	if err != nil {
		return m, err
	}
	defer end()
	m.ops, m.samples = n, make([]time.Duration, n)
	began, prefix := time.Now(), a.name()
	m.spent, err = a.spent(ctx, func() error {
		errs := make([]error, n)
		var all sync.WaitGroup
		for i, p := range opened {
			all.Go(func() {
				var l side.Lock
				if l, errs[i] = p.lock(ctx, fmt.Sprintf("%s/%d", prefix, i)); errs[i] == nil {
					errs[i] = l.Lock(ctx)
				}
				m.samples[i] = time.Since(began)
			})
		}
		all.Wait()
		return cmp.Or(errs...)
	})
	m.value = maxOf(m.samples)
	return m, err
}

func closeCase(n int) benchCase {
	return massCase("close", n, fmt.Sprintf("a Session that holds %d names is closed", n),
		(*arena).closeAll)
}

// closeAll closes a party that holds n names.
func (a *arena) closeAll(ctx context.Context, n int) (m measure, err error) {
	opened, end, err := a.fleet(ctx, 2, 1, ttl)
	if err != nil {
		return m, err
	}
	defer end() // of the other party, which has the client
	prefix, _, err := a.holdNames(ctx, opened[1:], n)
	if err != nil {
		return m, err
	}
	m.ops = 1
	m.spent, err = a.spent(ctx, func() error {
		began := time.Now()
		opened[1].close()
		m.value = time.Since(began)
		return nil
	})
	if err != nil {
		return m, err
	}
	m.samples = []time.Duration{m.value}
	gone, cancel := context.WithTimeout(ctx, ttl/4) // much sooner than the lease expires
	defer cancel()
	return m, a.until(gone, prefix, 0)
}

// holdNames makes parties hold n names below a prefix that is new.
func (a *arena) holdNames(
	ctx context.Context, parties []party, n int,
) (prefix string, held []side.Lock, err error) {
	prefix, held = a.name(), make([]side.Lock, n)
	return prefix, held, inParallel(n, func(i int) (err error) {
		held[i], err = parties[i%len(parties)].lock(ctx, fmt.Sprintf("%s/%d", prefix, i))
		if err != nil {
			return err
		}
		return held[i].Lock(ctx)
	})
}

// giveBack unlocks locks that no other contender wants. Each Unlock says whether its name was held
// all the while.
func giveBack(ctx context.Context, held []side.Lock) error {
	return inParallel(len(held), func(i int) error { return held[i].Unlock(ctx) })
}

func auditCase(n int, ttl time.Duration) benchCase {
	c := massCase("audit", n, fmt.Sprintf("a Session holds %d names (TTL %v): an operation is a "+
		"third of the TTL, in which its keys are audited once; the time is that of the audit", n, ttl),
		func(a *arena, ctx context.Context, n int) (measure, error) { return a.audit(ctx, n, ttl) })
	c.most = 1 // it takes three TTLs
	return c
}

// audit observes a party that holds n names for two TTLs, once a TTL has passed.
func (a *arena) audit(ctx context.Context, n int, ttl time.Duration) (m measure, err error) {
	opened, end, err := a.parties(ctx, 1, ttl)
	if err != nil {
		return m, err
	}
	defer end()
	_, held, err := a.holdNames(ctx, opened, n)
	if err != nil {
		return m, err
	}
	if err := sleep(ctx, ttl); err != nil {
		return m, err
	}
	m.ops = 2 * 3
	audits, took := a.wire.audits.Load(), a.wire.auditing.Load()
	m.spent, err = a.spent(ctx, func() error { return sleep(ctx, 2*ttl) })
	if err != nil {
		return m, err
	}
	if audits = a.wire.audits.Load() - audits; audits > 0 {
		m.value = time.Duration((a.wire.auditing.Load() - took) / audits)
	}
	m.samples = []time.Duration{m.value}
	return m, giveBack(ctx, held)
}
