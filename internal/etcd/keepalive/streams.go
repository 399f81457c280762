package keepalive

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// streams are the streams of one lease. At rest there is one, the current one. While renewals have
// no answer there are more, one for each.
//
// Invariant: at most one renewal is under way on a stream, so that the next message on it is the
// answer to that one. etcd answers in the order of the requests. A renewal that is given up
// takes its stream with it, so that a late answer is never taken for the answer to a later
// renewal. That would extend the trust although etcd has counted from an earlier time
// (TestNoAnswerIsTakenForThatToALaterRenewal).
//
// Invariant: the second renewal on a stream is sent only once it is proven that etcd itself reads
// the stream. etcd's grpc-proxy answers each request on a stream too, but with the result of its
// own next answered renewal, which it may have sent earlier. Its first one on a stream is sent for
// the first request. (Do not keep a stream that is not proven. TestBehindAProxyNoStreamIsKept.)
type streams struct {
	current *stream // proven, etcd has answered on it, and it has not ended; nil if there is none
	proxied bool    // a stream was found not to lead to etcd itself
}

// A stream carries renewals.
type stream struct {
	// Set once, before anything is sent.
	begun time.Time // when the first renewal was sent, for which it was opened
	where any
	ctx   context.Context
	end   context.CancelFunc
	rpc   rpc

	// Guarded by Sender.mu.
	busy    bool          // a renewal is under way
	answers chan<- answer // for that renewal
	proven  bool          // etcd itself reads it
	proof   *time.Timer   // ends the stream if it is not proven in time
}

// An answer is etcd's answer, or why there will be none.
type answer struct {
	resp *pb.LeaseKeepAliveResponse
	err  error
}

// take returns the stream for a renewal, and whether it is open: the current one, if it is free
// and leads where the client's requests go.
func (k *streams) take(r Renewal) (on *stream, open bool) {
	if c := k.current; c != nil && !c.busy && !r.Anew && c.where == r.Where {
		c.busy = true
		return c, true
	}
	return &stream{begun: r.Sent, where: r.Where, busy: true}, false
}

// answered notes that something came on a stream: an answer, or its end. It reports whether a
// renewal waits for it.
func (k *streams) answered(on *stream, alive bool) (awaited bool) {
	awaited, on.busy = on.busy, false
	if alive {
		k.settle(on)
	} else if k.current == on {
		k.current = nil
	}
	return awaited
}

// proved notes whether etcd itself reads a stream.
func (k *streams) proved(on *stream, etcd bool) {
	on.proven = etcd
	k.proxied = k.proxied || !etcd
	k.settle(on)
}

// settle ends the stream that is no longer needed, after an answer on one.
//
// The newest becomes the current one. If several were opened at once, that is the first to be
// proven. Any other is needed only for the renewal that is under way on it: its answer counts
// too, and leaves no doubt whether etcd may still carry it out.
func (k *streams) settle(on *stream) {
	c := k.current
	switch {
	case on.busy, c == on:
	case !on.proven && !k.proxied: // it may be soon
	case on.proven && (c == nil || on.begun.After(c.begun)):
		k.current = on
		if c != nil && !c.busy {
			c.end()
		}
	default:
		on.end()
	}
}
