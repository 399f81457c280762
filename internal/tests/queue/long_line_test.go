package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about what is read of a line: a few keys, however long the line is, and
// however many keys below the name are no contenders.

// A reading counts what clients receive: keys that they read, and events.
type reading struct {
	clientv3.KV
	clientv3.Watcher
	keys, bytes *atomic.Int64
}

// readBy counts what a client receives.
func readBy(client *clientv3.Client, keys, bytes *atomic.Int64) *clientv3.Client {
	r := &reading{client.KV, client.Watcher, keys, bytes}
	client.KV, client.Watcher = r, r
	return client
}

func (r *reading) count(read *pb.RangeResponse) {
	for _, kv := range read.GetKvs() {
		r.keys.Add(1)
		r.bytes.Add(int64(len(kv.Key) + len(kv.Value)))
	}
}

func (r *reading) Get(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	resp, err := r.KV.Get(ctx, key, opts...)
	r.count((*pb.RangeResponse)(resp))
	return resp, err
}

func (r *reading) Txn(ctx context.Context) clientv3.Txn { return &readingTxn{r.KV.Txn(ctx), r} }

func (r *reading) Close() error { return r.Watcher.Close() }

func (r *reading) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	out := make(chan clientv3.WatchResponse)
	in := r.Watcher.Watch(ctx, key, opts...)
	go func() { // ends with ctx
		defer close(out)
		for resp := range in {
			for _, event := range resp.Events {
				r.keys.Add(1)
				r.bytes.Add(int64(len(event.Kv.Key) + len(event.Kv.Value)))
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

type readingTxn struct {
	clientv3.Txn
	r *reading
}

func (t *readingTxn) If(cs ...clientv3.Cmp) clientv3.Txn { t.Txn = t.Txn.If(cs...); return t }

func (t *readingTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(ops...); return t }

func (t *readingTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }

func (t *readingTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	if err == nil {
		for _, answer := range resp.Responses {
			t.r.count(answer.GetResponseRange())
		}
	}
	return resp, err
}

// Rule 24: the cost of a hand-over does not grow with the line. Each one that releases
// queues again, so the line keeps its length. Each one waits behind the one before it, and
// behind no more.
func TestAHandOverReadsNoMoreOfALongLine(t *testing.T) {
	for _, n := range []int{4, 16, 24, 100, race.Fewer(1000, 200)} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var keys, bytes atomic.Int64
				entered := make(chan int, n)
				var line []*etcdlock.Mutex
				queues := func(i int) {
					go func() {
						if err := line[i].Lock(context.Background()); err != nil {
							t.Error(err)
						}
						entered <- i
					}()
					synctest.Wait()
				}
				for i := range n {
					client := readBy(etcd.Client(fmt.Sprint(i)), &keys, &bytes)
					owner := etcdlock.WithOwner("somebody:1234")
					s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL), owner)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
					line = append(line, contract.MutexOf(t, s, "n"))
					queues(i)
				}
				require.Equal(t, 0, <-entered)

				const handOvers = 10
				sent := len(etcd.Calls(""))
				events := len(etcd.Calls(fake.Event))
				keys.Store(0)
				bytes.Store(0)
				for i := range handOvers {
					require.NoError(t, line[i%n].Unlock(context.Background()))
					require.Equal(t, (i+1)%n, tests.SoonOr(t, entered, "the next does not get in"))
					queues(i % n)
				}
				requests := len(etcd.Calls("")) - sent - (len(etcd.Calls(fake.Event)) - events)
				perKeys, perBytes := keys.Load()/handOvers, bytes.Load()/handOvers
				t.Logf("a hand-over: %d keys and events of %d bytes, %d requests",
					perKeys, perBytes, requests/handOvers)
				require.LessOrEqual(t, requests, 6*handOvers, "put, watch, check, look, release")
				switch {
				case n > 16:
					require.LessOrEqual(t, perKeys, int64(13),
						"9 before it, who holds twice, the event, its own key")
				default: // up to 8 views, which get the event of a put and of a deletion
					require.LessOrEqual(t, perKeys, int64(13+2*8))
				}
				require.NoError(t, line[handOvers%n].Unlock(context.Background()))
				for i := 1; i < n; i++ {
					at := (handOvers + i) % n
					require.Equal(t, at, tests.SoonOr(t, entered, "the next does not get in"))
					require.NoError(t, line[at].Unlock(context.Background()))
				}
			})
		})
	}
}

// Rule 24: a waiter that goes away deletes its key, and reads at most who holds.
func TestGivingUpReadsNoLine(t *testing.T) {
	const n = 100
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		strangers, _ := tests.Strangers(t, etcd, "n", 20)
		var keys, bytes atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error, n)
		for i := range n {
			client := readBy(etcd.Client(fmt.Sprint(i)), &keys, &bytes)
			s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
			mu := contract.MutexOf(t, s, "n")
			go func() { failed <- mu.Lock(ctx) }()
			synctest.Wait()
		}
		sent, events := len(etcd.Calls("")), len(etcd.Calls(fake.Event))
		keys.Store(0)
		cancel()
		for range n {
			require.ErrorIs(t, tests.SoonOr(t, failed, "somebody does not go away"), etcdlock.ErrLocked)
		}
		require.Len(t, etcd.Keys("n/"), len(strangers))
		requests := len(etcd.Calls("")) - sent - (len(etcd.Calls(fake.Event)) - events)
		t.Logf("%d requests, %d keys and events", requests, keys.Load())
		require.LessOrEqual(t, requests, 3*n,
			"its removal, and perhaps a look, of two ranges, when the one before it has gone")
		require.LessOrEqual(t, keys.Load(), int64(12*n))
		for _, key := range strangers {
			etcd.DeleteKey(key)
		}
	})
}

// Rule 8, and the position: a caller that gives up behind a few learns exactly where it
// stood. Behind more it may learn that approximately, and the holder that it learns is
// right.
func TestWhoGivesUpInALongLineIsToldWhoHolds(t *testing.T) {
	rows := []struct {
		promise   string
		contender int
		strays    int
		gone      int // of the contenders, the oldest first, while it waits
		says      string
		exact     int // contenders ahead; 0 for about
	}{
		{"behind eight", 8, 0, 0, "9th in line", 8},
		{"behind eight, of whom some go", 8, 0, 6, "3rd in line", 2},
		{"behind many", 40, 0, 0, "41st in line", 40},
		{"behind many, of whom some go", 40, 0, 35, "in line", 0},
		{"behind strays and a few", 4, 30, 0, "5th in line", 4},
		{"behind strays and many", 40, 30, 0, "in line", 0},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				old := tests.PutStrays(t, etcd, row.strays)
				holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "api-7:1234"), "n")
				next := contract.MutexOf(t, tests.SessionOf(t, etcd, "api-8:1234"), "n")
				tests.LockWithin(t, holder, time.Second)
				in := make(chan error, 1)
				if row.gone > 0 {
					go func() { in <- next.Lock(context.Background()) }()
					synctest.Wait()
				}
				between, _ := tests.Strangers(t, etcd, "n", row.contender-len(etcd.Keys("n/"))+row.strays)
				s := tests.SessionOf(t, etcd, "late")
				mu := contract.MutexOf(t, s, "n")
				ctx, cancel := context.WithTimeout(context.Background(), 7*time.Second+time.Millisecond)
				defer cancel()
				failed := make(chan error, 1)
				go func() { failed <- mu.Lock(ctx) }()
				synctest.Wait()
				behind, _ := tests.Strangers(t, etcd, "n", 5)
				owner, token := "api-7:1234", holder.Token()
				time.Sleep(time.Second)

				err := contract.MutexOf(t, s, "n").TryLock(context.Background())
				var atHome *etcdlock.LockedError
				ok := errors.As(err, &atHome)
				require.True(t, ok, "the Session itself waits")
				require.Equal(t, token, atHome.Holder.Token)
				require.Equal(t, owner, atHome.Holder.Owner)

				if row.gone > 0 {
					for _, key := range between[:row.gone-1] {
						etcd.DeleteKey(key)
					}
					require.NoError(t, holder.Unlock(context.Background()))
					require.NoError(t, tests.SoonOr(t, in, "the next does not get in"))
					owner, token = "api-8:1234", next.Token()
				}
				err = tests.SoonOr(t, failed, "it does not give up")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				if row.gone > 0 && row.exact == 0 { // only its key is read
					owner = fmt.Sprintf("%q", next.Key())
				}
				require.ErrorContains(t, err, row.says+", held by "+owner)
				var locked *etcdlock.LockedError
				require.ErrorAs(t, err, &locked)
				require.Equal(t, token, locked.Holder.Token)
				if row.exact > 0 {
					require.Equal(t, row.exact, locked.Ahead)
				}
				require.GreaterOrEqual(t, locked.Ahead, row.contender-row.gone, "at least as many are there")
				require.LessOrEqual(t, locked.Ahead, row.contender+row.strays)

				for _, key := range append(append(between, behind...), old...) {
					etcd.DeleteKey(key)
				}
				if row.gone > 0 {
					require.NoError(t, next.Unlock(context.Background()))
				} else {
					require.NoError(t, holder.Unlock(context.Background()))
				}
			})
		})
	}
}

// The line grows behind a waiter that waits by a view of it. A view of a long line would
// get an event for each that comes and goes. So the view ends, and the waiter gets in by a
// watch of the one before it.
func TestAViewEndsWhenItsLineIsLong(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
		tests.LockWithin(t, holder, time.Second)
		in := make(chan int, 3)
		var line []*etcdlock.Mutex
		for i := range 3 {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint(i)), "n",
				etcdlock.WithLinger(time.Second))
			line = append(line, mu)
			go func() {
				if err := mu.Lock(context.Background()); err != nil {
					t.Error(err)
				}
				in <- i
			}()
			synctest.Wait()
		}
		behind, _ := tests.Strangers(t, etcd, "n", 40)
		time.Sleep(time.Second)
		events := len(etcd.Calls(fake.Event))
		behind2, _ := tests.Strangers(t, etcd, "n", 40)
		synctest.Wait()
		require.Len(t, etcd.Calls(fake.Event), events, "somebody is told of those who come behind")

		require.NoError(t, holder.Unlock(context.Background()))
		for i, mu := range line {
			require.Equal(t, i, tests.SoonOr(t, in, "the next does not get in"))
			time.Sleep(3 * time.Second)
			require.Empty(t, in)
			require.NoError(t, mu.Unlock(context.Background()))
		}
		for _, key := range append(behind, behind2...) {
			etcd.DeleteKey(key)
		}
	})
}

// Those before a waiter in a long line go away, the nearest first. Each time it moves up
// behind the next one. It gets in when the holder is gone, and not before.
func TestWhoMovesUpInALongLineDoesNotEnterBesideTheHolder(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu, in := tests.WaitsBehind(t, etcd, 12)
		behind, _ := tests.Strangers(t, etcd, "n", 20)
		for i, key := range slices.Backward(keys) {
			require.Empty(t, in, "it got in beside %d others", i+1)
			etcd.DeleteKey(key)
			synctest.Wait()
		}
		getsInAfter(t, mu, in, 0)
		for _, key := range behind {
			etcd.DeleteKey(key)
		}
	})
}
