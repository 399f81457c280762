package etcd

import (
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

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
