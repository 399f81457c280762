package attempt

import (
	"slices"
	"time"
)

const (
	// ReadTimeout is how long one attempt to read waits before it is repeated, so that the
	// repeat may reach another endpoint.
	ReadTimeout = 700 * time.Millisecond

	// fewRepeats and ManyRepeats are a client's largest credit of repeats, with one endpoint and
	// with several. repeatShare is what each answer adds to the credit. (gRPC's own retry
	// throttling uses 10 and 0.1 too.)
	fewRepeats, ManyRepeats = 1, 10
	repeatShare             = 0.1

	// fewAnswers is the number of recent answers that show how fast etcd is.
	fewAnswers = 4

	// creditTime is the time in which credit that was spent on an unreachable etcd comes back by
	// itself.
	creditTime = 15 * time.Second

	// lively is how long after an answer etcd counts as answering.
	lively = 2 * time.Second

	// mostWorth is how much the credit grows while repeats are answered and the requests that
	// they repeat are not.
	mostWorth = 100

	// An etcd that has answered nothing at all for deaf, not even a renewal, is away and not
	// slow. Then one of all waiting requests is repeated every listenEvery, so that etcd's return
	// is noticed.
	deaf        = 20 * time.Second
	listenEvery = 1500 * time.Millisecond
)

// A budget says how much may be sent to an etcd, and how soon, by what it has answered so
// far. It is pure: it has no clock and no mutex of its own.
//
// Invariant: repeats are at most a tenth of what was answered, plus a credit that comes
// back in seconds. (Do not repeat without it: a slow etcd then gets more to do, not less,
// and is never heard again. TestACrowdOfSessionsGetsThroughASlowEtcd.)
type budget struct {
	latest  []time.Duration // what the last few answers took, the newest last
	turn    time.Duration   // how long the last attempt waited for its turn
	spent   float64         // repeats that were sent, less what answers have paid back
	counted time.Time       // when spent was last brought up to date
	worth   int             // extra credit: repeats have been worth it of late
	heard   time.Time       // when etcd last answered, or when requests began
	listens time.Time       // when a repeat was last granted without credit
}

// began notes that there are requests again after a while without any.
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

// took is how long answers take of late: the second longest of the last few. One delayed answer
// says nothing about the next, and would keep a request to a dead endpoint from being repeated.
// Two mean that etcd is slow. Until there are a few, each one counts.
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

// usual is how long an answer may take without being late. It is at least first.
func (b *budget) usual(first time.Duration) time.Duration { return max(first, 3*b.took()) }

// seldom is how often to do something whose normal period is period. It is longer than
// period if answers take long, or if attempts wait long for their turn: a periodic request
// must wait longer than that.
func (b *budget) seldom(period time.Duration) time.Duration { return max(period, 4*(b.took()+b.turn)) }

// spend takes n repeats off a credit, or as many as are left.
func (b *budget) spend(now time.Time, n, credit int) (granted int) {
	// What was spent from a greater credit is no debt: some credit comes back soon anyway.
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

// repeated notes how an attempt with n repeats ended. If one of them was answered while the
// first request was not, they were worth it, as when one endpoint of several is dead: they are
// paid back, and the credit grows. It shrinks again if the first request was answered after all.
func (b *budget) repeated(n int, won bool) {
	switch {
	case won:
		b.spent = max(b.spent-float64(n), 0)
		b.worth = min(b.worth+n, mostWorth)
	case n > 0:
		b.worth = max(b.worth-2*n, 0)
	}
}
