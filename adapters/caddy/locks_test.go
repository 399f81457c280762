package etcdlockcaddy

import (
	"errors"
	"testing"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// A lock is held until its Unlock, though no configuration has its Session any more: Caddy unlocks
// when it has stopped. Then the Session ends, and nothing of that is a loss.
func TestALockOutlivesItsConfigurations(t *testing.T) {
	etcd := etcdlocktest.New(t)
	p := &pooled{client: etcd.Client(), uses: 1}
	observed, logs := observer.New(zapcore.DebugLevel)
	var err error
	p.session, err = etcdlock.NewSession(p.client)
	require.NoError(t, err)
	files := &certmagic.FileStorage{Path: t.TempDir()}
	storage, err := etcdlockcertmagic.New(p.session, "caddy/", files)
	require.NoError(t, err)
	storage.Logger = zap.New(observed)
	l := locks{storage, p}
	waits := func(n int) {
		t.Helper()
		line, err := etcdlock.Contenders(t.Context(), etcd.Client(), "caddy/name")
		require.NoError(t, err)
		require.Len(t, line, n)
	}
	require.NoError(t, l.Lock(t.Context(), "name"))
	require.NoError(t, p.Destruct())
	waits(1)
	got, err := l.TryLock(t.Context(), "name")
	require.NoError(t, err)
	require.False(t, got)
	require.NoError(t, l.Unlock(t.Context(), "name"))
	require.ErrorIs(t, l.Unlock(t.Context(), "name"), etcdlock.ErrNotHeld)
	waits(0)
	require.Empty(t, logs.All())
	require.ErrorIs(t, l.Lock(t.Context(), "name"), etcdlock.ErrClosed)
}

// What happens is logged by the configuration of that time, with the name of the module, and by
// Caddy itself if there is none.
func TestTheLastConfigurationLogs(t *testing.T) {
	var all loggers
	logger := all.logger().With(zap.Int("n", 1))
	first, firstLogs := observer.New(zapcore.DebugLevel)
	second, secondLogs := observer.New(zapcore.WarnLevel)
	before, after := zap.New(first), zap.New(second)
	all.add(before)
	logger.Warn("one")
	all.add(after)
	logger.Warn("two", zap.Error(errors.New("lost")))
	logger.Info("below its level")
	all.remove(after) // it was refused
	logger.Warn("three")
	all.remove(before)
	require.NotPanics(t, func() { logger.Debug("four") })
	require.Equal(t, []string{"one", "three"}, messages(firstLogs))
	require.Equal(t, []string{"two"}, messages(secondLogs))
	require.Equal(t, name, secondLogs.All()[0].LoggerName)
	require.Equal(t, map[string]any{"n": int64(1), "error": "lost"}, secondLogs.All()[0].ContextMap())
}

func messages(logs *observer.ObservedLogs) (all []string) {
	for _, e := range logs.All() {
		all = append(all, e.Message)
	}
	return all
}
