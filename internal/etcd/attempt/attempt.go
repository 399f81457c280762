// Package attempt sends requests to etcd so that the caller gets an answer if there is one,
// and a slower etcd does not get more requests. An attempt is bounded, and repeated within
// a budget that all callers of a client share. A backoff spaces the attempts of a call.
// Errors fall into a few classes. The silence of etcd is reported once for all waiting
// calls.
package attempt

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/etcdlock/etcdlock/internal/guard"
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
	// Timeout is how long one attempt of a call waits before it is repeated, so that the repeat may
	// reach another endpoint. It is a fraction of the TTL, within bounds.
	Timeout time.Duration

	// Several reports whether the client has more than one endpoint, as far as is known.
	Several func() bool

	// Waits is how many calls of the user wait now.
	Waits atomic.Int64

	// Set once, then only read.
	conn   *grpc.ClientConn // the client's, nil if that was not made with clientv3.New
	where  func() []string  // the client's endpoints
	closed context.Context  // the client's, which has ended once that is closed
	ctx    context.Context
	link   *link
	spawn  func(func())
	tell   func(reason error, silent time.Duration)

	// Guarded by link.mu.
	asking  int // attempts under way, or waiting
	silence silence
	ticking bool // tick is called by a timer
}

// NewCaller returns a Caller. Attempts end with ctx. The lease's ttl says how long one may
// wait. The Caller starts goroutines by spawn. By tell it reports that etcd does not
// answer, and for how long.
func NewCaller(
	ctx context.Context, client *clientv3.Client, ttl time.Duration,
	spawn func(func()), tell func(reason error, silent time.Duration),
) *Caller {
	conn, closed := client.ActiveConnection(), client.Ctx()
	if closed == nil {
		closed = context.Background() // the client was not made with clientv3.New
	}
	return &Caller{
		Timeout: min(max(ttl/3, 500*time.Millisecond), 2*time.Second),
		Several: func() bool { return conn == nil || len(client.Endpoints()) > 1 },
		conn:    conn,
		where:   client.Endpoints,
		closed:  closed,
		ctx:     ctx,
		link:    linkOf(client),
		spawn:   spawn,
		tell:    tell,
	}
}

// Disconnected reports whether gRPC has no connection and has failed to make one. clientv3
// then sends nothing, but retries many times a second. A client that was not made with clientv3.New
// has no connection, and counts as connected.
func (c *Caller) Disconnected() bool {
	return c.conn != nil && c.conn.GetState() == connectivity.TransientFailure
}

// Closed reports whether the client was closed. Nothing works after that: clientv3 would retry
// a hundred times and warn each time.
//
// (Do not go by the client's context alone. It also ends with the Context of clientv3's Config, and
// then requests go on: a release would be given up, and its key stay.
// TestTheEndOfTheClientsContextBlocksNobody.)
func (c *Caller) Closed() bool {
	return c.closed.Err() != nil && (c.conn == nil || c.conn.GetState() == connectivity.Shutdown)
}

// WatchTimeout is how long the next watch may take to begin, given how many before it did not.
// With one endpoint, another watch would be no faster. With several endpoints, each
// new watch may go to the same dead one. So the line is read between one watch and the
// next, and not too rarely. The result may change while the watch begins.
//
// Invariant: the first watch of a waiter takes no longer than one of its attempts may, whatever
// answers have taken of late. (Do not let it take as long as an outage did that these
// answers tell of: while the waiter waits for a watch it reads nothing, and may be first in line.
// TestSlowAnswersOfBeforeDoNotDelayAWaiter.)
func (c *Caller) WatchTimeout(b Backoff) (d time.Duration) {
	least, doublings := 4*ReadTimeout, 3
	if c.Several() {
		least, doublings = ReadTimeout, 1
	}
	c.link.with(func(m *limiter, _ time.Time) { d = m.usual(least) })
	return min(d, max(least, Patience*c.Timeout)) << min(b.unanswered, doublings)
}

// Alive notes that etcd has answered a renewal, which is no attempt, and how long that took.
func (c *Caller) Alive(took time.Duration) {
	c.link.with(func(m *limiter, now time.Time) {
		m.heard = now
		m.lightAnswered(took)
	})
}

// Light notes that etcd took that long for another answer that needs no disk: that a watch has
// begun. (It is no sign that etcd serves: a member that is cut off begins watches, too.)
func (c *Caller) Light(took time.Duration) {
	c.link.with(func(m *limiter, _ time.Time) { m.lightAnswered(took) })
}

// Seldom is limiter.seldom.
func (c *Caller) Seldom(period time.Duration) (d time.Duration) {
	c.link.with(func(m *limiter, _ time.Time) { d = m.seldom(period) })
	return d
}

// Soon reports whether etcd answers soon of late: a request without an answer in Timeout has hardly
// reached it.
func (c *Caller) Soon() (soon bool) {
	c.link.with(func(m *limiter, _ time.Time) { soon = m.usual(0) < c.Timeout })
	return soon
}

// Do is one of a call's attempts. It calls f. If no answer has come after first (or after
// as long as answers take of late, if that is more), it calls f again, and says so, as far as the
// link's credit goes, while the earlier call may still be answered. So a slow etcd is heard, and
// one that is back is heard soon. With several endpoints it then calls f twice at once, so
// that one dead endpoint cannot get both.
//
// It returns the first good answer or refusal. If there is a final, and the answer is not, Do first
// hears the other calls of f out for a while. ErrNoAnswer says that no answer came in all the time
// that an attempt may take. ErrUnreachable says that nothing was sent. several says whether this
// attempt may have carried out f more than once.
//
// The attempt after one without an answer may take twice as long as others. Otherwise a slow etcd
// would never be heard. (TestASlowEtcdKeepsNobodyOut.)
//
// While etcd has enough to do with the client's other attempts, Do first waits its turn,
// unless the call is urgent.
func Do[R any](
	ctx context.Context, c *Caller, retry *Backoff, first time.Duration,
	f func(ctx context.Context, again bool) (R, error), final func(R) bool,
) (r R, several bool, err error) {
	a := &copies[R]{f: f, final: final, flight: flight{
		c: c, policy: retry.Policy, needless: retry.Needless, first: first,
	}}
	defer func() { several = a.done(err) > 0 }()
	most := Patience * c.Timeout << min(retry.unanswered, 1)
	if err = a.begin(ctx, most, a.repeat); err == nil {
		if retry.unanswered > 0 && c.Several() {
			c.link.with(func(*limiter, time.Time) { a.sendLocked(1, true) })
		}
		err = errFallen // until f has returned
		r, err = f(a.ctx, false)
	}
	if err == nil && (final == nil || final(r)) {
		retry.unanswered, retry.overloads, retry.last = 0, 0, nil
		return r, several, nil
	}
	if r, err = a.hear(r, err); err != nil {
		err = a.fails(ctx, c.shown(Foreign(err)))
	}
	retry.note(err, c.Several())
	if _, busy := err.(*busyError); busy { // what has failed before says more
		return r, several, cmp.Or(retry.last, err)
	}
	retry.last = err
	return r, several, err
}

// errFallen is how an attempt has ended whose f has not returned: the user's code in it has fallen,
// in the goroutine of its call.
//
// (Do not take that for an answer. etcd would count as fast, and as not silent.)
var errFallen = errors.New("the request has not returned")

// A flight is the record of an attempt.
type flight struct {
	// Set once, then only read.
	c        *Caller
	policy   Policy
	needless <-chan struct{}
	first    time.Duration // the least that an answer may take

	// Of the goroutine of the attempt. Once the timer runs, ctx and cancel are only read.
	ctx    context.Context // of all requests
	cancel context.CancelFunc
	window *window   // that has let it begin, nil if none has, or it is urgent
	sent   time.Time // when the request was sent whose answer counts
	came   time.Time // when that answer came; zero if the attempt has ended with it

	// Guarded by link.mu.
	timer   *time.Timer // calls repeat; nil before the first request
	last    time.Time   // when the last request was sent
	repeats int         // how many were sent
	told    bool        // an answer has come that is not final: no more are sent
}

// begin counts the attempt, and waits until there is a connection and it is the attempt's turn.
// Its requests may take most. A timer calls repeat, until the attempt is done.
func (a *flight) begin(ctx context.Context, most time.Duration, repeat func()) error {
	c, l := a.c, a.c.link
	a.ctx, a.cancel = context.WithTimeout(ctx, most)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.flights == 0 && now.Sub(l.landed) >= forgetSilence {
		l.limiter.rest()
	}
	l.flights++
	if c.asking == 0 && now.Sub(c.silence.last) >= forgetSilence {
		c.silence = silence{since: now}
	}
	c.asking++
	if !c.ticking {
		c.ticking = true
		time.AfterFunc(reconnectEvery, c.tick)
	}
	w := l.limiter.window(a.policy)
	if c.Closed() || c.Disconnected() || w != nil && !l.limiter.lets(w, now) {
		l.mu.Unlock()
		err := a.wait(ctx, most, w)
		l.mu.Lock()
		if err != nil {
			return err
		}
		now = time.Now()
	}
	a.window, a.sent, a.last = w, now, now
	a.timer = time.AfterFunc(a.first, repeat)
	return nil
}

// wait waits until there is a connection, and until w lets the attempt begin. Within a window, the
// first to come is the first to begin.
//
// (Do not search the queue for an attempt that gives up. A hundred thousand that give up at once
// then have the mutex for seconds, and the renewals of all holders wait for it.
// TestGivingUpCostsNoMoreThanBeginningHoweverManyWait.)
func (a *flight) wait(ctx context.Context, most time.Duration, w *window) error {
	if err := a.c.connected(a.ctx); err != nil {
		return err
	}
	l := a.c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := time.Now()
	if w == nil || l.limiter.lets(w, asked) {
		return nil
	}
	turn := make(chan struct{}, 1)
	stands := w.queue.PushBack(turn)
	l.mu.Unlock()
	begun := false
	select {
	case <-turn: // the time for etcd's answer begins now
		begun = true
		a.cancel()
		a.ctx, a.cancel = context.WithTimeout(ctx, most)
	case <-a.ctx.Done():
	case <-a.needless:
	}
	l.mu.Lock()
	if a.policy.waits() {
		l.limiter.turn = time.Since(asked)
	}
	switch {
	case begun:
		return nil
	case len(turn) == 0:
		w.queue.Remove(stands)
	default:
		w.end(time.Now()) // its turn has come just now
	}
	return &busyError{w.pause.last}
}

// done ends the attempt, which has ended with err, and all its requests. It returns how many
// repeats were sent.
func (a *flight) done(err error) (repeats int) {
	a.cancel() // repeat sends no more
	c, l := a.c, a.c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flights, l.landed = l.flights-1, time.Now()
	c.asking--
	if err == nil {
		c.silence = silence{since: l.landed}
		l.limiter.answered(a.window, a.sent, a.cameBy(l.landed))
		l.limiter.paced(a.policy).goesOn(l.landed)
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	if a.window != nil {
		a.window.end(l.landed)
	}
	return a.repeats
}

// cameBy is when the answer came that counts, at now.
//
// (Do not take now for it. While the other copies of a release are heard out, etcd would count as
// slow, and what a dead endpoint gets next would be repeated seconds later.
// TestWhatIsHeardOutDoesNotCountAsSlow.)
func (a *flight) cameBy(now time.Time) time.Time {
	if a.came.IsZero() {
		return now
	}
	return a.came
}

// fails notes what err, with which the attempt has failed, says of etcd. It returns ErrNoAnswer in
// its place if all the time has passed.
func (a *flight) fails(ctx context.Context, err error) error {
	late := a.ctx.Err() == context.DeadlineExceeded // cancelled if a repeat was answered
	fallen := Fallen(err) != nil
	if late && ctx.Err() == nil && !errors.Is(err, ErrUnreachable) && !fallen {
		err = ErrNoAnswer
	}
	answered, overloaded, absent := Settles(err) && !fallen, Overloaded(err), Absent(err)
	ended := fallen ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	failed := err != ErrNoAnswer && !errors.Is(err, ErrUnreachable) && ctx.Err() == nil // at once
	a.c.link.with(func(m *limiter, now time.Time) {
		if answered {
			m.answered(a.window, a.sent, a.cameBy(now))
		}
		if overloaded {
			m.overloaded(a.sent, now)
		}
		if w := m.paced(a.policy); answered {
			w.goesOn(now)
		} else if failed {
			a.c.link.pausesLocked(w, w.fails(err, a.c.Several(), a.sent, now))
		}
		switch q := &a.c.silence; {
		case absent:
			q.last = now
			if err != ErrNoAnswer {
				q.reason = err
			}
		case ended: // which says nothing about etcd
			q.last = now
		default: // an answer, whatever it says
			*q = silence{since: now}
		}
	})
	return err
}

// Settles reports whether an answer with err ends an attempt.
func Settles(err error) bool {
	return err == nil || Refused(err) || Is(err, rpctypes.ErrLeaseNotFound) ||
		guard.FallIn(err) != nil
}

const (
	// fewRepeats and ManyRepeats are a client's largest credit of repeats, with one endpoint and
	// with several. (gRPC's own retry throttling uses 10, too.)
	fewRepeats, ManyRepeats = 1, 10

	// lively is how long after an answer etcd counts as answering.
	lively = 2 * time.Second

	// firstWindow is how many attempts may be under way in a window before it is known how fast
	// etcd is with them.
	firstWindow = 8

	// firstRemovals is that for removals, which are cheap, and go many in one transaction.
	firstRemovals = 64

	// An answer that took less than brisk lets one more attempt be under way. One that took more
	// than slow halves how many may be, down to slowWindow: perhaps every answer takes long,
	// however few requests there are.
	brisk      = 200 * time.Millisecond
	slow       = 2 * time.Second
	slowWindow = 4

	// synced is above what an answer takes that waits for the writes of a slow disk. If it took no
	// longer it lets one more attempt be under way, as a brisk one does, where the disk takes that
	// time and not the requests themselves.
	synced = slow * 3 / 4
)

// A limiter says how much may be sent to an etcd, and how soon, by what it has answered so
// far. It is pure: it has no clock and no mutex of its own.
//
// Invariant: repeats are at most a tenth of what was answered, plus a credit that comes
// back in seconds. (Do not repeat without it: a slow etcd then gets more to do, not less,
// and is never heard again. TestACrowdOfSessionsGetsThroughASlowEtcd.)
//
// Invariant: a window grows only by answers to attempts that it has let begin. So answers of
// the others, and answers to urgent attempts, do not count. (Do not have one for all: in a mass
// start it grows while cheap leases are granted, and then as many puts begin at once, for which
// etcd takes longer than the leases last. TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
//
// Invariant: by answers that are not brisk a window grows beyond firstWindow only while etcd takes
// less than half as long for what needs no disk. Where a disk is slow each answer waits for it,
// however few are under way, and as many as there are share one write. Where etcd has too much to
// do everything waits for that, and the more so the more is under way. (Do not go by the shortest
// answers of before, as TCP Vegas does. Etcd is never idle again once many clients have enough to
// send, so a client that comes later takes the queue of the others for the way to etcd, and adds
// as much to it. TestABusyEtcdGetsNoMoreForBeingSlow, TestASlowDiskFillsTheLineSoon.)
//
// (Do not have the window of the reads grow so. They write nothing, and where thousands have just
// lined up each looks at a long line: hundreds of looks at once make renewals late.
// TestAWindowGrowsByWhatWaitsForASlowDisk.)
//
// Invariant: what waiters read waits for no grant. (Do not have one window for both: where the disk
// takes a second for each write, the leases of a fleet that starts take minutes, the first in line
// waits behind them to see that it is first, and nobody gets in. TestGrantsDelayNoHandOver.)
type limiter struct {
	puts, removals, leases, others window

	latest  [4]time.Duration // what the last few answers took, in a ring
	answers int              // how many there were
	turn    time.Duration    // how long the last attempt waited for its turn
	light   time.Duration    // what answers that need no disk have taken of late, about the most
	heard   time.Time        // when etcd last answered anything
	served  time.Time        // when it last answered an attempt
	spent   float64          // repeats that were sent, less what answers have paid back
	counted time.Time        // when spent was last brought up to date
}

// window is the window for attempts of a policy, nil for urgent ones. etcd's time for a put says
// little about anything else: a grant is cheap, but a put is committed and reads the end of a line.
func (m *limiter) window(p Policy) *window {
	if p == Put {
		return &m.puts
	}
	if p == Removal {
		return &m.removals
	}
	if p == Lease {
		return &m.leases
	}
	if p == Urgent || p == Release {
		return nil
	}
	return &m.others
}

// paced is the window whose pace the attempts of a policy set, nil if they set none.
func (m *limiter) paced(p Policy) *window {
	if p == Release {
		p = Removal
	}
	return m.window(p)
}

// rest forgets how fast etcd was, since there were no requests for a while.
func (m *limiter) rest() {
	m.puts.size, m.removals.size = firstWindow, firstRemovals
	m.leases.size, m.others.size, m.light = firstWindow, firstWindow, slow
}

// lets reports whether an attempt may begin in w, and counts it there.
func (m *limiter) lets(w *window, now time.Time) bool {
	if w.under >= w.size || now.Before(w.from) {
		return false
	}
	w.under++
	m.turn = 0
	return true
}

// answered notes that at now etcd has answered a request sent at sent, of an attempt that w has let
// begin, or none if w is nil. A window that has been halved grows back to where it began by answers
// that are not brisk: a disk that has stalled may go on to be slow for each answer, however few are
// under way. (TestAWindowGrowsBackAfterAStall.)
func (m *limiter) answered(w *window, sent, now time.Time) {
	took := now.Sub(sent)
	m.latest[m.answers%len(m.latest)] = took
	m.answers++
	m.spent = max(m.spent-0.1, 0)
	m.heard, m.served = now, now
	switch {
	case took > slow:
		w = cmp.Or(w, &m.others)
		w.halve(sent, now, min(w.size, slowWindow))
	case w == nil || 2*w.under < w.size: // nothing is known of more
	case took < brisk || w.size < firstWindow && took < slow/2 ||
		w != &m.others && took < synced && m.light <= took/2:
		w.size++
	}
}

// lightAnswered notes that an answer took that long which needs no disk. A longer one of before
// counts for a while, since only a few may be held up.
func (m *limiter) lightAnswered(took time.Duration) { m.light = max(took, m.light*7/8) }

// overloaded notes that etcd is overloaded, by an attempt of whatever policy: at now etcd
// said so about a request sent at sent, or had not answered that request at all.
func (m *limiter) overloaded(sent, now time.Time) {
	m.puts.halve(sent, now, 1)
	m.removals.halve(sent, now, 1)
	m.leases.halve(sent, now, 1)
	m.others.halve(sent, now, 1)
}

// seldom is how often to do something whose normal period is period. It is longer than
// period if answers take long, or if attempts wait long for their turn: a periodic request
// must wait longer than that.
func (m *limiter) seldom(period time.Duration) time.Duration {
	return max(period, 4*(m.took()+m.turn))
}

// A window says how many attempts a client may have under way at once. While etcd answers them
// briskly it doubles in the time of an answer. It is halved when etcd is slow or says that it is
// overloaded, much as TCP probes a network.
//
// Invariant: no more attempts begin than lets allows, except urgent ones. (Do not send
// everything at once: etcd works through what it has accepted, even if the caller has given it
// up. Every answer is then late, and every retry makes the next one later, until leases expire
// before their keys are put. TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
//
// Invariant: what fails at once is sent again at the pace of one call, however many calls wait. An
// attempt that fails has the window stand still for a pause, which doubles from round to round. Any
// answer ends the pause. (Do not leave the pause to each call. What fails at once is never under
// way, so no size limits it. TestACrowdOfUnlocksThatFailAtOnceIsNoStorm.)
type window struct {
	size   int // how many may be under way
	under  int // how many are under way
	halved time.Time
	queue  list.List // of chan struct{}: attempts that wait, in order

	pause Backoff   // of the failures since the last answer
	from  time.Time // nothing begins before
}

// fails notes that at now an attempt has failed with err, whose request was sent at sent. It
// returns for how long w stands still from now on: 0 if it does so already for another attempt of
// that round.
func (w *window) fails(err error, several bool, sent, now time.Time) time.Duration {
	if w == nil || sent.Before(w.from) {
		return 0
	}
	w.pause.note(err, several)
	w.pause.last = err
	pause := Jitter(w.pause.next())
	w.from = now.Add(pause)
	w.halve(sent, now, min(w.size, firstWindow))
	return pause
}

// goesOn ends the pause of w: etcd has answered an attempt.
func (w *window) goesOn(now time.Time) {
	if w != nil && !w.from.IsZero() {
		w.pause.Reset()
		w.from = time.Time{}
		w.fill(now)
	}
}

// halve halves the window. A request sent before the last halving says nothing about the window
// now.
func (w *window) halve(sent, now time.Time, least int) {
	if sent.After(w.halved) {
		w.size, w.halved = max(w.size/2, least), now
	}
}

// end counts an attempt that is over, and lets the next ones begin.
func (w *window) end(now time.Time) {
	w.under--
	w.fill(now)
}

// fill lets as many attempts begin as may.
func (w *window) fill(now time.Time) {
	for w.queue.Len() > 0 && w.under < w.size && !now.Before(w.from) {
		w.under++
		w.queue.Remove(w.queue.Front()).(chan struct{}) <- struct{}{}
	}
}
