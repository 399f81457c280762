// Package migrate_test runs adapters/migrate on etcd's own server and on PostgreSQL, and beside it
// the lock that golang-migrate's driver for PostgreSQL has of its own.
package migrate_test

import (
	"context"
	"errors"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/pgx/v5"
	databasetesting "github.com/golang-migrate/migrate/v4/database/testing"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockmigrate "github.com/etcdlock/etcdlock/adapters/migrate"
	"github.com/etcdlock/etcdlock/internal/adapters/pgtest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

const (
	name  = "migrations/shop"
	short = time.Second // a wait that is to be in vain
)

// shop are migrations of which the second needs the first.
var shop = fstest.MapFS{
	"1_items.up.sql": {Data: []byte("CREATE TABLE items (id INTEGER PRIMARY KEY);")},
	"2_price.up.sql": {Data: []byte("ALTER TABLE items ADD COLUMN price INTEGER;")},
}

// A world is one etcd and one database.
type world struct {
	etcd *etcdtest.Cluster
	dsn  string
}

func newWorld(t *testing.T) world {
	return world{etcdtest.Start(t, 1), pgtest.Start(t).Database(t)}
}

// open opens the database by golang-migrate's own driver.
func (w world) open(t *testing.T) database.Driver {
	driver, err := pgx.WithInstance(pgtest.Open(t, w.dsn), &pgx.Config{})
	require.NoError(t, err)
	return driver
}

// driver returns the driver of another process.
func (w world) driver(t *testing.T, opts ...etcdlock.SessionOption) *etcdlockmigrate.Driver {
	d, err := etcdlockmigrate.New(w.open(t), contract.NewMutex(t, w.etcd.Client(t), name, opts...),
		short)
	require.NoError(t, err)
	return d
}

// newMigrate returns a Migrate with a LockTimeout of twice what a Lock waits.
func newMigrate(t *testing.T, driver database.Driver) *migrate.Migrate {
	files, err := iofs.New(shop, ".")
	require.NoError(t, err)
	m, err := migrate.NewWithInstance("iofs", files, "postgres", driver)
	require.NoError(t, err)
	m.LockTimeout = 2 * short
	t.Cleanup(func() {
		sourceErr, databaseErr := m.Close()
		require.NoError(t, errors.Join(sourceErr, databaseErr))
	})
	return m
}

// The driver suite of golang-migrate.
func TestTheSuiteOfGolangMigrate(t *testing.T) {
	w := newWorld(t)
	t.Run("driver", func(t *testing.T) {
		d := w.driver(t)
		databasetesting.Test(t, d, []byte("CREATE TABLE items (id INTEGER)"))
		require.NoError(t, d.Close())
	})
	t.Run("migrate", func(t *testing.T) {
		databasetesting.TestMigrate(t, newMigrate(t, w.driver(t)))
	})
}

// A process ends without a word while it migrates. The next one gets in when the lease has expired.
func TestTheNextProcessGetsInAfterTheLeaseOfADeadOne(t *testing.T) {
	w := newWorld(t)
	client := w.etcd.Client(t)
	session, err := etcdlock.NewSession(client, etcdlock.WithTTL(2*time.Second))
	require.NoError(t, err)
	mu, err := session.Mutex(name)
	require.NoError(t, err)
	dead, err := etcdlockmigrate.New(w.open(t), mu, short)
	require.NoError(t, err)
	require.NoError(t, dead.Lock())
	held := mu.Context(context.Background())
	require.NoError(t, client.Close())

	next, err := etcdlockmigrate.New(w.open(t), contract.NewMutex(t, w.etcd.Client(t), name),
		time.Minute)
	require.NoError(t, err)
	m := newMigrate(t, next)
	m.LockTimeout = 2 * time.Minute
	require.NoError(t, m.Up())
	require.Error(t, held.Err())
	require.ErrorIs(t, dead.SetVersion(1, true), etcdlock.ErrLost)
	require.ErrorIs(t, dead.Close(), etcdlock.ErrLost)
}

// What a lock does for the third process if the second has given up its wait for the first.
func afterTheEndOfAWait(t *testing.T, newDriver func() database.Driver) error {
	first := newDriver()
	third := newMigrate(t, newDriver()) // closed after the second: the advisory lock's Close waits
	second := newMigrate(t, newDriver())
	require.NoError(t, first.Lock())
	require.Error(t, second.Up())
	require.NoError(t, first.Unlock())
	require.NoError(t, first.Close())
	return third.Up()
}

// golang-migrate's driver for PostgreSQL waits on for its advisory lock, gets it, and keeps it,
// until its process closes it.
func TestTheEndOfAWaitLeavesTheAdvisoryLockTaken(t *testing.T) {
	dsn := pgtest.Start(t).Database(t)
	err := afterTheEndOfAWait(t, func() database.Driver { return world{dsn: dsn}.open(t) })
	require.ErrorIs(t, err, migrate.ErrLockTimeout)
}

func TestTheEndOfAWaitLeavesTheLockFree(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, afterTheEndOfAWait(t, func() database.Driver { return w.driver(t) }))
}
