package etcdlockcaddy_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

	etcdlockcaddy "github.com/etcdlock/etcdlock/adapters/caddy"
)

// parse reads a module in a Caddyfile, and returns its JSON.
func parse(t *testing.T, text string) (string, error) {
	t.Helper()
	s := new(etcdlockcaddy.Storage)
	if err := s.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text)); err != nil {
		return "", err
	}
	out, err := json.Marshal(s)
	require.NoError(t, err)
	return string(out), nil
}

func TestWhatACaddyfileSays(t *testing.T) {
	out, err := parse(t, `etcdlock {
		endpoints https://a:2379 https://b:2379
		prefix certificates/
		ttl 20s
		username caddy
		password secret
		ca ca.pem
		cert client.pem client.key
		storage file_system {
			root /mnt/caddy
		}
	}`)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"endpoints": ["https://a:2379", "https://b:2379"],
		"prefix": "certificates/", "ttl": 20000000000, "username": "caddy", "password": "secret",
		"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key",
		"storage": {"module": "file_system", "root": "/mnt/caddy"}
	}`, out)

	out, err = parse(t, "etcdlock {\n endpoints a:2379\n storage file_system /mnt/caddy\n}")
	require.NoError(t, err)
	require.JSONEq(t, `{"endpoints": ["a:2379"],
		"storage": {"module": "file_system", "root": "/mnt/caddy"}}`, out)
}

func TestWhatACaddyfileCannotSay(t *testing.T) {
	for text, says := range map[string]string{
		"etcdlock":                  "etcdlock needs endpoints",
		"etcdlock a:2379":           "wrong argument count",
		"etcdlock {\n endpoints\n}": "wrong argument count",
		"etcdlock {\n endpoints a:2379\n prefix\n}":              "wrong argument count",
		"etcdlock {\n endpoints a:2379\n ttl soon\n}":            "ttl",
		"etcdlock {\n endpoints a:2379\n cert client.pem\n}":     "wrong argument count",
		"etcdlock {\n endpoints a:2379\n storage nowhere\n}":     "caddy.storage.nowhere",
		"etcdlock {\n endpoints a:2379\n storage\n}":             "wrong argument count",
		"etcdlock {\n endpoints a:2379\n storage file_system\n}": "missing root path",
		"etcdlock {\n endpoints a:2379\n endpoint b:2379\n}":     `unknown option "endpoint"`,
	} {
		_, err := parse(t, text)
		require.ErrorContains(t, err, says, text)
	}
}

// provision loads a module as Caddy does.
func provision(t *testing.T, config string) (certmagic.Storage, error) {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	module, err := ctx.LoadModuleByID("caddy.storage.etcdlock", json.RawMessage(config))
	if err != nil {
		return nil, err
	}
	return module.(caddy.StorageConverter).CertMagicStorage()
}

// Caddy starts though etcd is away: it asks etcd for the first lock.
func TestAModuleIsProvisionedWithoutEtcd(t *testing.T) {
	dir := t.TempDir()
	storage, err := provision(t, `{"endpoints": ["127.0.0.1:1"],
		"storage": {"module": "file_system", "root": "`+dir+`"}}`)
	require.NoError(t, err)
	require.NoError(t, storage.Store(t.Context(), "key", []byte("value")))
	value, err := (&certmagic.FileStorage{Path: dir}).Load(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, "value", string(value))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, storage.Lock(ctx, "name"), context.Canceled)
}

func TestWhatAModuleCannotUse(t *testing.T) {
	for config, says := range map[string]string{
		`{}`: "no endpoints",
		`{"endpoints": ["a:1", "http://u:secret@a:1"]}`:            "a user or a password in an address",
		`{"endpoints": ["a:1"], "ttl": "-1s"}`:                     "TTL",
		`{"endpoints": ["a:1"], "prefix": "\u0000"}`:               "prefix",
		`{"endpoints": ["a:1"], "ca_file": "/nowhere"}`:            "/nowhere",
		`{"endpoints": ["a:1"], "storage": {"module": "nowhere"}}`: "caddy.storage.nowhere",
	} {
		_, err := provision(t, config)
		require.ErrorContains(t, err, says, config)
		require.NotContains(t, err.Error(), "secret")
	}
}
