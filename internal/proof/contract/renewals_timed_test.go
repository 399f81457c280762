//go:build timed

package contract_test

import (
	"context"
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
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// Rule 24. A login costs the server some 70 ms of CPU. So the renewals log in once, for the
// stream that they share. When their token is taken away they log in once more, and no
// renewal fails because of that.
func TestRenewalsLogInOnceWhileTheTokenLasts(t *testing.T) {
	root, client, counter, _ := tenant(t)
	const ttl, renewals = 6 * time.Second, 4
	renewed, failed := make(chan struct{}, 1000), make(chan error, 1000)
	trace := etcdlock.WithTrace(&etcdlock.Trace{
		LeaseRenewed:  func(_ context.Context, _ etcdlock.LeaseRenewedEvent) { renewed <- struct{}{} },
		RenewalFailed: func(_ context.Context, e etcdlock.RenewalFailedEvent) { failed <- e.Err },
	})
	mu := contract.NewMutex(t, client, "mine", etcdlock.WithTTL(ttl), trace)
	require.NoError(t, mu.Lock(bounded(t)))
	contract.Await(t, renewed, 2) // the stream of the renewals and that of the key watch are open
	before := counter.Counts()
	contract.Await(t, renewed, renewals)
	kept := counter.Since(before)
	require.GreaterOrEqual(t, kept.Of("LeaseKeepAlive"), renewals)
	require.Zero(t, kept.Streams["LeaseKeepAlive"])
	require.Zero(t, kept.Of("Authenticate"))

	_, err := root.UserChangePassword(bounded(t), "tenant", "secret of tenant")
	require.NoError(t, err)
	before = counter.Counts()
	contract.Await(t, renewed, renewals)
	anew := counter.Since(before)
	require.Equal(t, 1, anew.Streams["LeaseKeepAlive"])
	require.LessOrEqual(t, anew.Of("Authenticate"), 2, "one more for an audit")
	require.Empty(t, failed)
	require.NoError(t, mu.Unlock(bounded(t)))
}

// Rules 24 and 25. The renewals of all Sessions of a client share a few streams. While each renewal
// fails at once, behind its login, few more are opened, and once one is answered, it serves them
// all.
func TestTheRenewalsOfManySessionsLogInSeldom(t *testing.T) {
	_, client, counter, faults := tenant(t)
	const sessions, ttl, outage = 60, 9 * time.Second, 3 * time.Second
	renewed := make(chan struct{}, 10_000)
	trace := etcdlock.WithTrace(&etcdlock.Trace{
		LeaseRenewed: func(_ context.Context, _ etcdlock.LeaseRenewedEvent) { renewed <- struct{}{} },
	})
	var holds []context.Context
	for i := range sessions {
		s := contract.NewSession(t, client, etcdlock.WithTTL(ttl), trace)
		mu := contract.MutexOf(t, s, fmt.Sprint("mine/", i))
		require.NoError(t, mu.Lock(bounded(t)))
		holds = append(holds, mu.Context(context.Background()))
	}
	contract.Await(t, renewed, 2*sessions)
	counts := counter.Counts()
	t.Logf("%v, streams %v", counts, counts.Streams)
	require.Less(t, counts.Streams["LeaseKeepAlive"], sessions/2)

	fault := faults.Inject(etcdtest.DropRequest("LeaseKeepAlive", codes.Unavailable))
	time.Sleep(outage)
	since := counter.Since(counts)
	t.Logf("%v, streams %v", since, since.Streams)
	require.LessOrEqual(t, since.Streams["LeaseKeepAlive"], 30+10*int(outage/time.Second))
	fault.Heal()
	contract.Await(t, renewed, 2*sessions)
	for _, hold := range holds {
		require.NoError(t, hold.Err(), "%v", context.Cause(hold))
	}
	since = counter.Since(counts)
	t.Logf("%v, streams %v", since, since.Streams)
	require.LessOrEqual(t, since.Streams["LeaseKeepAlive"], 60+10*int(outage/time.Second))
}

// etcd's own grpc-proxy answers each request on a stream with the answer to its own next
// renewal. So only the first answer on a stream is to be trusted and comes soon. The
// library finds that out, by a message on the first stream, and then opens a stream for
// each renewal.
func TestBehindEtcdsProxyEachRenewalHasAStream(t *testing.T) {
	const ttl, renewals = 6 * time.Second, 4
	cluster := etcdtest.Start(t, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	upstream := cluster.Client(t)
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
	renewed := make(chan struct{}, 1000)
	client := cluster.Client(t, contract.With(counter), func(cfg *clientv3.Config) {
		cfg.Endpoints = []string{listener.Addr().String()}
	})
	trace := etcdlock.WithTrace(&etcdlock.Trace{
		LeaseRenewed: func(_ context.Context, _ etcdlock.LeaseRenewedEvent) { renewed <- struct{}{} },
	})
	mu := contract.NewMutex(t, client, "x", etcdlock.WithTTL(ttl), trace)
	require.NoError(t, mu.Lock(bounded(t)))
	hold := mu.Context(context.Background())
	contract.Await(t, renewed, renewals)
	counts := counter.Counts()
	t.Logf("%v, streams %v", counts, counts.Streams)
	require.GreaterOrEqual(t, counts.Streams["LeaseKeepAlive"], renewals)
	require.LessOrEqual(t, counts.Sent["LeaseKeepAlive"], counts.Streams["LeaseKeepAlive"]+2)
	require.NoError(t, hold.Err())
	require.NoError(t, mu.Unlock(bounded(t)))
	require.NoError(t, mu.Close(bounded(t)))
}
