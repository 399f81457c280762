// Package line says what stands in etcd's line for a lock: which keys are contenders, in
// which order they stand, and which of them a contender waits for. It gets what was read, and
// sends nothing to etcd itself. It has no mutex, no goroutine and no clock.
//
// The keys lie below the lock's name, and their values are for people (entry.go).
// Nothing outside this package knows how either is written.
package line

import (
	"cmp"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A Line is the contenders for one lock, in the order in which they came.
//
// Invariant: its entries are in the order of their create revisions, as etcd put them.
//
// Do not keep them in the order of their keys, as etcd reads them.
// (TestTheOrderIsThatOfTheCreateRevisions.)
type Line []Entry

// Of is the line for the lock name, by the keys that were read below it.
func Of(name string, kvs []*mvccpb.KeyValue) Line {
	l := make(Line, 0, len(kvs))
	for _, kv := range kvs {
		if e := EntryOf(kv); e.StandsIn(name) {
			l = append(l, e)
		}
	}
	slices.SortFunc(l, older)
	return l
}

// Below are the keys that may stand in line for the lock name, of those that were read, or put or
// deleted, below it. It leaves out the keys of nested names: they may be many.
func Below(name string, kvs []*mvccpb.KeyValue) (entries []Entry) {
	for _, kv := range kvs {
		if e := EntryOf(kv); e.MayStandIn(name) {
			entries = append(entries, e)
		}
	}
	return entries
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
		slices.SortFunc(l, older)
	}
	return lines
}

// older compares two entries of a line by their order.
func older(a, b Entry) int { return cmp.Compare(a.Rev, b.Rev) }

// Before is all contenders that came before own. An own without a revision is being put now.
func (l Line) Before(own Entry) Line {
	after := slices.IndexFunc(l, func(e Entry) bool { return own.Rev != 0 && e.Rev >= own.Rev })
	if after < 0 {
		return l
	}
	return l[:after]
}

// Blocking is the rule of entry: it returns the contenders in line for which own waits. An
// own without a revision would be put now. A contender may hold when it waits for none.
// Then all later contenders wait for it, unless they may hold beside it.
//
// An exclusive contender waits for all its predecessors. A reader waits for all that do not read. A
// permit waits for none if all its predecessors are permits, and the sum of their weights and its
// own is at most the least of their limits and its own. Otherwise it waits until that is so, and
// Blocking is all its predecessors. A waiter counts as a holder does, so that small permits do not
// overtake a large one. (TestAPermitWaitsForTheSum.) The key shows the kind, since the event of a
// deletion has no value. A key that this version takes for a contender without knowing its kind is
// exclusive: it waits for all its predecessors, and all its successors wait for it.
//
// No key is ever put before a place. So once the rule lets a place in, it stays in. Of any
// two places that the rule has let in, and that both stand in line, the later one has seen
// the earlier one, and may hold beside it.
//
// Do not count the contenders behind: a reader would wait for a contender that waits for it.
// (TestTheRuleOfEntry.)
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

// unread is the part of l that does not read.
func (l Line) unread() (rest Line) {
	for _, e := range l {
		if e.Kind() != Read {
			rest = append(rest, e)
		}
	}
	return rest
}

// Limits are the limits of the permits in line, each once, the least first.
func (l Line) Limits() (limits []uint16) {
	for _, e := range l {
		if s := e.Shape(); s.Kind == Permit {
			limits = append(limits, s.Limit)
		}
	}
	slices.Sort(limits)
	return slices.Compact(limits)
}

// Holding is the contenders in line that wait for none. That is the first one. If it reads,
// Holding is all readers before the first contender that does not read. If it is a permit,
// Holding is all before the first contender that has to wait: behind that one the sum only
// grows, and the least of the limits does not.
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

// TTLs is what is known of the TTLs of some contenders.
type TTLs struct {
	Longest time.Duration // of the contenders that tell it
	Untold  bool          // a contender does not tell it, or was not read
}

// And is what is known of the TTLs of both.
func (t TTLs) And(other TTLs) TTLs {
	return TTLs{max(t.Longest, other.Longest), t.Untold || other.Untold}
}

// TTLs is what is known of the TTLs of the contenders in line.
func (l Line) TTLs() (t TTLs) {
	for _, e := range l {
		t = t.And(e.TTLs())
	}
	return t
}
