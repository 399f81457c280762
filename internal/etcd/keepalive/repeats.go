package keepalive

import (
	"slices"
	"time"
)

const (
	// urgent is how many repeats of a renewal that has failed are sent whatever else fails.
	urgent = 2

	// perPeriod is how many repeats of all its leases together a client sends in a period for each
	// lease.
	perPeriod = 3

	// leastBank is how many repeats a client can save up. With more leases it is one for each four.
	leastBank = 10
)

// A budget says which leases of a client may repeat a renewal that has failed, and come back as an
// error. (After silence a lease sends few renewals anyway.)
//
// Invariant: whatever fails, and for how many leases, a client sends no more repeats than perPeriod
// for each lease in a period, those that it has saved up, and those of a single lease. So over a
// minute etcd gets less than five times the renewals that a healthy one gets. (Do not let each
// lease repeat as its own schedule says. With a TTL of 15 s 1,000 leases then send sixty renewals
// for each one that is due, on a stream each, and log in for each stream.
// TestRenewalsThatFailAtOnceHaveABudget.)
//
// Invariant: the lease whose trust ends first is not bound by the budget, and the others get what
// there is in the order in which their trust ends. So a client asks at least as often as one with a
// single lease; and when etcd is back, each lease that is renewed makes another one the first. (Do
// not serve them as they come: a lease that is about to end waits behind those that have minutes.
// TestTheLeaseThatEndsFirstIsRepeatedFirst.)
//
// The urgent repeats of a lease wait for nothing, so that leases that fail for good, as those of a
// user who may not renew them, take nothing from one that fails now and then. They are paid for
// afterwards: all together they are fewer than what the leases have.
type budget struct {
	leases  int
	rate    float64   // repeats in a second
	bank    float64   // what was saved up, or was spent on urgent repeats
	counted time.Time // when bank was last brought up to date
	failing []*Sender // whose last renewal has failed, by the end of their trust
	waiting int       // how many of these wait for their turn
}

// repeats are those of one lease's renewal.
type repeats struct {
	fails  bool
	until  time.Time // the end of the trust, while it fails
	sent   int       // since it fails
	waits  bool      // another one is due
	passed bool      // that one was paid for, and may be sent
}

// Repeat says how many renewals the lease may send now, up to most, because one has failed. Its
// trust ends at until. If it may send none, wake is called when it may.
func (s *Sender) Repeat(until time.Time, most int) (n int) {
	s.client.with(func(_ *streams, b *budget, now time.Time) { n = b.take(s, until, most, now) })
	return n
}

// Rest notes that the lease does not repeat a renewal that has failed any more: it was renewed, its
// trust has ended, or etcd is silent.
func (s *Sender) Rest() {
	s.client.with(func(_ *streams, b *budget, now time.Time) { b.rest(s, now) })
}

// join adds a lease, and leave takes it away.
func (b *budget) join(s *Sender, now time.Time) {
	b.count(now)
	b.leases++
	b.rate += perPeriod / s.period.Seconds()
	if b.leases == 1 {
		b.bank = leastBank
	}
}

func (b *budget) leave(s *Sender, now time.Time) {
	b.rest(s, now)
	b.leases--
	b.rate -= perPeriod / s.period.Seconds()
	if b.leases == 0 {
		b.rate = 0 // however it was rounded
	}
}

// count brings the bank up to date.
func (b *budget) count(now time.Time) {
	most := max(leastBank, float64(b.leases)/4)
	b.bank = min(b.bank+b.rate*now.Sub(b.counted).Seconds(), most)
	b.counted = now
}

func (b *budget) take(s *Sender, until time.Time, most int, now time.Time) (n int) {
	free := s.passed || s.sent < urgent
	b.remove(s)
	b.insert(s, until)
	b.forget(now)
	b.count(now)
	switch {
	case !s.fails: // too late
	case b.failing[0] == s:
		n = most
		b.bank = min(b.bank, max(b.bank-float64(n), 0))
	case free || b.bank >= 1:
		n = 1
		b.bank--
	default:
		s.waits = true
		b.waiting++
	}
	s.sent += n
	return n
}

func (b *budget) rest(s *Sender, now time.Time) {
	b.remove(s)
	s.sent = 0
	b.pass(now)
}

// pass lets those that wait send what the bank has, in their order, and the first one in any case.
func (b *budget) pass(now time.Time) {
	if b.waiting == 0 {
		return
	}
	b.forget(now)
	b.count(now)
	for i, s := range b.failing {
		if b.waiting == 0 || i > 0 && b.bank < 1 {
			return
		}
		if s.waits {
			b.bank--
			b.waiting--
			s.waits, s.passed = false, true
			s.wake()
		}
	}
}

// forget forgets leases whose trust has ended.
func (b *budget) forget(now time.Time) {
	for len(b.failing) > 0 && !now.Before(b.failing[0].until) {
		b.remove(b.failing[0])
	}
}

// next is how long after now one of those that wait may be sent, if nothing happens before: the
// bank has another repeat, or the first one is forgotten.
func (b *budget) next(now time.Time) time.Duration {
	if b.waiting == 0 {
		return never
	}
	b.count(now)
	return min(pause(1-b.bank, b.rate), b.failing[0].until.Sub(now))
}

// insert adds a lease to those that fail.
func (b *budget) insert(s *Sender, until time.Time) {
	b.failing = slices.Insert(b.failing, b.find(until.Add(1)), s) // behind its equals
	s.fails, s.until = true, until
}

// remove takes a lease from those that fail.
func (b *budget) remove(s *Sender) {
	if !s.fails {
		return
	}
	at := b.find(s.until)
	at += slices.Index(b.failing[at:], s)
	b.failing = slices.Delete(b.failing, at, at+1)
	if s.waits {
		b.waiting--
	}
	if s.passed {
		b.bank++
	}
	s.fails, s.waits, s.passed = false, false, false
}

// find returns the first of those that fail whose trust ends no earlier than until.
func (b *budget) find(until time.Time) (at int) {
	at, _ = slices.BinarySearchFunc(b.failing, until, func(s *Sender, until time.Time) int {
		return s.until.Compare(until)
	})
	return at
}
