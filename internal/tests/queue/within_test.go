package queue

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about calls whose contexts come from a hold, of which their keys tell.

// afterOf is the hold that a key tells of, nil if it tells of none.
func afterOf(t *testing.T, etcd *fake.Server, name string, i int) any {
	t.Helper()
	key := tests.PlaceOf(t, etcd, name, i).Key
	read, err := etcd.Client("operator").Get(context.Background(), key)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(read.Kvs[0].Value, &fields))
	return fields["after"]
}

// A key tells of the innermost hold of its Session within which it was asked for. It tells nothing
// where that hold is over, or where a call that is not within the hold may get one of the two keys.
func TestAKeyTellsOfTheHoldWithinWhichItWasAskedFor(t *testing.T) {
	for name, row := range map[string]struct {
		outer, inner []etcdlock.Option
		in           func(context.Context, *etcdlock.Mutex) context.Context
		all, tells   bool
	}{
		"within":         {tells: true},
		"LockAll within": {all: true, tells: true},
		"beside": {in: func(context.Context, *etcdlock.Mutex) context.Context {
			return context.Background()
		}},
		"outer hands off": {outer: []etcdlock.Option{etcdlock.WithHandoff(9)}},
		"outer lingers":   {outer: []etcdlock.Option{etcdlock.WithLinger(time.Second)}},
		"inner hands off": {inner: []etcdlock.Option{etcdlock.WithHandoff(9)}},
		"inner lingers":   {inner: []etcdlock.Option{etcdlock.WithLinger(time.Second)}},
		"the hold has ended": {in: func(ctx context.Context, outer *etcdlock.Mutex) context.Context {
			_ = outer.Unlock(context.Background())
			return context.WithoutCancel(ctx)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				outer := contract.MutexOf(t, s, "outer", row.outer...)
				ctx := tests.LockWithin(t, outer, time.Second)
				token := outer.Token()
				if row.in != nil {
					ctx = row.in(ctx, outer)
				}
				if row.all {
					_, err := s.LockAll(ctx, "n", "m")
					require.NoError(t, err)
				} else {
					require.NoError(t, contract.MutexOf(t, s, "n", row.inner...).Lock(ctx))
				}
				if !row.tells {
					require.Nil(t, afterOf(t, etcd, "n", 0))
					return
				}
				require.EqualValues(t, token, afterOf(t, etcd, "n", 0))
				if row.all {
					require.EqualValues(t, token, afterOf(t, etcd, "m", 0))
				}
			})
		})
	}
}

// Of several holds around a call that of its own Session counts, and no hold that reads.
func TestAKeyTellsOfNoHoldOfAnotherSessionAndOfNoRead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s, other := tests.SessionOf(t, etcd, "a"), contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "m")
		first := contract.MutexOf(t, s, "first")
		ctx := tests.LockWithin(t, first, time.Second)
		require.NoError(t, other.Lock(ctx))
		require.Nil(t, afterOf(t, etcd, "m", 0))
		reads := tests.RWMutexOf(t, s)
		h, err := reads.RLock(other.Context(ctx))
		require.NoError(t, err)
		require.EqualValues(t, first.Token(), afterOf(t, etcd, "n", 0))
		last := contract.MutexOf(t, s, "last")
		require.NoError(t, last.Lock(h.Context(other.Context(ctx))))
		require.EqualValues(t, first.Token(), afterOf(t, etcd, "last", 0))
	})
}

// A place that was put for a wait that is given up goes to the next one of its Session, but not to
// one that is within another hold, or none: the key would tell of a hold that does not wait.
func TestAPlaceIsNotHandedToACallWithinAnotherHold(t *testing.T) {
	for name, row := range map[string]struct{ first, next, shares bool }{
		"neither is within one": {false, false, true},
		"both are":              {true, true, true},
		"the next one is":       {false, true, true},
		"the first one is":      {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				holds, next := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
				tests.LockWithin(t, holds, time.Second)
				within := tests.LockWithin(t, contract.MutexOf(t, s, "outer"), time.Second)
				of := map[bool]context.Context{true: within, false: context.Background()}
				ctx, leave := context.WithCancel(of[row.first])
				first := contract.Async(func() error { return contract.MutexOf(t, s, "n").Lock(ctx) })
				synctest.Wait()
				in := contract.Async(func() error { return next.Lock(of[row.next]) })
				synctest.Wait()
				etcd.Hold("a")
				released := contract.Async(func() error { return holds.Unlock(context.Background()) })
				synctest.Wait()
				leave()
				require.ErrorIs(t, <-first, context.Canceled)
				put := etcd.Rev() + 1
				etcd.Release("a")
				require.NoError(t, <-released)
				require.NoError(t, tests.SoonOr(t, in, "the next one does not get in"))
				require.Equal(t, row.shares, next.Token() == put)
				require.Equal(t, row.first && row.next, afterOf(t, etcd, "n", 0) != nil)
			})
		})
	}
}
