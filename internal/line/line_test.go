package line_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

const (
	idB = "00000000-0000-4000-8000-000000000000"
	idC = "cccccccc-cccc-4ccc-8ccc-cccccccccccc"

	idR      = "ffffffff-6ba7-8dad-81d1-80b400c04fd4" // of three readers
	idS      = "ffffffff-0000-8000-8000-000000000000"
	idT      = "ffffffff-ffff-8fff-bfff-ffffffffffff"
	byChance = "ffffffff-6ba7-4dad-81d1-80b400c04fd4" // exclusive, in the readers' block
)

// keys are what was read.
type keys = []*keyValue

type keyValue = mvccpb.KeyValue

// Three contenders, each put at a revision.
func a(rev int64) *mvccpb.KeyValue { return kv(idA, rev, 1) }
func b(rev int64) *mvccpb.KeyValue { return kv(idB, rev, 1) }
func c(rev int64) *mvccpb.KeyValue { return kv(idC, rev, 1) }

// Two readers.
func r(rev int64) *mvccpb.KeyValue { return kv(idR, rev, 1) }
func s(rev int64) *mvccpb.KeyValue { return kv(idS, rev, 1) }

// tails are how the keys of entries end.
func tails(entries []line.Entry) []string {
	var tails []string
	for _, e := range entries {
		tails = append(tails, e.Key[len(name)+1:])
	}
	return tails
}

// Rule 1: etcd reads keys in an order of its own, which is not the line's.
func TestTheOrderIsThatOfTheCreateRevisions(t *testing.T) {
	rows := []struct {
		promise string
		read    keys
		order   []string
	}{
		{"nobody", nil, nil},
		{"one", keys{a(7)}, []string{idA}},
		{"the last key came first", keys{b(9), a(8), c(7)}, []string{idC, idA, idB}},
		{"of this library and of others", keys{kv(hex, 9, lease), a(5)}, []string{idA, hex}},
		{"what does not stand in line is left out", keys{
			kv("config", 1, 1), b(9), kv(idA, 2, 0), kv("a/"+idC, 3, 1), c(8),
		}, []string{idC, idB}},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			require.Equal(t, row.order, tails(line.Of(name, row.read)))
		})
	}
}

// The rule of entry: a contender waits for exactly the ones that came before it, and holds
// when there are none.
func TestTheRuleOfEntry(t *testing.T) {
	type tail = []string
	permit := "fffffffe-0001-8dad-81d1-00020c04fd43"
	future := "12345678-9dad-81d1-80b4-00c04fd430c8" // a kind that other versions may know
	rows := []struct {
		promise string
		read    keys
		own     int64    // revision; it also decides whether own reads
		waits   []string // the contenders for which own waits
		holding []string
	}{
		{"alone", keys{a(7)}, 7, nil, tail{idA}},
		{"behind one", keys{a(7), b(8)}, 8, tail{idA}, tail{idA}},
		{"behind two", keys{a(7), b(8), c(9)}, 9, tail{idA, idB}, tail{idA}},
		{"before one", keys{a(7), b(8)}, 7, nil, tail{idA}},
		{"in the middle", keys{a(9), b(8), c(7)}, 8, tail{idC}, tail{idC}},
		{"not there yet", keys{a(9), b(8)}, 0, tail{idB, idA}, tail{idB}},
		{"not there any more", keys{a(9), b(7)}, 8, tail{idB}, tail{idB}},
		{"nobody is there", nil, 0, nil, nil},
		{"a reader alone", keys{r(7)}, 7, nil, tail{idR}},
		{"one that is exclusive waits for a reader", keys{r(7), a(8)}, 8, tail{idR}, tail{idR}},
		{"a reader waits for one that is exclusive", keys{a(7), r(8)}, 8, tail{idA}, tail{idA}},
		{"readers hold beside each other", keys{r(7), s(8)}, 8, nil, tail{idR, idS}},
		{"whatever the order of their keys", keys{r(9), s(8)}, 9, nil, tail{idS, idR}},
		{"a reader does not wait for who is behind it",
			keys{r(7), a(8), s(9)}, 7, nil, tail{idR}},
		{"one between readers waits for those before",
			keys{r(7), a(8), s(9)}, 8, tail{idR}, tail{idR}},
		{"a reader behind that waits for it alone",
			keys{r(7), a(8), s(9)}, 9, tail{idA}, tail{idR}},
		{"a reader waits for all that are exclusive before it",
			keys{a(5), r(6), b(7), c(8), s(9)}, 9, tail{idA, idB, idC}, tail{idA}},
		{"of those it waits for the last may go first",
			keys{a(5), r(6), s(9)}, 9, tail{idA}, tail{idA}},
		{"what is in the block of the readers, and not written so, is exclusive",
			keys{r(6), kv(byChance, 7, 1), s(9)}, 9, tail{byChance}, tail{idR}},
		{"and waits for readers", keys{r(6), kv(byChance, 7, 1)}, 7, tail{idR}, tail{idR}},
		{"a reader without a lease is nobody", keys{kv(idR, 6, 0), a(7)}, 7, nil, tail{idA}},
		{"not there yet, it waits for whoever is exclusive",
			keys{r(7), a(8)}, 0, tail{idR, idA}, tail{idR}},
		{"one that is exclusive waits for a permit",
			keys{kv(permit, 7, 1), a(8)}, 8, tail{permit}, tail{permit}},
		{"a permit waits for one that is exclusive",
			keys{a(7), kv(permit, 8, 1)}, 8, tail{idA}, tail{idA}},
		{"and for those that read", keys{r(7), kv(permit, 8, 1)}, 8, tail{idR}, tail{idR}},
		{"one that reads waits for a permit",
			keys{kv(permit, 7, 1), r(8)}, 8, tail{permit}, tail{permit}},
		{"a permit whose key tells no weight is exclusive",
			keys{kv(permit, 7, 1), kv("fffffffe-0000-8dad-81d1-00020c04fd43", 8, 1)}, 8,
			tail{permit}, tail{permit}},
		{"what comes one day is exclusive",
			keys{kv(future, 7, 1), a(8)}, 8, tail{future}, tail{future}},
		{"a reader waits for what comes one day",
			keys{kv(future, 7, 1), r(8)}, 8, tail{future}, tail{future}},
		{"a stray key blocks nobody",
			keys{kv("config", 1, 1), kv(idB, 2, 0), a(7)}, 7, nil, tail{idA}},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			stand := line.Of(name, row.read)
			own := line.Entry{Rev: row.own}
			for _, e := range stand {
				if e.Rev == row.own {
					own = e
				}
			}
			require.Equal(t, row.waits, tails(stand.Blocking(own)))
			require.Equal(t, row.holding, tails(stand.Holding()))
		})
	}
}

// A reader that is not put yet waits for all that do not read.
func TestAReaderThatIsNotThereYetWaitsForWhoIsExclusive(t *testing.T) {
	own := line.Entry{Key: name + "/" + idS}
	require.Equal(t, []string{idA}, tails(line.Of(name, keys{r(7), a(8)}).Blocking(own)))
	require.Empty(t, line.Of(name, keys{r(7)}).Blocking(own))
}

// If two contenders both stand in line, and both may hold, then both read. That is so for every
// line, so also for contenders that the rule has let in while the line was another.
func TestWhoeverHoldsTogetherReads(t *testing.T) {
	var all []*keyValue
	for i, tail := range []string{idR, idA, idS, byChance, idT, hex} {
		all = append(all, kv(tail, int64(5+i), lease))
	}
	for set := range 1 << len(all) {
		var there keys
		for i, k := range all {
			if set&(1<<i) != 0 {
				there = append(there, k)
			}
		}
		stand := line.Of(name, there)
		var let line.Line
		for _, e := range stand {
			if len(stand.Blocking(e)) == 0 {
				let = append(let, e)
			}
		}
		require.Equal(t, tails(let), tails(stand.Holding()), "%v", tails(stand))
		require.Equal(t, len(stand) > 0, len(let) > 0, "somebody holds")
		for _, e := range let {
			require.True(t, len(let) == 1 || e.Kind() == line.Read, "%v", tails(stand))
		}
	}
}

// Of any two exclusive contenders in line one waits for the other, so two never hold.
func TestOfAnyTwoInLineOneWaitsForTheOther(t *testing.T) {
	stand := line.Of(name, keys{a(9), b(8), c(12), kv(hex, 3, lease)})
	require.Len(t, stand, 4)
	waits := func(e, other line.Entry) bool {
		isOther := func(b line.Entry) bool { return b.Key == other.Key }
		return slices.ContainsFunc(stand.Blocking(e), isOther)
	}
	for i, a := range stand {
		require.False(t, waits(a, a))
		for _, b := range stand[i+1:] {
			require.True(t, waits(b, a))
			require.False(t, waits(a, b))
		}
	}
}

// A contender that leaves the line lets in only the next one. A contender that the rule has
// let in is never blocked again by later ones.
func TestOnceTheRuleLetsOneInItStaysIn(t *testing.T) {
	read := keys{a(7), b(8)}
	own := line.Entry{Key: name + "/" + idB, Rev: 8}
	require.Len(t, line.Of(name, read).Blocking(own), 1)
	require.Empty(t, line.Of(name, read[1:]).Blocking(own))
	later := keys{a(9), b(8), kv(hex, 10, lease)} // idA's name is used again
	require.Empty(t, line.Of(name, later).Blocking(own))
}

// Find finds a key that was put over and no longer stands in line, and reports a key that
// is not there.
func TestFindTellsOfKeysThatDoNotStandInLine(t *testing.T) {
	read := keys{kv(idA, 7, 0), kv(idB, 8, 5)}
	e, there := line.Find(read, name+"/"+idA)
	require.True(t, there)
	require.Equal(t, line.EntryOf(read[0]), e)
	require.False(t, e.StandsIn(name))
	e, there = line.Find(read, name+"/"+idB)
	require.True(t, there)
	require.Equal(t, line.EntryOf(read[1]), e)
	e, there = line.Find(read, name+"/"+idC)
	require.False(t, there)
	require.Equal(t, line.Entry{Key: name + "/" + idC}, e)
}

// Each lock has a line of its own, whatever its name begins with.
func TestEachNameHasALineOfItsOwn(t *testing.T) {
	key := func(key string, rev, lease int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: rev, Lease: lease}
	}
	read := keys{
		key("a/"+idA, 9, 1), key("a/"+idC, 4, 1), key("a/b/"+idB, 5, 1), key("a/b/"+hex, 3, lease),
		key("a/config", 1, 1), key("/"+idA, 1, 1), key(idA, 1, 1), key("a//"+idB, 2, 1),
		key("a/"+idB, 1, 0),
	}
	lines := line.ByName(read)
	require.Len(t, lines, 3)
	for name, order := range map[string][]int64{"a": {4, 9}, "a/b": {3, 5}, "a/": {2}} {
		var revs []int64
		for _, e := range lines[name] {
			revs = append(revs, e.Rev)
		}
		require.Equal(t, order, revs, "line of %q", name)
		require.Equal(t, line.Of(name, read), lines[name])
	}
}
