// Package recheck says how often one who waits by a watch looks whether it has missed an event. It
// is pure: it has no clock, no lock and no goroutine.
package recheck

import "time"

const (
	// Least is how often one who has just begun to wait looks.
	Least = 1500 * time.Millisecond

	// young is for how long that is.
	young = 8 * Least

	// perContender is how much longer the period is for each contender in the line, so that
	// those in a line together send some 17 requests a second, whatever clients they come from.
	perContender = 60 * time.Millisecond
)

// Period is how long after one look the next one is due, for one who has relied on its watch for a
// time, in a line of so many contenders. Whoever asks draws it between from and to, so that
// crowds do not act in step.
//
// Invariant: an event that is lost delays a waiter by Least at first, later by no longer than it
// has waited, and by no more than a TTL and a third, give or take an eighth; but in a long line
// by as long as perContender says. In the long run looks are a quarter of the messages of a lease
// that is renewed each third of its TTL. (Do not look as often in a line of a
// thousand as in a short one: together they would keep etcd busy.
// TestAllInALineTogetherLookSeldom. Do not look as seldom with a short TTL as with a long one:
// who waits on a member that hangs has nothing else. The simulation shows it. Do not ask for the
// progress of the stream instead: etcd does not answer while one of its watches begins at a revision
// that is not there yet. docs/scale.md.)
func Period(relied, ttl time.Duration, contenders int) (from, to time.Duration) {
	period := Least
	if relied > young {
		period = relied
	}
	period = min(period, max(ttl/3*4, Least))
	if crowd := time.Duration(contenders) * perContender; crowd > period {
		return crowd / 2, crowd / 2 * 3 // those who came at once do not look at once
	}
	return period / 8 * 7, period / 8 * 9
}
