package etcdlockcertmagic_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/contract/keyed"
)

// The first of three servers is paused, so that the second takes over its lock. Then the first goes
// on and unlocks. With certmagic's own lock, a file, that unlocks the second, and lets the third in
// beside it. In etcd its Unlock leaves the second alone, and logs that the lock was lost.
func TestAServerThatWasPausedUnlocksNobodyElse(t *testing.T) {
	pausedUnlocks := func(t *testing.T, storages [3]keyed.Locker, pause func()) (err error,
		third bool) {
		require.NoError(t, storages[0].Lock(t.Context(), "name"))
		pause()
		require.NoError(t, storages[1].Lock(t.Context(), "name"))
		err = storages[0].Unlock(t.Context(), "name")
		third, tried := storages[2].TryLock(t.Context(), "name")
		require.NoError(t, tried)
		require.NoError(t, storages[1].Unlock(t.Context(), "name"))
		return err, third
	}
	t.Run("FileStorage", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			var storages [3]keyed.Locker
			for i := range storages {
				storages[i] = &certmagic.FileStorage{Path: dir}
			}
			err, third := pausedUnlocks(t, storages, func() {
				time.Sleep(61 * time.Second) // between two updates of the file, which the pause prevents
				file := filepath.Join(dir, "locks", "name.lock")
				old := `{"created":"2000-01-01T00:00:00Z","updated":"2000-01-01T00:00:00Z"}`
				require.NoError(t, os.WriteFile(file, []byte(old), 0o644))
			})
			require.NoError(t, err)
			require.True(t, third, "the second and the third have it")
			time.Sleep(time.Minute) // it looks after its files for some seconds more
		})
	})
	t.Run("etcd", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			etcd := etcdlocktest.New(t)
			paused := etcd.Client()
			session := contract.NewSession(t, paused)
			first, err := etcdlockcertmagic.New(session, "certmagic/", files(t))
			require.NoError(t, err)
			logs := logged(first)
			var heal func()
			storages := [3]keyed.Locker{first, open(t, etcd, files(t)), open(t, etcd, files(t))}
			err, third := pausedUnlocks(t, storages, func() {
				heal = etcd.Cut(paused)
				time.Sleep(time.Minute)
			})
			require.NoError(t, err)
			require.False(t, third)
			tellsALoss(t, logs, "name", " lost ")
			heal()
		})
	})
}

// The next server gets a lock as soon as it is free. By a file it looks once in a second.
func TestTheNextServerGetsTheLockAtOnce(t *testing.T) {
	waited := func(t *testing.T, holder, next keyed.Locker) time.Duration {
		require.NoError(t, holder.Lock(t.Context(), "name"))
		in := contract.Async(func() error { return next.Lock(t.Context(), "name") })
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, holder.Unlock(t.Context(), "name"))
		freed := time.Now()
		require.NoError(t, <-in)
		after := time.Since(freed)
		require.NoError(t, next.Unlock(t.Context(), "name"))
		return after
	}
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file := &certmagic.FileStorage{Path: dir}
		require.Equal(t, 900*time.Millisecond, waited(t, file, file))
		time.Sleep(time.Minute) // it looks after its files for some seconds more
		etcd := etcdlocktest.New(t)
		require.Zero(t, waited(t, open(t, etcd, files(t)), open(t, etcd, files(t))))
	})
}
