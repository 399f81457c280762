package ticket

import (
	"iter"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A Several puts the keys of several tickets on one lease, each in the line of another
// lock, in one transaction: all of them, or none. It does what an Entering of each does.
//
// Invariant: the keys get one create revision, and the tickets are Queued only if all keys
// have that revision. Then a contender with keys waits only for keys of lower revisions, in
// whatever lines, so contenders never wait in a circle.
//
// Do not go on with keys of unequal revisions: in one line such a key is before another call's, and
// in another line behind it. (TestKeysOfUnequalRevisionsAreGivenUp.)
type Several []Entering

// A Put puts the key of one ticket, as an Entering, or the keys of several, as a Several.
type Put interface {
	// Txn is the next transaction to send, with the values of the keys.
	Txn(values ...string) Txn

	// Read reads what an answer shows of the lines. Judge says what follows from it then.
	Read(a Answer)
	Judge(a Answer) Entrance

	// Ahead is what is ahead of the i-th ticket in its line, by the answer that was judged.
	Ahead(i int) *line.Ahead
}

// EnterAll begins to put the keys of tickets, as Enter does for one.
func EnterAll(tickets []*Ticket, try, owner bool) Several {
	s := make(Several, len(tickets))
	for i, t := range tickets {
		s[i] = t.Enter(try, owner)
		s[i].reads = true // if an earlier copy has put the keys, each has to show
	}
	return s
}

// Txn is the next transaction to send, with the values of the keys.
func (s Several) Txn(values ...string) (all Txn) {
	for i := range s {
		txn := s[i].Txn(values[i])
		s[i].then, s[i].rest = ranges(txn.Then), ranges(txn.Else)
		if i == 0 {
			all = txn
			continue
		}
		all.Name = ""
		all.If = append(all.If, txn.If...)
		all.Then = append(all.Then, txn.Then...)
		all.Else = append(all.Else, txn.Else...)
	}
	return all
}

// ranges is how many of ops read.
func ranges(ops []*pb.RequestOp) (n int) {
	for _, op := range ops {
		if op.GetRequestRange() != nil {
			n++
		}
	}
	return n
}

// ranges is how many ranges of e the branch has that etcd took.
func (e *Entering) ranges(a Answer) int {
	if a.Succeeded {
		return e.then
	}
	return e.rest
}

// parts are the parts of an answer that are of each ticket.
func (s Several) parts(a Answer) iter.Seq2[*Entering, Answer] {
	return func(yield func(*Entering, Answer) bool) {
		read := a.Read
		for i := range s {
			e, part, n := &s[i], a, len(read)
			if i < len(s)-1 {
				n = min(n, e.ranges(a))
			}
			part.Read, read = read[:n], read[n:]
			if !yield(e, part) {
				return
			}
		}
	}
}

// Read is Entering.Read of each ticket.
func (s Several) Read(a Answer) {
	for e, part := range s.parts(a) {
		e.Read(part)
	}
}

// Judge says what follows from an answer, as Entering.Judge does. If it says Taken, the names
// with a contender ahead are taken.
func (s Several) Judge(a Answer) (is Entrance) {
	var told [Useless + 1]int
	for e, part := range s.parts(a) {
		is = e.Judge(part)
		told[is]++
	}
	switch {
	case told[Useless] > 0:
		return Useless
	case told[Taken] > 0:
		return Taken
	case told[Unsure] == len(s):
		if slices.ContainsFunc(s, func(e Entering) bool { return e.try == nil }) {
			s.queue()
		}
		return Unsure
	case told[Unsure] > 0 || !s.equal():
		return Useless // one transaction does not leave such keys behind
	default:
		return Queued
	}
}

// Ahead is what is ahead of the i-th ticket in its line, by the answer that was judged.
func (s Several) Ahead(i int) *line.Ahead { return &s[i].ahead }

// queue makes TryLockAll go on as LockAll does, for all names.
func (s Several) queue() {
	for i := range s {
		if s[i].try != nil {
			s[i].queue()
		}
	}
}

// equal reports whether all keys have one create revision.
func (s Several) equal() bool {
	for _, e := range s {
		if e.t.rev != s[0].t.rev {
			return false
		}
	}
	return true
}
