package kinds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// sentinels are all of the package, by what an error says of its call.
var sentinels = map[string]error{
	"ErrLocked": etcdlock.ErrLocked, "ErrNotHeld": etcdlock.ErrNotHeld,
	"ErrLost": etcdlock.ErrLost, "ErrUnconfirmed": etcdlock.ErrUnconfirmed,
	"ErrUnlocked": etcdlock.ErrUnlocked, "ErrMaxHold": etcdlock.ErrMaxHold,
	"ErrDeadlock": etcdlock.ErrDeadlock, "ErrClosed": etcdlock.ErrClosed,
	"ErrNotRun": etcdlock.ErrNotRun, "ErrStopLeading": etcdlock.ErrStopLeading,
	"ErrUnavailable": etcdlock.ErrUnavailable, "ErrRecalled": etcdlock.ErrRecalled,
	"ErrNotRecallable": etcdlock.ErrNotRecallable,
	"ErrExpired":       etcdlock.ErrExpired, "ErrSuspended": etcdlock.ErrSuspended,
	"ErrKeyDeleted": etcdlock.ErrKeyDeleted, "ErrKeyOverwritten": etcdlock.ErrKeyOverwritten,
	"ErrLeaseRevoked": etcdlock.ErrLeaseRevoked,
}

// saysOf are the sentinels that err is.
func saysOf(err error) (says []string) {
	for name, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			says = append(says, name)
		}
	}
	slices.Sort(says)
	return says
}

// A callersError is an error of the caller's own type, about a call of this package.
type callersError struct{ about error }

func (e *callersError) Error() string        { return "the caller's: " + e.about.Error() }
func (e *callersError) Unwrap() error        { return e.about }
func (e *callersError) LogValue() slog.Value { return slog.StringValue("the caller's") }

var (
	errCallers = errors.New("the caller's own")
	errOthers  = []error{
		&etcdlock.LostError{Name: "other", Token: 7, Reason: etcdlock.ErrExpired},
		&etcdlock.LockedError{Name: "other", Ahead: 1},
		&etcdlock.RecalledError{Name: "other", Token: 7},
	}
)

// foreignCauses are errors about another call, and errors of the caller that have one inside.
func foreignCauses() map[string]error {
	causes := make(map[string]error)
	add := func(about string, other error) {
		causes[about] = other
		causes[about+", wrapped"] = fmt.Errorf("step 3: %w", other)
		causes[about+", joined"] = errors.Join(other, errCallers)
		causes[about+", of the caller"] = &callersError{other}
		causes[about+", deep"] = errors.Join(errors.New("first"), fmt.Errorf("a: %w, b: %w",
			errors.Join(errors.New("second"), fmt.Errorf("c: %w", other)),
			errors.Join(errCallers, &callersError{errors.Join(errors.New("third"), other)})))
	}
	for name, sentinel := range sentinels {
		add(name, sentinel)
	}
	for _, other := range errOthers {
		add(fmt.Sprintf("%T", other), other)
	}
	return causes
}

type doing = func(ctx context.Context) error

// A verb is a call that returns an error, with what has to be there before.
type verb func(t *testing.T, s *etcdlock.Session, client *clientv3.Client) doing

func work(context.Context) error { return nil }

// verbs are all calls that return an error and may wait for etcd.
var verbs = map[string]verb{
	"Mutex.Lock": ofMutex(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.Lock(ctx)
	}),
	"Mutex.TryLock": ofMutex(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.TryLock(ctx)
	}),
	"Mutex.Do": ofMutex(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.Do(ctx, work)
	}),
	"Mutex.TryDo": ofMutex(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.TryDo(ctx, work)
	}),
	"Mutex.Lead": ofMutex(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.Lead(ctx, work)
	}),
	"Mutex.Unlock": ofHeld(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.Unlock(ctx)
	}),
	"Mutex.Close": ofHeld(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.Close(ctx)
	}),
	"Mutex.SetInfo": ofHeld(func(ctx context.Context, m *etcdlock.Mutex) error {
		return m.SetInfo(ctx, "info")
	}),
	"RWMutex.RLock": ofRead(func(ctx context.Context, rw *etcdlock.RWMutex) error {
		_, err := rw.RLock(ctx)
		return err
	}),
	"RWMutex.TryRLock": ofRead(func(ctx context.Context, rw *etcdlock.RWMutex) error {
		_, err := rw.TryRLock(ctx)
		return err
	}),
	"RWMutex.RDo": ofRead(func(ctx context.Context, rw *etcdlock.RWMutex) error {
		return rw.RDo(ctx, work)
	}),
	"RWMutex.TryRDo": ofRead(func(ctx context.Context, rw *etcdlock.RWMutex) error {
		return rw.TryRDo(ctx, work)
	}),
	"Semaphore.Acquire": ofSemaphore(func(ctx context.Context, s *etcdlock.Semaphore) error {
		_, err := s.Acquire(ctx, 1)
		return err
	}),
	"Semaphore.TryAcquire": ofSemaphore(func(ctx context.Context, s *etcdlock.Semaphore) error {
		_, err := s.TryAcquire(ctx, 1)
		return err
	}),
	"Semaphore.Do": ofSemaphore(func(ctx context.Context, s *etcdlock.Semaphore) error {
		return s.Do(ctx, 1, work)
	}),
	"Semaphore.TryDo": ofSemaphore(func(ctx context.Context, s *etcdlock.Semaphore) error {
		return s.TryDo(ctx, 1, work)
	}),
	"Semaphore.Close": func(t *testing.T, s *etcdlock.Session, _ *clientv3.Client) doing {
		sem := tests.SemaphoreOf(t, s, 2)
		tests.AcquireWithin(t, sem, 1, time.Second)
		return sem.Close
	},
	"Session.Lock": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		_, err := s.Lock(ctx, "n")
		return err
	}),
	"Session.TryLock": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		_, err := s.TryLock(ctx, "n")
		return err
	}),
	"Session.Do": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		return s.Do(ctx, "n", work)
	}),
	"Session.TryDo": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		return s.TryDo(ctx, "n", work)
	}),
	"Session.Lead": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		return s.Lead(ctx, "n", work)
	}),
	"Session.LockAll": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		_, err := s.LockAll(ctx, "n", "m")
		return err
	}),
	"Session.TryLockAll": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		_, err := s.TryLockAll(ctx, "n", "m")
		return err
	}),
	"Session.DoAll": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		return s.DoAll(ctx, []string{"n", "m"}, work)
	}),
	"Session.TryDoAll": ofSession(func(ctx context.Context, s *etcdlock.Session) error {
		return s.TryDoAll(ctx, []string{"n", "m"}, work)
	}),
	"Hold.Unlock": ofHold(func(ctx context.Context, h *etcdlock.Hold) error {
		return h.Unlock(ctx)
	}),
	"Hold.SetInfo": ofHold(func(ctx context.Context, h *etcdlock.Hold) error {
		return h.SetInfo(ctx, "i")
	}),
	"Session.Close": ofHold(nil),
	"Contenders": ofClient(func(ctx context.Context, kv clientv3.KV) error {
		_, err := etcdlock.Contenders(ctx, kv, "n")
		return err
	}),
	"Holders": ofClient(func(ctx context.Context, kv clientv3.KV) error {
		_, err := etcdlock.Holders(ctx, kv, "n")
		return err
	}),
	"Break": ofClient(func(ctx context.Context, kv clientv3.KV) error {
		return etcdlock.Break(ctx, kv, etcdlock.Contender{Name: "n", Key: "n/k", Token: 1})
	}),
	"Recall": ofClient(func(ctx context.Context, kv clientv3.KV) error {
		c := etcdlock.Contender{Name: "n", Key: "n/k", Token: 1}
		return etcdlock.Recall(ctx, kv, c, etcdlock.RecallRequest{})
	}),
	"WatchHolder": func(_ *testing.T, _ *etcdlock.Session, c *clientv3.Client) doing {
		return func(ctx context.Context) error {
			for _, err := range etcdlock.WatchHolder(ctx, c, "n") {
				return err
			}
			return nil
		}
	},
}

func ofMutex(call func(context.Context, *etcdlock.Mutex) error) verb {
	return func(t *testing.T, s *etcdlock.Session, _ *clientv3.Client) doing {
		m, err := s.Mutex("n")
		require.NoError(t, err)
		return func(ctx context.Context) error { return call(ctx, m) }
	}
}

func ofHeld(call func(context.Context, *etcdlock.Mutex) error) verb {
	return func(t *testing.T, s *etcdlock.Session, _ *clientv3.Client) doing {
		m, err := s.Mutex("n")
		require.NoError(t, err)
		require.NoError(t, m.Lock(context.Background()))
		return func(ctx context.Context) error { return call(ctx, m) }
	}
}

func ofRead(call func(context.Context, *etcdlock.RWMutex) error) verb {
	return func(t *testing.T, s *etcdlock.Session, _ *clientv3.Client) doing {
		rw := tests.RWMutexOf(t, s)
		return func(ctx context.Context) error { return call(ctx, rw) }
	}
}

func ofSemaphore(call func(context.Context, *etcdlock.Semaphore) error) verb {
	return func(t *testing.T, s *etcdlock.Session, _ *clientv3.Client) doing {
		sem := tests.SemaphoreOf(t, s, 1)
		return func(ctx context.Context) error { return call(ctx, sem) }
	}
}

func ofSession(call func(context.Context, *etcdlock.Session) error) verb {
	return func(_ *testing.T, s *etcdlock.Session, _ *clientv3.Client) doing {
		return func(ctx context.Context) error { return call(ctx, s) }
	}
}

func ofHold(call func(context.Context, *etcdlock.Hold) error) verb {
	return func(t *testing.T, s *etcdlock.Session, _ *clientv3.Client) doing {
		h, err := s.LockAll(context.Background(), "n", "m")
		require.NoError(t, err)
		if call == nil {
			return s.Close
		}
		return func(ctx context.Context) error { return call(ctx, h) }
	}
}

func ofClient(call func(context.Context, clientv3.KV) error) verb {
	return func(_ *testing.T, _ *etcdlock.Session, c *clientv3.Client) doing {
		return func(ctx context.Context) error { return call(ctx, c) }
	}
}

// A disturbance has a call fail for an error that is not its own.
type disturbance func(etcd *fake.Server, other *etcdlock.Session, why error) context.Context

// disturbances are the ways in which an error about another call may come into a call.
var disturbances = map[string]disturbance{
	"its context has ended": func(_ *fake.Server, _ *etcdlock.Session, why error) context.Context {
		return endsAfter(0, why)
	},
	"its context ends while etcd does not answer": func(
		etcd *fake.Server, _ *etcdlock.Session, why error,
	) context.Context {
		etcd.Cut("a")
		return endsAfter(20*time.Millisecond, why)
	},
	"its context ends while another holds": func(
		etcd *fake.Server, other *etcdlock.Session, why error,
	) context.Context {
		if len(etcd.Keys("n/")) == 0 {
			_, _ = other.LockAll(context.Background(), "n", "m")
		}
		return endsAfter(time.Second, why)
	},
	"each request fails with it": func(
		etcd *fake.Server, _ *etcdlock.Session, why error,
	) context.Context {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Before: why, Drop: c.Process == "b"}
		})
		return endsAfter(time.Second, context.Canceled)
	},
	"each request is refused with it": func(
		etcd *fake.Server, _ *etcdlock.Session, why error,
	) context.Context {
		etcd.Intercept(func(fake.Call) fake.Effect {
			return fake.Effect{Before: fmt.Errorf("%w: %w", tests.PermissionDenied, why)}
		})
		return endsAfter(time.Second, context.Canceled)
	},
}

// endsAfter is a context that ends after a while, with a cause.
func endsAfter(d time.Duration, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	if d == 0 {
		cancel(cause)
	}
	time.AfterFunc(d, func() { cancel(cause) })
	return ctx
}

// An error says by errors.Is and errors.As what has become of its own call: which sentinels it is
// does not depend on what its context has ended with, or what etcd or an interceptor has answered.
// What is the caller's own in that is found.
func TestNoErrorIsAboutAnotherCall(t *testing.T) {
	causes := foreignCauses()
	for about, disturb := range disturbances {
		for name, call := range verbs {
			t.Run(about+"/"+name, func(t *testing.T) {
				fails := func(why error) (err error) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						s, other := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
						run := call(t, s, etcd.Client("a"))
						ctx := disturb(etcd, other, why)
						err = run(ctx)
						etcd.Intercept(nil)
						time.Sleep(3 * tests.TTL) // a lease that could not be given back has expired
					})
					return err
				}
				own := fails(errCallers)
				says, some := saysOf(own), race.Watched(len(causes), 3)
				for foreign, cause := range causes { // in any order
					if some--; some < 0 {
						break
					}
					err := fails(cause)
					require.Equal(t, says, saysOf(err), "%s: %v", foreign, err)
					requireForeign(t, err, cause)
					if err == nil || !errors.Is(own, errCallers) {
						continue
					}
					require.Contains(t, err.Error(), strings.TrimPrefix(cause.Error(), "etcdlock: "))
					if !strings.HasPrefix(foreign, "Err") || strings.Contains(foreign, ", ") {
						require.ErrorIs(t, err, cause, "a cause is found by itself")
					}
					if errors.Is(cause, errCallers) {
						require.ErrorIs(t, err, errCallers)
					}
					if errors.As(cause, new(*callersError)) {
						var mine *callersError
						ok := errors.As(err, &mine)
						require.True(t, ok, "the caller's own type")
						require.NotNil(t, mine.about)
						var logs slog.LogValuer
						require.True(t, errors.As(err, &logs))
					}
				}
			})
		}
	}
}

// requireForeign fails if err has an error of another lock's type that is about another call.
func requireForeign(t *testing.T, err, cause error) {
	t.Helper()
	var lost *etcdlock.LostError
	if errors.As(err, &lost) {
		require.NotEqual(t, "other", lost.Name, "%v", cause)
	}
	var locked *etcdlock.LockedError
	if errors.As(err, &locked) {
		require.NotEqual(t, "other", locked.Name, "%v", cause)
	}
	recalled := errors.As(err, new(*etcdlock.RecalledError))
	require.False(t, recalled, "%v", cause)
}

// If the context ends while Do unlocks, its function has run: an error that is ErrNotRun, of
// another Do, would have the caller run it again.
func TestADoWhoseContextEndsAsItUnlocksHasRun(t *testing.T) {
	dos := map[string]func(context.Context, *testing.T, *etcdlock.Session, doing) error{
		"Session.Do": func(ctx context.Context, _ *testing.T, s *etcdlock.Session, fn doing) error {
			return s.Do(ctx, "n", fn)
		},
		"Session.DoAll": func(ctx context.Context, _ *testing.T, s *etcdlock.Session, fn doing) error {
			return s.DoAll(ctx, []string{"n", "m"}, fn)
		},
		"Mutex.Do": func(ctx context.Context, t *testing.T, s *etcdlock.Session, fn doing) error {
			m, err := s.Mutex("n")
			require.NoError(t, err)
			return m.Do(ctx, fn)
		},
		"RWMutex.RDo": func(ctx context.Context, t *testing.T, s *etcdlock.Session, fn doing) error {
			return tests.RWMutexOf(t, s).RDo(ctx, fn)
		},
		"Semaphore.Do": func(ctx context.Context, t *testing.T, s *etcdlock.Session, fn doing) error {
			return tests.SemaphoreOf(t, s, 1).Do(ctx, 1, fn)
		},
	}
	for name, do := range dos {
		t.Run(name, func(t *testing.T) {
			for foreign, cause := range foreignCauses() {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					ctx, cancel := context.WithCancelCause(context.Background())
					err := do(ctx, t, s, func(context.Context) error {
						etcd.Cut("a")
						time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
						return nil
					})
					require.Equal(t, []string{"ErrUnconfirmed"}, saysOf(err), "%s: %v", foreign, err)
					require.Contains(t, err.Error(), strings.TrimPrefix(cause.Error(), "etcdlock: "))
					requireForeign(t, err, cause)
				})
			}
		})
	}
}
