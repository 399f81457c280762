package etcdlockgoose_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockgoose "github.com/etcdlock/etcdlock/adapters/goose"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// migrate applies what is pending, in one process at a time.
func migrate(
	ctx context.Context, session *etcdlock.Session, db *sql.DB, files fs.FS,
) error {
	mu, err := session.Mutex("migrations/shop", etcdlock.WithAcquireTimeout(time.Minute))
	if err != nil {
		return err
	}
	locker, err := etcdlockgoose.New(mu)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files,
		goose.WithLocker(locker))
	if err != nil {
		return err
	}
	results, err := etcdlockgoose.Do(ctx, provider.Up)
	for _, result := range results {
		fmt.Println(result.Direction, result.Source.Path)
	}
	return err
}

// The migrations of a program that starts.
func Example() {
	etcd, err := etcdlocktest.Start() // or clientv3.New
	contract.Must(err)
	defer etcd.Close()
	db, err := sql.Open("sqlite", "file:/example?vfs=memdb")
	contract.Must(err)
	defer db.Close()
	ctx := context.Background()
	session, err := etcdlock.NewSession(etcd.Client(), etcdlock.WithLogger(slog.Default()))
	contract.Must(err)
	defer session.Close(ctx)
	contract.Must(migrate(ctx, session, db, shop))
	// Output:
	// up 1_items.sql
	// up 2_price.sql
	// up 3_orders.sql
}
