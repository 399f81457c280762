package hold

import (
	"time"

	"github.com/etcdlock/etcdlock/internal/ask"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A localLine is what a Session has of one name: the queue of its goroutines, and what it knows
// about etcd's line. Only the owner of the queue's turn has a place there. Session.mu guards it.
type localLine struct {
	queue.Line // etcd's line, as it is known
	s          *Session
	queue      home.Queue[*claim]
	before     *line.Ahead        // the last place, if it was given up without a hold; nil: None
	tries      *list.List[*claim] // in the queue, that wait for no other contender
	next       *localLine         // in the lines of the Session
	asking     *ask.Asking        // of the claims that ask, nil without one

	// Invariant: while a key lingers the turn has no owner, and no claim waits.
	kept      *place     // the place whose key lingers, nil if none does
	lingering *lingering // until when; nil before a key lingers

	marked     bool       // its admission follows at the Unlock
	markedNext *localLine // the one that was marked before it
}

// lingering is the time of a key that lingers.
type lingering struct {
	until time.Time   // when it is given up
	due   *time.Timer // calls lingered, in keep.go
	dueAt time.Time   // when, zero if it is not set
}

// lineAtLocked returns the local line of s for a name. It makes it if there is none. Unused lines
// are kept for their key names, up to a number: for each line that is made then, two others are
// looked at, and go if they are not used.
func lineAtLocked(s *Session, name string) *localLine {
	if n := s.lines[name]; n != nil {
		return n
	}
	for range min(2, max(0, len(s.lines)-keptLines)) {
		n := s.inOrder.take()
		n.EndOldViewLocked()
		if n.queue.State() == home.Free && n.kept == nil && n.IdleLocked() {
			delete(s.lines, n.Name)
		} else {
			s.inOrder.add(n)
		}
	}
	n := &localLine{s: s}
	n.Init(s.keys, name, n)
	s.lines[name] = n
	s.inOrder.add(n)
	return n
}

// lineOrder is the lines of a Session in the order in which they are swept. The zero one has none.
type lineOrder struct{ first, last *localLine }

// add adds n as the last one.
func (o *lineOrder) add(n *localLine) {
	if o.first == nil {
		o.first = n
	} else {
		o.last.next = n
	}
	o.last = n
}

// take takes the first one out, nil if there is none.
func (o *lineOrder) take() *localLine {
	n := o.first
	if n != nil {
		o.first, n.next = n.next, nil
	}
	return n
}

// taken yields each line as it takes it out, until there is none.
func (o *lineOrder) taken(yield func(*localLine) bool) {
	for n := o.take(); n != nil && yield(n); n = o.take() {
	}
}

// holdLocked is the owner's hold, nil if there is none.
func (n *localLine) holdLocked() *Hold {
	if owner := n.queue.Owner(); owner != nil {
		return owner.hold
	}
	return nil
}

// PlaceLocked returns the place of the claim that has the turn, or of the key that lingers
// (queue.Local).
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

// busyLocked is what is in the way of w, which waits in the queue. If w is nil it is what would be
// in the way of a claim of a kind that comes now. The queue has an owner.
func (n *localLine) busyLocked(w *home.Waiter[*claim], kind line.Kind) *Busy {
	b := &Busy{Name: n.Name, Ahead: n.queue.Ahead(w), LockDelay: n.DelayLocked(time.Now(), kind)}
	owner := n.queue.Owner()
	if owner.Kind == line.Permit {
		b.Ahead += n.queue.Sharing() // each has a key
	}
	ahead := n.ahead() // in etcd, of the owner
	if p := owner.place; p != nil && p.Ticket.Rev() != 0 {
		ahead = line.None
		if owner.hold == nil {
			ahead = *p.Ahead
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

// firstLocked is the claim that others see as the holder: of the claims that have the turn, the
// first whose hold is not lost, or the owner if all holds are lost. It looks at a few: if these
// have lost theirs, mostly all have. The queue has an owner.
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

// aheadLocked is what is in the way of the owner of n, which is of a kind and has no place in
// etcd's line: what the owner before it has seen there, or the lock delay. It is nil if neither is
// known.
func (n *localLine) aheadLocked(kind line.Kind) *Busy {
	delay := n.DelayLocked(time.Now(), kind)
	if n.ahead().Count() == 0 && delay.Lasts == 0 {
		return nil
	}
	return n.busyBehindLocked(n.ahead(), delay)
}

// ahead is what was ahead of the last place of n in etcd's line, as it was given up without a hold.
func (n *localLine) ahead() line.Ahead {
	if n.before == nil {
		return line.None
	}
	return *n.before
}

// busyBehindLocked is busyBehind for an error of a call: it also knows whose keys these are.
func (n *localLine) busyBehindLocked(ahead line.Ahead, delay queue.LockDelay) *Busy {
	b := busyBehind(n.Name, ahead, delay)
	b.Here = n.s.keys.HasLocked(b.inEtcd)
	return b
}

// nextLocked chooses the next waiter, and takes a place for it if there is a lease. The release of
// h, the owner's hold, must put the place's key and then call endTurnLocked. No key of several
// names is put so, nor beside theirs: see call.
func (n *localLine) nextLocked(h *Hold) *place {
	if w := n.queue.First(); w == nil || w.Value.call.together || len(h.all()) > 1 {
		return nil
	}
	next, chosen := n.queue.Choose()
	if !chosen {
		return nil
	}
	if k := n.s.keys.AccountLocked(); k != nil {
		return newPlaceLocked(next, k)
	}
	return nil
}

// newPlaceLocked takes a place for c on the lease of an account, which is the current one and
// usable.
func newPlaceLocked(c *claim, k *queue.Account) *place {
	p := &place{m: c.m, local: c.local, after: c.call.after}
	k.TakeLocked(&p.Place, queue.Seat{
		Line: &c.local.Line, Shape: c.Shape, Listens: c.m.cfg.Recall > 0, Owner: p,
	})
	if c.waiter.Shares {
		c.local.queue.Gather() // a waiter that comes from here on may come after the put
	}
	return p
}

// endTurnLocked ends the turn of c, which leaves a place, or nil: it was put for the next waiter,
// or c has waited or held there. If the next waiter does not have the place it is given up.
func (n *localLine) endTurnLocked(c *claim, left *place) {
	suits := false
	if first := n.queue.First(); left != nil && first != nil {
		suits = left.suits(first.Value)
	}
	next, ends := n.queue.End(&c.waiter, suits)
	n.MarkLocked()
	if left != nil && ends != home.HandsOn {
		left.AbandonLocked(queue.Removal{})
		left = nil
	}
	switch ends {
	case home.Passes, home.HandsOn:
		next.hasTurnLocked(left)
	case home.Frees:
		n.before = nil
	}
}

// keyLocked is what is known of the owner's key, or of the one that lingers, for a decision about
// c. The keys of a view are gone through only for a read that depends on them.
func (n *localLine) keyLocked(c *claim) (k home.Key) {
	p := n.kept
	if owner := n.queue.Owner(); owner != nil {
		p = owner.place
	}
	if p == nil {
		return k
	}
	k.State, k.Lost = p.Ticket.State(), p.Ticket.Lost() || p.GivenUpLocked()
	k.Waits, k.Recalled, k.Ended = p.waitsLocked(), p.Recall != nil, p.Account.Lease.HasEndedLocked()
	if k.State != ticket.Held {
		return k
	}
	k.Suits, k.Serves, k.Lasts = p.suits(c), p.Account.Lease.ServesLocked(), p.LastsLocked()
	k.Begins = p.checkCanBeginLocked(c, time.Now()) == nil
	if k.Lasts && c.reads() && !n.queue.Early(&c.waiter) {
		switch stands, live := n.ExclusiveLocked(); {
		case stands:
			k.Writers = home.AWriter
		case live:
			k.Writers = home.NoWriter
		}
	}
	return k
}

// admissionLocked is the admission of c: the first waiter, or a new claim where there is no waiter.
func (n *localLine) admissionLocked(c *claim) home.Admission {
	return n.queue.Admission(&c.waiter, n.keyLocked(c))
}

// InWayLocked says who is in the way of the waits of n (ask.Local).
//
// (Nobody is while the first waiter may get in beside the owner, or etcd has to tell first: it
// would have the hold ended that it is about to share. TestAReadThatJoinsAsksNobody. Once it is in,
// or has to wait, the line is marked.)
func (n *localLine) InWayLocked() (in ask.InWay) {
	owner, first := n.queue.Owner(), n.queue.First()
	comes := first != nil && n.admissionLocked(first.Value) != home.MustQueue
	if owner == nil || owner.place == nil || comes {
		return in
	}
	switch p := owner.place; {
	case owner.hold == nil:
		in.Own, in.Line = p.Ticket.Entry(), p.waitsLocked()
	case owner.Kind == line.Permit: // and others beside it, each with a key
		in.Line = true
	case p.Ticket.State() == ticket.Held:
		in.Ours = &p.Place
	}
	return in
}

// The markedLines of a Session are the local lines whose admissions follow at the Unlock; they are
// the Settler of its mutex.
type markedLines struct {
	last     *localLine
	settling bool // a goroutine makes the admissions that are left
}

// MarkLocked notes that the first waiter of n may be admitted now: something has changed. A waiter
// that comes later marks n itself.
func (n *localLine) MarkLocked() {
	if n.asking != nil {
		n.asking.TellLocked()
	}
	if !n.marked && n.queue.Waiting() > 0 {
		n.marked, n.markedNext, n.s.marked.last = true, n.s.marked.last, n
	}
}

// SettleLocked makes the admissions of the lines that were marked: a piece of them now, and the
// rest in a goroutine. An admission may change its line, or end a lease, and so mark lines.
//
// Invariant: while mu is free, no waiter of an unmarked line could be let in. If a line is marked,
// the next Unlock of mu lets its waiters in. So TryRLock and TryAcquire wait only for etcd, and if
// a watch has to tell, there is one.
//
// Whatever changes what an admission asks marks the line: the turn, the place of its owner, the
// view, and the lease (its keeper does, as soon as it has the mutex, when the lease lasts again).
// The passing of time marks nothing: a lease that is not renewed only lasts no longer.
//
// Do not call an admission where something changes: a call that is forgotten is a hang.
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
	first := n.queue.Candidate()
	if first == nil {
		return
	}
	switch n.admissionLocked(first.Value) {
	case home.Admitted:
		n.letInLocked(first.Value)
	case home.Undecided:
		n.seekLocked()
	case home.MustQueue:
		n.RefuseLocked(nil)
	}
}

// letInLocked gives c, the first waiter, the turn beside its owner. If c reads it gets a hold at
// the owner's place. If it wants permits it is the owner from now on, and takes a place of its own.
//
// Invariant: the key of a cohort stays as long as one of its holds needs it (place.Refs): a hold
// that is whole, or has ended whole and is being freed. The turn stays with the Session until all
// holds are unlocked, lost or not. (Do not release for one of several.
// TestAWriterWaitsForEveryReaderOfItsSession.)
func (n *localLine) letInLocked(c *claim) {
	if c.waiter.Steps {
		n.queue.Admit()
		n.MarkLocked()
		c.hasTurnLocked(nil)
		return
	}
	p := n.queue.Owner().place
	p.newHoldLocked(c, nil, time.Now())
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

// A refusal is the cause that ends the wait of a TryRLock or TryAcquire for its turn: it would have
// to wait for another contender, or etcd has refused to tell.
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

// SharesLocked reports whether several reads share the turn, or one is about to join (queue.Local).
func (n *localLine) SharesLocked() bool {
	h := n.holdLocked()
	if h == nil || !h.claim.reads() {
		return false
	}
	first := n.queue.First()
	return n.queue.Sharing() > 0 || first != nil && first.Shares
}
