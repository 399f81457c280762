package attempt

import (
	"context"
	"slices"
	"time"
)

// copies are an attempt's calls of f: the first one, and its repeats, which a timer sends.
type copies[R any] struct {
	flight
	f       func(ctx context.Context, again bool) (R, error)
	final   func(R) bool   // whether an answer is final; nil if each is
	results chan result[R] // of the repeats, made under link.mu; nil before the first
}

type result[R any] struct {
	r          R
	err        error
	sent, came time.Time // when the repeat was sent, and when it was answered
}

// hear returns the first answer that settles the attempt: that to the first call of f, or to a
// repeat. If none does it returns the last one.
//
// A good answer that is not final settles it once the others have been heard, or ReadTimeout is
// over: another copy may have done what this one finds done.
//
// (Do not take the first answer. With a dead endpoint two copies of a release go out at once, and
// half of the releases would not know that they have succeeded.
// TestTheCopiesOfAReleaseAreHeardOut.)
func (a *copies[R]) hear(r R, err error) (R, error) {
	if err == nil {
		a.came = time.Now()
		a.notes(r, err)
	}
	for heard := 0; !a.ends(r, err) && heard < a.sentSoFar(); heard++ {
		answer := <-a.results // each ends with the context at the latest
		settles := Settles(answer.err)
		switch {
		case settles && (!Settles(err) || a.ends(answer.r, answer.err)):
			if !Settles(err) {
				a.c.link.with(func(m *limiter, _ time.Time) { m.repaid(a.repeats) })
			}
			r, err, a.sent, a.came = answer.r, answer.err, answer.sent, answer.came
		case !settles && !Settles(err) && a.ctx.Err() == nil:
			r, err = answer.r, answer.err
		}
	}
	return r, err
}

// ends reports whether an answer settles the attempt at once.
func (a *copies[R]) ends(r R, err error) bool {
	return Settles(err) && (err != nil || a.final == nil || a.final(r))
}

// notes ends the requests that are under way if an answer settles the attempt, or in a while if it
// is not final.
func (a *copies[R]) notes(r R, err error) {
	switch {
	case a.ends(r, err):
		a.cancel()
	case Settles(err):
		a.c.link.with(func(*limiter, time.Time) { a.told = true })
		time.AfterFunc(ReadTimeout, a.cancel)
	}
}

// sentSoFar is how many repeats were sent so far.
func (a *flight) sentSoFar() (n int) {
	a.c.link.with(func(*limiter, time.Time) { n = a.repeats })
	return n
}

// The timer calls repeat. It sends a repeat, or two if there are several endpoints: a
// single one may reach the dead endpoint each time, in step with other requests. With one
// endpoint, one repeat is worth little and more are worth less. So repeat sends none before
// etcd has answered something else, which shows that it is not just slow. Without credit,
// the timer calls repeat again soon. Each time repeat checks how long answers take: etcd
// may have become slow since the attempt began, or fast again.
func (a *copies[R]) repeat() {
	n, several := 1, a.c.Several()
	if several {
		n = 2
	}
	l := a.c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.ctx.Err() != nil || a.told {
		return
	}
	usual := l.limiter.usual(a.first)
	pause := usual
	if !several {
		pause <<= a.repeats
	} else if a.repeats > 0 {
		pause /= 2
	}
	next := time.Until(a.last.Add(pause))
	if next <= 0 {
		next = Jitter(usual / 8)
		if (several || l.limiter.heard.After(a.last)) && a.sendLocked(n, several) {
			next = Jitter(a.first / 2)
		}
	}
	a.timer.Reset(min(next, a.first))
}

// sendLocked sends as many repeats as the link's credit allows, up to n. It reports whether it has
// sent any.
func (a *copies[R]) sendLocked(n int, several bool) bool {
	most, now := a.policy.repeats(), time.Now()
	n = a.c.link.limiter.spend(now, min(n, most-a.repeats), several) // results has room for no more
	if n == 0 {
		return false
	}
	a.repeats, a.last = a.repeats+n, now
	if a.results == nil {
		a.results = make(chan result[R], most)
	}
	for range n {
		a.c.spawn(func() {
			ctx, cancel := context.WithCancel(a.ctx)
			defer cancel()
			defer context.AfterFunc(a.c.ctx, cancel)()
			sent := time.Now()
			r, err := a.f(ctx, true)
			a.results <- result[R]{r, err, sent, time.Now()}
			a.notes(r, err)
		})
	}
	return true
}

// took is how long answers take of late: the second longest of the last few. One delayed answer
// says nothing about the next, and would keep a request to a dead endpoint from being repeated.
// Two mean that etcd is slow. Until there are a few, each one counts.
func (m *limiter) took() time.Duration {
	sorted := m.latest
	slices.Sort(sorted[:])
	if m.answers < len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[len(sorted)-2]
}

// usual is how long an answer may take without being late. It is at least first.
func (m *limiter) usual(first time.Duration) time.Duration { return max(first, 3*m.took()) }

// spend takes n repeats off the credit, or as many as are left. What was spent comes back by
// itself, too, sooner if etcd answers: by another endpoint perhaps, so that a repeat is worth it.
func (m *limiter) spend(now time.Time, n int, several bool) (granted int) {
	credit, back := fewRepeats, 15*time.Second
	if several {
		credit = ManyRepeats
		if now.Sub(m.heard) < lively {
			back /= 4
		}
	}
	// What was spent from a greater credit is no debt: some credit comes back soon anyway.
	m.spent = min(m.spent, float64(credit))
	m.spent = max(m.spent-float64(credit)*float64(now.Sub(m.counted))/float64(back), 0)
	m.counted = now
	for granted < n && m.spent+1 <= float64(credit) {
		m.spent++
		granted++
	}
	return granted
}

// repaid pays n repeats of an attempt back. One of them was answered while the first request was
// not, so they were worth it, as when one endpoint of several is dead.
func (m *limiter) repaid(n int) { m.spent = max(m.spent-float64(n), 0) }
