package ticket

import (
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A Several puts the keys of several tickets on one lease, each in the line of another
// lock, in one transaction: all of them, or none. It does what an Entering of each does.
//
// Invariant: the keys get one create revision, and the tickets are Queued only if all keys
// have that revision. Then a contender with keys waits only for keys of lower revisions, in
// whatever lines, so contenders never wait in a circle. (Do not go on with keys of unequal
// revisions: in one line such a key is before another call's, and in another line behind it.
// TestKeysOfUnequalRevisionsAreGivenUp.)
type Several struct {
	each []Entering
	then []int // how many ranges each ticket has in the Then of the transaction
	rest []int // and in its Else
}

// EnterAll begins to put the keys of tickets, as Enter does for one.
func EnterAll(tickets []*Ticket, try, owner bool) Several {
	s := Several{then: make([]int, len(tickets)), rest: make([]int, len(tickets))}
	for _, t := range tickets {
		e := t.Enter(try, owner)
		e.reads = true // if an earlier copy has put the keys, each has to show
		s.each = append(s.each, e)
	}
	return s
}

// Txn is the next transaction to send, with the values of the keys.
func (s *Several) Txn(values []string) Txn {
	var all Txn
	for i := range s.each {
		txn := s.each[i].Txn(values[i])
		all.If = append(all.If, txn.If...)
		all.Then = append(all.Then, txn.Then...)
		all.Else = append(all.Else, txn.Else...)
		s.then[i], s.rest[i] = ranges(txn.Then), ranges(txn.Else)
	}
	return all
}

// ranges is how many of ops read.
func ranges(ops []clientv3.Op) (n int) {
	for _, op := range ops {
		if op.IsGet() {
			n++
		}
	}
	return n
}

// Judge says what follows from an answer, and what is ahead of each ticket in its line, as
// Entering.Judge does. If it says Taken, the names with a contender ahead are taken.
func (s *Several) Judge(a Answer) (is Entrance, ahead []line.Ahead) {
	counts, read := s.rest, a.Read
	if a.Succeeded {
		counts = s.then
	}
	var told [Useless + 1]int
	ahead = make([]line.Ahead, len(s.each))
	for i := range s.each {
		part, n := a, min(counts[i], len(read))
		part.Read, read = read[:n], read[n:]
		is, ahead[i] = s.each[i].Judge(part)
		told[is]++
	}
	switch {
	case told[Useless] > 0:
		return Useless, ahead
	case told[Taken] > 0:
		return Taken, ahead
	case told[Unsure] == len(s.each):
		if slices.ContainsFunc(s.each, func(e Entering) bool { return !e.try }) {
			s.queue()
		}
		return Unsure, ahead
	case told[Unsure] > 0 || !s.equal():
		return Useless, ahead // one transaction does not leave such keys behind
	default:
		return Queued, ahead
	}
}

// queue makes TryLockAll go on as LockAll does, for all names.
func (s *Several) queue() {
	for i := range s.each {
		s.each[i].queue()
	}
}

// equal reports whether all keys have one create revision.
func (s *Several) equal() bool {
	for _, e := range s.each {
		if e.t.rev != s.each[0].t.rev {
			return false
		}
	}
	return true
}
