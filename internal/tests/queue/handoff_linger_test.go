package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// WithHandoff and WithLinger: holds of one Session that share a key.

// A shift is a hold, as those that wait for it see it.
type shift struct {
	who   string
	token int64
	calls int // calls to etcd, by all, since the one before was let go
}

// shifts makes mutexes queue in order, and each leave when it is let go. It returns the
// holders in their order.
func shifts(
	t *testing.T, etcd *fake.Server, holder *etcdlock.Mutex, names []string, mutexes []*etcdlock.Mutex,
) (order []shift) {
	t.Helper()
	type entered struct {
		i   int
		err error
	}
	in := make(chan entered, len(mutexes))
	for i, mu := range mutexes {
		go func() { in <- entered{i, mu.Lock(context.Background())} }()
		synctest.Wait()
	}
	leaving := holder
	for range mutexes {
		before := len(etcd.Calls(""))
		require.NoError(t, leaving.Unlock(context.Background()))
		next := tests.SoonOr(t, in, "nobody gets in")
		require.NoError(t, next.err)
		synctest.Wait()
		leaving = mutexes[next.i]
		tests.RequireWhole(t, leaving)
		order = append(order, shift{names[next.i], leaving.Token(), len(etcd.Calls("")[before:])})
	}
	require.NoError(t, leaving.Unlock(context.Background()))
	return order
}

// Of five goroutines of a, and one of b that queued after the first, three hold in a row.
// Then b gets in, and then the others, in their order.
func TestAHandOffIsWithoutEtcdUpToItsNumber(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a, b := tests.SessionOf(t, etcd, "a", etcdlock.WithHandoff(2)), tests.SessionOf(t, etcd, "b")
		holder := contract.MutexOf(t, a, "n")
		tests.LockWithin(t, holder, time.Second)
		names := []string{"a1", "b", "a2", "a3", "a4"}
		var mutexes []*etcdlock.Mutex
		for _, name := range names {
			mutexes = append(mutexes,
				contract.MutexOf(t, map[byte]*etcdlock.Session{'a': a, 'b': b}[name[0]], "n"))
		}
		order := shifts(t, etcd, holder, names, mutexes)
		var who []string
		for _, s := range order {
			who = append(who, s.who)
		}
		require.Equal(t, []string{"a1", "a2", "b", "a3", "a4"}, who)
		require.Zero(t, order[0].calls)
		require.Zero(t, order[1].calls)
		require.Equal(t, order[0].token, order[1].token)
		require.Greater(t, order[2].token, order[1].token)
		require.Greater(t, order[3].token, order[2].token)
		require.Equal(t, order[3].token, order[4].token)
		require.Zero(t, order[4].calls)
	})
}

// Without the option each hold has a token of its own.
func TestWithoutHandOffAllGetInAsTheyCame(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
		holder := contract.MutexOf(t, a, "n")
		tests.LockWithin(t, holder, time.Second)
		order := shifts(t, etcd, holder, []string{"a1", "b", "a2"},
			[]*etcdlock.Mutex{contract.MutexOf(t, a, "n"), contract.MutexOf(t, b, "n"),
				contract.MutexOf(t, a, "n")})
		require.Equal(t, "b", order[0].who) // a1 has queued in etcd when a left
		require.Greater(t, order[1].token, order[0].token)
		require.Greater(t, order[2].token, order[1].token)
	})
}

// A hold that was passed on is lost like any other, by the one that holds then. After that
// the next one gets a key of its own.
func TestAHoldThatWasPassedOnIsLostLikeAny(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithHandoff(9))
		first, second, third := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n"),
			contract.MutexOf(t, s, "n")
		tests.LockWithin(t, first, time.Second)
		token := first.Token()
		in := make(chan error, 2)
		go func() { in <- second.Lock(context.Background()) }()
		synctest.Wait()
		go func() { in <- third.Lock(context.Background()) }()
		synctest.Wait()
		require.NoError(t, first.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the second does not get in"))
		require.Equal(t, token, second.Token())
		hold := second.Context(context.Background())
		etcd.DeleteKey(second.Key())
		tests.SoonOr(t, hold.Done(), "the holder does not hear of its loss")
		tests.RequireLost(t, second, hold)
		require.Empty(t, in, "the loser has not unlocked yet")
		require.ErrorIs(t, second.Unlock(context.Background()), etcdlock.ErrLost)
		require.NoError(t, tests.SoonOr(t, in, "the next one does not get in"))
		require.Greater(t, third.Token(), token)
		require.NoError(t, third.Unlock(context.Background()))
	})
}

// If a goroutine goes away just as the hold is passed on to it, it passes the hold on.
func TestAHandOffToOneWhoLeavesGoesOnToTheNext(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		for range 100 {
			s := tests.SessionOf(t, etcd, "a", etcdlock.WithHandoff(100))
			mu := contract.MutexOf(t, s, "n")
			tests.LockWithin(t, mu, time.Second)
			token := mu.Token()
			ctx, leave := context.WithCancel(context.Background())
			left, in := make(chan error, 1), make(chan error, 1)
			go func() { left <- contract.MutexOf(t, s, "n").Lock(ctx) }()
			synctest.Wait()
			next := contract.MutexOf(t, s, "n")
			go func() { in <- next.Lock(context.Background()) }()
			synctest.Wait()
			go leave()
			require.NoError(t, mu.Unlock(context.Background()))
			if err := <-left; err != nil {
				require.ErrorIs(t, err, context.Canceled)
				require.NoError(t, tests.SoonOr(t, in, "the next one does not get in"))
				require.Equal(t, token, next.Token())
			}
			require.NoError(t, s.Close(context.Background()))
		}
	})
}

// Once there is a view of the line, locking again costs nothing. The key goes when its time
// is over, or when another queues, which costs two commits in all.
func TestAKeyThatLingersIsLockedAgainWithoutEtcd(t *testing.T) {
	const linger = 10 * time.Second
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(linger))
		tests.LockWithin(t, mu, time.Second)
		token, key := mu.Token(), mu.Key()
		synctest.Wait()
		before := len(etcd.Calls(""))
		for range 1000 {
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, mu.TryLock(context.Background()))
			require.Equal(t, token, mu.Token())
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, mu.Lock(context.Background()))
		}
		require.Empty(t, etcd.Calls("")[before:])
		require.NoError(t, mu.Unlock(context.Background()))
		require.Zero(t, mu.Token())
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrNotHeld)

		time.Sleep(linger - time.Millisecond)
		require.Equal(t, []string{key}, etcd.Keys("n/"))
		time.Sleep(2 * time.Millisecond)
		require.Empty(t, etcd.Keys("n/"))
		tests.LockWithin(t, mu, time.Second)
		require.Greater(t, mu.Token(), token)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

func TestAKeyThatLingersGivesWayAsSoonAsAnotherQueues(t *testing.T) {
	const answer = 10 * time.Millisecond
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(time.Hour))
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n", etcdlock.WithLinger(time.Hour))
		tests.LockWithin(t, a, time.Second)
		require.NoError(t, a.Unlock(context.Background()))
		tests.LockWithin(t, b, time.Second) // so that its session has a lease
		require.NoError(t, b.Unlock(context.Background()))
		etcd.Intercept(func(fake.Call) fake.Effect { return fake.Effect{DelayReply: answer} })
		mu, other := a, b
		for range 6 {
			before, start := etcd.Rev(), time.Now()
			tests.LockWithin(t, mu, time.Second)
			require.Less(t, time.Since(start), 4*answer)
			require.Equal(t, before+2, etcd.Rev(), "its key, and the removal of the other's")
			require.NoError(t, mu.Unlock(context.Background()))
			require.Len(t, etcd.Keys("n/"), 1)
			mu, other = other, mu
		}
	})
}

// TryLock by others finds the lock taken, and writes nothing.
func TestAKeyThatLingersIsTakenForATryLock(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(time.Minute))
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		tests.LockWithin(t, a, time.Second)
		require.NoError(t, a.Unlock(context.Background()))
		rev := etcd.Rev()
		err := b.TryLock(context.Background())
		var locked *etcdlock.LockedError
		ok := errors.As(err, &locked)
		require.True(t, ok, "%v", err)
		require.Equal(t, 1, locked.Ahead)
		require.Equal(t, "a", locked.Holder.Owner)
		require.Equal(t, rev, etcd.Rev())
		time.Sleep(time.Minute + time.Second)
		require.NoError(t, b.TryLock(context.Background()))
		require.NoError(t, b.Unlock(context.Background()))
	})
}

// A key that lingers is given up when nothing could show that others queue, when the lease
// is in doubt or at risk, and at the end.
func TestAKeyThatLingersIsGivenUp(t *testing.T) {
	const soon = 4 * time.Second
	rows := map[string]func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex){
		"when the watch ends and none can be made": func(t *testing.T, etcd *fake.Server,
			_ *etcdlock.Session, _ *etcdlock.Mutex) {
			etcd.Intercept(tests.FromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}))
			etcd.CancelWatches()
		},
		"when the watch is silent": func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session,
			_ *etcdlock.Mutex) {
			etcd.Intercept(tests.FromNth(1, fake.Event, fake.Effect{Drop: true}))
			go func() {
				other := contract.MutexOf(t, tests.SessionOf(t, etcd, "other"), "n")
				if other.Lock(t.Context()) == nil {
					_ = other.Unlock(context.Background())
				}
			}()
		},
		"when a renewal is late": func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session,
			_ *etcdlock.Mutex) {
			etcd.Intercept(tests.FromNth(1, fake.KeepAlive, fake.Effect{Drop: true}))
			time.Sleep(tests.TTL/3 + tests.TTL/6)
		},
		"when the lease is revoked": func(t *testing.T, etcd *fake.Server, s *etcdlock.Session,
			_ *etcdlock.Mutex) {
			etcd.RevokeLease(s.Lease())
		},
		"when it is deleted": func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) {
			etcd.DeleteKey(etcd.Keys("n/")[0])
		},
		"when its Mutex is closed": func(t *testing.T, _ *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) {
			require.NoError(t, mu.Close(context.Background()))
		},
		"when its Session is closed": func(t *testing.T, _ *fake.Server, s *etcdlock.Session,
			_ *etcdlock.Mutex) {
			require.NoError(t, s.Close(context.Background()))
		},
	}
	for when, happen := range rows {
		t.Run(when, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Hour))
				tests.LockWithin(t, mu, time.Second)
				token := mu.Token()
				require.NoError(t, mu.Unlock(context.Background()))
				time.Sleep(2 * time.Second)
				require.Len(t, etcd.Keys("n/"), 1)
				happen(t, etcd, s, mu)
				time.Sleep(soon)
				require.Empty(t, etcd.Keys("n/"))
				etcd.Intercept(nil)
				if err := mu.Lock(context.Background()); err != nil {
					require.ErrorIs(t, err, etcdlock.ErrClosed)
					return
				}
				require.Greater(t, mu.Token(), token)
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// A key that lingers is no hold: when its lease is over, so is it, at the first check.
func TestALingeringKeyOfALeaseThatIsOverIsNotHeld(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(time.Hour))
		tests.LockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		time.Sleep(time.Second)
		etcd.Cut("a")
		time.Sleep(tests.TTL - 4*time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		etcd.Heal("a")
		tests.LockWithin(t, mu, tests.TTL)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// A waiter that leaves while a view is being made leaves the view to the next one. What
// happens between the watch and its first read is not missed. What the read has shown
// already does not count twice.
func TestAViewMissesNothingBeforeItsWatch(t *testing.T) {
	const ms = time.Millisecond
	for watched := range 6 {
		for read := range 6 {
			for event := range 6 {
				t.Run(fmt.Sprint(watched, read, event), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
						second := contract.MutexOf(t, tests.SessionOf(t, etcd, "second"), "n")
						third := contract.MutexOf(t, tests.SessionOf(t, etcd, "third"), "n")
						tests.LockWithin(t, holder, time.Second)
						in := tests.LockLater(second)
						etcd.Intercept(func(c fake.Call) fake.Effect {
							if c.Process != "third" {
								return fake.Effect{}
							}
							switch c.Method {
							case fake.Watch:
								return fake.Effect{Delay: time.Duration(watched) * 10 * ms, DelayReply: 10 * ms}
							case fake.Range:
								return fake.Effect{Delay: time.Duration(read) * 10 * ms, DelayReply: 10 * ms}
							case fake.Event:
								return fake.Effect{Delay: time.Duration(event) * 10 * ms}
							}
							return fake.Effect{}
						})
						last := make(chan error, 1)
						go func() { last <- third.Lock(context.Background()) }()
						time.Sleep(25 * ms)
						require.NoError(t, holder.Unlock(context.Background()))
						require.NoError(t, tests.SoonOr(t, in, "the second does not get in"))
						time.Sleep(30 * ms)
						require.Zero(t, third.Token())
						released := time.Now()
						require.NoError(t, second.Unlock(context.Background()))
						require.NoError(t, tests.SoonOr(t, last, "the third does not get in"))
						require.Less(t, time.Since(released), 500*ms, "before any re-check")
						tests.RequireWhole(t, third)
						require.NoError(t, third.Unlock(context.Background()))
					})
				})
			}
		}
	}
}

// A key that lingered is being removed when TryLock comes. Nobody holds the lock then,
// least of all the caller.
func TestTryLockWaitsForTheRemovalOfWhatLingered(t *testing.T) {
	for name, row := range map[string]struct {
		rival  bool
		leaves time.Duration // after the Unlock
		want   error
	}{
		"nobody waits":  {false, time.Second, nil},
		"another waits": {true, 0, etcdlock.ErrLocked},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(time.Second))
				tests.LockWithin(t, mu, time.Second)
				require.NoError(t, mu.Unlock(tests.Within(t, time.Second)))
				removal := len(etcd.Calls(fake.Txn)) + 1
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Process == "a" && c.Method == fake.Txn && c.N == removal {
						return fake.Effect{Delay: 300 * time.Millisecond}
					}
					return fake.Effect{}
				})
				if row.rival {
					rival := contract.MutexOf(t, tests.SessionOf(t, etcd, "rival"), "n")
					in := contract.Async(func() error { return rival.Lock(context.Background()) })
					defer func() {
						require.NoError(t, <-in)
						require.NoError(t, rival.Unlock(context.Background()))
					}()
				}
				time.Sleep(row.leaves + 100*time.Millisecond)
				began := time.Now()
				err := mu.TryLock(tests.Within(t, 10*time.Second))
				require.ErrorIs(t, err, row.want)
				require.Equal(t, 200*time.Millisecond, time.Since(began))
				if row.want == nil {
					require.NoError(t, mu.Unlock(tests.Within(t, time.Second)))
					return
				}
				var locked *etcdlock.LockedError
				ok := errors.As(err, &locked)
				require.True(t, ok)
				require.Equal(t, "rival", locked.Holder.Owner)
			})
		})
	}
}

// What the value of a key says of its holder is true of each hold that gets the key: whether it may
// be recalled, its label and its info. A Mutex of which it would not be true gets a key of its own.
func TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue(t *testing.T) {
	none, listens := []etcdlock.Option(nil), []etcdlock.Option{etcdlock.WithRecall(time.Minute)}
	for name, row := range map[string]struct {
		first, second []etcdlock.Option
		shares        bool
	}{
		"neither listens":       {none, none, true},
		"both listen":           {listens, []etcdlock.Option{etcdlock.WithRecall(time.Second)}, true},
		"the first one listens": {listens, none, false},
		"the next one listens":  {none, listens, false},
		"another label":         {none, []etcdlock.Option{etcdlock.WithOwner("b")}, false},
		"another info":          {none, []etcdlock.Option{etcdlock.WithInfo("10.0.0.2")}, false},
	} {
		for way, share := range map[string]etcdlock.Option{
			"handed off": etcdlock.WithHandoff(9), "lingers": etcdlock.WithLinger(time.Hour),
			"put with the release": etcdlock.WithHandoff(0),
		} {
			t.Run(way+" "+name, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a", share)
					first := contract.MutexOf(t, s, "n", row.first...)
					second := contract.MutexOf(t, s, "n", row.second...)
					tests.LockWithin(t, first, time.Second)
					token := first.Token()
					shared := row.shares
					switch way {
					case "lingers":
						require.NoError(t, first.Unlock(context.Background()))
						tests.LockWithin(t, second, time.Second)
					case "handed off":
						in := tests.LockLater(second)
						require.NoError(t, first.Unlock(context.Background()))
						require.NoError(t, tests.SoonOr(t, in, "the next one does not get in"))
					default: // the release puts a key for the first that waits, which leaves
						leaving := make(chan error, 1)
						ctx, leave := context.WithCancel(context.Background())
						go func() { leaving <- contract.MutexOf(t, s, "n", row.first...).Lock(ctx) }()
						synctest.Wait()
						in := tests.LockLater(second)
						etcd.Hold("a")
						released := contract.Async(func() error { return first.Unlock(context.Background()) })
						synctest.Wait()
						leave()
						require.ErrorIs(t, <-leaving, context.Canceled)
						token = etcd.Rev() + 1
						etcd.Release("a")
						require.NoError(t, <-released)
						require.NoError(t, tests.SoonOr(t, in, "the next one does not get in"))
					}
					require.Equal(t, shared, second.Token() == token)

					line, err := etcdlock.Contenders(context.Background(), etcd.Client("op"), "n")
					require.NoError(t, err)
					holder := line[0]
					require.Equal(t, second.Key(), holder.Key)
					want := map[string]string{"another label": "b"}[name]
					if want == "" {
						want = "a"
					}
					require.Equal(t, want, holder.Owner)
					require.Equal(t, map[string]string{"another info": "10.0.0.2"}[name], holder.Info)
					recalled := etcdlock.RecallFrom(second.Context(context.Background()))
					err = etcdlock.Recall(context.Background(), etcd.Client("op"), holder,
						etcdlock.RecallRequest{})
					if recalled == nil {
						require.ErrorIs(t, err, etcdlock.ErrNotRecallable)
					} else {
						require.NoError(t, err)
						tests.SoonOr(t, recalled, "the recall is not noticed")
					}
					require.NoError(t, second.Unlock(context.Background()))
				})
			})
		}
	}
}

// A view costs etcd one event per change. So there is none for a line that has become long,
// and a waiter watches one key.
func TestALineThatGetsLongHasNoView(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		others := etcd.Client("others")
		lease, err := others.Grant(context.Background(), 3000)
		require.NoError(t, err)
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		for _, length := range []int{8, 9, 12, 3} {
			var keys []string
			for range length {
				keys = append(keys, "n/"+uuid.NewString())
				require.NoError(t, etcd.PutKey(keys[len(keys)-1], lease.ID))
			}
			in := tests.LockLater(mu)
			before := len(etcd.Calls(fake.Event))
			for _, key := range keys {
				etcd.DeleteKey(key)
				synctest.Wait()
			}
			require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
			events := len(etcd.Calls(fake.Event)[before:])
			if length <= 8 {
				require.Equal(t, length, events)
			} else {
				require.Equal(t, 1, events)
			}
			require.NoError(t, mu.Unlock(context.Background()))
		}
	})
}

// The claim and the hold are the only allocations. An absent Trace costs nothing.
func TestLockingAKeyThatLingersAllocatesTwice(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(tests.TTL))
		ctx := context.Background()
		failed := 0
		// the first run, which puts the key, does not count
		allocations := testing.AllocsPerRun(1000, func() {
			if mu.Lock(ctx) != nil || mu.Unlock(ctx) != nil {
				failed++
			}
		})
		require.Zero(t, failed)
		require.LessOrEqual(t, allocations, 2.0)
	})
}
