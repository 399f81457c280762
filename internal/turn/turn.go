// Package turn is the local queue for one name: the goroutines of a Session wait here,
// first come, first served, so that the Session has one key in etcd's line. It decides which
// waiter has the turn, and which one gets it next. It only decides: it has no mutex, no
// goroutine and no clock. The Session's mutex guards it, and the Session tells the waiters.
//
//	transition  from            to
//	Enter       Free            Taken
//	            Taken, Passing  unchanged: the new waiter waits
//	Hold        Taken           unchanged: the owner's hold has begun
//	Leave       any             unchanged: a waiter goes away if it waits or is chosen; if it has got
//	                            the turn before, it stays
//	Choose      Taken           Passing, if there is a waiter
//	Pass        Taken, Passing  Taken, by the first waiter, or Free if there is none
//	Admit       Taken           unchanged: the first waiter has the turn, too. If it shares, it is
//	                            beside the owner. If it steps, it owns the turn, and the owner
//	                            before has the turn beside it
//	Part        Taken, Passing  unchanged: one of several waiters that have the turn goes away
package turn

import (
	"fmt"
	"iter"
	"slices"

	"github.com/etcdlock/etcdlock/internal/list"
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

	standing Standing
	number   uint64 // how many have come to its queue to wait, with it
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
	state  State
	owner  *Waiter[W]
	beside list.List[*Waiter[W]] // the waiters that have the turn beside its owner

	waiters   list.List[*Waiter[W]] // the chosen one is the first
	unshared  int                   // how many waiters do not share
	unstepped int                   // how many waiters do not step
	came      uint64                // how many have come to wait
	gathered  uint64                // how many had come before the put of the owner's key
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

// AllShare reports whether all waiters share.
func (q *Queue[W]) AllShare() bool { return q.unshared == 0 }

// AllStep reports whether all waiters step.
func (q *Queue[W]) AllStep() bool { return q.unstepped == 0 }

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

// ---- transitions

// Enter adds w. In a free queue w has the turn at once, otherwise it waits.
func (q *Queue[W]) Enter(w *Waiter[W]) (has bool) {
	must("Enter", "turn", q.state, Free, Taken, Passing)
	must("Enter", "waiter", w.standing, Out)
	if q.state == Free {
		q.give(w)
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
		panic("turn: Admit: no waiter may have the turn beside its owner")
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

// Part makes w, which has the turn, go away if another waiter has the turn, too. If w was the
// owner, one of the waiters beside it becomes the owner. If w is the only one, Part returns false
// and does nothing: w has to pass the turn on.
func (q *Queue[W]) Part(w *Waiter[W]) (goes bool) {
	must("Part", "turn", q.state, Taken, Passing)
	must("Part", "waiter", w.standing, Owner, Holder, Beside)
	heir, some := q.beside.Last()
	if !some {
		return false
	}
	if w.standing == Beside {
		heir = w
	}
	heir.node.Remove()
	if heir != w {
		heir.standing, q.owner = Holder, heir
	}
	w.standing = Gone
	return true
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

// Choose chooses the first waiter. It gets the turn after the owner's release, which puts
// its key, unless it leaves before: then the turn goes to the first waiter of that time. ok is
// false if there is no waiter.
func (q *Queue[W]) Choose() (next W, ok bool) {
	must("Choose", "turn", q.state, Taken)
	must("Choose", "waiter", q.owner.standing, Holder)
	q.mustBeAlone("Choose")
	w := q.First()
	if w == nil {
		return next, false
	}
	w.standing, q.state = Next, Passing
	return w.Value, true
}

// Pass takes the turn from its owner. The turn goes to the first waiter. ok is false if there is
// none: the queue is free.
func (q *Queue[W]) Pass() (owner W, ok bool) {
	must("Pass", "turn", q.state, Taken, Passing)
	q.mustBeAlone("Pass")
	q.owner.standing = Gone
	w := q.First()
	if w == nil {
		q.state, q.owner = Free, nil
		return owner, false
	}
	q.remove(w)
	q.give(w)
	return w.Value, true
}

// give gives w the turn.
func (q *Queue[W]) give(w *Waiter[W]) {
	w.standing = Owner
	q.state, q.owner = Taken, w
	if !w.Shares {
		q.gathered = 0
	}
}

// remove takes out w, which waits.
func (q *Queue[W]) remove(w *Waiter[W]) {
	w.node.Remove()
	q.counts(w, -1)
}

// counts adds n to the number of waiters that do not share if w does not share, and likewise for
// step.
func (q *Queue[W]) counts(w *Waiter[W], n int) {
	if !w.Shares {
		q.unshared += n
	}
	if !w.Steps {
		q.unstepped += n
	}
}

// mustBeAlone panics if a waiter has the turn beside its owner.
func (q *Queue[W]) mustBeAlone(transition string) {
	if n := q.beside.Len(); n > 0 {
		panic(fmt.Sprintf("turn: %s: %d have the turn beside its owner", transition, n))
	}
}

// must panics if the state of something is none from which there is a transition. That is a bug in
// the Session, which could let two waiters hold.
func must[S State | Standing](transition, of string, state S, from ...S) {
	if slices.Contains(from, state) {
		return
	}
	panic(fmt.Sprintf("turn: %s: the %s is %v", transition, of, state))
}
