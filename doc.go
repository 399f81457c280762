// Package etcdlock is a distributed mutex backed by etcd: only one process at a time, on any
// machine, does the protected work.
//
//	func charge(ctx context.Context, session *etcdlock.Session, order string) error {
//		ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // for the wait and the work
//		defer cancel()
//		return session.Do(ctx, "orders/"+order, func(ctx context.Context) error {
//			return writeOrder(ctx) // ctx ends if the lock is lost
//		})
//	}
//
// A process makes one [Session], with [NewSession], and closes it at the end. A [Mutex] from
// [NewMutex] has one name and a lease of its own. See the package example for a whole program.
//
// # What is guaranteed
//
// At most one Mutex holds a name at a time. The context of a hold is cancelled before its lease can
// expire, and before this package releases the lock. Unlock tells the truth: nil means that the
// lock was held without a break until this call, and a loss is a [*LostError] that says why. The
// key of a call that has failed is removed, or goes with its lease. A call returns when its context
// ends, Unlock at most 5 s later. A Mutex stays usable after an outage; if a connection dies
// silently, its client needs keepalive pings. While etcd does not answer, a wait says so
// ([ErrUnavailable], [WithLogger]).
//
// # What is not
//
// A process may be paused between its check of the context and its write, for longer than the TTL.
// No lock can prevent that write; a fencing token can. It grows with each new key of a name:
// [TokenFrom] in a Do, or [Mutex.Token]. Send it along with each write, and with each read on which
// a write depends. Let the resource refuse 0, and a token lower than the highest it has seen. For
// writes to etcd, put [Mutex.IsOwner] in the If of the transaction.
//
// If an operator takes the key away ([Break], a revoked lease), only the token protects until the
// holder learns it. So it is if a leader of etcd that was stopped ends a lease (docs/promises.md).
// [Recall] gets a lock back from a living holder without such an overlap.
//
// When etcd is restored or wiped, tokens may start again. A Session that notices this begins no
// hold before each older one must have ended; [WithRestoreDelay] has what is not covered, and
// docs/runbook.md how to restore.
//
// # Time
//
// etcd alone decides which contender holds the lock. The local clock only decides how long a holder
// may believe it:
//
//	trustedUntil = attemptStarted + grantedTTL - margin
//
// Here:
//
//   - attemptStarted is when the last acknowledged grant or renewal was sent, not when its answer
//     came: etcd starts to count at some time in between. It is read from the monotonic clock. If
//     the wall clock jumps forward by more than what remains, the holds end, too: the machine may
//     have been suspended.
//   - grantedTTL is what etcd granted, which may be more than was asked for.
//   - margin covers clocks that run at different rates during the TTL, and gives the critical
//     section time to stop: by default an eighth of the TTL, and at least 100 ms.
//
// At trustedUntil a timer ends the hold. Each check also compares the clock: if the process was
// paused and the timer has not run yet, the check finds that the hold has ended. A late answer
// revives nothing. See docs/ttl.md.
//
// # Waiting
//
//	free ─Lock──▶ local line ──▶ etcd's line ──▶ held ──Unlock──▶ free
//	              goroutines     put name/uuid     │
//	              of a Session   wait until no     ├─ lease expired, key deleted: ErrLost
//	                             key is before     ├─ WithMaxHold: ErrMaxHold
//	                             it                └─ Close: ErrClosed
//
// First come, first served. A contender is a key name/<UUID> with a lease, or name/<lease in
// hexadecimal>. etcd's concurrency.Mutex, etcdctl lock and the server's lock service put the second
// form: they and this package exclude each other. Other keys below name/ block only
// concurrency.Mutex: do not nest names while both are in use.
//
// # Cost
//
// With a lease, an uncontended Lock is one request and one Raft entry, and so is Unlock. TryLock of
// a taken name is one read, or nothing if the same Session holds it. A hand-over is the release and
// one event. A [Session] costs one renewal per third of the TTL, for any number of names. See
// docs/performance.md.
//
// # Panics
//
// If an interceptor, credentials, or a wrapped KV, Lease or Watcher panics or calls runtime.Goexit,
// each call that waits for that request does the same, and leaves nothing behind that blocks
// others. Where no call waits, the request is sent again. (What opens the stream of watches is in
// clientv3's goroutine, and ends the process.) Calls wait for such code that ignores its context.
//
// The modules etcdlockprom and etcdlockotel turn a [Trace] into metrics and spans. Package
// etcdlocktest is an etcd in memory for tests. docs/cookbook.md has recipes.
package etcdlock
