package contract_test

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock"
)

// startEtcd starts an etcd of one member inside the test's process, and a client of
// it. Both end with the test; stop ends the etcd earlier.
func startEtcd(t testing.TB) (client *clientv3.Client, stop func()) {
	t.Helper()
	// Only this machine can reach it, and the kernel chooses the port.
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = loopback, loopback
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 10, 100 // so that TTLs of 1 s are granted as such
	cfg.UnsafeNoFsync = true             // the data is thrown away
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())

	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(etcd.Close) // a second Close would panic
	t.Cleanup(stop)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(20 * time.Second):
		t.Fatal("etcd is not ready after 20 s")
	}
	client, err = clientv3.New(clientv3.Config{
		Endpoints: []string{etcd.Clients[0].Addr().String()},
		Logger:    zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, stop
}

// untilTold stands for the code under test. It works until its context ends.
func untilTold(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Another process holds the lock.
func TestTheJobIsSkippedWhileAnotherRunsIt(t *testing.T) {
	client, _ := startEtcd(t)
	another, err := etcdlock.New(client, "jobs/import", etcdlock.WithOwner("another"))
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close(context.Background())
	if err := another.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}

	mu, err := etcdlock.New(client, "jobs/import")
	if err != nil {
		t.Fatal(err)
	}
	defer mu.Close(context.Background())
	if err := mu.TryDo(t.Context(), untilTold); !errors.Is(err, etcdlock.ErrLocked) {
		t.Fatalf("the job ran beside another: %v", err)
	}
}

// An operator deletes the key of the holder.
func TestTheJobStopsWhenItsLockIsBroken(t *testing.T) {
	client, _ := startEtcd(t)
	mu, err := etcdlock.New(client, "jobs/import")
	if err != nil {
		t.Fatal(err)
	}
	defer mu.Close(context.Background())

	err = mu.Do(t.Context(), func(ctx context.Context) error {
		line, err := etcdlock.Contenders(ctx, client, mu.Name())
		if err != nil {
			return err
		}
		if err := etcdlock.Break(ctx, client, line[0]); err != nil {
			return err
		}
		return untilTold(ctx) // it is told within about a second
	})
	if !errors.Is(err, etcdlock.ErrLost) {
		t.Fatalf("nobody noticed: %v", err)
	}
}

// The lease of a Session is revoked, and with it all of its locks.
func TestTheJobStopsWhenTheLeaseIsRevoked(t *testing.T) {
	client, _ := startEtcd(t)
	session, err := etcdlock.NewSession(client)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(context.Background())
	mu, err := session.Mutex("jobs/import")
	if err != nil {
		t.Fatal(err)
	}

	err = mu.Do(t.Context(), func(ctx context.Context) error {
		if _, err := client.Revoke(ctx, session.Lease()); err != nil {
			return err
		}
		return untilTold(ctx)
	})
	if !errors.Is(err, etcdlock.ErrLost) {
		t.Fatalf("nobody noticed: %v", err)
	}
	if err := mu.Do(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Fatalf("the Session cannot be used any more: %v", err)
	}
}

// etcd goes away. The hold ends by the local clock, a safety margin before the TTL.
func TestTheJobStopsWhenEtcdIsGone(t *testing.T) {
	client, stop := startEtcd(t)
	mu, err := etcdlock.New(client, "jobs/import", etcdlock.WithTTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		mu.Close(ctx) // ErrUnconfirmed: there is nobody to confirm it
	}()

	err = mu.Do(t.Context(), func(ctx context.Context) error {
		stop()
		return untilTold(ctx)
	})
	if !errors.Is(err, etcdlock.ErrLost) {
		t.Fatalf("nobody noticed: %v", err)
	}
}

// A doer is all that the code under test asks of a lock. *etcdlock.Mutex is one.
type doer interface {
	Do(ctx context.Context, fn func(ctx context.Context) error) error
}

// A fakeLock is a doer without etcd. It is always free, and is lost after a time.
type fakeLock struct{ lostAfter time.Duration }

func (f fakeLock) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(etcdlock.ErrUnlocked)
	lost := &etcdlock.LostError{Name: "fake", Token: 1, Reason: errors.New("for the test")}
	defer time.AfterFunc(f.lostAfter, func() { end(lost) }).Stop()
	err := fn(ctx)
	if errors.Is(context.Cause(ctx), etcdlock.ErrLost) {
		err = errors.Join(err, lost)
	}
	return err
}

// importRows is code that holds a lock, with a duration of its own: a row an hour.
func importRows(ctx context.Context, lock doer, rows int) (done int, err error) {
	err = lock.Do(ctx, func(ctx context.Context) error {
		for ; done < rows; done++ {
			select {
			case <-time.After(time.Hour):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	return done, err
}

// With the fake there is no network, and hours pass at once.
func TestTheImportStopsAtTheNextRowOnceItsLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done, err := importRows(t.Context(), fakeLock{lostAfter: 150 * time.Minute}, 10)
		if done != 2 || !errors.Is(err, etcdlock.ErrLost) {
			t.Fatalf("%d rows, %v", done, err)
		}
	})
}

var _ doer = (*etcdlock.Mutex)(nil)
