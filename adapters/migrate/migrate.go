// Package etcdlockmigrate is a lock of etcd for golang-migrate, around a driver for any database:
// of all processes that start, one migrates at a time.
//
//	func migrateUp(s *etcdlock.Session, files source.Driver, db database.Driver) error {
//		mu, err := s.Mutex("migrations/shop")
//		if err != nil {
//			return err
//		}
//		locked, err := etcdlockmigrate.New(db, mu, 10*time.Second) // less than LockTimeout
//		if err != nil {
//			return err
//		}
//		m, err := migrate.NewWithInstance("files", files, "shop", locked)
//		if err != nil {
//			return err
//		}
//		return m.Up() // or migrate.ErrNoChange
//	}
//
// An Up costs what a Lock and an Unlock do: two requests if no other process waits, and once the
// grant of the lease.
package etcdlockmigrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4/database"

	"github.com/etcdlock/etcdlock"
)

var _ database.Driver = (*Driver)(nil)

// A Driver is the driver that it embeds, with another lock. That of the embedded one is not used
// (some take it once, by themselves, when they open the database).
//
// golang-migrate has no context that could end with a loss. So a loss makes Run, SetVersion and
// Drop fail, from then on until Unlock: the migration that runs goes on to its end, and no other
// begins. Their error is the cause of the context of [etcdlock.Mutex.Context], mostly an
// [*etcdlock.LostError]. golang-migrate then leaves the version dirty, as after any migration that
// has failed: another process may have got in meanwhile, and stops at that. Without a Lock nothing
// is checked.
//
// A Migrate whose Unlock has failed takes itself for locked: after a loss it answers
// migrate.ErrLocked to all that follows. Make a new one, of the same Driver.
//
// The methods of a Driver are safe for concurrent use as far as those of the embedded one are.
type Driver struct {
	database.Driver
	mu   *etcdlock.Mutex
	wait time.Duration

	closing context.Context // ends with Close
	close   context.CancelFunc

	state sync.Mutex      // guards what follows; nothing waits for etcd with it
	held  context.Context // ends with the hold; nil if Lock has not succeeded since the last Unlock
	locks sync.WaitGroup  // the Locks that are under way; after Close none is added
}

// New returns a Driver whose lock is mu, from [etcdlock.Session.Mutex] or [etcdlock.NewMutex]. The
// caller closes the Session, or mu, when the migrations are over. wait is how long a Lock waits at
// most. It has to be less than the LockTimeout of the Migrate, which is 15 s unless the program
// says otherwise: a Migrate whose time is over takes no notice of a lock that it gets later.
func New(driver database.Driver, mu *etcdlock.Mutex, wait time.Duration) (*Driver, error) {
	switch {
	case driver == nil:
		return nil, errors.New("etcdlockmigrate: nil database.Driver")
	case mu == nil:
		return nil, errors.New("etcdlockmigrate: nil Mutex")
	case wait < time.Millisecond:
		return nil, fmt.Errorf("etcdlockmigrate: wait %v is below 1ms: a plain number is nanoseconds",
			wait)
	}
	d := &Driver{Driver: driver, mu: mu, wait: wait}
	d.closing, d.close = context.WithCancel(context.Background())
	return d, nil
}

// Open opens the database by the embedded driver, and returns a Driver with the same lock.
func (d *Driver) Open(url string) (database.Driver, error) {
	driver, err := d.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return New(driver, d.mu, d.wait)
}

// Lock waits for the lock for the time given to [New], which begins with the call, however many
// Locks of this Driver wait. If another process holds it then, or this Driver does already, the
// error is database.ErrLocked. That of a wait is also [etcdlock.ErrLocked], and names the holder.
// After Close it is [etcdlock.ErrClosed]. The other errors are those of [etcdlock.Mutex.Lock].
// After an error the lock is not held.
func (d *Driver) Lock() error {
	ctx, cancel := context.WithTimeoutCause(d.closing, d.wait, fmt.Errorf(
		"the wait of the Driver, %v, is over: %w", d.wait, context.DeadlineExceeded))
	defer cancel()
	if err := d.begin(); err != nil {
		return err
	}
	defer d.locks.Done()
	switch err := d.mu.Lock(ctx); { // in turn, if several Locks of this Driver wait
	case err == nil:
	case d.closing.Err() != nil:
		return d.closed()
	case errors.Is(err, etcdlock.ErrLocked):
		return fmt.Errorf("%w: %w", database.ErrLocked, err)
	default:
		return err
	}
	d.state.Lock()
	defer d.state.Unlock()
	d.held = d.mu.Context(context.Background())
	return nil
}

// begin counts a Lock, or returns why it cannot begin.
func (d *Driver) begin() error {
	d.state.Lock()
	defer d.state.Unlock()
	switch {
	case d.closing.Err() != nil:
		return d.closed()
	case d.held != nil:
		return database.ErrLocked
	}
	d.locks.Add(1)
	return nil
}

func (d *Driver) closed() error {
	return fmt.Errorf("etcdlockmigrate: lock %q, whose Driver was closed: %w", d.mu.Name(),
		etcdlock.ErrClosed)
}

// Unlock releases the lock. It returns nil only if the lock was held without a break since the
// Lock, and database.ErrNotLocked without one. The other errors are those of
// [etcdlock.Mutex.Unlock], among them [etcdlock.ErrLost]; after each of them the Driver may be
// locked again. It takes at most the TTL or 5 s, whichever is less.
func (d *Driver) Unlock() error {
	d.state.Lock()
	held := d.held != nil
	d.held = nil // before the next Lock gets in
	d.state.Unlock()
	if !held {
		return database.ErrNotLocked
	}
	return d.mu.Unlock(context.Background())
}

// Close closes the embedded driver. It ends the Locks that wait, and unlocks if the Driver is
// locked. Lock fails from then on.
func (d *Driver) Close() error {
	d.state.Lock()
	d.close()
	d.state.Unlock()
	d.locks.Wait()
	err := d.Unlock()
	if errors.Is(err, database.ErrNotLocked) {
		return d.Driver.Close()
	}
	return errors.Join(err, d.Driver.Close())
}

// Run applies a migration by the embedded driver. If the lock was lost the migration is not begun.
// If it is lost while the migration runs, the error says so, joined to that of the migration.
func (d *Driver) Run(migration io.Reader) error {
	if err := d.lost(); err != nil {
		return err
	}
	err := d.Driver.Run(migration)
	if lost := d.lost(); lost != nil {
		return errors.Join(err, lost)
	}
	return err
}

// SetVersion notes the version by the embedded driver. If the lock was lost the version stays as it
// is.
func (d *Driver) SetVersion(version int, dirty bool) error {
	if err := d.lost(); err != nil {
		return err
	}
	return d.Driver.SetVersion(version, dirty)
}

// Drop deletes everything by the embedded driver. If the lock was lost everything stays as it is.
func (d *Driver) Drop() error {
	if err := d.lost(); err != nil {
		return err
	}
	return d.Driver.Drop()
}

// lost returns why the hold has ended, if it has ended before its Unlock.
func (d *Driver) lost() error {
	d.state.Lock()
	defer d.state.Unlock()
	if d.held == nil || d.held.Err() == nil {
		return nil
	}
	return fmt.Errorf("etcdlockmigrate: %w", context.Cause(d.held))
}
