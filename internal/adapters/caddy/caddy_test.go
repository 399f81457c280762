// Package caddy_test runs adapters/caddy in processes of Caddy, with an ACME server and etcd's own.
package caddy_test

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/stretchr/testify/require"

	_ "github.com/etcdlock/etcdlock/adapters/caddy"
	"github.com/etcdlock/etcdlock/internal/adapters"
	"github.com/etcdlock/etcdlock/internal/adapters/acmetest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// caddyEnv makes this binary Caddy, with its own command line.
const caddyEnv = "ETCDLOCK_CADDY"

func TestMain(m *testing.M) {
	if os.Getenv(caddyEnv) != "" {
		caddycmd.Main()
		return
	}
	os.Exit(m.Run())
}

// startACME starts an authority that lets the first order wait for ever. arrived is closed with it.
func startACME(t *testing.T) (authority *acmetest.Server, arrived <-chan struct{}) {
	first := make(chan struct{})
	return acmetest.Start(t, func(n int64, next http.Handler) http.Handler {
		if n > 1 {
			return next
		}
		close(first)
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			// Before the body is read the server does not see that the client is gone.
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})
	}), first
}

// A server is a process of Caddy that serves example.com at an address.
type server struct {
	process *adapters.Process
	addr    string
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start starts Caddy. Servers share dir and the endpoint.
func start(t *testing.T, authority *acmetest.Server, dir, endpoint string) *server {
	t.Helper()
	own, port := t.TempDir(), freePort(t)
	root := filepath.Join(own, "authority.pem")
	require.NoError(t, os.WriteFile(root, pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: authority.Certificate().Raw,
	}), 0o600))
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	type object = map[string]any
	config, err := json.Marshal(object{
		"admin": object{"disabled": true, "config": object{"persist": false}},
		"storage": object{
			"module": "etcdlock", "endpoints": []string{endpoint}, "ttl": "5s",
			"storage": object{"module": "file_system", "root": dir},
		},
		"apps": object{
			"tls": object{"automation": object{"policies": []object{{"issuers": []object{{
				"module": "acme", "ca": authority.URL + wfe.DirectoryPath, "email": "ops@example.com",
				"trusted_roots_pem_files": []string{root},
				"challenges": object{
					"bind_host": "127.0.0.1", "http": object{"alternate_port": freePort(t)},
					"tls-alpn": object{"disabled": true},
				},
			}}}}}},
			"http": object{"servers": object{"https": object{
				"listen": []string{addr}, "automatic_https": object{"disable_redirects": true},
				"routes": []object{{
					"match":  []object{{"host": []string{"example.com"}}},
					"handle": []object{{"handler": "static_response", "body": "hello"}},
				}},
				"tls_connection_policies": []object{{}},
			}}},
		},
	})
	require.NoError(t, err)
	file := filepath.Join(own, "caddy.json")
	require.NoError(t, os.WriteFile(file, config, 0o600))
	t.Setenv("HOME", own)
	t.Setenv("XDG_DATA_HOME", own)
	t.Setenv("XDG_CONFIG_HOME", own)
	return &server{adapters.Start(t, caddyEnv+"=1", "run", "--config", file), addr}
}

// serves waits until the server serves a certificate, and returns its number.
func (s *server) serves(t *testing.T) string {
	t.Helper()
	for patient := contract.Patient(t); ; {
		conn, err := (&tls.Dialer{Config: &tls.Config{
			ServerName: "example.com", InsecureSkipVerify: true, //nolint:gosec // the authority is a test's
		}}).DialContext(patient, "tcp", s.addr)
		if err == nil {
			defer conn.Close()
			return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-patient.Done():
			t.Fatal(err)
		}
	}
}

// Two servers want one certificate. The one that orders is killed. The other one orders within the
// TTL, and when the first is there again it has the same certificate, without an order.
func TestTheOrderOfAKilledCaddyIsMadeByTheOther(t *testing.T) {
	etcd, dir := etcdtest.Start(t, 1), t.TempDir()
	authority, arrived := startACME(t)
	client := etcd.Client(t)
	endpoint := client.Endpoints()[0]
	line := func(n int) { contract.WaitForLine(t, client, "caddy/issue_cert_example.com", n) }
	first := start(t, authority, dir, endpoint)
	<-arrived
	line(1)
	second := start(t, authority, dir, endpoint)
	line(2)
	require.EqualValues(t, 1, authority.Orders.Load(), "the second one waits")
	require.NoError(t, first.process.Process.Kill())
	number := second.serves(t)
	require.EqualValues(t, 2, authority.Orders.Load())
	again := start(t, authority, dir, endpoint)
	require.Equal(t, number, again.serves(t))
	require.EqualValues(t, 2, authority.Orders.Load(), "it is stored")
}
