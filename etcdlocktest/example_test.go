package etcdlocktest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// Somebody else holds the lock.
func ExampleNew() {
	t := &reporter{} // stands for a test's *testing.T
	defer t.end()
	ctx := context.Background()
	etcd := etcdlocktest.New(t)

	another, err := etcdlock.New(etcd.Client(), "jobs/import", etcdlock.WithOwner("another"))
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close(ctx)
	if err := another.Lock(ctx); err != nil {
		t.Fatal(err)
	}

	mu, err := etcdlock.New(etcd.Client(), "jobs/import")
	if err != nil {
		t.Fatal(err)
	}
	defer mu.Close(ctx)
	locked, ok := errors.AsType[*etcdlock.LockedError](mu.TryLock(ctx))
	fmt.Println(ok && locked.Holder.Owner == "another")
	// Output: true
}

// The lease of a Session is lost, and all of its locks with it.
func ExampleEtcd_Expire() {
	t := &reporter{} // stands for a test's *testing.T
	defer t.end()
	ctx := context.Background()
	etcd := etcdlocktest.New(t)

	session, err := etcdlock.NewSession(etcd.Client())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(ctx)
	mu, err := session.Mutex("jobs/import")
	if err != nil {
		t.Fatal(err)
	}
	err = mu.Do(ctx, func(ctx context.Context) error {
		etcd.Expire(session.Lease())
		<-ctx.Done() // the code under test stops
		return nil
	})
	fmt.Println(errors.Is(err, etcdlock.ErrLost))
	// Output: true
}

// The answer to a release is lost, and it is confirmed all the same.
func ExampleEtcd_LoseAnswers() {
	t := &reporter{} // stands for a test's *testing.T
	defer t.end()
	ctx := context.Background()
	etcd := etcdlocktest.New(t)
	client := etcd.Client()

	mu, err := etcdlock.New(client, "jobs/import")
	if err != nil {
		t.Fatal(err)
	}
	defer mu.Close(ctx)
	if err := mu.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	etcd.LoseAnswers(client, 1)
	fmt.Println(mu.Unlock(ctx))
	// Output: <nil>
}
