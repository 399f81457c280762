package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
)

// lineOf puts keys below the name of a lock one after another, in no order of their names.
func lineOf(t *testing.T, etcd *fake.Server, name string, keys int) (revs []int64) {
	for i := range keys {
		require.NoError(t, etcd.PutKey(fmt.Sprint(line.Prefix(name), (i*7919)%keys), 0))
		revs = append(revs, etcd.Rev())
	}
	return revs
}

// sameRead requires that a look has read what it reads alone, now.
func sameRead(t *testing.T, c *Conn, r Request, read Reading, err error) {
	t.Helper()
	require.NoError(t, err)
	alone, err := c.Ask(t.Context(), r)
	require.NoError(t, err)
	text := func(read Reading) (all []string) {
		for _, r := range read.Ranges {
			all = append(all, fmt.Sprint(r.GetKvs(), r.GetCount(), r.GetMore()))
		}
		return all
	}
	require.Equal(t, text(alone), text(read))
	require.Equal(t, alone.Epoch, read.Epoch)
	require.NotNil(t, read.Header)
}

// A crowd is looks that come one after another, while the first one is under way.
type crowd struct {
	requests []Request
	reads    []Reading
	errs     []error
}

// look has so many looks come, of which of makes each, with the Conn that asks it.
func look(t *testing.T, n int, of func(i int) (*Conn, Request)) (all crowd) {
	all = crowd{make([]Request, n), make([]Reading, n), make([]error, n)}
	var running sync.WaitGroup
	for i := range n {
		var c *Conn
		c, all.requests[i] = of(i)
		running.Go(func() {
			all.reads[i], all.errs[i] = c.asks(all.requests[i])(t.Context(), false)
		})
		synctest.Wait()
	}
	running.Wait()
	return all
}

// asAlone requires that each look has read what it reads alone.
func (all crowd) asAlone(t *testing.T, c *Conn) {
	t.Helper()
	for i, r := range all.requests {
		sameRead(t, c, r, all.reads[i], all.errs[i])
	}
}

// Looks that come while one is under way go as one request, with a range for each name. Each reads
// what it would have read alone.
func TestLooksThatMeetReadOnce(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			etcd := fake.NewServer()
			c, _ := conn(t, etcd.Client("a"))
			other, _ := conn(t, c.client)
			names := []string{"n", "m", "n/below"}
			revs := make(map[string][]int64)
			for _, name := range names {
				revs[name] = lineOf(t, etcd, name, 1+random.IntN(60))
			}
			for _, key := range etcd.Keys("") {
				if random.IntN(5) == 0 {
					etcd.DeleteKey(key)
				}
			}
			etcd.Delay("a", time.Millisecond)
			all := look(t, 25, func(int) (*Conn, Request) {
				name := names[random.IntN(len(names))]
				at := revs[name][random.IntN(len(revs[name]))]
				return []*Conn{c, other}[random.IntN(2)], Newest(name, at, 1+random.Int64N(12))
			})
			require.Len(t, etcd.Calls(fake.Range), 1, "the first one")
			require.Len(t, etcd.Calls(fake.Txn), 1, "all others")
			all.asAlone(t, c)
		})
	}
}

// A look that is far behind the others is sent alone: the keys before it are not among those that
// all have read.
func TestALookFarBehindTheOthersIsSentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		c, _ := conn(t, etcd.Client("a"))
		revs := lineOf(t, etcd, "n", mostShared+50)
		etcd.Delay("a", time.Millisecond)
		at := []int64{revs[9], revs[20], revs[30], revs[55], revs[59], revs[len(revs)-1]}
		all := look(t, len(at), func(i int) (*Conn, Request) { return c, Newest("n", at[i], 10) })
		// The shared one reads from revs[50] on: of those at 55 and 59 the latter has ten keys there.
		require.Len(t, etcd.Calls(fake.Range), 1+3)
		require.Len(t, etcd.Calls(fake.Txn), 1)
		all.asAlone(t, c)
	})
}

// A look is never answered by a read that was sent before it.
func TestALookJoinsNoneThatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		c, _ := conn(t, etcd.Client("a"))
		lineOf(t, etcd, "n", 10)
		etcd.Intercept(func(fake.Call) fake.Effect { return fake.Effect{DelayReply: time.Millisecond} })
		var running sync.WaitGroup
		for range 5 {
			synctest.Wait() // what is under way has been carried out
			require.NoError(t, etcd.PutKey(fmt.Sprint(line.Prefix("n"), "new", etcd.Rev()), 0))
			at := etcd.Rev()
			running.Go(func() {
				read, err := c.asks(Newest("n", at, 3))(t.Context(), false)
				require.NoError(t, err)
				require.Equal(t, at, read.Ranges[0].Kvs[0].CreateRevision)
			})
		}
		running.Wait()
	})
}

// A silent answer is waited for by the look that was sent, and by no other for long.
func TestALookWaitsForNoSilentAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		c, _ := conn(t, etcd.Client("a"))
		revs := lineOf(t, etcd, "n", 10)
		etcd.Intercept(func(call fake.Call) fake.Effect {
			if call.Method == fake.Range && call.N == 1 {
				return fake.Effect{Delay: time.Minute}
			}
			return fake.Effect{Drop: call.Method == fake.Range && call.N == 2}
		})
		request := Newest("n", revs[9], 3)
		_, err := c.asks(request)(t.Context(), false)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var silent, running sync.WaitGroup
		silent.Go(func() {
			_, err := c.asks(request)(ctx, false)
			require.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for range 2 {
			running.Go(func() {
				began := time.Now()
				read, err := c.asks(request)(t.Context(), false)
				require.LessOrEqual(t, time.Since(began), longestShare)
				sameRead(t, c, request, read, err)
			})
		}
		running.Wait()
		cancel()
		silent.Wait()
	})
}

// What etcd refuses for all, or something before it, is asked for by each alone. If that says
// nothing of what etcd takes, the next ones go together all the same.
func TestALookIsRefusedAlone(t *testing.T) {
	for name, row := range map[string]struct {
		answer fake.Effect
		shared bool // the next ones
	}{
		"a user who may not":          {fake.Effect{Before: rpctypes.ErrGRPCPermissionDenied}, false},
		"a stream that has ended":     {fake.Effect{Before: status.Error(codes.Internal, "ended")}, true},
		"what was not asked for":      {fake.Effect{Edit: empties}, true},
		"more than one request takes": {fake.Effect{Before: rpctypes.ErrGRPCTooManyOps}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := fake.NewServer()
				c, told := conn(t, etcd.Client("a"))
				request := Newest("n", lineOf(t, etcd, "n", 10)[9], 3)
				of := func(int) (*Conn, Request) { return c, request }
				etcd.Intercept(func(call fake.Call) fake.Effect {
					if call.Method == fake.Txn {
						return row.answer
					}
					return fake.Effect{Delay: time.Millisecond}
				})
				look(t, 6, of).asAlone(t, c)
				require.Len(t, etcd.Calls(fake.Txn), 1)
				etcd.Intercept(nil)
				etcd.Delay("a", time.Millisecond)
				look(t, 6, of).asAlone(t, c)
				require.Equal(t, row.shared, len(etcd.Calls(fake.Txn)) > 1)
				require.Equal(t, row.shared, told.uncombined == 0)
			})
		})
	}
}

func empties(reply any) { reply.(*pb.TxnResponse).Responses = nil }

// The user's code falls in looks that go together: so do their calls. The next look is
// sent.
func TestLooksFallTogether(t *testing.T) {
	for name, falls := range map[string]func(){
		"panic": func() { panic("boom") }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := fake.NewServer()
				client := etcd.Client("a")
				client.KV = fallingTxn{client.KV, falls}
				c, _ := conn(t, client)
				request := Newest("n", lineOf(t, etcd, "n", 10)[9], 3)
				etcd.Delay("a", time.Millisecond)
				all := look(t, 4, func(int) (*Conn, Request) { return c, request })
				require.NoError(t, all.errs[0], "it was sent before")
				for _, err := range all.errs[1:] {
					require.NotNil(t, guard.FallIn(err))
				}
				read, err := c.asks(request)(t.Context(), false)
				sameRead(t, c, request, read, err)
			})
		})
	}
}

// A fallingTxn falls in the transactions in which falls does.
type fallingTxn struct {
	clientv3.KV
	falls func()
}

func (kv fallingTxn) Txn(ctx context.Context) clientv3.Txn {
	kv.falls()
	return kv.KV.Txn(ctx)
}
