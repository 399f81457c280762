package queue

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// Sessions that come at once to one name send so many requests each, and read so many keys, whether
// they are hundreds or thousands: a lease, a put, a look, a watch, and a check soon after. In a
// line of thousands the looks of a client go together.
func TestALineUpCostsEachSessionTheSame(t *testing.T) {
	for _, sessions := range []int{250, 1000} {
		synctest.Test(t, func(t *testing.T) {
			etcd := fake.NewServer()
			var keys atomic.Int64
			etcd.Intercept(func(fake.Call) fake.Effect {
				read := func(reply any) { keys.Add(int64(tests.KeysIn(reply))) }
				return fake.Effect{Delay: time.Millisecond, Edit: read}
			})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			client := etcd.Client("a")
			for range sessions {
				s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
				require.NoError(t, err)
				t.Cleanup(func() { _ = s.Close(context.Background()) })
				m, err := s.Mutex("n")
				require.NoError(t, err)
				go func() { _ = m.Lock(ctx) }() // ends with ctx
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			require.Len(t, etcd.Keys("n/"), sessions)

			calls := etcd.Counts()
			for method, most := range map[string]float64{
				fake.Grant: 1, fake.Txn: 2.2, fake.Range: 1, fake.Watch: 1.1, fake.TimeToLive: 0,
			} {
				require.LessOrEqual(t, float64(calls[method])/float64(sessions), most, method)
			}
			require.Less(t, int(keys.Load())/sessions, 25)
			// For each look etcd reads the whole line. Behind some 600 those of a client go together.
			require.Less(t, calls[fake.Range], 600)
		})
	}
}
