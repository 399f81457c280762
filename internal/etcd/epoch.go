package etcd

import (
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
	Began int64 // the revision of the answer that began it, 0 for the first one

	cluster  atomic.Uint64 // 0 until a header has it
	revision atomic.Int64  // the highest one known
	term     atomic.Uint64 // of Raft, the newest one known
}

// Cluster is the id of the epoch's cluster, 0 until an answer has told it.
func (e *Epoch) Cluster() uint64 { return e.cluster.Load() }

// Revision is the highest revision known.
func (e *Epoch) Revision() int64 { return e.revision.Load() }

// beginAt returns the epoch that an answer begins.
func beginAt(h *pb.ResponseHeader) *Epoch {
	e := &Epoch{Began: h.GetRevision()}
	e.cluster.Store(h.GetClusterId())
	e.revision.Store(e.Began)
	return e
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

// sending is the sending of a request now, in e.
func (e *Epoch) sending() sending {
	return sending{time.Now(), e, e.revision.Load(), e.term.Load()}
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
