package holders

import (
	"context"
	"errors"
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

// holdsBehind is what a restore makes of etcd: a hold of "n" waits to be adopted, as it did before
// it was adopted and unlocked, and the key of a later one, which goes on, is behind it.
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

// A restore revives a hold that had been adopted, and unlocked, before the next one began. It can
// be adopted again, so the next one, whose key is behind it, does not go on. (As any hold whose key
// a restore has taken away it is told once its process hears of that.)
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

// Keys of nested names fill what is read first. What is ahead of them counts all the same.
func TestAHoldIsJudgedByAllThatIsAheadOfItAfterASetBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		w := tests.SessionOf(t, etcd, "w")
		var strays []string
		d, later, restore := holdsBehind(t, etcd, func(ctx context.Context) (*etcdlock.Hold, error) {
			strays = tests.PutStrays(t, etcd, 100)
			return w.Lock(ctx, "n")
		})
		hold := later.Context(context.Background())
		restore(2)
		h := adopted(t, tests.SessionOf(t, etcd, "c"), d)
		tests.EndsAfter(t, hold, time.Now())
		require.ErrorIs(t, later.Unlock(context.Background()), etcdlock.ErrLost)
		tests.RequireHolds(t, h)
		require.NoError(t, h.Unlock(context.Background()))
		for _, key := range strays {
			etcd.DeleteKey(key)
		}
	})
}

// Of two holds of a name that can be adopted, since a restore has brought the earlier one back, the
// later one waits for its turn. If its wait ends in another way its key is removed.
func TestAnAdoptWaitsBehindAHoldThatASetBackRevived(t *testing.T) {
	type world struct {
		earlier *etcdlock.Hold
		s       *etcdlock.Session
		giveUp  context.CancelFunc
	}
	for _, row := range []struct {
		then string
		do   func(w world) error
		also error // besides ErrUnconfirmed
	}{
		{"its turn comes", func(w world) error { return w.earlier.Unlock(context.Background()) }, nil},
		{"its context ends", func(w world) error { w.giveUp(); return nil }, context.Canceled},
		{"its Session is closed", func(w world) error { return w.s.Close(context.Background()) }, etcdlock.ErrClosed},
		{"its context ends as its turn comes", func(w world) error {
			w.giveUp()
			return w.earlier.Unlock(context.Background())
		}, context.Canceled},
		{"its Session is closed as its turn comes", func(w world) error {
			closed := make(chan error, 1)
			go func() { closed <- w.s.Close(context.Background()) }()
			err := w.earlier.Unlock(context.Background())
			return errors.Join(err, <-closed)
		}, etcdlock.ErrClosed},
	} {
		t.Run(row.then, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				ctx, giveUp := context.WithCancel(context.Background())
				defer giveUp()
				w := tests.SessionOf(t, etcd, "w")
				first, later, restore := holdsBehind(t, etcd, func(ctx context.Context) (*etcdlock.Hold,
					error) {
					return w.Lock(ctx, "n")
				})
				token := later.Token()
				restore(2)
				etcd.Intercept(func(c fake.Call) fake.Effect { // it does not see what is before it
					return fake.Effect{Drop: c.Process == "w" && c.Method == fake.Range}
				})
				d, err := later.Detach(ctx, keep)
				require.NoError(t, err)
				earlier := adopted(t, tests.SessionOf(t, etcd, "c"), first)

				s := tests.SessionOf(t, etcd, "d")
				type result struct {
					h   *etcdlock.Hold
					err error
				}
				got := make(chan result, 1)
				go func() {
					h, err := s.Adopt(ctx, d)
					got <- result{h, err}
				}()
				time.Sleep(2 * keep)
				tests.StillWaits(t, got, "two have adopted the name")
				tests.RequireHolds(t, earlier)
				require.NoError(t, row.do(world{earlier, s, giveUp}))
				r := tests.SoonOr(t, got, "the Adopt hangs")
				switch {
				case r.err == nil && row.also == etcdlock.ErrClosed:
					tests.RequireEnded(t, r.h)
				case r.err == nil:
					require.Equal(t, token, r.h.Token())
					require.NoError(t, r.h.Unlock(context.Background()))
				case row.also == nil:
					require.NoError(t, r.err)
				default:
					require.ErrorIs(t, r.err, etcdlock.ErrUnconfirmed)
					require.ErrorIs(t, r.err, row.also)
					_, err = tests.SessionOf(t, etcd, "e").Adopt(context.Background(), d)
					require.ErrorIs(t, err, etcdlock.ErrLost)
				}
				_ = earlier.Unlock(context.Background()) // if it was not yet
				synctest.Wait()
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}

// An Adopt read the key of a hold that was detached a second time. etcd is set back to before then,
// and a Session that adopts the hold anew puts the key at the very revision that was read. The late
// request of the first Adopt does not take the key from that Session.
func TestALateAdoptOfBeforeASetBackDoesNothing(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		first, _ := detached(t, etcd)
		late := tests.SessionOf(t, etcd, "late")
		other := lockOf(t, late, "other") // so its lease is one that comes back
		restore := etcd.Save()
		again, err := adopted(t, tests.SessionOf(t, etcd, "b"), first).Detach(t.Context(), keep)
		require.NoError(t, err)
		detachedAt := etcd.Rev()

		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process == "late" && c.Method == fake.Txn {
				return fake.Effect{Delay: time.Second}
			}
			return fake.Effect{}
		})
		got := make(chan error, 1)
		go func() {
			_, err := late.Adopt(context.Background(), again)
			got <- err
		}()
		synctest.Wait() // it has read the key
		restore(1)
		h := adopted(t, tests.SessionOf(t, etcd, "c"), first)
		require.NoError(t, h.SetInfo(t.Context(), "here"))
		require.Equal(t, detachedAt, etcd.Rev(), "the key is put at another revision")

		require.ErrorIs(t, tests.SoonOr(t, got, "the Adopt hangs"), etcdlock.ErrLost)
		tests.RequireHolds(t, h)
		tests.UnlockAll(t, h, other)
	})
}
