package caddy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// load loads a configuration with the module. end is its end.
func load(t *testing.T, endpoint string) (storage certmagic.Storage, end func()) {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	module, err := ctx.LoadModuleByID("caddy.storage.etcdlock", json.RawMessage(fmt.Sprintf(
		`{"endpoints": [%q], "storage": {"module": "file_system", "root": %q}}`, endpoint, t.TempDir())))
	require.NoError(t, err)
	storage, err = module.(caddy.StorageConverter).CertMagicStorage()
	require.NoError(t, err)
	return storage, cancel
}

// A lock that was taken before a new configuration is held until its Unlock, also if no
// configuration is left.
func TestALockOutlivesItsConfiguration(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	client := etcd.Client(t)
	endpoint := client.Endpoints()[0]
	before, endBefore := load(t, endpoint)
	require.NoError(t, before.Lock(t.Context(), "name"))
	after, endAfter := load(t, endpoint)
	endBefore()
	free, err := after.(certmagic.TryLocker).TryLock(t.Context(), "name")
	require.NoError(t, err)
	require.False(t, free)
	require.NoError(t, before.Unlock(t.Context(), "name"))
	require.NoError(t, after.Lock(t.Context(), "name"))
	contract.WaitForLine(t, client, "caddy/name", 1)
	endAfter()
	contract.WaitForLine(t, client, "caddy/name", 1)
	require.NoError(t, after.Unlock(t.Context(), "name"))
	contract.WaitForLine(t, client, "caddy/name", 0)
}

// reload has this process be a Caddy with a TTL and a file of logs, in the place of the one before.
func reload(t *testing.T, endpoint, ttl string) (storage certmagic.Storage, logs func() string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	type object = map[string]any
	config, err := json.Marshal(object{
		"admin": object{"disabled": true, "config": object{"persist": false}},
		"logging": object{"logs": object{"default": object{
			"level": "DEBUG", "writer": object{"output": "file", "filename": file},
		}}},
		"storage": object{
			"module": "etcdlock", "endpoints": []string{endpoint}, "ttl": ttl,
			"storage": object{"module": "file_system", "root": dir},
		},
	})
	require.NoError(t, err)
	require.NoError(t, caddy.Load(config, true))
	return caddy.ActiveContext().Storage(), func() string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(text)
	}
}

// A lock of a configuration with another TTL is held until its Unlock, as certmagic's cleanup calls
// it when Caddy has stopped. Neither is a loss. Its Session ends with it.
func TestAReloadAndAStopAreNoLoss(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	client := etcd.Client(t)
	endpoint := client.Endpoints()[0]
	t.Cleanup(func() { _ = caddy.Stop() })
	before, logsBefore := reload(t, endpoint, "15s")
	require.NoError(t, before.Lock(t.Context(), "name"))
	after, logsAfter := reload(t, endpoint, "20s")
	free, err := after.(certmagic.TryLocker).TryLock(t.Context(), "name")
	require.NoError(t, err)
	require.False(t, free)
	require.NoError(t, before.Unlock(t.Context(), "name"))

	require.NoError(t, after.Lock(t.Context(), "name"))
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases.Leases, 1, "the one of the first Session has ended")
	require.NoError(t, caddy.Stop())
	contract.WaitForLine(t, client, "caddy/name", 1)
	require.NoError(t, after.Unlock(t.Context(), "name"))
	contract.WaitForLine(t, client, "caddy/name", 0)
	for _, logs := range []string{logsBefore(), logsAfter()} {
		require.NotContains(t, logs, "lost")
		require.NotContains(t, logs, `"level":"warn","logger":"caddy.storage.etcdlock"`)
	}
}

// What happens to a lock is logged by the configuration of that time, with the name of the module.
func TestALossIsLoggedByTheConfigurationOfNow(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	client := etcd.Client(t)
	endpoint := client.Endpoints()[0]
	t.Cleanup(func() { _ = caddy.Stop() })
	before, logsBefore := reload(t, endpoint, "15s")
	require.NoError(t, before.Lock(t.Context(), "name"))
	_, logsAfter := reload(t, endpoint, "15s")
	contenders, err := etcdlock.Contenders(t.Context(), client, "caddy/name")
	require.NoError(t, err)
	require.Len(t, contenders, 1)
	require.NoError(t, etcdlock.Break(t.Context(), client, contenders[0]))
	require.Eventually(t, func() bool { return strings.Contains(logsAfter(), "lost") },
		10*time.Second, 10*time.Millisecond)
	require.NoError(t, before.Unlock(t.Context(), "name"))
	require.NotContains(t, logsBefore(), "lost")
	for line := range strings.SplitSeq(logsAfter(), "\n") {
		if strings.Contains(line, "lost") {
			require.Contains(t, line, `"logger":"caddy.storage.etcdlock"`)
		}
	}
}
