//go:build linux || darwin || freebsd

package main

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// A front stands before the etcd in memory, as an etcd that is not well.
type front struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	kv    pb.KVClient
	lease pb.LeaseClient

	// Set before the first request.
	cluster  uint64 // id, if not 0
	ttl      int64  // of every lease, if not 0
	alarms   []*pb.AlarmMember
	version  string // that Status tells; empty if it is for root alone
	readOnly bool   // the user may not write
	blind    bool   // the user may not read either

	ranges, grants, revokes atomic.Int64
}

// newFront starts a front. It uses TLS if tls is not nil.
func newFront(t *testing.T, e *etcd, f *front, tls *tls.Config) (addr string) {
	t.Helper()
	conn := e.client.ActiveConnection()
	f.kv, f.lease = pb.NewKVClient(conn), pb.NewLeaseClient(conn)
	var opts []grpc.ServerOption
	if tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(tls)))
	}
	server := grpc.NewServer(opts...)
	pb.RegisterKVServer(server, f)
	pb.RegisterLeaseServer(server, f)
	pb.RegisterMaintenanceServer(server, f)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func (f *front) header(h *pb.ResponseHeader) {
	if h != nil && f.cluster != 0 {
		h.ClusterId = f.cluster
	}
}

func (f *front) Range(ctx context.Context, in *pb.RangeRequest) (*pb.RangeResponse, error) {
	f.ranges.Add(1)
	if f.blind {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	resp, err := f.kv.Range(ctx, in)
	f.header(resp.GetHeader())
	return resp, err
}

func (f *front) Txn(ctx context.Context, in *pb.TxnRequest) (*pb.TxnResponse, error) {
	if f.readOnly || f.blind {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	return f.kv.Txn(ctx, in)
}

func (f *front) LeaseGrant(
	ctx context.Context, in *pb.LeaseGrantRequest,
) (*pb.LeaseGrantResponse, error) {
	f.grants.Add(1)
	resp, err := f.lease.LeaseGrant(ctx, in)
	if f.ttl != 0 && err == nil {
		resp.TTL = f.ttl
	}
	return resp, err
}

func (f *front) LeaseRevoke(
	ctx context.Context, in *pb.LeaseRevokeRequest,
) (*pb.LeaseRevokeResponse, error) {
	f.revokes.Add(1)
	return f.lease.LeaseRevoke(ctx, in)
}

func (f *front) Alarm(context.Context, *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if f.alarms == nil {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	return &pb.AlarmResponse{Alarms: f.alarms}, nil
}

func (f *front) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	if f.version == "" {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	return &pb.StatusResponse{Version: f.version}, nil
}

// certificate makes a certificate for this machine, signed by itself, and its files.
func certificate(t *testing.T) (pair tls.Certificate, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	encoded, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, certPEM, 0o600))
	require.NoError(t, os.WriteFile(key, keyPEM, 0o600))
	pair, err = tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	return pair, cert, key
}
