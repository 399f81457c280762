package kinds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A permit waits by watches. It does not miss those that go between its put and these
// watches: it reads the line once the watches are there.
func TestAPermitMissesNothingBeforeItsWatches(t *testing.T) {
	for _, behind := range []int{10, 60} { // all are known, or some
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			var holds []*etcdlock.Hold
			sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 10)
			for range 10 {
				holds = append(holds, tests.AcquireWithin(t, sem, 1, time.Second))
			}
			var line []<-chan *etcdlock.Hold
			for i := range behind {
				line = append(line,
					tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, fmt.Sprint("b", i)), 10), 1))
			}
			last := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "last"), 10)
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Process == "last" && c.Method == fake.Watch {
					e.Delay = 300 * time.Millisecond
				}
				return e
			})
			in := tests.AcquireLater(last, 1)
			tests.UnlockAll(t, holds...)
			for _, l := range line {
				tests.UnlockAll(t, tests.SoonOr(t, l, "it does not get in"))
			}
			start := time.Now()
			h := tests.SoonOr(t, in, "it does not get in")
			require.Less(t, time.Since(start), time.Second)
			etcd.Intercept(nil)
			tests.UnlockAll(t, h)
		})
	}
}

// A permit that waits behind Mutexes watches the last of them. It gets in when that one is
// gone, though it has learned of all the others meanwhile, and has not seen them go.
func TestAPermitBehindOthersGetsInWithTheLastOfThem(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var before []*etcdlock.Mutex
		var in []<-chan error
		for i := range 20 {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("b", i)), "n")
			before, in = append(before, mu), append(in, tests.LockLater(mu))
		}
		permit := tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2), 1)
		unlock := func(n int) {
			for range n {
				require.NoError(t, tests.SoonOr(t, in[0], "it does not get in"))
				require.NoError(t, before[0].Unlock(context.Background()))
				before, in = before[1:], in[1:]
			}
		}
		unlock(14)
		time.Sleep(time.Minute) // it has read the line meanwhile: six are left
		start := time.Now()
		unlock(6)
		tests.UnlockAll(t, tests.SoonOr(t, permit, "it does not get in"))
		require.Less(t, time.Since(start), time.Second)
	})
	// or permits, with a Mutex before them
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "first"), "n")
		tests.LockWithin(t, mu, time.Second)
		var before []<-chan *etcdlock.Hold
		for i := range 9 {
			before = append(before,
				tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, fmt.Sprint("b", i)), 2), 1))
		}
		permit := tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2), 1)
		time.Sleep(time.Minute)
		start := time.Now()
		require.NoError(t, mu.Unlock(context.Background()))
		for _, in := range before {
			tests.UnlockAll(t, tests.SoonOr(t, in, "it does not get in"))
		}
		tests.UnlockAll(t, tests.SoonOr(t, permit, "it does not get in"))
		require.Less(t, time.Since(start), time.Second)
	})
}

// A waiting permit gets in whatever happens to its watches, behind few and behind many,
// whether it knows all before it or not.
func TestAPermitGetsInWhateverHappensToItsWatches(t *testing.T) {
	for _, limit := range []int{1, 3, 30} {
		for _, behind := range []int{3, 12, 90} {
			for what, happens := range map[string]func(etcd *fake.Server, key string){
				"nothing": func(*fake.Server, string) {},
				"events are lost": func(etcd *fake.Server, _ string) {
					etcd.Intercept(func(c fake.Call) (e fake.Effect) {
						e.Drop = c.Process == "last" && c.Method == fake.Event
						return e
					})
				},
				"watches end": func(etcd *fake.Server, _ string) { etcd.CancelWatches() },
				"watches end, and what they have seen is compacted": func(etcd *fake.Server, _ string) {
					etcd.CancelWatches()
					etcd.Compact()
				},
				"its key is deleted": func(etcd *fake.Server, key string) { etcd.DeleteKey(key) },
			} {
				t.Run(fmt.Sprintf("limit %d, behind %d, %s", limit, behind, what), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						first := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "first"), limit)
						var line []*etcdlock.Hold
						for range limit {
							line = append(line, tests.AcquireWithin(t, first, 1, time.Second))
						}
						var keys []string
						for i := range behind {
							keys = append(keys, stranger(t, etcd, i, limit))
						}
						in := tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "last"), limit), 1)
						own := etcd.Keys("n/")[limit+behind]
						time.Sleep(time.Second)
						happens(etcd, own)
						if what == "its key is deleted" {
							time.Sleep(5 * time.Second)
							require.Len(t, etcd.Keys("n/"), limit+behind+1, "it queues anew")
						}
						left := limit + behind
						goes := func() {
							tests.StillWaits(t, in, "the limit is reached")
							left--
						}
						for _, h := range line {
							if left >= limit {
								goes()
							}
							require.NoError(t, h.Unlock(context.Background()))
						}
						for _, key := range keys {
							if left >= limit {
								goes()
							}
							etcd.DeleteKey(key)
						}
						start := time.Now()
						h := tests.SoonOr(t, in, "it does not get in")
						require.LessOrEqual(t, time.Since(start), 15*time.Second)
						etcd.Intercept(nil)
						tests.UnlockAll(t, h)
					})
				})
			}
		}
	}
}

// stranger puts the key of a permit, as another process does.
func stranger(t *testing.T, etcd *fake.Server, i, limit int) (key string) {
	t.Helper()
	resp, err := etcd.Client("stranger").Grant(context.Background(), 3600)
	require.NoError(t, err)
	key = fmt.Sprintf("n/fffffffe-0001-8000-8000-%04x%08x", limit, i)
	require.NoError(t, etcd.PutKey(key, resp.ID))
	t.Cleanup(func() { etcd.RevokeLease(resp.ID) })
	return key
}

// If etcd takes long to begin a watch, the watches of a permit begin at last. Otherwise the
// permit would read the line again and again.
func TestTheWatchesOfAPermitBeginAtASlowEtcd(t *testing.T) {
	for _, limit := range []int{8, 30} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			var keys []string
			for i := range 60 {
				keys = append(keys, stranger(t, etcd, i, limit))
			}
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Process == "last" && c.Method == fake.Watch {
					e.Delay = 1100 * time.Millisecond
				}
				return e
			})
			in := tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "last"), limit), 1)
			time.Sleep(3 * time.Minute)
			before := etcd.Counts()
			time.Sleep(5 * time.Minute)
			after := etcd.Counts()
			require.Equal(t, before[fake.Watch], after[fake.Watch])
			require.LessOrEqual(t, after[fake.Watch], limit+5, "one at a time, after the first ones")
			require.LessOrEqual(t, after[fake.Range]-before[fake.Range], 20, "re-checks")
			for _, key := range keys {
				etcd.DeleteKey(key)
			}
			tests.UnlockAll(t, tests.SoonOr(t, in, "it does not get in"))
		})
	}
}

// sizeOf returns about how many bytes a reply has: those of its keys.
func sizeOf(reply any) (n int64) {
	read := func(r *pb.RangeResponse) {
		for _, kv := range r.GetKvs() {
			n += int64(len(kv.Key) + len(kv.Value) + 16)
		}
	}
	switch reply := reply.(type) {
	case *pb.RangeResponse:
		read(reply)
	case *pb.TxnResponse:
		for _, r := range reply.Responses {
			read(r.GetResponseRange())
		}
	}
	return n
}

// A hand-over costs as much in a line of 1,000 as in one of 100. Requests, watches, events
// and bytes grow with the limit alone.
func TestAHandOverOfPermitsCostsWhatTheLimitSays(t *testing.T) {
	for i := range 3 * 3 * 2 {
		limit, n, random := []int{1, 4, 16}[i%3], []int{10, 100, 1000}[i/3%3], i >= 9
		if n > 100 && (!race.Whole || !random) {
			continue
		}
		t.Run(fmt.Sprintf("limit %d, %d in line, random %v", limit, n, random), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var bytes atomic.Int64
				etcd.Intercept(func(fake.Call) fake.Effect {
					return fake.Effect{Edit: func(reply any) {
						bytes.Add(sizeOf(reply))
					}}
				})
				holder := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "holder"), limit)
				var holds []*etcdlock.Hold
				for range limit {
					holds = append(holds, tests.AcquireWithin(t, holder, 1, time.Second))
				}
				in := make(chan *etcdlock.Hold, n)
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				for i := range n {
					sem := tests.SemaphoreOf(t,
						tests.SessionOf(t, etcd, fmt.Sprint(i), etcdlock.WithTTL(time.Hour)), limit)
					go func() {
						if h, err := sem.Acquire(ctx, 1); err == nil {
							in <- h
						}
					}()
					if i%10 == 9 {
						synctest.Wait()
					}
				}
				etcd.ForgetCalls()
				pass := func(times int) {
					for range times {
						if random { // as jobs end; otherwise all last equally long
							rand.Shuffle(limit, func(i, j int) { holds[i], holds[j] = holds[j], holds[i] })
						}
						require.NoError(t, holds[0].Unlock(context.Background()))
						synctest.Wait()
						require.Len(t, in, 1, "one gets in, and one alone")
						holds = append(holds[1:], <-in)
					}
				}
				most := min(60, n/2)
				pass(min(50, n/2))
				began, before, had := time.Now(), etcd.Counts(), bytes.Load()
				pass(most)
				after := etcd.Counts()
				require.Zero(t, time.Since(began), "without a re-check")
				each := func(methods ...string) (sum float64) {
					for _, m := range methods {
						sum += float64(after[m]-before[m]) / float64(most)
					}
					return sum
				}
				requests, watches, events := each(fake.Txn, fake.Range), each(fake.Watch), each(fake.Event)
				size := float64(bytes.Load()-had) / float64(most)
				t.Logf("%.1f requests, %.1f watches, %.1f events, %.0f bytes", requests, watches, events, size)
				require.LessOrEqual(t, requests, 5.0)
				require.LessOrEqual(t, watches, 2.0)
				require.LessOrEqual(t, events, float64(3*limit+9))
				require.LessOrEqual(t, size, float64(2000+3*(2*limit+9)*300))
				leave()
				for _, h := range holds {
					_ = h.Unlock(context.Background())
				}
			})
		})
	}
}

// A permit has come to hold by the view of the line. Once the view is for another permit of
// the Session, which waits, the first one's key is watched.
func TestAPermitIsWatchedWhileAnotherOfItsSessionWaits(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2)
		other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 2)
		before := tests.AcquireWithin(t, other, 2, time.Second)
		in := tests.AcquireLater(sem, 1)
		tests.UnlockAll(t, before)
		first := tests.SoonOr(t, in, "it does not get in")
		in = tests.AcquireLater(sem, 2)
		time.Sleep(3100 * time.Millisecond)
		ctx := first.Context(context.Background())
		line, err := etcdlock.Contenders(context.Background(), etcd.Client("op"), "n")
		require.NoError(t, err)
		require.Equal(t, first.Token(), line[0].Token)
		etcd.DeleteKey(line[0].Key)
		start := time.Now()
		<-ctx.Done()
		require.Less(t, time.Since(start), 500*time.Millisecond)
		require.ErrorIs(t, first.Unlock(context.Background()), etcdlock.ErrLost)
		tests.UnlockAll(t, tests.SoonOr(t, in, "it does not get in"))
	})
}

// A permit has come to hold by the view of the line, and the view is now for another permit
// of the Session. The first one still learns what happens to its key, even if the other one
// gives up and no event follows.
func TestAPermitIsToldOfWhatHappensWhileAnotherOfItsSessionWaits(t *testing.T) {
	for _, what := range []string{"recalled", "deleted"} {
		t.Run(what, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2, tests.Listens)
				other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 2)
				before := tests.AcquireWithin(t, other, 2, time.Second)
				in := tests.AcquireLater(sem, 1)
				tests.UnlockAll(t, before)
				first := tests.SoonOr(t, in, "it does not get in")
				hold := first.Context(context.Background())
				began := time.Now()

				ctx, giveUp := context.WithCancel(context.Background())
				second := contract.Async(func() error {
					_, err := sem.Acquire(ctx, 2)
					return err
				})
				synctest.Wait()
				if what == "recalled" {
					tests.RecallAt(t, etcd, 0, tests.TTL)
				} else {
					etcd.DeleteKey(tests.PlaceOf(t, etcd, "n", 0).Key)
				}
				etcd.Intercept(func(c fake.Call) (e fake.Effect) {
					if c.Method == fake.Txn {
						e.DelayReply = time.Millisecond // the event of its removal comes before the answer
					}
					return e
				})
				giveUp()
				<-second
				etcd.Intercept(nil)
				if what == "recalled" {
					<-etcdlock.RecallFrom(hold)
				} else {
					<-hold.Done()
				}
				require.LessOrEqual(t, time.Since(began), tests.WatchedBy+tests.CareTakes)
				_ = first.Unlock(context.Background())
			})
		})
	}
}
