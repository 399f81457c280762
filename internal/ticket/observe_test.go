package ticket_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const others = mine + 1 // a lease

// What is shown of a key that was put at revision 7, on lease 5, and is held.
func TestWhatIsSeenOfAKey(t *testing.T) {
	at := func(revision, rev, lease int64) ticket.Observation {
		return ticket.Observation{Entry: line.Entry{Key: line.Prefix(name) + ownID, Rev: rev,
			Lease: lease}, At: revision}
	}
	event := at
	read := func(rev, lease int64) ticket.Observation { return at(0, rev, lease) }
	deleted := func(revision int64) ticket.Observation { return at(revision, 0, 0) }
	noLease := func(o ticket.Observation) ticket.Observation { o.LeaseGone = true; return o }
	asks := func(o ticket.Observation) ticket.Observation { o.AskFirst = true; return o }
	another := deleted(20)
	another.Key = line.Prefix(name) + nextID
	for _, row := range []struct {
		what  string
		shown ticket.Observation
		seen  ticket.Seen
		why   ticket.Reason // Untold if it is no loss
	}{
		{"its own put", event(7, 7, mine), ticket.Same, ticket.Untold},
		{"a put that keeps its lease, as that of a recall", event(9, 7, mine), ticket.Same, ticket.Untold},
		{"a put with another lease", event(9, 7, others), ticket.PutOver, ticket.Overwritten},
		{"a put without a lease", event(9, 7, 0), ticket.PutOver, ticket.Overwritten},
		{"a DELETE", deleted(9), ticket.Missing, ticket.Deleted},
		{"a later put of its name", event(9, 9, mine), ticket.Replaced, ticket.Deleted},
		{"an event of another key", another, ticket.Nothing, ticket.Untold},
		{"a DELETE of an earlier use of its name", deleted(6), ticket.Nothing, ticket.Untold},
		{"a put of an earlier use of its name", event(5, 5, mine), ticket.Nothing, ticket.Untold},

		{"a read finds it", read(7, mine), ticket.Same, ticket.Untold},
		{"a read finds it with another lease", read(7, others), ticket.PutOver, ticket.Overwritten},
		{"a read does not find it", read(0, 0), ticket.Missing, ticket.Deleted},
		{"a read finds a later key of its name", read(9, mine), ticket.Replaced, ticket.Deleted},
		{"a read finds an earlier key, after a set-back", read(3, mine), ticket.Replaced, ticket.Deleted},
		{"a read does not find it, nor does etcd know its lease", noLease(read(0, 0)), ticket.Missing, ticket.LeaseRevoked},
		{"a read finds it without the lease that etcd does not know", noLease(read(7, 0)), ticket.PutOver, ticket.Overwritten},

		{"a read of the line has it", at(9, 7, mine), ticket.Same, ticket.Untold},
		{"a read of the line from before it was put lacks it", at(6, 0, 0), ticket.Nothing, ticket.Untold},
		{"a read of the line lacks it", at(9, 0, 0), ticket.Missing, ticket.Deleted},

		{"a DELETE, before etcd was asked for the lease", asks(deleted(9)), ticket.Missing, ticket.Untold},
		{"a later put, before etcd was asked for the lease", asks(event(9, 9, mine)), ticket.Replaced, ticket.Untold},
		{"a put with another lease, of which etcd need not be asked", asks(event(9, 7, others)), ticket.PutOver, ticket.Overwritten},
	} {
		k := held(t)
		require.Equal(t, row.seen, k.Observe(row.shown), row.what)
		require.Equal(t, row.why, k.Loss(), row.what)
		require.Equal(t, row.why != ticket.Untold, k.Lost(), row.what)
		if k.Lost() {
			require.Equal(t, ticket.Gone, k.State(), row.what)
			k.Observe(noLease(read(0, 0)))
			require.Equal(t, row.why, k.Loss(), "%s: the first loss counts", row.what)
		}
	}
}

// A keyWorld is what has happened to the name of one key, by revision, and to the lease of the
// ticket that is observed.
type keyWorld struct {
	history []line.Entry // what was there at each revision; the zero Entry is nothing
	noLease bool         // the lease has ended
	put     int64        // the revision at which the ticket has put the key, 0 before that
	unput   bool         // it was not as it was put, at some time since then
	over    bool         // the same, and it was there
	deleted bool         // the same, and it was not there
	backs   bool         // etcd was set back since the put
	way     string
}

func (w keyWorld) now() line.Entry { return w.history[len(w.history)-1] }

// asPut reports whether the ticket's key is there, as it was put.
func (w keyWorld) asPut(e line.Entry) bool { return e.Rev == w.put && e.Lease == mine }

// then is w after the key has become another one, or nothing has happened to it.
func (w keyWorld) then(what string, e line.Entry) keyWorld {
	w.history = append(w.history[:len(w.history):len(w.history)], e)
	return w.saw(what)
}

// saw is w with what follows for the ticket.
func (w keyWorld) saw(what string) keyWorld {
	w.way += what + "; "
	if w.put != 0 && !w.asPut(w.now()) {
		w.unput = true
		w.over, w.deleted = w.over || w.now().Rev == w.put, w.deleted || w.now().Rev != w.put
	}
	return w
}

// next is what w may become: anybody puts the key, with any lease or none, or deletes it; the lease
// ends; something else happens in etcd; etcd is set back. Any put that makes a key may be that of
// the ticket.
func (w keyWorld) next() (next []keyWorld) {
	key, rev := line.Prefix(name)+ownID, int64(len(w.history))
	for _, lease := range []int64{mine, others, 0} {
		if lease == mine && w.noLease {
			continue
		}
		made := line.Entry{Key: key, Rev: rev, Lease: lease}
		if old := w.now(); old.Rev != 0 {
			made.Rev = old.Rev
		} else if lease == mine && w.put == 0 {
			its := w
			its.put = rev
			next = append(next, its.then("the ticket's put", made))
		}
		next = append(next, w.then(fmt.Sprintf("put with %d", lease), made))
	}
	if w.now().Rev != 0 {
		next = append(next, w.then("delete", line.Entry{}))
	}
	if !w.noLease {
		ended := w
		ended.noLease = true
		if ended.now().Lease == mine {
			next = append(next, ended.then("the lease ends, and the key with it", line.Entry{}))
		} else {
			next = append(next, ended.saw("the lease ends"))
		}
	}
	if rev > 1 && w.put != 0 {
		back := w
		back.history, back.backs = w.history[:rev-1], true
		next = append(next, back.saw("etcd is set back"))
	}
	return append(next, w.then("something else", w.now()))
}

// A shown is an observation that may be made, and what is true of it.
type shown struct {
	ticket.Observation
	of     line.Entry // what was there
	counts bool       // it is not of a time before the put
	other  bool       // it is of another key
}

// shown is all that events and reads may show. Those of an earlier epoch do not count, and
// so nothing but reads shows anything once etcd was set back.
func (w keyWorld) shown() (all []shown) {
	add := func(at int64, of line.Entry, counts bool) {
		o := ticket.Observation{Entry: of, At: at}
		o.Key = line.Prefix(name) + ownID
		all = append(all, shown{o, of, counts, false})
		o.AskFirst = true
		all = append(all, shown{o, of, counts, false})
		o.AskFirst, o.LeaseGone = false, true
		if w.noLease {
			all = append(all, shown{o, of, counts, false})
		}
	}
	last := int64(len(w.history) - 1)
	another := ticket.Observation{Entry: line.Entry{Key: line.Prefix(name) + nextID}}
	all = append(all, shown{another, another.Entry, true, true})
	add(0, w.now(), true) // a read
	for at := int64(1); at <= last && !w.backs; at++ {
		add(at, w.history[at], at >= w.put) // an event, or a read of the line
		if at >= w.put {
			add(0, w.history[at], true) // a read that was answered later
		}
	}
	return all
}

// TestObservations goes every way of a few steps that a key may go in etcd: it is put by its
// ticket, put over, deleted and put again under its name, before and after that; its lease ends;
// etcd is set back. A ticket in each of its states then observes, in any order and any number of
// times, all that events and reads may show.
//
//   - The ticket is lost only if its key is not as it was put, or was not since. It is, if a read
//     or a DELETE shows that, and if anything shows its key with another lease.
//   - It counts as there only if it was there, as it was put.
//   - The reason of a loss is true, and the first loss counts.
//   - What is of a time before the put, or of another key, says nothing;
//     and so does everything once the key is removed.
//   - A key that is gone changes nothing before etcd was asked for the lease.
func TestObservations(t *testing.T) {
	const steps = 6
	worlds, observations := 0, 0
	var goOn func(w keyWorld, left int)
	goOn = func(w keyWorld, left int) {
		if w.put != 0 {
			worlds++
			observations += observeAll(t, w)
		}
		if left == 0 {
			return
		}
		for _, next := range w.next() {
			goOn(next, left-1)
		}
	}
	goOn(keyWorld{history: make([]line.Entry, 1)}, steps)
	t.Logf("%d worlds, %d observations", worlds, observations)
}

// observeAll has tickets in all states that are reached observe all that there is to see in w.
func observeAll(t *testing.T, w keyWorld) (observations int) {
	type reached struct {
		state ticket.State
		lost  bool
		why   ticket.Reason
	}
	is := func(k *ticket.Ticket) reached { return reached{k.State(), k.Lost(), k.Loss()} }
	first := unsent(ownID, &ticket.Slot{})
	e := first.Enter(false, false)
	e.Judged(ticket.Answer{Succeeded: true, Revision: w.put})
	known, rest := map[reached]bool{is(&first): true}, []ticket.Ticket{first}
	add := func(k ticket.Ticket) {
		if !known[is(&k)] {
			known[is(&k)] = true
			rest = append(rest, k)
		}
	}
	all := w.shown()
	for len(rest) > 0 {
		from := rest[0]
		rest = rest[1:]
		for _, s := range all {
			k := from
			seen := k.Observe(s.Observation)
			observations++
			if wrong := w.judge(s, is(&from) == is(&k), &from, &k, seen); wrong != "" {
				require.Fail(t, wrong, "%sa ticket that is %v and put at %d observes %+v: %v, it is %v, %v",
					w.way, from.State(), w.put, s.Observation, seen, k.State(), k.Loss())
			}
			add(k)
		}
		for _, goes := range []func(k *ticket.Ticket){
			(*ticket.Ticket).Hold, (*ticket.Ticket).Leave, func(k *ticket.Ticket) { k.Remove(0) },
		} {
			k := from
			if possible(func() { goes(&k) }) {
				add(k)
			}
		}
	}
	return observations
}

// possible reports whether a transition is allowed.
func possible(transition func()) (ok bool) {
	defer func() { ok = recover() == nil }()
	transition()
	return
}

// judge returns what is wrong with an observation that has made before after.
func (w keyWorld) judge(
	s shown, unchanged bool, before, after *ticket.Ticket, seen ticket.Seen,
) string {
	over := s.of.Rev == w.put && s.of.Lease != mine
	removed := before.State() == ticket.Removed
	lost := after.Lost() && !before.Lost()
	switch {
	case removed && (seen != ticket.Nothing || !unchanged):
		return "something is seen of a key that was removed"
	case (!s.counts || s.other) && (seen != ticket.Nothing || !unchanged):
		return "something is seen that says nothing"
	case seen == ticket.Same && !w.asPut(s.of):
		return "a key that is not there as it was put is taken for the ticket's"
	case !removed && s.counts && !s.other && w.asPut(s.of) && seen != ticket.Same:
		return "a key that is there is not seen"
	case before.Lost() && !unchanged:
		return "a ticket is lost twice"
	case lost && (!w.unput || w.asPut(s.of)):
		return "a ticket is lost whose key is there"
	case s.AskFirst && !over && !unchanged:
		return "a ticket is lost before etcd was asked for its lease"
	case removed || before.Lost() || !s.counts || s.other || w.asPut(s.of):
		return ""
	case !lost && (over || !s.AskFirst):
		return "a loss is overlooked"
	case lost && after.State() != ticket.Gone && before.State() != ticket.Leaving:
		return "a lost ticket is not gone"
	case lost && before.State() == ticket.Leaving && after.State() != ticket.Leaving:
		return "a ticket that is leaving goes elsewhere"
	case lost && after.Loss() == ticket.Overwritten && !w.over,
		lost && after.Loss() == ticket.LeaseRevoked && !w.noLease,
		lost && after.Loss() == ticket.Deleted && !w.deleted,
		lost && (after.Loss() == ticket.LeaseRevoked) != (s.LeaseGone && !over):
		return "the reason is not true"
	}
	return ""
}
