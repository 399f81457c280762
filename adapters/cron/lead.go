package etcdlockcron

import (
	"context"
	"errors"
	"fmt"

	"github.com/etcdlock/etcdlock"
)

// A Scheduler is what *asynq.Scheduler is: it starts once.
type Scheduler interface {
	Start() error
	Shutdown() // waits until it enqueues nothing any more
}

// Lead runs a scheduler while this process leads, which is while it holds mu, and takes part in the
// election until ctx ends, as [etcdlock.Mutex.Lead] does. newScheduler makes one for each term: a
// scheduler that was shut down does not start again. When ctx ends or the lead is lost it is shut
// down. No other process leads before that, unless the lead is lost.
//
// It returns the error of newScheduler or of Start, or that of [etcdlock.Mutex.Lead].
//
// A leader does not know what the one before it has enqueued: near a change of leaders a slot may
// be enqueued twice, if their clocks differ or the former one was paused, or not at all.
// asynq.Unique or asynq.TaskID with the slot keep it to once.
func Lead(
	ctx context.Context, mu *etcdlock.Mutex, newScheduler func() (Scheduler, error),
) error {
	if mu == nil {
		return errors.New("etcdlockcron: nil Mutex")
	}
	if newScheduler == nil {
		return errors.New("etcdlockcron: nil newScheduler")
	}
	return mu.Lead(ctx, func(ctx context.Context) error {
		s, err := newScheduler()
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			return fmt.Errorf("etcdlockcron: start a scheduler: %w: %w", err, etcdlock.ErrStopLeading)
		}
		<-ctx.Done()
		s.Shutdown()
		return nil
	})
}
