package etcdlocktest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/events"
)

// ForgottenUnlocks returns a Trace that learns which holds are never unlocked. Give it to the
// Sessions and Mutexes of the code under test, by [etcdlock.WithTrace]. A hold that Close of its
// Session has ended, with no Unlock before, fails the end of the test with the place of its call;
// [Etcd.Close] returns it as an error. So does a Do that still runs when its Session is closed.
// Without the Trace nothing is said of such a hold: Close may end it, but in a process that lives
// on its lock is never given back.
func (e *Etcd) ForgottenUnlocks() *etcdlock.Trace {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgotten == nil {
		e.forgotten = &forgotten{changed: make(chan struct{}, 1)}
	}
	return e.forgotten.trace()
}

// A forgotten is what is known of the holds that no Unlock ends.
type forgotten struct {
	changed chan struct{} // tells that open has changed

	mu   sync.Mutex
	open int // names that were asked for, until their holds are over or given up
	left []error
}

type placeKey struct{}

func (f *forgotten) trace() *etcdlock.Trace {
	return &etcdlock.Trace{
		Start: func(ctx context.Context, e etcdlock.StartEvent) context.Context {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.open += max(1, len(e.Names))
			return context.WithValue(ctx, placeKey{}, caller())
		},
		GaveUp:   func(ctx context.Context, e etcdlock.GaveUpEvent) { f.ends(ctx, e.Name) },
		Released: func(ctx context.Context, e etcdlock.ReleasedEvent) { f.ends(ctx, e.Name) },
		Lost:     func(ctx context.Context, e etcdlock.LostEvent) { f.ends(ctx, e.Name) },
	}
}

// ends notes that the call with ctx has no hold of a name any more.
func (f *forgotten) ends(ctx context.Context, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	if ctx.Value(events.ByClose{}) != nil {
		f.left = append(f.left, fmt.Errorf("etcdlocktest: no Unlock has ended the hold of %q (%v): "+
			"Close of its Session has", name, ctx.Value(placeKey{})))
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// all returns an error for each hold. Events come a little later than what they tell, so it waits
// for them, a second at most.
func (f *forgotten) all() []error {
	late := time.NewTimer(time.Second)
	defer late.Stop()
	for {
		f.mu.Lock()
		open, left := f.open, f.left
		f.mu.Unlock()
		if open == 0 {
			return left
		}
		select {
		case <-f.changed:
		case <-late.C:
			return left
		}
	}
}
