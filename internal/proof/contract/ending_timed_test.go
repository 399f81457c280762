//go:build timed

package contract_test

import (
	"context"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// Auth is enabled while a client without a user holds a lock. etcd refuses its requests
// from then on, and the loss says so.
func TestALossByARefusalSaysWhatEtcdRefused(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	ctx := contract.Patient(t)
	mu, err := etcdlock.NewMutex(client, "x", etcdlock.WithTTL(3*time.Second))
	require.NoError(t, err)
	require.NoError(t, mu.Lock(ctx))
	hold := mu.Context(context.Background())

	contract.AddUser(ctx, t, client, "root", "secret")
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
	receive(t, hold.Done(), "the loss")
	t.Log(context.Cause(hold))
	contract.RequireReasons(t, context.Cause(hold), etcdlock.ErrExpired, rpctypes.ErrUserEmpty)
	require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrLost)
	require.ErrorIs(t, mu.Close(ctx), etcdlock.ErrUnconfirmed)
}

// clientv3 logs a warning for each request that fails, and for each of its retries. With
// the logger that programs have by default, it goes to their stderr.
func TestClosingIsNoWarning(t *testing.T) {
	// looks holds up the audits of one lock once it is armed.
	type looks struct {
		armed   atomic.Bool
		begun   chan struct{}
		goesOn  chan struct{}
		warned  *observer.ObservedLogs
		session *etcdlock.Session
		client  *clientv3.Client
	}
	held := func(t *testing.T) *looks {
		core, warned := observer.New(zap.WarnLevel)
		l := &looks{begun: make(chan struct{}, 1), goesOn: make(chan struct{}), warned: warned}
		l.client = etcdtest.Start(t, 1).Client(t, func(cfg *clientv3.Config) {
			cfg.Logger = zap.New(core)
			cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
				func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
					invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if path.Base(method) == "LeaseTimeToLive" && l.armed.Load() {
						l.begun <- struct{}{}
						<-l.goesOn
					}
					err := invoke(ctx, method, req, reply, cc, opts...)
					if path.Base(method) == "LeaseRevoke" && l.armed.Swap(false) {
						close(l.goesOn)
					}
					return err
				}))
		})
		var err error
		l.session, err = etcdlock.NewSession(l.client, etcdlock.WithTTL(3*time.Second))
		require.NoError(t, err)
		require.NoError(t, contract.MutexOf(t, l.session, "x").Lock(contract.Patient(t)))
		return l
	}
	t.Run("while a look is under way", func(t *testing.T) {
		l := held(t)
		l.armed.Store(true)
		receive(t, l.begun, "a look at the keys")
		require.NoError(t, l.session.Close(contract.Patient(t)))
		require.NoError(t, l.client.Close())
		require.Empty(t, l.warned.All())
	})
	t.Run("after the client", func(t *testing.T) {
		l := held(t)
		require.NoError(t, l.client.Close())
		before := l.warned.Len() // by what was under way
		err := l.session.Close(contract.Patient(t))
		contract.RequireIs(t, err, etcdlock.ErrUnconfirmed)
		require.ErrorContains(t, err, "the etcd client is closed")
		require.Empty(t, l.warned.All()[before:])
	})
}
