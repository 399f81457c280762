//go:build timed

package contract_test

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
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// What operators do to etcd, and docs/runbook.md tells of.

// raise raises an alarm of the only member. The test ends it.
func raise(t *testing.T, admin *clientv3.Client, kind pb.AlarmType) (disarm func()) {
	t.Helper()
	members, err := admin.MemberList(bounded(t))
	require.NoError(t, err)
	member := members.Members[0].ID
	_, err = pb.NewMaintenanceClient(admin.ActiveConnection()).Alarm(bounded(t),
		&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: kind})
	require.NoError(t, err)
	return func() {
		_, err := admin.AlarmDisarm(bounded(t), &clientv3.AlarmMember{MemberID: member, Alarm: kind})
		require.NoError(t, err)
	}
}

// Under the alarm CORRUPT etcd refuses to write, and goes on renewing: a holder keeps its lock, and
// no lock is released or taken.
func TestUnderTheCorruptAlarmAHolderKeepsItsLock(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	const ttl = 2 * time.Second
	cluster := etcdtest.Start(t, 1)
	admin := cluster.Client(t)
	s := contract.NewSession(t, cluster.Client(t), etcdlock.WithTTL(ttl))
	held, err := s.Lock(bounded(t), uuid.NewString())
	require.NoError(t, err)
	defer raise(t, admin, pb.AlarmType_CORRUPT)()

	time.Sleep(2 * ttl)
	require.True(t, held.Status().Held)
	soon, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = s.Lock(soon, uuid.NewString())
	require.ErrorIs(t, err, rpctypes.ErrCorrupt)
	err = held.Unlock(soon)
	require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
	require.ErrorIs(t, err, rpctypes.ErrCorrupt)
}

// Without space an early Unlock with WithMinHold, which has to put, waits until the least time is
// over, and then deletes.
func TestAnEarlyUnlockWithoutSpaceWaitsForTheLeastTime(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	const least = 4 * time.Second
	cluster := etcdtest.Start(t, 1)
	admin := cluster.Client(t)
	s := contract.NewSession(t, cluster.Client(t))
	held, err := s.Lock(bounded(t), uuid.NewString(), etcdlock.WithMinHold(least))
	require.NoError(t, err)
	began := time.Now()
	defer raise(t, admin, pb.AlarmType_NOSPACE)()

	require.NoError(t, held.Unlock(bounded(t)))
	require.Greater(t, time.Since(began), least/2)
	line, err := etcdlock.Contenders(bounded(t), admin, held.Names()[0])
	require.NoError(t, err)
	require.Empty(t, line)
}

// A client whose password was changed cannot log in again: its holds are lost with their lease, and
// its calls are refused at once.
func TestAChangedPasswordEndsTheHolds(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	const ttl = 2 * time.Second
	cluster := etcdtest.Start(t, 1)
	admin := cluster.Client(t)
	contract.AddUser(bounded(t), t, admin, "root", "first")
	_, err := admin.AuthEnable(bounded(t))
	require.NoError(t, err)
	as := func(password string) contract.ClientOption {
		return func(cfg *clientv3.Config) { cfg.Username, cfg.Password = "root", password }
	}
	operator := cluster.Client(t, as("first"))
	s, err := etcdlock.NewSession(cluster.Client(t, as("first")), etcdlock.WithTTL(ttl))
	require.NoError(t, err)
	defer s.Close(bounded(t)) // which cannot tell etcd
	held, err := s.Lock(bounded(t), "n")
	require.NoError(t, err)
	_, err = operator.UserChangePassword(bounded(t), "root", "second")
	require.NoError(t, err)

	receive(t, held.Context(context.Background()).Done(), "the loss")
	err = held.Unlock(bounded(t))
	require.ErrorIs(t, err, etcdlock.ErrExpired)
	require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
	_, err = s.Lock(bounded(t), "n")
	require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
	next := contract.NewSession(t, cluster.Client(t, as("second")), etcdlock.WithTTL(ttl))
	hold, err := next.Lock(bounded(t), "n")
	require.NoError(t, err)
	require.NoError(t, hold.Unlock(bounded(t)))
	_, err = cluster.Client(t, as("second")).AuthDisable(bounded(t)) // for the leak check
	require.NoError(t, err)
}

// All members are replaced, one after another: a learner comes, is promoted, and the oldest member
// goes. A hold whose client learns the new addresses is kept. One whose client has the learner
// among its endpoints is kept, too, and gets other locks. One whose client knows only members that
// are gone is lost.
func TestReplacingAllMembersCostsNoHoldOfAClientThatLearnsTheirAddresses(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	const ttl = 5 * time.Second
	cluster := etcdtest.Start(t, 3)
	told, untold := cluster.Client(t), cluster.Client(t)
	kept, err := contract.NewSession(t, told, etcdlock.WithTTL(ttl)).Lock(bounded(t), "kept")
	require.NoError(t, err)
	alone, err := etcdlock.NewSession(untold, etcdlock.WithTTL(ttl))
	require.NoError(t, err)
	defer func() { // it cannot tell etcd
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		alone.Close(ended)
	}()
	lost, err := alone.Lock(bounded(t), "lost")
	require.NoError(t, err)

	for i := range 3 {
		learner := cluster.AddLearner(t, 3+i)
		if i == 0 {
			beside := contract.NewSession(t, cluster.Client(t), etcdlock.WithTTL(ttl))
			hold, err := beside.Lock(bounded(t), "beside")
			require.NoError(t, err)
			time.Sleep(2 * ttl)
			require.True(t, hold.Status().Held)
			require.NoError(t, hold.Unlock(bounded(t)))
			for range 20 {
				require.NoError(t, beside.Do(bounded(t), "other",
					func(context.Context) error { return nil }))
			}
			require.NoError(t, beside.Close(bounded(t)))
		}
		cluster.Promote(t, learner)
		require.NoError(t, told.Sync(bounded(t))) // as AutoSyncInterval does
		cluster.Remove(t)
		time.Sleep(ttl / 5)
	}
	receive(t, lost.Context(context.Background()).Done(), "the loss")
	require.ErrorIs(t, lost.Unlock(bounded(t)), etcdlock.ErrLost)
	time.Sleep(2 * ttl)
	require.True(t, kept.Status().Held)
	require.NoError(t, kept.Unlock(bounded(t)))
}

// A client certificate that has expired ends no connection, and no hold. The next connection is
// refused, and the hold is lost.
func TestACertificateThatHasExpiredCountsWithTheNextConnection(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	const ttl = 2 * time.Second
	authority, server := certified(t, nil, time.Hour)
	pool := x509.NewCertPool()
	pool.AddCert(authority.Leaf)
	cluster := etcdtest.Start(t, 1, func(m *integration.Member) { m.ClientTLSInfo = server })
	client, _ := certified(t, &authority, ttl)
	proxy := cluster.Proxy(t, 0)
	s, err := etcdlock.NewSession(cluster.Client(t, etcdtest.Via(proxy), func(cfg *clientv3.Config) {
		cfg.TLS = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{client}}
	}), etcdlock.WithTTL(ttl))
	require.NoError(t, err)
	held, err := s.Lock(bounded(t), "n")
	require.NoError(t, err)

	time.Sleep(time.Until(client.Leaf.NotAfter) + 2*ttl)
	require.True(t, held.Status().Held)
	proxy.Reset() // as a restart of the member does
	receive(t, held.Context(context.Background()).Done(), "the loss")
	require.ErrorIs(t, held.Unlock(bounded(t)), etcdlock.ErrExpired)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	s.Close(ended) // which cannot tell etcd
}

// certified returns a certificate for both ends of a connection that is good for d, of an authority
// or, without one, of its own. It also returns what lets only clients of that authority in.
func certified(
	t *testing.T, by *tls.Certificate, d time.Duration,
) (made tls.Certificate, member *transport.TLSInfo) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "etcd"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: by == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(d),
	}
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	cert := write("cert", "CERTIFICATE", der)
	made = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return made, &transport.TLSInfo{
		CertFile: cert, TrustedCAFile: cert, ClientCertAuth: true,
		KeyFile: write("key", "EC PRIVATE KEY", private),
	}
}
