// Package certmagic_test runs adapters/certmagic on etcd's own server, and in processes.
package certmagic_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/internal/adapters"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/contract/keyed"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// serverEnv makes this binary a server: the endpoint of etcd.
const serverEnv = "ETCDLOCK_CERTMAGIC_ETCD"

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(serverEnv); endpoint != "" {
		contract.Must(serve(endpoint, os.Args[1]))
		return
	}
	os.Exit(m.Run())
}

func open(t *testing.T, etcd *etcdtest.Cluster, dir string) *etcdlockcertmagic.Storage {
	t.Helper()
	s, err := etcdlockcertmagic.New(
		contract.NewSession(t, etcd.Client(t)), "certmagic/", &certmagic.FileStorage{Path: dir})
	require.NoError(t, err)
	return s
}

func TestStoragesLockAsOneOfCertmagicsShould(t *testing.T) {
	etcd, dir := etcdtest.Start(t, 1), t.TempDir()
	keyed.Run(t, func(t *testing.T) keyed.Locker { return open(t, etcd, dir) })
}

// An authority is asked by a server: it says so, and issues when it reads a line.
type authority struct{ allowed *bufio.Reader }

func (authority) IssuerKey() string { return "authority" }

func (a authority) Issue(
	_ context.Context, request *x509.CertificateRequest,
) (*certmagic.IssuedCertificate, error) {
	fmt.Println("orders")
	if _, err := a.allowed.ReadString('\n'); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(os.Getpid())), DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 3, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, request.PublicKey, key)
	return &certmagic.IssuedCertificate{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, err
}

// serve is a server that obtains one certificate, and says which one it has then.
func serve(endpoint, dir string) error {
	client := contract.ExampleClient([]string{endpoint})
	defer client.Close()
	session, err := etcdlock.NewSession(client, etcdlock.WithTTL(5*time.Second))
	if err != nil {
		return err
	}
	ctx := context.Background()
	defer session.Close(ctx)
	storage, err := etcdlockcertmagic.New(session, "certmagic/", &certmagic.FileStorage{Path: dir})
	if err != nil {
		return err
	}
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
	})
	defer cache.Stop()
	config = certmagic.New(cache, certmagic.Config{
		Storage: storage, Issuers: []certmagic.Issuer{authority{bufio.NewReader(os.Stdin)}},
		OCSP: certmagic.OCSPConfig{DisableStapling: true},
	})
	if err := config.ManageSync(ctx, []string{"example.com"}); err != nil {
		return err
	}
	for _, certificate := range cache.AllMatchingCertificates("example.com") {
		fmt.Println("has", certificate.Leaf.SerialNumber)
	}
	return nil
}

// Three processes want one certificate. The one that orders is killed. The next one orders within
// the TTL, and the last one has what that was issued.
func TestTheOrderOfAKilledServerIsMadeByTheNext(t *testing.T) {
	etcd, dir := etcdtest.Start(t, 1), t.TempDir()
	client := etcd.Client(t)
	endpoint := strings.Join(client.Endpoints(), ",")
	line := func(n int) { contract.WaitForLine(t, client, "certmagic/issue_cert_example.com", n) }
	var servers [3]*adapters.Process
	for i := range servers {
		servers[i] = adapters.Start(t, serverEnv+"="+endpoint, dir)
		line(i + 1)
	}
	require.Equal(t, "orders", servers[0].Says(t))
	require.NoError(t, servers[0].Process.Kill())
	require.Equal(t, "orders", servers[1].Says(t))
	require.Empty(t, servers[2].Said)
	_, err := fmt.Fprintln(servers[1].In)
	require.NoError(t, err)
	has := fmt.Sprint("has ", servers[1].Process.Pid)
	require.Equal(t, has, servers[1].Says(t))
	require.Equal(t, has, servers[2].Says(t), "without an order")
}
