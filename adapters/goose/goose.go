// Package etcdlockgoose is a lock of etcd for the migrations of goose, for any database that goose
// knows: of all processes that start, one migrates, and the others find nothing left to do.
//
//	func migrate(ctx context.Context, s *etcdlock.Session, db *sql.DB, files fs.FS) error {
//		mu, err := s.Mutex("migrations/shop", etcdlock.WithAcquireTimeout(time.Minute))
//		if err != nil {
//			return err
//		}
//		locker, err := etcdlockgoose.New(mu)
//		if err != nil {
//			return err
//		}
//		provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
//			goose.WithLocker(locker))
//		if err != nil {
//			return err
//		}
//		_, err = etcdlockgoose.Do(ctx, provider.Up) // not provider.Up(ctx): see Do
//		return err
//	}
//
// While etcd is away an Up with pending migrations waits: for a minute here, and for ever without
// [etcdlock.WithAcquireTimeout] if ctx has no end. A Session with [etcdlock.WithLogger] says why.
//
// An Up asks for the lock only if migrations are pending. So one that has nothing to do costs etcd
// nothing, and works without etcd. Otherwise it costs what a Lock and an Unlock do: two requests if
// no other process waits, and once the grant of the lease. goose's Status and GetDBVersion ask for
// the lock, too: call them by Do, or use GetVersions and HasPending, which do not.
package etcdlockgoose

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3/lock"

	"github.com/etcdlock/etcdlock"
)

var _ lock.Locker = (*Locker)(nil)

// A Locker is for goose.WithLocker. Providers of one process may share it, and its methods are safe
// for concurrent use.
type Locker struct {
	mu        *etcdlock.Mutex
	withoutDo bool
}

// An Option is for [New].
type Option func(*Locker)

// WithoutDo lets migrations run that are not called by [Do], as by a plain provider.Up(ctx). Then a
// loss of the lock ends nothing: the migrations go on without protection, and only the error at
// their end says so.
func WithoutDo() Option { return func(l *Locker) { l.withoutDo = true } }

// New returns a Locker whose lock is mu, from [etcdlock.Session.Mutex] or [etcdlock.NewMutex]. A
// nil mu or option is an error. The caller closes the Session, or mu, when the migrations are over.
// [etcdlock.WithAcquireTimeout] bounds the wait for the lock without bounding the migrations.
func New(mu *etcdlock.Mutex, opts ...Option) (*Locker, error) {
	if mu == nil {
		return nil, errors.New("etcdlockgoose: nil Mutex")
	}
	l := &Locker{mu: mu}
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("etcdlockgoose: option %d is nil", i+1)
		}
		opt(l)
	}
	return l, nil
}

// Lock waits for the lock until ctx ends, with the errors of [etcdlock.Mutex.Lock], and what is
// true after them. The hold outlives ctx. ctx comes from [Do], and the loss of the lock ends it. A
// ctx that does not is an error at once, unless the Locker was made [WithoutDo]. Lock does not use
// the database.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	end, within := ctx.Value(endKey{}).(context.CancelCauseFunc)
	if !within && !l.withoutDo {
		return fmt.Errorf("etcdlockgoose: lock %q: not called by etcdlockgoose.Do, "+
			"so a loss of the lock would not end the migrations (see WithoutDo)", l.mu.Name())
	}
	if err := l.mu.Lock(ctx); err != nil {
		return err
	}
	if within {
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
// goose gives a Locker no means to end the context of Up. So a plain provider.Up(ctx) with pending
// migrations is an error, before any of them has run; see [WithoutDo].
func Do[T any](ctx context.Context, fn func(ctx context.Context) (T, error)) (T, error) {
	if fn == nil {
		var none T
		return none, errors.New("etcdlockgoose: Do: nil function")
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	return fn(context.WithValue(ctx, endKey{}, end))
}
