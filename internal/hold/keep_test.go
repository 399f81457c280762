package hold_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/hold"
)

// Close stops the timer of each key that stays, whatever the Session has done since with its name:
// it would keep the Session in memory for the rest of the time, which may be a day.
func TestCloseStopsTheTimersOfAllKeysThatStay(t *testing.T) {
	const long = 14 * time.Hour
	ctx := context.Background()
	keep := func(t *testing.T, s *etcdlock.Session, name string) {
		h, err := s.Lock(ctx, name, etcdlock.WithMinHold(long))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
	}
	for _, row := range []struct {
		promise string
		do      func(t *testing.T, etcd *fake.Server, s *etcdlock.Session)
		timers  int
	}{
		{"one stays", func(t *testing.T, _ *fake.Server, s *etcdlock.Session) { keep(t, s, "n") }, 1},
		{"an operator deletes it, and another one stays", func(t *testing.T, etcd *fake.Server,
			s *etcdlock.Session) {
			keep(t, s, "n")
			etcd.DeleteKey(etcd.Keys("n/")[0])
			keep(t, s, "n")
		}, 2},
		{"the Session has locked so many names since that it forgets the first", func(t *testing.T,
			_ *fake.Server, s *etcdlock.Session) {
			keep(t, s, "n")
			for i := range hold.KeptLines + 2 {
				h, err := s.Lock(ctx, fmt.Sprint("other", i))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
			}
			require.False(t, hold.SessionOf(s).HasLine("n"))
		}, 1},
		{"etcd does not say whether it stays", func(t *testing.T, etcd *fake.Server,
			s *etcdlock.Session) {
			h, err := s.Lock(ctx, "n", etcdlock.WithMinHold(long))
			require.NoError(t, err)
			etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{DropReply: c.Method == fake.Txn}
			})
			require.ErrorIs(t, h.Unlock(ctx), etcdlock.ErrUnconfirmed)
			etcd.Intercept(nil)
		}, 1},
	} {
		t.Run(row.promise, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := fake.NewServer()
				s, err := etcdlock.NewSession(etcd.Client("a"))
				require.NoError(t, err)
				row.do(t, etcd, s)
				timers := hold.SessionOf(s).StayTimers()
				require.Len(t, timers, row.timers)
				require.NoError(t, s.Close(ctx))
				for _, timer := range timers {
					require.False(t, timer.Stop(), "it is not stopped")
				}
				require.Empty(t, hold.SessionOf(s).StayTimers())
			})
		})
	}
}

// For each new line the Session drops one that nobody uses, once it has many. That is no line into
// which a LockAll is about to come: what comes after it would not find it there.
func TestNoLineIsDroppedForAnotherNameOfItsLockAll(t *testing.T) {
	ctx := context.Background()
	for name, lockAll := range map[string]func(
		*etcdlock.Session, context.Context, ...string) (*etcdlock.Hold, error){
		"LockAll":    (*etcdlock.Session).LockAll,
		"TryLockAll": (*etcdlock.Session).TryLockAll,
	} {
		t.Run(name, func(t *testing.T) {
			etcd := fake.NewServer()
			s, err := etcdlock.NewSession(etcd.Client("a"))
			require.NoError(t, err)
			defer s.Close(ctx)
			for i := range hold.KeptLines + 1 {
				h, err := s.Lock(ctx, fmt.Sprint("n", i))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
			}
			h, err := lockAll(s, ctx, "n0", "other")
			require.NoError(t, err)
			asked := len(etcd.Calls(fake.Txn))
			_, err = s.TryLock(ctx, "n0")
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			require.Len(t, etcd.Calls(fake.Txn), asked, "its Session knows")
			require.NoError(t, h.Unlock(ctx))
		})
	}
}
