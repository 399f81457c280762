package hold_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/record"
)

// Rule 2: a check after a pause sees that the trust is over, although no timer and no
// goroutine of the library has run since.
func TestTheFirstLookNeedsNoTimer(t *testing.T) {
	looks := map[string]func(m *etcdlock.Mutex, ctx context.Context) bool{
		"Err": func(_ *etcdlock.Mutex, ctx context.Context) bool { return ctx.Err() == context.Canceled },
		"Cause": func(_ *etcdlock.Mutex, ctx context.Context) bool {
			return errors.Is(context.Cause(ctx), etcdlock.ErrLost)
		},
		"Token": func(m *etcdlock.Mutex, _ context.Context) bool { return m.Token() == 0 },
		"Key":   func(m *etcdlock.Mutex, _ context.Context) bool { return m.Key() == "" },
		"Status": func(m *etcdlock.Mutex, _ context.Context) bool {
			return m.Status() == etcdlock.Status{}
		},
		"Unlock": func(m *etcdlock.Mutex, ctx context.Context) bool {
			return errors.Is(m.Unlock(ctx), etcdlock.ErrLost)
		},
		"Done": func(_ *etcdlock.Mutex, ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
	}
	for name, truth := range looks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := etcdlock.NewMutex(fake.NewServer().Client("a"), "x")
				require.NoError(t, err)
				require.NoError(t, m.Lock(t.Context()))
				ctx := m.Context(t.Context())
				trustUntil(m, time.Now())
				require.True(t, truth(m, ctx))
				require.NoError(t, m.Close(t.Context()))
			})
		})
	}
}

// The same for a key that lingers: the next hold has another lease, and another key.
func TestWhatLingersIsNotHeldWhenTheTrustIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := etcdlock.NewMutex(fake.NewServer().Client("a"), "x", etcdlock.WithLinger(time.Minute))
		require.NoError(t, err)
		require.NoError(t, m.Lock(t.Context()))
		key := m.Key()
		require.NoError(t, m.Unlock(t.Context()))
		trustUntil(m, time.Now())
		require.NoError(t, m.Lock(t.Context()))
		require.NotEqual(t, key, m.Key())
		require.True(t, m.Status().Deadline.After(time.Now()), "%+v", m.Status())
		require.NoError(t, m.Close(t.Context()))
	})
}

// A key lingers on a lease that has too little trust left for another hold. It gives way to
// a contender that comes, which would otherwise wait for it.
func TestWhatLingersAndCannotBeHeldGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := etcdlock.NewMutex(fake.NewServer().Client("a"), "x",
			etcdlock.WithLinger(time.Minute), etcdlock.WithTTL(24*time.Second))
		require.NoError(t, err)
		defer m.Close(context.Background())
		require.NoError(t, m.Lock(t.Context()))
		token := m.Token()
		require.NoError(t, m.Unlock(t.Context()))
		s := hold.LockOf(m).Session()
		s.Mu().Lock()
		lingers := s.LingersLocked("x")
		s.TrustUntilLocked(time.Now().Add(2 * time.Second)) // the renewals are late
		s.Mu().Unlock()
		require.True(t, lingers)
		started := time.Now()
		require.NoError(t, m.Lock(t.Context()))
		require.Less(t, time.Since(started), time.Second)
		require.Greater(t, m.Token(), token, "another key, if of the same name")
	})
}

// Rule 1: the trust ends as the answer comes that shows the key first in line, and no timer
// has run yet. Lock then holds with another lease.
func TestNoHoldBeginsWhenTheTrustIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		m, err := etcdlock.NewMutex(etcd.Client("a"), "x")
		require.NoError(t, err)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method != fake.Txn || c.N > 1 {
				return fake.Effect{}
			}
			return fake.Effect{Edit: func(any) { trustUntil(m, time.Now()) }}
		})
		require.NoError(t, m.Lock(t.Context()))
		require.True(t, m.Status().Deadline.After(time.Now()), "%+v", m.Status())
		require.Len(t, etcd.Calls(fake.Grant), 2)
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, m.Close(t.Context()))
	})
}

// Rule 2: while a machine is suspended the monotonic clock may stand still, so the wall
// clock may end a hold, too. It never lengthens one. (A bubble has no monotonic clock, so
// this is in real time.)
func TestTheWallClockMayEndAHoldAndNeverLengthensOne(t *testing.T) {
	rows := []struct {
		promise         string
		wall, monotonic time.Duration // that remain
		reason          error
	}{
		{"the machine was suspended", -time.Second, time.Hour, etcdlock.ErrSuspended},
		{"the wall clock was set back", time.Hour, -time.Second, etcdlock.ErrExpired},
		{"both clocks say that it is over", -time.Second, -time.Second, etcdlock.ErrExpired},
		{"both clocks say that time is left", time.Hour, time.Hour, nil},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			m, err := etcdlock.NewMutex(fake.NewServer().Client("a"), "x")
			require.NoError(t, err)
			require.NoError(t, m.Lock(t.Context()))
			ctx := m.Context(t.Context())
			until := fake.MoveMonotonic(time.Now().Add(row.wall), row.monotonic-row.wall)
			trustUntil(m, until)
			if row.reason == nil {
				require.NoError(t, ctx.Err())
			} else {
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				require.ErrorIs(t, context.Cause(ctx), row.reason)
			}
			whole := lease.Before(time.Now(), until)
			require.Equal(t, row.reason == nil, whole, "as the longest hold sees it")
			require.NoError(t, m.Close(t.Context()))
		})
	}
	record.Save(t, record.Result{
		Row: "S29", Case: "wall clock", Side: record.Ours, N: len(rows),
		Fault:   "the wall clock is set forward beyond the TTL, or back by an hour (in the times that the library keeps: no process can be given a wall clock of its own)",
		Must:    "forward ends a hold early, back lengthens none, and clocks that agree lose nothing",
		Command: "go test ./internal/hold -run TheWallClock",
		Etcd:    "3.7.3 client, etcd in memory",
	})
}

// What a Session with a hold does while nothing happens grows with its renewals and not with time:
// the mutex is taken once in each period, and some times for each audit.
func TestAnIdleHoldWakesForItsRenewalsAlone(t *testing.T) {
	for _, names := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			etcd := fake.NewServer()
			s, err := etcdlock.NewSession(etcd.Client("a"))
			require.NoError(t, err)
			for i := range names {
				_, err := s.Lock(t.Context(), fmt.Sprint("n", i))
				require.NoError(t, err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			before, locked := len(etcd.Calls(fake.KeepAlive)), hold.SessionOf(s).CountLocks()
			time.Sleep(time.Hour)
			synctest.Wait()
			renewals := len(etcd.Calls(fake.KeepAlive)) - before
			require.InDelta(t, 3*240, renewals, 1)
			t.Logf("%d names: %d renewals, the mutex was taken %d times", names, renewals, locked())
			require.LessOrEqual(t, locked(), 3*renewals)
			require.NoError(t, s.Close(context.Background()))
		})
	}
}

// An oddContext cannot be compared with another.
type oddContext struct {
	context.Context
	_ []string
}

// A hold knows a context until the context ends, and no two for one parent: so a leader may ask for
// one before each step, and with a parent of its own for each request.
func TestAHoldKeepsNoMoreContextsThanItHasParents(t *testing.T) {
	type key struct{}
	background := context.Background()
	for name, row := range map[string]struct {
		ask   func(t *testing.T, m *etcdlock.Mutex)
		kept  int
		later int // once the parents that end have ended
	}{
		"one that never ends": {func(_ *testing.T, m *etcdlock.Mutex) { m.Context(background) }, 1, 1},
		"one with a value": {func() func(*testing.T, *etcdlock.Mutex) {
			parent := context.WithValue(background, key{}, 1)
			return func(_ *testing.T, m *etcdlock.Mutex) { m.Context(parent) }
		}(), 1, 1},
		"a copy of one": {func(_ *testing.T, m *etcdlock.Mutex) { m.Context(struct{ context.Context }{background}) }, 1, 1},
		"one of the hold's own": {func(_ *testing.T, m *etcdlock.Mutex) {
			ctx := background
			for range 10 {
				ctx = m.Context(ctx)
			}
		}, 1, 1},
		"one that is cancelled, for each request": {func(t *testing.T, m *etcdlock.Mutex) {
			parent, cancel := context.WithCancel(background)
			require.NoError(t, m.Context(parent).Err())
			cancel()
		}, 0, 0},
		"one with a time-out, for each request": {func(t *testing.T, m *etcdlock.Mutex) {
			parent, cancel := context.WithTimeout(background, time.Second)
			t.Cleanup(cancel)
			require.NoError(t, m.Context(parent).Err())
		}, 1000, 0},
		"one that cannot be compared, for each request": {func(t *testing.T, m *etcdlock.Mutex) {
			parent, cancel := context.WithCancel(background)
			require.NotPanics(t, func() { require.NoError(t, m.Context(oddContext{Context: parent}).Err()) })
			cancel()
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := heldMutex(t)
				kept := func() int {
					synctest.Wait()
					return hold.LockOf(m).Hold().Contexts()
				}
				for range 1000 {
					row.ask(t, m)
				}
				require.Equal(t, row.kept, kept())
				time.Sleep(2 * time.Second)
				require.Equal(t, row.later, kept())
			})
		})
	}
}

// A busyContext does something else when it is asked for its Done for the first time.
type busyContext struct {
	context.Context
	first func()
}

func (c *busyContext) Done() <-chan struct{} {
	if first := c.first; first != nil {
		c.first = nil
		first()
	}
	return c.Context.Done()
}

// For one parent a hold has one context, also if two calls ask for it at the same time, and the
// next hold has another.
func TestOneParentHasOneContextOfAHold(t *testing.T) {
	m := heldMutex(t)
	ended, cancel := context.WithCancelCause(t.Context())
	parent := &busyContext{Context: ended}
	var first context.Context
	parent.first = func() { first = m.Context(parent) } // while another call makes one
	require.Same(t, m.Context(parent), first)
	require.Same(t, m.Context(parent), first)
	require.NotSame(t, first, m.Context(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	require.ErrorIs(t, context.Cause(first), etcdlock.ErrUnlocked)

	require.NoError(t, m.Lock(t.Context()))
	second := m.Context(parent)
	require.NotSame(t, first, second)
	require.NoError(t, second.Err())
	full := errors.New("disk full")
	cancel(full)
	require.Equal(t, full, context.Cause(second))
	require.Equal(t, full, context.Cause(m.Context(parent)))
	require.NoError(t, m.Context(t.Context()).Err())
}

// A hold that is whole no more never is again. It keeps its key until it is gone.
func TestAHoldGoesOnlyForward(t *testing.T) {
	for i, from := range hold.HoldStates {
		for j, to := range hold.HoldStates {
			h := hold.LockOf(heldMutex(t)).Hold().InState(from)
			if j <= i {
				require.PanicsWithValue(t, fmt.Sprintf(`etcdlock: hold of "x": %v becomes %v`, from, to),
					func() { h.Becomes(to) })
				continue
			}
			require.Equal(t, to, h.Becomes(to))
			require.Equal(t, j == len(hold.HoldStates)-1, h.IsGone(), "%v", to)
		}
	}
}

// A lost read is freed once its own contexts have ended, whatever contexts the other reads at its
// key have, so the Unlocks of many lost reads do not each go through all of these. The last whole
// one waits for all.
func TestALostReadIsFreedWithoutTheOthers(t *testing.T) {
	s, err := etcdlock.NewSession(fake.NewServer().Client("a"))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close(context.Background())) }()
	rw, err := s.RWMutex("x")
	require.NoError(t, err)
	var reads [2]*hold.Hold
	for i := range reads {
		r, err := rw.RLock(t.Context())
		require.NoError(t, err)
		reads[i] = hold.HandleOf(r).Hold
		if i == 1 {
			r.Context(t.Context())
		}
	}
	mu := hold.SessionOf(s).Mu()
	mu.Lock()
	defer mu.Unlock()
	for _, h := range reads {
		require.True(t, h.SharesKey(reads[0]))
		h.LoseLocked(etcdlock.ErrKeyDeleted)
	}
	require.True(t, reads[0].FreesLocked())
	require.False(t, reads[1].FreesLocked(), "its own context goes on")
	require.False(t, reads[0].FreesWholeLocked(), "the key goes with it")
}

// trustUntil makes the trust in the lease of m's Session last until a time, and sets no timer for
// it: as if the process had paused since.
func trustUntil(m *etcdlock.Mutex, until time.Time) {
	s := hold.LockOf(m).Session()
	s.Mu().Lock()
	defer s.Mu().Unlock()
	s.TrustUntilLocked(until)
}

func TestTheDefaultMarginIsAnEighthOfTheGrantedTTLButNotTooLittle(t *testing.T) {
	for granted, want := range map[time.Duration]time.Duration{
		16 * time.Second: 2 * time.Second, 2 * time.Second: 250 * time.Millisecond,
		time.Second: 125 * time.Millisecond, 800 * time.Millisecond: 100 * time.Millisecond,
		0: 100 * time.Millisecond,
	} {
		require.Equal(t, want, (&hold.Config{}).MarginOf(granted), "%v", granted)
		require.Equal(t, time.Minute, (&hold.Config{Margin: time.Minute}).MarginOf(granted))
	}
}

// A Mutex may be closed while its Session is. Then the hold ends once, too: the Trace is told of
// one end.
func TestAHoldThatEndsWithItsMutexAndItsSessionIsToldToEndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, ended := fake.NewServer(), 0
		s, err := etcdlock.NewSession(etcd.Client("a"), etcdlock.WithTrace(&etcdlock.Trace{
			Released: func(context.Context, etcdlock.ReleasedEvent) { ended++ },
		}))
		require.NoError(t, err)
		m, err := s.Mutex("n")
		require.NoError(t, err)
		require.NoError(t, m.Lock(t.Context()))
		ctx := m.Context(t.Context())
		hold.LockOf(m).CloseSessionAmid()
		require.NoError(t, m.Close(t.Context()))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.NoError(t, s.Close(t.Context()))
		synctest.Wait()
		require.Equal(t, 1, ended)
		require.Empty(t, etcd.Keys(""))
		require.Empty(t, etcd.Leases())
	})
}

// The time of WithMaxHold is over just as Unlock, or Close of the Session, ends the hold. Then it
// is lost, and nothing else: the Trace is told of one end, and Close waits for no release.
func TestAHoldWhoseTimeIsOverAsItEndsIsLost(t *testing.T) {
	ends := map[string]func(*hold.Hold) error{
		"Unlock": func(h *hold.Hold) error { return h.UnlockOver(context.Background()) },
		"Close":  func(h *hold.Hold) error { h.CloseOver(); return etcdlock.ErrMaxHold },
	}
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd, lost, released := fake.NewServer(), 0, 0
				s, err := etcdlock.NewSession(etcd.Client("a"), etcdlock.WithMaxHold(time.Hour),
					etcdlock.WithTrace(&etcdlock.Trace{
						Lost:     func(context.Context, etcdlock.LostEvent) { lost++ },
						Released: func(context.Context, etcdlock.ReleasedEvent) { released++ },
					}))
				require.NoError(t, err)
				m, err := s.Mutex("n")
				require.NoError(t, err)
				require.NoError(t, m.Lock(t.Context()))
				require.ErrorIs(t, end(hold.LockOf(m).Hold()), etcdlock.ErrMaxHold)
				start := time.Now()
				require.NoError(t, s.Close(context.Background()))
				require.Zero(t, time.Since(start))
				synctest.Wait()
				require.Equal(t, 1, lost)
				require.Zero(t, released)
				require.Empty(t, etcd.Leases())
			})
		})
	}
}
