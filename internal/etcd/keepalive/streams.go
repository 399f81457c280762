package keepalive

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	// mostLogins is how many streams of a client with user and password are being opened at once:
	// each is a login, and etcd has only so many cores for those.
	mostLogins = 4

	// mostOpenings is how many streams of another client are. Where answers take long a stream is
	// opened for each of the renewals that are under way at once, and those are not to wait for it.
	mostOpenings = 64

	// openingTime is how long a stream counts as being opened, while etcd answers nothing on it: it
	// may lead to a member that hangs.
	openingTime = 250 * time.Millisecond

	// mostFailures is how many streams a client can open, one after the other, without an answer on
	// any. Of further ones it opens failuresASecond, and perAnswer for each answer.
	mostFailures    = 20
	failuresASecond = 10
	perAnswer       = 2

	// longestRest is the longest time for which a stream is kept that is not needed.
	longestRest = time.Minute
)

// streams are the streams for the renewals of a client's leases. A renewal takes any that is free,
// and opens another one if none is. So there are as many as renewals are under way at once: at rest
// one, if answers are fast, for the leases of hundreds of Sessions.
//
// Invariant: at most one renewal is under way on a stream, so that the next message on it is the
// answer to that one. etcd answers in the order of the requests. A renewal that is given up
// takes its stream with it, so that a late answer is never taken for the answer to a later
// renewal. That would extend the trust although etcd has counted from an earlier time
// (TestNoAnswerIsTakenForThatToALaterRenewal). It also means that no lease waits for another, as
// a member that does not lead asks the leader for each renewal, one after the other; and that an
// error, with which etcd ends the stream, is that of one lease.
//
// Invariant: the second renewal on a stream is sent only once it is proven that etcd itself reads
// the stream. etcd's grpc-proxy answers each request on a stream too, but with the result of its
// own next answered renewal, which it may have sent earlier. Its first one on a stream is sent for
// the first request. (Do not keep a stream that is not proven. TestBehindAProxyNoStreamIsKept.)
//
// Invariant: at most mostLogins streams, or mostOpenings, are being opened at once. Other renewals
// wait, for one of these to be free or for their turn to open one. (Do not give each lease a
// stream: when a member restarts, a thousand leases log in at once.
// TestALostStreamIsReplacedOnceForAllLeases.)
type streams struct {
	alone   bool // each renewal is sent by itself: there is nothing to open, or to prove
	most    int  // how many may be opened at once
	senders int  // leases

	to      string // where the client's requests go
	proxied bool   // a stream there was found not to lead to etcd itself

	open    []*stream // all, in the order in which they were begun
	opening int       // how many of these are being opened
	waits   []*wait   // renewals that wait, by the end of their trust

	credit  float64   // streams that may be opened without an answer
	counted time.Time // when credit was last brought up to date

	ended []*stream // that are to be ended once the mutex is unlocked
}

// A stream carries renewals.
type stream struct {
	// Set once, before anything is sent.
	begun time.Time // when it was opened
	to    string
	ctx   context.Context
	end   context.CancelFunc
	rpc   rpc
	over  chan struct{} // closed when nothing comes on it any more

	// Guarded by client.mu.
	state   state
	opens   bool          // counts as being opened
	by      *Sender       // of the renewal that is under way, or was last
	answers chan<- answer // for that renewal
	used    time.Time     // when the last answer came
	member  uint64        // that has answered
	proven  bool          // etcd itself reads it
	proof   *time.Timer   // ends the stream if it is not proven in time
}

// A state is what a stream does.
type state uint8

const (
	carrying state = iota // a renewal is under way
	idle                  // none is: if it is proven, it is free
	over                  // it has ended, or is about to
)

// An answer is etcd's answer, or why there will be none.
type answer struct {
	resp *pb.LeaseKeepAliveResponse
	err  error
}

// A wait is a renewal that waits for a stream.
type wait struct {
	r       Renewal
	answers chan<- answer
	turn    chan *stream // gets one at most
}

// mayUse reports whether a renewal may go on a stream that is free.
func (r *Renewal) mayUse(on *stream) bool {
	return on.state == idle && on.proven && on.to == r.Where.Endpoints && r.isAfter(on)
}

// isAfter reports whether a stream was opened late enough for a renewal.
func (r *Renewal) isAfter(on *stream) bool {
	return on.begun.After(r.After) && on.begun.After(r.Where.Since)
}

// take returns a stream for a renewal, or nil if it has to wait.
func (k *streams) take(w *wait, now time.Time) *stream {
	if to := w.r.Where.Endpoints; to != k.to {
		k.to, k.proxied = to, false
		k.endUnused(now)
	}
	if on := k.free(&w.r); on != nil {
		return on.carry(w)
	}
	if k.mayOpen(now) {
		return k.begin(w, now)
	}
	k.waits = slices.Insert(k.waits, k.find(w.r.Until.Add(1)), w) // behind its equals
	return nil
}

// find returns the first of those that wait whose trust ends no earlier than until.
func (k *streams) find(until time.Time) (at int) {
	at, _ = slices.BinarySearchFunc(k.waits, until, func(w *wait, until time.Time) int {
		return w.r.Until.Compare(until)
	})
	return at
}

// free returns the free stream for a renewal: the one that was opened last, so that others end, but
// rather one to the member that has answered the lease's last renewal. The answers of two members
// that take long may be of two leaders, so that a read has to ask what they are worth.
func (k *streams) free(r *Renewal) (best *stream) {
	for _, on := range slices.Backward(k.open) {
		switch {
		case !r.isAfter(on):
			return best // so are the others
		case !r.mayUse(on):
		case on.member == r.by.member:
			return on
		case best == nil:
			best = on
		}
	}
	return best
}

// carry has a stream carry a renewal.
func (on *stream) carry(w *wait) *stream {
	on.state, on.by, on.answers = carrying, w.r.by, w.answers
	return on
}

// begin returns a stream that the waiting renewal is to open.
func (k *streams) begin(w *wait, now time.Time) *stream {
	on := &stream{begun: now, to: w.r.Where.Endpoints, over: make(chan struct{}), proven: k.alone}
	on.ctx, on.end = context.WithCancel(context.Background())
	k.open = append(k.open, on)
	if !k.alone {
		on.opens = true
		k.opening++
		k.credit--
	}
	return on.carry(w)
}

// mayOpen reports whether another stream may be opened.
func (k *streams) mayOpen(now time.Time) bool {
	k.count(now)
	return k.alone || k.opening < k.most && k.credit >= 1
}

// count brings the credit up to date.
func (k *streams) count(now time.Time) {
	k.credit = min(k.credit+failuresASecond*now.Sub(k.counted).Seconds(), mostFailures)
	k.counted = now
}

// opened notes that a stream no longer counts as being opened: it may carry renewals, or has ended,
// or its time is over.
func (k *streams) opened(on *stream, now time.Time) {
	if on.opens {
		on.opens = false
		k.opening--
		k.admit(now)
	}
}

// admit lets those that wait open streams, in their order.
func (k *streams) admit(now time.Time) {
	for len(k.waits) > 0 && k.mayOpen(now) {
		w := k.waits[0]
		k.waits = slices.Delete(k.waits, 0, 1)
		w.turn <- k.begin(w, now)
	}
}

// next is how long after now one that waits may open a stream, if nothing happens before.
func (k *streams) next(now time.Time) time.Duration {
	if len(k.waits) == 0 || k.opening == k.most {
		return never
	}
	k.count(now)
	return pause(1-k.credit, failuresASecond)
}

// giveUp notes that a renewal waits no more, and gives back what it may have got just now.
func (k *streams) giveUp(w *wait, now time.Time) {
	select {
	case on := <-w.turn:
		if on.rpc == nil {
			k.leave(on, now)
		} else {
			on.state = idle
			k.settle(on, now)
		}
	default:
		at := k.find(w.r.Until)
		at += slices.Index(k.waits[at:], w)
		k.waits = slices.Delete(k.waits, at, at+1)
	}
}

// answered notes that something came on a stream: an answer, or its end. It reports whether a
// renewal waits for it.
func (k *streams) answered(on *stream, a answer, now time.Time) (awaited bool) {
	awaited = on.state == carrying
	if a.err != nil {
		k.leave(on, now)
	} else {
		if k.count(now); on.opens {
			k.credit++ // it was no failure
		}
		k.credit = min(k.credit+perAnswer, mostFailures)
		on.state, on.used = idle, now
		on.member = a.resp.GetHeader().GetMemberId()
		on.by.member = on.member
		k.settle(on, now)
	}
	return awaited
}

// proved notes whether etcd itself reads a stream.
func (k *streams) proved(on *stream, etcd bool, now time.Time) {
	on.proven = etcd
	if !etcd && on.to == k.to {
		k.proxied = true
	}
	k.settle(on, now)
}

// settle finds a use for a stream on which no renewal is under way any more.
func (k *streams) settle(on *stream, now time.Time) {
	switch {
	case on.state != idle:
	case k.senders == 0, on.to != k.to, !on.proven && k.proxied:
		k.leave(on, now)
	case on.proven:
		if at := slices.IndexFunc(k.waits, func(w *wait) bool { return w.r.mayUse(on) }); at >= 0 {
			w := k.waits[at]
			k.waits = slices.Delete(k.waits, at, at+1)
			w.turn <- on.carry(w)
		}
		k.opened(on, now)
		k.endRested(now)
	}
}

// endRested ends the streams that were not needed for two periods of the lease that used them last.
func (k *streams) endRested(now time.Time) {
	k.endThose(now, func(on *stream) bool {
		return on.proven && now.Sub(on.used) >= min(2*on.by.period, longestRest)
	})
}

// endUnused ends the streams that are of no use any more, as no lease needs them, or they lead
// elsewhere. It returns them.
func (k *streams) endUnused(now time.Time) []*stream {
	return k.endThose(now, func(on *stream) bool { return k.senders == 0 || on.to != k.to })
}

// endThose ends the streams that carry nothing and are of no use, and returns them.
func (k *streams) endThose(now time.Time, ofNoUse func(*stream) bool) (ended []*stream) {
	for _, on := range k.open {
		if on.state == idle && ofNoUse(on) {
			ended = append(ended, on)
		}
	}
	for _, on := range ended {
		k.leave(on, now)
	}
	return ended
}

// leave ends a stream.
func (k *streams) leave(on *stream, now time.Time) {
	if on.state != over {
		on.state = over
		k.open = slices.DeleteFunc(k.open, func(other *stream) bool { return other == on })
		k.ended = append(k.ended, on)
		k.opened(on, now)
	}
}
