package certmagic_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/caddyserver/certmagic"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/internal/adapters/acmetest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// Three servers with an empty storage start at once, by ACME. Each needs the certificate of a name
// of its own, and all need another one. They register one account, and order each certificate once.
func TestServersRegisterOneAccountAndOrderEachCertificateOnce(t *testing.T) {
	etcd, dir, authority := etcdtest.Start(t, 1), t.TempDir(), acmetest.Start(t, nil)
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
	require.EqualValues(t, 1, authority.Accounts.Load())
	require.EqualValues(t, 4, authority.Orders.Load())
}
