// Package ticket is the life of one key in etcd's line: it builds each transaction that
// puts, releases or removes the key, and says what follows from each answer. It sends
// nothing itself, and has no mutex, no goroutine and no clock. The Session's mutex guards it.
// What never changes once it is known (name, key, lease, revision) may be read without the mutex.
//
//	transition  from                    to
//	Enter       Unsent, Sent            Sent, InLine, or Gone: by each answer to its put
//	Hold        InLine, Held            Held
//	Observe     InLine, Held            Gone, if it is lost; a Leaving one stays Leaving
//	Release     Held, Gone              Leaving: the release is sent
//	Leave       Unsent                  Removed: nothing was sent
//	            all but that, Removed   Leaving
//	Remove      Leaving                 Removed
//
// Besides, a ticket is doubtful once a copy of its put may come late. Its key may then be
// there again whatever etcd has said, so its name is never used again.
package ticket

import (
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A State is the state of a Ticket.
type State uint8

// The states of a Ticket.
const (
	Unsent  State = iota // no put was sent, or none that etcd may carry out
	Sent                 // a put may have been carried out
	InLine               // the key was seen, with its revision
	Held                 // its hold has begun, and may have ended, or waits for the call's other names
	Gone                 // another request has deleted the key, or put it over
	Leaving              // its release or removal is under way
	Removed              // etcd has confirmed that the key is gone, or never had it
)

// String is for messages.
func (s State) String() string {
	return [...]string{"unsent", "sent", "in line", "held", "gone", "leaving", "removed"}[s]
}

// A Reason is what happened to a key that was lost.
type Reason uint8

// The reasons.
const (
	Untold       Reason = iota
	Deleted             // another request has deleted it
	Overwritten         // another request has put it over, without the lease
	Either              // one of the two above: etcd did not answer which
	LeaseRevoked        // it went with its lease
)

// String is for messages.
func (r Reason) String() string {
	return [...]string{
		"untold", "deleted", "overwritten", "deleted or overwritten", "lease revoked",
	}[r]
}

// A Ticket is one key in etcd's line, which may exist or not.
//
// Invariant: the revision, once it is known, is the create revision of the key that this very
// ticket put. Every check and every removal compares it. The names of keys are used again, but
// create revisions never are. So a late event, answer or request cannot mean another ticket.
//
// Do not delete a key without the revision: it may be the next owner's.
// (TestUnlockAfterLossLeavesTheNewHolderAlone.)
type Ticket struct {
	// Set once, then only read.
	Name       string // of the lock
	Key        string
	Lease      int64
	line.Shape       // that Key shows
	slot       *Slot // the slot that Key comes from

	rev   int64 // create revision of the key, 0 until it is known
	state State
	doubt bool   // a copy of the put may still be under way
	lost  bool   // it is or was Gone, or was lost while it was Leaving
	loss  Reason // what is known about how it was lost

	self [1]*Ticket // t itself, once it is released
}

// New returns the ticket for the next use of a slot, which is free. If the slot has no
// name, New draws one.
func New(name string, lease int64, slot *Slot, draw func(name string) string) Ticket {
	if slot.key == "" {
		key := draw(name)
		*slot = Slot{key: key, shape: line.ShapeOf(key)}
	}
	slot.busy = true
	return Ticket{Name: name, Key: slot.key, Lease: lease, Shape: slot.shape, slot: slot}
}

// State is t's state.
func (t *Ticket) State() State { return t.state }

// Rev is the create revision of the key, 0 until it is known.
func (t *Ticket) Rev() int64 { return t.rev }

// Doubtful reports whether a late copy may put the key again.
func (t *Ticket) Doubtful() bool { return t.doubt }

// Lost reports whether another request has changed or deleted the key that t has put.
func (t *Ticket) Lost() bool { return t.lost }

// Loss is what is known about how the key was lost.
func (t *Ticket) Loss() Reason { return t.loss }

// Entry is t's key as it is in etcd. It has no revision while that is not known.
func (t *Ticket) Entry() line.Entry { return line.Entry{Key: t.Key, Rev: t.rev, Lease: t.Lease} }

func (t *Ticket) exists() *pb.Compare { return created(t.Key, t.rev) }

// Is reports whether e is the key as t has put it.
func (t *Ticket) Is(e line.Entry) bool {
	return e.Key == t.Key && e.Rev == t.rev && e.Lease == t.Lease
}

// A Txn is a transaction to be sent. etcd may carry out each one here any number of times.
//
// It has what is sent, and not the operations of clientv3, which copies them several times on their
// way, and its comparisons by reflection.
type Txn struct {
	Name       string // of the one lock whose keys it changes, "" if they are several
	If         []*pb.Compare
	Then, Else []*pb.RequestOp
	HearOut    bool // what a copy finds does not say whether another one was carried out

	own   string // the key that Again reads
	count bool   // whether it reads only whether that is there
}

// Sent is t as it is sent.
func (t Txn) Sent() *pb.TxnRequest {
	return &pb.TxnRequest{Compare: t.If, Success: t.Then, Failure: t.Else}
}

// Nested is t as an operation of another transaction.
func (t Txn) Nested() *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t.Sent()}}
}

// Again is the Else of a copy if there is no other: it shows whether the first one was carried out.
func (t Txn) Again() *pb.RequestOp {
	if t.count {
		return Count(t.own)
	}
	return Get(t.own)
}

// Edit puts another value over e, which was read, if it is as it was read, and otherwise reads it.
// The key keeps its lease and its place.
//
// Do not put with a lease: the key would outlive its holder's, or go with another.
// (TestARecallKeepsPlaceTokenAndLease.)
//
// Do not leave out the mod revision: a late copy would take back what was put since, if the value
// is as before again. (TestALateCopyOfASetInfoDoesNothing.)
//
// Do not leave out the value: after a set-back another one may be put at that revision.
// (TestALateCopyOfARecallDoesNothing.)
func Edit(e line.Entry, value string) Txn {
	again := put(e.Key, value, 0)
	again.GetRequestPut().IgnoreLease = true
	return Txn{
		If: []*pb.Compare{
			created(e.Key, e.Rev), modified(e.Key, e.Mod), valued(e.Key, e.Stored()),
		},
		Then: []*pb.RequestOp{again},
		Else: []*pb.RequestOp{Get(e.Key)},
	}
}

// Deletion deletes the very key that was read, if it is still on the lease on which it was.
func Deletion(e line.Entry) Txn {
	name, _, _ := line.ParseKey(e.Key)
	return Txn{
		Name: name, If: []*pb.Compare{created(e.Key, e.Rev), onLease(e.Key, e.Lease)},
		Then: []*pb.RequestOp{del(e.Key)}, own: e.Key, count: true,
	}
}

// An Answer is the result of one attempt at a transaction.
type Answer struct {
	Outcome   Outcome
	Copies    bool // it may have been sent more than once
	Succeeded bool
	Empty     bool                // the branch that etcd took has no operations
	Read      []*pb.RangeResponse // the results of the ranges of that branch
	Revision  int64               // of what the transaction has put
}

// read returns the result of the i-th range of the branch that etcd took.
func (a *Answer) read(i int) *pb.RangeResponse {
	if i < len(a.Read) {
		return a.Read[i]
	}
	return nil
}

// find returns a key as the i-th range, which reads only that key, has read it.
func (a *Answer) find(i int, key string) (e line.Entry, there bool) {
	return line.Find(a.read(i).GetKvs(), key)
}

// An Outcome says whether a transaction was carried out.
type Outcome uint8

// The outcomes.
const (
	Answered   Outcome = iota // it was
	NotApplied                // it was not, and never will be
	Unknown                   // it may have been, or may yet be
)

// String is for messages.
func (o Outcome) String() string {
	return [...]string{"answered", "not applied", "unknown"}[o]
}

// Doubtful reports whether a copy of the request may come late.
func (a *Answer) Doubtful() bool { return a.Copies || a.Outcome == Unknown }

// ---- transitions

// Enter begins to put t's key. With try it does so as TryLock does. With owner it also
// reads the holder's key.
func (t *Ticket) Enter(try, owner bool) Entering {
	e := Entering{t: t, owner: owner, reads: try, n: t.few(), among: line.None}
	switch {
	case try && t.Kind == line.Read:
		e.try = tryReadPut{}
	case try:
		e.try = tryPut{}
	}
	return e
}

// sends records that a put may have been carried out.
func (t *Ticket) sends() {
	t.must("Enter", Unsent, Sent)
	t.state = Sent
}

// claimRevision records the revision of t's key. It finds the key in the answer to the transaction
// that puts it, or otherwise in the i-th range, which reads the key. It returns Queued if t
// stands in line. It returns Useless if what is there under t's name is not what t has put:
// a leftover of an earlier use, or a key that was put over.
func (t *Ticket) claimRevision(a Answer, i int) Entrance {
	own, there := line.Entry{Key: t.Key, Rev: a.Revision, Lease: t.Lease}, a.Succeeded
	if !there {
		own, there = a.find(i, t.Key)
	}
	if !there {
		return Unsure
	}
	t.sends()
	if own.Lease != t.Lease || own.Rev <= t.slot.floor {
		t.state, t.doubt, t.lost = Gone, true, true
		return Useless
	}
	t.state, t.rev = InLine, own.Rev
	return Queued
}

// settle finds t in the answer to the release that should have put its key. It reports whether t
// stands in line.
func (t *Ticket) settle(a Answer) (queued bool) {
	if a.Outcome != Answered {
		if a.Doubtful() {
			t.sends()
		}
		return false
	}
	return t.claimRevision(a, 1) == Queued
}

// in reports whether t's very key was read, by the i-th range.
func (t *Ticket) in(a Answer, i int) bool {
	own, there := a.find(i, t.Key)
	return there && own.Rev == t.rev
}

// Hold notes that a hold begins at t, whose turn has come.
func (t *Ticket) Hold() {
	t.must("Hold", InLine, Held)
	t.state = Held
}

// Observe says what an observation means for t. It is the one transition from InLine or Held to
// Gone: another request has taken t's key. A Leaving ticket stays Leaving, since its own request
// may have deleted the key: but if it was put over it may outlive its lease. The first loss counts,
// with its reason.
func (t *Ticket) Observe(o Observation) Seen {
	seen := o.of(t)
	switch {
	case t.lost || !seen.IsLoss() || o.AskFirst && seen != PutOver:
		return seen
	case seen == PutOver:
		t.loss = Overwritten
	case o.LeaseGone:
		t.loss = LeaseRevoked
	default:
		t.loss = Deleted
	}
	t.lose()
	return seen
}

// lose notes that another request has deleted the key, or put it over, unless that is known.
func (t *Ticket) lose() {
	if t.lost {
		return
	}
	t.must("Lose", InLine, Held, Leaving)
	t.lost = true
	if t.state != Leaving {
		t.state = Gone
	}
}

// Release begins to release t's key, and to put the key of next, which may be nil. The same
// transaction releases the keys of the other tickets of the hold.
func (t *Ticket) Release(next *Ticket, others ...*Ticket) Release {
	t.self[0] = t
	r := Release{t: t, all: append(t.self[:], others...), next: next, reads: len(others) > 0}
	for _, t := range r.all {
		t.must("Release", Held, Gone)
		t.state = Leaving
		r.missed = r.missed || t.lost
	}
	return r
}

// Leave notes that t is given up and that its key must be removed if it may exist. If no key may
// exist, t is Removed.
func (t *Ticket) Leave() {
	t.must("Leave", Unsent, Sent, InLine, Held, Gone, Leaving)
	if t.state == Unsent { // no copy may come
		t.state, t.slot.busy = Removed, false
		return
	}
	t.state = Leaving
}

// Remove notes that the key is gone for good. etcd has confirmed that at a revision; 0 if the
// key goes with its lease, which is no longer renewed for it.
func (t *Ticket) Remove(revision int64) {
	t.must("Remove", Leaving)
	t.state = Removed
	if t.doubt {
		*t.slot = Slot{} // a copy may put the key again: never use its name
	} else {
		t.slot.floor, t.slot.busy = max(t.slot.floor, revision), false
	}
}

// Removal is the transaction that removes t's key for certain. Without a known revision it
// removes whatever is there under t's name. That name belongs to t alone and is not used again.
//
// With tell it reads what is ahead of t, for the error of a wait that ends: in a short line
// the few contenders that known has, in a longer one only the holder's key, since a crowd may give
// up at once.
func (t *Ticket) Removal(tell bool, known line.Ahead) Txn {
	gone, there := []*pb.RequestOp{del(t.Key)}, []*pb.RequestOp(nil)
	if tell && t.rev != 0 {
		read := within(line.Whole(t.Name), oldestFirst, 1)
		if read.GetRequestRange().KeysOnly = true; known.Reading == line.All {
			read = within(line.Whole(t.Name), oldestFirst, nearest)
		}
		gone, there = append(gone, read), append(there, read)
	}
	if t.rev == 0 {
		gone, there = there, gone // exists compares with 0
	}
	txn := Txn{Name: t.Name, If: []*pb.Compare{t.exists()}, Then: gone, Else: there}
	txn.own, txn.count = t.Key, true // so that a copy has something to do
	return txn
}

// MayLeave reports whether e, which was read, is a key that t may have left there.
func (t *Ticket) MayLeave(e line.Entry) bool {
	return e.Rev != 0 && (t.rev == 0 || t.rev == e.Rev)
}

// RemovedBy records an answer to the removal. It returns what was ahead of t then, if the
// removal has read that, and otherwise what was known before.
func (t *Ticket) RemovedBy(a Answer, known line.Ahead) line.Ahead {
	if t.rev == 0 {
		t.doubt = true
	} else if read := a.read(0); read != nil {
		ahead := line.Ahead{About: int(read.Count)}.HeldBy(t.Name, read)
		if known.Reading == line.All {
			ahead, _ = line.Among(t.Name, t.Entry(), read)
		} else if ahead.First != nil && known.First != nil && ahead.First.Rev == known.First.Rev {
			ahead.First = known.First // with its value
		}
		known = ahead.Since(known)
	}
	t.Remove(a.Revision)
	return known
}

// must panics if t is in none of the states from which there is a transition. That is a bug in
// the Session.
func (t *Ticket) must(transition string, from ...State) {
	if slices.Contains(from, t.state) {
		return
	}
	panic(fmt.Sprintf("ticket: %s: the ticket is %v", transition, t.state))
}

// ---- reads

// Few is the number of predecessors up to which a ticket knows all of them. Behind more it reads
// only the nearest. etcd goes through the whole line for these, and sorts it.
const Few = 8

// nearest is how many keys a ticket reads, except in tests. One more than Few shows that there
// are more.
var nearest int64 = Few + 1

// mostNearest is how many keys a permit reads at most in its first reading.
const mostNearest = 1024

// few is how many of the keys before it t reads: the nearest ones. A permit reads so many
// that either they are all there are, or their weights are too much for its limit even if
// each is 1. It reads twice that many, so that it soon knows all for which it waits.
func (t *Ticket) few() int64 {
	return min(nearest+2*int64(t.Limit), max(nearest, mostNearest))
}

var (
	newestFirst = order{pb.RangeRequest_DESCEND, pb.RangeRequest_CREATE}
	oldestFirst = order{pb.RangeRequest_ASCEND, pb.RangeRequest_CREATE}
	inNoOrder   = order{} // etcd sorts nothing
)

// An order is how etcd sorts what it reads.
type order struct {
	order pb.RangeRequest_SortOrder
	of    pb.RangeRequest_SortTarget
}

// some reads n keys of the line in an order, in the form that line.Before expects. A reader's
// ticket has several ranges. There may be any number of other readers. It reads the newest few keys
// of their range, in case one is exclusive.
func (t *Ticket) some(by order, n int64) []*pb.RequestOp {
	const more = 2 // room for what a put adds
	if t.Kind != line.Read {
		return append(make([]*pb.RequestOp, 0, 1+more), within(line.Whole(t.Name), by, n))
	}
	ops := make([]*pb.RequestOp, 0, 3+more)
	for i, r := range line.Ranges(t.Name) {
		most, by := n, by
		if i == line.OfReads {
			most, by = min(n, nearest), newestFirst
		}
		ops = append(ops, within(r, by, most))
	}
	return ops
}

// within reads the first n keys of a range in an order.
func within(in line.Range, by order, n int64) *pb.RequestOp {
	r := &pb.RangeRequest{Key: []byte(in.From), RangeEnd: []byte(in.To), Limit: n}
	r.SortOrder, r.SortTarget = by.order, by.of
	return &pb.RequestOp{Request: &rangeOp{RequestRange: r}}
}

// exclusives are the ranges without readers.
func (t *Ticket) exclusives() []line.Range {
	ranges := line.Ranges(t.Name)
	return slices.Delete(ranges[:], line.OfReads, line.OfReads+1)
}

// byChance reads the nearest keys in the readers' range. One of them may be exclusive, and
// the exclusives do not include it.
func (t *Ticket) byChance() *pb.RequestOp {
	return within(line.Ranges(t.Name)[line.OfReads], newestFirst, nearest)
}

// readAhead is what a transaction reads before it puts t's key: n keys, and how many there are.
// The key that t puts after that is behind all of them. In a short line they are all. In a longer
// one t looks for its nearest predecessor afterwards. If the key last is there, it reads only that
// one, and how many there are; "" for none. If the caller asks for the owner, it reads the nearest
// keys and the oldest one, for which etcd has to sort the line.
//
// Do not have etcd sort the line for each put. It carries out nothing else meanwhile, so a crowd of
// thousands would wait for all of its readings, one after the other, until its leases run out.
// (TestAPutHasEtcdSortNoLine.)
func (t *Ticket) readAhead(n int64, last string, owner bool) []*pb.RequestOp {
	if owner {
		return append(t.some(newestFirst, n), within(line.Whole(t.Name), oldestFirst, 1))
	}
	ops := t.some(inNoOrder, n)
	if last != "" {
		there := created(last, 0)
		there.Result = pb.Compare_GREATER
		ops[0] = Txn{If: []*pb.Compare{there},
			Then: []*pb.RequestOp{Get(last), CountBelow(t.Name)}, Else: []*pb.RequestOp{ops[0]}}.Nested()
	}
	return ops
}

// aheadOf returns t's predecessors, by what readAhead has read. It leaves a line that has become
// short to a look, since its contenders are few.
func (t *Ticket) aheadOf(a Answer, last string, owner bool) line.Ahead {
	if count := a.read(1); last != "" && count != nil {
		behind := line.Behind(t.Name, a.read(0), count.Count)
		if count.Count <= Few || behind.Reading == line.Unread {
			return line.Ahead{}
		}
		return behind
	}
	newest, enough := a.Read, line.AllOrNone
	if owner && len(newest) > 0 {
		newest, enough = newest[:len(newest)-1], int(nearest)
	}
	if len(newest) == 0 {
		return line.Ahead{}
	}
	ahead := line.Before(t.Name, line.Entry{Key: t.Key}, enough, newest...)
	if owner && !ahead.Clear() {
		return ahead.HeldBy(t.Name, a.Read[len(newest)])
	}
	return ahead
}

// ---- operations

// created compares the create revision of a key.
func created(key string, rev int64) *pb.Compare {
	is := &pb.Compare_CreateRevision{CreateRevision: rev}
	return &pb.Compare{Target: pb.Compare_CREATE, Key: []byte(key), TargetUnion: is}
}

// modified compares the mod revision of a key.
func modified(key string, rev int64) *pb.Compare {
	is := &pb.Compare_ModRevision{ModRevision: rev}
	return &pb.Compare{Target: pb.Compare_MOD, Key: []byte(key), TargetUnion: is}
}

// onLease compares the lease of a key. A key that was put over keeps its create revision, but
// perhaps has no lease: it no longer stands in line, and no lease removes it.
func onLease(key string, lease int64) *pb.Compare {
	is := &pb.Compare_Lease{Lease: lease}
	return &pb.Compare{Target: pb.Compare_LEASE, Key: []byte(key), TargetUnion: is}
}

// valued compares the value of a key.
func valued(key, value string) *pb.Compare {
	is := &pb.Compare_Value{Value: []byte(value)}
	return &pb.Compare{Target: pb.Compare_VALUE, Key: []byte(key), TargetUnion: is}
}

type rangeOp = pb.RequestOp_RequestRange

// Range reads a range.
func Range(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &rangeOp{RequestRange: r}}
}

// Get reads a key.
func Get(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &rangeOp{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}
}

// Count reads only whether a key is there.
func Count(key string) *pb.RequestOp {
	return Range(&pb.RangeRequest{Key: []byte(key), CountOnly: true})
}

// put puts a key on a lease.
func put(key, value string, lease int64) *pb.RequestOp {
	r := &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

// del deletes a key.
func del(key string) *pb.RequestOp {
	r := &pb.DeleteRangeRequest{Key: []byte(key)}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
}

// ---- names

// A Slot holds one of the key names that a line uses in turn: a name whose key was deleted
// costs etcd less to put again than a new one, until it compacts.
type Slot struct {
	key   string // "": a name must be drawn
	floor int64  // the revision at which the key was last known to be gone, of its earlier uses
	shape line.Shape
	busy  bool
}

// mostSlots is how many slots a name has at most. Beyond them a slot is used once. Two are enough
// for one key at a time, since a transaction may not delete and put the same key. Permits may be
// many.
const mostSlots = 64

// Slots are the slots of one name, for keys that were drawn on one lease and in one epoch: D says
// which.
type Slots[D comparable] struct {
	drawn D
	slots []*Slot
}

// Free returns a slot that is not busy, for a key of a shape that is drawn on a lease and in an
// epoch. It forgets the names that were drawn before: a key of such a name may be back.
func (s *Slots[D]) Free(drawn D, shape line.Shape) *Slot {
	if s.drawn != drawn {
		*s = Slots[D]{drawn: drawn}
	}
	unlike := -1
	for i, slot := range s.slots {
		switch {
		case slot.busy:
		case slot.key == "" || slot.shape == shape:
			return slot
		default:
			unlike = i
		}
	}
	slot := &Slot{}
	if len(s.slots) < mostSlots {
		s.slots = append(s.slots, slot)
	} else if unlike >= 0 {
		s.slots[unlike] = slot
	}
	return slot
}
