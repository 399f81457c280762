package follow

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// contenders is a line of random kinds in which the last one waits: it is exclusive.
func contenders(t *testing.T, r *rand.Rand, n int) (l line.Line) {
	t.Helper()
	mostly := line.Kind(r.IntN(line.Kinds))
	for i := range n {
		s := line.Shape{Kind: mostly}
		if r.IntN(4) == 0 || i == n-1 {
			s.Kind = line.Exclusive
		}
		if s.Kind == line.Permit {
			s.Limit = uint16(1 + r.IntN(6))
			s.Weight = uint16(1 + r.IntN(int(s.Limit)))
		}
		id, ok := line.Draw(uuid.New(), s)
		require.True(t, ok)
		l = append(l, line.Entry{Key: line.Key("n", id), Rev: int64(i + 1), Lease: 1, Mod: int64(i + 1)})
	}
	return l
}

// Whoever goes, in whatever order: one that comes to hold then is known, or the line is read again.
// And who goes behind those that decide it is nothing to read for.
func TestNoneThatComesToHoldIsMissed(t *testing.T) {
	reads, departures := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 0))
		l := contenders(t, r, 2+r.IntN(12))
		var seen Snapshot
		read := func() {
			reads++
			for n := int64(fewOldest); ; n *= n {
				part := slices.Clone(l[:min(int(n), len(l))])
				seen = Snapshot{Line: part, name: "n", all: true, whole: len(part) == len(l)}
				if seen.tells(n) {
					return
				}
			}
		}
		for read(); len(l) > 1; departures++ {
			i := r.IntN(len(l) - 1)
			gone := l[i]
			held := len(l.Holding())
			l = slices.Delete(l, i, i+1)
			told := true // by the watch
			if key, _ := seen.watched(); key != line.Prefix("n") {
				told = key == gone.Key
			}
			if told && seen.changedBy([]*clientv3.Event{deletion(gone.Key)}) {
				require.LessOrEqual(t, i, held, "seed %d: one behind the first that waits", seed)
				read()
			}
			require.Equal(t, l.Holding(), seen.Line.Holding(), "seed %d", seed)
		}
	}
	t.Logf("%d reads after %d departures", reads, departures)
	require.Less(t, reads, departures)
}

// A recheck compares all that decides who holds, each by its place in line and by its value, unless
// that is too much for a transaction.
func TestARecheckComparesAllThatDecide(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := contenders(t, r, 1+r.IntN(12))
		seen := Snapshot{Line: l, name: "n", all: true, whole: true}
		known, compares := seen.unchanged()
		require.True(t, compares)
		decides := min(len(l.Holding())+1, len(l))
		if l[0].Kind() == line.Exclusive {
			decides = 1
		}
		require.Len(t, ticket.Compare(known...), 3*decides)
		first := Snapshot{Line: l, name: "n"}
		known, compares = first.unchanged()
		require.True(t, compares)
		require.Len(t, ticket.Compare(known...), 3)
	}
	r := rand.New(rand.NewPCG(0, 0))
	var readers line.Line
	for len(readers) <= mostCompared {
		id, _ := line.Draw(uuid.New(), line.Shape{Kind: line.Read})
		readers = append(readers, line.Entry{Key: line.Key("n", id), Rev: 1 + int64(r.IntN(9)), Lease: 1})
	}
	_, compares := (&Snapshot{Line: readers, all: true}).unchanged()
	require.False(t, compares)
	_, compares = (&Snapshot{all: true}).unchanged()
	require.False(t, compares)
}

// deletion is the event of a key that goes.
func deletion(key string) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key)}}
}
