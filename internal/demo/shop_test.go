package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newShop(t *testing.T, items int) shop {
	t.Helper()
	s := shopIn(t.TempDir())
	require.NoError(t, s.open(items))
	return s
}

func TestStockIsWhatWasWrittenLast(t *testing.T) {
	s := newShop(t, 1_000_000)
	for _, want := range []int{1_000_000, 999_999, 300, 99, 1, 0} {
		require.NoError(t, s.writeStock(want))
		left, err := s.readStock()
		require.NoError(t, err)
		require.Equal(t, want, left)
	}
}

// A reader between two bytes of a write finds a number, since the file is never shorter
// than one.
func TestStockFileKeepsItsLength(t *testing.T) {
	s := newShop(t, 300)
	before, err := os.Stat(s.stock)
	require.NoError(t, err)
	require.NoError(t, s.writeStock(9))
	after, err := os.Stat(s.stock)
	require.NoError(t, err)
	require.Equal(t, before.Size(), after.Size())
}

func TestDamagedStockIsAnError(t *testing.T) {
	s := newShop(t, 300)
	require.NoError(t, os.WriteFile(s.stock, []byte("three hundred\n"), 0o600))
	_, err := s.readStock()
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
		{Request: 2, Worker: 1, Item: 300, Token: 7, Waited: time.Millisecond, Entered: now},
		{Request: 1, Worker: 2, Item: 299, Token: 9, Retries: 1, Entered: now},
		{Request: 3, Worker: 1, Token: 11, Entered: now},
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
	require.NoError(t, os.WriteFile(s.journal, []byte("{\"Request\":1}\n{\"Requ"), 0o600))
	_, err := s.records()
	require.ErrorContains(t, err, "line 2")
}
