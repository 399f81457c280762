// Package etcdlock is a distributed mutex backed by etcd: only one process at a time, on any
// machine, does the protected work.
//
//	func charge(ctx context.Context, client *clientv3.Client) error {
//		mu, err := etcdlock.New(client, "orders/42")
//		if err != nil {
//			return err
//		}
//		defer mu.Close(ctx)
//		return mu.Do(ctx, func(ctx context.Context) error { // waits for the lock
//			return writeOrder(ctx) // ctx ends if the lock is lost
//		})
//	}
//
// A [Session] locks many names, each when it is needed: session.Do(ctx, "orders/42", fn). See the
// package example for a whole program.
//
// # What is guaranteed
//
// At most one Mutex holds a name at a time. The context of a hold is cancelled before its lease can
// expire, and before this package releases the lock. Unlock tells the truth: nil means that the
// lock was held without a break until this release, and a loss is a [*LostError] that says why.
// Whatever answers are lost, no call leaves a key behind that blocks other contenders. Every call
// returns when its context ends. A Mutex stays usable through any outage. If etcd does not answer,
// a wait says so ([ErrUnavailable], [WithLogger], [Trace]).
//
// # What is not
//
// A process may be paused between its check of the context and its write, for longer than the TTL.
// No lock can prevent that write; a fencing token can. [Mutex.Token] grows with every new hold of a
// name. Send it along, with reads too if you write what you compute from them, and let the resource
// refuse a token lower than the highest it has seen. For writes to etcd, put [Mutex.IsOwner] in the
// If of the transaction.
//
// When an operator takes the key away ([Break], a revoked lease), the holder learns it by an event,
// or about a second later if it has just begun to hold. Until then only the token protects.
// [Recall] gets a lock back from a living holder without such an overlap.
//
// When etcd is restored from a snapshot, or wiped, tokens start again. A process that has noticed
// it lets no hold begin until those from before must have ended; one that starts afterwards cannot
// know them. docs/runbook.md says how to restore.
//
// # Time
//
// etcd alone decides which contender holds the lock. The local clock only decides how long a holder
// may believe that it does:
//
//	trustedUntil = attemptStarted + grantedTTL - margin
//
// Term by term:
//
//   - attemptStarted is when the last acknowledged grant or renewal was sent, not when its answer
//     came: etcd starts to count when it handles the request, at any time in between. It is read
//     from the monotonic clock. A step of the wall clock forward by more than what remains ends the
//     holds, too: the machine may have been suspended.
//   - grantedTTL is what etcd granted, which may be more than was asked for.
//   - margin covers clocks that run at different rates during the TTL, and gives the critical
//     section time to stop: by default an eighth of the TTL, and at least 100 ms.
//
// At trustedUntil a timer ends the hold. After a pause, a check before the timer has run compares
// the clock and finds the hold ended. A late answer revives nothing. docs/ttl.md helps to choose.
//
// # Waiting
//
//	New ──Lock──▶ local line ──▶ etcd's line ──▶ held ──Unlock──▶ free
//	              goroutines     put name/uuid     │
//	              of a Session   wait until no     ├─ lease expired, key deleted: ErrLost
//	                             key is before     ├─ WithMaxHold: ErrMaxHold
//	                             it                └─ Close: ErrClosed
//
// First come, first served. A contender is a key name/<UUID> with a lease, or name/<lease in
// hexadecimal>, the form of etcd's concurrency.Mutex, etcdctl lock and the server's lock service:
// they and this package exclude each other. Other keys below name/ block no contender of this
// package, but they do block concurrency.Mutex: do not nest names while both are in use.
//
// # Cost
//
// An uncontended Lock is one request and one Raft entry, and so is Unlock. TryLock of a taken name
// is one read, or nothing if the same Session holds it. A hand-over is the release and one event,
// and in a line of more than nine at most one read. A [Session] costs one renewal per third of the
// TTL for any number of names, and a hold or a wait during which nothing happens little more. See
// docs/performance.md.
//
// The modules etcdlockprom and etcdlockotel turn a [Trace] into metrics and spans. Package
// etcdlocktest is an etcd in memory for tests. docs/cookbook.md has recipes.
package etcdlock
