package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// readersCase is goroutines of one process that read, while nobody writes.
func readersCase(n int) benchCase {
	title := fmt.Sprintf("%d goroutines of one process read again and again, nobody writes", n)
	if n == 1 {
		title = "one goroutine reads again and again, nobody else there"
	}
	return benchCase{
		name: fmt.Sprintf("readers-%d", n), kind: readers, n: n, rate: true, whole: true,
		title: title, start: startSharing(1, mixOf(n, 0)),
	}
}

// mixCase is contenders that read and write.
func mixCase(writes int) benchCase {
	const n = 16
	return benchCase{
		name: fmt.Sprintf("mix-%d-%d", 100-writes, writes), kind: mixes, n: n, rate: true, whole: true,
		title: fmt.Sprintf("%d contenders over %d clients, of whose holds %d of 100 write, "+
			"empty critical section", n, crowdParties(n), writes),
		start: startSharing(crowdParties(n), mixOf(n, writes)),
	}
}

// mixOf makes sections for startSharing.
func mixOf(n, writes int) func(context.Context, *arena, []party) ([]*section, error) {
	return func(ctx context.Context, a *arena, parties []party) ([]*section, error) {
		return a.rwSections(ctx, parties, n, writes)
	}
}

// startSharing is startCrowd with sections in which several may be at once.
func startSharing(
	parties int, made func(context.Context, *arena, []party) ([]*section, error),
) func(context.Context, *arena) (*event, error) {
	return func(_ context.Context, a *arena) (*event, error) {
		piece := func(ctx context.Context) (measure, error) {
			opened, end, err := a.parties(ctx, parties, ttl)
			if err != nil {
				return measure{}, err
			}
			defer end()
			s, err := made(ctx, a, opened)
			if err != nil {
				return measure{}, err
			}
			m, err := a.watchCrowd(ctx, s, parties)
			if err == nil {
				err = stayIn(ctx, s)
				m.broken = verdict(s...)
			}
			return m, err
		}
		return &event{piece, func() {}}, nil
	}
}

// stayIn makes each section go through twice more, unmeasured, and stay in for a while. In
// an empty critical section the witness would hardly ever see two at once: the lock on
// Redis passed even without its check of the mode.
func stayIn(ctx context.Context, sections []*section) error {
	const times, long = 2, time.Millisecond
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	for _, s := range sections {
		running.Go(func() { // ends with ctx at the latest
			for range times {
				err := s.enter(ctx)
				if err == nil {
					time.Sleep(long)
					err = s.leave(ctx)
				}
				if err != nil {
					stop(err) // the first error says why
					return
				}
			}
		})
	}
	if !endWithinAMinute(&running) {
		return errors.New("contenders have not gone through twice more within a minute")
	}
	return context.Cause(ctx)
}

// startBeside measures a read while others of its process hold all the time.
func startBeside(ctx context.Context, a *arena) (*event, error) {
	parties, end, err := a.parties(ctx, 1, ttl)
	if err != nil {
		return nil, err
	}
	s, err := a.rwSections(ctx, parties, 3, 0)
	for i := 0; i < 2 && err == nil; i++ {
		err = s[i].enter(ctx)
	}
	for i := 0; i < warmUp && err == nil; i++ {
		err = s[2].through(ctx)
	}
	if err != nil {
		end()
		return nil, err
	}
	piece := func(ctx context.Context) (measure, error) {
		m, err := a.repeat(ctx, s[2].through)
		m.broken = verdict(s...)
		return m, err
	}
	return &event{piece, func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		_, _ = s[0].leave(ctx), s[1].leave(ctx) // if they cannot, closing does
		end()
	}}, nil
}

// rwSections returns sections with a read/write lock. In each, that many of 100 holds
// write, though not in all sections at the same time.
func (a *arena) rwSections(
	ctx context.Context, parties []party, n, writes int,
) ([]*section, error) {
	name, w := a.name(), &witness{}
	made := make([]*section, n)
	return made, inParallel(n, func(i int) error {
		p, ok := parties[i%len(parties)].(rwParty)
		if !ok {
			return errors.New("it has no read/write lock")
		}
		reader, writer, err := p.rwLock(ctx, name)
		made[i] = &section{lock: writer, reader: reader, witness: w, who: int64(i + 1), writes: writes,
			due: 37 * i % 100}
		return err
	})
}
