// Package etcdlockotel makes OpenTelemetry spans of etcdlock's locks.
//
//	session, err := etcdlock.NewSession(client, etcdlock.WithTrace(etcdlockotel.NewTrace()))
//
// From then on each call of Lock, TryLock, Do and TryDo shows below the span in its context, if
// there is one. Use [etcdlock.JoinTraces] to combine the hooks with others.
//
// # Spans
//
// A span etcdlock.wait is a call until its hold begins, or until it ends without one. A span
// etcdlock.hold is a hold, from its beginning to its release or loss. Both are of the kind
// internal. The parent of both is the span in the context of the call. Without one they are
// roots. They have these attributes:
//
//	etcdlock.name      string  the name of the lock
//	etcdlock.token     int     the fencing token of the hold
//	etcdlock.acquired  bool    of a wait: whether it ended with a hold
//	etcdlock.ahead     int     of a wait: contenders ahead of it
//	error.type         string  why there is no hold, or why it was lost
//
// The error.type of a wait is unavailable, timeout, canceled, closed or _OTHER. The error.type of
// a hold is expired, taken, max_hold or _OTHER. The span's status is then an error with its text.
// A TryLock that finds others is not an error.
//
// Two events say more. etcdlock.queued in the caller's span marks the begin of a wait behind
// others. It has etcdlock.name, etcdlock.ahead, and etcdlock.holder.owner, .host and .pid of the
// holder, so the trace of a request that gave up says whom it waited for. etcdlock.lost marks the
// end of a lost hold.
//
// A span is made when it is over, and dated back. So nothing is kept between hooks, and nothing
// can leak. Its length is exact. Its place on the timeline is late by the time that the hook
// waited for other hooks.
package etcdlockotel
