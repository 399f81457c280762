package etcdlockcertmagic_test

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/contract/keyed"
)

func files(t *testing.T) *certmagic.FileStorage { return &certmagic.FileStorage{Path: t.TempDir()} }

// open opens the storage of another process.
func open(
	t *testing.T, etcd *etcdlocktest.Etcd, below certmagic.Storage,
) *etcdlockcertmagic.Storage {
	t.Helper()
	s, err := etcdlockcertmagic.New(contract.NewSession(t, etcd.Client()), "certmagic/", below)
	require.NoError(t, err)
	return s
}

// certmagic's interfaces, and the public suites of storages, ask for no more of a Locker.
func TestStoragesLockAsOneOfCertmagicsShould(t *testing.T) {
	etcd, below := etcdlocktest.New(t), files(t)
	keyed.Run(t, func(t *testing.T) keyed.Locker { return open(t, etcd, below) })
}

func TestALockAndItsUnlockAreOneRequestEach(t *testing.T) {
	etcd := etcdlocktest.New(t)
	a, b := open(t, etcd, files(t)), open(t, etcd, files(t))
	for _, s := range []*etcdlockcertmagic.Storage{a, b} {
		require.NoError(t, s.Lock(t.Context(), "warm")) // the lease
		require.NoError(t, s.Unlock(t.Context(), "warm"))
	}
	before := etcd.Counts()
	require.NoError(t, a.Lock(t.Context(), "name"))
	for range 10 {
		require.NoError(t, a.RenewLockLease(t.Context(), "name", time.Hour))
		got, err := a.TryLock(t.Context(), "name")
		require.NoError(t, err)
		require.False(t, got)
	}
	require.NoError(t, a.Unlock(t.Context(), "name"))
	after := etcd.Counts()
	before.Txn += 2
	require.Equal(t, before, after)

	require.NoError(t, a.Lock(t.Context(), "name"))
	before = etcd.Counts()
	got, err := b.TryLock(t.Context(), "name")
	require.NoError(t, err)
	require.False(t, got)
	before.Txn++
	require.Equal(t, before, etcd.Counts())
	require.NoError(t, a.Unlock(t.Context(), "name"))
}

// What is stored goes to the storage below, and the logs name it.
func TestFilesAreThoseOfTheStorageBelow(t *testing.T) {
	below := files(t)
	s := open(t, etcdlocktest.New(t), below)
	_, err := s.Load(t.Context(), "dir/file")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.False(t, s.Exists(t.Context(), "dir/file"))
	require.NoError(t, s.Store(t.Context(), "dir/file", []byte("text")))
	text, err := below.Load(t.Context(), "dir/file")
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
	require.True(t, s.Exists(t.Context(), "dir"))
	keys, err := s.List(t.Context(), "dir", true)
	require.NoError(t, err)
	require.Equal(t, []string{"dir/file"}, keys)
	info, err := s.Stat(t.Context(), "dir/file")
	require.NoError(t, err)
	require.True(t, info.IsTerminal)
	require.NoError(t, s.Delete(t.Context(), "dir/file"))
	require.NoError(t, s.Delete(t.Context(), "dir/file"), "it is gone")
	require.False(t, below.Exists(t.Context(), "dir/file"))
	require.Equal(t, "FileStorage:"+below.Path+", with locks in etcd at certmagic/", fmt.Sprint(s))
}

func TestArgumentsThatCannotBeUsedAreErrors(t *testing.T) {
	session := contract.NewSession(t, etcdlocktest.New(t).Client())
	refused := func(s *etcdlock.Session, prefix string, below certmagic.Storage, why string) {
		t.Helper()
		_, err := etcdlockcertmagic.New(s, prefix, below)
		require.ErrorContains(t, err, why)
	}
	refused(nil, "certmagic/", files(t), "nil Session")
	refused(session, "certmagic/", nil, "nil Storage")
	refused(session, "certmagic\x00/", files(t), `"certmagic\x00/name"`)

	s, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
	require.NoError(t, err)
	require.ErrorContains(t, s.Lock(t.Context(), ""), `name "certmagic/" ends with "/"`)
	var none context.Context
	require.ErrorContains(t, s.Lock(none, "name"), "nil context")
	require.ErrorContains(t, s.Unlock(none, "name"), "nil context")
	_, err = s.TryLock(none, "name")
	require.ErrorContains(t, err, "nil context")
	require.ErrorContains(t, s.Lock(t.Context(), strings.Repeat("ü", 200)), "1024", "of escaped bytes")
	require.NoError(t, session.Close(t.Context()))
	require.ErrorIs(t, s.Lock(t.Context(), "name"), etcdlock.ErrClosed)
	refused(session, "certmagic/", files(t), "closed")
}

// A server dies with a lock. Another one gets it within the TTL.
func TestTheLockOfADeadServerComesFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		session, err := etcdlock.NewSession(client)
		require.NoError(t, err)
		dies, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
		require.NoError(t, err)
		require.NoError(t, dies.Lock(t.Context(), "name"))
		client.Close()
		began := time.Now()
		next := open(t, etcd, files(t))
		require.NoError(t, next.Lock(t.Context(), "name"))
		require.LessOrEqual(t, time.Since(began), 15*time.Second)
		require.NoError(t, next.Unlock(t.Context(), "name"))
	})
}

// logged returns what is logged to a Storage's Logger from now on.
func logged(s *etcdlockcertmagic.Storage) *observer.ObservedLogs {
	core, logs := observer.New(zapcore.DebugLevel)
	s.Logger = zap.New(core)
	return logs
}

// tellsALoss requires that the only line in logs, of which there are no more then, is of a loss.
func tellsALoss(t *testing.T, logs *observer.ObservedLogs, name, why string) {
	t.Helper()
	lines := logs.TakeAll()
	require.Len(t, lines, 1)
	require.Equal(t, "lock lost: another server may have had it", lines[0].Message)
	require.Equal(t, zapcore.WarnLevel, lines[0].Level)
	require.Equal(t, name, lines[0].ContextMap()["lock_key"])
	require.Contains(t, lines[0].ContextMap()["error"], why)
}

// A caller whose lock is lost has its name in this process until its Unlock. That logs the loss,
// and is no error: nothing of the lock is left. (certmagic.Locker: "Unlock should only return an
// error if the lock was unable to be released.")
func TestALossIsLoggedByUnlockAndStaysWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		session := contract.NewSession(t, etcd.Client())
		a, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
		require.NoError(t, err)
		logs := logged(a)
		b := open(t, etcd, files(t))
		require.NoError(t, a.Lock(t.Context(), "name"))
		etcd.Expire(session.Lease())
		time.Sleep(2 * time.Second) // the loss is noticed
		require.NoError(t, b.Lock(t.Context(), "name"))

		got, err := a.TryLock(t.Context(), "name")
		require.NoError(t, err)
		require.False(t, got)
		in := contract.Async(func() error { return a.Lock(t.Context(), "name") })
		require.NoError(t, b.Unlock(t.Context(), "name"))
		synctest.Wait()
		require.Empty(t, in)
		require.Empty(t, logs.All())
		require.NoError(t, a.Unlock(t.Context(), "name"))
		tellsALoss(t, logs, "name", " lost ")
		require.NoError(t, <-in)
		require.NoError(t, a.Unlock(t.Context(), "name"))
		require.Empty(t, logs.All())
	})
}

// A Storage without a Logger uses that of certmagic, and does without if there is none.
func TestTheLoggerOfALossIsCertmagicsUnlessTheStorageHasOne(t *testing.T) {
	etcd := etcdlocktest.New(t)
	session := contract.NewSession(t, etcd.Client())
	s, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
	require.NoError(t, err)
	before := certmagic.Default.Logger
	t.Cleanup(func() { certmagic.Default.Logger = before })
	loses := func() {
		require.NoError(t, s.Lock(t.Context(), "name"))
		etcd.Expire(session.Lease())
		require.NoError(t, s.Unlock(t.Context(), "name"))
	}
	core, logs := observer.New(zapcore.DebugLevel)
	certmagic.Default.Logger = zap.New(core)
	loses()
	tellsALoss(t, logs, "name", " lost ")
	certmagic.Default.Logger = nil
	loses()
}

// A Session that is closed has given its locks up. What is left to unlock is no error either.
func TestTheUnlockAfterTheCloseOfTheSessionIsLogged(t *testing.T) {
	session := contract.NewSession(t, etcdlocktest.New(t).Client())
	s, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
	require.NoError(t, err)
	logs := logged(s)
	require.NoError(t, s.Lock(t.Context(), "name"))
	require.NoError(t, session.Close(t.Context()))
	require.NoError(t, s.Unlock(t.Context(), "name"))
	tellsALoss(t, logs, "name", "not held")
}

// Only a release that etcd did not confirm is an error of the Unlock of a lock that the caller has.
func TestAReleaseThatEtcdDoesNotConfirmIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		s := open(t, etcd, files(t))
		logs := logged(s)
		require.NoError(t, s.Lock(t.Context(), "name"))
		thaw := etcd.Freeze()
		require.ErrorIs(t, s.Unlock(t.Context(), "name"), etcdlock.ErrUnconfirmed)
		require.Empty(t, logs.All())
		thaw()
		require.NoError(t, s.Lock(t.Context(), "name"), "the name is free again")
		require.NoError(t, s.Unlock(t.Context(), "name"))
	})
}

// A caller whose lock is lost gets it back by RenewLockLease, but not while another server has it.
// Nobody takes the name from the caller within its own process.
func TestALostLockIsLockedAnewByItsRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		session := contract.NewSession(t, etcd.Client())
		a, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
		require.NoError(t, err)
		b := open(t, etcd, files(t))
		logs := logged(a)
		renew := func() error { return a.RenewLockLease(t.Context(), "name", time.Minute) }
		require.ErrorIs(t, renew(), etcdlock.ErrNotHeld)

		require.NoError(t, a.Lock(t.Context(), "name"))
		require.NoError(t, renew())
		etcd.Expire(session.Lease())
		time.Sleep(2 * time.Second) // the loss is noticed
		require.NoError(t, renew())
		tellsALoss(t, logs, "name", " lost ")
		got, err := b.TryLock(t.Context(), "name")
		require.NoError(t, err)
		require.False(t, got)

		etcd.Expire(session.Lease())
		time.Sleep(2 * time.Second) // the loss is noticed
		require.NoError(t, b.Lock(t.Context(), "name"))
		in := contract.Async(func() error { return a.Lock(t.Context(), "name") })
		for range 3 {
			err = renew()
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			require.ErrorIs(t, err, etcdlock.ErrLost)
		}
		tellsALoss(t, logs, "name", " lost ")
		require.NoError(t, b.Unlock(t.Context(), "name"))
		require.NoError(t, renew())
		synctest.Wait()
		require.Empty(t, in)
		require.NoError(t, a.Unlock(t.Context(), "name"), "whole since the renewal")
		require.NoError(t, <-in)
		require.Empty(t, logs.All())

		etcd.Expire(session.Lease())
		time.Sleep(2 * time.Second) // the loss is noticed
		require.NoError(t, b.Lock(t.Context(), "name"))
		require.ErrorIs(t, renew(), etcdlock.ErrLocked)
		tellsALoss(t, logs, "name", " lost ")
		require.NoError(t, a.Unlock(t.Context(), "name"))
		require.Empty(t, logs.All())
		require.ErrorIs(t, a.Unlock(t.Context(), "name"), etcdlock.ErrNotHeld)
		require.NoError(t, b.Unlock(t.Context(), "name"))
	})
}

// A lock that was recalled is over for its caller, though no other server has had it.
func TestARecalledLockIsLockedAnewByItsRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		session := contract.NewSession(t, etcd.Client(), etcdlock.WithRecall(time.Minute))
		a, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
		require.NoError(t, err)
		logs := logged(a)
		require.NoError(t, a.Lock(t.Context(), "name"))
		time.Sleep(2 * time.Second) // it listens
		client := etcd.Client()
		line, err := etcdlock.Contenders(t.Context(), client, "certmagic/name")
		require.NoError(t, err)
		require.NoError(t,
			etcdlock.Recall(t.Context(), client, line[0], etcdlock.RecallRequest{By: "test"}))
		b := open(t, etcd, files(t))
		in := contract.Async(func() error { return b.Lock(t.Context(), "name") })
		time.Sleep(2 * time.Second) // the grace is over
		require.Empty(t, in)

		err = a.RenewLockLease(t.Context(), "name", time.Minute)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorIs(t, err, etcdlock.ErrRecalled)
		require.NoError(t, <-in)
		require.NoError(t, a.Unlock(t.Context(), "name"))
		require.Empty(t, logs.All(), "it was whole until it was over")
		require.NoError(t, b.Unlock(t.Context(), "name"))
	})
}

// A server ends while it renews a lock that it had lost: certmagic.CleanUpOwnLocks unlocks from
// another goroutine. That waits for the renewal, and nothing stays locked. Of two Unlocks at once
// one has the lock.
func TestAnUnlockBesideARenewalUnlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		session := contract.NewSession(t, client)
		a, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
		require.NoError(t, err)
		require.NoError(t, a.Lock(t.Context(), "name"))
		etcd.Expire(session.Lease())
		time.Sleep(2 * time.Second) // the loss is noticed
		etcd.Delay(client, time.Second)
		renewed := contract.Async(func() error {
			return a.RenewLockLease(t.Context(), "name", time.Minute)
		})
		synctest.Wait()
		require.Empty(t, renewed)
		ended, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, a.Unlock(ended, "name"), context.Canceled)

		unlocks := []<-chan error{}
		for range 2 {
			unlocks = append(unlocks, contract.Async(func() error { return a.Unlock(t.Context(), "name") }))
		}
		in := contract.Async(func() error { return a.Lock(t.Context(), "name") })
		require.NoError(t, <-renewed)
		first, second := <-unlocks[0], <-unlocks[1]
		if first != nil {
			first, second = second, first
		}
		require.NoError(t, first)
		require.ErrorIs(t, second, etcdlock.ErrNotHeld)
		require.NoError(t, <-in, "the next caller's lock is untouched")
		require.NoError(t, a.Unlock(t.Context(), "name"))
	})
}
