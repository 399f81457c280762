// Package sent tells tests what clientv3 sends for a request.
package sent

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A catcher is a connection that keeps a request and sends none.
type catcher struct {
	pb.KVClient
	txn *pb.TxnRequest
	get *pb.RangeRequest
}

func (c *catcher) Range(
	_ context.Context, in *pb.RangeRequest, _ ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	c.get = in
	return &pb.RangeResponse{}, nil
}

func (c *catcher) Txn(
	_ context.Context, in *pb.TxnRequest, _ ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	c.txn = in
	return &pb.TxnResponse{}, nil
}

// Txn is a transaction as it is sent.
func Txn(ifs []clientv3.Cmp, then, otherwise []clientv3.Op) *pb.TxnRequest {
	c := new(catcher)
	kv := clientv3.NewKVFromKVClient(c, nil)
	txn := kv.Txn(context.Background()).If(ifs...).Then(then...).Else(otherwise...)
	if _, err := txn.Commit(); err != nil {
		panic(err)
	}
	return c.txn
}

// Range is a read as it is sent.
func Range(key string, opts ...clientv3.OpOption) *pb.RangeRequest {
	c := new(catcher)
	kv := clientv3.NewKVFromKVClient(c, nil)
	if _, err := kv.Get(context.Background(), key, opts...); err != nil {
		panic(err)
	}
	return c.get
}
