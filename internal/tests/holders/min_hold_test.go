package holders

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// least is the WithMinHold of these tests, which is longer than a TTL.
const least = 2*tests.TTL + 500*time.Millisecond

// entersAt begins a Lock of another process, and returns a channel for the time at which it gets
// in.
func entersAt(t *testing.T, etcd *fake.Server) <-chan time.Time {
	t.Helper()
	next, at := contract.MutexOf(t, tests.SessionOf(t, etcd, "next"), "n"), make(chan time.Time, 1)
	locked := tests.LockLater(next)
	go func() {
		if <-locked == nil {
			at <- time.Now()
			_ = next.Unlock(context.Background())
		}
	}()
	return at
}

// Whenever Unlock is called, the next contender gets in at the end of the least time, and not
// before. It does not matter what becomes of the process then.
func TestANameStaysTakenForItsLeastTime(t *testing.T) {
	rows := []struct {
		promise string
		work    time.Duration
		after   func(t *testing.T, etcd *fake.Server, s *etcdlock.Session)
		late    time.Duration // how long after the least time the next one may get in
	}{
		{"the job takes no time", 0, nil, 0},
		{"it takes a while", 7 * time.Second, nil, 0},
		{"it ends just before", least - time.Millisecond, nil, 0},
		{"the process is cut off",
			time.Second, func(_ *testing.T, etcd *fake.Server, _ *etcdlock.Session) {
				etcd.Cut("a")
				time.AfterFunc(least+time.Minute, func() { etcd.Heal("a") })
			}, time.Second},
		{"the Session is closed", time.Second, func(t *testing.T, _ *fake.Server, s *etcdlock.Session) {
			require.NoError(t, s.Close(context.Background()))
		}, time.Second},
		{"the lease of the Session is lost",
			time.Second, func(_ *testing.T, etcd *fake.Server, s *etcdlock.Session) {
				etcd.RevokeLease(s.Lease())
			}, 0},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n", etcdlock.WithMinHold(least))
				tests.LockWithin(t, mu, time.Second)
				began, token := time.Now(), mu.Token()
				at := entersAt(t, etcd)
				time.Sleep(row.work)
				hold := mu.Context(context.Background())
				require.NoError(t, mu.Unlock(context.Background()))
				require.Equal(t, etcdlock.ErrUnlocked, context.Cause(hold))
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrNotHeld)

				kept := tests.PlaceOf(t, etcd, "n", 0)
				require.True(t, kept.Holds)
				require.Equal(t, token, kept.Token)
				require.True(t, kept.Until.Equal(began.Add(least)), "until %v", kept.Until)
				require.ErrorIs(t, etcdlock.Recall(t.Context(), etcd.Client("operator"), kept,
					etcdlock.RecallRequest{}),
					etcdlock.ErrNotRecallable)
				if row.after != nil {
					row.after(t, etcd, s)
				}
				in := tests.SoonOr(t, at, "nobody gets in")
				require.WithinRange(t, in, began.Add(least), began.Add(least+row.late))
			})
		})
	}
}

// A hold that is longer than its least time costs nothing more. A shorter one costs a lease with
// its Unlock, and a deletion.
func TestOnlyAShortHoldPaysForItsLeastTime(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithMinHold(time.Second))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(time.Second)
		told := tests.CallsSince(etcd)
		require.NoError(t, mu.Unlock(context.Background()))
		tests.Costs(t, told, "Txn 1", 1)

		tests.LockWithin(t, mu, time.Second)
		time.Sleep(500 * time.Millisecond)
		told = tests.CallsSince(etcd)
		require.NoError(t, mu.Unlock(context.Background()))
		tests.Costs(t, told, "Txn 1, LeaseGrant 1", 1)
		told = tests.CallsSince(etcd)
		time.Sleep(time.Second)
		tests.Costs(t, told, "LeaseRevoke 1", 1)
		require.Empty(t, etcd.Keys("n/"))
		require.Len(t, etcd.Leases(), 1, "the Session's")
	})
}

// faults are what an etcd does to the calls that it gets.
type faults = func(fake.Call) fake.Effect

// next has an effect on the next call of a method alone.
func next(method string, effect fake.Effect) func(*fake.Server) faults {
	return func(etcd *fake.Server) faults { return tests.OnlyNext(etcd, method, effect) }
}

// always has faults that need no etcd.
func always(f faults) func(*fake.Server) faults { return func(*fake.Server) faults { return f } }

// Faults of etcd and of others while the key moves.
func TestALeastTimeUnderFaults(t *testing.T) {
	rows := []struct {
		promise string
		faults  func(*fake.Server) faults
		before  func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex)
		fails   error
		free    time.Duration // when the next contender gets in, since the acquisition
	}{
		{"the answer to the grant is lost", next(fake.Grant, fake.Effect{DropReply: true}), nil, nil, least},
		{"a grant fails", next(fake.Grant, fake.Effect{Before: fake.Unavailable}), nil, nil, least},
		{"the answer to the move is lost", next(fake.Txn, fake.Effect{DropReply: true}), nil, nil, least},
		{"the answer to the move is an error", next(fake.Txn, fake.Effect{After: fake.Unavailable}), nil, nil, least},
		{"the lease has expired before the move", next(fake.Txn, fake.Effect{Before: rpctypes.ErrGRPCLeaseNotFound}), nil, nil, least},
		{"no grant is answered", always(tests.FromNth(1, fake.Grant, fake.Effect{Drop: true})), nil, etcdlock.ErrUnconfirmed, least},
		{"no space for a lease", always(tests.FromNth(1, fake.Grant, fake.Effect{Before: rpctypes.ErrGRPCNoSpace})), nil, etcdlock.ErrUnconfirmed, least},
		{"no move is answered", always(func(c fake.Call) fake.Effect {
			return fake.Effect{DropReply: c.Method == fake.Txn}
		}), nil, etcdlock.ErrUnconfirmed, least},
		{"no grant at first, and the key is gone",
			next(fake.Grant, fake.Effect{Before: fake.Unavailable}), func(_ *testing.T, etcd *fake.Server,
				mu *etcdlock.Mutex) {
				etcd.DeleteKey(mu.Key())
			}, etcdlock.ErrLost, 0},
		{"the key is gone", nil, func(_ *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) {
			etcd.DeleteKey(mu.Key())
		}, etcdlock.ErrLost, 0},
		{"the hold is lost", nil, func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) {
			hold := mu.Context(context.Background())
			etcd.RevokeLease(tests.PlaceOf(t, etcd, "n", 0).Lease)
			<-hold.Done()
		}, etcdlock.ErrLost, 0},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithMinHold(least))
				tests.LockWithin(t, mu, time.Second)
				began := time.Now()
				if row.before != nil {
					row.before(t, etcd, mu)
				}
				if row.faults != nil {
					etcd.Intercept(row.faults(etcd))
				}
				err := mu.Unlock(context.Background())
				etcd.Intercept(nil)
				if row.fails == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, row.fails)
				}
				in := tests.SoonOr(t, entersAt(t, etcd), "nobody gets in")
				if row.free == 0 {
					require.Less(t, in.Sub(began), tests.TTL)
				} else {
					require.Equal(t, row.free, in.Sub(began))
				}
			})
		})
	}
}

// noID hides that the Lease of a client takes the ID of a lease, as clientv3's own does not.
type noID struct{ clientv3.Lease }

// No answer comes, though etcd carries every request out. If the client says which lease it wants,
// all requests for it make one, which is given back. If etcd draws the ID, no second request
// follows. So the key stays on the lease of the Session, for its time.
func TestAnUnlockThatHasNoAnswerLeavesOneLeaseAtMost(t *testing.T) {
	for _, row := range []struct {
		promise string
		answers fake.Effect
		noID    bool
	}{
		{"answers are lost", fake.Effect{DropReply: true}, false},
		{"answers are errors", fake.Effect{After: fake.Unavailable}, false},
		{"etcd draws the ID, answers are lost", fake.Effect{DropReply: true}, true},
		{"etcd draws the ID, answers are errors", fake.Effect{After: fake.Unavailable}, true},
	} {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				const day = 24 * time.Hour
				client := etcd.Client("a")
				if row.noID {
					client.Lease = noID{client.Lease}
				}
				s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
				h, err := s.Lock(t.Context(), "n", etcdlock.WithMinHold(day))
				require.NoError(t, err)
				began, token := time.Now(), h.Token()
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.Grant || c.Method == fake.Txn {
						return row.answers
					}
					return fake.Effect{}
				})
				require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrUnconfirmed)
				etcd.Intercept(nil)
				in := entersAt(t, etcd) // with a lease of its own
				time.Sleep(time.Until(began.Add(day - time.Minute)))
				on := tests.PlaceOf(t, etcd, "n", 0).Lease
				require.Equal(t, token, tests.PlaceOf(t, etcd, "n", 0).Token, "it is kept")
				used := map[clientv3.LeaseID]bool{
					on: true, s.Lease(): s.Lease() != clientv3.NoLease,
					tests.PlaceOf(t, etcd, "n", 1).Lease: true,
				}
				bare := slices.DeleteFunc(etcd.Leases(), func(l clientv3.LeaseID) bool { return used[l] })
				require.LessOrEqual(t, len(bare), 1)
				require.Equal(t, began.Add(day), tests.SoonOr(t, in, "nobody gets in"))
				if !row.noID {
					time.Sleep(time.Second)
					require.Empty(t, etcd.Keys("n/"))
					for _, l := range bare {
						require.NotContains(t, etcd.Leases(), l, "it is given back")
					}
				}
			})
		})
	}
}

// Close frees the name at once, as ever. So does an Unlock after the least time.
func TestCloseKeepsNothing(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithMinHold(least))
		tests.LockWithin(t, mu, time.Second)
		require.NoError(t, mu.Close(context.Background()))
		require.Empty(t, etcd.Keys("n/"))
	})
}

// Before the end of its least time a hold is not handed on to another goroutine of the Session, and
// does not linger. The other goroutine gets in at the end of that time, like any contender.
func TestALeastTimeIsForTheGoroutinesOfTheSessionToo(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		keeps := []etcdlock.Option{etcdlock.WithMinHold(least), etcdlock.WithHandoff(9),
			etcdlock.WithLinger(time.Minute)}
		mu, next := contract.MutexOf(t, s, "n", keeps...), contract.MutexOf(t, s, "n", keeps...)
		tests.LockWithin(t, mu, time.Second)
		began, token := time.Now(), mu.Token()
		waits := tests.LockLater(next)
		require.NoError(t, mu.Unlock(context.Background()))
		locked := next.TryLock(context.Background())
		require.ErrorIs(t, locked, etcdlock.ErrLocked)
		require.NoError(t, tests.SoonOr(t, waits, "nobody gets in"))
		require.Equal(t, least, time.Since(began))
		require.NotEqual(t, token, next.Token())

		time.Sleep(least)
		token = next.Token()
		require.NoError(t, next.Unlock(context.Background()))
		tests.LockWithin(t, mu, time.Second)
		require.Equal(t, token, mu.Token(), "it lingers after its least time")
		require.NoError(t, mu.Close(context.Background()))
	})
}

// What cannot use the option refuses it, or ignores it as a default of the Session.
func TestWhoHasNoUseForALeastTime(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithMinHold(least))
		_, err := s.RWMutex("n", etcdlock.WithMinHold(least))
		require.EqualError(t, err, "etcdlock: WithMinHold is not for an RWMutex")
		_, err = s.Semaphore("n", 2, etcdlock.WithMinHold(least))
		require.EqualError(t, err, "etcdlock: WithMinHold is not for a Semaphore")
		_, err = s.Mutex("n", etcdlock.WithMinHold(0))
		require.EqualError(t, err, "etcdlock: WithMinHold(0s): not positive")

		ctx := context.Background()
		for _, nothingStays := range []func() (*etcdlock.Hold, error){
			func() (*etcdlock.Hold, error) { return tests.RWMutexOf(t, s).RLock(ctx) },
			func() (*etcdlock.Hold, error) { return tests.SemaphoreOf(t, s, 2).Acquire(ctx, 1) },
			func() (*etcdlock.Hold, error) { return s.LockAll(ctx, "n") },
		} {
			h, err := nothingStays()
			require.NoError(t, err)
			require.NoError(t, h.Unlock(ctx))
			require.Empty(t, etcd.Keys("n/"))
		}
		rw := tests.RWMutexOf(t, s)
		require.NoError(t, rw.Lock(ctx))
		require.NoError(t, rw.Unlock(ctx))
		require.Empty(t, etcd.Keys("n/"))

		require.NoError(t, s.Do(ctx, "n", func(context.Context) error { return nil }))
		require.Len(t, etcd.Keys("n/"), 1, "the Session's default counts for Do")
		h, err := s.Lock(ctx, "m")
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
		require.Len(t, etcd.Keys("m/"), 1)
	})
}

// A Lock that nests is part of the hold around it, which alone has a least time: to ask for another
// one is an error. The default of a Session counts for the hold around it.
func TestALockThatNestsHasNoLeastTimeOfItsOwn(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy(), etcdlock.WithMinHold(least))
		outer, err := s.Lock(t.Context(), "n")
		require.NoError(t, err)
		inside := outer.Context(t.Context())
		told := tests.CallsSince(etcd)
		const refused = `etcdlock: lock "n": WithMinHold is not for a Lock that nests`
		opt := etcdlock.JoinOptions(etcdlock.WithMinHold(time.Second))
		_, err = s.Lock(inside, "n", opt)
		require.EqualError(t, err, refused)
		_, err = s.TryLock(inside, "n", opt)
		require.EqualError(t, err, refused)
		err = s.Do(inside, "n", func(context.Context) error { panic("called") }, opt)
		require.EqualError(t, err, refused)
		require.ErrorIs(t, err, etcdlock.ErrNotRun)
		require.EqualError(t, contract.MutexOf(t, s, "n", opt).Lock(inside), refused)
		require.True(t, outer.Status().Held)

		nested, err := s.Lock(inside, "n", etcdlock.WithOwner("b"))
		require.NoError(t, err)
		require.NoError(t, nested.Unlock(t.Context()))
		require.NoError(t, contract.MutexOf(t, s, "n").Lock(inside))
		tests.Costs(t, told, "", 0)
	})
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu, err := etcdlock.NewMutex(etcd.Client("a"), "n", etcdlock.WithReentrancy(),
			etcdlock.WithMinHold(time.Second))
		require.NoError(t, err)
		hold := tests.LockWithin(t, mu, time.Second)
		require.ErrorContains(t, mu.Lock(hold), "WithMinHold is not for a Lock that nests")
		require.NoError(t, mu.Close(context.Background()))
	})
}

// A call that a name refuses whose hold is over says until when it is taken.
func TestANameThatIsOnlyKeptIsNotToldToBeHeld(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		h, err := s.Lock(t.Context(), "n", etcdlock.WithMinHold(time.Hour))
		require.NoError(t, err)
		until := time.Now().Add(time.Hour)
		require.NoError(t, h.Unlock(t.Context()))
		kept := fmt.Sprintf("kept until %s by a (", until.UTC().Format(time.RFC3339Nano))
		for _, who := range []*etcdlock.Session{s, tests.SessionOf(t, etcd, "b")} {
			err := contract.MutexOf(t, who, "n").TryLock(t.Context())
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			require.ErrorContains(t, err, `etcdlock: lock "n": `+kept)
			require.NotContains(t, err.Error(), "held by")
			err = contract.MutexOf(t, who, "n").Lock(tests.Within(t, time.Second))
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			require.ErrorContains(t, err, `etcdlock: lock "n": 2nd in line, `+kept)
		}
	})
}

// A name may have any text, and stay taken for as long as etcd can keep a lease.
func TestAnyNameStaysTakenForAnyTime(t *testing.T) {
	for _, name := range []string{"a:b", "a/b c:é/7:x", " ",
		"7:n/9b1c1c62-98ea-4a0c-a4b2-0d1f6ef4e1b2", "x//y", "\x01"} {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				ctx := context.Background()
				a := tests.SessionOf(t, etcd, "a")
				h, err := a.Lock(ctx, name, etcdlock.WithMinHold(9_000_000_000*time.Second))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
				cs, err := etcdlock.Contenders(ctx, etcd.Client("x"), name)
				require.NoError(t, err)
				require.Len(t, cs, 1)
				require.Greater(t, cs[0].Until.Year(), 2200)
				require.NoError(t, etcdlock.Break(ctx, etcd.Client("x"), cs[0]))
				etcd.RevokeLease(cs[0].Lease) // it would last for longer than the test
				h, err = a.TryLock(ctx, name)
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
			})
		})
	}
}

// A copy of the request that moves the key may have been carried out, and then the key is gone, or
// is put over, long before its time is over: nobody knows whether that happened before or after.
// Unlock does not say that the hold was whole, nor that it was lost.
func TestAKeyThatIsGoneWhileItMovesIsNotConfirmed(t *testing.T) {
	deletes := func(t *testing.T, etcd *fake.Server, key string) { etcd.DeleteKey(key) }
	putsOver := func(t *testing.T, etcd *fake.Server, key string) {
		require.NoError(t, etcd.PutKey(key, clientv3.NoLease))
	}
	for _, row := range []struct {
		promise string
		effect  fake.Effect // on the first request
		happens func(t *testing.T, etcd *fake.Server, key string)
		reason  error
	}{
		{"the request is lost, and the key deleted", fake.Effect{Drop: true}, deletes,
			etcdlock.ErrKeyDeleted},
		{"the answer is lost, and the key deleted", fake.Effect{DropReply: true}, deletes,
			etcdlock.ErrKeyDeleted},
		{"the request fails, and the key is deleted", fake.Effect{Before: fake.Unavailable}, deletes,
			etcdlock.ErrKeyDeleted},
		{"the request is lost, and the key put over", fake.Effect{Drop: true}, putsOver,
			etcdlock.ErrKeyOverwritten},
		{"the answer is lost, and the key put over", fake.Effect{DropReply: true}, putsOver,
			etcdlock.ErrKeyOverwritten},
	} {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithMinHold(least))
				tests.LockWithin(t, mu, time.Second)
				key, first := mu.Key(), len(etcd.Calls(fake.Txn))+1
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method != fake.Txn || c.N != first {
						return fake.Effect{}
					}
					time.AfterFunc(time.Millisecond, func() { row.happens(t, etcd, key) })
					return row.effect
				})
				unlocked := mu.Unlock(context.Background())
				etcd.Intercept(nil)
				require.ErrorIs(t, unlocked, etcdlock.ErrUnconfirmed)
				require.ErrorIs(t, unlocked, row.reason)
				require.NotErrorIs(t, unlocked, etcdlock.ErrLost)
				in := tests.SoonOr(t, entersAt(t, etcd), "nobody gets in")
				require.Less(t, time.Since(in), time.Second)
				time.Sleep(tests.TTL)
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}

// The time of a key must be over when etcd is asked for it, not when the answer comes: the answer
// tells what was so before.
func TestAKeyThatWasGoneBeforeItsTimeWasOverIsNotConfirmed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const short = 3 * time.Second
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithMinHold(short))
		tests.LockWithin(t, mu, time.Second)
		began, key, first := time.Now(), mu.Key(), len(etcd.Calls(fake.Txn))+1
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method != fake.Txn:
				return fake.Effect{}
			case c.N == first:
				time.AfterFunc(time.Millisecond, func() { etcd.DeleteKey(key) })
				return fake.Effect{Drop: true}
			default:
				return fake.Effect{DelayReply: short / 2}
			}
		})
		unlocked := mu.Unlock(context.Background())
		require.Greater(t, time.Since(began), short)
		require.ErrorIs(t, unlocked, etcdlock.ErrUnconfirmed)
		require.ErrorIs(t, unlocked, etcdlock.ErrKeyDeleted)
	})
}

// If the time of a key is over before its Unlock gets an answer, a key that is gone has gone with
// its lease: the hold was whole, if the watch of the key shows that it was there before.
func TestAKeyWhoseTimeIsOverWhileItMovesHasGoneByItself(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const short = 3 * time.Second
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithMinHold(short))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(2 * tests.WatchedBy)
		etcd.Intercept(next(fake.Txn, fake.Effect{DropReply: true})(etcd))
		time.AfterFunc(time.Millisecond, func() {
			etcd.Intercept(nil)
			etcd.Cut("a")
		})
		time.AfterFunc(2*short, func() { etcd.Heal("a") })
		require.NoError(t, mu.Unlock(tests.Within(t, tests.TTL)))
	})
}
