package kinds

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// The rows of the costs.
func TestWhatReadsCost(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		rw := tests.RWMutexOf(t, s)
		tests.UnlockAll(t, tests.RLockWithin(t, rw, time.Second)) // has a lease from here on

		now := tests.CallsSince(etcd)
		first := tests.RLockWithin(t, rw, time.Second)
		tests.Costs(t, now, "Txn 1", 1)
		now = tests.CallsSince(etcd)
		tests.UnlockAll(t, first)
		tests.Costs(t, now, "Txn 1", 1)

		now = tests.CallsSince(etcd)
		first, err := rw.TryRLock(context.Background())
		require.NoError(t, err)
		tests.Costs(t, now, "Txn 1", 1)

		now = tests.CallsSince(etcd)
		second := tests.RLockWithin(t, rw, time.Second)
		tests.Costs(t, now, "Range 1, Watch 1", 0)

		now = tests.CallsSince(etcd)
		third := tests.RLockWithin(t, tests.RWMutexOf(t, s), time.Second)
		fourth, err := rw.TryRLock(context.Background())
		require.NoError(t, err)
		tests.Costs(t, now, "", 0)
		require.Equal(t, first.Token(), third.Token())

		now = tests.CallsSince(etcd)
		tests.UnlockAll(t, first, third, second)
		tests.Costs(t, now, "", 0)
		tests.RequireHolds(t, fourth)

		// Another Session calls TryRLock beside them, and then with a writer in line.
		other := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "b"))
		tests.UnlockAll(t, tests.RLockWithin(t, other, time.Second))
		now = tests.CallsSince(etcd)
		beside, err := other.TryRLock(context.Background())
		require.NoError(t, err)
		tests.Costs(t, now, "Txn 1", 1)
		tests.UnlockAll(t, beside)
		writer := contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "n")
		in := tests.LockLater(writer)
		now = tests.CallsSince(etcd)
		_, err = other.TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked, "a writer waits")
		tests.Costs(t, now, "Txn 1", 0)
		tests.UnlockAll(t, fourth)
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		now = tests.CallsSince(etcd)
		_, err = other.TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked, "a writer holds")
		tests.Costs(t, now, "Txn 1", 0)
		require.NoError(t, writer.Unlock(context.Background()))
	})
}

// However many other Sessions read, a read joins that of its own Session, at the cost of a read and
// a watch.
func TestAReadJoinsHoweverManyOtherSessionsRead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var reads []*etcdlock.Hold
		for i := range 40 {
			rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("r", i)))
			reads = append(reads, tests.RLockWithin(t, rw, time.Second))
		}
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		first := tests.RLockWithin(t, rw, time.Second)
		now := tests.CallsSince(etcd)
		second := tests.RLockWithin(t, rw, time.Second)
		tests.Costs(t, now, "Range 1, Watch 1", 0)
		require.Equal(t, first.Token(), second.Token())
		tests.UnlockAll(t, append(reads, first, second)...)
	})
}

// A writer releases to readers of that many Sessions. In a short line none of them reads.
// In a longer line each reads once, and what it reads does not grow with the line.
func TestAWriterHandsOverToAllReadersThatWait(t *testing.T) {
	for _, n := range []int{1, 8, 40} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				writer := contract.MutexOf(t, tests.SessionOf(t, etcd, "w"), "n")
				tests.LockWithin(t, writer, time.Second)
				var in []<-chan *etcdlock.Hold
				for i := range n {
					in = append(in,
						tests.RLockLater(tests.RWMutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint("r", i)))))
				}
				time.Sleep(100 * time.Millisecond)
				before := etcd.Counts()
				now := tests.CallsSince(etcd)
				require.NoError(t, writer.Unlock(context.Background()))
				var reads []*etcdlock.Hold
				for _, r := range in {
					reads = append(reads, tests.SoonOr(t, r, "a reader does not get in"))
				}
				_, revisions := now()
				require.EqualValues(t, 1, revisions)
				after := etcd.Counts()
				read := after[fake.Range] - before[fake.Range] + after[fake.Txn] - before[fake.Txn] - 1
				if n <= 8 {
					require.Zero(t, read)
				} else {
					require.LessOrEqual(t, read, n)
				}
				require.Zero(t, after[fake.Watch]-before[fake.Watch])
				tests.UnlockAll(t, reads...)
			})
		})
	}
}

// Readers share, a writer excludes, and all get in as they came: nobody is overtaken by one
// that could share with the holder.
func TestReadersAndWritersGetInAsTheyCame(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		lock := func(name string) *etcdlock.RWMutex {
			return tests.RWMutexOf(t, tests.SessionOf(t, etcd, name))
		}
		r1, r2, r3, w1, w2 := lock("r1"), lock("r2"), lock("r3"), lock("w1"), lock("w2")
		h1 := tests.RLockWithin(t, r1, time.Second)
		h2 := tests.RLockWithin(t, r2, time.Second)
		require.Greater(t, h2.Token(), h1.Token())
		writer := tests.LockLater(w1)
		h3 := tests.RLockLater(r3)
		writer2 := tests.LockLater(w2)
		tests.StillWaits(t, writer, "two read")
		tests.StillWaits(t, h3, "a writer came before it")
		tests.UnlockAll(t, h1)
		tests.StillWaits(t, writer, "one reads")
		tests.UnlockAll(t, h2)
		require.NoError(t, tests.SoonOr(t, writer, "the writer does not get in"))
		tests.StillWaits(t, h3, "one writes")
		require.Greater(t, w1.Token(), h2.Token())
		token := w1.Token()
		require.NoError(t, w1.Unlock(context.Background()))
		third := tests.SoonOr(t, h3, "the reader does not get in")
		require.Greater(t, third.Token(), token)
		tests.StillWaits(t, writer2, "one reads")
		tests.UnlockAll(t, third)
		require.NoError(t, tests.SoonOr(t, writer2, "the second writer does not get in"))
		require.NoError(t, w2.Unlock(context.Background()))
	})
}

// A writer waits until the last reader of a Session has unlocked, whether it is of that
// Session or of another one. Nothing less counts.
func TestAWriterWaitsForEveryReaderOfItsSession(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			sessions := map[string]*etcdlock.Session{"a": tests.SessionOf(t, etcd, "a"),
				"b": tests.SessionOf(t, etcd, "b")}
			rw := tests.RWMutexOf(t, sessions["a"])
			var reads []*etcdlock.Hold
			for range 5 {
				reads = append(reads, tests.RLockWithin(t, rw, time.Second))
			}
			writer := tests.RWMutexOf(t, sessions[where])
			in := tests.LockLater(writer)
			for i, h := range []*etcdlock.Hold{reads[0], reads[3], reads[4], reads[1]} {
				tests.StillWaits(t, in, fmt.Sprintf("%d read", 5-i))
				tests.UnlockAll(t, h)
				require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
				tests.RequireHolds(t, reads[2])
			}
			time.Sleep(time.Minute)
			tests.StillWaits(t, in, "one reads")
			tests.RequireHolds(t, reads[2])
			tests.UnlockAll(t, reads[2])
			require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
			require.NoError(t, writer.Unlock(context.Background()))
		})
	}
}

// While a writer waits nobody joins the readers of its Session. That holds for a writer in
// the local line, and for one of another Session, of this package or not. A reader that has
// waited behind a writer that gave up joins.
func TestNobodyJoinsWhileAWriterWaits(t *testing.T) {
	rows := map[string]func(t *testing.T, etcd *fake.Server,
		home *etcdlock.Session) (lock, unlock func(context.Context) error){
		"at home": func(t *testing.T, _ *fake.Server,
			home *etcdlock.Session) (_, _ func(context.Context) error) {
			rw := tests.RWMutexOf(t, home)
			return rw.Lock, rw.Unlock
		},
		"elsewhere": func(t *testing.T, etcd *fake.Server,
			_ *etcdlock.Session) (_, _ func(context.Context) error) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
			return mu.Lock, mu.Unlock
		},
	}
	for where, writer := range rows {
		for _, gives := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, gives up %v", where, gives), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					home := tests.SessionOf(t, etcd, "a")
					rw := tests.RWMutexOf(t, home)
					first, second := tests.RLockWithin(t, rw, time.Second), tests.RLockWithin(t, rw, time.Second)
					lock, unlock := writer(t, etcd, home)
					ctx, giveUp := context.WithCancel(context.Background())
					defer giveUp()
					in := make(chan error, 1)
					go func() { in <- lock(ctx) }()
					time.Sleep(50 * time.Millisecond)
					third := tests.RLockLater(rw)
					fourth := tests.RLockLater(rw)
					time.Sleep(10 * time.Second)
					tests.StillWaits(t, third, "a writer waits")
					before := len(etcd.Calls(""))
					_, err := rw.TryRLock(context.Background())
					require.ErrorIs(t, err, etcdlock.ErrLocked)
					require.Len(t, etcd.Calls(""), before)
					if gives {
						giveUp()
						require.ErrorIs(t, tests.SoonOr(t, in, "it does not give up"), context.Canceled)
						h3 := tests.SoonOr(t, third, "the third does not join")
						require.Equal(t, first.Token(), h3.Token())
						tests.UnlockAll(t, first, second, h3, tests.SoonOr(t, fourth, "the fourth does not join"))
						return
					}
					tests.UnlockAll(t, first)
					tests.StillWaits(t, third, "a writer waits")
					tests.UnlockAll(t, second)
					require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
					tests.StillWaits(t, third, "a writer holds")
					require.NoError(t, unlock(context.Background()))
					tests.UnlockAll(t, tests.SoonOr(t, third, "the third does not get in"))
					tests.UnlockAll(t, tests.SoonOr(t, fourth, "the fourth does not get in"))
				})
			})
		}
	}
}

// A reader that is to join others has the line watched. Where too many writers wait for that, the
// Session reads the line once, and not once more for as long as nothing changes: whether they were
// there before, or come while it watches.
func TestALineThatIsTooLongForAViewIsSoughtOnce(t *testing.T) {
	for _, before := range []int{0, 17, 40, 64, 65} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
				held := tests.RLockWithin(t, rw, time.Second)
				etcd.Delay("a", time.Millisecond)
				tests.Strangers(t, etcd, "n", max(1, before))
				ctx := tests.Within(t, 900*time.Millisecond) // later the hold's key is watched
				told := tests.CallsSince(etcd)
				waited := contract.Async(func() error { _, err := rw.RLock(ctx); return err })
				time.Sleep(100 * time.Millisecond)
				calls, revs := "Range 1, Watch 1", int64(0)
				if before == 0 {
					tests.Strangers(t, etcd, "n", 16)
					calls, revs = calls+", LeaseGrant 1", 16 // of the strangers
				}
				require.ErrorIs(t, <-waited, context.DeadlineExceeded)
				tests.Costs(t, told, calls, revs)
				_, err := rw.TryRLock(context.Background())
				require.ErrorIs(t, err, etcdlock.ErrLocked)
				tests.UnlockAll(t, held)
			})
		})
	}
}

// Without a watch nobody knows whether a writer waits, so nobody joins. TryRLock waits for
// the watch, but no longer than its context or the TTL.
func TestNobodyJoinsWithoutALiveWatch(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		first := tests.RLockWithin(t, rw, time.Second)
		var mu sync.Mutex
		open := make(chan struct{})
		blocked := true
		etcd.Intercept(func(c fake.Call) fake.Effect {
			mu.Lock()
			defer mu.Unlock()
			if blocked && c.Method == fake.Watch {
				return fake.Effect{Before: fake.Unavailable}
			}
			return fake.Effect{}
		})
		in := tests.RLockLater(rw)
		tried := make(chan error, 1)
		go func() {
			h, err := rw.TryRLock(context.Background())
			if err == nil {
				err = h.Unlock(context.Background())
			}
			tried <- err
			close(open)
		}()
		time.Sleep(5 * time.Second)
		tests.StillWaits(t, in, "nothing can be watched")
		tests.StillWaits(t, tried, "nothing can be watched")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := rw.TryRLock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		mu.Lock()
		blocked = false
		mu.Unlock()
		require.NoError(t, tests.SoonOr(t, tried, "TryRLock does not join"))
		second := tests.SoonOr(t, in, "RLock does not join")
		require.Equal(t, first.Token(), second.Token())

		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Watch {
				return fake.Effect{Before: fake.Unavailable}
			}
			return fake.Effect{}
		})
		etcd.CancelWatches()
		synctest.Wait()
		third := tests.RLockLater(rw)
		time.Sleep(5 * time.Second)
		tests.StillWaits(t, third, "there is no watch any more")
		tests.UnlockAll(t, second, first)
		tests.UnlockAll(t, tests.SoonOr(t, third, "it does not get in"))
	})
}

// TryRLock waits for the watch, and that shows a writer.
func TestTryRLockThatWaitsForTheWatchIsRefusedByAWriter(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		first := tests.RLockWithin(t, rw, time.Second)
		writer := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", etcdlock.WithOwner("w"))
		in := tests.LockLater(writer)
		rev := etcd.Rev()
		_, err := rw.TryRLock(context.Background())
		var locked *etcdlock.LockedError
		ok := errors.As(err, &locked)
		require.True(t, ok, "%v", err)
		require.NotZero(t, locked.Ahead)
		require.Equal(t, rev, etcd.Rev())
		tests.UnlockAll(t, first)
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))
	})
}

// TryRLock waits for the watch, and etcd refuses the read that goes with it. TryRLock says so at
// once, and RLock waits for its turn. Once the user may read, the next ones join.
func TestTryRLockTellsThatTheLineMayNotBeRead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		first := tests.RLockWithin(t, rw, time.Second)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Range {
				return fake.Effect{Before: tests.PermissionDenied}
			}
			return fake.Effect{}
		})
		for range 3 {
			start := time.Now()
			_, err := rw.TryRLock(context.Background())
			require.Zero(t, time.Since(start), "%v", err)
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			require.NotErrorIs(t, err, etcdlock.ErrLocked)
		}
		waits := tests.RLockLater(rw)
		start := time.Now()
		_, err := rw.TryRLock(context.Background())
		require.Zero(t, time.Since(start), "%v", err)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		tests.StillWaits(t, waits, "nobody knows whether a writer waits")
		etcd.Intercept(nil)
		third, err := rw.TryRLock(context.Background())
		require.NoError(t, err)
		second := tests.SoonOr(t, waits, "it does not join")
		require.Equal(t, first.Token(), second.Token())
		tests.UnlockAll(t, first, second, third)
	})
}

// Nobody joins a key whose lease is about to be replaced, or whose renewals are late: the
// hold would end with it.
func TestNobodyJoinsAKeyWhoseLeaseDoesNotLast(t *testing.T) {
	t.Run("renewals are late", func(t *testing.T) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
			first, second := tests.RLockWithin(t, rw, time.Second), tests.RLockWithin(t, rw, time.Second)
			etcd.Intercept(tests.FromNth(1, fake.KeepAlive, fake.Effect{Drop: true}))
			time.Sleep(tests.RenewalPeriod * 7 / 4)
			tests.RequireHolds(t, first)
			third := tests.RLockLater(rw)
			tests.StillWaits(t, third, "the lease does not last")
			const takes = 100 * time.Millisecond
			var answered time.Time
			etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
				if c.Method == fake.KeepAlive {
					answered, effect.DelayReply = c.At.Add(takes), takes
				}
				return effect
			})
			in := <-third
			require.Equal(t, answered, time.Now(), "it does not get in with the renewal")
			tests.UnlockAll(t, in, first, second)
		})
	})
	t.Run("it is retired", func(t *testing.T) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			rw := tests.RWMutexOf(t, s)
			first, second := tests.RLockWithin(t, rw, time.Second), tests.RLockWithin(t, rw, time.Second)
			etcd.Intercept(tests.OnlyNth(len(etcd.Calls(fake.Txn))+1, fake.Txn,
				fake.Effect{After: fake.Unavailable}))
			other, err := s.Mutex("other")
			require.NoError(t, err)
			require.NoError(t, other.Lock(context.Background())) // its put is doubtful
			third := tests.RLockLater(rw)
			tests.StillWaits(t, third, "the lease is retired")
			_, err = rw.TryRLock(context.Background())
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			token := first.Token()
			tests.UnlockAll(t, first, second)
			h := tests.SoonOr(t, third, "it does not get in")
			require.Greater(t, h.Token(), token)
			tests.UnlockAll(t, h)
			require.NoError(t, other.Unlock(context.Background()))
		})
	})
}

// When the turn of the first reader in the local line comes, those right behind it get in
// with it, by one key. A reader that comes after the put gets in with it only if no writer
// waits.
func TestThoseRightBehindTheFirstReaderGetInWithIt(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		rw := tests.RWMutexOf(t, s)
		require.NoError(t, rw.Lock(context.Background()))
		r1, r2, r3 := tests.RLockLater(rw), tests.RLockLater(rw), tests.RLockLater(rw)
		mid := tests.RWMutexOf(t, s)
		w := tests.LockLater(mid)
		r4 := tests.RLockLater(rw)
		elsewhere := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		out := tests.LockLater(elsewhere)
		now := tests.CallsSince(etcd)
		require.NoError(t, rw.Unlock(context.Background())) // puts the key of r1, behind elsewhere's
		tests.StillWaits(t, r1, "another came before its put")
		require.NoError(t, tests.SoonOr(t, out, "the other one does not get in"))
		late := contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "n")
		behind := tests.LockLater(late)
		require.NoError(t, elsewhere.Unlock(context.Background()))
		var reads []*etcdlock.Hold
		for _, r := range []<-chan *etcdlock.Hold{r1, r2, r3} {
			reads = append(reads, tests.SoonOr(t, r, "one does not get in"))
		}
		require.Equal(t, reads[0].Token(), reads[2].Token())
		calls, _ := now()
		t.Log(calls)
		tests.StillWaits(t, w, "they read")
		tests.StillWaits(t, r4, "a writer came before it")
		tests.StillWaits(t, behind, "they read")
		tests.UnlockAll(t, reads...)
		require.NoError(t, tests.SoonOr(t, behind, "the late one does not get in"))
		tests.StillWaits(t, w, "one of another Session came before its put")
		require.NoError(t, late.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, w, "the writer at home does not get in"))
		require.NoError(t, mid.Unlock(context.Background()))
		tests.UnlockAll(t, tests.SoonOr(t, r4, "the last one does not get in"))
	})
}

// putBetweenWriters unlocks rw, whose reads that wait come to etcd's line by that: between a
// writer, which holds, and a late one, which waits behind them.
func putBetweenWriters(t *testing.T, etcd *fake.Server, rw *etcdlock.RWMutex) (
	writer, late *etcdlock.Mutex, behind <-chan error,
) {
	t.Helper()
	writer = contract.MutexOf(t, tests.SessionOf(t, etcd, "w"), "n")
	in := tests.LockLater(writer)
	require.NoError(t, rw.Unlock(context.Background()))
	require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
	late = contract.MutexOf(t, tests.SessionOf(t, etcd, "l"), "n")
	return writer, late, tests.LockLater(late)
}

// The reader whose turn it is gives up while it waits in etcd's line. Those that came
// before its put go on waiting at its place, and lose nothing. One that came later
// overtakes nobody.
func TestAReaderThatGivesUpLeavesItsPlaceToTheNext(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		require.NoError(t, rw.Lock(context.Background()))
		ctx, giveUp := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		go func() { _, err := rw.RLock(ctx); gone <- err }()
		synctest.Wait()
		second, third := tests.RLockLater(rw), tests.RLockLater(rw)
		writer, late, behind := putBetweenWriters(t, etcd, rw)
		fourth := tests.RLockLater(rw)
		rev := etcd.Rev()
		giveUp()
		err := tests.SoonOr(t, gone, "it does not give up")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		synctest.Wait()
		require.Equal(t, rev, etcd.Rev(), "its key stays")
		tests.StillWaits(t, second, "one writes")
		require.NoError(t, writer.Unlock(context.Background()))
		h2, h3 := tests.SoonOr(t, second, "the second does not get in"),
			tests.SoonOr(t, third, "nor does the third")
		require.Equal(t, h2.Token(), h3.Token())
		tests.StillWaits(t, behind, "two read")
		tests.StillWaits(t, fourth, "a writer came before it")
		tests.UnlockAll(t, h3, h2)
		require.NoError(t, tests.SoonOr(t, behind, "the late one does not get in"))
		tests.StillWaits(t, fourth, "one writes")
		require.NoError(t, late.Unlock(context.Background()))
		tests.UnlockAll(t, tests.SoonOr(t, fourth, "the fourth does not get in"))
	})
}

// The reads that wait at a place, and behind it, give up all at once. Some are handed the place
// down when their own context has ended already, and pass it on. The next read came after the put,
// and after a writer of another Session: it does not get in before that.
func TestAReadTakesOverNoPlaceThatWasPutBeforeItCame(t *testing.T) {
	for range 20 {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
			require.NoError(t, rw.Lock(context.Background()))
			ctx, giveUp := context.WithCancel(context.Background())
			gone := make(chan error, 8)
			for range cap(gone) {
				go func() { _, err := rw.RLock(ctx); gone <- err }()
				synctest.Wait()
			}
			writer, late, behind := putBetweenWriters(t, etcd, rw)
			last := tests.RLockLater(rw)
			giveUp()
			for range cap(gone) {
				require.ErrorIs(t, tests.SoonOr(t, gone, "one does not give up"), context.Canceled)
			}
			require.NoError(t, writer.Unlock(context.Background()))
			require.NoError(t, tests.SoonOr(t, behind, "the late writer does not get in"))
			tests.StillWaits(t, last, "one writes")
			require.NoError(t, late.Unlock(context.Background()))
			tests.UnlockAll(t, tests.SoonOr(t, last, "the last read does not get in"))
		})
	}
}

// A release has put a key for a read that gives up before the answer. The next read came after the
// put, and after a writer of another Session: it does not get in before that.
func TestAReadTakesOverNoPlaceThatAReleaseHasPut(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx, giveUp := context.WithCancel(context.Background())
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		require.NoError(t, rw.Lock(ctx))
		gone := make(chan error, 1)
		go func() { _, err := rw.RLock(ctx); gone <- err }()
		synctest.Wait()

		etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, fake.Effect{DelayReply: time.Second}))
		unlocked := make(chan error, 1)
		go func() { unlocked <- rw.Unlock(context.Background()) }()
		synctest.Wait()
		writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "b"))
		behind := tests.LockLater(writer)
		synctest.Wait()
		last := tests.RLockLater(rw)
		giveUp()
		require.ErrorIs(t, tests.SoonOr(t, gone, "it does not give up"), context.Canceled)

		require.NoError(t, tests.SoonOr(t, unlocked, "the release has no end"))
		require.NoError(t, tests.SoonOr(t, behind, "the writer does not get in"))
		tests.StillWaits(t, last, "one writes")
		require.NoError(t, writer.Unlock(context.Background()))
		tests.UnlockAll(t, tests.SoonOr(t, last, "the last read does not get in"))
	})
}

// A call whose context derives from a hold of the name would wait for itself. With
// WithReentrancy reads nest in reads. Nothing else nests.
func TestReadsAndWritesDoNotNestInEachOther(t *testing.T) {
	for _, nests := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			var opts []etcdlock.SessionOption
			if nests {
				opts = append(opts, etcdlock.WithReentrancy())
			}
			s := tests.SessionOf(t, etcd, "a", opts...)
			rw, other := tests.RWMutexOf(t, s), tests.RWMutexOf(t, s)
			h := tests.RLockWithin(t, rw, time.Second)
			inside := h.Context(context.Background())
			for _, err := range []error{
				rw.Lock(inside), other.Lock(inside), rw.TryLock(inside),
				contract.MutexOf(t, s, "n").Lock(inside),
				rw.Do(inside, func(context.Context) error { return nil }),
			} {
				require.ErrorIs(t, err, etcdlock.ErrDeadlock)
			}
			writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "b"))
			in := tests.LockLater(writer)
			calls := len(etcd.Calls(""))
			for _, from := range []*etcdlock.RWMutex{rw, other} {
				inner, err := from.RLock(inside)
				if !nests {
					require.ErrorIs(t, err, etcdlock.ErrDeadlock)
					continue
				}
				require.NoError(t, err, "a writer that waits cannot deadlock it")
				require.Equal(t, h.Token(), inner.Token())
				require.NoError(t, inner.Unlock(context.Background()))
				require.Zero(t, inner.Token())
				require.ErrorIs(t, inner.Unlock(context.Background()), etcdlock.ErrNotHeld)
				tests.RequireHolds(t, h)
			}
			require.Len(t, etcd.Calls("")[calls:], 0)
			if nests { // the last Unlock releases, whichever call it is of
				inner, err := rw.RLock(inside)
				require.NoError(t, err)
				require.NoError(t, h.Unlock(context.Background()))
				tests.StillWaits(t, in, "the inner one reads")
				tests.RequireHolds(t, inner)
				h = inner
			}
			tests.UnlockAll(t, h)
			require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
			require.NoError(t, writer.Unlock(context.Background()))

			require.NoError(t, rw.Lock(context.Background()))
			inside = rw.Context(context.Background())
			_, err := other.RLock(inside)
			require.ErrorIs(t, err, etcdlock.ErrDeadlock)
			_, err = other.TryRLock(inside)
			require.ErrorIs(t, err, etcdlock.ErrDeadlock)
			require.NoError(t, rw.Unlock(context.Background()))
		})
	}
}

// While nothing happens, reads that share a key cost etcd no more than one.
func TestReadsThatShareCostAsMuchAsOneWhileNothingHappens(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		costs := func() int {
			time.Sleep(time.Minute) // by then what follows the last read is over
			before := len(etcd.Calls(""))
			time.Sleep(10 * time.Minute)
			return len(etcd.Calls("")) - before
		}
		reads := []*etcdlock.Hold{tests.RLockWithin(t, rw, time.Second)}
		alone := costs()
		require.NotZero(t, alone)
		for range 9 {
			reads = append(reads, tests.RLockWithin(t, rw, time.Second))
		}
		require.InDelta(t, alone, costs(), 1)
		tests.UnlockAll(t, reads...)
	})
}
