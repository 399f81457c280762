package keepalive

import (
	"context"
	"errors"
	"math"
	"slices"
	"sort"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

const (
	// mostOpenings is how many streams of a client are being opened at once. With user and password
	// each is a login, and etcd has only so many cores for those. Two are for the pair of renewals
	// that follows a failure, and two for renewals that meet a member that hangs.
	mostOpenings = 4

	// mostProxied is how many are where each renewal has a stream, and none is a login.
	mostProxied = 64

	// crowded is how many renewals are under way on a stream before another one may be opened.
	crowded = 8

	// openingTime is how long a stream counts as being opened, while etcd answers nothing on it: it
	// may lead to a member that hangs.
	openingTime = 250 * time.Millisecond

	// mostFailures is how many streams a client can open, one after the other, without an answer on
	// any. An answer pays for perAnswer more, and time for perPeriod more in the shortest period of
	// its leases: as many as a single lease sends pairs of renewals that fail at once. But no more
	// than mostLogins are opened in a second where each is a login.
	mostFailures = 20
	perAnswer    = 3
	perPeriod    = 60
	mostLogins   = 10
)

// streams are the streams for the renewals of a client's leases, and the renewals that wait for
// one. At rest all leases share the stream that was opened last.
//
// Invariant: at most one renewal of a lease is under way on a stream, and etcd answers in the order
// of the requests. So the next message on a stream is the answer to the oldest renewal there. A
// renewal that is given up keeps its place, so that a late answer is never taken for the answer to
// a later renewal. That would extend the trust although etcd has counted from an earlier time
// (TestNoAnswerIsTakenForThatToALaterRenewal).
//
// Invariant: a stream carries one renewal until it is proven: until etcd itself has answered
// another message on it. etcd's grpc-proxy answers each request on a stream too, but with the
// result of its own next answered renewal, which it may have sent earlier. Its first one on a
// stream is sent for the first request.
// (Do not keep a stream that is not proven. TestBehindAProxyNoStreamIsKept.)
//
// Invariant: a renewal fails with its stream, so etcd gets few renewals that fail. Of the streams
// that fail before they are proven each costs one renewal, and what has failed is paid for by
// answers and by time. Other renewals wait for a stream that is proven, or for their turn to open
// one: the renewal whose trust ends first has the first.
// (Do not take the first refusal of a lease for a failure. Where etcd refuses hundreds, the others
// get no stream in time. TestTheRefusalOfManyLeasesLosesNoOther.)
// (Do not let each lease open a stream. When a member restarts a thousand leases log in at once.
// TestALostStreamIsReplacedOnceForAllLeases, TestRenewalsThatFailAtOnceHaveABudget.)
type streams struct {
	login   bool                  // each opening is one
	periods map[time.Duration]int // of the leases that are renewed: how many have each

	to      string // where the client's requests go
	proxied bool   // a stream there was found not to lead to etcd itself

	open    []*stream // all that are not over, in the order in which they were begun
	begins  int       // how many were begun
	opening int       // how many are being opened
	waits   []*wait   // renewals that wait, in the order of their turns
	look    bool      // all that wait are to be looked at: a stream may carry more of them

	credit  float64   // streams that may be opened
	counted time.Time // when credit was last brought up to date

	pace time.Duration // of the stream that has shown it last

	begun []*stream // that are to be run
}

// A stream carries renewals.
type stream struct {
	// Set once, before anything is sent.
	number int       // streams are numbered as they are begun
	begun  time.Time // when it was opened
	to     string
	open   func(ctx context.Context) (rpc, error)
	ctx    context.Context
	end    context.CancelFunc
	more   chan struct{} // tells its goroutine that there is more to send
	over   chan struct{} // closed when nothing comes on it any more

	// Guarded by client.mu.
	opening  bool          // counts as being opened
	answered bool          // a renewal
	proven   bool          // etcd itself reads it
	left     bool          // it has ended, or is about to
	heard    time.Time     // when a renewal was last answered
	pace     time.Duration // from one answer to the next, while others are under way
	unsent   []clientv3.LeaseID
	underWay []*wait          // renewals, in the order of the requests
	leases   map[*Sender]bool // whose renewals these are
}

// An answer is etcd's answer, or why there will be none.
type answer struct {
	resp  *pb.LeaseKeepAliveResponse
	err   error
	ended bool // it is about the stream, which had answered, and not about the renewal
}

// A wait is a renewal that waits for a stream, and then for its answer.
type wait struct {
	Renewal
	by     *Sender
	answer chan answer // gets one at most
	on     *stream
	sent   time.Time // on it
	gone   bool      // the renewal was given up
}

// errCutShort is the error of a renewal whose stream has ended because of an earlier one there.
var errCutShort = errors.New("the stream ended before the answer")

// noLease is a lease that etcd never has. etcd answers its renewal with a TTL of 0. etcd's
// grpc-proxy answers with -1, which it got from TimeToLive.
const noLease = clientv3.NoLease

// join counts a lease, with the period of its renewals.
func (k *streams) join(period time.Duration) {
	if len(k.periods) == 0 {
		k.credit, k.periods = mostFailures, make(map[time.Duration]int)
	}
	k.periods[period]++
}

// leave forgets a lease. With the last one all streams are left, and returned.
func (k *streams) leave(period time.Duration) (left []*stream) {
	if k.periods[period]--; k.periods[period] == 0 {
		delete(k.periods, period)
	}
	if len(k.periods) > 0 {
		return nil
	}
	for _, on := range k.open {
		k.end(on)
	}
	return slices.Clone(k.open)
}

// put adds a renewal to those that wait.
func (k *streams) put(w *wait) {
	if to := w.Where.Endpoints; to != k.to {
		k.to, k.proxied = to, false
		k.endUnused()
	}
	if w.Anew {
		w.by.after = w.by.last
	}
	if !k.carries(w) {
		at := sort.Search(len(k.waits), func(i int) bool { return w.isBefore(k.waits[i]) })
		k.waits = slices.Insert(k.waits, at, w)
		w.by.waits = append(w.by.waits, w)
	}
}

// isBefore reports whether w has its turn before another renewal that came earlier.
func (w *wait) isBefore(other *wait) bool {
	if w.Refused != other.Refused {
		return other.Refused
	}
	return w.Until.Before(other.Until)
}

// admit sends the renewals that wait, as far as that is possible now.
//
// (Do not look at all of them each time. Where a member hangs, thousands wait, and each renewal and
// each answer has the mutex. TestARenewalTakesNoLongerBesideMany.)
func (k *streams) admit(now time.Time) {
	k.count(now)
	for {
		if k.look {
			k.look = false
			k.waits = slices.DeleteFunc(k.waits, k.carries)
		}
		if len(k.waits) == 0 || !k.mayOpen() {
			return
		}
		w := k.waits[0]
		k.waits = slices.Delete(k.waits, 0, 1)
		k.begin(w, now)
	}
}

// carries has a proven stream carry a renewal, and reports whether one does. While each is crowded,
// another one is to be opened first.
func (k *streams) carries(w *wait) bool {
	on := k.proven(w)
	if on == nil || on.isCrowded(w, k.counted) && (k.opening > 0 || k.credit >= 1) {
		return false
	}
	on.carry(w, k.counted)
	return true
}

// proven returns the proven stream for a renewal: the one with the fewest under way, and the newest
// of several.
func (k *streams) proven(w *wait) (best *stream) {
	for _, on := range slices.Backward(k.open) {
		if on.proven && on.mayCarry(w) &&
			(best == nil || len(on.underWay) < len(best.underWay)) {
			best = on
		}
	}
	return best
}

// mayCarry reports whether a renewal may go on a stream. One that was refused does not: with it
// the stream would end for the others.
func (on *stream) mayCarry(w *wait) bool {
	return !on.left && !w.Refused && on.to == w.Where.Endpoints && on.number > w.by.after &&
		on.begun.After(w.by.since) && on.begun.After(w.Where.Since) && !on.leases[w.by]
}

// isCrowded reports whether a renewal is better sent on another stream: many are under way on this
// one, and the oldest has had no answer for half the time after which a renewal is late, or the
// last of them will have none by then, as the answers come. A member that does not lead asks the
// leader for each renewal on a stream, one after the other.
//
// (Do not go by how many there are. Many go out together, and a member that leads answers them at
// once: each time a stream would be opened. Nor send them on while another one is opened. Those
// that go out together would all be behind each other where a member is slow with each, and leases
// are lost. TestRenewalsThatGoOutTogetherAreInTimeAtASerialMember.)
func (on *stream) isCrowded(w *wait, now time.Time) bool {
	n, soon := len(on.underWay), w.by.period/4
	return n >= crowded && max(now.Sub(on.underWay[0].sent), time.Duration(n)*on.pace) >= soon
}

// carry has a stream carry a renewal.
func (on *stream) carry(w *wait, now time.Time) {
	w.on, w.sent, w.by.last = on, now, max(w.by.last, on.number)
	on.underWay = append(on.underWay, w)
	on.leases[w.by] = true
	w.by.waits = remove(w.by.waits, w)
	on.send(w.by.id)
}

// send has a message sent on a stream.
func (on *stream) send(id clientv3.LeaseID) {
	on.unsent = append(on.unsent, id)
	select {
	case on.more <- struct{}{}:
	default: // told already
	}
}

// mayOpen reports whether another stream may be opened. It may not while one has answered and is
// about to be proven.
func (k *streams) mayOpen() bool {
	return k.opening < k.mostOpenings() && k.credit >= 1 &&
		!slices.ContainsFunc(k.open, func(on *stream) bool { return on.opening && on.answered })
}

func (k *streams) mostOpenings() int {
	if k.proxied && !k.login {
		return mostProxied
	}
	return mostOpenings
}

// begin begins a stream, for a renewal. It ends each stream that has answered and was not proven.
func (k *streams) begin(w *wait, now time.Time) {
	for _, on := range k.open {
		if on.answered && !on.proven {
			k.end(on)
		}
	}
	k.begins++
	k.opening++
	k.credit--
	on := &stream{
		number: k.begins, begun: now, to: w.Where.Endpoints, open: w.by.open,
		more: make(chan struct{}, 1), over: make(chan struct{}), opening: true,
		leases: make(map[*Sender]bool), pace: k.pace,
	}
	on.ctx, on.end = context.WithCancel(context.Background())
	k.open, k.begun = append(k.open, on), append(k.begun, on)
	on.carry(w, now)
	k.look = true // streams that are crowded carry more meanwhile
	if !k.proxied {
		on.send(noLease)
	}
}

// opened notes that a stream no longer counts as being opened: it is known where it leads, or it
// has ended, or its time is over.
func (k *streams) opened(on *stream) {
	if on.opening {
		on.opening, k.look = false, true
		k.opening--
	}
}

// answered notes what came on a stream.
func (k *streams) answered(on *stream, resp *pb.LeaseKeepAliveResponse) {
	switch {
	case on.left:
	case resp.ID == int64(noLease):
		on.proven = resp.TTL == 0
		k.look = true
		k.proxied = k.proxied || !on.proven && on.to == k.to
	case len(on.underWay) > 0 && resp.ID == int64(on.underWay[0].by.id):
		if !on.answered {
			on.answered = true
			k.credit++ // its opening was no failure
		}
		k.credit = min(k.credit+perAnswer, mostFailures)
		w := on.underWay[0]
		wasCrowded := on.isCrowded(w, k.counted)
		if on.heard.After(w.sent) {
			on.pace = (3*on.pace + k.counted.Sub(on.heard)) / 4
			k.pace = on.pace
		}
		on.heard = k.counted
		w.answer <- answer{resp: resp}
		on.underWay = on.underWay[1:]
		delete(on.leases, w.by)
		for _, next := range w.by.waits {
			if k.carries(next) {
				k.waits = remove(k.waits, next)
				break // the next one has to wait for its answer
			}
		}
		k.look = k.look || wasCrowded && !on.isCrowded(w, k.counted)
	}
	if on.proven || k.proxied {
		k.opened(on)
	}
	k.endUnused()
}

// failed notes that a stream has ended. The oldest renewal on it may be the reason.
func (k *streams) failed(on *stream, err error) {
	for i, w := range on.underWay {
		if i > 0 {
			err = errCutShort
		}
		if !on.answered && !w.Refused && attempt.Is(err, rpctypes.ErrPermissionDenied) {
			k.credit++ // etcd has answered, and refuses this lease
		}
		w.answer <- answer{err: err, ended: on.answered}
	}
	k.end(on)
}

// giveUp notes that a renewal waits no more. If it has no stream yet, giveUp reports that. A stream
// on which no renewal is awaited any more is silent, and is left.
func (k *streams) giveUp(w *wait) (unsent bool) {
	if slices.Contains(w.by.waits, w) {
		k.waits, w.by.waits = remove(k.waits, w), remove(w.by.waits, w)
		return true
	}
	w.gone = true
	if on := w.on; on != nil && slices.Contains(on.underWay, w) &&
		!slices.ContainsFunc(on.underWay, func(o *wait) bool { return !o.gone }) {
		k.end(on)
	}
	return false
}

// remove removes w from some, if it is there.
func remove(some []*wait, w *wait) []*wait {
	if at := slices.Index(some, w); at >= 0 {
		return slices.Delete(some, at, at+1)
	}
	return some
}

// endUnused ends the streams on which nothing is under way and that no renewal needs: they lead
// elsewhere, or to a proxy, or nothing is under way on a newer one that is proven, either.
//
// (Do not wait until nothing is under way on any stream. In a client with many leases something
// always is, and each of its Sessions that comes and goes leaves a stream open.)
func (k *streams) endUnused() {
	spare := false
	for _, on := range slices.Backward(k.open) {
		idle := len(on.underWay) == 0
		if idle && (spare || on.to != k.to || !on.proven && k.proxied) {
			k.end(on)
		}
		spare = spare || idle && on.proven && !on.left
	}
}

// end leaves a stream.
func (k *streams) end(on *stream) {
	k.opened(on)
	on.left, on.underWay = true, nil
	on.end()
}

// count brings the credit up to date.
func (k *streams) count(now time.Time) {
	grown := k.rate() * now.Sub(k.counted).Seconds()
	k.credit, k.counted = min(k.credit+grown, mostFailures), now
}

// rate is how much the credit grows in a second, by the shortest period.
func (k *streams) rate() float64 {
	shortest := never
	for period := range k.periods {
		shortest = min(shortest, period)
	}
	rate := perPeriod / shortest.Seconds()
	if k.login {
		rate = min(rate, mostLogins)
	}
	return rate
}

// never is the pause before what is not going to happen by itself.
const never = time.Duration(math.MaxInt64)

// next is how long it takes until one that waits may open a stream, if nothing happens before. It
// is an hour at most: then it is reckoned anew.
func (k *streams) next() time.Duration {
	if len(k.waits) == 0 || k.opening >= k.mostOpenings() || k.credit >= 1 {
		return never
	}
	seconds := min((1-k.credit)/k.rate(), time.Hour.Seconds())
	return max(time.Duration(seconds*float64(time.Second)), 0) + 1
}
