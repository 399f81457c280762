package hold_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/race"
)

// departures are orders in which those that wait in the local line go away.
var departures = map[string]func(claims []*hold.WaitingCall){
	"the first first": func([]*hold.WaitingCall) {},
	"the last first":  slices.Reverse[[]*hold.WaitingCall],
	"in any order": func(claims []*hold.WaitingCall) {
		rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
	},
}

// heldMutex returns a Mutex of an etcd in memory, which holds.
func heldMutex(t *testing.T) *etcdlock.Mutex {
	m, err := etcdlock.NewMutex(fake.NewServer().Client("a"), "x")
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
		holder, err := etcdlock.NewMutex(etcd.Client("a"), "x")
		require.NoError(t, err)
		defer holder.Close(ctx)
		require.NoError(t, holder.Lock(ctx))

		m, err := etcdlock.NewMutex(etcd.Client("b"), "x")
		require.NoError(t, err)
		wait, fails := hold.LockOf(m).WaitInLine(t, ctx)
		require.NoError(t, m.Close(ctx))
		require.ErrorIs(t, wait(), etcdlock.ErrClosed)
		require.EqualError(t, fails(), `etcdlock: lock "x": closed`)
	})
}

// A caller that goes away learns its place: exactly behind a few, and behind more exactly
// unless somebody among them has left.
func TestWhoGoesAwayKnowsItsPlace(t *testing.T) {
	m := heldMutex(t)
	for name, arrange := range departures {
		t.Run(name, func(t *testing.T) {
			const n = 50
			line := hold.LockOf(m).WaitAtHome(t, n)
			leaving := append([]*hold.WaitingCall(nil), line...)
			arrange(leaving)
			gone := make(map[*hold.WaitingCall]bool)
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
				told := c.Leave()
				gone[c] = true
				if ahead <= queue.FewAhead+1 || name == "the last first" || name == "the first first" {
					require.Equal(t, ahead, told)
				}
				require.GreaterOrEqual(t, told, ahead)
				require.LessOrEqual(t, told, n-len(gone)+1, "no more than wait")
			}
			locked := m.TryLock(t.Context())
			require.ErrorIs(t, locked, etcdlock.ErrLocked)
			require.ErrorContains(t, locked, "held by")
			require.NotContains(t, locked.Error(), "waiting")
		})
	}
}

// After a pause of the process a hold may be over, while the timer that ends it has not run. A call
// that finds the lock taken compares the clock itself.
func TestAHoldThatIsOverByTheClockIsNotToldAsTheHolder(t *testing.T) {
	m := heldMutex(t)
	lock := hold.LockOf(m)
	lock.Session().Mu().Lock()
	lock.Hold().EndsNowLocked()
	lock.Session().Mu().Unlock()
	err := m.TryLock(t.Context())
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.ErrorContains(t, err, "waits for the Unlock of a hold lost here")
	require.ErrorIs(t, m.Unlock(t.Context()), etcdlock.ErrMaxHold)
}

// A waiter that may have the turn beside its owner gets it by the very Unlock of what has changed,
// whatever that is: no other event may ever come.
func TestAWaiterIsLetInByTheUnlockOfWhateverChanges(t *testing.T) {
	for seed := range uint64(race.Watched(race.Fewer(300, 60), 15)) {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Log("seed", seed)
				}
			}()
			random := rand.New(rand.NewPCG(seed, 0))
			within := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
			etcd := fake.NewServer()
			var sessions []*etcdlock.Session
			for _, name := range []string{"a", "b"} {
				s, err := etcdlock.NewSession(etcd.Client(name),
					etcdlock.WithTTL(5*time.Second), etcdlock.WithRecall(time.Second))
				require.NoError(t, err)
				hold.SessionOf(s).RequireSettled(t)
				sessions = append(sessions, s)
			}
			var calls sync.WaitGroup
			call := func() {
				s, opts := sessions[min(random.IntN(4), 1)], []etcdlock.Option(nil)
				if random.IntN(4) == 0 {
					opts = append(opts, etcdlock.WithMaxHold(within(3*time.Second)+time.Millisecond))
				}
				rw, err := s.RWMutex("n", opts...)
				require.NoError(t, err)
				sem, err := s.Semaphore([]string{"n", "p"}[random.IntN(2)], 3, opts...)
				require.NoError(t, err)
				weight := 1 + random.IntN(3)
				take := []func(context.Context) (*etcdlock.Hold, error){
					rw.RLock, rw.RLock, rw.RLock, rw.TryRLock,
					func(ctx context.Context) (*etcdlock.Hold, error) { return nil, rw.Lock(ctx) },
					func(ctx context.Context) (*etcdlock.Hold, error) { return sem.Acquire(ctx, weight) },
					func(ctx context.Context) (*etcdlock.Hold, error) { return sem.TryAcquire(ctx, weight) },
					func(ctx context.Context) (*etcdlock.Hold, error) { return s.LockAll(ctx, "n", "p") },
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
					hold.SessionOf(sessions[random.IntN(2)]).LoseConnection()
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
					if all, err := etcdlock.Contenders(t.Context(), client, "n"); err == nil && len(all) > 0 {
						_ = etcdlock.Recall(t.Context(), client, all[random.IntN(len(all))],
							etcdlock.RecallRequest{Grace: within(time.Second)})
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
					hold.SessionOf(s).RequireRefused(t)
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
