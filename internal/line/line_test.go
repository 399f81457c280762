package line_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

const (
	name  = "orders/42"
	lease = 0x694d8a6e5bd0a31f
	hex   = "694d8a6e5bd0a31f"
	idA   = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	idB   = "00000000-0000-4000-8000-000000000000"
	idC   = "cccccccc-cccc-4ccc-8ccc-cccccccccccc"
)

// keys are what was read.
type keys = []*keyValue

type keyValue = mvccpb.KeyValue

// kv is a key below the name as etcd reads it. One without a lease has lease 0.
func kv(tail string, rev, lease int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(name + "/" + tail), CreateRevision: rev, Lease: lease}
}

// Three contenders, put at a revision each.
func a(rev int64) *mvccpb.KeyValue { return kv(idA, rev, 1) }
func b(rev int64) *mvccpb.KeyValue { return kv(idB, rev, 1) }
func c(rev int64) *mvccpb.KeyValue { return kv(idC, rev, 1) }

// tails are how the keys of entries end.
func tails(entries []line.Entry) []string {
	var tails []string
	for _, e := range entries {
		tails = append(tails, e.Key[len(name)+1:])
	}
	return tails
}

// Rule 1: etcd reads keys in their own order, which is nobody's.
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

// The rule of entry: one waits for exactly those who came before it, and holds when there
// are none.
func TestTheRuleOfEntry(t *testing.T) {
	type tail = []string
	reader := "ffffffff-6ba7-8dad-81d1-80b400c04fd4" // kinds that other versions may know
	permit := "fffffffe-0001-8dad-81d1-00020c04fd43"
	future := "12345678-9dad-81d1-80b4-00c04fd430c8"
	rows := []struct {
		promise string
		read    keys
		own     int64    // revision
		waits   []string // for these
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
		{"readers of another version are exclusive",
			keys{kv(reader, 7, 1), a(8)}, 8, tail{reader}, tail{reader}},
		{"permits of another version are exclusive",
			keys{kv(permit, 7, 1), a(8)}, 8, tail{permit}, tail{permit}},
		{"what comes one day is exclusive",
			keys{kv(future, 7, 1), a(8)}, 8, tail{future}, tail{future}},
		{"two readers of another version hold one by one",
			keys{kv(reader, 7, 1), kv(reader[:35]+"5", 8, 1)}, 8, tail{reader}, tail{reader}},
		{"a stray key blocks nobody",
			keys{kv("config", 1, 1), kv(idB, 2, 0), a(7)}, 7, nil, tail{idA}},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			stand := line.Of(name, row.read)
			require.Equal(t, row.waits, tails(stand.Blocking(line.Entry{Rev: row.own})))
			require.Equal(t, row.holding, tails(stand.Holding()))
		})
	}
}

// Of any two in line one waits for the other, so never do two hold.
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

// Whoever leaves the line lets nobody in but the next, and nobody who was let in is blocked
// again by those who come.
func TestOnceTheRuleLetsOneInItStaysIn(t *testing.T) {
	read := keys{a(7), b(8)}
	own := line.Entry{Key: name + "/" + idB, Rev: 8}
	require.Len(t, line.Of(name, read).Blocking(own), 1)
	require.Empty(t, line.Of(name, read[1:]).Blocking(own))
	later := keys{a(9), b(8), kv(hex, 10, lease)} // idA's name is used again
	require.Empty(t, line.Of(name, later).Blocking(own))
}

// Find tells of what was put over, which stands in line no more, and of what is not there.
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
