package etcdlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// runImport is the code under test: a job that runs under a lock, and stops when its context ends.
func runImport(
	ctx context.Context, client *clientv3.Client, job func(context.Context) error,
) error {
	mu, err := etcdlock.NewMutex(client, "jobs/import")
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	return mu.Do(ctx, job)
}

// untilTold works until its context ends.
func untilTold(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// An operator deletes the key of the holder.
func TestTheJobStopsWhenItsLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		err := runImport(t.Context(), client, func(ctx context.Context) error {
			line, _ := etcdlock.Contenders(ctx, client, "jobs/import")
			etcd.Delete(line[0].Key) // as an operator does
			return untilTold(ctx)
		})
		if !errors.Is(err, etcdlock.ErrLost) {
			t.Fatalf("nobody noticed: %v", err)
		}
	})
}

// etcd does not answer. The hold ends by the local clock, a safety margin before the TTL.
func TestTheJobStopsWhenEtcdIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		err := runImport(t.Context(), etcd.Client(), func(ctx context.Context) error {
			thaw := etcd.Freeze()
			defer thaw()
			return untilTold(ctx)
		})
		if !errors.Is(err, etcdlock.ErrExpired) {
			t.Fatalf("nobody noticed: %v", err)
		}
	})
}

// Another process holds the lock.
func TestTheJobIsSkippedWhileAnotherRunsIt(t *testing.T) {
	etcd := etcdlocktest.New(t)
	err := runImport(t.Context(), etcd.Client(), func(ctx context.Context) error {
		another, err := etcdlock.NewMutex(etcd.Client(), "jobs/import")
		if err != nil {
			return err
		}
		defer another.Close(ctx)
		return another.TryLock(ctx)
	})
	if !errors.Is(err, etcdlock.ErrLocked) {
		t.Fatalf("two ran at once: %v", err)
	}
}

// In virtual time hours pass at once.
func TestThreeHoursOfAMinutelyJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := etcdlocktest.New(t).Client()
		for range 180 {
			time.Sleep(time.Minute)
			if err := runImport(t.Context(), client, context.Cause); err != nil {
				t.Error(err)
			}
		}
	})
}

// runInBatches is the code under test: a recall ends it between two batches.
func runInBatches(
	ctx context.Context, client *clientv3.Client, batch func(context.Context) error,
) error {
	mu, err := etcdlock.NewMutex(client, "jobs/import", etcdlock.WithRecall(time.Minute))
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	return mu.Do(ctx, func(ctx context.Context) error {
		for {
			if err := batch(ctx); err != nil {
				return err
			}
			select {
			case <-etcdlock.RecallFrom(ctx):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			default:
			}
		}
	})
}

// recall recalls the holder of the job's lock.
func recall(ctx context.Context, client *clientv3.Client, grace time.Duration) error {
	line, err := etcdlock.Contenders(ctx, client, "jobs/import")
	if err != nil || len(line) == 0 {
		return err
	}
	return etcdlock.Recall(ctx, client, line[0], etcdlock.RecallRequest{By: "a test", Grace: grace})
}

// Between two batches: its work was protected to the end, so there is no error.
func TestTheJobGivesWayWhenItIsRecalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, batches := etcdlocktest.New(t).Client(), 0
		err := runInBatches(t.Context(), client, func(ctx context.Context) error {
			if batches++; batches == 3 {
				if err := recall(ctx, client, 30*time.Second); err != nil {
					return err
				}
			}
			time.Sleep(10 * time.Second) // the work
			return ctx.Err()
		})
		if err != nil || batches != 3 {
			t.Fatalf("it went on for %d batches: %v", batches, err)
		}
	})
}

// In the middle of a batch, if that takes longer than the grace.
func TestTheJobStopsWhenTheGraceIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := etcdlocktest.New(t).Client()
		err := runInBatches(t.Context(), client, func(ctx context.Context) error {
			if err := recall(ctx, client, 30*time.Second); err != nil {
				return err
			}
			return untilTold(ctx)
		})
		if !errors.Is(err, etcdlock.ErrRecalled) || errors.Is(err, etcdlock.ErrLost) {
			t.Fatalf("it was not told: %v", err)
		}
	})
}
