package line

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// An Ahead is who stands ahead of a place, as far as that was read. A line may be long, and a
// place needs to know only who is nearest ahead of it, or that nobody is. So it reads the newest
// keys before its own, up to a number.
//
// Invariant: Last has every contender that is older than the place and no older than the oldest
// one in Last. If Whole, it has all that are ahead of the place. So a place with somebody in Last
// waits. A place with nobody in it may hold if Whole, and otherwise has to read on: keys that are
// no contenders may have filled what was read. (Do not take what was read for everything.
// TestStrayKeysThatFillWhatIsReadLetNobodyIn.)
//
// One that reads waits for the exclusive ones before it alone, and is told of these: by Ranges,
// since those that read may be many. Who holds may be another then, which reads.
type Ahead struct {
	Last  Line  // the nearest, by the rule of entry
	Whole bool  // it waits for nobody else
	First Entry // who holds, if not Last[0] or not Whole; without a revision if unknown
	About int   // how many are before the place, if not Whole: at most, but for later strays
	Keys  int   // that were below the prefix: strays, and those behind the place, too

	// Beside is who is before a permit that may hold beside them. Last has nobody then.
	Beside Line
	own    Shape // of the place, if it is a permit

	// Some says that Last has one of those before the place, who need not be the nearest.
	// It is enough to wait by: once that one is gone the line is read.
	Some bool
}

// Nobody is the Ahead of a place that is the first in its line.
var Nobody = Ahead{Whole: true}

// Before is who stands before own in the line for the lock name, by ranges that have read the
// newest keys up to own, the newest first: the whole prefix, or for one that reads its Ranges. own
// has no revision if that was before it was put, in the same transaction.
//
// It is Whole if nothing was left out but keys that read, for one that reads. (Of the keys in the
// block of those that read the nearest are read, in case one is there by chance and exclusive.)
func Before(name string, own Entry, newest ...*pb.RangeResponse) Ahead {
	contenders, a, read := merge(name, newest)
	a.Last = contenders.Blocking(own)
	a.permits(contenders, own)
	a.Whole = true
	for i, r := range newest {
		a.Whole = a.Whole && r != nil && (!r.More || len(newest) > 1 && i == OfReads)
	}
	a.About = a.Keys - (read - len(contenders))
	if own.Rev != 0 {
		a.About--
	}
	return a
}

// permits notes who is before a permit.
func (a *Ahead) permits(l Line, own Entry) {
	if s := own.Shape(); s.Kind == Permit {
		a.own = s
		if len(a.Last) == 0 {
			a.Beside = l.Before(own)
		}
	}
}

// Awaited is those ahead of a place of which one at least goes before the place may hold: the
// nearest one, but for a permit behind permits. That waits until the sum of the weights is small
// enough, and those are the nearest whose weights alone are too much. The place has somebody in
// Last.
//
// Invariant: while all of them stand in line, the place may not hold. So one that hears of each of
// their ends, and of no other, misses nothing. (TestWhileAllAwaitedStandAPermitWaits.)
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

// merge is the contenders that ranges have read, and how many keys those have read and counted.
func merge(name string, ranges []*pb.RangeResponse) (l Line, a Ahead, read int) {
	if len(ranges) == 1 {
		kvs := ranges[0].GetKvs()
		return Of(name, kvs), Ahead{Keys: int(ranges[0].GetCount())}, len(kvs)
	}
	var kvs []*mvccpb.KeyValue
	for _, r := range ranges {
		kvs = append(kvs, r.GetKvs()...)
		a.Keys += int(r.GetCount()) // of all, whatever the limit
	}
	return Of(name, kvs), a, len(kvs)
}

// Among is who stands before own by ranges that have read the oldest keys, the oldest first: who
// holds, and about how many there are, of whom n were read. Nobody is Last unless all were read,
// since there may be others between. For one that reads the ranges are those of the Ranges that
// leave out who reads.
func Among(name string, own Entry, oldest ...*pb.RangeResponse) (a Ahead, n int) {
	contenders, a, read := merge(name, oldest)
	before := contenders.Before(own)
	blocking := contenders.Blocking(own)
	past := func(kv *mvccpb.KeyValue) bool { return own.Rev != 0 && kv.GetCreateRevision() >= own.Rev }
	a.About = a.Keys - (read - len(contenders))
	whole := true
	for _, r := range oldest {
		whole = whole && r != nil && (!r.More || past(r.Kvs[len(r.Kvs)-1]))
	}
	if whole {
		a.Last, a.Whole = blocking, true
		a.permits(contenders, own)
	}
	if len(before) > 0 && (!whole || len(blocking) == 0 || before[0].Rev != blocking[0].Rev) {
		a.First = before[0]
	}
	return a, len(blocking)
}

// HeldBy is a with the holder, by a range that has read the oldest key, perhaps without its value.
func (a Ahead) HeldBy(name string, oldest *pb.RangeResponse) Ahead {
	if kvs := oldest.GetKvs(); len(kvs) > 0 && EntryOf(kvs[0]).MayStandIn(name) {
		a.First = EntryOf(kvs[0])
	}
	return a
}

// Nearest is who stands before a place that is yet to be put, in the same transaction, by a range
// that has read only keys, the newest first. That is enough in a long line. Keys tell no leases, so
// Last has all that may stand in line, each without its lease, and it is never Whole unless there
// is none: whoever waits for one of them has to find out whether it does (Entry.LeaseByKey).
func Nearest(name string, newest *pb.RangeResponse) Ahead {
	kvs := newest.GetKvs()
	a := Ahead{Keys: int(newest.GetCount())}
	for _, kv := range kvs {
		if e := EntryOf(kv); e.MayStandIn(name) {
			a.Last = append(a.Last, Entry{Key: e.Key, Rev: e.Rev}) // before 3.7 there was a lease
		}
	}
	a.Last.sort()
	a.About = a.Keys - (len(kvs) - len(a.Last))
	a.Whole = newest != nil && !newest.More && len(a.Last) == 0
	return a
}

// Behind is who stands before a place that is about to be put behind a key that was read, by a
// range of its own, in a line of so many keys. It is Unread if that key stands in no line.
func Behind(name string, read *pb.RangeResponse, keys int64) Ahead {
	a := Ahead{Last: Of(name, read.GetKvs()), About: int(keys), Keys: int(keys)}
	a.Some = len(a.Last) > 0
	return a
}

// Only reports whether own is the only key that a range has read of those that may stand in line
// for the lock name, and is as it was put: putting a key over, and taking its lease away, changes
// its mod revision. The range has read only keys, up to own.
func Only(name string, own Entry, newest *pb.RangeResponse) bool {
	only := false
	for _, kv := range newest.GetKvs() {
		switch e := EntryOf(kv); {
		case e.Key == own.Key && e.Rev == own.Rev && kv.GetModRevision() == own.Rev:
			only = true
		case e.MayStandIn(name):
			return false
		}
	}
	return only && !newest.GetMore()
}

// Since is a with what an earlier reading for the same place adds: nobody is ever put ahead of a
// place.
func (a Ahead) Since(earlier Ahead) Ahead {
	if a.Whole {
		return a
	}
	if known := earlier.Count(); known > 0 {
		a.About = min(a.About, known)
	}
	if a.First.Rev == 0 {
		a.First = earlier.Holder()
	}
	return a
}

// Without is a, if all of it is known, without those that are gone. Others may read the old Last.
func (a Ahead) Without(gone func(Entry) bool) Ahead {
	for len(a.Last) > 0 && gone(a.Last[0]) {
		a.Last = a.Last[1:]
	}
	if slices.ContainsFunc(a.Last, gone) {
		a.Last = slices.DeleteFunc(slices.Clone(a.Last), gone)
	}
	if a.own.Kind == Permit && a.Whole && a.Last.admits(a.own) {
		a.Last, a.Beside = nil, a.Last
	}
	return a
}

// Clear reports whether nobody is ahead of the place, so that it may hold.
func (a Ahead) Clear() bool { return a.Whole && len(a.Last) == 0 }

// Unread reports whether what was read shows neither that somebody is ahead of the place nor that
// nobody is.
func (a Ahead) Unread() bool { return !a.Whole && len(a.Last) == 0 }

// Tells reports whether a says how many are ahead of the place, or that they are more than a few.
func (a Ahead) Tells(few int) bool {
	return a.Whole || a.Some || len(a.Last) > few || a.own.Kind == Permit && len(a.Last) > 0
}

// Brief reports whether a is by Nearest or Behind: it was not asked who holds.
func (a Ahead) Brief() bool { return a.Some || len(a.Last) > 0 && a.Last[0].Lease == 0 }

// Count is how many are before the place: about, if a is not Whole.
func (a Ahead) Count() int {
	if a.Whole {
		return len(a.Last)
	}
	return max(a.About, len(a.Last))
}

// Holder is the first in line. It has no revision if nobody is ahead of the place, or the first
// one is unknown.
func (a Ahead) Holder() Entry {
	switch {
	case !a.Whole || len(a.Last) > 0 && 0 < a.First.Rev && a.First.Rev < a.Last[0].Rev:
		return a.First
	case len(a.Last) > 0:
		return a.Last[0]
	default:
		return Entry{}
	}
}
