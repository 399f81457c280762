package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// Keys that should not be there, keys that should be and are not, and what the library does
// about them.

// isRead reports whether c is a transaction that writes nothing.
func isRead(c fake.Call) bool {
	return c.Method == fake.Txn && len(c.Puts) == 0 && len(c.Deletes) == 0
}

// nextCall waits for the next call of a method.
func nextCall(t *testing.T, etcd *fake.Server, method string) {
	t.Helper()
	for n := len(etcd.Calls(method)); len(etcd.Calls(method)) == n; time.Sleep(time.Millisecond) {
		require.Less(t, n, 1000)
	}
}

// Key names are used again, so a key that nobody accounts for when a look is answered may be
// that of a hold by the time it is read.
//
//	a looks at its lease's keys, x is among them | x is unlocked | the answer comes: nobody
//	accounts for x's key | x is locked again, by the same key name | the key is read
func TestAKeyThatIsTakenAgainWhileItIsReadIsNotSwept(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := mutexIn(t, processIn(t, etcd, "a"), "x")
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method == fake.TimeToLive:
				return fake.Effect{DelayReply: 100 * time.Millisecond}
			case isRead(c):
				return fake.Effect{Delay: 200 * time.Millisecond}
			}
			return fake.Effect{}
		})
		lockWithin(t, mu, time.Second)
		key := mu.Key()
		nextCall(t, etcd, fake.TimeToLive)
		require.NoError(t, mu.Unlock(in(t, time.Second)))
		nextCall(t, etcd, fake.Txn)
		hold := lockWithin(t, mu, time.Second)
		require.Equal(t, key, mu.Key(), "the schedule needs the same name")
		time.Sleep(time.Minute)
		require.NoError(t, hold.Err(), "%v", context.Cause(hold))
		require.NoError(t, mu.Unlock(in(t, time.Second)))
	})
}

// Its turn comes, and its own key has gone a moment before: a hold that began then would
// never be told of that.
//
//	many stand before a | all go at once | a reads the line | a's key is deleted, which a
//	look tells | the answer to the read comes: a is the first | a queues anew
func TestNoHoldBeginsAtAKeyThatIsGone(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		crowd, err := etcd.Client("crowd").Grant(context.Background(), 1000)
		require.NoError(t, err)
		for range 9 { // so many that a watches the last of them alone
			require.NoError(t, etcd.PutKey("x/"+uuid.NewString(), crowd.ID))
		}
		mu := mutexIn(t, processIn(t, etcd, "a"), "x")
		in := async(func() error { return mu.Lock(context.Background()) })
		time.Sleep(5 * time.Second)
		line := etcd.Keys("x/")
		require.Len(t, line, 10)
		own := line[9]
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Range {
				return fake.Effect{DelayReply: 600 * time.Millisecond}
			}
			return fake.Effect{}
		})
		nextCall(t, etcd, fake.TimeToLive)
		time.Sleep(400 * time.Millisecond)
		etcd.RevokeLease(crowd.ID)
		time.Sleep(50 * time.Millisecond)
		etcd.DeleteKey(own)
		require.NoError(t, soonOr(t, in, "a does not get in"))
		require.Equal(t, []string{mu.Key()}, etcd.Keys("x/"), "a holds by a key that is not there")
		hold := mu.Context(context.Background())
		etcd.DeleteKey(mu.Key())
		require.Less(t, endsAfter(t, hold, time.Now()), 2*time.Second)
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// A key that somebody put over without its lease, or with another one, does not go with the
// lease. It is removed all the same, by its create revision, before Close says nil.
func TestCloseLeavesNoKeyThatWasPutOver(t *testing.T) {
	rows := map[string]func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex, key string){
		"while it was held, which nobody has noticed": func(*testing.T, *fake.Server, *etcdlock.Session, *etcdlock.Mutex, string) {},
		"while it was held": func(*testing.T, *fake.Server, *etcdlock.Session, *etcdlock.Mutex, string) {
			time.Sleep(2 * time.Second)
		},
		"Unlock was told": func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex, _ string) {
			require.ErrorIs(t, mu.Unlock(in(t, time.Second)), etcdlock.ErrLost)
		},
		"a look has told, and it was unlocked": func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex, _ string) {
			time.Sleep(2 * time.Second)
			require.ErrorIs(t, mu.Unlock(in(t, time.Second)), etcdlock.ErrLost)
		},
		"its Mutex was closed": func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex, key string) {
			require.NoError(t, mu.Close(in(t, time.Second)))
			require.Empty(t, etcd.Keys("x/"))
		},
	}
	for name, then := range rows {
		for _, with := range []string{"no lease", "another lease"} {
			t.Run(name+", with "+with, func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := processIn(t, etcd, "a")
					mu := mutexIn(t, s, "x")
					lockWithin(t, mu, time.Second)
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
					require.NoError(t, s.Close(in(t, time.Minute)))
					require.Empty(t, etcd.Keys("x/"))
				})
			})
		}
	}
}

// What keeps a key from being removed is told, whatever became of its lease.
func TestCloseDoesNotSayNilForAKeyThatStays(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		mu := mutexIn(t, s, "x")
		lockWithin(t, mu, time.Second)
		key := mu.Key()
		require.NoError(t, etcd.PutKey(key, 0))
		require.ErrorIs(t, mu.Unlock(in(t, 0)), etcdlock.ErrLost)
		etcd.Intercept(func(c fake.Call) fake.Effect { return fake.Effect{Drop: c.Method == fake.Txn} })
		require.ErrorIs(t, s.Close(in(t, time.Second)), etcdlock.ErrUnconfirmed)
		require.Empty(t, etcd.Leases(), "the lease was revoked")
		require.Equal(t, []string{key}, etcd.Keys("x/"))
		etcd.DeleteKey(key)
	})
}

// The removal of a key that may have been put over goes on for as long as etcd is away: the
// TTL is no bound for it.
func TestAKeyThatWasPutOverIsRemovedAfterAnOutage(t *testing.T) {
	// silentFrom makes etcd silent from a's nth transaction on.
	silentFrom := func(n int) func(fake.Call) fake.Effect {
		silent := false
		return func(c fake.Call) fake.Effect {
			silent = silent || c.Process == "a" && c.Method == fake.Txn && c.N >= n
			return fake.Effect{Drop: silent && c.Process == "a"}
		}
	}
	// silentFromRemoval does so from the first removal on, and keeps looks from telling.
	silentFromRemoval := func() func(fake.Call) fake.Effect {
		silent := false
		return func(c fake.Call) fake.Effect {
			silent = silent || c.Process == "a" && len(c.Deletes) > 0 && c.Method == fake.Txn
			return fake.Effect{Drop: c.Process == "a" && (silent || c.Method == fake.TimeToLive)}
		}
	}
	putOver := func(t *testing.T, etcd *fake.Server, key string) { require.NoError(t, etcd.PutKey(key, 0)) }
	queueBehind := func(t *testing.T, etcd *fake.Server, others int, mu *etcdlock.Mutex) (key string) {
		lease, err := etcd.Client("others").Grant(context.Background(), 100)
		require.NoError(t, err)
		for range others {
			require.NoError(t, etcd.PutKey("x/"+uuid.NewString(), lease.ID))
		}
		go func() { _ = mu.Lock(in(t, 10*time.Second)) }()
		time.Sleep(time.Second)
		keys := etcd.Keys("x/")
		require.Len(t, keys, others+1)
		return keys[others]
	}
	rows := map[string]func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) (key string){
		"a look tells of it": func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			hold := lockWithin(t, mu, time.Second)
			key := etcd.Keys("x/")[0]
			putOver(t, etcd, key)
			endsAfter(t, hold, time.Now())
			etcd.Cut("a")
			require.ErrorIs(t, mu.Unlock(in(t, time.Second)), etcdlock.ErrLost)
			return key
		},
		"Unlock finds it": func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			lockWithin(t, mu, time.Second)
			key := mu.Key()
			putOver(t, etcd, key)
			etcd.Intercept(silentFrom(4))
			require.ErrorIs(t, mu.Unlock(in(t, time.Second)), etcdlock.ErrLost)
			return key
		},
		"Unlock does not find it, and no answer tells why": func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			lockWithin(t, mu, time.Second)
			key := mu.Key()
			putOver(t, etcd, key)
			etcd.Intercept(silentFrom(3))
			require.ErrorIs(t, mu.Unlock(in(t, time.Second)), etcdlock.ErrLost)
			return key
		},
		"a Lock finds it, whose answer was lost": func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			silent := silentFrom(3)
			etcd.Intercept(func(c fake.Call) fake.Effect {
				if c.Method == fake.Txn && c.N == 1 {
					return fake.Effect{After: fake.Unavailable}
				}
				return silent(c)
			})
			go func() { _ = mu.Lock(in(t, 10*time.Second)) }()
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
		"a wait behind many reads the line": func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex) string {
			key := queueBehind(t, etcd, 9, mu)
			etcd.Intercept(silentFromRemoval())
			putOver(t, etcd, key)
			etcd.DeleteKey(etcd.Keys("x/")[8])
			return key
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				key := row(t, etcd, mutexIn(t, processIn(t, etcd, "a"), "x"))
				time.Sleep(10 * virtualTTL)
				require.Equal(t, []string{key}, etcd.Keys("x/"))
				etcd.Intercept(nil)
				etcd.Heal("a")
				time.Sleep(5 * time.Second)
				require.Empty(t, etcd.Keys("x/"))
				time.Sleep(4 * virtualTTL)
				before := len(etcd.Calls(""))
				time.Sleep(10 * virtualTTL)
				require.Empty(t, etcd.Calls("")[before:])
			})
		})
	}
}

// Close of one of a Session's Mutexes waits for the key of its hold as well.
func TestCloseOfAMutexRemovesAKeyThatWasPutOver(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := mutexIn(t, processIn(t, etcd, "a"), "x")
		lockWithin(t, mu, time.Second)
		require.NoError(t, etcd.PutKey(mu.Key(), 0))
		etcd.Intercept(func(c fake.Call) fake.Effect { return fake.Effect{Delay: 100 * time.Millisecond} })
		require.NoError(t, mu.Close(in(t, time.Minute)))
		require.Empty(t, etcd.Keys("x/"))
	})
}
