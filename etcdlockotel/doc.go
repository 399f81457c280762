// Package etcdlockotel makes spans of OpenTelemetry of what the locks of package etcdlock do.
//
//	session, err := etcdlock.NewSession(client, etcdlock.WithTrace(etcdlockotel.NewTrace()))
//
// From then on each call of Lock, TryLock, Do and TryDo with a context that has a span shows
// below that span. Together with other hooks it is given by [etcdlock.JoinTraces].
//
// # Spans
//
// A span etcdlock.wait is a call until its hold begins, or until it ends without one. A span
// etcdlock.hold is a hold, from its beginning to its release or loss. Both are of the kind
// internal. The parent of both is the span in the context of the call; without one they are
// roots, found by their attributes:
//
//	etcdlock.name      string  the name of the lock
//	etcdlock.token     int     the fencing token of the hold
//	etcdlock.acquired  bool    of a wait: whether it ended with a hold
//	etcdlock.ahead     int     of a wait: contenders before it
//	error.type         string  why there is no hold, or why it was lost
//
// The error.type of a wait is unavailable, timeout, canceled or closed, that of a hold expired,
// taken or max_hold, and of both _OTHER; the span's status is then an error, with the text.
// That TryLock has found others is an answer, and no error.
//
// Two events tell more: etcdlock.queued, in the span of the caller, when a wait begins behind
// others (etcdlock.name, etcdlock.ahead, and etcdlock.holder.owner, .host and .pid of the one
// that holds), so that the trace of a request that gave up says for whom it waited; and
// etcdlock.lost at the end of a hold that was lost.
//
// A span is made when it is over, and dated back. So nothing is kept between hooks, and nothing
// can leak. Its length is exact; its place on the time line is late by the time for which the
// hook waited for others.
package etcdlockotel
