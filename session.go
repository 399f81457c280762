package etcdlock

import (
	"context"
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

	// manyOps is how many keys are read in one transaction: etcd allows 128 operations by
	// default.
	manyOps = 100
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
	closedAt   time.Time
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

// aboveSession is what stands above a Session's requests, as these know it: whose matter it is what
// an answer tells of all of etcd. It is told without mu.
type aboveSession interface {
	proved(sent asking, term uint64) // by a linearizable answer
	setBack(h header, ended *era)
	watchAnew() // the stream of the watches is silent
}

func (s *Session) above() aboveSession { return s }

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
// ARCHITECTURE.md has a table of all of them; a new one needs a row there.
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

// closedFor is how long ago the Session was closed, the longest time if it was not.
func (s *Session) closedFor() time.Duration {
	s.mu.Lock()
	defer s.unlock()
	return time.Since(s.closedAt)
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
