package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// Keys that should not be there, keys that should be and are not, and what the library does
// about them.

// isRead reports whether c is a transaction that writes nothing.
func isRead(c fake.Call) bool {
	return c.Method == fake.Txn && len(c.Puts) == 0 && len(c.Deletes) == 0
}

// nextCall waits for the next call of a method.
func nextCall(t *testing.T, etcd *fake.Server, method string) {
	t.Helper()
	for n := len(etcd.Calls(method)); len(etcd.Calls(method)) == n; time.Sleep(time.Millisecond) {
		require.Less(t, n, 1000)
	}
}

// Key names are used again, so a key that nobody accounts for when a look is answered may be
// that of a hold by the time it is read.
//
//	a looks at its lease's keys, x is among them | x is unlocked | the answer comes: nobody
//	accounts for x's key | x is locked again, by the same key name | the key is read
func TestAKeyThatIsTakenAgainWhileItIsReadIsNotSwept(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := mutexIn(t, processIn(t, etcd, "a"), "x")
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method == fake.TimeToLive:
				return fake.Effect{DelayReply: 100 * time.Millisecond}
			case isRead(c):
				return fake.Effect{Delay: 200 * time.Millisecond}
			}
			return fake.Effect{}
		})
		lockWithin(t, mu, time.Second)
		key := mu.Key()
		nextCall(t, etcd, fake.TimeToLive)
		require.NoError(t, mu.Unlock(in(t, time.Second)))
		nextCall(t, etcd, fake.Txn)
		hold := lockWithin(t, mu, time.Second)
		require.Equal(t, key, mu.Key(), "the schedule needs the same name")
		time.Sleep(time.Minute)
		require.NoError(t, hold.Err(), "%v", context.Cause(hold))
		require.NoError(t, mu.Unlock(in(t, time.Second)))
	})
}

// Its turn comes, and its own key has gone a moment before: a hold that began then would
// never be told of that.
//
//	many stand before a | all go at once | a reads the line | a's key is deleted, which a
//	look tells | the answer to the read comes: a is the first | a queues anew
func TestNoHoldBeginsAtAKeyThatIsGone(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		crowd, err := etcd.Client("crowd").Grant(context.Background(), 1000)
		require.NoError(t, err)
		for range 9 { // so many that a watches the last of them alone
			require.NoError(t, etcd.PutKey("x/"+uuid.NewString(), crowd.ID))
		}
		mu := mutexIn(t, processIn(t, etcd, "a"), "x")
		in := async(func() error { return mu.Lock(context.Background()) })
		time.Sleep(5 * time.Second)
		line := etcd.Keys("x/")
		require.Len(t, line, 10)
		own := line[9]
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Range {
				return fake.Effect{DelayReply: 600 * time.Millisecond}
			}
			return fake.Effect{}
		})
		nextCall(t, etcd, fake.TimeToLive)
		time.Sleep(400 * time.Millisecond)
		etcd.RevokeLease(crowd.ID)
		time.Sleep(50 * time.Millisecond)
		etcd.DeleteKey(own)
		require.NoError(t, soonOr(t, in, "a does not get in"))
		require.Equal(t, []string{mu.Key()}, etcd.Keys("x/"), "a holds by a key that is not there")
		hold := mu.Context(context.Background())
		etcd.DeleteKey(mu.Key())
		require.Less(t, endsAfter(t, hold, time.Now()), 2*time.Second)
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}
