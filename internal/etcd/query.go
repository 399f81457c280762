package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Query is a read: of one range, or of several in one transaction.
type Query struct {
	key  string
	opts []clientv3.OpOption

	compares []clientv3.Cmp
	ranges   []clientv3.Op
}

// Range reads a range.
func Range(key string, opts ...clientv3.OpOption) Query { return Query{key: key, opts: opts} }

// Ranges reads ranges at one revision, and compares: whether what is compared holds or not, all of
// them are read. At least one range is what makes a transaction that writes nothing linearizable.
func Ranges(compares []clientv3.Cmp, ranges ...clientv3.Op) Query {
	return Query{compares: compares, ranges: ranges}
}

// A Reading is the answer to a Query.
type Reading struct {
	Header *pb.ResponseHeader
	Epoch  *Epoch // in which the Query was sent
	Holds  bool   // what the Query compares
	Ranges []*pb.RangeResponse
}

// send sends q once.
func (q *Query) send(ctx context.Context, kv clientv3.KV) (Reading, error) {
	if q.ranges == nil {
		resp, err := kv.Get(ctx, q.key, q.opts...)
		all := (*pb.RangeResponse)(resp)
		return Reading{Header: all.GetHeader(), Ranges: []*pb.RangeResponse{all}}, err
	}
	txn := kv.Txn(ctx).If(q.compares...).Then(q.ranges...)
	if len(q.compares) > 0 {
		txn = txn.Else(q.ranges...)
	}
	resp, err := txn.Commit()
	if err != nil {
		return Reading{}, err
	}
	return Reading{Header: resp.Header, Holds: resp.Succeeded, Ranges: rangesOf(resp)}, nil
}

// rangesOf returns what the ranges of a transaction have read, with the ranges of one nested in it.
func rangesOf(resp *clientv3.TxnResponse) (read []*pb.RangeResponse) {
	return appendRanges(nil, resp.Responses)
}

func appendRanges(read []*pb.RangeResponse, answers []*pb.ResponseOp) []*pb.RangeResponse {
	for _, r := range answers {
		if r.GetResponseRange() != nil {
			read = append(read, r.GetResponseRange())
		}
		read = appendRanges(read, r.GetResponseTxn().GetResponses())
	}
	return read
}
