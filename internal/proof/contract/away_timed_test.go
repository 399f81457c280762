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
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// ---- connections

// connects counts the calls of a client's dialer. While away is set the dialer refuses.
type connects struct {
	n    atomic.Int64
	away atomic.Bool
}

func (c *connects) dial(ctx context.Context, address string) (net.Conn, error) {
	c.n.Add(1)
	if c.away.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.UnknownNetworkError("refused")}
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", strings.TrimPrefix(address, "http://"))
}

func (c *connects) with(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(c.dial))
	cfg.Logger = zap.NewNop()
}

// While etcd is away a client connects a few times a second, however many wait. When etcd
// is back all go on at once.
//
//	each Session holds | a member goes | 300 wait | the member is back
func TestACrowdThatWaitsForEtcdConnectsAFewTimesASecond(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	proxy := cluster.Proxy(t, 0)
	var dialed connects
	client := cluster.Client(t, etcdtest.Via(proxy), dialed.with)
	contract.VerifyClean(t, cluster.Client(t), "")
	const sessions, names, away = 3, 100, 4 * time.Second
	ctx := contract.Patient(t)
	var all []*etcdlock.Session
	for range sessions {
		s := contract.NewSession(t, client, etcdlock.WithTTL(15*time.Second))
		require.NoError(t, contract.MutexOf(t, s, "held-"+uuid.NewString()).Lock(ctx))
		all = append(all, s)
	}
	dialed.away.Store(true)
	proxy.Refuse()
	proxy.Reset()
	in := make(chan error, sessions*names)
	for _, s := range all {
		for range names {
			mu := contract.MutexOf(t, s, uuid.NewString())
			go func() { in <- mu.Lock(ctx) }()
		}
	}
	time.Sleep(away / 4) // gRPC's own first attempts
	before, began := dialed.n.Load(), time.Now()
	time.Sleep(away)
	n, took := dialed.n.Load()-before, time.Since(began)
	t.Logf("%d connections in %v", n, took)
	require.LessOrEqual(t, n, int64(took/reconnects)+1, "more than one each %v", reconnects)
	require.Positive(t, n)

	proxy.Heal()
	dialed.away.Store(false)
	back := time.Now()
	require.NoError(t, <-in)
	t.Logf("the first is in %v after etcd is back", time.Since(back))
	for range sessions*names - 1 {
		require.NoError(t, <-in)
	}
}

// reconnects is the time between two connections to an endpoint.
const reconnects = 500 * time.Millisecond

// A Lock that waits for an etcd that cannot be reached says so, with the endpoints and with
// gRPC's own reason, once for all that wait. Its error is ErrUnavailable, also for those
// who wait in the Session's own line.
func TestALockThatWaitsForAnEtcdThatIsAwayTellsWhy(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	refused := listen(t)
	refused.Close()
	secret := tlsServer(t)
	mute := listen(t) // it takes connections, and answers nothing
	worlds := []struct {
		name, endpoint, reason string
		fails                  bool // the connection fails at once
		tls                    *tls.Config
		options                []grpc.DialOption
	}{
		{"refused", refused.Addr().String(), "connection refused", true, nil, nil},
		{
			"no such host", "etcd.invalid:2379", "lookup etcd.invalid: no such host", true,
			nil, []grpc.DialOption{grpc.WithContextDialer(nowhere)},
		},
		{"untrusted certificate", secret, "x509", true, &tls.Config{}, nil},
		{
			"a password in an address", "user:secret@etcd.invalid:2379", "xxxxx@etcd.invalid:2379", true,
			nil, nil,
		},
		{
			"a password in a URL", "http://user:secret@" + refused.Addr().String(), "connection refused",
			true, nil, nil,
		},
		{
			"no answer to the handshake", mute.Addr().String(), "no endpoint of etcd can be reached", false,
			nil, nil,
		},
	}
	for _, ttl := range []time.Duration{time.Second, 15 * time.Second} {
		atOnce(t, len(worlds), func(i int) string {
			return worlds[i].name + ", TTL " + ttl.String()
		}, func(t *testing.T, i int) {
			w := worlds[i]
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{w.endpoint}, TLS: w.tls,
				Logger: zap.NewNop(), DialOptions: w.options})
			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close()) }()
			if w.fails { // however busy the machine is, gRPC then knows why before a call asks
				conn := client.ActiveConnection()
				conn.Connect()
				for state := conn.GetState(); state != connectivity.TransientFailure; state = conn.GetState() {
					require.True(t, conn.WaitForStateChange(bounded(t), state))
				}
			}
			told := contract.NewReports()
			s, err := etcdlock.NewSession(client, append(told.Options(), etcdlock.WithTTL(ttl))...)
			require.NoError(t, err)
			defer func() { _ = s.Close(context.Background()) }()

			const waiters = 30
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			failed := make(chan error, waiters)
			for i := range waiters {
				mu := contract.MutexOf(t, s, []string{"a", "b", "c"}[i%3])
				call := []func(context.Context) error{mu.Lock, func(ctx context.Context) error {
					return mu.Do(ctx, func(context.Context) error { return nil })
				}}[i/3%2]
				go func() { failed <- call(ctx) }()
			}
			receive(t, told.First, "the hook")
			cancel()
			for range waiters {
				err := receive(t, failed, "the error")
				require.ErrorIs(t, err, etcdlock.ErrUnavailable)
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorContains(t, err, w.reason)
				require.ErrorContains(t, err, "no answer from etcd")
				require.NotContains(t, err.Error(), "secret")
			}
			errs, _ := told.Hooks()
			require.Len(t, errs, 1, "once for all that wait")
			require.ErrorContains(t, errs[0], w.reason)
			require.ErrorIs(t, errs[0], etcdlock.ErrUnavailable)
			lines := told.Lines()
			require.Len(t, lines, 1)
			t.Log(lines[0])
			require.Contains(t, lines[0], w.reason)
			shown := strings.Replace(w.endpoint, "user:secret", "xxxxx", 1)
			require.Contains(t, lines[0], "endpoints=["+shown+"]")
			require.NotContains(t, lines[0]+errs[0].Error(), "secret")
			require.Contains(t, lines[0], "level=WARN")
		})
	}
}

// A wait that is too short for a report has the reason in its error all the same, once gRPC
// has failed to connect.
func TestAShortWaitForARefusedEtcdIsToldTheReason(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	refused := listen(t)
	refused.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{refused.Addr().String()},
		Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	for name, try := range map[string]func(*etcdlock.Mutex, context.Context) error{
		"Lock": (*etcdlock.Mutex).Lock, "TryLock": (*etcdlock.Mutex).TryLock,
	} {
		mu, err := etcdlock.NewMutex(client, "n")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err = try(mu, ctx)
		require.ErrorIs(t, err, etcdlock.ErrUnavailable, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.Regexp(t,
			`^etcdlock: lock "n": no answer from etcd: .*connection refused.*: context deadline exceeded$`,
			err.Error())
		_ = mu.Close(ctx)
	}
}

// A Lock behind a connection that has died without a sign waits, and one line of the log names the
// pings. With pings the client makes another connection, and the Lock gets in.
func TestALockBehindADeadConnectionIsToldOfThePings(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	pings := func(cfg *clientv3.Config) {
		cfg.DialKeepAliveTime, cfg.DialKeepAliveTimeout = 10*time.Second, 3*time.Second
	}
	clients := [][]contract.ClientOption{{}, {pings}}
	atOnce(t, len(clients), func(i int) string { return []string{"without", "with"}[i] },
		func(t *testing.T, i int) {
			proxy := cluster.Proxy(t, 0)
			client := cluster.Client(t, append(clients[i], etcdtest.Via(proxy))...)
			told := contract.NewReports()
			mu := contract.MutexOf(t, contract.NewSession(t, client, told.Options()...), uuid.NewString())
			require.NoError(t, mu.Lock(contract.Patient(t)))
			require.NoError(t, mu.Unlock(contract.Patient(t)))
			proxy.Lose()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			err := mu.Lock(ctx)
			lines := strings.Join(told.Lines(), "")
			t.Log(lines)
			if i == 1 {
				require.NoError(t, err)
				require.NotContains(t, lines, "DialKeepAliveTime")
				return
			}
			require.ErrorIs(t, err, etcdlock.ErrUnavailable)
			require.Equal(t, 1, strings.Count(lines, "DialKeepAliveTime"))
			proxy.Heal()
		})
}

// nowhere dials a host that has no address, without a lookup.
func nowhere(context.Context, string) (net.Conn, error) {
	return nil, &net.DNSError{Err: "no such host", Name: "etcd.invalid", IsNotFound: true}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// tlsServer returns the address of a server whose certificate nobody trusts.
func tlsServer(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	l := tls.NewListener(listen(t), &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"h2"},
	})
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}
