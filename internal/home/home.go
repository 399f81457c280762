// Package home is the machine of one name in one Session. The goroutines of the Session wait here,
// first come, first served, so that the Session has one key in etcd's line. It decides which claim
// has the turn, at which key, and what becomes of a key that its hold leaves.
//
// It only decides: it has no mutex, no goroutine and no clock. The Session's mutex guards it. The
// driver, which is line.go, claim.go and keep.go of internal/hold, takes the facts once for each
// event (Key, Left), asks, and does what follows. The exploration of internal/ticket is another
// driver of the same decisions.
//
//	decision    asked when                       it says
//	Way         a claim comes                    owns, waits, steps, joins, takes over
//	Refuses     a claim comes that only tries    whether it is refused at once
//	Admission   something has changed            what becomes of the first waiter beside the owner
//	HandsDown   the owner's wait has ended       whether the next waiter goes on at its place
//	Fate        the last hold at a key is over   released, handed on, lingers
//	Choose      the key is released              which waiter's key the release puts
//	End         the turn ends                    which waiter has it, and the key that is left
//
// The transitions between these are those of a Queue:
//
//	transition  from            to
//	Enter       Free            Taken
//	            Taken, Passing  unchanged: the new waiter waits
//	Hold        Taken           unchanged: the owner's hold has begun
//	Leave       any             unchanged: a waiter goes away if it waits or is chosen; if it has got
//	                            the turn before, it stays
//	Choose      Taken           Passing, if the first waiter can have its key put
//	End         Taken, Passing  unchanged, if others have the turn, too: the waiter alone goes away.
//	                            Otherwise Taken, by the first waiter, or Free if there is none
//	Admit       Taken           unchanged: the first waiter has the turn, too. If it shares, it is
//	                            beside the owner. If it steps, it owns the turn, and the owner
//	                            before has the turn beside it
//
// # Reads
//
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
// Invariant: a read joins with the Session's mutex held, while the ticket is Held and the lease is
// trusted. That is safe: a release or a removal begins under the mutex, and from then on the ticket
// is Leaving. The watch matters for the order alone, and may be late: an exclusive contender that
// has come meanwhile waits for the key. (Do not join a key whose lease does not last: it would end
// with the next renewal that is late. TestNobodyJoinsAKeyWhoseLeaseDoesNotLast.)
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
//
// # Permits
//
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
package home

import (
	"fmt"
	"iter"
	"slices"

	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A State is the state of a Queue.
type State uint8

// The states of a Queue.
const (
	Free    State = iota // the turn has no owner, and there is no waiter
	Taken                // the owner queues in etcd, or holds, or has lost and not unlocked
	Passing              // as Taken; the first waiter was chosen, and gets the turn next
)

// String is for messages.
func (s State) String() string {
	return [...]string{"free", "taken", "passing"}[s]
}

// A Standing is where a Waiter stands.
type Standing uint8

// The standings of a Waiter. Holder and Beside alone have a hold, which may have been lost.
const (
	Out     Standing = iota // not in the queue yet
	Waiting                 // for its turn
	Next                    // chosen: gets the turn after the owner's release
	Owner                   // has the turn, and no hold yet
	Holder                  // has the turn, and a hold
	Beside                  // has a hold, beside the owner of the turn
	Gone                    // not in the queue any more
)

// String is for messages.
func (s Standing) String() string {
	return [...]string{"out", "waiting", "next", "owner", "holder", "beside", "gone"}[s]
}

// A Waiter asks for the turn once. It is in one Queue at most, once.
//
// Invariant: a waiter that has a hold keeps it until it parts or passes the turn on, whatever
// becomes of its call: other waiters share its key, and rely on the hold.
//
// Do not tell from the turn whether a call has a hold: the owner of a shared turn may have got the
// turn from a holder that has gone. (TestAWaitThatEndsAsItIsLetInHasAHoldOrNothing.)
type Waiter[W any] struct {
	// Set once, before it enters.
	Value  W
	Shares bool // it may have the turn beside other waiters that share
	Steps  bool // it has its own key; once it holds it may have the turn beside waiters that step
	Try    bool // it waits for no other contender

	standing Standing
	number   uint64 // in the order in which waiters have come to its queue, from 1
	node     list.Node[*Waiter[W]]
}

// Standing is where w stands.
func (w *Waiter[W]) Standing() Standing { return w.standing }

// A Queue is the local queue for one name, with waiters W. The zero Queue is free.
//
// Invariant: at most one waiter has the turn, or several share it: its owner, and the waiters
// beside the owner. Either the owner alone has a key in etcd's line, and the waiters beside it hold
// at that key, too. Or each has a key; then only the owner may wait there, while the waiters beside
// it hold. The turn stays with its owner until the owner passes it on, even if its hold is lost.
//
// Do not pass a turn on when a hold is lost: the loser may still be at work.
// (TestALostHoldExcludesItsSessionUntilUnlock.)
//
// Invariant: only the owner passes the turn on, and only once every waiter beside it has gone away.
//
// Do not pass it on when one of several goes. (TestAWriterWaitsForEveryReaderOfItsSession.)
//
// How long it takes to enter or to leave does not depend on the number of waiters: a hundred
// thousand may leave at once, and the Session's mutex is held meanwhile.
type Queue[W any] struct {
	state     State
	unshared  int32 // how many waiters do not share
	unstepped int32 // how many waiters do not step

	owner  *Waiter[W]
	beside list.List[*Waiter[W]] // the waiters that have the turn beside its owner

	waiters  list.List[*Waiter[W]] // the chosen one is the first
	came     uint64                // how many have come to wait
	gathered uint64                // how many had come before the put of the owner's key
}

// State is the queue's state.
func (q *Queue[W]) State() State { return q.state }

// Owner is the owner of the turn, or the zero W if there is none.
func (q *Queue[W]) Owner() (w W) {
	if q.owner != nil {
		w = q.owner.Value
	}
	return w
}

// Waiting is the number of waiters.
func (q *Queue[W]) Waiting() int { return q.waiters.Len() }

// First is the first waiter, or nil if there is none.
func (q *Queue[W]) First() *Waiter[W] {
	w, _ := q.waiters.First()
	return w
}

// Early reports whether w, the first waiter, may share the owner's key even if other contenders
// have come to etcd's line since: w came before the key was put.
func (q *Queue[W]) Early(w *Waiter[W]) bool {
	return w.standing == Waiting && w.Shares && w.number <= q.gathered
}

// Sharing is how many have the turn beside its owner.
func (q *Queue[W]) Sharing() int { return q.beside.Len() }

// Having yields the waiters that have the turn: the ones beside its owner, in the order in which
// they got that standing, and the owner.
func (q *Queue[W]) Having() iter.Seq[W] { return q.and(&q.beside) }

// All yields the waiters in order, and the owner. It leaves out the waiters beside the owner.
func (q *Queue[W]) All() iter.Seq[W] { return q.and(&q.waiters) }

// and yields some, and the owner.
func (q *Queue[W]) and(some *list.List[*Waiter[W]]) iter.Seq[W] {
	return func(yield func(W) bool) {
		for w := range some.All() {
			if !yield(w.Value) {
				return
			}
		}
		if q.owner != nil {
			yield(q.owner.Value)
		}
	}
}

// few is the number of waiters up to which Ahead counts.
const few = 8

// Ahead is how many waiters are ahead of w, including the owner. For a nil w it is how many
// would be ahead of a new waiter. Behind more than a few waiters it may be too high, but only by
// the number of waiters that have left from among them.
func (q *Queue[W]) Ahead(w *Waiter[W]) int {
	ahead := q.waiters.Len()
	if w != nil {
		must("Ahead", "waiter", w.standing, Waiting)
		ahead = q.waitingBefore(w)
	}
	if q.owner != nil {
		ahead++
	}
	return ahead
}

func (q *Queue[W]) waitingBefore(w *Waiter[W]) int {
	n := 0
	for range w.node.Before() {
		if n++; n > few {
			return min(int(w.number-q.First().number), q.waiters.Len()-1)
		}
	}
	return n
}

// ---- decisions

// Writers is what a watch shows of the exclusive contenders in etcd's line.
type Writers uint8

// What a watch shows.
const (
	Untold   Writers = iota // nothing: there is none, or it has not begun
	NoWriter                // none stands in line
	AWriter                 // one does
)

// A Key is what is known of the key at which a claim may hold: the owner's, or in a free queue the
// one that lingers. The zero Key is none. The facts of a group are set in the states that it names.
type Key struct {
	// In any state.
	State    ticket.State
	Lost     bool // or given up
	Waits    bool // for other contenders, as far as is known
	Recalled bool
	Ended    bool // its lease has ended

	// Held.
	Suits   bool // its shape and its value are true of the claim
	Serves  bool // its lease takes new holds
	Lasts   bool // it is trusted, and its lease is renewed in time
	Begins  bool // a hold of the claim may begin there now
	Writers      // if it lasts, and a read asks that came after the put
}

// A Way is how a claim that comes gets its turn, or a hold.
type Way uint8

// The ways of a claim.
const (
	Owns      Way = iota // it has the turn at once: the queue is free
	Waits                // its turn comes later
	Steps                // it has the turn at once, beside permits that its Session holds
	Joins                // it has a hold at once, beside reads of its Session
	TakesOver            // it has a hold at once, at the key that lingers
)

// String is for messages.
func (w Way) String() string {
	return [...]string{"owns", "waits", "steps", "joins", "takes over"}[w]
}

// Way is the way of w, which comes.
func (q *Queue[W]) Way(w *Waiter[W], k Key) Way {
	switch {
	case q.state == Free && k.Suits && k.Lasts && k.Begins:
		return TakesOver
	case q.state == Free:
		return Owns
	case q.state == Passing || q.waiters.Len() > 0 || q.Admission(w, k) != Admitted:
		return Waits
	case w.Steps:
		return Steps
	default:
		return Joins
	}
}

// Refuses reports whether w, which comes and only tries, is refused: it is, unless w and all
// waiters before it may get the turn beside the owner. Otherwise it would wait for more than etcd.
func (q *Queue[W]) Refuses(w *Waiter[W], k Key) bool {
	alike := w.Shares && q.unshared == 0 || w.Steps && q.unstepped == 0
	return q.owner != nil && (!alike || q.Admission(w, k) == MustQueue)
}

// An Admission is what becomes of a claim that reads, or wants permits, where other claims have the
// turn.
type Admission uint8

// The admissions.
const (
	Admitted  Admission = iota // it has the turn beside them
	Barred                     // as Admitted, but no hold of it may begin now
	Undecided                  // etcd has to tell first
	MustQueue                  // it waits for their turn to end
)

// String is for messages.
func (a Admission) String() string {
	return [...]string{"admitted", "barred", "undecided", "must queue"}[a]
}

// Candidate is the first waiter, if its kind may have the turn beside an owner. It is nil if there
// is none, and while the turn is about to pass.
func (q *Queue[W]) Candidate() *Waiter[W] {
	w := q.First()
	if w == nil || !w.Shares && !w.Steps || q.state != Taken {
		return nil
	}
	return w
}

// Admission is the admission of w: the first waiter, or a new one where there is no waiter. k is
// the owner's key.
func (q *Queue[W]) Admission(w *Waiter[W], k Key) Admission {
	switch o := q.owner; {
	case o == nil || !w.alike(o):
		return MustQueue
	case w.Shares:
		return q.admissionOfRead(w, k)
	case o.standing == Holder:
		return Admitted
	case k.Waits:
		return MustQueue
	default:
		return Undecided
	}
}

// admissionOfRead is the admission of w, which reads, where the owner reads or is about to.
func (q *Queue[W]) admissionOfRead(w *Waiter[W], k Key) Admission {
	lost, early := k.Lost || k.State == ticket.Removed, q.Early(w)
	switch {
	case lost && q.owner.standing != Holder: // the owner queues anew, or gives up
		return Undecided
	case lost, // the holds that have lost it are yet to be unlocked
		k.Recalled, // (Do not join. TestNobodyJoinsARecalledCohort.)
		k.Waits:
		return MustQueue
	case k.State != ticket.Held: // its put is under way, or its release
		return Undecided
	case !early && !k.Serves:
		return MustQueue
	case !early && !k.Lasts: // a renewal is late, or etcd was set back
		return Undecided
	case !early && k.Writers == Untold:
		return Undecided
	case !early && k.Writers == AWriter:
		return MustQueue
	case !k.Begins:
		return Barred
	default:
		return Admitted
	}
}

// alike reports whether w may have the turn beside o, as far as their kinds tell.
func (w *Waiter[W]) alike(o *Waiter[W]) bool { return w.Shares && o.Shares || w.Steps && o.Steps }

// HandsDown reports whether the first waiter may have the place at which the owner has waited in
// etcd's line, and go on waiting there: it came before the put.
func (q *Queue[W]) HandsDown(k Key) bool {
	w := q.First()
	return w != nil && q.Early(w) && !w.Try &&
		k.State == ticket.InLine && !k.Ended && !k.Recalled
}

// A Left is what is known of a key that its last hold has left whole.
type Left struct {
	Suits           bool // it suits the first waiter or, if none, another claim of the Lock
	Lasts           bool // its lease is trusted, and renewed in time
	Handed, Handoff int  // how often in a row it was handed on, and how often it may be
	Linger          bool // it may stay for a claim that comes
}

// A Fate is what becomes of a key that its last hold has left whole.
type Fate uint8

// The fates of a key.
const (
	Released Fate = iota // another contender may hold
	HandedOn             // the first waiter holds at it next
	Lingers              // a claim that comes holds at it, unless another contender comes before
)

// String is for messages.
func (f Fate) String() string {
	return [...]string{"released", "handed on", "lingers"}[f]
}

// Fate is what becomes of the owner's key. With WithHandoff the first waiter has it next, but only
// so often in a row: other contenders wait behind it. With WithLinger, if there is no waiter, it
// stays for the claim that comes next. The driver keeps such a key only if a watch shows that no
// other contender waits, and releases it otherwise.
func (q *Queue[W]) Fate(k Left) Fate {
	waits := q.waiters.Len() > 0
	switch {
	case !k.Suits, !k.Lasts:
		return Released
	case waits && k.Handed < k.Handoff:
		return HandedOn
	case !waits && k.Linger:
		return Lingers
	default:
		return Released
	}
}

// ---- transitions

// Enter adds w. In a free queue w has the turn at once, otherwise it waits.
func (q *Queue[W]) Enter(w *Waiter[W]) (has bool) {
	must("Enter", "turn", q.state, Free, Taken, Passing)
	must("Enter", "waiter", w.standing, Out)
	if q.state == Free {
		w.standing, q.state, q.owner = Owner, Taken, w
		return true
	}
	q.came++
	w.standing, w.number = Waiting, q.came
	q.waiters.Add(&w.node, w)
	q.counts(w, 1)
	return false
}

// Gather notes that a key is about to be put, at which the owner or the chosen one will hold. If
// that waiter shares, all that wait now, and share, are Early.
func (q *Queue[W]) Gather() {
	must("Gather", "turn", q.state, Taken, Passing)
	holder := q.owner
	if w := q.First(); w != nil && w.standing == Next {
		holder = w
	}
	q.gathered = 0
	if holder.Shares {
		q.gathered = q.came
	}
}

// Hold notes that the hold of w, the owner of the turn, has begun.
func (q *Queue[W]) Hold(w *Waiter[W]) {
	must("Hold", "turn", q.state, Taken)
	must("Hold", "waiter", w.standing, Owner)
	w.standing = Holder
}

// Admit gives the first waiter the turn, too, beside its owner, which holds. If both share, the
// waiter has a hold, too. If both step, the waiter is the owner now, and the owner before has the
// turn beside it.
func (q *Queue[W]) Admit() W {
	must("Admit", "turn", q.state, Taken)
	must("Admit", "waiter", q.owner.standing, Holder)
	w := q.First()
	if w == nil || !(w.Shares && q.owner.Shares) && !(w.Steps && q.owner.Steps) {
		panic("home: Admit: no waiter may have the turn beside its owner")
	}
	q.remove(w)
	beside := w
	if w.Steps {
		w.standing = Owner
		beside, q.owner = q.owner, w
	}
	beside.standing = Beside
	q.beside.Add(&beside.node, beside)
	return w.Value
}

// Leave removes w if it waits or is chosen. It returns where w stood. If w stood anywhere else
// nothing has happened: an Owner has to pass the turn on, a Holder, or a waiter Beside it, keeps
// its hold, and a waiter that is Gone had a hold, which was closed.
func (q *Queue[W]) Leave(w *Waiter[W]) Standing {
	must("Leave", "waiter", w.standing, Waiting, Next, Owner, Holder, Beside, Gone)
	stood := w.standing
	if stood == Waiting || stood == Next {
		q.remove(w)
		w.standing = Gone
	}
	return stood
}

// Choose chooses the first waiter: it gets the turn after the owner's release, which puts its key.
// If it leaves before, the first waiter of that time gets the turn. None is chosen if the first one
// only tries, since a release puts a key whatever is before it in line; nor while other claims have
// the turn, since holders that shared the key and have lost it may be at work.
func (q *Queue[W]) Choose() (next W, ok bool) {
	must("Choose", "turn", q.state, Taken)
	if q.beside.Len() > 0 {
		return next, false
	}
	must("Choose", "waiter", q.owner.standing, Holder)
	w := q.First()
	if w == nil || w.Try {
		return next, false
	}
	w.standing, q.state = Next, Passing
	return w.Value, true
}

// An Ending is how a turn has ended.
type Ending uint8

// The ways in which a turn ends.
const (
	Parts   Ending = iota // other claims have the turn, too, and go on with it
	Frees                 // there is no waiter: the queue is free
	Passes                // the first waiter has the turn
	HandsOn               // it has the key, too, that was left
)

// String is for messages.
func (e Ending) String() string {
	return [...]string{"parts", "frees", "passes", "hands on"}[e]
}

// End ends the turn of w. If other claims share the turn they go on with it: if w owned it, one of
// them does now. Otherwise the first waiter has it. suits says that w leaves a key that suits that
// waiter: w has waited or held at it, or it was put for the waiter. The waiter has the key, too,
// unless it only tries, or is a read that came after the put.
//
// Do not pass a key on to such a read: it would overtake the writers that came in between.
// (TestAReadTakesOverNoPlaceThatWasPutBeforeItCame)
func (q *Queue[W]) End(w *Waiter[W], suits bool) (next W, ends Ending) {
	must("End", "turn", q.state, Taken, Passing)
	must("End", "waiter", w.standing, Owner, Holder, Beside)
	if q.beside.Len() > 0 {
		q.part(w)
		return next, Parts
	}
	w.standing = Gone
	first := q.First()
	if first == nil {
		q.state, q.owner, q.gathered = Free, nil, 0
		return next, Frees
	}
	ends = Passes
	late := first.Shares && !q.Early(first) && first.standing != Next
	if suits && !late && !first.Try {
		ends = HandsOn
	}
	q.remove(first)
	first.standing, q.state, q.owner = Owner, Taken, first
	if !first.Shares {
		q.gathered = 0
	}
	return first.Value, ends
}

// part makes w go away, which has the turn beside others. If w was the owner, one of these becomes
// the owner.
func (q *Queue[W]) part(w *Waiter[W]) {
	heir := w
	if w.standing != Beside {
		heir, _ = q.beside.Last()
		heir.standing, q.owner = Holder, heir
	}
	heir.node.Remove()
	w.standing = Gone
}

// remove takes out w, which waits.
func (q *Queue[W]) remove(w *Waiter[W]) {
	w.node.Remove()
	q.counts(w, -1)
}

// counts adds n to the number of waiters that do not share if w does not share, and likewise for
// step.
func (q *Queue[W]) counts(w *Waiter[W], n int32) {
	if !w.Shares {
		q.unshared += n
	}
	if !w.Steps {
		q.unstepped += n
	}
}

// must panics if the state of something is none from which there is a transition. That is a bug in
// the Session, which could let two waiters hold.
func must[S State | Standing](transition, of string, state S, from ...S) {
	if slices.Contains(from, state) {
		return
	}
	panic(fmt.Sprintf("home: %s: the %s is %v", transition, of, state))
}
