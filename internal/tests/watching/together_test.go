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
// minute of a wait, too.
func TestSessionsOfOneClientRecheckAndAuditTogether(t *testing.T) {
	const n = 100
	for _, row := range []struct {
		name        string
		line        func(i int) string
		after, most time.Duration
		times       float64 // of the renewals
	}{
		{"each holds a name", func(i int) string { return fmt.Sprint(i) },
			2 * time.Minute, 5 * time.Minute, 1.1},
		{"all wait in one line", func(int) string { return "n" }, 5 * time.Second, 30 * time.Second, 1.15},
		{"two wait in each line", func(i int) string { return fmt.Sprint("n", i/2) },
			5 * time.Second, 30 * time.Second, 1.3},
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
					s, err := etcdlock.NewSession(client)
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
