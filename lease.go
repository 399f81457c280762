package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/trust"
)

const (
	// tickEvery is how often a keeper asks its tenants what is due, and whether their keys are to be
	// audited.
	tickEvery = 350 * time.Millisecond

	// causeTime is how long a deleted key's hold waits for etcd to say whether the lease is gone
	// too. If it is, that is the reason of the loss.
	causeTime = 100 * time.Millisecond
)

var (
	errLeaseUnused   = errors.New("lease given back: nobody used it")
	errLeaseDoubtful = errors.New("a request with this lease may still be under way")
	errGrantTooLate  = errors.New("the granted lease was over before it could be used: safety margin too large, or etcd too slow")
	errDeposed       = errors.New("renewed by a member that does not lead any more, it seems")
)

// A lease is one etcd lease and what is known about it. It may be used as long as its trust
// lasts. Once it has ended, it has ended for good.
type lease struct {
	// Set once, then only read.
	s    *Session
	id   clientv3.LeaseID
	ttl  time.Duration      // as granted
	plan trust.Schedule     // of its renewals
	wake chan struct{}      // tells the keeper to check the state again
	dead chan struct{}      // closed when it has ended
	live context.Context    // ended by the keeper, once no put can apply any more
	bury context.CancelFunc // ends live

	tenants tenants

	// Guarded by Session.mu.
	trust   *trust.Trust
	expiry  *time.Timer // of the trust
	doubts  int         // of the trust, as counted in Session.doubts
	refusal error       // of renewals since the last good one, nil if there was none
	state   leaseState  // changed by becomesLocked alone
	why     error       // why it is in that state; nil while it serves
	inTime  bool        // etcd has answered a renewal, or a put in the time of an attempt
	renewed struct {    // what was known when the last renewal was confirmed
		epoch    *etcd.Epoch
		revision int64
	}
}

// A leaseState is how far a lease has come. It never goes back.
type leaseState uint8

const (
	leaseServing  leaseState = iota // it takes new places
	leaseDraining                   // it takes none, and is renewed while places need it
	leaseEnded                      // it is not trusted any more, and is about to be revoked
	leaseGone                       // etcd has confirmed that it is gone, and its keys with it
)

// String returns the state's name.
func (st leaseState) String() string {
	return [...]string{"serving", "draining", "ended", "gone"}[st]
}

// becomesLocked is the one transition of a lease's state. It panics if that would not go on, or be
// gone without having ended.
func (l *lease) becomesLocked(next leaseState, why error) {
	if next <= l.state || next == leaseGone && l.state != leaseEnded {
		panic(fmt.Sprintf("etcdlock: lease %s: %v becomes %v", l.hex(), l.state, next))
	}
	l.state, l.why = next, why
	l.tenants.MarkLocked()
}

// servesLocked reports whether the lease takes new places.
func (l *lease) servesLocked() bool { return l.state == leaseServing }

// hasEndedLocked reports whether the trust in l has ended.
func (l *lease) hasEndedLocked() bool { return l.state >= leaseEnded }

// A tenants is what a lease knows of its keys. A method with a name that ends in Locked is called
// with the Session's mutex held.
type tenants interface {
	// UseLocked is what needs the lease.
	UseLocked() use

	// MarkLocked is called when the lease's state has changed, or the lease lasts again.
	MarkLocked()

	// GiveWayLocked gives up keys that are only kept for what may come.
	GiveWayLocked()

	// EndedLocked says that the trust in the lease has ended, and why.
	EndedLocked(why error)

	// KeyLocked is a key on the lease, empty if there is none.
	KeyLocked() string

	// Tick is called while the lease is kept, every tickEvery.
	Tick()

	// SuspectLocked makes an audit of the keys due now.
	SuspectLocked()

	// AuditDue reports whether it is time to audit the keys. The last audit was at last.
	AuditDue(last time.Time) bool

	// Audit compares the keys in etcd with the accounts. It was decided on at sent, and ctx ends when
	// the lease is about to be revoked. It reports false if etcd seems not to know the lease.
	Audit(ctx context.Context, sent time.Time) (known bool)

	// BeforeRevoke is called before the lease is revoked, and its keys go.
	BeforeRevoke()

	// RemoveRest removes the keys that the end of the lease has not removed.
	RemoveRest(until time.Time) error

	// RevokedLocked says that the lease needs no tenants any more. err is why it could not be revoked,
	// or why keys may be left.
	RevokedLocked(err error)
}

// A use is what needs a lease.
type use struct {
	Users     int       // places that hold, wait or are being released
	IdleSince time.Time // when Users became 0
	Releases  int       // under way, of holds that have ended whole
}

// newLease asks for a lease and makes it the current one if it can be used.
func (s *Session) newLease(ctx context.Context) error {
	granted, err := s.etcd.Grant(ctx, &s.grantRetry, s.cfg.ttl)
	if err != nil {
		return err
	}
	attemptStarted, ttl := granted.Sent, granted.TTL

	s.mu.Lock()
	defer s.mu.Unlock()
	l := &lease{
		s:     s,
		id:    granted.ID,
		ttl:   ttl,
		trust: trust.New(attemptStarted, ttl, s.cfg.marginOf),
		wake:  make(chan struct{}, 1),
		dead:  make(chan struct{}),
	}
	l.live, l.bury = context.WithCancel(s.ctx)
	l.plan = l.trust.Schedule()
	l.expiry = time.AfterFunc(time.Until(l.trust.Until()), l.check)
	s.leases[l] = struct{}{}
	l.tenants = s.openAccountLocked(l)
	s.tasks.GoLocked(func() { l.keep(attemptStarted) })
	s.log(slog.LevelDebug, "lease granted", "lease", l.hex(), "ttl", ttl)
	s.trace().leaseGranted(l.id, ttl)
	if l.trust.At(time.Now()) != trust.Whole {
		l.endLocked(errGrantTooLate)
		return errGrantTooLate
	}
	s.current = l
	return nil
}

// check ends the lease if its time has passed. It may run at any time and any
// number of times.
func (l *lease) check() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.checkLocked(time.Now())
}

// checkLocked is check, for a given now.
func (l *lease) checkLocked(now time.Time) {
	if l.hasEndedLocked() {
		return
	}
	switch l.trust.At(now) {
	case trust.Expired:
		if !l.inTime && l.refusal == nil {
			l.s.unansweredLeases++
		}
		l.endLocked(because(ErrExpired, l.refusal))
	case trust.Suspended:
		l.endLocked(ErrSuspended)
	}
}

// trustLocked changes the lease's trust, unless the lease has ended: a late answer revives
// nothing.
func (l *lease) trustLocked(change func(t *trust.Trust)) {
	now := time.Now()
	l.checkLocked(now)
	if l.hasEndedLocked() {
		return
	}
	until, lasted := l.trust.Until(), l.plan.Lasts(l.trust.Remaining(now))
	change(l.trust)
	if !lasted {
		l.tenants.MarkLocked()
	}
	if l.trust.Until() != until {
		l.expiry.Reset(time.Until(l.trust.Until()))
	}
	l.s.doubts.Add(int64(l.trust.Doubts() - l.doubts))
	l.doubts = l.trust.Doubts()
}

// retireLocked keeps new places off the lease: a request with it may still be under way. The lease
// is renewed while places need it, and then revoked.
func (l *lease) retireLocked() {
	if l.state == leaseServing {
		l.becomesLocked(leaseDraining, errLeaseDoubtful)
		l.replacedLocked()
	}
}

// replacedLocked has the next places taken on another lease than l, which serves no more.
func (l *lease) replacedLocked() {
	if l.s.current == l {
		l.s.current = nil
		l.s.trace().leaseReplaced(l.id, l.why)
	}
	l.tenants.GiveWayLocked()
	l.wakeKeeper()
}

// answeredInTimeLocked notes that etcd has answered in time under the lease.
func (l *lease) answeredInTimeLocked() { l.inTime, l.s.unansweredLeases = true, 0 }

// endLocked ends the trust in the lease, and so every hold on it.
func (l *lease) endLocked(why error) {
	if l.hasEndedLocked() {
		return
	}
	served := l.state == leaseServing // until now
	l.becomesLocked(leaseEnded, why)
	close(l.dead)
	l.expiry.Stop()
	if served {
		l.replacedLocked()
	}
	l.tenants.EndedLocked(why)
	l.wakeKeeper()
}

func (l *lease) wakeKeeper() {
	select {
	case l.wake <- struct{}{}:
	default: // already told
	}
}

// isDead reports whether the trust in the lease has ended.
func (l *lease) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

func (l *lease) hex() string { return fmt.Sprintf("%x", int64(l.id)) }

// isKnown reports whether etcd knows the lease, as far as it answers at once.
func (l *lease) isKnown() bool {
	s := l.s
	if s.etcd.Disconnected() || s.etcd.Closed() {
		return true // clientv3 would try many times a second
	}
	ctx, cancel := context.WithTimeout(l.live, causeTime)
	defer cancel()
	lifetime, err := s.etcd.Lifetime(ctx, l.id)
	return err != nil || lifetime.Known
}
