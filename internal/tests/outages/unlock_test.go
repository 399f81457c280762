package outages_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// An Unlock whose context never ends takes no longer beside an etcd that does not answer than one
// whose context had ended: the TTL or 5 s. The release goes on, and the key goes once etcd is back.
func TestUnlockWithAContextThatNeverEndsIsBounded(t *testing.T) {
	type key struct{}
	for ttl, most := range map[time.Duration]time.Duration{
		2 * time.Second: 2 * time.Second, 15 * time.Second: 5 * time.Second, time.Minute: 5 * time.Second,
	} {
		for name, ctx := range map[string]context.Context{
			"Background":    context.Background(),
			"a value":       context.WithValue(context.Background(), key{}, 1),
			"WithoutCancel": context.WithoutCancel(t.Context()),
		} {
			for verb, take := range map[string]func(t *testing.T,
				s *etcdlock.Session) func(context.Context) error{
				"Mutex.Unlock": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
					mu := contract.MutexOf(t, s, "n")
					require.NoError(t, mu.Lock(t.Context()))
					return mu.Unlock
				},
				"Hold.Unlock": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
					h, err := s.LockAll(t.Context(), "n", "o")
					require.NoError(t, err)
					return h.Unlock
				},
			} {
				t.Run(verb+" "+ttl.String()+" "+name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						etcd := fake.NewServer()
						s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl))
						unlock := take(t, s)
						etcd.Freeze()
						start := time.Now()
						err := unlock(ctx)
						require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
						require.NotErrorIs(t, err, etcdlock.ErrLost)
						require.Equal(t, most, time.Since(start))
						etcd.Thaw()
						time.Sleep(2 * ttl)
						require.Empty(t, etcd.Keys("n/"))
					})
				})
			}
		}
	}
}

// unlocks are ways to hold "n". Each returns the hold's Unlock.
var unlocks = map[string]func(*testing.T, *etcdlock.Session) func(context.Context) error{
	"Mutex": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		return mu.Unlock
	},
	"Do": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
		begun, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- s.Do(context.Background(), "n", func(context.Context) error {
				close(begun)
				<-goOn
				return nil
			})
		}()
		<-begun
		return func(context.Context) error {
			close(goOn)
			return <-done
		}
	},
	"RWMutex": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
		rw := tests.RWMutexOf(t, s)
		require.NoError(t, rw.Lock(t.Context()))
		return rw.Unlock
	},
	"reader": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
		return tests.RLockWithin(t, tests.RWMutexOf(t, s), time.Second).Unlock
	},
	"permit": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
		return tests.AcquireWithin(t, tests.SemaphoreOf(t, s, 1), 1, time.Second).Unlock
	},
	"several": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
		h, err := s.LockAll(t.Context(), "n", "o")
		require.NoError(t, err)
		return h.Unlock
	},
	"after its least time": func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
		mu := contract.MutexOf(t, s, "n", etcdlock.WithMinHold(100*time.Millisecond))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(150 * time.Millisecond)
		return mu.Unlock
	},
}

// said is what an Unlock says, in a word.
func said(err error) string {
	switch {
	case err == nil:
		return "nil"
	case errors.Is(err, etcdlock.ErrLost):
		return "lost"
	case errors.Is(err, etcdlock.ErrUnconfirmed):
		return "unconfirmed"
	}
	return err.Error()
}

// Rule 6: beside an operator who deletes the key, and answers that are lost, Unlock says nil only
// if something shows that the key was there when it was called: an answer, or the watch of a hold
// that lasts. Nor does a lost answer alone make a loss of it.
func TestUnlockSaysNilOnlyWithEvidence(t *testing.T) {
	for _, row := range []struct {
		name     string
		held     time.Duration
		operator bool           // deletes the keys, and others get in, before Unlock is called
		says     map[int]string // by answers that are lost
	}{
		{"a young hold", 0, false, map[int]string{0: "nil", 1: "unconfirmed", 2: "unconfirmed"}},
		{"a young hold whose key was deleted", 0, true,
			map[int]string{0: "lost", 1: "unconfirmed", 2: "unconfirmed"}},
		{"a hold that lasts", 2 * tests.WatchedBy, false, map[int]string{0: "nil", 1: "nil", 2: "nil"}},
		{"a hold that lasts, whose key was deleted", 2 * tests.WatchedBy, true,
			map[int]string{0: "lost", 1: "lost", 2: "lost"}},
	} {
		for kind, take := range unlocks {
			for lose, says := range row.says {
				t.Run(fmt.Sprintf("%s, %s, %d answers lost", row.name, kind, lose), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
						unlock := take(t, a)
						time.Sleep(row.held)
						if row.operator {
							for _, key := range etcd.Keys("") {
								etcd.DeleteKey(key)
							}
							other, err := b.LockAll(tests.Within(t, time.Second), "n", "o")
							require.NoError(t, err)
							defer tests.UnlockAll(t, other)
							if row.held > 0 {
								synctest.Wait() // the event comes
							}
						}
						etcd.LoseAnswers("a", lose)
						err := unlock(context.Background())
						require.Equal(t, says, said(err), "%v", err)
						if says == "unconfirmed" {
							require.ErrorContains(t, err, "nothing shows that the key was still there")
							require.NotErrorIs(t, err, etcdlock.ErrLost)
						}
						if !row.operator {
							time.Sleep(time.Second)
							require.Empty(t, etcd.Keys(""))
						}
					})
				})
			}
		}
	}
}

// The key of the Session's next waiter, which the same transaction puts, shows that the release was
// carried out, whatever answers are lost.
func TestTheNextWaitersKeyShowsThatAReleaseWasCarriedOut(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		first, next := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		tests.LockWithin(t, first, time.Second)
		locked := tests.LockLater(next)
		synctest.Wait()
		etcd.LoseAnswers("a", 1)
		require.NoError(t, first.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, locked, "the next waiter does not get in"))
		require.NoError(t, next.Unlock(context.Background()))
	})
}

// A watch that tells an operator's deletion late is no witness: if it is silent until Unlock has
// its answer, or if the client has heard of a revision since that is not before the deletion's.
func TestALateWatchIsNoWitness(t *testing.T) {
	const late = 300 * time.Millisecond
	for _, row := range []struct {
		name  string
		late  time.Duration // after Unlock is called
		heard bool          // from etcd, since the deletion
	}{
		{"it is silent", time.Hour, false},
		{"it is behind", late, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n")
				tests.LockWithin(t, mu, time.Second)
				time.Sleep(2 * tests.WatchedBy)
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.Event {
						return fake.Effect{Delay: row.late}
					}
					return fake.Effect{}
				})
				etcd.DeleteKey(mu.Key())
				synctest.Wait() // the event is under way
				if row.heard {
					require.NoError(t, s.Do(t.Context(), "o", func(context.Context) error { return nil }))
				}
				first := len(etcd.Calls(fake.Txn)) + 1
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.Txn && c.N == first {
						return fake.Effect{DelayReply: 2 * late, After: fake.Unavailable}
					}
					return fake.Effect{}
				})
				require.Equal(t, "unconfirmed", said(mu.Unlock(context.Background())))
			})
		})
	}
}

// With a dead endpoint an Unlock sends two copies at once. One of them releases the key, and the
// other one finds that it is gone. Unlock waits for the answers to both.
func TestTheCopiesOfAReleaseAreHeardOut(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		tests.LockWithin(t, mu, time.Second)
		first := len(etcd.Calls(fake.Txn)) + 1
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method != fake.Txn:
				return fake.Effect{}
			case c.N == first:
				return fake.Effect{Drop: true}
			case c.N == first+1:
				return fake.Effect{DelayReply: 100 * time.Millisecond}
			}
			return fake.Effect{DelayReply: time.Millisecond}
		})
		require.NoError(t, mu.Unlock(context.Background()))
		require.Len(t, etcd.Calls(fake.Txn), first+2)
	})
}
