package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
	"github.com/etcdlock/etcdlock/internal/record"
)

// Rule 2: a check after a pause sees that the trust is over, although no timer and no
// goroutine of the library has run since.
func TestTheFirstLookNeedsNoTimer(t *testing.T) {
	looks := map[string]func(m *Mutex, ctx context.Context) bool{
		"Err": func(_ *Mutex, ctx context.Context) bool { return ctx.Err() == context.Canceled },
		"Cause": func(_ *Mutex, ctx context.Context) bool {
			return errors.Is(context.Cause(ctx), ErrLost)
		},
		"Token":  func(m *Mutex, _ context.Context) bool { return m.Token() == 0 },
		"Key":    func(m *Mutex, _ context.Context) bool { return m.Key() == "" },
		"Status": func(m *Mutex, _ context.Context) bool { return m.Status() == Status{} },
		"Unlock": func(m *Mutex, ctx context.Context) bool { return errors.Is(m.Unlock(ctx), ErrLost) },
		"Done": func(_ *Mutex, ctx context.Context) bool {
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
				m, err := New(fake.NewServer().Client("a"), "x")
				require.NoError(t, err)
				require.NoError(t, m.Lock(t.Context()))
				ctx := m.Context(t.Context())
				m.s.mu.Lock()
				l := m.hold.Load().place.Lease
				trustUntil(m, l, time.Now())
				m.s.mu.Unlock()
				require.True(t, truth(m, ctx))
				require.NoError(t, m.Close(t.Context()))
			})
		})
	}
}

// The same for a key that lingers: the next hold has another lease, and another key.
func TestWhatLingersIsNotHeldWhenTheTrustIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(fake.NewServer().Client("a"), "x", WithLinger(time.Minute))
		require.NoError(t, err)
		require.NoError(t, m.Lock(t.Context()))
		key := m.Key()
		l := m.hold.Load().place.Lease
		require.NoError(t, m.Unlock(t.Context()))
		m.s.mu.Lock()
		trustUntil(m, l, time.Now())
		m.s.mu.Unlock()
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
		m, err := New(fake.NewServer().Client("a"), "x", WithLinger(time.Minute), WithTTL(24*time.Second))
		require.NoError(t, err)
		defer m.Close(context.Background())
		require.NoError(t, m.Lock(t.Context()))
		token := m.Token()
		l := m.hold.Load().place.Lease
		require.NoError(t, m.Unlock(t.Context()))
		m.s.mu.Lock()
		lingers := m.s.lines["x"].queue.Lingering() != nil
		trustUntil(m, l, time.Now().Add(2*time.Second)) // the renewals are late
		m.s.mu.Unlock()
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
		m, err := New(etcd.Client("a"), "x")
		require.NoError(t, err)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method != fake.Txn || c.N > 1 {
				return fake.Effect{}
			}
			return fake.Effect{Edit: func(any) {
				m.s.mu.Lock()
				defer m.s.mu.Unlock()
				trustUntil(m, m.s.leases.CurrentLocked(), time.Now())
			}}
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
		{"the machine was suspended", -time.Second, time.Hour, ErrSuspended},
		{"the wall clock was set back", time.Hour, -time.Second, ErrExpired},
		{"both clocks say that it is over", -time.Second, -time.Second, ErrExpired},
		{"both clocks say that time is left", time.Hour, time.Hour, nil},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			m, err := New(fake.NewServer().Client("a"), "x")
			require.NoError(t, err)
			require.NoError(t, m.Lock(t.Context()))
			ctx := m.Context(t.Context())
			until := fake.MoveMonotonic(time.Now().Add(row.wall), row.monotonic-row.wall)
			m.s.mu.Lock()
			trustUntil(m, m.hold.Load().place.Lease, until)
			m.s.mu.Unlock()
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
		Command: "go test . -run TheWallClock",
		Etcd:    "3.7.3 client, etcd in memory",
	})
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
		ask   func(t *testing.T, m *Mutex)
		kept  int
		later int // once the parents that end have ended
	}{
		"one that never ends": {func(_ *testing.T, m *Mutex) { m.Context(background) }, 1, 1},
		"one with a value": {func() func(*testing.T, *Mutex) {
			parent := context.WithValue(background, key{}, 1)
			return func(_ *testing.T, m *Mutex) { m.Context(parent) }
		}(), 1, 1},
		"a copy of one": {func(_ *testing.T, m *Mutex) { m.Context(struct{ context.Context }{background}) }, 1, 1},
		"one of the hold's own": {func(_ *testing.T, m *Mutex) {
			ctx := background
			for range 10 {
				ctx = m.Context(ctx)
			}
		}, 1, 1},
		"one that is cancelled, for each request": {func(t *testing.T, m *Mutex) {
			parent, cancel := context.WithCancel(background)
			require.NoError(t, m.Context(parent).Err())
			cancel()
		}, 0, 0},
		"one with a time-out, for each request": {func(t *testing.T, m *Mutex) {
			parent, cancel := context.WithTimeout(background, time.Second)
			t.Cleanup(cancel)
			require.NoError(t, m.Context(parent).Err())
		}, 1000, 0},
		"one that cannot be compared, for each request": {func(t *testing.T, m *Mutex) {
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
					return m.hold.Load().life.Contexts()
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
	require.ErrorIs(t, context.Cause(first), ErrUnlocked)

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
	states := []holdState{holdWhole, holdRecalled, holdEnded, holdGone}
	for _, from := range states {
		for _, to := range states {
			p := heldMutex(t).hold.Load().place
			p.Refs = 1
			h := &hold{m: p.m, place: p, state: from}
			h.alone[0] = h
			h.all, h.life = h.alone[:], &h.own
			h.own.Begin(p.Lease, h, time.Time{}, nil)
			goes := func() { h.becomesLocked(to, ErrUnlocked) }
			if to <= from {
				require.PanicsWithValue(t, fmt.Sprintf(`etcdlock: hold of "x": %v becomes %v`, from, to), goes)
				continue
			}
			goes()
			require.Equal(t, to, h.state)
			require.Equal(t, to == holdGone, p.Refs == 0, "%v", to)
		}
	}
}

// A lost read is freed once its own contexts have ended, whatever contexts the other reads at its
// key have, so the Unlocks of many lost reads do not each go through all of these. The last whole
// one waits for all.
func TestALostReadIsFreedWithoutTheOthers(t *testing.T) {
	s, err := NewSession(fake.NewServer().Client("a"))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close(context.Background())) }()
	rw, err := s.RWMutex("x")
	require.NoError(t, err)
	var reads [2]*hold
	for i := range reads {
		r, err := rw.RLock(t.Context())
		require.NoError(t, err)
		reads[i] = r.hold
		if i == 1 {
			r.Context(t.Context())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range reads {
		require.Same(t, reads[0].place, h.place)
		h.endLocked(h.lost(ErrKeyDeleted))
	}
	require.True(t, reads[0].freesLocked())
	require.False(t, reads[1].freesLocked(), "its own context goes on")
	reads[0].state, reads[0].place.Refs = holdEnded, 0 // as if it had ended whole, after the other
	require.False(t, reads[0].freesLocked(), "the key goes with it")
	reads[0].state = holdGone
}

// trustUntil makes the trust in l, a lease of m's Session, last until a time, and sets no timer for
// it: as if the process had paused since.
func trustUntil(m *Mutex, l *lease.Lease, until time.Time) {
	span := l.TTL - m.s.cfg.marginOf(l.TTL)
	field := reflect.ValueOf(l).Elem().FieldByName("trust").Addr()
	*(**trust.Trust)(field.UnsafePointer()) = trust.New(until.Add(-span), l.TTL, m.s.cfg.marginOf)
}

func TestTheDefaultMarginIsAnEighthOfTheGrantedTTLButNotTooLittle(t *testing.T) {
	for granted, want := range map[time.Duration]time.Duration{
		16 * time.Second: 2 * time.Second, 2 * time.Second: 250 * time.Millisecond,
		time.Second: 125 * time.Millisecond, 800 * time.Millisecond: 100 * time.Millisecond,
		0: 100 * time.Millisecond,
	} {
		require.Equal(t, want, (&config{}).marginOf(granted), "%v", granted)
		require.Equal(t, time.Minute, (&config{margin: time.Minute}).marginOf(granted))
	}
}
