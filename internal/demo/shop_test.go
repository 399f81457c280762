package main

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newShop(t *testing.T, items int) shop {
	t.Helper()
	s := shop{dir: t.TempDir(), articles: 1}
	require.NoError(t, s.open(items))
	return s
}

func TestStockIsWhatWasWrittenLast(t *testing.T) {
	s := newShop(t, 1_000_000)
	for _, want := range []int{1_000_000, 999_999, 300, 99, 1, 0} {
		require.NoError(t, s.writeStock(0, want))
		left, err := s.readStock(0)
		require.NoError(t, err)
		require.Equal(t, want, left)
	}
}

// A reader between two bytes of a write finds a number, since the file is never shorter
// than one.
func TestStockFileKeepsItsLength(t *testing.T) {
	s := newShop(t, 300)
	before, err := os.Stat(s.stock(0))
	require.NoError(t, err)
	require.NoError(t, s.writeStock(0, 9))
	after, err := os.Stat(s.stock(0))
	require.NoError(t, err)
	require.Equal(t, before.Size(), after.Size())
}

func TestDamagedStockIsAnError(t *testing.T) {
	s := newShop(t, 300)
	require.NoError(t, os.WriteFile(s.stock(0), []byte("three hundred\n"), 0o600))
	_, err := s.readStock(0)
	require.ErrorContains(t, err, "three hundred")
}

func TestJournalKeepsRecordsInTheOrderOfWriting(t *testing.T) {
	s := newShop(t, 300)
	// Two open files, as two processes have them.
	a, err := s.openJournal()
	require.NoError(t, err)
	defer a.Close()
	b, err := s.openJournal()
	require.NoError(t, err)
	defer b.Close()

	now := time.Now().UTC().Round(0)
	want := []record{
		{Request: 2, Worker: 1, Read: []int{300}, Sold: true, Token: 7, Waited: 1, Entered: now},
		{Request: 1, Worker: 2, Read: []int{299}, Sold: true, Token: 9, Retries: 1, Entered: now},
		{Request: 3, Worker: 1, Read: []int{0}, Token: 11, Entered: now},
	}
	require.NoError(t, want[0].appendTo(a))
	require.NoError(t, want[1].appendTo(b))
	require.NoError(t, want[2].appendTo(a))

	got, err := s.records()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestDamagedJournalIsAnError(t *testing.T) {
	s := newShop(t, 300)
	require.NoError(t, os.WriteFile(s.journal(), []byte("{\"Request\":1}\n{\"Requ"), 0o600))
	_, err := s.records()
	require.ErrorContains(t, err, "line 2")
}

func TestBasketHasEachArticleOnce(t *testing.T) {
	s := shop{articles: orderArticles}
	sizes := make(map[int]int)
	for id := range 1000 {
		basket := s.basket(id)
		require.Equal(t, basket, s.basket(id))
		sizes[len(basket)]++
		slices.Sort(basket)
		require.Len(t, slices.Compact(slices.Clone(basket)), len(basket))
	}
	require.Len(t, sizes, basketMax)
}
