package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcdlock/etcdlock/internal/side"
)

// warmUp is how often a case does an operation before it first measures it. A JVM takes
// that long to compile what it runs.
const warmUp = 200

// startUncontended measures a lock and an unlock while nobody else is there, after some
// earlier holds.
func startUncontended(holdsBefore int) func(context.Context, *arena) (*event, error) {
	return func(ctx context.Context, a *arena) (*event, error) {
		parties, end, err := a.parties(ctx, 1, ttl)
		if err != nil {
			return nil, err
		}
		s, err := a.sections(ctx, parties, 1)
		for i := 0; i < max(holdsBefore, warmUp) && err == nil; i++ {
			err = s[0].through(ctx)
		}
		if err != nil {
			end()
			return nil, err
		}
		piece := func(ctx context.Context) (measure, error) {
			m, err := a.repeat(ctx, s[0].through)
			m.broken = verdict(s...)
			return m, err
		}
		return &event{piece, end}, nil
	}
}

// startTurns measures a lock and an unlock of a free lock whose last holder was another.
func startTurns(ctx context.Context, a *arena) (*event, error) {
	parties, end, err := a.parties(ctx, 2, ttl)
	if err != nil {
		return nil, err
	}
	s, err := a.sections(ctx, parties, 2)
	turn := 0
	next := func(ctx context.Context) error {
		turn++
		return s[turn%2].through(ctx)
	}
	for i := 0; i < warmUp && err == nil; i++ {
		err = next(ctx)
	}
	if err != nil {
		end()
		return nil, err
	}
	piece := func(ctx context.Context) (measure, error) {
		m, err := a.repeat(ctx, next)
		m.broken = verdict(s...)
		return m, err
	}
	return &event{piece, end}, nil
}

// startTryLock measures TryLock of a lock that another holds.
func startTryLock(ctx context.Context, a *arena) (*event, error) {
	parties, end, err := a.parties(ctx, 2, ttl)
	if err != nil {
		return nil, err
	}
	s, err := a.sections(ctx, parties, 2)
	if err == nil {
		err = s[0].enter(ctx)
	}
	try := func(ctx context.Context) error {
		err := s[1].lock.TryLock(ctx)
		if err == nil {
			s[1].witness.enter(s[1].who)
			s[1].holds++
			return errors.New("TryLock of a taken name succeeded")
		}
		if errors.Is(err, errTaken) || side.Taken(err) {
			return nil
		}
		return err
	}
	for i := 0; i < warmUp && err == nil; i++ {
		err = try(ctx)
	}
	if err != nil {
		end()
		return nil, err
	}
	piece := func(ctx context.Context) (measure, error) {
		m, err := a.repeat(ctx, try)
		m.broken = verdict(s...)
		return m, err
	}
	return &event{piece, func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		_ = s[0].leave(ctx) // if it cannot, closing does
		end()
	}}, nil
}

// repeat repeats an operation for a piece of a slice of time.
func (a *arena) repeat(ctx context.Context, op func(context.Context) error) (m measure, err error) {
	const atLeast = 3
	for range atLeast { // by now others have used the processor's caches
		if err := op(ctx); err != nil {
			return m, err
		}
	}
	m.samples = make([]time.Duration, 0, 1<<14) // allocated before allocations are counted
	m.spent, err = a.spent(ctx, func() error {
		for began := time.Now(); time.Since(began) < a.slice/pieces || m.ops < atLeast; m.ops++ {
			before := time.Now()
			if err := op(ctx); err != nil {
				return fmt.Errorf("operation %d: %w", m.ops+1, err)
			}
			m.samples = append(m.samples, time.Since(before))
		}
		return nil
	})
	return m, err
}
