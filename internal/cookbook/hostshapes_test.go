package cookbook_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/contract/keyed"
)

// A machine is one of the processes of a story in virtual time.
type machine struct {
	client  *clientv3.Client
	session *etcdlock.Session
}

// machines tells a story of two machines. cut cuts the first one off until its lease has run out.
func machines(t *testing.T, story func(t *testing.T, a, b machine, cut func() (heal func()))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		start := func() machine {
			client := etcd.Client()
			return machine{client, contract.NewSession(t, client, etcdlock.WithTTL(15*time.Second))}
		}
		a, b := start(), start()
		story(t, a, b, func() func() {
			heal := etcd.Cut(a.client)
			time.Sleep(20 * time.Second)
			return heal
		})
	})
}

// closed reports whether a channel is closed by now.
func closed(ch <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// An etcd does not answer: clientv3 writes JSON to stderr, unless it has another logger.
func TestAClientWithALoggerOfItsOwnWritesNothingToStderr(t *testing.T) {
	said := func(connect func(endpoint string) *clientv3.Client) string {
		stderr := os.Stderr
		file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		require.NoError(t, err)
		os.Stderr = file
		client := connect("127.0.0.1:1") // where nothing listens
		os.Stderr = stderr
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = client.Get(ctx, "n")
		require.Error(t, err)
		require.NoError(t, client.Close())
		require.NoError(t, file.Close())
		text, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		return string(text)
	}
	require.Empty(t, said(func(endpoint string) *clientv3.Client {
		client, session, err := connect(endpoint)
		require.NoError(t, err)
		require.NoError(t, session.Close(t.Context()))
		return client
	}))
	require.Contains(t, said(func(endpoint string) *clientv3.Client {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
		require.NoError(t, err)
		return client
	}), `{"level":"warn"`)
}

func TestAKeyedLockerLocksForCallersThatHaveTheName(t *testing.T) {
	etcd := etcdlocktest.New(t)
	keyed.Run(t, func(t *testing.T) keyed.Locker {
		return &keyedLocker{
			session: contract.NewSession(t, etcd.Client()), holds: make(map[string]*etcdlock.Hold),
		}
	})
}

func TestAKeyedLockersUnlockTellsTheLoss(t *testing.T) {
	machines(t, func(t *testing.T, a, b machine, cut func() func()) {
		holds := func(m machine) *keyedLocker {
			return &keyedLocker{session: m.session, holds: make(map[string]*etcdlock.Hold)}
		}
		first, second := holds(a), holds(b)
		require.NoError(t, first.Lock(contract.Patient(t), "name"))
		heal := cut()
		require.NoError(t, second.Lock(contract.Patient(t), "name"))
		heal()
		require.ErrorIs(t, first.Unlock(t.Context(), "name"), etcdlock.ErrLost)
		require.ErrorIs(t, first.Unlock(t.Context(), "name"), etcdlock.ErrNotHeld)
		require.NoError(t, second.Unlock(t.Context(), "name"), "it was left alone")
		require.NoError(t, first.Lock(contract.Patient(t), "name"))
		require.NoError(t, first.Unlock(t.Context(), "name"))
	})
}

func TestAPlainLockerGivesUpInTime(t *testing.T) {
	machines(t, func(t *testing.T, a, b machine, cut func() func()) {
		plain := func(m machine) plainLocker {
			return plainLocker{contract.MutexOf(t, m.session, "plain"), 10 * time.Second}
		}
		first, second := plain(a), plain(b)
		require.NoError(t, first.Lock())
		began := time.Now()
		require.ErrorIs(t, second.Lock(), etcdlock.ErrLocked)
		require.Equal(t, 10*time.Second, time.Since(began))
		heal := cut()
		defer heal()
		require.NoError(t, second.Lock())
		began = time.Now()
		require.ErrorIs(t, first.Unlock(), etcdlock.ErrLost)
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		require.NoError(t, second.Unlock())
	})
}

func TestWorkThatWasThereBeforeTheHoldEndsWithIt(t *testing.T) {
	machines(t, func(t *testing.T, a, _ machine, cut func() func()) {
		work, end := context.WithCancelCause(t.Context())
		hold, err := a.session.Lock(work, "work")
		require.NoError(t, err)
		endWith(hold, end)
		require.False(t, closed(work.Done()))
		defer cut()()
		require.True(t, closed(work.Done()))
		require.ErrorIs(t, context.Cause(work), etcdlock.ErrLost)
		require.ErrorIs(t, hold.Unlock(t.Context()), etcdlock.ErrLost)
	})
}

// A candidate whose lease is lost leads no more, and can be elected again by the next Await.
func TestAnElectionCanBeEnteredAgainAfterALoss(t *testing.T) {
	machines(t, func(t *testing.T, a, b machine, cut func() func()) {
		first, second := &election{session: a.session, name: "log/7"},
			&election{session: b.session, name: "log/7"}
		leads := func(e *election) bool {
			ctx, err := e.WithMastership(t.Context())
			require.NoError(t, err)
			return !closed(ctx.Done())
		}
		require.False(t, leads(first))
		require.NoError(t, first.Resign(t.Context()))
		require.NoError(t, first.Await(contract.Patient(t)))
		require.NoError(t, first.Await(contract.Patient(t)), "it is the master")
		work, err := first.WithMastership(t.Context())
		require.NoError(t, err)

		heal := cut()
		require.True(t, closed(work.Done()))
		require.ErrorIs(t, context.Cause(work), etcdlock.ErrLost)
		require.NoError(t, second.Await(contract.Patient(t)))
		require.False(t, leads(first))
		heal()

		again := contract.Async(func() error { return first.Await(contract.Patient(t)) })
		synctest.Wait()
		require.Empty(t, again)
		require.NoError(t, second.Resign(t.Context()))
		require.NoError(t, second.Resign(t.Context()))
		require.NoError(t, <-again)
		require.True(t, leads(first))
		require.False(t, leads(second))

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, first.Close(ended), "also when the context has ended")
		require.False(t, leads(first))
		require.NoError(t, second.Await(contract.Patient(t)))
		require.NoError(t, second.Close(t.Context()))
	})
}

// A lock expires when it should, whether its process lives or not. Its owner unlocks it from any
// process, and after the expiry unlocks nobody else.
func TestALockStoreExpiresAndKnowsItsOwners(t *testing.T) {
	machines(t, func(t *testing.T, a, b machine, cut func() func()) {
		first, second := &lockStore{a.client, a.session}, &lockStore{b.client, b.session}
		try := func(s *lockStore, owner string, want bool) {
			t.Helper()
			got, err := s.TryLock(t.Context(),
				tryLockRequest{ResourceID: "file/1", LockOwner: owner, ExpiryInSeconds: 60})
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		unlock := func(s *lockStore, owner string, want unlockStatus) {
			t.Helper()
			got, err := s.Unlock(t.Context(), unlockRequest{"file/1", owner})
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		unlock(first, "vader", lockDoesNotExist)
		try(first, "vader", true)
		try(first, "vader", false)
		try(second, "luke", false)
		unlock(second, "luke", lockBelongsToOthers)
		unlock(second, "vader", unlocked)
		try(second, "luke", true)
		unlock(second, "luke", unlocked)

		try(first, "vader", true)
		defer cut()()                // 20 s have passed
		time.Sleep(39 * time.Second) // a second before the expiry
		try(second, "luke", false)
		time.Sleep(2 * time.Second)
		try(second, "luke", true)
		unlock(second, "vader", lockBelongsToOthers)
		unlock(second, "luke", unlocked)

		for _, r := range []tryLockRequest{{"file/1", "", 60}, {"file/1", "vader", 0},
			{"", "vader", 60}} {
			_, err := second.TryLock(t.Context(), r)
			require.Error(t, err, "%+v", r)
		}
		time.Sleep(2 * time.Minute) // the leases of keys that were unlocked run out
	})
}

func TestVaultStepsDownAndTheStandbySeesTheValueOfTheNext(t *testing.T) {
	machines(t, func(t *testing.T, a, b machine, cut func() func()) {
		lock := func(m machine, value string) vaultLock {
			backend := vaultBackend(&haBackend{m.client, m.session})
			require.True(t, backend.HAEnabled())
			l, err := backend.LockWith("core/lock", value)
			require.NoError(t, err)
			return l
		}
		value := func(want string) {
			t.Helper()
			held, got, err := lock(b, "reads").Value()
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, want != "", held)
		}
		first, second := lock(a, "first"), lock(b, "second")
		value("")
		lost, err := first.Lock(nil)
		require.NoError(t, err)
		require.False(t, closed(lost))
		value("first")

		stop := make(chan struct{})
		close(stop)
		none, err := second.Lock(stop)
		require.NoError(t, err)
		require.Nil(t, none)

		heal := cut()
		require.True(t, closed(lost))
		next, err := second.Lock(nil)
		require.NoError(t, err)
		value("second")
		heal()
		require.ErrorIs(t, first.Unlock(), etcdlock.ErrLost)
		require.False(t, closed(next))
		require.NoError(t, second.Unlock())
		_, err = first.Lock(nil)
		require.NoError(t, err)
		require.NoError(t, first.Unlock())
		require.ErrorIs(t, first.Unlock(), etcdlock.ErrNotHeld)

		_, err = (&haBackend{a.client, a.session}).LockWith("core/lock/", "")
		require.ErrorContains(t, err, `ends with "/"`)
	})
}

func TestAStoresLockIsLostAndLockedAgain(t *testing.T) {
	machines(t, func(t *testing.T, a, b machine, cut func() func()) {
		lock := func(m machine) storeLocker {
			l, err := newLock(m.session, "leader", []byte("value"))
			require.NoError(t, err)
			return l
		}
		first, second := lock(a), lock(b)
		lost, err := first.Lock(t.Context())
		require.NoError(t, err)
		require.False(t, closed(lost))
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = second.Lock(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		heal := cut()
		require.True(t, closed(lost))
		_, err = second.Lock(contract.Patient(t))
		require.NoError(t, err)
		heal()
		require.ErrorIs(t, first.Unlock(t.Context()), etcdlock.ErrLost)
		again := contract.Async(func() error { _, err := first.Lock(contract.Patient(t)); return err })
		synctest.Wait()
		require.Empty(t, again)
		require.NoError(t, second.Unlock(t.Context()))
		require.NoError(t, <-again)
		require.NoError(t, first.Unlock(t.Context()))
	})
}
