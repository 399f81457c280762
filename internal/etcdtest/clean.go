package etcdtest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

// VerifyClean makes t fail unless etcd is clean in the end: no key below the
// prefix, no lease at all, and no goroutine of the library. It looks when t ends,
// before everything that was made earlier is closed, and gives the cleaning some
// time. So it comes after the client and before what uses the client.
func VerifyClean(t testing.TB, client *clientv3.Client, prefix string) {
	t.Helper()
	before := map[string]bool{}
	for id := range ownGoroutines() {
		before[id] = true
	}
	t.Cleanup(func() {
		t.Helper()
		var left string
		if !poll(func() bool {
			left = leftInEtcd(client, prefix) + leftRunning(before)
			return left == ""
		}) {
			t.Errorf("etcdtest: left behind after %v:%s", patience, left)
		}
	})
}

// leftInEtcd lists the keys and leases, or the reason why they are not known.
func leftInEtcd(client *clientv3.Client, prefix string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var left strings.Builder
	keys, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Sprintf("\nkeys: %v", err)
	}
	for _, kv := range keys.Kvs {
		fmt.Fprintf(&left, "\nkey %q, lease %x, created at %d: %s", kv.Key, kv.Lease, kv.CreateRevision, kv.Value)
	}
	leases, err := client.Leases(ctx)
	if err != nil {
		return fmt.Sprintf("\nleases: %v", err)
	}
	for _, lease := range leases.Leases {
		fmt.Fprintf(&left, "\nlease %x", lease.ID)
	}
	return left.String()
}

// leftRunning lists the goroutines of the library that were not there before.
func leftRunning(before map[string]bool) string {
	var left strings.Builder
	for id, stack := range ownGoroutines() {
		if !before[id] {
			fmt.Fprintf(&left, "\n%s", stack)
		}
	}
	return left.String()
}

// ownGoroutines returns the stacks of the goroutines that the library runs or
// started, by their numbers. Servers and clients live on at this point, so that
// goleak would report theirs.
func ownGoroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	own := map[string]string{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "github.com/etcdlock/etcdlock.") {
			id, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
			own[id] = stack
		}
	}
	return own
}

// VerifyNoLeaks makes t fail unless all goroutines that are not there now have
// ended with t. Call it first, so that it looks last, when clusters and clients
// are closed. Not for parallel tests: they see each other's.
func VerifyNoLeaks(t testing.TB) {
	t.Helper()
	now := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		t.Helper()
		var err error
		if !poll(func() bool {
			err = goleak.Find(now)
			return err == nil
		}) {
			t.Errorf("etcdtest: %v", err)
		}
	})
}
