package etcd

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// mostShared is how many keys the looks that go as one read at most: some 100 bytes each.
	mostShared = 1024

	// longestShare is how long a look waits for another to be answered.
	longestShare = 250 * time.Millisecond
)

// newest says which keys a look reads: the newest that were created up to a revision, so many at
// most.
type newest struct{ upTo, most int64 }

// Newest reads the keys below the name of a lock that were created up to a revision, without their
// values: the newest of them, so many at most.
//
// etcd reads all keys below the name for that, which takes a millisecond for a thousand. So looks
// of a client that meet go as one: while one is under way, later ones wait for its answer, at
// most for half of what the last one took, and for longestShare. They read up to the latest of
// their revisions. Each gets what it would have read alone, or is sent alone if the others were too
// far from it. So thousands of Sessions that line up at once cost etcd no look each.
// (TestLooksThatMeetReadOnce.)
//
// Invariant: what a look gets was read after it was asked for: it never joins one under way.
func Newest(name string, upTo, most int64) Request {
	r := Range(line.Prefix(name), newestKeys(upTo, most)...)
	r.Name, r.newest = name, newest{upTo, most}
	return r
}

func newestKeys(upTo, most int64) []clientv3.OpOption {
	return []clientv3.OpOption{
		clientv3.WithPrefix(), clientv3.WithMaxCreateRev(upTo), clientv3.WithLimit(most),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend),
		clientv3.WithKeysOnly(),
	}
}

// lookers has a combiner of looks for each client that has looked at a long line.
var lookers attempt.Shared[combiner]

// looksOf returns the combiner of a client's looks.
func looksOf(client *clientv3.Client) *combiner {
	return attempt.SharedBy(&lookers, client, func() *combiner {
		return newCombiner(pace{few: 1, serial: true}, (*combined).look)
	})
}

// look sends looks as one, with a range for each name, and reads the answer for each.
func (of *combined) look(call *callContext) error {
	var names []string
	latest := make(map[string]int64)
	for _, p := range of.parts {
		if latest[p.r.Name] == 0 {
			names = append(names, p.r.Name)
		}
		latest[p.r.Name] = max(latest[p.r.Name], p.r.newest.upTo)
	}
	ranges := make([]*pb.RequestOp, len(names))
	for i, name := range names {
		ranges[i] = ticket.Range(&pb.RangeRequest{
			Key: []byte(line.Prefix(name)), RangeEnd: []byte(line.Whole(name).To),
			MaxCreateRevision: latest[name], Limit: mostShared, KeysOnly: true,
			SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_CREATE,
		})
	}
	read, err := of.readAll(call, nil, ranges)
	if err != nil {
		return err
	}
	for _, p := range of.parts {
		own, whole := p.r.newest.of(read.Ranges[slices.Index(names, p.r.Name)])
		p.read, p.alone = Reading{Header: read.Header, Ranges: []*pb.RangeResponse{own}}, !whole
	}
	return nil
}

// of is what a look would have read alone, by what it has read together with later ones. It reports
// false if that does not show it.
func (n newest) of(all *pb.RangeResponse) (own *pb.RangeResponse, whole bool) {
	kvs := all.GetKvs()
	for len(kvs) > 0 && kvs[0].CreateRevision > n.upTo {
		kvs = kvs[1:]
	}
	if int64(len(kvs)) < n.most && all.GetMore() {
		return nil, false
	}
	most := min(int64(len(kvs)), n.most)
	return &pb.RangeResponse{
		Header: all.GetHeader(), Kvs: kvs[:most], Count: all.GetCount(),
		More: all.GetMore() || int64(len(kvs)) > most,
	}, true
}
