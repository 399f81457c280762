package line_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// standing returns the keys of a line such as "2/5 x 1/5": a permit of weight 2 with a
// limit of 5, an exclusive contender (x), a reader (r), and so on, with the create
// revisions 1, 2, ...
func standing(text string) (read keys) {
	for i, contender := range strings.Fields(text) {
		tail := fmt.Sprintf("6ba7b810-9dad-41d1-80b4-%012x", i)
		var weight, limit int
		if contender == "r" {
			tail = fmt.Sprintf("ffffffff-9dad-81d1-80b4-%012x", i)
		} else if n, _ := fmt.Sscanf(contender, "%d/%d", &weight, &limit); n == 2 {
			tail = fmt.Sprintf("fffffffe-%04x-8dad-81d1-%04x%08x", weight, limit, i)
		}
		read = append(read, kv(tail, int64(i+1), 1))
	}
	return read
}

// places are the positions of entries in such a line.
func places(l line.Line) (at []int) {
	for _, e := range l {
		at = append(at, int(e.Rev)-1)
	}
	return at
}

// A permit may hold if all before it are permits, and the sum of their weights and its own
// is at most the least of their limits and its own. It does not matter whether they hold or
// wait.
func TestAPermitWaitsForTheSum(t *testing.T) {
	for _, row := range []struct {
		line    string // the test asks about the last one
		holds   bool
		holding int    // how many hold
		awaited string // the positions, if it does not hold
	}{
		{"1/1", true, 1, ""},
		{"5/5", true, 1, ""},
		{"1/1 1/1", false, 1, "[0]"},
		{"1/2 1/2", true, 2, ""},
		{"2/5 2/5 1/5", true, 3, ""},
		{"2/5 2/5 2/5", false, 2, "[0 1]"},
		{"4/5 2/5 1/5", false, 1, "[0 1]"}, // behind one that waits
		{"4/5 5/5 1/5", false, 1, "[1]"},
		{"4/9 3/5 1/9", false, 1, "[0 1]"}, // by the limit of one that waits
		{"1/2 1/5 1/5", false, 2, "[0 1]"}, // the least of the limits
		{"1/5 1/5 1/2", false, 2, "[0 1]"}, // its own is the least
		{"3/5 1/5 1/2", false, 2, "[0 1]"},
		{"1/65535 65534/65535", true, 2, ""},
		{"65535/65535 65535/65535 65535/65535", false, 1, "[1]"}, // no sum overflows
		{"x 1/5", false, 1, "[0]"},
		{"r 1/5", false, 1, "[0]"},
		{"1/5 x 1/5 1/5", false, 1, "[1]"},
		{"x 1/5 r 1/5 1/5", false, 1, "[2]"},
		{"x 1/5 1/2 1/5", false, 1, "[1 2]"},
		{"r r 1/5", false, 2, "[1]"},
		{"1/1 1/1 1/1 1/1 1/1", false, 1, "[3]"},
		{"1/3 1/3 1/3 1/3 1/3 1/3", false, 3, "[2 3 4]"},
	} {
		t.Run(row.line, func(t *testing.T) {
			read := standing(row.line)
			l := line.Of(name, read)
			own := l[len(l)-1]
			require.Equal(t, row.holds, len(l.Blocking(own)) == 0)
			require.Len(t, l.Holding(), row.holding)
			slices.Reverse(read)
			ahead := line.Before(name, own, 9, &pb.RangeResponse{Kvs: read, Count: int64(len(read))})
			require.Equal(t, line.All, ahead.Reading)
			require.Equal(t, row.holds, ahead.Clear())
			if !row.holds {
				require.Equal(t, len(l)-1, ahead.Count())
				require.Equal(t, row.awaited, fmt.Sprint(places(ahead.Awaited())))
			}
			among, _ := line.Among(name, own, &pb.RangeResponse{Kvs: line2(read), Count: int64(len(read))})
			require.Equal(t, row.holds, among.Clear())
		})
	}
}

func TestTheLimitsOnWhichALineCounts(t *testing.T) {
	require.Equal(t, []uint16{2, 3, 9}, line.Of(name, standing("1/9 x 1/2 r 2/2 3/3 1/9")).Limits())
	require.Empty(t, line.Of(name, standing("x r")).Limits())
}

// line2 is keys in the other order.
func line2(read keys) keys {
	read = slices.Clone(read)
	slices.Reverse(read)
	return read
}

// randomLine is a line of a few contenders, the last of which is a permit.
func randomLine() string {
	var text []string
	for range rand.IntN(8) {
		limit := 1 + rand.IntN(5)
		switch rand.IntN(12) {
		case 0:
			text = append(text, "x")
		case 1:
			text = append(text, "r")
		default:
			text = append(text, fmt.Sprintf("%d/%d", 1+rand.IntN(limit), limit))
		}
	}
	limit := 1 + rand.IntN(5)
	return strings.Join(append(text, fmt.Sprintf("%d/%d", 1+rand.IntN(limit), limit)), " ")
}

// While all that Awaited returns stand in line the permit may not hold, whatever else is gone. A
// reading of the whole line, without its contenders one by one, lets the permit in when the rule
// does. A partial reading lets it in only if the whole line does.
func TestWhileAllAwaitedStandAPermitWaits(t *testing.T) {
	for range 5_000 {
		text := randomLine()
		read := line2(standing(text))
		l := line.Of(name, read)
		own := l[len(l)-1]
		n := 1 + rand.IntN(len(read))
		part := &pb.RangeResponse{Kvs: read[:n], More: n < len(read), Count: int64(len(read))}
		ahead := line.Before(name, own, 9, part)
		all := line.Before(name, own, 9, &pb.RangeResponse{Kvs: read, Count: int64(len(read))})
		require.Equal(t, len(l.Blocking(own)) == 0, all.Clear(), "%s", text)
		require.False(t, ahead.Clear() && !all.Clear(), "%s, of which %d are known", text, n)
		if len(ahead.Last) == 0 {
			continue
		}
		require.NotEqual(t, line.Unread, ahead.Reading, text)
		awaited := ahead.Awaited()
		require.NotEmpty(t, awaited)
		for range 8 { // some of the rest go
			var rest line.Line
			for _, e := range l {
				if slices.ContainsFunc(awaited, func(a line.Entry) bool { return a.Rev == e.Rev }) ||
					e.Rev == own.Rev || rand.IntN(2) == 0 {
					rest = append(rest, e)
				}
			}
			require.NotEmpty(t, rest.Blocking(own), "%s without others than %v", text, places(awaited))
		}
		if !all.Clear() { // its predecessors go one by one
			for i, e := range l[:len(l)-1] {
				all = all.Without(func(o line.Entry) bool { return o.Rev == e.Rev })
				require.Equal(t, len(l[i+1:].Blocking(own)) == 0, all.Clear(), "%s without %d", text, i+1)
			}
			require.True(t, all.Clear())
		}
	}
}

// Holding is exactly the contenders of the whole line that wait for none.
func TestThosePermitsHoldThatWaitForNobody(t *testing.T) {
	for range 5_000 {
		text := randomLine() + " " + randomLine()
		l := line.Of(name, standing(text))
		holding := l.Holding()
		for i, e := range l {
			require.Equal(t, i < len(holding), len(l.Blocking(e)) == 0, "%s: %d", text, i)
		}
	}
}
