package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// oneArticle is the shop of a sale, and manyArticles that of orders.
var oneArticle, manyArticles = shop{articles: 1}, shop{articles: orderArticles}

// goodSale returns the journal of a sale of 3 items with 5 requests, and what is left.
func goodSale() ([]record, []int) {
	return []record{
		{Request: 2, Worker: 1, Read: []int{3}, Sold: true, Token: 10},
		{Request: 1, Worker: 2, Read: []int{2}, Sold: true, Token: 12},
		{Request: 3, Worker: 1, Read: []int{1}, Sold: true, Token: 15},
		{Request: 5, Worker: 2, Read: []int{0}, Token: 16},
		{Request: 4, Worker: 1, Read: []int{0}, Token: 19},
	}, []int{0}
}

// goodOrders returns the journal of twelve orders, with two items of each article
// at the start, and what is left.
func goodOrders() (journal []record, left []int) {
	left = slices.Repeat([]int{2}, orderArticles)
	for id := range 12 {
		r := record{Request: id + 1, Worker: 1, Token: int64(10 + id)}
		basket := manyArticles.basket(r.Request)
		for _, a := range basket {
			r.Read = append(r.Read, left[a])
		}
		if r.Sold = slices.Min(r.Read) > 0; r.Sold {
			for _, a := range basket {
				left[a]--
			}
		}
		journal = append(journal, r)
	}
	return journal, left
}

func answersOf(journal []record) map[int]record {
	answers := make(map[int]record)
	for _, r := range journal {
		answers[r.Request] = r
	}
	return answers
}

func TestGoodSaleHasNoFaults(t *testing.T) {
	journal, left := goodSale()
	v := oneArticle.judge(3, left, 5, journal, answersOf(journal), true)
	require.Empty(t, v.faults())
	require.Equal(t, verdict{sold: 3, refused: 2, items: 3}, v)
}

func TestGoodOrdersHaveNoFaults(t *testing.T) {
	journal, left := goodOrders()
	v := manyArticles.judge(2, left, 12, journal, answersOf(journal), true)
	require.Empty(t, v.faults())
	require.Positive(t, v.sold)
	require.Positive(t, v.refused)
}

func TestSaleOfFewerThanThereAreHasNoFaults(t *testing.T) {
	journal, _ := goodSale()
	journal = journal[:2]
	journal[0].Request, journal[1].Request = 1, 2
	require.Empty(t, oneArticle.judge(3, []int{1}, 2, journal, answersOf(journal), true).faults())
}

func TestJudgeFindsEachFault(t *testing.T) {
	const (
		oversold  = "1 items were sold that were already sold, or never there"
		lost      = "1 sales are missing from a stock file"
		tokenBack = "1 fencing tokens were not above the one before"
	)
	for _, test := range []struct {
		name  string
		spoil func(j []record, left []int) (journal []record)
		want  []string
	}{
		// Both read 3; the second write hides the first.
		{"an item sold twice", func(j []record, _ []int) []record {
			j[1].Read[0], j[2].Read[0], j[3].Read[0], j[3].Sold = 3, 2, 1, true
			return j
		}, []string{oversold, lost}},
		{"more sold than there are", func(j []record, left []int) []record {
			j[3].Read[0], j[3].Sold, left[0] = -1, true, -1
			return j
		}, []string{oversold}},
		{"an item above the stock", func(j []record, _ []int) []record { j[0].Read[0] = 4; return j },
			[]string{oversold}},
		{"a lost update", func(j []record, left []int) []record { left[0] = 1; return j[:3] },
			[]string{lost, "2 requests have no record in the journal"}},
		{"an item that vanished", func(j []record, _ []int) []record {
			j[2].Read[0], j[2].Sold = 0, false
			return j
		}, []string{"1 items left a stock file without a sale"}},
		{"refused too early, by what is left", func(j []record, left []int) []record {
			j[2].Read[0], j[2].Sold, left[0] = 0, false, 1
			return j
		}, []string{"3 requests were refused while their items were left"}},
		{"refused too early, by what was read", func(j []record, _ []int) []record { j[3].Read[0] = 1; return j },
			[]string{"1 requests were refused while their items were left"}},
		{"a token that goes back", func(j []record, _ []int) []record { j[3].Token = 14; return j },
			[]string{tokenBack}},
		{"a token that stands still", func(j []record, _ []int) []record { j[1].Token = 10; return j },
			[]string{tokenBack}},
		{"no token", func(j []record, _ []int) []record { j[0].Token = 0; return j },
			[]string{tokenBack}},
		{"a request decided twice", func(j []record, _ []int) []record {
			return append(j, record{Request: 4, Worker: 2, Read: []int{0}, Token: 20})
		}, []string{"1 requests were decided a second time"}},
		{"a request forgotten", func(j []record, _ []int) []record { return slices.Delete(j, 3, 4) },
			[]string{"1 requests have no record in the journal"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			journal, left := goodSale()
			journal = test.spoil(journal, left)
			v := oneArticle.judge(3, left, 5, journal, answersOf(journal), true)
			require.Equal(t, test.want, v.faults())
		})
	}
}

func TestJudgeFindsHalfAnOrder(t *testing.T) {
	first := manyArticles.basket(1)[0]
	for _, half := range []struct {
		change int // of the file of one article
		want   string
	}{
		{+1, "1 sales are missing from a stock file"},
		{-1, "1 items left a stock file without a sale"},
	} {
		journal, left := goodOrders()
		left[first] += half.change
		v := manyArticles.judge(2, left, 12, journal, answersOf(journal), true)
		require.Equal(t, []string{half.want}, v.faults())
	}
}

func TestJudgeTakesNoWorkersWord(t *testing.T) {
	journal, left := goodSale()
	answers := answersOf(journal)
	answers[5] = record{Request: 5, Worker: 2, Read: []int{1}, Sold: true, Token: 16}
	require.Equal(t, []string{"1 answers differ from the journal"},
		oneArticle.judge(3, left, 5, journal, answers, true).faults())
}

func TestWithoutALockThereAreNoTokensToJudge(t *testing.T) {
	journal, left := goodSale()
	for i := range journal {
		journal[i].Token = 0
	}
	require.Empty(t, oneArticle.judge(3, left, 5, journal, answersOf(journal), false).faults())
}

func TestBlockedIsFromTheKillToTheNextHold(t *testing.T) {
	killed := time.Now()
	journal := []record{
		{Token: 10, Entered: killed.Add(-time.Second)},
		{Token: 15, Entered: killed.Add(1800 * time.Millisecond)},
		{Token: 16, Entered: killed.Add(1900 * time.Millisecond)},
	}
	c := &crash{token: 12, at: killed}
	blocked, found := c.blockedFor(journal)
	require.True(t, found)
	require.Equal(t, 1800*time.Millisecond, blocked)

	_, found = c.blockedFor(journal[:1])
	require.False(t, found)
}

func TestPercentileIsByNearestRank(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	require.Equal(t, time.Duration(50), percentile(hundred, 50))
	require.Equal(t, time.Duration(99), percentile(hundred, 99))
	require.Equal(t, time.Duration(1), percentile(hundred[:1], 50))
	require.Equal(t, time.Duration(1), percentile(hundred[:1], 99))
	require.Equal(t, time.Duration(2), percentile(hundred[:3], 50))
}
