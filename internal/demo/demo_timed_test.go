//go:build timed

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/proof/embedded"
)

// These keep leases of two and of five seconds, or wait for the end of one.

func TestCrashedHolderBlocksTheOthersForAboutTheTTL(t *testing.T) {
	stdout := demoEnds(t, exitGood, "-crash", "-workers", "2", "-requests", "30", "-stock", "20")
	require.Regexp(t, `\ncrashed holder blocked the others for \d\.\d\ds \(TTL 2s\)\n`, stdout)
	require.Regexp(t, `\nworker \d \(pid \d+\) .* killed\n`, stdout)
	requireRow(t, stdout, "sold", "20")
	requireRow(t, stdout, "refused", "10")
}

func TestRelayMovesTheWorkWithoutGapOrOverlap(t *testing.T) {
	stdout := demoEnds(t, exitGood, "-recall", "-workers", "3")
	// When the work ends, waiters may still get in, for a moment.
	require.Regexp(t, `(?m)^holds +[678] `, stdout)
	requireRow(t, stdout, "overlaps", "0")
	requireRow(t, stdout, "steps lost", "0")
	requireRow(t, stdout, "steps done twice", "0")
	requireRow(t, stdout, "recalls", "5  5 followed")
	requireRow(t, stdout, "keys left in etcd", "0")
	require.Contains(t, stdout, "\nOK: the work moved 5 times")
}

// Something listens, and says nothing.
func TestSilentEtcdIsAnErrorAndNotAHang(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	status, _, stderr := demo(t, "-endpoints", l.Addr().String())
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "no answer within 5s")
}

// A cluster that is not the demo's own, with users: the demo works for a user that may only
// write below the prefix, and leaves nothing behind.
func TestClusterIsLeftAsItWasFound(t *testing.T) {
	cfg := embedded.Config(t.TempDir())
	cfg.BcryptCost = 4 // the least: this tests no passwords
	etcd, err := embedded.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	endpoint := etcd.Clients[0].Addr().String()
	root := enableAuth(t, endpoint)
	args := []string{"-endpoints", endpoint, "-user", "shop", "-password", "shop-secret"}

	t.Run("after a sale", func(t *testing.T) {
		stdout := demoEnds(t, exitGood, append(args, "-requests", "40", "-stock", "30")...)
		require.Contains(t, stdout, endpoint)
		requireNothingIn(t, root)
	})
	t.Run("after a crash", func(t *testing.T) {
		status, _, _ := demo(t, append(args, "-crash", "-requests", "10", "-stock", "10")...)
		require.Equal(t, exitGood, status)
		requireNothingIn(t, root)
	})
	t.Run("after a relay", func(t *testing.T) {
		demoEnds(t, exitGood, append(args, "-recall", "-workers", "2")...)
		requireNothingIn(t, root)
	})
	t.Run("after an interrupt", func(t *testing.T) {
		ctx, interrupt := context.WithCancelCause(t.Context())
		stdout := onText{text: "requests answered", do: func() { interrupt(errors.New("enough")) }}
		var stderr strings.Builder
		status := run(ctx, append(args, "-requests", "10000", "-stock", "10000"), &stdout, &stderr)
		require.Equal(t, exitInterrupted, status)
		require.Contains(t, stderr.String(), "enough, ")
		requireNothingIn(t, root)
	})
	t.Run("with a wrong password", func(t *testing.T) {
		status, _, stderr := demo(t, append(args, "-password", "wrong")...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, "authentication failed")
		require.NotContains(t, stderr, "wrong")
	})
}

// enableAuth creates the user shop, who may use etcdlock-demo/ only, and
// returns a client that may do anything.
func enableAuth(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	ctx := t.Context()
	open, err := cluster{Endpoints: []string{endpoint}}.client()
	require.NoError(t, err)
	defer open.Close()
	do := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	do(open.UserAdd(ctx, "root", "root-secret"))
	do(open.UserGrantRole(ctx, "root", "root"))
	do(open.RoleAdd(ctx, "seller"))
	do(open.RoleGrantPermission(ctx, "seller", lockPrefix, clientv3.GetPrefixRangeEnd(lockPrefix),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	do(open.UserAdd(ctx, "shop", "shop-secret"))
	do(open.UserGrantRole(ctx, "shop", "seller"))
	do(open.AuthEnable(ctx))

	root, err := cluster{Endpoints: []string{endpoint}, User: "root", Password: "root-secret"}.client()
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

func requireNothingIn(t *testing.T, client *clientv3.Client) {
	t.Helper()
	keys, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, keys.Kvs)
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases)
}

// onText is a writer that calls do when text first passes through it.
type onText struct {
	text string
	do   func()
	once sync.Once
}

var _ io.Writer = (*onText)(nil)

func (w *onText) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.once.Do(w.do)
	}
	return len(p), nil
}
