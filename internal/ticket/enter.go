package ticket

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// An Entering is the putting of a ticket's key. The same put may be carried out many times, and
// makes one key.
//
// That of Lock stands in line after it. That of TryLock puts the key only if nobody else stands
// in line, and otherwise writes nothing.
type Entering struct {
	t     *Ticket
	try   bool
	reads bool  // whether the key is there already, and whose the line is
	seen  int64 // TryLock: up to here nothing below the prefix is a contender
}

// Enter begins to put t's key. try asks for what TryLock does.
func (t *Ticket) Enter(try bool) Entering { return Entering{t: t, try: try, reads: try} }

// Txn is what to send next, with the value of the key.
//
// TryLock first asks that nothing be below the prefix. If something is, but it is no contender,
// it asks that nothing below the prefix be newer than what it has seen.
func (e *Entering) Txn(value string) Txn {
	t := e.t
	txn := Txn{
		Then:  []clientv3.Op{t.put(value), t.readLine()},
		Again: t.readLine(),
	}
	switch {
	case !e.try:
		txn.If = []clientv3.Cmp{t.absent()}
	case e.seen == 0:
		alone := clientv3.Compare(clientv3.CreateRevision(t.Prefix()), "=", 0).WithPrefix()
		txn.If = []clientv3.Cmp{t.absent(), alone}
	default:
		alone := clientv3.Compare(clientv3.ModRevision(t.Prefix()), "<", e.seen+1).WithPrefix()
		txn.If = []clientv3.Cmp{t.absent(), alone}
	}
	if e.reads { // it costs time, and the key is hardly ever there at first
		txn.Else = []clientv3.Op{t.readLine()}
	}
	return txn
}

// An Entrance says what follows from the answer to a put.
type Entrance uint8

// The entrances.
const (
	Unsure  Entrance = iota // try again
	Queued                  // t stands in line
	Taken                   // TryLock: others stand before t, whose key may be there
	Useless                 // t cannot be used
)

// String is for messages.
func (e Entrance) String() string {
	return [...]string{"unsure", "queued", "taken", "useless"}[e]
}

// Judge says what follows from an answer, and who is before t in line.
func (e *Entering) Judge(a Answer) (is Entrance, ahead []line.Entry) {
	t := e.t
	if a.Outcome == Answered && a.Succeeded {
		t.sends()
	}
	if a.Doubtful() {
		// A copy may come late, and apply as long as the lease lives.
		t.sends()
		t.doubt = true
	}
	if a.Outcome != Answered || a.Empty {
		e.reads = true // tells whose it is
		return Unsure, nil
	}
	contenders, is := t.adopt(a)
	switch {
	case is == Useless:
		return Useless, nil
	case is != Queued && !e.try:
		return Useless, nil // it was there, and was deleted before it was read
	}
	// TryLock is queued by this request, or by an earlier one whose answer was lost.
	ahead = contenders.Blocking(t.Entry())
	switch {
	case e.try && len(ahead) > 0:
		return Taken, ahead
	case is != Queued:
		e.seen = a.Revision
	}
	return is, ahead
}

// adopt finds t in the line that a transaction has read, and notes its revision. It returns
// the line, and Queued if t stands in it; Useless if what is there under t's name is not what t
// has put: a leftover of an earlier use, or a key that somebody put over.
func (t *Ticket) adopt(a Answer) (contenders line.Line, is Entrance) {
	contenders = line.Of(t.Name, a.Read)
	own, there := line.Find(a.Read, t.Key)
	if !there {
		return contenders, Unsure
	}
	t.sends()
	if own.Lease != t.Lease || own.Rev <= t.floor {
		t.state, t.doubt, t.lost = Gone, true, true
		return contenders, Useless
	}
	t.state, t.rev = InLine, own.Rev
	return contenders, Queued
}

// sends notes that a put may have been carried out.
func (t *Ticket) sends() {
	t.must("Enter", Unsent, Sent)
	t.state = Sent
}
