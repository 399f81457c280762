package outages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
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

// The lock delay: etcd is set back under a holder that does not hear of it. Another Session, which
// does, begins no hold before the holder's must have ended.

// A taking is a way to take "n". It returns the context of the hold, and what ends it.
type taking func(
	t *testing.T, s *etcdlock.Session,
) func(ctx context.Context) (hold context.Context, unlock func(context.Context) error, err error)

// of makes a taking of a call.
func of(
	call func(t *testing.T, s *etcdlock.Session) func(context.Context) (*etcdlock.Hold, error),
) taking {
	return func(t *testing.T, s *etcdlock.Session) func(context.Context) (
		context.Context, func(context.Context) error, error,
	) {
		call := call(t, s)
		return func(ctx context.Context) (context.Context, func(context.Context) error, error) {
			h, err := call(ctx)
			if err != nil {
				return nil, nil, err
			}
			return h.Context(context.Background()), h.Unlock, nil
		}
	}
}

var takings = map[string]taking{
	"Lock": of(func(_ *testing.T, s *etcdlock.Session) func(context.Context) (*etcdlock.Hold, error) {
		return func(ctx context.Context) (*etcdlock.Hold, error) { return s.Lock(ctx, "n") }
	}),
	"LockAll": of(func(_ *testing.T, s *etcdlock.Session) func(context.Context) (*etcdlock.Hold, error) {
		return func(ctx context.Context) (*etcdlock.Hold, error) { return s.LockAll(ctx, "m", "n") }
	}),
	"RLock": of(func(t *testing.T, s *etcdlock.Session) func(context.Context) (*etcdlock.Hold, error) {
		return tests.RWMutexOf(t, s).RLock
	}),
	"Acquire": of(func(t *testing.T, s *etcdlock.Session) func(context.Context) (*etcdlock.Hold, error) {
		sem := tests.SemaphoreOf(t, s, 1)
		return func(ctx context.Context) (*etcdlock.Hold, error) { return sem.Acquire(ctx, 1) }
	}),
	"RWMutex.Lock": func(t *testing.T, s *etcdlock.Session) func(context.Context) (
		context.Context, func(context.Context) error, error,
	) {
		rw := tests.RWMutexOf(t, s)
		return func(ctx context.Context) (context.Context, func(context.Context) error, error) {
			if err := rw.Lock(ctx); err != nil {
				return nil, nil, err
			}
			return rw.Context(context.Background()), rw.Unlock, nil
		}
	},
}

// An entry is a hold that began.
type entry struct {
	at     time.Time
	hold   context.Context
	unlock func(context.Context) error
}

// takes takes "n", and fails if that takes longer than a second.
func takes(t *testing.T, how taking, s *etcdlock.Session) entry {
	t.Helper()
	hold, unlock, err := how(t, s)(tests.Within(t, time.Second))
	require.NoError(t, err)
	return entry{time.Now(), hold, unlock}
}

// takesLater is a wait for "n" that is under way. It has begun to wait when this returns.
func takesLater(t *testing.T, how taking, s *etcdlock.Session) <-chan entry {
	in, call := make(chan entry, 1), how(t, s)
	go func() {
		hold, unlock, err := call(context.Background())
		if err == nil {
			in <- entry{time.Now(), hold, unlock}
		}
	}()
	synctest.Wait()
	return in
}

// A noticing is when a Session has noticed that etcd was set back: it asked, and was told.
type noticing struct{ asked, told time.Time }

// notices makes a Session notice that etcd was set back.
func notices(t *testing.T, s *etcdlock.Session) noticing {
	t.Helper()
	asked := time.Now()
	_, err := s.Lock(tests.Within(t, 50*time.Millisecond), "unused")
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.ErrorContains(t, err, "etcd was set back")
	return noticing{asked, time.Now()}
}

// delays requires that a hold began at the very end of a delay since the noticing.
func (n noticing) delays(t *testing.T, d time.Duration, began time.Time) {
	t.Helper()
	require.False(t, began.Before(n.asked.Add(d)), "it got in %v after the Session had asked, not %v",
		began.Sub(n.asked), d)
	require.False(t, began.After(n.told.Add(d)), "it got in %v after the Session knew, not %v",
		began.Sub(n.told), d)
}

// knows makes a Session know a revision that an etcd that was wiped does not reach soon.
func knows(t *testing.T, etcd *fake.Server, s *etcdlock.Session) {
	t.Helper()
	for range 20 {
		require.NoError(t, etcd.PutKey("something else", 0))
	}
	h, err := s.Lock(t.Context(), "other")
	require.NoError(t, err)
	require.NoError(t, h.Unlock(t.Context()))
}

// The holder is cut off as etcd is wiped. Who has waited behind it, or has met it, gets in at the
// very end of the longer TTL, counted from when it has noticed.
func TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd(t *testing.T) {
	pairs := [][2]string{
		{"Lock", "Lock"}, {"RWMutex.Lock", "RLock"}, {"RLock", "RWMutex.Lock"}, {"Acquire", "Acquire"},
		{"LockAll", "Lock"}, {"Lock", "LockAll"}, {"RLock", "Lock"}, {"Acquire", "RLock"},
	}
	for _, pair := range pairs {
		for _, ttl := range []struct{ holder, other time.Duration }{
			{tests.TTL, tests.TTL}, {90 * time.Second, tests.TTL}, {tests.TTL, 90 * time.Second},
		} {
			for _, cluster := range []uint64{1, 2} {
				for _, waits := range []bool{true, false} {
					name := fmt.Sprintf("%s for %v, then %s for %v, cluster %d, waits %v", pair[0], ttl.holder,
						pair[1], ttl.other, cluster, waits)
					t.Run(name, func(t *testing.T) {
						tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
							a := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl.holder))
							b := tests.SessionOf(t, etcd, "b", etcdlock.WithTTL(ttl.other))
							knows(t, etcd, b)
							held := takes(t, takings[pair[0]], a)
							time.Sleep(ttl.holder / 2)
							later := takesLater(t, takings[pair[1]], b)
							etcd.Cut("a")
							etcd.Restore(0, cluster)
							noticed := notices(t, b)
							if !waits { // it is another call that gets in
								in := takesLater(t, takings[pair[1]], b)
								first := tests.SoonOr(t, later, "the first does not get in")
								require.NoError(t, first.unlock(t.Context()))
								later = in
							}
							in := tests.SoonOr(t, later, "it does not get in")
							require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired)
							noticed.delays(t, max(ttl.holder, ttl.other), in.at)
							require.NoError(t, in.unlock(t.Context()))
							require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
						})
					})
				}
			}
		}
	}
}

// A contender whose TTL nobody has told may hold for a minute: one of another library, or one of
// which only the key was read, or nothing. The key that stays though its hold has ended does not
// count.
func TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown(t *testing.T) {
	value := func(ttl string) string {
		return `{"owner":"x","host":"h","pid":1,"since":"2026-01-02T03:04:05Z"` + ttl + `}`
	}
	for name, row := range map[string]struct {
		ahead []string      // values
		n     int           // of each
		floor time.Duration // 0: the default
		want  time.Duration
	}{
		"nobody":                      {want: time.Minute},
		"nobody, and a shorter floor": {floor: time.Second, want: tests.TTL},
		"nobody, and a longer floor":  {floor: time.Hour, want: time.Hour},
		"a shorter TTL":               {ahead: []string{value(`,"ttl":5`)}, n: 1, want: tests.TTL},
		"a longer TTL":                {ahead: []string{value(`,"ttl":40`)}, n: 1, want: 40 * time.Second},
		"the longest of several":      {ahead: []string{value(`,"ttl":40`), value(`,"ttl":300`), value(`,"ttl":50`)}, n: 1, want: 5 * time.Minute},
		"of another library":          {ahead: []string{""}, n: 1, want: time.Minute},
		"of one with a longer floor":  {ahead: []string{""}, n: 1, floor: time.Hour, want: time.Hour},
		"of an earlier version":       {ahead: []string{value("")}, n: 1, want: time.Minute},
		"a key that stays":            {ahead: []string{value(`,"until":"2030-01-02T03:04:05Z"`)}, n: 1, want: tests.TTL},
		"a line of more than nine":    {ahead: []string{value(`,"ttl":5`)}, n: 12, want: tests.TTL},
		"with a longer TTL":           {ahead: append([]string{value(`,"ttl":300`)}, slicesOf(value(`,"ttl":5`), 40)...), n: 1, want: 5 * time.Minute},
		"a crowd":                     {ahead: []string{value(`,"ttl":5`)}, n: 100, want: time.Minute},
		"a crowd behind a longer TTL": {ahead: append([]string{value(`,"ttl":300`)}, slicesOf(value(`,"ttl":5`), 99)...), n: 1, want: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				others := etcd.Client("others")
				granted, err := others.Grant(t.Context(), 3000)
				require.NoError(t, err)
				var opts []etcdlock.SessionOption
				if row.floor != 0 {
					opts = append(opts, etcdlock.WithRestoreDelay(row.floor))
				}
				b := tests.SessionOf(t, etcd, "b", opts...)
				knows(t, etcd, b)
				for _, v := range row.ahead {
					for range row.n {
						_, err := others.Put(t.Context(), "n/"+uuid.NewString(), v, clientv3.WithLease(granted.ID))
						require.NoError(t, err)
					}
				}
				in := takesLater(t, takings["Lock"], b)
				if len(row.ahead) == 0 {
					first := tests.SoonOr(t, in, "it does not get in")
					require.NoError(t, first.unlock(t.Context()))
				}
				time.Sleep(10 * time.Second) // it has looked who holds
				etcd.Restore(0, 2)
				noticed := notices(t, b)
				if len(row.ahead) == 0 {
					in = takesLater(t, takings["Lock"], b)
				}
				now := tests.SoonOr(t, in, "it does not get in")
				noticed.delays(t, row.want, now.at)
				require.NoError(t, now.unlock(t.Context()))
			})
		})
	}
}

// A call that only tries meets the holder that it is refused for.
func TestACallThatWasRefusedKnowsForHowLongTheHolderMayHold(t *testing.T) {
	for name, row := range map[string]struct {
		holds taking
		tries func(t *testing.T, s *etcdlock.Session) error
	}{
		"TryLock": {takings["Lock"], func(t *testing.T, s *etcdlock.Session) error {
			_, err := s.TryLock(t.Context(), "n")
			return err
		}},
		"TryLock beside a reader": {takings["RLock"], func(t *testing.T, s *etcdlock.Session) error {
			return tests.RWMutexOf(t, s).TryLock(t.Context())
		}},
		"TryRLock": {takings["Lock"], func(t *testing.T, s *etcdlock.Session) error {
			_, err := tests.RWMutexOf(t, s).TryRLock(t.Context())
			return err
		}},
		"TryAcquire": {takings["Acquire"], func(t *testing.T, s *etcdlock.Session) error {
			_, err := tests.SemaphoreOf(t, s, 1).TryAcquire(t.Context(), 1)
			return err
		}},
		"TryLockAll": {takings["Lock"], func(t *testing.T, s *etcdlock.Session) error {
			_, err := s.TryLockAll(t.Context(), "m", "n")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				const ttl = 90 * time.Second
				a := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl))
				b := tests.SessionOf(t, etcd, "b")
				knows(t, etcd, b)
				held := takes(t, row.holds, a)
				require.ErrorIs(t, row.tries(t, b), etcdlock.ErrLocked)
				etcd.Cut("a")
				etcd.Restore(0, 1)
				noticed := notices(t, b)
				in := tests.SoonOr(t, takesLater(t, takings["Lock"], b), "it does not get in")
				noticed.delays(t, ttl, in.at)
				require.NoError(t, in.unlock(t.Context()))
				require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
			})
		})
	}
}

// Each write has a revision of its own: one that is answered at a revision that was known before
// shows that etcd was set back, though no revision went back.
func TestAWriteAtARevisionThatWasKnownShowsASetBack(t *testing.T) {
	for name, takes := range map[string]func(context.Context, *etcdlock.Session) error{
		"TryLock": func(ctx context.Context, s *etcdlock.Session) error {
			_, err := s.TryLock(ctx, "n")
			return err
		},
		"Lock": func(ctx context.Context, s *etcdlock.Session) error {
			_, err := s.Lock(ctx, "n")
			return err
		},
		"TryLockAll": func(ctx context.Context, s *etcdlock.Session) error {
			_, err := s.TryLockAll(ctx, "n", "m")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
				for _, s := range []*etcdlock.Session{a, b} {
					h, err := s.Lock(t.Context(), "other")
					require.NoError(t, err)
					require.NoError(t, h.Unlock(t.Context()))
				}
				before := etcd.Snapshot()
				held, err := a.Lock(t.Context(), "n")
				require.NoError(t, err)
				ends := held.Context(t.Context())
				_, err = b.TryLock(t.Context(), "n")
				require.ErrorIs(t, err, etcdlock.ErrLocked)
				etcd.Cut("a")
				etcd.Restore(before, 1)
				err = takes(tests.Within(t, time.Second), b)
				require.ErrorIs(t, err, etcdlock.ErrLocked)
				require.ErrorContains(t, err, "etcd was set back")
				in := tests.SoonOr(t, takesLater(t, takings["Lock"], b), "it does not get in")
				require.ErrorIs(t, context.Cause(ends), etcdlock.ErrExpired)
				require.NoError(t, in.unlock(t.Context()))
				require.ErrorIs(t, held.Unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
			})
		})
	}
}

// slicesOf is n times the same.
func slicesOf[T any](v T, n int) (all []T) {
	for range n {
		all = append(all, v)
	}
	return all
}

// Whoever joins a short line later is met by the view, and counts though it stands behind.
func TestTheLockDelayCountsThoseThatTheViewHasShown(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := tests.SessionOf(t, etcd, "a")
		b := tests.SessionOf(t, etcd, "b")
		c := tests.SessionOf(t, etcd, "c", etcdlock.WithTTL(5*time.Minute))
		knows(t, etcd, b)
		first := takes(t, takings["Lock"], a)
		second := takesLater(t, takings["Lock"], b)
		third := takesLater(t, takings["Lock"], c)
		require.NoError(t, first.unlock(t.Context()))
		now := tests.SoonOr(t, second, "b does not get in")
		require.NoError(t, now.unlock(t.Context()))
		held := tests.SoonOr(t, third, "c does not get in")
		etcd.Cut("c")
		etcd.Restore(0, 2)
		noticed := notices(t, b)
		again := tests.SoonOr(t, takesLater(t, takings["Lock"], b), "b does not get in again")
		noticed.delays(t, 5*time.Minute, again.at)
		require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired)
		require.NoError(t, again.unlock(t.Context()))
		require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
	})
}

// A permit waits, and its Session hears nothing as the one before it is released. So the permit
// behind it, whose Session it has never met, holds unseen, with a TTL of its own. Then etcd is
// wiped.
func TestThePermitsBehindOneThatWaitsMayHoldUnseen(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const ttl = time.Minute // the restore delay
		one := of(func(t *testing.T, s *etcdlock.Session) func(context.Context) (*etcdlock.Hold, error) {
			sem := tests.SemaphoreOf(t, s, 2)
			return func(ctx context.Context) (*etcdlock.Hold, error) { return sem.Acquire(ctx, 1) }
		})
		a, s := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "s")
		far := tests.SessionOf(t, etcd, "far", etcdlock.WithTTL(ttl))
		knows(t, etcd, s)
		both, err := tests.SemaphoreOf(t, a, 2).Acquire(t.Context(), 2)
		require.NoError(t, err)
		first := takesLater(t, one, s)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Process == "s" && c.Method == fake.Event}
		})
		unseen := takesLater(t, one, far)
		require.NoError(t, both.Unlock(t.Context()))
		held := tests.SoonOr(t, unseen, "the one behind does not get in")
		etcd.Cut("far")
		etcd.Restore(0, 2)
		second := takesLater(t, one, s)
		for _, in := range []<-chan entry{first, second} {
			now := tests.SoonOr(t, in, "s does not get in")
			defer func() { require.NoError(t, now.unlock(context.Background())) }()
		}
		require.Error(t, held.hold.Err(), "three hold of two")
		require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
	})
}

// Whoever comes after the set-back cannot hold since before: the delay is no longer for it.
func TestTheLockDelayDoesNotCountThoseWhoCameAfterTheSetBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithRestoreDelay(tests.TTL))
		knows(t, etcd, s)
		held := takes(t, takings["Lock"], s)
		require.NoError(t, held.unlock(t.Context()))
		etcd.Restore(0, 2)
		noticed := notices(t, s)
		_, lease := tests.Strangers(t, etcd, "other", 0)
		keys := []string{"n/" + uuid.NewString(), "n/" + uuid.NewString()}
		for _, key := range keys {
			_, err := etcd.Client("others").Put(t.Context(), key, `{"ttl":3000}`, clientv3.WithLease(lease))
			require.NoError(t, err)
		}
		in := takesLater(t, takings["Lock"], s)
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		now := tests.SoonOr(t, in, "it does not get in")
		noticed.delays(t, tests.TTL, now.at)
		require.NoError(t, now.unlock(t.Context()))
	})
}

// A call that only tries is refused at once, and writes nothing; one whose own answer shows the
// set-back takes its key away. A wait that ends says what it has waited for.
func TestCallsAreToldOfTheLockDelay(t *testing.T) {
	const why = "etcd was set back, and a hold from before may last for "
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var log strings.Builder
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithRestoreDelay(tests.TTL))
		rw, sem := tests.RWMutexOf(t, s), tests.SemaphoreOf(t, s, 2)
		knows(t, etcd, s)
		etcd.Restore(0, 1)
		asked := time.Now()
		_, err := s.TryLock(t.Context(), "unused")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorContains(t, err, why)
		noticed := noticing{asked, time.Now()}
		require.Less(t, time.Since(asked), 100*time.Millisecond)
		time.Sleep(time.Second)
		require.Empty(t, etcd.Keys("unused/"))

		calls := tests.CallsSince(etcd)
		for name, try := range map[string]func() error{
			"Lock":    func() error { _, err := s.TryLock(t.Context(), "n"); return err },
			"again":   func() error { _, err := s.TryLock(t.Context(), "unused"); return err },
			"LockAll": func() error { _, err := s.TryLockAll(t.Context(), "m", "n"); return err },
			"RLock":   func() error { _, err := rw.TryRLock(t.Context()); return err },
			"Acquire": func() error { _, err := sem.TryAcquire(t.Context(), 1); return err },
		} {
			err := try()
			var locked *etcdlock.LockedError
			ok := errors.As(err, &locked)
			require.True(t, ok, "%s: %v", name, err)
			require.Zero(t, locked.Ahead)
			require.Equal(t, etcdlock.Contender{Name: locked.Name}, locked.Holder)
			require.Regexp(t, `^etcdlock: lock "\w+": `+why+`22\.9\d*s$`, err.Error())
			slog.New(slog.NewTextHandler(&log, nil)).Info("refused", "why", locked)
		}
		tests.Costs(t, calls, "", 0)
		require.Contains(t, log.String(), "why.delay=22.9")
		require.NotContains(t, log.String(), "holder")

		in := takesLater(t, takings["RWMutex.Lock"], s)
		_, err = s.Lock(tests.Within(t, 2*time.Second), "n")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, why+"20.9")
		_, err = s.TryLock(t.Context(), "n")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorContains(t, err, why+"20.9")
		_, err = s.Lock(tests.Within(t, 2*time.Second), "m")
		text := `^etcdlock: lock "m": 1st in line, ` + why + `18\.9\d*s: context deadline exceeded$`
		require.Regexp(t, text,
			err.Error())
		_, err = s.LockAll(tests.Within(t, 2*time.Second), "l", "m")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorContains(t, err, why+"16.9")
		require.Empty(t, etcd.Keys("m/"))

		now := tests.SoonOr(t, in, "it does not get in")
		noticed.delays(t, tests.TTL, now.at)
		require.NoError(t, now.unlock(t.Context()))
		h, err := s.TryLock(t.Context(), "n")
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
	})
}

// A reader that only tries is refused while a reader of its Session waits for the end of the delay;
// a reader that waits gets in with that one.
func TestReadersWaitTogetherForTheEndOfTheLockDelay(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithRestoreDelay(tests.TTL))
		rw := tests.RWMutexOf(t, s)
		knows(t, etcd, s)
		etcd.Restore(0, 1)
		noticed := notices(t, s)
		first, second := takesLater(t, takings["RLock"], s), takesLater(t, takings["RLock"], s)
		for range 3 {
			time.Sleep(tests.TTL / 4)
			_, err := rw.TryRLock(t.Context())
			require.ErrorIs(t, err, etcdlock.ErrLocked)
		}
		third := takesLater(t, takings["RLock"], s)
		for _, in := range []<-chan entry{first, second, third} {
			now := tests.SoonOr(t, in, "it does not get in")
			noticed.delays(t, tests.TTL, now.at)
			defer func() { require.NoError(t, now.unlock(t.Context())) }()
		}
		require.Len(t, etcd.Keys("n/"), 1)
		tests.UnlockAll(t, tests.RLockWithin(t, rw, time.Second))
	})
}

// A hold whose key the snapshot has goes on. At its key others of its Session may hold at once:
// they join it, or it is handed to them. Nobody else can hold since before.
func TestAHoldThatASetBackLeavesIsHandedOnWithoutADelay(t *testing.T) {
	for _, row := range []struct { // in this order: a mutant of it hands off without end
		name string
		take taking
		opts []etcdlock.SessionOption
	}{
		{"readers join", takings["RLock"], nil},
		{"handed off", takings["Lock"], []etcdlock.SessionOption{etcdlock.WithHandoff(3)}},
	} {
		for _, cluster := range []uint64{1, 2} {
			t.Run(fmt.Sprint(row.name, ", cluster ", cluster), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a", row.opts...)
					held := takes(t, row.take, s)
					restore := etcd.Save()
					knows(t, etcd, s)
					restore(cluster)
					notices(t, s)
					time.Sleep(time.Second)
					require.NoError(t, held.hold.Err())
					if row.name == "readers join" {
						takes(t, row.take, s) // begins the view
						time.Sleep(time.Second)
					}
					next := takesLater(t, row.take, s)
					if row.name == "handed off" {
						require.NoError(t, held.unlock(t.Context()))
					}
					synctest.Wait()
					require.Len(t, next, 1, "it waits")
					require.Len(t, etcd.Keys("n/"), 1)
				})
			})
		}
	}
}

// etcd grants more than was asked for, and trust runs on that. A Session that has no lease, since
// it was idle or begins later, knows what etcd grants: to itself before, or to its client's others.
func TestTheLockDelayCountsTheTTLThatEtcdGrants(t *testing.T) {
	const asked, granted = 5 * time.Second, 3 * time.Minute
	for name, row := range map[string]struct{ idle, later bool }{
		"it has a lease": {}, "it was idle": {idle: true}, "it begins later": {later: true},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.MinTTL(int64(granted / time.Second))
				client := etcd.Client("b")
				session := func() *etcdlock.Session {
					s, err := etcdlock.NewSession(client, etcdlock.WithTTL(asked))
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
					return s
				}
				a := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(asked))
				b := session()
				knows(t, etcd, b)
				if row.idle {
					time.Sleep(3 * granted)
					require.Len(t, etcd.Leases(), 0)
					knows(t, etcd, session()) // which the client hears
				}
				if row.later {
					b = session()
				}
				held := takes(t, takings["Lock"], a)
				etcd.Cut("a")
				etcd.Restore(0, 2)
				noticed := notices(t, b)
				in := tests.SoonOr(t, takesLater(t, takings["Lock"], b), "b does not get in")
				noticed.delays(t, granted, in.at)
				require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired)
				require.NoError(t, in.unlock(t.Context()))
				require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
			})
		})
	}
}

// A Session has waited behind a TTL of a day, or has met one behind itself, and has seen it leave.
// A set-back long after that delays the name as any other, and so do names that nobody has used.
func TestTheLockDelayForgetsWhoHasLeft(t *testing.T) {
	for _, names := range []int{1, 1500} {
		t.Run(fmt.Sprint("names ", names), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(24*time.Hour))
				b := tests.SessionOf(t, etcd, "b")
				knows(t, etcd, b)
				held := takes(t, takings["Lock"], a)
				strangers, _ := tests.Strangers(t, etcd, "n", 12*(names%2)) // too many for a view
				later := takesLater(t, takings["Lock"], b)
				time.Sleep(10 * time.Second)
				for _, key := range strangers {
					etcd.DeleteKey(key)
				}
				require.NoError(t, held.unlock(t.Context()))
				in := tests.SoonOr(t, later, "b does not get in")
				require.NoError(t, in.unlock(t.Context()))
				for i := range names {
					h, err := b.Lock(t.Context(), fmt.Sprint("n", i))
					require.NoError(t, err)
					require.NoError(t, h.Unlock(t.Context()))
				}
				time.Sleep(1000 * time.Hour)
				knows(t, etcd, b)
				etcd.Restore(0, 2)
				noticed := notices(t, b)
				in = tests.SoonOr(t, takesLater(t, takings["Lock"], b), "b does not get in")
				noticed.delays(t, time.Minute, in.at)
				require.NoError(t, in.unlock(t.Context()))
			})
		})
	}
}

// A hold with a TTL of a day, from before a set-back, stays in the way of its name, however many
// other names the Session uses meanwhile.
func TestALongLockDelayIsNotForgotten(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(time.Hour))
		b := tests.SessionOf(t, etcd, "b")
		knows(t, etcd, b)
		held := takes(t, takings["Lock"], a)
		_, err := b.TryLock(t.Context(), "n")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		etcd.Cut("a")
		etcd.Restore(0, 2)
		noticed := notices(t, b)
		time.Sleep(2 * time.Minute)
		for i := range 3000 {
			h, err := b.Lock(t.Context(), fmt.Sprint("n", i))
			require.NoError(t, err)
			require.NoError(t, h.Unlock(t.Context()))
		}
		in := tests.SoonOr(t, takesLater(t, takings["Lock"], b), "b does not get in")
		noticed.delays(t, time.Hour, in.at)
		require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired)
		require.NoError(t, in.unlock(t.Context()))
		require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
	})
}

// etcd is set back twice. The delay counts from the second time, also for a hold that began in
// between.
func TestTheLockDelayCountsFromTheLastSetBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithRestoreDelay(tests.TTL))
		knows(t, etcd, s)
		etcd.Restore(0, 2)
		first := notices(t, s)
		in := takesLater(t, takings["Lock"], s)
		time.Sleep(tests.TTL / 2)
		etcd.Restore(0, 3)
		second := notices(t, s)
		require.Equal(t, tests.TTL/2, second.asked.Sub(first.told))
		now := tests.SoonOr(t, in, "it does not get in")
		second.delays(t, tests.TTL, now.at)
		require.NoError(t, now.unlock(t.Context()))
	})
}

// A request is on its way for long. It was sent before the set-back, and its answer is the first
// that shows it. The holder has sent a renewal after that request, which etcd confirmed: a delay
// from the request would end before the hold.
//
// The snapshot has the waiter's lease, so the request is answered. (An error tells no revision, and
// what is sent after it would show the set-back.)
func TestALockDelayCountsFromTheAnswer(t *testing.T) {
	const (
		taken    = 3 * time.Second // after the waiter's lease was granted: the two renew apart
		before   = 1200 * time.Millisecond
		onItsWay = 1500 * time.Millisecond // and no attempt is repeated so soon
		margin   = before / 2
	)
	for _, cluster := range []uint64{1, 2} {
		t.Run(fmt.Sprint("cluster ", cluster), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a := tests.SessionOf(t, etcd, "a", etcdlock.WithSafetyMargin(margin))
				b := tests.SessionOf(t, etcd, "b", etcdlock.WithRestoreDelay(tests.TTL))
				knows(t, etcd, b)
				restore := etcd.Save()
				knows(t, etcd, b)
				defer etcd.DeleteKey("something else")
				time.Sleep(taken)
				held := takes(t, takings["Lock"], a)
				ended := make(chan time.Time, 1)
				context.AfterFunc(held.hold, func() { ended <- time.Now() })
				time.Sleep(tests.RenewalPeriod - before)
				sent := time.Now()
				arrives := sent.Add(onItsWay) // whatever b sends
				etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
					if c.Process == "b" {
						effect.Delay = time.Until(arrives)
					}
					return effect
				})
				in := takesLater(t, takings["Lock"], b)
				time.Sleep(time.Until(arrives) - time.Millisecond)
				etcd.Cut("a")
				restore(cluster)
				time.Sleep(time.Millisecond)
				noticed := noticing{arrives, arrives.Add(time.Millisecond)}
				now := tests.SoonOr(t, in, "it does not get in")
				require.Greater(t, tests.SoonOr(t, ended, "the hold lasts").Sub(sent), tests.TTL)
				noticed.delays(t, tests.TTL, now.at)
				require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired)
				require.NoError(t, now.unlock(t.Context()))
				require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
			})
		})
	}
}

// What one Session of a client has noticed all know, whether they were there or begin later. A
// Session of another client, which begins after the set-back, cannot know.
func TestTheSessionsOfAClientKnowOfASetBackTogether(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		session := func(c *clientv3.Client) *etcdlock.Session {
			s, err := etcdlock.NewSession(c, etcdlock.WithTTL(tests.TTL),
				etcdlock.WithRestoreDelay(tests.TTL))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
			return s
		}
		knew, knows1 := session(client), session(client)
		knows(t, etcd, knows1)
		_, err := knew.TryLock(t.Context(), "x") // it knows a revision, but none that is higher
		require.NoError(t, err)
		etcd.Restore(0, 1)
		noticed := notices(t, knows1)
		in := takesLater(t, takings["Lock"], knew)
		time.Sleep(tests.TTL / 2)
		later := takesLater(t, takings["RLock"], session(client))
		_, err = session(client).TryLock(t.Context(), "n")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		first := tests.SoonOr(t, in, "the Session that was there does not get in")
		noticed.delays(t, tests.TTL, first.at)
		require.NoError(t, first.unlock(t.Context()))
		second := tests.SoonOr(t, later, "the one that began later does not get in")
		require.Less(t, second.at.Sub(noticed.told), tests.TTL+time.Second)
		require.NoError(t, second.unlock(t.Context()))

		etcd.Restore(0, 1)
		other := takes(t, takings["Lock"], session(etcd.Client("b")))
		require.NoError(t, other.unlock(t.Context()))
	})
}

// A Session with long leases holds, and asks for nothing, as etcd is set back. Its client's other
// Session notices, and its leases are short: the delay is over in a second, and so is the hold.
func TestAHoldEndsSoonOnceAnyOfItsClientHasNoticedASetBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		session := func(ttl time.Duration) *etcdlock.Session {
			s, err := etcdlock.NewSession(client, etcdlock.WithTTL(ttl))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
			return s
		}
		holder, other := session(time.Hour), session(time.Second)
		held := takes(t, takings["Lock"], holder)
		knows(t, etcd, other)
		time.Sleep(time.Minute)
		etcd.Restore(0, 1)
		noticed := notices(t, other)
		in := takesLater(t, takings["Lock"], other)
		require.LessOrEqual(t, tests.EndsAfter(t, held.hold, noticed.told), tests.LookEvery)
		next := tests.SoonOr(t, in, "it does not get in")
		noticed.delays(t, time.Hour, next.at)
		require.NoError(t, next.unlock(t.Context()))
		require.ErrorIs(t, held.unlock(t.Context()), etcdlock.ErrLost)
	})
}

// The client that has noticed nothing yet knows the revision that it had: a Session that begins
// after the set-back notices it by its first answer.
func TestASessionThatBeginsAfterASetBackNoticesItByWhatItsClientKnew(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		for i := range 2 {
			s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL),
				etcdlock.WithRestoreDelay(tests.TTL))
			require.NoError(t, err)
			if i == 0 {
				knows(t, etcd, s)
				require.NoError(t, s.Close(t.Context()))
				etcd.Restore(0, 1)
				continue
			}
			began := time.Now()
			in := takesLater(t, takings["Lock"], s)
			now := tests.SoonOr(t, in, "it does not get in")
			require.Equal(t, tests.TTL, now.at.Sub(began))
			require.NoError(t, now.unlock(t.Context()))
			require.NoError(t, s.Close(t.Context()))
		}
	})
}

// The snapshot has the holder's lease, and not its key: etcd confirms its renewals. They give it no
// trust before it has read its key, which takes long. So its hold ends when its lease of before
// would, and others rely on that.
func TestRenewalsAfterASetBackGiveNoTrustBeforeTheKeysWereRead(t *testing.T) {
	for _, cluster := range []uint64{1, 2} {
		t.Run(fmt.Sprint("cluster ", cluster), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
				knows(t, etcd, a)
				knows(t, etcd, b)
				restore := etcd.Save()
				knows(t, etcd, a)
				knows(t, etcd, b)
				held := takes(t, takings["Lock"], a)
				in := takesLater(t, takings["Lock"], b)
				time.Sleep(tests.TTL)
				defer etcd.DeleteKey("something else")
				var renewals atomic.Int32
				etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
					switch {
					case c.Process != "a":
					case c.Method == fake.KeepAlive:
						renewals.Add(1)
					default:
						effect.Drop = true // and with it each event
					}
					return effect
				})
				restore(cluster)
				noticed := notices(t, b)
				now := tests.SoonOr(t, in, "b does not get in")
				noticed.delays(t, tests.TTL, now.at)
				require.Greater(t, int(renewals.Load()), 2)
				require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired)
				etcd.Intercept(nil)
				require.NoError(t, now.unlock(t.Context()))
				require.ErrorIs(t, held.unlock(tests.Within(t, 10*time.Second)), etcdlock.ErrLost)
			})
		})
	}
}

// A renewal is answered by a member that is behind, which looks like a set-back. A read shows that
// there was none, and the hold is whole however often that happens.
func TestAMemberThatIsBehindCostsNoHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		hold := tests.LockWithin(t, mu, time.Second)
		etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
			if c.Method == fake.KeepAlive {
				effect.Edit = func(reply any) {
					reply.(*clientv3.LeaseKeepAliveResponse).ResponseHeader.Revision = 1
				}
			}
			return effect
		})
		time.Sleep(10 * tests.TTL)
		require.NoError(t, hold.Err())
		require.NoError(t, mu.Unlock(t.Context()))
	})
}

// Many names wait for the end of a delay. Meanwhile they cost little, and at its end each gets in
// by itself: a wait has neither goroutine nor request for it.
func TestManyWaitForTheEndOfTheLockDelayAtLittleCost(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const names = 500
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithRestoreDelay(tests.TTL))
		knows(t, etcd, s)
		etcd.Restore(0, 1)
		noticed := notices(t, s)
		in := make(chan time.Time, names)
		for i := range names {
			go func() {
				h, err := s.Lock(context.Background(), fmt.Sprint("n", i))
				if err != nil {
					return
				}
				in <- time.Now()
				_ = h.Unlock(context.Background())
			}()
		}
		time.Sleep(time.Second)
		etcd.ForgetCalls()
		time.Sleep(tests.TTL - 2*time.Second)
		sent := len(etcd.Calls(""))
		t.Logf("%d requests for %d waits", sent, names)
		require.Less(t, sent, names/5) // audits of its keys, a hundred at a time
		for range names {
			noticed.delays(t, tests.TTL, tests.SoonOr(t, in, "not all get in"))
		}
	})
}
