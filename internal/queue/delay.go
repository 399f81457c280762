package queue

import "time"

// The lock delay: for how long no hold begins in a Session that has noticed a set-back.
//
// A hold may outlive its key. A holder from before a set-back may be the last to learn of it, or
// be cut off, and nothing in the etcd of now says that it holds. So a Session that has noticed the
// set-back waits until it must have ended.
//
// Invariant: no hold begins at a key before every hold has ended that began before a set-back, as
// long as the Session has noticed that, and knows the TTLs of the name's contenders. The proof, for
// a holder H and a Session W that has noticed the set-back at T:
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
// A hold may begin at once at a key at which the Session has held, and that it has read since: the
// key is handed on, or lingers, or a read joins. As long as the etcd of before lived, nobody held
// beside that key who may not hold beside it.
//
// What remains. A Session does not notice a set-back if etcd is in the same cluster, and has passed
// the highest revision known to the Sessions of its client before any of them asks: then the
// audits that follow a new connection find what has become of its keys, and its holds end, but no
// delay begins. (So it is with a snapshot that was restored with --bump-revision.) It does not know
// the TTLs of the contenders that it has not met. And a process that starts after the set-back
// knows of none.

// A setBack is the last one that a Session has noticed. The zero setBack says that there was none.
type setBack struct {
	noticed time.Time
	own     time.Duration // the longest TTL of the leases of the Session, then
}

// A delay is the lock delay of a line, or of all lines that the Session does not have.
type delay struct {
	longest time.Duration // of the TTLs of the contenders that the Session has met
	noticed time.Time     // the last set-back that end reckons with
	end     time.Time     // zero if etcd was never found set back
}

// until is when d ends, with the last set-back.
//
// Do not go through all lines as a set-back is noticed: there may be thousands.
func (d *delay) until(last setBack) time.Time {
	if !d.noticed.Equal(last.noticed) {
		d.noticed = last.noticed
		d.end = later(d.end, last.noticed.Add(max(last.own, d.longest)))
	}
	return d.end
}

// left is for how long d goes on.
func (d *delay) left(now time.Time, last setBack) time.Duration {
	return max(0, d.until(last).Sub(now))
}

// later is the later one of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
