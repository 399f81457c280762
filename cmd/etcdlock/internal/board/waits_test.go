package board

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// waitsOf is the waits of a line whose n-th contender is of the n-th Session.
func waitsOf(kinds ...string) []Wait {
	b, kvs := New(), []*mvccpb.KeyValue(nil)
	for i, kind := range kinds {
		n := int64(i + 1)
		kvs = append(kvs, kv(key("job", kind, i+1), n, n, owned(fmt.Sprint("s", n), 0)))
	}
	b.Read(at(0), 5000, kvs)
	return Waits(b.Picture(at(0), 0).Locks)
}

func times(n int, kind string) (kinds []string) {
	for range n {
		kinds = append(kinds, kind)
	}
	return kinds
}

// One waits for at most mostBehind places, those right before it, and looks at mostLooked for them:
// otherwise the waits of a line of thousands would be millions.
func TestTheWaitsOfALineAreBounded(t *testing.T) {
	waits := waitsOf(append(times(2*mostBehind, reader), "")...)
	require.Len(t, waits, mostBehind, "a writer behind readers")
	require.Equal(t, hex(2*mostBehind), waits[0].Behind)
	waits = waitsOf(append([]string{""}, times(mostLooked+100, reader)...)...)
	require.Len(t, waits, mostLooked, "readers behind a writer")
}

// What holds waits for nothing, and what waits does so for all that it does not share with, back to
// one that excludes all.
func TestWhichPlacesWaitForWhich(t *testing.T) {
	pairs := func(waits []Wait) (pairs []string) {
		for _, w := range waits {
			pairs = append(pairs, w.Session+" "+w.Behind)
		}
		return pairs
	}
	const one = "fffffffe-0001-8000" // permit of weight 1 of a limit that its key ends with
	require.Equal(t, []string{"3 2", "3 1", "4 3"}, pairs(waitsOf(reader, reader, "", reader)))
	require.Equal(t, []string{"2 1", "3 2"}, pairs(waitsOf("", "", "")))
	b := New()
	var kvs []*mvccpb.KeyValue
	for n := range int64(3) { // of at most two
		kvs = append(kvs, kv(fmt.Sprintf("p/%s-8000-0002%08x", one, n), n+1, n+1, ""))
	}
	b.Read(at(0), 9, kvs)
	require.Equal(t, []string{"3 2", "3 1"}, pairs(Waits(b.Picture(at(0), 0).Locks)))
}

// Who looks at the cycles while no lock changes has those that were found. A change has them found
// anew.
func TestCyclesAreFoundOnceForEachChange(t *testing.T) {
	b := New()
	x := func(lock string, rev, session int64) *mvccpb.KeyValue {
		return kv(key(lock, "", int(rev)), rev, session, "")
	}
	b.Read(at(0), 4, []*mvccpb.KeyValue{x("a", 1, 1), x("b", 2, 2), x("a", 3, 2)})
	require.Empty(t, b.Cycles(at(0)))
	b.Apply(at(1), 5, []*clientv3.Event{put(x("b", 5, 1))})
	found := b.Cycles(at(1))
	require.Len(t, found, 1)
	require.Same(t, &found[0], &b.Cycles(at(2))[0])
	b.Apply(at(3), 6, []*clientv3.Event{deleted(key("b", "", 5))})
	require.Empty(t, b.Cycles(at(3)))
}
