package board

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// rowOf is the row of a lock of which so many hold.
func rowOf(leases map[int64]Lease, holding int, places ...*Place) Row {
	for i, p := range places {
		p.Holds = i < holding
	}
	p := Picture{Now: at(100), Leases: leases,
		Locks: []*Lock{{Name: "job", Places: places, Holding: holding}}}
	return p.Rows(nil)[0]
}

// A row has the longest wait of all that wait, and the state of its first holder: the others have
// only what needs attention.
func TestARowIsAboutItsHoldersAndWaiters(t *testing.T) {
	row := rowOf(nil, 2, &Place{Owner: "a", Held: at(60)}, &Place{Owner: "b", Held: at(10), Until: at(200)},
		&Place{Queued: at(40)}, &Place{Queued: at(30)}, &Place{Queued: at(50)})
	require.Equal(t, "a", row.Holder.Owner)
	require.Equal(t, 40*time.Second, row.Held)
	require.Zero(t, row.Kept)
	require.Equal(t, 70*time.Second, row.Longest)
	require.Equal(t, 3, row.Waiting)

	// Clocks differ: what lies ahead has been for no time, and what is over is not kept.
	row = rowOf(nil, 1, &Place{Held: at(101), Until: at(99)}, &Place{Queued: at(101)})
	require.Equal(t, []time.Duration{0, 0, 0}, []time.Duration{row.Held, row.Kept, row.Longest})
	require.False(t, row.Matches("kept"))
	row = rowOf(nil, 1, &Place{Until: at(101)})
	require.True(t, row.Matches("kept"))
}

// Of several leases that are late the one shows of which the least is left.
func TestARowShowsTheWorstLease(t *testing.T) {
	leases := map[int64]Lease{1: {Left: 14, Granted: 15}, 2: {Left: 3, Granted: 15},
		3: {Left: 5, Granted: 15}, 4: {Left: 2, Granted: 15}}
	on := func(ids ...int64) Row {
		var places []*Place
		for _, id := range ids {
			places = append(places, &Place{Lease: id})
		}
		return rowOf(leases, len(places), places...)
	}
	for _, c := range []struct {
		leases []int64
		left   int64
		late   bool
	}{
		{[]int64{1}, 14, false}, {[]int64{1, 2}, 3, true}, {[]int64{2, 1}, 3, true},
		{[]int64{2, 3}, 3, true}, {[]int64{3, 2}, 3, true}, {[]int64{3, 2, 4}, 2, true},
	} {
		row := on(c.leases...)
		require.Equal(t, c.late, row.Late, c.leases)
		require.Equal(t, c.left, row.Lease.Left, c.leases)
	}
}

// A recall of any holder shows, and one of a waiter does not.
func TestARowShowsARecallOfAnyHolder(t *testing.T) {
	asked := &Recall{By: "ops"}
	require.Same(t, asked, rowOf(nil, 2, &Place{Recall: asked}, &Place{}).Asked)
	require.Same(t, asked, rowOf(nil, 2, &Place{}, &Place{Recall: asked}).Asked)
	require.Nil(t, rowOf(nil, 1, &Place{}, &Place{Recall: asked}).Asked)
}

// A lock that is in a deadlock and in a possible one shows the deadlock.
func TestARowShowsTheDeadlockBeforeAPossibleOne(t *testing.T) {
	p := Picture{Now: at(0), Locks: []*Lock{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	rows := p.Rows([]Cycle{
		{Deadlock: true, Waits: []Wait{{Lock: "a"}}}, {Waits: []Wait{{Lock: "a"}, {Lock: "b"}}},
	})
	require.True(t, rows[0].Cycle.Deadlock)
	require.False(t, rows[1].Cycle.Deadlock)
	require.Nil(t, rows[2].Cycle)
}

// Trouble has an order: a cycle, a late lease, a recall, the longest wait, the name.
func TestTroubleComesFirst(t *testing.T) {
	rows := []Row{
		{Lock: &Lock{Name: "b"}}, {Lock: &Lock{Name: "a"}},
		{Lock: &Lock{Name: "waits"}, Longest: 9}, {Lock: &Lock{Name: "waits less"}, Longest: 8},
		{Lock: &Lock{Name: "recalled"}, Asked: &Recall{}},
		{Lock: &Lock{Name: "late"}, Late: true, Asked: &Recall{}},
		{Lock: &Lock{Name: "cycle"}, Cycle: &Cycle{}},
	}
	Sort(rows, ByTrouble)
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	require.Equal(t, []string{"cycle", "late", "recalled", "waits", "waits less", "a", "b"}, names)
}

// A filter is a text, or one of the words for what needs attention. One of spaces finds all.
func TestFiltersFindTextsAndWords(t *testing.T) {
	rows := []Row{
		{Lock: &Lock{Name: "asked"}, Asked: &Recall{}}, {Lock: &Lock{Name: "stays"}, Kept: 1},
		{Lock: &Lock{Name: "told", Places: []*Place{{}, {Info: "invoices of november"}}}},
	}
	for filter, want := range map[string]string{"recalled": "asked", "kept": "stays",
		"november": "told", "": "asked stays told", "   ": "asked stays told"} {
		var found []string
		for _, r := range rows {
			if r.Matches(filter) {
				found = append(found, r.Name)
			}
		}
		require.Equal(t, want, strings.Join(found, " "), "filter %q", filter)
	}
}

// The curve of a lock moves on with the time, though nothing changes. Until then, and where it is
// empty, a lock is not made anew for its readers.
func TestTheCurveOfALockMovesOn(t *testing.T) {
	b := New()
	b.Read(at(0), 1, []*mvccpb.KeyValue{kv(key("idle", "", 1), 1, 1, "")})
	b.Apply(at(1), 2, []*clientv3.Event{put(kv(key("turns", "", 2), 2, 1, ""))})
	locks := func(second int) (idle, turns *Lock) {
		p := b.Picture(at(second), 0)
		return p.Locks[0], p.Locks[1]
	}
	idle, turns := locks(2)
	require.Equal(t, 1, turns.Turns[Spans-1])
	sameIdle, same := locks(4)
	require.Same(t, turns, same)
	require.Same(t, idle, sameIdle)
	sameIdle, moved := locks(6)
	require.Equal(t, 1, moved.Turns[Spans-2])
	require.Same(t, idle, sameIdle)
	_, over := locks(62)
	require.Zero(t, PerMinute(over.Turns))
	_, over = locks(122)
	require.Nil(t, over.Turns)
}
