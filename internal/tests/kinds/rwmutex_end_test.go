package kinds

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// All that read by a key lose it together. Their contexts end, each Unlock says so, and
// nobody of the Session gets in before the last of them has unlocked.
func TestAKeyThatReadersShareIsLostToAll(t *testing.T) {
	faults := map[string]func(etcd *fake.Server, s *etcdlock.Session){
		"its lease is revoked": func(etcd *fake.Server, s *etcdlock.Session) {
			etcd.RevokeLease(s.Lease())
		},
		"it is deleted": func(etcd *fake.Server, _ *etcdlock.Session) {
			etcd.DeleteKey(etcd.Keys("n/")[0])
		},
		"it is not renewed": func(etcd *fake.Server, _ *etcdlock.Session) {
			etcd.Intercept(tests.FromNth(1, fake.KeepAlive, fake.Effect{Drop: true}))
		},
	}
	for fault, strike := range faults {
		for _, next := range []string{"reads", "writes"} {
			t.Run(fault+", and the next one "+next, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					rw := tests.RWMutexOf(t, s)
					var reads []*etcdlock.Hold
					var contexts []context.Context
					for range 3 {
						h := tests.RLockWithin(t, rw, time.Second)
						reads, contexts = append(reads, h), append(contexts, h.Context(context.Background()))
					}
					token := reads[0].Token()
					time.Sleep(3 * time.Second)
					strike(etcd, s)
					for i, ctx := range contexts {
						tests.SoonOr(t, ctx.Done(), "a reader does not hear of it")
						var lost *etcdlock.LostError
						ok := errors.As(context.Cause(ctx), &lost)
						require.True(t, ok)
						require.Equal(t, token, lost.Token)
						tests.RequireEnded(t, reads[i])
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
						tests.StillWaits(t, in, "a loser may be at work")
						_, err := rw.TryRLock(context.Background())
						require.ErrorIs(t, err, etcdlock.ErrLocked)
						require.ErrorIs(t, reads[i].Unlock(context.Background()), etcdlock.ErrLost)
						require.ErrorIs(t, reads[i].Unlock(context.Background()), etcdlock.ErrNotHeld)
					}
					require.NoError(t, tests.SoonOr(t, in, "the next one does not get in")())
				})
			})
		}
	}
}

// WithMaxHold ends its own read. The others go on, and the key with them.
func TestTheLongestHoldEndsItsOwnRead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		short, long := tests.RWMutexOf(t, s, etcdlock.WithMaxHold(5*time.Second)), tests.RWMutexOf(t, s)
		first, second := tests.RLockWithin(t, short, time.Second), tests.RLockWithin(t, long, time.Second)
		third := tests.RLockWithin(t, short, time.Second)
		ctx := first.Context(context.Background())
		writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "b"))
		in := tests.LockLater(writer)
		time.Sleep(6 * time.Second)
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrMaxHold)
		tests.RequireEnded(t, first)
		tests.RequireHolds(t, second)
		tests.StillWaits(t, in, "one reads")
		err := first.Unlock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.ErrorIs(t, err, etcdlock.ErrMaxHold)
		tests.RequireHolds(t, second)
		home := tests.RWMutexOf(t, s)
		behind := tests.LockLater(home)
		tests.UnlockAll(t, second)
		require.NoError(t, tests.SoonOr(t, in, "the writer of another Session does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))
		time.Sleep(time.Minute)
		tests.StillWaits(t, behind, "a loser may be at work")
		require.ErrorIs(t, third.Unlock(context.Background()), etcdlock.ErrMaxHold)
		require.NoError(t, tests.SoonOr(t, behind, "the writer at home does not get in"))
		require.NoError(t, home.Unlock(context.Background()))

		// If all of them end like that, the key goes without an Unlock.
		first, third = tests.RLockWithin(t, short, time.Second), tests.RLockWithin(t, short, time.Second)
		time.Sleep(6 * time.Second)
		require.Empty(t, etcd.Keys("n/"))
		require.ErrorIs(t, first.Unlock(context.Background()), etcdlock.ErrMaxHold)
		require.ErrorIs(t, third.Unlock(context.Background()), etcdlock.ErrMaxHold)
	})
}

// Close of an RWMutex ends its own reads. Those of others go on.
func TestCloseOfAnRWMutexEndsItsReads(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		rw, other := tests.RWMutexOf(t, s), tests.RWMutexOf(t, s)
		mine := []*etcdlock.Hold{tests.RLockWithin(t, rw, time.Second),
			tests.RLockWithin(t, rw, time.Second)}
		theirs := tests.RLockWithin(t, other, time.Second)
		ctx := mine[1].Context(context.Background())
		writer := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "b"))
		in := tests.LockLater(writer)
		waiting := make(chan error, 1)
		go func() { _, err := rw.RLock(context.Background()); waiting <- err }()
		synctest.Wait()
		require.NoError(t, rw.Close(context.Background()))
		require.ErrorIs(t, tests.SoonOr(t, waiting, "a wait goes on"), etcdlock.ErrClosed)
		require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrClosed)
		for _, h := range mine {
			tests.RequireEnded(t, h)
			require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
		}
		_, err := rw.RLock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrClosed)
		tests.RequireHolds(t, theirs)
		tests.StillWaits(t, in, "one reads")
		require.NoError(t, other.Close(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the writer does not get in"))
		require.NoError(t, writer.Unlock(context.Background()))

		// So does Close of the Session.
		third := tests.RWMutexOf(t, s)
		h1, h2 := tests.RLockWithin(t, third, time.Second), tests.RLockWithin(t, third, time.Second)
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		rw := tests.RWMutexOf(t, s, etcdlock.WithMaxHold(5*time.Second))
		first, second := tests.RLockWithin(t, rw, time.Second), tests.RLockWithin(t, rw, time.Second)
		time.Sleep(3 * time.Second)
		third := tests.RLockWithin(t, rw, time.Second)
		tests.UnlockAll(t, first)
		time.Sleep(3 * time.Second)
		tests.RequireEnded(t, second)
		tests.RequireHolds(t, third)

		etcd.Freeze()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, rw.Close(ctx), etcdlock.ErrUnconfirmed)
		etcd.Thaw()
		next := tests.RWMutexOf(t, s)
		require.NoError(t, tests.SoonOr(t, tests.LockLater(next), "the turn is nobody's"))
		require.NoError(t, next.Unlock(context.Background()))
	})
}

// A reader that comes while the last reader's release is under way takes a key of its own.
// The late put of neither is left behind.
func TestNobodyJoinsAKeyThatIsBeingReleased(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		first, second := tests.RLockWithin(t, rw, time.Second), tests.RLockWithin(t, rw, time.Second)
		token := first.Token()
		tests.UnlockAll(t, first)
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
		third := tests.RLockLater(rw)
		require.NoError(t, tests.SoonOr(t, out, "it is not released"))
		h := tests.SoonOr(t, third, "the third does not get in")
		require.Greater(t, h.Token(), token)
		tests.UnlockAll(t, h, tests.SoonOr(t, tried, "TryRLock does not get in"))
	})
}

// etcd is set back to before the put of the readers' key. All of them lose it, and nobody
// gets in beside a writer.
func TestReadersLoseAKeyThatASetBackTakesAway(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
		tests.UnlockAll(t, tests.RLockWithin(t, rw, time.Second))
		snapshot := etcd.Snapshot()
		first, second := tests.RLockWithin(t, rw, time.Second), tests.RLockWithin(t, rw, time.Second)
		contexts := []context.Context{first.Context(context.Background()),
			second.Context(context.Background())}
		time.Sleep(5 * time.Second)
		etcd.Restore(snapshot, 2)
		for _, ctx := range contexts {
			select {
			case <-ctx.Done():
			case <-time.After(tests.TTL):
				t.Error("a reader was not told within a TTL")
			}
		}
		require.ErrorIs(t, first.Unlock(context.Background()), etcdlock.ErrLost)
		require.ErrorIs(t, second.Unlock(context.Background()), etcdlock.ErrLost)
		tests.UnlockAll(t, tests.RLockWithin(t, rw, 4*tests.TTL))
	})
}

// etcd is set back to a revision at which the key was there. The readers go on, and others
// join them again.
func TestReadersGoOnAfterASetBackThatLeavesTheirKey(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		rw := tests.RWMutexOf(t, s)
		first, second := tests.RLockWithin(t, rw, time.Second), tests.RLockWithin(t, rw, time.Second)
		snapshot := etcd.Snapshot()
		other := contract.MutexOf(t, s, "other")
		tests.LockWithin(t, other, time.Second)
		require.NoError(t, other.Unlock(context.Background()))
		etcd.Restore(snapshot, 2)
		time.Sleep(tests.TTL)
		tests.RequireHolds(t, first)
		third := tests.RLockWithin(t, rw, tests.TTL)
		require.Equal(t, first.Token(), third.Token())
		tests.UnlockAll(t, third, first, second)
	})
}

// WithHandoff and WithLinger are for writers. A key is passed on to a writer alone, and
// gives way to a reader.
func TestWritersKeysAreNotPassedOnToReaders(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithHandoff(9), etcdlock.WithLinger(time.Minute))
		w1, w2, rw := tests.RWMutexOf(t, s), tests.RWMutexOf(t, s), tests.RWMutexOf(t, s)
		require.NoError(t, w1.Lock(context.Background()))
		token := w1.Token()
		second := tests.LockLater(w2)
		r1, r2 := tests.RLockLater(rw), tests.RLockLater(rw)
		require.NoError(t, w1.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, second, "the second writer does not get in"))
		require.Equal(t, token, w2.Token())
		tests.StillWaits(t, r1, "one writes")
		third := tests.LockLater(w1)
		require.NoError(t, w2.Unlock(context.Background()))
		h1, h2 := tests.SoonOr(t, r1, "the first reader"), tests.SoonOr(t, r2, "the second reader")
		require.Greater(t, h1.Token(), token)
		require.Equal(t, h1.Token(), h2.Token())
		tests.UnlockAll(t, h1, h2)
		require.NoError(t, tests.SoonOr(t, third, "the third writer does not get in"))
		time.Sleep(time.Second) // the view is there
		require.NoError(t, w1.Unlock(context.Background()))
		require.Len(t, etcd.Keys("n/"), 1, "it lingers")
		h, err := rw.TryRLock(context.Background())
		require.NoError(t, err)
		tests.UnlockAll(t, h)
		require.Empty(t, etcd.Keys("n/"), "what reads does not linger")
	})
}

// RDo and TryRDo read, and release whatever becomes of the function.
func TestRDo(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		rw := tests.RWMutexOf(t, tests.SessionOf(t, etcd, "a"))
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
		tests.LockWithin(t, contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n"), time.Second)
		err = rw.TryRDo(context.Background(), inside)
		require.ErrorIs(t, err, etcdlock.ErrNotRun)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
	})
}

// Values that no constructor made, and holds that have ended, say so and do nothing.
func TestAnRWMutexAndAHoldOfNothing(t *testing.T) {
	ctx := context.Background()
	fails := func(context.Context) error { panic("called") }
	for _, rw := range []*etcdlock.RWMutex{{}, {Mutex: new(etcdlock.Mutex)}} {
		_, err := rw.RLock(ctx)
		require.ErrorContains(t, err, "NewRWMutex")
		_, err = rw.TryRLock(ctx)
		require.ErrorContains(t, err, "NewRWMutex")
		require.ErrorContains(t, rw.RDo(ctx, fails), "NewRWMutex")
		require.ErrorContains(t, rw.TryRDo(ctx, fails), "NewRWMutex")
		require.ErrorContains(t, rw.Close(ctx), "NewRWMutex")
		require.Error(t, rw.Lock(ctx))
		require.ErrorIs(t, rw.Unlock(ctx), etcdlock.ErrNotHeld)
		require.Zero(t, rw.Status())
		require.Zero(t, rw.Token())
		require.Empty(t, rw.Name()+rw.Key())
		require.ErrorIs(t, context.Cause(rw.Context(ctx)), etcdlock.ErrNotHeld)
	}
	for _, h := range []*etcdlock.Hold{nil, {}} {
		require.ErrorIs(t, h.Unlock(ctx), etcdlock.ErrNotHeld)
		require.Zero(t, h.Token())
		require.Zero(t, h.Status())
		require.Len(t, h.IsOwner(), 1)
		require.ErrorIs(t, context.Cause(h.Context(ctx)), etcdlock.ErrNotHeld)
	}
	_, err := etcdlock.NewRWMutex(nil, "n")
	require.Error(t, err)
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		_, err := s.RWMutex("n/")
		require.Error(t, err)
		rw := tests.RWMutexOf(t, s)
		require.Equal(t, "n", rw.Name())
		h := tests.RLockWithin(t, rw, time.Second)
		var noContext context.Context
		require.Error(t, h.Unlock(noContext))
		tests.RequireHolds(t, h)
		guard := h.IsOwner()
		resp, err := etcd.Client("c").Txn(ctx).If(guard...).Commit()
		require.NoError(t, err)
		require.True(t, resp.Succeeded)
		tests.UnlockAll(t, h)
		resp, err = etcd.Client("c").Txn(ctx).If(h.IsOwner()...).Commit()
		require.NoError(t, err)
		require.False(t, resp.Succeeded)
		resp, err = etcd.Client("c").Txn(ctx).If(guard...).Commit()
		require.NoError(t, err)
		require.False(t, resp.Succeeded)
	})
}
