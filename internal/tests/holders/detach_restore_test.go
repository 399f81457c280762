package holders

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// holdsBehind is what a restore makes of etcd: a hold of "n" waits to be adopted, as it did before it
// was adopted and unlocked, and the key of a later one, which goes on, is behind it.
func holdsBehind(
	t *testing.T, etcd *fake.Server, lock func(context.Context) (*etcdlock.Hold, error),
) (d etcdlock.Detached, later *etcdlock.Hold, restore func(cluster uint64)) {
	t.Helper()
	d, _ = detached(t, etcd)
	holds := make(chan *etcdlock.Hold, 1)
	go func() {
		h, err := lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		holds <- h
	}()
	synctest.Wait()
	tests.StillWaits(t, holds, "it gets in beside the hold that waits")
	restore = etcd.Save()
	require.NoError(t, adopted(t, tests.SessionOf(t, etcd, "b"), d).Unlock(context.Background()))
	synctest.Wait() // it gives the lease back on which that has waited
	return d, tests.SoonOr(t, holds, "it does not get in"), restore
}

// A restore revives a hold that had been adopted, and unlocked, before the next one began. It can be
// adopted again, so the next one, whose key is behind it, does not go on. (As any hold whose key a
// restore has taken away it is told once its process hears of that.)
func TestAHoldBehindOneThatIsAdoptedAfterASetBackIsLost(t *testing.T) {
	type lock = func(context.Context) (*etcdlock.Hold, error)
	kinds := []struct {
		name string
		of   func(t *testing.T, s *etcdlock.Session) lock
	}{
		{"a mutex", func(_ *testing.T, s *etcdlock.Session) lock {
			return func(ctx context.Context) (*etcdlock.Hold, error) { return s.Lock(ctx, "n") }
		}},
		{"a reader", func(t *testing.T, s *etcdlock.Session) lock { return tests.RWMutexOf(t, s).RLock }},
		{"a permit", func(t *testing.T, s *etcdlock.Session) lock {
			permits := tests.SemaphoreOf(t, s, 3)
			return func(ctx context.Context) (*etcdlock.Hold, error) { return permits.Acquire(ctx, 2) }
		}},
		{"several names", func(_ *testing.T, s *etcdlock.Session) lock {
			return func(ctx context.Context) (*etcdlock.Hold, error) { return s.LockAll(ctx, "m", "n") }
		}},
	}
	for _, kind := range kinds {
		for _, cluster := range []uint64{1, 2} {
			t.Run(fmt.Sprintf("%s, cluster %d", kind.name, cluster), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					d, later, restore := holdsBehind(t, etcd, kind.of(t, tests.SessionOf(t, etcd, "w")))
					time.Sleep(tests.TTL)
					hold := later.Context(context.Background())
					restore(cluster)
					began := time.Now()
					h := adopted(t, tests.SessionOf(t, etcd, "c"), d)
					require.LessOrEqual(t, tests.EndsAfter(t, hold, began), 2*tests.RenewalPeriod+tests.KeeperTick)
					require.ErrorIs(t, context.Cause(hold), etcdlock.ErrKeyDeleted)
					require.ErrorContains(t, context.Cause(hold), "set back")
					synctest.Wait()
					require.Len(t, etcd.Keys("n/"), 1, "its key is in the way of others")
					require.ErrorIs(t, later.Unlock(context.Background()), etcdlock.ErrLost)
					tests.RequireHolds(t, h)
					require.NoError(t, h.Unlock(context.Background()))
					synctest.Wait()
					require.Empty(t, etcd.Keys(""))
				})
			})
		}
	}
}

// Where nothing before it can be adopted, a hold goes on after a restore: the Session of a key that
// came back removes it.
func TestAHoldBehindAKeyThatASetBackRevivedGoesOn(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		before := lockNamed(t, tests.SessionOf(t, etcd, "a"))
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "w"), "n")
		locked := tests.LockLater(mu)
		synctest.Wait()
		restore := etcd.Save()
		require.NoError(t, before.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, locked, "it does not get in"))
		restore(2)
		time.Sleep(10 * tests.TTL)
		tests.RequireWhole(t, mu)
		require.Len(t, etcd.Keys("n/"), 1)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// After a set-back a Session reads once what is ahead of each hold.
func TestASetBackCostsAReadForEachHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		var holds []*etcdlock.Hold
		for i := range 5 {
			holds = append(holds, lockOf(t, s, fmt.Sprint("n", i)))
		}
		time.Sleep(tests.TTL)
		etcd.Restore(etcd.Snapshot(), 2)
		before := len(etcd.Calls(fake.Range))
		time.Sleep(3 * tests.TTL)
		require.Len(t, etcd.Calls(fake.Range), before+len(holds), "what is ahead of each is read once")
		tests.UnlockAll(t, holds...)
	})
}

// Of two holds of a name that can be adopted, since a restore has brought the earlier one back, the
// later one waits for its turn, or for the end of the context of its Adopt.
func TestAnAdoptWaitsBehindAHoldThatASetBackRevived(t *testing.T) {
	for _, waits := range []bool{true, false} {
		t.Run(fmt.Sprint("waits ", waits), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				ctx := context.Background()
				w := tests.SessionOf(t, etcd, "w")
				earlier, later, restore := holdsBehind(t, etcd, func(ctx context.Context) (*etcdlock.Hold, error) {
					return w.Lock(ctx, "n")
				})
				token := later.Token()
				restore(2)
				etcd.Intercept(func(c fake.Call) fake.Effect { // it does not see what is before it
					return fake.Effect{Drop: c.Process == "w" && c.Method == fake.Range}
				})
				d, err := later.Detach(ctx, keep)
				require.NoError(t, err)
				h := adopted(t, tests.SessionOf(t, etcd, "c"), earlier)
				next := make(chan *etcdlock.Hold, 1)
				s := tests.SessionOf(t, etcd, "d")
				if !waits {
					_, err := s.Adopt(tests.Within(t, time.Second), d)
					require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
					require.ErrorIs(t, err, etcdlock.ErrLocked)
					time.Sleep(time.Second)
					require.Len(t, etcd.Keys("n/"), 1, "what is not adopted is removed")
					_, err = s.Adopt(ctx, d)
					require.ErrorIs(t, err, etcdlock.ErrLost)
					require.NoError(t, h.Unlock(ctx))
					return
				}
				go func() {
					h, err := s.Adopt(ctx, d)
					if err != nil {
						t.Error(err)
					}
					next <- h
				}()
				time.Sleep(2 * keep)
				tests.StillWaits(t, next, "two have adopted the name")
				tests.RequireHolds(t, h)
				require.NoError(t, h.Unlock(ctx))
				got := tests.SoonOr(t, next, "it does not get its turn")
				require.Equal(t, token, got.Token())
				require.NoError(t, got.Unlock(ctx))
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}
