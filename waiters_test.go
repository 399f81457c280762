package etcdlock

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// The order in which those who wait at home go away.
var departures = map[string]func(claims []*claim){
	"the first first": func([]*claim) {},
	"the last first": func(claims []*claim) {
		for i, j := 0, len(claims)-1; i < j; i, j = i+1, j-1 {
			claims[i], claims[j] = claims[j], claims[i]
		}
	},
	"in any order": func(claims []*claim) {
		rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
	},
}

// waitAtHome has n claims wait behind a hold of m's.
func waitAtHome(t *testing.T, m *Mutex, n int) (claims []*claim) {
	t.Helper()
	for range n {
		c, locked, err := m.enter(func(error) {}, time.Now(), false)
		require.NoError(t, err)
		require.NotNil(t, locked)
		claims = append(claims, c)
	}
	return claims
}

// heldMutex is a Mutex that is held, of an etcd in memory.
func heldMutex(t *testing.T) *Mutex {
	m, err := New(fake.NewServer().Client("a"), "x")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(context.Background())) })
	require.NoError(t, m.Lock(t.Context()))
	return m
}

// Of many goroutines that stop waiting at once each takes no longer than of a few: the
// Session's mutex, which a renewal needs, is free soon.
func TestGoingAwayTakesNoLongerAmongMany(t *testing.T) {
	const few, many = 1000, 100_000
	m := heldMutex(t)
	for name, arrange := range departures {
		t.Run(name, func(t *testing.T) {
			each := func(n int) time.Duration {
				best := time.Duration(1<<63 - 1)
				for range 5 { // the machine may be busy
					claims := waitAtHome(t, m, n)
					arrange(claims)
					started := time.Now()
					for _, c := range claims {
						m.s.leave(c)
					}
					best = min(best, time.Since(started))
				}
				return best / time.Duration(n)
			}
			alone, crowd := each(few), each(many)
			t.Logf("%v each of %d, %v each of %d", alone, few, crowd, many)
			require.Less(t, crowd, 10*alone+time.Microsecond/2)
		})
	}
}

// The same of the turn that comes to one after the other.
func TestTurnsTakeNoLongerAmongMany(t *testing.T) {
	const few, many = 1000, 100_000
	m := heldMutex(t)
	each := func(n int) time.Duration {
		best := time.Duration(1<<63 - 1)
		for range 5 {
			waitAtHome(t, m, n)
			m.s.mu.Lock()
			l := m.s.lines["x"]
			owner := l.owner
			started := time.Now()
			for range n {
				m.s.passLocked(l, nil, nil)
			}
			best = min(best, time.Since(started))
			l.owner = owner
			m.s.unlock()
		}
		return best / time.Duration(n)
	}
	alone, crowd := each(few), each(many)
	t.Logf("%v each of %d, %v each of %d", alone, few, crowd, many)
	require.Less(t, crowd, 10*alone+time.Microsecond/2)
}

// Whoever goes away is told its place: exactly behind a few, and behind more exactly unless
// somebody has left from among them.
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
				told := m.s.leave(c).Ahead
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
