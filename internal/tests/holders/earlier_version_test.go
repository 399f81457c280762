package holders

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

const (
	// waitsFor is for how long a hold that a version before 0.1.0 has detached waits in etcd, on a
	// lease of its own.
	waitsFor = 20 * time.Second

	// saysUntil is for how long it waits by its own word. etcd may keep a lease for longer.
	saysUntil = waitsFor - 5*time.Second
)

// An earlier is a process of a version before 0.1.0, which could detach a hold, and adopt it.
type earlier struct {
	t      *testing.T
	client *clientv3.Client
	key    string
	began  time.Time
}

// detaches puts the key of a hold of "n" that was detached.
func detaches(t *testing.T, etcd *fake.Server) *earlier {
	t.Helper()
	e := &earlier{t, etcd.Client("earlier"), "n/" + uuid.NewString(), time.Now()}
	e.puts(waitsFor, fmt.Sprintf(`,"until":%q,"detached":true}`,
		e.began.Add(saysUntil).UTC().Format(time.RFC3339Nano)))
	return e
}

// adopts moves the key to the lease of a process that goes on with the hold.
func (e *earlier) adopts() { e.t.Helper(); e.puts(30*time.Minute, `}`) }

func (e *earlier) puts(ttl time.Duration, rest string) {
	e.t.Helper()
	lease, err := e.client.Grant(context.Background(), int64(ttl.Seconds()))
	require.NoError(e.t, err)
	value := fmt.Sprintf(`{"owner":"earlier","host":"h","pid":7,"info":"10.0.0.1:80","since":%q%s`,
		e.began.UTC().Format(time.RFC3339Nano), rest)
	_, err = e.client.Put(context.Background(), e.key, value, clientv3.WithLease(lease.ID))
	require.NoError(e.t, err)
}

// waitsBesideEarlier are the ways to wait for "n", and to try it.
var waitsBesideEarlier = map[string]func(t *testing.T, s *etcdlock.Session) (wait, try lockFunc){
	"Lock": func(_ *testing.T, s *etcdlock.Session) (wait, try lockFunc) {
		return func(ctx context.Context) (*etcdlock.Hold, error) { return s.Lock(ctx, "n") },
			func(ctx context.Context) (*etcdlock.Hold, error) { return s.TryLock(ctx, "n") }
	},
	"RLock": func(t *testing.T, s *etcdlock.Session) (wait, try lockFunc) {
		rw := tests.RWMutexOf(t, s)
		return rw.RLock, rw.TryRLock
	},
	"Acquire": func(t *testing.T, s *etcdlock.Session) (wait, try lockFunc) {
		permits := tests.SemaphoreOf(t, s, 3)
		return func(ctx context.Context) (*etcdlock.Hold, error) { return permits.Acquire(ctx, 2) },
			func(ctx context.Context) (*etcdlock.Hold, error) { return permits.TryAcquire(ctx, 2) }
	},
	"LockAll": func(_ *testing.T, s *etcdlock.Session) (wait, try lockFunc) {
		return func(ctx context.Context) (*etcdlock.Hold, error) { return s.LockAll(ctx, "m", "n") },
			func(ctx context.Context) (*etcdlock.Hold, error) { return s.TryLockAll(ctx, "m", "n") }
	},
}

type lockFunc = func(ctx context.Context) (*etcdlock.Hold, error)

// later calls lock, and returns a channel for the hold.
func later(t *testing.T, lock lockFunc) <-chan *etcdlock.Hold {
	in := make(chan *etcdlock.Hold, 1)
	go func() {
		h, err := lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		in <- h
	}()
	return in
}

// A hold that an earlier version has detached is a contender that holds, until its lease ends: not
// only until the time that its text tells, and whether a process of that version goes on with it or
// not.
func TestAHoldThatAnEarlierVersionHasDetachedIsAContender(t *testing.T) {
	for way, of := range waitsBesideEarlier {
		t.Run(way, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				before := detaches(t, etcd)
				wait, try := of(t, tests.SessionOf(t, etcd, "a"))
				_, err := try(context.Background())
				var locked *etcdlock.LockedError
				is := errors.As(err, &locked)
				require.True(t, is, "%v", err)
				require.Equal(t, before.key, locked.Holder.Key)

				in := later(t, wait)
				time.Sleep(saysUntil + time.Second)
				tests.StillWaits(t, in, "it gets in before the lease has ended")
				h := tests.SoonOr(t, in, "it does not get in")
				require.WithinRange(t, time.Now(), before.began.Add(waitsFor),
					before.began.Add(waitsFor+time.Second))
				require.NoError(t, h.Unlock(context.Background()))
			})
		})
		t.Run(way+", it goes on", func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				before := detaches(t, etcd)
				wait, try := of(t, tests.SessionOf(t, etcd, "a"))
				in := later(t, wait)
				time.Sleep(saysUntil / 2)
				before.adopts()
				time.Sleep(10 * time.Minute)
				tests.StillWaits(t, in, "it gets in beside the hold")
				_, err := try(context.Background())
				require.ErrorIs(t, err, etcdlock.ErrLocked)
				etcd.DeleteKey(before.key)
				released := time.Now()
				h := tests.SoonOr(t, in, "it does not get in")
				require.Equal(t, released, time.Now())
				require.NoError(t, h.Unlock(context.Background()))
			})
		})
	}
}

// Behind many it is a contender, too: the last one of them, which the waiter watches.
func TestAHoldThatAnEarlierVersionHasDetachedIsAContenderInALongLine(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, _ := tests.Strangers(t, etcd, "n", 20)
		before := detaches(t, etcd)
		in := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n"))
		time.Sleep(time.Second)
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		before.adopts()
		time.Sleep(10 * time.Minute)
		tests.StillWaits(t, in, "it gets in beside the hold")
		etcd.DeleteKey(before.key)
		require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
	})
}

// What operators and followers see of it, and that they can recall and break it as any other.
func TestWhatIsToldOfAHoldThatAnEarlierVersionHasDetached(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx := context.Background()
		before := detaches(t, etcd)
		w := watches(etcd.Client("follower"), "n")
		defer w.end()
		synctest.Wait()
		c := tests.PlaceOf(t, etcd, "n", 0)
		require.True(t, c.Until.Equal(before.began.Add(saysUntil)))
		require.True(t, c.Since.Equal(before.began))
		c.Until, c.Since = time.Time{}, time.Time{}
		leases := etcd.Leases()
		require.Equal(t, etcdlock.Contender{
			Name: "n", Key: before.key, Owner: "earlier", Host: "h", PID: 7, Info: "10.0.0.1:80",
			Token: c.Token, Lease: leases[len(leases)-1], Mode: etcdlock.ModeExclusive, Holds: true,
		}, c)
		holders, err := etcdlock.Holders(ctx, etcd.Client("operator"), "")
		require.NoError(t, err)
		require.Len(t, holders, 1)

		revision := etcd.Rev()
		require.ErrorIs(t, etcdlock.Recall(ctx, etcd.Client("operator"), c, etcdlock.RecallRequest{}),
			etcdlock.ErrNotRecallable)
		require.Equal(t, revision, etcd.Rev())

		before.adopts()
		synctest.Wait()
		require.NoError(t, etcdlock.Break(ctx, etcd.Client("operator"), c))
		synctest.Wait()
		require.Equal(t, "earlier earlier -", w.sights())
		require.NotZero(t, w.all()[0].Until)
		require.Zero(t, w.all()[1].Until)
		require.Empty(t, etcd.Keys("n/"))
	})
}
