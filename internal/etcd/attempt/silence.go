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
	due     time.Time // when the silence is to be reported next
	ticking bool      // the timer runs
}

// ask notes that an attempt begins.
func (q *silence) ask(c *Caller) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if !q.currentLocked(now) {
		q.beginLocked(c, now)
	}
	q.asking++
	q.tickLocked(c)
}

// heard notes how an attempt ended.
func (q *silence) heard(c *Caller, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asking--
	q.last = time.Now()
	switch {
	case Absent(err):
		if err != ErrNoAnswer {
			q.reason = err
		}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// The end of a context says nothing about etcd.
	case q.asking > 0: // an answer, whatever it says
		q.beginLocked(c, q.last)
	default:
		q.since = time.Time{}
	}
}

// beginLocked begins a silence, which is reported once it has lasted for the time of an attempt.
func (q *silence) beginLocked(c *Caller, now time.Time) {
	q.since, q.reason, q.due = now, nil, now.Add(c.timeout)
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
	if !now.Before(q.due) {
		q.due = now.Add(tellEvery)
		since := q.since
		c.spawn(func() {
			if reason := c.Unavailable(); reason != nil { // otherwise it has answered just now
				c.tell(reason, time.Since(since))
			}
		})
	}
	q.ticking = true
	time.AfterFunc(q.due.Sub(now), func() { q.tick(c) })
}
