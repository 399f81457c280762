// Package caddy_test runs adapters/caddy in processes of Caddy, with an ACME server and etcd's own.
package caddy_test

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/stretchr/testify/require"

	_ "github.com/etcdlock/etcdlock/adapters/caddy"
	"github.com/etcdlock/etcdlock/internal/adapters"
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

// An acmeServer is an authority that believes each challenge, and lets the first order wait for
// ever.
type acmeServer struct {
	*httptest.Server
	arrived chan struct{} // closed with the first order
	orders  atomic.Int64
}

func startACME(t *testing.T) *acmeServer {
	t.Helper()
	t.Setenv("PEBBLE_VA_ALWAYS_VALID", "1")
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet, store := log.New(io.Discard, "", 0), db.NewMemoryStore()
	authority := ca.New(quiet, store, "", "ecdsa", 0, 1,
		map[string]ca.Profile{"default": {ValidityPeriod: 86400 * 90}})
	front := wfe.New(quiet, store, va.New(quiet, 0, 0, false, "", store), authority, nil, false,
		false, 1, 1)
	handler := front.Handler()
	s := &acmeServer{arrived: make(chan struct{})}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path.Base(r.URL.Path) == "order-plz" && s.orders.Add(1) == 1 {
			close(s.arrived)
			_, _ = io.Copy(io.Discard, r.Body) // before that the server does not see that the client is gone
			<-r.Context().Done()
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
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
func start(t *testing.T, authority *acmeServer, dir, endpoint string) *server {
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
	etcd, dir, authority := etcdtest.Start(t, 1), t.TempDir(), startACME(t)
	client := etcd.Client(t)
	endpoint := client.Endpoints()[0]
	line := func(n int) { contract.WaitForLine(t, client, "caddy/issue_cert_example.com", n) }
	first := start(t, authority, dir, endpoint)
	<-authority.arrived
	line(1)
	second := start(t, authority, dir, endpoint)
	line(2)
	require.EqualValues(t, 1, authority.orders.Load(), "the second one waits")
	require.NoError(t, first.process.Process.Kill())
	number := second.serves(t)
	require.EqualValues(t, 2, authority.orders.Load())
	again := start(t, authority, dir, endpoint)
	require.Equal(t, number, again.serves(t))
	require.EqualValues(t, 2, authority.orders.Load(), "it is stored")
}
