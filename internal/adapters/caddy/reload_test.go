package caddy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

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

// A lock that was taken before a new configuration is held until its Unlock, and the last
// configuration gives back all.
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
	contract.WaitForLine(t, client, "caddy/name", 0)
}
