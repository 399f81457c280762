package etcdlock

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/lease"
)

// A Trace is a set of hooks in the manner of net/http/httptrace. Any of them may
// be nil. A goroutine of the Session calls them one at a time and in the order of
// the events, some time after the event: a hook that blocks or panics holds up or
// skips other hooks, never a lock. While hooks are blocked, at most 16,384 events
// are kept; later ones are dropped.
//
// The hooks named ...Context report the same as the hooks without, are called after them, and get
// the context of a call for its values: for the parent of a span, for instance. It is the very
// context that Lock, RLock, Acquire, LockAll, Do or their like was given, or context.Background
// with [Mutex.Locker]. It may have ended. Events without a call (leases, removals, an unreachable
// etcd) have no such hook.
//
// The lease hooks, Unavailable and SetBack belong to the Session's Trace (to New's, for a Mutex
// with its own lease). The other hooks belong to the Mutex's.
type Trace struct {
	// Queued: a wait began behind holder, with ahead contenders ahead of it (approximate above
	// eight). Either Acquired or GaveUp follows, once, with the same ahead.
	Queued func(name string, ahead int, holder Contender)
	// GaveUp: Lock, TryLock, Do or their like returned err without a hold. If it had queued, it
	// was behind ahead contenders. Otherwise, and always with TryLock, ahead is 0.
	GaveUp func(name string, waited time.Duration, ahead int, err error)
	// Acquired: a hold began, after a wait behind ahead contenders when queued. Either
	// Released or Lost follows, once.
	Acquired func(name string, token int64, waited time.Duration, ahead int)
	// Shared: the hold of the Acquired right before it is not exclusive. Other holds may be beside
	// it: readers, mode "read", with weight 1 (see [RWMutex.RLock]), or permits, mode "permit", of
	// which it has as many as weight (see [Semaphore.Acquire]). For the modes see [Contender.Mode].
	// It is not called for a hold that is exclusive.
	Shared func(name string, token int64, mode string, weight int)
	// Released: a hold ended by Unlock or Close, without a loss. If etcd did not confirm
	// the release, CleanupPending reports it.
	Released func(name string, token int64, held time.Duration)
	// Lost: a hold ended without its release, for the reason in its LostError.
	Lost func(name string, token int64, held time.Duration, reason error)
	// Recalled: a hold that listens (see [WithRecall]) has noticed a request, or a later one that
	// ends it sooner. It ends by its Unlock, or when the grace is over; Released or Lost follows.
	Recalled func(name string, token int64, r RecallRequest)

	// Led: a call of the function of [Mutex.Lead] is over, after the time held, with the error err
	// that [Mutex.Do] would have returned. Its lock is released, or lost.
	Led func(name string, token int64, held time.Duration, err error)

	// QueuedContext: as Queued, with the context of the waiting call.
	QueuedContext func(ctx context.Context, name string, ahead int, holder Contender)
	// GaveUpContext: as GaveUp, with the context of the call that returned err.
	GaveUpContext func(ctx context.Context, name string, waited time.Duration, ahead int, err error)
	// AcquiredContext: as Acquired, with the context of the call that began the hold.
	AcquiredContext func(ctx context.Context, name string, token int64, waited time.Duration,
		ahead int)
	// ReleasedContext: as Released, with the context of the call that began the hold, not of
	// the one that ended it.
	ReleasedContext func(ctx context.Context, name string, token int64, held time.Duration)
	// LostContext: as Lost, with the context of the call that began the hold.
	LostContext func(ctx context.Context, name string, token int64, held time.Duration, reason error)

	// LedContext: as Led, with the context that Lead was given.
	LedContext func(ctx context.Context, name string, token int64, held time.Duration, err error)

	// LeaseGranted: the Session has a lease.
	LeaseGranted func(lease clientv3.LeaseID, ttl time.Duration)
	// LeaseRenewed: etcd acknowledged a renewal.
	LeaseRenewed func(lease clientv3.LeaseID, roundTrip time.Duration)
	// RenewalFailed: an attempt to renew failed; more follow. The end of a renewal stream that
	// has answered before, with its token or its member, is not a failure yet.
	RenewalFailed func(lease clientv3.LeaseID, err error)
	// LeaseAtRisk: less than half of the TTL less the margin remains until the lease's holds
	// are lost, and no renewal is acknowledged. It is called again with each further attempt.
	LeaseAtRisk func(lease clientv3.LeaseID, remaining time.Duration)
	// LeaseReplaced: no new hold will use the lease old any more, because it was lost,
	// is in doubt, or was given back.
	LeaseReplaced func(old clientv3.LeaseID, reason error)

	// Unavailable: a call waits for etcd, which has not answered for the time since. The reason
	// err is gRPC's own if there is no connection, and also [ErrUnavailable]. The hook is called
	// after the first attempt without an answer and then every 10 s, once for all calls of
	// the Session.
	Unavailable func(err error, since time.Duration)
	// SetBack: etcd's revision went back from known to revision, or it is another cluster:
	// it was restored or wiped, or the client was moved. The Session reads its keys again.
	SetBack func(known, revision int64)

	// CleanupPending: a key must go and is being removed in the background.
	CleanupPending func(key string)
	// CleanupDone: that key is gone for certain.
	CleanupDone func(key string)
}

// JoinTraces returns one Trace that calls the hooks of all the given ones, in their order. Use it
// where [WithTrace] takes one Trace and there are several: for metrics and spans, for instance. A
// hook that none of them has stays nil, and a nil Trace has none. The result has the hooks that
// the Traces have now; later changes to them do not change it. A hook that panics skips the same
// hook of the Traces after it.
func JoinTraces(traces ...*Trace) *Trace {
	joined := new(Trace)
	fields := reflect.ValueOf(joined).Elem()
	for i := range fields.NumField() { // so that no hook is forgotten
		var hooks []reflect.Value
		for _, t := range traces {
			if t == nil {
				continue
			}
			if hook := reflect.ValueOf(t).Elem().Field(i); !hook.IsNil() {
				hooks = append(hooks, hook)
			}
		}
		field := fields.Field(i)
		switch len(hooks) {
		case 0:
		case 1:
			field.Set(hooks[0])
		default:
			field.Set(reflect.MakeFunc(field.Type(), func(args []reflect.Value) []reflect.Value {
				for _, hook := range hooks {
					hook.Call(args)
				}
				return nil
			}))
		}
	}
	return joined
}

// tellsQueued reports whether a hook wants to know what is ahead of a claim that queues.
func (t *Trace) tellsQueued() bool {
	return t.Queued != nil || t.QueuedContext != nil
}

// A tracer reports events to the hooks of a Trace that are set, in the order of its calls.
type tracer struct {
	*Trace
	hooks *events.Queue
}

func (r tracer) queued(caller context.Context, name string, ahead int, holder Contender) {
	if r.Queued != nil {
		r.hooks.Run(func() { r.Queued(name, ahead, holder) })
	}
	if r.QueuedContext != nil {
		r.hooks.Run(func() { r.QueuedContext(caller, name, ahead, holder) })
	}
}

func (r tracer) gaveUp(
	caller context.Context, name string, waited time.Duration, ahead int, err error,
) {
	if r.GaveUp != nil {
		r.hooks.Run(func() { r.GaveUp(name, waited, ahead, err) })
	}
	if r.GaveUpContext != nil {
		r.hooks.Run(func() { r.GaveUpContext(caller, name, waited, ahead, err) })
	}
}

func (r tracer) acquired(
	caller context.Context, name string, token int64, waited time.Duration, ahead int,
) {
	if r.Acquired != nil {
		r.hooks.Run(func() { r.Acquired(name, token, waited, ahead) })
	}
	if r.AcquiredContext != nil {
		r.hooks.Run(func() { r.AcquiredContext(caller, name, token, waited, ahead) })
	}
}

func (r tracer) shared(name string, token int64, mode string, weight int) {
	if r.Shared != nil {
		r.hooks.Run(func() { r.Shared(name, token, mode, weight) })
	}
}

func (r tracer) released(caller context.Context, name string, token int64, held time.Duration) {
	if r.Released != nil {
		r.hooks.Run(func() { r.Released(name, token, held) })
	}
	if r.ReleasedContext != nil {
		r.hooks.Run(func() { r.ReleasedContext(caller, name, token, held) })
	}
}

func (r tracer) lost(
	caller context.Context, name string, token int64, held time.Duration, reason error,
) {
	if r.Lost != nil {
		r.hooks.Run(func() { r.Lost(name, token, held, reason) })
	}
	if r.LostContext != nil {
		r.hooks.Run(func() { r.LostContext(caller, name, token, held, reason) })
	}
}

func (r tracer) recalled(name string, token int64, request RecallRequest) {
	if r.Recalled != nil {
		r.hooks.Run(func() { r.Recalled(name, token, request) })
	}
}

func (r tracer) led(caller context.Context, name string, token int64, held time.Duration, err error) {
	if r.Led != nil {
		r.hooks.Run(func() { r.Led(name, token, held, err) })
	}
	if r.LedContext != nil {
		r.hooks.Run(func() { r.LedContext(caller, name, token, held, err) })
	}
}

// ofLeases are the hooks for what happens to leases, with log.
func (r tracer) ofLeases(log func(slog.Level, string, ...any)) lease.Hooks {
	return lease.Hooks{
		Granted:       hookOf(r.hooks, &r.LeaseGranted),
		Renewed:       hookOf(r.hooks, &r.LeaseRenewed),
		RenewalFailed: hookOf(r.hooks, &r.RenewalFailed),
		AtRisk:        hookOf(r.hooks, &r.LeaseAtRisk),
		Replaced:      hookOf(r.hooks, &r.LeaseReplaced),
		Log:           log,
	}
}

// hookOf is what reports an event to a hook, if that is set.
func hookOf[A, B any](q *events.Queue, hook *func(A, B)) func(A, B) {
	return func(a A, b B) {
		if h := *hook; h != nil {
			q.Run(func() { h(a, b) })
		}
	}
}

func (r tracer) unavailable(reason error, since time.Duration) {
	if r.Unavailable != nil {
		err := &opError{text: reason.Error(), wraps: []error{ErrUnavailable, reason}}
		r.hooks.Run(func() { r.Unavailable(err, since) })
	}
}

func (r tracer) setBack(known, revision int64) {
	if r.SetBack != nil {
		r.hooks.Run(func() { r.SetBack(known, revision) })
	}
}

func (r tracer) cleanupPending(key string) {
	if r.CleanupPending != nil {
		r.hooks.Run(func() { r.CleanupPending(key) })
	}
}

func (r tracer) cleanupDone(key string) {
	if r.CleanupDone != nil {
		r.hooks.Run(func() { r.CleanupDone(key) })
	}
}

// tell logs a record, in order with the hooks.
func (c *config) tell(q *events.Queue, level slog.Level, message string, args []any) {
	if logger := c.logger; logger != nil {
		q.Run(func() { logger.Log(context.Background(), level, "etcdlock: "+message, args...) })
	}
}
