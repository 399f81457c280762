package etcdlock

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// departures are orders in which those that wait in the local line go away.
var departures = map[string]func(claims []*claim){
	"the first first": func([]*claim) {},
	"the last first":  slices.Reverse[[]*claim],
	"in any order": func(claims []*claim) {
		rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
	},
}

// waitAtHome makes n claims wait in the local line behind a hold of m's.
func waitAtHome(t *testing.T, m *Mutex, n int) (claims []*claim) {
	t.Helper()
	for range n {
		c := request{m: &m.lockHandle}.newClaim(t.Context(), time.Now())
		require.NoError(t, call(c.alone[:]).enter(func(error) {}))
		require.NotNil(t, c.turn)
		claims = append(claims, c)
	}
	return claims
}

// heldMutex returns a Mutex of an etcd in memory, which holds.
func heldMutex(t *testing.T) *Mutex {
	m, err := New(fake.NewServer().Client("a"), "x")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(context.Background())) })
	require.NoError(t, m.Lock(t.Context()))
	return m
}

// Many goroutines that stop waiting at once do not each search the line: they hold the
// Session's mutex, and a renewal waits for it. The test measures one search beside them, so
// that a busy or slow machine is so for both.
func TestGoingAwayTakesNoSearchOfTheLine(t *testing.T) {
	n := race.Fewer(100_000, 20_000)
	m := heldMutex(t)
	for name, arrange := range departures {
		t.Run(name, func(t *testing.T) {
			timed := func(f func()) time.Duration {
				started := time.Now()
				f()
				return time.Since(started)
			}
			search, each := time.Duration(1<<63-1), time.Duration(1<<63-1)
			for range 3 {
				claims := waitAtHome(t, m, n)
				for range 20 {
					search = min(search, timed(func() { require.Negative(t, slices.Index(claims, nil)) }))
				}
				arrange(claims)
				// It takes the best of some while nearly all still wait, since one may be
				// interrupted.
				for few := range slices.Chunk(claims[:n/4], n/40) {
					each = min(each, timed(func() {
						for _, c := range few {
							call(c.alone[:]).leave()
						}
					})/time.Duration(len(few)))
				}
				for _, c := range claims[n/4:] {
					call(c.alone[:]).leave()
				}
			}
			t.Logf("%v each, a search takes %v", each, search)
			require.Less(t, each, search/5)
		})
	}
}

// A caller that goes away learns its place: exactly behind a few, and behind more exactly
// unless somebody among them has left.
func TestWhoGoesAwayKnowsItsPlace(t *testing.T) {
	m := heldMutex(t)
	for name, arrange := range departures {
		t.Run(name, func(t *testing.T) {
			const n = 50
			line := waitAtHome(t, m, n)
			leaving := append([]*claim(nil), line...)
			arrange(leaving)
			gone := make(map[*claim]bool)
			for _, c := range leaving {
				ahead := 1 // the holder
				for _, other := range line {
					if other == c {
						break
					}
					if !gone[other] {
						ahead++
					}
				}
				_, locked := call(c.alone[:]).leave()
				told := locked.Ahead
				gone[c] = true
				if ahead <= fewAhead+1 || name == "the last first" || name == "the first first" {
					require.Equal(t, ahead, told)
				}
				require.GreaterOrEqual(t, told, ahead)
				require.LessOrEqual(t, told, n-len(gone)+1, "no more than wait")
			}
			locked := m.TryLock(t.Context())
			require.ErrorIs(t, locked, ErrLocked)
			require.ErrorContains(t, locked, "held by")
			require.NotContains(t, locked.Error(), "waiting")
		})
	}
}

// After a pause of the process a hold may be over, while the timer that ends it has not run. A call
// that finds the lock taken compares the clock itself.
func TestAHoldThatIsOverByTheClockIsNotToldAsTheHolder(t *testing.T) {
	m := heldMutex(t)
	m.s.mu.Lock()
	m.hold.most = time.Now()
	m.s.mu.Unlock()
	err := m.TryLock(t.Context())
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, "waits for the Unlock of a hold lost here")
	require.ErrorIs(t, m.Unlock(t.Context()), ErrMaxHold)
}
