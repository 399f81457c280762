package matrix

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/matrix/door"
)

// A setup is a row of the matrix.
type setup struct {
	name      string
	members   int
	tls       bool   // mutual
	token     string // kind of token for user and password, "" without passwords
	names     bool   // the certificates name the users; they have no passwords
	role      bool   // the user may only read and write below the names of the locks
	namespace string // of the library's clients
	proxy     bool   // clients connect to etcd grpc-proxy
}

// tokenLife is how long a token lives. A simple token lives that long after its last use.
const tokenLife = 3 * time.Second

var setups = []setup{
	{name: "1 member", members: 1},
	{name: "3 members", members: 3},
	{name: "mutual TLS, 1 member", members: 1, tls: true},
	{name: "mutual TLS, 3 members", members: 3, tls: true},
	{name: "password, simple token of 3 s, 1 member", members: 1, token: "simple"},
	{name: "password, simple token of 3 s, 3 members", members: 3, token: "simple"},
	{name: "password, JWT of 3 s, 1 member", members: 1, token: "jwt"},
	{name: "password, JWT of 3 s, 3 members", members: 3, token: "jwt"},
	{name: "a role on the prefix only, 1 member", members: 1, token: "simple", role: true},
	{name: "a role on the prefix only, user by TLS certificate, 3 members", members: 3, tls: true, names: true, role: true},
	{name: "a namespaced client, 1 member", members: 1, namespace: "tenants/7/"},
	{name: "TLS, JWT of 3 s, role on the prefix, namespaced, 3 members", members: 3, tls: true, token: "jwt", role: true, namespace: "tenants/7/"},
	{name: "etcd grpc-proxy before 1 member", members: 1, proxy: true},
	{name: "etcd grpc-proxy before 3 members", members: 3, proxy: true},
}

// open starts what the setup needs. names are the names of the locks.
func (s setup) open(t testing.TB, v *version, names []string) *world {
	t.Helper()
	w := &world{setup: s, version: v}
	// The path of a TempDir may have commas, which have a meaning in --auth-token.
	dir, err := os.MkdirTemp(scratch, "keys")
	require.NoError(t, err)
	var certs *certificates
	if s.tls {
		certs = newCertificates(t, dir)
	}
	args := []string{"--bcrypt-cost", "4"} // the least that bcrypt takes, for speed
	switch s.token {
	case "simple":
		args = append(args, "--auth-token", "simple", "--auth-token-ttl",
			strconv.Itoa(int(tokenLife/time.Second)))
	case "jwt":
		key := filepath.Join(dir, "jwt.pem")
		writeKey(t, key, newKey(t))
		args = append(args, "--auth-token", "jwt,sign-method=ES256,ttl="+tokenLife.String()+
			",priv-key="+key)
	}
	w.cluster = startCluster(t, v, s.members, certs, args...)
	w.cluster.root.LoneAuth = s.token != "" && v.keepsDeadTokensOut
	w.door = w.cluster.root
	w.door.Namespace = s.namespace
	if s.proxy {
		w.door.Endpoints = []string{w.cluster.proxy(v)}
	}
	if users(s, v) {
		s.enableUsers(t, w.cluster.root, names)
	}
	if s.token != "" {
		w.cluster.root.User, w.cluster.root.Password = "root", "secret of root"
		w.door.User, w.door.Password = "tenant", "secret of tenant"
	}
	if s.names {
		w.cluster.root.Certificates = &certs.issue(t, "root").Files
		w.door.Certificates = &certs.issue(t, "tenant").Files
	}
	w.admin, err = w.cluster.root.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { w.admin.Close() })
	return w
}

// enableUsers makes two users: root, who may do everything, and tenant, who may read and
// write all keys, or those below the names of the locks.
func (s setup) enableUsers(t testing.TB, root door.Door, names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	admin, err := root.Dial()
	require.NoError(t, err)
	defer admin.Close()
	for _, user := range []string{"root", "tenant"} {
		contract.AddUser(ctx, t, admin, user, "secret of "+user)
	}
	allows := func(from, to string) {
		_, err := admin.RoleGrantPermission(ctx, "tenant", from, to,
			clientv3.PermissionType(clientv3.PermReadWrite))
		require.NoError(t, err)
	}
	if s.role {
		for _, name := range names {
			prefix := s.namespace + name + "/"
			allows(prefix, clientv3.GetPrefixRangeEnd(prefix))
		}
	} else {
		allows("\x00", "\x00")
	}
	_, err = admin.AuthEnable(ctx)
	require.NoError(t, err)
}

// certificates are what a server or a client needs.
type certificates struct {
	door.Files
	signer func(t testing.TB, c *x509.Certificate, public *ecdsa.PublicKey) []byte
}

// newCertificates makes an authority, and its certificate for nobody in particular.
func newCertificates(t testing.TB, dir string) *certificates {
	t.Helper()
	key := newKey(t)
	ca := template()
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	authority := &certificates{Files: door.Files{CA: filepath.Join(dir, "ca.crt")}}
	authority.signer = func(t testing.TB, c *x509.Certificate, public *ecdsa.PublicKey) []byte {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, c, ca, public, key)
		require.NoError(t, err)
		return der
	}
	writePEM(t, authority.CA, "CERTIFICATE", authority.signer(t, ca, &key.PublicKey))
	return authority.issue(t, "")
}

// issue makes a certificate that servers and clients accept for a name. If users are
// enabled and no password is given, that name is a user to etcd.
func (c *certificates) issue(t testing.TB, name string) *certificates {
	t.Helper()
	issued := *c
	issued.Cert, issued.Key = filepath.Join(filepath.Dir(c.CA), name+".crt"),
		filepath.Join(filepath.Dir(c.CA), name+".key")
	key, cert := newKey(t), template()
	cert.Subject.CommonName = name
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	writePEM(t, issued.Cert, "CERTIFICATE", c.signer(t, cert, &key.PublicKey))
	writeKey(t, issued.Key, key)
	return &issued
}

func template() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{Organization: []string{"etcdlock's tests"}},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func writeKey(t testing.TB, path string, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	writePEM(t, path, "EC PRIVATE KEY", der)
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t,
		os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
