package etcd

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

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
	Epoch  *Epoch // in which it was first sent
	Prompt bool   // the answer came before the attempt would have been repeated
	Err    error

	resp     *clientv3.TxnResponse
	repeated bool // it may have been sent more than once
}

// Answer is o in the form that a ticket judges.
func (o *Outcome) Answer() ticket.Answer {
	a := ticket.Answer{Copies: o.repeated}
	switch {
	case o.Err == nil:
		a.Succeeded, a.Empty = o.resp.Succeeded, len(o.resp.Responses) == 0
		a.Read, a.Revision = rangesOf(o.resp), o.resp.Header.GetRevision()
	case attempt.NotApplied(o.Err):
		a.Outcome = ticket.NotApplied
	default:
		a.Outcome = ticket.Unknown
	}
	return a
}
