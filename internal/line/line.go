// Package line says what stands in etcd's line for a lock: which keys are contenders, in
// which order they stand, and who waits for whom. It gets what was read, and sends nothing
// to etcd itself: no mutex, no goroutine, no clock.
//
// The keys are those below the lock's name (key.go), and their values are for people
// (value.go). Nothing outside this package knows how either is written.
package line

import (
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// An Entry is a key as it was read. A key that was not there has no revision.
type Entry struct {
	Key   string
	Rev   int64 // create revision, which no other use of the key has
	Lease int64

	value []byte // parsed on demand
}

// EntryOf is the key that was read. The event of a deletion has only its name.
func EntryOf(kv *mvccpb.KeyValue) Entry {
	return Entry{string(kv.GetKey()), kv.GetCreateRevision(), kv.GetLease(), kv.GetValue()}
}

// Find is the entry of a key among those that were read, in line or not.
func Find(kvs []*mvccpb.KeyValue, key string) (e Entry, there bool) {
	for _, kv := range kvs {
		if string(kv.GetKey()) == key {
			return Entry{key, kv.GetCreateRevision(), kv.GetLease(), kv.GetValue()}, true
		}
	}
	return Entry{Key: key}, false
}

// A Line is the contenders for one lock, in the order in which they came.
//
// Invariant: its entries are in the order of their create revisions, which is the order in
// which etcd put them. (Do not keep them in the order of their keys, in which etcd reads
// them. TestTheOrderIsThatOfTheCreateRevisions.)
type Line []Entry

// Of is the line for the lock name, by what was read below it.
func Of(name string, kvs []*mvccpb.KeyValue) Line {
	l := make(Line, 0, len(kvs))
	for _, kv := range kvs {
		if e := EntryOf(kv); e.StandsIn(name) {
			l = append(l, e)
		}
	}
	l.sort()
	return l
}

// ByName is the lines of all locks whose keys were read.
func ByName(kvs []*mvccpb.KeyValue) map[string]Line {
	lines := make(map[string]Line)
	for _, kv := range kvs {
		e := EntryOf(kv)
		if name, ok := e.Name(); ok {
			lines[name] = append(lines[name], e)
		}
	}
	for _, l := range lines {
		l.sort()
	}
	return lines
}

func (l Line) sort() {
	slices.SortFunc(l, func(a, b Entry) int { return cmp.Compare(a.Rev, b.Rev) })
}

// Before is all contenders that came before own, one that has no revision yet being put now.
func (l Line) Before(own Entry) Line {
	after := slices.IndexFunc(l, func(e Entry) bool { return own.Rev != 0 && e.Rev >= own.Rev })
	if after < 0 {
		return l
	}
	return l[:after]
}

// Blocking is the rule of entry: whom in line the contender own waits for. One that has no
// revision yet would be put now. It may hold when it waits for nobody, and then whoever comes
// later waits for it.
//
// One that is exclusive waits for all before it, and one that reads for all before it that do not
// read. A permit waits for nobody if all before it are permits, and the sum of their weights and
// its own is at most the least of their limits and its own; otherwise it waits until that is so,
// and Blocking is all before it. Who waits counts as who holds does, so that a large permit is not
// overtaken by small ones. (TestAPermitWaitsForTheSum.) The kind is told by the key, since the
// event of a deletion has no value. What this version takes for a contender without knowing its
// kind is exclusive: it waits for everybody before it, and everybody behind it waits for it.
//
// Nobody is ever put before a place. So once the rule lets it in, it stays in. And of any two that
// it has let in, and that both stand in line, the later one has seen the earlier one, and borne it.
// (Do not count who is behind. Who reads would wait for one who waits for it.
// TestTheRuleOfEntry.)
func (l Line) Blocking(own Entry) Line {
	before := l.Before(own)
	switch s := own.Shape(); {
	case s.Kind == Read:
		return before.unread()
	case s.Kind == Permit && before.admits(s):
		return nil
	default:
		return before
	}
}

// admits reports whether a permit may hold behind l.
func (l Line) admits(s Shape) bool {
	sum, least := int(s.Weight), s.Limit
	for _, e := range l {
		other := e.Shape()
		if other.Kind != Permit {
			return false
		}
		sum, least = sum+int(other.Weight), min(least, other.Limit)
	}
	return sum <= int(least)
}

// unread is those of l that do not read.
func (l Line) unread() (rest Line) {
	for _, e := range l {
		if e.Kind() != Read {
			rest = append(rest, e)
		}
	}
	return rest
}

// Limits are those on which the permits in line count, each once, the least first.
func (l Line) Limits() (limits []uint16) {
	for _, e := range l {
		if s := e.Shape(); s.Kind == Permit {
			limits = append(limits, s.Limit)
		}
	}
	slices.Sort(limits)
	return slices.Compact(limits)
}

// Holding is those in line that wait for nobody: the first one, and if that reads all that read
// before the first one that does not. If it is a permit they are those before the first one that
// has to wait: the sum only grows behind that, and the least of the limits does not.
func (l Line) Holding() Line {
	sum, least := 0, 0
	for n, e := range l {
		s := e.Shape()
		if n == 0 {
			least = int(s.Limit)
		}
		sum, least = sum+int(s.Weight), min(least, int(s.Limit))
		alike := s.Kind == l[0].Kind() && s.Kind != Exclusive
		if n > 0 && (!alike || sum > least) {
			return l[:n]
		}
	}
	return l
}
