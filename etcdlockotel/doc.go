// Package etcdlockotel makes OpenTelemetry spans and metrics of etcdlock's locks.
//
//	metrics, err := etcdlockotel.NewMetrics()
//	...
//	session, err := etcdlock.NewSession(client, etcdlock.WithTrace(
//		etcdlock.JoinTraces(etcdlockotel.NewTrace(), metrics)))
//
// From then on each call of Lock, TryLock, Do and TryDo shows below the span in its context, if
// there is one, and is measured. Each of the two works alone, too. Use [etcdlock.JoinTraces] to
// combine them with other hooks.
//
// # Spans
//
// A span etcdlock.wait is a call until its hold begins, or until it ends without one. A span
// etcdlock.hold is a hold, from its beginning to its release or loss. Both begin when what they
// tell of begins, in the goroutine of the call. Their parent is the span in the context of the
// call; without one they are roots. A span etcdlock.term is a term of leadership: one call of the
// function of [etcdlock.Mutex.Lead]. It is a child of the hold. All are of the kind internal.
//
// What runs during a call is below its wait: the requests to etcd, if the client is instrumented.
// The work is below the hold: the function of Do, RDo, DoAll, TryDo, Lead or their like gets a
// context that has the span of the hold. After Lock, [etcdlock.Mutex.Context] and
// [etcdlock.Hold.Context] have the span of their parent. Several names are one wait and one hold.
//
// The spans have these attributes:
//
//	etcdlock.name      string   the name of the lock, of several names the first
//	etcdlock.names     strings  several names: all of them
//	etcdlock.token     int      the fencing token of the hold
//	etcdlock.acquired  bool     of a wait: whether it ended with a hold
//	etcdlock.ahead     int      of a wait: contenders ahead of it, of several names the most
//	error.type         string   why there is no hold, or why it was lost, or why the term failed
//
// The error.type of a wait is unavailable, timeout, canceled, closed or _OTHER. The error.type of
// a hold is expired, taken, max_hold or _OTHER. That of a term is the same if the lock was lost,
// recalled if the function returned the [*etcdlock.RecalledError] of a recall, or _OTHER. The
// span's status is then an error with its text. A TryLock that finds others is not an error, nor is
// a function that returned context.Canceled, why the context of Lead had ended, or
// [etcdlock.ErrStopLeading].
//
// Two events say more. etcdlock.queued in the span of a wait marks the begin of a wait behind
// others. It has etcdlock.name, etcdlock.ahead, and etcdlock.holder.owner, .host and .pid of the
// holder, so the trace of a request that gave up says whom it waited for. etcdlock.lost marks the
// end of a lost hold.
//
// The hooks end the spans, and date the ends back: the length of a span is exact, and it is
// exported some time after its end. If hooks block for so long that a Session drops events, the
// spans of these are not exported, nor are those of a process that dies before their end.
//
// # Metrics
//
// Per kind of lock, by the attribute etcdlock.kind. [WithLockKind] derives it from the lock's name;
// without it there is no such attribute:
//
//	etcdlock.wait.duration  histogram      s         from the call to its hold or its end without one
//	etcdlock.wait.queued    updowncounter  {wait}    calls that wait behind others, now
//	etcdlock.wait.longest   gauge          s         how long the longest wait lasts, from 30 s on
//	etcdlock.hold.duration  histogram      s         from the hold's beginning to its release or loss
//	etcdlock.hold.active    updowncounter  {hold}    holds that have begun and have not ended, now
//	etcdlock.hold.lost      counter        {hold}    holds that ended without their release
//	etcdlock.hold.shared    counter        {hold}    holds that began and share their lock
//	etcdlock.hold.permits   counter        {permit}  permits that such holds have had, together
//	etcdlock.hold.recalled  counter        {recall}  recalls that a hold has noticed
//	etcdlock.term.duration  histogram      s         a call of the function of Lead
//
// Per process, about its leases and its etcd, without attributes:
//
//	etcdlock.lease.renewal.duration  histogram  s           round trip of a renewal
//	etcdlock.lease.renewal.failed    counter    {attempt}   attempts to renew that failed
//	etcdlock.lease.renewal.at_risk   counter    {attempt}   attempts begun with little time left
//	etcdlock.lease.granted           counter    {lease}     leases that a Session began to use
//	etcdlock.lease.replaced          counter    {lease}     leases that get no new hold any more
//	etcdlock.etcd.unavailable        counter    {report}    reports that calls wait for etcd
//	etcdlock.etcd.set_back           counter    {set_back}  times that etcd had an older state
//	etcdlock.removal.begun           counter    {key}       keys to remove in the background
//	etcdlock.removal.done            counter    {key}       those of them that are gone
//
// The attributes have few values. The name of a lock is not among them, since names are unbounded:
//
//	etcdlock.kind       string  of the first nine: as many values as WithLockKind returns
//	etcdlock.acquired   bool    of etcdlock.wait.duration: whether it ended with a hold
//	etcdlock.contended  bool    of etcdlock.wait.duration: whether others were ahead of it
//	etcdlock.mode       string  of etcdlock.hold.shared: read (RLock) or permit (of a Semaphore)
//	error.type          string  of the durations of waits, holds and terms, and of etcdlock.hold.lost
//
// The error.type is that of the spans: five values for a call that gave up, four for a lost hold,
// five for a term that failed. A TryLock that finds others has etcdlock.acquired false and no
// error.type.
//
// A recalled hold ends as any does: it is released, or it is lost. etcdlock.hold.recalled counts
// one for each hold that listens, so several for readers that share a key.
//
// etcdlock.hold.lost repeats the holds of etcdlock.hold.duration that have an error.type. It and
// etcdlock.hold.recalled are 0 from the first hold of a kind on, and the counters per process are 0
// at once. So the first loss is an increase, also for a backend that knows no start times.
//
// What is measured of a call has its context, so exemplars lead to the call's trace. The buckets'
// boundaries go from 1 ms to 262 s, each four times the one before. A View of the SDK sets others.
package etcdlockotel
