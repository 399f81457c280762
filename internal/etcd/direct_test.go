package etcd

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/sent"
)

// nowhere is a client of clientv3 without a connection, whose requests have at most a number of
// bytes, if that is not 0.
func nowhere(t *testing.T, most int) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"127.0.0.1:1"}, MaxCallSendMsgSize: most,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Transactions are sent past the KV of a client only if clientv3 has made it for this very client,
// and then with the options that it would add.
func TestOnlyTheClientsOwnKVIsPassedBy(t *testing.T) {
	client, other := nowhere(t, 5<<20), nowhere(t, 0)
	own := client.KV
	d := directOf(client)
	require.Equal(t, own, d.kv)
	require.Equal(t, clientv3.RetryKVClient(client), d.by)
	require.Contains(t, d.opts, grpc.CallOption(grpc.MaxCallSendMsgSize(5<<20)))
	var by options
	_, err := clientv3.NewKVFromKVClient(&by, client).Txn(t.Context()).Commit()
	require.NoError(t, err)
	require.Equal(t, by.of, d.opts)

	for name, kv := range map[string]clientv3.KV{
		"in a namespace":       namespace.NewKV(own, "tenant/"),
		"wrapped":              struct{ clientv3.KV }{own},
		"of another client":    other.KV,
		"of another KVClient":  clientv3.NewKVFromKVClient(&by, client),
		"with no call options": clientv3.NewKVFromKVClient(clientv3.RetryKVClient(client), nil),
		"none":                 nil,
	} {
		client.KV = kv
		require.Nil(t, directOf(client).kv, name)
	}
	client.KV = clientv3.NewKV(client)
	require.NotNil(t, directOf(client).kv, "made anew")
}

// What a KV gets that is put over the client's at any time is what is sent otherwise.
func TestAKVOfTheUserGetsTheSameTransactions(t *testing.T) {
	key, end := []byte("k"), []byte("l")
	ranges := []*pb.RangeRequest{
		{Key: key},
		{Key: key, RangeEnd: end, Limit: 3, CountOnly: true},
		{Key: key, RangeEnd: end, Revision: 4, Serializable: true, KeysOnly: true},
		{Key: key, MinModRevision: 5, MinCreateRevision: 6, MaxCreateRevision: 7},
		{Key: key, SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_CREATE},
		{Key: key, SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE},
	}
	is := &pb.TxnRequest{
		Compare: []*pb.Compare{
			{Target: pb.Compare_CREATE, Key: key, RangeEnd: end,
				TargetUnion: &pb.Compare_CreateRevision{CreateRevision: 1}},
			{Target: pb.Compare_MOD, Key: key, Result: pb.Compare_LESS,
				TargetUnion: &pb.Compare_ModRevision{ModRevision: 2}},
			{Target: pb.Compare_LEASE, Key: key, Result: pb.Compare_NOT_EQUAL,
				TargetUnion: &pb.Compare_Lease{Lease: 3}},
			{Target: pb.Compare_VALUE, Key: key, Result: pb.Compare_GREATER,
				TargetUnion: &pb.Compare_Value{Value: []byte("v")}},
		},
	}
	for _, put := range []*pb.PutRequest{
		{Key: key, Value: []byte("v"), Lease: 8}, {Key: key, Value: []byte("w"), IgnoreLease: true},
	} {
		is.Success = append(is.Success,
			&pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
	}
	is.Success = append(is.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: key}}})
	for _, r := range ranges {
		is.Failure = append(is.Failure,
			&pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}})
	}
	all := &pb.TxnRequest{Compare: is.Compare, Success: append(is.Success, &pb.RequestOp{
		Request: &pb.RequestOp_RequestTxn{RequestTxn: is}}), Failure: is.Failure}

	c, _ := conn(t, fake.NewServer().Client("a"))
	users := &users{}
	c.client.KV = users
	_, err := c.commit(t.Context(), all)
	require.NoError(t, err)
	require.Equal(t, all.String(), sent.Txn(users.ifs, users.then, users.otherwise).String())
}

// A users is a KV that notes what it gets.
type users struct {
	clientv3.KV
	ifs             []clientv3.Cmp
	then, otherwise []clientv3.Op
}

func (u *users) Txn(context.Context) clientv3.Txn        { return u }
func (u *users) If(ifs ...clientv3.Cmp) clientv3.Txn     { u.ifs = ifs; return u }
func (u *users) Then(then ...clientv3.Op) clientv3.Txn   { u.then = then; return u }
func (u *users) Else(others ...clientv3.Op) clientv3.Txn { u.otherwise = others; return u }
func (u *users) Commit() (*clientv3.TxnResponse, error)  { return &clientv3.TxnResponse{}, nil }
