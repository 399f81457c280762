package hold

import (
	"context"
	"reflect"
	"time"

	"github.com/etcdlock/etcdlock/internal/lease"
)

// WithHold is a context that comes from parent and ends with h, which may be nil: then, and if h
// was unlocked or closed, it has ended with NotHeld. For one parent it is one context: h and a
// parent that goes on both keep what they have to end.
// (TestAHoldKeepsNoMoreContextsThanItHasParents.)
func WithHold(parent context.Context, h *Hold) context.Context {
	if h == nil {
		return EndedContext(parent, errs.NotHeld)
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
	case cause == errs.Unlocked || cause == errs.Closed:
		c.End(errs.NotHeld)
	case one != lease.Ender(c) || cause != nil:
		c.End(cause)
	case c.Context.Err() != nil: // its parent has ended, and forget may have run
		c.forget()
	}
	return one.(*holdContext)
}

// EndedContext is a context that comes from parent and has ended with a cause.
func EndedContext(parent context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	cancel(cause)
	return ctx
}

// From is the innermost hold that ctx comes from, nil if there is none. It may have ended.
func From(ctx context.Context) *Hold {
	if c := holdContextOf(ctx); c != nil {
		return c.hold
	}
	return nil
}

// holdKey is the key of a context's innermost holdContext.
type holdKey struct{}

// A holdContext is a context that ends with a hold. Each of its methods checks the
// clocks first.
type holdContext struct {
	context.Context // comes from parent
	parent          context.Context
	hold            *Hold
	cancel          context.CancelCauseFunc
	stopForget      func() bool
}

// End ends the context, and all that comes from it, with a cause (lease.Ender).
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

// Err implements [context.Context].
func (c *holdContext) Err() error {
	c.check()
	return c.Context.Err()
}

// Done implements [context.Context].
func (c *holdContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

// Value implements [context.Context]. context.Cause comes through here.
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
