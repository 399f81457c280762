// Package goose_test runs adapters/goose on etcd's own server and on PostgreSQL, and beside it the
// lockers that goose has of its own.
package goose_test

import (
	"context"
	"database/sql"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/pressly/goose/v3/lock/locktesting"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockgoose "github.com/etcdlock/etcdlock/adapters/goose"
	"github.com/etcdlock/etcdlock/internal/adapters/pgtest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

const (
	name     = "migrations/shop"
	patience = time.Minute // for what happens soon on a machine that is not busy
)

// shop are migrations of which each needs the one before.
var shop = fstest.MapFS{
	"1_items.sql":  {Data: []byte("-- +goose Up\nCREATE TABLE items (id INTEGER PRIMARY KEY);")},
	"2_price.sql":  {Data: []byte("-- +goose Up\nALTER TABLE items ADD COLUMN price INTEGER;")},
	"3_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (item INTEGER REFERENCES items);")},
}

func newProvider(t *testing.T, db *sql.DB, files fstest.MapFS, opts ...goose.ProviderOption,
) *goose.Provider {
	p, err := goose.NewProvider(goose.DialectPostgres, db, files,
		append(opts, goose.WithDisableGlobalRegistry(true))...)
	require.NoError(t, err)
	return p
}

// newLocker returns a locker that also serves calls of goose that are not called by Do.
func newLocker(t *testing.T, mu *etcdlock.Mutex) *etcdlockgoose.Locker {
	l, err := etcdlockgoose.New(mu, etcdlockgoose.WithoutDo())
	require.NoError(t, err)
	return l
}

// goose's own suite.
func TestTheSuiteOfGoose(t *testing.T) {
	etcd, postgres := etcdtest.Start(t, 1), pgtest.Start(t)
	newLocker := func(t *testing.T) lock.Locker {
		return newLocker(t, contract.NewMutex(t, etcd.Client(t), name))
	}
	t.Run("providers", func(t *testing.T) {
		dsn := postgres.Database(t)
		locktesting.TestProviderLocking(t, func(t *testing.T) *goose.Provider {
			return newProvider(t, pgtest.Open(t, dsn), shop, goose.WithLocker(newLocker(t)))
		})
	})
	t.Run("lockers", func(t *testing.T) {
		locktesting.TestConcurrentLocking(t, nil, newLocker, time.Second)
	})
}

// The statement of the second migration takes ten minutes. Meanwhile an operator deletes the key.
func TestALossInterruptsTheStatement(t *testing.T) {
	etcd, dsn := etcdtest.Start(t, 1), pgtest.Start(t).Database(t)
	client := etcd.Client(t)
	mu := contract.NewMutex(t, client, name)
	p := newProvider(t, pgtest.Open(t, dsn), fstest.MapFS{
		"1_items.sql": shop["1_items.sql"],
		"2_slow.sql": {Data: []byte("-- +goose Up\n" +
			"ALTER TABLE items ADD COLUMN price INTEGER;\nSELECT pg_sleep(600);")},
		"3_orders.sql": shop["3_orders.sql"],
	}, goose.WithLocker(newLocker(t, mu)))
	other := pgtest.Open(t, dsn)
	go func() {
		if assert.Eventually(t, func() bool {
			return ask[bool](t, other, "SELECT count(*) > 0 "+
				"FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600);' AND state = 'active'")
		},
			patience, 10*time.Millisecond) {
			_, err := client.Delete(t.Context(), mu.Key())
			assert.NoError(t, err)
		}
	}()
	_, err := etcdlockgoose.Do(t.Context(), p.Up)

	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.ErrorIs(t, err, etcdlock.ErrKeyDeleted)
	version, err := p.GetDBVersion(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, version)
	require.Zero(t, ask[int](t, other, "SELECT count(*) FROM information_schema.columns "+
		"WHERE table_name = 'items' AND column_name = 'price'"))
}

func ask[T any](t *testing.T, db *sql.DB, query string) (answer T) {
	assert.NoError(t, db.QueryRow(query).Scan(&answer))
	return answer
}

// goose's table locker keeps its row alive until the context of Lock ends, and not until Unlock.
func TestTheEndOfTheContextOfLockLetsTwoIntoTheTableLocker(t *testing.T) {
	db := pgtest.Open(t, pgtest.Start(t).Database(t))
	newLocker := func() lock.Locker {
		l, err := lock.NewPostgresTableLocker(
			lock.WithTableLeaseDuration(time.Second),
			lock.WithTableHeartbeatInterval(100*time.Millisecond),
			lock.WithTableLockTimeout(100*time.Millisecond, 600),
		)
		require.NoError(t, err)
		return l
	}
	holder := newLocker()
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, holder.Lock(ctx, db))
	short, done := context.WithTimeout(t.Context(), 3*time.Second)
	defer done()
	require.Error(t, newLocker().Lock(short, db), "it is kept alive at first")
	cancel()

	second := newLocker()
	require.NoError(t, second.Lock(t.Context(), db), "the holder has not unlocked")
	require.NoError(t, second.Unlock(t.Context(), db))
}

func TestTheEndOfTheContextOfLockLetsNobodyIn(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	newLocker := func() lock.Locker {
		return newLocker(t, contract.NewMutex(t, etcd.Client(t), name,
			etcdlock.WithTTL(2*time.Second)))
	}
	holder := newLocker()
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, holder.Lock(ctx, nil))
	cancel()

	short, done := context.WithTimeout(t.Context(), 6*time.Second) // three TTLs
	defer done()
	require.ErrorIs(t, newLocker().Lock(short, nil), etcdlock.ErrLocked)
	require.NoError(t, holder.Unlock(t.Context(), nil))
}

// slow is a migration without a transaction, which says that it runs and does so until finish is
// closed.
func slow(runs chan<- context.Context, finish <-chan struct{}) goose.ProviderOption {
	return goose.WithGoMigrations(goose.NewGoMigration(4, &goose.GoFunc{
		RunDB: func(ctx context.Context, _ *sql.DB) error {
			runs <- ctx
			<-finish
			return nil
		},
	}, nil))
}

// disconnect ends the connections of all but db.
func disconnect(t *testing.T, db *sql.DB) {
	ask[int](t, db, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "+
		"WHERE datname = current_database() AND pid <> pg_backend_pid()")
}

// PostgreSQL ends the connection that has the lock of goose's session locker, as a failover does.
func TestTheEndOfItsConnectionLetsTwoIntoTheSessionLocker(t *testing.T) {
	dsn := pgtest.Start(t).Database(t)
	runs, finish, ended := make(chan context.Context, 2), make(chan struct{}), make(chan error, 2)
	up := func() {
		l, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60), lock.WithUnlockTimeout(1, 1))
		require.NoError(t, err)
		p := newProvider(t, pgtest.Open(t, dsn), shop, goose.WithSessionLocker(l), slow(runs, finish))
		go func() {
			_, err := p.Up(t.Context())
			ended <- err
		}()
	}
	up()
	first := <-runs
	disconnect(t, pgtest.Open(t, dsn))
	up()
	<-runs
	require.NoError(t, first.Err(), "the first runs, and was not told")
	close(finish)
	<-ended
	<-ended
}

func TestTheEndOfAConnectionLetsNobodyIn(t *testing.T) {
	etcd, dsn := etcdtest.Start(t, 1), pgtest.Start(t).Database(t)
	runs, finish, ended := make(chan context.Context, 2), make(chan struct{}), make(chan error, 1)
	newUp := func(opts ...etcdlock.SessionOption) *goose.Provider {
		return newProvider(t, pgtest.Open(t, dsn), shop, slow(runs, finish),
			goose.WithLocker(newLocker(t, contract.NewMutex(t, etcd.Client(t), name, opts...))))
	}
	first := newUp()
	go func() {
		_, err := etcdlockgoose.Do(t.Context(), first.Up)
		ended <- err
	}()
	ctx := <-runs
	disconnect(t, pgtest.Open(t, dsn))
	_, err := newUp(etcdlock.WithAcquireTimeout(3 * time.Second)).Up(t.Context())
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.NoError(t, ctx.Err())
	require.Empty(t, runs)
	close(finish)
	require.NotErrorIs(t, <-ended, etcdlock.ErrLost)
}

// PostgreSQL looks whether a client is still there if the client's DSN says so. Otherwise the
// statement of a process that was killed goes on.
func TestTheStatementOfAClientThatIsGoneEndsIfPostgresLooks(t *testing.T) {
	dsn := pgtest.Start(t).Database(t)
	db := pgtest.Open(t, dsn)
	runs := func(name string) bool {
		return ask[bool](t, db, "SELECT count(*) > 0 FROM pg_stat_activity "+
			"WHERE state = 'active' AND application_name = '"+name+"'")
	}
	gone := func(name, dsn string) {
		conn, err := pgx.Connect(t.Context(), dsn+" application_name="+name)
		require.NoError(t, err)
		frontend := conn.PgConn().Frontend()
		frontend.SendQuery(&pgproto3.Query{String: "SELECT pg_sleep(600)"})
		require.NoError(t, frontend.Flush())
		require.Eventually(t, func() bool { return runs(name) }, patience, 10*time.Millisecond)
		require.NoError(t, conn.PgConn().Conn().Close()) // as the kernel does for a dead process
	}
	gone("unseen", dsn)
	gone("seen", dsn+" client_connection_check_interval=1s")
	start := time.Now()
	require.Eventually(t, func() bool { return !runs("seen") }, patience, 10*time.Millisecond)
	t.Log("the statement of the client that is gone went on for", time.Since(start))
	require.True(t, runs("unseen"))
}
