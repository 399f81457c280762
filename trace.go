package etcdlock

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/events"
)

// A Trace is a set of hooks, any of which may be nil, in the manner of
// net/http/httptrace. Each is called from a goroutine of the Session, one at a
// time and in the order of the events, some time after the event: a hook that
// blocks or panics holds up or skips other hooks, never a lock. While hooks are
// blocked, at most 16,384 events are kept; later ones are dropped.
//
// The hooks that are named ...Context tell the same as those without, after them, and get the
// context of a call, for its values: for a span's parent, say. It is the one that was given to
// Lock, TryLock, Do or TryDo, as it was given; the Background of package context with
// [Mutex.Locker]. It may have ended. What has no call (leases, removals, etcd that is away) has
// no such hook.
//
// The lease hooks and Unavailable are those of the Session's Trace (of New's, for a Mutex
// with a lease of its own); the others are those of the Mutex.
type Trace struct {
	// Queued: a wait began, with ahead contenders before it, about if they are more than eight,
	// behind holder. Either Acquired or GaveUp follows, once, with the same ahead.
	Queued func(name string, ahead int, holder Contender)
	// GaveUp: Lock, TryLock, Do or TryDo returned err without a hold. If it had queued, it
	// was behind ahead contenders; otherwise, as always with TryLock, ahead is 0.
	GaveUp func(name string, waited time.Duration, ahead int, err error)
	// Acquired: a hold began, after a wait behind ahead contenders when queued. Either
	// Released or Lost follows, once.
	Acquired func(name string, token int64, waited time.Duration, ahead int)
	// Released: a hold was given up whole, by Unlock or Close. If etcd did not confirm
	// the release, CleanupPending tells.
	Released func(name string, token int64, held time.Duration)
	// Lost: a hold ended without its release, for the reason that a LostError has.
	Lost func(name string, token int64, held time.Duration, reason error)

	// QueuedContext: as Queued, with the context of the call that waits.
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

	// LeaseGranted: the Session has a lease.
	LeaseGranted func(lease clientv3.LeaseID, ttl time.Duration)
	// LeaseRenewed: etcd acknowledged a renewal.
	LeaseRenewed func(lease clientv3.LeaseID, roundTrip time.Duration)
	// RenewalFailed: an attempt to renew failed; further ones follow. That a stream of renewals
	// ends which has answered before, with its token or its member, is no failure yet.
	RenewalFailed func(lease clientv3.LeaseID, err error)
	// LeaseAtRisk: less than half of the TTL less the margin remains until its holds are
	// lost, and no renewal is acknowledged. It is told again with each further attempt.
	LeaseAtRisk func(lease clientv3.LeaseID, remaining time.Duration)
	// LeaseReplaced: no new hold will use the lease old any more, because it was lost,
	// is in doubt, or is given back.
	LeaseReplaced func(old clientv3.LeaseID, reason error)

	// Unavailable: a call waits for etcd, which has not answered for the time since. The reason
	// err is gRPC's own if there is no connection; it is [ErrUnavailable], too. This is told
	// after the first attempt without an answer and then each 10 s, once for all calls of
	// the Session.
	Unavailable func(err error, since time.Duration)
	// SetBack: etcd's revision went back from known to revision, or it is another cluster:
	// it was restored or wiped, or the client was moved. What was known of its keys is read
	// anew. It is told by the Session's Trace.
	SetBack func(known, revision int64)

	// CleanupPending: a key must go, and is being removed in the background.
	CleanupPending func(key string)
	// CleanupDone: that key is gone for certain.
	CleanupDone func(key string)
}

// JoinTraces returns one Trace that calls the hooks of all, in the order given, since
// [WithTrace] takes one: metrics and spans, say. A hook that none of them has stays nil, and a
// nil Trace has none. The Trace holds the hooks that there are now: what is changed in traces
// later does not change it. A hook that panics skips the same hook of those that come after it.
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

// tellsQueued reports whether somebody wants to know who is before one that queues.
func (t *Trace) tellsQueued() bool {
	return t != nil && (t.Queued != nil || t.QueuedContext != nil)
}

// tell has a record logged, in the order of the hooks.
func (c *config) tell(q *events.Queue, level slog.Level, message string, args []any) {
	if logger := c.logger; logger != nil {
		q.Run(func() { logger.Log(context.Background(), level, "etcdlock: "+message, args...) })
	}
}
