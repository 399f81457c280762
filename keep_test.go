package etcdlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// Close stops the timer of each key that stays, whatever the Session has done since with its name:
// it would keep the Session in memory for the rest of the time, which may be a day.
func TestCloseStopsTheTimersOfAllKeysThatStay(t *testing.T) {
	const long = 14 * time.Hour
	ctx := context.Background()
	keep := func(t *testing.T, s *Session, name string) {
		h, err := s.Lock(ctx, name, WithMinHold(long))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
	}
	for _, row := range []struct {
		promise string
		do      func(t *testing.T, etcd *fake.Server, s *Session)
		timers  int
	}{
		{"one stays", func(t *testing.T, _ *fake.Server, s *Session) { keep(t, s, "n") }, 1},
		{"an operator deletes it, and another one stays", func(t *testing.T, etcd *fake.Server,
			s *Session) {
			keep(t, s, "n")
			etcd.DeleteKey(etcd.Keys("n/")[0])
			keep(t, s, "n")
		}, 2},
		{"the Session has locked so many names since that it forgets the first", func(t *testing.T,
			_ *fake.Server, s *Session) {
			keep(t, s, "n")
			for i := range keptLines + 2 {
				h, err := s.Lock(ctx, fmt.Sprint("other", i))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
			}
			require.Nil(t, s.lines["n"])
		}, 1},
		{"etcd does not say whether it stays", func(t *testing.T, etcd *fake.Server, s *Session) {
			h, err := s.Lock(ctx, "n", WithMinHold(long))
			require.NoError(t, err)
			etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{DropReply: c.Method == fake.Txn}
			})
			require.ErrorIs(t, h.Unlock(ctx), ErrUnconfirmed)
			etcd.Intercept(nil)
		}, 1},
	} {
		t.Run(row.promise, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := fake.NewServer()
				s, err := NewSession(etcd.Client("a"))
				require.NoError(t, err)
				row.do(t, etcd, s)
				var timers []*time.Timer
				for y := range s.stays {
					timers = append(timers, y.timer)
				}
				require.Len(t, timers, row.timers)
				require.NoError(t, s.Close(ctx))
				for _, timer := range timers {
					require.False(t, timer.Stop(), "it is not stopped")
				}
				require.Empty(t, s.stays)
			})
		})
	}
}
