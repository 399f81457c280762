package ticket

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A Release deletes the key of a hold that has ended whole. In the same transaction it puts the key
// of the Session's next ticket, if there is one. A hold of several names has several keys. The
// transaction deletes all of them or none, so if one of them is there no copy has deleted any.
//
// The answer to a copy does not say what the first request did. If the key is gone and a copy may
// have been sent, the release itself may have removed it, or an operator did, who needs no lease
// for that, and another contender has got in since.
//
// Invariant: a release is Done only with evidence that the key was there when it began: an answer
// to it that shows the key, or that only the release can have got; or a witness, see Now.
//
// Do not take a certain hold for evidence. (TestUnlockSaysNilOnlyWithEvidence.) What that costs
// where no operator is: if the answer to a release is lost, a hold without a watch, which is
// younger than a second or one of many, is not confirmed any more; one with a watch is. In 150
// seeds of both simulations these were 88 of 15,500 releases, and 25 more were confirmed by a
// watch. On etcd they were none of 322 in the chaos of row S10, and 9 of 18 in row S13, which loses
// the answer to the release of a hold that has just begun.
//
// A release that moves its key leaves it there. If such a key is gone before its time is over, or
// was put over, another request did that: before a copy has moved the key, and the hold was lost,
// or afterwards.
//
// Do not take it for done. (TestAKeyThatIsGoneWhileItMovesIsNotConfirmed.)
type Release struct {
	t      *Ticket    // the first of all
	all    []*Ticket  // of the hold; next is nil if they are several
	next   *Ticket    // nil if there is none, or if no copy has put it
	alone  bool       // the next transaction does not put next; an earlier one may have
	ahead  line.Ahead // of next, by the answer that was read
	moves  int64      // the lease that t's key is moved to, 0 if the key is deleted
	moved  int64      // the lease that a request may have moved it to, 0 if none was to
	reads  bool       // it reads what is there, if the key is not as it should be
	copies bool       // an earlier request may have been carried out
	missed bool       // for certain, the key was not there as t had put it
	there  bool       // an answer has shown that the key was there
}

// MoveTo has the next transactions move t's key, the only one, to another lease instead of deleting
// it: the key stays in line, with its revision, for as long as that lease lasts. With lease 0 they
// delete it after all.
//
// Invariant: t's own lease is compared, so of all copies at most one moves the key, and none brings
// back what has happened to it since. (TestALateCopyOfAMoveDoesNothing.)
func (r *Release) MoveTo(lease int64) {
	r.moves, r.reads = lease, true
	if lease != 0 {
		r.moved = lease
	}
}

// Moves reports whether the next transaction moves t's key. After the verdict Done it reports
// whether the key was moved.
func (r *Release) Moves() bool { return r.moves != 0 }

// Together reports whether the next transaction puts the key of the next ticket.
func (r *Release) Together() bool { return r.next != nil && !r.alone }

// Txn is the next transaction to send, with the value of the next ticket's key, or of t's where
// that is moved.
func (r *Release) Txn(value string) Txn {
	t, does := r.t, del(r.t.Key)
	if r.moves != 0 {
		does = put(t.Key, value, r.moves)
	}
	// A key that was put over, without the lease, no longer stands in line.
	txn := Txn{Name: t.Name, If: []*pb.Compare{t.exists(), onLease(t.Key, t.Lease)}, own: t.Key}
	txn.HearOut = true
	txn.Then = []*pb.RequestOp{does}
	for _, o := range r.all[1:] {
		txn.Name = ""
		txn.If = append(txn.If, o.exists(), onLease(o.Key, o.Lease))
		txn.Then = append(txn.Then, del(o.Key))
	}
	if r.Together() {
		txn.If = append(txn.If, created(r.next.Key, 0))
		txn.Then = append(txn.Then, r.next.readAhead(r.next.few(), "", false)...)
		txn.Then = append(txn.Then, put(r.next.Key, value, r.next.Lease))
		r.reads = true
	}
	if r.reads { // it costs time, and the key is nearly always there
		for _, t := range r.all {
			txn.Else = append(txn.Else, Get(t.Key))
		}
	}
	if r.next != nil {
		txn.Else = append(txn.Else, Get(r.next.Key))
	}
	return txn
}

// A Verdict is what follows from an answer to a release.
type Verdict uint8

// The verdicts.
const (
	Again       Verdict = iota // send the next transaction, after a pause if there was no answer
	AgainAlone                 // send it at once, without a next ticket
	Done                       // the key was there until this release
	Lost                       // it was not; see Finding.Reason
	Unconfirmed                // etcd has not confirmed it; see Finding.Doubt
)

// String is for messages.
func (v Verdict) String() string {
	return [...]string{"again", "again alone", "done", "lost", "unconfirmed"}[v]
}

// A Doubt is why a release is not confirmed.
type Doubt uint8

// The doubts.
const (
	Silence     Doubt = iota // there was no conclusive answer
	SetBack                  // the key is gone, and etcd may have been restored without it
	Uncertain                // the key is gone, and so is the hold's certainty
	TakenAway                // another request took the key, perhaps once it had moved
	Unwitnessed              // the key is gone, and nothing shows that it was there before
)

// String is for messages.
func (d Doubt) String() string {
	return [...]string{"silence", "set back", "uncertain", "taken away", "unwitnessed"}[d]
}

// A Finding is a verdict, with what else an answer says.
type Finding struct {
	Verdict
	Reason Reason     // of Lost, and of the doubt TakenAway
	Of     *Ticket    // of Lost: the ticket whose key was lost, if etcd has said so
	Doubt  Doubt      // of Unconfirmed
	Queued bool       // the next ticket stands in line
	Ahead  line.Ahead // of the next ticket, Unread if a copy has put it
}

// A Now is what is known besides etcd's answer when the answer has come.
type Now struct {
	Certain bool // no other contender can have got in by the end of the lease
	Stale   bool // etcd was set back since the key was last seen
	Final   bool // no other attempt is possible
	Over    bool // the time for which t's key was to stay was over when the request was sent

	Witnessed bool // a watch has shown that the keys were there when the release began
}

// Read reads what an answer shows of the line of the next ticket, if there is one, as Entering.Read
// does.
func (r *Release) Read(a Answer) {
	r.ahead = line.Ahead{}
	if r.Together() && a.Outcome == Answered && a.Succeeded {
		r.ahead = r.next.aheadOf(a, "", false)
	}
}

// Judge says what follows from an answer that was read. After every verdict except the first two, t
// is Removed, or Leaving if its key must still be removed.
func (r *Release) Judge(a Answer, now Now) (f Finding) {
	next, together := r.next, r.Together()
	r.copies = r.copies || a.Copies
	r.alone = next != nil && (a.Outcome == Unknown || a.Outcome == NotApplied && !together)
	if !r.alone {
		r.next = nil
	}
	if next != nil && (together || !a.Succeeded) {
		// Once t's key is gone no copy can put next's key any more.
		if f.Queued = next.settle(a); f.Queued {
			f.Ahead = r.ahead
		}
	}
	switch {
	case a.Outcome != Answered:
		f.Verdict = r.unanswered(a.Outcome, together, now)
		if f.Verdict == Lost {
			f.Reason = Either
		}
	case a.Succeeded:
		f.Verdict = Done
		r.remove(a.Revision)
	default:
		r.conclude(&f, a, together, now)
	}
	return f
}

// A remains is what the answer to a release that has not succeeded shows of the keys.
type remains uint8

const (
	carried   remains = iota // a copy of the release was carried out
	unread                   // nothing: it was to succeed
	whole                    // t's key is there, and next's name may have been in use
	some                     // one of the keys is there: no copy has deleted any
	someMoved                // the same, but a copy may have moved it before
	none                     // none is there
)

// An evidence is what shows that keys which are gone were removed by a copy of the release.
type evidence uint8

const (
	noCopy  evidence = iota // there is none: no copy can have
	seen                    // they were seen there, and nothing else can have removed them
	setBack                 // none: etcd may have been restored without them
	expired                 // none: the lease may have ended
	kept                    // none: a copy leaves the key there
	unseen                  // none: nothing has shown that they were there
)

// conclude draws the conclusions of the answer to a release that has not succeeded: those of
// verdictOf, and for each verdict what becomes of the tickets.
func (r *Release) conclude(f *Finding, a Answer, together bool, now Now) {
	shows := r.shows(a, f.Queued, together)
	f.Verdict, f.Doubt = verdictOf(shows, r.evidence(now))
	switch {
	case f.Verdict == Again:
		r.missed = r.missed || !r.copies // for certain, whatever the next answer says
		r.reads = true
	case f.Verdict == AgainAlone:
		own, _ := a.find(0, r.t.Key)
		r.there = r.there || r.t.Is(own)
	case f.Verdict == Lost, f.Doubt == TakenAway:
		f.Of, f.Reason = r.lose(a)
	default:
		if r.hasMoved(a) {
			r.moves = r.moved
		}
		r.remove(a.Revision)
	}
}

// shows is what a shows. queued says that the next ticket stands in line.
func (r *Release) shows(a Answer, queued, together bool) remains {
	there := r.t.in(a, 0)
	switch {
	// Only this very transaction moves t's key there, or deletes it and puts next's: else a first copy
	// ran. (If t's is there, a late copy of an earlier put has put next's.)
	case r.hasMoved(a), queued && !there:
		return carried
	case a.Empty:
		return unread
	case there && together:
		return whole
	case !r.some(a):
		return none
	case r.moved != 0:
		return someMoved
	}
	return some
}

// evidence is what is known should the keys be gone.
func (r *Release) evidence(now Now) evidence {
	switch {
	case r.missed || !r.copies:
		return noCopy
	case now.Stale:
		return setBack
	case !now.Certain:
		return expired
	case r.moved != 0 && !now.Over: // the lease lasts, and would have kept it
		return kept
	case !r.there && !now.Witnessed:
		return unseen
	}
	return seen
}

// verdictOf is the table of verdicts: testdata/release.txt has it printed.
func verdictOf(s remains, e evidence) (Verdict, Doubt) {
	switch {
	case s == carried:
		return Done, 0
	case s == unread:
		return Again, 0
	case s == whole:
		return AgainAlone, 0
	case s == some, e == noCopy:
		return Lost, 0
	case s == someMoved, e == kept:
		return Unconfirmed, TakenAway
	case e == setBack:
		return Unconfirmed, SetBack
	case e == expired:
		return Unconfirmed, Uncertain
	case e == unseen:
		return Unconfirmed, Unwitnessed
	}
	return Done, 0
}

// remove records that all keys are gone, at a revision, or that t's is on another lease now: then
// its name is never used again.
func (r *Release) remove(revision int64) {
	if r.moves != 0 {
		*r.t.slot, r.t.slot = Slot{}, new(Slot)
	}
	for _, t := range r.all {
		t.Remove(revision)
	}
}

// hasMoved reports whether t's key was read on the lease that it was to be moved to.
func (r *Release) hasMoved(a Answer) bool {
	own, there := a.find(0, r.t.Key)
	return there && r.moved != 0 && own.Rev == r.t.rev && own.Lease == r.moved
}

// some reports whether one of the keys was read. Then no copy has deleted any.
func (r *Release) some(a Answer) bool {
	for i, t := range r.all {
		if t.in(a, i) {
			return true
		}
	}
	return false
}

// lose records which of the keys were lost, and returns the ticket of the first one, and why. The
// remaining keys must be removed.
func (r *Release) lose(a Answer) (of *Ticket, why Reason) {
	for i, t := range r.all {
		own, _ := a.find(i, t.Key)
		reason := Overwritten
		switch seen := (Observation{Entry: own}).of(t); {
		case seen == Missing, seen == Replaced:
			reason = Deleted
			t.Remove(a.Revision)
		case seen == Same && len(r.all) > 1:
			continue
		default:
			t.lose()
		}
		if of == nil {
			of, why = t, reason
		}
	}
	return of, why
}

// unanswered is Judge without an answer.
func (r *Release) unanswered(o Outcome, together bool, now Now) Verdict {
	if r.missed { // it is lost, whatever happened to it
		r.t.lose()
		return Lost
	}
	r.copies = r.copies || o == Unknown
	switch {
	case now.Final || !now.Certain:
		return Unconfirmed
	case together:
		return AgainAlone
	default:
		return Again
	}
}
