package etcdlock

import (
	"context"
	"log/slog"
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

// tell has a record logged, in the order of the hooks.
func (c *config) tell(q *events.Queue, level slog.Level, message string, args []any) {
	if logger := c.logger; logger != nil {
		q.Run(func() { logger.Log(context.Background(), level, "etcdlock: "+message, args...) })
	}
}
