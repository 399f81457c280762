package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
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

func (t *readingTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.Txn = t.Txn.If(cs...); return t }
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
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
					s, err := etcdlock.NewSession(client, etcdlock.WithTTL(virtualTTL), owner)
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
					require.Equal(t, (i+1)%n, soonOr(t, entered, "the next does not get in"))
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
					require.Equal(t, at, soonOr(t, entered, "the next does not get in"))
					require.NoError(t, line[at].Unlock(context.Background()))
				}
			})
		})
	}
}

// Rule 24: a waiter that goes away deletes its key, and reads at most who holds.
func TestGivingUpReadsNoLine(t *testing.T) {
	const n = 100
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		strangers, _ := strangers(t, etcd, "n", 20)
		var keys, bytes atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error, n)
		for i := range n {
			client := readBy(etcd.Client(fmt.Sprint(i)), &keys, &bytes)
			s, err := etcdlock.NewSession(client, etcdlock.WithTTL(virtualTTL))
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
			require.ErrorIs(t, soonOr(t, failed, "somebody does not go away"), etcdlock.ErrLocked)
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

// stray is a key below "n/" that is no contender's, of one of the kinds that there are.
func stray(i int, lease clientv3.LeaseID) (key string, on clientv3.LeaseID) {
	switch id := uuid.NewString(); i % 5 {
	case 0:
		return fmt.Sprint("n/config", i), 0
	case 1:
		return "n/" + id, 0
	case 2:
		return "n/sub/" + id, lease
	case 3:
		return "n/" + strings.ToUpper(id[:35]) + "G", lease
	default:
		return fmt.Sprintf("n/%x", int64(lease)+1_000_000+int64(i)), lease
	}
}

// putStrays puts n strays, which are newer than all that is there.
func putStrays(t *testing.T, etcd *fake.Server, n int) (keys []string) {
	t.Helper()
	granted, err := etcd.Client("strays").Grant(context.Background(), 3000)
	require.NoError(t, err)
	for i := range n {
		key, lease := stray(i, granted.ID)
		require.NoError(t, etcd.PutKey(key, lease))
		keys = append(keys, key)
	}
	return keys
}

// Keys that are no contenders fill what a place reads of those before it. It reads on: it
// waits for a contender behind them, and holds once there is none.
func TestStrayKeysThatFillWhatIsReadLetNobodyIn(t *testing.T) {
	type row struct {
		before, n int  // contenders, and strays after them
		newest    bool // the newest contenders go first
	}
	var rows []row
	for _, n := range []int{1, 8, 10, 200, 300} {
		rows = append(rows, row{0, n, false}, row{1, n, false}, row{12, n, false}, row{12, n, true})
	}
	for _, row := range rows {
		t.Run(fmt.Sprintf("%+v", row), func(t *testing.T) {
			before, n := row.before, row.n
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				older := putStrays(t, etcd, 3)
				keys, _ := strangers(t, etcd, "n", before)
				newer := putStrays(t, etcd, n)
				first := contract.MutexOf(t, processIn(t, etcd, "first"), "n")
				second := contract.MutexOf(t, processIn(t, etcd, "second"), "n")
				third := contract.MutexOf(t, processIn(t, etcd, "third"), "n")
				in := make(chan *etcdlock.Mutex, 2)
				for _, mu := range []*etcdlock.Mutex{first, second} {
					go func() {
						if err := mu.Lock(context.Background()); err != nil {
							t.Error(err)
						}
						in <- mu
					}()
					synctest.Wait()
				}
				leaving := slices.Clone(keys)
				if row.newest {
					slices.Reverse(leaving)
				}
				for i, key := range leaving {
					locked, ok := errors.AsType[*etcdlock.LockedError](third.TryLock(context.Background()))
					require.True(t, ok)
					holder := key
					if row.newest {
						holder = keys[0]
					}
					require.Equal(t, holder, locked.Holder.Key, "the oldest")
					require.Empty(t, in, "it got in beside a contender")
					etcd.DeleteKey(key)
					synctest.Wait()
					if i%3 == 0 {
						time.Sleep(5 * time.Second)
					}
				}
				require.Same(t, first, soonOr(t, in, "it does not get in"))
				locked, ok := errors.AsType[*etcdlock.LockedError](third.TryLock(context.Background()))
				require.True(t, ok)
				require.Equal(t, first.Key(), locked.Holder.Key)
				time.Sleep(10 * time.Second)
				require.Empty(t, in, "two are in")
				require.NoError(t, first.Unlock(context.Background()))
				require.Same(t, second, soonOr(t, in, "the second does not get in"))
				require.NoError(t, second.Unlock(context.Background()))
				require.NoError(t, third.TryLock(context.Background()))
				require.NoError(t, third.Unlock(context.Background()))
				for _, key := range append(older, newer...) {
					etcd.DeleteKey(key)
				}
			})
		})
	}
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				old := putStrays(t, etcd, row.strays)
				holder := contract.MutexOf(t, processIn(t, etcd, "api-7:1234"), "n")
				next := contract.MutexOf(t, processIn(t, etcd, "api-8:1234"), "n")
				lockWithin(t, holder, time.Second)
				in := make(chan error, 1)
				if row.gone > 0 {
					go func() { in <- next.Lock(context.Background()) }()
					synctest.Wait()
				}
				between, _ := strangers(t, etcd, "n", row.contender-len(etcd.Keys("n/"))+row.strays)
				s := processIn(t, etcd, "late")
				mu := contract.MutexOf(t, s, "n")
				ctx, cancel := context.WithTimeout(context.Background(), 7*time.Second+time.Millisecond)
				defer cancel()
				failed := make(chan error, 1)
				go func() { failed <- mu.Lock(ctx) }()
				synctest.Wait()
				behind, _ := strangers(t, etcd, "n", 5)
				owner, token := "api-7:1234", holder.Token()
				time.Sleep(time.Second)

				err := contract.MutexOf(t, s, "n").TryLock(context.Background())
				atHome, ok := errors.AsType[*etcdlock.LockedError](err)
				require.True(t, ok, "the Session itself waits")
				require.Equal(t, token, atHome.Holder.Token)
				require.Equal(t, owner, atHome.Holder.Owner)

				if row.gone > 0 {
					for _, key := range between[:row.gone-1] {
						etcd.DeleteKey(key)
					}
					require.NoError(t, holder.Unlock(context.Background()))
					require.NoError(t, soonOr(t, in, "the next does not get in"))
					owner, token = "api-8:1234", next.Token()
				}
				err = soonOr(t, failed, "it does not give up")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				if row.gone > 0 && row.exact == 0 { // only its key is read
					owner = fmt.Sprintf("%q", next.Key())
				}
				require.ErrorContains(t, err, row.says+", held by "+owner)
				locked, ok := errors.AsType[*etcdlock.LockedError](err)
				require.True(t, ok)
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := contract.MutexOf(t, processIn(t, etcd, "holder"), "n")
		lockWithin(t, holder, time.Second)
		in := make(chan int, 3)
		var line []*etcdlock.Mutex
		for i := range 3 {
			mu := contract.MutexOf(t, processIn(t, etcd, fmt.Sprint(i)), "n", etcdlock.WithLinger(time.Second))
			line = append(line, mu)
			go func() {
				if err := mu.Lock(context.Background()); err != nil {
					t.Error(err)
				}
				in <- i
			}()
			synctest.Wait()
		}
		behind, _ := strangers(t, etcd, "n", 40)
		time.Sleep(time.Second)
		events := len(etcd.Calls(fake.Event))
		behind2, _ := strangers(t, etcd, "n", 40)
		synctest.Wait()
		require.Len(t, etcd.Calls(fake.Event), events, "somebody is told of those who come behind")

		require.NoError(t, holder.Unlock(context.Background()))
		for i, mu := range line {
			require.Equal(t, i, soonOr(t, in, "the next does not get in"))
			time.Sleep(3 * time.Second)
			require.Empty(t, in)
			require.NoError(t, mu.Unlock(context.Background()))
		}
		for _, key := range append(behind, behind2...) {
			etcd.DeleteKey(key)
		}
	})
}

// Sessions of this library contend with strangers, which stand in line by the hexadecimal
// of a lease or by a UUID of a kind to come. Strays come and go. Some of the requests are
// late, answered twice, or not answered. Every holder is the first contender, and everybody
// gets in.
func TestWhoHoldsIsTheFirstAmongStraysAndStrangers(t *testing.T) {
	for seed := range uint64(race.Fewer(6, 2)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				random := rand.New(rand.NewPCG(seed, 1))
				noise := rand.New(rand.NewPCG(seed, 2))
				etcd.Intercept(func(c fake.Call) fake.Effect { // one at a time
					e := fake.Effect{Delay: time.Duration(noise.IntN(3)) * time.Millisecond}
					switch lot := noise.IntN(60); {
					case c.Process == "judge" || c.Process == "strangers":
						return fake.Effect{}
					case lot == 0 && c.Method == fake.Txn:
						e.After = fake.Unavailable
					case lot == 1 && c.Method == fake.Txn:
						e.Again = 5 * time.Millisecond
					case lot == 2:
						e.Before = fake.Unavailable
					}
					return e
				})
				judge, others := etcd.Client("judge"), etcd.Client("strangers")
				var holds atomic.Int64
				var strangers sync.WaitGroup
				for i := range 20 {
					mu := contract.MutexOf(t, processIn(t, etcd, fmt.Sprint(i)), "n")
					go func() {
						for range 5 {
							if err := mu.Lock(context.Background()); err != nil {
								t.Error(err)
								return
							}
							hold := mu.Context(context.Background())
							line, err := etcdlock.Contenders(context.Background(), judge, "n")
							if err != nil || hold.Err() == nil && (len(line) == 0 || line[0].Token != mu.Token()) {
								t.Errorf("%d holds with token %d, and the line is %v: %v", i, mu.Token(), line, err)
							}
							holds.Add(1)
							time.Sleep(time.Millisecond)
							_ = mu.Unlock(context.Background()) // it may not know
						}
					}()
				}
				var strays []string
				for range 150 {
					granted, err := others.Grant(context.Background(), 3000)
					require.NoError(t, err)
					switch random.IntN(3) {
					case 0:
						key := fmt.Sprintf("n/%x", int64(granted.ID))
						if random.IntN(2) == 0 {
							id := uuid.New()
							id[6] = 0x80 | id[6]&0x0f
							key = "n/" + id.String()
						}
						require.NoError(t, etcd.PutKey(key, granted.ID))
						strangers.Go(func() { // it holds for a while when it is the first
							for range 10_000 {
								line, err := etcdlock.Contenders(context.Background(), judge, "n")
								if err == nil && len(line) > 0 && line[0].Key == key {
									break
								}
								time.Sleep(5 * time.Millisecond)
							}
							time.Sleep(3 * time.Millisecond)
							etcd.DeleteKey(key)
						})
					case 1:
						for range random.IntN(20) {
							key, lease := stray(random.IntN(1000), granted.ID)
							if !slices.Contains(strays, key) {
								require.NoError(t, etcd.PutKey(key, lease))
								strays = append(strays, key)
							}
						}
					default:
						for range min(len(strays), random.IntN(20)) {
							etcd.DeleteKey(strays[0])
							strays = strays[1:]
						}
					}
					time.Sleep(time.Duration(random.IntN(8)) * time.Millisecond)
				}
				time.Sleep(5 * time.Minute)
				strangers.Wait()
				require.Equal(t, int64(100), holds.Load(), "somebody does not get in")
				for _, key := range strays {
					etcd.DeleteKey(key)
				}
			})
		})
	}
}

// Behind many, the deletion of the one before leads to a look that reads only keys, and so
// shows no leases. The waiter's own key was put over, so it no longer stands in line. The
// waiter queues anew, behind those that have come meanwhile.
func TestNobodyEntersByAKeyThatWasPutOver(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu, in := waitsBehind(t, etcd, 12)
		own := etcd.Keys("n/")[12]
		later, _ := strangers(t, etcd, "n", 1)
		require.NoError(t, etcd.PutKey(own, clientv3.NoLease))
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		time.Sleep(10 * time.Second)
		require.Empty(t, in, "it got in beside one who is first in line now")
		etcd.DeleteKey(later[0])
		require.NoError(t, soonOr(t, in, "it does not get in"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// Those before a waiter in a long line go away, the nearest first. Each time it moves up
// behind the next one. It gets in when the holder is gone, and not before.
func TestWhoMovesUpInALongLineDoesNotEnterBesideTheHolder(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu, in := waitsBehind(t, etcd, 12)
		behind, _ := strangers(t, etcd, "n", 20)
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

// Below the name keys come and go all the time: those of nested names that are in use, or, for
// TryAcquire, of permits. So nothing shows before a put that nobody is in line. The call gets an
// answer all the same, and soon: it holds, or it is refused and leaves nothing behind. If a
// contender stands there from the beginning nothing is written.
func TestTryLockBesideKeysThatComeAndGoAnswersSoon(t *testing.T) {
	const latency = 10 * time.Millisecond
	type unlock = func(context.Context) error
	of := func(h *etcdlock.Hold, err error) (unlock, error) { return h.Unlock, err }
	ctx := context.Background()
	calls := map[string]func(context.Context, *etcdlock.Session) (unlock, error){
		"TryLock": func(ctx context.Context, s *etcdlock.Session) (unlock, error) {
			mu, err := s.Mutex("n")
			if err == nil {
				err = mu.TryLock(ctx)
			}
			return mu.Unlock, err
		},
		"TryRLock": func(ctx context.Context, s *etcdlock.Session) (unlock, error) {
			rw, _ := s.RWMutex("n")
			return of(rw.TryRLock(ctx))
		},
		"TryLockAll": func(ctx context.Context, s *etcdlock.Session) (unlock, error) {
			return of(s.TryLockAll(ctx, "m", "n", "o"))
		},
		"TryAcquire": func(ctx context.Context, s *etcdlock.Session) (unlock, error) {
			sem, _ := s.Semaphore("n", 5)
			return of(sem.TryAcquire(ctx, 1))
		},
	}
	for name, call := range calls {
		for _, nested := range []int{1, 5, 500} {
			for _, other := range []string{"nobody", "one before", "one meanwhile"} {
				t.Run(fmt.Sprint(name, " beside ", nested, ", ", other), func(t *testing.T) {
					inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						a := processIn(t, etcd, "a")
						end, err := call(ctx, a) // has a lease from here on
						require.NoError(t, err)
						require.NoError(t, end(ctx))
						b := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
						lockWithin(t, b, time.Second)
						if other != "one before" {
							require.NoError(t, b.Unlock(ctx))
						}
						sem := semaIn(t, processIn(t, etcd, "c"), 5)

						busy, stop := context.WithCancel(ctx)
						var churn sync.WaitGroup
						for i := range nested {
							key := fmt.Sprint("n/0/", i)
							require.NoError(t, etcd.PutKey(key, 0))
							defer etcd.DeleteKey(key)
						}
						churn.Go(func() {
							for i := 0; busy.Err() == nil; i++ {
								key := fmt.Sprint("n/0/", i%nested)
								etcd.DeleteKey(key)
								require.NoError(t, etcd.PutKey(key, 0))
								time.Sleep(time.Millisecond)
							}
						})
						if name == "TryAcquire" && other == "nobody" {
							churn.Go(func() {
								for busy.Err() == nil {
									done(t, acquireWithin(t, sem, 1, time.Second))
									time.Sleep(time.Millisecond)
								}
							})
						}
						requests, puts := 0, 3 // the one that puts, as Lock does
						if nested == 500 && name != "TryLockAll" {
							puts = 4 // it has to read more before
						}
						etcd.Intercept(func(c fake.Call) (e fake.Effect) {
							if c.Process != "a" || c.Method != fake.Txn && c.Method != fake.Range {
								return e
							}
							if requests++; requests == puts && other == "one meanwhile" {
								go func() { assert.NoError(t, b.TryLock(ctx)) }()
							}
							return fake.Effect{Delay: latency}
						})
						within, cancel := context.WithTimeout(ctx, time.Second)
						defer cancel()
						end, err = call(within, a)
						time.Sleep(2 * latency) // so that what it puts for nothing is gone
						etcd.Intercept(nil)
						stop()
						churn.Wait()
						require.LessOrEqual(t, requests, 6)
						if other == "nobody" {
							require.NoError(t, err)
							require.NoError(t, end(ctx))
						} else {
							require.ErrorIs(t, err, etcdlock.ErrLocked)
							locked, _ := errors.AsType[*etcdlock.LockedError](err)
							require.Equal(t, b.Key(), locked.Holder.Key)
							require.Equal(t, "b", locked.Holder.Owner)
							require.NoError(t, b.Unlock(ctx))
						}
						if other == "one before" {
							require.LessOrEqual(t, requests, 2)
						}
						require.Len(t, etcd.Keys(""), nested)
					})
				})
			}
		}
	}
}
