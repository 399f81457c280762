package ticket

import "github.com/etcdlock/etcdlock/internal/line"

// An Observation is what an event of a watch, or a read, has shown of a key.
//
// Invariant: an observation ends a ticket only by its revisions. The create revision tells whose
// key it is: the names of keys are used again. What was so at a revision before the key was put
// is of an earlier use of its name, and says nothing: a member that lags behind reports these. Only
// revisions of one epoch compare: what is read anew after a set-back has no At.
//
// Do not lose a ticket by its key's name alone. (TestAnEventOfAnEarlierUseOfTheNameEndsNoHold.)
//
// Invariant: an absence ends a ticket only if the source shows its key. That is a DELETE of the
// very key, or a read of it. (What a watch has not told proves nothing: the watches of a client may
// see other keys than its reads.)
type Observation struct {
	// the key as it was put or read; without a revision if it was deleted, or was not there
	line.Entry
	// a revision at which that was so; 0 for a read that was sent when t stood in line
	At int64

	LeaseGone bool // etcd does not know the lease: a key that is gone went with it
	AskFirst  bool // etcd is to be asked for the lease, before a key that is gone counts as lost
}

// A Seen is what an observation means for a ticket.
type Seen uint8

// What an observation may mean.
const (
	Nothing  Seen = iota // it is of another key, or of an earlier or a later use of its name
	Same                 // the key is there as t has put it. Its value may have a recall
	Missing              // it was deleted, or went with its lease
	Replaced             // the same, and another key of its name is there, which blocks the line
	PutOver              // it is there, and has another lease, or none: t's lease does not remove it
)

// String is for messages.
func (s Seen) String() string {
	return [...]string{"nothing", "same", "missing", "replaced", "put over"}[s]
}

// IsLoss reports whether the key is not as t has put it.
func (s Seen) IsLoss() bool { return s > Same }

// of is what o means for t. The ticket's one transition by it is Observe.
func (o Observation) of(t *Ticket) Seen {
	switch {
	case t.rev == 0 || t.state == Removed, o.Key != t.Key, o.At != 0 && o.At < t.rev:
		return Nothing
	case t.Is(o.Entry): // a put that keeps both keeps the place
		return Same
	case o.Rev == t.rev:
		return PutOver
	case o.Rev != 0:
		return Replaced
	default:
		return Missing
	}
}
