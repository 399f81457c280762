package kinds

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// If the key of one name is lost the whole Hold is lost, and the error has that name. The
// others go with its Unlock.
func TestALossOfOneOfSeveralNames(t *testing.T) {
	for _, known := range []bool{true, false} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			h := allWithin(t, s, time.Second, "x", "y", "z")
			token, ctx := h.Token(), h.Context(context.Background())
			time.Sleep(5 * time.Second)
			for key := range keysBelow(t, etcd, "y") {
				_, err := etcd.Client("operator").Delete(context.Background(), key)
				require.NoError(t, err)
			}
			if known {
				tests.EndsAfter(t, ctx, time.Now())
				var lost *etcdlock.LostError
				ok := errors.As(context.Cause(ctx), &lost)
				require.True(t, ok)
				require.Equal(t, "y", lost.Name)
				tests.RequireEnded(t, h)
				require.Len(t, keysBelow(t, etcd, "x"), 1, "the loser may be at work")
			}
			err := h.Unlock(context.Background())
			var lost *etcdlock.LostError
			ok := errors.As(err, &lost)
			require.True(t, ok, "%v", err)
			require.Equal(t, &etcdlock.LostError{Name: "y", Token: token, Reason: etcdlock.ErrKeyDeleted},
				lost)
			synctest.Wait()
			for _, name := range []string{"x", "y", "z"} {
				require.Empty(t, keysBelow(t, etcd, name))
			}
			require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
			tests.UnlockAll(t, allWithin(t, tests.SessionOf(t, etcd, "b"), time.Second, "z", "y", "x"))
			tests.UnlockAll(t, allWithin(t, s, time.Second, "z", "y", "x"))
		})
	}
}

// The end of the lease, of the longest hold, and of the Session ends all names.
func TestSeveralNamesEndTogether(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithMaxHold(time.Minute))
		h := allWithin(t, s, time.Second, "x", "y")
		ctx := h.Context(context.Background())
		require.Equal(t, time.Minute, tests.EndsAfter(t, ctx, time.Now()).Round(time.Second))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		synctest.Wait()
		require.Empty(t, keysBelow(t, etcd, "x"))
		require.Empty(t, keysBelow(t, etcd, "y"))
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrMaxHold)

		h = allWithin(t, s, time.Second, "x", "y")
		ctx = h.Context(context.Background())
		etcd.Cut("a")
		tests.EndsAfter(t, ctx, time.Now())
		var lost *etcdlock.LostError
		ok := errors.As(context.Cause(ctx), &lost)
		require.True(t, ok)
		require.Equal(t, "x", lost.Name)
		require.ErrorIs(t, lost, etcdlock.ErrExpired)
		etcd.Heal("a")
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrExpired)

		h = allWithin(t, s, time.Minute, "x", "y")
		ctx = h.Context(context.Background())
		in := make(chan error, 1)
		go func() {
			_, err := s.LockAll(context.Background(), "y", "z")
			in <- err
		}()
		other := tests.SessionOf(t, etcd, "b")
		elsewhere := allWithin(t, other, time.Second, "w")
		inEtcd := make(chan error, 1)
		go func() {
			_, err := s.LockAll(context.Background(), "v", "w")
			inEtcd <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, s.Close(context.Background()))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.ErrorIs(t, tests.SoonOr(t, in, "the wait does not end"), etcdlock.ErrClosed)
		require.ErrorIs(t, tests.SoonOr(t, inEtcd, "the wait does not end"), etcdlock.ErrClosed)
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
		_, err := s.LockAll(context.Background(), "x")
		require.ErrorIs(t, err, etcdlock.ErrClosed)
		tests.UnlockAll(t, elsewhere)
		tests.UnlockAll(t, allWithin(t, other, time.Second, "v", "w", "x", "y", "z"))
	})
}

// A key of a wait is deleted, at the head of its line or behind others. The call queues
// anew within five seconds, with all keys, which have one revision again.
func TestAKeyOfSeveralThatIsDeletedIsMissed(t *testing.T) {
	for _, name := range []string{"x", "y"} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s, other := tests.SessionOf(t, etcd, "a"),
				contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "y")
			tests.LockWithin(t, other, time.Second)
			in := allLater(s, "x", "y")
			time.Sleep(3 * time.Second)
			var theirs string
			before := keysBelow(t, etcd, name)
			for key, rev := range before {
				if rev != other.Token() {
					theirs = key
				}
			}
			_, err := etcd.Client("operator").Delete(context.Background(), theirs)
			require.NoError(t, err)
			mutex := contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "x")
			if name == "x" { // another that gets in meanwhile is not overlapped
				tests.LockWithin(t, mutex, time.Second)
			}
			time.Sleep(5 * time.Second)
			x, y := keysBelow(t, etcd, "x"), keysBelow(t, etcd, "y")
			var revs []int64
			for _, rev := range x {
				if rev != mutex.Token() {
					revs = append(revs, rev)
				}
			}
			for _, rev := range y {
				if rev != other.Token() {
					revs = append(revs, rev)
				}
			}
			require.Len(t, revs, 2, "%v %v", x, y)
			require.Equal(t, revs[0], revs[1])
			require.NoError(t, other.Unlock(context.Background()))
			if name == "x" {
				tests.StillWaits(t, in, "another holds x")
				require.NoError(t, mutex.Unlock(context.Background()))
			}
			tests.UnlockAll(t, tests.SoonOr(t, in, "LockAll does not get in"))
		})
	}
}

// The answer to the put is lost. The repeat finds the keys, and that they belong together.
// If an operator has deleted one of them meanwhile, it gives up the others.
func TestLockAllAfterALostAnswer(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			tests.UnlockAll(t, allWithin(t, s, time.Second, "x"))
			etcd.LoseAnswers("a", 1)
			operator := etcd.Client("operator")
			var once sync.Once
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Process == "a" && c.Method == fake.Txn && len(c.Puts) > 0 && c.N > 3 && deleted {
					once.Do(func() { e.Delay = time.Second }) // the repeat
				}
				return e
			})
			in := allLater(s, "x", "y")
			time.Sleep(500 * time.Millisecond)
			if deleted {
				_, err := operator.Delete(context.Background(), line.Prefix("y"), clientv3.WithPrefix())
				require.NoError(t, err)
			}
			h := tests.SoonOr(t, in, "LockAll does not get in")
			for _, name := range []string{"x", "y"} {
				for _, rev := range keysBelow(t, etcd, name) {
					require.Equal(t, h.Token(), rev)
				}
			}
			tests.UnlockAll(t, h)
		})
	}
}

// LockAll comes to hold only by the keys that it has put together: by none that is handed
// off, none that lingers, and none that a release has put.
func TestLockAllTakesOverNoKey(t *testing.T) {
	rows := map[string]etcdlock.SessionOption{
		"handed off": etcdlock.WithHandoff(100), "lingers": etcdlock.WithLinger(time.Hour),
		"put with a release": etcdlock.WithOwner("a"),
	}
	for how, option := range rows {
		t.Run(how, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a", option)
				mu := contract.MutexOf(t, s, "y")
				tests.LockWithin(t, mu, time.Second)
				token := mu.Token()
				if how == "lingers" {
					require.NoError(t, mu.Unlock(context.Background()))
					require.Len(t, keysBelow(t, etcd, "y"), 1)
				}
				in := allLater(s, "x", "y")
				later := tests.LockLater(contract.MutexOf(t, s, "y"))
				if how != "lingers" {
					tests.StillWaits(t, in, "another holds")
					require.Empty(t, keysBelow(t, etcd, "x"), "it does not own all its local lines")
					require.NoError(t, mu.Unlock(context.Background()))
				}
				h := tests.SoonOr(t, in, "LockAll does not get in")
				require.Greater(t, h.Token(), token)
				for _, name := range []string{"x", "y"} {
					keys := keysBelow(t, etcd, name)
					require.Len(t, keys, 1)
					for _, rev := range keys {
						require.Equal(t, h.Token(), rev)
					}
				}
				tests.StillWaits(t, later, "LockAll holds")
				tests.UnlockAll(t, h)
				require.NoError(t, tests.SoonOr(t, later, "the one behind does not get in"))
			})
		})
	}
}

// After a restore from a backup that has the keys of a wait, the wait goes on, behind those
// that are there.
func TestLockAllGoesOnAfterASetBackToItsKeys(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		y := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "y")
		tests.LockWithin(t, y, time.Second)
		in := allLater(s, "x", "y")
		time.Sleep(3 * time.Second)
		backup := etcd.Snapshot()
		late := contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "x")
		waiting := tests.LockLater(late)
		time.Sleep(3 * time.Second)
		etcd.Restore(backup, 1)
		time.Sleep(time.Minute)
		tests.StillWaits(t, in, "another holds y")
		require.NoError(t, y.Unlock(context.Background()))
		h := tests.SoonOr(t, in, "LockAll does not get in")
		tests.StillWaits(t, waiting, "LockAll holds")
		tests.RequireHolds(t, h)
		tests.UnlockAll(t, h)
		require.NoError(t, tests.SoonOr(t, waiting, "the one behind does not get in"))
		require.NoError(t, late.Unlock(context.Background()))
	})
}

// After a restore from a backup a wait takes nothing for granted: neither its own keys, nor
// those that were before it.
func TestLockAllWaitsThroughASetBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		y := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "y")
		tests.LockWithin(t, y, time.Second)
		backup := etcd.Snapshot()
		in := allLater(s, "x", "y")
		time.Sleep(3 * time.Second)
		etcd.Restore(backup, 1) // without the keys that wait
		x := contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "x")
		tests.LockWithin(t, x, time.Minute)
		time.Sleep(time.Minute)
		_ = y.Unlock(context.Background())
		tests.StillWaits(t, in, "another holds x")
		require.NoError(t, x.Unlock(context.Background()))
		tests.UnlockAll(t, tests.SoonOr(t, in, "LockAll does not get in"))
	})
}

// A recall of one of the names recalls the whole hold. The holder learns of it by its
// context, which ends after the grace, and all keys go with its Unlock. The same is true if
// the request came while it waited.
func TestSeveralNamesAreRecalledTogether(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		t.Run(fmt.Sprintf("waiting %v", waiting), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				told := 0
				s := tests.SessionOf(t, etcd, "a", tests.Listens, etcdlock.WithTrace(&etcdlock.Trace{
					Recalled: func(_ context.Context, _ etcdlock.RecalledEvent) { told++ },
				}))
				other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				if waiting {
					tests.LockWithin(t, other, time.Second)
				}
				in := allLater(s, "m", "n", "o")
				if waiting {
					tests.RecallAt(t, etcd, 1, 3*time.Second)
					require.NoError(t, other.Unlock(context.Background()))
				}
				h := <-in
				hold, start := h.Context(context.Background()), time.Now()
				if !waiting {
					time.Sleep(tests.WatchedBy)
					require.False(t, tests.IsRecalled(hold))
					start = time.Now()
					tests.Recall(t, etcd, 3*time.Second)
				}
				require.True(t, tests.IsRecalled(hold))
				require.Equal(t, start.Add(3*time.Second), h.Status().Deadline)
				require.Equal(t, 3*time.Second, tests.EndsAfter(t, hold, start))
				require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
				time.Sleep(tests.TTL)
				for _, name := range []string{"m", "n", "o"} {
					require.Len(t, etcd.Keys(name+"/"), 1)
				}
				require.NoError(t, h.Unlock(context.Background()))
				synctest.Wait()
				require.Empty(t, etcd.Keys(""))
				require.Equal(t, 1, told)
			})
		})
	}
}

// A LockAll is first at one name while it waits at another. The first name is recalled. The
// watch that such a key has shows the recall, as early as if the key had been held from
// then on.
func TestARecallWhereALockAllIsTheFirst(t *testing.T) {
	for age := time.Duration(0); age < tests.WatchedBy+time.Second; age += 330 * time.Millisecond {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
			tests.LockWithin(t, other, time.Second)
			in := allLater(tests.SessionOf(t, etcd, "a", tests.Listens), "m", "n")
			first := time.Now()
			require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("operator"),
				tests.PlaceOf(t, etcd, "m", 0), etcdlock.RecallRequest{Grace: 3 * time.Second}))
			time.Sleep(age)
			require.NoError(t, other.Unlock(context.Background()))
			h := <-in
			hold := h.Context(context.Background())
			tests.RecalledAfter(t, hold, first)
			require.LessOrEqual(t, time.Since(first), max(age, tests.WatchedBy), "it began after %v", age)
			require.NoError(t, h.Unlock(context.Background()))
		})
	}
}
