package etcd

import (
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// mostMet is how many compares, or ranges, the requests that go as one have. etcd allows 128
	// operations by default.
	mostMet = 100

	// longestBeat is the longest time from one beat to the next, and leastBeat the shortest.
	longestBeat = 1500 * time.Millisecond
	leastBeat   = longestBeat / 32
)

// Still reads ranges, and compares what is known with what is there. Without ranges it counts a
// known key, since a read is what makes a transaction linearizable.
func Still(known []ticket.Known, ranges ...*pb.RequestOp) Request {
	compares := len(ranges) == 0
	if compares {
		ranges = []*pb.RequestOp{ticket.Count(known[0].Key)}
	}
	r := Ranges(ticket.Compare(known...), ranges...)
	r.known, r.compares = known, compares
	return r
}

// Meeting is Still for what need not be answered at once.
//
// Each waits a moment for others of the client's Sessions, and all that have come go as one: with
// all that they compare, and all that they read. If all of it holds, each has its answer. Otherwise
// each is sent alone, which shows whose it was. So what the Sessions of a client ask costs little
// more than what one of them asks. (TestSessionsOfOneClientRecheckAndAuditTogether.)
//
// (Do not nest the transactions, nor send them with those that write. etcd writes what is nested to
// its log, though it only reads. TestWhatMeetsIsNoRaftEntry.)
func Meeting(known []ticket.Known, ranges ...*pb.RequestOp) Request {
	r := Still(known, ranges...)
	r.meets = len(r.If) < mostMet/4 && len(ranges) < mostMet/4
	return r
}

// A meeting is what the requests of a client that meet share.
type meeting struct {
	*combiner
	began time.Time // its beats are counted from then, a random time
}

var meetings attempt.Shared[meeting]

func meetingOf(client *clientv3.Client) *meeting {
	return attempt.SharedBy(&meetings, client, func() *meeting {
		began := time.Now().Add(-rand.N(longestBeat))
		return &meeting{newCombiner(pace{few: 1, serial: true}, meet), began}
	})
}

// meet sends requests that meet as one, and reads the answer for each.
func meet(of *combined, call *callContext) error {
	all := gathered{knows: make(map[ticket.Known]bool), reads: make(map[span]int)}
	at := make([][]int, len(of.parts))
	for i, p := range of.parts {
		at[i] = all.add(p.r)
	}
	read, err := of.readAll(call, all.compares, all.ranges)
	if err != nil {
		return err
	}
	for i, p := range of.parts {
		if p.alone = !read.Holds; p.alone {
			continue
		}
		p.read = Reading{Header: read.Header, Holds: true}
		for _, n := range at[i] {
			p.read.Ranges = append(p.read.Ranges, read.Ranges[n])
		}
	}
	return nil
}

// A gathered is what goes as one. What several know or read goes once: in one line each knows the
// one before it, and all count the same.
type gathered struct {
	compares []*pb.Compare
	ranges   []*pb.RequestOp
	knows    map[ticket.Known]bool
	reads    map[span]int // indexes of ranges
}

// add adds what r compares and reads, and returns the indexes of its ranges. What has no range of
// its own may get one, or none.
func (all *gathered) add(r Request) (at []int) {
	ifs := r.If
	for _, k := range r.known {
		n := k.Compares()
		if !all.knows[k] {
			all.compares = append(all.compares, ifs[:n]...)
			all.knows[k] = true
		}
		ifs = ifs[n:]
	}
	if r.compares && len(all.ranges) > 0 {
		return nil
	}
	for _, op := range r.Then {
		s := spanOf(op.GetRequestRange())
		n, again := all.reads[s]
		if !again {
			n = len(all.ranges)
			all.ranges = append(all.ranges, op)
			all.reads[s] = n
		}
		at = append(at, n)
	}
	return at
}

// A span is what a range reads.
type span struct {
	from, to               string
	most, at               int64
	order                  pb.RangeRequest_SortOrder
	by                     pb.RangeRequest_SortTarget
	keys, count, past      bool
	minMod, maxMod         int64
	minCreated, maxCreated int64
}

func spanOf(r *pb.RangeRequest) span {
	return span{
		string(r.Key), string(r.RangeEnd), r.Limit, r.Revision, r.SortOrder, r.SortTarget,
		r.KeysOnly, r.CountOnly, r.Serializable, r.MinModRevision, r.MaxModRevision,
		r.MinCreateRevision, r.MaxCreateRevision,
	}
}

// weight is how much of what goes as one a request takes.
func (r Request) weight() int { return max(len(r.If), len(r.Then)) }

// onBeat is the beat nearest to a drawn time, between from and to. Times count from since, which
// counts from the client's first beat.
//
// Invariant: there is one in that time, so that nothing is due later than without beats.
// (TestABeatIsNoLaterThanItMayBe.)
func onBeat(since, from, to, drawn time.Duration) time.Duration {
	beat := longestBeat
	for beat > max((to-from)/2, leastBeat) {
		beat /= 2
	}
	due := (since + drawn).Round(beat) - since
	if due < from {
		due += beat
	}
	if due > to {
		due -= beat
	}
	if due < from {
		return drawn // so little time needs no beat
	}
	return due
}
