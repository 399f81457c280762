// Package concurrency has etcd's names for locks, over etcdlock. A program that locks with
// go.etcd.io/etcd/client/v3/concurrency changes its import, one line, and keeps its code:
//
//	import "github.com/etcdlock/etcdlock/concurrency"
//
// Locks of both packages exclude each other, in one line, first come, first served. So a fleet
// moves process by process, and back. New code uses package etcdlock: it gives the holder a
// context, tells waiters the holder, and does more. docs/migrating.md goes on from here.
//
// # The same
//
//   - Names and signatures. A prefix names the same lock, also if it ends with a slash.
//   - NewSession gets a lease, of 60 s by default, or takes that of [WithLease].
//   - Keys of your own on [Session.Lease] live as long as the Session. The lock's key is on that
//     lease, too: a program may put a value over it.
//   - [ErrLocked], [ErrLockReleased], the [ErrSessionExpired] of a Lock and the Err of a context
//     that has ended are returned as they are, and can be compared by ==.
//   - The revision of [Mutex.Header] has all writes of earlier holders.
//   - A copy of a Mutex is the same Mutex.
//
// # Better
//
//   - [Session.Done] closes a safety margin before etcd may let the lease expire; etcd's closes up
//     to a second after that. It also closes when a lock is lost otherwise: when an operator
//     deletes its key, for instance. context.Cause of [Session.Ctx] says why.
//   - [Mutex.Unlock] says if the lock was lost, and works with a context that has ended.
//   - Goroutines exclude each other, on one Mutex and on several of one Session. With etcd's
//     package all of them get in.
//   - [Mutex.TryLock] of a lock that is taken puts no key. A Lock that fails leaves none.
//   - A Lock that waits returns when its Session ends, and not only when its turn comes.
//
// # Different
//
//   - A Mutex that is locked cannot be locked again: Lock waits, and TryLock returns ErrLocked.
//     With etcd's package both return nil. A loop that asks TryLock whether it still leads must
//     look at Session.Done.
//   - While etcd is away Lock waits, until its context or the Session ends, and NewSession for 5 s.
//     etcd's mostly fail at once.
//   - After Done is closed each Lock returns ErrSessionExpired. Locks that are held then are
//     renewed no more, as with etcd's package: unlock them, or they expire. Some may be whole, so
//     the error of their Unlock may be nil.
//   - A lock's key is prefix/<uuid>, not prefix/<lease>. [Mutex.Key] is empty without a lock.
//   - If Unlock returns etcdlock.ErrUnconfirmed, the release goes on: do not call Unlock again.
//     After Close it returns ErrLockReleased, where etcd's returns nil.
//   - After a Lock whose answer from etcd was lost, later locks are on another lease. A value that
//     is put over their key with Session.Lease then ends the Session.
//   - Not kept: a Session does not take over locks that etcd's package holds on its lease
//     ([WithLease]), and locks nothing after [Session.Orphan]. Lock returns an error that says what
//     to do. So the lock service of an etcd server, which locks for others on their leases, stays
//     with etcd's package.
//
// # Elections and transactions
//
// [Election] and [STM] are etcd's own, since they are no locks. [NewElection] takes a Session of
// this package, or one of etcd's. With one of this package the leader's key is on its lease, and
// Done tells the leader in time.
//
// What else takes a Session of etcd's package, such as its recipes, needs one. Make it beside the
// Session of this package, on a lease of its own: each Close revokes its lease.
package concurrency
