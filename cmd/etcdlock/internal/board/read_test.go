package board

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A heap is an etcd with keys in order, and values of some lengths.
type heap struct {
	clientv3.KV
	lengths  []int
	requests int
	most     int // bytes that it has put together for an answer at most
}

// value is what values begin with.
var value = make([]byte, 2*MostBytes)

func (h *heap) Get(
	_ context.Context, from string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(from, opts...)
	h.requests++
	resp, bytes := &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: 9}}, 0
	for i, length := range h.lengths {
		e := &mvccpb.KeyValue{Key: fmt.Appendf(nil, "n/%06d", i)}
		if string(e.Key) < from {
			continue
		}
		if resp.More = len(resp.Kvs) == int(op.Limit()); resp.More {
			break
		}
		if !op.IsKeysOnly() {
			e.Value = value[:length]
		}
		bytes += len(e.Key) + len(e.Value)
		resp.Kvs = append(resp.Kvs, e)
	}
	h.most = max(h.most, bytes)
	if bytes > MostBytes {
		return nil, status.Error(codes.ResourceExhausted, "grpc: received message larger than max")
	}
	return resp, nil
}

// All keys are read, whatever their values are, in few requests where these are as the package
// writes them. No request has etcd put together much more than the client takes, but for those
// whose keys are longer than the ones before: the first one, and one after short keys.
func TestAPageIsAsLongAsItsValuesLet(t *testing.T) {
	const ours, long, megabyte = 250, 3000, 1 << 20
	lengths := func(n, length int) []int { return slices.Repeat([]int{length}, n) }
	for _, row := range []struct {
		name           string
		lengths        []int
		requests, most int
	}{
		{"none", nil, 1, 0},
		{"a line of ours", lengths(64, ours), 1, megabyte},
		{"many of ours", lengths(10_000, ours), 11, megabyte},
		{"long ones", lengths(10_000, long), 22, 2 * megabyte},
		{"as long as etcd takes", lengths(500, 1_400_000), 510, firstPage * 1_500_000},
		{"longer than the client takes", lengths(20, MostBytes+1), 43, firstPage * (MostBytes + 100)},
		{"between ours", slices.Concat(lengths(500, ours), lengths(20, 1_400_000), lengths(9000, ours)),
			50, growth * firstPage * 1_500_000},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := &heap{lengths: row.lengths}
			read, err := ReadKeys(t.Context(), h, "n/", Page)
			require.NoError(t, err)
			require.Len(t, read.Keys, len(row.lengths))
			for i, e := range read.Keys {
				require.Equal(t, fmt.Sprintf("n/%06d", i), string(e.Key))
				if row.lengths[i] > long {
					require.Empty(t, e.Value, "it is too long to be parsed")
				} else {
					require.Len(t, e.Value, row.lengths[i])
				}
			}
			t.Logf("%d requests, at most %d bytes", h.requests, h.most)
			require.LessOrEqual(t, h.requests, row.requests)
			require.LessOrEqual(t, h.most, row.most)
		})
	}
}

// The line of a lock is read as other keys are, and not at all if it is too long to tell.
func TestALineOfLongValuesIsReadInPages(t *testing.T) {
	for n, most := range map[int]int{100: 110, Page: Page + 10, Page + 1: Page + 10} {
		h := &heap{lengths: slices.Repeat([]int{1_400_000}, n)}
		began, err := BeganAtOnce(t.Context(), h, "n", "n/000000", 9)
		require.NoError(t, err)
		require.False(t, began, "no key is a contender's")
		require.LessOrEqual(t, h.requests, most)
		require.LessOrEqual(t, h.most, firstPage*1_500_000)
	}
}
