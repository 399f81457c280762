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

// Blocking is the rule of entry: whom in line the contender own waits for. One that has no
// revision yet would be put now. It may hold when it waits for nobody, and then whoever comes
// later waits for it.
//
// Every place is exclusive, so it waits for all before it. A kind that holds beside others has
// its case here, and only here; the kind is told by the key, since the event of a deletion has
// no value. What this version takes for a contender without knowing its kind is exclusive: it
// waits for everybody before it, and everybody behind it waits for it.
//
// Nobody is ever put before a place. So once the rule lets it in, it stays in.
func (l Line) Blocking(own Entry) []Entry {
	after := slices.IndexFunc(l, func(e Entry) bool { return own.Rev != 0 && e.Rev >= own.Rev })
	if after < 0 {
		return l
	}
	return l[:after]
}

// Holding is those in line that wait for nobody.
func (l Line) Holding() []Entry {
	var holding []Entry
	for _, e := range l {
		if len(l.Blocking(e)) > 0 {
			break
		}
		holding = append(holding, e)
	}
	return holding
}
