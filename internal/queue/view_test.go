package queue

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// A view is relied on while it is live: from the read on that follows the beginning of its watch. A
// read that is not answered takes that away until one is. It covers the keys that it has shown.
func TestAViewIsReliedOnWhileItIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		s := newSession(t, server.Client("a"))
		s.put(t, s.take(t, line.Shape{}))
		s.mu.Lock()
		defer s.mu.Unlock()
		v := s.line.WatchLocked(false)
		require.False(t, v.isLiveLocked(), "its watch is under way")
		is := func(live bool, why string) {
			s.mu.Unlock()
			synctest.Wait()
			s.mu.Lock()
			require.Equal(t, live, v.isLiveLocked(), why)
			require.Equal(t, live, v.coversLocked(s.place), why)
		}
		is(true, "the line was read")
		then := func(f func()) {
			s.mu.Unlock()
			defer s.mu.Lock()
			f()
		}
		then(func() { _ = v.failed(errClosed) })
		is(false, "a read was not answered")
		then(func() { v.readLine(false) })
		is(true, "a read was answered")
		then(v.unwatched)
		is(false, "the watch has ended")
		then(func() { v.readLine(false) })
		is(false, "a read without a watch")
		then(func() { v.readLine(true) })
		is(true, "a read since there is a watch")
		require.False(t, (*view)(nil).isLiveLocked())
		server.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Event}
		})
		then(func() { s.put(t, s.take(t, line.Shape{})) })
		synctest.Wait()
		require.True(t, v.isLiveLocked() && !v.coversLocked(s.place), "its put was not shown")
	})
}

// A settler is called as the mutex of a session is unlocked.
type settler func()

func (f settler) SettleLocked() { f() }

// A key may come to linger at any moment: while the first watch of its view is under way, and as
// soon as the read after that is known. No other critical section finds the view between the two.
func TestAViewIsLiveOnceTheReadAfterItsWatchIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t, fake.NewServer().Client("a"))
		var found []bool
		s.mu.Settler = settler(func() {
			if v := s.line.view; v != nil {
				found = append(found, v.At() != 0, v.isLiveLocked())
			}
		})
		s.put(t, s.take(t, line.Shape{}))
		s.mu.Lock()
		s.line.WatchLocked(false)
		s.mu.Unlock()
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, []bool{false, true}, slices.Compact(found), "live as soon as it is read")
	})
}
