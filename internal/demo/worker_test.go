package main

import (
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/etcdlock/etcdlock"
	"github.com/stretchr/testify/require"
)

// newWorker returns a worker of s and where its messages arrive.
func newWorker(t *testing.T, s shop) (*worker, *json.Decoder) {
	t.Helper()
	read, write := io.Pipe()
	t.Cleanup(func() { read.Close() })
	journal, err := s.openJournal()
	require.NoError(t, err)
	t.Cleanup(func() { journal.Close() })
	return &worker{number: 1, shop: s, journal: journal, out: json.NewEncoder(write)},
		json.NewDecoder(read)
}

func receive(t *testing.T, messages *json.Decoder) message {
	t.Helper()
	var m message
	require.NoError(t, messages.Decode(&m))
	return m
}

// The hold is lost between reading and writing: nothing is written, and the worker tries
// the request again under a new hold.
func TestLostHoldWritesNothingAndIsTriedAgain(t *testing.T) {
	s := newShop(t, 300)
	w, messages := newWorker(t, s)
	holds := 0
	w.guard = func(ctx context.Context, _ []int, fn func(context.Context) error) error {
		if holds++; holds > 1 {
			return fn(ctx)
		}
		hold, cancel := context.WithCancelCause(ctx)
		cancel(&etcdlock.LostError{Name: "demo"})
		err := fn(hold)
		require.ErrorIs(t, err, etcdlock.ErrLost)
		left, readErr := s.readStock(0)
		require.NoError(t, readErr)
		require.Equal(t, 300, left)
		return err
	}

	go w.serve(t.Context(), request{ID: 7}) // ends with its answer, received below
	answer := receive(t, messages).Answer
	require.NotNil(t, answer)
	require.Equal(t, 7, answer.Request)
	require.True(t, answer.Sold)
	require.Equal(t, []int{300}, answer.Read)
	require.Equal(t, 1, answer.Retries)
	left, err := s.readStock(0)
	require.NoError(t, err)
	require.Equal(t, 299, left)
}

// What was written stays answered, whatever the release says.
func TestSaleStandsWhenTheReleaseFails(t *testing.T) {
	s := newShop(t, 300)
	w, messages := newWorker(t, s)
	w.guard = func(ctx context.Context, _ []int, fn func(context.Context) error) error {
		require.NoError(t, fn(ctx))
		return etcdlock.ErrLost
	}
	go w.serve(t.Context(), request{ID: 1}) // ends with its answer, received below
	m := receive(t, messages)
	require.NotNil(t, m.Answer)
	require.Equal(t, etcdlock.ErrLost.Error(), m.ReleaseError)
	journal, err := s.records()
	require.NoError(t, err)
	require.Len(t, journal, 1)
}

func TestEmptyShelfRefuses(t *testing.T) {
	s := newShop(t, 0)
	w, messages := newWorker(t, s)
	w.guard = unlocked
	go w.serve(t.Context(), request{ID: 1}) // ends with its answer, received below
	require.False(t, receive(t, messages).Answer.Sold)
	left, err := s.readStock(0)
	require.NoError(t, err)
	require.Zero(t, left)
}

// A worker that is stalled inside the critical section ends with its input,
// and has not written.
func TestWorkerEndsWithItsInput(t *testing.T) {
	s := newShop(t, 300)
	w, messages := newWorker(t, s)
	in, parent := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- w.run(in) }() // ends with parent.Close, received from below

	send := json.NewEncoder(parent)
	require.NoError(t, send.Encode(setup{Worker: 1, Dir: s.dir, Articles: s.articles}))
	require.True(t, receive(t, messages).Ready)
	require.NoError(t, send.Encode(request{ID: 1, Stall: true}))
	receive(t, messages)
	parent.Close()
	require.NoError(t, <-ended)

	left, err := s.readStock(0)
	require.NoError(t, err)
	require.Equal(t, 300, left)
	journal, err := s.records()
	require.NoError(t, err)
	require.Empty(t, journal)
}
