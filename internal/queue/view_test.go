package queue

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
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
