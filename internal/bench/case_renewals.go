package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// renewalsCase is n Sessions over some clients, which hold a name each. An operation is a renewal.
// Sessions renew as often as their TTL says: what etcd can carry shows in its processor time. What
// renews as fast as etcd answers is beside them.
func renewalsCase(n, clients int, ttl time.Duration) benchCase {
	return benchCase{
		name: fmt.Sprintf("fleet-renewals-%d", n), kind: renewal, n: n, most: 1, rate: true,
		whole: true, etcd: true,
		title: fmt.Sprintf("%d Sessions over %d clients hold a name each (TTL %v); an operation is a "+
			"renewal. Beside them, %d goroutines of as many clients renew leases as fast as etcd "+
			"answers", n, clients, ttl, renewers),
		start: func(_ context.Context, a *arena) (*event, error) {
			piece := func(ctx context.Context) (measure, error) { return a.renewals(ctx, n, clients, ttl) }
			return &event{piece, func() {}}, nil
		},
	}
}

// renewers is how many goroutines renew as fast as etcd answers, in all.
const renewers = 100

func (a *arena) renewals(
	ctx context.Context, n, clients int, ttl time.Duration,
) (m measure, err error) {
	if a.alternative.name == onceEach {
		n = clients
	}
	opened, end, err := a.fleet(ctx, n, clients, ttl)
	if err != nil {
		return m, err
	}
	defer end()
	if a.alternative.name == onceEach {
		busy, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		for i := range renewers {
			running.Go(func() { // ends with busy
				for busy.Err() == nil {
					_ = opened[i%clients].(*rawParty).renew(busy) // the rate shows it, if it fails
				}
			})
		}
		return a.countRenewals(ctx, ttl)
	}

	_, held, err := a.holdNames(ctx, opened, n)
	if err != nil {
		return m, err
	}
	if m, err = a.countRenewals(ctx, ttl); err != nil {
		return m, err
	}
	return m, giveBack(ctx, held)
}

// countRenewals counts for four TTLs, once one has passed: in twelve periods a lease whose keys are
// watched is audited three times.
func (a *arena) countRenewals(ctx context.Context, ttl time.Duration) (m measure, err error) {
	if err := sleep(ctx, ttl); err != nil {
		return m, err
	}
	window := 4 * ttl
	m.spent, err = a.spent(ctx, func() error { return sleep(ctx, window) })
	if m.ops = int(m.spent.Renewals); err == nil && m.ops == 0 {
		err = errors.New("no renewal")
	}
	m.value = window / time.Duration(max(m.ops, 1))
	return m, err
}

func (p *rawParty) renew(ctx context.Context) error {
	_, err := p.client.KeepAliveOnce(ctx, p.lease)
	return err
}
