package concurrency_test

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
	clientv3 "go.etcd.io/etcd/client/v3"
	etcds "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// ttl makes round numbers: the margin is 3 s, and a renewal is sent each 8 s.
const ttl = 24

// inVirtualTime runs a test in a bubble with an etcd of its own.
func inVirtualTime(t *testing.T, test func(t *testing.T, etcd *etcdlocktest.Etcd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, etcdlocktest.New(t)) })
}

// open opens a Session that ends with the test.
func open(
	t *testing.T, client *clientv3.Client, opts ...concurrency.SessionOption,
) *concurrency.Session {
	t.Helper()
	opts = append([]concurrency.SessionOption{concurrency.WithTTL(ttl)}, opts...)
	s, err := concurrency.NewSession(client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// lock locks a new Mutex of a Session.
func lock(t *testing.T, s *concurrency.Session, name string) *concurrency.Mutex {
	t.Helper()
	m := concurrency.NewMutex(s, name)
	ctx, cancel := context.WithTimeout(t.Context(), 10*ttl*time.Second)
	defer cancel()
	require.NoError(t, m.Lock(ctx))
	return m
}

// A locker is a Mutex of either package.
type locker interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) error
	Unlock(ctx context.Context) error
	Key() string
}

// later locks m in the background, and returns once that waits, or is done.
func later(m locker) <-chan error {
	done := make(chan error, 1)
	go func() { done <- m.Lock(context.Background()) }()
	synctest.Wait()
	return done
}

func waits(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		require.Fail(t, "it does not wait", "%v", err)
	default:
	}
}

func isOver(s *concurrency.Session) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

func keysOf(t *testing.T, client *clientv3.Client, prefix string) (keys []string) {
	t.Helper()
	resp, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// Done closes a margin before the lease may expire, with a lock and without one; and then nobody
// else has the lock yet.
func TestDoneClosesBeforeAnotherGetsTheLock(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		mine, others := etcd.Client(), etcd.Client()
		s, idle := open(t, mine), open(t, mine)
		m := lock(t, s, "a")
		second := later(concurrency.NewMutex(open(t, others), "a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.False(t, isOver(s) || isOver(idle))

		cut := time.Now()
		heal := etcd.Cut(mine)
		<-s.Done()
		require.ErrorIs(t, context.Cause(s.Ctx()), etcdlock.ErrExpired)
		waits(t, second)
		<-idle.Done()
		require.LessOrEqual(t, time.Since(cut), (ttl-3)*time.Second)
		waits(t, second)
		require.Equal(t, concurrency.ErrSessionExpired, m.Lock(t.Context()))
		require.NoError(t, <-second)
		require.GreaterOrEqual(t, time.Since(cut), (ttl-8)*time.Second)
		heal()
		err := m.Unlock(t.Context())
		require.ErrorIs(t, err, concurrency.ErrSessionExpired)
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.Equal(t, concurrency.ErrLockReleased, m.Unlock(t.Context()))
	})
}

// After a pause of the process the first look tells the truth, before any timer has run.
func TestTheFirstLookAfterAPauseTellsTheTruth(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		s, other := open(t, client), open(t, client)
		ctx := s.Ctx()
		lock(t, s, "a")
		lock(t, other, "b")
		require.NoError(t, ctx.Err())
		heal := etcd.Cut(client)
		defer heal()
		time.Sleep((ttl - 3) * time.Second) // the timers of the library are due at this very instant
		require.True(t, isOver(other))
		require.Equal(t, context.Canceled, ctx.Err())
	})
}

// A lock that is lost otherwise ends the Session, too: its program watches nothing else.
func TestDoneClosesWhenTheKeyIsDeleted(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		s := open(t, etcd.Client())
		m, other := lock(t, s, "a"), lock(t, s, "b")
		time.Sleep(2 * time.Second)
		key := m.Key()
		etcd.Delete(key)
		synctest.Wait()
		require.True(t, isOver(s))
		require.ErrorIs(t, context.Cause(s.Ctx()), etcdlock.ErrKeyDeleted)
		require.Equal(t, key, m.Key(), "a program may look whether it is there")
		require.ErrorIs(t, m.Unlock(t.Context()), etcdlock.ErrLost)
		require.NoError(t, other.Unlock(t.Context()), "which was whole")
	})
}

// Locks that nobody unlocks after the end of their Session expire, as etcd's do.
func TestWhatIsNotUnlockedExpires(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		s := open(t, client)
		m, _ := lock(t, s, "a"), lock(t, s, "b")
		time.Sleep(2 * time.Second)
		etcd.Delete(m.Key())
		<-s.Done()
		ended := time.Now()
		lock(t, open(t, client), "b")
		require.Less(t, time.Since(ended), (ttl+1)*time.Second)
	})
}

// A program may keep a value in the key of its lock, with the lease of the Session.
func TestAKeyTakesAValueWithTheLeaseOfTheSession(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		s := open(t, client)
		m := lock(t, s, "a")
		_, err := client.Put(t.Context(), m.Key(), "http://me", clientv3.WithLease(s.Lease()))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.False(t, isOver(s))
		resp, err := client.Get(t.Context(), "a", clientv3.WithPrefix())
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 1)
		require.Equal(t, "http://me", string(resp.Kvs[0].Value))
		require.NoError(t, m.Unlock(t.Context()))
		require.Empty(t, keysOf(t, client, ""))
	})
}

// The lease stays that of the Session, with the keys of its user, while nothing is locked, and
// while a request whose answer was lost keeps new locks off it.
func TestTheLeaseLastsAsLongAsTheSession(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		s := open(t, client)
		lease := s.Lease()
		own := "services/71b3d4a5-20cb-4a7c-8a5e-3f0c4f1f5a10"
		_, err := client.Put(t.Context(), own, "", clientv3.WithLease(lease))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		m := lock(t, s, "a")
		etcd.LoseAnswers(client, 1)
		require.NoError(t, lock(t, s, "b").Unlock(t.Context()))
		time.Sleep(time.Hour)
		require.NoError(t, m.Unlock(t.Context()))
		for range 3 {
			require.NoError(t, lock(t, s, "c").Unlock(t.Context()))
			time.Sleep(time.Hour)
		}
		require.False(t, isOver(s))
		require.Equal(t, lease, s.Lease())
		require.Equal(t, []string{own}, keysOf(t, client, ""))
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		require.Empty(t, keysOf(t, client, ""))
		require.Equal(t, concurrency.ErrLockReleased, m.Unlock(t.Context()))
	})
}

// With either package first, and with names that end with a slash, too.
func TestAMixedFleetExcludesEachOther(t *testing.T) {
	for _, name := range []string{"a", "/locks/a/"} {
		ours := func(t *testing.T, client *clientv3.Client) locker {
			return concurrency.NewMutex(open(t, client), name)
		}
		old := func(t *testing.T, client *clientv3.Client) locker {
			s, err := etcds.NewSession(client)
			require.NoError(t, err)
			t.Cleanup(func() { s.Close() })
			return etcds.NewMutex(s, name)
		}
		for about, fleet := range map[string][]func(*testing.T, *clientv3.Client) locker{
			"ours first":   {ours, old, ours, old},
			"etcd's first": {old, ours, old, ours},
		} {
			t.Run(fmt.Sprintf("%s of %q", about, name), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
					var all []locker
					var done []<-chan error
					for _, m := range fleet {
						m := m(t, etcd.Client())
						all, done = append(all, m), append(done, later(m))
						time.Sleep(time.Minute) // an old one may wait for as long as it likes
					}
					for i, m := range all {
						require.NoError(t, <-done[i])
						for _, behind := range done[i+1:] {
							waits(t, behind)
						}
						for _, taken := range []locker{ours(t, etcd.Client()), old(t, etcd.Client())} {
							err := taken.TryLock(t.Context())
							require.True(t, err == concurrency.ErrLocked && err == etcds.ErrLocked, "%v", err)
						}
						require.NoError(t, m.Unlock(t.Context()))
					}
					require.Empty(t, keysOf(t, etcd.Client(), ""))
				})
			})
		}
	}
}

// With etcd's package all of these hold at once.
func TestGoroutinesOfOneSessionExcludeEachOther(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		s := open(t, etcd.Client())
		m := lock(t, s, "a")
		same, copied := *m, concurrency.NewMutex(s, "a")
		for _, other := range []locker{m, &same, copied} {
			require.Equal(t, concurrency.ErrLocked, other.TryLock(t.Context()))
		}
		second := later(m)
		waits(t, second)
		third := later(copied)
		require.NoError(t, same.Unlock(t.Context()), "a copy is the same Mutex")
		require.NoError(t, <-second)
		waits(t, third)
		require.NotEmpty(t, m.Key())
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, <-third)
	})
}

// The revision of the header has what the holder before has written, as a program that reads at
// that revision relies on.
func TestTheHeaderIsOfARevisionAfterAllWritesOfEarlierHolders(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		first, second := lock(t, open(t, client), "a"), concurrency.NewMutex(open(t, client), "a")
		require.Nil(t, second.Header())
		done := later(second)
		written, err := client.Put(t.Context(), "x", "")
		require.NoError(t, err)
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, <-done)
		require.Greater(t, second.Header().Revision, written.Header.Revision)
		require.NoError(t, second.Unlock(t.Context()))

		require.NoError(t, second.Lock(t.Context()))
		resp, err := client.Get(t.Context(), second.Key())
		require.NoError(t, err)
		require.Equal(t, resp.Kvs[0].CreateRevision, second.Header().Revision)
	})
}

func TestIsOwnerIsTrueForThisVeryLock(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		owns := func(is clientv3.Cmp) bool {
			resp, err := client.Txn(t.Context()).If(is).Commit()
			require.NoError(t, err)
			return resp.Succeeded
		}
		s := open(t, client)
		m := concurrency.NewMutex(s, "a")
		require.False(t, owns(m.IsOwner()))
		require.NoError(t, m.Lock(t.Context()))
		before := m.IsOwner()
		require.True(t, owns(before))
		require.NoError(t, m.Unlock(t.Context()))
		require.False(t, owns(m.IsOwner()))
		require.NoError(t, m.Lock(t.Context()))
		require.False(t, owns(before))
		require.True(t, owns(m.IsOwner()))
		require.False(t, owns(concurrency.NewMutex(s, "").IsOwner()))
	})
}

// Programs compare these errors by ==.
func TestErrorsComeAsTheyAre(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		lock(t, open(t, client), "a")
		s := open(t, client)
		m := concurrency.NewMutex(s, "a")
		require.Equal(t, concurrency.ErrLockReleased, m.Unlock(t.Context()))
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.True(t, m.Lock(short) == context.DeadlineExceeded)
		ended, end := context.WithCancelCause(t.Context())
		end(errors.New("a reason"))
		require.True(t, m.Lock(ended) == context.Canceled)
		require.True(t, m.TryLock(ended) == context.Canceled)
		require.Len(t, keysOf(t, client, "a"), 1)

		waiting := later(m)
		require.NoError(t, s.Close())
		require.Equal(t, concurrency.ErrSessionExpired, <-waiting)
		require.Equal(t, concurrency.ErrSessionExpired, m.TryLock(t.Context()))
		require.Equal(t, concurrency.ErrSessionExpired, concurrency.NewMutex(s, "b").Lock(t.Context()))
		require.ErrorContains(t, concurrency.NewMutex(open(t, client), "").Lock(t.Context()), "empty")
	})
}

func TestUnlockWorksWithAContextThatHasEnded(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		m := lock(t, open(t, client), "a")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, m.Unlock(ended))
		require.Empty(t, keysOf(t, client, ""))
	})
}

// etcd is away.
func TestNewSessionAndLockEndWhileEtcdDoesNotAnswer(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		s := open(t, client)
		thaw := etcd.Freeze()
		defer thaw()
		began := time.Now()
		_, err := concurrency.NewSession(client)
		require.Error(t, err)
		require.Less(t, time.Since(began), 6*time.Second)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = concurrency.NewSession(client, concurrency.WithContext(short))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, concurrency.ErrSessionExpired,
			concurrency.NewMutex(s, "a").Lock(t.Context()))
		require.Less(t, time.Since(began), ttl*time.Second)
	})
}

func TestTheContextOfASessionEndsIt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		ctx, cancel := context.WithCancel(t.Context())
		s := open(t, client, concurrency.WithContext(ctx))
		m := lock(t, s, "a")
		child, stop := context.WithCancel(s.Ctx())
		defer stop()
		cancel()
		<-s.Done()
		<-child.Done()
		synctest.Wait()
		require.NotEmpty(t, keysOf(t, client, "a"), "it is left to expire")
		time.Sleep((ttl + 1) * time.Second)
		require.Empty(t, keysOf(t, client, ""))
		require.ErrorIs(t, s.Close(), context.Canceled)
		require.Empty(t, keysOf(t, client, ""))
		require.Equal(t, concurrency.ErrLockReleased, m.Unlock(t.Context()))
	})
}

func TestASessionOnALeaseThatThereIs(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		grant := func() clientv3.LeaseID {
			resp, err := client.Grant(t.Context(), 40)
			require.NoError(t, err)
			return resp.ID
		}
		lease := grant()
		s := open(t, client, concurrency.WithLease(lease))
		require.Equal(t, lease, s.Lease())
		m := lock(t, s, "a")
		resp, err := client.Get(t.Context(), m.Key())
		require.NoError(t, err)
		require.Equal(t, int64(lease), resp.Kvs[0].Lease)
		time.Sleep(time.Hour)
		require.False(t, isOver(s))
		require.NoError(t, s.Close())
		_, err = client.Revoke(t.Context(), lease)
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)

		_, err = concurrency.NewSession(client, concurrency.WithLease(lease))
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)

		// A lock of etcd's package on the same lease would be waited for, for ever.
		lease = grant()
		old, err := etcds.NewSession(client, etcds.WithLease(lease))
		require.NoError(t, err)
		theirs := etcds.NewMutex(old, "a")
		require.NoError(t, theirs.Lock(t.Context()))
		s = open(t, client, concurrency.WithLease(lease))
		m = concurrency.NewMutex(s, "a")
		require.ErrorContains(t, m.Lock(t.Context()), "delete the key")
		require.NoError(t, theirs.Unlock(t.Context()))
		require.NoError(t, m.Lock(t.Context()))
		old.Orphan()
	})
}

// The lease of a Session that was orphaned is neither renewed nor revoked: it may have another
// owner.
func TestAnOrphanedLeaseIsLeftToItsOwner(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		s := open(t, client)
		m := lock(t, s, "a")
		s.Orphan()
		require.True(t, isOver(s))
		err := m.Lock(t.Context())
		require.ErrorIs(t, err, concurrency.ErrSessionExpired)
		require.ErrorContains(t, err, "orphaned")
		time.Sleep((ttl - 5) * time.Second)
		require.NotEmpty(t, keysOf(t, client, "a"))
		require.NoError(t, m.Unlock(t.Context()), "it was whole")
		time.Sleep(6 * time.Second)
		_, err = client.KeepAliveOnce(t.Context(), s.Lease())
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)

		s = open(t, client)
		s.Orphan()
		next := open(t, client, concurrency.WithLease(s.Lease()))
		time.Sleep(time.Hour)
		require.False(t, isOver(next))
		require.NoError(t, next.Close())
		require.NoError(t, s.Close())

		s = open(t, client)
		s.Orphan()
		require.NoError(t, s.Close())
		_, err = client.Revoke(t.Context(), s.Lease())
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
	})
}

func TestALockerPanicsWhereAMutexHasAnError(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		s := open(t, etcd.Client())
		var l sync.Locker = concurrency.NewLocker(s, "a")
		l.Lock()
		require.NotEmpty(t, keysOf(t, s.Client(), "a"))
		l.Unlock()
		require.PanicsWithValue(t, concurrency.ErrLockReleased, l.Unlock)
		require.NoError(t, s.Close())
		require.PanicsWithValue(t, concurrency.ErrSessionExpired, l.Lock)
	})
}

// An Election of a Session has its lease, and its Done; and so has one of a Session of etcd's
// package.
func TestElectionsOfBothSessionsExcludeEachOther(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client, others := etcd.Client(), etcd.Client()
		s := open(t, client)
		old, err := etcds.NewSession(others, etcds.WithTTL(ttl))
		require.NoError(t, err)
		defer old.Close()
		mine, theirs := concurrency.NewElection(s, "/e/"), concurrency.NewElection(old, "/e/")
		require.NoError(t, mine.Campaign(t.Context(), "mine"))
		second := make(chan error, 1)
		go func() { second <- theirs.Campaign(context.Background(), "theirs") }()
		waits(t, second)
		leader, err := theirs.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(s.Lease()), leader.Kvs[0].Lease)
		time.Sleep(time.Hour)
		waits(t, second)

		heal := etcd.Cut(client)
		<-s.Done()
		waits(t, second)
		require.NoError(t, <-second)
		heal()
		again := concurrency.ResumeElection(old, "/e/", theirs.Key(), theirs.Rev())
		require.NoError(t, again.Resign(t.Context()))
	})
}
