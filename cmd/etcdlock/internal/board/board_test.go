package board

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var start = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// key is the key of the n-th contender for a lock, of a kind: "", or how a reader's or a permit's
// key begins.
func key(lock, kind string, n int) string {
	if kind != "" {
		return fmt.Sprintf("%s/%s-8000-%012x", lock, kind, n)
	}
	return fmt.Sprintf("%s/%08x-0000-4000-8000-%012x", lock, n, n)
}

const (
	reader = "ffffffff-0000-8000"
	permit = "fffffffe-0001-8000" // of weight 1; the limit is in what follows
)

func kv(key string, rev, lease int64, value string) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(key), CreateRevision: rev, ModRevision: rev, Version: 1, Lease: lease,
		Value: []byte(value),
	}
}

func put(kv *mvccpb.KeyValue) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv}
}

func deleted(key string) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key)}}
}

func owned(owner string, since int) string {
	return fmt.Sprintf(`{"owner":%q,"host":"vm","pid":7,"recallable":true,"since":%q}`, owner,
		at(since).Format(time.RFC3339))
}

// A holder that the board finds at first has held for no longer than it is in line. One whose turn
// the board sees come has held since then.
func TestTheBoardSeesATurnCome(t *testing.T) {
	b := New()
	a, c := key("job", "", 1), key("job", "", 2)
	b.Read(at(10), 5, []*mvccpb.KeyValue{
		kv(a, 4, 1, owned("a", 0)), kv(c, 5, 2, owned("c", 5)),
		kv("job/config", 3, 0, "no contender"),
	})
	row := b.Picture(at(12), 0).Rows(nil)[0]
	require.Equal(t, "a", row.Holder.Owner)
	require.Equal(t, 12*time.Second, row.Held)
	require.Zero(t, row.Holder.Held)
	require.False(t, row.Holder.Waited, "nobody has asked etcd yet")
	require.Equal(t, 1, row.Waiting)
	require.Equal(t, 7*time.Second, row.Longest)
	require.Equal(t, "exclusive", row.Kind)
	b.Began("job", a, 4, false) // the line at revision 4 was compacted
	require.True(t, b.Picture(at(12), 0).Rows(nil)[0].Holder.Waited)
	for _, of := range []struct {
		key   string
		token int64
	}{{a, 3}, {c, 5}, {"job/config", 3}} { // another hold of that key, one that waits, none
		b.Began("job", of.key, of.token, true)
	}
	for _, p := range b.Picture(at(12), 0).Locks[0].Places {
		require.Zero(t, p.Held)
	}
	b.Began("job", a, 4, true) // the line at revision 4 shows it
	require.Equal(t, at(0), b.Picture(at(12), 0).Rows(nil)[0].Holder.Held)

	b.Apply(at(20), 6, []*clientv3.Event{deleted(a)})
	row = b.Picture(at(23), 0).Rows(nil)[0]
	require.Equal(t, "c", row.Holder.Owner)
	require.Equal(t, 3*time.Second, row.Held)
	require.False(t, row.Holder.Held.IsZero())
	require.Zero(t, row.Waiting)
	require.Equal(t, 1, row.Turns)
	keys, _ := b.counted()
	require.Equal(t, int64(2), keys)

	// A second reading, after a lost watch, forgets nothing of c, and has seen a come.
	b.Read(at(30), 9, []*mvccpb.KeyValue{kv(c, 5, 2, owned("c", 5)), kv(a, 8, 1, owned("a", 28))})
	row = b.Picture(at(30), 0).Rows(nil)[0]
	require.Equal(t, 10*time.Second, row.Held)
	require.False(t, row.Holder.Held.IsZero())
	require.Equal(t, 2*time.Second, row.Longest)
}

// Readers hold together, and permits up to the least limit of their line.
func TestReadersAndPermitsHoldTogether(t *testing.T) {
	b := New()
	var kvs []*mvccpb.KeyValue
	for n := range 3 {
		kvs = append(kvs, kv(key("r", reader, n+1), int64(n+1), int64(n+1), owned("r", 0)))
	}
	kvs = append(kvs, kv(key("r", "", 9), 9, 9, owned("w", 0)))
	for n := range 3 { // of at most two
		kvs = append(kvs, kv(fmt.Sprintf("p/%s-8000-0002%08x", permit, n), int64(n+10), int64(n+1),
			owned("p", 0)))
	}
	b.Read(at(0), 20, kvs)
	rows := b.Picture(at(1), 0).Rows(nil)
	require.Len(t, rows, 2)
	require.Equal(t, []any{"permit", 2, 2, 1},
		[]any{rows[0].Kind, rows[0].Limit, rows[0].Holding, rows[0].Waiting})
	require.Equal(t, []any{"mixed", 3, 1}, []any{rows[1].Kind, rows[1].Holding, rows[1].Waiting})
	b.Apply(at(2), 21, []*clientv3.Event{deleted(key("r", "", 9))})
	require.Equal(t, "read", b.Picture(at(1), 0).Rows(nil)[1].Kind)
	more := kv(fmt.Sprintf("p/%s-8000-0003%08x", permit, 9), 22, 9, owned("p", 0))
	b.Apply(at(3), 22, []*clientv3.Event{put(more)})
	require.Equal(t, 2, b.Picture(at(3), 0).Rows(nil)[0].Limit, "the least of the line")
}

// A recall shows with the time at which the board saw it, and a kept place with the time left.
func TestRecallsAndKeptPlacesShow(t *testing.T) {
	b := New()
	k := key("job", "", 1)
	b.Read(at(0), 1, nil)
	b.Apply(at(1), 2, []*clientv3.Event{put(kv(k, 2, 1, owned("a", 1)))})
	require.Nil(t, b.Picture(at(2), 0).Rows(nil)[0].Asked)
	asked := kv(k, 2, 1, `{"owner":"a","host":"vm","pid":7,"recallable":true,`+
		`"since":"2026-11-27T12:00:01Z","recall":{"id":"1","by":"ops","reason":"update","grace_ms":30000}}`)
	asked.ModRevision, asked.Version = 3, 2
	b.Apply(at(5), 3, []*clientv3.Event{put(asked)})
	row := b.Picture(at(6), 0).Rows(nil)[0]
	require.Equal(t, &Recall{"ops", "update", 30 * time.Second, at(5)}, row.Asked)
	require.Equal(t, 5*time.Second, row.Held, "it has held as before")
	require.Equal(t, 1, row.Turns)

	again := kv(k, 2, 1, string(asked.Value))
	again.ModRevision, again.Version = 4, 3
	b.Apply(at(7), 4, []*clientv3.Event{put(again)})
	require.Equal(t, at(5), b.Picture(at(7), 0).Rows(nil)[0].Asked.Asked, "it was asked before")
	late := New()
	late.Read(at(8), 4, []*mvccpb.KeyValue{again})
	require.Zero(t, late.Picture(at(8), 0).Rows(nil)[0].Asked.Asked, "before the board looked")

	kept := kv(k, 2, 1, `{"owner":"a","until":"2026-11-27T12:01:00Z","since":"2026-11-27T12:00:01Z"}`)
	kept.ModRevision, kept.Version = 5, 4
	b.Apply(at(10), 5, []*clientv3.Event{put(kept)})
	require.Equal(t, 40*time.Second, b.Picture(at(20), 0).Rows(nil)[0].Kept)
}

// A lock that is free goes after some time, and readers of pictures hear of it.
func TestAFreeLockGoes(t *testing.T) {
	b := New()
	k := key("job", "", 1)
	b.Read(at(0), 1, nil)
	b.Apply(at(0), 2, []*clientv3.Event{put(kv(k, 2, 1, ""))})
	seen := b.Picture(at(1), 0)
	require.Equal(t, "", seen.Locks[0].Places[0].Owner)
	b.Apply(at(1), 3, []*clientv3.Event{deleted(k)})
	b.Tick(at(2))
	free := b.Picture(at(2), seen.Version)
	require.Equal(t, at(1), free.Locks[0].Freed)
	require.Empty(t, free.Leases)
	b.Apply(at(3), 4, []*clientv3.Event{put(kv(k, 4, 1, "")), deleted(k)})
	b.Tick(at(10))
	require.Len(t, b.Picture(at(10), 0).Locks, 1)
	b.Tick(at(14))
	gone := b.Picture(at(14), seen.Version)
	require.Empty(t, gone.Locks)
	require.Equal(t, []string{"job"}, gone.Gone)
	require.Empty(t, b.Picture(at(14), gone.Version).Gone)
}

// What has come back is not told as gone. Where names that went were forgotten a picture is whole.
func TestReadersOfOldPicturesMissNothing(t *testing.T) {
	b := New()
	b.Read(at(0), 1, nil)
	comes := func(second int, name string) {
		k := kv(key(name, "", 1), int64(second)+2, 1, "")
		b.Apply(at(second), k.CreateRevision, []*clientv3.Event{put(k)})
	}
	goes := func(second int, name string) {
		b.Apply(at(second), 0, []*clientv3.Event{deleted(key(name, "", 1))})
	}
	comes(1, "job")
	seen := b.Picture(at(1), 0)
	goes(2, "job")
	b.Tick(at(20))
	require.Equal(t, []string{"job"}, b.Picture(at(20), seen.Version).Gone)
	comes(21, "job")
	back := b.Picture(at(21), seen.Version)
	require.Empty(t, back.Gone)
	require.Len(t, back.Locks, 1)
	require.False(t, back.Whole)
	for i := range mostGone + mostFree {
		comes(22, fmt.Sprint("short/", i))
		goes(22, fmt.Sprint("short/", i))
	}
	b.Tick(at(23))
	require.Equal(t, 1+mostFree, len(b.Picture(at(23), 0).Locks), "no more free ones are kept")
	require.True(t, b.Picture(at(23), seen.Version).Whole)
}

// A key that is put anew under its name is another place, and the one before has gone.
func TestAKeyThatIsPutAnewIsAnotherPlace(t *testing.T) {
	b, k := New(), key("job", "", 1)
	b.Read(at(0), 1, nil)
	b.Apply(at(1), 2, []*clientv3.Event{put(kv(k, 2, 1, owned("a", 1)))})
	b.Apply(at(5), 3, []*clientv3.Event{put(kv(k, 3, 1, owned("a", 5)))})
	row := b.Picture(at(6), 0).Rows(nil)[0]
	require.Equal(t, time.Second, row.Held)
	require.Equal(t, 2, row.Turns)
	require.Len(t, b.History(at(6), 0).Past, 1)
}

// Only what has changed is in a later picture.
func TestAPictureSinceAnotherHasWhatChanged(t *testing.T) {
	b := New()
	b.Read(at(0), 1, []*mvccpb.KeyValue{kv(key("a", "", 1), 1, 1, ""), kv(key("b", "", 2), 2, 2, "")})
	first := b.Picture(at(0), 0)
	require.True(t, first.Whole)
	require.Len(t, first.Locks, 2)
	require.Empty(t, b.Picture(at(1), first.Version).Locks)
	b.Apply(at(1), 3, []*clientv3.Event{put(kv(key("b", "", 3), 3, 3, ""))})
	second := b.Picture(at(1), first.Version)
	require.False(t, second.Whole)
	require.Len(t, second.Locks, 1)
	require.Equal(t, "b", second.Locks[0].Name)
	require.Same(t, first.Locks[0], b.Picture(at(1), 0).Locks[0], "it is not made anew")
}

func TestALateLease(t *testing.T) {
	b := New()
	b.Read(at(0), 1, []*mvccpb.KeyValue{kv(key("a", "", 1), 1, 7, "")})
	b.Heard(at(1), 7, 11, 15)
	require.False(t, b.Picture(at(1), 0).Rows(nil)[0].Late)
	b.Heard(at(6), 7, 6, 15)
	row := b.Picture(at(6), 0).Rows(nil)[0]
	require.True(t, row.Late)
	require.Equal(t, int64(6), row.Lease.Left)
	for left, late := range map[int64]bool{-1: false, 0: true, 6: true, 7: false} {
		require.Equal(t, late, Lease{Left: left, Granted: 15}.Late(), left)
		require.Equal(t, late && left != 6, Lease{Left: left, Granted: 13}.Late(), left)
	}
	b.Heard(at(6), 8, 6, 15) // of nobody
	require.Len(t, b.Picture(at(6), 0).Leases, 1)
}

// Sessions that wait for each other are a cycle. A line, readers that share, and a Session that
// waits behind itself are none.
func TestACycleOfSessionsIsAPossibleDeadlock(t *testing.T) {
	cycles := func(kvs ...*mvccpb.KeyValue) (all [][]Wait) {
		b := New()
		b.Read(at(0), 100, kvs)
		locks := b.Picture(at(0), 0).Locks
		for _, c := range Cycles(locks, Waits(locks)) {
			require.False(t, c.Deadlock)
			all = append(all, c.Waits)
		}
		return all
	}
	x := func(lock string, rev, session int64) *mvccpb.KeyValue {
		return kv(key(lock, "", int(rev)), rev, session, owned(fmt.Sprint("s", session), 0))
	}
	r := func(lock string, rev, session int64) *mvccpb.KeyValue {
		return kv(key(lock, reader, int(rev)), rev, session, "")
	}
	require.Empty(t, cycles(x("a", 1, 1), x("a", 2, 2), x("b", 3, 2), x("b", 4, 3)))
	require.Empty(t, cycles(x("a", 1, 1), x("a", 2, 1)))
	require.Empty(t, cycles(x("a", 1, 9), r("a", 2, 1), r("a", 3, 2), x("b", 4, 2), x("b", 5, 1)))

	two := cycles(x("a", 1, 1), x("b", 2, 2), x("a", 3, 2), x("b", 4, 1))
	require.Len(t, two, 1)
	require.ElementsMatch(t, []Wait{{"a", "2", "s2", "1", "s1"}, {"b", "1", "s1", "2", "s2"}}, two[0])

	// Through waiters, and readers before a writer.
	require.Len(t, cycles(x("a", 1, 1), x("a", 2, 2), x("a", 3, 3), x("b", 4, 3), x("b", 5, 1)), 1)
	require.Len(t, cycles(r("a", 1, 1), r("a", 2, 2), x("a", 3, 3), x("b", 4, 3), x("b", 5, 1)), 1)
	// Of two that have a Session in common one is told.
	require.Len(t, cycles(x("a", 1, 1), x("b", 2, 2), x("c", 3, 3), x("a", 4, 2), x("b", 5, 1),
		x("a", 6, 3), x("c", 7, 1)), 1)
	// Two that have nothing in common are two.
	require.Len(t, cycles(x("a", 1, 1), x("b", 2, 2), x("a", 3, 2), x("b", 4, 1),
		x("c", 11, 5), x("d", 12, 6), x("c", 13, 6), x("d", 14, 5)), 2)
}

// Calls that wait within holds for each other are a deadlock, whatever else their Sessions do. It
// is none if another hold has the key that is told, or may have: then it is possible at most.
func TestACycleOfCallsWithinHoldsIsADeadlock(t *testing.T) {
	const permit, single = "fffffffe-0001-8000-8000-0002", "fffffffe-0001-8000-8000-0001"
	x := func(lock string, rev, session, after int64, more string) *mvccpb.KeyValue {
		value := fmt.Sprintf(`{"owner":"s%d","host":"vm","pid":%d,"after":%d,"since":%q%s}`,
			session, session, after, at(0).Format(time.RFC3339), more)
		return kv(key(lock, "", int(rev)), rev, session, value)
	}
	as := func(kv *mvccpb.KeyValue, kind string) *mvccpb.KeyValue {
		lock, _, _ := strings.Cut(string(kv.Key), "/")
		kv.Key = fmt.Appendf(nil, "%s/%s%0*d", lock, kind, 36-len(kind), kv.CreateRevision)
		return kv
	}
	a, b := x("a", 1, 1, 0, ""), x("b", 2, 2, 0, "")
	for name, row := range map[string]struct {
		keys               []*mvccpb.KeyValue
		deadlocks, perhaps int
	}{
		"of two":      {[]*mvccpb.KeyValue{a, b, x("a", 3, 2, 2, ""), x("b", 4, 1, 1, "")}, 1, 0},
		"untold":      {[]*mvccpb.KeyValue{a, b, x("a", 3, 2, 0, ""), x("b", 4, 1, 0, "")}, 0, 1},
		"told by one": {[]*mvccpb.KeyValue{a, b, x("a", 3, 2, 2, ""), x("b", 4, 1, 0, "")}, 0, 1},
		"of other calls": {[]*mvccpb.KeyValue{a, b, x("c", 3, 1, 0, ""), x("d", 4, 2, 0, ""),
			x("a", 5, 2, 4, ""), x("b", 6, 1, 3, "")}, 0, 1},
		"and of the same Sessions another": {[]*mvccpb.KeyValue{a, b, x("a", 3, 2, 2, ""),
			x("b", 4, 1, 1, ""), x("c", 5, 1, 0, ""), x("d", 6, 2, 0, ""), x("c", 7, 2, 6, ""),
			x("d", 8, 1, 5, "")}, 2, 0},
		"beside a possible one": {[]*mvccpb.KeyValue{a, b, x("a", 3, 2, 2, ""), x("b", 4, 1, 1, ""),
			x("c", 5, 5, 0, ""), x("d", 6, 6, 0, ""), x("c", 7, 6, 0, ""), x("d", 8, 5, 0, "")}, 1, 1},
		// The Sessions of the holds are in it, too, and not only those that wait.
		"of calls of other Sessions of the processes": {[]*mvccpb.KeyValue{a, b,
			x("a", 3, 12, 2, `,"pid":2`), x("b", 4, 11, 1, `,"pid":1`), x("c", 5, 1, 0, ""),
			x("d", 6, 2, 0, ""), x("c", 7, 2, 0, ""), x("d", 8, 1, 0, "")}, 1, 0},
		"and of these another": {[]*mvccpb.KeyValue{a, b, x("a", 3, 12, 2, `,"pid":2`),
			x("b", 4, 11, 1, `,"pid":1`), x("c", 5, 11, 0, ""), x("d", 6, 12, 0, ""),
			x("c", 7, 12, 0, ""), x("d", 8, 11, 0, "")}, 1, 0},
		"a hold within another": {[]*mvccpb.KeyValue{a, b, x("c", 3, 1, 1, ""), x("a", 4, 2, 2, ""),
			x("b", 5, 1, 3, "")}, 1, 0},
		"behind one that waits": {[]*mvccpb.KeyValue{a, b, x("a", 3, 3, 0, ""), x("a", 4, 2, 2, ""),
			x("b", 5, 1, 1, "")}, 1, 0},
		"of a LockAll": {[]*mvccpb.KeyValue{b, x("a", 3, 1, 0, ""), x("b", 3, 1, 0, ""),
			x("a", 4, 2, 2, "")}, 1, 0},
		"the hold is over": {[]*mvccpb.KeyValue{x("a", 1, 1, 0, `,"until":"2024-01-02T03:04:05Z"`), b,
			x("a", 3, 2, 2, ""), x("b", 4, 1, 1, "")}, 0, 1},
		"of another process": {[]*mvccpb.KeyValue{a, x("b", 2, 3, 0, ""), x("a", 3, 2, 2, ""),
			x("b", 4, 1, 1, "")}, 0, 0},
		"of a process of that number on another host": {[]*mvccpb.KeyValue{a, b,
			x("a", 3, 2, 2, `,"host":"other"`), x("b", 4, 1, 1, "")}, 0, 1},
		"of programs without a number": {[]*mvccpb.KeyValue{a, x("b", 2, 2, 0, `,"pid":0`),
			x("a", 3, 2, 2, `,"pid":0`), x("b", 4, 1, 1, "")}, 0, 1},
		"a permit whose own limit lets none in": {[]*mvccpb.KeyValue{as(x("a", 1, 1, 0, ""), permit),
			x("b", 4, 2, 0, ""), as(x("a", 5, 2, 4, ""), single), x("b", 6, 1, 1, "")}, 1, 0},
		"a permit behind one whose limit lets none in": {[]*mvccpb.KeyValue{
			as(x("a", 1, 1, 0, ""), single), x("b", 4, 2, 0, ""), as(x("a", 5, 2, 4, ""), permit),
			x("b", 6, 1, 1, "")}, 1, 0},
		"of a hold that came later": {[]*mvccpb.KeyValue{b, x("b", 4, 1, 7, ""), x("a", 7, 1, 0, ""),
			x("a", 8, 2, 2, "")}, 0, 1},
		"of itself": {[]*mvccpb.KeyValue{x("a", 3, 1, 3, ""), b, x("b", 3, 1, 3, "")}, 0, 0},
		"of what waits": {[]*mvccpb.KeyValue{x("a", 1, 9, 0, ""), x("a", 2, 1, 0, ""),
			x("b", 3, 2, 0, ""), x("a", 4, 2, 3, ""), x("b", 5, 1, 2, "")}, 0, 1},
		"a permit that another one lets in": {[]*mvccpb.KeyValue{as(x("a", 1, 1, 0, ""), permit),
			as(x("a", 2, 3, 0, ""), permit), x("b", 4, 2, 0, ""), as(x("a", 5, 2, 4, ""), permit),
			x("b", 6, 1, 1, "")}, 0, 1},
		"and a later one with a lower limit": {[]*mvccpb.KeyValue{as(x("a", 1, 1, 0, ""), permit),
			as(x("a", 2, 3, 0, ""), permit), x("b", 4, 2, 0, ""), as(x("a", 5, 2, 4, ""), permit),
			x("b", 6, 1, 1, ""), as(x("a", 7, 4, 0, ""), single)}, 0, 1},
		"a permit that no other one lets in": {[]*mvccpb.KeyValue{as(x("a", 1, 1, 0, ""), single),
			x("b", 4, 2, 0, ""), as(x("a", 5, 2, 4, ""), single), x("b", 6, 1, 1, "")}, 1, 0},
	} {
		board, deadlocks, perhaps := New(), 0, 0
		board.Read(at(0), 100, row.keys)
		locks := board.Picture(at(0), 0).Locks
		for _, c := range Cycles(locks, Waits(locks)) {
			if c.Deadlock {
				deadlocks++
			} else {
				perhaps++
			}
		}
		require.Equal(t, []int{row.deadlocks, row.perhaps}, []int{deadlocks, perhaps}, name)
	}
}

func TestTheCurve(t *testing.T) {
	var c curve
	require.Nil(t, c.points(at(0)))
	for _, second := range []int{0, 1, 5, 59, 119} {
		c.add(at(second))
	}
	points := c.points(at(119))
	require.Len(t, points, Spans)
	require.Equal(t, []int{2, 1}, points[:2])
	require.Equal(t, 1, points[Spans-1])
	require.Equal(t, 1, PerMinute(points))
	require.Equal(t, points, c.points(at(60)), "it does not go back")
	require.Nil(t, c.points(at(1000)))
}

func TestOrdersAndFilters(t *testing.T) {
	rows := []Row{
		{Lock: &Lock{Name: "a", Places: []*Place{{Owner: "api", Host: "vm-1"}}}, Waiting: 1, Held: 5},
		{Lock: &Lock{Name: "b"}, Waiting: 2, Held: 9, Lease: Lease{Left: 1, Granted: 15}, Late: true},
		{Lock: &Lock{Name: "c"}, Longest: 3, Turns: 4, Lease: Lease{Left: 14, Granted: 15}},
	}
	names := func() (names string) {
		for _, r := range rows {
			names += r.Name
		}
		return names
	}
	for order, want := range map[Order]string{ByTrouble: "bca", ByWaiting: "bac",
		ByHeld: "bac", ByLongest: "cab", ByTurns: "cab", ByLease: "bca", ByName: "abc"} {
		Sort(rows, order)
		require.Equal(t, want, names(), order)
	}
	Sort(rows, ByName)
	for filter, want := range map[string]string{"": "abc", "late": "b", "vm-1": "a", "api": "a",
		"c": "c", "kept": "", "recalled": "", "waiting": "ab", "zz": ""} {
		var got strings.Builder
		for _, r := range rows {
			if r.Matches(filter) {
				got.WriteString(r.Name)
			}
		}
		require.Equal(t, want, got.String(), filter)
	}
	require.Equal(t, ByName, ByTrouble.Next(-1))
}
