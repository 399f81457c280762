package etcdlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// Somebody else holds the lock.
func ExampleStart() {
	ctx := context.Background()
	etcd, err := etcdlocktest.Start() // in a test: etcdlocktest.New(t)
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()

	another, err := etcdlock.NewMutex(etcd.Client(), "jobs/import", etcdlock.WithOwner("another"))
	if err != nil {
		log.Fatal(err)
	}
	defer another.Close(ctx)
	if err := another.Lock(ctx); err != nil {
		log.Fatal(err)
	}

	mu, err := etcdlock.NewMutex(etcd.Client(), "jobs/import")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	var locked *etcdlock.LockedError
	ok := errors.As(mu.TryLock(ctx), &locked)
	fmt.Println(ok && locked.Holder.Owner == "another")
	// Output: true
}

// The lease of a Session is lost, and all of its locks with it.
func ExampleEtcd_Expire() {
	ctx := context.Background()
	etcd, err := etcdlocktest.Start() // in a test: etcdlocktest.New(t)
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()

	session, err := etcdlock.NewSession(etcd.Client())
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	mu, err := session.Mutex("jobs/import")
	if err != nil {
		log.Fatal(err)
	}
	err = mu.Do(ctx, func(ctx context.Context) error {
		etcd.Expire(session.Lease())
		<-ctx.Done() // the code under test stops
		return nil
	})
	fmt.Println(errors.Is(err, etcdlock.ErrLost))
	// Output: true
}

// The answer to a release is lost. The key is gone, and Unlock does not say that the hold was
// whole.
func ExampleEtcd_LoseAnswers() {
	ctx := context.Background()
	etcd, err := etcdlocktest.Start() // in a test: etcdlocktest.New(t)
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	client := etcd.Client()

	mu, err := etcdlock.NewMutex(client, "jobs/import")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	etcd.LoseAnswers(client, 1)
	fmt.Println(errors.Is(mu.Unlock(ctx), etcdlock.ErrUnconfirmed))
	// Output: true
}
