package mutex_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// An option does not compile for what cannot use it, where its type can tell: the options of a
// lease are for what has a lease of its own.
func TestAnOptionOfALeaseDoesNotCompileForALockOfASession(t *testing.T) {
	out, err := build(t,
		`s.Mutex("n", etcdlock.WithOwner("me"))`,
		`etcdlock.NewMutex(nil, "n", etcdlock.WithOwner("me"))`,
		`etcdlock.NewSession(nil, etcdlock.WithTTL(1), etcdlock.WithOwner("me"))`,
		`etcdlock.NewSession(nil, etcdlock.WithTTL(1), etcdlock.JoinOptions([]etcdlock.Option{}...))`,
	)
	require.NoError(t, err, out)

	not := []string{
		`s.Mutex("n", etcdlock.WithTTL(1))`,
		`s.RWMutex("n", etcdlock.WithSafetyMargin(1))`,
		`s.Semaphore("n", 1, etcdlock.WithSafetyMargin(1))`,
		`etcdlock.NewMutex(nil, "n", func() {})`,
		`s.Mutex("n", etcdlock.JoinOptions(etcdlock.WithTTL(1)))`,
	}
	out, err = build(t, not...)
	require.Error(t, err)
	for i := range not {
		require.Regexp(t, fmt.Sprintf(`(?m)p\.go:%d:.*does not implement etcdlock\.(Session)?Option`,
			firstCall+i), out)
	}
}

// JoinOptions does what its options do in its place, also as a part of another one.
func TestJoinedOptionsAreOne(t *testing.T) {
	client := fake.NewServer().Client("a")
	s, err := etcdlock.NewSession(client, etcdlock.WithOwner("session"))
	require.NoError(t, err)
	join := etcdlock.JoinOptions
	both := []etcdlock.Option{etcdlock.WithOwner("first"), etcdlock.WithInfo("info")}
	joined := join(both...)
	both[0] = etcdlock.WithOwner("changed")
	for name, row := range map[string]struct {
		opts        []etcdlock.Option
		owner, info string
	}{
		"none":            {[]etcdlock.Option{join()}, "session", ""},
		"two":             {[]etcdlock.Option{joined}, "first", "info"},
		"a later one":     {[]etcdlock.Option{joined, etcdlock.WithOwner("last")}, "last", "info"},
		"an earlier one":  {[]etcdlock.Option{etcdlock.WithOwner("last"), joined}, "first", "info"},
		"one within them": {[]etcdlock.Option{join(join(joined), etcdlock.WithInfo(""))}, "first", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := s.Lock(t.Context(), name, row.opts...)
			require.NoError(t, err)
			holders, err := etcdlock.Holders(t.Context(), client, name)
			require.NoError(t, err)
			require.Equal(t, row.owner, holders[0].Owner)
			require.Equal(t, row.info, holders[0].Info)
			require.NoError(t, h.Unlock(t.Context()))
		})
	}
	mu, err := etcdlock.NewMutex(client, "n", etcdlock.WithTTL(time.Minute),
		join(etcdlock.WithOwner("me")))
	require.NoError(t, err)
	require.NoError(t, mu.Close(t.Context()))

	for text, opt := range map[string]etcdlock.Option{
		"etcdlock: JoinOptions: option 2 is nil":          join(etcdlock.WithInfo(""), nil),
		"etcdlock: WithMaxHold(0s): not positive":         join(join(etcdlock.WithMaxHold(0))),
		"etcdlock: WithHandoff is not for a Semaphore":    join(etcdlock.WithHandoff(1)),
		"etcdlock: WithMinHold is not for a Semaphore":    join(join(), etcdlock.WithMinHold(time.Second)),
		`etcdlock: WithOwner(""): empty label`:            join(etcdlock.WithOwner("")),
		"etcdlock: WithRecall(-1s): not positive":         join(etcdlock.WithRecall(-time.Second)),
		"etcdlock: WithReentrancy is not for a Semaphore": join(etcdlock.WithReentrancy()),
	} {
		_, err := s.Semaphore("n", 1, opt)
		require.EqualError(t, err, text)
	}
	require.NoError(t, s.Close(t.Context()))
}

// firstCall is the line of the first call that build builds.
const firstCall = 6

// build builds calls, each on a line of its own, with a Session s.
func build(t *testing.T, calls ...string) (output string, err error) {
	t.Helper()
	var file strings.Builder
	file.WriteString(
		"package p\n\nimport \"github.com/etcdlock/etcdlock\"\n\nfunc f(s *etcdlock.Session) {\n")
	for _, call := range calls {
		fmt.Fprintf(&file, "\t_, _ = %s\n", call)
	}
	file.WriteString("}\n")
	dir := t.TempDir()
	text := filepath.Join(dir, "p.go")
	require.NoError(t, os.WriteFile(text, []byte(file.String()), 0o600))
	here, err := os.Getwd()
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(here, "p", "p.go"): text},
	})
	require.NoError(t, err)
	path := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(path, overlay, 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", path,
		"./p").CombinedOutput()
	return string(out), err
}

// sync.Locker has no errors, so its Lock has to wait, whatever bounds the waits of the Mutex.
func TestALockerWaitsWithoutBound(t *testing.T) {
	bound := etcdlock.WithAcquireTimeout(time.Second)
	for about, of := range map[string]func(t *testing.T, etcd *fake.Server) *etcdlock.Mutex{
		"by the Mutex": func(t *testing.T, etcd *fake.Server) *etcdlock.Mutex {
			return contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", bound)
		},
		"by the Session": func(t *testing.T, etcd *fake.Server) *etcdlock.Mutex {
			return contract.MutexOf(t, tests.SessionOf(t, etcd, "a", bound), "n")
		},
	} {
		for where, holder := range map[string]string{"at home": "a", "in etcd's line": "b"} {
			t.Run(about+", "+where, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					mu := of(t, etcd)
					held := mu
					if holder == "b" {
						held = contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
					}
					tests.LockWithin(t, held, time.Second)
					in := contract.Async(func() (err error) {
						defer func() {
							if p := recover(); p != nil {
								err = fmt.Errorf("panic: %v", p)
							}
						}()
						mu.Locker().Lock()
						return nil
					})
					bounded := contract.Async(func() error { return mu.Lock(context.Background()) })
					require.ErrorIs(t, <-bounded, context.DeadlineExceeded)
					time.Sleep(time.Hour)
					tests.StillWaits(t, in, "the lock is taken")
					require.NoError(t, held.Unlock(context.Background()))
					require.NoError(t, tests.SoonOr(t, in, "it goes on waiting"))
					mu.Locker().Unlock()
				})
			})
		}
	}
}

// Options are values that a program may compare, or have as keys of a map.
func TestOptionsCanBeCompared(t *testing.T) {
	all := []etcdlock.SessionOption{
		etcdlock.WithTTL(time.Second), etcdlock.WithSafetyMargin(time.Second),
		etcdlock.WithOwner("a"), etcdlock.WithInfo("a"), etcdlock.WithReentrancy(),
		etcdlock.WithMaxHold(time.Second), etcdlock.WithMinHold(time.Second),
		etcdlock.WithAcquireTimeout(time.Second), etcdlock.WithHandoff(1),
		etcdlock.WithLinger(time.Second), etcdlock.WithRecall(time.Second),
		etcdlock.WithAsk(etcdlock.RecallRequest{}), etcdlock.WithLogger(slog.Default()),
		etcdlock.WithTrace(&etcdlock.Trace{}),
		etcdlock.JoinOptions(), etcdlock.JoinOptions(etcdlock.WithOwner("a")),
		etcdlock.JoinOptions(etcdlock.JoinOptions(etcdlock.WithOwner("a"))),
	}
	counts := make(map[etcdlock.SessionOption]int)
	for i, one := range all {
		for j, other := range all {
			require.Equal(t, i == j, one == other)
		}
		counts[one]++
	}
	require.Len(t, counts, len(all))
}
