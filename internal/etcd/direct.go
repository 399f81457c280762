package etcd

import (
	"context"
	"reflect"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A direct sends transactions as clientv3's own KV does, without what that makes of them before: by
// the same generated client, so with the client's connection, credentials, interceptors and
// retries, and with the same options.
type direct struct {
	kv   clientv3.KV // in whose place it sends; nil if it cannot
	by   pb.KVClient
	opts []grpc.CallOption
}

// An inMemory is the KV of an etcd in memory, which says where its transactions go. Its method has
// a name that the KV of a user has not by chance.
type inMemory interface{ EtcdlockKVClient() pb.KVClient }

// directOf returns the direct of a client. It sends nothing for a client whose KV somebody has
// replaced or wrapped, as namespace.NewKV does.
func directOf(client *clientv3.Client) direct {
	if m, ok := client.KV.(inMemory); ok {
		return direct{kv: client.KV, by: m.EtcdlockKVClient()}
	}
	if !alike(reflect.ValueOf(client.KV), reflect.ValueOf(clientv3.NewKV(client))) {
		return direct{}
	}
	var o options
	_, _ = clientv3.NewKVFromKVClient(&o, client).Do(client.Ctx(), clientv3.OpTxn(nil, nil, nil))
	return direct{client.KV, clientv3.RetryKVClient(client), o.of}
}

// alike reports whether two values of etcd's packages are the same, or made of the same things.
func alike(a, b reflect.Value) bool {
	if !a.IsValid() || !b.IsValid() || a.Type() != b.Type() {
		return false
	}
	switch a.Kind() {
	case reflect.Interface:
		return alike(a.Elem(), b.Elem())
	case reflect.Slice:
		return a.Pointer() == b.Pointer() && a.Len() == b.Len()
	case reflect.Pointer:
		return a.Pointer() == b.Pointer() ||
			strings.HasPrefix(a.Type().Elem().PkgPath(), "go.etcd.io/") && alike(a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			if !alike(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return false
}

// options are those with which clientv3 sends the transactions of a client.
type options struct {
	pb.KVClient
	of []grpc.CallOption
}

func (o *options) Txn(
	_ context.Context, _ *pb.TxnRequest, opts ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	o.of = opts
	return &pb.TxnResponse{}, nil
}

// CommitBy sends a transaction once by a KV.
func CommitBy(ctx context.Context, kv clientv3.KV, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	txn := kv.Txn(ctx).If(cmpsOf(t.Compare)...)
	resp, err := txn.Then(opsOf(t.Success)...).Else(opsOf(t.Failure)...).Commit()
	return (*pb.TxnResponse)(resp), err
}

// cmpsOf are comparisons as clientv3 has them.
func cmpsOf(all []*pb.Compare) []clientv3.Cmp {
	ifs := make([]clientv3.Cmp, len(all))
	for i, is := range all {
		ifs[i] = cmpOf(is)
	}
	return ifs
}

// cmpOf is a comparison as clientv3 has it.
func cmpOf(is *pb.Compare) clientv3.Cmp {
	key, result := string(is.Key), [...]string{
		pb.Compare_EQUAL: "=", pb.Compare_GREATER: ">", pb.Compare_LESS: "<",
		pb.Compare_NOT_EQUAL: "!=",
	}[is.Result]
	var cmp clientv3.Cmp
	switch is.Target {
	case pb.Compare_CREATE:
		cmp = clientv3.Compare(clientv3.CreateRevision(key), result, is.GetCreateRevision())
	case pb.Compare_MOD:
		cmp = clientv3.Compare(clientv3.ModRevision(key), result, is.GetModRevision())
	case pb.Compare_LEASE:
		cmp = clientv3.Compare(clientv3.LeaseValue(key), result, is.GetLease())
	case pb.Compare_VALUE:
		cmp = clientv3.Compare(clientv3.Value(key), result, string(is.GetValue()))
	}
	if len(is.RangeEnd) > 0 {
		return cmp.WithRange(string(is.RangeEnd))
	}
	return cmp
}

// opsOf are operations as clientv3 has them.
func opsOf(all []*pb.RequestOp) []clientv3.Op {
	ops := make([]clientv3.Op, len(all))
	for i, op := range all {
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			ops[i] = rangeOf(r.RequestRange)
		case *pb.RequestOp_RequestPut:
			var opts []clientv3.OpOption
			if r.RequestPut.IgnoreLease {
				opts = append(opts, clientv3.WithIgnoreLease())
			}
			lease := clientv3.WithLease(clientv3.LeaseID(r.RequestPut.Lease))
			put := r.RequestPut
			ops[i] = clientv3.OpPut(string(put.Key), string(put.Value), append(opts, lease)...)
		case *pb.RequestOp_RequestDeleteRange:
			ops[i] = clientv3.OpDelete(string(r.RequestDeleteRange.Key))
		case *pb.RequestOp_RequestTxn:
			t := r.RequestTxn
			ops[i] = clientv3.OpTxn(cmpsOf(t.Compare), opsOf(t.Success), opsOf(t.Failure))
		}
	}
	return ops
}

// rangeOf is a range as clientv3 has it.
func rangeOf(r *pb.RangeRequest) clientv3.Op {
	opts := []clientv3.OpOption{
		clientv3.WithLimit(r.Limit), clientv3.WithRev(r.Revision),
		clientv3.WithMinCreateRev(r.MinCreateRevision),
		clientv3.WithMaxCreateRev(r.MaxCreateRevision),
		clientv3.WithMinModRev(r.MinModRevision), clientv3.WithMaxModRev(r.MaxModRevision),
	}
	if len(r.RangeEnd) > 0 {
		opts = append(opts, clientv3.WithRange(string(r.RangeEnd)))
	}
	if r.SortOrder != pb.RangeRequest_NONE {
		opts = append(opts,
			clientv3.WithSort(clientv3.SortTarget(r.SortTarget), clientv3.SortOrder(r.SortOrder)))
	}
	if r.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	if r.CountOnly {
		opts = append(opts, clientv3.WithCountOnly())
	}
	if r.Serializable {
		opts = append(opts, clientv3.WithSerializable())
	}
	return clientv3.OpGet(string(r.Key), opts...)
}
