package mutex_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A process finds its own keys among the contenders: of holders and of waiters, of each kind. A key
// of another program is not its own, also if it has the name of one, on another lease.
func TestAProcessTellsItsOwnContenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		client := etcd.Client("a")
		s := tests.SessionOf(t, etcd, "a")
		held := contract.MutexOf(t, s, "n")
		require.NoError(t, held.Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		waits := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		reads := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "c"))
		permits := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "d"), 3)
		over := make(chan error, 3)
		go func() { over <- waits.Lock(ctx) }()
		go func() { _, err := reads.RLock(ctx); over <- err }()
		go func() { _, err := permits.Acquire(ctx, 2); over <- err }()
		synctest.Wait()

		const strange = "n/6ba7b810-9dad-41d1-80b4-00c04fd430c8"
		l, err := client.Grant(t.Context(), 60)
		require.NoError(t, err)
		require.NoError(t, etcd.PutKey(strange, l.ID))
		all, err := etcdlock.Contenders(t.Context(), client, "n")
		require.NoError(t, err)
		require.Len(t, all, 5)
		modes := make(map[etcdlock.Mode]int)
		for _, c := range all {
			require.Equal(t, c.Key != strange, c.Self, c.Key)
			if c.Self {
				modes[c.Mode]++
			}
		}
		require.Equal(t, map[etcdlock.Mode]int{
			etcdlock.ModeExclusive: 2, etcdlock.ModeRead: 1, etcdlock.ModePermit: 1,
		}, modes)

		cancel()
		for range 3 {
			require.ErrorIs(t, <-over, context.Canceled)
		}

		// A key of this process that has gone, and was put again by another program.
		key := held.Key()
		require.NoError(t, held.Unlock(t.Context()))
		_, err = client.Put(t.Context(), key, "", clientv3.WithLease(l.ID))
		require.NoError(t, err)
		all, err = etcdlock.Contenders(t.Context(), client, "n")
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.False(t, all[0].Self || all[1].Self)
	})
}

// What may go into a log does so as attributes.
func TestWhatIsLoggedHasAttributes(t *testing.T) {
	holder := etcdlock.Contender{
		Name: "n", Owner: "me", Host: "h", PID: 7, Key: "n/1", Token: 12, Mode: etcdlock.ModeRead,
		Holds: true,
	}
	for want, value := range map[string]slog.LogValuer{
		`v.name=n v.owner="me (h:7)" v.mode=read v.holds=true v.token=12 v.key=n/1`: holder,
		`v.name=n v.owner=nobody v.info=10.0.0.1`: etcdlock.Contender{
			Name: "n", Owner: "nobody", Info: "10.0.0.1"},
		`v.error="etcdlock: lock \"n\": held by me (h:7), 1 waiting" v.name=n v.ahead=2 v.holder.name=n ` +
			`v.holder.owner="me (h:7)" v.holder.mode=read v.holder.holds=true v.holder.token=12 v.holder.key=n/1`: &etcdlock.LockedError{Name: "n", Holder: holder, Ahead: 2},
		`v.error="etcdlock: lock \"n\" lost (token 12): its key was deleted" v.name=n v.token=12 v.reason="its key was deleted"`: &etcdlock.LostError{
			Name: "n", Token: 12, Reason: etcdlock.ErrKeyDeleted,
		},
		`v.error="etcdlock: lock \"n\" recalled (token 12) by ops: deploy" v.name=n v.token=12 v.by=ops v.reason=deploy`: &etcdlock.RecalledError{
			Name: "n", Token: 12, By: "ops", Reason: "deploy",
		},
	} {
		var text bytes.Buffer
		slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{
			ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
				if len(groups) == 0 && a.Key != "v" {
					return slog.Attr{}
				}
				return a
			},
		})).LogAttrs(t.Context(), slog.LevelInfo, "m", slog.Any("v", value))
		require.Equal(t, want+"\n", text.String())
	}
}

// What another goroutine of the own Session holds is nothing to look for in other processes.
func TestALockedErrorSaysThatItsOwnSessionHolds(t *testing.T) {
	type call func(ctx context.Context) error
	for kind, of := range map[string]func(t *testing.T, s *etcdlock.Session) (wait, try call){
		"Mutex": func(t *testing.T, s *etcdlock.Session) (wait, try call) {
			m := contract.MutexOf(t, s, "n")
			return m.Lock, m.TryLock
		},
		"a name": func(_ *testing.T, s *etcdlock.Session) (wait, try call) {
			return func(ctx context.Context) error { _, err := s.Lock(ctx, "n"); return err },
				func(ctx context.Context) error { _, err := s.TryLock(ctx, "n"); return err }
		},
		"several": func(_ *testing.T, s *etcdlock.Session) (wait, try call) {
			return func(ctx context.Context) error { _, err := s.LockAll(ctx, "n", "m"); return err },
				func(ctx context.Context) error { _, err := s.TryLockAll(ctx, "n", "m"); return err }
		},
		"read": func(t *testing.T, s *etcdlock.Session) (wait, try call) {
			rw := tests.RWMutexOf(t, s)
			return func(ctx context.Context) error { _, err := rw.RLock(ctx); return err },
				func(ctx context.Context) error { _, err := rw.TryRLock(ctx); return err }
		},
		"permits": func(t *testing.T, s *etcdlock.Session) (wait, try call) {
			sem := tests.SemaphoreOf(t, s, 2)
			return func(ctx context.Context) error { _, err := sem.Acquire(ctx, 2); return err },
				func(ctx context.Context) error { _, err := sem.TryAcquire(ctx, 2); return err }
		},
	} {
		for _, holds := range []string{"lock", "permit"} {
			if holds == "permit" && kind != "permits" {
				continue
			}
			for where, here := range map[string]bool{"a": true, "b": false} {
				t.Run(fmt.Sprintf("%s, %s of %s", kind, holds, where), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						s := tests.SessionOf(t, etcd, "a")
						holder := s
						if !here {
							holder = tests.SessionOf(t, etcd, "b")
						}
						if holds == "permit" {
							tests.AcquireWithin(t, tests.SemaphoreOf(t, holder, 2), 1, time.Second)
						} else {
							tests.LockWithin(t, contract.MutexOf(t, holder, "n"), time.Second)
						}
						wait, try := of(t, s)
						errs := []error{try(context.Background()), wait(tests.Within(t, time.Second))}
						if !here { // a key of this one is in line, behind the other's
							first := contract.Async(func() error { return wait(tests.Within(t, time.Minute)) })
							time.Sleep(time.Second)
							errs = append(errs, wait(tests.Within(t, time.Second)))
							errs = append(errs, <-first)
						}
						for _, err := range errs {
							var locked *etcdlock.LockedError
							ok := errors.As(err, &locked)
							require.True(t, ok, "%v", err)
							text := fmt.Sprintf("held by %s (%s:%d)", where, locked.Holder.Host, locked.Holder.PID)
							require.Contains(t, err.Error(), text)
							require.Equal(t, here, strings.Contains(err.Error(), text+" in this Session"), "%v", err)
							require.Equal(t, here, strings.Contains(locked.LogValue().String(), "here=true"))
						}
					})
				})
			}
		}
	}
}
