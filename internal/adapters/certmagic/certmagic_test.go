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
	"io"
	"math/big"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/internal/child"
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

// A server is a process. said has each line of it, and is closed at its end.
type server struct {
	cmd   *exec.Cmd
	allow io.WriteCloser
	said  chan string
}

func start(t *testing.T, endpoint, dir string) *server {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	s := &server{cmd: exec.Command(self, dir), said: make(chan string, 10)}
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), serverEnv+"="+endpoint), t.Output()
	s.allow, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start(s.cmd, syscall.SIGKILL))
	read := make(chan struct{})
	go func() { // ends with the process
		defer close(read)
		defer close(s.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.said <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		<-read
		s.cmd.Wait()
	})
	return s
}

func (s *server) says(t *testing.T) string {
	t.Helper()
	select {
	case line := <-s.said:
		return line
	case <-contract.Patient(t).Done():
		t.Fatal("it says nothing")
		return ""
	}
}

// Three processes want one certificate. The one that orders is killed. The next one orders within
// the TTL, and the last one has what that was issued.
func TestTheOrderOfAKilledServerIsMadeByTheNext(t *testing.T) {
	etcd, dir := etcdtest.Start(t, 1), t.TempDir()
	client := etcd.Client(t)
	endpoint := strings.Join(client.Endpoints(), ",")
	line := func(n int) { contract.WaitForLine(t, client, "certmagic/issue_cert_example.com", n) }
	var servers [3]*server
	for i := range servers {
		servers[i] = start(t, endpoint, dir)
		line(i + 1)
	}
	require.Equal(t, "orders", servers[0].says(t))
	require.NoError(t, servers[0].cmd.Process.Kill())
	require.Equal(t, "orders", servers[1].says(t))
	require.Empty(t, servers[2].said)
	_, err := fmt.Fprintln(servers[1].allow)
	require.NoError(t, err)
	has := fmt.Sprint("has ", servers[1].cmd.Process.Pid)
	require.Equal(t, has, servers[1].says(t))
	require.Equal(t, has, servers[2].says(t), "without an order")
}
