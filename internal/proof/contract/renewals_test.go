package contract_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// Rule 24. A login costs the server some 70 ms of CPU. So the renewals log in once, for the
// stream that they share. When their token is taken away they log in once more, and no
// renewal fails because of that.
//
// A stream that is slow to answer is replaced, and a slow machine may cause that. So if the
// test fails with one TTL, it tries once more with a longer one.
func TestRenewalsLogInOnceWhileTheTokenLasts(t *testing.T) {
	waiting.enter(t)
	root, client, counter, _ := tenant(t)
	var err error
	for _, ttl := range []time.Duration{3 * time.Second, 9 * time.Second, 9 * time.Second} {
		if err = renewsWithFewLogins(t, root, client, counter, ttl); err == nil {
			return
		}
		t.Logf("with a TTL of %v: %v", ttl, err)
	}
	require.NoError(t, err)
}

// renewsWithFewLogins returns an error if the renewals of a hold log in more often than
// they should.
func renewsWithFewLogins(
	t *testing.T, root, client *clientv3.Client, counter *contract.Counter, ttl time.Duration,
) error {
	const renewals = 6
	renewed, failed := make(chan struct{}, 1000), make(chan error, 1000)
	trace := etcdlock.WithTrace(&etcdlock.Trace{
		LeaseRenewed:  func(clientv3.LeaseID, time.Duration) { renewed <- struct{}{} },
		RenewalFailed: func(_ clientv3.LeaseID, err error) { failed <- err },
	})
	mu := contract.NewMutex(t, client, "mine", etcdlock.WithTTL(ttl), trace)
	defer func() { require.NoError(t, mu.Close(bounded(t))) }()
	require.NoError(t, mu.Lock(bounded(t)))
	wait := func(n int) bool {
		for range n {
			select {
			case <-renewed:
			case <-time.After(2 * ttl):
				return false
			}
		}
		return true
	}

	// It waits until the stream of the renewals and that of the key watch are open.
	inTime := wait(2 * renewals / 3)
	before := counter.Counts()
	inTime = inTime && wait(renewals)
	kept := counter.Since(before)
	t.Logf("%d renewals: %v", renewals, kept)

	_, err := root.UserChangePassword(bounded(t), "tenant", "secret of tenant")
	require.NoError(t, err)
	before = counter.Counts()
	inTime = inTime && wait(renewals)
	anew := counter.Since(before)
	t.Logf("%d renewals, the first ones without a token: %v", renewals, anew)
	unlocked := mu.Unlock(bounded(t))
	switch {
	case !inTime:
		return errors.New("the lease is not renewed")
	case kept.Of("LeaseKeepAlive") < renewals:
		return fmt.Errorf("%d renewals were sent", kept.Of("LeaseKeepAlive"))
	case kept.Streams["LeaseKeepAlive"] != 0 || kept.Of("Authenticate") != 0:
		return fmt.Errorf("%d streams and %d logins while the token lasts",
			kept.Streams["LeaseKeepAlive"], kept.Of("Authenticate"))
	case anew.Streams["LeaseKeepAlive"] != 1 || anew.Of("Authenticate") > 2: // one more for an audit
		return fmt.Errorf("%d streams and %d logins after the token was taken away",
			anew.Streams["LeaseKeepAlive"], anew.Of("Authenticate"))
	case len(failed) > 0:
		return fmt.Errorf("%d renewals failed: %w", len(failed), <-failed)
	}
	return unlocked // nil if the lock was held all the time
}

// etcd's own grpc-proxy answers each request on a stream with the answer to its own next
// renewal. So only the first answer on a stream is to be trusted and comes soon. The
// library finds that out, by a message on the first stream, and then opens a stream for
// each renewal.
func TestBehindEtcdsProxyEachRenewalHasAStream(t *testing.T) {
	waiting.enter(t)
	const renewals = 8
	cluster := etcdtest.Start(t, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	upstream := cluster.Client(t)
	ttl := steadyTTL(t, upstream, 3*time.Second)
	server := grpc.NewServer()
	kv, _ := grpcproxy.NewKvProxy(upstream)
	watch, watchDone := grpcproxy.NewWatchProxy(ctx, zap.NewNop(), upstream)
	lease, leaseDone := grpcproxy.NewLeaseProxy(ctx, upstream)
	pb.RegisterKVServer(server, kv)
	pb.RegisterWatchServer(server, watch)
	pb.RegisterLeaseServer(server, lease)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(func() {
		server.Stop()
		cancel()
		<-watchDone
		<-leaseDone
	})

	counter := contract.NewCounter()
	took := make(chan time.Duration, 1000)
	client := cluster.Client(t, contract.With(counter), func(cfg *clientv3.Config) {
		cfg.Endpoints = []string{listener.Addr().String()}
	})
	trace := etcdlock.WithTrace(&etcdlock.Trace{
		LeaseRenewed: func(_ clientv3.LeaseID, roundTrip time.Duration) { took <- roundTrip },
	})
	mu := contract.NewMutex(t, client, "x", etcdlock.WithTTL(ttl), trace)
	require.NoError(t, mu.Lock(bounded(t)))
	hold := mu.Context(context.Background())
	var slowest time.Duration
	for range renewals {
		slowest = max(slowest, within(t, 2*ttl, "a renewal", took))
	}
	counts := counter.Counts()
	t.Logf("%v, streams %v, slowest %v", counts, counts.Streams, slowest)
	require.GreaterOrEqual(t, counts.Streams["LeaseKeepAlive"], renewals)
	require.LessOrEqual(t, counts.Sent["LeaseKeepAlive"], counts.Streams["LeaseKeepAlive"]+2)
	require.NoError(t, hold.Err())
	require.NoError(t, mu.Unlock(bounded(t)))
	require.NoError(t, mu.Close(bounded(t)))
}
