package etcdlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// semaIn is Session.Semaphore for a test.
func semaIn(t *testing.T, s *etcdlock.Session, limit int, opts ...etcdlock.Option) *etcdlock.Semaphore {
	t.Helper()
	sem, err := s.Semaphore("n", limit, opts...)
	require.NoError(t, err)
	return sem
}

// acquireWithin acquires permits, and fails if that takes longer than most.
func acquireWithin(t *testing.T, s *etcdlock.Semaphore, n int, most time.Duration) *etcdlock.Hold {
	t.Helper()
	return holdWithin(t, most, func(ctx context.Context) (*etcdlock.Hold, error) { return s.Acquire(ctx, n) })
}

// acquiresLater is an Acquire that is under way. It has begun to wait when this returns. If
// it fails the channel stays empty.
func acquiresLater(s *etcdlock.Semaphore, n int) <-chan *etcdlock.Hold {
	in := make(chan *etcdlock.Hold, 1)
	go func() {
		if h, err := s.Acquire(context.Background(), n); err == nil {
			in <- h
		}
	}()
	synctest.Wait()
	return in
}

// requireFull requires that a TryAcquire is refused.
func requireFull(t *testing.T, s *etcdlock.Semaphore, n int) {
	t.Helper()
	_, err := s.TryAcquire(context.Background(), n)
	require.ErrorIs(t, err, etcdlock.ErrLocked)
}

// An argument out of range is an error at once. It names the value.
func TestALimitAndPermitsAreInRange(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		for _, limit := range []int{0, -1, 65_536} {
			_, err := s.Semaphore("n", limit)
			require.ErrorContains(t, err, fmt.Sprintf("limit %d: must be 1 to 65535", limit))
			_, err = etcdlock.NewSemaphore(etcd.Client("op"), "n", limit)
			require.ErrorContains(t, err, fmt.Sprint(limit))
		}
		_, err := s.Semaphore("", 1)
		require.Error(t, err)
		sem := semaIn(t, s, 3)
		for _, n := range []int{0, -1, 4, 65_536} {
			_, err := sem.Acquire(context.Background(), n)
			require.ErrorContains(t, err, fmt.Sprintf("%d permits: must be 1 to the limit of 3", n))
			_, err = sem.TryAcquire(context.Background(), n)
			require.ErrorContains(t, err, fmt.Sprint(n))
			require.ErrorIs(t, sem.Do(context.Background(), n, func(context.Context) error { return nil }), etcdlock.ErrNotRun)
		}
		require.Equal(t, "n", sem.Name())
		require.Zero(t, len(etcd.Calls(fake.Txn)))
		most := semaIn(t, s, 65_535)
		done(t, acquireWithin(t, most, 65_535, time.Second))
		var zero etcdlock.Semaphore
		_, err = zero.Acquire(context.Background(), 1)
		require.ErrorContains(t, err, "not made with")
		require.Error(t, zero.Close(context.Background()))
		require.Equal(t, "", zero.Name())
	})
}

// The rows of the costs.
func TestWhatPermitsCost(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := semaIn(t, processIn(t, etcd, "a"), 40)
		done(t, acquireWithin(t, sem, 1, time.Second)) // has a lease from here on
		other := semaIn(t, processIn(t, etcd, "b"), 40)
		done(t, acquireWithin(t, other, 1, time.Second))

		var holds []*etcdlock.Hold
		for i := range 40 { // other holders of permits
			from := []*etcdlock.Semaphore{sem, other}[i%2]
			now := callsSince(etcd)
			holds = append(holds, acquireWithin(t, from, 1, time.Second))
			costs(t, now, "Txn 1", 1)
		}
		now := callsSince(etcd)
		requireFull(t, sem, 1)
		costs(t, now, "Txn 1", 0)
		now = callsSince(etcd)
		done(t, holds[7])
		costs(t, now, "Txn 1", 1)
		now = callsSince(etcd)
		h, err := other.TryAcquire(context.Background(), 1)
		require.NoError(t, err)
		costs(t, now, "Txn 2", 1)
		holds[7] = h
		for _, h := range holds {
			now = callsSince(etcd)
			done(t, h)
			costs(t, now, "Txn 1", 1)
		}
		now = callsSince(etcd)
		h, err = sem.TryAcquire(context.Background(), 40)
		require.NoError(t, err)
		costs(t, now, "Txn 1", 1)
		now = callsSince(etcd)
		requireFull(t, sem, 1)
		requireFull(t, other, 40)
		costs(t, now, "Txn 2", 0)
		done(t, h)

		for i := range 50 {
			key := fmt.Sprint("n/config", i)
			require.NoError(t, etcd.PutKey(key, clientv3.NoLease))
			defer etcd.DeleteKey(key)
		}
		now = callsSince(etcd)
		h, err = sem.TryAcquire(context.Background(), 1)
		require.NoError(t, err)
		c, r := now()
		require.Contains(t, []string{"Txn 1", "Txn 2"}, c, "beside stray keys")
		require.EqualValues(t, 1, r)
		done(t, h)
	})
}

// A permit waits until its own weight and the weights of all before it add up to no more
// than the limit, and no longer. Waiters count, so a large one is not overtaken.
func TestPermitsAreHeldUpToTheLimitInOrder(t *testing.T) {
	for _, where := range []string{"one Session", "many Sessions"} {
		t.Run(where, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				one, n := processIn(t, etcd, "one"), 0
				sem := func() *etcdlock.Semaphore {
					if where == "one Session" {
						return semaIn(t, one, 5)
					}
					n++
					return semaIn(t, processIn(t, etcd, fmt.Sprint("s", n)), 5)
				}
				a := acquireWithin(t, sem(), 2, time.Second)
				b := acquireWithin(t, sem(), 2, time.Second)
				c := acquireWithin(t, sem(), 1, time.Second)
				require.Greater(t, b.Token(), a.Token())
				require.Greater(t, c.Token(), b.Token())
				large := acquiresLater(sem(), 4)
				small := acquiresLater(sem(), 1)
				requireFull(t, sem(), 1)
				waits(t, large, "all permits are held")
				waits(t, small, "a large one came before it")
				done(t, a)
				waits(t, large, "2 are free")
				waits(t, small, "a large one came before it, though 2 are free")
				requireFull(t, sem(), 1)
				done(t, b)
				d := soonOr(t, large, "the large one does not get in")
				waits(t, small, "5 are held")
				done(t, c)
				e := soonOr(t, small, "the small one does not get in")
				requireFull(t, sem(), 1)
				done(t, d, e)
				done(t, acquireWithin(t, sem(), 5, time.Second))
			})
		})
	}
}

// While contenders disagree on the limit, the least limit in line counts. Each Semaphore
// that meets another limit warns once.
func TestTheLeastOfTheLimitsInLineCounts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		warned := func() int { synctest.Wait(); return strings.Count(log.String(), "another limit") }
		three := semaIn(t, processIn(t, etcd, "a", etcdlock.WithLogger(logger)), 3)
		five := semaIn(t, processIn(t, etcd, "b", etcdlock.WithLogger(logger)), 5)
		a := acquireWithin(t, five, 3, time.Second)
		require.Zero(t, warned())
		b := acquiresLater(three, 1) // its limit is 3, and 3 are held
		waits(t, b, "3 are held, and its limit is 3")
		require.Equal(t, 1, warned())
		c := acquiresLater(five, 1)
		waits(t, c, "one before it counts on 3")
		require.Equal(t, 2, warned())
		requireFull(t, three, 1)
		requireFull(t, five, 1)
		done(t, a)
		b1, c1 := soonOr(t, b, "it does not get in"), soonOr(t, c, "it does not get in")
		d := acquireWithin(t, five, 1, time.Second)
		requireFull(t, five, 1)
		require.Equal(t, 2, warned(), "once for each other limit")
		done(t, b1)
		e := acquireWithin(t, five, 3, time.Second)
		done(t, c1, d, e)
	})
}

// A Mutex takes all of a semaphore, and so do writers and readers of its name. Each waits
// for those before it, of its own Session and of others.
func TestPermitsAndOthersOfTheNameExclude(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			sessions := map[string]*etcdlock.Session{"a": processIn(t, etcd, "a"), "b": processIn(t, etcd, "b")}
			sem := semaIn(t, sessions["a"], 2)
			m := contract.MutexOf(t, sessions[where], "n")
			rw := rwIn(t, sessions[where])
			a, b := acquireWithin(t, sem, 1, time.Second), acquireWithin(t, sem, 1, time.Second)
			in := writesLater(m)
			c := acquiresLater(sem, 1)
			done(t, a)
			waits(t, in, "a permit is held")
			waits(t, c, "a Mutex waits before it")
			requireFull(t, sem, 1)
			require.ErrorIs(t, m.TryLock(context.Background()), etcdlock.ErrLocked)
			done(t, b)
			require.NoError(t, soonOr(t, in, "the Mutex does not get in"))
			waits(t, c, "a Mutex holds")
			requireFull(t, sem, 1)
			require.NoError(t, m.Unlock(context.Background()))
			c1 := soonOr(t, c, "the permit does not get in")
			r := readsLater(rw)
			d := acquiresLater(sem, 1)
			waits(t, r, "a permit is held")
			_, err := rw.TryRLock(context.Background())
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			waits(t, d, "one that reads waits before it")
			done(t, c1)
			r1 := soonOr(t, r, "the reader does not get in")
			waits(t, d, "one reads")
			done(t, r1)
			done(t, soonOr(t, d, "the permit does not get in"))
		})
	}
}

// A reader does not join the readers of its Session while a permit waits for them.
func TestNobodyJoinsReadsWhileAPermitWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := processIn(t, etcd, "a")
		first := readWithin(t, rwIn(t, a), time.Second)
		second := readWithin(t, rwIn(t, a), time.Second)
		in := acquiresLater(semaIn(t, processIn(t, etcd, "b"), 2), 1)
		third := readsLater(rwIn(t, a))
		waits(t, third, "a permit waits")
		_, err := rwIn(t, a).TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		done(t, first, second)
		h := soonOr(t, in, "the permit does not get in")
		waits(t, third, "a permit is held")
		done(t, h)
		done(t, soonOr(t, third, "it does not get in"))
	})
}

// Within a Session permits get in in the order of their calls, whoever waits in etcd's
// line. TryAcquire waits for etcd alone.
func TestPermitsOfASessionKeepTheirOrder(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := semaIn(t, processIn(t, etcd, "a"), 10)
		done(t, acquireWithin(t, sem, 1, time.Second))
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			e.Delay = 30 * time.Millisecond
			return e
		})
		var in []<-chan *etcdlock.Hold
		for range 5 {
			in = append(in, acquiresLater(sem, 1))
		}
		try := make(chan *etcdlock.Hold, 1)
		go func() {
			if h, err := sem.TryAcquire(context.Background(), 5); err == nil {
				try <- h
			}
		}()
		synctest.Wait()
		var holds []*etcdlock.Hold
		last := int64(0)
		for _, i := range append(in, try) {
			h := soonOr(t, i, "a permit is free")
			require.Greater(t, h.Token(), last)
			last = h.Token()
			holds = append(holds, h)
		}
		late, refused := acquiresLater(sem, 10), make(chan error, 1)
		go func() { _, err := sem.TryAcquire(context.Background(), 1); refused <- err }()
		require.ErrorIs(t, soonOr(t, refused, "TryAcquire waits for another"), etcdlock.ErrLocked)
		waits(t, late, "10 are held")
		done(t, holds...)
		done(t, soonOr(t, late, "it does not get in"))
	})
}

// A Session may have any number of permits, each with a key of its own.
func TestManyPermitsOfASession(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const n = 6000 // with so many, some would have one name if the library did not prevent it
		sem := semaIn(t, processIn(t, etcd, "a", etcdlock.WithTTL(10*time.Minute)), n)
		tokens := make(map[int64]bool)
		var holds []*etcdlock.Hold
		for range 300 {
			h := acquireWithin(t, sem, 20, time.Second)
			tokens[h.Token()] = true
			holds = append(holds, h)
		}
		require.Len(t, tokens, 300)
		requireFull(t, sem, 1)
		for _, h := range holds {
			require.NoError(t, h.Unlock(context.Background()))
		}
	})
}

// A repeating is a source of random bytes that gives each 16 bytes twice.
type repeating struct{ n, used int }

func (r *repeating) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.n >> 1 * (i%16 + 1))
		if r.used++; r.used%16 == 0 {
			r.n++
		}
	}
	return len(b), nil
}

// The random bits of two keys may be the same. Each permit has a key of its own all the
// same, and others wait for it.
func TestPermitsOfASessionHaveAKeyEach(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := semaIn(t, processIn(t, etcd, "a"), 2)
		done(t, acquireWithin(t, semaIn(t, processIn(t, etcd, "b"), 9), 1, time.Second))
		uuid.SetRand(&repeating{})
		defer uuid.SetRand(nil)
		a, b := acquireWithin(t, sem, 1, time.Second), acquireWithin(t, sem, 1, time.Second)
		require.NotEqual(t, a.Token(), b.Token())
		require.Len(t, etcd.Keys("n/"), 2)
		requireFull(t, sem, 1)
		done(t, a)
		requireReads(t, b)
		done(t, b)
	})
}

// A permit waits by watches. It does not miss those that go between its put and these
// watches: it reads the line once the watches are there.
func TestAPermitMissesNothingBeforeItsWatches(t *testing.T) {
	for _, behind := range []int{10, 60} { // all are known, or some
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			var holds []*etcdlock.Hold
			sem := semaIn(t, processIn(t, etcd, "a"), 10)
			for range 10 {
				holds = append(holds, acquireWithin(t, sem, 1, time.Second))
			}
			var line []<-chan *etcdlock.Hold
			for i := range behind {
				line = append(line, acquiresLater(semaIn(t, processIn(t, etcd, fmt.Sprint("b", i)), 10), 1))
			}
			last := semaIn(t, processIn(t, etcd, "last"), 10)
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Process == "last" && c.Method == fake.Watch {
					e.Delay = 300 * time.Millisecond
				}
				return e
			})
			in := acquiresLater(last, 1)
			done(t, holds...)
			for _, l := range line {
				done(t, soonOr(t, l, "it does not get in"))
			}
			start := time.Now()
			h := soonOr(t, in, "it does not get in")
			require.Less(t, time.Since(start), time.Second)
			etcd.Intercept(nil)
			done(t, h)
		})
	}
}

// A permit that waits behind Mutexes watches the last of them. It gets in when that one is
// gone, though it has learned of all the others meanwhile, and has not seen them go.
func TestAPermitBehindOthersGetsInWithTheLastOfThem(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var before []*etcdlock.Mutex
		var in []<-chan error
		for i := range 20 {
			mu := contract.MutexOf(t, processIn(t, etcd, fmt.Sprint("b", i)), "n")
			before, in = append(before, mu), append(in, writesLater(mu))
		}
		permit := acquiresLater(semaIn(t, processIn(t, etcd, "a"), 2), 1)
		unlock := func(n int) {
			for range n {
				require.NoError(t, soonOr(t, in[0], "it does not get in"))
				require.NoError(t, before[0].Unlock(context.Background()))
				before, in = before[1:], in[1:]
			}
		}
		unlock(14)
		time.Sleep(time.Minute) // it has read the line meanwhile: six are left
		start := time.Now()
		unlock(6)
		done(t, soonOr(t, permit, "it does not get in"))
		require.Less(t, time.Since(start), time.Second)
	})
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) { // or permits, with a Mutex before them
		mu := contract.MutexOf(t, processIn(t, etcd, "first"), "n")
		lockWithin(t, mu, time.Second)
		var before []<-chan *etcdlock.Hold
		for i := range 9 {
			before = append(before, acquiresLater(semaIn(t, processIn(t, etcd, fmt.Sprint("b", i)), 2), 1))
		}
		permit := acquiresLater(semaIn(t, processIn(t, etcd, "a"), 2), 1)
		time.Sleep(time.Minute)
		start := time.Now()
		require.NoError(t, mu.Unlock(context.Background()))
		for _, in := range before {
			done(t, soonOr(t, in, "it does not get in"))
		}
		done(t, soonOr(t, permit, "it does not get in"))
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
					inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						first := semaIn(t, processIn(t, etcd, "first"), limit)
						var line []*etcdlock.Hold
						for range limit {
							line = append(line, acquireWithin(t, first, 1, time.Second))
						}
						var keys []string
						for i := range behind {
							keys = append(keys, stranger(t, etcd, i, limit))
						}
						in := acquiresLater(semaIn(t, processIn(t, etcd, "last"), limit), 1)
						own := etcd.Keys("n/")[limit+behind]
						time.Sleep(time.Second)
						happens(etcd, own)
						if what == "its key is deleted" {
							time.Sleep(5 * time.Second)
							require.Len(t, etcd.Keys("n/"), limit+behind+1, "it queues anew")
						}
						left := limit + behind
						goes := func() {
							waits(t, in, "the limit is reached")
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
						h := soonOr(t, in, "it does not get in")
						require.LessOrEqual(t, time.Since(start), 15*time.Second)
						etcd.Intercept(nil)
						done(t, h)
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
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
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
			in := acquiresLater(semaIn(t, processIn(t, etcd, "last"), limit), 1)
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
			done(t, soonOr(t, in, "it does not get in"))
		})
	}
}

// etcd is restored from a snapshot. A permit whose key is gone with that is lost. One whose
// key is there again goes on. A waiter gets in when there is room, by the keys that are
// there.
func TestPermitsAfterEtcdWasSetBack(t *testing.T) {
	for _, behind := range []int{0, 40} { // in a short line and in a long one
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			a, b, c := semaIn(t, processIn(t, etcd, "a"), 2), semaIn(t, processIn(t, etcd, "b"), 2), processIn(t, etcd, "c")
			stays := acquireWithin(t, a, 1, time.Second)
			done(t, acquireWithin(t, b, 1, time.Second))
			done(t, acquireWithin(t, semaIn(t, c, 2), 1, time.Second))
			restore := etcd.Save()
			gone := acquireWithin(t, b, 1, time.Second)
			var line []<-chan *etcdlock.Hold
			for i := range behind {
				line = append(line, acquiresLater(semaIn(t, processIn(t, etcd, fmt.Sprint("w", i)), 2), 1))
			}
			in := acquiresLater(semaIn(t, c, 2), 2)
			lost := gone.Context(context.Background())
			restore(2)
			<-lost.Done()
			require.ErrorIs(t, gone.Unlock(context.Background()), etcdlock.ErrLost)
			requireReads(t, stays)
			done(t, stays)
			line = append(line, in)
			for range line {
				got := false
				for at := 0; !got; at = (at + 1) % len(line) { // they queue anew, in any order
					select {
					case h := <-line[at]:
						done(t, h)
						got = true
					default:
						time.Sleep(100 * time.Millisecond)
					}
				}
			}
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var bytes atomic.Int64
				etcd.Intercept(func(fake.Call) fake.Effect {
					return fake.Effect{Edit: func(reply any) {
						bytes.Add(sizeOf(reply))
					}}
				})
				holder := semaIn(t, processIn(t, etcd, "holder"), limit)
				var holds []*etcdlock.Hold
				for range limit {
					holds = append(holds, acquireWithin(t, holder, 1, time.Second))
				}
				in := make(chan *etcdlock.Hold, n)
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				for i := range n {
					sem := semaIn(t, processIn(t, etcd, fmt.Sprint(i), etcdlock.WithTTL(time.Hour)), limit)
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

// Calls with a context that derives from a hold of the name: permits beside permits are
// legal, and a caller that would wait for itself gets an error.
func TestPermitsWithinHolds(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a", etcdlock.WithReentrancy())
		sem, rw := semaIn(t, s, 3), rwIn(t, s)
		require.NoError(t, sem.Do(context.Background(), 1, func(ctx context.Context) error {
			h, err := sem.Acquire(ctx, 2)
			require.NoError(t, err)
			token, _ := etcdlock.TokenFrom(ctx)
			require.Greater(t, h.Token(), token)
			requireFull(t, sem, 1)
			done(t, h)
			require.ErrorIs(t, rw.Lock(ctx), etcdlock.ErrDeadlock)
			_, err = rw.RLock(ctx)
			require.ErrorIs(t, err, etcdlock.ErrDeadlock)
			return nil
		}))
		require.NoError(t, rw.Do(context.Background(), func(ctx context.Context) error {
			_, err := sem.Acquire(ctx, 1)
			require.ErrorIs(t, err, etcdlock.ErrDeadlock)
			return nil
		}))
	})
}

// An Acquire within a permit stands in line as any other. Behind a Mutex, which waits for that very
// permit, it waits until its context ends or the permit is unlocked, though others are free.
func TestAnAcquireWithinAPermitWaitsBehindAMutex(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		t.Run("of "+where, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				mutexes := map[string]*etcdlock.Session{"a": s, "b": processIn(t, etcd, "b")}
				sem, mu := semaIn(t, s, 3), contract.MutexOf(t, mutexes[where], "n")
				outer := acquireWithin(t, sem, 1, time.Second)
				writes := writesLater(mu)
				bounded, cancel := context.WithTimeout(outer.Context(context.Background()), time.Minute)
				defer cancel()
				_, err := sem.Acquire(bounded, 1)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				waits(t, writes, "the permit is held")

				inner := make(chan *etcdlock.Hold, 1)
				go func() {
					h, err := sem.Acquire(context.WithoutCancel(outer.Context(context.Background())), 1)
					require.NoError(t, err)
					inner <- h
				}()
				time.Sleep(time.Hour)
				waits(t, inner, "the Mutex came before")
				done(t, outer)
				require.NoError(t, soonOr(t, writes, "the Mutex does not get in"))
				require.NoError(t, mu.Unlock(context.Background()))
				done(t, soonOr(t, inner, "the permit does not get in"))
			})
		})
	}
}

// A permit that is lost takes no other with it. A waiter that loses its key queues anew.
func TestPermitsAreLostOneByOne(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem, other := semaIn(t, processIn(t, etcd, "a"), 2), semaIn(t, processIn(t, etcd, "b"), 2)
		a, b := acquireWithin(t, sem, 1, time.Second), acquireWithin(t, sem, 1, time.Second)
		c := acquiresLater(other, 1)
		time.Sleep(2 * time.Second) // holds that last are watched
		in, err := etcdlock.Contenders(context.Background(), etcd.Client("op"), "n")
		require.NoError(t, err)
		require.Len(t, in, 3)
		for i, holds := range []bool{true, true, false} {
			require.Equal(t, "permit", in[i].Mode)
			require.Equal(t, holds, in[i].Holds)
		}
		holders, err := etcdlock.Holders(context.Background(), etcd.Client("op"), "")
		require.NoError(t, err)
		require.Len(t, holders, 2)
		require.NoError(t, etcdlock.Break(context.Background(), etcd.Client("op"), in[2]))
		time.Sleep(5 * time.Second)
		in2, err := etcdlock.Contenders(context.Background(), etcd.Client("op"), "n")
		require.NoError(t, err)
		require.Len(t, in2, 3, "it queues anew")
		require.Greater(t, in2[2].Token, in[2].Token)
		require.NoError(t, etcdlock.Break(context.Background(), etcd.Client("op"), in[0]))
		time.Sleep(100 * time.Millisecond)
		require.Zero(t, a.Token())
		requireReads(t, b)
		require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrLost)
		c1 := soonOr(t, c, "a permit is free")
		require.NoError(t, etcdlock.Break(context.Background(), etcd.Client("op"), in[1]))
		time.Sleep(100 * time.Millisecond)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrLost)
		done(t, c1)
	})
}

// A permit has come to hold by the view of the line. Once the view is for another permit of
// the Session, which waits, the first one's key is watched.
func TestAPermitIsWatchedWhileAnotherOfItsSessionWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem, other := semaIn(t, processIn(t, etcd, "a"), 2), semaIn(t, processIn(t, etcd, "b"), 2)
		before := acquireWithin(t, other, 2, time.Second)
		in := acquiresLater(sem, 1)
		done(t, before)
		first := soonOr(t, in, "it does not get in")
		in = acquiresLater(sem, 2)
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
		done(t, soonOr(t, in, "it does not get in"))
	})
}

// A permit has come to hold by the view of the line, and the view is now for another permit
// of the Session. The first one still learns what happens to its key, even if the other one
// gives up and no event follows.
func TestAPermitIsToldOfWhatHappensWhileAnotherOfItsSessionWaits(t *testing.T) {
	for _, what := range []string{"recalled", "deleted"} {
		t.Run(what, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				sem, other := semaIn(t, processIn(t, etcd, "a"), 2, listens), semaIn(t, processIn(t, etcd, "b"), 2)
				before := acquireWithin(t, other, 2, time.Second)
				in := acquiresLater(sem, 1)
				done(t, before)
				first := soonOr(t, in, "it does not get in")
				hold := first.Context(context.Background())
				began := time.Now()

				ctx, giveUp := context.WithCancel(context.Background())
				second := contract.Async(func() error {
					_, err := sem.Acquire(ctx, 2)
					return err
				})
				synctest.Wait()
				if what == "recalled" {
					recallAt(t, etcd, 0, virtualTTL)
				} else {
					etcd.DeleteKey(placeOf(t, etcd, "n", 0).Key)
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
				require.LessOrEqual(t, time.Since(began), watchedBy+keeperTick)
				_ = first.Unlock(context.Background())
			})
		})
	}
}

// The permits of a dead process come back with its lease. A process that is cut off knows
// before that.
func TestThePermitsOfTheDeadComeBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem, other := semaIn(t, processIn(t, etcd, "a"), 3), semaIn(t, processIn(t, etcd, "b"), 3)
		a, b := acquireWithin(t, sem, 1, time.Second), acquireWithin(t, sem, 2, time.Second)
		ca, cb := a.Context(context.Background()), b.Context(context.Background())
		in := acquiresLater(other, 3)
		etcd.Cut("a")
		began := time.Now()
		h := soonWithin(t, in, 2*virtualTTL)
		require.GreaterOrEqual(t, time.Since(began), virtualTTL/2)
		require.Error(t, ca.Err())
		require.Error(t, cb.Err())
		etcd.Heal("a")
		require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrLost)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrLost)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrNotHeld)
		done(t, h)
		done(t, acquireWithin(t, sem, 3, 10*time.Second))
	})
}

func soonWithin[T any](t *testing.T, in <-chan T, most time.Duration) T {
	t.Helper()
	select {
	case v := <-in:
		return v
	case <-time.After(most):
		t.Fatal("it does not get in")
		panic("")
	}
}

// Close ends the waits and the holds of a Semaphore, and of no other.
func TestCloseOfASemaphore(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		sem, other := semaIn(t, s, 3), semaIn(t, s, 3)
		a, b := acquireWithin(t, sem, 1, time.Second), acquireWithin(t, sem, 1, time.Second)
		stays := acquireWithin(t, other, 1, time.Second)
		ctx := a.Context(context.Background())
		waiting := make(chan error, 1)
		go func() { _, err := sem.Acquire(context.Background(), 1); waiting <- err }()
		behind := acquiresLater(other, 2)
		synctest.Wait()
		require.NoError(t, sem.Close(context.Background()))
		require.ErrorIs(t, <-waiting, etcdlock.ErrClosed)
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrNotHeld)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrNotHeld)
		requireReads(t, stays)
		_, err := sem.Acquire(context.Background(), 1)
		require.ErrorIs(t, err, etcdlock.ErrClosed)
		done(t, stays, soonOr(t, behind, "2 are free"))
	})
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("op")
		sem, err := etcdlock.NewSemaphore(client, "n", 2)
		require.NoError(t, err)
		_ = acquireWithin(t, sem, 2, time.Second)
		require.NoError(t, sem.Close(context.Background()))
		require.Empty(t, etcd.Keys("n/"))
	})
}

// WithMaxHold ends each hold. Its context and WithAcquireTimeout bound a wait.
func TestPermitsKeepTheOptions(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		sem := semaIn(t, s, 2, etcdlock.WithMaxHold(3*time.Second))
		h := acquireWithin(t, sem, 2, time.Second)
		ctx := h.Context(context.Background())
		patient := semaIn(t, s, 2, etcdlock.WithAcquireTimeout(time.Second))
		_, err := patient.Acquire(context.Background(), 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "2nd in line")
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrMaxHold)
		done(t, acquireWithin(t, patient, 2, time.Second))
	})
}

// One permit of several is recalled alone: the others go on, and its own Unlock frees what
// it held, not earlier. Each permit reports what its Semaphore was given.
func TestAPermitIsRecalledAlone(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := semaIn(t, processIn(t, etcd, "a"), 2, listens, etcdlock.WithInfo("rack 7"))
		first, second := acquireWithin(t, sem, 1, time.Second), acquireWithin(t, sem, 1, time.Second)
		next := acquiresLater(semaIn(t, processIn(t, etcd, "b"), 2), 1)
		stays, goes := first.Context(context.Background()), second.Context(context.Background())
		time.Sleep(watchedBy)
		line, err := etcdlock.Contenders(context.Background(), etcd.Client("operator"), "n")
		require.NoError(t, err)
		require.Len(t, line, 3)
		require.Equal(t, "rack 7", line[1].Info)

		start := time.Now()
		recallAt(t, etcd, 1, 3*time.Second)
		require.Zero(t, recalledAfter(t, goes, start))
		require.Equal(t, 3*time.Second, endsAfter(t, goes, start))
		require.ErrorIs(t, context.Cause(goes), etcdlock.ErrRecalled)
		time.Sleep(3 * virtualTTL)
		require.Empty(t, next, "the permit has not come back yet")
		require.False(t, isRecalled(stays))
		require.NoError(t, stays.Err())
		require.NoError(t, second.Unlock(context.Background()))
		done(t, <-next)
		done(t, first)
		require.Empty(t, etcd.Keys("n/"))
	})
}
