package certmagic_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/certmagic"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// An acmeServer is an authority that speaks ACME on this machine, and believes each challenge.
type acmeServer struct {
	*httptest.Server
	accounts, orders atomic.Int64 // requests for new ones
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
	handler, s := front.Handler(), new(acmeServer)
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path.Base(r.URL.Path) {
		case "sign-me-up":
			s.accounts.Add(1)
		case "order-plz":
			s.orders.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// Three servers with an empty storage start at once, by ACME. Each needs the certificate of a name
// of its own, and all need another one. They register one account, and order each certificate once.
func TestServersRegisterOneAccountAndOrderEachCertificateOnce(t *testing.T) {
	etcd, dir, authority := etcdtest.Start(t, 1), t.TempDir(), startACME(t)
	// so that certmagic needs no port of its own
	challenges := httptest.NewServer(http.NotFoundHandler())
	defer challenges.Close()
	roots := authority.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	var servers sync.WaitGroup
	for i := range 3 {
		var config *certmagic.Config
		cache := certmagic.NewCache(certmagic.CacheOptions{
			GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
			Logger:           zap.NewNop(),
		})
		t.Cleanup(cache.Stop)
		config = certmagic.New(cache, certmagic.Config{
			Storage: open(t, etcd, dir), Logger: zap.NewNop(),
			OCSP: certmagic.OCSPConfig{DisableStapling: true},
		})
		config.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(config, certmagic.ACMEIssuer{
			CA: authority.URL + wfe.DirectoryPath, TrustedRoots: roots, Email: "ops@example.com",
			Agreed:                  true,
			DisableTLSALPNChallenge: true, ListenHost: "127.0.0.1", Logger: zap.NewNop(),
			AltHTTPPort: challenges.Listener.Addr().(*net.TCPAddr).Port,
		})}
		servers.Go(func() {
			names := []string{fmt.Sprintf("%d.example.com", i), "example.com"}
			if err := config.ManageSync(contract.Patient(t), names); err != nil {
				t.Error(err)
			}
		})
	}
	servers.Wait()
	require.EqualValues(t, 1, authority.accounts.Load())
	require.EqualValues(t, 4, authority.orders.Load())
}
