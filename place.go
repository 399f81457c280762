package etcdlock

import (
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// crowded is how many keys are below a name whose line is long. A place there needs to know
// little of it.
const crowded = 4 * fewAhead

var (
	// errQueueAnew says that a place is lost through no fault of its owner. The
	// owner takes a new one.
	errQueueAnew = errors.New("place in line lost")

	// errTaken says that TryLock found another contender.
	errTaken = errors.New("taken")
)

// A place is what the Session has of one ticket: its lease, and the claim or hold that has it.
//
// Its life: taken from a lease by newPlaceLocked, put by a call or a release, waited in by wait,
// and then either held and released, or abandoned. Until etcd has confirmed that
// its key is gone, the lease accounts for it. The ticket says where its key stands.
type place struct {
	// Set once, then only read.
	s       *Session
	m       *lockHandle
	local   *localLine
	lease   *lease.Lease
	account *account // of the lease's keys

	// Guarded by Session.mu.
	ticket ticket.Ticket
	since  time.Time    // when its revision became known
	ahead  line.Ahead   // before this place, when last looked at
	asPut  bool         // ahead is what the transaction has read that put the key
	hold   *hold        // the last one to begin, nil while waiting
	refs   int          // how many holds need the key: that are whole, or being freed
	held   time.Time    // since when it is Held
	watch  *keyWatch    // of the key while it is held; nil for short holds
	recall *line.Recall // the one with the shortest grace that its value has had, nil without any
	epoch  *etcd.Epoch  // of the last answer with the revision or the line
	seen   *view        // the view that has seen its key
	using  bool         // counted among the lease's users
	spare  bool         // a lingering key that was given up is being removed
	stuck  bool         // its removal was given up; the account says why
	tells  bool         // its removal also reads what was ahead of it, for a failed call

	news chan struct{} // wakes the waiter at it: its key, its view or the connection has changed

	removed chan struct{}   // closed when the removal is over; nil before abandonLocked
	after   <-chan struct{} // if not nil, the removal waits for that of another place
}

// observedLocked has p's ticket judge what was observed of a key, and draws the conclusions. All
// that events, views and reads show of p's key comes here.
func (p *place) observedLocked(o ticket.Observation) ticket.Seen {
	known := p.ticket.Lost()
	seen := p.ticket.Observe(o)
	if seen == ticket.Same {
		p.noteRecallLocked(o.Entry)
	}
	if known || !seen.IsLoss() {
		return seen
	}
	if seen == ticket.Replaced { // that key blocks the line
		p.account.SuspectLocked()
	}
	if p.ticket.Lost() {
		p.lostLocked()
	} else {
		p.account.askWhyLocked(p)
	}
	return seen
}

// lostLocked draws the conclusions of the loss of p's key.
func (p *place) lostLocked() {
	p.unwatchLocked()
	p.tellLocked()
	p.keyLostLocked()
	p.giveWayLocked()
	p.markLocked()
}

// markLocked marks the local line of p.
func (p *place) markLocked() { p.local.markLocked() }

// isGone reports whether p's key is known to be lost: deleted or put over by another request.
func (p *place) isGone() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.ticket.Lost()
}

// tellLocked wakes the waiter at p.
func (p *place) tellLocked() {
	select {
	case p.news <- struct{}{}:
	default: // told already, or no call waits
	}
}

// value is the value of p's key, which is put now.
func (p *place) value() string { return p.m.cfg.value(p.ticket.Kind) }

// tellsOf reports whether the value of p's key is true of a hold of c: the label, the info, and
// whether it may be recalled. (Do not have c hold at p otherwise: a recall would be refused though
// the hold listens, or written though the hold does not.
// TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue.)
func (p *place) tellsOf(c *claim) bool {
	return p.m.cfg.texts[p.ticket.Kind] == c.m.cfg.texts[c.kind]
}

// listens reports whether p's key says that it may be recalled.
func (p *place) listens() bool { return p.m.cfg.recall > 0 }

// asPutLocked compares p's key with what was put, if p listens and was not recalled: a recheck
// shows that an event was lost.
func (p *place) asPutLocked() []clientv3.Cmp {
	if !p.listens() || p.recall != nil {
		return nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(p.ticket.Key), "=", p.ticket.Rev())}
}

// contender is p as other contenders see it.
func (p *place) contender() Contender {
	c := p.m.contender()
	c.Key, c.Token, c.Lease, c.Since = p.ticket.Key, p.ticket.Rev(), p.lease.ID, p.since
	c.Mode, c.Holds = p.ticket.Kind.String(), p.hold != nil
	return c
}

// queuedLocked notes what an answer of an epoch says about p's line.
func (p *place) queuedLocked(ahead line.Ahead, told *etcd.Epoch) {
	p.since = time.Now()
	p.local.crowded = ahead.Keys > crowded && ticket.Tells(ahead)
	p.setAheadLocked(ahead, told)
	p.asPut = true
}

// expectsCrowd reports whether p is likely to stand in a long line, as the one before it did, and
// tells behind which key that one stood if it is watched yet.
func (p *place) expectsCrowd() (crowded bool, last string) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if w := p.local.last; w != nil {
		last = w.key
	}
	return p.local.crowded, last
}

// staleLocked reports whether p was last seen in an epoch before.
func (p *place) staleLocked() bool { return p.epoch != p.s.etcd.Epoch() }

// lastsLocked reports whether another hold may begin at p, after one has ended there.
func (p *place) lastsLocked() bool {
	l := p.lease
	now := time.Now()
	l.CheckLocked(now)
	return l.ServesLocked() && p.recall == nil && !p.ticket.Lost() && !p.staleLocked() &&
		l.LastsLocked(now)
}

// lingersLocked reports whether p's key lingers.
func (p *place) lingersLocked() bool { return p.local.queue.Lingering() == p }

// giveWayLocked gives p's key up if that lingers.
func (p *place) giveWayLocked() {
	if p.lingersLocked() {
		p.local.giveWayLocked()
	}
}

// keysOf are the keys of places.
func keysOf(places []*place) []string {
	keys := make([]string, len(places))
	for i, p := range places {
		keys[i] = p.ticket.Key
	}
	return keys
}
