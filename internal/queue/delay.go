package queue

import (
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
)

// The lock delay: for how long no hold begins in a Session that has noticed a set-back.
//
// A hold may outlive its key. A holder from before a set-back may be the last to learn of it, or
// be cut off, and nothing in the etcd of now says that it holds. So a Session that has noticed the
// set-back waits until it must have ended.
//
// Invariant: no hold begins at a key before every hold has ended that began before a set-back, as
// long as the Session has noticed that, and the delay is no shorter than the TTL of each of these.
// The proof, for a holder H and a Session W that has noticed the set-back at T:
//
//   - The etcd of before has confirmed nothing since it stopped, and the answer that W noticed was
//     written later. So the last renewal of H that was confirmed there was sent before T. The trust
//     that it gives ends a TTL of H, less the margin, after it was sent (trust.Trust): before T and
//     that TTL.
//   - If the etcd of now knows H's lease, which the snapshot has then, it confirms H's renewals.
//     They give trust only once H has read its key there (Lease.Read). If the key is there,
//     W stands behind it. If not, H has ended.
//   - Both count on their own monotonic clock. The margin covers clocks of different rates. If the
//     monotonic clock of W stands still, because its machine is suspended, W waits for longer; if
//     H's stands still, H looks at the wall clock (trust.At).
//   - A hold that began between two set-backs is from before the second one, from which the delay
//     counts anew. So delays do not add up: the last to end counts.
//
// Count from the answer, and not from its request: that may have been sent while the etcd of before
// still confirmed renewals. (TestALockDelayCountsFromTheAnswer.)
//
// The delay is the longest of
//
//   - the TTLs of the Session, as granted or asked for, and of all leases that its client trusted
//     when it noticed the set-back (era.Trusted): processes that share a lock mostly have one TTL
//   - the TTLs of the contenders that stood in the line at its last reading before
//   - the floor, for what the Session cannot know: where it had no place in the line that keeps all
//     behind it out, or where a contender there did not tell its TTL, or was not read.
//
// A Session with an exclusive place in the line, or that of a permit of the whole limit, needs no
// floor: whatever holds has a place before its own, and was read. With the place of a read that is
// so of whatever excludes reads, and a read needs no floor. Behind other permits some may hold that
// it has not read (standingOf). What it met before, and has seen leave, does not count. (A hold
// with a longer TTL that the Session never met is not covered: WithRestoreDelay.)
//
// A hold may begin at once at a key at which the Session has held, and that it has read since: the
// key is handed on, or lingers, or a read joins. As long as the etcd of before lived, nobody held
// beside that key who may not hold beside it.

// DefaultRestoreDelay is the floor if the Session's options have none. It is four times the default
// TTL, and the TTL of a concurrency.Session.
const DefaultRestoreDelay = time.Minute

// An era is the time from one set-back that a Session has noticed to the next.
type era int32

// A setBack is the last one that a Session has noticed. The zero setBack says that there was none.
type setBack struct {
	era     era // that it has begun
	noticed time.Time
	own     time.Duration // the longest TTL of the Session and its client
	floor   time.Duration
	unsure  bool // places whose lease was over are yet to be told: the floor is for all lines
}

// until is when the delay ends where met is known of the TTLs of contenders, and known says that no
// hold may have been overlooked.
func (b setBack) until(met line.TTLs, known bool) time.Time {
	delay := max(b.own, met.Longest)
	if !known || met.Untold || b.unsure {
		delay = max(delay, b.floor)
	}
	return b.noticed.Add(delay)
}

// A standing is what a place in line says of the holds that there may be beside its own.
type standing uint8

const (
	nowhere standing = iota // nothing: it stands in no line, or others hold beside it unseen
	besides                 // no hold that excludes reads is unseen: it is the place of a read
	behind                  // no hold is unseen
)

// A delay is the lock delay of a line.
//
// Do not go through all lines as a set-back is noticed: there may be thousands. Whatever changes
// what a delay depends on calls settle first, and so does each question.
type delay struct {
	met    line.TTLs         // of the contenders, at the last reading
	stands [behind + 1]int32 // how many places of the Session have a standing, in era
	era    era               // the last set-back that was reckoned with has begun it
	bars   *bars             // nil without a set-back, and a doubt
}

// The bars of a line are until when no hold begins there.
type bars struct {
	ends [behind]time.Time // when a read may begin, and when any other hold; zero without a set-back

	doubting int64     // the create revision of the key that has begun the last doubt, 0 without one
	doubted  time.Time // until when no hold begins for it
}

// change are the bars of d, to be changed.
func (d *delay) change() *bars {
	if d.bars == nil {
		d.bars = new(bars)
	}
	return d.bars
}

// settle reckons with the last set-back. Places that were read two set-backs ago count no more.
func (d *delay) settle(last setBack) {
	if d.era == last.era {
		return
	}
	if d.era+1 != last.era {
		d.stands = [behind + 1]int32{}
	}
	ends := &d.change().ends
	ends[0] = later(ends[0], last.until(d.met, d.stands[besides]+d.stands[behind] > 0))
	ends[1] = later(ends[1], last.until(d.met, d.stands[behind] > 0))
	d.era, d.stands = last.era, [behind + 1]int32{}
}

// proven is when a hold of a kind may begin, as far as set-backs say that were proven.
func (d *delay) proven(kind line.Kind) time.Time {
	switch {
	case d.bars == nil:
		return time.Time{}
	case kind == line.Read:
		return d.bars.ends[0]
	}
	return d.bars.ends[1]
}

// until is when a hold of a kind may begin.
func (d *delay) until(kind line.Kind) time.Time {
	if d.bars == nil {
		return time.Time{}
	}
	return later(d.proven(kind), d.bars.doubted)
}

// A LockDelay is for how long no hold begins, and why.
type LockDelay struct {
	Lasts  time.Duration // 0 if a hold may begin
	Proven bool          // etcd was set back; otherwise it may have been
}

// later is the later one of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// standingOf is the standing of a place of a shape that knows what is ahead of it, or holds. A
// permit that leaves some of its limit lets others behind it hold, too: if it waits, as soon as
// those before it have gone, though it has yet to hear of that.
//
// Do not take it for a place with no holder behind it.
// (TestThePermitsBehindOneThatWaitsMayHoldUnseen.)
func standingOf(of line.Shape) standing {
	switch {
	case of.Kind == line.Read:
		return besides
	case of.Kind == line.Permit && of.Weight < of.Limit:
		return nowhere
	default:
		return behind
	}
}
