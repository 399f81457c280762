package attempt

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/quote"
)

const (
	// reconnectEvery is the least time between two requests of a client to gRPC to connect at
	// once, while a call waits for a connection. gRPC's own pause between attempts to connect
	// grows from 1 s to 2 minutes.
	reconnectEvery = 500 * time.Millisecond

	// tellEvery is how often a Caller reports that etcd does not answer.
	tellEvery = 10 * time.Second

	// warnEvery is how often a client warns of another one of many for the same reason.
	warnEvery = 30 * time.Second

	// forgetSilence is how long after the last attempt without an answer the silence still counts.
	// Later it is unknown whether etcd would answer. It is above the longest pause between two
	// attempts of a call that had no answer. (TestASilenceOutlastsThePauses.)
	forgetSilence = 3 * time.Second

	// pingsTell is above the time in which a client with the pings of the pages gives a dead
	// connection up: 10 s and 3 s.
	pingsTell = 20 * time.Second
)

// A link is what all callers of one client share. It bounds how often the client connects and how
// often requests are repeated, however many callers wait.
type link struct {
	mu      sync.Mutex
	limiter limiter
	asked   time.Time // when the client last asked gRPC to connect
	flights int       // attempts under way, or waiting
	landed  time.Time // when the last attempt ended
	reason  error     // gRPC's reason for having no connection
	told    time.Time // when gRPC gave it

	warnings map[any]*warning // the last one of each kind

	cancels  map[*func()]struct{} // of the requests that end when no endpoint is connected
	unfollow context.CancelFunc   // ends the goroutine that follows the connection for them
}

// A warning is a line in a log that is about one of many.
type warning struct {
	of   any // the one
	at   time.Time
	also int // how many were not logged since
}

var links Shared[link]

// linkOf returns the link of a client. It lives as long as the client's connection.
func linkOf(client *clientv3.Client) *link {
	create := func() *link { return &link{} }
	if conn := client.ActiveConnection(); conn != nil {
		return SharedBy(&links, conn, create)
	}
	return SharedBy(&links, client, create) // not made with clientv3.New
}

// with calls f with the limiter.
func (l *link) with(f func(m *limiter, now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.limiter, time.Now())
}

// pausesLocked has a window go on after a pause.
func (l *link) pausesLocked(w *window, pause time.Duration) {
	if pause > 0 {
		time.AfterFunc(pause, func() { l.with(func(_ *limiter, now time.Time) { w.fill(now) }) })
	}
}

// reconnect asks gRPC to connect again at once if there is no connection, unless it has
// asked just now. Each time costs a connection to each endpoint.
func (c *Caller) reconnect() {
	if !c.Disconnected() {
		return
	}
	l := c.link
	l.mu.Lock()
	due := time.Since(l.asked) >= reconnectEvery
	if due {
		l.asked = time.Now()
	}
	l.mu.Unlock()
	if due {
		c.conn.ResetConnectBackoff()
	}
}

// connected waits until there is a connection or one is being made. Without one clientv3
// would send nothing either, but retry by itself many times a second.
func (c *Caller) connected(ctx context.Context) error {
	if c.Closed() {
		return ErrClientClosed
	}
	for c.Disconnected() {
		c.reconnect()
		reason := c.whyDisconnected(ctx)
		if !c.conn.WaitForStateChange(ctx, connectivity.TransientFailure) {
			return reason
		}
	}
	return nil
}

// whyDisconnected is gRPC's reason for having no connection. gRPC gives it only to a request that
// does not wait for a connection. clientv3's requests all wait, so this one bypasses clientv3. It
// is not sent, because there is no connection; if there is one just then, it asks for the member's
// health.
func (c *Caller) whyDisconnected(ctx context.Context) error {
	const method = "/grpc.health.v1.Health/Check"
	l := c.link
	l.mu.Lock()
	fresh := l.reason != nil && time.Since(l.told) < tellEvery/2
	reason := l.reason
	l.mu.Unlock()
	if fresh {
		return reason
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	message := &pb.ResponseHeader{} // an empty one, of whatever kind
	_, err := guard.Apart(func() (none struct{}, err error) {
		return none, c.conn.Invoke(ctx, method, message, message)
	})
	switch fall := guard.FallIn(err); {
	case fall != nil:
		err = errors.New(fall.What())
	case err == nil || ctx.Err() != nil:
		return ErrUnreachable // it is connected just now, or was cut short
	}
	reason = &unreachableError{c.shown(err)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason, l.told = reason, time.Now()
	return reason
}

// A shownError is an error whose text may be shown.
type shownError struct {
	error
	text string
}

func (e *shownError) Error() string { return e.text }
func (e *shownError) Unwrap() error { return e.error }

// shown is err without the users and passwords of the endpoints: gRPC tells an address that it
// cannot dial.
func (c *Caller) shown(err error) error {
	if err == nil || c.conn == nil {
		return err
	}
	if text := quote.WithoutUsers(err.Error(), c.where()); text != err.Error() {
		return &shownError{err, text}
	}
	return err
}

// CancelWhenUnreachable cancels a request once no endpoint is connected, and asks for a new
// connection: clientv3 itself would retry in a tight loop, and gRPC would wait for up to two
// minutes. The caller calls over once the request has ended. over says whether it was cancelled.
//
// (Do not have a goroutine follow the connection for each request. The renewals of a thousand
// leases go out together. TestOneGoroutineFollowsTheConnectionForAllRequests.)
func (c *Caller) CancelWhenUnreachable(cancel func()) (over func() (cut bool)) {
	if c.conn == nil { // not made with clientv3.New
		return func() bool { return false }
	}
	l, request := c.link, &cancel
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.cancels) == 0 {
		l.cancels = make(map[*func()]struct{})
		var ctx context.Context
		ctx, l.unfollow = context.WithCancel(context.Background())
		go c.cancelsWhenUnreachable(ctx) // ends with the last of the requests
	}
	l.cancels[request] = struct{}{}
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, there := l.cancels[request]; !there {
			return true
		}
		if delete(l.cancels, request); len(l.cancels) == 0 {
			l.unfollow()
		}
		return false
	}
}

// cancelsWhenUnreachable follows the connection until no endpoint is connected, or ctx ends.
func (c *Caller) cancelsWhenUnreachable(ctx context.Context) {
	for {
		state := c.conn.GetState()
		if state == connectivity.TransientFailure {
			break
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
	l := c.link
	l.mu.Lock()
	if ctx.Err() != nil { // others are followed by now, by another goroutine
		l.mu.Unlock()
		return
	}
	cancels := l.cancels
	l.cancels = nil
	l.unfollow()
	l.mu.Unlock()
	c.reconnect()
	for cancel := range cancels {
		(*cancel)()
	}
}

// A silence is what a Caller knows about an etcd that does not answer. It is reported once for
// all waiting calls.
//
// Renewals do not count: a member may answer them and nothing else.
type silence struct {
	since  time.Time // when etcd last answered, or the first attempt since then began
	last   time.Time // when the last attempt without an answer ended, zero if none has
	reason error     // its error, nil if it just had no answer
	told   time.Time // when the silence was last reported, zero if it was not
	pings  bool      // a report has named the pings
}

// Warns reports whether a warning of a kind, about one of many such as a lease, is to be logged: it
// is if all since the last one were about that one, or if that was warnEvery ago. also is how many
// were not logged in between.
//
// (Do not warn of each. Where etcd is slow thousands of leases of a client are late, for one
// reason. TestAClientWarnsOfOneLeaseForAll.)
func (c *Caller) Warns(kind, of any) (also int, warns bool) {
	l, now := c.link, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.warnings[kind]
	if w != nil && (w.of != of || w.also > 0) && now.Sub(w.at) < warnEvery {
		w.also++
		return 0, false
	}
	if w == nil {
		maps.DeleteFunc(l.warnings, func(_ any, w *warning) bool { return now.Sub(w.at) >= warnEvery })
		w = new(warning)
		if l.warnings == nil {
			l.warnings = make(map[any]*warning)
		}
		l.warnings[kind] = w
	}
	also = w.also
	*w = warning{of: of, at: now}
	return also, true
}

// silentSinceLocked is since when c has had no answer. If etcd has not said why, answers to the
// attempts of the client's other Sessions count, too.
//
// Do not go by c's own attempts alone. In a crowd of Sessions they wait their turn for seconds, and
// an etcd that is busy is not silent. (TestAnEtcdThatAnswersOthersIsNotSilent.)
func (c *Caller) silentSinceLocked() time.Time {
	q, served := &c.silence, c.link.limiter.served
	busy, _ := q.reason.(*busyError)
	if untold := q.reason == nil || busy != nil && busy.last == nil; untold && served.After(q.since) {
		return served
	}
	return q.since
}

// silentLocked reports whether the silence is up to date: an attempt is under way, or there was one
// just now that had no answer.
func (c *Caller) silentLocked(now time.Time) bool {
	return c.asking > 0 || now.Sub(c.silence.last) < forgetSilence
}

// tick asks for connections while there are attempts, and reports the silence when it is time to:
// once it has lasted for the time of an attempt, and then each tellEvery, while a call waits.
func (c *Caller) tick() {
	l := c.link
	l.mu.Lock()
	now, q, asking := time.Now(), &c.silence, c.asking > 0
	c.ticking = c.silentLocked(now)
	if c.ticking { // otherwise the next attempt begins it again
		since := c.silentSinceLocked()
		due := since.Add(c.Timeout)
		if again := q.told.Add(tellEvery); !q.told.IsZero() && again.After(due) {
			due = again
		}
		if !now.Before(due) && c.Waits.Load() > 0 && c.ctx.Err() == nil {
			q.told, due = now, now.Add(tellEvery)
			c.spawn(func() {
				if reason := c.Unavailable(); reason != nil { // otherwise it has answered just now
					silent := time.Since(since)
					c.tell(c.namePings(reason, silent), silent)
				}
			})
		}
		next := reconnectEvery
		if left := due.Sub(now); left > 0 {
			next = min(next, left)
		}
		time.AfterFunc(next, c.tick)
	}
	l.mu.Unlock()
	if asking {
		c.reconnect()
	}
}

// namePings returns the reason to report. Once in a silence it names the pings: when a client that
// has them would have given a dead connection up. (Whether this client has them cannot be asked.)
func (c *Caller) namePings(reason error, silent time.Duration) error {
	if c.conn == nil || reason != ErrNoAnswer || silent < pingsTell {
		return reason
	}
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.silence.pings {
		return reason
	}
	c.silence.pings = true
	return errNoPings
}

// Unavailable returns why etcd does not answer, or nil if it does, as far as is known. An attempt
// that has had no answer for a quarter of a second says that it does not.
func (c *Caller) Unavailable() error {
	l := c.link
	l.mu.Lock()
	now := time.Now()
	silent, reason, since := c.silentLocked(now), c.silence.reason, c.silentSinceLocked()
	if since.After(c.silence.last) {
		reason = nil
	}
	late := now.Sub(since) >= 250*time.Millisecond
	l.mu.Unlock()
	switch {
	case !silent:
		return nil
	case c.Disconnected():
		return c.whyDisconnected(c.ctx)
	case reason != nil:
		return reason
	case late && c.conn != nil && c.conn.GetState() != connectivity.Ready:
		return ErrUnreachable
	case late:
		return ErrNoAnswer
	}
	return nil
}
