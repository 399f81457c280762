package kinds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// requireFull requires that a TryAcquire is refused.
func requireFull(t *testing.T, s *etcdlock.Semaphore, n int) {
	t.Helper()
	_, err := s.TryAcquire(context.Background(), n)
	require.ErrorIs(t, err, etcdlock.ErrLocked)
}

// An argument out of range is an error at once. It names the value.
func TestALimitAndPermitsAreInRange(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		for _, limit := range []int{0, -1, 65_536} {
			_, err := s.Semaphore("n", limit)
			require.ErrorContains(t, err, fmt.Sprintf("limit %d: must be 1 to 65535", limit))
			_, err = etcdlock.NewSemaphore(etcd.Client("op"), "n", limit)
			require.ErrorContains(t, err, fmt.Sprint(limit))
		}
		_, err := s.Semaphore("", 1)
		require.Error(t, err)
		sem := tests.SemaphoreOf(t, s, 3)
		for _, n := range []int{0, -1, 4, 65_536} {
			_, err := sem.Acquire(context.Background(), n)
			require.ErrorContains(t, err, fmt.Sprintf("%d permits: must be 1 to the limit of 3", n))
			_, err = sem.TryAcquire(context.Background(), n)
			require.ErrorContains(t, err, fmt.Sprint(n))
			require.ErrorIs(t, sem.Do(context.Background(), n, func(context.Context) error {
				return nil
			}), etcdlock.ErrNotRun)
		}
		require.Equal(t, "n", sem.Name())
		require.Zero(t, len(etcd.Calls(fake.Txn)))
		most := tests.SemaphoreOf(t, s, 65_535)
		tests.UnlockAll(t, tests.AcquireWithin(t, most, 65_535, time.Second))
		var zero etcdlock.Semaphore
		_, err = zero.Acquire(context.Background(), 1)
		require.ErrorContains(t, err, "not made with")
		require.Error(t, zero.Close(context.Background()))
		require.Equal(t, "", zero.Name())
	})
}

// The rows of the costs.
func TestWhatPermitsCost(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 40)
		tests.UnlockAll(t, tests.AcquireWithin(t, sem, 1, time.Second)) // has a lease from here on
		other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 40)
		tests.UnlockAll(t, tests.AcquireWithin(t, other, 1, time.Second))

		var holds []*etcdlock.Hold
		for i := range 40 { // other holders of permits
			from := []*etcdlock.Semaphore{sem, other}[i%2]
			now := tests.CallsSince(etcd)
			holds = append(holds, tests.AcquireWithin(t, from, 1, time.Second))
			tests.Costs(t, now, "Txn 1", 1)
		}
		now := tests.CallsSince(etcd)
		requireFull(t, sem, 1)
		tests.Costs(t, now, "Txn 1", 0)
		now = tests.CallsSince(etcd)
		tests.UnlockAll(t, holds[7])
		tests.Costs(t, now, "Txn 1", 1)
		now = tests.CallsSince(etcd)
		h, err := other.TryAcquire(context.Background(), 1)
		require.NoError(t, err)
		tests.Costs(t, now, "Txn 2", 1)
		holds[7] = h
		for _, h := range holds {
			now = tests.CallsSince(etcd)
			tests.UnlockAll(t, h)
			tests.Costs(t, now, "Txn 1", 1)
		}
		now = tests.CallsSince(etcd)
		h, err = sem.TryAcquire(context.Background(), 40)
		require.NoError(t, err)
		tests.Costs(t, now, "Txn 1", 1)
		now = tests.CallsSince(etcd)
		requireFull(t, sem, 1)
		requireFull(t, other, 40)
		tests.Costs(t, now, "Txn 2", 0)
		tests.UnlockAll(t, h)

		for i := range 50 {
			key := fmt.Sprint("n/config", i)
			require.NoError(t, etcd.PutKey(key, clientv3.NoLease))
			defer etcd.DeleteKey(key)
		}
		now = tests.CallsSince(etcd)
		h, err = sem.TryAcquire(context.Background(), 1)
		require.NoError(t, err)
		c, r := now()
		require.Contains(t, []string{"Txn 1", "Txn 2"}, c, "beside stray keys")
		require.EqualValues(t, 1, r)
		tests.UnlockAll(t, h)
	})
}

// A permit waits until its own weight and the weights of all before it add up to no more
// than the limit, and no longer. Waiters count, so a large one is not overtaken.
func TestPermitsAreHeldUpToTheLimitInOrder(t *testing.T) {
	for _, where := range []string{"one Session", "many Sessions"} {
		t.Run(where, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				one, n := tests.SessionOf(t, etcd, "one"), 0
				sem := func() *etcdlock.Semaphore {
					if where == "one Session" {
						return tests.SemaphoreOf(t, one, 5)
					}
					n++
					return tests.SemaphoreOf(t, tests.SessionOf(t, etcd, fmt.Sprint("s", n)), 5)
				}
				a := tests.AcquireWithin(t, sem(), 2, time.Second)
				b := tests.AcquireWithin(t, sem(), 2, time.Second)
				c := tests.AcquireWithin(t, sem(), 1, time.Second)
				require.Greater(t, b.Token(), a.Token())
				require.Greater(t, c.Token(), b.Token())
				large := tests.AcquireLater(sem(), 4)
				small := tests.AcquireLater(sem(), 1)
				requireFull(t, sem(), 1)
				tests.StillWaits(t, large, "all permits are held")
				tests.StillWaits(t, small, "a large one came before it")
				tests.UnlockAll(t, a)
				tests.StillWaits(t, large, "2 are free")
				tests.StillWaits(t, small, "a large one came before it, though 2 are free")
				requireFull(t, sem(), 1)
				tests.UnlockAll(t, b)
				d := tests.SoonOr(t, large, "the large one does not get in")
				tests.StillWaits(t, small, "5 are held")
				tests.UnlockAll(t, c)
				e := tests.SoonOr(t, small, "the small one does not get in")
				requireFull(t, sem(), 1)
				tests.UnlockAll(t, d, e)
				tests.UnlockAll(t, tests.AcquireWithin(t, sem(), 5, time.Second))
			})
		})
	}
}

// While contenders disagree on the limit, the least limit in line counts. Each Semaphore
// that meets another limit warns once.
func TestTheLeastOfTheLimitsInLineCounts(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		warned := func() int { synctest.Wait(); return strings.Count(log.String(), "another limit") }
		three := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithLogger(logger)), 3)
		five := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b", etcdlock.WithLogger(logger)), 5)
		a := tests.AcquireWithin(t, five, 3, time.Second)
		require.Zero(t, warned())
		b := tests.AcquireLater(three, 1) // its limit is 3, and 3 are held
		tests.StillWaits(t, b, "3 are held, and its limit is 3")
		require.Equal(t, 1, warned())
		c := tests.AcquireLater(five, 1)
		tests.StillWaits(t, c, "one before it counts on 3")
		require.Equal(t, 2, warned())
		requireFull(t, three, 1)
		requireFull(t, five, 1)
		tests.UnlockAll(t, a)
		b1, c1 := tests.SoonOr(t, b, "it does not get in"), tests.SoonOr(t, c, "it does not get in")
		d := tests.AcquireWithin(t, five, 1, time.Second)
		requireFull(t, five, 1)
		require.Equal(t, 2, warned(), "once for each other limit")
		tests.UnlockAll(t, b1)
		e := tests.AcquireWithin(t, five, 3, time.Second)
		tests.UnlockAll(t, c1, d, e)
	})
}

// A Mutex takes all of a semaphore, and so do writers and readers of its name. Each waits
// for those before it, of its own Session and of others.
func TestPermitsAndOthersOfTheNameExclude(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			sessions := map[string]*etcdlock.Session{"a": tests.SessionOf(t, etcd, "a"),
				"b": tests.SessionOf(t, etcd, "b")}
			sem := tests.SemaphoreOf(t, sessions["a"], 2)
			m := contract.MutexOf(t, sessions[where], "n")
			rw := tests.RWMutexOf(t, sessions[where])
			a, b := tests.AcquireWithin(t, sem, 1, time.Second), tests.AcquireWithin(t, sem, 1, time.Second)
			in := tests.LockLater(m)
			c := tests.AcquireLater(sem, 1)
			tests.UnlockAll(t, a)
			tests.StillWaits(t, in, "a permit is held")
			tests.StillWaits(t, c, "a Mutex waits before it")
			requireFull(t, sem, 1)
			require.ErrorIs(t, m.TryLock(context.Background()), etcdlock.ErrLocked)
			tests.UnlockAll(t, b)
			require.NoError(t, tests.SoonOr(t, in, "the Mutex does not get in"))
			tests.StillWaits(t, c, "a Mutex holds")
			requireFull(t, sem, 1)
			require.NoError(t, m.Unlock(context.Background()))
			c1 := tests.SoonOr(t, c, "the permit does not get in")
			r := tests.RLockLater(rw)
			d := tests.AcquireLater(sem, 1)
			tests.StillWaits(t, r, "a permit is held")
			_, err := rw.TryRLock(context.Background())
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			tests.StillWaits(t, d, "one that reads waits before it")
			tests.UnlockAll(t, c1)
			r1 := tests.SoonOr(t, r, "the reader does not get in")
			tests.StillWaits(t, d, "one reads")
			tests.UnlockAll(t, r1)
			tests.UnlockAll(t, tests.SoonOr(t, d, "the permit does not get in"))
		})
	}
}

// A reader does not join the readers of its Session while a permit waits for them.
func TestNobodyJoinsReadsWhileAPermitWaits(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := tests.SessionOf(t, etcd, "a")
		first := tests.RLockWithin(t, tests.RWMutexOf(t, a), time.Second)
		second := tests.RLockWithin(t, tests.RWMutexOf(t, a), time.Second)
		in := tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 2), 1)
		third := tests.RLockLater(tests.RWMutexOf(t, a))
		tests.StillWaits(t, third, "a permit waits")
		_, err := tests.RWMutexOf(t, a).TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		tests.UnlockAll(t, first, second)
		h := tests.SoonOr(t, in, "the permit does not get in")
		tests.StillWaits(t, third, "a permit is held")
		tests.UnlockAll(t, h)
		tests.UnlockAll(t, tests.SoonOr(t, third, "it does not get in"))
	})
}

// Within a Session permits get in in the order of their calls, whoever waits in etcd's
// line. TryAcquire waits for etcd alone.
func TestPermitsOfASessionKeepTheirOrder(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 10)
		tests.UnlockAll(t, tests.AcquireWithin(t, sem, 1, time.Second))
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			e.Delay = 30 * time.Millisecond
			return e
		})
		var in []<-chan *etcdlock.Hold
		for range 5 {
			in = append(in, tests.AcquireLater(sem, 1))
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
			h := tests.SoonOr(t, i, "a permit is free")
			require.Greater(t, h.Token(), last)
			last = h.Token()
			holds = append(holds, h)
		}
		late, refused := tests.AcquireLater(sem, 10), make(chan error, 1)
		go func() { _, err := sem.TryAcquire(context.Background(), 1); refused <- err }()
		require.ErrorIs(t, tests.SoonOr(t, refused, "TryAcquire waits for another"), etcdlock.ErrLocked)
		tests.StillWaits(t, late, "10 are held")
		tests.UnlockAll(t, holds...)
		tests.UnlockAll(t, tests.SoonOr(t, late, "it does not get in"))
	})
}

// A Session may have any number of permits, each with a key of its own.
func TestManyPermitsOfASession(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const n = 6000 // with so many, some would have one name if the library did not prevent it
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(10*time.Minute)), n)
		tokens := make(map[int64]bool)
		var holds []*etcdlock.Hold
		for range 300 {
			h := tests.AcquireWithin(t, sem, 20, time.Second)
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2)
		tests.UnlockAll(t, tests.AcquireWithin(t, tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 9),
			1, time.Second))
		uuid.SetRand(&repeating{})
		defer uuid.SetRand(nil)
		a, b := tests.AcquireWithin(t, sem, 1, time.Second), tests.AcquireWithin(t, sem, 1, time.Second)
		require.NotEqual(t, a.Token(), b.Token())
		require.Len(t, etcd.Keys("n/"), 2)
		requireFull(t, sem, 1)
		tests.UnlockAll(t, a)
		tests.RequireHolds(t, b)
		tests.UnlockAll(t, b)
	})
}

// etcd is restored from a snapshot. A permit whose key is gone with that is lost. One whose
// key is there again goes on. A waiter gets in when there is room, by the keys that are
// there.
func TestPermitsAfterEtcdWasSetBack(t *testing.T) {
	for _, behind := range []int{0, 40} { // in a short line and in a long one
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			a := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2)
			b := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 2)
			c := tests.SessionOf(t, etcd, "c")
			stays := tests.AcquireWithin(t, a, 1, time.Second)
			tests.UnlockAll(t, tests.AcquireWithin(t, b, 1, time.Second))
			tests.UnlockAll(t, tests.AcquireWithin(t, tests.SemaphoreOf(t, c, 2), 1, time.Second))
			restore := etcd.Save()
			gone := tests.AcquireWithin(t, b, 1, time.Second)
			var line []<-chan *etcdlock.Hold
			for i := range behind {
				line = append(line,
					tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, fmt.Sprint("w", i)), 2), 1))
			}
			in := tests.AcquireLater(tests.SemaphoreOf(t, c, 2), 2)
			lost := gone.Context(context.Background())
			restore(2)
			<-lost.Done()
			require.ErrorIs(t, gone.Unlock(context.Background()), etcdlock.ErrLost)
			tests.RequireHolds(t, stays)
			tests.UnlockAll(t, stays)
			line = append(line, in)
			for range line {
				got := false
				for at := 0; !got; at = (at + 1) % len(line) { // they queue anew, in any order
					select {
					case h := <-line[at]:
						tests.UnlockAll(t, h)
						got = true
					default:
						time.Sleep(100 * time.Millisecond)
					}
				}
			}
		})
	}
}

// Calls with a context that derives from a hold of the name: permits beside permits are
// legal, and a caller that would wait for itself gets an error.
func TestPermitsWithinHolds(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy())
		sem, rw := tests.SemaphoreOf(t, s, 3), tests.RWMutexOf(t, s)
		require.NoError(t, sem.Do(context.Background(), 1, func(ctx context.Context) error {
			h, err := sem.Acquire(ctx, 2)
			require.NoError(t, err)
			token, _ := etcdlock.TokenFrom(ctx)
			require.Greater(t, h.Token(), token)
			requireFull(t, sem, 1)
			tests.UnlockAll(t, h)
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mutexes := map[string]*etcdlock.Session{"a": s, "b": tests.SessionOf(t, etcd, "b")}
				sem, mu := tests.SemaphoreOf(t, s, 3), contract.MutexOf(t, mutexes[where], "n")
				outer := tests.AcquireWithin(t, sem, 1, time.Second)
				writes := tests.LockLater(mu)
				bounded, cancel := context.WithTimeout(outer.Context(context.Background()), time.Minute)
				defer cancel()
				_, err := sem.Acquire(bounded, 1)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				tests.StillWaits(t, writes, "the permit is held")

				inner := make(chan *etcdlock.Hold, 1)
				go func() {
					h, err := sem.Acquire(context.WithoutCancel(outer.Context(context.Background())), 1)
					require.NoError(t, err)
					inner <- h
				}()
				time.Sleep(time.Hour)
				tests.StillWaits(t, inner, "the Mutex came before")
				tests.UnlockAll(t, outer)
				require.NoError(t, tests.SoonOr(t, writes, "the Mutex does not get in"))
				require.NoError(t, mu.Unlock(context.Background()))
				tests.UnlockAll(t, tests.SoonOr(t, inner, "the permit does not get in"))
			})
		})
	}
}

// A permit that is lost takes no other with it. A waiter that loses its key queues anew.
func TestPermitsAreLostOneByOne(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2)
		other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 2)
		a, b := tests.AcquireWithin(t, sem, 1, time.Second), tests.AcquireWithin(t, sem, 1, time.Second)
		c := tests.AcquireLater(other, 1)
		time.Sleep(2 * time.Second) // holds that last are watched
		in, err := etcdlock.Contenders(context.Background(), etcd.Client("op"), "n")
		require.NoError(t, err)
		require.Len(t, in, 3)
		for i, holds := range []bool{true, true, false} {
			require.Equal(t, etcdlock.ModePermit, in[i].Mode)
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
		tests.RequireHolds(t, b)
		require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrLost)
		c1 := tests.SoonOr(t, c, "a permit is free")
		require.NoError(t, etcdlock.Break(context.Background(), etcd.Client("op"), in[1]))
		time.Sleep(100 * time.Millisecond)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrLost)
		tests.UnlockAll(t, c1)
	})
}

// The permits of a dead process come back with its lease. A process that is cut off knows
// before that.
func TestThePermitsOfTheDeadComeBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 3)
		other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 3)
		a, b := tests.AcquireWithin(t, sem, 1, time.Second), tests.AcquireWithin(t, sem, 2, time.Second)
		ca, cb := a.Context(context.Background()), b.Context(context.Background())
		in := tests.AcquireLater(other, 3)
		etcd.Cut("a")
		began := time.Now()
		h := soonWithin(t, in, 2*tests.TTL)
		require.GreaterOrEqual(t, time.Since(began), tests.TTL/2)
		require.Error(t, ca.Err())
		require.Error(t, cb.Err())
		etcd.Heal("a")
		require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrLost)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrLost)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrNotHeld)
		tests.UnlockAll(t, h)
		tests.UnlockAll(t, tests.AcquireWithin(t, sem, 3, 10*time.Second))
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		sem, other := tests.SemaphoreOf(t, s, 3), tests.SemaphoreOf(t, s, 3)
		a, b := tests.AcquireWithin(t, sem, 1, time.Second), tests.AcquireWithin(t, sem, 1, time.Second)
		stays := tests.AcquireWithin(t, other, 1, time.Second)
		ctx := a.Context(context.Background())
		waiting := make(chan error, 1)
		go func() { _, err := sem.Acquire(context.Background(), 1); waiting <- err }()
		behind := tests.AcquireLater(other, 2)
		synctest.Wait()
		require.NoError(t, sem.Close(context.Background()))
		require.ErrorIs(t, <-waiting, etcdlock.ErrClosed)
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.ErrorIs(t, a.Unlock(context.Background()), etcdlock.ErrNotHeld)
		require.ErrorIs(t, b.Unlock(context.Background()), etcdlock.ErrNotHeld)
		tests.RequireHolds(t, stays)
		_, err := sem.Acquire(context.Background(), 1)
		require.ErrorIs(t, err, etcdlock.ErrClosed)
		tests.UnlockAll(t, stays, tests.SoonOr(t, behind, "2 are free"))
	})
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("op")
		sem, err := etcdlock.NewSemaphore(client, "n", 2)
		require.NoError(t, err)
		_ = tests.AcquireWithin(t, sem, 2, time.Second)
		require.NoError(t, sem.Close(context.Background()))
		require.Empty(t, etcd.Keys("n/"))
	})
}

// etcd does not answer, so Close does not learn whether the first permit is released. It gives up
// the others all the same: their keys go once etcd answers.
func TestACloseThatIsNotConfirmedGivesUpEachPermit(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 3)
		for range 3 {
			tests.AcquireWithin(t, sem, 1, time.Second)
		}
		etcd.Freeze()
		require.ErrorIs(t, sem.Close(tests.Within(t, time.Second)), etcdlock.ErrUnconfirmed)
		etcd.Thaw()
		other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 3)
		tests.UnlockAll(t, tests.AcquireWithin(t, other, 3, tests.TTL))
	})
}

// WithMaxHold has ended the first permit, and etcd does not carry out the removal of its key. Close
// tells that, though the key of the last permit is gone.
func TestACloseTellsWhetherTheKeyOfEachPermitIsGone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		sem := tests.SemaphoreOf(t, s, 2, etcdlock.WithMaxHold(2*time.Second))
		key := tests.AcquireWithin(t, sem, 1, time.Second).Key()
		time.Sleep(time.Second)
		tests.AcquireWithin(t, sem, 1, time.Second)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: slices.Contains(c.Deletes, key)}
		})
		time.Sleep(1500 * time.Millisecond)
		require.ErrorIs(t, sem.Close(tests.Within(t, time.Second)), etcdlock.ErrUnconfirmed)
		require.Equal(t, []string{key}, etcd.Keys("n/"))
	})
}

// The bound of a Close whose context never ends is that of one Unlock, however many permits it
// releases. If it gives a lease back it is two TTLs.
func TestACloseWithAContextThatNeverEndsIsBounded(t *testing.T) {
	for _, own := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			sem, most := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 3), 5*time.Second
			if own {
				var err error
				sem, err = etcdlock.NewSemaphore(etcd.Client("c"), "n", 3, etcdlock.WithTTL(tests.TTL))
				require.NoError(t, err)
				most = 2 * tests.TTL
			}
			for range 3 {
				tests.AcquireWithin(t, sem, 1, time.Second)
			}
			etcd.Freeze()
			start := time.Now()
			require.ErrorIs(t, sem.Close(context.Background()), etcdlock.ErrUnconfirmed)
			require.Equal(t, most, time.Since(start))
			etcd.Thaw()
			other := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 3)
			tests.UnlockAll(t, tests.AcquireWithin(t, other, 3, tests.TTL))
		})
	}
}

// WithMaxHold ends each hold. Its context and WithAcquireTimeout bound a wait.
func TestPermitsKeepTheOptions(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		sem := tests.SemaphoreOf(t, s, 2, etcdlock.WithMaxHold(3*time.Second))
		h := tests.AcquireWithin(t, sem, 2, time.Second)
		ctx := h.Context(context.Background())
		patient := tests.SemaphoreOf(t, s, 2, etcdlock.WithAcquireTimeout(time.Second))
		_, err := patient.Acquire(context.Background(), 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "2nd in line")
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrMaxHold)
		tests.UnlockAll(t, tests.AcquireWithin(t, patient, 2, time.Second))
	})
}

// One permit of several is recalled alone: the others go on, and its own Unlock frees what
// it held, not earlier. Each permit reports what its Semaphore was given.
func TestAPermitIsRecalledAlone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		sem := tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "a"), 2, tests.Listens,
			etcdlock.WithInfo("rack 7"))
		first, second := tests.AcquireWithin(t, sem, 1, time.Second),
			tests.AcquireWithin(t, sem, 1, time.Second)
		next := tests.AcquireLater(tests.SemaphoreOf(t, tests.SessionOf(t, etcd, "b"), 2), 1)
		stays, goes := first.Context(context.Background()), second.Context(context.Background())
		time.Sleep(tests.WatchedBy)
		line, err := etcdlock.Contenders(context.Background(), etcd.Client("operator"), "n")
		require.NoError(t, err)
		require.Len(t, line, 3)
		require.Equal(t, "rack 7", line[1].Info)

		start := time.Now()
		tests.RecallAt(t, etcd, 1, 3*time.Second)
		require.Zero(t, tests.RecalledAfter(t, goes, start))
		require.Equal(t, 3*time.Second, tests.EndsAfter(t, goes, start))
		require.ErrorIs(t, context.Cause(goes), etcdlock.ErrRecalled)
		time.Sleep(3 * tests.TTL)
		require.Empty(t, next, "the permit has not come back yet")
		require.False(t, tests.IsRecalled(stays))
		require.NoError(t, stays.Err())
		require.NoError(t, second.Unlock(context.Background()))
		tests.UnlockAll(t, <-next)
		tests.UnlockAll(t, first)
		require.Empty(t, etcd.Keys("n/"))
	})
}
