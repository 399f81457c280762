// Package door says how a client of the matrix gets to etcd. It knows nothing of the
// library: a worker that is built from an older version of the library uses it, too.
package door

import (
	"context"
	"crypto/tls"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// A Door is how a client gets to etcd.
type Door struct {
	Endpoints      []string
	Certificates   *Files // nil: without TLS
	User, Password string
	LoneAuth       bool // see lonelyAuth
	Namespace      string
}

// Files are the paths of certificates and of a key.
type Files struct{ CA, Cert, Key string }

// TLS is what a client of the Door needs.
func (d Door) TLS() (*tls.Config, error) {
	if d.Certificates == nil {
		return nil, nil
	}
	info := transport.TLSInfo{TrustedCAFile: d.Certificates.CA, CertFile: d.Certificates.Cert,
		KeyFile: d.Certificates.Key}
	return info.ClientConfig()
}

// Dial makes a client of etcd's.
func (d Door) Dial(opts ...grpc.DialOption) (*clientv3.Client, error) {
	config, err := d.TLS()
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
// every request with a dead token, even this one, so the client never gets another.
// (TestClientv3AloneCannotRenewATokenOf34.)
func lonelyAuth(cfg clientv3.Config) (*clientv3.Client, error) {
	nobody := cfg
	nobody.Username, nobody.Password = "", ""
	asks, err := clientv3.New(nobody)
	if err != nil {
		return nil, err
	}
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
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

// Args are the flags with which etcdctl uses the Door. etcdctl has no namespaces.
func (d Door) Args() []string {
	args := []string{"--endpoints", strings.Join(d.Endpoints, ",")}
	if c := d.Certificates; c != nil {
		args = append(args, "--cacert", c.CA, "--cert", c.Cert, "--key", c.Key)
	}
	if d.User != "" {
		args = append(args, "--user", d.User+":"+d.Password)
	}
	return args
}
