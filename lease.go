package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/trust"
)

const (
	// lookEvery is how often a lease's keys are looked at while a hold is older
	// than that, so that a deleted key is noticed within about a second.
	lookEvery = 700 * time.Millisecond

	// manyPlaces is the number of keys above which they are looked at once per
	// renewal period only.
	manyPlaces = 100

	// manyOps is how many keys are read in one transaction: etcd allows 128 operations by
	// default.
	manyOps = 100

	// maxUnreadable is how many keys that the user may not read one look bears with.
	maxUnreadable = 10

	// closeGrace is how long Close goes on if its context had ended before.
	closeGrace = 50 * time.Millisecond
)

var (
	errLeaseUnused   = errors.New("lease given back: nobody used it")
	errLeaseDoubtful = errors.New("a request with this lease may still be under way")
	errGrantTooLate  = errors.New("the granted lease was over before it could be used: safety margin too large, or etcd too slow")
	errClientClosed  = errors.New("the etcd client is closed")
	errDeposed       = errors.New("renewed by a member that does not lead any more, it seems")
)

// A Session is one lease, kept alive, that any number of Mutexes share. It is
// safe for concurrent use. Use one Session for many names: they then cost one
// lease, one renewal per third of the TTL and no goroutine each. They also share
// one fate: if the lease is lost, all of them are.
//
// A Session stays usable through any outage: a lease that was lost is replaced
// for the next acquisition. When nothing was held or waited for during two TTLs
// it gives the lease back by itself and has no goroutine until it is used again.
type Session struct {
	// Set once, then only read.
	client *clientv3.Client
	cfg    *config
	stream *stream         // of watches
	ctx    context.Context // of all goroutines
	cancel context.CancelFunc
	doubts atomic.Int64 // tries of all leases
	secret uuid.UUID    // by which it knows the keys that it has put
	hooks  hooks
	calls  *attempt.Caller     // of etcd
	era    atomic.Pointer[era] // the present one, changed under mu

	// mu guards what follows and the mutable state of every lease, line, place
	// and hold of the Session. It is never held across a call to etcd, to the
	// user's code, or to the cancel function of a context; see unlock.
	mu         sync.Mutex
	current    *lease // for new places, nil if there is none
	granting   *grant // under way, or nil; it owns grantRetry
	grantRetry attempt.Backoff
	leases     map[*lease]struct{}
	lines      map[string]*localLine
	verifying  bool            // holds of an era before are being read
	backLogged time.Time       // when it was last logged that etcd was set back
	sweepAt    int             // size of lines at which unused ones are dropped
	after      []func()        // for unlock to call
	tasks      int             // goroutines running
	quiet      []chan struct{} // closed when tasks reaches 0
	closed     bool
	closing    int   // calls that wait until it is
	left       error // why Close could not revoke a lease, or remove a key
	mostOps    int   // how many keys etcd lets one transaction read, as far as is known
	unreadable bool  // the log has told of a key that the user may not read
}

// A lease is one etcd lease and what is known of it. It may be used for as long as its trust
// lasts; once it has ended it has ended for good.
type lease struct {
	// Set once, then only read.
	s    *Session
	id   clientv3.LeaseID
	ttl  time.Duration      // as granted
	plan trust.Schedule     // of its renewals
	wake chan struct{}      // tells the keeper to look at the state again
	dead chan struct{}      // closed when ended is set
	live context.Context    // ended by the keeper, once no put can apply any more
	bury context.CancelFunc // ends live

	// Guarded by Session.mu.
	trust     *trust.Trust
	expiry    *time.Timer        // of the trust
	doubts    int                // of the trust, as counted in Session.doubts
	refusal   error              // of renewals since the last good one, nil if there was none
	places    map[string]*place  // by key: all that the Session accounts for
	users     int                // places that hold, wait or are being released
	releases  int                // holds that have ended whole, and whose release is under way
	ending    map[*hold]struct{} // holds that have ended, and whose contexts may not have
	idleSince time.Time          // when users became 0
	retired   error              // why there are no new places; nil while there may be
	ended     error              // why it is trusted no more; nil while it is
	revoked   bool               // etcd has confirmed that it is gone, and so are its keys
	suspect   bool               // its keys are to be looked at now
	left      error              // why the last removal that was given up was
}

// NewSession returns a Session. It validates the options and does no I/O; the
// lease is granted when it is first needed. Options for a Mutex are defaults for
// the Mutexes of the Session.
func NewSession(client *clientv3.Client, opts ...Option) (*Session, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	cfg, err := defaultConfig().apply(opts)
	if err != nil {
		return nil, err
	}
	s := &Session{
		client:  client,
		cfg:     &cfg,
		stream:  streamOf(client),
		leases:  make(map[*lease]struct{}),
		lines:   make(map[string]*localLine),
		sweepAt: minSweep,
		secret:  uuid.New(),
		mostOps: manyOps,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.calls = attempt.NewCaller(s.ctx, client, cfg.ttl, s.spawn, s.tellUnavailable)
	s.era.Store(&era{})
	return s, nil
}

// Mutex returns a Mutex for name on the Session's lease. It does no I/O. Mutexes
// of the same name exclude each other, whichever Session they are of. WithTTL and
// WithSafetyMargin are errors here: they belong to the Session.
func (s *Session) Mutex(name string, opts ...Option) (*Mutex, error) {
	if s == nil || s.client == nil {
		return nil, errors.New("etcdlock: Session not made with NewSession")
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	cfg := s.cfg
	if len(opts) > 0 {
		changed, err := s.cfg.apply(opts)
		if changed.leaseOption != "" {
			return nil, fmt.Errorf("etcdlock: %s is for New and NewSession, not for Session.Mutex", changed.leaseOption)
		}
		if err != nil {
			return nil, err
		}
		cfg = &changed
	}
	s.mu.Lock()
	defer s.unlock()
	if s.closed {
		return nil, failed("mutex", name, ErrClosed)
	}
	return &Mutex{s: s, name: name, cfg: cfg}, nil
}

// Lease returns the lease that the next hold will be bound to, clientv3.NoLease
// before the first use, after Close and while a lost lease is not replaced yet. A
// lease is replaced after a loss, after a request whose outcome is unknown, and when
// it was not used for two TTLs; what else is attached to it goes with it.
func (s *Session) Lease() clientv3.LeaseID {
	if s == nil {
		return clientv3.NoLease
	}
	s.mu.Lock()
	defer s.unlock()
	if !s.usableLocked() {
		return clientv3.NoLease
	}
	return s.current.id
}

// Close ends every hold of the Session (their contexts end with the cause
// [ErrClosed]) and every wait (which returns ErrClosed), releases all keys by
// revoking the lease, and stops every goroutine. It waits for that until ctx ends.
// A read for each hundred holds then tells whether somebody has put over a key, which
// does not go with the lease: such a key is removed, too.
//
// It returns nil if nothing is left behind, and when the Session was closed
// before. Of several calls at once each waits, within its own ctx. An error that is
// [ErrUnconfirmed] says that etcd did not confirm in time: the Session is closed all
// the same, its lease is renewed no more, and its keys go within the TTL, except one that
// somebody has put over. A ctx that had ended before the call leaves 50 ms for it, one that
// never ends two TTLs.
// After a nil ctx nothing has happened.
func (s *Session) Close(ctx context.Context) error {
	if s == nil || s.client == nil {
		return errors.New("etcdlock: Session not made with NewSession")
	}
	if ctx == nil {
		return errors.New("etcdlock: close: nil context")
	}
	ctx, cancel := s.outlive(ctx, func(h *hold) bool { return h.m.s == s }, closeGrace)
	defer cancel()
	if ctx.Done() == nil {
		ttl := s.longestTTL() // twice of which may be more than a Duration can say
		ctx, cancel = context.WithDeadline(ctx, time.Now().Add(ttl).Add(ttl))
		defer cancel()
	}

	s.mu.Lock()
	switch {
	case s.closing > 0:
	case s.closed:
		s.unlock()
		return nil
	default:
		s.closeLocked()
	}
	return s.closesLocked(ctx)
}

// closeLocked ends whatever there is. The keepers revoke the leases.
func (s *Session) closeLocked() {
	s.closed = true
	for _, l := range s.lines {
		l.cancelLocked(nil)
		l.giveWayLocked()
		if l.due != nil {
			l.due.Stop()
		}
		if l.view != nil {
			l.view.endLocked()
		}
		if h := l.holdLocked(); h != nil && !h.closeLocked() {
			h.traceReleased()
		}
	}
	for l := range s.leases {
		l.wakeKeeper()
	}
}

// longestTTL is the longest of the Session's leases, as granted, or what it asks for.
func (s *Session) longestTTL() time.Duration {
	s.mu.Lock()
	defer s.unlock()
	longest := s.cfg.ttl
	for l := range s.leases {
		longest = max(longest, l.ttl)
	}
	return longest
}

// closesLocked unlocks mu and waits until the Session is closed. The work goes on until the
// last one that waits for it has no time left.
func (s *Session) closesLocked(ctx context.Context) error {
	s.closing++
	quiet := s.quietLocked()
	s.unlock()

	select {
	case <-quiet:
	case <-ctx.Done():
		if !s.isLastClosing() {
			return closeUnconfirmed(context.Cause(ctx))
		}
		s.cancel() // makes every goroutine return
		<-quiet
	}
	s.cancel()

	s.mu.Lock()
	defer s.unlock()
	s.closing--
	if s.left != nil {
		return closeUnconfirmed(s.left)
	}
	return nil
}

// isLastClosing reports whether nobody else waits until the Session is closed. Otherwise the
// caller does not, either, from here on.
func (s *Session) isLastClosing() bool {
	s.mu.Lock()
	defer s.unlock()
	if s.closing == 1 {
		return true
	}
	s.closing--
	return false
}

// afterLocked has f called once mu is unlocked: cancelling a context runs code that
// may come back here.
func (s *Session) afterLocked(f func()) { s.after = append(s.after, f) }

// unlock unlocks mu, and then does what had to wait for that. Every mu.Lock is
// followed by it.
func (s *Session) unlock() {
	after := s.after
	s.after = nil
	s.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// goLocked runs f in a goroutine that Close waits for. The caller makes sure that
// f ends soon after s.ctx does, or after the context of a call that Close ends.
//
// These are all goroutines of a Session; Close waits for all but the hooks, which may
// be blocked in the user's code:
//
//	goroutine        started by            ends
//	keeper           a grant, per lease    with the lease, once it is revoked
//	renewal, look    the keeper            with their answer or their time
//	grant            Lock without a lease  with its answer or its time, and a pause
//	connection       a grant, per lease    with the lease, once it is revoked
//	verify           etcd was set back     when every hold from before was read
//	repeat           a call unanswered     with the first answer or its time
//	report           a wait for etcd       when it has asked gRPC for the reason
//	removal          a place given up      once etcd confirms, or with the lease if the
//	                                       key goes with that
//	view             a wait in a short     when nobody has needed it for 5 s
//	                 line; WithLinger
//	hooks            an event to tell      when all events are told
func (s *Session) goLocked(f func()) {
	s.tasks++
	go func() {
		f()
		s.mu.Lock()
		defer s.unlock()
		s.tasks--
		if s.tasks == 0 {
			for _, quiet := range s.quiet {
				close(quiet)
			}
			s.quiet = nil
		}
	}()
}

// spawn is goLocked for callers that do not hold mu.
func (s *Session) spawn(f func()) {
	s.mu.Lock()
	defer s.unlock()
	s.goLocked(f)
}

// quietLocked returns a channel that is closed when no goroutine of the Session runs.
func (s *Session) quietLocked() <-chan struct{} {
	quiet := make(chan struct{})
	if s.tasks == 0 {
		close(quiet)
	} else {
		s.quiet = append(s.quiet, quiet)
	}
	return quiet
}

// A grant is one attempt to get a lease, which all that need one wait for.
type grant struct {
	ctx    context.Context // of the attempt, which ends when nobody has waited for a while
	cancel context.CancelFunc
	done   chan struct{} // closed once it is decided, after a pause if it failed

	// Guarded by Session.mu.
	err     error
	waiting int
}

// newPlace returns a place for c on the current lease, which is granted first if
// there is none. The place is accounted for from here on. It returns an error
// when ctx ends or etcd refuses.
//
// Invariant: taking a lease for a place and deciding to revoke it exclude each
// other, both being done under mu.
func (s *Session) newPlace(ctx context.Context, c *claim) (*place, error) {
	for {
		s.mu.Lock()
		if s.usableLocked() {
			p := s.newPlaceLocked(c)
			s.unlock()
			c.lastErr = nil
			return p, nil
		}
		if s.closed {
			s.unlock()
			return nil, ErrClosed
		}
		g := s.granting
		if g == nil {
			g = &grant{done: make(chan struct{})}
			g.ctx, g.cancel = context.WithCancel(s.ctx)
			s.granting = g
			s.goLocked(func() { s.grantLease(g) })
		}
		g.waiting++
		s.unlock()

		var err error
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-g.done:
		}
		s.mu.Lock()
		failure := g.err
		if g.waiting--; g.waiting == 0 {
			// Not at once: the next one may come soon, and etcd be slow.
			time.AfterFunc(s.calls.Timeout(), func() { s.forgo(g) })
		}
		s.unlock()
		if failure != nil {
			c.lastErr = failure
		}
		switch {
		case err != nil:
			return nil, err
		case failure == nil:
		case s.clientClosed():
			return nil, errClientClosed
		case attempt.Refused(failure):
			return nil, failure
		}
	}
}

// usableLocked reports whether the current lease may get new places.
func (s *Session) usableLocked() bool {
	if s.current == nil || s.closed {
		return false
	}
	s.current.checkLocked(time.Now())
	return s.current != nil
}

// grantLease is one attempt to get a lease. All that need one share the pause after
// a failure, too.
func (s *Session) grantLease(g *grant) {
	defer close(g.done)
	defer g.cancel()
	err := s.newLease(g.ctx)
	if err != nil && g.ctx.Err() != nil {
		err = attempt.ErrNoAnswer // for one who comes just now
	}
	if err != nil {
		s.mu.Lock()
		g.err = err
		s.unlock()
		if !attempt.Refused(err) && !s.clientClosed() {
			_ = s.grantRetry.Wait(s.ctx, s.calls) // the callers see s.ctx's end themselves
		}
	} else {
		s.grantRetry.Reset()
	}
	s.mu.Lock()
	defer s.unlock()
	s.granting = nil
}

// forgo ends a grant that nobody waits for.
func (s *Session) forgo(g *grant) {
	s.mu.Lock()
	defer s.unlock()
	if g.waiting == 0 {
		s.afterLocked(g.cancel)
	}
}

// newLease asks for a lease, and makes it the current one if it can be used.
func (s *Session) newLease(ctx context.Context) error {
	type granted struct {
		resp    *clientv3.LeaseGrantResponse
		started time.Time
	}
	// Of several answers the first counts. The other leases have no keys, and expire.
	g, _, err := attempt.Do(ctx, s.calls, &s.grantRetry, s.calls.Timeout(), func(ctx context.Context) (granted, error) {
		started, sent := time.Now(), s.era.Load()
		resp, err := s.client.Grant(ctx, int64(s.cfg.ttl/time.Second))
		if err == nil {
			s.heard(resp.ResponseHeader, sent, 0)
		}
		return granted{resp, started}, err
	})
	if err != nil {
		return err
	}
	resp, attemptStarted := g.resp, g.started

	s.mu.Lock()
	defer s.unlock()
	ttl := time.Duration(resp.TTL) * time.Second
	l := &lease{
		s:         s,
		id:        resp.ID,
		ttl:       ttl,
		trust:     trust.New(attemptStarted, ttl, s.cfg.marginOf),
		wake:      make(chan struct{}, 1),
		dead:      make(chan struct{}),
		places:    make(map[string]*place),
		idleSince: time.Now(),
	}
	l.live, l.bury = context.WithCancel(s.ctx)
	l.plan = l.trust.Schedule()
	l.expiry = time.AfterFunc(time.Until(l.trust.Until()), l.check)
	s.leases[l] = struct{}{}
	s.goLocked(func() { l.keep(attemptStarted) })
	s.goLocked(l.followConnection)
	s.log(slog.LevelDebug, "lease granted", "lease", l.hex(), "ttl", ttl)
	if t := s.cfg.trace; t != nil && t.LeaseGranted != nil {
		s.hooks.run(func() { t.LeaseGranted(l.id, ttl) })
	}
	if l.trust.At(time.Now()) != trust.Whole {
		l.endLocked(errGrantTooLate)
		return errGrantTooLate
	}
	s.current = l
	return nil
}

// check ends the lease if its time has passed. It may run at any time, any
// number of times.
func (l *lease) check() {
	l.s.mu.Lock()
	defer l.s.unlock()
	l.checkLocked(time.Now())
}

// checkLocked is check, for a given now.
func (l *lease) checkLocked(now time.Time) {
	if l.ended != nil {
		return
	}
	switch l.trust.At(now) {
	case trust.Expired:
		l.endLocked(because(ErrExpired, l.refusal))
	case trust.Suspended:
		l.endLocked(ErrSuspended)
	}
}

// trustLocked has the lease's trust changed, unless the lease has ended: a late answer revives
// nothing.
func (l *lease) trustLocked(change func(t *trust.Trust)) {
	l.checkLocked(time.Now())
	if l.ended != nil {
		return
	}
	until := l.trust.Until()
	change(l.trust)
	if l.trust.Until() != until {
		l.refusal = nil
		l.expiry.Reset(time.Until(l.trust.Until()))
	}
	l.s.doubts.Add(int64(l.trust.Doubts() - l.doubts))
	l.doubts = l.trust.Doubts()
}

// releasedLocked counts a release that is over. Where a hold ends whole its release counts in
// the same critical section: Close does not revoke the lease under it.
func (l *lease) releasedLocked() {
	l.releases--
	if l.s.closed {
		l.wakeKeeper()
	}
}

// endingLocked notes that h has ended, and that its contexts are about to.
func (l *lease) endingLocked(h *hold) {
	if l.ending == nil {
		l.ending = make(map[*hold]struct{})
	}
	l.ending[h] = struct{}{}
}

// endContexts ends the contexts of all holds on the lease that have ended.
func (l *lease) endContexts() {
	l.s.mu.Lock()
	holds := slices.Collect(maps.Keys(l.ending))
	l.s.unlock()
	for _, h := range holds {
		h.endContexts()
	}
}

// retireLocked keeps new places off the lease. It is renewed while places need
// it, and then revoked.
func (l *lease) retireLocked(why error) {
	if l.retired != nil {
		return
	}
	l.retired = why
	if l.s.current == l {
		l.s.current = nil
		if t := l.s.cfg.trace; t != nil && t.LeaseReplaced != nil {
			l.s.hooks.run(func() { t.LeaseReplaced(l.id, why) })
		}
	}
	l.giveWayLocked()
	l.wakeKeeper()
}

// giveWayLocked gives up the keys that linger on the lease.
func (l *lease) giveWayLocked() {
	for _, p := range l.places {
		if p.lingersLocked() {
			p.local.giveWayLocked()
		}
	}
}

// endLocked ends the trust in the lease, and so every hold on it.
func (l *lease) endLocked(why error) {
	if l.ended != nil {
		return
	}
	l.ended = why
	close(l.dead)
	l.expiry.Stop()
	l.retireLocked(why)
	for _, p := range l.places {
		if p.hold != nil {
			p.hold.endLocked(p.hold.lost(why))
		}
	}
	l.wakeKeeper()
}

func (l *lease) wakeKeeper() {
	select {
	case l.wake <- struct{}{}:
	default: // it is told already
	}
}

// isDead reports whether the trust in the lease has ended.
func (l *lease) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

func (l *lease) hex() string { return fmt.Sprintf("%x", int64(l.id)) }

// A renewal is the outcome of one attempt to renew.
type renewal struct {
	started time.Time
	err     error
}

// keep is the keeper: it renews the lease, looks at its keys and revokes it in
// the end. It runs from the grant until no put can apply under the lease any more.
//
// Renewals are separate attempts. One is sent each period of the schedule. If its
// answer takes longer than half of that, or does not come at all, more are sent, two
// at a time if there are several endpoints, so that a dead one cannot meet them all. None
// lives for longer than it would be trusted: later its answer would be useless.
func (l *lease) keep(granted time.Time) {
	ctx, stopAttempts := context.WithCancel(l.s.ctx)
	defer stopAttempts()
	results := make(chan renewal)
	lastStarted := granted
	next := time.NewTimer(time.Until(granted.Add(l.plan.Period)))
	defer next.Stop()
	tick := time.NewTicker(lookEvery / 2)
	defer tick.Stop()
	lastLook := granted
	looked := make(chan bool, 1) // whether etcd knew the lease
	looking := false
	troubled := false // the last attempt failed, or is late

	for {
		verdict := l.verdict()
		if verdict == leaseOver {
			break
		}
		select {
		case <-l.s.ctx.Done():
		case <-l.wake:
		case <-next.C:
			if verdict != leaseRenew {
				continue
			}
			attempts := 1
			if troubled {
				if l.s.calls.Several() {
					attempts = 2
				}
				l.risk()
			}
			started := time.Now()
			lastStarted = started
			for range attempts {
				l.s.spawn(func() { l.renew(ctx, started, results) })
			}
			troubled = true // until its answer comes
			next.Reset(l.plan.Late())
		case r := <-results:
			if r.err != nil {
				l.renewalFailed(r.err)
				next.Reset(attempt.Jitter(l.plan.Again()))
			} else if r.started.Equal(lastStarted) {
				troubled = false
				rtt := time.Since(r.started)
				next.Reset(time.Until(r.started.Add(l.plan.Next(rtt))))
			}
		case <-tick.C:
		case known := <-looked:
			looking = false
			if !known && !troubled {
				next.Reset(0) // a renewal tells for certain
			}
		}
		if !looking && l.lookDue(lastLook) {
			sent := time.Now()
			lastLook, looking = sent, true
			l.s.spawn(func() {
				looked <- l.look(ctx, sent)
			})
		}
	}
	stopAttempts()
	l.revoke()
}

// A verdict is what the keeper is to do with its lease.
type verdict int

const (
	leaseRenew verdict = iota // it is needed, or may be soon
	leaseWait                 // it has ended, but keys may be left on it
	leaseOver                 // revoke it
)

// verdict decides what becomes of the lease. Once it has said leaseOver nothing
// uses the lease again.
func (l *lease) verdict() verdict {
	s := l.s
	s.mu.Lock()
	defer s.unlock()
	now := time.Now()
	l.checkLocked(now)
	unused := l.users == 0
	switch {
	case s.closed && l.releases > 0 && l.ended == nil && s.ctx.Err() == nil:
		return leaseRenew // a key that a revocation took away would look lost
	case s.closed:
		l.endLocked(ErrClosed)
	case l.ended != nil:
		// The loser may not have stopped yet: its key goes when it unlocks, or
		// when the lease expires in etcd.
		if !unused && now.Before(l.trust.Until().Add(l.ttl).Add(l.ttl)) {
			return leaseWait
		}
	case unused && l.retired != nil:
		l.endLocked(l.retired)
	case unused && !now.Before(l.idleSince.Add(l.ttl).Add(l.ttl)):
		l.endLocked(errLeaseUnused)
	default:
		return leaseRenew
	}
	return leaseOver
}

// renew is one attempt to renew the lease. It reports to the keeper, unless that
// has stopped.
func (l *lease) renew(ctx context.Context, started time.Time, results chan<- renewal) {
	s := l.s
	// Bounded, since clientv3 tries again for ever while etcd is unavailable.
	bounded, cancel := context.WithTimeout(ctx, min(l.ttl/4*3, l.plan.Span))
	defer cancel()
	unreachable := s.calls.CancelWhenUnreachable(bounded, cancel)
	era := s.era.Load()
	var sent *trust.Attempt
	l.renewals(func(t *trust.Trust) { sent = t.Sends(started, era) })
	resp, err := s.keepAlive(bounded, l.id)
	if err != nil && (attempt.Refused(err) || errors.Is(err, attempt.ErrUnreachable)) {
		l.renewals(func(t *trust.Trust) { t.Fails(sent) }) // or was not even sent
	}
	cancel()
	if cut := <-unreachable; err != nil && cut {
		err = attempt.ErrUnreachable
	}
	if err == nil {
		s.calls.Alive()
		if l.confirmed(sent, era, resp) {
			err = l.ask(ctx, sent)
		}
	}
	if err == nil {
		if t := s.cfg.trace; t != nil && t.LeaseRenewed != nil {
			roundTrip := time.Since(started)
			s.hooks.run(func() { t.LeaseRenewed(l.id, roundTrip) })
		}
	}
	select {
	case results <- renewal{started: started, err: err}:
	case <-ctx.Done():
	}
}

// renewals is trustLocked for callers that do not hold mu.
func (l *lease) renewals(change func(t *trust.Trust)) {
	l.s.mu.Lock()
	defer l.s.unlock()
	l.trustLocked(change)
}

// confirmed extends the trust by a renewal that etcd has confirmed, as far as its word goes. It
// reports whether to ask for more.
func (l *lease) confirmed(sent *trust.Attempt, era *era, resp *clientv3.LeaseKeepAliveResponse) (ask bool) {
	s := l.s
	known := era.term.Load()
	s.heard(resp.ResponseHeader, era, 0) // it may be of a member that is behind
	if s.era.Load() != era {
		known = 0
	}
	l.renewals(func(t *trust.Trust) {
		ask = t.Answered(time.Now(), sent, trust.Confirmation{
			Member: resp.GetMemberId(), Term: resp.GetRaftTerm(), TTL: time.Duration(resp.TTL) * time.Second,
		}, known)
	})
	return ask
}

// ask finds out what a confirmed renewal is worth, by a linearizable read, if that matters: nobody
// relies on a lease that has no key. Where no answer comes the next renewal may do better.
func (l *lease) ask(ctx context.Context, sent *trust.Attempt) error {
	s := l.s
	ctx, cancel := context.WithTimeout(ctx, s.calls.Timeout())
	defer cancel()
	s.mu.Lock()
	key := ""
	for _, p := range l.places {
		if p.rev != 0 && !p.gone {
			key = p.key
			break
		}
	}
	s.unlock()
	if key == "" {
		return nil
	}
	_, err := s.get(ctx, key, clientv3.WithCountOnly())
	s.mu.Lock()
	defer s.unlock()
	switch {
	case err == nil && sent.Open():
		return errDeposed
	case l.plan.AtRisk(l.trust.Remaining(time.Now())):
		return err
	default:
		return nil
	}
}

// proved has all leases count a linearizable answer, to a request that was sent as said.
func (s *Session) proved(sent asking, term uint64) {
	if s.doubts.Load() == 0 {
		return // the usual case needs no lock
	}
	s.mu.Lock()
	defer s.unlock()
	var present any // in no era, if the present one began since
	if sent.era == s.era.Load() {
		present = sent.era
	}
	for l := range s.leases {
		l.trustLocked(func(t *trust.Trust) { t.Proved(sent.at, present, term) })
	}
}

// renewalFailed notes that an attempt failed. Only etcd's word that the lease does
// not exist ends it; any other failure leaves it to its time, a refusal too, which an
// operator may take back.
func (l *lease) renewalFailed(err error) {
	s := l.s
	s.mu.Lock()
	defer s.unlock()
	switch {
	case attempt.Is(err, rpctypes.ErrLeaseNotFound):
		l.endLocked(because(ErrLeaseRevoked, err))
	case attempt.Refused(err):
		l.refusal = err
	}
	s.log(slog.LevelWarn, "lease not renewed", "lease", l.hex(), "error", err,
		"remaining", time.Until(l.trust.Until()))
	if t := s.cfg.trace; t != nil && t.RenewalFailed != nil {
		s.hooks.run(func() { t.RenewalFailed(l.id, err) })
	}
}

// risk gives up what lingers on the lease, whose renewal is late, and tells of it if less
// than half of the trust remains: where etcd is silent nothing fails, and the loss would
// be the first that anybody hears.
func (l *lease) risk() {
	s := l.s
	s.mu.Lock()
	defer s.unlock()
	l.giveWayLocked()
	remaining := time.Until(l.trust.Until())
	if !l.plan.AtRisk(remaining) || l.ended != nil {
		return
	}
	s.log(slog.LevelWarn, "lease at risk", "lease", l.hex(), "remaining", remaining)
	if t := s.cfg.trace; t != nil && t.LeaseAtRisk != nil {
		s.hooks.run(func() { t.LeaseAtRisk(l.id, remaining) })
	}
}

// lookDue reports whether it is time to look at the lease's keys: when a place is
// older than lookEvery and held, unless there are many; and once per renewal period anyway,
// for keys that should not be there, unless that is shorter than lookEvery.
func (l *lease) lookDue(last time.Time) bool {
	l.s.mu.Lock()
	defer l.s.unlock()
	now := time.Now()
	switch {
	case l.ended != nil:
		return false
	case l.suspect && now.Sub(last) >= lookEvery/2: // else the tick comes soon
		return true
	case now.Sub(last) >= max(l.plan.Period, min(l.ttl/3, lookEvery)):
		return true
	case len(l.places) > manyPlaces || now.Sub(last) < lookEvery:
		return false
	}
	for _, p := range l.places {
		if p.hold == nil && !p.lingersLocked() {
			continue // whoever waits re-checks its own key
		}
		if p.rev != 0 && now.Sub(p.since) >= lookEvery {
			return true
		}
	}
	return false
}

// look compares the lease's keys in etcd with those that the Session accounts for.
// It reports false if etcd seems not to know the lease.
//
// The answer is neither linearizable nor versioned, so nothing is done on its word
// alone. A key that is missing is read before its place is given up; only places
// that were taken before the look was sent are judged. A key that nobody accounts
// for, the late copy of a request, is read and then deleted by its create revision.
func (l *lease) look(ctx context.Context, sent time.Time) (known bool) {
	s := l.s
	if s.calls.Disconnected() {
		return true // clientv3 would try many times a second
	}
	ctx, cancel := context.WithTimeout(ctx, s.calls.Timeout())
	defer cancel()
	s.mu.Lock()
	suspicious := l.suspect
	l.suspect = false
	s.unlock()
	era := s.era.Load()
	revision := era.revision.Load()
	resp, err := s.client.TimeToLive(ctx, l.id, clientv3.WithAttachedKeys())
	if err != nil {
		return true // the renewals tell
	}
	s.heard(resp.ResponseHeader, era, 0)
	// A member that is behind says less, too. A read tells.
	suspicious = suspicious || resp.GetRevision() < revision
	known = resp.TTL >= 0 // -1 is the answer for a lease that does not exist
	var missing []*place
	var strays []string
	s.mu.Lock()
	present := make(map[string]bool, len(resp.Keys))
	for _, key := range resp.Keys {
		present[string(key)] = true
		if p := l.places[string(key)]; p == nil || p.gone {
			strays = append(strays, string(key))
		}
	}
	for key, p := range l.places {
		// Under a doubtful name the key may be there again, put by a late request; after a
		// set-back, that of an earlier hold.
		doubtful := !present[key] || p.doubt || suspicious && p.hold != nil && len(missing) < manyPlaces
		if p.rev != 0 && !p.gone && p.since.Before(sent) && doubtful {
			missing = append(missing, p)
		}
	}
	s.unlock()

	// What users attach to the lease is theirs.
	strays = slices.DeleteFunc(strays, func(key string) bool { return !l.hasDrawn(key) })
	// After an error the next look tries again.
	_ = s.readKeys(ctx, keysOf(missing), s.readOnce, func(from int, read []line.Entry) {
		l.confirmMissing(missing[from:], read, known, era)
	})
	_ = s.readKeys(ctx, strays, s.readOnce, func(_ int, read []line.Entry) { l.sweep(ctx, read) })
	return known
}

// keysOf are the keys of places.
func keysOf(places []*place) []string {
	keys := make([]string, len(places))
	for i, p := range places {
		keys[i] = p.key
	}
	return keys
}

// confirmMissing gives up those places whose keys are not what was read of them in an era.
// known says whether etcd seems to know the lease: if not, the keys went with it.
func (l *lease) confirmMissing(places []*place, read []line.Entry, known bool, sent *era) {
	l.s.mu.Lock()
	defer l.s.unlock()
	for i, e := range read {
		p := places[i]
		gone := e.Rev != p.rev
		if gone && e.Rev != 0 { // another key of that name is in the way
			l.suspectLocked()
		}
		switch {
		case gone && !known:
			p.taken = ErrLeaseRevoked
		case gone:
		case e.Lease != int64(l.id):
			p.taken = ErrKeyOverwritten
		default:
			if p.hold != nil && p.hold.cause == nil && sent == l.s.era.Load() {
				p.era = sent // who waits has to read the line, too
			}
			continue
		}
		p.lostLocked()
	}
}

// accountsForLocked reports whether e may be the key of a place. That of a place whose own key
// is gone is an earlier one of that name, which a set-back of etcd has brought back.
func (l *lease) accountsForLocked(e line.Entry) bool {
	p := l.places[e.Key]
	return p != nil && (!p.gone || p.rev == e.Rev)
}

// sweep deletes those keys of the lease that no place of the Session accounts for.
func (l *lease) sweep(ctx context.Context, read []line.Entry) {
	s := l.s
	for _, e := range read {
		if e.Lease != int64(l.id) {
			continue
		}
		s.mu.Lock()
		accounted := l.accountsForLocked(e) // its name was taken again since the look
		if !accounted {
			l.retireLocked(errLeaseDoubtful)
		}
		s.unlock()
		if accounted {
			continue
		}
		err := s.deleteEntry(ctx, e)
		s.log(slog.LevelWarn, "removed a key that a late request had put", "key", e.Key, "revision", e.Rev, "error", err)
	}
}

// deleteEntry deletes the very key that was read.
func (s *Session) deleteEntry(ctx context.Context, e line.Entry) error {
	_, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.Key), "=", e.Rev)).
		Then(clientv3.OpDelete(e.Key)).
		Commit()
	return err
}

// A reader reads by a transaction.
type reader func(context.Context, []clientv3.Op) (*clientv3.TxnResponse, error)

// readOnce is one attempt.
func (s *Session) readOnce(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	return s.txn(ctx, nil, ops, nil)
}

// readUntilAnswered tries until etcd answers or refuses, or ctx ends.
func (s *Session) readUntilAnswered(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	return read(ctx, s, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.readOnce(ctx, ops)
	}, func(error) error { return nil })
}

// readKeys reads keys, linearizably, and calls got with what it read of keys[from:], part by
// part. The entry of a key that is not there has no revision.
//
// A part is as large as etcd takes, which it remembers for the Session. Keys that the user
// may not read it finds by halving the part that has them, and leaves them out: the error
// then says so, and tells nothing of the others.
func (s *Session) readKeys(ctx context.Context, keys []string, by reader, got func(from int, read []line.Entry)) error {
	most := s.opsAllowed(manyOps)
	size := most
	var refusal error
	unreadable := 0
	for from := 0; from < len(keys); {
		part := keys[from:min(from+size, len(keys))]
		ops := make([]clientv3.Op, len(part))
		for i, key := range part {
			ops[i] = clientv3.OpGet(key)
		}
		resp, err := by(ctx, ops)
		switch {
		case err == nil:
			read := make([]line.Entry, len(part))
			for i, key := range part {
				read[i], _ = line.Find(resp.Responses[i].GetResponseRange().GetKvs(), key)
			}
			got(from, read)
			from += len(part)
			size = min(2*size, most)
		case len(part) > 1 && attempt.Is(err, rpctypes.ErrTooManyOps):
			most = s.opsAllowed(len(part) / 2)
			size = most
		case len(part) > 1 && attempt.Is(err, rpctypes.ErrPermissionDenied):
			size = len(part) / 2
		case attempt.Is(err, rpctypes.ErrPermissionDenied) && unreadable < maxUnreadable:
			unreadable++
			refusal = err
			s.tellUnreadable(part[0], err)
			from++
		default:
			return err
		}
	}
	return refusal
}

// opsAllowed is how many keys may be read in one transaction, which are at most so many.
func (s *Session) opsAllowed(most int) int {
	s.mu.Lock()
	defer s.unlock()
	if most < s.mostOps {
		if s.mostOps == manyOps { // it is told once
			s.log(slog.LevelWarn, "etcd takes few operations in one transaction", "most", most)
		}
		s.mostOps = most
	}
	return s.mostOps
}

// tellUnreadable tells once that the user may not read a key of the Session's.
func (s *Session) tellUnreadable(key string, err error) {
	s.mu.Lock()
	defer s.unlock()
	if !s.unreadable {
		s.unreadable = true
		s.log(slog.LevelWarn, "a key cannot be looked at", "key", key, "error", err)
	}
}

// draw returns a new name for a key of the lock name, on l. Only this Session can have drawn
// it: the second half of the UUID follows from the first one and from a secret. So the keys
// that late requests of the Session put are known from those of its user for certain, and
// nobody has to remember them.
func (l *lease) draw(name string) (key string) {
	return line.Key(name, l.sign(uuid.New(), name))
}

// hasDrawn reports whether key comes from draw.
func (l *lease) hasDrawn(key string) bool {
	name, id, ok := line.ParseKey(key)
	return ok && l.sign(id, name) == id
}

// sign returns id with the second half that the lease's Session makes of the first one.
func (l *lease) sign(id uuid.UUID, name string) uuid.UUID {
	signature := uuid.NewSHA1(l.s.secret, fmt.Appendf(id[:8:8], "%x/%s", int64(l.id), name))
	copy(id[8:], signature[8:]) // with the bits that tell the variant
	return id
}

// revoke gives the lease back, and with it every key that is left. It tries until
// etcd confirms, the lease must have expired, or the Session ends.
//
// A key that somebody has put over, with another lease or none, does not go with the lease.
// (Do not take the end of the lease for the end of its keys. TestCloseLeavesNoKeyThatWasPutOver.)
func (l *lease) revoke() {
	l.endContexts()
	s := l.s
	revoke := func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return s.client.Revoke(ctx, l.id)
	}
	expired := time.Now().Add(l.ttl).Add(l.ttl)
	retry := attempt.Backoff{Eager: true}
	var err error
	for {
		_, _, err = attempt.Do(s.ctx, s.calls, &retry, s.calls.Timeout(), revoke)
		if err == nil || attempt.Is(err, rpctypes.ErrLeaseNotFound) || attempt.Refused(err) || s.clientClosed() || time.Now().After(expired) {
			break
		}
		if retry.Wait(s.ctx, s.calls) != nil {
			break
		}
	}
	if err == nil || attempt.Is(err, rpctypes.ErrLeaseNotFound) {
		s.log(slog.LevelDebug, "lease given back", "lease", l.hex())
		err = l.removeRest(time.Now().Add(l.ttl))
	} else {
		s.log(slog.LevelWarn, "lease not revoked; it expires by itself", "lease", l.hex(), "error", err)
	}
	s.mu.Lock()
	defer s.unlock()
	delete(s.leases, l)
	s.doubts.Add(int64(-l.doubts))
	l.revoked = err == nil
	s.afterLocked(l.bury)
	if err != nil && (s.closed || l.leavesLocked()) {
		s.left = err
	}
}

// leavesLocked reports whether a key that nobody tries to remove any more may outlive the
// lease.
func (l *lease) leavesLocked() bool {
	for _, p := range l.places {
		if p.gone && p.stuck {
			return true
		}
	}
	return false
}

// removeRest removes those of the Session's keys on the lease that its end has not removed. It
// asks for all that the Session accounts for, which are none if nothing was held.
func (l *lease) removeRest(until time.Time) error {
	s := l.s
	ctx, cancel := context.WithDeadline(s.ctx, until)
	defer cancel()
	s.mu.Lock()
	places := slices.Collect(maps.Values(l.places))
	revs := make([]int64, len(places))
	for i, p := range places {
		revs[i] = p.rev
	}
	s.unlock()
	var rest []line.Entry
	err := s.readKeys(ctx, keysOf(places), s.readUntilAnswered, func(from int, read []line.Entry) {
		for i, e := range read {
			if rev := revs[from+i]; e.Rev != 0 && (rev == 0 || rev == e.Rev) {
				rest = append(rest, e)
			}
		}
	})
	for _, e := range rest {
		_, failure := read(ctx, s, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.deleteEntry(ctx, e)
		}, func(error) error { return nil })
		if failure != nil {
			err = failure
		}
	}
	if err != nil {
		s.log(slog.LevelWarn, "keys may have outlived their lease", "lease", l.hex(), "error", err)
	}
	return err
}

// keepAlive renews a lease once. It sends nothing while there is no connection.
func (s *Session) keepAlive(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	if s.calls.Disconnected() {
		return nil, attempt.ErrUnreachable
	}
	return s.client.KeepAliveOnce(ctx, id)
}

// tellUnavailable tells Trace and Logger that etcd does not answer, and for how long.
func (s *Session) tellUnavailable(reason error, silent time.Duration) {
	var endpoints []string
	if s.client.ActiveConnection() != nil {
		endpoints = s.client.Endpoints()
	}
	s.log(slog.LevelWarn, "etcd does not answer", "endpoints", endpoints, "error", reason, "silent", silent)
	if t := s.cfg.trace; t != nil && t.Unavailable != nil {
		err := &opError{text: reason.Error(), wraps: []error{ErrUnavailable, reason}}
		s.hooks.run(func() { t.Unavailable(err, silent) })
	}
}

// clientClosed reports whether the client was closed, after which nothing works.
func (s *Session) clientClosed() bool {
	ctx := s.client.Ctx()
	return ctx != nil && ctx.Err() != nil
}

// log tells l, if there is one, in its turn: like a hook, a handler that blocks holds
// up no lock.
func (s *Session) log(level slog.Level, message string, args ...any) {
	s.cfg.tell(&s.hooks, level, message, args)
}
