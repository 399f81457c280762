package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// goodOrders returns the journal of twelve orders, with two items of each article
// at the start, and what is left.
func goodOrders() (journal []record, left []int) {
	left = slices.Repeat([]int{2}, articles)
	for id := range 12 {
		r := record{Request: id + 1, Worker: 1, Token: int64(10 + id)}
		basket := basketOf(r.Request)
		for _, a := range basket {
			r.Read = append(r.Read, left[a])
		}
		if slices.Min(r.Read) > 0 {
			r.Item = len(basket)
			for _, a := range basket {
				left[a]--
			}
		}
		journal = append(journal, r)
	}
	return journal, left
}

func TestBasketHasEachArticleOnce(t *testing.T) {
	sizes := make(map[int]int)
	for id := range 1000 {
		basket := basketOf(id)
		sizes[len(basket)]++
		slices.Sort(basket)
		require.Len(t, slices.Compact(slices.Clone(basket)), len(basket))
	}
	require.Len(t, sizes, basketMax)
}

func TestGoodOrdersHaveNoFaults(t *testing.T) {
	journal, left := goodOrders()
	v := judgeOrders(2, left, 12, journal, answersOf(journal), true)
	require.Empty(t, v.faults())
	require.Positive(t, v.sold)
	require.Positive(t, v.refused)
}

func TestOrderJudgeFindsEachFault(t *testing.T) {
	first := basketOf(1)
	for _, test := range []struct {
		name  string
		spoil func(journal []record, left []int) []record
		want  string
	}{
		{"an item sold twice", func(j []record, _ []int) []record { j[0].Read[0]--; return j },
			"items were sold that were already sold"},
		{"half an order", func(j []record, left []int) []record { left[first[0]]++; return j },
			"1 articles have a stock file"},
		{"an item gone without an order", func(j []record, left []int) []record { left[first[0]]--; return j },
			"1 articles have a stock file"},
		{"refused too early", func(j []record, left []int) []record {
			j[0].Item = 0
			for _, a := range first {
				left[a]++
			}
			return j
		}, "1 orders were refused while"},
		{"an order decided twice", func(j []record, _ []int) []record {
			last := j[len(j)-1]
			last.Token++
			return append(j, last)
		}, "1 orders were decided a second time"},
		{"an order forgotten", func(j []record, _ []int) []record { return j[:11] },
			"1 orders have no record"},
		{"a token that goes back", func(j []record, _ []int) []record { j[11].Token = 1; return j },
			"fencing tokens of an article"},
	} {
		t.Run(test.name, func(t *testing.T) {
			journal, left := goodOrders()
			journal = test.spoil(journal, left)
			faults := judgeOrders(2, left, 12, journal, answersOf(journal), true).faults()
			require.NotEmpty(t, faults)
			require.Contains(t, faults[0], test.want)
		})
	}
}
