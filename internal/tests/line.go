package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// Stray is a key below "n/" that is no contender's, of one of the kinds that there are.
func Stray(i int, lease clientv3.LeaseID) (key string, on clientv3.LeaseID) {
	switch id := uuid.NewString(); i % 5 {
	case 0:
		return fmt.Sprint("n/config", i), 0
	case 1:
		return "n/" + id, 0
	case 2:
		return "n/sub/" + id, lease
	case 3:
		return "n/" + strings.ToUpper(id[:35]) + "G", lease
	default:
		return fmt.Sprintf("n/%x", int64(lease)+1_000_000+int64(i)), lease
	}
}

// PutStrays puts n strays, which are newer than all that is there.
func PutStrays(t *testing.T, etcd *fake.Server, n int) (keys []string) {
	t.Helper()
	granted, err := etcd.Client("strays").Grant(context.Background(), 3000)
	require.NoError(t, err)
	for i := range n {
		key, lease := Stray(i, granted.ID)
		require.NoError(t, etcd.PutKey(key, lease))
		keys = append(keys, key)
	}
	return keys
}

// Strangers puts n keys of contenders that have no process, before those of the test.
func Strangers(
	t *testing.T, etcd *fake.Server, name string, n int,
) (keys []string, lease clientv3.LeaseID) {
	t.Helper()
	granted, err := etcd.Client("strangers").Grant(context.Background(), 3000)
	require.NoError(t, err)
	for range n {
		keys = append(keys, name+"/"+uuid.NewString())
		require.NoError(t, etcd.PutKey(keys[len(keys)-1], granted.ID))
	}
	return keys, granted.ID
}

// WaitsBehind makes a Mutex wait behind n others in the line of "n".
func WaitsBehind(t *testing.T, etcd *fake.Server, n int) (
	keys []string, mu *etcdlock.Mutex, in <-chan error,
) {
	t.Helper()
	mu, in, keys = WaitsFor(t, etcd, SessionOf(t, etcd, "a"), "n", n)
	return keys, mu, in
}

// WaitsFor begins to wait for a name that another holds. It returns a channel for the
// result of Lock, and the holder's keys.
func WaitsFor(
	t *testing.T, etcd *fake.Server, s *etcdlock.Session, name string, behind int,
	opts ...etcdlock.Option,
) (mu *etcdlock.Mutex, in <-chan error, keys []string) {
	t.Helper()
	keys, _ = Strangers(t, etcd, name, behind)
	mu = contract.MutexOf(t, s, name, opts...)
	return mu, LockLater(mu), keys
}

// PlaceOf returns the i-th in the line for a name, as an operator sees it.
func PlaceOf(t *testing.T, etcd *fake.Server, name string, i int) etcdlock.Contender {
	t.Helper()
	line, err := etcdlock.Contenders(context.Background(), etcd.Client("operator"), name)
	require.NoError(t, err)
	require.Greater(t, len(line), i)
	return line[i]
}
