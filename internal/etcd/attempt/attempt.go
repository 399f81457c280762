// Package attempt sends requests to etcd so that the caller gets an answer if there is one,
// and a slower etcd does not get more requests. An attempt is bounded, and repeated within
// a budget that all callers of a client share. A backoff spaces the attempts of a call.
// Errors fall into a few classes. The silence of etcd is reported once for all waiting
// calls.
package attempt

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Patience is how many times its timeout an attempt waits in all: 10 s for a TTL of 6 s and more.
// etcd works through a request even when its caller has given it up, so giving up and asking
// again makes a slow etcd slower.
const Patience = 5

// ReadTimeout is how long one attempt to read waits before it is repeated, so that the repeat may
// reach another endpoint.
const ReadTimeout = 700 * time.Millisecond

// A Caller makes the attempts of one Session.
type Caller struct {
	// Several reports whether the client has more than one endpoint, as far as is known.
	Several func() bool

	client  *clientv3.Client
	ctx     context.Context
	timeout time.Duration
	link    *link
	spawn   func(func())
	tell    func(reason error, silent time.Duration)
	silence silence
}

// NewCaller returns a Caller. Attempts end with ctx. The lease's ttl says how long one may
// wait. The Caller starts goroutines by spawn. By tell it reports that etcd does not
// answer, and for how long.
func NewCaller(
	ctx context.Context, client *clientv3.Client, ttl time.Duration,
	spawn func(func()), tell func(reason error, silent time.Duration),
) *Caller {
	return &Caller{
		Several: func() bool { return client.ActiveConnection() == nil || len(client.Endpoints()) > 1 },
		client:  client,
		ctx:     ctx,
		timeout: min(max(ttl/3, 500*time.Millisecond), 2*time.Second),
		link:    linkOf(client),
		spawn:   spawn,
		tell:    tell,
	}
}

// Timeout is how long one attempt of a call waits before it is repeated, so that the repeat may
// reach another endpoint. It is a fraction of the TTL, within bounds.
func (c *Caller) Timeout() time.Duration { return c.timeout }

// WatchTimeout is how long the next watch may take to begin, given how many before it did not.
// With one endpoint, another watch would be no faster. With several endpoints, each
// new watch may go to the same dead one. So the line is read between one watch and the
// next, and not too rarely. The result may change while the watch begins.
//
// Invariant: the first watch of a waiter takes no longer than one of its attempts may, whatever
// answers have taken of late. (Do not let it take as long as an outage of which these answers
// tell: while the waiter waits for a watch it reads nothing, and may be the first in line.
// TestSlowAnswersOfBeforeDoNotDelayAWaiter.)
func (c *Caller) WatchTimeout(b Backoff) (d time.Duration) {
	least, doublings := 4*ReadTimeout, 3
	if c.Several() {
		least, doublings = ReadTimeout, 1
	}
	c.link.with(func(m *limiter, _ time.Time) { d = m.usual(least) })
	return min(d, max(least, Patience*c.timeout)) << min(b.unanswered, doublings)
}

// Alive notes that etcd has answered something other than an attempt.
func (c *Caller) Alive() { c.link.with(func(m *limiter, now time.Time) { m.heard = now }) }

// Seldom is limiter.seldom.
func (c *Caller) Seldom(period time.Duration) (d time.Duration) {
	c.link.with(func(m *limiter, _ time.Time) { d = m.seldom(period) })
	return d
}

// Do is one of a call's attempts. It calls f. If no answer has come after first (or after
// as long as answers take of late, if that is more), it calls f again, as far as the link's
// credit goes, while the earlier call may still be answered. So a slow etcd is heard, and
// one that is back is heard soon. With several endpoints it then calls f twice at once, so
// that one dead endpoint cannot get both.
//
// It returns the first good answer or refusal. ErrNoAnswer says that no answer came in all
// the time that an attempt may take. ErrUnreachable says that nothing was sent. several
// says whether this attempt may have carried out f more than once.
//
// While etcd has enough to do with the client's other attempts, Do first waits its turn,
// unless the call is urgent.
func Do[R any](
	ctx context.Context, c *Caller, retry *Backoff, first time.Duration,
	f func(context.Context) (R, error),
) (r R, several bool, err error) {
	c.takeOff()
	defer c.land()
	c.silence.ask(c)
	defer func() { c.silence.heard(c, err) }()

	bounded, cancel, err := c.begin(ctx, retry)
	defer cancel()
	sent := time.Now()
	if err == nil {
		if retry.Policy != Urgent {
			defer c.link.end(retry.Policy)
		}
		race := &copies[R]{c: c, f: f, ctx: bounded, won: cancel, first: first, policy: retry.Policy}
		r, several, err = race.run(retry.unanswered > 0)
	}
	late := bounded.Err() == context.DeadlineExceeded // cancelled if a repeat was answered
	if err != nil && !errors.Is(err, ErrUnreachable) && late && ctx.Err() == nil {
		err = ErrNoAnswer
	}
	if Overloaded(err) {
		c.link.with(func(m *limiter, now time.Time) { m.overloaded(sent, now) })
	}
	retry.note(err, c.Several())
	return r, several, err
}

// begin waits until there is a connection and it is the attempt's turn. If the attempt is
// not urgent, the caller has to report its end. begin returns the context that bounds the
// attempt.
func (c *Caller) begin(
	ctx context.Context, retry *Backoff,
) (context.Context, context.CancelFunc, error) {
	limit := retry.bound(Patience * c.timeout)
	bounded, cancel := context.WithTimeout(ctx, limit)
	if err := c.connected(bounded); err != nil || retry.Policy == Urgent {
		return bounded, cancel, err
	}
	waited, begun := c.link.begin(bounded, retry.Policy)
	if !begun {
		return bounded, cancel, errBusy
	}
	if waited { // the time for etcd's answer begins now
		cancel()
		bounded, cancel = context.WithTimeout(ctx, limit)
	}
	return bounded, cancel, nil
}

// copies are one attempt's calls of f: the first one, and its repeats, which a timer sends.
type copies[R any] struct {
	// Set once, then only read.
	c      *Caller
	f      func(context.Context) (R, error)
	ctx    context.Context    // of all calls
	won    context.CancelFunc // ends them: a repeat was answered
	first  time.Duration      // the least that an answer may take
	policy Policy

	// Guarded by mu.
	mu      sync.Mutex
	timer   *time.Timer
	last    time.Time      // when the last call was sent
	sent    int            // repeats
	results chan result[R] // of them, nil before the first
	over    bool           // no more are sent
}

type result[R any] struct {
	r   R
	err error
}

// settles reports whether an answer with err ends an attempt.
func settles(err error) bool {
	return err == nil || Refused(err) || Is(err, rpctypes.ErrLeaseNotFound)
}

// run calls f and lets it be repeated: at once if twice is set and there are several
// endpoints, and then by the timer. Finally it drops the calls that are under way, with
// their answers. several says whether any repeat was sent.
func (a *copies[R]) run(twice bool) (r R, several bool, err error) {
	a.mu.Lock()
	a.last = time.Now()
	a.timer = time.AfterFunc(a.first, a.repeat)
	if twice && a.c.Several() {
		a.sendLocked(1, true)
	}
	a.mu.Unlock()
	defer a.end()

	r, err = a.call(a.ctx)
	won := false
	for heard := 0; !settles(err) && heard < a.repeats(); heard++ {
		answer := <-a.results // each ends with the context at the latest
		if won = settles(answer.err); won || a.ctx.Err() == nil {
			r, err = answer.r, answer.err
		}
	}
	repeats := a.end()
	if won {
		a.c.link.with(func(m *limiter, _ time.Time) { m.repaid(repeats) })
	}
	return r, repeats > 0, err
}

// call calls f once.
func (a *copies[R]) call(ctx context.Context) (R, error) {
	sent := time.Now()
	r, err := a.f(ctx)
	if settles(err) {
		a.c.link.with(func(m *limiter, now time.Time) { m.answered(a.policy, sent, now) })
	}
	return r, err
}

// The timer calls repeat. It sends a repeat, or two if there are several endpoints: a
// single one may reach the dead endpoint each time, in step with other requests. With one
// endpoint, one repeat is worth little and more are worth less. So repeat sends none before
// etcd has answered something else, which shows that it is not just slow. Without credit,
// the timer calls repeat again soon. Each time repeat checks how long answers take: etcd
// may have become slow since the attempt began, or fast again.
func (a *copies[R]) repeat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || a.ctx.Err() != nil {
		return
	}
	n, several := 1, a.c.Several()
	if several {
		n = 2
	}
	var usual time.Duration
	var helps bool
	a.c.link.with(func(m *limiter, _ time.Time) {
		usual, helps = m.usual(a.first), several || m.heard.After(a.last)
	})
	pause := usual
	if !several {
		pause <<= a.sent
	} else if a.sent > 0 {
		pause /= 2
	}
	next := time.Until(a.last.Add(pause))
	if next <= 0 {
		next = Jitter(usual / 8)
		if helps && a.sendLocked(n, several) {
			next = Jitter(a.first / 2)
		}
	}
	a.timer.Reset(min(next, a.first))
}

// sendLocked sends as many repeats as the link's credit allows, up to n. It reports whether it has
// sent any.
func (a *copies[R]) sendLocked(n int, several bool) bool {
	n = min(n, a.policy.repeats()-a.sent) // results has room for no more
	a.c.link.with(func(m *limiter, now time.Time) { n = m.spend(now, n, several) })
	if n == 0 {
		return false
	}
	a.sent, a.last = a.sent+n, time.Now()
	if a.results == nil {
		a.results = make(chan result[R], a.policy.repeats())
	}
	for range n {
		a.c.spawn(func() {
			ctx, cancel := context.WithCancel(a.ctx)
			defer cancel()
			defer context.AfterFunc(a.c.ctx, cancel)()
			r, err := a.call(ctx)
			a.results <- result[R]{r, err}
			if settles(err) {
				a.won()
			}
		})
	}
	return true
}

// repeats is how many repeats were sent so far.
func (a *copies[R]) repeats() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent
}

// end ends the repeating. It returns how many repeats were sent.
func (a *copies[R]) end() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.timer.Stop()
	return a.sent
}
