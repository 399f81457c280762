package outages_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// An Unlock whose context never ends takes no longer beside an etcd that does not answer than one
// whose context had ended: the TTL or 5 s. The release goes on, and the key goes once etcd is back.
func TestUnlockWithAContextThatNeverEndsIsBounded(t *testing.T) {
	type key struct{}
	for ttl, most := range map[time.Duration]time.Duration{
		2 * time.Second: 2 * time.Second, 15 * time.Second: 5 * time.Second, time.Minute: 5 * time.Second,
	} {
		for name, ctx := range map[string]context.Context{
			"Background":    context.Background(),
			"a value":       context.WithValue(context.Background(), key{}, 1),
			"WithoutCancel": context.WithoutCancel(t.Context()),
		} {
			for verb, take := range map[string]func(t *testing.T,
				s *etcdlock.Session) func(context.Context) error{
				"Mutex.Unlock": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
					mu := contract.MutexOf(t, s, "n")
					require.NoError(t, mu.Lock(t.Context()))
					return mu.Unlock
				},
				"Hold.Unlock": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
					h, err := s.LockAll(t.Context(), "n", "o")
					require.NoError(t, err)
					return h.Unlock
				},
			} {
				t.Run(verb+" "+ttl.String()+" "+name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						etcd := fake.NewServer()
						s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl))
						unlock := take(t, s)
						etcd.Freeze()
						start := time.Now()
						err := unlock(ctx)
						require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
						require.NotErrorIs(t, err, etcdlock.ErrLost)
						require.Equal(t, most, time.Since(start))
						etcd.Thaw()
						time.Sleep(2 * ttl)
						require.Empty(t, etcd.Keys("n/"))
					})
				})
			}
		}
	}
}
