// Package side is one interface to the two libraries that the tests and the benchmarks
// compare: this one, and etcd's own package concurrency. The simulation (internal/sim), the
// fault table (internal/faults), the matrix of versions (internal/matrix) and the benchmark
// (internal/bench) say what happens to a lock, and this package says whose lock it is.
//
// It uses each side as a careful user would. What that takes beyond the library is here: a
// session of etcd's is made anew once it is lost, and [InTurn] makes the goroutines of a
// process wait for each other locally.
package side

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
)

// A Side is a library of locks.
type Side struct {
	Name string
	// Open makes the session of a process. It does no I/O. The options are for this library
	// only; the other side ignores them.
	Open func(client *clientv3.Client, ttl time.Duration, opts ...etcdlock.SessionOption) (Session,
		error)
	// Lost reports whether an Unlock said that the lock had been lost.
	Lost func(error) bool
}

// The sides.
var (
	Ours = Side{
		Name: "etcdlock", Open: openOurs,
		Lost: func(err error) bool { return errors.Is(err, etcdlock.ErrLost) },
	}
	// An Unlock that follows a Lock reports no loss by its error: ErrLockReleased only
	// means that there was no Lock.
	Theirs = Side{
		Name: "concurrency.Mutex", Open: openTheirs,
		Lost: func(err error) bool { return err != nil },
	}
)

// A Session is what the locks of a process share.
type Session interface {
	// Mutex returns a lock of that name.
	Mutex(name string) (Mutex, error)
	// RWMutex returns a read/write lock of that name.
	RWMutex(name string) (RWMutex, error)
	Close(ctx context.Context) error
}

// A Lock is what a lock of any kind does. *etcdlock.Mutex and *concurrency.Mutex are Locks as
// they are.
type Lock interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) error
	Unlock(ctx context.Context) error
}

// A Mutex is a Lock that says what it holds.
type Mutex interface {
	Lock
	// Hold is a context that ends when the current hold is over as far as the library
	// knows. A user watches it, and checks it before each step of the work.
	Hold() context.Context
	// Token grows with each hold.
	Token() int64
	// Key is the key of the hold, or of the place in line if that is known.
	Key() string
	// IsOwner is true in a transaction only while the hold's key exists.
	IsOwner() clientv3.Cmp
}

// An RWMutex is a read/write lock. Its own Mutex is the writer's side.
type RWMutex interface {
	Mutex
	// Reader returns a Mutex that reads, one read at a time. Others that read share what it
	// locks.
	Reader() Mutex
}

// Taken reports whether a TryLock said that another has the lock.
func Taken(err error) bool {
	return errors.Is(err, etcdlock.ErrLocked) || errors.Is(err, concurrency.ErrLocked)
}

// An OurMutex is a Mutex of this library.
type OurMutex struct{ *etcdlock.Mutex }

// Hold is the hold's own context.
func (m OurMutex) Hold() context.Context { return m.Context(context.Background()) }

type ourSession struct{ *etcdlock.Session }

// OurSession returns s as a Session of this library, for what the other side does not have.
// It is nil if s is not of this library.
func OurSession(s Session) *etcdlock.Session {
	ours, _ := s.(ourSession)
	return ours.Session
}

func openOurs(
	client *clientv3.Client, ttl time.Duration, opts ...etcdlock.SessionOption,
) (Session, error) {
	s, err := etcdlock.NewSession(client,
		append([]etcdlock.SessionOption{etcdlock.WithTTL(ttl)}, opts...)...)
	return ourSession{s}, err
}

func (s ourSession) Mutex(name string) (Mutex, error) {
	mu, err := s.Session.Mutex(name)
	return OurMutex{mu}, err
}
