package etcdlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
)

// etcd's revisions grow, and what was committed stays. Everything here builds on that:
// create revisions tell holds apart, and newer events bring a view of a line up to date.
// Neither is true any more when etcd is restored from a snapshot or wiped, or when the client
// is moved to another cluster. clientv3 hides the reconnect.

// errSetBack says that etcd was set back since something was learned from it.
var errSetBack = errors.New("etcd was set back: restored, wiped, or another cluster")

// An epoch is a part of etcd's history, as a Session has seen it: one cluster whose
// revision does not go back.
//
// Invariant: nothing that was learned in one epoch counts in another. An answer belongs to
// the epoch in which its request was sent, and a place from an earlier epoch is read before
// anything is concluded from it. (Do not compare revisions of two epochs: after
// a restore the same number is another write. TestNoTwoHoldAfterEtcdWasSetBack.)
type epoch struct {
	cluster  atomic.Uint64 // 0 until a header has it
	revision atomic.Int64  // the highest one known
	term     atomic.Uint64 // of Raft, the newest one known
}

// A header is what etcd says about itself in each answer.
type header interface {
	GetClusterId() uint64
	GetRevision() int64
	GetRaftTerm() uint64
}

// A sending is the sending of a request, and what was known then.
type sending struct {
	at       time.Time
	epoch    *epoch
	revision int64
	term     uint64
}

func (s *Session) sending() sending {
	e := s.epoch.Load()
	return sending{time.Now(), e, e.revision.Load(), e.term.Load()}
}

// heard judges the header of an answer to a request that was sent in the epoch sent, when the
// revision sentAt was known (0 if the answer may have an older one). An answer from
// another cluster, or from before sentAt, begins a new epoch.
func (s *Session) heard(h header, sent *epoch, sentAt int64) {
	cluster, revision := h.GetClusterId(), h.GetRevision()
	switch {
	case s.epoch.Load() != sent: // it says nothing about the present one
	case !sent.isOf(cluster) || revision < sentAt:
		s.above().setBack(h, sent)
	default:
		raise(&sent.revision, revision)
		raise(&sent.term, h.GetRaftTerm())
	}
}

// heardNow judges the header of a linearizable answer. Its term was the newest when its request was
// sent: a higher known term was from a candidate that was not elected, or from before a restore.
func (s *Session) heardNow(h header, sent sending) {
	s.heard(h, sent.epoch, sent.revision)
	if term := h.GetRaftTerm(); term < sent.term {
		sent.epoch.term.CompareAndSwap(sent.term, term)
	}
	s.above().proved(sent, h.GetRaftTerm())
}

// txn is one transaction. It is linearizable because it writes or has a range in each branch.
func (s *Session) txn(
	ctx context.Context, ifs []clientv3.Cmp, then, otherwise []clientv3.Op,
) (*clientv3.TxnResponse, error) {
	sent := s.sending()
	resp, err := s.client.Txn(ctx).If(ifs...).Then(then...).Else(otherwise...).Commit()
	if err == nil {
		s.heardNow(resp.Header, sent)
	}
	return resp, err
}

// get is one linearizable read.
func (s *Session) get(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	sent := s.sending()
	resp, err := s.client.Get(ctx, key, opts...)
	if err == nil {
		s.heardNow(resp.Header, sent)
	}
	return resp, err
}

// read calls get until it is answered, etcd refuses, or ctx ends. After any other
// error it asks failed whether to go on.
func read[R any](ctx context.Context, s *Session, get func(context.Context) (R, error), failed func(error) error) (R, error) {
	return readBy(ctx, s, attempt.Backoff{}, get, failed)
}

// readBy is read, with attempts as retry says.
func readBy[R any](
	ctx context.Context, s *Session, retry attempt.Backoff,
	get func(context.Context) (R, error), failed func(error) error,
) (R, error) {
	for {
		resp, _, err := attempt.Do(ctx, s.calls, &retry, attempt.ReadTimeout, get)
		switch {
		case err == nil:
			return resp, nil
		case ctx.Err() != nil:
			return resp, context.Cause(ctx)
		case attempt.Refused(err):
			return resp, err
		case s.clientClosed():
			return resp, errClientClosed
		}
		if err := failed(err); err != nil {
			return resp, err
		}
		retry.Double() // another member may know more
		if err := retry.Wait(ctx, s.calls); err != nil {
			return resp, err
		}
	}
}

// elsewhere reports whether the header of a watch's answer is from another cluster than the
// present epoch's. It does not begin a new epoch: after the client was moved, an open stream still
// leads to the old cluster. A later read shows which of the two counts, and the
// next watch is on another stream.
func (s *Session) elsewhere(h header) bool {
	cluster, present := h.GetClusterId(), s.epoch.Load().cluster.Load()
	if cluster == 0 || present == 0 || cluster == present {
		return false
	}
	s.stream.moved()
	return true
}

// isOf reports whether a cluster is e's. The first one seen becomes e's.
func (e *epoch) isOf(cluster uint64) bool {
	return cluster == 0 || e.cluster.CompareAndSwap(0, cluster) || e.cluster.Load() == cluster
}

// A number is one of atomic's that can be raised.
type number[T int64 | uint64] interface {
	Load() T
	CompareAndSwap(old, new T) bool
}

// raise makes n at least v.
func raise[T int64 | uint64](n number[T], v T) {
	for known := n.Load(); v > known; known = n.Load() {
		if n.CompareAndSwap(known, v) {
			return
		}
	}
}
