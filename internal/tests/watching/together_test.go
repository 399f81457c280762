package watching

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// The Sessions of one client audit their keys and recheck their waits together: what all of them
// send beside their renewals is little more than what one of them sends. So it is in the first half
// minute of a wait, too, and with waits that ask the holder.
func TestSessionsOfOneClientRecheckAndAuditTogether(t *testing.T) {
	const n = 100
	ask := []etcdlock.SessionOption{etcdlock.WithAsk(etcdlock.RecallRequest{Grace: time.Minute})}
	for _, row := range []struct {
		name        string
		line        func(i int) string
		opts        []etcdlock.SessionOption
		after, most time.Duration
		times       float64 // of the renewals
	}{
		{"each holds a name", func(i int) string { return fmt.Sprint(i) }, nil,
			2 * time.Minute, 5 * time.Minute, 1.1},
		{"all wait in one line", func(int) string { return "n" }, nil,
			5 * time.Second, 30 * time.Second, 1.15},
		{"all wait and ask", func(int) string { return "n" }, ask, 5 * time.Second, 30 * time.Second, 1.2},
		{"two wait in each line", func(i int) string { return fmt.Sprint("n", i/2) }, nil,
			5 * time.Second, 30 * time.Second, 1.3},
		{"two wait in each line and ask", func(i int) string { return fmt.Sprint("n", i/2) }, ask,
			5 * time.Second, 30 * time.Second, 1.5},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := fake.NewServer()
				client, holder := etcd.Client("a"), etcd.Client("b")
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				var ss []*etcdlock.Session
				lock := func(s *etcdlock.Session, name string) error {
					mu, err := s.Mutex(name)
					require.NoError(t, err)
					return mu.Lock(ctx)
				}
				first, err := etcdlock.NewSession(holder)
				require.NoError(t, err)
				ss = append(ss, first)
				var all sync.WaitGroup
				for i := range n {
					if row.name != "each holds a name" && (i == 0 || row.line(i) != row.line(i-1)) {
						require.NoError(t, lock(first, row.line(i)))
					}
					s, err := etcdlock.NewSession(client, row.opts...)
					require.NoError(t, err)
					ss = append(ss, s)
					all.Go(func() { _ = lock(s, row.line(i)) })
					time.Sleep(7 * time.Millisecond)
				}
				time.Sleep(row.after)
				var renewals, others atomic.Int64
				etcd.Intercept(func(c fake.Call) fake.Effect {
					switch {
					case c.Process != "a" || c.Method == fake.Event:
					case c.Method == fake.KeepAlive:
						renewals.Add(1)
					default:
						others.Add(1)
					}
					return fake.Effect{}
				})
				time.Sleep(row.most)
				etcd.Intercept(nil)
				t.Logf("%d renewals, %d other messages", renewals.Load(), others.Load())
				require.NotZero(t, renewals.Load())
				require.LessOrEqual(t, float64(others.Load()), (row.times-1)*float64(renewals.Load()))
				leave()
				all.Wait()
				for _, s := range ss {
					require.NoError(t, s.Close(context.Background()))
				}
			})
		})
	}
}

// What one client watches by WatchHolder is rechecked together, whether the name is held or free.
func TestWhatOneClientWatchesIsRecheckedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, most = 100, time.Minute
		etcd := fake.NewServer()
		s, err := etcdlock.NewSession(etcd.Client("holder"))
		require.NoError(t, err)
		client := etcd.Client("watcher")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var watchers sync.WaitGroup
		for i := range n {
			name := fmt.Sprint(i)
			if i%2 == 0 { // the others are free
				mu, err := s.Mutex(name)
				require.NoError(t, err)
				require.NoError(t, mu.Lock(ctx))
			}
			watchers.Go(func() {
				for range etcdlock.WatchHolder(ctx, client, name) {
				}
			})
			time.Sleep(7 * time.Millisecond)
		}
		var asked atomic.Int64
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process == "watcher" && c.Method != fake.Event {
				asked.Add(1)
			}
			return fake.Effect{}
		})
		time.Sleep(most)
		etcd.Intercept(nil)
		t.Logf("%d requests", asked.Load())
		require.NotZero(t, asked.Load())
		require.LessOrEqual(t, asked.Load(), int64(5*most/(1500*time.Millisecond))) // alone: 4,000
		cancel()
		watchers.Wait()
		require.NoError(t, s.Close(context.Background()))
	})
}

// The check that follows the beginning of a watch is one for many waiters of a client, where many
// stand before them.
func TestNewWaitersOfOneClientCheckTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		etcd := fake.NewServer()
		client := etcd.Client("a")
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		first, err := etcdlock.NewSession(etcd.Client("b"))
		require.NoError(t, err)
		mu, err := first.Mutex("n")
		require.NoError(t, err)
		require.NoError(t, mu.Lock(ctx))
		ss := []*etcdlock.Session{first}
		var checks atomic.Int64
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process == "a" && c.Method == fake.Txn && len(c.Puts) == 0 && c.Nested == 0 {
				checks.Add(1)
			}
			return fake.Effect{Delay: time.Millisecond}
		})
		var all sync.WaitGroup
		for range n {
			s, err := etcdlock.NewSession(client)
			require.NoError(t, err)
			ss = append(ss, s)
			all.Go(func() {
				mu, err := s.Mutex("n")
				require.NoError(t, err)
				require.ErrorIs(t, mu.Lock(ctx), context.Canceled)
			})
		}
		time.Sleep(time.Second)
		etcd.Intercept(nil)
		t.Logf("%d checks", checks.Load())
		require.NotZero(t, checks.Load())
		require.LessOrEqual(t, checks.Load(), int64(n/4))
		leave()
		all.Wait()
		for _, s := range ss {
			require.NoError(t, s.Close(context.Background()))
		}
	})
}
