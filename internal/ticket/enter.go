package ticket

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// An Entering puts a ticket's key. The same put may be carried out many times, and makes one key.
// By itself it does what Lock does: it reads t's predecessors, and then puts the key, which stands
// in line from then on.
type Entering struct {
	t     *Ticket
	try   tries      // nil for Lock, and once TryLock goes on as Lock does
	owner bool       // it reads the holder's key, too
	last  string     // if this key is there, it reads that and the number of keys instead; "" for none
	reads bool       // whether it reads the key if that is there already, and for TryLock the line
	n     int64      // how many keys of the line it reads
	seen  int64      // TryLock: up to here nothing below the prefix is in its way
	among line.Ahead // TryAcquire: the contenders that were there then
	shown shown      // by the answer that was read

	ahead line.Ahead // by the answer that was judged

	// In the transaction of a Several: how many ranges it has in the Then, and in the Else.
	then, rest int
}

// A tries is what is different for TryLock. The state is the Entering's.
type tries interface {
	// txn has what to compare, what to read before the put, and what to read besides t's key if
	// nothing is put.
	txn(e *Entering) (ifs []*pb.Compare, then, rest []*pb.RequestOp)

	read(e *Entering, a Answer) // reads what an answer shows, and sets e.shown

	// judge says what follows from an answer that was read. is says whether the key stands in line: by
	// this request, or by an earlier one whose answer was lost.
	judge(e *Entering, a Answer, is Entrance) Entrance
}

// readOwn is the range of t's own key in each Else.
const readOwn = 0

// shown is what an answer shows of the line.
type shown struct {
	ahead line.Ahead
	among int       // TryLock: how many contenders were read
	by    line.Line // TryRLock: contenders that block it by the chance of their keys
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

// Txn is the next transaction to send (Put). There is one value.
func (e *Entering) Txn(values ...string) Txn {
	t, rest := e.t, []*pb.RequestOp(nil)
	txn := Txn{Name: t.Name, If: []*pb.Compare{created(t.Key, 0)}, own: t.Key}
	if e.try != nil {
		txn.If, txn.Then, rest = e.try.txn(e)
	} else {
		txn.Then = t.readAhead(e.n, e.last, e.owner)
	}
	txn.Then = append(txn.Then, put(t.Key, values[0], t.Lease))
	if e.reads { // it costs time, and the key is hardly ever there at first
		txn.Else = append([]*pb.RequestOp{Get(t.Key)}, rest...)
	}
	return txn
}

// Read reads what an answer shows of the line (Put). In a line of thousands of permits it takes a
// while, so it is called before the mutex is taken: the put is its call's own as long as it is
// under way. (TestWhatRunsUnderTheMutexIsBounded.)
func (e *Entering) Read(a Answer) {
	e.shown = shown{}
	switch {
	case a.Outcome != Answered || a.Empty:
	case e.try != nil:
		e.try.read(e, a)
	case a.Succeeded:
		e.shown.ahead = e.t.aheadOf(a, e.last, e.owner)
	}
}

// Judge says what follows from an answer that was read (Put).
func (e *Entering) Judge(a Answer) (is Entrance) {
	t := e.t
	e.ahead = line.Ahead{}
	if a.Doubtful() {
		// A copy may come late. etcd can carry it out as long as the lease lives.
		t.sends()
		t.doubt = true
	}
	if a.Outcome != Answered || a.Empty {
		e.reads = true // shows whose the key is
		return Unsure
	}
	is = t.claimRevision(a, readOwn)
	switch {
	case is == Useless:
	case e.try != nil:
		is = e.try.judge(e, a, is)
	case is != Queued:
		is = Useless // it was there, and was deleted before it was read
	case a.Succeeded:
		e.ahead = e.shown.ahead // else a copy has put it: this answer shows no predecessors
	}
	return is
}

// Ahead is what is ahead of the ticket, by the answer that was judged (Put). It is Unread if an
// earlier copy has put the key.
func (e *Entering) Ahead(int) *line.Ahead { return &e.ahead }

// Behind makes Lock expect the key last, unless it is to read the holder's value: the Session's
// last ticket stood right behind that key. If all contenders of a crowd go round and round, that
// key is there again, and it is the nearest. Lock then reads only that key, and how many keys there
// are. This is for a ticket that waits for all before it.
func (e *Entering) Behind(last string) {
	if e.try == nil && !e.owner && e.t.Kind == line.Exclusive {
		e.last = last
	}
}

// A tryPut is the way of TryLock and TryAcquire: it puts the key only if no other contender is in
// the way, and otherwise writes nothing.
//
// It first compares that there is nothing below the prefix. If there is something, but no
// contender, it then compares that nothing below the prefix is newer than what it has seen. So if
// it puts the key, the key has no predecessor. Permits beside which TryAcquire may hold are not in
// its way.
//
// Beside nested names or permits that come and go, it cannot compare that the line is empty: there
// is always something newer than what it has seen. After one such compare it goes on as Lock does.
// It is then Queued. If that is behind other contenders, the caller gives the key up.
//
// Do not compare again and again. (TestTryLockBesideKeysThatComeAndGoAnswersSoon.)
type tryPut struct{}

// readLine is the range of the oldest keys that TryLock reads if it does not put the key.
const readLine = 1

func (tryPut) txn(e *Entering) (ifs []*pb.Compare, then, rest []*pb.RequestOp) {
	t := e.t
	ifs, all := []*pb.Compare{created(t.Key, 0)}, line.Whole(t.Name)
	return append(ifs, e.free(all)), nil, []*pb.RequestOp{within(all, oldestFirst, e.n)}
}

func (tryPut) read(e *Entering, a Answer) {
	if !a.Succeeded {
		own, _ := a.find(readOwn, e.t.Key)
		e.shown.ahead, e.shown.among = line.Among(e.t.Name, own, a.read(readLine))
	}
}

func (tryPut) judge(e *Entering, a Answer, is Entrance) Entrance {
	n, by, whole := e.shown.among, e.shown.by, e.shown.ahead.Reading == line.All
	e.ahead = e.shown.ahead
	switch {
	case len(by) > 0:
		e.ahead = line.Ahead{Reading: line.All, Last: by, TTLs: by.TTLs()}
		return Taken
	case a.Succeeded:
		e.ahead = e.among
		return Queued
	case n > 0 && (whole || e.t.Kind == line.Permit), n >= int(nearest):
		return Taken
	case !whole:
		e.ahead = line.Ahead{}
		if is != Queued { // else the caller reads it: the key is there, and is not put again
			e.n = max(e.n*wider, 2*int64(e.shown.ahead.Keys)) // the next one reads all
		}
	case is != Queued && e.seen != 0:
		e.queue()
	case is != Queued:
		if e.seen = a.Revision; e.t.Kind != line.Read {
			e.among = e.ahead
		}
	}
	return is
}

// queue makes TryLock go on as Lock does.
func (e *Entering) queue() { e.try, e.owner = nil, true }

// free compares that in a range of keys, as far as is known, no contender is in the way.
func (e *Entering) free(r line.Range) *pb.Compare {
	is := created(r.From, 0)
	if is.RangeEnd = []byte(r.To); e.seen != 0 {
		is.Target, is.Result = pb.Compare_MOD, pb.Compare_LESS
		is.TargetUnion = &pb.Compare_ModRevision{ModRevision: e.seen + 1}
	}
	return is
}

// A tryReadPut is the way of TryRLock: it does what TryLock does in the two ranges without readers.
// The readers may be many. One that is exclusive by chance may be among them.
//
// Do not compare the whole line. (TestWhatAPutOfOneThatReadsSends.)
type tryReadPut struct{ tryPut }

// The ranges that TryRLock reads if it does not put the key, behind its own.
const (
	readBelow    = 1 + iota // of exclusives, below the readers
	readBeyond              // and beyond these
	readOldest              // of all
	readByChance            // of the readers
)

func (tryReadPut) txn(e *Entering) (ifs []*pb.Compare, then, rest []*pb.RequestOp) {
	t := e.t
	ifs = []*pb.Compare{created(t.Key, 0)}
	for _, r := range t.exclusives() {
		ifs = append(ifs, e.free(r))
		rest = append(rest, within(r, oldestFirst, e.n))
	}
	rest = append(rest, within(line.Whole(t.Name), oldestFirst, 1), t.byChance())
	return ifs, []*pb.RequestOp{t.byChance()}, rest
}

func (tryReadPut) read(e *Entering, a Answer) {
	t, byChance := e.t, a.read(readByChance)
	own, _ := a.find(readOwn, t.Key)
	if a.Succeeded {
		own.Rev, byChance = a.Revision, a.read(0) // it reads no other range
	} else {
		e.shown.ahead, e.shown.among = line.Among(t.Name, own, a.read(readBelow), a.read(readBeyond))
		e.shown.ahead = e.shown.ahead.HeldBy(t.Name, a.read(readOldest))
	}
	e.shown.by = line.Of(t.Name, byChance.GetKvs()).Blocking(own)
}
