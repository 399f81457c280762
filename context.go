package etcdlock

import (
	"context"
	"reflect"
	"time"

	"github.com/etcdlock/etcdlock/internal/lease"
)

// withHold is a context that comes from parent and ends with h, which may be nil: then, and if h
// was unlocked or closed, it has ended with ErrNotHeld. For one parent it is one context: h and a
// parent that goes on both keep what they have to end.
// (TestAHoldKeepsNoMoreContextsThanItHasParents.)
func withHold(parent context.Context, h *hold) context.Context {
	if h == nil {
		return endedContext(parent, ErrNotHeld)
	}
	if c, ok := parent.(*holdContext); ok && c.hold == h {
		return c
	}
	if !reflect.ValueOf(parent).Comparable() {
		parent = &struct{ context.Context }{parent}
	}
	key := lease.Key{Of: h, Parent: parent}
	if c := h.life.Context(key); c != nil {
		return c.(*holdContext)
	}
	c := &holdContext{hold: h, parent: parent}
	c.Context, c.cancel = context.WithCancelCause(parent)
	// When parent ends first, the hold need not know this context any more.
	c.stopForget = context.AfterFunc(c.Context, c.forget)
	one, cause := h.life.Add(key, c)
	switch {
	case cause == ErrUnlocked || cause == ErrClosed:
		c.End(ErrNotHeld)
	case one != lease.Ender(c) || cause != nil:
		c.End(cause)
	case c.Context.Err() != nil: // its parent has ended, and forget may have run
		c.forget()
	}
	return one.(*holdContext)
}

func endedContext(parent context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	cancel(cause)
	return ctx
}

// TokenFrom returns the fencing token of the innermost hold that ctx came from, by [Mutex.Context],
// [Hold.Context], Do or a method like it. It stays the same after the hold has ended. Without a
// hold ok is false.
func TokenFrom(ctx context.Context) (token int64, ok bool) {
	if ctx == nil {
		return 0, false
	}
	if c := holdContextOf(ctx); c != nil {
		return c.hold.place.Ticket.Rev(), true
	}
	return 0, false
}

// RecallFrom returns a channel that is closed once the innermost hold that ctx came from is
// recalled. The holder then has the grace of the request, up to the Deadline of its [Status], to
// come to a good point and unlock.
//
// The channel stays as it is when the hold ends otherwise: wait for the end of ctx, too. It is nil,
// and a receive from it blocks for ever, if ctx comes from no hold, or from one that does not
// listen (see [WithRecall]).
func RecallFrom(ctx context.Context) <-chan struct{} {
	if ctx == nil {
		return nil
	}
	c := holdContextOf(ctx)
	if c == nil || c.hold.recall == nil {
		return nil
	}
	return c.hold.recall.told
}

// holdKey is the key of a context's innermost holdContext.
type holdKey struct{}

// A holdContext is a context that ends with a hold. Each of its methods checks the
// clocks first.
type holdContext struct {
	context.Context // comes from parent
	parent          context.Context
	hold            *hold
	cancel          context.CancelCauseFunc
	stopForget      func() bool
}

// End is as in lease.Ender.
func (c *holdContext) End(cause error) {
	c.stopForget()
	c.cancel(cause)
}

// check ends c if its hold has ended.
func (c *holdContext) check() {
	if c.Context.Err() != nil {
		return
	}
	if cause := c.hold.life.Cause(time.Now()); cause != nil {
		c.End(cause)
	}
}

// Err is as in context.Context.
func (c *holdContext) Err() error {
	c.check()
	return c.Context.Err()
}

// Done is as in context.Context.
func (c *holdContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

// Value is as in context.Context. context.Cause comes through here.
func (c *holdContext) Value(key any) any {
	if key == (holdKey{}) {
		return c
	}
	c.check()
	return c.Context.Value(key)
}

// outer is the context of the hold around c's, nil if there is none.
func (c *holdContext) outer() *holdContext { return holdContextOf(c.parent) }

// holdContextOf is the innermost holdContext that ctx comes from, nil if there is none.
func holdContextOf(ctx context.Context) *holdContext {
	c, _ := ctx.Value(holdKey{}).(*holdContext)
	return c
}

// forget removes c, which has ended with its parent, from its hold.
func (c *holdContext) forget() {
	c.cancel(nil) // waits until the contexts that come from it have ended too
	c.hold.life.Forget(lease.Key{Of: c.hold, Parent: c.parent}, c)
}
