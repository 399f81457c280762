package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcdlock/etcdlock"
)

// What a note in the journal of a relay says.
const (
	noteEnter   = "enter"   // the worker has got the lock
	noteBegin   = "begin"   // of a step
	noteEnd     = "end"     // of that step
	noteNoticed = "noticed" // a recall, between two steps
	noteLeave   = "leave"   // the lock is about to be unlocked
)

// A note is a line of the journal of a relay, written inside the lock.
type note struct {
	What   string
	Worker int
	Token  int64
	Step   int
	At     time.Time
}

// relay carries the work on whenever this worker has the lock, until ctx ends.
func (w *worker) relay(ctx context.Context) {
	for {
		err := w.guard(ctx, w.shift)
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()), ctx.Err() != nil && err == nil:
			return
		case err != nil: // a lost hold among them: none should be
			w.say(message{Error: err.Error()})
			return
		}
	}
}

// shift is the critical section: one step after another, from where the work
// stands, until the hold is recalled or ends.
func (w *worker) shift(hold context.Context) error {
	token, _ := etcdlock.TokenFrom(hold)
	recalled := etcdlock.RecallFrom(hold)
	tell := func(what string, step int) error {
		return appendLine(w.journal, note{what, w.number, token, step, time.Now()})
	}
	if err := tell(noteEnter, 0); err != nil {
		return err
	}
	for did := 0; ; did++ {
		if did > 0 && did%stepsToTell == 0 {
			w.say(message{Holding: token})
		}
		select {
		case <-recalled: // between two steps, which is a good point
			if err := tell(noteNoticed, 0); err != nil {
				return err
			}
			return tell(noteLeave, 0)
		default:
		}
		// The parent has ended the work: the hold is whole, and the worker leaves it in
		// good order.
		if errors.Is(context.Cause(hold), context.Canceled) {
			return tell(noteLeave, 0)
		}
		if err := w.step(hold, tell); err != nil {
			return err
		}
	}
}

// step does the step that the file says is next.
func (w *worker) step(hold context.Context, tell func(what string, step int) error) error {
	done, err := w.shop.readStock()
	if err != nil {
		return err
	}
	if err := tell(noteBegin, done+1); err != nil {
		return err
	}
	time.Sleep(payment)
	// The last look before writing, as in a sale.
	if cause := context.Cause(hold); cause != nil && !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("in step %d: %w", done+1, cause)
	}
	if err := w.shop.writeStock(done + 1); err != nil {
		return err
	}
	return tell(noteEnd, done+1)
}
