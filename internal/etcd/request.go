package etcd

import (
	"context"
	"slices"
	"sync"
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

	ticket.Txn // if there is no key

	own bool // it is sent in the goroutine of its sender, and not apart
}

// Range reads a range.
func Range(key string, opts ...clientv3.OpOption) Request { return Request{key: key, opts: opts} }

// Ranges reads ranges at one revision, and compares: whether what is compared holds or not, all of
// them are read. At least one range is what makes a transaction that writes nothing linearizable.
func Ranges(compares []clientv3.Cmp, ranges ...clientv3.Op) Request {
	r := Request{Txn: ticket.Txn{If: compares, Then: ranges}}
	if len(compares) > 0 {
		r.Else = ranges
	}
	return r
}

// puts reports whether r may put a key.
func (r Request) puts() bool { return slices.ContainsFunc(r.Then, clientv3.Op.IsPut) }

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

// Err is as in context.Context.
func (c *callContext) Err() error {
	err := c.Context.Err()
	if err == nil {
		c.asked.Store(true)
	}
	return err
}

// copies are the copies of a transaction of which only one can succeed. Where one finds that
// another may have been carried out, it waits for the answers to the others for a while, and what
// has succeeded is the answer to all.
//
// (Do not take the first answer. With a dead endpoint two copies go out at once, and half of the
// releases would not know that they have succeeded. TestTheCopiesOfAReleaseAreHeardOut.)
type copies struct {
	send func(ctx context.Context, again bool) (Reading, error)

	mu        sync.Mutex
	under     int           // copies that are not answered
	waiting   chan struct{} // closed once they are, or one has succeeded; nil if none waits
	succeeded bool
	answer    Reading // to the copy that has
}

// ask sends a copy, as an attempt calls it.
func (c *copies) ask(ctx context.Context, again bool) (Reading, error) {
	c.mu.Lock()
	c.under++
	c.mu.Unlock()
	read, err := c.send(ctx, again)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && read.Holds {
		c.succeeded, c.answer = true, read
	}
	c.under--
	if c.waiting != nil && (c.under == 0 || c.succeeded) {
		close(c.waiting)
		c.waiting = nil
	}
	if err == nil && c.under > 0 && !c.succeeded {
		c.awaitOthers(ctx)
	}
	if err == nil && c.succeeded {
		return c.answer, nil
	}
	return read, err
}

// awaitOthers waits for the answers to the other copies for a while. It gives mu up meanwhile.
func (c *copies) awaitOthers(ctx context.Context) {
	if c.waiting == nil {
		c.waiting = make(chan struct{})
	}
	others := c.waiting
	c.mu.Unlock()
	defer c.mu.Lock()
	late := time.NewTimer(attempt.ReadTimeout)
	defer late.Stop()
	select {
	case <-others:
	case <-late.C:
	case <-ctx.Done():
	}
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

// Unanswered is the Outcome of a transaction of which nothing is known but that it was sent.
func Unanswered(at *Epoch) Outcome {
	return Outcome{Epoch: at, Answer: ticket.Answer{Outcome: ticket.Unknown}, Err: attempt.ErrNoAnswer}
}
