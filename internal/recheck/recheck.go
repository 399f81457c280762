// Package recheck says how often a waiter that waits by a watch checks whether it has missed an
// event. It is pure: it has no clock, no mutex and no goroutine.
package recheck

import "time"

const (
	// Least is how often a waiter rechecks when it has just begun to wait.
	Least = 1500 * time.Millisecond

	// young is how long that goes on.
	young = 8 * Least

	// PerContender is how much the period grows with each contender in the line. With it,
	// all waiters of a line together send some 17 requests a second, whatever their
	// clients.
	PerContender = 60 * time.Millisecond
)

// Period is the time from one recheck to the next, for a waiter that has relied on its
// watch for some time, in a line of that many contenders. The caller draws the time between
// from and to, so that crowds do not act in step.
//
// Invariant: a lost event delays a waiter by Least at first. Later it delays the waiter by
// no longer than it has waited, and by no more than a TTL and a third, give or take an
// eighth. In a long line it is as long as PerContender says. In the long run there is one
// recheck for four renewals of a lease that is renewed every third of its TTL. (Do not
// recheck as often in a line of a thousand as in a short one: together the waiters would
// keep etcd busy. TestAllInALineTogetherLookSeldom. Do not recheck as rarely with a short
// TTL as with a long one: a waiter on a member that hangs has nothing else. The simulation
// shows it. Do not ask for the progress of the stream instead: etcd does not answer while
// one of its watches begins at a future revision. docs/scale.md.)
func Period(relied, ttl time.Duration, contenders int) (from, to time.Duration) {
	period := Least
	if relied > young {
		period = relied
	}
	if period/4 > ttl/3 { // four thirds of the longest TTLs overflow
		period = max(ttl/3*4, Least)
	}
	if crowd := time.Duration(contenders) * PerContender; crowd > period {
		return crowd / 2, crowd / 2 * 3 // waiters that came at once do not recheck at once
	}
	return period / 8 * 7, period / 8 * 9
}
