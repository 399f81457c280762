//go:build timed

package etcdtest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// within bounds what must come: far above what it takes.
	within = 10 * time.Second

	// moment is how long a test checks that something does not come.
	moment = 100 * time.Millisecond
)

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx
}

func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), moment)
	t.Cleanup(cancel)
	return ctx
}

func put(ctx context.Context, client *clientv3.Client, key string) error {
	_, err := client.Txn(ctx).Then(clientv3.OpPut(key, "v")).Commit()
	return err
}

func exists(t *testing.T, client *clientv3.Client, key string) bool {
	t.Helper()
	resp, err := client.Get(bounded(t), key)
	require.NoError(t, err)
	return resp.Count == 1
}

// begin runs f beside the test. The channel delivers its result.
func begin(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

func result(t *testing.T, pending <-chan error) error {
	t.Helper()
	select {
	case err := <-pending:
		return err
	case <-time.After(within):
		require.FailNow(t, "no result")
		return nil
	}
}

func requirePending(t *testing.T, pending <-chan error) {
	t.Helper()
	select {
	case err := <-pending:
		require.FailNow(t, "not held back", "%v", err)
	case <-time.After(moment):
	}
}

// fakeTB is a test within a test: it records its failures, and finish runs its cleanups.
type fakeTB struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}

func (f *fakeTB) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }

func (f *fakeTB) finish() []string {
	for _, c := range slices.Backward(f.cleanups) {
		c()
	}
	return f.failures
}
