package contract_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// The benchmarks of the library alone. What they count (rpc/op, revisions/op) is the same
// on every machine. Their times are those of an etcd in this very process, and the
// allocations that they report include that etcd's. The last one is the exception: it has
// no etcd. internal/bench compares with other locks, on servers of their own.
func BenchmarkMutex(b *testing.B) {
	cluster := etcdtest.Start(b, 1)

	b.Run("uncontended", func(b *testing.B) {
		s := newBenchSession(b, cluster)
		mu := s.mutex(b, "uncontended")
		s.measure(b, func() {
			for b.Loop() {
				through(b, mu)
			}
		})
	})

	// Two names, so that neither is the last one used.
	b.Run("uncontended/2 names in turn", func(b *testing.B) {
		s := newBenchSession(b, cluster)
		mus := []*etcdlock.Mutex{s.mutex(b, "turn-a"), s.mutex(b, "turn-b")}
		s.measure(b, func() {
			for i := 0; b.Loop(); i++ {
				through(b, mus[i%2])
			}
		})
	})

	// Each operation is a hand-over: all contend, all the time.
	for _, n := range []int{2, 8, 64} {
		b.Run(fmt.Sprintf("handover/%d", n), func(b *testing.B) {
			s := newBenchSession(b, cluster)
			sessions := []*etcdlock.Session{s.Session}
			for len(sessions) < min(n, 4) {
				sessions = append(sessions, s.another(b))
			}
			s.handOver(b, sessions, n)
		})
	}

	// The same by goroutines of one process: the release and the next place are one Txn.
	b.Run("handover/8 in one process", func(b *testing.B) {
		s := newBenchSession(b, cluster)
		s.handOver(b, []*etcdlock.Session{s.Session}, 8)
	})

	b.Run("trylock taken", func(b *testing.B) {
		s := newBenchSession(b, cluster)
		holder, err := s.another(b).Mutex("taken")
		require.NoError(b, err)
		require.NoError(b, holder.Lock(b.Context()))
		mu := s.mutex(b, "taken")
		require.ErrorIs(b, mu.TryLock(b.Context()), etcdlock.ErrLocked) // grants the lease
		s.measure(b, func() {
			for b.Loop() {
				isTaken(b, mu)
			}
		})
	})

	// No request: the Session knows.
	b.Run("trylock taken/by the same session", func(b *testing.B) {
		s := newBenchSession(b, cluster)
		require.NoError(b, s.mutex(b, "ours").Lock(b.Context()))
		mu := s.mutex(b, "ours")
		s.measure(b, func() {
			for b.Loop() {
				isTaken(b, mu)
			}
		})
	})

	b.Run("relock", func(b *testing.B) {
		s := newBenchSession(b, cluster)
		mu := s.mutex(b, "relock")
		s.measure(b, func() {
			for b.Loop() {
				require.NoError(b, mu.Do(b.Context(), func(context.Context) error { return nil }))
			}
		})
	})

	// The cost of the library itself and of building its requests: etcd answers at once,
	// from memory.
	b.Run("without etcd", func(b *testing.B) {
		etcd := &instantEtcd{}
		s, err := etcdlock.NewSession(&clientv3.Client{KV: etcd, Lease: instantLease{},
			Watcher: noWatcher{}}, etcdlock.WithTTL(time.Hour))
		require.NoError(b, err)
		b.Cleanup(func() { _ = s.Close(context.Background()) })
		mu, err := s.Mutex("x")
		require.NoError(b, err)
		through(b, mu)
		b.ReportAllocs()
		for b.Loop() {
			through(b, mu)
		}
	})
}

// through goes through the critical section once. The benchmark measures it, so it makes
// its checks by hand.
func through(b *testing.B, mu *etcdlock.Mutex) {
	if err := mu.Lock(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := mu.Unlock(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// isTaken tries a lock that is taken. The benchmark measures it, too.
func isTaken(b *testing.B, mu *etcdlock.Mutex) {
	if mu.TryLock(b.Context()) == nil {
		b.Fatal("it was free")
	}
}

// A benchSession is a Session whose requests are counted, together with those of the
// Sessions that it makes.
type benchSession struct {
	*etcdlock.Session
	cluster *etcdtest.Cluster
	counter *contract.Counter
}

func newBenchSession(b *testing.B, cluster *etcdtest.Cluster) *benchSession {
	s := &benchSession{cluster: cluster, counter: contract.NewCounter()}
	s.Session = s.another(b)
	return s
}

// another returns a Session with a client of its own.
func (s *benchSession) another(b *testing.B) *etcdlock.Session {
	session, err := etcdlock.NewSession(s.cluster.Client(b, contract.With(s.counter)),
		etcdlock.WithTTL(time.Minute))
	require.NoError(b, err)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), contract.Patience)
		defer cancel()
		_ = session.Close(ctx)
	})
	return session
}

// mutex returns a Mutex of the Session that has been held before: the lease is there, and
// etcd's client has connected.
func (s *benchSession) mutex(b *testing.B, name string) *etcdlock.Mutex {
	mu, err := s.Mutex(name)
	require.NoError(b, err)
	if mu.TryLock(b.Context()) == nil {
		require.NoError(b, mu.Unlock(b.Context()))
	}
	return mu
}

// measure runs a benchmark's loop, and reports the cost of one operation.
func (s *benchSession) measure(b *testing.B, loop func()) {
	revision, before := s.cluster.Revision(b), s.counter.Counts()
	b.ReportAllocs()
	loop()
	n := float64(b.N)
	b.ReportMetric(float64(s.counter.Since(before).Total())/n, "rpc/op")
	b.ReportMetric(float64(s.cluster.Revision(b)-revision)/n, "revisions/op")
}

// handOver makes n goroutines on the given Sessions contend until one of them got in b.N
// times in all.
func (s *benchSession) handOver(b *testing.B, sessions []*etcdlock.Session, n int) {
	mus := make([]*etcdlock.Mutex, n)
	for i := range mus {
		var err error
		mus[i], err = sessions[i%len(sessions)].Mutex(b.Name())
		require.NoError(b, err)
		through(b, mus[i])
	}
	ctx, stop := context.WithCancel(context.Background())
	entered := make(chan struct{})
	var contenders sync.WaitGroup
	for _, mu := range mus {
		contenders.Go(func() { // ends with ctx
			for mu.Lock(ctx) == nil {
				select {
				case entered <- struct{}{}:
				case <-ctx.Done():
				}
				if err := mu.Unlock(context.Background()); err != nil {
					b.Error(err)
				}
			}
		})
	}
	s.measure(b, func() {
		for b.Loop() {
			<-entered
		}
	})
	stop()
	contenders.Wait()
}

// An instantEtcd carries out each transaction, and every read finds nothing. It allocates
// one transaction per call.
type instantEtcd struct {
	clientv3.KV
	reply clientv3.TxnResponse
}

func (e *instantEtcd) Txn(context.Context) clientv3.Txn { return instantTxn{e} }

type instantTxn struct{ etcd *instantEtcd }

func (t instantTxn) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t instantTxn) Else(...clientv3.Op) clientv3.Txn { return t }

func (t instantTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.etcd.reply.Responses = t.etcd.reply.Responses[:0]
	for _, op := range ops {
		resp := foundNothing
		if !op.IsGet() {
			resp = wrote
		}
		t.etcd.reply.Responses = append(t.etcd.reply.Responses, resp)
	}
	return t
}

func (t instantTxn) Commit() (*clientv3.TxnResponse, error) {
	e := t.etcd
	if e.reply.Header == nil {
		e.reply.Header, e.reply.Succeeded = &pb.ResponseHeader{}, true
	}
	e.reply.Header.Revision++
	return &e.reply, nil
}

var (
	foundNothing = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{
		ResponseRange: &pb.RangeResponse{},
	}}
	wrote = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{
		ResponsePut: &pb.PutResponse{},
	}}
)

const instantID clientv3.LeaseID = 1

type noWatcher struct{ clientv3.Watcher }

type instantLease struct{ clientv3.Lease }

func (instantLease) Grant(_ context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return &clientv3.LeaseGrantResponse{ID: instantID, TTL: ttl}, nil
}

func (instantLease) TimeToLive(
	context.Context, clientv3.LeaseID, ...clientv3.LeaseOption,
) (*clientv3.LeaseTimeToLiveResponse, error) {
	return nil, context.DeadlineExceeded // the keys of the benchmark are nowhere
}

func (instantLease) Revoke(
	context.Context, clientv3.LeaseID,
) (*clientv3.LeaseRevokeResponse, error) {
	return &clientv3.LeaseRevokeResponse{}, nil
}
