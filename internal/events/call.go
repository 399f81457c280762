package events

import (
	"context"
	"time"
)

// A CallKey is the key of a Call in the context of a call that locks: a Trace's Start puts it
// there.
type CallKey struct{}

// A Call learns of the hold of a call at once, in the goroutine of the call. etcdlockotel has the
// span of the hold begin so, before the work: hooks run some time after the event.
type Call interface {
	// Holds says that a hold has begun, after the call has waited for it. ctx is the call's. The
	// context that Holds makes from it is the parent of the work. Hooks may have told of the hold
	// before, and of its end. It is called once for a call, and may be called again in calls of the
	// work whose own Start has put no Call.
	Holds(ctx context.Context, waited time.Duration) context.Context
}

// ByClose is the key of true in the context with which a Trace is told that a hold was released, if
// Close of its Session has ended it, and no Unlock has. By that etcdlocktest tells a test that it
// forgets one.
type ByClose struct{}
