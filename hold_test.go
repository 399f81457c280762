package etcdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// A hold counts by what etcd granted, and not by what the program asked for.
func TestAHoldTellsItsGrantedTTLAndItsMargin(t *testing.T) {
	for name, row := range map[string]struct {
		opts   []etcdlock.Option
		margin time.Duration
	}{
		"default margin": {nil, 2 * time.Second},
		"given margin":   {[]etcdlock.Option{etcdlock.WithSafetyMargin(3 * time.Second)}, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.MinTTL(16)
				opts := append(row.opts, etcdlock.WithTTL(10*time.Second))
				mu := contract.MutexOf(t, processIn(t, etcd, "a", opts...), "n")
				requireNothing := func(when string) {
					require.Zero(t, mu.TTL(), when)
					require.Zero(t, mu.SafetyMargin(), when)
				}
				requireNothing("before Lock")

				lockWithin(t, mu, time.Second)
				require.Equal(t, 16*time.Second, mu.TTL())
				require.Equal(t, row.margin, mu.SafetyMargin())
				require.Equal(t, time.Now().Add(mu.TTL()-mu.SafetyMargin()), mu.Deadline())
				require.NoError(t, mu.Unlock(context.Background()))
				requireNothing("after Unlock")

				lockWithin(t, mu, time.Second)
				etcd.Cut("a")
				time.Sleep(16 * time.Second)
				requireNothing("after a loss")
				etcd.Heal("a")
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
			})
		})
	}
	var zero *etcdlock.Mutex
	require.Zero(t, zero.TTL())
	require.Zero(t, zero.SafetyMargin())
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
			other := contract.MutexOf(t, processIn(t, etcd, "b", etcdlock.WithOwner("b:1")), "n")
			lockWithin(t, other, time.Second)
			return mu.TryDo(ctx, fails)
		}, []error{etcdlock.ErrNotRun, etcdlock.ErrLocked}, "held by b:1 ("},
		"ctx has ended": {func(_ *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			return mu.Do(ended, fails)
		}, []error{etcdlock.ErrNotRun, context.Canceled}, `lock "n": context canceled`},
		"closed": {func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			require.NoError(t, mu.Close(ctx))
			return mu.Do(ctx, fails)
		}, []error{etcdlock.ErrNotRun, etcdlock.ErrClosed}, "closed"},
		"no function": {func(_ *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.Do(ctx, nil)
		}, []error{etcdlock.ErrNotRun}, "nil function"},
		"fn fails": {func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			err := mu.Do(ctx, fails)
			require.True(t, err == full, "as fn returned it")
			return err
		}, []error{full}, "disk full"},
		"the hold is lost": {func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.Do(ctx, func(context.Context) error {
				etcd.DeleteKey(mu.Key())
				return full
			})
		}, []error{full, etcdlock.ErrLost, etcdlock.ErrKeyDeleted}, "disk full\n"},
		"another Do inside did not call its own": {
			func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex) error {
				inner := contract.MutexOf(t, s, "inner")
				other := contract.MutexOf(t, processIn(t, etcd, "b"), "inner")
				lockWithin(t, other, time.Second)
				err := mu.Do(ctx, func(ctx context.Context) error { return inner.TryDo(ctx, fails) })
				locked, ok := errors.AsType[*etcdlock.LockedError](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, "inner", locked.Name)
				return err
			}, []error{etcdlock.ErrLocked}, `etcdlock: lock "inner": held by `},
		"it waits for itself": {func(_ *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.Do(ctx, func(ctx context.Context) error { return mu.Do(ctx, fails) })
		}, []error{etcdlock.ErrDeadlock}, "the context already comes from a hold"},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				err := row.call(t, etcd, s, contract.MutexOf(t, s, "n"))
				contract.RequireIs(t, err, row.is...)
				require.ErrorContains(t, err, row.text)
			})
		})
	}
}
