package hold

import (
	"time"

	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// A localLine is what a Session has of one name: the queue of its goroutines, of which only the
// owner has a place in etcd's line, and what it knows about that line. Session.mu guards it.
type localLine struct {
	queue.Line // etcd's line, as it is known
	s          *Session
	queue      turn.Queue[*claim]
	ahead      line.Ahead         // before the last place, if it was given up without a hold
	tries      *list.List[*claim] // in the queue, that wait for no other contender
	swept      list.Node[*localLine]
	asking     *asking // of the claims that ask, nil without one

	// Invariant: while a key lingers the turn has no owner, and no claim waits.
	kept  *place      // the place whose key lingers, nil if none does
	until time.Time   // when it is given up
	due   *time.Timer // calls lingered, in keep.go; nil before a key lingers
	dueAt time.Time   // when, zero if it is not set

	marked     bool       // its admission follows at the Unlock
	markedNext *localLine // the one that was marked before it
}

// lineAtLocked returns the local line of s for a name. It makes it if there is none. Unused lines
// are kept for their key names, up to a number: a line that is made then has two others looked at,
// of which those go that are not used.
func lineAtLocked(s *Session, name string) *localLine {
	if n := s.lines[name]; n != nil {
		return n
	}
	for range min(2, max(0, s.inOrder.Len()-keptLines)) {
		n, _ := s.inOrder.First()
		n.EndOldViewLocked()
		if n.queue.State() == turn.Free && n.kept == nil && n.IdleLocked() {
			delete(s.lines, n.Name)
			n.swept.Remove()
		} else {
			s.inOrder.Add(&n.swept, n)
		}
	}
	n := &localLine{s: s, ahead: line.None}
	n.Init(s.keys, name, n)
	s.lines[name] = n
	s.inOrder.Add(&n.swept, n)
	return n
}

// holdLocked is the owner's hold, nil if there is none.
func (n *localLine) holdLocked() *Hold {
	if owner := n.queue.Owner(); owner != nil {
		return owner.hold
	}
	return nil
}

// PlaceLocked is as in queue.Local.
func (n *localLine) PlaceLocked() *queue.Place {
	switch owner := n.queue.Owner(); {
	case owner == nil:
		return n.LingeringLocked()
	case owner.place == nil:
		return nil
	default:
		return &owner.place.Place
	}
}

// checkOwnerLocked has the owner's hold follow what has happened to it: after a pause no timer may
// have run. It comes before busyLocked.
func (n *localLine) checkOwnerLocked() {
	if owner := n.queue.Owner(); owner != nil && owner.hold != nil {
		owner.hold.checkLocked(time.Now())
	}
}

// busyLocked is what is in the way of a waiter in the queue, or of a claim of a kind that comes now
// if w is nil. The queue has an owner.
func (n *localLine) busyLocked(w *turn.Waiter[*claim], kind line.Kind) *Busy {
	b := &Busy{Name: n.Name, Ahead: n.queue.Ahead(w), LockDelay: n.DelayLocked(time.Now(), kind)}
	owner := n.queue.Owner()
	if owner.Kind == line.Permit {
		b.Ahead += n.queue.Sharing() // each has a key
	}
	ahead := n.ahead // in etcd, of the owner
	if p := owner.place; p != nil && p.Ticket.Rev() != 0 {
		ahead = line.None
		if owner.hold == nil {
			ahead = p.Ahead
		}
	}
	if count := ahead.Count(); count > 0 {
		b.Ahead, b.inEtcd = b.Ahead+count, ahead.Holder()
		b.Here = n.s.keys.HasLocked(b.inEtcd)
		return b
	}
	first := n.firstLocked()
	b.own, b.Here = first.contenderLocked(), true
	if first.lostLocked() {
		b.Lost = first.place.Ticket.Rev()
	}
	return b
}

// firstLocked is the claim that has had the turn for longest, of the claims that have it and have
// not lost their holds. If all have lost theirs it is the owner. There is one. It looks at a few:
// if these have lost theirs, so have mostly all.
func (n *localLine) firstLocked() *claim {
	looked := 0
	for c := range n.queue.Having() {
		if !c.lostLocked() {
			return c
		}
		if looked++; looked == queue.FewAhead {
			break
		}
	}
	return n.queue.Owner()
}

// aheadLocked is what is in the way of the owner of n, of a kind, which has no place in etcd's
// line. It knows what the owner before it has seen there. It is nil if nothing is known to be in
// the way.
func (n *localLine) aheadLocked(kind line.Kind) *Busy {
	delay := n.DelayLocked(time.Now(), kind)
	if n.ahead.Count() == 0 && delay.Lasts == 0 {
		return nil
	}
	return n.busyBehindLocked(n.ahead, delay)
}

// busyBehindLocked is busyBehind for an error of a call: it also knows whose keys these are.
func (n *localLine) busyBehindLocked(ahead line.Ahead, delay queue.LockDelay) *Busy {
	b := busyBehind(n.Name, ahead, delay)
	b.Here = n.s.keys.HasLocked(b.inEtcd)
	return b
}

// nextLocked chooses the next waiter, and takes a place for it if there is a lease. The release of
// h, the owner's hold, must put the place's key and then call endTurnLocked. It puts none while
// holders that shared the key, and have lost it, may be at work.
func (n *localLine) nextLocked(h *Hold) *place {
	w := n.queue.First()
	if w == nil || w.Value.Try || w.Value.call.together || len(h.all) > 1 || n.queue.Sharing() > 0 {
		return nil // a key that is put so stands in line, whatever is before it, and alone
	}
	next, _ := n.queue.Choose()
	if k := n.s.keys.AccountLocked(); k != nil {
		return newPlaceLocked(next, k)
	}
	return nil
}

// newPlaceLocked takes a place for c on the lease of an account, which is the current one and
// usable.
func newPlaceLocked(c *claim, k *queue.Account) *place {
	p := &place{m: c.m, local: c.local}
	k.TakeLocked(&p.Place, queue.Seat{
		Line: &c.local.Line, Shape: c.Shape, Listens: c.m.cfg.Recall > 0, Owner: p,
	})
	if c.waiter.Shares {
		c.local.queue.Gather() // a waiter that comes from here on may come after the put
	}
	return p
}

// endTurnLocked ends the turn of c, which leaves a place, or nil: it was put for the next waiter,
// or c has waited or held there. If other claims share the turn they go on with it. Otherwise the
// next waiter has the turn, and the place if that suits; else the place is given up. Without a
// waiter the local line is free.
//
// Do not pass a place on to a read that came after the put: it would overtake the writers that came
// in between. (TestAReadTakesOverNoPlaceThatWasPutBeforeItCame)
func (n *localLine) endTurnLocked(c *claim, left *place) {
	parts := c.Kind != line.Exclusive && n.queue.Part(&c.waiter)
	late := left != nil && n.comesLateLocked()
	var next *claim
	if !parts {
		next, _ = n.queue.Pass()
	}
	n.MarkLocked()
	if left != nil && (next == nil || late || next.Try || !left.suits(next)) {
		left.AbandonLocked(false)
		left = nil
	}
	switch {
	case next != nil:
		next.hasTurnLocked(left)
	case !parts:
		n.ahead = line.None
	}
}

// comesLateLocked reports whether the first waiter is a read that came after the last put.
func (n *localLine) comesLateLocked() bool {
	first := n.queue.First()
	return first != nil && first.Shares && !n.queue.Early(first) && first.Standing() != turn.Next
}

// A cohort is the reads of one Session that share a key, and the turn of their local line. The
// first read has put the key. Other reads join it:
//
//   - when the hold begins, the reads that were right behind it in the local line as it was about
//     to put the key: they came before the put, so they overtake no contender;
//   - later, a read that comes while the key lasts and the local line has no waiter, if a watch
//     shows that no exclusive contender stands in etcd's line. Otherwise it waits for its turn.
//
// So a writer waits only for reads that began before it came, and for the time of one event.
//
// Invariant: to join is safe at any moment at which the Session's mutex is held, the ticket is
// Held, and the lease is trusted: from the release or the removal on, which begin under the mutex,
// the ticket is Leaving. An exclusive contender that came to etcd's line in between waits for the
// key, so the watch is asked for the sake of order, and may be late. (Do not join a key whose lease
// does not last: it would end with the next renewal that is late.
// TestNobodyJoinsAKeyWhoseLeaseDoesNotLast.)
//
// Invariant: the key stays while a hold at it is whole, or has ended whole and is being freed
// (place.Refs). The last of these releases it, or has it removed. The turn stays with the Session
// until all its holds are unlocked, lost or not. (Do not release for one of several.
// TestAWriterWaitsForEveryReaderOfItsSession.)
//
// What becomes of reads that come, by what has happened to the owner of the turn:
//
//	it puts the key        they wait in the local line, TryRLock too: etcd decides
//	it waits in etcd's     they wait; TryRLock is refused
//	 line                  it gives up: the next read, if it came before the put, goes on
//	                       waiting at its place
//	it holds               they join, or wait: for the watch, or for their turn
//	it has unlocked, and   it goes; one of the reads that hold owns the turn
//	 other reads hold
//	the last one unlocks   they wait: they take a place of their own
//	it is recalled         they wait; a hold that listens goes on for its grace
//	its key is lost        the cohort has lost it; they wait until all its holds are unlocked
//
// A key that reads hold is not handed off, nor does it linger: to join does more.

// Permits have each a key of their own. The permits of a Session keep the order of their calls: one
// of them at a time puts its key and waits in etcd's line, and owns the turn of the local line; the
// permits that hold have the turn beside it. So a Session has at most one key of a name that waits,
// and the next one is put when the one before holds, or has gone.
//
// Invariant: a permit that has the turn beside the owner holds, or has lost its hold and not
// unlocked. (Do not let the next one put its key as soon as the one before stands in line. A large
// one would be overtaken if it has to queue anew. TestPermitsOfASessionKeepTheirOrder.)
//
// An exclusive claim, or a read, that comes later waits in the local line until all claims that
// have the turn have unlocked, and permits that come after that wait behind it.

// An admission is what becomes of a claim that reads, or wants permits, where other claims have the
// turn.
type admission int

const (
	admitted  admission = iota // it has the turn beside them
	undecided                  // etcd has to tell first
	mustQueue                  // it waits for their turn to end
)

// admissionLocked is the admission of a claim of a kind: the first waiter, or a new claim where
// there is no waiter. early says that it came before the key was put.
func (n *localLine) admissionLocked(kind line.Kind, early bool) admission {
	switch owner := n.queue.Owner(); {
	case owner == nil || owner.Kind != kind || kind == line.Exclusive:
		return mustQueue
	case kind == line.Permit:
		return leavesRoomLocked(owner)
	default:
		return n.admissionOfReadLocked(owner, early)
	}
}

// admissionOfReadLocked is the admission of a read, where the owner reads or is about to, at the
// owner's place.
func (n *localLine) admissionOfReadLocked(owner *claim, early bool) admission {
	p := owner.place
	lost := p != nil && (p.Ticket.Lost() || p.GivenUpLocked() || p.Ticket.State() == ticket.Removed)
	switch {
	case p == nil, lost && owner.hold == nil: // it queues anew, or gives up
		return undecided
	case lost, // the holds that have lost it are yet to be unlocked
		p.Recall != nil, // (Do not join. TestNobodyJoinsARecalledCohort.)
		p.waitsLocked():
		return mustQueue
	case p.Ticket.State() != ticket.Held: // its put is under way, or its release
		return undecided
	case early:
		return admitted
	case !p.Lease.ServesLocked():
		return mustQueue
	case !p.LastsLocked(): // a renewal is late, or etcd was set back
		return undecided
	}
	switch stands, live := n.ExclusiveLocked(); {
	case !live:
		return undecided
	case stands:
		return mustQueue
	default:
		return admitted
	}
}

// leavesRoomLocked is the admission of a permit where c, which wants permits too, owns the turn.
func leavesRoomLocked(c *claim) admission {
	switch {
	case c.waiter.Standing() == turn.Holder:
		return admitted
	case c.place != nil && c.place.waitsLocked():
		return mustQueue
	default:
		return undecided
	}
}

// The markedLines of a Session are the local lines whose admissions follow at the Unlock; they are
// the Settler of its mutex.
type markedLines struct {
	last     *localLine
	settling bool // a goroutine makes the admissions that are left
}

// MarkLocked notes that something has changed on which n's admission depends: that of a waiter. One
// that comes later marks n itself.
func (n *localLine) MarkLocked() {
	if n.asking != nil {
		n.asking.tellLocked()
	}
	if !n.marked && n.queue.Waiting() > 0 {
		n.marked, n.markedNext, n.s.marked.last = true, n.s.marked.last, n
	}
}

// SettleLocked makes the admissions of the lines that were marked: a piece of them now, and the
// rest in a goroutine. An admission may change its line, or end a lease, and so mark lines.
//
// Invariant: while mu is free, each line that is not marked is as its admission leaves it, and if
// one is marked a goroutine is about to unlock mu. So no waiter waits for longer than that which
// may have the turn beside its owner, TryRLock and TryAcquire wait only where etcd has to tell
// first, and where a watch has to tell there is one, if there can be. Whatever changes what an
// admission asks marks the line: the turn, the place of its owner, the view, and the lease. (Time
// alone makes it only less certain: a lease that is not renewed lasts no longer.) Do not call an
// admission by hand where something changes: a call that is forgotten is a hang.
// (TestAWaiterIsLetInByTheUnlockOfWhateverChanges.)
func (all *markedLines) SettleLocked() {
	for range guard.Piece {
		n := all.last
		if n == nil {
			return
		}
		n.marked, n.markedNext, all.last = false, nil, n.markedNext
		n.admitLocked()
	}
	if all.last != nil && !all.settling {
		all.settling = true
		s := all.last.s
		s.tasks.Go(func() { all.settle(&s.mu) })
	}
}

// settle has the admissions made that SettleLocked has left: each Unlock makes a piece of them.
func (all *markedLines) settle(mu *guard.Mutex) {
	for goesOn := true; goesOn; {
		mu.Lock()
		goesOn = all.last != nil
		all.settling = goesOn
		mu.Unlock()
	}
}

// admitLocked lets the first waiter in if it reads, or wants permits, and may have the turn beside
// its owner. It refuses the waiters that would have to wait for another contender, and do not want
// to.
func (n *localLine) admitLocked() {
	first := n.queue.First()
	if first == nil || first.Value.exclusive() || n.queue.State() != turn.Taken {
		return
	}
	switch n.admissionLocked(first.Value.Kind, n.queue.Early(first)) {
	case admitted:
		n.letInLocked(first.Value)
	case undecided:
		n.seekLocked()
	case mustQueue:
		n.RefuseLocked(nil)
	}
}

// letInLocked gives c, the first waiter, the turn beside its owner: as the next owner, if c wants
// permits, and with a hold at the owner's place, if c reads.
func (n *localLine) letInLocked(c *claim) {
	if c.waiter.Steps {
		n.queue.Admit()
		n.MarkLocked()
		c.hasTurnLocked(nil)
		return
	}
	p := n.queue.Owner().place
	now := time.Now()
	if p.checkCanBeginLocked(c, now) != nil {
		return
	}
	p.newHoldLocked(c, nil, now)
	n.queue.Admit()
	n.MarkLocked() // the next one may, too
	c.hasTurnLocked(p)
	n.JoinedLocked()
}

// seekLocked has etcd's line watched for a read that waits to join.
func (n *localLine) seekLocked() {
	if h := n.holdLocked(); h != nil && !n.WatchedLocked() && !h.m.s.leases.ClosedLocked() {
		n.WatchLocked(true)
	}
}

// A refusal ends the wait of a TryRLock or TryAcquire for its turn: it would have to wait for
// another contender, or etcd has refused to tell.
type refusal struct{ answer error } // etcd's, nil if it has not refused

func (*refusal) Error() string { return "refused" }

// RefuseLocked ends the waits of the claims that wait for no other contender: of each once, a piece
// of them now, and the rest in a goroutine. answer is etcd's, if that has refused to tell whether
// there is one.
func (n *localLine) RefuseLocked(answer error) {
	tries, why := n.tries, &refusal{answer}
	for range guard.Few {
		c, some := tries.First()
		if !some {
			return
		}
		c.refuseLocked(why)
	}
	if tries.Len() > 0 {
		n.tries = nil // a claim that comes from here on is not refused
		refuse := func(c *claim) { c.refuseLocked(why) }
		n.s.tasks.Go(func() { guard.Pieces(&n.s.mu, tries.Firsts(), refuse) })
	}
}

// mayAdmitLocked reports whether c, which comes, and the waiters before it may all get the turn
// beside its owner: then it may be etcd alone that c waits for.
func (n *localLine) mayAdmitLocked(c *claim) bool {
	alike := c.Kind == line.Read && n.queue.AllShare() || c.Kind == line.Permit && n.queue.AllStep()
	return alike && n.admissionLocked(c.Kind, false) != mustQueue
}

// SharesLocked is as in queue.Local.
func (n *localLine) SharesLocked() bool {
	h := n.holdLocked()
	if h == nil || !h.claim.reads() {
		return false
	}
	first := n.queue.First()
	return n.queue.Sharing() > 0 || first != nil && first.Shares
}
