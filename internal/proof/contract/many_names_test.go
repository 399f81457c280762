package contract_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// Many goroutines of several Sessions of a client want many names, also nested ones, one by one and
// two at once. Their transactions go together, and another client contends for the same names. No
// two hold a name, and no call fails for another's sake.
func TestManyNamesOfAClientExcludeEachOther(t *testing.T) {
	for kind, prefix := range map[string]string{"a client": "", "a client with a namespace": "t/"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 1)
			parts := new(nestedCounter)
			client := w.cluster.Client(t, contract.With(parts))
			for _, c := range []*clientv3.Client{client, w.admin} {
				c.KV = namespace.NewKV(c.KV, prefix)
				c.Watcher = namespace.NewWatcher(c.Watcher, prefix)
				c.Lease = namespace.NewLease(c.Lease, prefix)
			}
			m := newMany(t)
			for i, c := range []*clientv3.Client{client, client, client, w.admin} {
				m.work(i, contract.NewSession(t, c))
			}
			m.running.Wait()
			require.NotZero(t, parts.n.Load(), "some went together")
		})
	}
}

// A many is many goroutines that want many names.
type many struct {
	t       *testing.T
	running sync.WaitGroup
	ctx     context.Context
	names   []string
	beliefs map[string]*contract.Belief
}

func newMany(t *testing.T) *many {
	m := &many{t: t, names: []string{"a", "a/b", "a/b/c", "b", "c", "d", "e", "f", "g", "h"},
		beliefs: make(map[string]*contract.Belief)}
	for _, name := range m.names {
		m.beliefs[name] = contract.NewBelief(t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	t.Cleanup(cancel)
	m.ctx = ctx
	return m
}

// work has goroutines of a Session lock names until the time is over.
func (m *many) work(session int, s *etcdlock.Session) {
	for g := range 16 {
		who := fmt.Sprint(session, "/", g)
		m.running.Go(func() {
			for n := 0; m.ctx.Err() == nil; n++ {
				names := []string{m.names[(g+n)%len(m.names)], m.names[rand.IntN(len(m.names))]}
				if n%4 > 0 || names[0] == names[1] {
					names = names[:1]
				}
				m.hold(who, s, n%4 == 1, names)
			}
		})
	}
}

// hold locks names, and unlocks them.
func (m *many) hold(who string, s *etcdlock.Session, try bool, names []string) {
	lock := s.LockAll
	if try {
		lock = s.TryLockAll
	}
	h, err := lock(m.ctx, names...)
	if errors.Is(err, etcdlock.ErrLocked) && try || m.ctx.Err() != nil && err != nil {
		return
	}
	if err != nil {
		m.t.Error(err)
		return
	}
	hold := h.Context(context.Background())
	for _, name := range names {
		m.beliefs[name].EnterUntil(hold, who, h.Token())
	}
	for _, name := range names {
		m.beliefs[name].Leave(who)
	}
	if err := h.Unlock(context.Background()); err != nil {
		m.t.Error(err)
	}
}

// A nestedCounter counts the transactions that were sent as parts of one.
type nestedCounter struct{ n atomic.Int64 }

func (c *nestedCounter) Unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Compare) == 0 {
		for _, op := range txn.Success {
			if op.GetRequestTxn() != nil {
				c.n.Add(1)
			}
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *nestedCounter) Stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	stream grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return stream(ctx, desc, cc, method, opts...)
}
