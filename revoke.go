package etcdlock

import (
	"context"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
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
	l.endContexts()
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
		err = l.removeRest(time.Now().Add(l.ttl))
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
	if err != nil && (s.closed || l.leavesLocked()) {
		s.leftoverErr = err
	}
}

// leavesLocked reports whether a key whose removal was given up may outlive the lease.
func (l *lease) leavesLocked() bool {
	for t := range l.tenantsLocked() {
		if t.ticketLocked().Lost() && t.stuckLocked() {
			return true
		}
	}
	return false
}

// removeRest removes the Session's keys that the end of the lease has not removed. It reads all
// keys that the Session accounts for: none if nothing was held.
func (l *lease) removeRest(until time.Time) error {
	s := l.s
	ctx, cancel := context.WithDeadline(s.ctx, until)
	defer cancel()
	s.mu.Lock()
	var keys []string
	var revs []int64
	for t := range l.tenantsLocked() {
		own := t.ticketLocked()
		keys, revs = append(keys, own.Key), append(revs, own.Rev())
	}
	s.mu.Unlock()
	var rest []line.Entry
	err := s.etcd.ReadKeys(ctx, keys, s.etcd.Read, func(part etcd.Part) {
		for i, e := range part.Entries {
			if rev := revs[part.From+i]; e.Rev != 0 && (rev == 0 || rev == e.Rev) {
				rest = append(rest, e)
			}
		}
	})
	for _, e := range rest {
		if failure := s.etcd.DeleteUntilAnswered(ctx, e); failure != nil {
			err = failure
		}
	}
	if err != nil {
		s.log(slog.LevelWarn, "keys may have outlived their lease", "lease", l.hex(), "error", err)
	}
	return err
}
