package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPercentileIsByNearestRank(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	require.Equal(t, 50, percentile(hundred, 50))
	require.Equal(t, 99, percentile(hundred, 99))
	require.Equal(t, 100, percentile(hundred, 100))
	require.Equal(t, 1, percentile(hundred, 0))
	require.Equal(t, 7, percentile([]int{7}, 99))
	require.Zero(t, percentile([]int(nil), 50))
	require.Equal(t, 100, hundred[0], "the values were reordered")
}

func TestMedianOfAnEvenNumberIsTheMeanOfTheMiddle(t *testing.T) {
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
	require.Equal(t, 3.0, median([]float64{9, 1, 3}))
	require.Equal(t, 15*time.Millisecond,
		median([]time.Duration{20 * time.Millisecond, 10 * time.Millisecond}))
	require.Zero(t, median([]float64{}))
}

func TestRatiosPairTheRounds(t *testing.T) {
	// The machine was ten times as slow in the second round, and the ratio is the same.
	a := map[int]measure{0: {value: 2}, 1: {value: 20}, 2: {value: 3}}
	b := map[int]measure{0: {value: 4}, 1: {value: 40}, 3: {value: 1}}
	require.Equal(t, []float64{0.5, 0.5}, ratios(a, b))
	require.Empty(t, ratios(a, nil))
}

func TestSpread(t *testing.T) {
	s := spreadOf([]float64{4, 1, 2})
	require.Equal(t, spread{1, 2, 4}, s)
	require.Equal(t, spread{0.25, 0.5, 1}, s.inverse())
	require.False(t, spreadOf(nil).known())
	require.Equal(t, spread{}, spread{}.inverse())
}

func TestSummaryAddsWhatAddsUpAndTakesMediansOfTheRest(t *testing.T) {
	s := summarize(map[int]measure{
		0: {value: 2 * time.Millisecond, ops: 10, spent: counts{RPCs: 20},
			samples: []time.Duration{1, 2, 3}, heap: 100},
		1: {value: 4 * time.Millisecond, ops: 30, spent: counts{RPCs: 60}, samples: []time.Duration{4},
			heap: 300},
		2: {value: 3 * time.Millisecond, ops: 10, spent: counts{RPCs: 20}, heap: 200, broken: "overlap"},
	})
	require.Equal(t, 3*time.Millisecond, s.value)
	require.Equal(t, 50, s.ops)
	require.Equal(t, 2.0, s.per(s.spent.RPCs))
	require.Equal(t, 4, s.samples)
	require.Equal(t, time.Duration(2), s.p50)
	require.Equal(t, 200.0, s.heap)
	require.Equal(t, "overlap", s.broken)
	require.Zero(t, summarize(nil))
	require.Zero(t, summary{}.per(5))
}

func TestPiecesAddUpToARound(t *testing.T) {
	var m measure
	m.add(measure{ops: 1, samples: []time.Duration{5}, spent: counts{Bytes: 7}, broken: "overlap"})
	m.add(measure{ops: 2, samples: []time.Duration{1, 9}, spent: counts{Bytes: 3}})
	require.Equal(t, 3, m.ops)
	require.Equal(t, []time.Duration{5, 1, 9}, m.samples)
	require.EqualValues(t, 10, m.spent.Bytes)
	require.Equal(t, "overlap", m.broken, "a later piece hides it")
}

func TestCountsAddAndSubtract(t *testing.T) {
	a := counts{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	b := counts{10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130}
	require.Equal(t, a, a.plus(b).minus(b))
	require.Equal(t, counts{9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99, 108, 117}, b.minus(a))
}

func TestWhatEtcdDidIsSharedOutByHandOver(t *testing.T) {
	etcd := tally{counts{Proposals: 220, Revisions: 110}, 110}
	require.Equal(t, counts{Proposals: 200, Revisions: 100}, etcd.of(100))
	require.Zero(t, tally{}.of(5))
}

func TestWitnessSeesTwoAtOnce(t *testing.T) {
	w := &witness{}
	w.enter(1)
	w.leave(1)
	require.Empty(t, w.verdict(1))
	w.enter(1)
	w.enter(2)
	w.leave(1)
	w.leave(2)
	require.Contains(t, w.verdict(3), "overlaps")

	lost := &witness{count: 4}
	require.Contains(t, lost.verdict(5), "1 lost increments")
}

func TestWitnessLetsReadersBeTogether(t *testing.T) {
	w := &witness{}
	w.enterShared()
	w.enterShared()
	require.Empty(t, w.verdict(0))
	w.enter(1)
	require.Contains(t, w.verdict(1), "1 overlaps", "a writer beside readers")
	w.leave(1)
	w.leaveShared()
	w.leaveShared()
	w.enter(2)
	require.Contains(t, w.verdict(2), "1 overlaps", "a writer after readers")
	w.enterShared()
	require.Contains(t, w.verdict(2), "2 overlaps", "a reader beside a writer")
}

func TestInParallelDoesAllAndTellsOfAnError(t *testing.T) {
	done := make([]bool, 100)
	require.NoError(t, inParallel(len(done), func(i int) error { done[i] = true; return nil }))
	require.NotContains(t, done, false)
	require.ErrorIs(t, inParallel(3, func(int) error { return errTaken }), errTaken)
	require.NoError(t, inParallel(0, nil))
}

func TestScaleIsLogarithmic(t *testing.T) {
	s := scale{from: 1, to: 100, start: 0, end: 10}
	require.InDelta(t, 0, s.at(1), 1e-9)
	require.InDelta(t, 5, s.at(10), 1e-9)
	require.InDelta(t, 10, s.at(100), 1e-9)
}

func TestLabelsAreMovedApart(t *testing.T) {
	for _, at := range [][]float64{{50, 50, 50}, {99, 98, 97}, {10, 90, 50}, {100}, nil} {
		moved := apart(at, 10, 0, 100)
		sorted := slices.Sorted(slices.Values(moved))
		for i := 1; i < len(sorted); i++ {
			require.GreaterOrEqual(t, sorted[i]-sorted[i-1], 10-1e-9, "%v became %v", at, moved)
		}
		for i := range moved {
			require.GreaterOrEqual(t, moved[i], -1e-9)
			require.LessOrEqual(t, moved[i], 100+1e-9)
			for j := range moved {
				if at[i] < at[j] {
					require.Less(t, moved[i], moved[j], "the order has changed")
				}
			}
		}
	}
}

func TestGridLinesLieWithin(t *testing.T) {
	require.Equal(t, []float64{10, 20, 50, 100}, gridLines(8, 120))
	for _, v := range gridLines(17, 4321) {
		require.True(t, v >= 17 && v <= 4321 && !math.IsNaN(v))
	}
}
