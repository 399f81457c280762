package etcdlocktest_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// A locker is what a story of locks is told with: two Sessions of one process.
type locker struct {
	t        *testing.T
	one, two *etcdlock.Session
}

// lock locks a name in a Session, and returns its Unlock.
func (l *locker) lock(s *etcdlock.Session, name string, opts ...etcdlock.Option) (unlock func()) {
	l.t.Helper()
	hold, err := s.Lock(l.t.Context(), name, opts...)
	require.NoError(l.t, err)
	return func() { require.NoError(l.t, hold.Unlock(l.t.Context())) }
}

// both locks one name, and then another one.
func (l *locker) both(s *etcdlock.Session, first, then string) {
	l.t.Helper()
	unlock := l.lock(s, first)
	l.lock(s, then)()
	unlock()
}

// in does the same by Do, in another goroutine for the second.
func (l *locker) in(s, other *etcdlock.Session, first, then string) {
	l.t.Helper()
	require.NoError(l.t, s.Do(l.t.Context(), first, func(ctx context.Context) error {
		done := make(chan error)
		go func() {
			done <- other.Do(ctx, then, func(context.Context) error { return nil })
		}()
		return <-done
	}))
}

// Two orders are reported though nobody has waited, and nothing else is.
func TestLocksThatAreTakenInTwoOrdersAreReported(t *testing.T) {
	const two = `"a" before "b" (order_test.go:`
	for name, tc := range map[string]struct {
		story func(l *locker)
		says  []string // nil if there is no error
	}{
		"a then b, and b then a": {func(l *locker) {
			l.both(l.one, "a", "b")
			l.both(l.one, "b", "a")
		}, []string{two + `25), and "b" before "a" (order_test.go:25)`}},
		"by Do, in goroutines": {func(l *locker) {
			l.in(l.one, l.one, "a", "b")
			l.in(l.one, l.one, "b", "a")
		}, []string{two + `44), and "b" before "a" (order_test.go:44)`}},
		"in two Sessions": {func(l *locker) {
			l.both(l.one, "a", "b")
			l.both(l.two, "b", "a")
		}, []string{two}},
		"by Do, of two Sessions": {func(l *locker) {
			l.in(l.one, l.two, "a", "b")
			l.in(l.two, l.one, "b", "a")
		}, []string{two}},
		"by the context of a hold": {func(l *locker) {
			hold, err := l.one.Lock(l.t.Context(), "a")
			require.NoError(l.t, err)
			done := make(chan error)
			go func() {
				b, err := l.one.Lock(hold.Context(l.t.Context()), "b")
				done <- err
				done <- b.Unlock(l.t.Context())
			}()
			require.NoError(l.t, <-done)
			require.NoError(l.t, <-done)
			require.NoError(l.t, hold.Unlock(l.t.Context()))
			l.both(l.one, "b", "a")
		}, []string{two}},
		"a cycle of three": {func(l *locker) {
			l.both(l.one, "a", "b")
			l.both(l.one, "b", "c")
			l.both(l.one, "c", "a")
		}, []string{two, `"b" before "c"`, `"c" before "a"`}},
		"they wait for each other": {func(l *locker) {
			ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
			defer cancel()
			done := make(chan error)
			for first, then := range map[string]string{"a": "b", "b": "a"} {
				go func() {
					done <- l.one.Do(ctx, first, func(ctx context.Context) error {
						time.Sleep(time.Second) // both hold
						return l.one.Do(ctx, then, func(context.Context) error { return nil })
					})
				}()
			}
			require.ErrorIs(l.t, <-done, context.DeadlineExceeded)
			require.ErrorIs(l.t, <-done, context.DeadlineExceeded)
		}, []string{two}},
		"they wait for each other, without contexts": {func(l *locker) {
			ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
			defer cancel()
			done := make(chan error)
			for first, then := range map[string]string{"a": "b", "b": "a"} {
				go func() {
					unlock := l.lock(l.one, first)
					defer unlock()
					time.Sleep(time.Second) // both hold
					_, err := l.two.Lock(ctx, then)
					done <- err
				}()
			}
			require.ErrorIs(l.t, <-done, context.DeadlineExceeded)
			require.ErrorIs(l.t, <-done, context.DeadlineExceeded)
			synctest.Wait()
		}, []string{two}},
		"a reader and a permit": {func(l *locker) {
			rw, err := l.one.RWMutex("a")
			require.NoError(l.t, err)
			permits, err := l.two.Semaphore("b", 2)
			require.NoError(l.t, err)
			read := func(ctx context.Context) error {
				return rw.RDo(ctx, func(context.Context) error { return nil })
			}
			require.NoError(l.t, permits.Do(l.t.Context(), 1, read))
			require.NoError(l.t, rw.RDo(l.t.Context(), func(ctx context.Context) error {
				return permits.Do(ctx, 1, func(context.Context) error { return nil })
			}))
		}, []string{two}},

		"one order": {func(l *locker) {
			l.both(l.one, "a", "b")
			l.both(l.two, "a", "b")
			l.both(l.two, "b", "c")
			l.both(l.one, "a", "c")
		}, nil},
		"one after the other": {func(l *locker) {
			l.both(l.one, "a", "b")
			l.lock(l.one, "b")()
			l.lock(l.one, "a")()
			l.lock(l.two, "b")()
			l.lock(l.one, "a")()
		}, nil},
		"one after the other, and the key lingers": {func(l *locker) {
			l.both(l.one, "a", "b")
			l.lock(l.one, "b", etcdlock.WithLinger(time.Minute))()
			l.lock(l.one, "a")()
		}, nil},
		"goroutines of their own": {func(l *locker) {
			l.both(l.one, "a", "b")
			unlock := l.lock(l.one, "b")
			done := make(chan bool)
			go func() {
				l.lock(l.one, "a")()
				close(done)
			}()
			<-done
			unlock()
		}, nil},
		"a try": {func(l *locker) {
			l.both(l.one, "a", "b")
			unlock := l.lock(l.one, "b")
			hold, err := l.one.TryLock(l.t.Context(), "a")
			require.NoError(l.t, err)
			require.NoError(l.t, hold.Unlock(l.t.Context()))
			unlock()
		}, nil},
		"several at once": {func(l *locker) {
			for _, names := range [][]string{{"a", "b"}, {"b", "a"}} {
				hold, err := l.one.LockAll(l.t.Context(), names...)
				require.NoError(l.t, err)
				require.NoError(l.t, hold.Unlock(l.t.Context()))
			}
		}, nil},
		"several, within another and around it": {func(l *locker) {
			unlock := l.lock(l.one, "b")
			hold, err := l.one.LockAll(l.t.Context(), "a", "c")
			require.NoError(l.t, err)
			require.NoError(l.t, hold.Unlock(l.t.Context()))
			unlock()
			hold, err = l.one.LockAll(l.t.Context(), "c", "a")
			require.NoError(l.t, err)
			l.lock(l.one, "b")()
			require.NoError(l.t, hold.Unlock(l.t.Context()))
		}, []string{two, `"b" before "c"`}},
		"after a loss": {func(l *locker) {
			l.both(l.one, "a", "b")
			hold, err := l.one.TryLock(l.t.Context(), "b", etcdlock.WithMaxHold(time.Second))
			require.NoError(l.t, err)
			time.Sleep(time.Minute)
			l.lock(l.one, "a")()
			require.ErrorIs(l.t, hold.Unlock(l.t.Context()), etcdlock.ErrLost)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &reporter{TB: t}
				etcd := etcdlocktest.New(r)
				order := etcdlock.WithTrace(etcd.LockOrder())
				one, err := etcdlock.NewSession(etcd.Client(), order)
				require.NoError(t, err)
				two, err := etcdlock.NewSession(etcd.Client(), order)
				require.NoError(t, err)
				tc.story(&locker{t: t, one: one, two: two})
				require.NoError(t, one.Close(t.Context()))
				require.NoError(t, two.Close(t.Context()))
				r.end()
				if tc.says == nil {
					require.Empty(t, r.errors)
					return
				}
				all := strings.Join(r.errors, "; ")
				for _, says := range tc.says {
					require.Contains(t, all, says)
				}
			})
		})
	}
}

// The end of a hold in one Session may be heard of after the next hold of its goroutine in another.
func TestAnEventThatComesLateShowsNoOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reporter{TB: t}
		etcd := etcdlocktest.New(r)
		order, goOn := etcd.LockOrder(), make(chan bool)
		one, err := etcdlock.NewSession(etcd.Client(), etcdlock.WithTrace(order))
		require.NoError(t, err)
		two, err := etcdlock.NewSession(etcd.Client(), etcdlock.WithTrace(etcdlock.JoinTraces(
			&etcdlock.Trace{Released: func(context.Context, etcdlock.ReleasedEvent) { <-goOn }}, order)))
		require.NoError(t, err)
		l := &locker{t: t, one: one, two: two}
		l.both(one, "a", "b")
		l.lock(two, "b")()
		l.lock(one, "a")()
		synctest.Wait()
		close(goOn)
		require.NoError(t, one.Close(t.Context()))
		require.NoError(t, two.Close(t.Context()))
		r.end()
		require.Empty(t, r.errors)
	})
}

// Whoever does not ask is not told.
func TestTheOrderOfLocksIsNotLookedAtWithoutLockOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reporter{TB: t}
		etcd := etcdlocktest.New(r)
		session, err := etcdlock.NewSession(etcd.Client())
		require.NoError(t, err)
		l := &locker{t: t, one: session}
		l.both(session, "a", "b")
		l.both(session, "b", "a")
		require.NoError(t, session.Close(t.Context()))
		r.end()
		require.Empty(t, r.errors)
	})
}
