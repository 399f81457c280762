package etcd

import (
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

const (
	// lookEvery is the time from one look to the next.
	lookEvery = 350 * time.Millisecond

	// wallAhead is by how much the wall clock gains in that time if the machine has slept, or the
	// clock was set forward. A clock that is only corrected gains less.
	wallAhead = 20 * time.Millisecond
)

// A lookout sees, for all leases of a client, what no event tells and no timer: that the wall clock
// runs ahead of the monotonic one, and that a Session of the client has noticed a set-back of etcd.
//
// (Do not have each lease look. A thousand of them look more often than they are renewed.
// TestAnIdleHoldWakesForItsRenewalsAlone.)
type lookout struct {
	history *history // the client's

	mu     sync.Mutex
	alarms map[*func()]struct{}
	timer  *time.Timer // nil before the first
	looked time.Time   // when the last look was
	era    *era        // at that time
}

// lookouts are those of all clients.
var lookouts attempt.Shared[lookout]

// lookoutOf returns the lookout of a client.
func lookoutOf(client *clientv3.Client) *lookout {
	return attempt.SharedBy(&lookouts, client, func() *lookout {
		return &lookout{history: historyOf(client), alarms: make(map[*func()]struct{})}
	})
}

// add has alarm called when something was seen, until stop is called. alarm does not wait.
func (o *lookout) add(alarm func()) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.alarms[&alarm] = struct{}{}; len(o.alarms) == 1 {
		o.looked, o.era = time.Now(), o.history.present.Load()
		if o.timer == nil {
			o.timer = time.AfterFunc(lookEvery, o.look)
		} else {
			o.timer.Reset(lookEvery)
		}
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if delete(o.alarms, &alarm); len(o.alarms) == 0 {
			o.timer.Stop()
		}
	}
}

func (o *lookout) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.alarms) == 0 {
		return // it was stopped just now
	}
	o.lookLocked(time.Now())
	o.timer.Reset(lookEvery)
}

func (o *lookout) lookLocked(now time.Time) {
	present := o.history.present.Load()
	ahead := now.Round(0).Sub(o.looked.Round(0)) - now.Sub(o.looked)
	if ahead >= wallAhead || present != o.era {
		for alarm := range o.alarms {
			(*alarm)()
		}
	}
	o.looked, o.era = now, present
}
