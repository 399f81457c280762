package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/keepalive"
	"github.com/etcdlock/etcdlock/internal/trust"
)

const (
	// lookEvery is the time between audits of a lease's keys while the late copy of a request may
	// put one. The keeper checks what is due twice as often.
	lookEvery = 700 * time.Millisecond

	// manyPlaces is the number of a lease's keys above which no held key gets a watch of its
	// own: an audit of all of them, once per renewal period, costs less.
	manyPlaces = 100
)

var (
	errLeaseUnused   = errors.New("lease given back: nobody used it")
	errLeaseDoubtful = errors.New("a request with this lease may still be under way")
	errGrantTooLate  = errors.New("the granted lease was over before it could be used: safety margin too large, or etcd too slow")
	errDeposed       = errors.New("renewed by a member that does not lead any more, it seems")
)

// A lease is one etcd lease and what is known about it. It may be used as long as its trust
// lasts. Once it has ended, it has ended for good.
type lease struct {
	// Set once, then only read.
	s    *Session
	id   clientv3.LeaseID
	ttl  time.Duration      // as granted
	plan trust.Schedule     // of its renewals
	wake chan struct{}      // tells the keeper to check the state again
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
	releases  int                // releases under way, of holds that have ended whole
	ending    map[*hold]struct{} // holds that have ended while their contexts may not have
	idleSince time.Time          // when users became 0
	retired   error              // why there are no new places; nil while there may be
	ended     error              // why it is no longer trusted; nil while it is
	revoked   bool               // etcd has confirmed that it is gone, and its keys with it
	served    bool               // etcd has answered a renewal, or a put in the time of an attempt
	suspect   bool               // an audit of its keys is due now
	audited   uint               // audits that have read values
	doubted   time.Time          // when it was last learned that a copy of a put may come late
	unread    []unread           // created key watches whose keys are still to be read
	reading   bool               // that read is under way
	deleted   []*place           // places whose keys are gone and whose holds are about to end
	asking    bool               // whether the lease is gone too is being asked
	left      error              // why the last removal was given up
	renewed   struct {           // what was known when the last renewal was confirmed
		era      *era
		revision int64
	}
}

// newLease asks for a lease and makes it the current one if it can be used.
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
		s.hooks.Run(func() { t.LeaseGranted(l.id, ttl) })
	}
	if l.trust.At(time.Now()) != trust.Whole {
		l.endLocked(errGrantTooLate)
		return errGrantTooLate
	}
	s.current = l
	return nil
}

// check ends the lease if its time has passed. It may run at any time and any
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
		if !l.served && l.refusal == nil {
			l.s.barren++
		}
		l.endLocked(because(ErrExpired, l.refusal))
	case trust.Suspended:
		l.endLocked(ErrSuspended)
	}
}

// trustLocked changes the lease's trust, unless the lease has ended: a late answer revives
// nothing.
func (l *lease) trustLocked(change func(t *trust.Trust)) {
	l.checkLocked(time.Now())
	if l.ended != nil {
		return
	}
	until := l.trust.Until()
	change(l.trust)
	if l.trust.Until() != until {
		l.expiry.Reset(time.Until(l.trust.Until()))
	}
	l.s.doubts.Add(int64(l.trust.Doubts() - l.doubts))
	l.doubts = l.trust.Doubts()
}

// releasedLocked counts a release that is over. A hold that ends whole counts its release in
// the same critical section, so that Close does not revoke the lease under it.
func (l *lease) releasedLocked() {
	l.releases--
	if l.s.closed {
		l.wakeKeeper()
	}
}

// endingLocked notes that h has ended and that its contexts are about to end.
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

// retireLocked keeps new places off the lease. The lease is renewed while places
// need it, and then revoked.
func (l *lease) retireLocked(why error) {
	if why == errLeaseDoubtful {
		l.doubted = time.Now()
	}
	if l.retired != nil {
		return
	}
	l.retired = why
	if l.s.current == l {
		l.s.current = nil
		if t := l.s.cfg.trace; t != nil && t.LeaseReplaced != nil {
			l.s.hooks.Run(func() { t.LeaseReplaced(l.id, why) })
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

// servedLocked notes that etcd has answered in time under the lease.
func (l *lease) servedLocked() { l.served, l.s.barren = true, 0 }

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
		p.unwatchLocked()
		for h := range p.holdsLocked() {
			h.endLocked(h.lostWithLease(why))
		}
		p.local.admitLocked()
	}
	l.wakeKeeper()
}

func (l *lease) wakeKeeper() {
	select {
	case l.wake <- struct{}{}:
	default: // already told
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

// streamIsOver reports whether a renewal failed because its stream ended, and not because of what
// etcd says about the lease. A stream that has answered before ends when its member stops, or with
// its token.
func streamIsOver(err error) bool {
	return errors.Is(err, keepalive.ErrStreamEnded) &&
		(!attempt.Refused(err) || isOfToken(err))
}

// A destination is where the renewals of a stream go: a client may be moved to another cluster.
type destination struct {
	era       *era
	endpoints string
}

func (s *Session) destination(of *era) destination {
	d := destination{era: of}
	if s.client.ActiveConnection() != nil {
		d.endpoints = strings.Join(s.client.Endpoints(), " ")
	}
	return d
}

// keep is the keeper: it renews the lease, audits its keys and finally revokes it.
// It runs from the grant until no put can apply under the lease any more.
//
// Renewals are separate attempts on a stream that stays open. One is sent in each period of the
// schedule. If its answer takes longer than half a period, or does not come at all, more are
// sent, each on its own stream, and two at a time if there are several endpoints, so that one
// dead endpoint cannot get them all. No attempt outlives the trust that it could give: later its
// answer would be useless.
func (l *lease) keep(granted time.Time) {
	ctx, stopAttempts := context.WithCancel(l.s.ctx) // and the streams
	defer stopAttempts()
	sender := keepalive.NewSender(ctx, l.s.client, l.id, l.s.spawn)
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
			lastStarted = time.Now()
			r := keepalive.Renewal{Sent: lastStarted, Anew: troubled}
			for range attempts {
				l.s.spawn(func() { l.renew(ctx, sender, r, results) })
			}
			troubled = true // until its answer comes
			next.Reset(l.plan.Late())
		case r := <-results:
			last := r.started.Equal(lastStarted)
			switch {
			case last && streamIsOver(r.err):
				troubled = false
				next.Reset(0) // on another stream, which reports its own result
			case r.err != nil:
				l.renewalFailed(r.err)
				next.Reset(attempt.Jitter(l.plan.Again()))
			case last:
				troubled = false
				rtt := time.Since(r.started)
				next.Reset(time.Until(r.started.Add(l.plan.Next(rtt))))
			}
		case <-tick.C:
			l.watchHolds()
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

// verdict decides what happens to the lease. Once it has returned leaseOver nothing
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
		return leaseRenew // a key that goes with a revoked lease would look lost
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
func (l *lease) renew(
	ctx context.Context, sender *keepalive.Sender, r keepalive.Renewal, results chan<- renewal,
) {
	s, started := l.s, r.Sent
	bounded, cancel := context.WithTimeout(ctx, min(l.ttl/4*3, l.plan.Span))
	defer cancel()
	unreachable := s.calls.CancelWhenUnreachable(bounded, cancel)
	era := s.era.Load()
	r.Where = s.destination(era)
	var sent *trust.Attempt
	l.renewals(func(t *trust.Trust) { sent = t.Sends(started, era) })
	var resp *pb.LeaseKeepAliveResponse
	err := attempt.ErrUnreachable
	if !s.calls.Disconnected() { // else gRPC would wait for a connection
		resp, err = sender.Renew(bounded, r)
	}
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
			s.hooks.Run(func() { t.LeaseRenewed(l.id, roundTrip) })
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

// confirmed extends the trust by a renewal that etcd has confirmed, as far as that answer is worth.
// It reports whether a read has to find out more.
func (l *lease) confirmed(
	sent *trust.Attempt, era *era, resp *pb.LeaseKeepAliveResponse,
) (ask bool) {
	s := l.s
	known := era.term.Load()
	s.heard(resp.Header, era, 0) // it may be of a member that is behind
	if s.era.Load() != era {
		known = 0
	}
	l.renewals(func(t *trust.Trust) {
		l.refusal = nil
		l.servedLocked()
		l.comparedLocked(era, resp.Header.GetRevision())
		ask = t.Answered(time.Now(), sent, trust.Confirmation{
			Member: resp.Header.GetMemberId(), Term: resp.Header.GetRaftTerm(),
			TTL: time.Duration(resp.TTL) * time.Second,
		}, known)
	})
	return ask
}

// comparedLocked makes an audit due if a renewal's answer has a revision below the one known at
// the renewal before, in the same era: that member is far behind, or etcd was set back.
func (l *lease) comparedLocked(told *era, revision int64) {
	if l.renewed.era == told && revision < l.renewed.revision {
		l.suspectLocked()
	}
	l.renewed.era, l.renewed.revision = told, told.revision.Load()
}

// ask finds out by a linearizable read what a confirmed renewal is worth, if that matters: nobody
// relies on a lease that has no key. If no answer comes, the next renewal may do better.
func (l *lease) ask(ctx context.Context, sent *trust.Attempt) error {
	s := l.s
	ctx, cancel := context.WithTimeout(ctx, s.calls.Timeout())
	defer cancel()
	s.mu.Lock()
	key := ""
	for _, p := range l.places {
		if p.ticket.Rev() != 0 && !p.ticket.Lost() {
			key = p.ticket.Key
			break
		}
	}
	s.unlock()
	if key == "" {
		return nil
	}
	retry := attempt.Backoff{Urgent: true} // one member may be silent, the one of the renewal or another
	_, _, err := attempt.Do(ctx, s.calls, &retry, attempt.ReadTimeout,
		func(ctx context.Context) (*clientv3.GetResponse, error) {
			return s.get(ctx, key, clientv3.WithCountOnly())
		})
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

// proved tells all leases about a linearizable answer to a request that was sent as said.
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

// renewalFailed notes that an attempt failed. The lease ends only if etcd says that it does
// not exist. After any other failure it runs until its trust ends. That includes a refusal,
// which an operator may take back.
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
		s.hooks.Run(func() { t.RenewalFailed(l.id, err) })
	}
}

// risk gives up what lingers on the lease, whose renewal is late, and reports it if less
// than half of the trust remains: while etcd is silent nothing fails, and otherwise the loss
// would be the first report.
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
		s.hooks.Run(func() { t.LeaseAtRisk(l.id, remaining) })
	}
}
