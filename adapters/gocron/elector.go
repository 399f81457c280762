package etcdlockgocron

import (
	"context"
	"errors"
	"fmt"

	"github.com/etcdlock/etcdlock"
)

// An Elector is a gocron.Elector, for gocron.WithDistributedElector. It is safe for concurrent use,
// also by several schedulers.
type Elector struct{ mu *etcdlock.Mutex }

// NewElector returns an Elector for which this process leads while it holds mu. The program
// holds mu itself, by Lock or Lead, or calls [Elector.Lead]. A nil Mutex is an error.
func NewElector(mu *etcdlock.Mutex) (*Elector, error) {
	if mu == nil {
		return nil, errors.New("etcdlockgocron: nil Mutex")
	}
	return &Elector{mu}, nil
}

// IsLeader returns nil while mu is held, and so until another process can hold it at the latest. It
// asks etcd nothing. Otherwise its error is [etcdlock.ErrNotHeld] by errors.Is. A job may still run
// when the lead is lost: let it work with mu.Context.
func (e *Elector) IsLeader(context.Context) error {
	if !e.mu.Status().Held {
		return fmt.Errorf("etcdlockgocron: this process does not lead %q: %w", e.mu.Name(),
			etcdlock.ErrNotHeld)
	}
	return nil
}

// Lead takes part in the election until ctx ends, as [etcdlock.Mutex.Lead] does, and returns its
// errors. If the lead is lost it waits to lead again.
//
// It does not wait for jobs. Shut the scheduler down before ctx ends, and no job of it runs beside
// those of the next leader.
func (e *Elector) Lead(ctx context.Context) error {
	return e.mu.Lead(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
}
