package fake

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

func (s *Server) header() *pb.ResponseHeader { return s.fill(&pb.ResponseHeader{}) }

// fill completes a header.
func (s *Server) fill(h *pb.ResponseHeader) *pb.ResponseHeader {
	h.ClusterId = s.cluster
	if h.Revision == 0 {
		h.Revision = s.store.Rev()
	}
	return h
}

// txn carries out a transaction, or refuses it whole.
func (s *Server) txn(in *pb.TxnRequest) (*pb.TxnResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maxOps > 0 && Size(in) > s.maxOps {
		return nil, rpctypes.ErrGRPCTooManyOps
	}
	s.useLocked(in)
	before := s.store.Rev()
	reply, err := s.store.Txn(in)
	s.notifyLocked(before)
	if err != nil {
		return nil, err
	}
	s.fill(reply.Header)
	disown(reply)
	return reply, nil
}

// disown makes a reply share nothing with the store, since its receiver may change it.
func disown(reply *pb.TxnResponse) {
	for _, op := range reply.Responses {
		switch r := op.Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			cloneAll(r.ResponseRange.Kvs)
		case *pb.ResponseOp_ResponsePut:
			r.ResponsePut.PrevKv = clone(r.ResponsePut.PrevKv)
		case *pb.ResponseOp_ResponseDeleteRange:
			cloneAll(r.ResponseDeleteRange.PrevKvs)
		case *pb.ResponseOp_ResponseTxn:
			disown(r.ResponseTxn)
		}
	}
}

func cloneAll(kvs []*mvccpb.KeyValue) {
	for i, kv := range kvs {
		kvs[i] = clone(kv)
	}
}

func putting(in *pb.PutRequest) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestPut{RequestPut: in}},
	}}
}

func deleting(in *pb.DeleteRangeRequest) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: in}},
	}}
}

// A kv is the KV of a client.
type kv struct {
	clientv3.KV
	remote pb.KVClient
}

// EtcdlockKVClient has the library send transactions as to an etcd: without what clientv3 makes of
// them before.
func (k kv) EtcdlockKVClient() pb.KVClient { return k.remote }

type kvClient struct {
	pb.KVClient // has the methods that are not below
	*port
}

func newKVClient(p *port) *kvClient {
	k := &kvClient{port: p}
	// Before clientv3 3.7 there is none, and gRPC's own type would be needed.
	if newClient, ok := any(pb.NewKVClient).(func(grpc.ClientConnInterface) pb.KVClient); ok {
		k.KVClient = newClient(absent{})
	}
	return k
}

func (k *kvClient) Txn(
	ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	c := Call{Method: Txn}
	c.add(in.Success)
	return send(ctx, k.port, c, func() (*pb.TxnResponse, error) { return k.s.txn(in) })
}

// add adds what the Then of a transaction does, and those of the transactions nested in it.
func (c *Call) add(then []*pb.RequestOp) {
	for _, op := range then {
		if nested := op.GetRequestTxn(); nested != nil {
			c.Nested++
			c.add(nested.Success)
		}
		if put := op.GetRequestPut(); put != nil {
			c.Puts = append(c.Puts, string(put.Key))
		}
		if del := op.GetRequestDeleteRange(); del != nil {
			c.Deletes = append(c.Deletes, string(del.Key))
		}
		if get := op.GetRequestRange(); get != nil {
			c.Gets = append(c.Gets, string(get.Key))
		}
	}
}

func (k *kvClient) Range(
	ctx context.Context, in *pb.RangeRequest, _ ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	c := Call{Method: Range, Gets: []string{string(in.Key)}, Past: in.Serializable}
	return send(ctx, k.port, c, func() (*pb.RangeResponse, error) {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		reply, err := k.s.store.Now().Range(in)
		if err != nil {
			return nil, err
		}
		k.s.fill(reply.Header)
		cloneAll(reply.Kvs)
		return reply, nil
	})
}

func (k *kvClient) Put(
	ctx context.Context, in *pb.PutRequest, _ ...grpc.CallOption,
) (*pb.PutResponse, error) {
	c := Call{Method: Put, Puts: []string{string(in.Key)}}
	return send(ctx, k.port, c, func() (*pb.PutResponse, error) {
		reply, err := k.s.txn(putting(in))
		if err != nil {
			return nil, err
		}
		put := reply.Responses[0].GetResponsePut()
		put.Header = reply.Header
		return put, nil
	})
}

func (k *kvClient) DeleteRange(
	ctx context.Context, in *pb.DeleteRangeRequest, _ ...grpc.CallOption,
) (*pb.DeleteRangeResponse, error) {
	c := Call{Method: Delete, Deletes: []string{string(in.Key)}}
	return send(ctx, k.port, c, func() (*pb.DeleteRangeResponse, error) {
		reply, err := k.s.txn(deleting(in))
		if err != nil {
			return nil, err
		}
		deleted := reply.Responses[0].GetResponseDeleteRange()
		deleted.Header = reply.Header
		return deleted, nil
	})
}

func (k *kvClient) Compact(
	ctx context.Context, in *pb.CompactionRequest, _ ...grpc.CallOption,
) (*pb.CompactionResponse, error) {
	return send(ctx, k.port, Call{Method: Compact}, func() (*pb.CompactionResponse, error) {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		if err := k.s.store.Compact(in.Revision); err != nil {
			return nil, err
		}
		return &pb.CompactionResponse{Header: k.s.header()}, nil
	})
}
