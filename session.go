package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/events"
)

const (
	// minSweep is the number of lines a Session keeps before it drops unused ones.
	minSweep = 1024

	// closeGrace is how long Close takes if its context ended before the call.
	closeGrace = 50 * time.Millisecond
)

// errClientClosed is what the attempts of a closed client return.
var errClientClosed = attempt.ErrClientClosed

// A Session is one lease, kept alive, that any number of Mutexes share. It is
// safe for concurrent use. Use one Session for many names: they then cost one
// lease, one renewal per third of the TTL, and one watch for each name that is held for more
// than a second, if the Session holds at most a hundred. They also share
// one fate: if the lease is lost, all of them are.
//
// A Session stays usable through any outage: it replaces a lost lease for the
// next acquisition. When nothing was held or waited for during two TTLs
// it gives the lease back by itself and has no goroutine until it is used again.
type Session struct {
	// Set once, then only read.
	client *clientv3.Client
	cfg    *config
	stream *stream         // of watches
	ctx    context.Context // of all goroutines
	cancel context.CancelFunc
	doubts atomic.Int64        // renewals of all leases whose worth is not certain
	secret uuid.UUID           // marks the names of the keys that it puts
	hooks  events.Queue        // to the user's Trace and Logger
	calls  *attempt.Caller     // of etcd
	era    atomic.Pointer[era] // the present one, changed under mu

	// mu guards what follows and the mutable state of every lease, line, place
	// and hold of the Session. It is never held across a call to etcd, to the
	// user's code, or to the cancel function of a context; see unlock.
	mu         sync.Mutex
	current    *lease // for new places, nil if there is none
	granting   *grant // under way, or nil; it owns grantRetry
	grantRetry attempt.Backoff
	barren     int // leases in a row that ran out before etcd answered anything under them
	leases     map[*lease]struct{}
	lines      map[string]*localLine
	verifying  bool            // holds of an earlier era are being read
	backLogged time.Time       // when it was last logged that etcd was set back
	sweepAt    int             // size of lines at which unused ones are dropped
	after      []func()        // for unlock to call
	tasks      int             // goroutines running
	quiet      []chan struct{} // closed when tasks reaches 0
	closed     bool
	closing    int   // calls that wait until it is
	left       error // why Close could not revoke a lease, or remove a key
	mostOps    int   // how many keys etcd lets one transaction read, as far as is known
	unreadable bool  // a key that the user may not read was logged
}

// NewSession returns a Session. It validates the options and does no I/O. The
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
// of the same name exclude each other, whichever Session they are from. WithTTL and
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
			return nil, fmt.Errorf("etcdlock: %s is for New and NewSession, not for Session.Mutex",
				changed.leaseOption)
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

// Lease returns the lease that the next hold will be bound to, or clientv3.NoLease
// before the first use, after Close and while a lost lease is not replaced yet. A
// lease is replaced after a loss, after a request whose outcome is unknown, and when
// it was not used for two TTLs; any other key attached to it goes with it.
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
// One read per hundred holds then shows whether somebody has put over a key: such a key
// does not go with the lease, so Close removes it too.
//
// It returns nil if nothing is left behind, and when the Session was closed
// before. Of several calls at once each waits within its own ctx. An error that is
// [ErrUnconfirmed] says that etcd did not confirm in time: the Session is closed all
// the same, its lease is no longer renewed, and its keys go within the TTL, except a key that
// somebody has put over. If ctx ended before the call, Close takes 50 ms at most; if ctx
// never ends, two TTLs.
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
		s.unwatchLastLocked(l)
		for c := range l.queue.Having() {
			if h := c.hold; h != nil {
				h.closeWithSessionLocked()
			}
		}
	}
	for l := range s.leases {
		l.wakeKeeper()
	}
}

// longestTTL is the longest granted TTL of the Session's leases, or the TTL that it asks for.
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
// last call that waits for it has no time left.
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

// isLastClosing reports whether no other call waits until the Session is closed. Otherwise the
// caller stops waiting here too.
func (s *Session) isLastClosing() bool {
	s.mu.Lock()
	defer s.unlock()
	if s.closing == 1 {
		return true
	}
	s.closing--
	return false
}

// afterLocked makes unlock call f once mu is unlocked: cancelling a context runs code that
// may come back here.
func (s *Session) afterLocked(f func()) { s.after = append(s.after, f) }

// unlock unlocks mu, and then calls what afterLocked was given. It follows every
// mu.Lock.
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
//	stream           a renewal             when another has taken its place, its renewal has had
//	                                       its time, or with the lease
//	grant            Lock without a lease  with its answer or its time, and a pause
//	connection       a grant, per lease    with the lease, once it is revoked
//	verify           etcd was set back     when every hold from before was read
//	repeat           a call unanswered     with the first answer or its time
//	report           a wait for etcd       when it has asked gRPC for the reason
//	removal          a place given up      once etcd confirms, or with the lease if the
//	                                       key goes with that
//	view             a wait in a short     when nobody has needed it for 5 s
//	                 line; WithLinger
//	partings         a permit that waits   when it waits no more
//	                 in a longer line
//	key watch        a hold that lasts     with the hold
//	key read         such watches made     when all keys were read
//	key loss         a key that is gone    when etcd has told why, in 100 ms at most
//	hooks            an event to report    when all events are reported
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

// clientClosed reports whether the client was closed. Nothing works after that.
func (s *Session) clientClosed() bool { return s.calls.Closed() }

// log logs a record in order with the hooks: a handler that blocks does not hold up a
// lock.
func (s *Session) log(level slog.Level, message string, args ...any) {
	s.cfg.tell(&s.hooks, level, message, args)
}

// tellUnavailable reports to Trace and Logger that etcd does not answer, and for how long.
func (s *Session) tellUnavailable(reason error, silent time.Duration) {
	var endpoints []string
	if s.client.ActiveConnection() != nil {
		endpoints = s.client.Endpoints()
	}
	s.log(slog.LevelWarn, "etcd does not answer", "endpoints", endpoints, "error", reason,
		"silent", silent)
	if t := s.cfg.trace; t != nil && t.Unavailable != nil {
		err := &opError{text: reason.Error(), wraps: []error{ErrUnavailable, reason}}
		s.hooks.Run(func() { t.Unavailable(err, silent) })
	}
}
