// Package etcdlock is a mutex that excludes across processes and machines, kept in
// etcd.
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
// See the example of the package for a whole program.
//
// # What is guaranteed
//
// At most one Mutex holds a name at a time, in the sense that matters: the hold's
// context has ended before etcd can give the lock to anybody else because the lease
// expired, and before this package gives it away itself. Unlock tells the truth: nil means
// held without a break until this release, and a loss is a [*LostError] that says why.
// Whatever answers were lost, no call leaves a key behind that blocks others: it is
// removed, or goes with its lease, which is renewed for it no more. Every call returns
// when its context ends. A Mutex stays usable through any outage, and a wait for an etcd that
// does not answer says so ([ErrUnavailable], [WithLogger], [Trace]). The modules etcdlockprom and
// etcdlockotel make metrics and spans of a Trace.
//
// # What is not
//
// A process may be paused between looking at the context and writing, for longer than
// the TTL. No lock can prevent that write; a fencing token can. [Mutex.Token] grows with
// every new hold of a name: send it along, and have the resource refuse a token lower
// than the highest it has seen. For writes to etcd itself, [Mutex.IsOwner] in the If of
// the transaction does the same. When etcd is restored from a snapshot, or wiped, tokens
// start again: docs/runbook.md tells how to keep them growing. And when an operator takes the
// key away ([Break], a revoked lease), the holder learns it by an event, or about a second later
// if it has just begun to hold; until then, too, it is the token that protects.
//
// # Time
//
// etcd alone decides who holds the lock. The local clock only decides until when a
// holder may believe it:
//
//	trustedUntil = attemptStarted + grantedTTL - margin
//
// Term by term:
//
//   - attemptStarted is when the last acknowledged grant or renewal was sent, not when
//     its answer came: etcd starts to count when it handles the request, which may be
//     any time in between. It is read from the monotonic clock; the wall clock is looked
//     at too, in case the machine was suspended. (A clock that is set forward by more than
//     what remains looks the same, and ends the holds.) If an earlier renewal may have
//     reached a leader that has replaced the one that answered, it is when that one was sent,
//     until a read shows that there is no such leader.
//   - grantedTTL is what etcd granted, which may be more than was asked for.
//   - margin pays for clocks that run at different rates while the TTL runs, and gives the
//     critical section time to stop. Its default, an eighth of the TTL and at least 100 ms,
//     is far above the drift of any working clock.
//
// At trustedUntil a timer ends the hold; whoever looks earlier, after a pause, finds it
// ended by comparing the clock. A late answer revives nothing.
//
// # The life of a lock
//
//	New ──Lock──▶ local line ──▶ etcd's line ──▶ held ──Unlock──▶ free
//	              goroutines     put name/uuid     │
//	              of a Session   wait until no     ├─ lease expired, key deleted: ErrLost
//	                             key is before     ├─ WithMaxHold: ErrMaxHold
//	                             it                └─ Close: ErrClosed
//
// The goroutines of a [Session] wait in a local line, so that a Session has at most one
// key per name in etcd. Keys stand in line by their create revision: first come, first
// served. Behind at most eight others a waiter follows the whole line, by one watch for each
// Session and name that stays for some seconds after; behind more, or in a line of more than
// sixteen, it watches the one key before its own, so that a release wakes one. [WithHandoff]
// and [WithLinger] let the holds of a Session share a key, and its Token.
//
// A contender is a key name/<UUID> with a lease, or name/<lease in hexadecimal>, which is
// what etcd's concurrency.Mutex, etcdctl lock and the server's lock service put. They and
// this package exclude each other. So a candidate of a concurrency.Election under the name
// of a lock stands in its line. Other keys below name/ block nobody here, though they do
// block concurrency.Mutex: do not nest names while both are in use.
//
// # Cost
//
// Uncontended, Lock is one request and one Raft entry, and so is Unlock; the lease is
// granted once and used again. TryLock of a taken name is one read, or nothing if the
// same Session holds it. A hand-over is the release and one event, and in a line of more
// than nine at most one read; between goroutines of one Session the release and the next place
// in line are one transaction. A Session costs one renewal per third of the TTL, for any number
// of names (and more if its safety margin is above a quarter of the TTL), on a stream that stays
// open.
//
// A hold that is older than a second is watched: that costs a watch and a read once, and nothing
// while nothing happens. A Session looks at its keys with each fourth renewal, in case a watch
// is silent, and with each one where a key is not watched: a Session that holds more than 100
// names has no watches. Whoever waits looks at the line in case an event was lost: each 1.5 s at
// first, in the end once in a TTL and a third, less often in a long line, and while etcd is
// slow.
//
// An attempt that has no answer is repeated after 0.5 to 2 s, or what answers take of late if
// that is more, and given up after 2.5 to 10 s. Repeats have a credit that all Sessions of a
// client share, and to which its answers add: one for ten. Where there is one endpoint none is sent
// before etcd has answered something else. All Sessions of a client have 8 attempts under way at
// first, more while etcd answers within 0.2 s, and half as many when it takes more than 2 s or has
// too much to do. The others wait their turn. A release and a removal do not wait, nor does a
// renewal.
//
// # Reading the code
//
// The files stand in layers; each uses those of its own layer and of those below, but for
// what internal/direction lists.
//
//	lock.go      the Mutex: its verbs in the order of a life, Do, Close, Locker
//	acquire.go   how a call comes to hold: the local queue, a place, its put, the wait
//	hold.go      a hold, its contexts, TokenFrom, nesting
//	release.go   how the key of a hold is released, and the next one put
//	local.go     what a Session has of one name: the queue of its goroutines, what lingers
//	place.go     a key in etcd's line, and the transactions that write
//	watch.go     how it waits: behind many by a watch of one key; what follows when it is lost
//	view.go      behind few by the Session's watch of the line
//	keywatch.go  how the key of a hold that lasts is watched: what others do to it is told here,
//	             or of a younger hold by the look in audit.go
//	removal.go   how what is given up is removed
//	lease.go     one lease: its grant, its renewals, and the end of its trust and of its holds
//	revoke.go    its end
//	audit.go     the look at the keys of a lease
//	session.go   the Session: its one lock, its goroutines, Close, the grant of a lease
//	era.go       what is known of etcd, and what follows when it is set back
//	stream.go    the stream of a client's watches (that of the renewals is in keepalive)
//	admin.go, options.go, trace.go, errors.go
//
// The words that the code has for these things, one each:
//
//	contender   a key in etcd's line, or whoever has put it
//	line        the contenders for a name, in the order of their create revisions
//	local line  the goroutines of a Session that want a name; one of them owns the turn
//	claim       a call of Lock or TryLock
//	ticket      one key of the Session's: what was put, and what etcd said of it
//	place       a ticket with its lease, and whoever waits or holds at it
//	hold        the time from a Lock to its Unlock
//	release     the request that ends a hold in etcd; removal is that of any other key
//	trust       until when a lease counts, by its renewals
//	look        a comparison of what etcd has with what the Session believes
//	view        a watch of a whole line that the Session's waiters share
//	era         the time between two occasions on which etcd was set back
//
// What is to happen is decided in packages that have no clock, no lock and no goroutine. The files
// beside each carry it out:
//
//	internal/line     who stands in etcd's line, and who waits for whom; the rule of
//	                  entry is Line.Blocking (acquire.go, watch.go, view.go)
//	internal/ticket   the life of one key: each transaction, and what its answer says
//	                  (acquire.go, release.go, removal.go)
//	internal/turn     whose turn it is among a Session's goroutines (local.go, release.go)
//	internal/trust    until when a lease may be trusted, and when it is renewed (lease.go)
//	internal/recheck  how often one who waits looks whether it has missed an event
//	                  (watch.go, view.go)
//
// Beside them stand these, which ask etcd and the user:
//
//	internal/attempt    attempts and their bounds; window.go limits how many are under way,
//	                    budget.go how many are repeated; classes of errors
//	internal/keepalive  the renewals of a lease on a stream that stays open: keepalive.go opens
//	                    it and ends it, streams.go chooses
//	internal/events     the user's hooks, called in order
package etcdlock
