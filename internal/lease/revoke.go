package lease

import (
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// revoke gives a lease back, and with it every key that is left. It retries until
// etcd confirms, the Session ends, or the lease must have expired: for two TTLs, and for two more
// from a Close on.
//
// A lease of a Session that was orphaned is left to expire: it may have another owner by now.
//
// (Do not count the time before a Close. Close would return an error at once, and etcd might
// answer within its context. TestCloseHasItsOwnTimeToRevokeALease.)
//
// A key that was put over, with another lease or none, does not go with the lease.
// (Do not take the end of the lease for the end of its keys. TestCloseLeavesNoKeyThatWasPutOver.)
func revoke(l *Lease) {
	p := l.pool
	close(l.goes)
	l.endLives(l.Over(time.Now()))
	expired := time.Now().Add(l.TTL).Add(l.TTL)
	var left time.Time // until then it may be there, zero if it was revoked
	err := giveBack(l, expired)
	if err == nil {
		p.config.Log(slog.LevelDebug, "lease given back", "lease", l.Hex())
		err = l.tenants.RemoveRest(time.Now().Add(l.TTL))
	} else {
		left = expired
		if err != errOrphaned {
			p.NotRevoked(l.Hex(), err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.safety.Lock()
	delete(p.leases, l)
	p.doubts.Add(int64(-l.trust.Doubts()))
	p.safety.Unlock()
	if err == nil {
		l.becomesLocked(gone, l.why)
	}
	p.mu.After(l.bury)
	l.tenants.RevokedLocked(err, left)
}

// giveBack asks etcd to revoke l until it confirms, or the lease must have expired.
func giveBack(l *Lease, expired time.Time) (err error) {
	p := l.pool
	for retry := (attempt.Backoff{Policy: attempt.Lease}); ; {
		if p.leavesLeases() {
			return errOrphaned
		}
		err = p.etcd.Revoke(p.ctx, &retry, l.ID)
		if err == nil || attempt.Refused(err) || p.etcd.Closed() ||
			time.Now().After(expired) && p.closedFor()/2 > l.TTL ||
			retry.Wait(p.ctx, p.etcd.Caller) != nil {
			return err
		}
	}
}
