package etcdlockcertmagic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// An authority issues certificates without a network, and knows what it was asked for.
type authority struct {
	key            *ecdsa.PrivateKey
	before         func() error // an order, if it is set
	orders, issued atomic.Int64
	asked          func() // for a time to renew, if it is set
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return &authority{key: key}
}

func (*authority) IssuerKey() string { return "authority" }

func (a *authority) Issue(
	_ context.Context, request *x509.CertificateRequest,
) (*certmagic.IssuedCertificate, error) {
	serial := a.orders.Add(1)
	if a.before != nil {
		if err := a.before(); err != nil {
			return nil, err
		}
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 3, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, request.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	a.issued.Add(1)
	long := time.Now().Add(-time.Minute) // since when the time to renew may be asked for
	return &certmagic.IssuedCertificate{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Metadata:    acme.Certificate{RenewalInfo: renewal(long)},
	}, nil
}

func (a *authority) GetRenewalInfo(
	context.Context, certmagic.Certificate,
) (acme.RenewalInfo, error) {
	if a.asked != nil {
		a.asked()
	}
	return *renewal(time.Now().Add(time.Hour)), nil
}

// renewal tells a client to renew in two months, and to ask again after a time.
func renewal(askAgain time.Time) *acme.RenewalInfo {
	info := &acme.RenewalInfo{UniqueIdentifier: "aki.serial", RetryAfter: &askAgain}
	info.SuggestedWindow.Start = time.Now().AddDate(0, 2, 0)
	info.SuggestedWindow.End = info.SuggestedWindow.Start.Add(time.Hour)
	info.SelectedTime = info.SuggestedWindow.Start
	return info
}

// serve starts the certmagic of one server. What it logs is at logs.
func serve(
	t *testing.T, storage certmagic.Storage, issuer certmagic.Issuer,
) (config *certmagic.Config, logs *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.ErrorLevel)
	logger := zap.New(core)
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
		Logger:           logger,
	})
	t.Cleanup(cache.Stop)
	config = certmagic.New(cache, certmagic.Config{
		Storage: storage, Issuers: []certmagic.Issuer{issuer}, Logger: logger,
		OCSP: certmagic.OCSPConfig{DisableStapling: true},
	})
	return config, logs
}

// all calls f for each of three servers at once.
func all(
	t *testing.T, storage func() certmagic.Storage, issuer certmagic.Issuer,
	f func(*certmagic.Config) error,
) {
	t.Helper()
	var servers sync.WaitGroup
	for range 3 {
		config, _ := serve(t, storage(), issuer)
		servers.Go(func() {
			if err := f(config); err != nil {
				t.Error(err)
			}
		})
	}
	servers.Wait()
}

// Three servers start at once. One obtains the certificate, and all serve it.
func TestOneOfManyServersObtainsTheCertificate(t *testing.T) {
	etcd, below, issuer := etcdlocktest.New(t), files(t), newAuthority(t)
	all(t, func() certmagic.Storage {
		return open(t, etcd, below)
	}, issuer, func(config *certmagic.Config) error {
		if err := config.ManageSync(t.Context(), []string{"example.com"}); err != nil {
			return err
		}
		served, err := config.GetCertificate(&tls.ClientHelloInfo{ServerName: "example.com"})
		if err == nil && served.Leaf.SerialNumber.Int64() != 1 {
			err = errors.New("another certificate")
		}
		return err
	})
	require.EqualValues(t, 1, issuer.orders.Load())
}

type unlocked struct{ certmagic.Storage }

func (unlocked) Lock(context.Context, string) error   { return nil }
func (unlocked) Unlock(context.Context, string) error { return nil }

// The control: without the lock each of the three obtains one.
func TestWithoutALockEachServerObtainsOne(t *testing.T) {
	below, issuer := files(t), newAuthority(t)
	var together sync.WaitGroup
	together.Add(3)
	issuer.before = func() error { together.Done(); together.Wait(); return nil }
	all(t, func() certmagic.Storage {
		return unlocked{below}
	}, issuer, func(config *certmagic.Config) error {
		return config.ObtainCertSync(t.Context(), "example.com")
	})
	require.EqualValues(t, 3, issuer.orders.Load())
}

// a orders, and loses the lock. b orders meanwhile, and is slower than a's order, which fails. When
// a tries again it waits while b has the lock, and then finds the certificate.
func TestAServerThatHasLostTheLockOrdersNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, below, issuer := etcdlocktest.New(t), files(t), newAuthority(t)
		session := contract.NewSession(t, etcd.Client())
		storage, err := etcdlockcertmagic.New(session, "certmagic/", below)
		require.NoError(t, err)
		a, logs := serve(t, storage, issuer)
		b, _ := serve(t, open(t, etcd, below), issuer)
		second := make(chan error, 1)
		issuer.before = func() error {
			if issuer.orders.Load() == 2 {
				time.Sleep(150 * time.Second) // a tries after one minute, and then after two more
				return nil
			}
			go func() { second <- b.ObtainCertSync(t.Context(), "example.com") }()
			synctest.Wait() // b waits in line
			etcd.Expire(session.Lease())
			synctest.Wait() // b orders
			return errors.New("order failed")
		}
		require.NoError(t, a.ObtainCertAsync(t.Context(), "example.com"))
		require.NoError(t, <-second)
		require.EqualValues(t, 2, issuer.orders.Load())
		require.EqualValues(t, 1, issuer.issued.Load())
		waited := logs.FilterMessage("will retry").All()
		require.Len(t, waited, 2)
		require.Contains(t, waited[1].ContextMap()["error"], "unable to renew lock lease")
	})
}

// The loss of a lock whose order is under way does not reach the order. It is logged afterwards,
// and certmagic has no lock left to clean up: it keeps the name of one whose Unlock is an error
// (releaseLock in certmagic's storage.go), for as long as the server lives.
func TestALossLeavesCertmagicNothingToCleanUp(t *testing.T) {
	etcd, issuer := etcdlocktest.New(t), newAuthority(t)
	session := contract.NewSession(t, etcd.Client())
	storage, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
	require.NoError(t, err)
	losses := logged(storage)
	config, logs := serve(t, storage, issuer)
	issuer.before = func() error { etcd.Expire(session.Lease()); return nil }
	require.NoError(t, config.ObtainCertSync(t.Context(), "example.com"))
	require.Empty(t, logs.All())
	tellsALoss(t, losses, "issue_cert_example.com", " lost ")
	core, cleaned := observer.New(zapcore.DebugLevel)
	certmagic.CleanUpOwnLocks(t.Context(), zap.New(core))
	require.Empty(t, cleaned.FilterField(zap.String("lock_key", "issue_cert_example.com")).All())
	require.NoError(t, storage.Lock(t.Context(), "issue_cert_example.com"), "the next order")
	require.NoError(t, storage.Unlock(t.Context(), "issue_cert_example.com"))
}

// Servers that start with the same certificate ask once when to renew it: the others do not wait.
func TestOneOfManyServersAsksWhenToRenew(t *testing.T) {
	etcd, below, issuer := etcdlocktest.New(t), files(t), newAuthority(t)
	first, _ := serve(t, open(t, etcd, below), issuer)
	require.NoError(t, first.ObtainCertSync(t.Context(), "example.com"))

	asks, others := make(chan struct{}), make(chan struct{})
	var asked atomic.Int64
	issuer.asked = func() {
		if asked.Add(1) == 1 {
			close(asks)
			<-others
		}
	}
	done := contract.Async(func() error {
		return first.ManageSync(t.Context(), []string{"example.com"})
	})
	<-asks
	second, _ := serve(t, open(t, etcd, below), issuer)
	require.NoError(t, second.ManageSync(t.Context(), []string{"example.com"}))
	close(others)
	require.NoError(t, <-done)
	require.EqualValues(t, 1, asked.Load())
	require.EqualValues(t, 1, issuer.orders.Load())
}

// A storage whose lists tell how many servers list at once.
type listed struct {
	certmagic.Storage
	inside, most, lists *atomic.Int64
}

func (l listed) List(ctx context.Context, path string, recursive bool) ([]string, error) {
	inside := l.inside.Add(1)
	defer l.inside.Add(-1)
	l.most.Store(max(l.most.Load(), inside))
	l.lists.Add(1)
	time.Sleep(time.Millisecond) // the list takes time
	return l.Storage.List(ctx, path, recursive)
}

// Of servers that clean the storage once a day one at a time does, and the others find it clean.
func TestOneOfManyServersCleansTheStorage(t *testing.T) {
	etcd := etcdlocktest.New(t)
	below := listed{files(t), new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)}
	require.NoError(t, below.Store(t.Context(), "ocsp/staple", []byte("not one")))
	clean := func(storage certmagic.Storage) error {
		return certmagic.CleanStorage(t.Context(), storage, certmagic.CleanStorageOptions{
			Logger: zap.NewNop(), Interval: 24 * time.Hour, OCSPStaples: true,
		})
	}
	var servers sync.WaitGroup
	for range 3 {
		storage := open(t, etcd, below)
		servers.Go(func() {
			if err := clean(storage); err != nil {
				t.Error(err)
			}
		})
	}
	servers.Wait()
	require.EqualValues(t, 1, below.most.Load())
	require.EqualValues(t, 1, below.lists.Load())
	require.False(t, below.Exists(t.Context(), "ocsp/staple"))
}

// A server that ends gives its locks back, as certmagic's own programs do.
func TestAServerThatEndsCleansUpItsLocks(t *testing.T) {
	etcd, below, issuer := etcdlocktest.New(t), files(t), newAuthority(t)
	a, _ := serve(t, open(t, etcd, below), issuer)
	orders, goesOn := make(chan struct{}), make(chan struct{})
	issuer.before = func() error {
		if issuer.orders.Load() == 1 {
			close(orders)
			<-goesOn
		}
		return nil
	}
	first := contract.Async(func() error { return a.ObtainCertSync(t.Context(), "example.com") })
	<-orders
	certmagic.CleanUpOwnLocks(t.Context(), zap.NewNop())
	b, _ := serve(t, open(t, etcd, below), issuer)
	require.NoError(t, b.ObtainCertSync(t.Context(), "example.com"))
	close(goesOn)
	require.NoError(t, <-first)
}
