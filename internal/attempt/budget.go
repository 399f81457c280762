package attempt

import (
	"slices"
	"time"
)

const (
	// ReadTimeout is how long one attempt to read waits before it is repeated, so that the
	// repeat may meet another endpoint.
	ReadTimeout = 700 * time.Millisecond

	// fewRepeats and ManyRepeats are how many repeats a client may have to its credit, with
	// one endpoint and with several, and repeatShare is what each answer adds to it. (As
	// gRPC's own throttling of retries has it: 10, and 0.1.)
	fewRepeats, ManyRepeats = 1, 10
	repeatShare             = 0.1

	// fewAnswers is the number of answers by which it is judged how fast etcd is.
	fewAnswers = 4

	// creditTime is the time in which the credit comes back by itself, of what was spent on
	// an etcd that was away.
	creditTime = 15 * time.Second

	// lively is how long after an answer etcd counts as one that answers.
	lively = 2 * time.Second

	// mostWorth is how much that credit grows while repeats are answered, and what they
	// repeat is not.
	mostWorth = 100

	// An etcd that has answered nothing at all for deaf, no renewal either, is away and not
	// slow. Then one of all that wait is repeated each listenEvery, so that its return is
	// noticed.
	deaf        = 20 * time.Second
	listenEvery = 1500 * time.Millisecond
)

// A budget says how much may be sent to an etcd, and how soon, by what it has answered so far.
// It is pure: it has no clock and no lock of its own.
//
// Invariant: repeats are at most a tenth of what was answered, beside a credit that comes back
// in seconds. (Do not repeat without it: an etcd that is slow then gets more to do and not
// less, and is never heard again. TestACrowdOfSessionsGetsThroughASlowEtcd.)
type budget struct {
	latest  []time.Duration // what the last few answers took, the newest last
	turn    time.Duration   // that the last attempt has waited until it might begin
	spent   float64         // repeats that were sent, less what answers have paid back
	counted time.Time       // when spent was last brought up to date
	worth   int             // credit beside the usual one: repeats have been worth it of late
	heard   time.Time       // when etcd last answered, or somebody first asked
	listens time.Time       // when a repeat was last granted without credit
}

// began notes that somebody asks again after a while in which nobody has.
func (b *budget) began(now time.Time) { b.heard = now }

// answered notes that etcd has answered a request after a time.
func (b *budget) answered(now time.Time, after time.Duration) {
	if len(b.latest) == fewAnswers {
		b.latest = append(b.latest[:0], b.latest[1:]...)
	}
	b.latest = append(b.latest, after)
	b.spent = max(b.spent-repeatShare, 0)
	b.heard = now
}

// alive notes that etcd has answered something else.
func (b *budget) alive(now time.Time) { b.heard = now }

// took is what answers take of late: the second longest of the last few. One answer that was
// held up says nothing of the others, and would keep a request that meets a dead endpoint from
// being repeated; two are an etcd that is slow. The first ones each count.
func (b *budget) took() time.Duration {
	sorted := slices.Sorted(slices.Values(b.latest))
	switch n := len(sorted); {
	case n == 0:
		return 0
	case n < fewAnswers:
		return sorted[n-1]
	default:
		return sorted[n-2]
	}
}

// usual is how long an answer may take without being late, but at least first.
func (b *budget) usual(first time.Duration) time.Duration { return max(first, 3*b.took()) }

// seldom is how often to do something that is to be done each period, if answers take long, or
// attempts wait for long until they may begin: whoever asks again and again is to wait for longer
// than that.
func (b *budget) seldom(period time.Duration) time.Duration { return max(period, 4*(b.took()+b.turn)) }

// spend takes n repeats off a credit, or as many as are left.
func (b *budget) spend(now time.Time, n, credit int) (granted int) {
	// What was spent when there was more credit is no debt: some comes back soon in any case.
	b.spent = min(b.spent, float64(credit+b.worth))
	back := creditTime
	if credit == ManyRepeats && now.Sub(b.heard) < lively {
		back /= 4 // etcd answers, by another endpoint perhaps: a repeat is worth it
	}
	b.spent = max(b.spent-float64(credit)*float64(now.Sub(b.counted))/float64(back), 0)
	b.counted = now
	for granted < n && b.spent+1 <= float64(credit+b.worth) {
		b.spent++
		granted++
	}
	if granted == 0 && now.Sub(b.heard) >= deaf && now.Sub(b.listens) >= listenEvery {
		b.listens = now
		return 1
	}
	return granted
}

// repeated notes what became of an attempt with n repeats. If one of them was answered while the
// request before was not, they were worth it, as where one endpoint of several is dead: they
// are paid back, and the credit grows. It shrinks again if the request was answered all the
// same.
func (b *budget) repeated(n int, won bool) {
	switch {
	case won:
		b.spent = max(b.spent-float64(n), 0)
		b.worth = min(b.worth+n, mostWorth)
	case n > 0:
		b.worth = max(b.worth-2*n, 0)
	}
}
