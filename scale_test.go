package etcdlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// What a fleet asks of etcd while nothing happens, as docs/scale.md has it. A holder renews
// its lease three times per TTL, and audits the lease's keys with each fourth renewal. A
// waiter renews as often, and rechecks its place once in a TTL and a third, or once in 60
// ms for each in the line if that is longer. The first two minutes do not count: a young
// wait rechecks more often then.
func TestAFleetAsksWhatTheFormulaSays(t *testing.T) {
	const ttl, counted = defaultTTL, 5 * time.Minute
	period := ttl.Seconds()
	for _, n := range []int{100, 300, 600}[:race.Fewer(3, 1)] {
		for _, row := range []struct {
			name string
			line bool
			want float64 // requests of a Session in a second
		}{
			{"each holds a name", false, 3/period + 0.75/period},
			{"all wait in one line", true, 3/period + 1/max(4*period/3, 0.06*float64(n))},
		} {
			t.Run(fmt.Sprintf("%d, %s", n, row.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					etcd := fake.NewServer()
					var asked atomic.Int64
					ctx, leave := context.WithCancel(context.Background())
					defer leave()
					var ss []*Session
					var all sync.WaitGroup
					for i := range n + 1 { // the first one holds, and does not count
						process := fmt.Sprint(i)
						s, err := NewSession(etcd.Client(process))
						require.NoError(t, err)
						ss = append(ss, s)
						name := process
						if row.line {
							name = "n"
						}
						mu, err := s.Mutex(name)
						require.NoError(t, err)
						if i == 0 {
							require.NoError(t, mu.Lock(ctx))
							continue
						}
						all.Go(func() { _ = mu.Lock(ctx) })
					}
					time.Sleep(2 * time.Minute)
					etcd.Intercept(func(c fake.Call) fake.Effect {
						if c.Process != "0" && c.Method != fake.Event {
							asked.Add(1)
						}
						return fake.Effect{}
					})
					time.Sleep(counted)
					each := float64(asked.Load()) / float64(n) / counted.Seconds()
					t.Logf("%.4f requests a second each, of %.4f", each, row.want)
					require.InEpsilon(t, row.want, each, 0.05)
					leave()
					all.Wait()
					for _, s := range ss {
						require.NoError(t, s.Close(context.Background()))
					}
				})
			})
		}
	}
}
