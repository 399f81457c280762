package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// rwIn is Session.RWMutex for a test.
func rwIn(t *testing.T, s *etcdlock.Session, opts ...etcdlock.Option) *etcdlock.RWMutex {
	t.Helper()
	rw, err := s.RWMutex("n", opts...)
	require.NoError(t, err)
	return rw
}

// readWithin reads, and fails if that takes longer than most.
func readWithin(t *testing.T, rw *etcdlock.RWMutex, most time.Duration) *etcdlock.Hold {
	t.Helper()
	return holdWithin(t, most, rw.RLock)
}

// holdWithin is the Hold of a call, which must not take longer than most.
func holdWithin(
	t *testing.T, most time.Duration, call func(context.Context) (*etcdlock.Hold, error),
) *etcdlock.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	h, err := call(ctx)
	require.NoError(t, err)
	requireReads(t, h)
	return h
}

// requireReads requires all that a read must say of itself.
func requireReads(t *testing.T, h *etcdlock.Hold) {
	t.Helper()
	require.NoError(t, h.Context(context.Background()).Err())
	require.NotZero(t, h.Token())
	require.True(t, h.Deadline().After(time.Now()))
}

// requireOver requires all that an ended read must say of itself.
func requireOver(t *testing.T, h *etcdlock.Hold) {
	t.Helper()
	require.Error(t, h.Context(context.Background()).Err())
	require.Zero(t, h.Token())
	require.Zero(t, h.Deadline())
}

// done ends reads that were whole.
func done(t *testing.T, reads ...*etcdlock.Hold) {
	t.Helper()
	for _, h := range reads {
		require.NoError(t, h.Unlock(context.Background()))
		requireOver(t, h)
	}
}

// readsLater is an RLock that is under way. It has begun to wait when this returns.
func readsLater(rw *etcdlock.RWMutex) <-chan *etcdlock.Hold {
	in := make(chan *etcdlock.Hold, 1)
	go func() {
		h, err := rw.RLock(context.Background())
		if err != nil {
			panic(err)
		}
		in <- h
	}()
	synctest.Wait()
	return in
}

// writesLater is a Lock that is under way.
func writesLater(l interface{ Lock(context.Context) error }) <-chan error {
	in := make(chan error, 1)
	go func() { in <- l.Lock(context.Background()) }()
	synctest.Wait()
	return in
}

// waits requires that a call has returned nothing by now.
func waits[T any](t *testing.T, in <-chan T, why string) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, in, "it got in, though %s", why)
}

// callsSince counts what etcd was asked, by method, and how many revisions that made.
func callsSince(etcd *fake.Server) func() (calls string, revisions int64) {
	synctest.Wait()
	n, rev := len(etcd.Calls("")), etcd.Rev()
	return func() (string, int64) {
		synctest.Wait()
		counts := make(map[string]int)
		for _, c := range etcd.Calls("")[n:] {
			counts[c.Method]++
		}
		var text []string
		for _, m := range []string{fake.Txn, fake.Range, fake.Watch, fake.Grant, fake.Revoke, fake.TimeToLive} {
			if counts[m] > 0 {
				text = append(text, fmt.Sprintf("%s %d", m, counts[m]))
			}
		}
		return strings.Join(text, ", "), etcd.Rev() - rev
	}
}

// costs asks what has happened since told was made, by callsSince.
func costs(t *testing.T, told func() (string, int64), calls string, revisions int64) {
	t.Helper()
	c, r := told()
	require.Equal(t, calls, c)
	require.Equal(t, revisions, r)
}

// The rows of the costs.
func TestWhatReadsCost(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		rw := rwIn(t, s)
		done(t, readWithin(t, rw, time.Second)) // has a lease from here on

		now := callsSince(etcd)
		first := readWithin(t, rw, time.Second)
		costs(t, now, "Txn 1", 1)
		now = callsSince(etcd)
		done(t, first)
		costs(t, now, "Txn 1", 1)

		now = callsSince(etcd)
		first, err := rw.TryRLock(context.Background())
		require.NoError(t, err)
		costs(t, now, "Txn 1", 1)

		now = callsSince(etcd)
		second := readWithin(t, rw, time.Second)
		costs(t, now, "Range 1, Watch 1", 0)

		now = callsSince(etcd)
		third := readWithin(t, rwIn(t, s), time.Second)
		fourth, err := rw.TryRLock(context.Background())
		require.NoError(t, err)
		costs(t, now, "", 0)
		require.Equal(t, first.Token(), third.Token())

		now = callsSince(etcd)
		done(t, first, third, second)
		costs(t, now, "", 0)
		requireReads(t, fourth)

		// Another Session calls TryRLock beside them, and then with a writer in line.
		other := rwIn(t, processIn(t, etcd, "b"))
		done(t, readWithin(t, other, time.Second))
		now = callsSince(etcd)
		beside, err := other.TryRLock(context.Background())
		require.NoError(t, err)
		costs(t, now, "Txn 1", 1)
		done(t, beside)
		writer := contract.MutexOf(t, processIn(t, etcd, "c"), "n")
		in := writesLater(writer)
		now = callsSince(etcd)
		_, err = other.TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked, "a writer waits")
		costs(t, now, "Txn 1", 0)
		done(t, fourth)
		require.NoError(t, soonOr(t, in, "the writer does not get in"))
		now = callsSince(etcd)
		_, err = other.TryRLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLocked, "a writer holds")
		costs(t, now, "Txn 1", 0)
		require.NoError(t, writer.Unlock(context.Background()))
	})
}

// A writer releases to readers of that many Sessions. In a short line none of them reads.
// In a longer line each reads once, and what it reads does not grow with the line.
func TestAWriterHandsOverToAllReadersThatWait(t *testing.T) {
	for _, n := range []int{1, 8, 40} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				writer := contract.MutexOf(t, processIn(t, etcd, "w"), "n")
				lockWithin(t, writer, time.Second)
				var in []<-chan *etcdlock.Hold
				for i := range n {
					in = append(in, readsLater(rwIn(t, processIn(t, etcd, fmt.Sprint("r", i)))))
				}
				time.Sleep(100 * time.Millisecond)
				before := etcd.Counts()
				now := callsSince(etcd)
				require.NoError(t, writer.Unlock(context.Background()))
				var reads []*etcdlock.Hold
				for _, r := range in {
					reads = append(reads, soonOr(t, r, "a reader does not get in"))
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
				done(t, reads...)
			})
		})
	}
}

// Readers share, a writer excludes, and all get in as they came: nobody is overtaken by one
// that could share with the holder.
func TestReadersAndWritersGetInAsTheyCame(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		lock := func(name string) *etcdlock.RWMutex { return rwIn(t, processIn(t, etcd, name)) }
		r1, r2, r3, w1, w2 := lock("r1"), lock("r2"), lock("r3"), lock("w1"), lock("w2")
		h1 := readWithin(t, r1, time.Second)
		h2 := readWithin(t, r2, time.Second)
		require.Greater(t, h2.Token(), h1.Token())
		writer := writesLater(w1)
		h3 := readsLater(r3)
		writer2 := writesLater(w2)
		waits(t, writer, "two read")
		waits(t, h3, "a writer came before it")
		done(t, h1)
		waits(t, writer, "one reads")
		done(t, h2)
		require.NoError(t, soonOr(t, writer, "the writer does not get in"))
		waits(t, h3, "one writes")
		require.Greater(t, w1.Token(), h2.Token())
		token := w1.Token()
		require.NoError(t, w1.Unlock(context.Background()))
		third := soonOr(t, h3, "the reader does not get in")
		require.Greater(t, third.Token(), token)
		waits(t, writer2, "one reads")
		done(t, third)
		require.NoError(t, soonOr(t, writer2, "the second writer does not get in"))
		require.NoError(t, w2.Unlock(context.Background()))
	})
}

// A writer waits until the last reader of a Session has unlocked, whether it is of that
// Session or of another one. Nothing less counts.
func TestAWriterWaitsForEveryReaderOfItsSession(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			sessions := map[string]*etcdlock.Session{"a": processIn(t, etcd, "a"), "b": processIn(t, etcd, "b")}
			rw := rwIn(t, sessions["a"])
			var reads []*etcdlock.Hold
			for range 5 {
				reads = append(reads, readWithin(t, rw, time.Second))
			}
			writer := rwIn(t, sessions[where])
			in := writesLater(writer)
			for i, h := range []*etcdlock.Hold{reads[0], reads[3], reads[4], reads[1]} {
				waits(t, in, fmt.Sprintf("%d read", 5-i))
				done(t, h)
				require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
				requireReads(t, reads[2])
			}
			time.Sleep(time.Minute)
			waits(t, in, "one reads")
			requireReads(t, reads[2])
			done(t, reads[2])
			require.NoError(t, soonOr(t, in, "the writer does not get in"))
			require.NoError(t, writer.Unlock(context.Background()))
		})
	}
}

// While a writer waits nobody joins the readers of its Session. That holds for a writer in
// the local line, and for one of another Session, of this package or not. A reader that has
// waited behind a writer that gave up joins.
func TestNobodyJoinsWhileAWriterWaits(t *testing.T) {
	rows := map[string]func(t *testing.T, etcd *fake.Server, home *etcdlock.Session) (lock, unlock func(context.Context) error){
		"at home": func(t *testing.T, _ *fake.Server, home *etcdlock.Session) (_, _ func(context.Context) error) {
			rw := rwIn(t, home)
			return rw.Lock, rw.Unlock
		},
		"elsewhere": func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session) (_, _ func(context.Context) error) {
			mu := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
			return mu.Lock, mu.Unlock
		},
	}
	for where, writer := range rows {
		for _, gives := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, gives up %v", where, gives), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					home := processIn(t, etcd, "a")
					rw := rwIn(t, home)
					first, second := readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)
					lock, unlock := writer(t, etcd, home)
					ctx, giveUp := context.WithCancel(context.Background())
					defer giveUp()
					in := make(chan error, 1)
					go func() { in <- lock(ctx) }()
					time.Sleep(50 * time.Millisecond)
					third := readsLater(rw)
					fourth := readsLater(rw)
					time.Sleep(10 * time.Second)
					waits(t, third, "a writer waits")
					before := len(etcd.Calls(""))
					_, err := rw.TryRLock(context.Background())
					require.ErrorIs(t, err, etcdlock.ErrLocked)
					require.Len(t, etcd.Calls(""), before)
					if gives {
						giveUp()
						require.ErrorIs(t, soonOr(t, in, "it does not give up"), context.Canceled)
						h3 := soonOr(t, third, "the third does not join")
						require.Equal(t, first.Token(), h3.Token())
						done(t, first, second, h3, soonOr(t, fourth, "the fourth does not join"))
						return
					}
					done(t, first)
					waits(t, third, "a writer waits")
					done(t, second)
					require.NoError(t, soonOr(t, in, "the writer does not get in"))
					waits(t, third, "a writer holds")
					require.NoError(t, unlock(context.Background()))
					done(t, soonOr(t, third, "the third does not get in"))
					done(t, soonOr(t, fourth, "the fourth does not get in"))
				})
			})
		}
	}
}

// Without a watch nobody knows whether a writer waits, so nobody joins. TryRLock waits for
// the watch, but no longer than its context or the TTL.
func TestNobodyJoinsWithoutALiveWatch(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := rwIn(t, processIn(t, etcd, "a"))
		first := readWithin(t, rw, time.Second)
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
		in := readsLater(rw)
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
		waits(t, in, "nothing can be watched")
		waits(t, tried, "nothing can be watched")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := rw.TryRLock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		mu.Lock()
		blocked = false
		mu.Unlock()
		require.NoError(t, soonOr(t, tried, "TryRLock does not join"))
		second := soonOr(t, in, "RLock does not join")
		require.Equal(t, first.Token(), second.Token())

		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Watch {
				return fake.Effect{Before: fake.Unavailable}
			}
			return fake.Effect{}
		})
		etcd.CancelWatches()
		synctest.Wait()
		third := readsLater(rw)
		time.Sleep(5 * time.Second)
		waits(t, third, "there is no watch any more")
		done(t, second, first)
		done(t, soonOr(t, third, "it does not get in"))
	})
}

// TryRLock waits for the watch, and that shows a writer.
func TestTryRLockThatWaitsForTheWatchIsRefusedByAWriter(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := rwIn(t, processIn(t, etcd, "a"))
		first := readWithin(t, rw, time.Second)
		writer := contract.MutexOf(t, processIn(t, etcd, "b"), "n", etcdlock.WithOwner("w"))
		in := writesLater(writer)
		rev := etcd.Rev()
		_, err := rw.TryRLock(context.Background())
		locked, ok := errors.AsType[*etcdlock.LockedError](err)
		require.True(t, ok, "%v", err)
		require.NotZero(t, locked.Ahead)
		require.Equal(t, rev, etcd.Rev())
		done(t, first)
		require.NoError(t, soonOr(t, in, "the writer does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))
	})
}

// Nobody joins a key whose lease is about to be replaced, or whose renewals are late: the
// hold would end with it.
func TestNobodyJoinsAKeyWhoseLeaseDoesNotLast(t *testing.T) {
	t.Run("renewals are late", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			rw := rwIn(t, processIn(t, etcd, "a"))
			first, second := readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)
			etcd.Intercept(fromNth(1, fake.KeepAlive, fake.Effect{Drop: true}))
			time.Sleep(virtualTTL * 3 / 4)
			requireReads(t, first)
			third := readsLater(rw)
			waits(t, third, "the lease does not last")
			etcd.Intercept(nil)
			time.Sleep(virtualTTL / 8)
			synctest.Wait()
			done(t, soonOr(t, third, "it does not get in"), first, second)
		})
	})
	t.Run("it is retired", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := processIn(t, etcd, "a")
			rw := rwIn(t, s)
			first, second := readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)
			etcd.Intercept(onlyNth(len(etcd.Calls(fake.Txn))+1, fake.Txn, fake.Effect{After: fake.Unavailable}))
			other, err := s.Mutex("other")
			require.NoError(t, err)
			require.NoError(t, other.Lock(context.Background())) // its put is doubtful
			third := readsLater(rw)
			waits(t, third, "the lease is retired")
			_, err = rw.TryRLock(context.Background())
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			token := first.Token()
			done(t, first, second)
			h := soonOr(t, third, "it does not get in")
			require.Greater(t, h.Token(), token)
			done(t, h)
			require.NoError(t, other.Unlock(context.Background()))
		})
	})
}

// When the turn of the first reader in the local line comes, those right behind it get in
// with it, by one key. A reader that comes after the put gets in with it only if no writer
// waits.
func TestThoseRightBehindTheFirstReaderGetInWithIt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		rw := rwIn(t, s)
		require.NoError(t, rw.Lock(context.Background()))
		r1, r2, r3 := readsLater(rw), readsLater(rw), readsLater(rw)
		mid := rwIn(t, s)
		w := writesLater(mid)
		r4 := readsLater(rw)
		elsewhere := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
		out := writesLater(elsewhere)
		now := callsSince(etcd)
		require.NoError(t, rw.Unlock(context.Background())) // puts the key of r1, behind elsewhere's
		waits(t, r1, "another came before its put")
		require.NoError(t, soonOr(t, out, "the other one does not get in"))
		late := contract.MutexOf(t, processIn(t, etcd, "c"), "n")
		behind := writesLater(late)
		require.NoError(t, elsewhere.Unlock(context.Background()))
		var reads []*etcdlock.Hold
		for _, r := range []<-chan *etcdlock.Hold{r1, r2, r3} {
			reads = append(reads, soonOr(t, r, "one does not get in"))
		}
		require.Equal(t, reads[0].Token(), reads[2].Token())
		calls, _ := now()
		t.Log(calls)
		waits(t, w, "they read")
		waits(t, r4, "a writer came before it")
		waits(t, behind, "they read")
		done(t, reads...)
		require.NoError(t, soonOr(t, behind, "the late one does not get in"))
		waits(t, w, "one of another Session came before its put")
		require.NoError(t, late.Unlock(context.Background()))
		require.NoError(t, soonOr(t, w, "the writer at home does not get in"))
		require.NoError(t, mid.Unlock(context.Background()))
		done(t, soonOr(t, r4, "the last one does not get in"))
	})
}

// The reader whose turn it is gives up while it waits in etcd's line. Those that came
// before its put go on waiting at its place, and lose nothing. One that came later
// overtakes nobody.
func TestAReaderThatGivesUpLeavesItsPlaceToTheNext(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := rwIn(t, processIn(t, etcd, "a"))
		require.NoError(t, rw.Lock(context.Background()))
		ctx, giveUp := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		go func() { _, err := rw.RLock(ctx); gone <- err }()
		synctest.Wait()
		second, third := readsLater(rw), readsLater(rw)
		writer := contract.MutexOf(t, processIn(t, etcd, "w"), "n")
		in := writesLater(writer)
		require.NoError(t, rw.Unlock(context.Background()))
		require.NoError(t, soonOr(t, in, "the writer does not get in"))
		late := contract.MutexOf(t, processIn(t, etcd, "l"), "n")
		behind := writesLater(late)
		fourth := readsLater(rw)
		rev := etcd.Rev()
		giveUp()
		err := soonOr(t, gone, "it does not give up")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		synctest.Wait()
		require.Equal(t, rev, etcd.Rev(), "its key stays")
		waits(t, second, "one writes")
		require.NoError(t, writer.Unlock(context.Background()))
		h2, h3 := soonOr(t, second, "the second does not get in"), soonOr(t, third, "nor does the third")
		require.Equal(t, h2.Token(), h3.Token())
		waits(t, behind, "two read")
		waits(t, fourth, "a writer came before it")
		done(t, h3, h2)
		require.NoError(t, soonOr(t, behind, "the late one does not get in"))
		waits(t, fourth, "one writes")
		require.NoError(t, late.Unlock(context.Background()))
		done(t, soonOr(t, fourth, "the fourth does not get in"))
	})
}

// All that read by a key lose it together. Their contexts end, each Unlock says so, and
// nobody of the Session gets in before the last of them has unlocked.
func TestAKeyThatReadersShareIsLostToAll(t *testing.T) {
	faults := map[string]func(etcd *fake.Server, s *etcdlock.Session){
		"its lease is revoked": func(etcd *fake.Server, s *etcdlock.Session) { etcd.RevokeLease(s.Lease()) },
		"it is deleted":        func(etcd *fake.Server, _ *etcdlock.Session) { etcd.DeleteKey(etcd.Keys("n/")[0]) },
		"it is not renewed": func(etcd *fake.Server, _ *etcdlock.Session) {
			etcd.Intercept(fromNth(1, fake.KeepAlive, fake.Effect{Drop: true}))
		},
	}
	for fault, strike := range faults {
		for _, next := range []string{"reads", "writes"} {
			t.Run(fault+", and the next one "+next, func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := processIn(t, etcd, "a")
					rw := rwIn(t, s)
					var reads []*etcdlock.Hold
					var contexts []context.Context
					for range 3 {
						h := readWithin(t, rw, time.Second)
						reads, contexts = append(reads, h), append(contexts, h.Context(context.Background()))
					}
					token := reads[0].Token()
					time.Sleep(3 * time.Second)
					strike(etcd, s)
					for i, ctx := range contexts {
						soonOr(t, ctx.Done(), "a reader does not hear of it")
						lost, ok := errors.AsType[*etcdlock.LostError](context.Cause(ctx))
						require.True(t, ok)
						require.Equal(t, token, lost.Token)
						requireOver(t, reads[i])
					}
					etcd.Intercept(nil)
					in := make(chan func() error, 1)
					go func() {
						if next == "writes" {
							if rw.Lock(context.Background()) == nil {
								in <- func() error { return rw.Unlock(context.Background()) }
							}
						} else if h, err := rw.RLock(context.Background()); err == nil {
							in <- func() error { return h.Unlock(context.Background()) }
						}
					}()
					for _, i := range []int{1, 0, 2} {
						time.Sleep(time.Minute)
						waits(t, in, "a loser may be at work")
						_, err := rw.TryRLock(context.Background())
						require.ErrorIs(t, err, etcdlock.ErrLocked)
						require.ErrorIs(t, reads[i].Unlock(context.Background()), etcdlock.ErrLost)
						require.ErrorIs(t, reads[i].Unlock(context.Background()), etcdlock.ErrNotHeld)
					}
					require.NoError(t, soonOr(t, in, "the next one does not get in")())
				})
			})
		}
	}
}

// WithMaxHold ends its own read. The others go on, and the key with them.
func TestTheLongestHoldEndsItsOwnRead(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		short, long := rwIn(t, s, etcdlock.WithMaxHold(5*time.Second)), rwIn(t, s)
		first, second := readWithin(t, short, time.Second), readWithin(t, long, time.Second)
		third := readWithin(t, short, time.Second)
		ctx := first.Context(context.Background())
		writer := rwIn(t, processIn(t, etcd, "b"))
		in := writesLater(writer)
		time.Sleep(6 * time.Second)
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		requireOver(t, first)
		requireReads(t, second)
		waits(t, in, "one reads")
		err := first.Unlock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.ErrorIs(t, err, etcdlock.ErrMaxHold)
		requireReads(t, second)
		home := rwIn(t, s)
		behind := writesLater(home)
		done(t, second)
		require.NoError(t, soonOr(t, in, "the writer of another Session does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))
		time.Sleep(time.Minute)
		waits(t, behind, "a loser may be at work")
		require.ErrorIs(t, third.Unlock(context.Background()), etcdlock.ErrMaxHold)
		require.NoError(t, soonOr(t, behind, "the writer at home does not get in"))
		require.NoError(t, home.Unlock(context.Background()))

		// If all of them end like that, the key goes without an Unlock.
		first, third = readWithin(t, short, time.Second), readWithin(t, short, time.Second)
		time.Sleep(6 * time.Second)
		require.Empty(t, etcd.Keys("n/"))
		require.ErrorIs(t, first.Unlock(context.Background()), etcdlock.ErrMaxHold)
		require.ErrorIs(t, third.Unlock(context.Background()), etcdlock.ErrMaxHold)
	})
}

// A call whose context derives from a hold of the name would wait for itself. With
// WithReentrancy reads nest in reads. Nothing else nests.
func TestReadsAndWritesDoNotNestInEachOther(t *testing.T) {
	for _, nests := range []bool{false, true} {
		inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			var opts []etcdlock.Option
			if nests {
				opts = append(opts, etcdlock.WithReentrancy())
			}
			s := processIn(t, etcd, "a", opts...)
			rw, other := rwIn(t, s), rwIn(t, s)
			h := readWithin(t, rw, time.Second)
			inside := h.Context(context.Background())
			for _, err := range []error{
				rw.Lock(inside), other.Lock(inside), rw.TryLock(inside),
				contract.MutexOf(t, s, "n").Lock(inside),
				rw.Do(inside, func(context.Context) error { return nil }),
			} {
				require.ErrorIs(t, err, etcdlock.ErrDeadlock)
			}
			writer := rwIn(t, processIn(t, etcd, "b"))
			in := writesLater(writer)
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
				requireReads(t, h)
			}
			require.Len(t, etcd.Calls("")[calls:], 0)
			if nests { // the last Unlock releases, whichever call it is of
				inner, err := rw.RLock(inside)
				require.NoError(t, err)
				require.NoError(t, h.Unlock(context.Background()))
				waits(t, in, "the inner one reads")
				requireReads(t, inner)
				h = inner
			}
			done(t, h)
			require.NoError(t, soonOr(t, in, "the writer does not get in"))
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

// Close of an RWMutex ends its own reads. Those of others go on.
func TestCloseOfAnRWMutexEndsItsReads(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		rw, other := rwIn(t, s), rwIn(t, s)
		mine := []*etcdlock.Hold{readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)}
		theirs := readWithin(t, other, time.Second)
		ctx := mine[1].Context(context.Background())
		writer := rwIn(t, processIn(t, etcd, "b"))
		in := writesLater(writer)
		waiting := make(chan error, 1)
		go func() { _, err := rw.RLock(context.Background()); waiting <- err }()
		synctest.Wait()
		require.NoError(t, rw.Close(context.Background()))
		require.ErrorIs(t, soonOr(t, waiting, "a wait goes on"), etcdlock.ErrClosed)
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		for _, h := range mine {
			requireOver(t, h)
			require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
		}
		_, err := rw.RLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrClosed)
		requireReads(t, theirs)
		waits(t, in, "one reads")
		require.NoError(t, other.Close(context.Background()))
		require.NoError(t, soonOr(t, in, "the writer does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))

		// So does Close of the Session.
		third := rwIn(t, s)
		h1, h2 := readWithin(t, third, time.Second), readWithin(t, third, time.Second)
		ctx = h2.Context(context.Background())
		require.NoError(t, s.Close(context.Background()))
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		require.ErrorIs(t, h1.Unlock(context.Background()), etcdlock.ErrNotHeld)
		require.Empty(t, etcd.Keys("n/"))
	})
}

// Close ends a read that is whole, and one that has ended before. If the release of the one
// is not confirmed, the other still gives up its turn.
func TestACloseThatIsNotConfirmedGivesUpEachRead(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		rw := rwIn(t, s, etcdlock.WithMaxHold(5*time.Second))
		first, second := readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)
		time.Sleep(3 * time.Second)
		third := readWithin(t, rw, time.Second)
		done(t, first)
		time.Sleep(3 * time.Second)
		requireOver(t, second)
		requireReads(t, third)

		etcd.Freeze()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, rw.Close(ctx), etcdlock.ErrUnconfirmed)
		etcd.Thaw()
		next := rwIn(t, s)
		require.NoError(t, soonOr(t, writesLater(next), "the turn is nobody's"))
		require.NoError(t, next.Unlock(context.Background()))
	})
}

// While nothing happens, reads that share a key cost etcd no more than one.
func TestReadsThatShareCostAsMuchAsOneWhileNothingHappens(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := rwIn(t, processIn(t, etcd, "a"))
		costs := func() int {
			time.Sleep(time.Minute) // by then what follows the last read is over
			before := len(etcd.Calls(""))
			time.Sleep(10 * time.Minute)
			return len(etcd.Calls("")) - before
		}
		reads := []*etcdlock.Hold{readWithin(t, rw, time.Second)}
		alone := costs()
		require.NotZero(t, alone)
		for range 9 {
			reads = append(reads, readWithin(t, rw, time.Second))
		}
		require.InDelta(t, alone, costs(), 1)
		done(t, reads...)
	})
}

// A reader that comes while the last reader's release is under way takes a key of its own.
// The late put of neither is left behind.
func TestNobodyJoinsAKeyThatIsBeingReleased(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := rwIn(t, processIn(t, etcd, "a"))
		first, second := readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)
		token := first.Token()
		done(t, first)
		etcd.Delay("a", 100*time.Millisecond)
		out := contract.Async(func() error { return second.Unlock(context.Background()) })
		synctest.Wait()
		tried := make(chan *etcdlock.Hold, 1)
		go func() {
			h, err := rw.TryRLock(context.Background())
			if err != nil {
				panic(err)
			}
			tried <- h
		}()
		third := readsLater(rw)
		require.NoError(t, soonOr(t, out, "it is not released"))
		h := soonOr(t, third, "the third does not get in")
		require.Greater(t, h.Token(), token)
		done(t, h, soonOr(t, tried, "TryRLock does not get in"))
	})
}

// etcd is set back to before the put of the readers' key. All of them lose it, and nobody
// gets in beside a writer.
func TestReadersLoseAKeyThatASetBackTakesAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := rwIn(t, processIn(t, etcd, "a"))
		done(t, readWithin(t, rw, time.Second))
		snapshot := etcd.Snapshot()
		first, second := readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)
		contexts := []context.Context{first.Context(context.Background()), second.Context(context.Background())}
		time.Sleep(5 * time.Second)
		etcd.Restore(snapshot, 2)
		for _, ctx := range contexts {
			select {
			case <-ctx.Done():
			case <-time.After(virtualTTL):
				t.Error("a reader was not told within a TTL")
			}
		}
		require.ErrorIs(t, first.Unlock(context.Background()), etcdlock.ErrLost)
		require.ErrorIs(t, second.Unlock(context.Background()), etcdlock.ErrLost)
		done(t, readWithin(t, rw, 4*virtualTTL))
	})
}

// etcd is set back to a revision at which the key was there. The readers go on, and others
// join them again.
func TestReadersGoOnAfterASetBackThatLeavesTheirKey(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		rw := rwIn(t, s)
		first, second := readWithin(t, rw, time.Second), readWithin(t, rw, time.Second)
		snapshot := etcd.Snapshot()
		other := contract.MutexOf(t, s, "other")
		lockWithin(t, other, time.Second)
		require.NoError(t, other.Unlock(context.Background()))
		etcd.Restore(snapshot, 2)
		time.Sleep(virtualTTL)
		requireReads(t, first)
		third := readWithin(t, rw, virtualTTL)
		require.Equal(t, first.Token(), third.Token())
		done(t, third, first, second)
	})
}

// WithHandoff and WithLinger are for writers. A key is passed on to a writer alone, and
// gives way to a reader.
func TestWritersKeysAreNotPassedOnToReaders(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a", etcdlock.WithHandoff(9), etcdlock.WithLinger(time.Minute))
		w1, w2, rw := rwIn(t, s), rwIn(t, s), rwIn(t, s)
		require.NoError(t, w1.Lock(context.Background()))
		token := w1.Token()
		second := writesLater(w2)
		r1, r2 := readsLater(rw), readsLater(rw)
		require.NoError(t, w1.Unlock(context.Background()))
		require.NoError(t, soonOr(t, second, "the second writer does not get in"))
		require.Equal(t, token, w2.Token())
		waits(t, r1, "one writes")
		third := writesLater(w1)
		require.NoError(t, w2.Unlock(context.Background()))
		h1, h2 := soonOr(t, r1, "the first reader"), soonOr(t, r2, "the second reader")
		require.Greater(t, h1.Token(), token)
		require.Equal(t, h1.Token(), h2.Token())
		done(t, h1, h2)
		require.NoError(t, soonOr(t, third, "the third writer does not get in"))
		time.Sleep(time.Second) // the view is there
		require.NoError(t, w1.Unlock(context.Background()))
		require.Len(t, etcd.Keys("n/"), 1, "it lingers")
		h, err := rw.TryRLock(context.Background())
		require.NoError(t, err)
		done(t, h)
		require.Empty(t, etcd.Keys("n/"), "what reads does not linger")
	})
}

// RDo and TryRDo read, and release whatever becomes of the function.
func TestRDo(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := rwIn(t, processIn(t, etcd, "a"))
		ran := errors.New("ran")
		inside := func(ctx context.Context) error {
			token, ok := etcdlock.TokenFrom(ctx)
			require.True(t, ok)
			require.NotZero(t, token)
			require.Len(t, etcd.Keys("n/"), 1)
			return ran
		}
		require.ErrorIs(t, rw.RDo(context.Background(), inside), ran)
		require.ErrorIs(t, rw.TryRDo(context.Background(), inside), ran)
		require.Panics(t, func() {
			_ = rw.RDo(context.Background(), func(context.Context) error { panic("boom") })
		})
		require.Empty(t, etcd.Keys("n/"))
		require.ErrorIs(t, rw.RDo(context.Background(), nil), etcdlock.ErrNotRun)
		err := rw.RDo(context.Background(), func(context.Context) error {
			etcd.DeleteKey(etcd.Keys("n/")[0])
			return nil
		})
		require.ErrorIs(t, err, etcdlock.ErrLost)
		lockWithin(t, contract.MutexOf(t, processIn(t, etcd, "b"), "n"), time.Second)
		err = rw.TryRDo(context.Background(), inside)
		require.ErrorIs(t, err, etcdlock.ErrNotRun)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
	})
}

// Values that no constructor made, and holds that have ended, say so and do nothing.
func TestAnRWMutexAndAHoldOfNothing(t *testing.T) {
	ctx := context.Background()
	for _, rw := range []*etcdlock.RWMutex{nil, {}} {
		_, err := rw.RLock(ctx)
		require.ErrorContains(t, err, "NewRWMutex")
		_, err = rw.TryRLock(ctx)
		require.ErrorContains(t, err, "NewRWMutex")
		require.ErrorContains(t, rw.Close(ctx), "NewRWMutex")
		require.Error(t, rw.Lock(ctx))
		require.ErrorIs(t, rw.Unlock(ctx), etcdlock.ErrNotHeld)
		require.Zero(t, rw.Token())
		require.Empty(t, rw.Name()+rw.Key())
		require.False(t, rw.Held())
		require.ErrorIs(t, context.Cause(rw.Context(ctx)), etcdlock.ErrNotHeld)
	}
	for _, h := range []*etcdlock.Hold{nil, {}} {
		require.ErrorIs(t, h.Unlock(ctx), etcdlock.ErrNotHeld)
		require.Zero(t, h.Token())
		require.Zero(t, h.Deadline())
		require.Len(t, h.IsOwner(), 1)
		require.ErrorIs(t, context.Cause(h.Context(ctx)), etcdlock.ErrNotHeld)
	}
	_, err := etcdlock.NewRWMutex(nil, "n")
	require.Error(t, err)
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		_, err := s.RWMutex("n/")
		require.Error(t, err)
		rw := rwIn(t, s)
		require.Equal(t, "n", rw.Name())
		h := readWithin(t, rw, time.Second)
		var noContext context.Context
		require.Error(t, h.Unlock(noContext))
		requireReads(t, h)
		guard := h.IsOwner()
		resp, err := etcd.Client("c").Txn(ctx).If(guard...).Commit()
		require.NoError(t, err)
		require.True(t, resp.Succeeded)
		done(t, h)
		resp, err = etcd.Client("c").Txn(ctx).If(h.IsOwner()...).Commit()
		require.NoError(t, err)
		require.False(t, resp.Succeeded)
		resp, err = etcd.Client("c").Txn(ctx).If(guard...).Commit()
		require.NoError(t, err)
		require.False(t, resp.Succeeded)
	})
}
