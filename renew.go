package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/etcd/keepalive"
	"github.com/etcdlock/etcdlock/internal/trust"
)

// A renewal is the outcome of one attempt to renew.
type renewal struct {
	started time.Time
	err     error
}

// streamIsOver reports whether a renewal failed because its stream ended, and not because of what
// etcd says about the lease. A stream that has answered before ends when its member stops, or with
// its token.
func streamIsOver(err error) bool {
	return errors.Is(err, keepalive.ErrStreamEnded) &&
		(!attempt.Refused(err) || etcd.IsOfToken(err))
}

// A keeper renews a lease, audits its keys and finally revokes it. Only the goroutine of keep
// changes its fields.
//
// Renewals are separate attempts on a stream that stays open. One is sent in each period of the
// schedule. If its answer takes longer than half a period, or does not come at all, more are
// sent, each on its own stream, and two at a time if there are several endpoints, so that one
// dead endpoint cannot get them all. If an attempt fails at once more are sent soon: a renewal is
// one small message, and its loss costs a hold. No attempt outlives the trust that it could give:
// later its answer would be useless.
type keeper struct {
	*lease
	ctx    context.Context // of the attempts and the streams
	sender *keepalive.Sender

	next        *time.Timer // when a renewal is due
	lastStarted time.Time
	unanswered  int // how many sendings in a row had no good answer yet, the last one included
	results     chan renewal

	lastAudit time.Time
	auditing  bool
	audited   chan bool // whether etcd knew the lease
}

// keep is the keeper's goroutine. It runs from the grant until no put can apply under the lease
// any more.
func (l *lease) keep(granted time.Time) {
	ctx, stopAttempts := context.WithCancel(l.s.ctx)
	defer stopAttempts()
	k := &keeper{
		lease:       l,
		ctx:         ctx,
		sender:      l.s.etcd.Renewals(ctx, l.id),
		next:        time.NewTimer(time.Until(granted.Add(l.plan.Period))),
		lastStarted: granted,
		results:     make(chan renewal),
		lastAudit:   granted,
		audited:     make(chan bool, 1),
	}
	defer k.next.Stop()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()

	for {
		verdict := l.verdict()
		if verdict == leaseOver {
			break
		}
		select {
		case <-l.s.ctx.Done():
		case <-l.wake:
		case <-k.next.C:
			if verdict == leaseRenew {
				k.send()
			}
		case r := <-k.results:
			k.answered(r)
		case <-tick.C:
			l.tenants.Tick()
		case known := <-k.audited:
			k.auditing = false
			if !known && k.unanswered == 0 {
				k.next.Reset(0) // a renewal tells for certain
			}
		}
		k.auditIfDue()
	}
	stopAttempts()
	l.revoke()
}

// send sends a renewal, and has the next one sent when the answer of this one is late.
func (k *keeper) send() {
	attempts := 1
	if k.unanswered > 0 {
		if k.s.etcd.Several() {
			attempts = 2
		}
		k.risk()
	}
	k.lastStarted = time.Now()
	r := keepalive.Renewal{Sent: k.lastStarted, Anew: k.unanswered > 0}
	for range attempts {
		k.s.tasks.Go(func() { k.renew(k.ctx, k.sender, r, k.results) })
	}
	k.unanswered++ // until its answer comes
	k.next.Reset(k.plan.Late())
}

// answered sets when the next renewal is due, by how one has ended.
func (k *keeper) answered(r renewal) {
	last := r.started.Equal(k.lastStarted)
	switch {
	case last && streamIsOver(r.err):
		k.unanswered = 0
		k.next.Reset(0) // on another stream, which reports its own result
	case r.err != nil:
		k.renewalFailed(r.err)
		if k.unanswered > 0 { // else another one, sent since or with it, was answered
			k.next.Reset(k.again(r))
		}
	case last:
		k.unanswered = 0
		rtt := time.Since(r.started)
		k.next.Reset(time.Until(r.started.Add(k.plan.Next(rtt))))
	}
}

// again is how long after a renewal that failed the next one is sent: soon if it has failed at
// once, as late as it failed otherwise. It is later if etcd is overloaded, if the renewal was
// refused, because each new stream may cost a login, or if it was not even sent.
//
// (Do not have it depend on how long other answers take. clientv3 repeats a read that fails by
// itself, so where most requests fail at once the rest take long.
// TestARenewalThatFailsAtOnceIsSentAgainSoonWhereAnswersAreSlow.)
func (k *keeper) again(r renewal) time.Duration {
	took := time.Since(r.started)
	switch {
	case attempt.Refused(r.err) || errors.Is(r.err, attempt.ErrUnreachable):
		took = k.plan.Late()
	case attempt.Overloaded(r.err):
		took = k.s.etcd.Seldom(took)
	}
	return attempt.Jitter(k.plan.Again(k.unanswered, took))
}

// auditIfDue begins an audit of the lease's keys, one at a time.
func (k *keeper) auditIfDue() {
	if k.auditing || !k.tenants.AuditDue(k.lastAudit) {
		return
	}
	sent := time.Now()
	k.lastAudit, k.auditing = sent, true
	k.s.tasks.Go(func() {
		k.audited <- k.tenants.Audit(k.ctx, sent)
	})
}

// A verdict is what the keeper is to do with its lease.
type verdict int

const (
	leaseRenew verdict = iota // it is needed, or may be soon
	leaseWait                 // it has ended, but keys may be left on it
	leaseOver                 // revoke it
)

// verdict decides what happens to the lease. Once it has returned leaseOver nothing
// uses the lease again.
func (l *lease) verdict() verdict {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	l.checkLocked(now)
	use := l.tenants.UseLocked()
	unused := use.Users == 0
	switch {
	case s.closed && use.Releases > 0 && !l.hasEndedLocked() && s.ctx.Err() == nil:
		return leaseRenew // a key that goes with a revoked lease would look lost
	case s.closed:
		l.endLocked(ErrClosed)
	case l.hasEndedLocked():
		// The loser may not have stopped yet: its key goes when it unlocks, or
		// when the lease expires in etcd.
		if !unused && now.Before(l.trust.Until().Add(l.ttl).Add(l.ttl)) {
			return leaseWait
		}
	case unused && l.state == leaseDraining:
		l.endLocked(l.why)
	case unused && !now.Before(use.IdleSince.Add(l.ttl).Add(l.ttl)):
		l.endLocked(errLeaseUnused)
	default:
		return leaseRenew
	}
	return leaseOver
}

// renew is one attempt to renew the lease. It reports to the keeper, unless that
// has stopped.
func (l *lease) renew(
	ctx context.Context, sender *keepalive.Sender, r keepalive.Renewal, results chan<- renewal,
) {
	s, started := l.s, r.Sent
	bounded, cancel := context.WithTimeout(ctx, min(l.ttl/4*3, l.plan.Span))
	defer cancel()
	unreachable := s.etcd.CancelWhenUnreachable(bounded, cancel)
	epoch := s.etcd.Epoch()
	r.Where = s.etcd.Where(epoch)
	var sent *trust.Attempt
	l.renewals(func(t *trust.Trust) { sent = t.Sends(started, epoch) })
	var resp *pb.LeaseKeepAliveResponse
	err := attempt.ErrUnreachable
	if !s.etcd.Disconnected() { // else gRPC would wait for a connection
		resp, err = sender.Renew(bounded, r)
	}
	if err != nil && attempt.NotApplied(err) {
		l.renewals(func(t *trust.Trust) { t.Fails(sent) })
	}
	cancel()
	if cut := <-unreachable; err != nil && cut {
		err = attempt.ErrUnreachable
	}
	if err == nil {
		s.etcd.Alive()
		if l.confirmed(sent, epoch, resp) {
			err = l.ask(ctx, sent)
		}
	}
	if err == nil {
		s.trace().leaseRenewed(l.id, time.Since(started))
	}
	select {
	case results <- renewal{started: started, err: err}:
	case <-ctx.Done():
	}
}

// renewals is trustLocked for callers that do not hold mu.
func (l *lease) renewals(change func(t *trust.Trust)) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.trustLocked(change)
}

// confirmed extends the trust by a renewal that etcd has confirmed, as far as that answer is worth.
// It reports whether a read has to find out more.
func (l *lease) confirmed(
	sent *trust.Attempt, epoch *etcd.Epoch, resp *pb.LeaseKeepAliveResponse,
) (ask bool) {
	known := l.s.etcd.Renewed(resp, epoch)
	l.renewals(func(t *trust.Trust) {
		l.refusal = nil
		l.answeredInTimeLocked()
		l.comparedLocked(epoch, resp.Header.GetRevision())
		ask = t.Answered(time.Now(), sent, trust.Confirmation{
			Member: resp.Header.GetMemberId(), Term: resp.Header.GetRaftTerm(),
			TTL: time.Duration(resp.TTL) * time.Second,
		}, known)
	})
	return ask
}

// comparedLocked makes an audit due if a renewal's answer has a revision below the one known at
// the renewal before, in the same epoch: that member is far behind, or etcd was set back.
func (l *lease) comparedLocked(told *etcd.Epoch, revision int64) {
	if l.renewed.epoch == told && revision < l.renewed.revision {
		l.tenants.SuspectLocked()
	}
	l.renewed.epoch, l.renewed.revision = told, told.Revision()
}

// ask finds out by a linearizable read what a confirmed renewal is worth, if that matters: no hold
// relies on a lease that has no key. If no answer comes, the next renewal may do better.
func (l *lease) ask(ctx context.Context, sent *trust.Attempt) error {
	s := l.s
	ctx, cancel := context.WithTimeout(ctx, s.etcd.Timeout())
	defer cancel()
	s.mu.Lock()
	key := l.tenants.KeyLocked()
	s.mu.Unlock()
	if key == "" {
		return nil
	}
	// A member may be silent: the renewal's, or another. A read that fails at once is repeated as
	// soon as a renewal.
	retry := attempt.Backoff{Urgent: true, Most: l.plan.Soon()}
	_, err := s.etcd.ReadBy(ctx, etcd.Range(key, clientv3.WithCountOnly()), retry, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && sent.Open():
		return errDeposed
	case l.plan.AtRisk(l.trust.Remaining(time.Now())):
		return err
	default:
		return nil
	}
}

// proved applies a linearizable answer to all leases. Its request was sent at a time, in an epoch.
func (s *Session) proved(sent time.Time, of *etcd.Epoch, term uint64) {
	if s.doubts.Load() == 0 {
		return // the usual case needs no lock
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var present any // in no epoch, if the present one began since
	if of == s.etcd.Epoch() {
		present = of
	}
	for l := range s.leases {
		l.trustLocked(func(t *trust.Trust) { t.Proved(sent, present, term) })
	}
}

// renewalFailed notes that an attempt failed. The lease ends only if etcd says that it does
// not exist. After any other failure it runs until its trust ends. That includes a refusal,
// which an operator may take back.
func (l *lease) renewalFailed(err error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case attempt.Is(err, rpctypes.ErrLeaseNotFound):
		l.endLocked(because(ErrLeaseRevoked, err))
	case attempt.Refused(err):
		l.refusal = err
	}
	s.log(slog.LevelWarn, "lease not renewed", "lease", l.hex(), "error", err,
		"remaining", time.Until(l.trust.Until()))
	s.trace().renewalFailed(l.id, err)
}

// risk gives up what lingers on the lease, whose renewal is late, and reports it if less
// than half of the trust remains: while etcd is silent nothing fails, and otherwise the loss
// would be the first report.
func (l *lease) risk() {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	l.tenants.GiveWayLocked()
	remaining := time.Until(l.trust.Until())
	if !l.plan.AtRisk(remaining) || l.hasEndedLocked() {
		return
	}
	s.log(slog.LevelWarn, "lease at risk", "lease", l.hex(), "remaining", remaining)
	s.trace().leaseAtRisk(l.id, remaining)
}
