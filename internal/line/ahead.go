package line

import (
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// An Ahead is what a reading shows of a place's predecessors in line. A line may be long. A
// place needs to know only its nearest predecessor, or that it has none. So it reads the
// newest keys before its own, up to a number.
//
// Invariant: a place waits while Last is not empty. If Last is empty, it may hold only if the
// Reading is All: keys that are no contenders may have filled what was read.
//
// Do not take what was read for everything. (TestStrayKeysThatFillWhatIsReadLetNobodyIn.)
//
// A reader waits only for the exclusive contenders before it. It reads them by Ranges,
// since the readers may be many. The holder may then be another reader.
type Ahead struct {
	Reading
	Strays bool   // the oldest key is no contender, so the holder is among the next ones
	own    Shape  // of the place, if it is a permit
	Last   Line   // predecessors for which the place waits
	First  *Entry // the holder, if not Last[0] or not All; nil if unknown
	About  int    // how many predecessors, if not All: at most, not counting later strays
	Keys   int    // how many keys were below the prefix, with strays and keys behind the place

	// Unlike has permits ahead of a permit that count on another limit, one for each limit.
	Unlike Line

	// TTLs are those of the contenders that were read. Untold is set, too, if there may be others, of
	// which the place waits for one.
	TTLs
}

// A Reading says how many of a place's predecessors its Ahead has. The reader sets it.
type Reading uint8

// The readings.
const (
	Unread  Reading = iota // too few to wait by: the place reads on
	Brief                  // as Nearest, in a crowd: without the holder, perhaps with a gap
	Nearest                // the newest without a gap, as many as were asked for
	All                    // all
)

// AllOrNone, as how many predecessors are enough, says that the ranges have read keys in no order:
// unless they left nothing out, the result is Unread.
//
// Do not take them for the nearest. (TestWhatIsReadInNoOrderIsTheWholeLineOrNothing.)
const AllOrNone = math.MaxInt

// None is the Ahead of a place that is the first in its line.
var None = Ahead{Reading: All}

// Before returns the predecessors of own in the line for the lock name. The ranges have read
// the newest keys up to own, the newest first: the whole prefix, or, for a reader, its
// Ranges. own has no revision if the ranges were read before it was put, in the same transaction.
//
// The result is All if the ranges left nothing out. For a reader they may leave out other
// readers. (It does read the nearest keys in the readers' block, since one of them may be
// exclusive by chance.) Otherwise so many as enough contenders are Nearest; for a permit, which
// reads many, one is enough. With AllOrNone the ranges are in no order.
func Before(name string, own Entry, enough int, newest ...*pb.RangeResponse) Ahead {
	if r := newest[0]; len(newest) == 1 && r != nil && r.Count == 0 && len(r.Kvs) == 0 && !r.More {
		return None // of the free name
	}
	contenders, a := merge(name, newest)
	a.Last = contenders.Blocking(own)
	if own.Rev != 0 {
		a.About--
	}
	if own.Kind() == Permit {
		a.permits(contenders, own)
		if enough != AllOrNone {
			enough = 1
		}
	}
	a.Reading = All
	for i, r := range newest {
		if r == nil || r.More && (len(newest) == 1 || i != OfReads) {
			a.Reading = a.ifEnough(Nearest, enough)
		}
	}
	a.Untold = a.Reading != All || a.Last.TTLs().Untold
	if a.Reading == Unread && enough == AllOrNone {
		a.Last = nil
	}
	return a
}

// ifEnough is a reading that is not All, or Unread if Last has fewer than enough contenders.
func (a *Ahead) ifEnough(r Reading, enough int) Reading {
	if len(a.Last) < enough {
		return Unread
	}
	return r
}

// mostUnlike is how many other limits an Ahead tells of: a limit is mostly changed once.
const mostUnlike = 8

// permits records the shape of own, a permit, and which permits ahead are Unlike.
func (a *Ahead) permits(l Line, own Entry) {
	a.own = own.Shape()
	for _, e := range l.Before(own) {
		limit := e.Shape().Limit
		same := func(o Entry) bool { return o.Shape().Limit == limit }
		if limit != 0 && limit != a.own.Limit && len(a.Unlike) < mostUnlike &&
			!slices.ContainsFunc(a.Unlike, same) {
			a.Unlike = append(a.Unlike, e)
		}
	}
}

// Awaited returns predecessors of a place: at least one must go before the place may hold. It is
// the nearest one, except for a permit behind permits. A permit waits until the sum of the weights
// is small enough, so for a permit Awaited is the nearest permits whose weights alone are too much.
// Last must not be empty.
//
// Invariant: while all of Awaited stand in line, the place may not hold. So a place that learns
// when each of them goes, and learns of no other key, misses nothing.
// (TestWhileAllAwaitedStandAPermitWaits.)
func (a Ahead) Awaited() Line {
	if a.own.Kind != Permit {
		return a.Last[len(a.Last)-1:]
	}
	for i, e := range slices.Backward(a.Last) {
		switch {
		case e.Kind() != Permit:
			return a.Last[i : i+1]
		case !a.Last[i:].admits(a.own):
			return a.Last[i:]
		}
	}
	return a.Last
}

// merge returns the contenders that the ranges have read, and what they all tell.
func merge(name string, ranges []*pb.RangeResponse) (l Line, a Ahead) {
	kvs := slices.Clip(ranges[0].GetKvs())
	for i, r := range ranges {
		if i > 0 {
			kvs = append(kvs, r.GetKvs()...)
		}
		a.Keys += int(r.GetCount()) // of all, whatever the limit
		a.Untold = a.Untold || r == nil || r.More
	}
	l = Of(name, kvs)
	a.About, a.TTLs = a.Keys-(len(kvs)-len(l)), a.And(l.TTLs())
	return l, a
}

// Among returns the predecessors of own, by ranges that have read the oldest keys, the oldest
// first. It shows the holder, and about how many predecessors there are; n were read. Last is empty
// unless all were read, since unread contenders may stand between. For a reader the ranges are the
// two of its Ranges that leave out readers.
func Among(name string, own Entry, oldest ...*pb.RangeResponse) (a Ahead, n int) {
	contenders, a := merge(name, oldest)
	before := contenders.Before(own)
	blocking := contenders.Blocking(own)
	past := func(kv *mvccpb.KeyValue) bool { return own.Rev != 0 && kv.CreateRevision >= own.Rev }
	whole := true
	for _, r := range oldest {
		whole = whole && r != nil && (!r.More || past(r.Kvs[len(r.Kvs)-1]))
	}
	if whole {
		a.Last, a.Reading = blocking, All
	}
	if whole && own.Kind() == Permit {
		a.permits(contenders, own)
	}
	if len(before) > 0 && (!whole || len(blocking) == 0 || before[0].Rev != blocking[0].Rev) {
		e := before[0] // a copy: the line may be long
		a.First = &e
	}
	return a, len(blocking)
}

// HeldBy returns a with the holder, by a range that has read the oldest key, perhaps
// without its value.
func (a Ahead) HeldBy(name string, oldest *pb.RangeResponse) Ahead {
	if kvs := oldest.GetKvs(); len(kvs) > 0 {
		if e := EntryOf(kvs[0]); e.MayStandIn(name) {
			a.First = &e
		} else {
			a.Strays = true
		}
	}
	return a
}

// ByKeys returns the predecessors of own, which a range has read, too, as it was put: up to own,
// the newest first, and only keys. The result is All if no other key there may stand in line. It is
// Brief if enough of them may, which suffices in a long line; otherwise only a reading with their
// leases shows more. A key does not show its lease: a place that waits for one of these has to find
// out whether it does stand in line (Entry.LeaseByKey).
//
// To put a key over, and to take its lease away, changes its mod revision: then it is Unread.
func ByKeys(name string, own Entry, enough int, newest *pb.RangeResponse) Ahead {
	kvs := newest.GetKvs()
	a := Ahead{Keys: int(newest.GetCount())}
	if e, there := Find(kvs, own.Key); !there || e.Rev != own.Rev || e.Mod != own.Rev {
		return a
	}
	for _, kv := range kvs {
		if e := EntryOf(kv); e.Key != own.Key && e.MayStandIn(name) {
			a.Last = append(a.Last, Entry{Key: e.Key, Rev: e.Rev}) // before 3.7 etcd also returned a lease
		}
	}
	slices.SortFunc(a.Last, older)
	a.Untold = newest.GetMore() || len(a.Last) > 0 // a key does not tell it
	a.About = a.Keys - (len(kvs) - len(a.Last))
	if a.Reading = a.ifEnough(Brief, enough); !newest.GetMore() && len(a.Last) == 0 {
		a.Reading = All
	}
	return a
}

// Behind returns the known predecessor of a place that is about to be put behind a key. A range
// of its own has read that key. keys is how many keys the line has. The result is Unread if that
// key stands in no line.
func Behind(name string, read *pb.RangeResponse, keys int64) Ahead {
	a := Ahead{Last: Of(name, read.GetKvs()), About: int(keys), Keys: int(keys)}
	a.Reading, a.TTLs = a.ifEnough(Brief, 1), TTLs{a.Last.TTLs().Longest, true}
	return a
}

// NoneBut reports whether a range has read all keys that it was to read, and none but own may
// stand in line for the lock name.
func NoneBut(own, name string, read *pb.RangeResponse) bool {
	return !read.GetMore() && !slices.ContainsFunc(read.GetKvs(), func(kv *mvccpb.KeyValue) bool {
		e := EntryOf(kv)
		return e.Key != own && e.MayStandIn(name)
	})
}

// Since returns a with what an earlier reading for the same place adds: no key is ever put ahead
// of a place.
func (a Ahead) Since(earlier Ahead) Ahead {
	if a.Reading == All {
		return a
	}
	if known := earlier.Count(); known > 0 {
		a.About = min(a.About, known)
	}
	if earlier.Reading != Unread && !earlier.Untold {
		a.TTLs = earlier.TTLs
	}
	if a.First == nil {
		if e := earlier.Holder(); e.Rev != 0 {
			a.First = &e
		}
		a.Strays = a.Strays || earlier.Strays
	}
	return a
}

// Is reports whether a and b are one reading, and nothing has gone since.
func (a Ahead) Is(b Ahead) bool {
	return a.Reading == b.Reading && len(a.Last) == len(b.Last) &&
		(len(a.Last) == 0 || &a.Last[0] == &b.Last[0])
}

// Without returns a without the contenders that are gone, if all of a is known. It does not
// write to the old Last: there may be copies of a.
func (a Ahead) Without(gone func(Entry) bool) Ahead {
	for len(a.Last) > 0 && gone(a.Last[0]) {
		a.Last = a.Last[1:]
	}
	if slices.ContainsFunc(a.Last, gone) {
		a.Last = slices.DeleteFunc(slices.Clone(a.Last), gone)
	}
	if a.own.Kind == Permit && a.Reading == All && a.Last.admits(a.own) {
		a.Last = nil
	}
	return a
}

// TTLsBefore is what is known of the TTLs of all contenders before own, as a range of the oldest
// keys has read them.
func TTLsBefore(name string, own Entry, oldest *pb.RangeResponse) TTLs {
	kvs := oldest.GetKvs()
	t := Of(name, kvs).Before(own).TTLs()
	all := !oldest.GetMore() || len(kvs) > 0 && kvs[len(kvs)-1].CreateRevision >= own.Rev
	t.Untold = t.Untold || !all
	return t
}

// Clear reports whether the place waits for no contender, so that it may hold.
func (a Ahead) Clear() bool { return a.Reading == All && len(a.Last) == 0 }

// Count is how many predecessors the place waits for. If a is not All it is approximate.
func (a Ahead) Count() int {
	if a.Reading == All {
		return len(a.Last)
	}
	return max(a.About, len(a.Last))
}

// Holder is the first in line. It has no revision if the place waits for no contender, or if the
// first one is unknown.
func (a Ahead) Holder() Entry {
	switch {
	case a.First != nil && (a.Reading != All || len(a.Last) > 0 && a.First.Rev < a.Last[0].Rev):
		return *a.First
	case a.Reading == All && len(a.Last) > 0:
		return a.Last[0]
	default:
		return Entry{}
	}
}
