package lease

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
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// Keys that should not be there, keys that should be there and are not, and what the
// library does about them.

// isRead reports whether c is a transaction that writes nothing.
func isRead(c fake.Call) bool {
	return c.Method == fake.Txn && len(c.Puts) == 0 && len(c.Deletes) == 0
}

// nextCall waits for the next call of a method. If no fault delays that, etcd has carried it out.
func nextCall(t *testing.T, etcd *fake.Server, method string) {
	t.Helper()
	until := time.Now().Add(time.Hour)
	for n := len(etcd.Calls(method)); len(etcd.Calls(method)) == n; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(until), "no %s comes", method)
	}
	synctest.Wait()
}

// Key names are used again. So a key for which nobody accounts when an audit is answered
// may belong to a hold by the time when it is read.
//
//	a audits its lease's keys, x is among them | x is unlocked | the answer comes: nobody
//	accounts for x's key | x is locked again, by the same key name | the key is read
func TestAKeyThatIsTakenAgainWhileItIsReadIsNotSwept(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method == fake.TimeToLive:
				return fake.Effect{DelayReply: 100 * time.Millisecond}
			case isRead(c):
				return fake.Effect{Delay: 200 * time.Millisecond}
			}
			return fake.Effect{}
		})
		tests.LockWithin(t, mu, time.Second)
		key := mu.Key()
		nextCall(t, etcd, fake.TimeToLive)
		require.NoError(t, mu.Unlock(tests.Within(t, time.Second)))
		nextCall(t, etcd, fake.Txn)
		hold := tests.LockWithin(t, mu, time.Second)
		require.Equal(t, key, mu.Key(), "the schedule needs the same name")
		time.Sleep(time.Minute)
		require.NoError(t, hold.Err(), "%v", context.Cause(hold))
		require.NoError(t, mu.Unlock(tests.Within(t, time.Second)))
	})
}

// Its turn comes, and its own key has gone a moment before. A hold that began then would
// never learn that.
//
//	many stand before a | all go at once | a reads the line | a's key is deleted, and an
//	audit shows that | the answer to the read comes: a is the first | a queues anew
func TestNoHoldBeginsAtAKeyThatIsGone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		crowd, err := etcd.Client("crowd").Grant(context.Background(), 1000)
		require.NoError(t, err)
		for range 9 { // so many that a watches only the last of them
			require.NoError(t, etcd.PutKey("x/"+uuid.NewString(), crowd.ID))
		}
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		in := contract.Async(func() error { return mu.Lock(context.Background()) })
		time.Sleep(5 * time.Second)
		line := etcd.Keys("x/")
		require.Len(t, line, 10)
		own := line[9]
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Range {
				return fake.Effect{DelayReply: tests.TTL/3 + time.Second}
			}
			return fake.Effect{}
		})
		nextCall(t, etcd, fake.TimeToLive)
		time.Sleep(32*tests.TTL/3 - 500*time.Millisecond) // the next audit comes soon
		etcd.RevokeLease(crowd.ID)
		time.Sleep(50 * time.Millisecond)
		etcd.DeleteKey(own)
		require.NoError(t, tests.SoonOr(t, in, "a does not get in"))
		require.Equal(t, []string{mu.Key()}, etcd.Keys("x/"), "a holds by a key that is not there")
		hold := mu.Context(context.Background())
		etcd.DeleteKey(mu.Key())
		require.Less(t, tests.EndsAfter(t, hold, time.Now()), 2*time.Second)
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// A key that somebody put over without its lease, or with another one, does not go with the
// lease. It is removed all the same, by its create revision, before Close says nil.
func TestCloseLeavesNoKeyThatWasPutOver(t *testing.T) {
	rows := map[string]func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex,
		key string){
		"while it was held, which nobody has noticed": func(*testing.T, *fake.Server, *etcdlock.Session,
			*etcdlock.Mutex, string) {
		},
		"while it was held": func(*testing.T, *fake.Server, *etcdlock.Session, *etcdlock.Mutex, string) {
			time.Sleep(2 * time.Second)
		},
		"Unlock was told": func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex,
			_ string) {
			require.ErrorIs(t, mu.Unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
		},
		"a look has told, and it was unlocked": func(t *testing.T, etcd *fake.Server, s *etcdlock.Session,
			mu *etcdlock.Mutex, _ string) {
			time.Sleep(2 * time.Second)
			require.ErrorIs(t, mu.Unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
		},
		"its Mutex was closed": func(t *testing.T, etcd *fake.Server, s *etcdlock.Session,
			mu *etcdlock.Mutex, key string) {
			require.NoError(t, mu.Close(tests.Within(t, time.Second)))
			require.Empty(t, etcd.Keys("x/"))
		},
	}
	for name, then := range rows {
		for _, with := range []string{"no lease", "another lease"} {
			t.Run(name+", with "+with, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					mu := contract.MutexOf(t, s, "x")
					tests.LockWithin(t, mu, time.Second)
					var over clientv3.LeaseID
					if with == "another lease" {
						lease, err := etcd.Client("b").Grant(context.Background(), 1000)
						require.NoError(t, err)
						over = lease.ID
					}
					require.NoError(t, etcd.PutKey(mu.Key(), over))
					revoked := false
					etcd.Intercept(func(c fake.Call) fake.Effect {
						revoked = revoked || c.Method == fake.Revoke
						if !revoked && len(c.Deletes) > 0 && c.N > 2 {
							return fake.Effect{Before: fake.Unavailable} // the removal
						}
						return fake.Effect{}
					})
					then(t, etcd, s, mu, mu.Key())
					require.NoError(t, s.Close(tests.Within(t, time.Minute)))
					require.Empty(t, etcd.Keys("x/"))
				})
			})
		}
	}
}

// Once the lease is revoked Close asks whether the keys are gone, and reads only the part of them
// that has one that is not.
func TestCloseReadsFewOfManyKeys(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const names, part = 1000, 100
		s := tests.SessionOf(t, etcd, "a")
		var last *etcdlock.Mutex
		for i := range names {
			last = contract.MutexOf(t, s, fmt.Sprintf("x/%d", i))
			tests.LockWithin(t, last, time.Second)
		}
		require.NoError(t, etcd.PutKey(last.Key(), 0))
		asked, read, revoked := 0, 0, false
		etcd.Intercept(func(c fake.Call) (none fake.Effect) {
			revoked = revoked || c.Method == fake.Revoke
			if revoked && c.Method == fake.Txn && len(c.Deletes) == 0 {
				asked, read = asked+1, read+len(c.Gets)
			}
			return none
		})
		require.NoError(t, s.Close(tests.Within(t, time.Minute)))
		require.Empty(t, etcd.Keys("x/"))
		require.LessOrEqual(t, asked, 2*names/part, "requests")
		require.LessOrEqual(t, read, asked+part, "keys that were read")
	})
}

// Close reports what keeps a key from being removed, whatever became of its lease.
func TestCloseDoesNotSayNilForAKeyThatStays(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "x")
		tests.LockWithin(t, mu, time.Second)
		key := mu.Key()
		require.NoError(t, etcd.PutKey(key, 0))
		sent := 0
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Txn {
				sent++
			}
			// the release arrives, no removal does
			return fake.Effect{Drop: sent > 1 && c.Method == fake.Txn}
		})
		require.ErrorIs(t, mu.Unlock(tests.Within(t, 0)), etcdlock.ErrLost)
		require.ErrorIs(t, s.Close(tests.Within(t, time.Second)), etcdlock.ErrUnconfirmed)
		require.Empty(t, etcd.Leases(), "the lease was revoked")
		require.Equal(t, []string{key}, etcd.Keys("x/"))
		etcd.DeleteKey(key)
	})
}

// A wait has ended, and neither its key could be removed nor the lease be revoked. A Close soon
// after does not say that nothing is left. Once the lease has expired it does.
func TestCloseDoesNotSayNilForALeaseThatStays(t *testing.T) {
	for how, stops := range map[string]func(*fake.Server, *clientv3.Client){
		"the client is closed": func(_ *fake.Server, client *clientv3.Client) { _ = client.Close() },
		"the user may not": func(etcd *fake.Server, _ *clientv3.Client) {
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if len(c.Deletes) > 0 || c.Method == fake.Revoke {
					e.Before = tests.PermissionDenied
				}
				return e
			})
		},
	} {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprint(how, ", later ", later), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					other := tests.SessionOf(t, etcd, "b")
					tests.LockWithin(t, contract.MutexOf(t, other, "x"), time.Second)
					client := etcd.Client("a")
					s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
					require.NoError(t, err)
					ctx, cancel := context.WithCancel(t.Context())
					mu := contract.MutexOf(t, s, "x")
					wait := contract.Async(func() error { return mu.Lock(ctx) })
					synctest.Wait()
					stops(etcd, client)
					cancel()
					require.Error(t, tests.SoonOr(t, wait, "it still waits"))
					time.Sleep(time.Second)
					require.Len(t, etcd.Keys("x/"), 2)
					if later {
						time.Sleep(2 * tests.TTL)
						require.Len(t, etcd.Keys("x/"), 1)
						require.NoError(t, s.Close(t.Context()))
					} else {
						require.ErrorIs(t, s.Close(t.Context()), etcdlock.ErrUnconfirmed)
					}
				})
			})
		}
	}
}

// The removal of a key that may have been put over goes on for as long as etcd is away. The
// TTL does not bound it.
func TestAKeyThatWasPutOverIsRemovedAfterAnOutage(t *testing.T) {
	// silentFrom makes etcd silent from a's nth transaction on.
	silentFrom := func(n int) func(fake.Call) fake.Effect {
		silent := false
		return func(c fake.Call) fake.Effect {
			silent = silent || c.Process == "a" && c.Method == fake.Txn && c.N >= n
			return fake.Effect{Drop: silent && c.Process == "a"}
		}
	}
	// silentFromRemoval does the same from the first removal on, and keeps audits from
	// showing anything.
	silentFromRemoval := func() func(fake.Call) fake.Effect {
		silent := false
		return func(c fake.Call) fake.Effect {
			silent = silent || c.Process == "a" && len(c.Deletes) > 0 && c.Method == fake.Txn
			return fake.Effect{Drop: c.Process == "a" && (silent || c.Method == fake.TimeToLive)}
		}
	}
	putOver := func(t *testing.T, etcd *fake.Server, key string) {
		require.NoError(t, etcd.PutKey(key, 0))
	}
	queueBehind := func(t *testing.T, etcd *fake.Server, others int, mu *etcdlock.Mutex) (key string) {
		lease, err := etcd.Client("others").Grant(context.Background(), 100)
		require.NoError(t, err)
		for range others {
			require.NoError(t, etcd.PutKey("x/"+uuid.NewString(), lease.ID))
		}
		go func() { _ = mu.Lock(tests.Within(t, 10*time.Second)) }()
		time.Sleep(time.Second)
		keys := etcd.Keys("x/")
		require.Len(t, keys, others+1)
		return keys[others]
	}
	type story func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) (key string)
	unlocks := func(silent int) story {
		return func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			tests.LockWithin(t, mu, time.Second)
			key := mu.Key()
			putOver(t, etcd, key)
			etcd.Intercept(silentFrom(silent))
			require.ErrorIs(t, mu.Unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
			return key
		}
	}
	rows := map[string]story{
		"a look tells of it": func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			hold := tests.LockWithin(t, mu, time.Second)
			key := etcd.Keys("x/")[0]
			putOver(t, etcd, key)
			tests.EndsAfter(t, hold, time.Now())
			etcd.Cut("a")
			require.ErrorIs(t, mu.Unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
			return key
		},
		"Unlock finds it": unlocks(4),
		"Unlock does not find it, and no answer tells why": unlocks(3),
		"a Lock finds it, whose answer was lost": func(t *testing.T, etcd *fake.Server,
			mu *etcdlock.Mutex) string {
			silent := silentFrom(3)
			etcd.Intercept(func(c fake.Call) fake.Effect {
				if c.Method == fake.Txn && c.N == 1 {
					return fake.Effect{After: fake.Unavailable}
				}
				return silent(c)
			})
			go func() { _ = mu.Lock(tests.Within(t, 10*time.Second)) }()
			time.Sleep(time.Millisecond)
			key := etcd.Keys("x/")[0]
			putOver(t, etcd, key)
			return key
		},
		"it was that of a wait": func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			key := queueBehind(t, etcd, 1, mu)
			etcd.Intercept(silentFromRemoval())
			putOver(t, etcd, key)
			return key
		},
		"a wait behind many reads the line": func(t *testing.T, etcd *fake.Server,
			mu *etcdlock.Mutex) string {
			key := queueBehind(t, etcd, 9, mu)
			etcd.Intercept(silentFromRemoval())
			putOver(t, etcd, key)
			etcd.DeleteKey(etcd.Keys("x/")[8])
			return key
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				key := row(t, etcd, contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x"))
				time.Sleep(10 * tests.TTL)
				require.Equal(t, []string{key}, etcd.Keys("x/"))
				etcd.Intercept(nil)
				etcd.Heal("a")
				time.Sleep(10 * time.Second) // no attempt is longer
				require.Empty(t, etcd.Keys("x/"))
				time.Sleep(4 * tests.TTL)
				tests.AsksNothing(t, etcd, 10*tests.TTL)
			})
		})
	}
}

// Close of one of a Session's Mutexes waits for the key of its hold as well.
func TestCloseOfAMutexRemovesAKeyThatWasPutOver(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		tests.LockWithin(t, mu, time.Second)
		require.NoError(t, etcd.PutKey(mu.Key(), 0))
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Delay: 100 * time.Millisecond}
		})
		require.NoError(t, mu.Close(tests.Within(t, time.Minute)))
		require.Empty(t, etcd.Keys("x/"))
	})
}

// What users attach to the Session's lease belongs to them, whatever it looks like: in a
// place of its own, or below the name of a lock that the Session has.
func TestAKeyOfTheUserThatLooksLikeALocksIsNotSwept(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "x")
		hold := tests.LockWithin(t, mu, time.Second)
		own, err := etcd.Client("a").Get(context.Background(), mu.Key())
		require.NoError(t, err)
		_, id, _ := strings.Cut(mu.Key(), "/")
		keys := []string{"members/" + uuid.NewString(), "members/" + id, "x/members/" + id}
		for _, key := range keys {
			_, err := etcd.Client("user").Put(context.Background(), key, string(own.Kvs[0].Value),
				clientv3.WithLease(s.Lease()))
			require.NoError(t, err)
		}
		lease := s.Lease()
		time.Sleep(16 * tests.TTL) // in which an audit reads all keys on the lease
		require.ElementsMatch(t, append(keys, mu.Key()), etcd.Keys(""))
		require.Equal(t, lease, s.Lease(), "nothing is in doubt")
		require.NoError(t, hold.Err())
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// When there are many lines, the Session forgets one that nobody uses. A late copy of a
// request from that line is found all the same.
func TestALateKeyOfAForgottenNameIsSwept(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		hold := tests.LockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
		etcd.Intercept(tests.OnlyNext(etcd, fake.Txn,
			fake.Effect{Again: time.Minute + 100*time.Millisecond}))
		for i := range 3000 {
			mu := contract.MutexOf(t, s, fmt.Sprint("x", i))
			tests.LockWithin(t, mu, time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
		}
		time.Sleep(time.Minute + 150*time.Millisecond) // between two ticks of the keeper, at 350 ms each
		require.Len(t, etcd.Keys("x0/"), 1, "no late copy")
		time.Sleep(tests.SeldomLook)
		require.Empty(t, etcd.Keys("x0/"))
		require.NoError(t, hold.Err())
	})
}

// areLost deletes the keys below a prefix, waits until those holds have ended, and returns
// how many transactions that took.
func areLost(t *testing.T, etcd *fake.Server, prefix string, holds []context.Context) (asked int) {
	t.Helper()
	for _, key := range etcd.Keys(prefix) {
		etcd.DeleteKey(key)
	}
	before, start := len(etcd.Calls(fake.Txn)), time.Now()
	for _, hold := range holds {
		require.LessOrEqual(t, tests.EndsAfter(t, hold, start), tests.UnwatchedLook)
	}
	return len(etcd.Calls(fake.Txn)) - before
}

// If etcd takes only few operations in one transaction, the library asks it for few keys at
// a time, once it has said so. Holders notice losses as before.
func TestLossesAreNoticedWhereTransactionsMayHaveFewOperations(t *testing.T) {
	for _, most := range []int{3, 10, 16, 40} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.MaxTxnOps(most)
				etcd.Intercept(tests.NoWatches)
				var logged strings.Builder
				s := tests.SessionOf(t, etcd, "a",
					etcdlock.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
				kept := contract.HoldMany(t, s, "kept", 5)
				for round := range 2 {
					lost := contract.HoldMany(t, s, fmt.Sprint("lost", round, "-"), 45)
					time.Sleep(10 * time.Second)
					asked := areLost(t, etcd, "lost", lost)
					// At first etcd refuses some, and the library then halves what it asks
					// for.
					refused := 6 * (1 - round)
					require.LessOrEqual(t, asked, refused+2*45/most+1)
				}
				synctest.Wait()
				require.Equal(t, 1, strings.Count(logged.String(), "few operations"), "%s", logged.String())
				for _, hold := range kept {
					require.NoError(t, hold.Err())
				}
			})
		})
	}
}

// A key that the user may no longer read keeps the audits from nothing else.
func TestLossesAreNoticedBesideKeysThatMayNotBeRead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var logged strings.Builder
		s := tests.SessionOf(t, etcd, "a",
			etcdlock.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		secret, lost := contract.HoldMany(t, s, "secret", 2), contract.HoldMany(t, s, "lost", 60)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			denied := slices.ContainsFunc(c.Gets, func(key string) bool {
				return strings.HasPrefix(key, "secret")
			})
			if !denied {
				return tests.NoWatches(c)
			}
			return fake.Effect{Before: rpctypes.ErrGRPCPermissionDenied}
		})
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, areLost(t, etcd, "", lost), 40)
		for _, hold := range secret {
			require.NoError(t, hold.Err(), "nobody knows")
		}
		synctest.Wait()
		require.Equal(t, 1, strings.Count(logged.String(), "cannot be looked at"), "%s", logged.String())
	})
}

// If a user may no longer remove the key, the library cannot help, but reports it. Once the
// removal has become possible, the library does it.
func TestCloseTellsOfAKeyThatMayNotBeRemoved(t *testing.T) {
	for _, inTheEnd := range []bool{true, false} {
		t.Run(fmt.Sprintf("it may in the end: %t", inTheEnd), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu, other := contract.MutexOf(t, s, "x"), contract.MutexOf(t, s, "x")
				// so that the lease lives until Close
				tests.LockWithin(t, contract.MutexOf(t, s, "held"), time.Second)
				tests.LockWithin(t, mu, time.Second)
				lease, err := etcd.Client("b").Grant(context.Background(), 1000)
				require.NoError(t, err)
				key := mu.Key()
				require.NoError(t, etcd.PutKey(key, lease.ID))
				time.Sleep(2 * time.Second)
				refuse := func(c fake.Call) fake.Effect {
					if slices.Contains(c.Deletes, key) || slices.Contains(c.Gets, key) {
						return fake.Effect{Before: rpctypes.ErrGRPCPermissionDenied}
					}
					return fake.Effect{}
				}
				etcd.Intercept(refuse)
				require.ErrorIs(t, mu.Close(tests.Within(t, time.Minute)), etcdlock.ErrUnconfirmed)
				before := len(etcd.Calls(""))
				require.ErrorIs(t, other.TryLock(tests.Within(t, time.Minute)), etcdlock.ErrLocked)
				require.Less(t, len(etcd.Calls(""))-before, 10)
				if inTheEnd {
					etcd.Intercept(nil)
					require.NoError(t, s.Close(tests.Within(t, time.Minute)))
					require.Empty(t, etcd.Keys("x/"))
					return
				}
				require.ErrorIs(t, s.Close(tests.Within(t, time.Minute)), etcdlock.ErrUnconfirmed)
				require.Equal(t, []string{key}, etcd.Keys("x/"))
			})
		})
	}
}
