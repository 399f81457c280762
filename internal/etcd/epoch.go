package etcd

import (
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// An Epoch is a part of etcd's history, as a Session has seen it: one cluster whose
// revision does not go back.
//
// etcd's revisions grow, and what was committed stays. The library builds on that: create revisions
// tell holds apart, and newer events bring a view of a line up to date. Neither is true any more
// when etcd is restored from a snapshot or wiped, or when the client is moved to another cluster.
// clientv3 hides the reconnect.
//
// Invariant: nothing that was learned in one epoch counts in another. An answer belongs to
// the epoch in which its request was sent, and a place from an earlier epoch is read before
// anything is concluded from it. (Do not compare revisions of two epochs: after
// a restore the same number is another write. TestNoTwoHoldAfterEtcdWasSetBack.)
type Epoch struct {
	*era
	revision atomic.Int64  // the highest one known to the Session
	term     atomic.Uint64 // of Raft, the newest one known
}

// An era is an epoch as all Sessions of a client have seen it.
type era struct {
	Began   int64     // the revision of the answer that began it, 0 for the first one
	Noticed time.Time // when that answer came, zero for the first one

	cluster atomic.Uint64 // 0 until a header has it
	reached atomic.Int64  // the highest revision known to any of the Sessions
}

// A history is what the Sessions of a client have seen of etcd's history. A Session that begins
// later begins with that: it knows of a set-back as the earlier ones do, and so does a process that
// makes a Session for each call.
type history struct{ present atomic.Pointer[era] }

// histories are those of all clients that have a Session.
var histories attempt.Shared[history]

// historyOf returns the history of a client.
func historyOf(client *clientv3.Client) *history {
	return attempt.SharedBy(&histories, client, func() *history {
		h := &history{}
		h.present.Store(&era{})
		return h
	})
}

// epoch returns an Epoch of a Session in the present era.
func (h *history) epoch() *Epoch {
	e := &Epoch{era: h.present.Load()}
	e.revision.Store(e.reached.Load())
	return e
}

// begin ends an era with an answer from another one, unless another answer has ended it.
func (h *history) begin(ended *era, answer *pb.ResponseHeader) {
	next := &era{Began: answer.GetRevision(), Noticed: time.Now()}
	next.cluster.Store(answer.GetClusterId())
	next.reached.Store(next.Began)
	h.present.CompareAndSwap(ended, next)
}

// Cluster is the id of the epoch's cluster, 0 until an answer has told it.
func (e *Epoch) Cluster() uint64 { return e.cluster.Load() }

// Revision is the highest revision known.
func (e *Epoch) Revision() int64 { return e.revision.Load() }

// reach notes that etcd has reached a revision.
func (e *Epoch) reach(revision int64) {
	raise(&e.revision, revision)
	raise(&e.reached, revision)
}

// isOf reports whether a cluster is e's. The first one seen becomes e's.
func (e *Epoch) isOf(cluster uint64) bool {
	return cluster == 0 || e.cluster.CompareAndSwap(0, cluster) || e.cluster.Load() == cluster
}

// isElsewhere reports whether a header is from another cluster than e's, as far as both are known.
func (e *Epoch) isElsewhere(h *pb.ResponseHeader) bool {
	cluster, known := h.GetClusterId(), e.cluster.Load()
	return cluster != 0 && known != 0 && cluster != known
}

// A sending is the sending of a request, and what was known then.
type sending struct {
	at       time.Time
	epoch    *Epoch
	revision int64
	term     uint64
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
