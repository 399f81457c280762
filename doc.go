// Package etcdlock is a distributed mutex backed by etcd. It excludes processes and
// machines from each other.
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
// See the package example for a whole program.
//
// # What is guaranteed
//
// At most one Mutex holds a name at a time, in the sense that matters: the hold's context ends
// before etcd can give the lock to anybody else because the lease expired, and before this
// package gives it away itself. Unlock tells the truth: nil means that the lock was held without
// a break until this release, and a loss is a [*LostError] that says why. Whatever answers are
// lost, no call leaves a key behind that blocks others: the key is removed, or it goes with its
// lease, which is no longer renewed for it. Every call returns when its context ends. A Mutex
// stays usable through any outage. If etcd does not answer, a wait says so ([ErrUnavailable],
// [WithLogger], [Trace]). The modules etcdlockprom and etcdlockotel turn a Trace into metrics
// and spans.
//
// # What is not
//
// A process may be paused between its check of the context and its write, for longer than the TTL.
// No lock can prevent that write; a fencing token can. [Mutex.Token] grows with every new hold of a
// name: send it along, and have the resource refuse a token lower than the highest it has seen.
// Send it with a read, too, if you write what you compute from it: until the resource has seen the
// new token it takes a late write of the old holder. For writes to etcd itself, [Mutex.IsOwner] in
// the If of the transaction does the same. When etcd is restored from a snapshot, or wiped, tokens
// start again; docs/runbook.md says how to keep them growing. When an operator takes the key away
// ([Break], a revoked lease), the holder learns it by an event, or about a second later if it has
// just begun to hold. Until then, again, only the token protects. To get a lock back from a holder
// that lives, without such an overlap, there is [Recall].
//
// # Time
//
// etcd alone decides who holds the lock. The local clock only decides how long a holder may
// believe it:
//
//	trustedUntil = attemptStarted + grantedTTL - margin
//
// Term by term:
//
//   - attemptStarted is when the last acknowledged grant or renewal was sent, not when its
//     answer came: etcd starts to count when it handles the request, at any time in between.
//     It is read from the monotonic clock. The wall clock is checked too, in case the machine
//     was suspended. (A clock that is set forward by more than what remains looks the same, and
//     ends the holds.) If an earlier renewal may have reached a leader that has replaced the one
//     that answered, attemptStarted is when that earlier renewal was sent, until a read shows
//     that there is no such leader.
//   - grantedTTL is what etcd granted, which may be more than was asked for.
//   - margin covers clocks that run at different rates during the TTL, and gives the critical
//     section time to stop. Its default, an eighth of the TTL and at least 100 ms, is far above
//     the drift of any working clock.
//
// At trustedUntil a timer ends the hold. After a pause, whoever checks before the timer has run
// compares the clock and finds the hold ended. A late answer revives nothing.
//
// # The life of a lock
//
//	New ──Lock──▶ local line ──▶ etcd's line ──▶ held ──Unlock──▶ free
//	              goroutines     put name/uuid     │
//	              of a Session   wait until no     ├─ lease expired, key deleted: ErrLost
//	                             key is before     ├─ WithMaxHold: ErrMaxHold
//	                             it                └─ Close: ErrClosed
//
// The goroutines of a [Session] wait in a local line, so that a Session has at most one key per
// name in etcd. Keys stand in line by their create revision: first come, first served. Behind at
// most eight others a waiter follows the whole line, by one watch per Session and name that
// stays for some seconds after. Behind more, or in a line of more than sixteen, it watches only
// the key before its own, so that a release wakes one waiter. [WithHandoff] and [WithLinger] let
// the holds of a Session share a key and its Token.
//
// A contender is a key name/<UUID> with a lease, or name/<lease in hexadecimal>, the form that
// etcd's concurrency.Mutex, etcdctl lock and the server's lock service use. They and this package
// exclude each other. A reader ([RWMutex]) has a UUID of a kind of its own, which versions of this
// package that know no readers take for a writer's; so has a permit of a [Semaphore]. A candidate
// of a concurrency.Election under the name of a lock joins its line. Other keys below name/ block
// nobody here, but they do block concurrency.Mutex: do not nest names while both are in use.
//
// # Cost
//
// An uncontended Lock is one request and one Raft entry, and so is Unlock. The lease is granted
// once and used again. TryLock of a taken name is one read, or nothing if the same Session holds
// it. A hand-over is the release and one event, and in a line of more than nine at most one read.
// Between goroutines of one Session, the release and the next place in line are one transaction.
// LockAll of any number of free names is one request and one Raft entry, and so is its Unlock.
// A Session costs one renewal per third of the TTL for any number of names (more if its safety
// margin is above a quarter of the TTL), on a stream that stays open.
//
// A hold older than a second is watched. That costs a watch and a read once, and nothing while
// nothing happens. In case a watch has gone silent, a Session audits its keys with every fourth
// renewal, less often while all its keys are rechecked anyway, and with every renewal where a key
// is not watched: a Session that holds more than 100 names has no watches. A waiter rechecks the
// line in case an event was lost: every 1.5 s at first, once in a TTL and a third in the end, and
// less often in a long line and while etcd is slow. The watches of a client's Sessions share a
// stream. So they carry no outgoing metadata of a caller's context, as the requests of its call do.
//
// An attempt without an answer is repeated after 0.5 to 2 s, or after as long as recent answers
// took if that is more, and given up after 2.5 to 10 s. All Sessions of a client share a budget
// for repeats: ten answers pay for one. With a single endpoint none is sent before etcd has
// answered something else. All Sessions of a client together have at first 8 puts and 8 other
// attempts under way, more while etcd answers within 0.2 s, and half as many when it takes more
// than 2 s or is overloaded. The rest queue. A release, a removal and a renewal do not queue.
//
// A renewal that fails at once is sent again after 50 ms, and then up to fifty times until the
// trust ends, or a hundred times if there are several endpoints. So a hold survives minutes in
// which two of three requests fail; docs/ttl.md has the shares.
//
// # Reading the code
//
// Decisions are made in packages that have no clock, no mutex and no goroutine. The files beside
// each carry them out:
//
//	internal/line     who stands in etcd's line, and who waits for whom: line.go has the rule of
//	                  entry, Line.Blocking; ahead.go what a reading of a part of the line says;
//	                  key.go, kind.go and value.go what a key and its value say
//	                  (acquire.go, rivals.go, viewread.go)
//	internal/ticket   the life of one key: each transaction, and what its answer says, also if an
//	                  answer was lost and the request is repeated. ticket.go has the states,
//	                  enter.go the put, several.go that of several, release.go the release,
//	                  remove.go the removal, read.go the reads
//	                  (acquire.go, many.go, release.go, removal.go, rivals.go)
//	internal/turn     whose turn it is among a Session's goroutines (local.go)
//	internal/trust    how long a lease may be trusted, and when to renew it (lease.go, renew.go)
//	internal/recheck  how often a waiter rechecks (watch.go, viewread.go)
//
// These talk to etcd and to the user:
//
//	internal/attempt    attempt.go sends one attempt, and repeats it while it has no answer;
//	                    backoff.go has the pauses between those of a call, window.go limits how
//	                    many are under way, budget.go how many are repeated, errors.go has the
//	                    classes of errors
//	internal/keepalive  the renewals of a lease on a stream that stays open: keepalive.go opens
//	                    and ends it, streams.go chooses it
//	internal/events     the user's hooks, called in order
//
// The files of this package do what was decided. They stand in layers: each uses those of its own
// layer and of those below, as a test in internal/direction asks. Where those below have something
// to tell they call an interface of their own: above() in session.go, lease.go, place.go and
// claim.go, and a lease its tenants.
//
// What leads:
//
//	lead.go      Lead: a leader's work, term after term
//	watchholder.go
//	             WatchHolder: how others follow who holds; it reads and watches by itself
//
// What users call:
//
//	rwmutex.go   the RWMutex, and the Hold of one that reads
//	many.go      several names at once: LockAll, whose claims enter all lines together
//	semaphore.go the Semaphore
//	lock.go      the Mutex: its verbs in the order of a life, Do, Locker
//	close.go     Close of a Mutex and of a Session
//	acquire.go   how a call gets to hold: the local line, a place, its put, the wait
//
// What the goroutines of a Session have of a name, and what etcd shows of that:
//
//	hold.go      a hold, its end, nesting. What ends it is noticed in lease.go (trust, revocation),
//	             watch.go (its key is gone), lock.go (Unlock), close.go
//	context.go   the contexts of a hold, TokenFrom
//	release.go   how the key of a hold is released, and the next one put
//	recalled.go  what a holder notices of a recall, and what follows
//	local.go     the line of a Session's goroutines for one name: who is next, what lingers
//	cohort.go    those of them that share a key to read: who joins, and who waits
//	permits.go   how the permits of a Session keep the order of their calls
//	grant.go     one grant of a lease, for all who need one
//	audit.go     the audit of a lease's keys
//	setback.go   what follows from a set-back of etcd, and from a lost connection
//
// One key in etcd's line:
//
//	party.go     what a Mutex is to those below: its Session, name and options, and its hold
//	claim.go     one call that locks, and the local line that it stands in: what they consist of
//	place.go     a key in etcd's line; it sends the transactions that internal/ticket builds
//	watch.go     how it waits behind many: by a watch of the one key before, begun again when it
//	             ends; and what follows when its own key is lost
//	rivals.go    what it reads of those who stand before it
//	partings.go  how a permit waits behind many: by watches of those that have to go
//	view.go      how it waits behind few: by the Session's watch of the line
//	viewread.go  what that view reads, and how often
//	keywatch.go  how the key of a hold that lasts is watched, so that the holder learns what
//	             others do to it; for a younger hold the audit does that
//	removal.go   how a key that was given up is removed
//
// A lease:
//
//	lease.go     one lease: its grant, and the end of its trust, which hold.go is told of
//	renew.go     its renewals
//	keys.go      how its keys are named, and read many at once
//	revoke.go    how a lease is revoked
//
// A Session:
//
//	session.go   its one mutex, its goroutines
//	era.go       how each answer is checked for a set-back; the reads and transactions that are
//	             repeated until they are answered
//	stream.go    the stream of a client's watches (that of the renewals is in keepalive)
//
// What all use:
//
//	errors.go    the errors and their texts
//	trace.go     the hooks as a type, and the logger
//	options.go   the options, and their bounds
//	admin.go     Contenders, Holders, Break: what operators and tools use
//	recall.go    Recall: how they ask a holder to end
//
// The glossary. Code, comments and docs use one word for each thing:
//
//	contender   a key in etcd's line, or whoever has put it
//	line        the contenders for a name, in the order of their create revisions
//	holder      the first contender in the line; if it reads, all that read before the first writer;
//	            if it is a permit, all before the first that has to wait
//	waiter      a contender that is no holder, or a claim behind one
//	local line  the goroutines of a Session that want a name; one of them owns the turn
//	party       a Mutex, RWMutex or Semaphore, or a name of a LockAll, as the code below knows it
//	claim       a call of Lock or TryLock, of RLock or TryRLock, or of Acquire or TryAcquire; one for
//	            each name of a LockAll
//	permit      a contender for some of a Semaphore; its weight is how many it wants at once, its
//	            limit how many there are by its word: the least in line counts
//	cohort      the readers of a Session that share a key
//	ticket      one key of the Session: what was put, and what etcd said about it
//	place       a ticket with its lease, and the claim or the hold that has it
//	hold        the time from a Lock to its Unlock
//	token       the fencing token of a hold: the create revision of its key
//	release     the request that ends a hold in etcd; a removal deletes any other key
//	hand-over   a release, and the next contender's hold; with WithHandoff, a hand-off passes
//	            the hold on within a Session, without etcd
//	several     names that one LockAll takes: a ticket, a place and a hold of each, with one token,
//	            which begin and end together
//	term        the time in which a leader leads: one call of Lead's function, and its hold
//	recall      a request to a holder to give its lock back (Recall); the grace is the time in which
//	            it may go on
//	linger      to keep the key of a hold that was unlocked for the next Lock of the same Session
//	            (WithLinger)
//	attempt     one request to etcd, with its time of sending and its bound; it may be repeated
//	renewal     one keepalive message of a lease, and its answer
//	trust       how long a lease counts, by its renewals
//	margin      the time from the end of the trust to the earliest end of the lease in etcd
//	audit       the comparison of a lease's keys in etcd with what the Session believes, in case
//	            an event was lost or a request comes late
//	look        a read of who stands before a place, or of who holds
//	recheck     a waiter's read of the line, in case an event was lost
//	view        a watch of a whole line that the Session's waiters share
//	key watch   the watch of a held key
//	set back    what a restore, a wipe or a move to another cluster does to etcd: revisions start
//	            again below what was seen
//	era         the time between two set-backs
//
// The rest of internal/ is tests and tools: CONTRIBUTING.md has a line for each.
package etcdlock
