// Package etcdlockgoose is a lock of etcd for the migrations of goose, for any database that goose
// knows: of all processes that start, one migrates, and the others find nothing left to do.
//
//	func migrate(ctx context.Context, s *etcdlock.Session, db *sql.DB, files fs.FS) error {
//		mu, err := s.Mutex("migrations/shop")
//		if err != nil {
//			return err
//		}
//		provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
//			goose.WithLocker(etcdlockgoose.New(mu)))
//		if err != nil {
//			return err
//		}
//		_, err = etcdlockgoose.Do(ctx, provider.Up) // not provider.Up(ctx): see Do
//		return err
//	}
//
// goose asks for the lock only if migrations are pending. So an Up that has nothing to do costs
// etcd nothing, and works without etcd. Otherwise it costs what a Lock and an Unlock do: two
// requests if no other process waits, and once the grant of the lease.
package etcdlockgoose

import (
	"context"
	"database/sql"
	"errors"

	"github.com/pressly/goose/v3/lock"

	"github.com/etcdlock/etcdlock"
)

var _ lock.Locker = (*Locker)(nil)

// A Locker is for goose.WithLocker. Providers of one process may share it, and its methods are safe
// for concurrent use.
type Locker struct{ mu *etcdlock.Mutex }

// New returns a Locker whose lock is mu, from [etcdlock.Session.Mutex] or [etcdlock.New]. The
// caller closes the Session, or mu, when the migrations are over. [etcdlock.WithAcquireTimeout]
// bounds the wait for the lock without bounding the migrations.
func New(mu *etcdlock.Mutex) *Locker { return &Locker{mu} }

// Lock waits for the lock until ctx ends, with the errors of [etcdlock.Mutex.Lock]; after each of
// them nothing is left behind. The hold outlives ctx. If ctx comes from [Do], the loss of the lock
// ends it. Lock does not use the database.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	if err := l.mu.Lock(ctx); err != nil {
		return err
	}
	if end, ok := ctx.Value(endKey{}).(context.CancelCauseFunc); ok {
		held := l.mu.Context(ctx)
		// It ends with the hold, at the latest at the Unlock. The work may go on after that one.
		context.AfterFunc(held, func() {
			if why := context.Cause(held); !errors.Is(why, etcdlock.ErrUnlocked) {
				end(why)
			}
		})
	}
	return nil
}

// Unlock releases the lock. It returns nil only if the lock was held without a break since the
// Lock. The other errors are those of [etcdlock.Mutex.Unlock], among them [etcdlock.ErrLost]: goose
// joins them to its own, also to those of migrations that have succeeded. A ctx that never ends,
// such as goose's, is bounded by the TTL or 5 s, whichever is less.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error { return l.mu.Unlock(ctx) }

// endKey is the key of the function that ends the context of a Do.
type endKey struct{}

// Do calls fn with a context that comes from ctx and also ends if a [Locker] that was locked with
// it loses its lock. [context.Cause] is then the reason, such as an [*etcdlock.LostError]. fn is a
// method of a goose.Provider (Up, UpByOne, Down), or a function that calls some:
//
//	results, err := etcdlockgoose.Do(ctx, provider.Up)
//
// The end of the context interrupts the statement that runs, if the driver of the database can do
// that, rolls back the transaction of the migration, and keeps goose from the next migration. The
// error of Up is then [etcdlock.ErrLost]. Of a migration without a transaction the statements that
// have run stay, as after any other error.
//
// goose gives a Locker no means to end the context of Up. So after a plain provider.Up(ctx) a loss
// ends nothing: the migrations go on without protection, and the error of Up says so at the end.
func Do[T any](ctx context.Context, fn func(ctx context.Context) (T, error)) (T, error) {
	if fn == nil {
		var none T
		return none, errors.New("etcdlockgoose: Do: nil function")
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	return fn(context.WithValue(ctx, endKey{}, end))
}
