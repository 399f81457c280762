package etcd

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A Request reads a range, or is a transaction, which may write, too.
type Request struct {
	key  string // of the range, empty for a transaction
	opts []clientv3.OpOption

	ticket.Txn      // if there is no key
	newest          // of a look that is shared
	meets      bool // it may go with others that meet
	compares   bool // it has a range only to be linearizable
	known      []ticket.Known

	own bool // it is sent in the goroutine of its sender, and not apart
}

// Range reads a range.
func Range(key string, opts ...clientv3.OpOption) Request { return Request{key: key, opts: opts} }

// Ranges reads ranges at one revision, and compares: whether what is compared holds or not, all of
// them are read. At least one range is what makes a transaction that writes nothing linearizable.
func Ranges(compares []*pb.Compare, ranges ...*pb.RequestOp) Request {
	r := Request{Txn: ticket.Txn{If: compares, Then: ranges}}
	if len(compares) > 0 {
		r.Else = ranges
	}
	return r
}

// puts reports whether r may put a key.
func (r Request) puts() bool {
	return slices.ContainsFunc(r.Then, func(op *pb.RequestOp) bool {
		return op.GetRequestPut() != nil
	})
}

// A Reading is the answer to a Request.
type Reading struct {
	Header *pb.ResponseHeader
	Epoch  *Epoch // in which the Request was sent
	Holds  bool   // what the Request compares
	Ranges []*pb.RangeResponse
	empty  bool      // the branch that etcd took has no operations
	wrote  bool      // it has changed a key, and so has a revision of its own
	sent   time.Time // when the Request was sent
	copies bool      // it may have been sent more than once
}

// A callContext is the context of one write. It notices when clientv3 repeats the
// request by itself: after an answer of DeadlineExceeded or Canceled the client
// asks whether the context has ended, and if not sends the request again. Nothing
// else in clientv3 or gRPC asks this very context; gRPC asks its own child of it. A user's
// interceptor that asks makes a request look repeated: that costs a new
// lease, and lets Unlock return ErrUnconfirmed where a key was deleted just before.
type callContext struct {
	context.Context
	asked atomic.Bool
}

// Err implements [context.Context].
func (c *callContext) Err() error {
	err := c.Context.Err()
	if err == nil {
		c.asked.Store(true)
	}
	return err
}

// Deadline implements [context.Context]. It tells gRPC of none: etcd would have to read it, and to
// start and stop two timers, for each request. Once the context ends gRPC ends the request in etcd.
// (TestEtcdLearnsThatARequestHasEndedAndOfNoDeadline.)
func (*callContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// An Outcome is what has become of one attempt at a transaction that writes.
type Outcome struct {
	Epoch  *Epoch        // in which it was first sent
	Sent   time.Time     // when the request was sent that was answered
	Prompt bool          // the answer came before the attempt would have been repeated
	Answer ticket.Answer // as a ticket judges it
	Err    error
}

// Unsent is the Outcome of a transaction that was not sent, because of an error.
func Unsent(at *Epoch, err error) Outcome {
	return Outcome{Epoch: at, Answer: ticket.Answer{Outcome: ticket.NotApplied}, Err: err}
}

// Unanswered is the Outcome of a transaction that was sent, while nothing else is known of it.
func Unanswered(at *Epoch) Outcome {
	return Outcome{Epoch: at, Answer: ticket.Answer{Outcome: ticket.Unknown}, Err: attempt.ErrNoAnswer}
}
