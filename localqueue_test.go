package etcdlock

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
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
		c := request{m: &m.lockHandle}.newClaim()
		require.NoError(t, c.enter(func(error) {}))
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

// A wait in etcd's line whose Session is closed ends with ErrClosed, also at the instant at which
// its context has not ended yet.
func TestAWaitSaysThatItsSessionIsClosedBeforeItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, ctx := fake.NewServer(), context.Background()
		holder, err := New(etcd.Client("a"), "x")
		require.NoError(t, err)
		defer holder.Close(ctx)
		require.NoError(t, holder.Lock(ctx))

		m, err := New(etcd.Client("b"), "x")
		require.NoError(t, err)
		c := request{m: &m.lockHandle}.newClaim()
		require.NoError(t, c.enter(func(error) {})) // the instant lasts
		_, err = m.s.leases.Take(ctx, c.takePlacesLocked)
		require.NoError(t, err)
		h, err := c.put(ctx)
		require.NoError(t, err)
		require.Nil(t, h)
		require.NoError(t, m.Close(ctx))
		err = c.wait(ctx)
		require.ErrorIs(t, err, ErrClosed)
		require.EqualError(t, c.retreat(ctx, err, new(attempt.Backoff)),
			failed("lock", "x", ErrClosed).Error())
	})
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
				_, locked := c.leave()
				told := locked.Ahead
				gone[c] = true
				if ahead <= queue.FewAhead+1 || name == "the last first" || name == "the first first" {
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
	m.hold.Load().most = time.Now()
	m.s.mu.Unlock()
	err := m.TryLock(t.Context())
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, "waits for the Unlock of a hold lost here")
	require.ErrorIs(t, m.Unlock(t.Context()), ErrMaxHold)
}

// A settlesAll is a Settler that fails the test if a line that was not marked could be settled
// further, too.
type settlesAll struct {
	*markedLines
	t *testing.T
	s *Session
}

func (all settlesAll) SettleLocked() {
	all.markedLines.SettleLocked()
	for _, n := range all.s.lines {
		first := n.queue.First()
		if first == nil || first.Value.exclusive() || n.queue.State() != turn.Taken ||
			all.s.leases.ClosedLocked() || first.Value.m.closed {
			continue
		}
		c, p := first.Value, n.queue.Owner().place
		held := p != nil && p.Ticket.State() == ticket.Held
		n.WatchedLocked() // a view from before a set-back ends, and marks the line
		switch admission := n.admissionLocked(c.Kind, n.queue.Early(first)); {
		case all.last != nil: // to ask has ended a lease, by the clock
		case admission == undecided && held && !n.WatchedLocked():
			all.t.Error("no view tells whether a waiter may join")
		case admission == admitted && c.waiter.Steps:
			all.t.Error("a permit could have the turn")
		case admission == admitted && p.checkCanBeginLocked(c, time.Now()) == nil:
			all.t.Error("a reader could join")
		}
	}
	all.markedLines.SettleLocked()
}

// requireRefused fails if TryRLock or TryAcquire waits for another contender.
func requireRefused(t *testing.T, s *Session) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.lines {
		first := n.queue.First()
		if first == nil || n.queue.State() != turn.Taken || first.Value.exclusive() ||
			n.admissionLocked(first.Value.Kind, n.queue.Early(first)) != mustQueue {
			continue
		}
		for c := range n.queue.All() {
			require.False(t, c.Try && c.waiter.Standing() == turn.Waiting, "a call that only tries waits")
		}
	}
}

// A waiter that may have the turn beside its owner gets it by the very Unlock of what has changed,
// whatever that is: no other event may ever come.
func TestAWaiterIsLetInByTheUnlockOfWhateverChanges(t *testing.T) {
	for seed := range uint64(race.Fewer(300, 60)) {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Log("seed", seed)
				}
			}()
			random := rand.New(rand.NewPCG(seed, 0))
			within := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
			etcd := fake.NewServer()
			var sessions []*Session
			for _, name := range []string{"a", "b"} {
				s, err := NewSession(etcd.Client(name), WithTTL(5*time.Second), WithRecall(time.Second))
				require.NoError(t, err)
				s.mu.Settler = settlesAll{&s.marked, t, s}
				sessions = append(sessions, s)
			}
			var calls sync.WaitGroup
			call := func() {
				s, opts := sessions[min(random.IntN(4), 1)], []Option(nil)
				if random.IntN(4) == 0 {
					opts = append(opts, WithMaxHold(within(3*time.Second)+1))
				}
				rw, err := s.RWMutex("n", opts...)
				require.NoError(t, err)
				sem, err := s.Semaphore([]string{"n", "p"}[random.IntN(2)], 3, opts...)
				require.NoError(t, err)
				weight := 1 + random.IntN(3)
				take := []func(context.Context) (*Hold, error){
					rw.RLock, rw.RLock, rw.RLock, rw.TryRLock,
					func(ctx context.Context) (*Hold, error) { return nil, rw.Lock(ctx) },
					func(ctx context.Context) (*Hold, error) { return sem.Acquire(ctx, weight) },
					func(ctx context.Context) (*Hold, error) { return sem.TryAcquire(ctx, weight) },
					func(ctx context.Context) (*Hold, error) { return s.LockAll(ctx, "n", "p") },
				}[random.IntN(8)]
				patience, holds := within(8*time.Second), within(2*time.Second)
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					h, err := take(ctx)
					if err != nil {
						return
					}
					time.Sleep(holds)
					if h != nil {
						_ = h.Unlock(context.Background())
					} else {
						_ = rw.Unlock(context.Background())
					}
				})
			}
			fault := func() {
				process := []string{"a", "b"}[random.IntN(2)]
				switch random.IntN(9) {
				case 0:
					etcd.CancelWatches()
				case 8: // the connection is lost
					s := sessions[random.IntN(2)]
					s.mu.Lock()
					for _, n := range s.lines {
						n.EndLocked()
					}
					s.mu.Unlock()
				case 1:
					if keys := etcd.Keys("n/"); len(keys) > 0 {
						etcd.DeleteKey(keys[random.IntN(len(keys))])
					}
				case 2:
					restore := etcd.Save()
					time.AfterFunc(within(2*time.Second), func() { restore(1) })
				case 3:
					etcd.Cut(process)
					time.AfterFunc(within(6*time.Second), func() { etcd.Heal(process) })
				case 4:
					etcd.Delay(process, within(time.Second))
				case 5:
					if leases := etcd.Leases(); len(leases) > 0 {
						etcd.RevokeLease(leases[random.IntN(len(leases))])
					}
				case 6:
					etcd.LoseAnswers(process, 2)
				case 7:
					client := etcd.Client("operator")
					if all, err := Contenders(t.Context(), client, "n"); err == nil && len(all) > 0 {
						_ = Recall(t.Context(), client, all[random.IntN(len(all))],
							RecallRequest{Grace: within(time.Second)})
					}
				}
			}
			for range 60 {
				call()
				if random.IntN(4) == 0 {
					fault()
				}
				time.Sleep(within(300 * time.Millisecond))
				for _, s := range sessions {
					requireRefused(t, s)
				}
			}
			for _, process := range []string{"a", "b"} {
				etcd.Heal(process)
				etcd.Delay(process, 0)
			}
			calls.Wait()
			for _, s := range sessions {
				require.NoError(t, s.Close(context.Background()))
			}
		})
	}
}
