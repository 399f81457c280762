package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// The pause of Lead before it queues again.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 30 * time.Second
)

// errGoexit is the error of a function that ended its goroutine.
var errGoexit = errors.New("etcdlock: lead: the function called runtime.Goexit")

// A candidate is a call of Mutex.Lead.
type candidate struct {
	*Mutex
	fn func(ctx context.Context) error
}

// run is Mutex.Lead.
func (m candidate) run(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := checkContext(ctx, "lead", m.name); err != nil {
		return err
	}
	if m.fn == nil {
		return failed("lead", m.name, errors.New("nil function"))
	}
	if m.nestsIn(ctx) != nil { // to nest would be to lead without a turn, for ever
		return failed("lead", m.name, ErrDeadlock)
	}
	var pause time.Duration
	for {
		began := time.Now()
		h, started, err := m.lock(ctx, manner{})
		var took, long time.Duration
		switch {
		case err == nil:
			long = h.place.Lease.TTL
			if took, err = m.term(started, h); errors.Is(err, ErrStopLeading) {
				return err
			}
		case ctx.Err() == nil && m.cfg.acquireTimeout > 0 && errors.Is(err, context.DeadlineExceeded):
			took, long = time.Since(began), m.s.cfg.ttl
		default:
			return err
		}
		pause = nextPause(pause, took >= long)
		if !m.rest(ctx, attempt.Jitter(pause)) {
			return waitFailed(ctx, m.name, nil, nil, nil)
		}
	}
}

// nextPause follows a pause, and a term that was long or not.
func nextPause(pause time.Duration, long bool) time.Duration {
	if long || pause == 0 {
		return leastPause
	}
	return min(2*pause, mostPause)
}

// term is one term: it calls fn during h, and reports how fn ended. It returns how long fn took,
// and what fn has returned.
//
// (Do not release before fn has returned, whatever has ended its context: the next leader would
// work beside it. TestALeaderIsReleasedOnlyAfterItHasReturned.)
func (m candidate) term(ctx context.Context, h *hold) (took time.Duration, returned error) {
	began, err := time.Now(), errGoexit
	defer func() { m.traceLed(ctx, h.place.Ticket.Rev(), took, err) }()
	led := func(ctx context.Context) (err error) {
		defer func() {
			took = time.Since(began)
			if p := recover(); p != nil {
				err = panicked(p)
			}
		}()
		returned = m.fn(ctx)
		return returned
	}
	err = during(ctx, h, led, func() error {
		err := m.unlock(ctx, h)
		if errors.Is(err, ErrNotHeld) { // fn, or Close, has unlocked
			return nil
		}
		return err
	})
	return took, returned
}

// panicked is the error of a function that panicked with p. It is p, if p is an error.
func panicked(p any) error {
	text := fmt.Sprintf("etcdlock: lead: the function panicked: %v\n\n%s", p, debug.Stack())
	err, _ := p.(error)
	return &opError{text: text, wraps: []error{err}}
}

// traceLed reports that a term is over. If its context has ended with the caller's, or fn has ended
// Lead, that is no failure.
func (m candidate) traceLed(ctx context.Context, token int64, took time.Duration, err error) {
	report(&m.s.hooks, m.cfg.trace.Led, ctx, LedEvent{m.name, token, took, err})
	ends := ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
	if err == nil || ends || errors.Is(err, ErrStopLeading) {
		return
	}
	m.log(slog.LevelWarn, "a leader's function failed", "name", m.name, "token", token,
		"held", took, "error", err)
}

// rest pauses for d, or until m is closed. It reports false if ctx ended before.
func (m candidate) rest(ctx context.Context, d time.Duration) bool {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-m.closes():
	case <-m.s.ctx.Done():
	case <-pause.C:
	}
	return true
}

// closes is closed when m is, unless the Session is closed with it.
func (m candidate) closes() <-chan struct{} {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.closedNotice == nil {
		m.closedNotice = make(chan struct{})
		if m.closed {
			close(m.closedNotice)
		}
	}
	return m.closedNotice
}
