package queue

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
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// Keys below the prefix that are no contenders block nobody. Neither does a contender's key
// that is mistaken for the own one.
func TestStrayKeysBlockNobody(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		strays := []string{"n/config", "n/" + uuid.NewString(), "n/sub/" + uuid.NewString(),
			"n/" + strings.ToUpper(uuid.NewString())}
		for _, key := range strays {
			require.NoError(t, etcd.PutKey(key, 0))
		}
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Millisecond)
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, mu.TryLock(context.Background()))
		require.NoError(t, mu.Unlock(context.Background()))
		require.Subset(t, etcd.Keys("n/"), strays)
		for _, key := range strays {
			etcd.DeleteKey(key)
		}
	})
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				older := tests.PutStrays(t, etcd, 3)
				keys, _ := tests.Strangers(t, etcd, "n", before)
				newer := tests.PutStrays(t, etcd, n)
				first := contract.MutexOf(t, tests.SessionOf(t, etcd, "first"), "n")
				second := contract.MutexOf(t, tests.SessionOf(t, etcd, "second"), "n")
				third := contract.MutexOf(t, tests.SessionOf(t, etcd, "third"), "n")
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
					var locked *etcdlock.LockedError
					ok := errors.As(third.TryLock(context.Background()), &locked)
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
				require.Same(t, first, tests.SoonOr(t, in, "it does not get in"))
				var locked *etcdlock.LockedError
				ok := errors.As(third.TryLock(context.Background()), &locked)
				require.True(t, ok)
				require.Equal(t, first.Key(), locked.Holder.Key)
				time.Sleep(10 * time.Second)
				require.Empty(t, in, "two are in")
				require.NoError(t, first.Unlock(context.Background()))
				require.Same(t, second, tests.SoonOr(t, in, "the second does not get in"))
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

// Sessions of this library contend with strangers, which stand in line by the hexadecimal
// of a lease or by a UUID of a kind to come. Strays come and go. Some of the requests are
// late, answered twice, or not answered. Every holder is the first contender, and everybody
// gets in.
func TestWhoHoldsIsTheFirstAmongStraysAndStrangers(t *testing.T) {
	for seed := range uint64(race.Fewer(6, 2)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
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
					mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint(i)), "n")
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
							key, lease := tests.Stray(random.IntN(1000), granted.ID)
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu, in := tests.WaitsBehind(t, etcd, 12)
		own := etcd.Keys("n/")[12]
		later, _ := tests.Strangers(t, etcd, "n", 1)
		require.NoError(t, etcd.PutKey(own, clientv3.NoLease))
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		time.Sleep(10 * time.Second)
		require.Empty(t, in, "it got in beside one who is first in line now")
		etcd.DeleteKey(later[0])
		require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
		require.NoError(t, mu.Unlock(context.Background()))
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
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						a := tests.SessionOf(t, etcd, "a")
						end, err := call(ctx, a) // has a lease from here on
						require.NoError(t, err)
						require.NoError(t, end(ctx))
						b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
						tests.LockWithin(t, b, time.Second)
						if other != "one before" {
							require.NoError(t, b.Unlock(ctx))
						}
						sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "c"), 5)

						busy, stop := context.WithCancel(ctx)
						var churn sync.WaitGroup
						key := func(i int) string { return fmt.Sprint("n/0/", i) }
						for i := range nested {
							require.NoError(t, etcd.PutKey(key(i), 0))
						}
						defer func() {
							for _, key := range etcd.Keys("n/0/") {
								etcd.DeleteKey(key)
							}
						}()
						churn.Go(func() {
							for i := 0; busy.Err() == nil; i++ {
								require.NoError(t, etcd.PutKey(key(nested+i), 0)) // there is always one
								etcd.DeleteKey(key(i))
								time.Sleep(time.Millisecond)
							}
						})
						if name == "TryAcquire" && other == "nobody" {
							churn.Go(func() {
								for busy.Err() == nil {
									tests.UnlockAll(t, tests.AcquireWithin(t, sem, 1, time.Second))
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
							var locked *etcdlock.LockedError
							_ = errors.As(err, &locked)
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
