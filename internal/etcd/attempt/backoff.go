package attempt

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// A Policy says whether the attempts of a call wait their turn, and how they are repeated.
type Policy uint8

// RemovalPause caps the pause of one removal that etcd does not carry out.
//
// (Do not leave the pause to the window of the removals: any answer ends that, and a removal that
// alone fails is sent as often as others are answered, which go with it and are then sent alone.
// TestARemovalThatAloneFailsIsRareAndSlowsNoOther.)
const RemovalPause = 100 * time.Millisecond

// The policies.
const (
	Ordinary Policy = iota
	Put             // puts a key into a line, which takes etcd longer than anything else
	Lease           // has a lease granted, or gives it back
	Urgent          // other calls or holds wait for it: does not wait its turn
	Release         // gives a key back for the first time: does not wait its turn either
	Removal         // gives a key back after that, or one that no call has released
	Spare           // can wait, and many waiters may make the same call now: two repeats at most
)

// repeats is how many repeats an attempt may have. Two are one round, if there are several
// endpoints.
func (p Policy) repeats() int {
	if p == Spare {
		return 2
	}
	return 16
}

// waits reports whether an attempt waits its turn as calls that get something do.
func (p Policy) waits() bool { return p != Urgent && p != Release && p != Removal }

// A Backoff spaces the attempts of a call: 20 ms, doubling up to half a second, with
// jitter. The cap bounds how long etcd can be back unnoticed. It is doubled while etcd is
// overloaded, because asking again at once would add load.
type Backoff struct {
	Policy Policy

	// Most caps the pauses after errors, except where they say that etcd is overloaded. It is half
	// a second if it is not set.
	Most time.Duration

	// Own says that the attempts are made in the goroutine of a user's call. The user's code runs
	// there, and no other goroutine is needed for it.
	Own bool

	// Needless, if it is not nil, is closed once an attempt that has not begun yet is needless. A
	// pause ends then.
	Needless <-chan struct{}

	delay      time.Duration
	unanswered int   // attempts in a row that had no answer in time
	overloads  int   // attempts in a row that failed because etcd is overloaded
	last       error // of the last attempt that has begun
}

// Reset forgets what was not answered.
func (b *Backoff) Reset() { b.delay, b.unanswered, b.overloads, b.last = 0, 0, 0, nil }

// Unanswered notes that an attempt had no answer in time.
func (b *Backoff) Unanswered() { b.unanswered++ }

// Double makes the next attempt go as after one without an answer: to two endpoints at
// once, if there are several.
func (b *Backoff) Double() { b.unanswered = max(b.unanswered, 1) }

// note records how an attempt ended. With several endpoints, another endpoint may do better
// than the one that was late. A pause is 1 s while etcd turns requests away, and grows to 2 s while
// it is late, because it may just have been unreachable.
//
// (Do not have it grow further where etcd turns requests away. To refuse one costs etcd next to
// nothing, a window sends one a pause for all calls of its kind, and a call would get in seconds
// after etcd has caught up. TestCallsGetInSoonAfterEtcdTurnedRequestsAway.)
func (b *Backoff) note(err error, several bool) {
	if err == ErrNoAnswer {
		b.unanswered++
	} else {
		b.unanswered = 0
	}
	switch {
	case Is(err, rpctypes.ErrTooManyRequests):
		b.overloads = 1
	case Overloaded(err) && !several && b.Policy.waits():
		b.overloads = min(b.overloads+1, 2)
	default:
		b.overloads = 0
	}
}

// next is the pause before the next attempt, without jitter.
func (b *Backoff) next() time.Duration {
	const least, most = 20 * time.Millisecond, 500 * time.Millisecond
	if b.overloads > 0 {
		b.delay = most << b.overloads
	} else {
		b.delay = min(max(2*b.delay, least), cmp.Or(b.Most, most))
	}
	return b.delay
}

// Wait waits for the next attempt, or returns the cause of ctx when ctx ends. It asks gRPC to
// connect again if there is no connection.
func (b *Backoff) Wait(ctx context.Context, c *Caller) error {
	pause := time.NewTimer(Jitter(b.next()))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return Cause(ctx)
	case <-b.Needless:
	case <-pause.C:
	}
	c.reconnect()
	return nil
}

// Jitter is d give or take a quarter, so that crowds do not act in step.
func Jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}
