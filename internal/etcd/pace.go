package etcd

import "time"

// mostPatience is how long the next transaction of a combiner waits at most for the callers that
// were just answered.
const mostPatience = longestWait / 4

// mostYields is how many times a goroutine lets others run before a timer waits for them in its
// place. (Do not start the timer at once. It would be started and stopped for each transaction, and
// wake a thread of an idle process each time.)
const mostYields = 20

// A pace says how many transactions of a combiner may be under way, and for how many callers the
// next one waits. It is pure: it has no clock and no mutex of its own.
//
// Invariant: what waits, waits for no more callers than have come back after the last few answers,
// and for at most half of what the last answer took. So a caller with nothing to do but the next
// request meets the others, and one that works while it holds keeps nobody waiting.
// (TestAPaceExpectsTheCallersThatComeBack.)
type pace struct {
	near     bool          // the last answer took less than longestWait
	patience time.Duration // for how long the callers that it answered are expected
	until    time.Time     // the end of that time
	out      int           // how many callers it answered
	back     int           // how many have come since

	answered, came float64 // the sums of out and back, in which an answer counts half of the next one
}

// lands notes that at now n callers were answered, by a request that took took. n is 0 if the
// request has fallen.
func (p *pace) lands(n int, took time.Duration, now time.Time) {
	if n == 0 {
		return
	}
	p.answered, p.came = p.answered/2+float64(p.out), p.came/2+float64(p.back)
	p.out, p.back = n, 0
	p.near = took < longestWait
	p.patience = min(took/2, mostPatience)
	p.until = now.Add(p.patience)
}

// comes notes that a caller has come at now.
func (p *pace) comes(now time.Time) {
	if p.back < p.out && now.Before(p.until) {
		p.back++
	}
}

// few is how many transactions may be under way before others wait to be combined. One is enough
// for an etcd that answers soon: all that comes meanwhile goes as one, for which etcd and the
// client wake up once. The others would wait too long for the answer of a far etcd.
func (p *pace) few() int {
	if p.near {
		return 1
	}
	return 2
}

// expects is how many of the callers that were just answered come back at once, by those before.
func (p *pace) expects() int {
	if p.answered == 0 {
		return 0
	}
	return int(float64(p.out)*p.came/p.answered + 0.5)
}
