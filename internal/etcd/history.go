package etcd

import (
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// An era is an epoch as all Sessions of a client have seen it.
//
// These show that etcd was set back, and end an era:
//
//   - another cluster ID in the header of an answer
//   - a linearizable answer with a revision lower than one that was known when its request was
//     sent
//   - an answer with a revision higher than etcd can have reached by writing: see outgrows
//   - a key of the Session that was not there at its own create revision: see WasThere
//
// These may show it, and have no hold begin for a while: see doubt of internal/queue.
//
//   - a linearizable answer with a lower Raft term than an earlier one had
//   - a key of the Session that is gone, no event has told why, and etcd has compacted the revision
//     at which it was put
type era struct {
	Number  int           // 0 for the first one, and then one more with each set-back
	Began   int64         // the revision of the answer that began it, 0 for the first one
	Noticed time.Time     // when that answer came, zero for the first one
	Trusted time.Duration // the longest TTL of the client's leases that were trusted then

	cluster atomic.Uint64             // 0 until a header has it
	reached atomic.Int64              // the highest revision known to any of the Sessions
	asked   atomic.Pointer[time.Time] // when etcd had not written beyond that; nil before it is known

	led      atomic.Uint64             // the Raft term of the last linearizable answer
	fellFrom atomic.Uint64             // the highest one after which there was a lower one
	doubted  atomic.Pointer[time.Time] // when that came, nil if none did
}

// A history is what the Sessions of a client have seen of etcd's history. A Session that begins
// later begins with that: it knows of a set-back as the earlier ones do, and so does a process that
// makes a Session for each call.
type history struct {
	present atomic.Pointer[era]

	mu      sync.Mutex
	trusted map[time.Duration]int // how many leases of a TTL are trusted
}

// histories are those of all clients that have a Session.
var histories attempt.Shared[history]

// historyOf returns the history of a client.
func historyOf(client *clientv3.Client) *history {
	return attempt.SharedBy(&histories, client, func() *history {
		h := &history{trusted: make(map[time.Duration]int)}
		h.present.Store(&era{})
		return h
	})
}

// epoch returns an Epoch of a Session in the present era.
func (h *history) epoch() *Epoch {
	e := &Epoch{era: h.present.Load()}
	e.revision.Store(e.reached.Load())
	return e
}

// begin ends an era with an answer from another one, unless another answer has ended it.
func (h *history) begin(ended *era, answer *pb.ResponseHeader) {
	next := &era{
		Number: ended.Number + 1, Began: answer.GetRevision(), Noticed: time.Now(),
		Trusted: h.longestTrusted(),
	}
	next.cluster.Store(answer.GetClusterId())
	next.reached.Store(next.Began)
	next.led.Store(answer.GetRaftTerm())
	h.present.CompareAndSwap(ended, next)
}

// trusts counts a lease of a TTL as trusted, until over is called.
func (h *history) trusts(ttl time.Duration) (over func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trusted[ttl]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.trusted[ttl]--; h.trusted[ttl] == 0 {
			delete(h.trusted, ttl)
		}
	}
}

// longestTrusted is the longest TTL of the leases that are trusted.
func (h *history) longestTrusted() (longest time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ttl := range h.trusted {
		longest = max(longest, ttl)
	}
	return longest
}

const (
	// mostWrites is more than any etcd writes in a second: a write is a Raft entry on a majority of
	// disks, and etcd's own benchmarks show some 50,000 a second (etcd.io, "Performance").
	mostWrites = 100_000

	// atOnce is more than etcd writes while an answer is on its way, or a machine was paused and its
	// clocks do not know of it yet.
	atOnce = 1_000_000

	// askedEvery is for how long the time of the last answer is not brought up to date.
	askedEvery = time.Second
)

// outgrows reports whether etcd cannot have reached a revision by writing, since it was asked for
// the highest one that is known: it was restored with a raised revision (etcdutl --bump-revision).
//
// The clock that has passed more counts: the monotonic one stands still while a machine sleeps.
func (e *era) outgrows(revision int64, now time.Time) bool {
	asked := e.asked.Load() // before reached: of an older one more time has passed
	grown := revision - e.reached.Load() - atOnce
	if asked == nil || grown <= 0 {
		return false
	}
	passed := max(now.Sub(*asked), now.Round(0).Sub(asked.Round(0)))
	return float64(grown) > mostWrites*passed.Seconds()
}

// hears notes the revision of an answer to a request that was sent at a time.
func (e *era) hears(revision int64, sent time.Time) {
	raise(&e.reached, revision)
	before := e.asked.Load()
	if before == nil || sent.Sub(*before) >= askedEvery && revision >= e.reached.Load() {
		at := sent // &sent would have each call allocate
		e.asked.CompareAndSwap(before, &at)
	}
}

// leads notes the term of a linearizable answer. known is the term of the last such answer before
// the request was sent.
//
// It reports whether known is the higher one, once for each term. This is no proof of a set-back:
// the answer before may have been on its way out of a member that had just heard of a candidate,
// which was not elected. (Do not doubt each time. Members whose terms differ would delay all holds
// for ever. TestATermThatFallsIsADoubt.)
func (e *era) leads(term, known uint64) (fell bool) {
	if term >= known {
		raise(&e.led, term)
		return false
	}
	before := e.fellFrom.Load()
	fell = e.led.CompareAndSwap(known, term) && known > before &&
		e.fellFrom.CompareAndSwap(before, known)
	if fell {
		now := time.Now()
		e.doubted.Store(&now)
	}
	return fell
}

// Doubted is when etcd was last found to have a lower term than before, zero if it never was.
func (e *era) Doubted() (at time.Time) {
	if doubted := e.doubted.Load(); doubted != nil {
		at = *doubted
	}
	return at
}
