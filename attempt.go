package etcdlock

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
	"weak"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// reconnectEvery is how often a client's connections are asked for at once, at most, while
	// somebody waits for them: gRPC's own pause between attempts to connect grows from 1 s to
	// 2 minutes.
	reconnectEvery = 500 * time.Millisecond

	// readTimeout is how long one attempt to read waits before it is repeated, so that the
	// repeat may meet another endpoint.
	readTimeout = 700 * time.Millisecond

	// patience is how many times the rpcTimeout an attempt waits in all: 10 s for a TTL of 6 s
	// and more. etcd works through a request that nobody waits for any more all the same, so
	// that giving up and asking again makes a slow etcd slower.
	patience = 5

	// fewRepeats and manyRepeats are how many repeats a client may have to its credit, with one
	// endpoint and with several, and repeatShare is what each answer adds to it. (As gRPC's own
	// throttling of retries has it: 10, and 0.1.)
	fewRepeats, manyRepeats = 1, 10
	repeatShare             = 0.1

	// fewAnswers is the number of answers by which it is judged how fast etcd is.
	fewAnswers = 4

	// creditTime is the time in which the credit comes back by itself, of what was spent on an
	// etcd that was away.
	creditTime = 15 * time.Second

	// lively is how long after an answer etcd counts as one that answers.
	lively = 2 * time.Second

	// mostWorth is how much that credit grows while repeats are answered, and what they repeat
	// is not.
	mostWorth = 100

	// An etcd that has answered nothing at all for deaf, no renewal either, is away and not slow.
	// Then one of all that wait is repeated each listenEvery, so that its return is noticed.
	deaf        = 20 * time.Second
	listenEvery = 1500 * time.Millisecond
)

// errUnreachable says that a request was not sent: no endpoint was connected.
var errUnreachable = errors.New("no endpoint of etcd can be reached")

// An unreachableError is errUnreachable for the reason that gRPC gives.
type unreachableError struct{ reason error }

func (e *unreachableError) Error() string { return e.reason.Error() }
func (e *unreachableError) Unwrap() error { return errUnreachable }

// ---- what the Sessions of a client share

// A link is what all Sessions of one client share, so that it stays bounded however many
// of them wait: how often it connects, and how often requests are repeated.
type link struct {
	mu      sync.Mutex
	asked   time.Time       // when connections were last asked for
	flights int             // attempts under way
	ticking bool            // a timer asks for connections
	latest  []time.Duration // what the last few answers took, the newest last
	spent   float64         // repeats that were sent, less what answers have paid back
	counted time.Time       // when spent was last brought up to date
	worth   int             // credit beside the usual one: repeats have been worth it of late
	heard   time.Time       // when etcd last answered, or somebody first asked
	landed  time.Time       // when the last attempt ended
	listens time.Time       // when a repeat was last sent without credit
	reason  error           // gRPC's, for why nothing is connected
	told    time.Time       // when it said so
}

var links = struct {
	mu sync.Mutex
	of map[any]*link // by a weak pointer to the connection, or to the client that has none
}{of: make(map[any]*link)}

// linkOf returns the link of a client. It lives as long as the client's connection.
func linkOf(client *clientv3.Client) *link {
	if conn := client.ActiveConnection(); conn != nil {
		return linkTo(conn)
	}
	return linkTo(client) // not made with clientv3.New
}

func linkTo[T any](p *T) *link {
	links.mu.Lock()
	defer links.mu.Unlock()
	key := any(weak.Make(p))
	l := links.of[key]
	if l == nil {
		l = &link{}
		links.of[key] = l
		runtime.AddCleanup(p, func(key any) {
			links.mu.Lock()
			defer links.mu.Unlock()
			delete(links.of, key)
		}, key)
	}
	return l
}

// answered notes that etcd has answered a request after a time.
func (l *link) answered(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.latest) == fewAnswers {
		l.latest = append(l.latest[:0], l.latest[1:]...)
	}
	l.latest = append(l.latest, after)
	l.spent = max(l.spent-repeatShare, 0)
	l.heard = time.Now()
}

// alive notes that etcd has answered something else.
func (l *link) alive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = time.Now()
}

// tookLocked is what answers take of late: the second longest of the last few. One answer that
// was held up says nothing of the others, and would keep a request that meets a dead endpoint
// from being repeated; two are an etcd that is slow. The first ones each count.
func (l *link) tookLocked() time.Duration {
	sorted := slices.Sorted(slices.Values(l.latest))
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
func (l *link) usual(first time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(first, 3*l.tookLocked())
}

// seldom is how often to do something that is to be done each period, if answers take long:
// whoever asks again and again is to wait for longer than the answers take.
func (l *link) seldom(period time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(period, 4*l.tookLocked())
}

// spend takes n repeats off a credit, or as many as are left.
//
// Do not repeat without it: an etcd that is slow then gets more to do and not less, and is
// never heard again. (TestACrowdOfSessionsGetsThroughASlowEtcd.)
func (l *link) spend(n, credit int) (granted int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	// What was spent when there was more credit is no debt: some comes back soon in any case.
	l.spent = min(l.spent, float64(credit+l.worth))
	back := creditTime
	if credit == manyRepeats && now.Sub(l.heard) < lively {
		back /= 4 // etcd answers, by another endpoint perhaps: a repeat is worth it
	}
	l.spent = max(l.spent-float64(credit)*float64(now.Sub(l.counted))/float64(back), 0)
	l.counted = now
	for granted < n && l.spent+1 <= float64(credit+l.worth) {
		l.spent++
		granted++
	}
	if granted == 0 && now.Sub(l.heard) >= deaf && now.Sub(l.listens) >= listenEvery {
		l.listens = now
		return 1
	}
	return granted
}

// repeated notes what became of an attempt with n repeats. If one of them was answered while the
// request before was not, they were worth it, as where one endpoint of several is dead: they are
// paid back, and the credit grows. It shrinks again if the request was answered all the same.
func (l *link) repeated(n int, won bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case won:
		l.spent = max(l.spent-float64(n), 0)
		l.worth = min(l.worth+n, mostWorth)
	case n > 0:
		l.worth = max(l.worth-2*n, 0)
	}
}

// several reports whether the client has more than one endpoint, as far as is known.
func several(client *clientv3.Client) bool {
	return client.ActiveConnection() == nil || len(client.Endpoints()) > 1
}

// reconnect asks gRPC to connect again at once if there is no connection, unless that was
// asked for just now. Each time costs a connection to each endpoint.
func (s *Session) reconnect() {
	conn, l := s.client.ActiveConnection(), s.link
	if conn == nil || conn.GetState().String() != "TRANSIENT_FAILURE" {
		return
	}
	l.mu.Lock()
	due := time.Since(l.asked) >= reconnectEvery
	if due {
		l.asked = time.Now()
	}
	l.mu.Unlock()
	if due {
		conn.ResetConnectBackoff()
	}
}

// takeOff counts an attempt that begins, and land one that is over. While there are any, a
// timer asks for connections.
func (s *Session) takeOff() {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.flights == 0 && now.Sub(l.landed) >= forgetSilence {
		l.heard = now
	}
	l.flights++
	if !l.ticking && s.client.ActiveConnection() != nil {
		l.ticking = true
		time.AfterFunc(reconnectEvery, s.tick)
	}
}

func (s *Session) land() {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	s.link.flights--
	s.link.landed = time.Now()
}

func (s *Session) tick() {
	l := s.link
	l.mu.Lock()
	l.ticking = l.flights > 0
	again := l.ticking
	l.mu.Unlock()
	if again {
		s.reconnect()
		time.AfterFunc(reconnectEvery, s.tick)
	}
}

// unconnected reports whether gRPC has no connection, or is making the first one.
func (s *Session) unconnected() bool {
	conn := s.client.ActiveConnection()
	return conn != nil && conn.GetState().String() != "READY"
}

// disconnected reports whether gRPC has no connection, and has failed to make one.
func (s *Session) disconnected() bool {
	conn := s.client.ActiveConnection()
	return conn != nil && conn.GetState().String() == "TRANSIENT_FAILURE"
}

// connected waits until there is a connection, or one is being made. Without one clientv3
// would send nothing either, but try again by itself, many times a second.
func (s *Session) connected(ctx context.Context) error {
	conn := s.client.ActiveConnection()
	if conn == nil {
		return nil
	}
	for state := conn.GetState(); state.String() == "TRANSIENT_FAILURE"; state = conn.GetState() {
		s.reconnect()
		reason := s.whyDisconnected(ctx)
		if !conn.WaitForStateChange(ctx, state) {
			return reason
		}
	}
	return nil
}

// whyDisconnected is gRPC's reason for having no connection, as it tells a request that does
// not wait for one. clientv3's requests all do, so this one goes by the connection itself. It is
// not sent, there being no connection; if there is one just then, it asks for the member's health.
func (s *Session) whyDisconnected(ctx context.Context) error {
	const method = "/grpc.health.v1.Health/Check"
	l := s.link
	l.mu.Lock()
	fresh := l.reason != nil && time.Since(l.told) < tellEvery/2
	reason := l.reason
	l.mu.Unlock()
	if fresh {
		return reason
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	message := newOf(new(clientv3.WatchResponse).Header) // an empty one, of whatever kind
	err := s.client.ActiveConnection().Invoke(ctx, method, message, message)
	if err == nil || ctx.Err() != nil {
		return errUnreachable // it is connected just now, or was cut short
	}
	reason = &unreachableError{err}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason, l.told = reason, time.Now()
	return reason
}

// newOf returns a new value of a type that this package does not import.
func newOf[T any](*T) *T { return new(T) }

// keepAlive renews a lease once. It sends nothing while there is no connection.
func (s *Session) keepAlive(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	if s.disconnected() {
		return nil, errUnreachable
	}
	return s.client.KeepAliveOnce(ctx, id)
}

// cancelWhenUnreachable cancels a renewal once no endpoint is connected, and asks
// for a new connection: KeepAliveOnce would try in a tight loop, and gRPC would
// wait for up to two minutes. It returns a channel that tells whether it did, once
// ctx has ended.
func (s *Session) cancelWhenUnreachable(ctx context.Context, cancel func()) <-chan bool {
	result := make(chan bool, 1)
	conn := s.client.ActiveConnection()
	if conn == nil { // not made with clientv3.New
		result <- false
		return result
	}
	go func() { // ends with ctx; renew waits for it
		for {
			state := conn.GetState()
			if state.String() == "TRANSIENT_FAILURE" {
				s.reconnect()
				cancel()
				result <- true
				return
			}
			if !conn.WaitForStateChange(ctx, state) {
				result <- false
				return
			}
		}
	}()
	return result
}

// ---- attempts

// rpcTimeout is how long one attempt of a call waits before it is repeated, so that the repeat
// may meet another endpoint. It is a fraction of the TTL, within reason.
func (s *Session) rpcTimeout() time.Duration {
	return min(max(s.cfg.ttl/3, 500*time.Millisecond), 2*time.Second)
}

// watchTimeout is how long the next watch may take to be there, after some that were not. Where there is one endpoint,
// another watch would be no faster. Where there are several it may be one of the dead that is
// asked, time and again: the line is read between one watch and the next, and not too seldom.
func (s *Session) watchTimeout(unanswered int) time.Duration {
	if s.several() {
		return s.link.usual(readTimeout) << min(unanswered, 1)
	}
	return s.link.usual(4*readTimeout) << min(unanswered, 3)
}

// attempt is one of a call's attempts. It calls f, and if no answer has come after first (or
// what answers take of late, if that is more) once more, as far as the link's credit goes,
// while the earlier call may still be answered: so an etcd that is slow is heard, and one
// that is back is heard soon. Where there are several endpoints it then calls f twice at
// once, so that one dead endpoint cannot meet both.
//
// It returns the first good answer or refusal. errNoAnswer says that none has come in all the
// time that an attempt may take; errUnreachable that nothing was sent. several tells whether
// f may have been carried out more than once, by this attempt.
func attempt[R any](ctx context.Context, s *Session, retry *backoff, first time.Duration, f func(context.Context) (R, error)) (r R, several bool, err error) {
	s.takeOff()
	defer s.land()
	s.silence.ask(s)
	defer func() { s.silence.heard(err) }()

	bounded, cancel := context.WithTimeout(ctx, retry.bound(patience*s.rpcTimeout()))
	defer cancel()
	if err = s.connected(bounded); err == nil {
		var repeats int
		c := &copies[R]{s: s, f: f, ctx: bounded, won: cancel, first: first, eager: retry.eager}
		r, repeats, err = c.race(retry.unanswered > 0)
		several = repeats > 0
	}
	late := bounded.Err() == context.DeadlineExceeded // it is cancelled when a repeat was answered
	if err != nil && !errors.Is(err, errUnreachable) && late && ctx.Err() == nil {
		err = errNoAnswer
	}
	retry.note(err)
	return r, several, err
}

// maxCopies bounds the repeats of one attempt.
const maxCopies = 16

// copies are one attempt's calls of f: the first one, and its repeats, which a timer sends.
type copies[R any] struct {
	// Set once, then only read.
	s     *Session
	f     func(context.Context) (R, error)
	ctx   context.Context    // of all calls
	won   context.CancelFunc // ends them: a repeat was answered
	first time.Duration      // the least that an answer may take
	eager bool               // repeats need no credit, but come ever more seldom

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
	return err == nil || refused(err) || answered(err, textLeaseNotFound)
}

// race calls f, and has it repeated: at once if twice is set and there are several endpoints,
// and then by the timer. In the end the calls that are under way are dropped, with their
// answers. It also tells how many repeats were sent.
func (c *copies[R]) race(twice bool) (r R, repeats int, err error) {
	c.mu.Lock()
	c.last = time.Now()
	c.timer = time.AfterFunc(c.first, c.repeat)
	if twice && c.s.several() {
		c.sendLocked(1)
	}
	c.mu.Unlock()
	defer c.end()

	r, err = c.call(c.ctx)
	for heard := 0; !settles(err); heard++ {
		repeats = c.repeats()
		if heard == repeats {
			return r, repeats, err
		}
		answer := <-c.results // each ends with the context at the latest
		if settles(answer.err) {
			repeats = c.repeats()
			c.s.link.repeated(repeats, true)
			return answer.r, repeats, answer.err
		}
		if c.ctx.Err() == nil {
			r, err = answer.r, answer.err
		}
	}
	repeats = c.repeats()
	c.s.link.repeated(repeats, false)
	return r, repeats, err
}

// call calls f once.
func (c *copies[R]) call(ctx context.Context) (R, error) {
	started := time.Now()
	r, err := c.f(ctx)
	if settles(err) {
		c.s.link.answered(time.Since(started))
	}
	return r, err
}

// repeat is what the timer does: it sends a repeat, or two if there are several endpoints: one
// alone may meet the dead one each time, in step with other requests. Where there is one
// endpoint, one repeat is worth little, and more are worth less. Without credit it comes again
// soon. It asks anew each time what answers take: they may have become slow since the attempt
// began, or fast again.
func (c *copies[R]) repeat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.ctx.Err() != nil {
		return
	}
	n, several := 1, c.s.several()
	if several {
		n = 2
	}
	usual := c.s.link.usual(c.first)
	pause := usual
	switch {
	case c.eager:
		pause <<= c.sent / n
	case !several:
		pause <<= c.sent
	case c.sent > 0:
		pause /= 2
	}
	next := time.Until(c.last.Add(pause))
	if next <= 0 {
		next = jitter(usual / 8)
		if c.sendLocked(n) > 0 {
			next = jitter(c.first / 2)
		}
	}
	c.timer.Reset(min(next, c.first))
}

// sendLocked sends as many repeats as the link's credit allows, up to n.
func (c *copies[R]) sendLocked(n int) (granted int) {
	credit := fewRepeats
	if c.s.several() {
		credit = manyRepeats
	}
	granted = min(n, maxCopies-c.sent) // results has room for no more
	if granted <= 0 {
		return 0
	}
	if !c.eager {
		granted = c.s.link.spend(granted, credit)
	}
	if granted > 0 {
		c.sent, c.last = c.sent+granted, time.Now()
		if c.results == nil {
			c.results = make(chan result[R], maxCopies)
		}
	}
	for range granted {
		c.s.spawn(func() {
			ctx, cancel := context.WithCancel(c.ctx)
			defer cancel()
			defer context.AfterFunc(c.s.ctx, cancel)()
			r, err := c.call(ctx)
			c.results <- result[R]{r, err}
			if settles(err) {
				c.won()
			}
		})
	}
	return granted
}

// repeats is how many were sent so far.
func (c *copies[R]) repeats() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// end ends the repeating.
func (c *copies[R]) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.timer.Stop()
}

// A backoff spaces the attempts of a call: 20 ms, doubling up to half a second, with
// jitter. The cap keeps the time short in which etcd is back and nobody has noticed.
type backoff struct {
	delay      time.Duration
	unanswered int  // attempts in a row that had no answer in time
	eager      bool // the call is the last of its kind, and cheap: its repeats need no credit
}

// note tells b what became of an attempt.
func (b *backoff) note(err error) {
	if err == errNoAnswer {
		b.unanswered++
	} else {
		b.unanswered = 0
	}
}

// bound is how long the next attempt may take, if the first one may take first: twice that
// after one that had no answer. An etcd that is slow would otherwise never be heard.
// (TestASlowEtcdKeepsNobodyOut.)
func (b *backoff) bound(first time.Duration) time.Duration {
	return first << min(b.unanswered, 1)
}

// wait waits for the next attempt, or returns the cause of ctx when that ends. It
// asks gRPC to connect again if there is no connection.
func (b *backoff) wait(ctx context.Context, s *Session) error {
	b.delay = min(max(2*b.delay, 20*time.Millisecond), 500*time.Millisecond)
	pause := time.NewTimer(jitter(b.delay))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-pause.C:
	}
	s.reconnect()
	return nil
}
