package matrix

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/contract"
)

// A setup is a row of the matrix.
type setup struct {
	name      string
	members   int
	tls       bool   // mutual
	token     string // kind of token for user and password, "" without passwords
	names     bool   // the certificates name the users, who have no passwords
	role      bool   // readwrite below the names of the locks is all that the user may do
	namespace string // of the library's clients
	proxy     bool   // clients connect to etcd grpc-proxy
}

// tokenLife is how long a token lives, or lives unused if it is simple.
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

// open starts what the setup needs. Names are those of the locks.
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
		args = append(args, "--auth-token", "simple", "--auth-token-ttl", strconv.Itoa(int(tokenLife/time.Second)))
	case "jwt":
		key := filepath.Join(dir, "jwt.pem")
		writeKey(t, key, newKey(t))
		args = append(args, "--auth-token", "jwt,sign-method=ES256,ttl="+tokenLife.String()+",priv-key="+key)
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
		w.cluster.root.Certificates = certs.issue(t, "root")
		w.door.Certificates = certs.issue(t, "tenant")
	}
	w.admin, err = w.cluster.root.dial()
	require.NoError(t, err)
	t.Cleanup(func() { w.admin.Close() })
	return w
}

// enableUsers makes two users: root, who may do everything, and tenant, who may read and
// write all keys, or those below the names of the locks.
func (s setup) enableUsers(t testing.TB, root door, names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	admin, err := root.dial()
	require.NoError(t, err)
	defer admin.Close()
	for _, user := range []string{"root", "tenant"} {
		contract.AddUser(ctx, t, admin, user, "secret of "+user)
	}
	allows := func(from, to string) {
		_, err := admin.RoleGrantPermission(ctx, "tenant", from, to, clientv3.PermissionType(clientv3.PermReadWrite))
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

// A door is how a client gets to etcd.
type door struct {
	Endpoints      []string
	Certificates   *certificates
	User, Password string
	LoneAuth       bool // see lonelyAuth
	Namespace      string
}

func (d door) tls() (*tls.Config, error) {
	if d.Certificates == nil {
		return nil, nil
	}
	info := transport.TLSInfo{TrustedCAFile: d.Certificates.CA, CertFile: d.Certificates.Cert, KeyFile: d.Certificates.Key}
	return info.ClientConfig()
}

// dial makes a client of etcd's.
func (d door) dial(opts ...grpc.DialOption) (*clientv3.Client, error) {
	config, err := d.tls()
	if err != nil {
		return nil, err
	}
	cfg := clientv3.Config{
		Endpoints: d.Endpoints, TLS: config, Username: d.User, Password: d.Password,
		DialOptions: opts, Logger: zap.NewNop(),
	}
	dial := clientv3.New
	if d.LoneAuth && d.User != "" {
		dial = lonelyAuth
	}
	client, err := dial(cfg)
	if err == nil && d.Namespace != "" {
		client.KV = namespace.NewKV(client.KV, d.Namespace)
		client.Watcher = namespace.NewWatcher(client.Watcher, d.Namespace)
		client.Lease = namespace.NewLease(client.Lease, d.Namespace)
	}
	return client, err
}

// lonelyAuth makes a client that asks for tokens on a connection of their own.
//
// clientv3 sends its dead token along when it asks for a new one. Servers of 3.4 refuse
// every request with a dead token, this one too, so that the client never gets another.
// (TestClientv3AloneCannotRenewATokenOf34.)
func lonelyAuth(cfg clientv3.Config) (*clientv3.Client, error) {
	nobody := cfg
	nobody.Username, nobody.Password = "", ""
	asks, err := clientv3.New(nobody)
	if err != nil {
		return nil, err
	}
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == "/etcdserverpb.Auth/Authenticate" {
				cc = asks.ActiveConnection()
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	client, err := clientv3.New(cfg)
	if err != nil {
		asks.Close()
		return nil, err
	}
	context.AfterFunc(client.Ctx(), func() { asks.Close() }) // when the client is closed
	return client, nil
}

// args are the same for etcdctl, which has no namespaces.
func (d door) args() []string {
	args := []string{"--endpoints", strings.Join(d.Endpoints, ",")}
	if c := d.Certificates; c != nil {
		args = append(args, "--cacert", c.CA, "--cert", c.Cert, "--key", c.Key)
	}
	if d.User != "" {
		args = append(args, "--user", d.User+":"+d.Password)
	}
	return args
}

// certificates are files: what a server or a client needs.
type certificates struct {
	CA, Cert, Key string
	signer        func(t testing.TB, c *x509.Certificate, public *ecdsa.PublicKey) []byte
}

// newCertificates makes an authority, and its certificate for nobody in particular.
func newCertificates(t testing.TB, dir string) *certificates {
	t.Helper()
	key := newKey(t)
	ca := template()
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	authority := &certificates{CA: filepath.Join(dir, "ca.crt")}
	authority.signer = func(t testing.TB, c *x509.Certificate, public *ecdsa.PublicKey) []byte {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, c, ca, public, key)
		require.NoError(t, err)
		return der
	}
	writePEM(t, authority.CA, "CERTIFICATE", authority.signer(t, ca, &key.PublicKey))
	return authority.issue(t, "")
}

// issue makes a certificate that servers and clients take for a name. To etcd it is a
// user, where users are enabled and no password is given.
func (c *certificates) issue(t testing.TB, name string) *certificates {
	t.Helper()
	issued := *c
	issued.Cert, issued.Key = filepath.Join(filepath.Dir(c.CA), name+".crt"), filepath.Join(filepath.Dir(c.CA), name+".key")
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
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
