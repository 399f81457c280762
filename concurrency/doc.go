// Package concurrency has etcd's names for locks, over etcdlock. A program that locks with
// go.etcd.io/etcd/client/v3/concurrency changes one line, the import, and keeps its code:
//
//	import "github.com/etcdlock/etcdlock/concurrency"
//
// Both put their keys below the same prefix, in one line, so processes with the old import and with
// the new one exclude each other on the same name, in both directions. A fleet moves process by
// process. New code uses etcdlock itself, which also gives the holder a context, names the holder
// to the waiters, and has what etcd's package has no names for. docs/migrating.md goes on.
//
// # The same
//
//   - names and signatures; the lock that a prefix names, also one that ends with a slash
//   - NewSession asks etcd for a lease, of 60 s by default, or uses that of [WithLease]
//   - the keys that you put with [Session.Lease] live until the Session ends, and that may be the
//     key of a lock, for a value of your own: it is on that lease
//   - the errors: [ErrLocked], [ErrSessionExpired], [ErrLockReleased] and the error of a context that
//     has ended come as they are, for a comparison by ==
//   - [Mutex.Header] has a revision that contains all that earlier holders have written
//   - a copy of a Mutex is the same Mutex
//
// # Better
//
//   - [Session.Done] closes, and [Session.Ctx] ends, when the lease can no longer be trusted: a safety
//     margin before etcd may let it expire. etcd's closes up to a second after that. Done also closes
//     once a lock of the Session is lost otherwise, as when an operator deletes its key.
//     context.Cause of Ctx says why.
//   - [Mutex.Unlock] says if the lock was lost, by an error that is ErrSessionExpired and
//     etcdlock.ErrLost. It works with a context that has ended.
//   - Goroutines exclude each other, on one Mutex and on several of one Session. With etcd's all of
//     them get in.
//   - [Mutex.TryLock] of a lock that is taken puts no key. A Lock that fails leaves none.
//   - A Lock that waits returns at once when its Session ends, and not when its turn comes.
//
// # Different
//
//   - Lock of a Mutex that is locked waits, and TryLock returns ErrLocked, also if the same goroutine
//     has locked it. With etcd's both return nil. A loop that calls TryLock to see if it still leads
//     looks at Session.Done instead.
//   - While etcd does not answer Lock waits, until its context or the Session ends. NewSession waits
//     for 5 s. With etcd's both may fail at once.
//   - Once Done is closed, Lock returns ErrSessionExpired. Locks that are held then are not renewed any
//     more, as with etcd's: unlock them, or they expire.
//   - The key of a lock is prefix/<uuid> and not prefix/<lease>. [Mutex.Key] is empty without a lock.
//   - If the answer to a request of a Lock was lost, the locks after it are on a lease of their own.
//     Then a value that is put over a key, with Session.Lease, ends the Session.
//   - The sum of Unlock, after an answer that etcd did not give in time, is etcdlock.ErrUnconfirmed:
//     the release goes on in the background, and need not be called again.
//   - WithLease takes a lease over, and not the locks on it: Lock returns an error if there is a key of
//     etcd's package for the lock and this lease. Delete it, or use another lease. After
//     [Session.Orphan] nothing is locked: the lock service of an etcd server, which locks for others
//     on their leases, cannot be moved.
//
// # Elections and transactions
//
// [Election] and [STM] are etcd's own types: they are no locks. [NewElection] takes a Session of
// this package, whose lease then has the leader's key and whose Done tells the leader in time, or
// one of etcd's. Other parts of etcd's client that take etcd's Session, as its recipes do, need
// that: make one beside this, on a lease of its own. Do not give both one lease, except for an
// Election: the Close of one revokes it for both.
package concurrency
