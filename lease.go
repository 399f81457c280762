package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/trust"
)

const (
	// auditEvery is the time between audits of a lease's keys while the late copy of a request may
	// put one. The keeper checks what is due twice as often.
	auditEvery = 700 * time.Millisecond

	// manyPlaces is the number of a lease's keys above which no held key gets a watch of its
	// own: an audit of all of them, once per renewal period, costs less.
	manyPlaces = 100

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

	// Guarded by Session.mu.
	trust       *trust.Trust
	expiry      *time.Timer        // of the trust
	doubts      int                // of the trust, as counted in Session.doubts
	refusal     error              // of renewals since the last good one, nil if there was none
	places      map[string]*place  // by key: all that the Session accounts for
	users       int                // places that hold, wait or are being released
	releases    int                // releases under way, of holds that have ended whole
	ending      map[*hold]struct{} // holds that have ended while their contexts may not have
	idleSince   time.Time          // when users became 0
	placed      time.Time          // when the last place was taken
	swept       time.Time          // when the last answered audit of the keys on it was sent
	state       leaseState         // changed by becomesLocked alone
	why         error              // why it is in that state; nil while it serves
	inTime      bool               // etcd has answered a renewal, or a put in the time of an attempt
	suspect     bool               // an audit of its keys is due now
	audits      uint               // while places listen: by values, or in turn by the keys on it
	doubted     time.Time          // when it was last learned that a copy of a put may come late
	unread      []unread           // created key watches whose keys are still to be read
	reading     bool               // that read is under way
	deleted     []*place           // places whose keys are gone and whose holds are about to end
	asking      bool               // whether the lease is gone too is being asked
	leftoverErr error              // why the last removal was given up
	renewed     struct {           // what was known when the last renewal was confirmed
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
	l.markLocked()
}

// markLocked marks the local lines of the places on l.
func (l *lease) markLocked() {
	for t := range l.tenantsLocked() {
		t.markLocked()
	}
}

// hasEndedLocked reports whether the trust in l has ended.
func (l *lease) hasEndedLocked() bool { return l.state >= leaseEnded }

// A tenant is a place, as its lease knows it.
type tenant interface {
	ticketLocked() *ticket.Ticket
	stuckLocked() bool          // the removal of its key was given up
	markLocked()                // the state of the lease has changed, or it lasts again
	giveWayLocked()             // gives its key up if that lingers
	leaseEndedLocked(why error) // ends the holds at it
}

// tenantsLocked are the places on l.
func (l *lease) tenantsLocked() iter.Seq[tenant] {
	return func(yield func(tenant) bool) {
		for _, p := range l.places {
			if !yield(p) {
				return
			}
		}
	}
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
		s:         s,
		id:        granted.ID,
		ttl:       ttl,
		trust:     trust.New(attemptStarted, ttl, s.cfg.marginOf),
		wake:      make(chan struct{}, 1),
		dead:      make(chan struct{}),
		places:    make(map[string]*place),
		idleSince: time.Now(),
	}
	l.live, l.bury = context.WithCancel(s.ctx)
	l.plan = l.trust.Schedule()
	l.expiry = time.AfterFunc(time.Until(l.trust.Until()), l.check)
	s.leases[l] = struct{}{}
	s.tasks.GoLocked(func() { l.keep(attemptStarted) })
	s.tasks.GoLocked(l.followConnection)
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
		l.markLocked()
	}
	if l.trust.Until() != until {
		l.expiry.Reset(time.Until(l.trust.Until()))
	}
	l.s.doubts.Add(int64(l.trust.Doubts() - l.doubts))
	l.doubts = l.trust.Doubts()
}

// releasedLocked counts a release that is over. A hold that ends whole counts its release in
// the same critical section, so that Close does not revoke the lease under it.
func (l *lease) releasedLocked() {
	l.releases--
	if l.s.closed {
		l.wakeKeeper()
	}
}

// retireLocked keeps new places off the lease. The lease is renewed while places
// need it, and then revoked.
func (l *lease) retireLocked(why error) {
	if why == errLeaseDoubtful {
		l.doubted = time.Now()
	}
	if l.state == leaseServing {
		l.becomesLocked(leaseDraining, why)
		l.replacedLocked()
	}
}

// replacedLocked has the next places taken on another lease than l, which serves no more.
func (l *lease) replacedLocked() {
	if l.s.current == l {
		l.s.current = nil
		l.s.trace().leaseReplaced(l.id, l.why)
	}
	l.giveWayLocked()
	l.wakeKeeper()
}

// giveWayLocked gives up the keys that linger on the lease.
func (l *lease) giveWayLocked() {
	for t := range l.tenantsLocked() {
		t.giveWayLocked()
	}
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
	for t := range l.tenantsLocked() {
		t.leaseEndedLocked(why)
	}
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

// suspectLocked makes an audit of l's keys due now.
func (l *lease) suspectLocked() {
	l.suspect = true
	l.wakeKeeper()
}

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

// sweptLocked reports whether an audit of the keys on l was sent a TTL after the last put. Copies
// of puts that come later than that are left to the rare audits.
func (l *lease) sweptLocked() bool { return l.swept.Sub(l.placed) >= l.ttl }

// putLocked notes the answer to a put on l.
func (l *lease) putLocked(a ticket.Answer, prompt bool) {
	if a.Doubtful() {
		l.retireLocked(errLeaseDoubtful)
	}
	if prompt {
		l.answeredInTimeLocked()
	}
}

// suspectLocked makes an audit of all leases due now.
func (s *Session) suspectLocked() {
	for l := range s.leases {
		l.suspectLocked()
	}
}
