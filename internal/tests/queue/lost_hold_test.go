package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// 0 s a holds, its second goroutine waits in the local line, b in etcd. 5 s a's key is
// deleted: a has lost, b gets in. Until a's first goroutine unlocks, the second one must
// neither get in nor put a key.
func TestALostHoldExcludesItsSessionUntilUnlock(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		loser, second := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		hold := tests.LockWithin(t, loser, time.Second)
		got := make(chan *etcdlock.Mutex, 2)
		for _, mu := range []*etcdlock.Mutex{second, other} {
			go func() {
				if mu.Lock(context.Background()) == nil {
					got <- mu
				}
			}()
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		etcd.DeleteKey(loser.Key())
		require.Same(t, other, <-got)
		<-hold.Done()
		require.NoError(t, other.Unlock(context.Background()))
		var locked *etcdlock.LockedError
		ok := errors.As(second.TryLock(context.Background()), &locked)
		require.True(t, ok)
		require.Positive(t, locked.Ahead)
		for range 100 {
			time.Sleep(time.Second)
			require.Empty(t, got)
			require.Empty(t, etcd.Keys("n/"))
		}
		require.ErrorIs(t, loser.Unlock(context.Background()), etcdlock.ErrLost)
		synctest.Wait()
		require.Len(t, got, 1)
		require.NoError(t, (<-got).Unlock(context.Background()))
	})
}

// Once a hold is lost another process may hold. Then an error of the loser's Session does not call
// the lost hold the holder. It says that the lost hold is yet to be unlocked.
func TestALostHoldIsNotToldAsTheHolder(t *testing.T) {
	type acquire func(t *testing.T, s *etcdlock.Session) (unlock func(context.Context) error)
	locks := func(opts ...etcdlock.Option) acquire {
		return func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			mu := contract.MutexOf(t, s, "n", opts...)
			tests.LockWithin(t, mu, time.Second)
			return mu.Unlock
		}
	}
	deletes := func(etcd *fake.Server) { etcd.DeleteKey(etcd.Keys("n/")[0]) }
	for name, row := range map[string]struct {
		acquire acquire
		loses   func(etcd *fake.Server)
		reason  error
	}{
		"a Mutex":                      {locks(), deletes, etcdlock.ErrKeyDeleted},
		"a Mutex whose lease has gone": {locks(), func(etcd *fake.Server) { etcd.RevokeLease(etcd.Leases()[0]) }, etcdlock.ErrLeaseRevoked},
		"a Mutex that held for too long": {
			locks(etcdlock.WithMaxHold(8 * time.Second)), func(*fake.Server) {
				time.Sleep(5 * time.Second)
			}, etcdlock.ErrMaxHold,
		},
		"a read": {func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			return tests.RLockWithin(t, tests.RWMutexOf(t, s), time.Second).Unlock
		}, deletes, etcdlock.ErrKeyDeleted},
		"a permit": {func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			return tests.AcquireWithin(t, tests.SemaphoreOf(t, s, 1), 1, time.Second).Unlock
		}, deletes, etcdlock.ErrKeyDeleted},
		"several names": {func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			return tests.HoldWithin(t, time.Second, func(ctx context.Context) (*etcdlock.Hold, error) {
				return s.LockAll(ctx, "m", "n")
			}).Unlock
		}, deletes, etcdlock.ErrKeyDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				holders := make(chan etcdlock.Contender, 7)
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					Queued: func(_ context.Context, e etcdlock.QueuedEvent) { holders <- e.Holder },
				}))
				unlock := row.acquire(t, s)
				time.Sleep(5 * time.Second) // a hold that lasts is watched
				row.loses(etcd)
				time.Sleep(time.Second)
				other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				tests.LockWithin(t, other, time.Second)

				mu, rw := contract.MutexOf(t, s, "n"), tests.RWMutexOf(t, s)
				for call, err := range map[string]error{
					"TryLock": mu.TryLock(context.Background()),
					"Lock":    mu.Lock(tests.Within(t, time.Second)),
					"TryRLock": func() error {
						_, err := rw.TryRLock(context.Background())
						return err
					}(),
					"TryLockAll": func() error {
						_, err := s.TryLockAll(context.Background(), "k", "n")
						return err
					}(),
					"LockAll": func() error {
						_, err := s.LockAll(tests.Within(t, time.Second), "k", "n")
						return err
					}(),
				} {
					var locked *etcdlock.LockedError
					ok := errors.As(err, &locked)
					require.True(t, ok, "%s: %v", call, err)
					require.Equal(t, 1, locked.Ahead, call)
					holders <- locked.Holder
					require.NotContains(t, err.Error(), "held by", call)
					require.Contains(t, err.Error(), "waits for the Unlock of a hold lost here", call)
				}
				for range cap(holders) { // two calls have queued
					holder := tests.SoonOr(t, holders, "a hook tells, too")
					require.Equal(t, "a", holder.Owner, "it is this process that has to unlock")
					require.False(t, holder.Holds)
					require.Empty(t, holder.Key)
					require.Zero(t, holder.Token)
					require.Zero(t, holder.Lease)
				}
				err := unlock(context.Background())
				require.ErrorIs(t, err, etcdlock.ErrLost)
				require.ErrorIs(t, err, row.reason)
				var locked *etcdlock.LockedError
				ok := errors.As(mu.TryLock(context.Background()), &locked)
				require.True(t, ok)
				require.Equal(t, other.Token(), locked.Holder.Token)
				require.NoError(t, other.Unlock(context.Background()))
			})
		})
	}
}

// Where some of a Session's holds of a name are lost, one that is whole is told as the holder.
func TestOfSeveralHoldsOfASessionOneThatIsWholeIsToldAsTheHolder(t *testing.T) {
	permits := func(lost int) func(*testing.T, *fake.Server, *etcdlock.Session) []*etcdlock.Hold {
		return func(t *testing.T, etcd *fake.Server, s *etcdlock.Session) []*etcdlock.Hold {
			sem := tests.SemaphoreOf(t, s, 2)
			holds := []*etcdlock.Hold{tests.AcquireWithin(t, sem, 1, time.Second),
				tests.AcquireWithin(t, sem, 1, time.Second)}
			time.Sleep(5 * time.Second) // holds that last are watched
			line, err := etcdlock.Contenders(context.Background(), etcd.Client("op"), "n")
			require.NoError(t, err)
			etcd.DeleteKey(line[lost].Key)
			time.Sleep(time.Second)
			return holds
		}
	}
	reads := func(lost int) func(*testing.T, *fake.Server, *etcdlock.Session) []*etcdlock.Hold {
		return func(t *testing.T, _ *fake.Server, s *etcdlock.Session) []*etcdlock.Hold {
			rws := []*etcdlock.RWMutex{tests.RWMutexOf(t, s), tests.RWMutexOf(t, s)}
			rws[lost] = tests.RWMutexOf(t, s, etcdlock.WithMaxHold(8*time.Second))
			holds := []*etcdlock.Hold{tests.RLockWithin(t, rws[0], time.Second),
				tests.RLockWithin(t, rws[1], time.Second)}
			time.Sleep(9 * time.Second)
			return holds
		}
	}
	for name, row := range map[string]struct {
		hold func(*testing.T, *fake.Server, *etcdlock.Session) []*etcdlock.Hold
		lost int
	}{
		"the first permit is lost":             {permits(0), 0},
		"the second permit is lost":            {permits(1), 1},
		"the first has read for too long":      {reads(0), 0},
		"the second one has read for too long": {reads(1), 1},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				holds := row.hold(t, etcd, s)
				lost, whole := holds[row.lost], holds[1-row.lost]
				require.Zero(t, lost.Token())
				err := contract.MutexOf(t, s, "n").TryLock(context.Background())
				var locked *etcdlock.LockedError
				ok := errors.As(err, &locked)
				require.True(t, ok, "%v", err)
				require.True(t, locked.Holder.Holds)
				require.Equal(t, whole.Token(), locked.Holder.Token)
				require.ErrorContains(t, err, "held by a")
				require.ErrorIs(t, lost.Unlock(context.Background()), etcdlock.ErrLost)
				tests.UnlockAll(t, whole)
			})
		})
	}
}

// A permit is lost, and the put of the next one is under way: that is who is told.
func TestALostPermitIsNotToldAsTheHolderWhileTheNextOneIsOnItsWay(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		sem := tests.SemaphoreOf(t, s, 1)
		lost := tests.AcquireWithin(t, sem, 1, time.Second)
		time.Sleep(5 * time.Second)
		etcd.DeleteKey(etcd.Keys("n/")[0])
		time.Sleep(time.Second)
		etcd.Freeze()
		next := tests.AcquireLater(sem, 1)
		var locked *etcdlock.LockedError
		err := contract.MutexOf(t, s, "n").TryLock(context.Background())
		require.ErrorAs(t, err, &locked)
		require.False(t, locked.Holder.Holds)
		require.Zero(t, locked.Holder.Token)
		etcd.Thaw()
		tests.UnlockAll(t, tests.SoonOr(t, next, "the next one does not get in"))
		require.ErrorIs(t, lost.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// A call that waits for the Unlock of a hold that its Session has lost is not silent: its error
// says so, and the logger warns once, 10 s after the loss or after the first call that waits. A
// loss that is unlocked before, or for which no call waits, is no warning.
func TestALossThatIsNotUnlockedIsToldByTheLogger(t *testing.T) {
	for name, row := range map[string]struct {
		waitsFrom, unlocks, warns time.Duration // after the loss; negative: before, never, not

	}{
		"a call waits at the loss": {waitsFrom: -time.Second, unlocks: time.Minute, warns: 10 * time.Second},
		"one comes later":          {waitsFrom: 30 * time.Second, unlocks: 2 * time.Minute, warns: 40 * time.Second},
		"it is unlocked before":    {waitsFrom: -time.Second, unlocks: 9 * time.Second, warns: -1},
		"none waits":               {waitsFrom: time.Hour, unlocks: time.Minute, warns: -1},
	} {
		for how, lose := range map[string]func(etcd *fake.Server, mu *etcdlock.Mutex){
			"deleted": func(etcd *fake.Server, mu *etcdlock.Mutex) { etcd.DeleteKey(mu.Key()) },
			"revoked": func(etcd *fake.Server, _ *etcdlock.Mutex) { etcd.RevokeLease(etcd.Leases()[0]) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					var told tests.Told
					s := tests.SessionOf(t, etcd, "a", etcdlock.WithLogger(slog.New(slog.NewTextHandler(
						contract.WriterFunc(func(line []byte) (int, error) {
							told.Add("%s", line)
							return len(line), nil
						}), nil))))
					warned := func() (warnings []string) {
						return slices.DeleteFunc(told.Take(), func(line string) bool {
							return !strings.Contains(line, "a lost hold is not unlocked")
						})
					}
					loser := contract.MutexOf(t, s, "n")
					hold := tests.LockWithin(t, loser, time.Second)
					time.Sleep(5 * time.Second)
					ctx, cancel := context.WithCancel(t.Context())
					waited := make(chan error, 1)
					wait := func() { waited <- loser.Lock(ctx) }
					if row.waitsFrom < 0 {
						go wait()
						synctest.Wait()
					}
					lose(etcd, loser)
					<-hold.Done()
					lost := time.Now()
					if row.waitsFrom >= 0 {
						time.AfterFunc(row.waitsFrom, wait)
					}
					time.Sleep(time.Until(lost.Add(max(row.warns, 0))) - time.Millisecond)
					require.Empty(t, warned())
					time.Sleep(2 * time.Millisecond)
					if warnings := warned(); row.warns > 0 {
						require.Len(t, warnings, 1)
						require.Contains(t, warnings[0], "waiting=1")
					} else {
						require.Empty(t, warnings)
					}
					time.Sleep(time.Until(lost.Add(row.unlocks)))
					cancel()
					synctest.Wait()
					if row.warns > 0 {
						require.ErrorContains(t, <-waited, "waits for the Unlock of a hold lost here")
					}
					require.ErrorIs(t, loser.Unlock(t.Context()), etcdlock.ErrLost)
					time.Sleep(time.Minute)
					require.Empty(t, warned(), "once")
				})
			})
		}
	}
}
