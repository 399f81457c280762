package etcdlockmigrate_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/etcdlock/etcdlock"
	etcdlockmigrate "github.com/etcdlock/etcdlock/adapters/migrate"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// migrateUp applies what is pending, in one process at a time.
func migrateUp(s *etcdlock.Session, files source.Driver, db database.Driver) error {
	mu, err := s.Mutex("migrations/shop")
	if err != nil {
		return err
	}
	locked, err := etcdlockmigrate.New(db, mu, 10*time.Second) // less than LockTimeout
	if err != nil {
		return err
	}
	m, err := migrate.NewWithInstance("files", files, "shop", locked)
	if err != nil {
		return err
	}
	return m.Up() // or migrate.ErrNoChange
}

// The migrations of a program that starts.
func Example() {
	etcd, err := etcdlocktest.Start() // or clientv3.New
	contract.Must(err)
	defer etcd.Close()
	db, err := sql.Open("sqlite", "file:/example?vfs=memdb")
	contract.Must(err)
	driver, err := sqlite.WithInstance(db, &sqlite.Config{})
	contract.Must(err)
	defer driver.Close()
	files, err := iofs.New(shop, ".")
	contract.Must(err)
	session, err := etcdlock.NewSession(etcd.Client())
	contract.Must(err)
	defer session.Close(context.Background())
	contract.Must(migrateUp(session, files, driver))
	fmt.Println(driver.Version())
	// Output: 2 false <nil>
}
