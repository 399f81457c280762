package ticket_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/sent"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// ---- etcd: the keys of one name

// A stored is a key in etcd. It never changes.
type stored struct {
	key      string
	rev, mod int64 // create and mod revision
	lease    int64
	stray    bool // no contender
}

// standsIn reports whether s stands in line.
func (s *stored) standsIn() bool { return !s.stray && s.lease != 0 }

// reads reports whether s is the key of a reader.
func (s *stored) reads() bool { return line.ShapeOf(s.key).Kind == line.Read }

// foreign is a lease that belongs to no Session.
const foreign = 62

// An etcd is one name's part of etcd. Its history is what was there at each revision. So a
// member that lags can show the past, and etcd can be set back.
type etcd struct {
	history []moment // by revision
	leases  uint64   // that there are, by bit
	backs   int      // how often it was set back
}

// A moment is what was there when a revision was made.
type moment struct {
	there  []*stored
	leases uint64
}

func (e *etcd) rev() int64             { return int64(len(e.history) - 1) }
func (e *etcd) now() []*stored         { return e.history[e.rev()].there }
func (e *etcd) alive(lease int64) bool { return e.leases&(1<<lease) != 0 }

// find returns a key that is there, and nil if it is not.
func (e *etcd) find(key string) *stored {
	for _, s := range e.now() {
		if s.key == key {
			return s
		}
	}
	return nil
}

// has reports whether a ticket's very key is there.
func (e *etcd) has(t *ticket.Ticket) bool {
	s := e.find(t.Key)
	return s != nil && s.rev == t.Rev()
}

// hasAsPut reports whether the ticket's key is there and was not put over.
func (e *etcd) hasAsPut(t *ticket.Ticket) bool {
	return e.has(t) && e.find(t.Key).lease == t.Lease
}

// hasMoved reports whether an entry's key is there on the lease to which its release moves it.
func (e *etcd) hasMoved(of *entry) bool {
	return of.moves != 0 && e.has(&of.ticket) && e.find(of.ticket.Key).lease == of.moves
}

// on is how many keys are on some leases.
func (e *etcd) on(leases []int64) (n int) {
	for _, s := range e.now() {
		if slices.Contains(leases, s.lease) {
			n++
		}
	}
	return n
}

// others reports whether contenders stand in line beside which the key does not hold.
func (e *etcd) others(key string) bool {
	if own := line.ShapeOf(key); own.Kind == line.Permit {
		sum, least, alone := own.Weight, own.Limit, true
		for _, s := range e.now() {
			if shape := line.ShapeOf(s.key); s.standsIn() && s.key != key {
				sum, least, alone = sum+shape.Weight, min(least, shape.Limit), alone && shape.Kind == own.Kind
			}
		}
		return !alone || sum > least
	}
	beside := func(s *stored) bool { return s.reads() && line.ShapeOf(key).Kind == line.Read }
	other := func(s *stored) bool { return s.standsIn() && s.key != key && !beside(s) }
	return slices.ContainsFunc(e.now(), other)
}

// overtakes reports whether a permit that holds has not counted some of the permits before it,
// whether these hold or wait.
func (e *etcd) overtakes(t *ticket.Ticket) bool {
	own := line.ShapeOf(t.Key)
	sum, least := own.Weight, own.Limit
	for _, s := range e.now() {
		if s.standsIn() && s.rev < t.Rev() {
			shape := line.ShapeOf(s.key)
			sum, least = sum+shape.Weight, min(least, shape.Limit)
		}
	}
	return own.Kind == line.Permit && sum > least
}

// company reports whether another contender stands in line.
func (e *etcd) company(key string) bool {
	return slices.ContainsFunc(e.now(), func(s *stored) bool { return s.standsIn() && s.key != key })
}

// set makes the next revision.
func (e *etcd) set(now []*stored) {
	e.history = append(slices.Clip(e.history), moment{now, e.leases})
}

// setBack restores etcd from a snapshot of a revision.
func (e *etcd) setBack(to int64) {
	e.history = e.history[:to+1]
	e.leases = e.history[to].leases
	e.backs++
}

// putOver puts over the key that has a create revision.
func (e *etcd) putOver(rev, lease int64) {
	now := slices.Clone(e.now())
	for i, s := range now {
		if s.rev == rev {
			over := *s
			over.mod, over.lease = e.rev()+1, lease
			now[i] = &over
		}
	}
	e.set(now)
}

// without returns the keys that are there now, except for the ones that a function picks.
func (e *etcd) without(gone func(*stored) bool) []*stored {
	return slices.DeleteFunc(slices.Clone(e.now()), gone)
}

// end ends a lease and deletes its keys.
func (e *etcd) end(lease int64) {
	e.leases &^= 1 << lease
	if rest := e.without(func(s *stored) bool { return s.lease == lease }); len(rest) < len(e.now()) {
		e.set(rest)
	}
}

// answer returns what a range reads of what is there.
func answer(there []*stored, r *pb.RangeRequest) *pb.RangeResponse {
	reply := &pb.RangeResponse{}
	for _, s := range there {
		k := []byte(s.key)
		within := bytes.Compare(k, r.Key) >= 0 && bytes.Compare(k, r.RangeEnd) < 0
		if !bytes.Equal(k, r.Key) && (len(r.RangeEnd) == 0 || !within) {
			continue
		}
		reply.Count++ // of all
		if r.CountOnly || r.MaxCreateRevision != 0 && s.rev > r.MaxCreateRevision {
			continue
		}
		kv := &mvccpb.KeyValue{Key: k, CreateRevision: s.rev, ModRevision: s.mod, Lease: s.lease}
		if r.KeysOnly {
			kv.Lease = 0
		}
		reply.Kvs = append(reply.Kvs, kv)
	}
	slices.SortFunc(reply.Kvs, func(a, b *mvccpb.KeyValue) int {
		switch {
		case r.SortTarget != pb.RangeRequest_CREATE:
			return bytes.Compare(a.Key, b.Key)
		case r.SortOrder == pb.RangeRequest_DESCEND:
			return cmp.Compare(b.CreateRevision, a.CreateRevision)
		default:
			return cmp.Compare(a.CreateRevision, b.CreateRevision)
		}
	})
	if n := int(r.Limit); n > 0 && len(reply.Kvs) > n {
		reply.Kvs, reply.More = reply.Kvs[:n], true
	}
	return reply
}

// look is the answer to a ticket's look at a revision.
func (e *etcd) look(l *ticket.Look, k line.Kind, at int64) (read []*pb.RangeResponse) {
	if k == line.Read {
		for _, op := range wireOf(ticket.Txn{Then: l.Ranges(0)}, false).in.Success {
			read = append(read, answer(e.history[at].there, op.GetRequestRange()))
		}
		return read
	}
	return append(read, answer(e.history[at].there, sent.Range(line.Prefix(name), l.Range(0)...)))
}

// carryOut carries out a transaction. It fails if the transaction puts with a lease that is
// not there.
func (e *etcd) carryOut(in *pb.TxnRequest) (a ticket.Answer, noLease bool) {
	a.Succeeded = !slices.ContainsFunc(in.Compare, func(c *pb.Compare) bool { return !e.holds(c) })
	ops := in.Success
	if !a.Succeeded {
		ops = in.Failure
	}
	there, changed := e.now(), false
	for _, op := range ops {
		switch {
		case op.GetRequestPut() != nil:
			put := op.GetRequestPut()
			if !e.alive(put.Lease) {
				return ticket.Answer{Outcome: ticket.NotApplied}, true
			}
			key := string(put.Key)
			there = slices.DeleteFunc(slices.Clone(there), func(s *stored) bool { return s.key == key })
			next := e.rev() + 1
			created := next
			if s := e.find(key); s != nil {
				created = s.rev
			}
			there = append(there, &stored{key: key, rev: created, mod: next, lease: put.Lease})
			changed = true
		case op.GetRequestDeleteRange() != nil:
			key := string(op.GetRequestDeleteRange().Key)
			rest := slices.DeleteFunc(slices.Clone(there), func(s *stored) bool { return s.key == key })
			there, changed = rest, changed || len(rest) < len(there)
		default:
			r := op.GetRequestRange()
			a.Read = append(a.Read, answer(there, r))
		}
	}
	if changed {
		e.set(there)
	}
	a.Empty, a.Revision = len(ops) == 0, e.rev() // the revision of what was put
	return a, false
}

// holds evaluates one compare, of the kinds that occur here.
func (e *etcd) holds(c *pb.Compare) bool {
	if len(c.RangeEnd) > 0 { // of each key that there is
		return !slices.ContainsFunc(e.now(), func(s *stored) bool {
			switch {
			case s.key < string(c.Key), s.key >= string(c.RangeEnd):
				return false
			case c.Result == pb.Compare_EQUAL && c.Target == pb.Compare_CREATE:
				return s.rev != c.GetCreateRevision()
			case c.Result == pb.Compare_LESS && c.Target == pb.Compare_MOD:
				return s.mod >= c.GetModRevision()
			}
			panic(fmt.Sprintf("no compare of these: %v", c))
		})
	}
	var rev, lease int64
	if s := e.find(string(c.Key)); s != nil {
		rev, lease = s.rev, s.lease
	}
	switch {
	case c.Result == pb.Compare_EQUAL && c.Target == pb.Compare_CREATE:
		return rev == c.GetCreateRevision()
	case c.Result == pb.Compare_EQUAL && c.Target == pb.Compare_LEASE:
		return lease == c.GetLease() // a key that is not there has none, which is 0
	}
	panic(fmt.Sprintf("no compare of these: %v", c))
}

// ---- requests

// A wire is a transaction as it is sent.
type wire struct {
	in   *pb.TxnRequest
	text string
}

// wireOf is a transaction as it is sent. again is set for a copy that the library
// sends.
func wireOf(t ticket.Txn, again bool) wire {
	otherwise := t.Else
	if again && otherwise == nil {
		otherwise = []*pb.RequestOp{t.Again()}
	}
	in := ticket.Txn{If: t.If, Then: t.Then, Else: otherwise}.Sent()
	var text []byte
	for _, c := range in.Compare {
		text = append(text, byte(c.Target), byte(c.GetCreateRevision()), byte(c.GetLease()))
		text = append(text, byte(c.GetModRevision()), byte(len(c.RangeEnd)))
		text = append(text, short(c.Key)...)
	}
	return wire{in, string(appendOps(appendOps(text, in.Success), in.Failure))}
}

// tries reports whether a request is TryLock's put, and of which key.
func tries(in *pb.TxnRequest) (key string, is bool) {
	is = slices.ContainsFunc(in.Compare, func(c *pb.Compare) bool { return len(c.RangeEnd) > 0 })
	for _, op := range in.Success {
		if put := op.GetRequestPut(); put != nil {
			key = string(put.Key)
		}
	}
	return key, is
}

// appendOps appends a text for the operations of a branch.
func appendOps(b []byte, ops []*pb.RequestOp) []byte {
	b = append(b, byte(len(ops)))
	for _, op := range ops {
		switch {
		case op.GetRequestPut() != nil:
			b = append(append(b, 'p', byte(op.GetRequestPut().Lease)), short(op.GetRequestPut().Key)...)
		case op.GetRequestDeleteRange() != nil:
			b = append(append(b, 'd'), short(op.GetRequestDeleteRange().Key)...)
		default:
			r := op.GetRequestRange()
			b = append(append(b, 'r', byte(r.SortOrder), byte(r.Limit)), short(r.Key)...)
		}
	}
	return b
}

// short is as much of a key as tells it from other keys.
func short(key []byte) []byte { return key[max(len(key)-2, 0):] }

// A message is a request on its way to etcd.
type message struct {
	wire
	to    int  // the ticket that made the call; none if the call is over
	epoch int  // of the Session, when it was sent
	late  bool // it was sent once the least time of its hold was over
}

const none = -1

// ---- clients

// A phase is what the library does with a ticket.
type phase byte

const (
	entering phase = iota
	putting        // by the release of another
	waiting
	holding
	lingering
	releasing
	removing
)

func (p phase) String() string {
	return [...]string{
		"entering", "put by another", "waiting", "holding", "lingering", "releasing", "removing",
	}[p]
}

// An entry is what the library and the judge know of a ticket.
type entry struct {
	ticket ticket.Ticket
	claim  int
	phase  phase
	using  bool // counted among the lease's users
	copies bool // there may be copies of the present call
	ahead  line.Ahead
	next   int // the ticket that its release puts, or none
	after  int // the ticket whose removal comes before, or none
	epoch  int // of the last answer that told the revision, or the line

	unqueued int // of a release: the ticket that it was to put, and did not, or none

	moves int64 // of a release: the lease to which it moves the key; 0 if it deletes that
	late  bool  // the least time of the hold is over
	seen  bool  // a live watch covered the key when Unlock was called

	entering ticket.Entering
	release  ticket.Release

	// The judge's.
	whole     bool // the hold, as its holder knows
	taken     bool // an operator or the end of the lease has ended the key
	operated  bool // an operator did that, or a set-back
	undone    bool // a set-back did it, and the next answer shows that
	ambiguous bool // a copy of the release may have been carried out before its last answer
	before    bool // it was taken when Unlock was called
	sure      bool // an unambiguous answer said that the key was gone
	handed    int  // how many holds in a row got the key handed on
}

// A standing is where a claim stands.
type standing byte

const (
	idle   standing = iota
	atHome          // in the local queue
	called          // its turn has come, with a ticket or none, and its context had ended before
	inLine          // it has the turn, and a ticket
	done
	beside // it holds beside the owner of the turn, or has lost that hold
)

// A claim is the claim of one goroutine.
type claim struct {
	standing standing
	rounds   int // rounds to go
	ticket   int
	ended    bool // its context has ended at home, and its goroutine has not run since
}

// A lease is a lease of a Session.
type lease struct {
	id      int64
	retired bool
	ended   bool // its trust is over, or it is being revoked
	dead    bool // in etcd
}

// A session is one Session.
type session struct {
	queue   *home.Queue[int]
	waiters []*home.Waiter[int] // by claim, nil for the claims of other Sessions
	slots   ticket.Slots[ticket.Drawn]
	leases  []lease // the last one is in use
	kept    int     // the key that lingers, as keyOf; 0 for none
	drawn   int
	epoch   int // how many set-backs it knows of
}

// ---- copies

func (s *session) copy() (c session, slot func(*ticket.Slot) *ticket.Slot) {
	c = *s
	c.leases = slices.Clone(s.leases)
	copied, where := s.slots.Copy()
	c.slots = copied
	slot = func(old *ticket.Slot) *ticket.Slot {
		if slot, found := where(old); found {
			return slot
		}
		return old.Once()
	}
	c.queue, c.waiters = copyQueue(s.queue, s.waiters)
	return c, slot
}

// copyQueue makes a queue in which each waiter stands where it does in another queue. It
// uses the queue's own transitions.
func copyQueue(
	old *home.Queue[int], olds []*home.Waiter[int],
) (*home.Queue[int], []*home.Waiter[int]) {
	q, waiters := &home.Queue[int]{}, make([]*home.Waiter[int], len(olds))
	for i, w := range olds {
		if w != nil {
			waiters[i] = &home.Waiter[int]{
				Value: w.Value, Shares: w.Shares, Steps: w.Steps, Try: w.Try,
			}
		}
	}
	var waiting []int
	next, owner, holds := none, none, false
	for claim := range old.All() {
		switch olds[claim].Standing() {
		case home.Waiting:
			waiting = append(waiting, claim)
		case home.Owner, home.Holder:
			owner, holds = claim, olds[claim].Standing() == home.Holder
		default:
			next = claim
		}
	}
	having := slices.Collect(old.Having())
	switch {
	case owner != none && olds[owner].Steps:
		for _, claim := range having {
			if !q.Enter(waiters[claim]) {
				q.Admit()
			}
			if claim != owner || holds {
				q.Hold(waiters[claim])
			}
		}
	case owner != none:
		q.Enter(waiters[owner])
		if holds {
			q.Hold(waiters[owner])
		}
	}
	for _, claim := range having {
		if claim != owner && waiters[claim].Shares {
			q.Enter(waiters[claim])
			q.Admit()
		}
	}
	chosen := &home.Waiter[int]{Shares: true} // it has left
	if next != none {
		chosen = waiters[next]
	}
	if old.State() == home.Passing {
		q.Enter(chosen)
		q.Choose()
	}
	early := 0 // of those that wait, up to the last one that is early
	for i, claim := range waiting {
		if old.Early(olds[claim]) {
			early = i + 1
		}
	}
	for i, claim := range waiting {
		if i == early {
			gather(q)
		}
		q.Enter(waiters[claim])
	}
	if early == len(waiting) {
		gather(q)
	}
	if next == none && chosen.Standing() == home.Next {
		q.Leave(chosen)
	}
	for i, w := range olds {
		if w != nil && w.Standing() == home.Gone {
			var other home.Queue[int]
			other.Enter(waiters[i])
			other.End(waiters[i], false)
		}
		if w != nil && waiters[i].Standing() != w.Standing() || q.State() != old.State() ||
			w != nil && w.Standing() == home.Waiting && q.Early(waiters[i]) != old.Early(w) {
			panic("the copy of the queue is another one")
		}
	}
	return q, waiters
}

// gather notes that the waiters came before a put, if the turn has an owner.
func gather(q *home.Queue[int]) {
	if s := q.State(); s == home.Taken || s == home.Passing {
		q.Gather()
	}
}

func (w *world) copy() *world {
	c := *w
	c.net = slices.Clone(w.net)
	c.entries = make([]*entry, len(w.entries))
	c.sessions, c.claims = slices.Clone(w.sessions), slices.Clone(w.claims)
	slots := make([]func(*ticket.Slot) *ticket.Slot, len(w.sessions))
	for i := range w.sessions {
		c.sessions[i], slots[i] = w.sessions[i].copy()
	}
	for i, e := range w.entries {
		if e != nil {
			copied := *e
			copied.ticket = e.ticket.Copy(slots[w.home(e.claim)])
			c.entries[i] = &copied
		}
	}
	for i, e := range w.entries {
		if e != nil {
			mine := c.entries[i]
			mine.entering = e.entering.Of(&mine.ticket)
			var next *ticket.Ticket
			if e.next != none {
				next = &c.entries[e.next].ticket
			}
			mine.release = e.release.Of(&mine.ticket, next)
		}
	}
	return &c
}

// append appends all that makes w different from other worlds.
func (w *world) append(b []byte) []byte {
	oldest := w.etcd.rev() // it leaves out what no waiter can ask for any more
	for _, e := range w.entries {
		if e != nil && e.phase == waiting {
			oldest = min(oldest, e.ticket.Rev())
		}
	}
	b = binary.AppendVarint(b, w.etcd.rev())
	b = binary.AppendVarint(b, oldest)
	oldest = min(oldest, w.etcd.rev())
	if w.may(setBack) {
		oldest = 0
	}
	for _, at := range w.etcd.history[oldest:] {
		b = append(b, byte(len(at.there)))
		for _, s := range at.there {
			b = append(b, short([]byte(s.key))...)
			b = append(b, byte(s.rev), byte(s.mod), byte(s.lease))
		}
		if w.may(setBack) {
			b = binary.AppendUvarint(b, at.leases)
		}
	}
	b = append(binary.AppendUvarint(b, w.etcd.leases), byte(w.etcd.backs))
	b = append(b, byte(w.token), byte(w.written), byte(w.granted), byte(len(w.net)))
	texts := make([]string, len(w.net)) // in whatever order they were sent
	for i, m := range w.net {
		texts[i] = string([]byte{byte(m.to + 1), byte(m.epoch), bits(m.late)}) + m.text
	}
	slices.Sort(texts)
	for _, text := range texts {
		b = append(append(b, byte(len(text))), text...)
	}
	for i := range w.sessions {
		s := &w.sessions[i]
		b = append(b, byte(s.drawn), byte(s.epoch), byte(s.queue.State()), byte(s.kept))
		for claim := range s.queue.All() {
			b = append(b, byte(claim))
		}
		for _, waiter := range s.waiters {
			if waiter != nil {
				early := s.queue.Early(waiter)
				b = append(b, byte(waiter.Standing()), bits(early))
			}
		}
		for _, l := range s.leases {
			b = append(b, byte(l.id), bits(l.retired, l.ended, l.dead))
		}
		for claim := range s.queue.Having() {
			b = append(b, byte(claim))
		}
		b = s.slots.Append(append(b, 0xfe))
	}
	for _, c := range w.claims {
		b = append(b, byte(c.standing), byte(c.rounds), byte(c.ticket), bits(c.ended))
	}
	for i, e := range w.entries {
		if e == nil {
			continue
		}
		b = append(b, byte(i), byte(e.claim), byte(e.phase))
		b = append(b, byte(e.next), byte(e.after), byte(e.unqueued), byte(e.epoch), byte(e.handed))
		b = append(b, bits(e.using, e.copies, e.whole, e.late), byte(e.moves))
		b = append(b, bits(e.taken, e.operated, e.undone, e.ambiguous, e.sure, e.before, e.seen))
		b = e.ticket.Append(b)
		b = e.release.Append(e.entering.Append(b))
		b = append(b, byte(e.ahead.Reading), byte(len(e.ahead.Last)))
		for _, a := range e.ahead.Last {
			b = append(b, byte(a.Rev))
		}
	}
	b = append(b, byte(len(w.lent)))
	for _, lease := range slices.Concat(w.lent, w.kept) {
		b = append(b, byte(lease))
	}
	for f := range numFaults {
		if w.may(f) {
			b = append(b, byte(f), byte(w.faults[f]))
		}
	}
	return append(b, byte(w.left))
}

func bits(flags ...bool) (b byte) {
	for i, f := range flags {
		if f {
			b |= 1 << i
		}
	}
	return b
}
