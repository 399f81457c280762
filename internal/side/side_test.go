package side_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/record"
	"github.com/etcdlock/etcdlock/internal/side"
	"github.com/etcdlock/etcdlock/internal/sim"
)

func TestMain(m *testing.M) {
	race.InBubbles()
	m.Run()
}

const ttl = 3 * time.Second

// A world is an etcd in virtual time.
type world struct {
	net     *sim.Net
	cluster *sim.Cluster
}

// clientv3's watches wait on this channel, which nobody closes. A goroutine that waits on a
// channel from outside its bubble stops the bubble's time, so each bubble has its own
// channel.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

// inWorld runs a test in a world of its own.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	outside := valCtxCh
	defer func() { valCtxCh = outside }()
	synctest.Test(t, func(t *testing.T) {
		valCtxCh = make(chan struct{})
		net := sim.NewNet(1)
		w := &world{net, sim.NewCluster(1, net, 1)}
		t.Cleanup(func() { net.Close(); w.cluster.Stop() })
		test(t, w)
	})
}

// patient is a context for calls that must not block.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// client returns the client of a process of its own.
func (w *world) client(t *testing.T, process string) *clientv3.Client {
	t.Helper()
	client, err := w.net.Client(process, []string{"http://m0"})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// open returns a session on a client, and its lock of a name.
func open(t *testing.T, s side.Side, client *clientv3.Client) (side.Session, side.Mutex) {
	t.Helper()
	session, err := s.Open(client, ttl)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), ttl)
		defer cancel()
		_ = session.Close(ctx)
	})
	mu, err := session.Mutex("n")
	require.NoError(t, err)
	return session, mu
}

// The published tables find a side's figures by its name.
func TestTheTablesKnowBothSides(t *testing.T) {
	require.Equal(t, record.Ours, side.Ours.Name)
	require.Equal(t, record.Theirs, side.Theirs.Name)
}

func onBothSides(t *testing.T, test func(t *testing.T, s side.Side)) {
	for _, s := range []side.Side{side.Ours, side.Theirs} {
		t.Run(s.Name, func(t *testing.T) { test(t, s) })
	}
}

// A lock of either side excludes, says what it holds, and can be locked again after a loss.
//
//	a locks, b's TryLock says that it is taken | a's lease is revoked, and a learns of it |
//	a locks and unlocks again
func TestBothSidesHaveOneFace(t *testing.T) {
	onBothSides(t, func(t *testing.T, s side.Side) {
		inWorld(t, func(t *testing.T, w *world) {
			client := w.client(t, "a")
			_, a := open(t, s, client)
			_, b := open(t, s, w.client(t, "b"))
			owns := func() bool {
				resp, err := client.Txn(t.Context()).If(a.IsOwner()).Commit()
				require.NoError(t, err)
				return resp.Succeeded
			}
			require.Error(t, a.Unlock(patient(t)), "Unlock without a Lock")
			require.NoError(t, a.Lock(patient(t)))
			first, hold := a.Token(), a.Hold()
			require.NoError(t, hold.Err())
			require.True(t, owns())
			err := b.TryLock(patient(t))
			require.True(t, side.Taken(err), "%v", err)

			held, err := client.Get(t.Context(), a.Key())
			require.NoError(t, err)
			require.Len(t, held.Kvs, 1)
			_, err = client.Revoke(t.Context(), clientv3.LeaseID(held.Kvs[0].Lease))
			require.NoError(t, err)
			select {
			case <-hold.Done():
			case <-time.After(2 * ttl):
				t.Fatal("a is not told of its loss")
			}
			require.False(t, owns())
			_ = a.Unlock(patient(t)) // each has its own words for it

			require.NoError(t, a.Lock(patient(t)), "after a loss")
			require.NoError(t, a.Hold().Err())
			require.Greater(t, a.Token(), first)
			require.NoError(t, a.Unlock(patient(t)))
			require.NoError(t, b.TryLock(patient(t)))
			require.NoError(t, b.Unlock(patient(t)))
		})
	})
}

// A read/write lock of either side lets readers in together and a writer alone.
//
//	a and b read, e waits to write and gives up, c waits to write | both have unlocked, c is
//	in | d waits to read | c unlocks, d is in
func TestBothSidesReadAndWriteByOneFace(t *testing.T) {
	onBothSides(t, func(t *testing.T, s side.Side) {
		inWorld(t, func(t *testing.T, w *world) {
			opened := func(process string) side.RWMutex {
				session, _ := open(t, s, w.client(t, process))
				rw, err := session.RWMutex("rw")
				require.NoError(t, err)
				return rw
			}
			a, b, d := opened("a").Reader(), opened("b").Reader(), opened("d").Reader()
			c, e := opened("c"), opened("e")
			require.Error(t, a.Unlock(patient(t)), "Unlock without a Lock")
			require.NoError(t, a.Lock(patient(t)))
			require.NoError(t, b.Lock(patient(t)))
			require.NoError(t, a.Hold().Err())
			soon, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			require.ErrorIs(t, e.Lock(soon), context.DeadlineExceeded)
			require.InDelta(t, time.Second, time.Since(began), float64(ttl/10))

			wrote, read := make(chan error, 1), make(chan error, 1)
			go func() { wrote <- c.Lock(patient(t)) }()
			time.Sleep(time.Second)
			require.NoError(t, a.Unlock(patient(t)))
			time.Sleep(time.Second)
			require.Empty(t, wrote, "it writes beside a reader")
			require.NoError(t, b.Unlock(patient(t)))
			require.NoError(t, <-wrote)
			go func() { read <- d.Lock(patient(t)) }()
			time.Sleep(time.Second)
			require.Empty(t, read, "it reads beside a writer")
			require.NoError(t, c.Unlock(patient(t)))
			require.NoError(t, <-read)
			require.NoError(t, d.Unlock(patient(t)))
		})
	})
}

// Close ends with its context if etcd does not answer.
func TestCloseEndsWithItsContext(t *testing.T) {
	onBothSides(t, func(t *testing.T, s side.Side) {
		inWorld(t, func(t *testing.T, w *world) {
			session, a := open(t, s, w.client(t, "a"))
			require.NoError(t, a.Lock(patient(t)))
			w.net.Lose("a", "m0")
			ctx, cancel := context.WithTimeout(t.Context(), ttl/10)
			defer cancel()
			began := time.Now()
			require.Error(t, session.Close(ctx))
			require.Equal(t, ttl/10, time.Since(began))
		})
	})
}

// A session of etcd's alone does not make the goroutines of a process exclude each other.
// InTurn does.
func TestGoroutinesExcludeEachOtherInTurn(t *testing.T) {
	for _, inTurn := range []bool{false, true} {
		inWorld(t, func(t *testing.T, w *world) {
			session, _ := open(t, side.Theirs, w.client(t, "a"))
			if inTurn {
				session = side.InTurn(session)
			}
			var inside, most atomic.Int32
			left := make(chan error)
			for range 4 {
				mu, err := session.Mutex("n")
				require.NoError(t, err)
				go func() { // ends with the test, which receives from each
					err := mu.Lock(patient(t))
					if n := inside.Add(1); n > most.Load() {
						most.Store(n)
					}
					time.Sleep(time.Second)
					inside.Add(-1)
					if err == nil {
						err = mu.Unlock(patient(t))
					}
					left <- err
				}()
			}
			for range 4 {
				require.NoError(t, <-left)
			}
			require.Equal(t, inTurn, most.Load() == 1, "%d were in at once", most.Load())
		})
	}
}

// A wait for the turn ends with its context, and a call that fails gives the turn up.
func TestAWaitForTheTurnEndsWithItsContext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		opened, _ := open(t, side.Theirs, w.client(t, "a"))
		mu, err := side.InTurn(opened).Mutex("n")
		require.NoError(t, err)
		_, other := open(t, side.Theirs, w.client(t, "b"))
		require.NoError(t, other.Lock(patient(t)))
		require.True(t, side.Taken(mu.TryLock(patient(t))))
		require.NoError(t, other.Unlock(patient(t)))
		require.NoError(t, mu.Lock(patient(t)), "the turn was kept by the TryLock that failed")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		require.NoError(t, mu.Unlock(patient(t)))
		require.NoError(t, mu.TryLock(patient(t)))
		require.NoError(t, mu.Unlock(patient(t)))
	})
}
