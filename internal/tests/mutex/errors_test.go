package mutex

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestEachSentinelIsItselfOnly(t *testing.T) {
	texts := map[string]string{}
	for name, err := range contract.Sentinels {
		contract.RequireIs(t, err, err)
		require.Regexp(t, "^etcdlock: [a-z]", err.Error(), name)
		require.Empty(t, texts[err.Error()], "%s has the text of another", name)
		texts[err.Error()] = name
	}
}

func TestALockedErrorIsErrLockedAndTellsWho(t *testing.T) {
	holder := etcdlock.Contender{Name: "orders/42", Key: "orders/42/694d", Owner: "api-7:1234"}
	labelled := etcdlock.Contender{Name: "orders/42", Key: "orders/42/694d", Owner: "billing",
		Host: "api-7", PID: 1234}
	byItsProcess := labelled
	byItsProcess.Owner = "api-7:1234" // the default
	foreign := etcdlock.Contender{Name: "orders/42", Key: "orders/42/694d"}
	kept := holder
	kept.Until = time.Date(2026, 11, 27, 6, 30, 0, 250_600_000, time.FixedZone("", 3600))
	for text, e := range map[string]*etcdlock.LockedError{
		`etcdlock: lock "orders/42": held by api-7:1234`: {Name: "orders/42", Holder: holder,
			Ahead: 1},
		`etcdlock: lock "orders/42": held by api-7:1234, 1 waiting`: {Name: "orders/42", Holder: holder,
			Ahead: 2},
		`etcdlock: lock "orders/42": held by api-7:1234, 7 waiting`: {Name: "orders/42", Holder: holder,
			Ahead: 8},
		`etcdlock: lock "orders/42": held by api-7:1234, 3 waiting`: {Name: "orders/42",
			Holder: byItsProcess, Ahead: 4},
		`etcdlock: lock "orders/42": held by billing (api-7:1234)`: {Name: "orders/42", Holder: labelled,
			Ahead: 1},
		`etcdlock: lock "orders/42": held by "orders/42/694d"`: {Name: "orders/42", Holder: foreign,
			Ahead: 1},
		`etcdlock: lock "orders/42": kept until 2026-11-27T05:30:00.251Z by api-7:1234, which has ` +
			`unlocked it, 1 waiting`: {Name: "orders/42", Holder: kept, Ahead: 2},
		`etcdlock: lock "a\nb": held by api-7:1234`: {Name: "a\nb",
			Holder: holder, Ahead: 1},
	} {
		require.Equal(t, text, e.Error())
		wrapped := fmt.Errorf("charge: %w", e)
		contract.RequireIs(t, e, etcdlock.ErrLocked)
		contract.RequireIs(t, wrapped, etcdlock.ErrLocked)
		var as *etcdlock.LockedError
		ok := errors.As(wrapped, &as)
		require.True(t, ok)
		require.Same(t, e, as)
	}
	require.NotPanics(t, func() { _ = new(etcdlock.LockedError).Error() })
}

// An error of a bound that is the library's own, and not the caller's, says of what and how long.
func TestABoundOfTheLibrarySaysWhoseItIs(t *testing.T) {
	forever := context.Background()
	ended, cancel := context.WithCancel(forever)
	cancel()
	for name, row := range map[string]struct {
		most time.Duration
		of   string
		held bool
		call func(s *etcdlock.Session, mu *etcdlock.Mutex) error
		opts []etcdlock.SessionOption
	}{
		"TryLock": {tests.TTL, "a try without a deadline", false,
			func(_ *etcdlock.Session, mu *etcdlock.Mutex) error { return mu.TryLock(forever) }, nil},
		"TryLockAll with a bound": {time.Second, "WithAcquireTimeout", false,
			func(s *etcdlock.Session, _ *etcdlock.Mutex) error {
				_, err := s.TryLockAll(forever, "n", "o")
				return err
			}, []etcdlock.SessionOption{etcdlock.WithAcquireTimeout(time.Second)}},
		"Lock with a bound": {time.Minute, "WithAcquireTimeout", false,
			func(_ *etcdlock.Session, mu *etcdlock.Mutex) error { return mu.Lock(forever) },
			[]etcdlock.SessionOption{etcdlock.WithAcquireTimeout(time.Minute)}},
		"Unlock": {5 * time.Second, "a release without a deadline", true,
			func(_ *etcdlock.Session, mu *etcdlock.Mutex) error { return mu.Unlock(forever) }, nil},
		"Unlock with a context that has ended": {5 * time.Second, "a release whose context had ended", true,
			func(_ *etcdlock.Session, mu *etcdlock.Mutex) error { return mu.Unlock(ended) }, nil},
		"Unlock with a context of the hold": {5 * time.Second, "a release whose context ends with the hold",
			true, func(_ *etcdlock.Session, mu *etcdlock.Mutex) error {
				long, cancel := context.WithTimeout(mu.Context(forever), time.Minute)
				defer cancel()
				return mu.Unlock(long)
			}, nil},
		"Close with a context that has ended": {50 * time.Millisecond, "a release whose context had ended",
			true, func(s *etcdlock.Session, _ *etcdlock.Mutex) error { return s.Close(ended) }, nil},
		"Close": {2 * tests.TTL, "a Close without a deadline", true,
			func(s *etcdlock.Session, _ *etcdlock.Mutex) error { return s.Close(forever) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a", row.opts...)
				mu := contract.MutexOf(t, s, "n")
				if row.held {
					tests.LockWithin(t, mu, time.Second)
				}
				etcd.Cut("a")
				began := time.Now()
				err := row.call(s, mu)
				require.Equal(t, row.most, time.Since(began))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				bound := fmt.Sprintf("the bound of %s, %v, is over: context deadline exceeded",
					row.of, row.most)
				require.Equal(t, 1, strings.Count(err.Error(), bound), "%v", err)
				require.Equal(t, 1, strings.Count(err.Error(), "deadline exceeded"), "%v", err)
			})
		})
	}
}

// A bound of the caller's that ends sooner is not called the library's.
func TestABoundOfTheCallerIsNotTheLibrarys(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithAcquireTimeout(time.Minute))
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		etcd.Cut("a")
		for _, call := range []func(ctx context.Context) error{
			func(ctx context.Context) error { return contract.MutexOf(t, s, "o").Lock(ctx) },
			func(ctx context.Context) error { return contract.MutexOf(t, s, "o").TryLock(ctx) },
			func(ctx context.Context) error {
				soon, cancel := context.WithTimeout(mu.Context(ctx), time.Second/2)
				defer cancel()
				return mu.Unlock(soon)
			},
			s.Close,
		} {
			soon, cancel := context.WithTimeout(context.Background(), time.Second)
			err := call(soon)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotContains(t, err.Error(), "the bound of")
		}
	})
}

func TestALostErrorIsErrLostAndItsReason(t *testing.T) {
	full := errors.New("disk full")
	for text, c := range map[string]struct {
		e  *etcdlock.LostError
		is []error
	}{
		`etcdlock: lock "a" lost (token 7): disk full`: {
			&etcdlock.LostError{Name: "a", Token: 7, Reason: full}, []error{etcdlock.ErrLost, full},
		},
		`etcdlock: lock "a" lost (token 7): held for the longest time allowed`: {
			&etcdlock.LostError{Name: "a", Token: 7, Reason: etcdlock.ErrMaxHold},
			[]error{etcdlock.ErrLost, etcdlock.ErrMaxHold},
		},
		`etcdlock: lock "a\nb" lost (token 7): while writing: disk full`: {
			&etcdlock.LostError{Name: "a\nb", Token: 7, Reason: fmt.Errorf("while writing: %w", full)},
			[]error{etcdlock.ErrLost, full},
		},
	} {
		require.Equal(t, text, c.e.Error())
		wrapped := fmt.Errorf("charge: %w", c.e)
		contract.RequireIs(t, c.e, c.is...)
		contract.RequireIs(t, wrapped, c.is...)
		var as *etcdlock.LostError
		ok := errors.As(wrapped, &as)
		require.True(t, ok)
		require.Same(t, c.e, as)
	}
	for name, reason := range contract.Reasons {
		e := &etcdlock.LostError{Name: "a", Token: 7, Reason: reason}
		contract.RequireIs(t, e, etcdlock.ErrLost, reason)
		require.NotContains(t, strings.TrimPrefix(e.Error(), "etcdlock: "), "etcdlock", name)
	}
}

func TestARecalledErrorIsErrRecalledAndTellsWhoAndWhy(t *testing.T) {
	for text, e := range map[string]*etcdlock.RecalledError{
		`etcdlock: lock "a" recalled (token 7)`:       {Name: "a", Token: 7},
		`etcdlock: lock "a" recalled (token 7) by op`: {Name: "a", Token: 7, By: "op"},
		`etcdlock: lock "a" recalled (token 7): update`: {Name: "a", Token: 7,
			Reason: "update"},
		`etcdlock: lock "a\nb" recalled (token 7) by op: "\"urgent\""`: {Name: "a\nb", Token: 7, By: "op",
			Reason: `"urgent"`},
	} {
		require.Equal(t, text, e.Error())
		wrapped := fmt.Errorf("charge: %w", e)
		contract.RequireIs(t, wrapped, etcdlock.ErrRecalled)
		var as *etcdlock.RecalledError
		ok := errors.As(wrapped, &as)
		require.True(t, ok)
		require.Same(t, e, as)
	}
}

// Users make LostErrors, too, in tests of what they do on a loss.
func TestALostErrorWithoutAReasonIsALostErrorAllTheSame(t *testing.T) {
	e := &etcdlock.LostError{Name: "a", Token: 7}
	contract.RequireIs(t, e, etcdlock.ErrLost)
	ok := errors.As(e, new(*etcdlock.LockedError))
	require.False(t, ok)
	require.NotPanics(t, func() { require.Contains(t, e.Error(), `"a"`) })
}

// The caller's context may come from a hold of another lock, which Close has ended. The error of a
// wait says that the context has ended, and why, and does not say that its own lock was closed.
func TestAWaitTellsAContextThatEndedWithACloseFromItsOwnClose(t *testing.T) {
	type call func(ctx context.Context) error
	calls := map[string]func(t *testing.T, s *etcdlock.Session) call{
		"Lock": func(t *testing.T, s *etcdlock.Session) call {
			return contract.MutexOf(t, s, "n").Lock
		},
		"TryLock": func(t *testing.T, s *etcdlock.Session) call {
			return contract.MutexOf(t, s, "free").TryLock
		},
		"Lead": func(t *testing.T, s *etcdlock.Session) call {
			mu := contract.MutexOf(t, s, "n")
			return func(ctx context.Context) error {
				return mu.Lead(ctx, func(context.Context) error { return nil })
			}
		},
		"RLock": func(t *testing.T, s *etcdlock.Session) call {
			rw := tests.RWMutexOf(t, s)
			return func(ctx context.Context) error { _, err := rw.RLock(ctx); return err }
		},
		"Acquire": func(t *testing.T, s *etcdlock.Session) call {
			sem := tests.SemaphoreOf(t, s, 1)
			return func(ctx context.Context) error { _, err := sem.Acquire(ctx, 1); return err }
		},
		"LockAll": func(_ *testing.T, s *etcdlock.Session) call {
			return func(ctx context.Context) error { _, err := s.LockAll(ctx, "n", "o"); return err }
		},
	}
	for name, callOf := range calls {
		for where, holder := range map[string]string{"at home": "a", "in etcd's line": "b"} {
			t.Run(name+" "+where, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					held := contract.MutexOf(t, tests.SessionOf(t, etcd, holder), "n")
					if holder == "a" {
						held = contract.MutexOf(t, s, "n")
					}
					tests.LockWithin(t, held, time.Second)
					other := contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "other")
					ctx := tests.LockWithin(t, other, time.Second)
					if name == "TryLock" { // which waits for etcd alone
						etcd.Freeze()
					}
					call := callOf(t, s)
					in := contract.Async(func() error { return call(ctx) })
					time.Sleep(time.Second)
					tests.StillWaits(t, in, "it waits")
					closed := contract.Async(func() error { return other.Close(context.Background()) })
					err := tests.SoonOr(t, in, "it goes on waiting")
					etcd.Thaw()
					require.ErrorIs(t, err, context.Canceled)
					require.NotErrorIs(t, err, etcdlock.ErrClosed, "of the other lock")
					require.ErrorContains(t, err, "context canceled: closed")
					require.ErrorIs(t, call(ctx), context.Canceled, "and it does not begin to wait")
					require.NoError(t, <-closed)

					own := contract.Async(func() error { return call(context.Background()) })
					time.Sleep(time.Second)
					if name == "TryLock" {
						require.NoError(t, <-own)
						return
					}
					require.NoError(t, s.Close(context.Background()))
					err = tests.SoonOr(t, own, "it goes on waiting")
					require.ErrorIs(t, err, etcdlock.ErrClosed)
					require.NotErrorIs(t, err, context.Canceled)
					require.NotContains(t, err.Error(), "context")
				})
			})
		}
	}
}
