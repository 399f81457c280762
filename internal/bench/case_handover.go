package main

import (
	"context"
	"fmt"
	"time"
)

// startHandover measures the time from the call of Unlock to the return of the waiter's
// Lock, after the lock was held for a while. Two processes take turns, so that each
// hand-over is the beginning of the next hold. With puts, others put that many keys a
// second in the same etcd.
func startHandover(hold time.Duration, puts int) func(context.Context, *arena) (*event, error) {
	return func(ctx context.Context, a *arena) (*event, error) {
		parties, end, err := a.parties(ctx, 2, ttl)
		if err != nil {
			return nil, err
		}
		s, err := a.sections(ctx, parties, 2)
		if err != nil {
			end()
			return nil, err
		}
		p := &pingPong{hold: hold, holder: s[0], waiter: s[1]}
		piece := func(ctx context.Context) (m measure, err error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if puts > 0 {
				stop, err := a.disturb(ctx, puts)
				if err != nil {
					return m, err
				}
				defer stop()
			}
			return p.piece(ctx, a)
		}
		return &event{piece, end}, nil
	}
}

type pingPong struct {
	hold           time.Duration
	holder, waiter *section
}

func (p *pingPong) piece(ctx context.Context, a *arena) (m measure, err error) {
	const atLeast = 2
	if err := p.holder.enter(ctx); err != nil {
		return m, err
	}
	if _, err := p.handOver(ctx); err != nil { // one to warm up
		return m, err
	}
	m.spent, err = a.spent(ctx, func() error {
		for began := time.Now(); time.Since(began) < a.slice/pieces || m.ops < atLeast; m.ops++ {
			took, err := p.handOver(ctx)
			if err != nil {
				return err
			}
			m.samples = append(m.samples, took)
		}
		return nil
	})
	if err != nil {
		return m, err
	}
	err = p.holder.leave(ctx)
	m.broken = verdict(p.holder, p.waiter)
	return m, err
}

// handOver makes the waiter queue, and after the hold the holder release.
func (p *pingPong) handOver(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	entered := make(chan time.Time, 1)
	go func() { // ends with ctx at the latest
		if err := p.waiter.enter(ctx); err != nil {
			cancel(fmt.Errorf("waiter: %w", err))
			return
		}
		entered <- time.Now()
	}()
	time.Sleep(p.hold)
	began := time.Now()
	if err := p.holder.leave(ctx); err != nil {
		return 0, fmt.Errorf("holder: %w", err)
	}
	select {
	case at := <-entered:
		p.holder, p.waiter = p.waiter, p.holder
		return at.Sub(began), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// disturb puts keys of no lock, puts of them a second, until stop is called.
func (a *arena) disturb(ctx context.Context, puts int) (stop func(), err error) {
	client, err := dialEtcd(a.system.address(), &wire{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with ctx; stop waits for it
		defer close(done)
		tick := time.NewTicker(time.Second / time.Duration(puts))
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			select {
			case <-tick.C:
				_, _ = client.Put(ctx, fmt.Sprintf("unrelated/%d", i%100), "")
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-done
		client.Close()
	}, nil
}
