package etcdlockmigrate_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	databasetesting "github.com/golang-migrate/migrate/v4/database/testing"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockmigrate "github.com/etcdlock/etcdlock/adapters/migrate"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

const (
	name  = "migrations/shop"
	short = 100 * time.Millisecond // a wait that is to be in vain
	ample = 10 * time.Second       // one that is not
)

// shop are migrations of which the second needs the first.
var shop = fstest.MapFS{
	"1_items.up.sql": {Data: []byte("CREATE TABLE items (id INTEGER PRIMARY KEY);")},
	"2_price.up.sql": {Data: []byte("ALTER TABLE items ADD COLUMN price INTEGER;")},
}

// open opens the SQLite in memory of the test, once more at each call.
func open(t *testing.T) database.Driver {
	db, err := sql.Open("sqlite",
		"file:/"+t.Name()+"?vfs=memdb&_txlock=immediate&_pragma=busy_timeout(60000)")
	require.NoError(t, err)
	driver, err := sqlite.WithInstance(db, &sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = driver.Close() }) // it may have been closed
	return driver
}

// newMutex returns the lock of another process, closed when t ends.
func newMutex(
	t *testing.T, client *clientv3.Client, opts ...etcdlock.SessionOption,
) *etcdlock.Mutex {
	return contract.NewMutex(t, client, name, opts...)
}

func newDriver(t *testing.T, driver database.Driver, mu *etcdlock.Mutex, wait time.Duration,
) *etcdlockmigrate.Driver {
	d, err := etcdlockmigrate.New(driver, mu, wait)
	require.NoError(t, err)
	return d
}

func newMigrate(t *testing.T, driver database.Driver) *migrate.Migrate {
	files, err := iofs.New(shop, ".")
	require.NoError(t, err)
	m, err := migrate.NewWithInstance("iofs", files, "sqlite", driver)
	require.NoError(t, err)
	return m
}

// A hooked driver calls during while a migration runs, and counts the writes.
type hooked struct {
	database.Driver
	during func()
	writes int
}

func (h *hooked) Run(migration io.Reader) error {
	h.writes++
	err := h.Driver.Run(migration)
	h.during()
	return err
}

func (h *hooked) SetVersion(version int, dirty bool) error {
	h.writes++
	return h.Driver.SetVersion(version, dirty)
}

func (h *hooked) Drop() error {
	h.writes++
	return h.Driver.Drop()
}

// The driver suite of golang-migrate.
func TestTheSuiteOfGolangMigrate(t *testing.T) {
	t.Run("driver", func(t *testing.T) {
		mu := newMutex(t, etcdlocktest.New(t).Client())
		databasetesting.Test(t, newDriver(t, open(t), mu, ample),
			[]byte("CREATE TABLE items (id INTEGER)"))
	})
	t.Run("opened", func(t *testing.T) {
		mu := newMutex(t, etcdlocktest.New(t).Client())
		d, err := newDriver(t, &sqlite.Sqlite{}, mu, ample).Open("sqlite://" + t.TempDir() + "/shop.db")
		require.NoError(t, err)
		require.IsType(t, &etcdlockmigrate.Driver{}, d)
		databasetesting.Test(t, d, []byte("CREATE TABLE items (id INTEGER)"))
		require.NoError(t, d.Close())
	})
	t.Run("migrate", func(t *testing.T) {
		mu := newMutex(t, etcdlocktest.New(t).Client())
		databasetesting.TestMigrate(t, newMigrate(t, newDriver(t, open(t), mu, ample)))
	})
}

func TestOneProcessMigratesAtATime(t *testing.T) {
	etcd := etcdlocktest.New(t)
	second := newMigrate(t, newDriver(t, open(t), newMutex(t, etcd.Client()), short))
	var errs []error
	first := newMigrate(t, newDriver(t, &hooked{Driver: open(t), during: func() {
		errs = append(errs, second.Up())
	}}, newMutex(t, etcd.Client()), ample))
	require.NoError(t, first.Up())
	require.Len(t, errs, 2)
	for _, err := range errs {
		require.ErrorIs(t, err, database.ErrLocked)
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the wait of the Driver, "+short.String()+", is over")
	}
	require.ErrorIs(t, second.Up(), migrate.ErrNoChange)
}

// SQLite's own driver excludes only itself.
func TestTheLockOfSQLiteLetsTwoProcessesIn(t *testing.T) {
	first, second := open(t), open(t)
	require.NoError(t, first.Lock())
	require.NoError(t, second.Lock())
}

func TestALossFailsTheMigrationAndBeginsNoOther(t *testing.T) {
	etcd := etcdlocktest.New(t)
	mu := newMutex(t, etcd.Client())
	inner := &hooked{Driver: open(t)}
	inner.during = func() {
		held := mu.Context(context.Background())
		etcd.Delete(mu.Key()) // as an operator does
		<-held.Done()
	}
	d := newDriver(t, inner, mu, ample)
	m := newMigrate(t, d)
	err := m.Up()
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.ErrorIs(t, err, etcdlock.ErrKeyDeleted)
	require.Equal(t, 2, inner.writes, "the version 1, dirty, and the first migration")
	require.ErrorIs(t, m.Up(), migrate.ErrLocked, "the Migrate takes itself for locked")

	require.ErrorIs(t, newMigrate(t, d).Up(), migrate.ErrDirty{Version: 1})
	other := newDriver(t, open(t), newMutex(t, etcd.Client()), ample)
	require.ErrorIs(t, newMigrate(t, other).Up(), migrate.ErrDirty{Version: 1})
}

func TestNothingIsWrittenBetweenALossAndItsUnlock(t *testing.T) {
	etcd := etcdlocktest.New(t)
	mu := newMutex(t, etcd.Client())
	inner := &hooked{Driver: open(t), during: func() {}}
	d := newDriver(t, inner, mu, ample)
	require.NoError(t, d.Lock())
	held := mu.Context(context.Background())
	etcd.Delete(mu.Key())
	<-held.Done()
	require.ErrorIs(t, d.Run(strings.NewReader("CREATE TABLE items (id INTEGER)")), etcdlock.ErrLost)
	require.ErrorIs(t, d.SetVersion(1, true), etcdlock.ErrLost)
	require.ErrorIs(t, d.Drop(), etcdlock.ErrLost)
	require.Zero(t, inner.writes)
	require.ErrorIs(t, d.Lock(), database.ErrLocked, "until the Unlock")
	require.ErrorIs(t, d.Unlock(), etcdlock.ErrLost)
	require.ErrorIs(t, d.Unlock(), database.ErrNotLocked)

	require.NoError(t, d.Lock())
	require.NoError(t, d.SetVersion(1, true))
	require.NoError(t, d.Unlock())
}

func TestAMigrationThatSucceedsDuringALossFails(t *testing.T) {
	etcd := etcdlocktest.New(t)
	mu := newMutex(t, etcd.Client())
	d := newDriver(t, &hooked{Driver: open(t), during: func() {
		held := mu.Context(context.Background())
		etcd.Delete(mu.Key())
		<-held.Done()
	}}, mu, ample)
	require.NoError(t, d.Lock())
	require.ErrorIs(t, d.Run(strings.NewReader("CREATE TABLE items (id INTEGER)")), etcdlock.ErrLost)
	require.ErrorIs(t, d.Unlock(), etcdlock.ErrLost)
}

func TestALockWaitsAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		holder := newMutex(t, etcd.Client())
		require.NoError(t, holder.Lock(t.Context()))
		d := newDriver(t, &hooked{}, newMutex(t, etcd.Client()), 10*time.Second)
		begun := time.Now()
		require.ErrorIs(t, d.Lock(), database.ErrLocked)
		require.Equal(t, 10*time.Second, time.Since(begun))
		require.NoError(t, holder.Unlock(t.Context()))
	})
}

// Several Locks of one Driver wait at the same time, each for no longer than it may, and Unlock
// does not wait for them.
func TestEachLockOfADriverWaitsAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		holder := newMutex(t, etcd.Client())
		require.NoError(t, holder.Lock(t.Context()))
		d := newDriver(t, &hooked{}, newMutex(t, etcd.Client()), 10*time.Second)
		begun := time.Now()
		first, second := contract.Async(d.Lock), contract.Async(d.Lock)
		synctest.Wait()
		require.ErrorIs(t, d.Unlock(), database.ErrNotLocked)
		require.Zero(t, time.Since(begun))
		for _, lock := range []<-chan error{first, second} {
			err := <-lock
			require.ErrorIs(t, err, database.ErrLocked)
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			require.Equal(t, 10*time.Second, time.Since(begun))
		}
		require.NoError(t, holder.Unlock(t.Context()))
	})
}

// A Migrate takes no notice of what its driver's Lock returns after LockTimeout (Migrate.lock in
// golang-migrate's migrate.go), and nothing unlocks a lock that comes then.
//
//	0 s both Migrates of one Driver begin ── 10 s the wait is over ── 15 s LockTimeout ── 17 s free
func TestNoMigrateOfADriverTakesTheLockForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		holder := newMutex(t, etcd.Client())
		require.NoError(t, holder.Lock(t.Context()))
		d := newDriver(t, &hooked{}, newMutex(t, etcd.Client()), 10*time.Second)
		first, second := newMigrate(t, d), newMigrate(t, d)
		ups := []<-chan error{contract.Async(first.Up), contract.Async(second.Up)}
		time.Sleep(17 * time.Second)
		require.NoError(t, holder.Unlock(t.Context()))
		time.Sleep(time.Minute)
		require.NoError(t, holder.TryLock(t.Context()), "nobody holds it")
		require.NoError(t, holder.Unlock(t.Context()))
		for _, up := range ups {
			require.ErrorIs(t, <-up, database.ErrLocked)
		}
	})
}

// Of two Migrates of one Driver that wait, the second gets the lock when the first unlocks.
func TestMigratesOfADriverTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		holder := newMutex(t, etcd.Client())
		require.NoError(t, holder.Lock(t.Context()))
		d := newDriver(t, &hooked{}, newMutex(t, etcd.Client()), 10*time.Second)
		var inside atomic.Int64
		turn := func() error {
			if err := d.Lock(); err != nil {
				return err
			}
			if inside.Add(1) != 1 {
				t.Error("two hold it")
			}
			time.Sleep(time.Second)
			inside.Add(-1)
			return d.Unlock()
		}
		first, second := contract.Async(turn), contract.Async(turn)
		time.Sleep(time.Second)
		require.NoError(t, holder.Unlock(t.Context()))
		require.NoError(t, <-first)
		require.NoError(t, <-second)
	})
}

// The hold ends by WithMaxHold, whose cause is no ErrLost.
func TestEveryEndOfTheHoldStopsTheWrites(t *testing.T) {
	mu := newMutex(t, etcdlocktest.New(t).Client(), etcdlock.WithMaxHold(time.Millisecond))
	d := newDriver(t, open(t), mu, ample)
	require.NoError(t, d.Lock())
	<-mu.Context(context.Background()).Done()
	require.ErrorIs(t, d.SetVersion(1, true), etcdlock.ErrMaxHold)
	require.ErrorIs(t, d.Unlock(), etcdlock.ErrMaxHold)
}

// The wait is longer than LockTimeout, against the advice. The Migrate gives up while its Driver
// still waits.
func TestCloseEndsALockThatTheMigrateDoesNotWaitFor(t *testing.T) {
	etcd := etcdlocktest.New(t)
	holder := newMutex(t, etcd.Client())
	require.NoError(t, holder.Lock(t.Context()))
	m := newMigrate(t, newDriver(t, open(t), newMutex(t, etcd.Client()), time.Hour))
	m.LockTimeout = short
	require.ErrorIs(t, m.Up(), migrate.ErrLockTimeout)
	sourceErr, databaseErr := m.Close()
	require.NoError(t, errors.Join(sourceErr, databaseErr))
	require.NoError(t, holder.Unlock(t.Context()))
	require.NoError(t, holder.Lock(t.Context()), "nothing was left in its way")
	require.NoError(t, holder.Unlock(t.Context()))
}

func TestCloseUnlocks(t *testing.T) {
	etcd := etcdlocktest.New(t)
	d := newDriver(t, open(t), newMutex(t, etcd.Client()), ample)
	require.NoError(t, d.Lock())
	require.NoError(t, d.Close())
	err := d.Lock()
	require.ErrorIs(t, err, etcdlock.ErrClosed)
	require.ErrorContains(t, err, `lock "migrations/shop", whose Driver was closed`)
	other := newMutex(t, etcd.Client())
	require.NoError(t, other.TryLock(t.Context()))
	require.NoError(t, other.Unlock(t.Context()))
}

// A Lock that waits, and one that comes later, say that the Driver was closed. Once Close has
// returned nothing of them is left.
func TestALockOfAClosedDriverSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		holder := newMutex(t, etcd.Client())
		require.NoError(t, holder.Lock(t.Context()))
		d := newDriver(t, open(t), newMutex(t, etcd.Client()), time.Hour)
		locks := []<-chan error{contract.Async(d.Lock), contract.Async(d.Lock)}
		time.Sleep(time.Second)
		require.NoError(t, d.Close())
		for _, lock := range locks {
			require.Len(t, lock, 1)
			require.ErrorIs(t, <-lock, etcdlock.ErrClosed)
		}
		line, err := etcdlock.Contenders(t.Context(), etcd.Client(), name)
		require.NoError(t, err)
		require.Len(t, line, 1)
		require.ErrorIs(t, d.Lock(), etcdlock.ErrClosed)
		require.NoError(t, holder.Unlock(t.Context()))
	})
}

// The first Lock also has the lease granted, and looks at etcd's cluster.
func TestAnUpCostsTwoRequests(t *testing.T) {
	etcd := etcdlocktest.New(t)
	m := newMigrate(t, newDriver(t, open(t), newMutex(t, etcd.Client()), ample))
	requests := func() int {
		n := etcd.Counts()
		return n.Range + n.Put + n.DeleteRange + n.Txn + n.LeaseGrant + n.LeaseRevoke + n.LeaseTimeToLive
	}
	require.NoError(t, m.Steps(1))
	before := requests()
	require.NoError(t, m.Up())
	require.Equal(t, 2, requests()-before)
}

func TestMistakesAreErrors(t *testing.T) {
	mu := newMutex(t, etcdlocktest.New(t).Client())
	_, err := etcdlockmigrate.New(nil, mu, ample)
	require.ErrorContains(t, err, "nil database.Driver")
	_, err = etcdlockmigrate.New(&sqlite.Sqlite{}, nil, ample)
	require.ErrorContains(t, err, "nil Mutex")
	_, err = etcdlockmigrate.New(&sqlite.Sqlite{}, mu, -time.Second)
	require.ErrorContains(t, err, "-1s")
	_, err = etcdlockmigrate.New(&sqlite.Sqlite{}, mu, 15)
	require.ErrorContains(t, err, "wait 15ns is below 1ms")
	_, err = newDriver(t, &sqlite.Sqlite{}, mu, ample).Open("sqlite://%")
	require.Error(t, err)
}
