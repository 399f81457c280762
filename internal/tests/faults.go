package tests

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// FromNth makes an effect for the nth and all later calls of a method.
func FromNth(n int, method string, effect fake.Effect) func(fake.Call) fake.Effect {
	return func(c fake.Call) fake.Effect {
		if c.Method == method && c.N >= n {
			return effect
		}
		return fake.Effect{}
	}
}

// OnlyNth makes an effect for the nth call of a method alone.
func OnlyNth(n int, method string, effect fake.Effect) func(fake.Call) fake.Effect {
	return func(c fake.Call) fake.Effect {
		if c.Method == method && c.N == n {
			return effect
		}
		return fake.Effect{}
	}
}

// OnlyNext makes an effect for the next call of a method alone.
func OnlyNext(etcd *fake.Server, method string, effect fake.Effect) func(fake.Call) fake.Effect {
	return OnlyNth(len(etcd.Calls(method))+1, method, effect)
}

// NoWatches leaves every watch without an answer, so that only audits show a loss.
func NoWatches(c fake.Call) fake.Effect { return fake.Effect{Drop: c.Method == fake.Watch} }

// PermissionDenied is etcd's refusal.
var PermissionDenied = status.Error(codes.PermissionDenied, "etcdserver: permission denied")

// A Copying KV checks the context from a transaction on, as clientv3 does before it sends a
// request again. The Session sends from several goroutines.
type Copying struct {
	clientv3.KV
	txns, From atomic.Int64
}

// Txn is as in clientv3.KV.
func (k *Copying) Txn(ctx context.Context) clientv3.Txn {
	n, from := k.txns.Add(1), k.From.Load()
	if from > 0 && n >= from {
		_ = ctx.Err()
	}
	return k.KV.Txn(ctx)
}
