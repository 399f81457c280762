package etcdlockgoose_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/pressly/goose/v3/lock/locktesting"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	_ "modernc.org/sqlite"

	"github.com/etcdlock/etcdlock"
	etcdlockgoose "github.com/etcdlock/etcdlock/adapters/goose"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

const name = "migrations/shop"

// shop are migrations of which each needs the one before.
var shop = fstest.MapFS{
	"1_items.sql":  {Data: []byte("-- +goose Up\nCREATE TABLE items (id INTEGER PRIMARY KEY);")},
	"2_price.sql":  {Data: []byte("-- +goose Up\nALTER TABLE items ADD COLUMN price INTEGER;")},
	"3_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (item INTEGER REFERENCES items);")},
}

// open opens the SQLite in memory of the test, once more at each call.
func open(t *testing.T) *sql.DB {
	db, err := sql.Open("sqlite",
		"file:/"+t.Name()+"?vfs=memdb&_txlock=immediate&_pragma=busy_timeout(60000)")
	require.NoError(t, err)
	require.NoError(t, db.Ping())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// newMutex returns the lock of another process, closed when t ends.
func newMutex(
	t *testing.T, client *clientv3.Client, opts ...etcdlock.SessionOption,
) *etcdlock.Mutex {
	return contract.NewMutex(t, client, name, opts...)
}

func newLocker(
	t *testing.T, mu *etcdlock.Mutex, opts ...etcdlockgoose.Option,
) *etcdlockgoose.Locker {
	l, err := etcdlockgoose.New(mu, opts...)
	require.NoError(t, err)
	return l
}

// newProvider returns a provider of another process: with a pool of its own.
func newProvider(t *testing.T, l lock.Locker, opts ...goose.ProviderOption) *goose.Provider {
	p, err := goose.NewProvider(goose.DialectSQLite3, open(t), shop,
		append(opts, goose.WithLocker(l), goose.WithDisableGlobalRegistry(true))...)
	require.NoError(t, err)
	return p
}

// goose's own suite, which knows nothing of Do, with a Session for each of its five processes, and
// with five lockers of one.
func TestTheSuiteOfGoose(t *testing.T) {
	for _, kind := range []struct {
		name    string
		mutexes func(*testing.T) func(*testing.T) *etcdlock.Mutex
	}{
		{"processes", func(t *testing.T) func(*testing.T) *etcdlock.Mutex {
			etcd := etcdlocktest.New(t)
			return func(t *testing.T) *etcdlock.Mutex { return newMutex(t, etcd.Client()) }
		}},
		{"one session", func(t *testing.T) func(*testing.T) *etcdlock.Mutex {
			s := contract.NewSession(t, etcdlocktest.New(t).Client())
			return func(t *testing.T) *etcdlock.Mutex {
				return contract.MutexOf(t, s, name)
			}
		}},
		{"one locker", func(t *testing.T) func(*testing.T) *etcdlock.Mutex {
			mu := newMutex(t, etcdlocktest.New(t).Client())
			return func(t *testing.T) *etcdlock.Mutex { return mu }
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Run("providers", func(t *testing.T) {
				newMutex := kind.mutexes(t)
				locktesting.TestProviderLocking(t, func(t *testing.T) *goose.Provider {
					return newProvider(t, newLocker(t, newMutex(t), etcdlockgoose.WithoutDo()))
				})
			})
			t.Run("lockers", func(t *testing.T) {
				newMutex := kind.mutexes(t)
				locktesting.TestConcurrentLocking(t, nil, func(t *testing.T) lock.Locker {
					return newLocker(t, newMutex(t), etcdlockgoose.WithoutDo())
				}, 300*time.Millisecond)
			})
		})
	}
}

// A Go migration loses the lock after a write of its own, and goes on as if it had not been told.
func TestALossEndsTheContextRollsTheMigrationBackAndBeginsNoOther(t *testing.T) {
	etcd := etcdlocktest.New(t)
	mu := newMutex(t, etcd.Client())
	var why error
	p := newProvider(t, newLocker(t, mu), goose.WithGoMigrations(goose.NewGoMigration(2_1,
		&goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO items (id) VALUES (7)"); err != nil {
				return err
			}
			etcd.Delete(mu.Key()) // as an operator does
			<-ctx.Done()
			why = context.Cause(ctx)
			return nil
		}}, nil)))
	results, err := etcdlockgoose.Do(t.Context(), p.Up)

	require.ErrorIs(t, why, etcdlock.ErrLost)
	require.Empty(t, results)
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.ErrorIs(t, err, etcdlock.ErrKeyDeleted)
	partial, failed := errors.AsType[*goose.PartialError](err)
	require.True(t, failed, "%v", err)
	require.Len(t, partial.Applied, 3)
	version, _, err := p.GetVersions(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, version)
	require.Zero(t, count(t, open(t), "items"))
}

// The holder is cut off. Its context ends before etcd gives the lock to another process.
func TestTheContextEndsBeforeAnotherProcessGetsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		holder, other := newLocker(t, newMutex(t, client)),
			newLocker(t, newMutex(t, etcd.Client()), etcdlockgoose.WithoutDo())
		_, err := etcdlockgoose.Do(t.Context(), func(ctx context.Context) (any, error) {
			require.NoError(t, holder.Lock(ctx, nil))
			defer etcd.Cut(client)()
			require.NoError(t, other.Lock(t.Context(), nil))
			require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrExpired)
			require.NoError(t, other.Unlock(t.Context(), nil))
			return nil, holder.Unlock(context.WithoutCancel(ctx), nil)
		})
		require.ErrorIs(t, err, etcdlock.ErrLost)
	})
}

// Without Do goose cannot learn of a loss before the end, so no migration runs. Of what only reads,
// goose's Status and GetDBVersion ask for the lock, too, and HasPending and GetVersions do not.
func TestWithoutDoNoMigrationRuns(t *testing.T) {
	etcd := etcdlocktest.New(t)
	p := newProvider(t, newLocker(t, newMutex(t, etcd.Client())))
	before := etcd.Counts()
	results, err := p.Up(t.Context())
	const says = `lock "migrations/shop": not called by etcdlockgoose.Do`
	require.ErrorContains(t, err, says)
	require.Empty(t, results)
	_, err = p.Status(t.Context())
	require.ErrorContains(t, err, says)
	_, err = p.GetDBVersion(t.Context())
	require.ErrorContains(t, err, says)
	current, target, err := p.GetVersions(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 0, current)
	require.EqualValues(t, 3, target)
	require.Equal(t, before, etcd.Counts())

	results, err = etcdlockgoose.Do(t.Context(), p.Up)
	require.NoError(t, err)
	require.Len(t, results, 3)
	results, err = p.Up(t.Context())
	require.NoError(t, err, "nothing is pending, so goose asks for no lock")
	require.Empty(t, results)
}

func TestWithoutDoTheMigrationsGoOnIfTheyMay(t *testing.T) {
	etcd := etcdlocktest.New(t)
	mu := newMutex(t, etcd.Client())
	p := newProvider(t, newLocker(t, mu, etcdlockgoose.WithoutDo()),
		goose.WithGoMigrations(goose.NewGoMigration(1_1,
			&goose.GoFunc{RunTx: func(ctx context.Context, _ *sql.Tx) error {
				held := mu.Context(context.Background())
				etcd.Delete(mu.Key())
				<-held.Done()
				return ctx.Err()
			}}, nil)))
	results, err := p.Up(t.Context())
	require.ErrorIs(t, err, etcdlock.ErrLost)
	require.Len(t, results, 4)
}

// The program of the documentation starts while etcd is away. Its log says so, and it ends.
func TestMigrationsThatWaitForEtcdSaySoAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		var log strings.Builder // written to by one goroutine of the Session
		session, err := etcdlock.NewSession(etcd.Client(),
			etcdlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, session.Close(context.Background())) })
		db := open(t)
		thaw := etcd.Freeze()
		over := contract.Async(func() error { return migrate(t.Context(), session, db, shop) })
		time.Sleep(2 * time.Minute)
		require.Len(t, over, 1, "it waits yet")
		err = <-over
		require.ErrorIs(t, err, etcdlock.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Contains(t, log.String(), "etcdlock: etcd does not answer")
		thaw()
		require.NoError(t, migrate(t.Context(), session, db, shop))
	})
}

func TestTheUnlockDoesNotEndTheContextOfDo(t *testing.T) {
	p := newProvider(t, newLocker(t, newMutex(t, etcdlocktest.New(t).Client())))
	results, err := etcdlockgoose.Do(t.Context(),
		func(ctx context.Context) (all []*goose.MigrationResult, _ error) {
			for range shop {
				result, err := p.UpByOne(ctx)
				if err != nil {
					return nil, err
				}
				all = append(all, result)
			}
			return all, ctx.Err()
		})
	require.NoError(t, err)
	require.Len(t, results, 3)
}

func TestTheEndOfTheContextBoundsTheWait(t *testing.T) {
	etcd := etcdlocktest.New(t)
	holder := newMutex(t, etcd.Client())
	require.NoError(t, holder.Lock(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	p := newProvider(t,
		newLocker(t, newMutex(t, etcd.Client(), etcdlock.WithTrace(&etcdlock.Trace{
			Queued: func(context.Context, etcdlock.QueuedEvent) { cancel() },
		}))))
	results, err := etcdlockgoose.Do(ctx, p.Up)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	require.Empty(t, results)
	require.NoError(t, holder.Unlock(t.Context()))
	require.NoError(t, holder.Lock(t.Context()), "nothing was left in its way")
	require.NoError(t, holder.Unlock(t.Context()))
}

// The first Lock also has the lease granted, and looks at etcd's cluster.
func TestAMigrationCostsTwoRequestsAndNothingToDoCostsNone(t *testing.T) {
	etcd := etcdlocktest.New(t)
	p := newProvider(t, newLocker(t, newMutex(t, etcd.Client())))
	requests := func() int {
		n := etcd.Counts()
		return n.Range + n.Put + n.DeleteRange + n.Txn + n.LeaseGrant + n.LeaseRevoke + n.LeaseTimeToLive
	}
	_, err := etcdlockgoose.Do(t.Context(), p.UpByOne)
	require.NoError(t, err)
	before := requests()
	_, err = etcdlockgoose.Do(t.Context(), p.Up)
	require.NoError(t, err)
	require.Equal(t, 2, requests()-before)
	before = requests()
	_, err = p.Up(t.Context())
	require.NoError(t, err)
	require.Zero(t, requests()-before)
}

func TestMistakesAreErrors(t *testing.T) {
	etcd := etcdlocktest.New(t)
	l := newLocker(t, newMutex(t, etcd.Client()))
	require.ErrorIs(t, l.Unlock(t.Context(), nil), etcdlock.ErrNotHeld)
	none, err := etcdlockgoose.New(nil)
	require.EqualError(t, err, "etcdlockgoose: nil Mutex")
	require.Nil(t, none)
	_, err = etcdlockgoose.New(newMutex(t, etcd.Client()), etcdlockgoose.WithoutDo(), nil)
	require.EqualError(t, err, "etcdlockgoose: option 2 is nil")
	_, err = etcdlockgoose.Do[any](t.Context(), nil)
	require.ErrorContains(t, err, "nil function")
}

func count(t *testing.T, db *sql.DB, table string) (n int) {
	require.NoError(t, db.QueryRow("SELECT count(*) FROM "+table).Scan(&n))
	return n
}
