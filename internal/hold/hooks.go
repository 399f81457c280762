package hold

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/quote"
)

// Hooks are the user's hooks. The API says when each is called, and with what. Any of them may be
// nil.
type Hooks struct {
	Start    func(context.Context, Call) context.Context // at once; the others are queued
	Queued   hook[Queued]
	Waiting  hook[Waiting]
	GaveUp   hook[GaveUp]
	Acquired hook[Acquired]
	Released hook[Released]
	Lost     hook[Lost]
	Recalled hook[Recalled]
	Led      hook[Led]

	LeaseGranted  hook[LeaseGranted]
	LeaseRenewed  hook[LeaseRenewed]
	RenewalFailed hook[RenewalFailed]
	LeaseAtRisk   hook[LeaseAtRisk]
	LeaseReplaced hook[LeaseReplaced]

	Unavailable    hook[Unavailable]
	SetBack        hook[SetBack]
	CleanupPending hook[Cleanup]
	CleanupDone    hook[Cleanup]
}

// A hook is one for events of a kind.
type hook[E any] = func(context.Context, E)

// What the hooks are told.
type (
	Call struct {
		Name   string
		Names  []string // nil if there is one
		Kind   line.Kind
		Weight int
		Try    bool
	}
	Queued struct {
		Name   string
		Ahead  int
		Holder Contender
	}
	Waiting struct {
		Name   string
		Waited time.Duration
		Ahead  int
		Holder Contender
	}
	GaveUp struct {
		Name   string
		Waited time.Duration
		Ahead  int
		Err    error
	}
	Acquired struct {
		Name   string
		Token  int64
		Kind   line.Kind
		Weight int
		Waited time.Duration
		Ahead  int
	}
	Released struct {
		Name  string
		Token int64
		Held  time.Duration
	}
	Lost struct {
		Name   string
		Token  int64
		Held   time.Duration
		Reason error
	}
	Recalled struct {
		Name    string
		Token   int64
		Request line.Recall
	}
	Led struct {
		Name  string
		Token int64
		Held  time.Duration
		Err   error
	}
	LeaseGranted struct {
		Lease clientv3.LeaseID
		TTL   time.Duration
	}
	LeaseRenewed struct {
		Lease     clientv3.LeaseID
		RoundTrip time.Duration
	}
	RenewalFailed struct {
		Lease clientv3.LeaseID
		Err   error
	}
	LeaseAtRisk struct {
		Lease     clientv3.LeaseID
		Remaining time.Duration
	}
	LeaseReplaced struct {
		Old    clientv3.LeaseID
		Reason error
	}
	Unavailable struct {
		Err   error
		Since time.Duration
	}
	SetBack struct {
		Known, Revision int64
		Until           time.Time
	}
	Cleanup struct{ Key string }
)

// start calls the hook Start of a call with ctx, and returns the context of the call.
func (h *Hooks) start(ctx context.Context, c Call) context.Context {
	return Made(ctx, func() context.Context { return h.Start(ctx, c) })
}

// holds tells what Start has left in ctx, the context of a call, that its hold has begun. It
// returns the parent of the work: the hooks may not have run when that begins.
// (TestTheWorkIsAChildOfItsHold in etcdlockotel.)
func (*Hooks) holds(ctx context.Context, waited time.Duration) context.Context {
	c, ok := ctx.Value(events.CallKey{}).(events.Call)
	if !ok {
		return ctx
	}
	return Made(ctx, func() context.Context { return c.Holds(ctx, waited) })
}

// Made is the context that the function of makes from ctx, or ctx if it panics or makes none.
func Made(ctx context.Context, of func() context.Context) (result context.Context) {
	defer func() {
		if p := recover(); p != nil || result == nil {
			result = ctx
		}
	}()
	return of()
}

// report has a hook called with ctx and e, if it is set.
func report[E any](q *events.Queue, to hook[E], ctx context.Context, e E) {
	if to != nil {
		queueHook(q, to, ctx, e)
	}
}

// queueHook is for report, whose e is not to be allocated where there is no hook.
func queueHook[E any](q *events.Queue, to hook[E], ctx context.Context, e E) {
	q.Run(func() { to(ctx, e) })
}

// tell logs a record, in order with the hooks. Others may have written the texts among args.
func (c *Config) tell(q *events.Queue, level slog.Level, message string, args []any) {
	logger := c.Logger
	if logger == nil {
		return
	}
	for i, arg := range args {
		if text, is := arg.(string); is {
			args[i] = quote.Text(text)
		}
	}
	q.Run(func() { logger.Log(context.Background(), level, "etcdlock: "+message, args...) })
}
