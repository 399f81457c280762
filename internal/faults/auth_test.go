package faults

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

// lasting is a TTL that the noise of a loaded machine does not eat up. It is for rows in
// which nothing may be lost.
const lasting = 5 * time.Second

// S23. Auth tokens end all the time, and no hold, wait or call ends with them.
//
//	a holds, b waits, d locks and unlocks another lock | five lives of a token pass |
//	a unlocks, b gets in
func TestS23TokensThatEndEndNothingElse(t *testing.T) {
	t.Parallel()
	const lives, life = 5, 2 * time.Second
	kinds := []struct {
		name  string
		token func(tr *trial) string
		pause time.Duration // between the cycles of d
		ends  func(tr *trial, root *clientv3.Client)
	}{
		// A token in use lives on. So d does not use it for its life and one step of etcd's
		// broom.
		{"simple tokens", simpleTokens, life + 1200*time.Millisecond, nil},
		// A token in use ends only if it is taken away.
		{"simple tokens, taken away while in use", simpleTokens, life, takeTokensAway},
		{"JWT tokens", webTokens, 50 * time.Millisecond, nil},
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			prove(t, row{
				id: "S23", name: kind.name, quick: 2,
				fault: fmt.Sprintf("auth with %s; they live %v; %d lives", kind.name, life, lives),
				must:  "no loss, no error; the waiter waits, and gets in",
			}, func(tr *trial) {
				auth := kind.token(tr)
				c := etcdtest.Start(tr, 1, func(m *integration.Member) {
					m.AuthToken, m.TokenTTL = auth, uint(life/time.Second)
				})
				enableAuth(tr, c,
					grants{tr.name: clientv3.PermReadWrite, tr.name + "-of-d": clientv3.PermReadWrite})
				root := c.Client(tr, as("root"))
				var held, cycled refusals
				a := tr.party("a", c, lasting, as("tenant"), held.counted)
				b := tr.party("b", c, 10*ttl, as("tenant"), held.counted)
				// With so long a TTL, d sends nothing between its cycles.
				d, err := opens(tr.side, c.Client(tr, as("tenant"), cycled.counted), tr.name+"-of-d",
					"d", 5*patience)
				require.NoError(tr, err)
				defer d.Close(tr.bounded(patience))

				a.locks()
				next := b.waits()
				ctx := tr.bounded(lives*(life+slack) + patience)
				cycles := 0
				for began := now(); cycled.n.Load() < lives || now() < began+lives*life; cycles++ {
					tr.must(ctx.Err() == nil, "%d tokens have ended in %v", cycled.n.Load(), now()-began)
					if kind.ends != nil {
						kind.ends(tr, root)
					}
					err := a.calls("d's Lock", patience, func() error { return d.Lock(ctx) })
					tr.must(err == nil, "d: Lock: %v", err)
					err = a.calls("d's Unlock", patience, func() error { return d.Unlock(ctx) })
					tr.must(err == nil, "d: Unlock: %v", err)
					next.goesOnWaiting(kind.pause)
				}
				tr.figures.add("cycles", cycles)
				tr.figures.add("tokens that ended between cycles", int(cycled.n.Load()))
				tr.figures.add("tokens that ended under holder and waiter", int(held.n.Load()))
				a.stillHolds(root)
				a.unlocks()
				next.getsIn(slack)
				b.stillHolds(root)
				b.unlocks()
			})
		})
	}
}

func simpleTokens(*trial) string { return "simple" }

// webTokens makes a key, and returns the option that makes a member sign with it.
func webTokens(tr *trial) string {
	tr.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tr, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(tr, err)
	file := writePEM(tr, tr.TempDir(), "jwt.pem", "EC PRIVATE KEY", der)
	return "jwt,sign-method=ES256,ttl=2s,priv-key=" + file
}

// takeTokensAway ends all tokens of the tenant, as etcd does when a password is set.
func takeTokensAway(tr *trial, root *clientv3.Client) {
	tr.Helper()
	_, err := root.UserChangePassword(tr.bounded(patience), "tenant", password("tenant"))
	require.NoError(tr, err)
}

// grants are the permissions of the tenant below the names of locks.
type grants map[string]authpb.Permission_Type

// enableAuth makes two users: root, who may do everything, and tenant.
func enableAuth(tr *trial, c *etcdtest.Cluster, tenant grants) {
	tr.Helper()
	ctx := tr.bounded(patience)
	admin := c.Client(tr)
	for _, user := range []string{"root", "tenant"} {
		contract.AddUser(ctx, tr, admin, user, password(user))
	}
	for name, what := range tenant {
		prefix := name + "/"
		_, err := admin.RoleGrantPermission(ctx, "tenant", prefix, clientv3.GetPrefixRangeEnd(prefix),
			clientv3.PermissionType(what))
		require.NoError(tr, err)
	}
	_, err := admin.AuthEnable(ctx)
	require.NoError(tr, err)
}

func password(user string) string { return "secret of " + user }

func as(user string) contract.ClientOption {
	return func(cfg *clientv3.Config) { cfg.Username, cfg.Password = user, password(user) }
}

// refusals counts the answers that say that a token is no longer valid.
type refusals struct{ n atomic.Int32 }

func (r *refusals) counted(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if is := rpctypes.Error(err); errors.Is(is, rpctypes.ErrInvalidAuthToken) ||
				errors.Is(is, rpctypes.ErrAuthOldRevision) {
				r.n.Add(1)
			}
			return err
		}))
}

// S24. Readwrite on the prefix of a lock is all that a user needs for it.
//
//	a locks, b waits, d does not get it by TryLock | a's lease is renewed, and its key
//	audited, for longer than the TTL | a unlocks, b gets in | all close: nothing is left
func TestS24ARoleOnThePrefixIsEnough(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S24", name: "a role on the prefix only", quick: 4,
		fault: "a user who may read and write below the lock's prefix, and nothing else",
		must:  "Lock, waiting, TryLock, renewals (for 1.5 TTLs) and Unlock work; after Close no key and no lease is left",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		enableAuth(tr, c, grants{tr.name: clientv3.PermReadWrite})
		root := c.Client(tr, as("root"))
		a := tr.party("a", c, lasting, as("tenant"))
		// With so long a TTL, b and d renew nothing: only a's renewals are needed.
		b, d := tr.party("b", c, 10*ttl, as("tenant")), tr.party("d", c, 10*ttl, as("tenant"))

		err := a.calls("TryLock", patience, func() error {
			return a.tries(tr.bounded(patience), "TryLock")
		})
		tr.must(err == nil, "TryLock of a free lock: %v", err)
		a.unlocks()
		a.locks()
		next := b.waits()
		err = d.calls("TryLock", patience, func() error {
			return d.tries(tr.bounded(patience), "TryLock")
		})
		tr.must(side.Taken(err), "TryLock of a lock that is taken: %v", err)
		next.goesOnWaiting(3 * lasting / 2)
		a.stillHolds(root)
		a.unlocks()
		next.getsIn(slack)
		b.unlocks()
		for _, p := range []*party{a, b, d} {
			err := p.calls("Close", patience, func() error { return p.lock.Close(tr.bounded(patience)) })
			tr.must(err == nil, "%s: Close: %v", p.who, err)
		}
		tr.must(tr.keys(root) == 0, "%d keys are left", tr.keys(root))
		tr.must(tr.leases(root) == 0, "%d leases are left", tr.leases(root))
	})
}

// leases is how many leases there are.
func (tr *trial) leases(admin *clientv3.Client) int {
	tr.Helper()
	resp, err := admin.Leases(tr.bounded(patience))
	require.NoError(tr, err)
	return len(resp.Leases)
}

// S24. A call that the user's permissions do not allow fails at once with an error of
// permission, and is not tried again.
//
//	a holds what it may | it tries what it may not, or only half | an error | nothing more
//	is sent, and nothing is there | a still holds
func TestS24OutsideOfTheRoleEveryCallIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	const calls = 8
	prove(t, row{
		id: "S24", name: "outside the role", quick: 4,
		fault: "Lock and TryLock of names below which the user may do nothing, only read, or only write",
		must:  "an error of permission at once (<= 1 s); 1 Txn per call, then and in the second after; no key and no lease left; a hold inside is not harmed",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		shown, dropped := tr.name+"-shown", tr.name+"-dropped"
		enableAuth(tr, c, grants{tr.name: clientv3.PermReadWrite, shown: clientv3.PermRead,
			dropped: clientv3.PermWrite})
		root := c.Client(tr, as("root"))
		counter := contract.NewCounter()
		a := tr.party("a", c, 10*ttl, as("tenant"))
		a.locks()

		refused := c.Client(tr, as("tenant"), contract.With(counter))
		var locks []*lock
		for _, name := range []string{tr.name + "-theirs", "lock", shown, dropped} {
			for _, verb := range []string{"Lock", "TryLock"} {
				l, err := opens(tr.side, refused, name, "a", 10*ttl)
				require.NoError(tr, err)
				locks = append(locks, l)
				call := l.Lock
				if verb == "TryLock" {
					call = l.TryLock
				}
				asked := now()
				err = a.calls(verb, patience, func() error { return call(tr.bounded(patience)) })
				took := now() - asked
				tr.figures.longest("time until refused", took)
				tr.must(errors.Is(err, rpctypes.ErrPermissionDenied), "%s of %s: %v", verb, name, err)
				tr.must(took <= time.Second, "%s of %s was refused after %v", verb, name, took)
			}
		}
		time.Sleep(time.Second) // nothing announces what must not come
		sent := counter.Counts()
		tr.figures.add("calls", calls)
		tr.figures.add("Txns", sent.Of("Txn"))
		tr.must(sent.Of("Txn") == calls && sent.Of("LeaseGrant") == calls, "sent for %d calls: %v",
			calls, sent)
		for _, l := range locks {
			err := a.calls("Close", patience, func() error { return l.Close(tr.bounded(patience)) })
			tr.must(err == nil, "Close: %v", err)
		}
		left, err := root.Get(tr.bounded(patience), "\x00", clientv3.WithFromKey(),
			clientv3.WithCountOnly())
		require.NoError(tr, err)
		tr.must(left.Count == 1, "%d keys are left beside a's", left.Count-1)
		tr.must(tr.leases(root) == 1, "%d leases are left beside a's", tr.leases(root)-1)
		a.stillHolds(root)
		a.unlocks()
	})
}

// S25. A client that TLS keeps out gets an error within its context, and does not besiege
// etcd.
//
//	a, which etcd does not let in, calls for 3 s | an error | a second later nothing more is
//	called | b, which has a certificate, locks
func TestS25AClientThatTLSKeepsOutHasAnErrorWithinItsContext(t *testing.T) {
	t.Parallel()
	const (
		bound = 3 * time.Second
		rate  = 5 // a second: each attempt at a lease makes gRPC connect
		most  = rate * int(bound/time.Second)
	)
	for _, lacks := range []string{"wrong CA", "no client certificate",
		"a client certificate of a wrong CA"} {
		t.Run(lacks, func(t *testing.T) {
			prove(t, row{
				id: "S25", name: lacks, quick: 4,
				fault: "mutual TLS; the client has: " + lacks,
				must: fmt.Sprintf("Lock and TryLock with a ctx of %v: an error within it (1 s of slack); "+
					"<= %d connections and calls a second, no call any more a second after",
					bound, rate),
			}, func(tr *trial) {
				ca, wrong := newAuthority(tr), newAuthority(tr)
				c := etcdtest.Start(tr, 1, func(m *integration.Member) { m.ClientTLSInfo = ca.server(tr) })
				has := &tls.Config{RootCAs: ca.pool(), Certificates: []tls.Certificate{ca.issue(tr)}}
				switch lacks {
				case "wrong CA":
					has.RootCAs = wrong.pool()
				case "no client certificate":
					has.Certificates = nil
				default:
					has.Certificates = []tls.Certificate{wrong.issue(tr)}
				}
				proxy := c.Proxy(tr, 0)
				counter := contract.NewCounter()
				a := tr.party("a", c, ttl, func(cfg *clientv3.Config) {
					cfg.TLS = has
				}, etcdtest.Via(proxy), contract.With(counter))
				b := tr.party("b", c, ttl)

				verb := []string{"Lock", "TryLock"}[tr.i%2]
				ctx, cancel := context.WithTimeout(context.Background(), bound)
				defer cancel()
				asked := now()
				err := a.calls(verb, bound+slack, func() error { return a.tries(ctx, verb) })
				took, made, called := now()-asked, proxy.Accepted(), counter.Counts().Total()
				tr.figures.longest("time until the error", took)
				tr.figures.add("connections, of all trials", made)
				tr.figures.add("calls, of all trials", called)
				tr.must(err != nil, "%s said nil", verb)
				tr.must(took <= bound+time.Second, "%s returned %v after its context", verb, took-bound)
				tr.must(made > 0, "etcd has not been asked")
				tr.must(made <= most && called <= most, "%s made %d connections and %d calls", verb,
					made, called)
				// Nothing announces what must not come. One attempt may be under way.
				time.Sleep(time.Second)
				before := counter.Counts()
				time.Sleep(time.Second)
				tr.must(counter.Since(before).Total() == 0, "calls a second after %s has returned: %v", verb,
					counter.Since(before))
				after := proxy.Accepted() - made
				tr.figures.add("connections in the 2 s after", after)
				tr.must(after <= 2*rate, "%d connections in the 2 s after %s has returned", after, verb)
				b.locks()
				b.unlocks()
			})
		})
	}
}

// An authority issues certificates for servers and clients on the loopback interface.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(tr *trial) *authority {
	tr.Helper()
	a := &authority{}
	a.cert, a.key = a.sign(tr, &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true})
	return a
}

// sign makes a key and a certificate for it, signed by a or, if a has none yet, by itself.
func (a *authority) sign(tr *trial, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	tr.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tr, err)
	c.SerialNumber = big.NewInt(now().Nanoseconds())
	c.Subject = pkix.Name{CommonName: "etcdlock's tests"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(tr, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(tr, err)
	return cert, key
}

func (a *authority) issue(tr *trial) tls.Certificate {
	tr.Helper()
	cert, key := a.sign(tr, &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// server makes a member let in only clients with a certificate of a.
func (a *authority) server(tr *trial) *transport.TLSInfo {
	tr.Helper()
	dir, cert := tr.TempDir(), a.issue(tr)
	key, err := x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	require.NoError(tr, err)
	return &transport.TLSInfo{
		CertFile:       writePEM(tr, dir, "server.crt", "CERTIFICATE", cert.Certificate[0]),
		KeyFile:        writePEM(tr, dir, "server.key", "EC PRIVATE KEY", key),
		TrustedCAFile:  writePEM(tr, dir, "ca.crt", "CERTIFICATE", a.cert.Raw),
		ClientCertAuth: true,
	}
}

func writePEM(tr *trial, dir, name, kind string, der []byte) (path string) {
	tr.Helper()
	path = filepath.Join(dir, name)
	require.NoError(tr,
		os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}
