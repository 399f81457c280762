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

// Lead calls fn each time this process holds the lock, again and again until ctx ends. So of all
// processes that call Lead for a name one is the leader at a time, and another takes over when the
// leader ends, or loses the lock, or dies.
//
// It waits its turn, calls fn with a context that ends with the hold (see [Mutex.Context]), and
// releases the lock only after fn has returned. So a leader that was asked to end (by ctx, or by a
// [Recall]) and takes its time has no successor meanwhile. Only if the lock is lost, or
// [WithMaxHold] ends the hold, another process may lead before fn has returned.
//
// Then it queues anew, behind all waiters. It pauses before that: 100 ms, doubled up to 30 s each
// time that fn returns within the granted TTL, and 100 ms again after fn has led for longer. (A
// pause varies by a quarter.)
//
// An error of fn does not end Lead, nor does a loss of the lock: both go to the logger and to
// Trace.Led. A panic of fn does too, as an error that has its stack; the lock is released. If fn
// calls runtime.Goexit the lock is released, and Lead is over with its goroutine.
//
// Lead always returns an error. It is, by errors.Is,
//   - the cause of ctx and ctx.Err() if ctx ended; fn was given the time to return;
//   - [ErrDeadlock] at once if ctx comes from a hold of this name in this Session;
//   - [ErrClosed], and not ctx.Err(), if the Mutex or the Session is, or becomes, closed;
//   - etcd's own, if it refuses and a retry would not help.
//
// Lead holds nothing then. A release may go on in the background, as after [ErrUnconfirmed]. The
// end of [WithAcquireTimeout] is not the end of Lead: it queues anew. While etcd is down it waits.
// A candidate that waits costs what any waiter costs. Calls of Lead and Lock of one Mutex take
// turns.
func (m *Mutex) Lead(ctx context.Context, fn func(ctx context.Context) error) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := checkContext(ctx, "lead", m.name); err != nil {
		return err
	}
	if fn == nil {
		return failed("lead", m.name, errors.New("nil function"))
	}
	if m.nestsIn(ctx) != nil { // to nest would be to lead without a turn, for ever
		return failed("lead", m.name, ErrDeadlock)
	}
	var pause time.Duration
	for {
		started := time.Now()
		h, err := m.lock(ctx, false)
		var took, long time.Duration
		switch {
		case err == nil:
			took, long = m.lead(ctx, h, fn), h.place.lease.TTL
		case ctx.Err() == nil && m.cfg.acquireTimeout > 0 && errors.Is(err, context.DeadlineExceeded):
			took, long = time.Since(started), m.s.cfg.ttl
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

// lead is one term: it calls fn during h, and reports how fn ended. It returns how long fn took.
//
// (Do not release before fn has returned, whatever has ended its context: the next leader would
// work beside it. TestALeaderIsReleasedOnlyAfterItHasReturned.)
func (m *Mutex) lead(
	ctx context.Context, h *hold, fn func(ctx context.Context) error,
) (took time.Duration) {
	began, err := time.Now(), errGoexit
	defer func() { m.traceLed(ctx, h.place.ticket.Rev(), took, err) }()
	term := func(ctx context.Context) (err error) {
		defer func() {
			took = time.Since(began)
			if p := recover(); p != nil {
				err = panicked(p)
			}
		}()
		return fn(ctx)
	}
	err = during(ctx, h, term, func() error {
		err := m.unlock(ctx, h)
		if errors.Is(err, ErrNotHeld) { // fn, or Close, has unlocked
			return nil
		}
		return err
	})
	return took
}

// panicked is the error of a function that panicked with p. It is p, if p is an error.
func panicked(p any) error {
	text := fmt.Sprintf("etcdlock: lead: the function panicked: %v\n\n%s", p, debug.Stack())
	err, _ := p.(error)
	return &opError{text: text, wraps: []error{err}}
}

// traceLed reports that a term is over. If its context has ended with the caller's, that is no
// failure.
func (m *Mutex) traceLed(ctx context.Context, token int64, took time.Duration, err error) {
	m.trace().led(ctx, m.name, token, took, err)
	ends := ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
	if err == nil || ends {
		return
	}
	m.log(slog.LevelWarn, "a leader's function failed", "name", m.name, "token", token,
		"held", took, "error", err)
}

// rest pauses for d, or until m is closed. It reports false if ctx ended before.
func (m *Mutex) rest(ctx context.Context, d time.Duration) bool {
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
func (m *Mutex) closes() <-chan struct{} {
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
