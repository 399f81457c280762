package line_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// rangeOf is a range that has read keys, out of count.
func rangeOf(count int64, more bool, kvs keys) *pb.RangeResponse {
	return &pb.RangeResponse{Kvs: kvs, Count: count, More: more}
}

// A place waits for the nearest contender that was read. It may hold only if everything
// before it was read, and no contender is there.
func TestWhatALimitedReadingTells(t *testing.T) {
	config, stray := kv("config", 2, 1), kv(idB, 8, 0)
	own := line.Entry{Key: name + "/" + idC, Rev: 9, Lease: 1}
	rows := []struct {
		promise string
		read    *pb.RangeResponse
		own     line.Entry
		last    []string
		clear   bool
		unread  bool
		count   int // how many are before it
	}{
		{"alone, before it is put", rangeOf(0, false, nil), line.Entry{}, nil, true, false, 0},
		{"alone", rangeOf(1, false, keys{c(9)}), own, nil, true, false, 0},
		{"before others", rangeOf(5, false, keys{c(9)}), own, nil, true, false, 0},
		{"behind one", rangeOf(2, false, keys{c(9), a(7)}), own, []string{idA}, false, false, 1},
		{"behind one at least", rangeOf(30, true, keys{c(9), a(7)}), own,
			[]string{idA}, false, false, 29},
		{"behind one at least, before it is put", rangeOf(30, true, keys{a(7)}), line.Entry{},
			[]string{idA}, false, false, 30},
		{"in order", rangeOf(3, false, keys{c(9), b(8), a(7)}), own, []string{idA, idB}, false, false, 2},
		{"behind what is no contender", rangeOf(3, false, keys{c(9), stray, config}), own,
			nil, true, false, 0},
		{"behind what is no contender, and more", rangeOf(30, true, keys{c(9), stray, config}), own,
			nil, false, true, 27},
		{"behind one and what is no contender", rangeOf(30, true, keys{c(9), stray, a(7)}), own,
			[]string{idA}, false, false, 28},
		{"nothing was read", nil, own, nil, false, true, 0},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			ahead := line.Before(name, row.own, 1, row.read)
			require.Equal(t, row.last, tails(ahead.Last))
			require.Equal(t, row.clear, ahead.Clear())
			require.Equal(t, row.unread, ahead.Reading == line.Unread)
			require.Equal(t, row.count, ahead.Count())
			require.False(t, ahead.Clear() && ahead.Reading == line.Unread)
		})
	}
}

// A later reading of the same place adds to an earlier one: no key is ever put before a
// place.
func TestALaterReadingKnowsWhatAnEarlierOneTold(t *testing.T) {
	own := line.Entry{Key: name + "/" + idC, Rev: 90, Lease: 1}
	put := line.Before(name, line.Entry{}, 1, rangeOf(20, true, keys{b(80)}))
	put = put.HeldBy(name, rangeOf(20, true, keys{a(3)}))
	require.Equal(t, 20, put.Count())
	require.Equal(t, idA, tails(line.Line{put.Holder()})[0])

	later := line.Before(name, own, 1, rangeOf(70, true, keys{c(90), b(80)})).Since(put)
	require.Equal(t, 20, later.Count(), "those that have come since are behind it")
	require.Equal(t, put.Holder(), later.Holder())
	later = line.Before(name, own, 1, rangeOf(12, true, keys{c(90), b(80)})).Since(put)
	require.Equal(t, 11, later.Count())

	whole := line.Before(name, own, 1, rangeOf(70, false, keys{c(90), b(80)})).Since(put)
	require.Equal(t, 1, whole.Count())
	require.Equal(t, idB, tails(line.Line{whole.Holder()})[0])
	require.Zero(t, line.None.Since(put).Holder().Rev)
	require.Zero(t, line.None.Since(put).Count())
}

// A contender that is gone is ahead of no place, and the rest still are. The earlier result
// stays as it was, since there may be copies of it.
func TestWhoIsGoneIsAheadOfNobody(t *testing.T) {
	for _, row := range []struct {
		gone, left []string
	}{
		{nil, []string{idA, idB, idC}},
		{[]string{idA}, []string{idB, idC}},
		{[]string{idB}, []string{idA, idC}},
		{[]string{idC}, []string{idA, idB}},
		{[]string{idA, idB}, []string{idC}},
		{[]string{idA, idC}, []string{idB}},
		{[]string{idB, idC}, []string{idA}},
		{[]string{idA, idB, idC}, nil},
	} {
		t.Run(fmt.Sprint(row.gone), func(t *testing.T) {
			before := line.Before(name, line.Entry{}, 1, rangeOf(3, false, keys{c(9), b(8), a(7)}))
			after := before.Without(func(e line.Entry) bool {
				return slices.Contains(row.gone, tails(line.Line{e})[0])
			})
			require.Equal(t, row.left, tails(after.Last))
			require.Equal(t, len(row.left) == 0, after.Clear())
			require.Equal(t, []string{idA, idB, idC}, tails(before.Last))
		})
	}
}

// The oldest keys show the holder. They do not show the nearest predecessor of a place, unless
// all keys were read.
func TestTheOldestTellWhoHolds(t *testing.T) {
	config := kv("config", 2, 1)
	unsent := line.Entry{Key: name + "/" + idC}
	own := line.Entry{Key: name + "/" + idC, Rev: 9, Lease: 1}
	rows := []struct {
		promise string
		read    *pb.RangeResponse
		own     line.Entry
		holder  string
		n       int // contenders before it that were read
		whole   bool
	}{
		{"nobody", rangeOf(0, false, nil), unsent, "", 0, true},
		{"one", rangeOf(2, false, keys{config, a(7)}), unsent, idA, 1, true},
		{"one, and more", rangeOf(30, true, keys{config, a(7)}), unsent, idA, 1, false},
		{"no contender, and more", rangeOf(30, true, keys{config}), unsent, "", 0, false},
		{"before the own key", rangeOf(30, true, keys{a(7), c(9)}), own, idA, 1, true},
		{"the own key is the first", rangeOf(30, true, keys{config, c(9), a(10)}), own, "", 0, true},
		{"what is before the own key was not read", rangeOf(30, true, keys{config}), own, "", 0, false},
		{"nothing was read", nil, own, "", 0, false},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			ahead, n := line.Among(name, row.own, row.read)
			holder := ""
			if e := ahead.Holder(); e.Rev != 0 {
				holder = tails(line.Line{e})[0]
			}
			require.Equal(t, row.holder, holder)
			require.Equal(t, row.n, n)
			require.Equal(t, row.whole, ahead.Reading == line.All)
			require.GreaterOrEqual(t, ahead.Count(), n)
		})
	}
}

// A look that reads only keys takes every key that may be a contender's for a contender's: it sees
// no leases. So by it no place may hold behind a key that may stand in line, and the reading is not
// All. It says nothing unless the own key is there as it was put.
func TestWhatKeysAloneTellOfTheNearest(t *testing.T) {
	key := func(tail string, created, modified int64) *keyValue {
		k := kv(tail, created, 0)
		k.ModRevision = modified
		return k
	}
	own, older := line.Entry{Key: name + "/" + idC, Rev: 9, Lease: 1}, kv(idA, 7, 1)
	mine := key(idC, 9, 9) // etcd before 3.7 tells the lease, as older has it
	rows := []struct {
		promise string
		read    *pb.RangeResponse
		last    []string
		clear   bool
		unread  bool
		count   int
	}{
		{"nobody", rangeOf(1, false, keys{mine}), nil, true, false, 0},
		{"nobody, and more", rangeOf(90, true, keys{mine}), nil, false, true, 89},
		{"one, and no more", rangeOf(2, false, keys{mine, kv(idA, 7, 0)}),
			[]string{idA}, false, false, 1},
		{"two, the newest first", rangeOf(90, true, keys{mine, kv(idB, 8, 0), kv(hex, 7, 0)}),
			[]string{hex, idB}, false, false, 89},
		{"with a lease", rangeOf(90, true, keys{mine, older}), []string{idA}, false, false, 89},
		{"what is none", rangeOf(3, false, keys{mine, kv("config", 8, 0), kv("a/"+idB, 7, 0)}),
			nil, true, false, 0},
		{"what is none, and more", rangeOf(90, true, keys{mine, kv("config", 8, 0)}),
			nil, false, true, 88},
		{"one, and what is none", rangeOf(90, true, keys{mine, kv("config", 8, 0), kv(idA, 7, 0)}),
			[]string{idA}, false, false, 88},
		{"nothing was read", nil, nil, false, true, 0},
		{"its own is not there", rangeOf(0, false, nil), nil, false, true, 0},
		{"another use of its name", rangeOf(1, false, keys{key(idC, 8, 8)}), nil, false, true, 0},
		{"its own was put over", rangeOf(1, false, keys{key(idC, 9, 12)}), nil, false, true, 0},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			ahead := line.ByKeys(name, own, 1, row.read)
			require.Equal(t, row.last, tails(ahead.Last))
			require.Equal(t, row.clear, ahead.Clear())
			require.Equal(t, row.unread, ahead.Reading == line.Unread)
			require.Equal(t, row.count, ahead.Count())
			require.Equal(t, len(row.last) > 0, ahead.Reading == line.Brief)
			for _, e := range ahead.Last {
				require.Zero(t, e.Lease)
			}
		})
	}
}

// A range of keys alone shows no leases: a key that may be a contender's may be one.
func TestThatKeysAloneAreNoContenders(t *testing.T) {
	for _, row := range []struct {
		promise string
		none    bool
		more    bool
		read    keys
	}{
		{"its own", true, false, keys{kv(idC, 9, 0)}},
		{"there may be more", false, true, keys{kv(idC, 9, 0)}},
		{"none", true, false, keys{}},
		{"another", false, false, keys{kv(idC, 9, 0), kv(idA, 7, 0)}},
		{"what has the form of another", false, false, keys{kv(idC, 9, 0), kv(hex, 7, 0)}},
		{"what has not", true, false, keys{kv(idC, 9, 0), kv("config", 7, 0), kv("a/"+idA, 6, 0)}},
	} {
		t.Run(row.promise, func(t *testing.T) {
			require.Equal(t, row.none, line.NoneBut(name+"/"+idC, name, rangeOf(5, row.more, row.read)))
		})
	}
}

// Keys in no order are the whole line or say nothing but how many there are: also for a permit,
// which waits by any that are too much for it.
func TestWhatIsReadInNoOrderIsTheWholeLineOrNothing(t *testing.T) {
	for _, own := range []line.Entry{
		{Key: name + "/" + idC}, {Key: name + "/fffffffe-0001-8dad-81d1-000200000009"},
	} {
		whole := line.Before(name, own, line.AllOrNone, rangeOf(2, false, keys{b(80), a(70)}))
		require.Equal(t, line.All, whole.Reading)
		require.Equal(t, []string{idA, idB}, tails(whole.Last))
		some := line.Before(name, own, line.AllOrNone, rangeOf(90, true, keys{b(80), a(70)}))
		require.Equal(t, line.Unread, some.Reading)
		require.Empty(t, some.Last)
		require.Equal(t, 90, some.Count())
		require.True(t, some.Untold)
	}
}

// A place that is put behind a key in line waits for that key, and may have more predecessors.
// Behind a key that stands in no line it has to read.
func TestWhoStandsBehindAKeyThatWasRead(t *testing.T) {
	ahead := line.Behind(name, rangeOf(1, false, keys{a(7)}), 90)
	require.Equal(t, []string{idA}, tails(ahead.Last))
	require.False(t, ahead.Clear())
	require.False(t, ahead.Reading == line.Unread)
	require.Equal(t, line.Brief, ahead.Reading)
	require.Equal(t, 90, ahead.Count())
	for _, read := range []*pb.RangeResponse{
		nil, rangeOf(0, false, nil), rangeOf(1, false, keys{kv(idA, 7, 0)}),
	} {
		ahead := line.Behind(name, read, 90)
		require.True(t, ahead.Reading == line.Unread)
		require.False(t, ahead.Clear())
	}
}

// By its key alone, a contender of concurrency.Mutex stands in line on one lease, and a
// contender of this library on any.
func TestTheLeaseByTheKey(t *testing.T) {
	for tail, lease := range map[string]int64{
		hex: lease, "a": 10, "-a": -10, idA: 0, "config": 0, "0a": 0, "A": 0, "0": 0,
	} {
		e := line.Entry{Key: name + "/" + tail}
		require.Equal(t, lease, e.LeaseByKey(), tail)
		require.Equal(t, lease != 0 || tail == idA, e.MayStandIn(name), tail)
	}
}

// Every contender passes MayStandIn.
func TestWhatStandsInLineMayStandInLine(t *testing.T) {
	for _, e := range []line.Entry{
		{Key: name + "/" + idA, Lease: 1}, {Key: name + "/" + hex, Lease: lease},
		{Key: name + "/a", Lease: 10}, {Key: name + "/-a", Lease: -10},
		{Key: name + "/7fffffffffffffff", Lease: 1<<63 - 1},
	} {
		require.True(t, e.StandsIn(name))
		e.Lease = 0
		require.True(t, e.MayStandIn(name), e.Key)
	}
	for _, key := range []string{"config", "", "a/" + idA, "x1", "6ba7b810-9dad"} {
		require.False(t, line.Entry{Key: name + "/" + key}.MayStandIn(name), key)
	}
	require.False(t, line.Entry{Key: "orders/43/" + idA}.MayStandIn(name))
}

// The ranges that leave out readers show a reader the exclusive contenders before it. The
// readers may be many, and do not count among what is left out.
func TestWhatALimitedReadingTellsOneThatReads(t *testing.T) {
	own := line.Entry{Key: name + "/" + idT, Rev: 20, Lease: 1}
	none := rangeOf(0, false, nil)
	many := rangeOf(500, true, keys{kv(idT, 20, 1), s(19), r(18)})
	rows := []struct {
		promise              string
		below, block, beyond *pb.RangeResponse
		last                 []string
		clear, unread        bool
		count                int
	}{
		{"alone", none, rangeOf(1, false, keys{kv(idT, 20, 1)}), none, nil, true, false, 0},
		{"beside many", none, many, none, nil, true, false, 0},
		{"behind one", rangeOf(1, false, keys{a(7)}), many, none, []string{idA}, false, false, 1},
		{"before one", rangeOf(1, false, keys{a(21)}), many, none, nil, true, false, 0},
		{"behind one below and one beyond", rangeOf(1, false, keys{a(7)}), many,
			rangeOf(1, false, keys{kv("ffffffff0", 6, 0xffffffff0)}),
			[]string{"ffffffff0", idA}, false, false, 2},
		{"behind one that is among them by chance", none,
			rangeOf(9, false, keys{kv(idT, 20, 1), kv(byChance, 19, 1), r(18)}), none,
			[]string{byChance}, false, false, 1},
		{"behind strays", rangeOf(1, false, keys{kv("config", 3, 1)}), many, none, nil, true, false, 0},
		{"behind strays, and more", rangeOf(30, true, keys{kv("config", 3, 1)}), many, none,
			nil, false, true, 528},
		{"strays beyond, and more", none, many, rangeOf(30, true, keys{kv("x", 3, 1)}),
			nil, false, true, 528},
		{"behind one at least", rangeOf(30, true, keys{a(7)}), many, none,
			[]string{idA}, false, false, 529},
		{"one range was not read", none, many, nil, nil, false, true, 499},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			ahead := line.Before(name, own, 1, row.below, row.block, row.beyond)
			require.Equal(t, row.last, tails(ahead.Last))
			require.Equal(t, row.clear, ahead.Clear())
			require.Equal(t, row.unread, ahead.Reading == line.Unread)
			require.Equal(t, row.count, ahead.Count())
		})
	}
}

// The oldest exclusive key tells TryRLock whether there is one. The holder may be a reader
// before it.
func TestTheOldestTellOneThatReadsWhoIsExclusive(t *testing.T) {
	own := line.Entry{Key: name + "/" + idT}
	none := rangeOf(0, false, nil)
	ahead, n := line.Among(name, own, none, none)
	require.True(t, ahead.Clear())
	require.Zero(t, n)

	ahead, n = line.Among(name, own, rangeOf(2, false, keys{kv("config", 2, 1), a(7)}), none)
	require.Equal(t, 1, n)
	require.Equal(t, []string{idA}, tails(ahead.Last))
	require.Equal(t, idA, tails(line.Line{ahead.Holder()})[0])
	held := ahead.HeldBy(name, rangeOf(9, true, keys{r(5)}))
	require.Equal(t, idR, tails(line.Line{held.Holder()})[0], "it is before that one")
	held = ahead.HeldBy(name, rangeOf(9, true, keys{r(8)}))
	require.Equal(t, idA, tails(line.Line{held.Holder()})[0], "it is behind that one")

	ahead, n = line.Among(name, own, rangeOf(30, true, keys{kv("config", 2, 1)}), none)
	require.Equal(t, line.Unread, ahead.Reading)
	require.Zero(t, n)

	there := line.Entry{Key: name + "/" + idT, Rev: 9, Lease: 1} // an earlier copy has put it
	ahead, _ = line.Among(name, there, rangeOf(30, true, keys{kv("config", 2, 1), a(10)}), none)
	require.True(t, ahead.Clear(), "who is exclusive came later")
}
