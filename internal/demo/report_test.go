package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// goodSale returns the journal of a sale of 3 items with 5 requests.
func goodSale() []record {
	return []record{
		{Request: 2, Worker: 1, Item: 3, Token: 10},
		{Request: 1, Worker: 2, Item: 2, Token: 12},
		{Request: 3, Worker: 1, Item: 1, Token: 15},
		{Request: 5, Worker: 2, Item: 0, Token: 16},
		{Request: 4, Worker: 1, Item: 0, Token: 19},
	}
}

func answersOf(journal []record) map[int]record {
	answers := make(map[int]record)
	for _, r := range journal {
		answers[r.Request] = r
	}
	return answers
}

func TestGoodSaleHasNoFaults(t *testing.T) {
	journal := goodSale()
	v := judge(3, 0, 5, journal, answersOf(journal), true)
	require.Empty(t, v.faults())
	require.Equal(t, 3, v.sold)
	require.Equal(t, 2, v.refused)
}

func TestSaleOfFewerThanThereAreHasNoFaults(t *testing.T) {
	journal := goodSale()[:2]
	journal[0].Request, journal[1].Request = 1, 2
	require.Empty(t, judge(3, 1, 2, journal, answersOf(journal), true).faults())
}

func TestJudgeFindsEachFault(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(journal []record) (spoiled []record, left int)
		want  []string
	}{
		{
			// Both read 3; the second write hides the first.
			name: "an item sold twice",
			spoil: func(journal []record) ([]record, int) {
				journal[1].Item = 3
				journal[2].Item = 2
				journal[3].Item = 1
				return journal, 0
			},
			want: []string{
				"1 sales were of an item already sold, or never there",
				"1 sales are missing from the stock file",
			},
		},
		{
			name: "more sold than there are",
			spoil: func(journal []record) ([]record, int) {
				journal[3].Item = -1
				return journal, -1
			},
			want: []string{"1 sales were of an item already sold, or never there"},
		},
		{
			name: "an item above the stock",
			spoil: func(journal []record) ([]record, int) {
				journal[0].Item = 4
				return journal, 0
			},
			want: []string{"1 sales were of an item already sold, or never there"},
		},
		{
			name:  "a lost update",
			spoil: func(journal []record) ([]record, int) { return journal[:3], 1 },
			want: []string{
				"1 sales are missing from the stock file",
				"2 requests have no record in the journal",
			},
		},
		{
			name: "an item that vanished",
			spoil: func(journal []record) ([]record, int) {
				journal[2].Item = 0
				return journal, 0
			},
			want: []string{"1 items left the stock file without a sale"},
		},
		{
			name: "refused too early",
			spoil: func(journal []record) ([]record, int) {
				journal[2].Item = 0
				return journal, 1
			},
			want: []string{"3 requests were refused while items were left"},
		},
		{
			name: "a token that goes back",
			spoil: func(journal []record) ([]record, int) {
				journal[3].Token = 14
				return journal, 0
			},
			want: []string{"fencing token 14 came after 15"},
		},
		{
			name: "a token that stands still",
			spoil: func(journal []record) ([]record, int) {
				journal[1].Token = 10
				return journal, 0
			},
			want: []string{"fencing token 10 came after 10"},
		},
		{
			name: "no token",
			spoil: func(journal []record) ([]record, int) {
				journal[0].Token = 0
				return journal, 0
			},
			want: []string{"fencing token 0 came after 0"},
		},
		{
			name: "a request decided twice",
			spoil: func(journal []record) ([]record, int) {
				return append(journal, record{Request: 4, Worker: 2, Token: 20}), 0
			},
			want: []string{"1 requests were decided a second time"},
		},
		{
			name: "a request forgotten",
			spoil: func(journal []record) ([]record, int) {
				return slices.Delete(journal, 3, 4), 0
			},
			want: []string{"1 requests have no record in the journal"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			journal, left := test.spoil(goodSale())
			require.Equal(t, test.want, judge(3, left, 5, journal, answersOf(journal), true).faults())
		})
	}
}

func TestJudgeTakesNoWorkersWord(t *testing.T) {
	journal := goodSale()
	answers := answersOf(journal)
	answers[5] = record{Request: 5, Worker: 2, Item: 1, Token: 16}
	require.Equal(t, []string{"1 answers differ from the journal"},
		judge(3, 0, 5, journal, answers, true).faults())
}

func TestWithoutALockThereAreNoTokensToJudge(t *testing.T) {
	journal := goodSale()
	for i := range journal {
		journal[i].Token = 0
	}
	require.Empty(t, judge(3, 0, 5, journal, answersOf(journal), false).faults())
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
