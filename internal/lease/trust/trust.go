// Package trust says how long a lease may be trusted, by what etcd has confirmed about it, and
// when to renew it. It is pure: it has no clock, no mutex and no goroutine. The owner of a Trust
// guards it; in etcdlock the safety lock of the leases does.
package trust

import (
	"slices"
	"time"
)

// A Trust says how long a lease certainly lives.
//
// Invariant: it lasts until sent + granted TTL - margin, for the latest attempt to grant or
// renew that etcd has confirmed, as far as the answer is worth (see Attempt). etcd counts the TTL
// from when it handled that attempt, which is no earlier than sent. So it cannot end the lease, and
// let another contender in, before sent + granted TTL. The margin covers clocks that run at
// different rates. A trust that is over is over for good.
//
// Do not count from the answer: a slow answer would add its delay to the trust
// (TestTrustCountsFromTheSendInVirtualTime). Do not let an answer after Until revive the trust
// (TestALateAnswerRevivesNothingInVirtualTime).
type Trust struct {
	margin   func(granted time.Duration) time.Duration
	ttl      time.Duration // as granted
	until    time.Time
	attempts []*Attempt
}

// New returns the trust in a lease that was granted with a TTL for a request sent at a time. The
// margin is computed for each TTL that etcd grants.
func New(
	sent time.Time, ttl time.Duration, margin func(granted time.Duration) time.Duration,
) *Trust {
	t := &Trust{margin: margin, ttl: ttl}
	t.extend(sent, ttl)
	return t
}

// extend applies the formula.
func (t *Trust) extend(sent time.Time, ttl time.Duration) {
	if until := sent.Add(ttl - t.margin(ttl)); until.After(t.until) {
		t.until = until
	}
}

// Until is when the trust is over, unless a renewal extends it before.
func (t *Trust) Until() time.Time { return t.until }

// Remaining is how long the trust lasts, by the clock that says less; see At.
func (t *Trust) Remaining(now time.Time) time.Duration {
	return min(t.until.Sub(now), t.until.Round(0).Sub(now.Round(0)))
}

// Schedule is when to renew the lease.
func (t *Trust) Schedule() Schedule { return scheduleOf(t.ttl, t.margin(t.ttl)) }

// A State is whether a lease may be trusted.
type State int

// The states.
const (
	Whole     State = iota
	Expired         // etcd may have ended the lease and deleted its keys
	Suspended       // it may have, by the wall clock: the machine has slept
)

func (s State) String() string {
	return [...]string{"whole", "expired", "suspended"}[s]
}

// At is the state at a time. It also checks the wall clock, because the monotonic clock may stand
// still while a machine is suspended. A forward step of the wall clock may end the trust early; a
// backward step never lengthens it.
func (t *Trust) At(now time.Time) State {
	switch {
	case !now.Before(t.until):
		return Expired
	case !now.Round(0).Before(t.until.Round(0)):
		return Suspended
	default:
		return Whole
	}
}

// A renewal is confirmed by a member that leads, or believes that it leads. A leader that is cut
// off from the other members goes on renewing until it steps down, which may be an election timeout
// after they have elected a new leader. The new leader grants each lease its whole TTL again, and
// an election timeout more, so that the old leader's confirmation still holds. The exception is
// an earlier renewal that has reached the new leader meanwhile: the lease then
// expires a TTL after that renewal. A client with several endpoints has such renewals: they wait
// at a follower for the end of the election. (Seen on etcd 3.7: a lease with a TTL of 2 s was gone
// 1.96 s after a renewal was sent that etcd confirmed.)
//
// Invariant: a confirmed renewal counts from the sending of the oldest renewal that a newer leader
// may have carried out. It counts from its own sending once a linearizable answer to a later
// request shows that there was no newer leader. (TestTheWordOfADeposedLeaderIsNotTrusted.)

// What etcd's own bugs mean for a trust (internal/sim/bugs.go, row S44 of the faults):
//
//   - Events that are lost, come twice or from the past: no trust comes from an event.
//   - A renewal that is confirmed though the lease has ended. It ended a TTL after the last
//     renewal that counted, so the trust was over a margin before, and is not revived. If an
//     operator has revoked the lease, the watch of the key tells, and not the trust.
//   - A new leader that begins TTLs anew makes a lease longer. One that goes on from a
//     checkpoint may end it before a TTL after what the leader before it has confirmed, alone,
//     when it was deposed. etcd makes a checkpoint each five minutes, so only longer TTLs have
//     them. For these that remains.
//   - A stale linearizable read may prove what is not so. The trust is too long then only if a
//     leader was deposed at the time, and has confirmed a renewal when its successor had an
//     older one.

const (
	// prompt is the time within which an answer counts as it stands. Its header was then
	// written when the request came, since a request that waits for an election, or for
	// another member, waits no less than that.
	prompt = 50 * time.Millisecond

	// requestTimeout is how long etcd works on a renewal, besides two election timeouts.
	requestTimeout = 5 * time.Second
)

// An Attempt is one renewal that was sent, and that may matter for the worth of other renewals.
type Attempt struct {
	epoch  any // in which it was sent: answers of two epochs are not comparable
	sent   time.Time
	ended  time.Time // when its answer came; zero if none has come
	answer Confirmation
	open   bool // it was answered but does not count from sent yet
}

// Open reports whether the attempt was answered and may be worth more than it counts for now.
func (a *Attempt) Open() bool { return a.open }

// Sends notes that a renewal is sent, and forgets attempts that etcd has given up by now: its
// least TTL is one and a half election timeouts.
func (t *Trust) Sends(now time.Time, epoch any) *Attempt {
	// Four thirds of the longest TTLs overflow.
	t.forget(func(a *Attempt) bool { return (now.Sub(a.sent)-requestTimeout)/4 > t.ttl/3 })
	a := &Attempt{epoch: epoch, sent: now}
	t.attempts = append(t.attempts, a)
	return a
}

// Drop forgets an attempt that does not matter for others: etcd has certainly not carried it out
// and never will, or it is worth what its answer says.
func (t *Trust) Drop(a *Attempt) { t.forget(func(other *Attempt) bool { return other == a }) }

// forget forgets attempts.
func (t *Trust) forget(which func(*Attempt) bool) {
	t.attempts = slices.DeleteFunc(t.attempts, which)
}

// Doubts is the number of attempts that may matter for other attempts.
func (t *Trust) Doubts() int { return len(t.attempts) }

// A Confirmation is what etcd's answer to a renewal says.
type Confirmation struct {
	Member uint64 // that has answered
	Term   uint64 // of Raft, the newest that the member knew when the request came
	TTL    time.Duration

	// Doubtful says that etcd may have been set back since the lease was granted, and its keys be
	// gone, while the lease is there.
	Doubtful bool
}

// Answered notes that etcd has confirmed a, and extends the trust by what the answer is
// worth. known is the newest term that was known before, in the epoch in which a was sent; it
// is 0 if that epoch is over. Answered reports whether a linearizable read should find out if
// the answer is worth more.
func (t *Trust) Answered(now time.Time, a *Attempt, c Confirmation, known uint64) (ask bool) {
	a.ended, a.answer = now, c
	from := a.sent
	for _, o := range t.attempts {
		// A member that has passed a renewal on to a leader passes none on to an older leader.
		harmless := !o.ended.IsZero() && o.answer.Member == c.Member
		if o.sent.Before(from) && !harmless {
			from = o.sent
		}
	}
	if c.Doubtful || c.Term < known {
		a.open, ask = true, true
	} else {
		missing := a.sent.Sub(from)
		a.open, ask = missing > 0, missing > t.Schedule().Late()
		t.extend(from, c.TTL)
	}
	if !a.open && a.ended.Sub(a.sent) <= prompt {
		t.Drop(a)
	}
	return ask
}

// Proved applies a linearizable answer to a request that was sent at a time in an epoch. The
// answer comes from a member that knew no newer term. Then no leader of a newer term has
// carried out a renewal that was answered before, and the answer of a leader of an older
// term is worth nothing.
func (t *Trust) Proved(sent time.Time, epoch any, term uint64) {
	t.forget(func(a *Attempt) bool {
		if a.ended.IsZero() || a.ended.After(sent) {
			return false
		}
		if a.open && a.epoch == epoch && a.answer.Term >= term {
			a.open = false
			t.extend(a.sent, a.answer.TTL)
		}
		return true
	})
}
