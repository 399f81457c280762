package mutex

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// Readiness checks ask the Status: it is zero, as Token is, whatever ends the hold.
func TestTheStatusIsZeroUnlessThereIsAHold(t *testing.T) {
	require.Zero(t, (*etcdlock.Mutex)(nil).Status())
	require.Zero(t, new(etcdlock.Mutex).Status())
	forever := context.Background()
	for name, row := range map[string]struct {
		opts []etcdlock.Option
		end  func(*held) error
	}{
		"Unlock": {end: func(h *held) error { return h.mu.Unlock(forever) }},
		"Unlock of a key that lingers": {
			opts: []etcdlock.Option{etcdlock.WithLinger(time.Minute)},
			end:  func(h *held) error { return h.mu.Unlock(forever) },
		},
		"the longest hold": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)},
			end:  func(*held) error { time.Sleep(time.Second); return nil },
		},
		"the end of the trust": {end: func(h *held) error {
			h.etcd.Cut("a")
			time.Sleep(tests.TTL)
			return nil
		}},
		"an operator": {end: func(h *held) error {
			h.etcd.DeleteKey(h.mu.Key())
			time.Sleep(2 * time.Second)
			return nil
		}},
		"Close of the Mutex":   {end: func(h *held) error { return h.mu.Close(forever) }},
		"Close of the Session": {end: func(h *held) error { return h.s.Close(forever) }},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "x", row.opts...)
				require.Zero(t, mu.Status(), "before")
				require.NoError(t, mu.Lock(tests.Within(t, time.Second)))
				now := mu.Status()
				require.True(t, now.Held)
				require.Equal(t, mu.Token(), now.Token)
				require.Equal(t, mu.Key(), now.Key)
				require.Zero(t, contract.MutexOf(t, s, "x").Status(), "another Mutex of the name")
				require.NoError(t, row.end(&held{etcd: etcd, s: s, mu: mu}))
				require.Zero(t, mu.Status(), "after")
				require.Zero(t, mu.Token())
			})
		})
	}
}

// A hold counts by what etcd granted, and not by what the program asked for.
func TestAHoldTellsItsGrantedTTLAndItsMargin(t *testing.T) {
	for name, row := range map[string]struct {
		opts   []etcdlock.SessionOption
		margin time.Duration
	}{
		"default margin": {nil, 2 * time.Second},
		"given margin":   {[]etcdlock.SessionOption{etcdlock.WithSafetyMargin(3 * time.Second)}, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.MinTTL(16)
				opts := append(row.opts, etcdlock.WithTTL(10*time.Second))
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", opts...), "n")
				tests.LockWithin(t, mu, time.Second)
				require.Equal(t, etcdlock.Status{
					Held: true, Token: mu.Token(), Key: mu.Key(),
					Deadline: time.Now().Add(16*time.Second - row.margin),
					TTL:      16 * time.Second, SafetyMargin: row.margin,
				}, mu.Status())
				require.NoError(t, mu.Unlock(context.Background()))

				tests.LockWithin(t, mu, time.Second)
				etcd.Cut("a")
				time.Sleep(16 * time.Second)
				require.Zero(t, mu.Status(), "after a loss")
				etcd.Heal("a")
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
			})
		})
	}
}

// A caller of Do can tell whether the work was begun, whatever else the error says.
func TestDoTellsWhetherItCalledItsFunction(t *testing.T) {
	full := errors.New("disk full")
	fails := func(context.Context) error { return full }
	type call func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex) error
	ctx := context.Background()
	for name, row := range map[string]struct {
		call call
		is   []error
		text string
	}{
		"taken": {func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b", etcdlock.WithOwner("b:1")), "n")
			tests.LockWithin(t, other, time.Second)
			return mu.TryDo(ctx, fails)
		}, []error{etcdlock.ErrNotRun, etcdlock.ErrLocked}, "held by b:1 ("},
		"ctx has ended": {func(_ *testing.T, _ *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			return mu.Do(ended, fails)
		}, []error{etcdlock.ErrNotRun, context.Canceled}, `lock "n": context canceled`},
		"closed": {func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			require.NoError(t, mu.Close(ctx))
			return mu.Do(ctx, fails)
		}, []error{etcdlock.ErrNotRun, etcdlock.ErrClosed}, "closed"},
		"no function": {func(_ *testing.T, _ *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) error {
			return mu.Do(ctx, nil)
		}, []error{etcdlock.ErrNotRun}, "nil function"},
		"fn fails": {func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			err := mu.Do(ctx, fails)
			require.True(t, err == full, "as fn returned it")
			return err
		}, []error{full}, "disk full"},
		"the hold is lost": {func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) error {
			return mu.Do(ctx, func(context.Context) error {
				etcd.DeleteKey(mu.Key())
				return full
			})
		}, []error{full, etcdlock.ErrLost, etcdlock.ErrKeyDeleted}, "disk full\n"},
		"another Do inside did not call its own": {
			func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex) error {
				inner := contract.MutexOf(t, s, "inner")
				other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "inner")
				tests.LockWithin(t, other, time.Second)
				err := mu.Do(ctx, func(ctx context.Context) error { return inner.TryDo(ctx, fails) })
				var locked *etcdlock.LockedError
				ok := errors.As(err, &locked)
				require.True(t, ok, "%v", err)
				require.Equal(t, "inner", locked.Name)
				return err
			}, []error{etcdlock.ErrLocked}, `etcdlock: lock "inner": held by `},
		"it waits for itself": {func(_ *testing.T, _ *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) error {
			return mu.Do(ctx, func(ctx context.Context) error { return mu.Do(ctx, fails) })
		}, []error{etcdlock.ErrDeadlock}, "the context already comes from a hold"},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				err := row.call(t, etcd, s, contract.MutexOf(t, s, "n"))
				contract.RequireIs(t, err, row.is...)
				require.ErrorContains(t, err, row.text)
			})
		})
	}
}
