package ticket_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	readID   = "ffffffff-0000-8000-8000-000000000001"
	byChance = "ffffffff-0000-4000-8000-000000000004" // exclusive, in the readers' block
)

// several is what a reader's ranges have read: below the block, in it, and beyond it.
func several(below, block, beyond []*mvccpb.KeyValue) []*pb.RangeResponse {
	return []*pb.RangeResponse{read(below...), read(block...), read(beyond...)}
}

func kvs(of ...*mvccpb.KeyValue) []*mvccpb.KeyValue { return of }

// What the put of a reader's key sends: RLock reads the exclusive contenders. TryRLock compares
// that there are none, and compares nothing else.
func TestWhatAPutOfOneThatReadsSends(t *testing.T) {
	ranges := line.Ranges(name)
	k := unsent(readID, &ticket.Slot{})
	require.Equal(t, line.Read, k.Kind)

	e := k.Enter(false, false)
	txn := e.Txn("")
	require.Len(t, txn.If, 1, "that it is not there")
	require.Len(t, txn.Then, 4, "three ranges, and then it is put")
	for i, r := range ranges {
		require.Equal(t, r.From, string(txn.Then[i].GetRequestRange().Key))
		require.Equal(t, r.To, string(txn.Then[i].GetRequestRange().RangeEnd))
	}
	require.NotNil(t, txn.Then[3].GetRequestPut())

	e = k.Enter(true, false)
	txn = e.Txn("")
	require.Len(t, txn.If, 3)
	for i, r := range []line.Range{ranges[0], ranges[2]} {
		c := wireOf(txn, false).in.Compare[1+i]
		require.Equal(t, []string{r.From, r.To}, []string{string(c.Key), string(c.RangeEnd)})
		require.Equal(t, pb.Compare_CREATE, c.Target)
	}
	require.Len(t, txn.Then, 2)
	require.Equal(t, ranges[1].From, string(txn.Then[0].GetRequestRange().Key))
	require.NotNil(t, txn.Then[1].GetRequestPut())
	require.Len(t, txn.Else, 5, "itself, both ranges, who holds, and who is there by chance")

	stray := ticket.Answer{Revision: 20, Read: []*pb.RangeResponse{
		read(), read(kv("config", 2, 1)), read(), read(kv("config", 2, 1)), read(),
	}}
	is, _ := e.Judged(stray)
	require.Equal(t, ticket.Unsure, is)
	txn = e.Txn("")
	for i := range 2 {
		c := wireOf(txn, false).in.Compare[1+i]
		require.Equal(t, pb.Compare_MOD, c.Target)
		require.Equal(t, pb.Compare_LESS, c.Result)
		require.EqualValues(t, 21, c.GetModRevision())
		require.NotEmpty(t, c.RangeEnd)
	}
}

// The answers to the put of a reader.
func TestWhatAPutOfOneThatReadsSays(t *testing.T) {
	own, other, chance := kv(readID, rev, mine), kv(oldID, 3, mine+1), kv(byChance, 4, mine+1)
	reader := kv(readID[:35]+"2", 2, mine+1)
	later := kv(oldID, rev+1, mine+1)
	put := func(below, block, beyond []*mvccpb.KeyValue) ticket.Answer {
		return ticket.Answer{Succeeded: true, Revision: 20, Read: several(below, block, beyond)}
	}
	fails := func(own []*mvccpb.KeyValue,
		below, beyond, oldest, block []*mvccpb.KeyValue) ticket.Answer {
		return ticket.Answer{Revision: 20, Read: []*pb.RangeResponse{
			read(own...), read(below...), read(beyond...), read(oldest...), read(block...),
		}}
	}
	crowded := func(a ticket.Answer, i int) ticket.Answer {
		a.Read[i].More, a.Read[i].Count = true, 300
		return a
	}
	rows := []judgedPut{
		{"alone", false, put(nil, nil, nil), "queued", ticket.InLine, false},
		{"beside one that reads", false, put(nil, kvs(reader), nil), "queued", ticket.InLine, false},
		{"beside very many", false, crowded(put(nil, kvs(reader), nil), 1),
			"queued", ticket.InLine, false},
		{"behind a writer", false, put(kvs(other), nil, nil), "queued behind 1", ticket.InLine, false},
		{"behind a writer and one that reads", false, put(kvs(other), kvs(reader), nil),
			"queued behind 1", ticket.InLine, false},
		{"behind one by chance", false, put(nil, kvs(reader, chance), nil),
			"queued behind 1", ticket.InLine, false},
		{"behind strays, and more", false, crowded(put(kvs(kv("config", 2, 1)), nil, nil), 0),
			"queued behind some", ticket.InLine, false},
		{"nothing was read", false, ticket.Answer{Succeeded: true, Revision: 20},
			"queued behind some", ticket.InLine, false},
		{"TryRLock is alone", true,
			ticket.Answer{Succeeded: true, Revision: 20, Read: []*pb.RangeResponse{read()}},
			"queued", ticket.InLine, false},
		{"TryRLock is beside others", true,
			ticket.Answer{Succeeded: true, Revision: 20, Read: []*pb.RangeResponse{read(reader)}},
			"queued", ticket.InLine, false},
		{"TryRLock is behind one by chance", true,
			ticket.Answer{Succeeded: true, Revision: 20, Read: []*pb.RangeResponse{read(chance)}},
			"taken behind 1", ticket.InLine, false},
		{"TryRLock finds a writer", true, fails(nil, kvs(other), nil, kvs(other), nil),
			"taken behind 1", ticket.Unsent, false},
		{"TryRLock finds one that waits", true, fails(nil, kvs(later), nil, kvs(reader), kvs(reader)),
			"taken behind 1", ticket.Unsent, false},
		{"TryRLock finds strays", true,
			fails(nil, kvs(kv("config", 2, 1)), nil, kvs(kv("config", 2, 1)), nil),
			"unsure", ticket.Unsent, false},
		{"TryRLock was put by a copy, before a writer", true,
			fails(kvs(own), kvs(later), nil, kvs(own), kvs(own)), "queued", ticket.InLine, false},
		{"TryRLock was put by a copy, behind a writer", true,
			fails(kvs(own), kvs(other), nil, kvs(other), kvs(own)), "taken behind 1", ticket.InLine, false},
		{"TryRLock was put by a copy, behind one by chance", true,
			fails(kvs(own), nil, nil, kvs(chance), kvs(own, chance)), "taken behind 1",
			ticket.InLine, false},
	}
	requireJudged(t, readID, rows)
}

// A put reads the holder only for a caller that asks for it. A check asks for it later, if it is
// unknown, and reads further once the oldest key is no contender's.
func TestWhoHoldsIsReadWhenItIsAskedFor(t *testing.T) {
	nearest := read()
	for i := range ticket.Few + 1 {
		id := fmt.Sprintf("%sa%d", oldID[:34], i)
		nearest.Kvs = append(nearest.Kvs, kv(id, int64(12-i), mine+1))
	}
	nearest.More, nearest.Count = true, 30
	holder, stray := kv(byChance, 2, mine+1), kv("config", 1, 0)
	for _, owner := range []bool{false, true} {
		k := unsent(ownID, &ticket.Slot{})
		e := k.Enter(false, owner)
		reads, answer := 1, []*pb.RangeResponse{nearest}
		if owner {
			reads, answer = 2, append(answer, read(holder))
		}
		require.Len(t, e.Txn("").Then, reads+1)
		is, ahead := e.Judged(ticket.Answer{Succeeded: true, Revision: 20, Read: answer})
		require.Equal(t, ticket.Queued, is)
		require.Equal(t, owner, ahead.Holder().Rev == holder.CreateRevision)
		if owner {
			continue
		}
		require.Zero(t, ahead.Holder().Rev)
		asks := func(ahead line.Ahead) int64 {
			op, asks := k.AskWhoHolds(ahead)
			require.True(t, asks)
			return op.GetRequestRange().GetLimit()
		}
		require.EqualValues(t, 1, asks(ahead))
		told := k.WhoHolds(ahead, read(holder))
		require.Equal(t, holder.CreateRevision, told.Holder().Rev)

		beside := k.WhoHolds(ahead, read(stray))
		require.Zero(t, beside.Holder().Rev)
		require.Greater(t, asks(beside), int64(100))
		told = k.WhoHolds(beside, read(stray, holder))
		require.Equal(t, holder.CreateRevision, told.Holder().Rev)

		nearest.Kvs = append(nearest.Kvs, kv(ownID, 20, 0))
		nearest.Kvs[ticket.Few+1].ModRevision = 20
		crowd := line.ByKeys(name, k.Entry(), ticket.Few, nearest)
		require.Equal(t, line.Brief, crowd.Reading)
		require.EqualValues(t, ticket.Few+1, asks(crowd))
		require.Equal(t, holder.CreateRevision, k.WhoHolds(crowd, read(stray, holder)).Holder().Rev)
		require.False(t, k.WhoHolds(crowd, read(stray)).Strays, "it asks once")
	}
}

// A reader's look reads its own key and the exclusive contenders before it. It reads no
// more keys than there are ranges, however many readers there are.
func TestALookOfOneThatReads(t *testing.T) {
	k := unsent(readID, &ticket.Slot{})
	e := k.Enter(false, false)
	_, ahead := e.Judged(ticket.Answer{
		Succeeded: true, Revision: 20,
		Read: several(kvs(kv(oldID, 3, mine+1)), nil, nil),
	})
	require.False(t, ahead.Clear())
	look := k.Look(true)
	ops := look.Ranges(0)
	require.Len(t, ops, 4)
	require.Equal(t, k.Key, string(ops[0].GetRequestRange().Key))
	require.Empty(t, ops[0].GetRequestRange().RangeEnd)
	for i, r := range line.Ranges(name) {
		require.Equal(t, r.From, string(ops[1+i].GetRequestRange().Key))
		require.EqualValues(t, 20, ops[1+i].GetRequestRange().MaxCreateRevision)
	}
	var many []*mvccpb.KeyValue
	for i := range ticket.Few + 1 {
		many = append(many, kv(fmt.Sprintf("%s%x", readID[:35], 15-i), int64(19-i), mine+1))
	}
	judge := func(own, below []*mvccpb.KeyValue) (line.Ahead, ticket.Seen) {
		look := k.Look(true)
		block := read(many...)
		block.More, block.Count = true, 500
		ahead, seen := look.Judge(read(own...), read(below...), block, read())
		return ahead, k.Observe(seen)
	}
	ahead, own := judge(kvs(kv(readID, 20, mine)), nil)
	require.Equal(t, ticket.Same, own)
	require.True(t, ahead.Clear() && ahead.Reading != line.Unread)
	ahead, own = judge(kvs(kv(readID, 20, mine)), kvs(kv(oldID, 3, mine+1)))
	require.Equal(t, ticket.Same, own)
	require.Equal(t, 1, ahead.Count())
	ahead, own = judge(nil, nil)
	require.Equal(t, ticket.Missing, own)
	require.False(t, ahead.Clear(), "one that has no key is not first")
	_, own = judge(kvs(kv(readID, 20, mine+1)), nil)
	require.Equal(t, ticket.PutOver, own)
	_, own = judge(kvs(kv(readID, 21, mine)), nil)
	require.Equal(t, ticket.Replaced, own, "it is another use of the name")
}
