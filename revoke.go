package etcdlock

import (
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// revoke gives the lease back, and with it every key that is left. It retries until
// etcd confirms, the Session ends, or the lease must have expired: for two TTLs, and for two more
// from a Close on.
//
// (Do not count the time before a Close. Close would return an error at once, and etcd might
// answer within its context. TestCloseHasItsOwnTimeToRevokeALease.)
//
// A key that was put over, with another lease or none, does not go with the lease.
// (Do not take the end of the lease for the end of its keys. TestCloseLeavesNoKeyThatWasPutOver.)
func (l *lease) revoke() {
	l.tenants.BeforeRevoke()
	s := l.s
	expired := time.Now().Add(l.ttl).Add(l.ttl)
	retry := attempt.Backoff{Eager: true}
	var err error
	for {
		err = s.etcd.Revoke(s.ctx, &retry, l.id)
		if err == nil || attempt.Is(err, rpctypes.ErrLeaseNotFound) || attempt.Refused(err) ||
			s.clientClosed() || time.Now().After(expired) && s.closedFor()/2 > l.ttl {
			break
		}
		if retry.Wait(s.ctx, s.etcd.Caller) != nil {
			break
		}
	}
	if err == nil || attempt.Is(err, rpctypes.ErrLeaseNotFound) {
		s.log(slog.LevelDebug, "lease given back", "lease", l.hex())
		err = l.tenants.RemoveRest(time.Now().Add(l.ttl))
	} else {
		s.log(slog.LevelWarn, "lease not revoked; it expires by itself", "lease", l.hex(), "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, l)
	s.doubts.Add(int64(-l.doubts))
	if err == nil {
		l.becomesLocked(leaseGone, l.why)
	}
	s.mu.After(l.bury)
	l.tenants.RevokedLocked(err)
}
