package lease

import (
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/etcd/keepalive"
)

// repeats are what a keeper knows of a renewal that is sent again because it has failed. Only the
// keeper's goroutine changes them.
type repeats struct {
	granted  time.Time
	after    time.Time // streams that were opened later may carry the next renewal
	counted  bool      // the next sending is within the budget of repeats
	repeated bool      // it has failed already
}

// failed notes that the renewal that was sent last has failed. One that was not even sent costs
// etcd nothing, and neither does its repeat.
func (k *keeper) failed(r renewal) {
	k.after, k.repeated = later(k.after, r.started), true
	k.counted = !errors.Is(r.err, attempt.ErrUnreachable)
}

// succeeded notes that a renewal was good.
func (k *keeper) succeeded() {
	k.repeats = repeats{granted: k.granted, after: k.granted}
	k.sender.Rest()
}

// allowed is how many renewals may be sent now, of those that are wanted. If that is none, sendSoon
// is called when there may be.
func (k *keeper) allowed(wanted int) int {
	switch {
	case k.counted:
		wanted = k.sender.Repeat(k.until(), wanted)
	case k.unanswered > 0:
		k.after = later(k.after, k.lastStarted)
		k.sender.Rest() // after silence few are sent anyway
	}
	k.counted = k.counted && wanted == 0
	return wanted
}

// sendSoon has the keeper send a renewal. It may be called by any goroutine.
func (k *keeper) sendSoon() { k.next.Reset(0) }

// renewal is one that is sent now.
func (k *keeper) renewal() keepalive.Renewal {
	return keepalive.Renewal{
		Sent: k.lastStarted, After: k.after, Until: k.until(), Patience: k.plan.Late(),
	}
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
