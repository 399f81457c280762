package list

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type item struct {
	number int
	node   Node[*item]
}

// Whatever is added and removed, a list has what a slice would have, in the same order.
func TestAListIsWhatASliceWouldBe(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var lists [2]List[*item]
	var want [2][]*item
	items := make([]*item, 20)
	for i := range items {
		items[i] = &item{number: i}
	}
	for range 20_000 {
		one, in := items[random.IntN(len(items))], random.IntN(2)
		for i := range want {
			want[i] = slices.DeleteFunc(want[i], func(other *item) bool { return other == one })
		}
		if random.IntN(3) == 0 {
			one.node.Remove()
		} else {
			lists[in].Add(&one.node, one)
			want[in] = append(want[in], one)
		}
		for i := range lists {
			require.True(t, slices.Equal(want[i], slices.Collect(lists[i].All())))
			require.Equal(t, len(want[i]), lists[i].Len())
			first, ok := lists[i].First()
			require.Equal(t, len(want[i]) > 0, ok)
			last, some := lists[i].Last()
			require.Equal(t, ok, some)
			if ok {
				require.Same(t, want[i][0], first)
				require.Same(t, want[i][len(want[i])-1], last)
				before := slices.Collect(last.node.Before())
				slices.Reverse(before)
				require.True(t, slices.Equal(want[i][:len(want[i])-1], before))
			}
		}
	}
	for one := range lists[0].Firsts() {
		one.node.Remove()
	}
	require.Zero(t, lists[0].Len())
}

// One that is yielded may be removed.
func TestTheOneThatIsYieldedMayBeRemoved(t *testing.T) {
	var l List[*item]
	for i := range 5 {
		one := &item{number: i}
		l.Add(&one.node, one)
	}
	var seen []int
	for one := range l.All() {
		seen = append(seen, one.number)
		one.node.Remove()
	}
	require.Equal(t, []int{0, 1, 2, 3, 4}, seen)
	require.Zero(t, l.Len())
}
