package trust

import "time"

// leastPeriod is the least time from one renewal to the next. A margin that leaves less trust than
// this loses holds, but does not flood etcd.
const leastPeriod = 10 * time.Millisecond

// firstAgain is the pause after the first failure, if that has come back at once.
const firstAgain = 50 * time.Millisecond

// mostDoubled is how often that pause is doubled, to some years.
const mostDoubled = 31

// A Schedule says when a lease is renewed, and when that is late. All of it follows from Span, the
// time for which a confirmed attempt is trusted. Whatever the safety margin, more than half of the
// trust is left when a renewal is sent, and several may fail. The period is a third of the TTL
// with any margin up to a quarter of the TTL. (Do not count in TTLs: with a margin of
// two thirds of the TTL the first renewal would come when the trust is over.
// TestNoMarginLosesTheHoldsOfAHealthyEtcd.)
type Schedule struct {
	Span   time.Duration // granted TTL less margin
	Period time.Duration // from one renewal to the next, while etcd answers at once
}

// scheduleOf returns the schedule for a granted TTL and a safety margin.
func scheduleOf(granted, margin time.Duration) Schedule {
	span := granted - margin
	return Schedule{Span: span, Period: max(min(granted/3, span/9*4), leastPeriod)}
}

// Late is how long an attempt may take before further attempts are sent too.
func (s Schedule) Late() time.Duration { return s.Period / 2 }

// Again is how long after a failure the next attempt is sent, give or take some. n says how many
// attempts have failed in a row, and took how long the last one took. A failure that comes back at
// once is followed soon: the pause doubles up to Soon. The longer it took the later the next
// attempt, so that an etcd that is slow gets no more of them.
func (s Schedule) Again(n int, took time.Duration) time.Duration {
	soon := min(firstAgain<<min(max(n-1, 0), mostDoubled), s.Soon())
	return min(max(soon, took), s.longest())
}

// Soon is the pause between attempts that fail at once, in the end. At least thirty attempts fit
// into what is left of the trust when the first one fails.
// (Do not make it a second, however short the TTL: where two of three attempts fail, eight in a row
// fail once in 25 periods, and a renewal in doubt needs a good read, too. Nor however long the TTL:
// at an hour each lease then sends 1,200 renewals where a healthy etcd gets one.
// TestTheShareOfFailuresThatAHoldSurvives.)
func (s Schedule) Soon() time.Duration { return min(max(s.Period/30, leastPeriod), s.longest()) }

// longest is the longest pause after a failure: a second, or more if the TTL is long.
func (s Schedule) longest() time.Duration {
	return max(min(max(s.Period/16*3, min(firstAgain, s.Late())), time.Second), s.Period/30)
}

// Next is how long after an attempt that was answered within rtt the next attempt is sent: the
// slower the answers, the sooner.
func (s Schedule) Next(rtt time.Duration) time.Duration { return max(s.Period-rtt, s.Period/8*3) }

// Lasts reports whether the remaining trust is enough for another hold: whether the renewals are
// not late.
func (s Schedule) Lasts(remaining time.Duration) bool { return remaining > s.Period }

// AtRisk reports whether less than half of the trust remains.
func (s Schedule) AtRisk(remaining time.Duration) bool { return remaining < s.Span/2 }
