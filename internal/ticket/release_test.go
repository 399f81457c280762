package ticket_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	ownID  = "00000000-0000-0000-0000-000000000001"
	nextID = "00000000-0000-0000-0000-000000000002"
	oldID  = "00000000-0000-0000-0000-000000000003"
	mine   = 5 // the lease
	rev    = 7 // of the key
	least  = 9 // the lease to which a key moves
)

func kv(id string, rev, lease int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(line.Prefix(name) + id), CreateRevision: rev, Lease: lease}
}

// read is the result of one range.
func read(kvs ...*mvccpb.KeyValue) *pb.RangeResponse {
	return &pb.RangeResponse{Kvs: kvs, Count: int64(len(kvs))}
}

// ahead is the result of the range before a put, the newest first.
func ahead(kvs ...*mvccpb.KeyValue) []*pb.RangeResponse {
	return []*pb.RangeResponse{read(kvs...)}
}

// unsent is a ticket that has just been taken.
func unsent(id string, slot *ticket.Slot) ticket.Ticket {
	return ticket.New(name, mine, slot, func(name string) string { return line.Prefix(name) + id })
}

// held is a ticket at which a hold has begun.
func held(t *testing.T) *ticket.Ticket {
	k := unsent(ownID, &ticket.Slot{})
	e := k.Enter(false, false)
	is, ahead := e.Judged(ticket.Answer{Succeeded: true, Revision: rev, Read: ahead()})
	require.Equal(t, ticket.Queued, is)
	require.True(t, ahead.Clear())
	k.Hold()
	return &k
}

// answered makes an answer from the words of a row: for what etcd has done, and for what
// else is known.
func answered(t *testing.T, words string) (a ticket.Answer, now ticket.Now) {
	a.Revision, now.Certain = 20, true
	var own, next, before []*mvccpb.KeyValue
	for word := range strings.FieldsSeq(words) {
		switch word {
		case "deleted":
			a.Succeeded = true
		case "next": // is there
			next = append(next, kv(nextID, 12, mine))
		case "leftover": // is there under the name of next
			next = append(next, kv(nextID, 12, mine+1))
		case "own": // is still there
			own = append(own, kv(ownID, rev, 0))
		case "mine": // on its lease
			own[0].Lease = mine
		case "moved": // is on the other lease
			own = append(own, kv(ownID, rev, least))
		case "later": // a later key of the name
			own = append(own, kv(ownID, rev+1, mine))
		case "before": // another contender stands before next
			before = append(before, kv(oldID, 3, mine+1))
		case "gone": // nothing more is there
		case "fails":
			a.Empty = true
		case "silence":
			a.Outcome = ticket.Unknown
		case "refused":
			a.Outcome = ticket.NotApplied
		case "copy":
			a.Copies = true
		case "final":
			now.Final = true
		case "uncertain":
			now.Certain = false
		case "stale":
			now.Stale = true
		case "seen": // by a witness
			now.Witnessed = true
		case "over": // is the time for which the key was to stay
			now.Over = true
		default:
			require.Fail(t, "no such word", word)
		}
	}
	if a.Read = []*pb.RangeResponse{read(own...), read(next...)}; a.Succeeded {
		a.Read = ahead(before...)
	}
	return a, now
}

// Rules 6 and 7: what Unlock says for each answer that a release may get, and what becomes
// of the key and of the next ticket's key.
func TestWhatAReleaseSays(t *testing.T) {
	rows := []struct {
		promise string
		answers string // without a next ticket; or, after "with:", with one
		says    string
		key     ticket.State
	}{
		{"the key was there", "deleted", "done", ticket.Removed},
		{"it was, and the hold is uncertain by now", "deleted uncertain", "done", ticket.Removed},
		{"it was, and etcd was set back", "deleted stale", "done", ticket.Removed},
		{"it was, when a copy came", "deleted copy", "done", ticket.Removed},
		{"a compare failed, and it asks why", "fails", "again", ticket.Leaving},
		{"the key was deleted", "fails, gone", "lost deleted", ticket.Removed},
		{"its name is used again", "fails, later", "lost deleted", ticket.Removed},
		{"the key was put over", "fails, own", "lost overwritten", ticket.Leaving},
		{"it was put over, as a copy finds", "fails copy, own", "lost overwritten", ticket.Leaving},
		{"a copy does not find it", "fails copy, gone", "unconfirmed unwitnessed", ticket.Removed},
		{"it does not, and a watch has seen it", "fails copy, gone seen", "done", ticket.Removed},
		{"a copy reads that it is gone", "gone copy", "unconfirmed unwitnessed", ticket.Removed},
		{"it does, and a watch has seen it", "gone copy seen", "done", ticket.Removed},
		{"a single request does not find it, whatever a watch has seen", "gone seen",
			"lost deleted", ticket.Removed},
		{"it is gone for certain, whatever copies say", "fails, gone copy",
			"lost deleted", ticket.Removed},
		{"it is lost, and nobody answers how", "fails, silence",
			"lost deleted or overwritten", ticket.Leaving},
		{"it is lost, and etcd refuses to say how", "fails, refused final",
			"lost deleted or overwritten", ticket.Leaving},
		{"after a copy nobody knows", "fails copy, silence", "again", ticket.Leaving},
		{"the answer was lost", "silence", "again", ticket.Leaving},
		{"the answer was lost, and the key is gone", "silence, gone",
			"unconfirmed unwitnessed", ticket.Removed},
		{"the answer was lost, and a watch has seen the key", "silence, gone seen",
			"done", ticket.Removed},
		{"the request was lost", "silence, deleted", "done", ticket.Removed},
		{"the answer was lost, and the key is still there", "silence, own",
			"lost overwritten", ticket.Leaving},
		{"the answer was lost, and a compare fails", "silence, fails, gone",
			"unconfirmed unwitnessed", ticket.Removed},
		{"the answer was lost, and the hold uncertain", "silence, gone seen uncertain",
			"unconfirmed uncertain", ticket.Removed},
		{"the answer was lost, and etcd set back", "silence, gone seen stale",
			"unconfirmed set back", ticket.Removed},
		{"set back, and uncertain", "silence, gone stale uncertain",
			"unconfirmed set back", ticket.Removed},
		{"the first request was not carried out", "refused, gone", "lost deleted", ticket.Removed},
		{"the last attempt has no answer", "silence final", "unconfirmed silence", ticket.Leaving},
		{"no attempt is worth it any more", "silence uncertain", "unconfirmed silence", ticket.Leaving},
		{"etcd refuses for good", "refused final", "unconfirmed silence", ticket.Leaving},
		{"a deletion without copies, uncertain", "fails, gone uncertain", "lost deleted", ticket.Removed},
		{"a deletion without copies, set back", "fails, gone stale", "lost deleted", ticket.Removed},

		{"the next is put", "with: deleted", "done, next queued", ticket.Removed},
		{"the next is put behind others", "with: deleted before",
			"done, next queued behind 1", ticket.Removed},
		{"a copy has put the next", "with: next copy", "done, next queued behind some", ticket.Removed},
		{"the name of the next was in use", "with: own leftover", "again alone", ticket.Leaving},
		{"it was in use, and the key is released alone", "with: own leftover, deleted",
			"done", ticket.Removed},
		{"a late copy has put the next, and the key is there", "with: own next",
			"again alone, next queued behind some", ticket.Leaving},
		{"the key is gone, the next is not put", "with: gone", "lost deleted", ticket.Removed},
		{"a copy finds neither", "with: gone copy", "unconfirmed unwitnessed", ticket.Removed},
		{"it does, and a watch has seen the key", "with: gone copy seen", "done", ticket.Removed},
		{"no answer", "with: silence", "again alone", ticket.Leaving},
		{"no answer, and then the key is gone", "with: silence, gone",
			"unconfirmed unwitnessed", ticket.Removed},
		{"no answer, and the next was put", "with: silence, next",
			"done, next queued behind some", ticket.Removed},
		{"no answers, and the next was put", "with: silence, silence, refused, next",
			"done, next queued behind some", ticket.Removed},
		{"no answer, and the next was not put", "with: silence, deleted", "done", ticket.Removed},
		{"the key was there, and a copy has removed it", "with: own leftover mine, silence, gone",
			"done", ticket.Removed},
		{"no answer, at last", "with: silence final", "unconfirmed silence", ticket.Leaving},
		{"etcd does not put the next", "with: refused", "again alone", ticket.Leaving},
		{"it does not, and the key is gone", "with: refused, gone", "lost deleted", ticket.Removed},
		{"the lease is gone that both are on", "with: refused uncertain",
			"unconfirmed silence", ticket.Leaving},

		{"the key moves", "move: deleted", "done", ticket.Removed},
		{"it has moved, as a copy finds", "move: moved copy", "done", ticket.Removed},
		{"the answer was lost, and it has moved", "move: silence, moved", "done", ticket.Removed},
		{"it has, and the hold is uncertain by now", "move: silence, moved uncertain", "done", ticket.Removed},
		{"it has, and etcd was set back", "move: silence, moved stale", "done", ticket.Removed},
		{"the key was put over before", "move: own", "lost overwritten", ticket.Leaving},
		{"it was deleted before", "move: gone", "lost deleted", ticket.Removed},
		{"its name is used again", "move: later", "lost deleted", ticket.Removed},
		{"it was deleted, before it had moved or after that", "move: silence, gone",
			"unconfirmed taken away deleted", ticket.Removed},
		{"it was, as a copy finds", "move: gone copy", "unconfirmed taken away deleted", ticket.Removed},
		{"it was put over, before or after", "move: silence, own",
			"unconfirmed taken away overwritten", ticket.Leaving},
		{"its name is used again, before or after", "move: silence, later",
			"unconfirmed taken away deleted", ticket.Removed},
		{"it was put over, and etcd set back", "move: silence, own stale",
			"unconfirmed taken away overwritten", ticket.Leaving},
		{"it is gone, and etcd was set back", "move: silence, gone stale",
			"unconfirmed set back", ticket.Removed},
		{"it is gone, and so may be its first lease", "move: silence, gone uncertain",
			"unconfirmed uncertain", ticket.Removed},
		{"it is gone, and its time is over", "move: silence, gone over",
			"unconfirmed unwitnessed", ticket.Removed},
		{"it is, and a watch has seen it", "move: silence, gone over seen", "done", ticket.Removed},
		{"it is put over when its time is over", "move: silence, own over",
			"unconfirmed taken away overwritten", ticket.Leaving},
		{"no request has moved it", "move: refused, gone", "lost deleted", ticket.Removed},
		{"it moves in vain, and then it is deleted", "move: silence, delete: deleted over",
			"done", ticket.Removed},
		{"it is gone as it is deleted at last", "move: silence, delete: gone over",
			"unconfirmed unwitnessed", ticket.Removed},
		{"it has moved though it is to be deleted", "move: silence, delete: moved over",
			"done moved", ticket.Removed},
		{"nobody says whether it has moved", "move: silence final", "unconfirmed silence", ticket.Leaving},
		{"etcd refuses the move", "move: refused final", "unconfirmed silence", ticket.Leaving},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			k := held(t)
			var next *ticket.Ticket
			answers, together := strings.CutPrefix(row.answers, "with:")
			answers, moves := strings.CutPrefix(answers, "move:")
			if together {
				n := unsent(nextID, &ticket.Slot{})
				next = &n
			}
			r := k.Release(next)
			if moves {
				r.MoveTo(least)
			}
			require.Equal(t, ticket.Leaving, k.State())
			steps, says := strings.Split(answers, ","), ""
			for i, words := range steps {
				words, deletes := strings.CutPrefix(words, " delete:")
				if deletes {
					r.MoveTo(0)
				}
				require.Equal(t, together && i == 0, r.Together())
				a, now := answered(t, words)
				f := r.Says(a, now)
				if i < len(steps)-1 {
					require.LessOrEqual(t, f.Verdict, ticket.AgainAlone, "it is over after %q", words)
				}
				says = said(f)
				if deletes && r.Moves() {
					says += " moved"
				}
			}
			require.Equal(t, row.says, says)
			require.Equal(t, row.key, k.State())
		})
	}
}

// said is a finding in the words of the rows.
func said(f ticket.Finding) string {
	says := f.Verdict.String()
	switch f.Verdict {
	case ticket.Lost:
		says += " " + f.Reason.String()
	case ticket.Unconfirmed:
		says += " " + f.Doubt.String()
		if f.Doubt == ticket.TakenAway {
			says += " " + f.Reason.String()
		}
	}
	if f.Queued {
		says += ", next queued"
	}
	if f.Queued {
		says += behind(f.Ahead)
	}
	return says
}

// behind is what is ahead, in the words of the rows.
func behind(ahead line.Ahead) string {
	switch {
	case ahead.Clear():
		return ""
	case len(ahead.Last) == 0 && ahead.Holder().Rev == 0:
		return " behind some"
	case ahead.Reading == line.All:
		return fmt.Sprintf(" behind %d", len(ahead.Last))
	default:
		return fmt.Sprintf(" behind %d of %d", len(ahead.Last), ahead.Count())
	}
}

// What a release sends: it deletes the key only as this ticket has put it. What it knows
// decides whether it reads.
func TestWhatAReleaseSends(t *testing.T) {
	k := held(t)
	next := unsent(nextID, &ticket.Slot{})
	r := k.Release(&next)
	txn := r.Txn("")
	require.Len(t, txn.If, 3, "the revision, the lease, and that the next is not there")
	require.Len(t, txn.Then, 3, "delete, read the newest, and then put")
	require.NotNil(t, txn.Then[2].GetRequestPut())
	require.Len(t, txn.Else, 2, "both keys")

	a, now := answered(t, "own leftover")
	require.Equal(t, ticket.AgainAlone, r.Says(a, now).Verdict)
	txn = r.Txn("")
	require.Len(t, txn.If, 2)
	require.Len(t, txn.Then, 1)
	require.NotNil(t, txn.Then[0].GetRequestDeleteRange())

	k = held(t)
	r = k.Release(nil)
	require.Empty(t, r.Txn("").Else, "it costs time")
	a, now = answered(t, "fails")
	require.Equal(t, ticket.Again, r.Says(a, now).Verdict)
	require.Equal(t, k.Key, string(r.Txn("").Else[0].GetRequestRange().Key))
}

// A move puts the key with another lease, and only as this ticket has put it: after the first copy
// no other one finds it so. The name of a key that has moved is not used again.
func TestALateCopyOfAMoveDoesNothing(t *testing.T) {
	slot := &ticket.Slot{}
	k := unsent(ownID, slot)
	k.Leave()
	k = unsent(ownID, slot)
	e := k.Enter(false, false)
	_, _ = e.Judged(ticket.Answer{Succeeded: true, Revision: rev, Read: ahead()})
	k.Hold()
	r := k.Release(nil)
	r.MoveTo(least)
	require.True(t, r.Moves())
	world := &etcd{leases: 1<<mine | 1<<least, history: make([]moment, rev)}
	world.set([]*stored{{key: k.Key, rev: rev, mod: rev, lease: mine}})
	sent := wireOf(r.Txn("kept"), false)

	a, _ := world.carryOut(sent.in)
	require.True(t, a.Succeeded)
	require.Equal(t, int64(least), world.find(k.Key).lease)
	world.putOver(world.find(k.Key).rev, mine+1) // what happens to it later
	again, _ := world.carryOut(sent.in)
	require.False(t, again.Succeeded)
	require.Equal(t, int64(mine+1), world.find(k.Key).lease)

	require.Equal(t, ticket.Done, r.Says(a, ticket.Now{}).Verdict)
	later := unsent(nextID, slot)
	require.Equal(t, line.Prefix(name)+nextID, later.Key, "a new name was drawn")

	k = *held(t)
	r = k.Release(nil)
	r.MoveTo(least)
	r.MoveTo(0)
	require.False(t, r.Moves())
	require.NotNil(t, r.Txn("").Then[0].GetRequestDeleteRange())
}

// A judgedPut is the answer to a put, and what it says.
type judgedPut struct {
	promise string
	try     bool
	answer  ticket.Answer
	says    string
	state   ticket.State
	doubt   bool
}

// requireJudged puts the key of an id for each row.
func requireJudged(t *testing.T, id string, rows []judgedPut) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			k := unsent(id, &ticket.Slot{})
			e := k.Enter(row.try, false)
			is, ahead := e.Judged(row.answer)
			says := is.String()
			if is == ticket.Queued || is == ticket.Taken {
				says += behind(ahead)
			}
			require.Equal(t, row.says, says)
			require.Equal(t, row.state, k.State(), "%v", k.State())
			require.Equal(t, row.doubt, k.Doubtful())
		})
	}
}

// The answers to a put: what Lock and TryLock do next, and where the ticket stands.
func TestWhatAPutSays(t *testing.T) {
	put := func(before ...*mvccpb.KeyValue) ticket.Answer {
		return ticket.Answer{Succeeded: true, Read: ahead(before...), Revision: 20}
	}
	// The put is refused. own is what is there under the name; stand is what is in the
	// line, for TryLock.
	fails := func(own *mvccpb.KeyValue, stand ...*mvccpb.KeyValue) ticket.Answer {
		there := read()
		if own != nil {
			there = read(own)
		}
		return ticket.Answer{Read: []*pb.RangeResponse{there, read(stand...)}, Revision: 20}
	}
	more := func(a ticket.Answer) ticket.Answer { // than was read
		for _, r := range a.Read {
			if len(r.Kvs) > 0 {
				r.More, r.Count = true, 30
			}
		}
		return a
	}
	copied := func(a ticket.Answer) ticket.Answer { a.Copies = true; return a }
	own, other, stray := kv(ownID, rev, mine), kv(oldID, 3, mine+1), kv("config", 2, 1)
	var many []*mvccpb.KeyValue
	for i := range ticket.Few + 1 {
		many = append(many, kv(fmt.Sprintf("%s%d", oldID[:35], i), int64(3+i), mine+1))
	}
	silence := ticket.Answer{Outcome: ticket.Unknown}
	refused := ticket.Answer{Outcome: ticket.NotApplied}
	rows := []judgedPut{
		{"alone", false, put(), "queued", ticket.InLine, false},
		{"behind another", false, put(other), "queued behind 1", ticket.InLine, false},
		{"behind another, and others before", false, more(put(other)),
			"queued behind some", ticket.InLine, false},
		{"behind what is no contender", false, put(stray), "queued", ticket.InLine, false},
		{"behind what is no contender, and others before", false, more(put(stray)),
			"queued behind some", ticket.InLine, false},
		{"nothing was read", false, ticket.Answer{Succeeded: true, Revision: 20},
			"queued behind some", ticket.InLine, false},
		{"by a copy", false, copied(fails(own)), "queued behind some", ticket.InLine, true},
		{"it is there already", false, ticket.Answer{Empty: true}, "unsure", ticket.Unsent, false},
		{"it was there, and is gone", false, fails(nil), "useless", ticket.Unsent, false},
		{"of another lease", false, fails(kv(ownID, rev, mine+1)), "useless", ticket.Gone, true},
		{"no answer", false, silence, "unsure", ticket.Sent, true},
		{"not carried out", false, refused, "unsure", ticket.Unsent, false},
		{"TryLock is alone", true, ticket.Answer{Succeeded: true, Revision: 20},
			"queued", ticket.InLine, false},
		{"TryLock finds another", true, fails(nil, other), "taken behind 1", ticket.Unsent, false},
		{"TryLock finds another, and more", true, more(fails(nil, other)),
			"unsure", ticket.Unsent, false},
		{"TryLock finds many, and more", true, more(fails(nil, many...)),
			"taken behind 0 of 30", ticket.Unsent, false},
		{"TryLock stands behind another", true, copied(fails(own, other, own)),
			"taken behind 1", ticket.InLine, true},
		{"TryLock stands before others", true, copied(more(fails(own, stray, own))),
			"queued", ticket.InLine, true},
		{"TryLock may stand before others", true, copied(more(fails(own, stray))),
			"queued behind some", ticket.InLine, true},
		{"TryLock finds what is no contender", true, fails(nil, stray),
			"unsure", ticket.Unsent, false},
		{"TryLock finds what is no contender, and more", true, more(fails(nil, stray)),
			"unsure", ticket.Unsent, false},
		{"TryLock has no answer", true, silence, "unsure", ticket.Sent, true},
	}
	requireJudged(t, ownID, rows)
}

// What a put reads is a few keys in no order, and how many there are, whatever the ticket is like.
// (Of the readers' range it does read the newest.) By what it has read of a longer line the ticket
// cannot wait.
func TestAPutHasEtcdSortNoLine(t *testing.T) {
	permit := "fffffffe-0001-8000-8000-000200000001"
	for _, id := range []string{ownID, permit, readID} {
		k := unsent(id, &ticket.Slot{})
		e := k.Enter(false, false)
		next := unsent(id[:35]+"9", &ticket.Slot{})
		r := held(t).Release(&next)
		for _, txn := range []ticket.Txn{e.Txn(""), r.Txn("")} {
			for _, op := range txn.Then {
				sorted := op.GetRequestRange()
				if sorted == nil || string(sorted.Key) == line.Ranges(name)[line.OfReads].From {
					continue
				}
				require.Equal(t, pb.RangeRequest_NONE, sorted.SortOrder, id)
				require.Positive(t, sorted.Limit, id)
			}
		}
		if id == readID {
			continue
		}
		many := read(kv(oldID, 3, mine+1))
		many.More, many.Count = true, 300
		is, ahead := e.Judged(ticket.Answer{
			Succeeded: true, Read: []*pb.RangeResponse{many}, Revision: 20,
		})
		require.Equal(t, ticket.Queued, is)
		require.Equal(t, line.Unread, ahead.Reading)
		require.Empty(t, ahead.Last)
		require.Equal(t, 300, ahead.Count())
	}
}

// In a crowd a look reads keys first. Enough of them are what the ticket waits by; if they are few,
// or its own key has changed, it reads on.
func TestALookInACrowdReadsKeys(t *testing.T) {
	k := unsent(ownID, &ticket.Slot{})
	e := k.Enter(false, false)
	_, _ = e.Judged(ticket.Answer{Succeeded: true, Revision: 20})
	own := kv(ownID, 20, 0)
	own.ModRevision = 20
	changed := kv(ownID, 20, 0)
	changed.ModRevision = 21
	var many []*mvccpb.KeyValue
	for i := range ticket.Few + 1 {
		many = append(many, kv(fmt.Sprintf("%sa%d", oldID[:34], i), int64(3+i), 0))
	}
	for _, row := range []struct {
		promise string
		read    []*mvccpb.KeyValue
		reading line.Reading
	}{
		{"behind many", slices.Concat(many, []*mvccpb.KeyValue{own}), line.Brief},
		{"behind a few", slices.Concat(many[:3], []*mvccpb.KeyValue{own}), line.Unread},
		{"behind many, and its key was changed",
			slices.Concat(many, []*mvccpb.KeyValue{changed}), line.Unread},
		{"its key is gone", many, line.Unread},
	} {
		t.Run(row.promise, func(t *testing.T) {
			look := k.Look(true)
			require.True(t, clientv3.OpGet("", look.Range(0)...).IsKeysOnly())
			ahead, seen := look.Judge(&pb.RangeResponse{Kvs: row.read, More: true, Count: 90})
			require.Equal(t, row.reading, ahead.Reading)
			require.Equal(t, row.reading != line.Unread, seen.Entry.Rev != 0)
			require.False(t, clientv3.OpGet("", look.Range(0)...).IsKeysOnly(), "it would read on")
		})
	}
}

// A put in a crowd that goes round reads the key behind which the last one stood, if it is there,
// and how many keys there are. Otherwise it reads what any put does. In a line that has become
// short it has to read on. A put that tries, or that reads the holder's value, reads what it reads
// otherwise.
func TestAPutInACrowdReadsTheLastKeyFirst(t *testing.T) {
	last := line.Prefix(name) + oldID
	more := read(kv(nextID, 12, 9))
	more.More, more.Count = true, 90
	for _, row := range []struct {
		promise string
		read    []*pb.RangeResponse
		says    string
		tells   bool
	}{
		{"it is there", []*pb.RangeResponse{read(kv(oldID, 12, 9)), {Count: 90}}, " behind 1 of 90", true},
		{"it is no contender", []*pb.RangeResponse{read(kv(oldID, 12, 0)), {Count: 90}}, " behind some", false},
		{"the line is short", []*pb.RangeResponse{read(kv(oldID, 12, 9)), {Count: 8}}, " behind some", false},
		{"it is not there", []*pb.RangeResponse{more}, " behind some", false},
		{"it is not there, and the line is short", []*pb.RangeResponse{read(kv(nextID, 12, 9))},
			" behind 1", true},
		{"nobody is there", []*pb.RangeResponse{read()}, "", true},
	} {
		t.Run(row.promise, func(t *testing.T) {
			k := unsent(ownID, &ticket.Slot{})
			e := k.Enter(false, false)
			e.Behind(last)
			txn := e.Txn("")
			require.Len(t, txn.Then, 2)
			nested := txn.Then[0].GetRequestTxn()
			require.Equal(t, last, string(nested.Compare[0].Key))
			require.Equal(t, last, string(nested.Success[0].GetRequestRange().Key))
			require.True(t, nested.Success[1].GetRequestRange().CountOnly)
			plain := k.Enter(false, false)
			require.Equal(t, plain.Txn("").Then[:1], nested.Failure)
			require.NotNil(t, txn.Then[1].GetRequestPut())

			is, ahead := e.Judged(ticket.Answer{Succeeded: true, Read: row.read, Revision: 20})
			require.Equal(t, ticket.Queued, is)
			require.Equal(t, row.says, behind(ahead))
			require.Equal(t, row.tells, ahead.Reading != line.Unread)
		})
	}
	for _, try := range []bool{false, true} {
		k := unsent(ownID, &ticket.Slot{})
		plain, e := k.Enter(try, !try), k.Enter(try, !try)
		e.Behind(last)
		require.Equal(t, plain.Txn(""), e.Txn(""))
	}
}

// A waiter compares the key for which it waits with that key's lease. If only the key was read,
// it compares with the lease that the key's name tells, or with none.
func TestWhoIsWaitedForIsComparedWithItsLease(t *testing.T) {
	for _, row := range []struct {
		tail   string
		lease  int64
		result pb.Compare_CompareResult
		with   int64
	}{
		{oldID, mine, pb.Compare_EQUAL, mine},
		{oldID, 0, pb.Compare_NOT_EQUAL, 0},
		{"2a", mine, pb.Compare_EQUAL, mine},
		{"2a", 0, pb.Compare_EQUAL, 42},
	} {
		e := line.Entry{Key: name + "/" + row.tail, Rev: 7, Lease: row.lease}
		ifs := ticket.Compare(ticket.Contend(e)...)
		require.Len(t, ifs, 2)
		require.Equal(t, int64(7), ifs[0].GetCreateRevision())
		lease := ifs[1]
		require.Equal(t, row.result, lease.Result, row.tail)
		require.Equal(t, row.with, lease.GetLease(), row.tail)
	}
}

// A ticket does not take a leftover of an earlier use of its name for its key: the
// leftover's revision is no newer than the one at which the name was last known to be free.
func TestALeftoverIsNotClaimed(t *testing.T) {
	var slot ticket.Slot
	for _, row := range []struct {
		rev  int64
		says ticket.Entrance
	}{{20, ticket.Useless}, {21, ticket.Queued}} {
		slot = ticket.Slot{}
		k := unsent(ownID, &slot)
		e := k.Enter(false, false)
		e.Judged(ticket.Answer{Succeeded: true, Revision: rev})
		k.Hold()
		r := k.Release(nil)
		a, now := answered(t, "deleted") // at revision 20
		require.Equal(t, ticket.Done, r.Says(a, now).Verdict)

		again := unsent(nextID, &slot)
		require.Equal(t, k.Key, again.Key, "the name is used again")
		e = again.Enter(false, false)
		is, _ := e.Judged(ticket.Answer{
			Read: []*pb.RangeResponse{read(kv(ownID, row.rev, mine))},
		})
		require.Equal(t, row.says, is, "revision %d", row.rev)
	}
}

// A ticket whose put may come late leaves its name to no other ticket.
func TestANameInDoubtIsNotUsedAgain(t *testing.T) {
	var slot ticket.Slot
	k := unsent(ownID, &slot)
	e := k.Enter(false, false)
	e.Judged(ticket.Answer{Outcome: ticket.Unknown})
	k.Leave()
	require.Equal(t, ticket.Leaving, k.State())
	k.RemovedBy(ticket.Answer{Revision: 20}, line.None)
	require.NotEqual(t, k.Key, unsentKey(nextID, &slot))
}

func unsentKey(id string, slot *ticket.Slot) string {
	k := unsent(id, slot)
	return k.Key
}

// Each transition begins in the states that the package comment names, and panics in any
// other.
func TestAnIllegalTransitionPanics(t *testing.T) {
	k := unsent(ownID, &ticket.Slot{})
	require.PanicsWithValue(t, "ticket: Hold: the ticket is unsent", k.Hold)
	require.PanicsWithValue(t, "ticket: Release: the ticket is unsent", func() { k.Release(nil) })
	require.PanicsWithValue(t, "ticket: Remove: the ticket is unsent", func() { k.Remove(0) })
	k.Leave()
	require.Equal(t, ticket.Removed, k.State(), "nothing was sent")
	require.PanicsWithValue(t, "ticket: Leave: the ticket is removed", k.Leave)

	k = *held(t)
	k.Observe(ticket.Observation{Entry: line.Entry{Key: k.Key}})
	require.Equal(t, ticket.Gone, k.State())
	require.PanicsWithValue(t, "ticket: Hold: the ticket is gone", k.Hold)
	k.Leave()
	require.True(t, k.Lost(), "still")
}
