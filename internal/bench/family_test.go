package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/side"
)

// Each column of the page's tables names existing alternatives.
func TestThePagesColumnsAreOfAlternativesThatThereAre(t *testing.T) {
	known := make(map[string]bool)
	for _, a := range alternatives {
		known[a.name] = true
	}
	for _, peer := range slices.Concat(familyColumns, fleetColumns) {
		for _, name := range peer.names {
			require.True(t, known[name], "%s is none", name)
		}
	}
}

// A nowhere is a system without servers.
type nowhere struct{}

func (nowhere) address() string { return "" }
func (nowhere) version() string { return "" }
func (nowhere) pids() []int     { return nil }
func (nowhere) stop()           {}

// inMemory measures a case with locks that are in no system.
func inMemory(t *testing.T, p party, c benchCase) measure {
	t.Helper()
	a := &arena{
		system: nowhere{}, wire: &wire{}, slice: 50 * time.Millisecond, serial: new(int),
	}
	a.alternative.open = func(context.Context, string, time.Duration, *wire) (party, error) {
		return p, nil
	}
	e, err := c.start(t.Context(), a)
	require.NoError(t, err)
	defer e.end()
	m, err := e.piece(t.Context())
	require.NoError(t, err)
	require.Positive(t, m.ops)
	return m
}

// A localParty has locks of this process.
type localParty struct {
	reader, writer side.Lock
}

func (p localParty) lock(context.Context, string) (side.Lock, error) { return p.writer, nil }
func (p localParty) close()                                          {}

func (p localParty) rwLock(context.Context, string) (reader, writer side.Lock, err error) {
	return p.reader, p.writer, nil
}

// A localLock is functions.
type localLock struct{ lock, unlock func() }

func (l localLock) Lock(context.Context) error    { l.lock(); return nil }
func (l localLock) TryLock(context.Context) error { return errors.ErrUnsupported }
func (l localLock) Unlock(context.Context) error  { l.unlock(); return nil }

func TestAMixSeesWhatAReadWriteLockDoesNotExclude(t *testing.T) {
	var rw sync.RWMutex
	reader, writer := localLock{rw.RLock, rw.RUnlock}, localLock{rw.Lock, rw.Unlock}
	require.Empty(t, inMemory(t, localParty{reader, writer}, mixCase(50)).broken)

	// This lock forgets its readers. They yield, as a waiter does.
	yields := localLock{func() { time.Sleep(time.Microsecond) }, func() {}}
	require.Contains(t, inMemory(t, localParty{yields, writer}, mixCase(50)).broken, "overlaps")
}

func (p localParty) permit(string, int) (side.Lock, error) { return p.writer, nil }

func TestPermitsSeeMoreThanTheLimit(t *testing.T) {
	free := make(chan struct{}, 4)
	semaphore := localLock{func() { free <- struct{}{} }, func() { <-free }}
	require.Empty(t, inMemory(t, localParty{nothing, semaphore}, permitsCase(4)).broken)
	require.Contains(t, inMemory(t, localParty{nothing, semaphore}, permitsCase(3)).broken, "overlaps")
}

// A section of a mix writes as often as it should, and the sections do not all write at the
// same time.
func TestAMixWritesAsOftenAsItIsToWrite(t *testing.T) {
	for _, writes := range []int{10, 50} {
		together := make([]int, 100)
		a, p := &arena{serial: new(int)}, localParty{nothing, nothing}
		made, err := a.rwSections(t.Context(), []party{p}, 16, writes)
		require.NoError(t, err)
		for _, s := range made {
			for i := range together {
				before := s.holds
				require.NoError(t, s.through(t.Context()))
				together[i] += s.holds - before
			}
			require.Equal(t, writes, s.holds, "of 100")
		}
		for _, n := range together {
			require.Less(t, n, 16, "all write at once")
		}
	}
}

var nothing = localLock{func() {}, func() {}}

// A loggedLock records its calls, and fails where the test says so.
type loggedLock struct {
	name string
	log  *[]string
	err  error
}

func (l loggedLock) Lock(context.Context) error {
	*l.log = append(*l.log, "lock "+l.name)
	return l.err
}
func (l loggedLock) TryLock(context.Context) error { return errors.ErrUnsupported }
func (l loggedLock) Unlock(context.Context) error {
	*l.log = append(*l.log, "unlock "+l.name)
	return nil
}

func TestLocksInOrderAreAllOrNone(t *testing.T) {
	var log []string
	a, b := loggedLock{"a", &log, nil}, loggedLock{"b", &log, nil}
	all := inOrder{a, b}
	require.NoError(t, all.Lock(t.Context()))
	require.NoError(t, all.Unlock(t.Context()))
	require.Equal(t, []string{"lock a", "lock b", "unlock b", "unlock a"}, log)

	log = nil
	refused := errors.New("refused")
	require.ErrorIs(t, inOrder{a, b, loggedLock{"c", &log, refused}}.Lock(t.Context()), refused)
	require.Equal(t, []string{"lock a", "lock b", "lock c", "unlock b", "unlock a"}, log)
}
