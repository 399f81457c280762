package attempt

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// tellEvery is how often a Caller reports that etcd does not answer.
	tellEvery = 10 * time.Second

	// lateAnswer is how long an attempt must have had no answer before the error of a wait
	// that ends then is ErrUnavailable.
	lateAnswer = 250 * time.Millisecond

	// forgetSilence is how long after the last attempt the silence still counts. Later it
	// is unknown whether etcd would answer. It is above the longest pause between two
	// attempts of a call that had no answer. (TestASilenceOutlastsThePauses.)
	forgetSilence = 3 * time.Second
)

// A silence is what a Caller knows about an etcd that does not answer. It is reported once for
// all waiting calls, by a timer that runs while there are any.
//
// Renewals do not count: a member may answer them and nothing else.
type silence struct {
	mu      sync.Mutex
	waits   int       // calls of the user that wait
	asking  int       // attempts under way
	since   time.Time // when the first attempt without an answer began; zero after an answer
	last    time.Time // when the last attempt without an answer ended
	reason  error     // its error, nil if it just had no answer
	told    time.Time // when the silence was last reported, zero if it was not
	ticking bool      // the timer runs
}

// ask notes that an attempt begins.
func (q *silence) ask(c *Caller) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if !q.currentLocked(now) {
		q.since, q.reason, q.told = now, nil, time.Time{}
	}
	q.asking++
	q.tickLocked(c)
}

// heard notes how an attempt ended.
func (q *silence) heard(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asking--
	q.last = time.Now()
	switch {
	case Absent(err):
		if err != ErrNoAnswer {
			q.reason = err
		}
	case !endedByContext(err): // an answer, whatever it says
		q.since, q.reason, q.told = time.Time{}, nil, time.Time{}
		if q.asking > 0 {
			q.since = q.last
		}
	}
}

// endedByContext reports whether err says that a context has ended, which says nothing about
// etcd.
func endedByContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// currentLocked reports whether since is up to date: an attempt is under way, or there was one
// just now.
func (q *silence) currentLocked(now time.Time) bool {
	return !q.since.IsZero() && (q.asking > 0 || now.Sub(q.last) < forgetSilence)
}

// tickLocked makes the timer run while a call waits and an attempt is under way.
func (q *silence) tickLocked(c *Caller) {
	if q.ticking || q.waits == 0 || q.asking == 0 {
		return
	}
	q.ticking = true
	time.AfterFunc(c.timeout, func() { q.tick(c) })
}

// tick reports the silence when it is time to.
func (q *silence) tick(c *Caller) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.ticking = false
	if q.waits == 0 || !q.currentLocked(now) || c.ctx.Err() != nil {
		return // the next attempt begins it again
	}
	due := q.since.Add(c.timeout)
	if !q.told.IsZero() {
		due = q.told.Add(tellEvery)
	}
	if !now.Before(due) {
		q.told, due = now, now.Add(tellEvery)
		since := q.since
		c.spawn(func() { c.tellSilence(since) })
	}
	q.ticking = true
	time.AfterFunc(due.Sub(now), func() { q.tick(c) })
}
