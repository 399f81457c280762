package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/hold"
)

// A Trace is a set of hooks in the manner of net/http/httptrace: one for each kind of event, with a
// struct that tells of it. Any of them may be nil. Later versions may add hooks, and fields to the
// structs.
//
// Start is called in the goroutine of a call. A goroutine of the Session calls the others one at a
// time, in the order of the events, some time after them: a hook that blocks or panics holds up or
// skips other hooks, never a lock. While hooks are blocked at most 16,384 events are kept; later
// ones are dropped.
//
// Hooks get the context of the call that began a hold, as Start returned it. Use only its values:
// it may have ended. For events without a call it is context.Background. The lease hooks,
// Unavailable and SetBack belong to the Session's Trace (NewMutex's, for a Mutex with its own
// lease), the others to the Mutex's.
type Trace struct {
	// Start: a call that locks begins. The context that it returns must come from ctx; nil stands for
	// ctx. The requests and the later hooks of the call get it. The context of the function of Do,
	// Lead or their like comes from it, so a span that begins here is the parent of the work. Either
	// Acquired or GaveUp follows, once for each name. No hook is called for a call that nests (see
	// [WithReentrancy]), or is [ErrDeadlock], or whose argument is refused, or whose ctx has ended
	// before.
	//
	// Start must not block: the call waits for it. If it panics the call goes on with ctx.
	Start func(ctx context.Context, e StartEvent) context.Context

	// Queued: a wait began behind other contenders. Acquired or GaveUp follows, once, with the same
	// Ahead.
	Queued func(ctx context.Context, e QueuedEvent)
	// Waiting: a wait has lasted for 30 s, and each time it has doubled since. The event says what the
	// wait knows: no request is made for it.
	Waiting func(ctx context.Context, e WaitingEvent)
	// GaveUp: a call that has begun (see Start) returned an error without a hold.
	GaveUp func(ctx context.Context, e GaveUpEvent)
	// Acquired: a hold began. Released or Lost follows, once.
	Acquired func(ctx context.Context, e AcquiredEvent)
	// Released: a hold ended by Unlock or Close, without a loss. If etcd did not confirm the Unlock,
	// CleanupPending has mostly come before.
	Released func(ctx context.Context, e ReleasedEvent)
	// Lost: a hold ended without its release.
	Lost func(ctx context.Context, e LostEvent)
	// Recalled: a hold that listens (see [WithRecall]) has noticed a request, or a later one that ends
	// it sooner. Released or Lost follows.
	Recalled func(ctx context.Context, e RecalledEvent)
	// Led: a call of the function of [Mutex.Lead] is over. Its lock is released, or lost.
	Led func(ctx context.Context, e LedEvent)

	// LeaseGranted: the Session has a lease.
	LeaseGranted func(ctx context.Context, e LeaseGrantedEvent)
	// LeaseRenewed: etcd acknowledged a renewal.
	LeaseRenewed func(ctx context.Context, e LeaseRenewedEvent)
	// RenewalFailed: an attempt to renew failed; more follow. (The end of a stream that has answered
	// before is no failure yet.)
	RenewalFailed func(ctx context.Context, e RenewalFailedEvent)
	// LeaseAtRisk: less than half of the TTL less the margin remains until the lease's holds are lost,
	// and no renewal is acknowledged. It comes again with each further attempt.
	LeaseAtRisk func(ctx context.Context, e LeaseAtRiskEvent)
	// LeaseReplaced: no new hold will use a lease any more: it was lost, is in doubt, or was given
	// back.
	LeaseReplaced func(ctx context.Context, e LeaseReplacedEvent)

	// Unavailable: a call waits for an etcd that does not answer. It comes after the first attempt and
	// then every 10 s, once for all calls of the Session.
	Unavailable func(ctx context.Context, e UnavailableEvent)
	// SetBack: etcd was restored or wiped, or the client was moved to another cluster.
	SetBack func(ctx context.Context, e SetBackEvent)

	// CleanupPending: a key must go and is being removed in the background.
	CleanupPending func(ctx context.Context, e CleanupPendingEvent)
	// CleanupDone: that key is gone for certain.
	CleanupDone func(ctx context.Context, e CleanupDoneEvent)
}

// A StartEvent is a call that locks.
type StartEvent struct {
	Name   string   // of the lock, of several names the first
	Names  []string // all of them; nil if there is one
	Mode   Mode
	Weight int  // how many permits it wants, otherwise 1
	Try    bool // it waits for no other contender
}

// A QueuedEvent is a wait behind other contenders.
type QueuedEvent struct {
	Name   string
	Ahead  int // contenders ahead of it; approximate above eight
	Holder Contender
}

// A WaitingEvent is a wait that lasts.
type WaitingEvent struct {
	Name   string
	Waited time.Duration
	Ahead  int       // contenders ahead, as last known
	Holder Contender // as far as known, zero otherwise
}

// A GaveUpEvent is a call that got no hold.
type GaveUpEvent struct {
	Name   string
	Waited time.Duration // since the call began
	Ahead  int           // contenders it was behind, if it had queued; otherwise, and with TryLock, 0
	Err    error         // that the call returned
}

// An AcquiredEvent is a hold that began.
type AcquiredEvent struct {
	Name   string
	Token  int64
	Mode   Mode
	Weight int           // how many permits it has, otherwise 1
	Waited time.Duration // since the call began
	Ahead  int           // contenders it was behind, if it had queued
}

// A ReleasedEvent is a hold that ended without a loss.
type ReleasedEvent struct {
	Name  string
	Token int64
	Held  time.Duration
}

// A LostEvent is a hold that was lost.
type LostEvent struct {
	Name   string
	Token  int64
	Held   time.Duration
	Reason error // in its LostError
}

// A RecalledEvent is a request to a hold to end.
type RecalledEvent struct {
	Name    string
	Token   int64
	Request RecallRequest
}

// A LedEvent is a term of leadership.
type LedEvent struct {
	Name  string
	Token int64
	Held  time.Duration
	Err   error // as of [Mutex.Do], or the panic; nil if the function, or Close, has unlocked
}

// A LeaseGrantedEvent is a lease that a Session begins to use.
type LeaseGrantedEvent struct {
	Lease clientv3.LeaseID
	TTL   time.Duration // as granted
}

// A LeaseRenewedEvent is a renewal.
type LeaseRenewedEvent struct {
	Lease     clientv3.LeaseID
	RoundTrip time.Duration // from when it was due until it counted
}

// A RenewalFailedEvent is an attempt to renew a lease that failed.
type RenewalFailedEvent struct {
	Lease clientv3.LeaseID
	Err   error
}

// A LeaseAtRiskEvent is an attempt to renew a lease that comes late.
type LeaseAtRiskEvent struct {
	Lease     clientv3.LeaseID
	Remaining time.Duration // until its holds are lost
}

// A LeaseReplacedEvent is a lease that gets no new holds.
type LeaseReplacedEvent struct {
	Old    clientv3.LeaseID
	Reason error
}

// An UnavailableEvent is an etcd that does not answer.
type UnavailableEvent struct {
	Err   error         // gRPC's own reason if there is no connection; it is also [ErrUnavailable]
	Since time.Duration // for how long it has not answered
}

// A SetBackEvent is an etcd whose history has changed.
type SetBackEvent struct {
	Known, Revision int64 // the highest revision before, and that of now

	// Until is when each hold from before must have ended, at names in whose line the Session had no
	// exclusive place. See WithRestoreDelay.
	Until time.Time
}

// A CleanupPendingEvent is a key that is being removed.
type CleanupPendingEvent struct{ Key string }

// A CleanupDoneEvent is a key that is gone.
type CleanupDoneEvent struct{ Key string }

// JoinTraces returns one Trace that calls the hooks of all the given ones, in their order. A hook
// that none of them has stays nil, and a nil Trace has none.
//
// The result has the hooks that the Traces have now. A hook that panics skips the same hook of the
// Traces after it, except that Start does not. Each Start gets the context of the one before.
func JoinTraces(traces ...*Trace) *Trace {
	return &Trace{
		Start:         joinStarts(traces),
		Queued:        join(traces, func(t *Trace) hook[QueuedEvent] { return t.Queued }),
		Waiting:       join(traces, func(t *Trace) hook[WaitingEvent] { return t.Waiting }),
		GaveUp:        join(traces, func(t *Trace) hook[GaveUpEvent] { return t.GaveUp }),
		Acquired:      join(traces, func(t *Trace) hook[AcquiredEvent] { return t.Acquired }),
		Released:      join(traces, func(t *Trace) hook[ReleasedEvent] { return t.Released }),
		Lost:          join(traces, func(t *Trace) hook[LostEvent] { return t.Lost }),
		Recalled:      join(traces, func(t *Trace) hook[RecalledEvent] { return t.Recalled }),
		Led:           join(traces, func(t *Trace) hook[LedEvent] { return t.Led }),
		LeaseGranted:  join(traces, func(t *Trace) hook[LeaseGrantedEvent] { return t.LeaseGranted }),
		LeaseRenewed:  join(traces, func(t *Trace) hook[LeaseRenewedEvent] { return t.LeaseRenewed }),
		RenewalFailed: join(traces, func(t *Trace) hook[RenewalFailedEvent] { return t.RenewalFailed }),
		LeaseAtRisk:   join(traces, func(t *Trace) hook[LeaseAtRiskEvent] { return t.LeaseAtRisk }),
		LeaseReplaced: join(traces, func(t *Trace) hook[LeaseReplacedEvent] { return t.LeaseReplaced }),
		Unavailable:   join(traces, func(t *Trace) hook[UnavailableEvent] { return t.Unavailable }),
		SetBack:       join(traces, func(t *Trace) hook[SetBackEvent] { return t.SetBack }),
		CleanupPending: join(traces, func(t *Trace) hook[CleanupPendingEvent] {
			return t.CleanupPending
		}),
		CleanupDone: join(traces, func(t *Trace) hook[CleanupDoneEvent] { return t.CleanupDone }),
	}
}

// A hook is one for events of a kind.
type hook[E any] = func(ctx context.Context, e E)

// join is the hook that calls those of all traces, nil if none has one.
func join[E any](traces []*Trace, of func(*Trace) hook[E]) hook[E] {
	var hooks []hook[E]
	for _, t := range traces {
		if t != nil && of(t) != nil {
			hooks = append(hooks, of(t))
		}
	}
	switch len(hooks) {
	case 0:
		return nil
	case 1:
		return hooks[0]
	}
	return func(ctx context.Context, e E) {
		for _, h := range hooks {
			h(ctx, e)
		}
	}
}

// joinStarts is join for Start.
func joinStarts(traces []*Trace) func(context.Context, StartEvent) context.Context {
	var starts []func(context.Context, StartEvent) context.Context
	for _, t := range traces {
		if t != nil && t.Start != nil {
			starts = append(starts, t.Start)
		}
	}
	if len(starts) == 0 {
		return nil
	}
	return func(ctx context.Context, e StartEvent) context.Context {
		for _, start := range starts {
			ctx = hold.Made(ctx, func() context.Context { return start(ctx, e) })
		}
		return ctx
	}
}

// hooksOf are the hooks of t as the engine calls them.
func hooksOf(t *Trace) *hold.Hooks {
	return &hold.Hooks{
		Start: startOf(t),
		Queued: told(t.Queued, func(e hold.Queued) QueuedEvent {
			return QueuedEvent{e.Name, e.Ahead, contenderOf(e.Holder)}
		}),
		Waiting: told(t.Waiting, func(e hold.Waiting) WaitingEvent {
			return WaitingEvent{e.Name, e.Waited, e.Ahead, contenderOf(e.Holder)}
		}),
		GaveUp: told(t.GaveUp, func(e hold.GaveUp) GaveUpEvent { return GaveUpEvent(e) }),
		Acquired: told(t.Acquired, func(e hold.Acquired) AcquiredEvent {
			return AcquiredEvent{e.Name, e.Token, modeOf(e.Kind), e.Weight, e.Waited, e.Ahead}
		}),
		Released: told(t.Released, func(e hold.Released) ReleasedEvent { return ReleasedEvent(e) }),
		Lost:     told(t.Lost, func(e hold.Lost) LostEvent { return LostEvent(e) }),
		Recalled: told(t.Recalled, func(e hold.Recalled) RecalledEvent {
			r := RecallRequest{By: e.Request.By, Reason: e.Request.Reason, Grace: e.Request.Grace}
			return RecalledEvent{e.Name, e.Token, r}
		}),
		Led: told(t.Led, func(e hold.Led) LedEvent { return LedEvent(e) }),
		LeaseGranted: told(t.LeaseGranted, func(e hold.LeaseGranted) LeaseGrantedEvent {
			return LeaseGrantedEvent(e)
		}),
		LeaseRenewed: told(t.LeaseRenewed, func(e hold.LeaseRenewed) LeaseRenewedEvent {
			return LeaseRenewedEvent(e)
		}),
		RenewalFailed: told(t.RenewalFailed, func(e hold.RenewalFailed) RenewalFailedEvent {
			return RenewalFailedEvent(e)
		}),
		LeaseAtRisk: told(t.LeaseAtRisk, func(e hold.LeaseAtRisk) LeaseAtRiskEvent {
			return LeaseAtRiskEvent(e)
		}),
		LeaseReplaced: told(t.LeaseReplaced, func(e hold.LeaseReplaced) LeaseReplacedEvent {
			return LeaseReplacedEvent(e)
		}),
		Unavailable: told(t.Unavailable, func(e hold.Unavailable) UnavailableEvent {
			return UnavailableEvent(e)
		}),
		SetBack: told(t.SetBack, func(e hold.SetBack) SetBackEvent { return SetBackEvent(e) }),
		CleanupPending: told(t.CleanupPending, func(e hold.Cleanup) CleanupPendingEvent {
			return CleanupPendingEvent(e)
		}),
		CleanupDone: told(t.CleanupDone, func(e hold.Cleanup) CleanupDoneEvent {
			return CleanupDoneEvent(e)
		}),
	}
}

// told is the hook to, called with what of makes of the engine's event; nil if there is none.
func told[E, F any](to hook[E], of func(F) E) hook[F] {
	if to == nil {
		return nil
	}
	return func(ctx context.Context, e F) { to(ctx, of(e)) }
}

// startOf is the hook Start of t as the engine calls it.
func startOf(t *Trace) func(context.Context, hold.Call) context.Context {
	if t.Start == nil {
		return nil
	}
	return func(ctx context.Context, c hold.Call) context.Context {
		return t.Start(ctx, StartEvent{c.Name, c.Names, modeOf(c.Kind), c.Weight, c.Try})
	}
}
