package follow

import (
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// fewOldest is how many keys are read to find the holder: the first is the holder's, unless
	// there are keys of another kind below the name. mostOldest is how many are read at most to
	// find several that hold.
	fewOldest  = 3
	mostOldest = 1000

	// mostCompared is how many keys a recheck compares, each in three ways: etcd allows 128
	// operations in a transaction by default.
	mostCompared = 40
)

// A Snapshot is what a read has shown.
type Snapshot struct {
	Line     line.Line // the first contenders: one at least, or with all that hold the next, too
	Revision int64     // at which that was so
	Keys     int       // below the name, contenders or not

	name  string
	all   bool // of a Follower of all that hold
	whole bool // Line has all contenders
	epoch *etcd.Epoch
}

// snapshot is what read has shown.
func (f *Follower) snapshot(read etcd.Reading) Snapshot {
	keys := read.Ranges[0]
	return Snapshot{
		Line: line.Of(f.Name, keys.GetKvs()), Revision: read.Header.GetRevision(),
		Keys: int(keys.GetCount()), name: f.Name, all: f.All, whole: !keys.GetMore(), epoch: read.Epoch,
	}
}

// First is the first in line. It has no revision if there is none.
func (s *Snapshot) First() line.Entry {
	if len(s.Line) == 0 {
		return line.Entry{}
	}
	return s.Line[0]
}

// Is reports whether s and o show the same hold first, and tell the same of it, or show none.
func (s *Snapshot) Is(o *Snapshot) bool { return tellsSame(s.First(), o.First()) }

// tellsSame reports whether a and b are of the same hold, and tell the same.
func tellsSame(a, b line.Entry) bool {
	return a.Key == b.Key && a.Rev == b.Rev && a.Value() == b.Value()
}

// tells reports whether s, of n keys that were read, shows what is followed.
func (s *Snapshot) tells(n int64) bool {
	switch {
	case s.whole:
		return true
	case len(s.Line) == 0:
		return false
	default:
		return !s.all || s.bounded() || n >= mostOldest
	}
}

// exclusive reports whether the first in line excludes all others.
func (s *Snapshot) exclusive() bool {
	return len(s.Line) > 0 && s.Line[0].Kind() == line.Exclusive
}

// bounded reports whether Line shows that no other contender holds than those in it.
func (s *Snapshot) bounded() bool { return s.exclusive() || len(s.Line) > len(s.Line.Holding()) }

// decisive are the contenders that decide who holds: all that hold, and the one that keeps the next
// ones from it.
func (s *Snapshot) decisive() line.Line {
	if !s.all || s.exclusive() {
		return s.Line[:min(1, len(s.Line))]
	}
	return s.Line[:min(len(s.Line.Holding())+1, len(s.Line))]
}

// watched is what is watched: the key of the holder or, where none holds or several may, all below
// the name.
//
// Do not watch all below the name where the holder excludes all others: as a line of n goes, each
// would be told of each. (TestALineThatGivesUpTellsNoAsker.)
func (s *Snapshot) watched() (key string, opts []clientv3.OpOption) {
	opts = append(opts, clientv3.WithRev(s.Revision+1))
	if s.all {
		opts = append(opts, clientv3.WithFilterPut())
	}
	if len(s.Line) > 0 && (!s.all || s.exclusive()) {
		return s.Line[0].Key, opts
	}
	return line.Prefix(s.name), append(opts, clientv3.WithPrefix())
}

// changedBy reports whether events say that the line is to be read again.
func (s *Snapshot) changedBy(events []*clientv3.Event) bool {
	for _, event := range events {
		e := line.EntryOf(event.Kv)
		if s.all && s.without(e.Key) || !s.all && s.differs(e, event.Type == clientv3.EventTypePut) {
			return true
		}
	}
	return false
}

// differs reports whether the holder is another, or tells something else, once e was put, or
// deleted. A key that was put over stays the holder's if it keeps its place: then s is as of now.
func (s *Snapshot) differs(e line.Entry, put bool) bool {
	put = put && e.StandsIn(s.name)
	if free := len(s.Line) == 0; free == put || !free && !tellsSame(e, s.Line[0]) {
		return true
	}
	if put {
		s.Line[0] = e
	}
	return false
}

// without takes the contender with a key, which has gone, out of s. It reports whether others may
// hold now that did not before. While one in Line waits, these are in Line; and while all in line
// hold, none waits.
func (s *Snapshot) without(key string) bool {
	i := slices.IndexFunc(s.Line, func(e line.Entry) bool { return e.Key == key })
	if i < 0 {
		return false
	}
	held := len(s.Line.Holding())
	if i < held {
		held--
	}
	s.Line = slices.Delete(s.Line, i, i+1)
	hold := len(s.Line.Holding())
	return hold != held || hold == 0 || hold == len(s.Line) && !s.whole
}

// unchanged is what is known of the contenders that decide who holds. compares is false if there is
// none, or too many to be compared.
func (s *Snapshot) unchanged() (known []ticket.Known, compares bool) {
	decisive := s.decisive()
	if len(decisive) == 0 || len(decisive) > mostCompared {
		return nil, false
	}
	known = ticket.Contend(decisive...)
	for i, e := range decisive {
		known[i].Mod = e.Mod
	}
	return known, true
}
