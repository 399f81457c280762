// Package acmetest starts an authority that speaks ACME on this machine, for tests.
package acmetest

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path"
	"sync/atomic"
	"testing"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// A Server is an authority that believes each challenge.
type Server struct {
	*httptest.Server
	Accounts, Orders atomic.Int64 // requests for new ones
}

// Start starts a Server, which ends with the test. The n-th order goes through order, unless that
// is nil.
func Start(t *testing.T, order func(n int64, next http.Handler) http.Handler) *Server {
	t.Helper()
	t.Setenv("PEBBLE_VA_ALWAYS_VALID", "1")
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet, store := log.New(io.Discard, "", 0), db.NewMemoryStore()
	authority := ca.New(quiet, store, "", "ecdsa", 0, 1,
		map[string]ca.Profile{"default": {ValidityPeriod: 86400 * 90}})
	front := wfe.New(quiet, store, va.New(quiet, 0, 0, false, "", store), authority, nil, false,
		false, 1, 1)
	answer, s := front.Handler(), new(Server)
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next := answer
		switch path.Base(r.URL.Path) {
		case "sign-me-up":
			s.Accounts.Add(1)
		case "order-plz":
			if n := s.Orders.Add(1); order != nil {
				next = order(n, answer)
			}
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}
