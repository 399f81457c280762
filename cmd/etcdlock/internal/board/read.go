package board

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/line"
)

// Page is how many keys one request reads at most, and MostBytes how much a client for ReadKeys
// takes in one answer: several times the longest request that etcd takes by default, 1.5 MiB.
const (
	Page      = 1000
	MostBytes = 6 << 20
)

const (
	// firstPage is how many keys the first request reads: etcd puts the answer together before the
	// client can refuse it, and nothing is known of the values.
	firstPage = 64

	// pageBytes is what a later request is to bring, by what the one before has brought.
	pageBytes = MostBytes / 4

	// growth is how many times as many keys as the one before a request reads at most.
	growth = 16
)

// A Reading is all keys that begin with a prefix, as they were at one revision.
type Reading struct {
	Keys     []*mvccpb.KeyValue
	Revision int64
	Cluster  uint64
}

// ReadKeys reads all keys that begin with prefix, a page at a time: fewer keys where they are
// long. Values that are too long for a contender's are dropped. The client's MaxCallRecvMsgSize is
// MostBytes, so gRPC refuses a longer answer before it reads it.
func ReadKeys(ctx context.Context, kv clientv3.KV, prefix string, page int64) (Reading, error) {
	for {
		read, err := readAt(ctx, kv, prefix, page)
		if !errors.Is(err, rpctypes.ErrCompacted) { // if so, it was compacted meanwhile
			return read, err
		}
	}
}

func readAt(ctx context.Context, kv clientv3.KV, prefix string, page int64) (r Reading, err error) {
	from, end := bounds(prefix)
	for resp, err := range pages(ctx, kv, from, end, page, 0) {
		if err != nil {
			return Reading{}, err
		}
		if r.Revision == 0 {
			r.Revision, r.Cluster = resp.Header.Revision, resp.Header.ClusterId
		}
		r.Keys = append(r.Keys, resp.Kvs...)
	}
	return r, nil
}

// pages are the keys in a range as they were at a revision, or at that of the first answer if it is
// 0. They end with an error.
func pages(
	ctx context.Context, kv clientv3.KV, from, end string, page, revision int64,
) iter.Seq2[*clientv3.GetResponse, error] {
	return func(yield func(*clientv3.GetResponse, error) bool) {
		for limit := min(page, firstPage); ; {
			resp, bytes, err := readPage(ctx, kv, from, clientv3.WithRange(end),
				clientv3.WithLimit(limit), clientv3.WithRev(revision))
			if isTooLong(err) && limit > 1 {
				limit = max(1, limit/growth)
				continue
			}
			if isTooLong(err) {
				resp, bytes, err = readPage(ctx, kv, from, clientv3.WithRange(end), clientv3.WithLimit(1),
					clientv3.WithRev(revision), clientv3.WithKeysOnly())
				bytes += MostBytes
			}
			if !yield(resp, err) || err != nil || !resp.More || len(resp.Kvs) == 0 {
				return
			}
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
			limit = max(1, min(page, growth*limit, int64(len(resp.Kvs))*pageBytes/bytes))
			revision = cmp.Or(revision, resp.Header.Revision)
		}
	}
}

// readPage reads some keys, and returns how long they and their values are.
func readPage(
	ctx context.Context, kv clientv3.KV, from string, opts ...clientv3.OpOption,
) (resp *clientv3.GetResponse, bytes int64, err error) {
	if resp, err = kv.Get(ctx, from, opts...); err != nil {
		return nil, 0, err
	}
	for _, e := range resp.Kvs {
		bytes += int64(len(e.Key) + len(e.Value))
	}
	line.DropLong(resp.Kvs...)
	return resp, max(bytes, 1), nil
}

// isTooLong reports whether the client has refused an answer for its length. (etcd has errors of
// the same code.)
func isTooLong(err error) bool {
	_, ofEtcd := errors.AsType[rpctypes.EtcdError](err)
	return !ofEtcd && status.Code(err) == codes.ResourceExhausted
}

// bounds is the range of the keys that begin with prefix.
func bounds(prefix string) (from, end string) {
	if prefix == "" {
		return "\x00", "\x00"
	}
	return prefix, clientv3.GetPrefixRangeEnd(prefix)
}

// BeganAtOnce reports whether a place of a lock held from its beginning, as the line at its
// revision shows. It reports false if that has been compacted, and an error if etcd did not answer.
func BeganAtOnce(
	ctx context.Context, kv clientv3.KV, lock, key string, token int64,
) (bool, error) {
	var kvs []*mvccpb.KeyValue
	for resp, err := range pages(ctx, kv, line.Prefix(lock), line.Whole(lock).To, Page, token) {
		if errors.Is(err, rpctypes.ErrCompacted) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if kvs = append(kvs, resp.Kvs...); resp.More && len(kvs) >= Page {
			return false, nil
		}
	}
	return slices.ContainsFunc(line.Of(lock, kvs).Holding(), func(e line.Entry) bool {
		return e.Key == key
	}), nil
}
