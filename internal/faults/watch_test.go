package faults

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// S20. A waiter gets in even if the event for which it waits never reaches it.
//
//	a holds, b waits | a unlocks, and the event is lost with or without b's watch | b gets
//	in
func TestS20AWaiterGetsInThoughItsWatchTellsNothing(t *testing.T) {
	t.Parallel()
	const bound = 3 * time.Second
	type network struct {
		proxy *etcdtest.Proxy
		watch *cancelledWatch
	}
	fault := func(f etcdtest.Fault) func(*party, network) func() {
		return func(b *party, _ network) func() {
			struck := b.faults.Inject(f)
			return func() { struck.Await(1) }
		}
	}
	swallowed := etcdtest.SwallowReply("Watch").When(etcdtest.Events)
	losses := []struct {
		name string
		arm  func(b *party, n network) (lost func())
	}{
		{"an event is swallowed", fault(swallowed.Times(1))},
		{"every event is swallowed", fault(swallowed)},
		{"the server cancels the watch", func(b *party, n network) func() {
			n.watch.armed.Store(true)
			return func() {
				require.True(b.tr, contract.Eventually(patience, func() bool {
					return !n.watch.armed.Load()
				}), "no event came")
			}
		}},
		{"the stream is reset", fault(etcdtest.DropReply("Watch", codes.Unavailable).When(etcdtest.Events).Times(1))},
		{"the connection is reset", func(_ *party, n network) func() {
			n.proxy.Hold(etcdtest.Replies)
			return func() { n.proxy.Reset(); n.proxy.Heal() }
		}},
	}
	for _, loss := range losses {
		t.Run(loss.name, func(t *testing.T) {
			prove(t, row{
				id: "S20", name: loss.name, quick: 4,
				fault: loss.name + " when the holder releases",
				must:  "the waiter is in <= 3 s after the release",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				proxy := c.Proxy(tr, 0)
				watch := &cancelledWatch{}
				a := tr.party("a", c, 10*ttl)
				b := tr.party("b", c, 10*ttl, etcdtest.Via(proxy), watch.option)
				b.mends(proxy.Heal)

				a.locks()
				next := b.waits()
				lost := loss.arm(b, network{proxy, watch})
				tr.phase(2 * time.Second) // a part of the time between two rechecks of b
				slow := measureStalls(tr)
				a.unlocks()
				released := now()
				lost()
				next.getsInSoon("time from release to in", released, bound, slow)
				b.stillHolds(c.Client(tr))
				b.unlocks()
			})
		})
	}
}

// A cancelledWatch replaces the next event of a client's watches by the server's message
// that the watch is cancelled.
type cancelledWatch struct{ armed atomic.Bool }

func (w *cancelledWatch) option(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return &cancelledStream{s, w}, err
		}))
}

type cancelledStream struct {
	grpc.ClientStream
	watch *cancelledWatch
}

func (s *cancelledStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if err == nil && etcdtest.Events.OK(msg) && s.watch.armed.CompareAndSwap(true, false) {
		resp := msg.(*pb.WatchResponse)
		resp.Events, resp.Canceled, resp.CancelReason = nil, true, "etcdserver: watch canceled"
	}
	return err
}

// S21. A compaction past the revision from which a waiter watches is no error.
//
//	a holds, then b waits, then d | everything is compacted, in some cases while b and d
//	are cut off | a unlocks, before that or after it | b gets in, then d
func TestS21ACompactionDoesNotEndAWait(t *testing.T) {
	t.Parallel()
	type network struct {
		b, d  *party
		proxy *etcdtest.Proxy
	}
	cut := func(n network) { n.proxy.Refuse(); n.proxy.Reset() }
	cases := []struct {
		name   string
		before func(network) // the compaction
		early  bool          // a unlocks before it, too
		after  func(network)
	}{
		{"connected", func(network) {}, false, func(network) {}},
		{"connected, and the stream breaks after it", func(network) {}, false, func(n network) {
			for _, p := range []*party{n.b, n.d} {
				p.faults.Inject(etcdtest.DropReply("Watch", codes.Unavailable).When(etcdtest.Events).Times(1))
			}
		}},
		{"disconnected", cut, false, func(n network) { n.proxy.Heal() }},
		{"disconnected, and released meanwhile", cut, true, func(n network) { n.proxy.Heal() }},
	}
	for _, how := range cases {
		t.Run(how.name, func(t *testing.T) {
			prove(t, row{
				id: "S21", name: how.name, quick: 4,
				fault: "compaction past the revision of two waiters, " + how.name,
				must:  "no error, both get in",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				admin := c.Client(tr)
				n := network{proxy: c.Proxy(tr, 0)}
				a := tr.party("a", c, 10*ttl)
				n.b = tr.party("b", c, 10*ttl, etcdtest.Via(n.proxy))
				n.d = tr.party("d", c, 10*ttl, etcdtest.Via(n.proxy))
				n.b.mends(n.proxy.Heal)

				a.locks()
				second, third := n.b.waits(), n.d.waits()
				how.before(n)
				if how.early {
					a.unlocks()
				}
				compacts(tr, admin)
				tr.phase(2 * time.Second)
				how.after(n)
				if !how.early {
					second.goesOnWaiting(100 * time.Millisecond)
					a.unlocks()
				}
				free := now()
				second.getsIn(patience)
				tr.figures.longest("time to the first", second.at-free)
				n.b.stillHolds(admin)
				n.b.unlocks()
				free = now()
				third.getsIn(patience)
				tr.figures.longest("time to the second", third.at-free)
				n.d.unlocks()
			})
		})
	}
}

// compacts makes some history, and makes etcd forget it all.
func compacts(tr *trial, admin *clientv3.Client) {
	var last int64
	for range 10 {
		resp, err := admin.Put(tr.bounded(patience), "history", "")
		require.NoError(tr, err)
		last = resp.Header.Revision
	}
	_, err := admin.Compact(tr.bounded(patience), last, clientv3.WithCompactPhysical())
	require.NoError(tr, err)
}
