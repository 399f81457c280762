package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
	"github.com/etcdlock/etcdlock/internal/list"
)

// causeTime is how long a deleted key's hold waits for etcd to say whether the lease is gone too.
// If it is, that is the reason of the loss.
const causeTime = 100 * time.Millisecond

var (
	errUnused       = errors.New("lease given back: nobody used it")
	errOrphaned     = errors.New("lease left to expire")
	errDoubtful     = errors.New("a request with this lease may still be under way")
	errGrantTooLate = errors.New(
		"the granted lease was over before it could be used: safety margin too large, or etcd too slow")
	errDeposed = errors.New("renewed by a member that does not lead any more, it seems")
	errUnread  = errors.New("etcd was set back, and the keys of the holds are yet to be read")
)

// A Lease is one etcd lease and what is known about it. It may be used as long as its trust
// lasts. Once it has ended, it has ended for good.
type Lease struct {
	// Set once, then only read.
	ID       clientv3.LeaseID
	TTL      time.Duration // as granted
	pool     *Pool
	plan     trust.Schedule     // of its renewals
	care     *time.Timer        // of due
	dead     chan struct{}      // closed when it has ended
	goes     chan struct{}      // closed when it is about to be revoked, or has gone
	distrust func()             // when it has ended: the client trusts it no more
	live     context.Context    // ended by the keeper, once no put can apply any more
	bury     context.CancelFunc // ends live

	tenants Tenants // what it knows of its keys
	keeper  keeper

	// Guarded by the Session's mutex.
	state state     // changed by becomesLocked alone
	why   error     // why it is in that state; nil while it serves
	due   time.Time // when care is

	// Guarded by Pool.safety.
	trust         *trust.Trust     // changed by trusts alone
	expiry        *time.Timer      // of the trust
	over          error            // why the trust has ended, nil while it goes on
	refusal       error            // of renewals since the last good one, nil if there was none
	inTime        bool             // etcd has answered a renewal, or a put in the time of an attempt
	read          *etcd.Epoch      // the latest one in which the keys of all holds on it were there
	whole, ending list.List[*Life] // of the holds on it

	// News of the renewals for the keeper's care.
	lasts atomic.Bool // they were late, and are not
	late  atomic.Bool // one is late

	unknown atomic.Bool // etcd has not known it, before its time was over
}

// A Reason is why the trust in a lease has ended, as far as users tell the reasons apart.
type Reason uint8

const (
	Expired   Reason = iota // etcd has confirmed no renewal in time
	Suspended               // the wall clock ran ahead of the monotonic one
	Revoked                 // etcd does not know the lease any more
	Closed                  // the Session was closed
)

// A state is how far a lease has come. It never goes back.
type state uint8

const (
	serving  state = iota // it takes new places
	draining              // it takes none, and is renewed while places need it
	ended                 // it is not trusted any more, and is about to be revoked
	gone                  // etcd has confirmed that it is gone, and its keys with it
)

// String returns the state's name.
func (st state) String() string {
	return [...]string{"serving", "draining", "ended", "gone"}[st]
}

// becomesLocked is the one transition of a lease's state. It panics if that would not go on, or be
// gone without having ended.
func (l *Lease) becomesLocked(next state, why error) {
	if next <= l.state || next == gone && l.state != ended {
		panic(fmt.Sprintf("etcdlock: lease %s: %v becomes %v", l.Hex(), l.state, next))
	}
	l.state, l.why = next, why
	l.tenants.MarkLocked()
}

// ServesLocked reports whether the lease takes new places.
func (l *Lease) ServesLocked() bool { return l.state == serving }

// GoneLocked reports whether etcd has confirmed that the lease is gone, and its keys with it.
func (l *Lease) GoneLocked() bool { return l.state == gone }

// HasEndedLocked reports whether l has ended, as the last CheckLocked has found.
func (l *Lease) HasEndedLocked() bool { return l.state >= ended }

// WhyLocked is why l has ended, or takes no new places; nil while it serves.
func (l *Lease) WhyLocked() error { return l.why }

// Tenants are the keys on a lease, as far as the lease knows them.
type Tenants interface {
	// UseLocked is what needs the lease.
	UseLocked() Use

	// MarkLocked is called when the lease's state has changed, or the lease lasts again.
	MarkLocked()

	// GiveWayLocked gives up keys that are only kept for what may come.
	GiveWayLocked()

	// EndedLocked says that the lease has ended.
	EndedLocked()

	// KeyLocked is a key on the lease, empty if there is none.
	KeyLocked() string

	// CareLocked does what is due, and reports whether an audit of the keys is: the last one was at
	// last. It returns when to call it again if nothing happens before, zero for never.
	CareLocked(now, last time.Time) (audit bool, again time.Time)

	// SuspectLocked makes an audit of the keys due now.
	SuspectLocked()

	// Audit compares the keys in etcd with the accounts. It was decided on at sent, and ctx ends when
	// the lease is about to be revoked. It reports false if etcd seems not to know the lease.
	Audit(ctx context.Context, sent time.Time) (known bool)

	// RemoveRest removes the keys that the end of the lease has not removed.
	RemoveRest(until time.Time) error

	// RevokedLocked says that the lease needs no tenants any more. err is why it could not be revoked,
	// or why keys may be left. A lease that could not be revoked may be left until a time.
	RevokedLocked(err error, left time.Time)
}

// A Use is what needs a lease.
type Use struct {
	Users     int       // places that hold, wait or are being released
	IdleSince time.Time // when Users became 0
	Releases  int       // under way, of holds that have ended whole
	Removals  int       // under way, of keys that were given up
}

// expire is called by the timer of the end of the trust, and when a look has found that over.
func (l *Lease) expire() {
	why := l.expires()
	if why == nil {
		return // a renewal has moved the end meanwhile, or the wall clock was set back
	}
	l.endLives(why)
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.CheckLocked(time.Now())
}

// expires is Over. While the trust goes on it sets the timer anew. A timer runs by the monotonic
// clock: by the wall clock the end may come sooner, or not as soon any more.
func (l *Lease) expires() error {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	now := time.Now()
	if why := l.overSafe(now); why != nil {
		return why
	}
	l.expiry.Reset(l.trust.Remaining(now))
	return nil
}

// Over is why the trust in l has ended, nil while it goes on. It goes by now, which the caller has
// just read: the lease may have yet to end, with all that is on it (CheckLocked).
func (l *Lease) Over(now time.Time) error {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	return l.overSafe(now)
}

// overSafe is Over. What is found over once is over for good.
func (l *Lease) overSafe(now time.Time) error {
	if l.over != nil {
		return l.over
	}
	switch l.trust.At(now) {
	case trust.Expired:
		if !l.inTime && l.refusal == nil {
			l.pool.unanswered++
		}
		l.overForSafe(l.pool.config.Error(Expired, l.refusal))
	case trust.Suspended:
		l.overForSafe(l.pool.config.Error(Suspended, nil))
	}
	return l.over
}

// overForSafe ends the trust in l, and has expire called.
func (l *Lease) overForSafe(why error) {
	l.over = why
	l.expiry.Reset(0)
}

// CheckLocked ends the lease if its time has passed. It may run at any time and any number of
// times.
func (l *Lease) CheckLocked(now time.Time) {
	if l.HasEndedLocked() {
		return
	}
	l.pool.safety.Lock()
	why := l.overSafe(now)
	l.pool.safety.Unlock()
	if why != nil {
		l.endLocked(why)
	}
}

// trusts changes the lease's trust, unless that is over: a late answer revives nothing.
func (l *Lease) trusts(change func(t *trust.Trust)) {
	p, now := l.pool, time.Now()
	p.safety.Lock()
	defer p.safety.Unlock()
	if l.overSafe(now) != nil {
		return
	}
	until, lasted := l.trust.Until(), l.plan.Lasts(l.trust.Remaining(now))
	doubts := l.trust.Doubts()
	change(l.trust)
	if l.trust.Until() != until {
		l.expiry.Reset(l.trust.Remaining(time.Now()))
		if !lasted {
			l.lasts.Store(true)
			l.WakeKeeper()
		}
	}
	p.doubts.Add(int64(l.trust.Doubts() - doubts))
}

// Read notes that the keys of all holds on l were there in an epoch, or have ended.
//
// Invariant: after a set-back no renewal extends the trust in a lease before that. An etcd that was
// restored may know the lease, and not the keys: it confirms the renewals of a hold that others do
// not see. So such a hold ends by the renewals of before. Others rely on that: see the lock delay
// in internal/queue. (TestRenewalsAfterASetBackGiveNoTrustBeforeTheKeysWereRead.)
func (l *Lease) Read(in *etcd.Epoch) {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	l.read = in
}

// isReadSafe reports whether a renewal that was sent in an epoch may extend the trust in l.
func (l *Lease) isReadSafe(sent *etcd.Epoch) bool {
	return l.read == sent && l.pool.etcd.IsPresent(sent)
}

// RetireLocked keeps new places off the lease: a request with it may still be under way. The lease
// is renewed while places need it, and then revoked.
func (l *Lease) RetireLocked() {
	if l.state == serving {
		l.becomesLocked(draining, errDoubtful)
		l.replacedLocked()
	}
}

// replacedLocked has the next places taken on another lease than l, which serves no more.
func (l *Lease) replacedLocked() {
	if p := l.pool; p.current == l {
		p.current = nil
		p.config.Replaced(l.ID, l.why)
	}
	l.tenants.GiveWayLocked()
	l.WakeKeeper()
}

// AnsweredInTime notes that etcd has answered in time under the lease.
func (l *Lease) AnsweredInTime() {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	l.inTime, l.pool.unanswered = true, 0
}

// EndRevokedLocked ends the lease: etcd does not know it, by its answer, an error.
func (l *Lease) EndRevokedLocked(answer error) {
	l.unknown.Store(true)
	l.endLocked(l.pool.config.Error(Revoked, answer))
}

// IsUnknown reports whether etcd has not known the lease, before its time was over.
func (l *Lease) IsUnknown() bool { return l.unknown.Load() }

// endRevoked is EndRevokedLocked for the renewals, which wait for no mutex: it ends the trust, and
// has expire do the rest.
func (l *Lease) endRevoked(answer error) {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	if l.overSafe(time.Now()) == nil {
		l.unknown.Store(true)
		l.overForSafe(l.pool.config.Error(Revoked, answer))
	}
}

// endLocked ends the lease, and the trust in it unless that has ended before, for another reason.
func (l *Lease) endLocked(why error) {
	if l.HasEndedLocked() {
		return
	}
	l.pool.safety.Lock()
	if l.over == nil {
		l.over = why
	}
	why = l.over
	l.expiry.Stop()
	l.pool.safety.Unlock()
	l.pool.mu.After(func() {
		l.endLives(why)
		close(l.dead) // which wakes as many as wait
	})
	l.distrust()
	served := l.state == serving // until now
	l.becomesLocked(ended, why)
	if served {
		l.replacedLocked()
	}
	l.tenants.EndedLocked()
	l.WakeKeeper()
}

// endLives ends all lives on l, which is over or closed for why, and their contexts. When it
// returns they all have ended, also those whose contexts another call ends at that time.
func (l *Lease) endLives(why error) {
	p := l.pool
	p.safety.Lock()
	defer p.safety.Unlock()
	for n := 1; ; n++ {
		if f, ok := l.whole.First(); ok {
			f.endSafe(f.of.LostSafe(why))
		} else if f, ok = l.ending.First(); ok {
			p.safety.Unlock()
			f.EndContexts()
			p.safety.Lock()
		} else {
			return
		}
		if n%guard.Piece == 0 {
			p.safety.Unlock()
			p.safety.Lock()
		}
	}
}

// key is the key of a hold on l, or of a wait; empty if there is none. It takes the Session's mutex
// only if there is no hold, which could wait for that.
func (l *Lease) key() string {
	p := l.pool
	p.safety.Lock()
	f, held := l.whole.First()
	p.safety.Unlock()
	if held {
		return f.of.KeySafe()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.tenants.KeyLocked()
}

// DueLocked makes care due at a time, zero for never, unless it is due before.
func (l *Lease) DueLocked(at time.Time) {
	if !at.IsZero() && at.Before(l.due) {
		l.dueLocked(at)
	}
}

func (l *Lease) dueLocked(at time.Time) {
	l.due = at
	l.care.Reset(time.Until(at))
}

// alarmed is called when the lookout has seen something.
//
// (Do not only ask whether the trust is over. A machine that has slept may wake before that, and
// the timer, which has slept, too, would be late by as much.
// TestATrustEndsByTheWallClockAfterTheMachineHasSlept.)
//
// (Nor leave the next renewal to its timer. There may be time enough for one before the trust is
// over. TestALeaseIsRenewedOnceTheMachineHasWoken.)
func (l *Lease) alarmed() {
	overdue := l.expires() == nil && l.remaining(time.Now()) < l.plan.Span-l.plan.Period
	k := &l.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if overdue && k.verdict == leaseRenew {
		k.nextLocked(0)
	}
	k.wakeLocked()
}

// until is when the trust in the lease ends, or has ended.
func (l *Lease) until() time.Time {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	return l.trust.Until()
}

// remaining is how long the trust in the lease lasts, by the clock that says less.
func (l *Lease) remaining(now time.Time) time.Duration {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	return l.trust.Remaining(now)
}

// Lasts reports whether the trust is enough for another hold: whether the renewals are not late.
func (l *Lease) Lasts(now time.Time) bool {
	return l.Over(now) == nil && l.plan.Lasts(l.remaining(now))
}

// AtRisk reports whether less than half of the trust remains.
func (l *Lease) AtRisk(now time.Time) bool { return l.plan.AtRisk(l.remaining(now)) }

// Period is the time from one renewal to the next, while etcd answers at once.
func (l *Lease) Period() time.Duration { return l.plan.Period }

// Together is when what is due at a time is done, with what the client's other leases do.
func (l *Lease) Together(due time.Time) time.Time { return l.keeper.sender.Together(due) }

// Live returns a context that ends once no put can apply under the lease any more.
func (l *Lease) Live() context.Context { return l.live }

// Goes returns a channel that is closed when the lease is about to be revoked: its keys go with it.
func (l *Lease) Goes() <-chan struct{} { return l.goes }

// Dead returns a channel that is closed when the trust in the lease has ended.
func (l *Lease) Dead() <-chan struct{} { return l.dead }

// IsDead reports whether the trust in the lease has ended.
func (l *Lease) IsDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

func (l *Lease) Hex() string { return fmt.Sprintf("%x", int64(l.ID)) }

// IsKnown reports whether etcd knows the lease, as far as it answers at once.
func (l *Lease) IsKnown() bool {
	if c := l.pool.etcd; c.Disconnected() || c.Closed() {
		return true // clientv3 would try many times a second
	}
	ctx, cancel := context.WithTimeout(l.live, causeTime)
	defer cancel()
	lifetime, err := l.pool.etcd.Lifetime(ctx, l.ID)
	return err != nil || lifetime.Known
}
