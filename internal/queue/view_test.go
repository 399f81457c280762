package queue

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// A view that is over stays so, and only one that is live is relied on: it comes to that by the
// beginning of a watch, and a read that is not answered takes it away until one is.
func TestAViewIsReliedOnWhileItIsLive(t *testing.T) {
	states := []viewState{viewBegun, viewBlind, viewLive, viewFailed, viewOver}
	illegal := map[viewState][]viewState{
		viewBegun:  {viewBegun, viewFailed},
		viewBlind:  {viewBegun, viewFailed},
		viewLive:   {viewBegun},
		viewFailed: {viewBegun, viewFailed},
	}
	for _, from := range states {
		for _, to := range states {
			v := &view{line: &Line{Name: "x", local: new(session)}, state: from}
			become := func() { v.becomesLocked(to) }
			if slices.Contains(illegal[from], to) {
				require.Panics(t, become, "%v becomes %v", from, to)
				continue
			}
			require.NotPanics(t, become, "%v becomes %v", from, to)
			if from == viewOver {
				to = viewOver
			}
			require.Equal(t, to, v.state, "%v becomes it", from)
			require.Equal(t, to == viewLive, v.isLiveLocked())
		}
	}
	require.False(t, (*view)(nil).isLiveLocked())
}

// A settler is called as the mutex of a session is unlocked.
type settler func()

func (f settler) SettleLocked() { f() }

// A key may come to linger at any moment: while the first watch of its view is under way, and as
// soon as the read after that is known. No other critical section finds the view between the two.
func TestAViewIsLiveOnceTheReadAfterItsWatchIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t, fake.NewServer().Client("a"))
		var found []viewState
		s.mu.Settler = settler(func() {
			if v := s.line.view; v != nil {
				found = append(found, v.state)
			}
		})
		s.put(t, s.take(t, line.Shape{}))
		s.mu.Lock()
		s.line.WatchLocked(false)
		s.mu.Unlock()
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, []viewState{viewBegun, viewLive}, slices.Compact(found))
	})
}
