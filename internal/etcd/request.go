package etcd

import (
	"context"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A Request reads a range, or is a transaction, which may write, too.
type Request struct {
	key  string // of the range, empty for a transaction
	opts []clientv3.OpOption

	compares     []clientv3.Cmp
	then, orElse []clientv3.Op

	past bool // any member may answer it, also one that is behind
}

// Range reads a range.
func Range(key string, opts ...clientv3.OpOption) Request { return Request{key: key, opts: opts} }

// Ranges reads ranges at one revision, and compares: whether what is compared holds or not, all of
// them are read. At least one range is what makes a transaction that writes nothing linearizable.
func Ranges(compares []clientv3.Cmp, ranges ...clientv3.Op) Request {
	r := Request{compares: compares, then: ranges}
	if len(compares) > 0 {
		r.orElse = ranges
	}
	return r
}

// transaction carries out t.
func transaction(t ticket.Txn) Request {
	return Request{compares: t.If, then: t.Then, orElse: t.Else}
}

// A Reading is the answer to a Request.
type Reading struct {
	Header *pb.ResponseHeader
	Epoch  *Epoch // in which the Request was sent
	Holds  bool   // what the Request compares
	Ranges []*pb.RangeResponse
	empty  bool // the branch that etcd took has no operations
}

// send sends r once.
func (r *Request) send(ctx context.Context, kv clientv3.KV) (Reading, error) {
	if r.key != "" {
		resp, err := kv.Get(ctx, r.key, r.opts...)
		all := (*pb.RangeResponse)(resp)
		return Reading{Header: all.GetHeader(), Ranges: []*pb.RangeResponse{all}}, err
	}
	resp, err := kv.Txn(ctx).If(r.compares...).Then(r.then...).Else(r.orElse...).Commit()
	if err != nil {
		return Reading{}, err
	}
	return Reading{
		Header: resp.Header, Holds: resp.Succeeded, empty: len(resp.Responses) == 0,
		Ranges: appendRanges(nil, resp.Responses),
	}, nil
}

// appendRanges appends what the ranges of a transaction have read, with those of one nested in it.
func appendRanges(read []*pb.RangeResponse, answers []*pb.ResponseOp) []*pb.RangeResponse {
	for _, r := range answers {
		if r.GetResponseRange() != nil {
			read = append(read, r.GetResponseRange())
		}
		read = appendRanges(read, r.GetResponseTxn().GetResponses())
	}
	return read
}

// A callContext is the context of one write. It notices when clientv3 repeats the
// request by itself: after an answer of DeadlineExceeded or Canceled the client
// asks whether the context has ended, and if not sends the request again. Nothing
// else in clientv3 or gRPC asks this very context; gRPC asks its own child of it. A user's
// interceptor that asks makes a request look repeated: that costs a new
// lease, and lets Unlock return nil where a key was deleted just before.
type callContext struct {
	context.Context
	asked atomic.Bool
}

// Err is as in context.Context.
func (c *callContext) Err() error {
	err := c.Context.Err()
	if err == nil {
		c.asked.Store(true)
	}
	return err
}

// An Outcome is that of one attempt at a transaction that writes.
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
