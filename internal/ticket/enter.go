package ticket

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// An Entering puts a ticket's key. The same put may be carried out many times, and makes
// one key.
//
// After the put of Lock the key stands in line. The transaction of TryLock puts the key only if no
// other contender stands in line, and otherwise writes nothing. That of TryRLock ignores readers.
//
// Beside nested names or permits that come and go, TryLock cannot compare that the line is
// empty: there is always something newer than what it has seen. After one such compare it
// goes on as Lock does. It is then Queued. If that is behind other contenders, the caller gives
// the key up. (Do not compare again and again. TestTryLockBesideKeysThatComeAndGoAnswersSoon.)
type Entering struct {
	t     *Ticket
	try   bool       // false once it goes on as Lock does
	owner bool       // it reads the value of the holder's key, and not only the key
	crowd bool       // it reads only keys, the nearest ones
	last  string     // if this key is there, it reads that and the number of keys instead; "" for none
	reads bool       // whether it reads the key if that is there already, and for TryLock the line
	n     int64      // how many keys of the line it reads
	seen  int64      // TryLock: up to here nothing below the prefix is in its way
	among line.Ahead // TryAcquire: the contenders that were there then
	told  told       // what the answer that is judged next shows of the line

	ahead line.Ahead // by the answer that was judged

	// In the transaction of a Several: how many ranges it has in the Then, and in the Else.
	then, rest int
}

// Crowd makes Lock expect a long line, unless Lock is to read the holder's value. It then reads
// only keys. In a line of 1,000 that takes etcd a fifth of the time, and meanwhile etcd
// carries out nothing else.
//
// If all contenders go round and round, the key behind which the Session's last ticket stood is
// there again, and it is the nearest. If the key last is there, Lock reads only that key,
// and how many keys there are: etcd need not go through the line. This is for a ticket that
// waits for all before it.
func (e *Entering) Crowd(last string) {
	e.crowd, e.last = !e.try && !e.owner && e.t.Kind == line.Exclusive, last
}

// readCrowd is what Lock reads before it puts the key, if it expects a long line.
func (e *Entering) readCrowd() clientv3.Op {
	keys := e.t.newest(nearest, clientv3.WithKeysOnly())[0]
	if e.last == "" {
		return keys
	}
	there := clientv3.Compare(clientv3.CreateRevision(e.last), ">", 0)
	count := clientv3.OpGet(line.Prefix(e.t.Name), clientv3.WithPrefix(), clientv3.WithCountOnly())
	return clientv3.OpTxn(
		[]clientv3.Cmp{there}, []clientv3.Op{clientv3.OpGet(e.last), count}, []clientv3.Op{keys},
	)
}

// aheadOf returns the ticket's predecessors, by what readCrowd has read. In a short line it leaves
// them to a look, since they are few.
func (e *Entering) aheadOf(a Answer) line.Ahead {
	count := a.read(1)
	switch {
	case count == nil:
		return line.ByKeys(e.t.Name, int(nearest), a.read(0))
	case count.Count <= 2*Few:
		return line.Ahead{}
	default:
		return line.Behind(e.t.Name, a.read(0), count.Count)
	}
}

// Txn is as in Put. There is one value.
//
// Lock reads t's predecessors, and then puts the key. TryLock first compares that there is
// nothing below the prefix. If there is something, but no contender, it then compares that
// nothing below the prefix is newer than what it has seen. So if it puts the key, the key has no
// predecessor. TryRLock compares the same for the two ranges that leave out readers.
// TryAcquire does what TryLock does, except that permits beside which it may hold are not
// in its way. If that fails, too, each goes on as Lock does.
func (e *Entering) Txn(values ...string) Txn {
	t := e.t
	txn := Txn{Name: t.Name, If: []clientv3.Cmp{t.absent()}, own: t.Key}
	switch {
	case e.crowd:
		txn.Then = []clientv3.Op{e.readCrowd()}
	case !e.try:
		txn.Then = t.readAhead(e.n, e.owner)
	case t.Kind == line.Read: // (Do not ask this of the whole line. TestWhatAPutOfOneThatReadsSends.)
		for _, r := range t.exclusives() {
			txn.If = append(txn.If, e.alone(r.From).WithRange(r.To))
		}
		txn.Then = []clientv3.Op{t.byChance()}
	default:
		txn.If = append(txn.If, e.alone(line.Prefix(t.Name)).WithPrefix())
	}
	txn.Then = append(txn.Then, t.put(values[0]))
	if e.reads { // it costs time, and the key is hardly ever there at first
		txn.Else = []clientv3.Op{clientv3.OpGet(t.Key)}
	}
	switch {
	case e.try && t.Kind == line.Read:
		for _, r := range t.exclusives() {
			opts := []clientv3.OpOption{oldestFirst, clientv3.WithLimit(e.n)}
			txn.Else = append(txn.Else, within(r, opts))
		}
		txn.Else = append(txn.Else, t.whole(oldestFirst, 1), t.byChance())
	case e.try:
		txn.Else = append(txn.Else, t.whole(oldestFirst, e.n)) // the holder is among them
	}
	return txn
}

// alone is true of a range of keys in which no contender is in the way, as far as is known.
func (e *Entering) alone(from string) clientv3.Cmp {
	if e.seen == 0 {
		return clientv3.Compare(clientv3.CreateRevision(from), "=", 0)
	}
	return clientv3.Compare(clientv3.ModRevision(from), "<", e.seen+1)
}

// An Entrance says what follows from the answer to a put.
type Entrance uint8

// The entrances.
const (
	Unsure  Entrance = iota // try again
	Queued                  // t stands in line
	Taken                   // TryLock: other contenders are ahead of t, whose key may be there
	Useless                 // t cannot be used
)

// String is for messages.
func (e Entrance) String() string {
	return [...]string{"unsure", "queued", "taken", "useless"}[e]
}

// told is what an answer shows of the line.
type told struct {
	known bool
	ahead line.Ahead
	among int       // TryLock: how many contenders were read
	by    line.Line // TryRLock: those that block it by the chance of their keys
}

// Read is as in Put. In a line of
// thousands of permits it takes a while, so it is called before the mutex is taken: the put is its
// call's own as long as it is under way. (TestWhatRunsUnderTheMutexIsBounded.)
func (e *Entering) Read(a Answer) {
	t := e.t
	e.told = told{known: true}
	switch {
	case a.Outcome != Answered || a.Empty:
	case !e.try && a.Succeeded && e.crowd:
		e.told.ahead = e.aheadOf(a)
	case !e.try && a.Succeeded:
		e.told.ahead = t.aheadOf(a)
	case !e.try, a.Succeeded && t.Kind != line.Read:
	default:
		self := line.Entry{Key: t.Key, Lease: t.Lease}
		if self.Rev = a.Revision; !a.Succeeded {
			own, _ := a.find(0, t.Key)
			self.Rev = own.Rev
		}
		if t.Kind == line.Read {
			e.told.by = t.blockingByChance(a, self)
		}
		if !a.Succeeded {
			e.told.among, e.told.ahead = e.tried(a, self)
		}
	}
}

// tried is what an answer to TryLock, which was not let in, shows: how many contenders were read,
// and what is ahead of own.
func (e *Entering) tried(a Answer, own line.Entry) (n int, ahead line.Ahead) {
	t := e.t
	if t.Kind != line.Read {
		ahead, n = line.Among(t.Name, own, a.read(1))
		return n, ahead
	}
	ahead, n = line.Among(t.Name, own, a.read(1), a.read(2))
	return n, ahead.HeldBy(t.Name, a.read(3))
}

// Judge is as in Put.
func (e *Entering) Judge(a Answer) (is Entrance) {
	t := e.t
	if !e.told.known {
		e.Read(a)
	}
	e.told.known, e.ahead = false, line.Ahead{}
	if a.Doubtful() {
		// A copy may come late. etcd can carry it out as long as the lease lives.
		t.sends()
		t.doubt = true
	}
	if a.Outcome != Answered || a.Empty {
		e.reads = true // shows whose the key is
		return Unsure
	}
	is = t.claimRevision(a, 0)
	switch {
	case is == Useless:
	case e.try:
		is, e.ahead = e.judgeTry(a, is)
	case is != Queued:
		is = Useless // it was there, and was deleted before it was read
	case a.Succeeded:
		e.ahead = e.told.ahead // else a copy has put it: this answer shows no predecessors
	}
	return is
}

// Ahead is as in Put, of the one ticket. It is Unread if an earlier copy has put the key.
func (e *Entering) Ahead(int) line.Ahead { return e.ahead }

// judgeTry is Judge for TryLock. is says whether its key was put, by this request or by an
// earlier one whose answer was lost.
func (e *Entering) judgeTry(a Answer, is Entrance) (Entrance, line.Ahead) {
	t := e.t
	if a.Succeeded && t.Kind != line.Read {
		return Queued, e.among
	}
	if by := e.told.by; len(by) > 0 {
		return Taken, line.Ahead{Reading: line.All, Last: by, Longest: by.Longest()}
	}
	if a.Succeeded {
		return Queued, line.None
	}
	ahead, n := e.told.ahead, e.told.among
	switch {
	case n > 0 && (ahead.Reading == line.All || t.Kind == line.Permit), n >= int(nearest):
		return Taken, ahead
	case ahead.Reading != line.All && is == Queued:
		ahead = line.Ahead{} // the caller reads it: the key is there, and is not put again
	case ahead.Reading != line.All:
		e.n = max(e.n*wider, 2*int64(ahead.Keys)) // the next one reads all
		return Unsure, line.Ahead{}
	case is != Queued && e.seen != 0:
		e.queue()
	case is != Queued:
		e.seen, e.among = a.Revision, ahead
	}
	return is, ahead
}

// queue makes TryLock go on as Lock does.
func (e *Entering) queue() { e.try, e.owner = false, true }
