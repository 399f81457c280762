package etcdlocktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// A hold that only Close has ended is reported with the place of its call, and nothing else is.
func TestAForgottenUnlockIsReported(t *testing.T) {
	for name, tc := range map[string]struct {
		story func(t *testing.T, s *etcdlock.Session, etcd *etcdlocktest.Etcd)
		says  []string // an error for each
	}{
		"a Hold": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			_, err := s.Lock(t.Context(), "a")
			require.NoError(t, err)
		}, []string{`"a" (forgotten_test.go:22)`}},
		"a Mutex that was locked twice": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			mu, err := s.Mutex("a")
			require.NoError(t, err)
			require.NoError(t, mu.Lock(t.Context()))
			require.NoError(t, mu.Unlock(t.Context()))
			require.NoError(t, mu.Lock(t.Context()))
		}, []string{`"a" (forgotten_test.go:30)`}},
		"a read and a permit": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			rw, err := s.RWMutex("a")
			require.NoError(t, err)
			_, err = rw.RLock(t.Context())
			require.NoError(t, err)
			sem, err := s.Semaphore("b", 2)
			require.NoError(t, err)
			_, err = sem.Acquire(t.Context(), 1)
			require.NoError(t, err)
		}, []string{`"a" (forgotten_test.go:35)`, `"b" (forgotten_test.go:39)`}},
		"several names": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			_, err := s.LockAll(t.Context(), "a", "b")
			require.NoError(t, err)
		}, []string{`"a" (forgotten_test.go:43)`, `"b" (forgotten_test.go:43)`}},
		"a Do that still runs": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			go func() {
				_ = s.Do(t.Context(), "a", func(ctx context.Context) error {
					<-ctx.Done()
					return nil
				})
			}()
			synctest.Wait()
		}, []string{`"a" (forgotten_test.go:48)`}},

		"an Unlock": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			hold, err := s.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, hold.Unlock(t.Context()))
		}, nil},
		"a key that lingers": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			hold, err := s.Lock(t.Context(), "a", etcdlock.WithLinger(time.Hour))
			require.NoError(t, err)
			require.NoError(t, hold.Unlock(t.Context()))
		}, nil},
		"Do": {func(t *testing.T, s *etcdlock.Session, _ *etcdlocktest.Etcd) {
			require.NoError(t, s.Do(t.Context(), "a", func(context.Context) error { return nil }))
		}, nil},
		"a loss": {func(t *testing.T, s *etcdlock.Session, etcd *etcdlocktest.Etcd) {
			hold, err := s.Lock(t.Context(), "a")
			require.NoError(t, err)
			etcd.Expire(s.Lease())
			<-hold.Context(t.Context()).Done()
			synctest.Wait()
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd, err := etcdlocktest.Start()
				require.NoError(t, err)
				s, err := etcdlock.NewSession(etcd.Client(), etcdlock.WithTrace(etcd.ForgottenUnlocks()))
				require.NoError(t, err)
				tc.story(t, s, etcd)
				require.NoError(t, s.Close(t.Context()))
				err = etcd.Close()
				if tc.says == nil {
					require.NoError(t, err)
					return
				}
				require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), len(tc.says))
				for _, says := range tc.says {
					require.ErrorContains(t, err, says)
				}
			})
		})
	}
}
