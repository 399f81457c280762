package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/etcd/keepalive"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
)

// mostAsking is how many renewals of a lease ask at a time what they are worth.
const mostAsking = 2

// streamIsOver reports whether a renewal failed because its stream ended, and not because of what
// etcd says about the lease. A stream that has answered before ends when its member stops, or with
// its token.
func streamIsOver(err error) bool {
	return errors.Is(err, keepalive.ErrStreamEnded) && attempt.Fallen(err) == nil &&
		(!attempt.Refused(err) || etcd.IsOfToken(err))
}

// A keeper renews a lease, audits its keys and finally revokes it.
//
// Renewals are separate attempts, on a stream that stays open and that all leases of the client
// share. One is sent in each period of the schedule. If its answer takes longer than half a period,
// or does not come at all, more are sent, each on another stream, and two at a time if there are
// several endpoints, so that one dead endpoint cannot get them all. If an attempt fails at once
// more are sent soon, as far as the client opens streams for them: a renewal is one small message,
// and its loss costs a hold. No attempt outlives the trust that it could give: later its answer
// would be useless.
//
// It has no goroutine of its own. Timers and answers call its methods, which never take the
// Session's mutex: that would make a renewal late. A goroutine, care, does what needs the mutex;
// one runs at a time, and the last one revokes the lease.
//
// (Do not give it a goroutine. It waits for nearly all of its time, and its stack is a fifth of all
// that a Session takes. TestWhatASessionTakes.)
type keeper struct {
	*Lease
	ctx    context.Context // of the attempts and the streams
	stop   context.CancelFunc
	sender *keepalive.Sender
	ignore func()        // the lookout
	asking chan struct{} // has a token of each renewal that asks

	mu          sync.Mutex  // no other is taken under it, but for that of the Session's goroutines
	next        *time.Timer // calls renewalDue
	nextAt      time.Time   // when a renewal is due
	lastStarted time.Time
	unanswered  int     // how many sendings in a row had no good answer yet, the last one included
	repeated    bool    // the last one that has ended has failed
	refused     bool    // etcd has refused one since the last good answer
	verdict     verdict // of the last care
	due, caring bool    // care is to run, or runs
	lastAudit   time.Time
	auditing    bool
}

// keepLocked has the keeper begin with a lease that was just granted. It goes on until no put can
// apply under the lease any more.
func (l *Lease) keepLocked(granted time.Time) {
	k := &l.keeper
	k.Lease, k.lastStarted, k.lastAudit = l, granted, granted
	k.asking = make(chan struct{}, mostAsking)
	k.ctx, k.stop = context.WithCancel(l.pool.ctx)
	l.pool.tasks.Add() // until the lease is revoked
	k.sender = l.pool.etcd.Renewals(l.ID, l.plan.Period)
	first := k.untilSent(granted.Add(l.plan.Period))
	k.mu.Lock() // the timer may run at once
	k.nextAt = time.Now().Add(first)
	k.next = time.AfterFunc(first, k.renewalDue)
	k.mu.Unlock()
	k.ignore = l.pool.etcd.LookOut(l.alarmed) // which resets that timer
	l.care = time.AfterFunc(0, k.careDue)
}

// WakeKeeper has the keeper see what is due.
func (l *Lease) WakeKeeper() {
	k := &l.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wakeLocked()
}

func (k *keeper) wakeLocked() {
	if k.beginsLocked() {
		go k.cares()
	}
}

// careDue is WakeKeeper of the timer, whose goroutine cares. (Do not begin another one for that,
// nor for a renewal: a goroutine costs a tenth of what a renewal does.)
func (k *keeper) careDue() {
	k.mu.Lock()
	begins := k.beginsLocked()
	k.mu.Unlock()
	if begins {
		k.cares()
	}
}

// beginsLocked notes that something is due, and reports whether the caller has to call cares.
func (k *keeper) beginsLocked() bool {
	k.due = true
	if k.caring || k.verdict == leaseOver {
		return false
	}
	k.caring = true
	k.pool.tasks.Add()
	return true
}

// cares cares for as long as something is due.
func (k *keeper) cares() {
	defer k.pool.tasks.Done()
	for {
		k.mu.Lock()
		if !k.due || k.verdict == leaseOver {
			k.caring = false
			k.mu.Unlock()
			return
		}
		k.due = false
		last := k.lastAudit
		k.mu.Unlock()

		verdict, audit := k.care(last)
		k.mu.Lock()
		k.verdict = verdict
		if audit && !k.auditing {
			k.auditLocked()
		}
		k.mu.Unlock()
		if verdict == leaseOver {
			k.ends()
		}
	}
}

// ends has the lease revoked, and what the keeper has begun end before.
func (k *keeper) ends() {
	defer k.pool.tasks.Done()
	k.stop()
	k.next.Stop()
	k.Lease.care.Stop()
	k.ignore()
	over := k.sender.Close()
	revoke(k.Lease)
	over(k.pool.ctx)
}

// care does what the renewals have left to do, and what is due, and decides what happens to the
// lease. It takes the Session's mutex. audit says that an audit is due.
func (k *keeper) care(lastAudit time.Time) (v verdict, audit bool) {
	p := k.pool
	p.etcd.CatchUp()
	p.mu.Lock()
	defer p.mu.Unlock()
	if k.lasts.Swap(false) {
		k.tenants.MarkLocked()
	}
	if k.late.Swap(false) {
		k.riskLocked()
	}
	now := time.Now()
	var changes, again time.Time
	v, changes = k.verdictLocked(now)
	audit, again = k.tenants.CareLocked(now, lastAudit)
	k.dueLocked(k.sender.Together(now.Add(k.plan.Period)))
	k.DueLocked(changes)
	k.DueLocked(again)
	return v, audit
}

// nextLocked makes the next renewal due after a while, and no longer at another time.
func (k *keeper) nextLocked(after time.Duration) {
	k.nextAt = time.Now().Add(after)
	k.next.Reset(after)
}

// renewalDue is called by the timer of the renewals. It sends none if an answer has put that off
// since the timer ran out: this call waits for the mutex then, and no Reset ends it.
// (TestARenewalThatWasPutOffIsNotSent.)
func (k *keeper) renewalDue() {
	if k.Over(time.Now()) != nil {
		return
	}
	until := k.until()
	var send func()
	k.mu.Lock()
	if k.verdict == leaseRenew && !k.nextAt.After(time.Now()) {
		send = k.sendLocked(until)
	}
	k.mu.Unlock()
	if send != nil {
		send()
	}
}

// sendLocked returns what sends a renewal, and waits for its answer. It has the next one sent when
// that is late. Once the client is closed none can be sent any more.
func (k *keeper) sendLocked(until time.Time) (send func()) {
	if k.pool.etcd.Closed() {
		return func() { k.renewalFailed(attempt.ErrClientClosed) }
	}
	k.lastStarted = time.Now()
	started, r := k.lastStarted, keepalive.Renewal{
		Until: until, Patience: k.plan.Late(), Anew: k.repeated, Refused: k.refused,
	}
	if k.unanswered > 0 {
		if k.pool.etcd.Several() {
			second := r
			second.Patience = 0 // it is sent only if it need not wait
			k.pool.tasks.Go(func() { k.renew(started, second) })
		}
		k.late.Store(true)
		k.wakeLocked()
	}
	k.unanswered++ // until its answer comes
	k.nextLocked(k.plan.Late())
	k.pool.tasks.Add()
	return func() {
		defer k.pool.tasks.Done()
		k.renew(started, r)
	}
}

// answered sets when the next renewal is due, by how one has ended.
func (k *keeper) answered(started time.Time, err error) {
	if k.answeredFor(started, err) {
		k.renewalFailed(err)
	}
}

// answeredFor is answered. It reports whether the renewal has failed, and another one was not sent
// for that at once.
func (k *keeper) answeredFor(started time.Time, err error) (failed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := started.Equal(k.lastStarted)
	switch {
	case k.verdict == leaseOver:
	case last && k.unanswered > 0 && streamIsOver(err) && !k.repeated:
		k.unanswered = 0
		k.repeated = true
		k.nextLocked(0) // on another stream, which reports its own result
	case err != nil:
		if k.unanswered > 0 { // else another one, sent since or with it, was answered
			k.repeated, k.refused = true, k.refused || attempt.Refused(err)
			k.nextLocked(k.again(started, err))
		}
		return true
	case last:
		k.unanswered = 0
		k.repeated, k.refused = false, false
		rtt := time.Since(started)
		k.nextLocked(k.untilSent(started.Add(k.plan.Next(rtt))))
	}
	return false
}

// untilSent is how long it is until a renewal is sent that is due at a time: with those of the
// client's other leases.
func (k *keeper) untilSent(due time.Time) time.Duration {
	return time.Until(k.sender.Together(due))
}

// again is how long after a renewal that failed the next one is sent: soon if it has failed at
// once, as late as it failed otherwise. It is later if etcd is overloaded, if the renewal was
// refused, because each new stream may cost a login, or if it was not even sent.
//
// (Do not have it depend on how long other answers take. clientv3 repeats a read that fails by
// itself, so where most requests fail at once the rest take long.
// TestARenewalThatFailsAtOnceIsSentAgainSoonWhereAnswersAreSlow.)
func (k *keeper) again(started time.Time, err error) time.Duration {
	took := time.Since(started)
	switch {
	case attempt.Refused(err) || errors.Is(err, attempt.ErrUnreachable):
		took = k.plan.Late()
	case attempt.Overloaded(err):
		took = k.pool.etcd.Seldom(took)
	}
	return attempt.Jitter(k.plan.Again(k.unanswered, took))
}

// auditLocked begins an audit of the keys. There is one at a time.
func (k *keeper) auditLocked() {
	sent := time.Now()
	k.lastAudit, k.auditing = sent, true
	k.pool.tasks.Go(func() {
		known := k.tenants.Audit(k.ctx, sent)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.auditing = false
		if !known && k.unanswered == 0 {
			k.nextLocked(0) // a renewal tells for certain
		}
		k.wakeLocked()
	})
}

// A verdict is what the keeper is to do with its lease.
type verdict int

const (
	leaseRenew verdict = iota // it is needed, or may be soon
	leaseWait                 // it has ended, but keys may be left on it
	leaseOver                 // revoke it
)

// verdictLocked decides what happens to the lease. Once it has returned leaseOver nothing uses the
// lease again. Another verdict changes by itself at a time, zero for never.
func (l *Lease) verdictLocked(now time.Time) (v verdict, changes time.Time) {
	p := l.pool
	l.CheckLocked(now)
	use := l.tenants.UseLocked()
	unused := use.Users == 0
	switch {
	case p.ClosedLocked() && use.Releases > 0 && !l.HasEndedLocked() && p.ctx.Err() == nil:
		return leaseRenew, changes // a key that goes with a revoked lease would look lost
	case p.ClosedLocked():
		l.endLocked(p.config.Error(Closed, nil))
	case l.HasEndedLocked():
		// The loser may not have stopped yet: its key goes when it unlocks, or
		// when the lease expires in etcd.
		changes = l.until().Add(l.TTL).Add(l.TTL)
		if !unused && now.Before(changes) {
			return leaseWait, changes
		}
	case p.orphaned && (!unused || use.Removals > 0):
		return leaseWait, l.until() // it is not revoked: a key that is left would stay for a TTL
	case p.orphaned:
		l.endLocked(errOrphaned)
	case unused && l.state == draining:
		l.endLocked(l.why)
	case unused:
		changes = use.IdleSince.Add(l.TTL).Add(l.TTL)
		if now.Before(changes) {
			return leaseRenew, changes
		}
		l.endLocked(errUnused)
	default:
		return leaseRenew, changes
	}
	return leaseOver, changes
}

// renew is one attempt to renew the lease.
func (k *keeper) renew(started time.Time, r keepalive.Renewal) {
	p := k.pool
	r.Over = &attempt.BoundError{Of: "a renewal", Most: min(k.TTL/4*3, k.plan.Span)}
	cut := make(chan struct{})
	r.Cut = cut
	unreachable := p.etcd.CancelWhenUnreachable(func() { close(cut) })
	epoch := p.etcd.Epoch()
	revision := epoch.Revision()
	r.Where = p.etcd.Where(epoch)
	var sent *trust.Attempt
	k.trusts(func(t *trust.Trust) { sent = t.Sends(started, epoch) })
	var resp *pb.LeaseKeepAliveResponse
	err := attempt.ErrUnreachable
	if !p.etcd.Disconnected() { // else gRPC would wait for a connection
		resp, err = k.sender.Renew(k.ctx, r)
	}
	if err != nil && attempt.NotApplied(err) {
		k.trusts(func(t *trust.Trust) { t.Drop(sent) })
	}
	switch cut := unreachable(); {
	case err != nil && p.etcd.Closed():
		err = attempt.ErrClientClosed
	case err != nil && cut:
		err = attempt.ErrUnreachable
	}
	if r.Patience == 0 && errors.Is(err, keepalive.ErrNoStream) {
		return
	}
	if err == nil {
		p.etcd.Alive(time.Since(started))
		if k.confirmed(started, sent, epoch, revision, resp) {
			err = k.ask(sent, started.Add(r.Over.Most))
		}
	}
	if err == nil {
		p.config.Renewed(k.ID, time.Since(started))
	}
	k.answered(started, err)
}

// confirmed extends the trust by a renewal that etcd has confirmed, as far as that answer is worth.
// It reports whether a read has to find out more. revision is the one that was known as the renewal
// was sent, in an epoch: if the answer has a lower one, the member is behind, or etcd was set back.
func (l *Lease) confirmed(
	started time.Time, sent *trust.Attempt, epoch *etcd.Epoch, revision int64,
	resp *pb.LeaseKeepAliveResponse,
) (ask bool) {
	known, setBack := l.pool.etcd.Renewed(resp, started, epoch)
	l.trusts(func(t *trust.Trust) {
		l.refusal = nil
		l.inTime, l.pool.unanswered = true, 0
		ask = t.Answered(time.Now(), sent, trust.Confirmation{
			Member: resp.Header.GetMemberId(), Term: resp.Header.GetRaftTerm(),
			TTL:      time.Duration(resp.TTL) * time.Second,
			Doubtful: !l.isReadSafe(epoch) || resp.Header.GetRevision() < revision,
		}, known)
	})
	setBack() // last: it waits for the Session's mutex
	return ask
}

// ask finds out by a linearizable read what a confirmed renewal is worth, if that matters: no hold
// relies on a lease that has no key. It asks until the time when that is worth nothing any more.
// The keeper takes the renewal for unanswered meanwhile, and sends others. Two of them ask at a
// time, and the rest wait: what a read shows is true of all that were answered before it.
// (Do not give up sooner, for another renewal. Where most requests fail, that one and its read
// would both have to be answered. TestAReadGoesOnForAsLongAsItMayHelp.)
func (k *keeper) ask(sent *trust.Attempt, until time.Time) error {
	p := k.pool
	over := &attempt.BoundError{Of: "a read after a renewal", Most: time.Until(until)}
	ctx, cancel := context.WithDeadlineCause(k.ctx, until, over)
	defer cancel()
	key := k.key()
	if key == "" {
		return nil
	}
	select {
	case k.asking <- struct{}{}:
		defer func() { <-k.asking }()
	case <-ctx.Done():
	}
	if open, _ := k.isOpen(sent); !open {
		return nil
	}
	// A member may be silent: the renewal's, or another. A read that fails at once is repeated as
	// soon as a renewal.
	retry := attempt.Backoff{Policy: attempt.Urgent, Most: k.plan.Soon()}
	_, err := p.etcd.ReadBy(ctx, etcd.Range(key, clientv3.WithCountOnly()), retry, nil)
	open, unread := k.isOpen(sent)
	switch {
	case err == nil && open && unread:
		return errUnread
	case err == nil && open:
		return errDeposed
	case k.AtRisk(time.Now().Add(k.plan.Period)):
		return err
	default:
		return nil
	}
}

// isOpen reports whether it is open what a confirmed renewal is worth, and whether that is because
// the keys of the holds are yet to be read.
func (l *Lease) isOpen(sent *trust.Attempt) (open, unread bool) {
	l.trusts(func(*trust.Trust) { open, unread = sent.Open(), !l.isReadSafe(l.pool.etcd.Epoch()) })
	return open, unread
}

// renewalFailed notes that an attempt failed. The lease ends only if etcd says that it does
// not exist. After any other failure it runs until its trust ends. That includes a refusal,
// which an operator may take back.
func (l *Lease) renewalFailed(err error) {
	p := l.pool
	switch {
	case attempt.Is(err, rpctypes.ErrLeaseNotFound):
		l.endRevoked(err)
	case attempt.Refused(err) || err == attempt.ErrClientClosed:
		l.trusts(func(*trust.Trust) { l.refusal = err })
	}
	p.config.RenewalFailed(l, err, time.Until(l.until()))
}

// riskLocked gives up what lingers on the lease, whose renewal is late, and reports it if less
// than half of the trust remains: while etcd is silent nothing fails, and otherwise the loss
// would be the first report.
func (l *Lease) riskLocked() {
	p := l.pool
	l.tenants.GiveWayLocked()
	remaining := time.Until(l.until())
	if !l.plan.AtRisk(remaining) || l.HasEndedLocked() {
		return
	}
	p.config.AtRisk(l, remaining)
}
