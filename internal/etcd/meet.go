package etcd

import (
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

const (
	// mostMet is how many compares, or ranges, the requests that go as one have. etcd allows 128
	// operations by default.
	mostMet = 100

	// longestBeat is the longest time from one beat to the next, and leastBeat the shortest.
	longestBeat = 1500 * time.Millisecond
	leastBeat   = longestBeat / 32
)

// Meeting is Ranges for what is asked now and then, and need not be answered at once: whether what
// is known still holds.
//
// Each waits a moment for others of the client's Sessions, and all that have come go as one: with
// all that they compare, and all that they read. If all of it holds, each has its answer. Otherwise
// each is sent alone, which shows whose it was. So what the Sessions of a client ask costs little
// more than what one of them asks. (TestSessionsOfOneClientRecheckAndAuditTogether.)
//
// (Do not nest the transactions, nor send them with those that write. etcd writes what is nested to
// its log, though it only reads. TestWhatMeetsIsNoRaftEntry.)
func Meeting(compares []clientv3.Cmp, ranges ...clientv3.Op) Request {
	r := Ranges(compares, ranges...)
	r.meets = len(compares) < mostMet/4 && len(ranges) < mostMet/4
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
	var compares []clientv3.Cmp
	var ranges []clientv3.Op
	for _, p := range of.parts {
		compares, ranges = append(compares, p.r.If...), append(ranges, p.r.Then...)
	}
	read, err := of.readAll(call, compares, ranges)
	if err != nil {
		return err
	}
	for _, p := range of.parts {
		n := len(p.r.Then)
		p.read = Reading{Header: read.Header, Holds: read.Holds, Ranges: read.Ranges[:n:n]}
		p.alone = !read.Holds
		read.Ranges = read.Ranges[n:]
	}
	return nil
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
