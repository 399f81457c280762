package etcdlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
)

// minSweep is the number of lines a Session keeps before it drops unused ones.
const minSweep = 1024

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
	cfg    *config
	etcd   *etcd.Conn
	leases *lease.Pool
	ctx    context.Context // of all goroutines
	cancel context.CancelFunc
	secret uuid.UUID    // marks the names of the keys that it puts
	tasks  *guard.Group // all goroutines, for which Close waits; ARCHITECTURE.md has a row of each
	hooks  events.Queue // to the user's Trace and Logger

	// mu guards what follows and the mutable state of every lease, line, place
	// and hold of the Session.
	mu          guard.Mutex
	accounts    accounts
	lines       map[string]*localLine
	marked      markedLines
	verifying   bool      // holds of an earlier epoch are being read
	backLogged  time.Time // when it was last logged that etcd was set back
	sweepAt     int       // size of lines at which unused ones are dropped
	closed      bool
	closing     int   // calls that wait until it is
	leftoverErr error // why Close could not revoke a lease, or remove a key
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
		cfg:      &cfg,
		accounts: make(accounts),
		lines:    make(map[string]*localLine),
		sweepAt:  minSweep,
		secret:   uuid.New(),
	}
	s.mu.Settler = &s.marked
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tasks = guard.NewGroup(&s.mu)
	s.etcd = etcd.New(s.ctx, client, cfg.ttl, &s.mu, s.tasks, (*listener)(s))
	s.leases = lease.NewPool(s.ctx, s.etcd, &s.mu, s.tasks, lease.Config{
		TTL:      cfg.ttl,
		Margin:   cfg.marginOf,
		Listener: (*listener)(s),
		Error:    leaseError,
		Hooks:    s.trace().ofLeases(s.log),
	})
	return s, nil
}

// Lease returns the lease that the next hold will be bound to, or clientv3.NoLease
// before the first use, after Close and while a lost lease is not replaced yet. A
// lease is replaced after a loss, after a request whose outcome is unknown, and when
// it was not used for two TTLs; any other key attached to it goes with it.
func (s *Session) Lease() clientv3.LeaseID {
	if s == nil || s.leases == nil {
		return clientv3.NoLease
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases.CurrentLocked(); l != nil {
		return l.ID
	}
	return clientv3.NoLease
}

// accountLocked is the account of the lease that may get new places, nil if there is none.
func (s *Session) accountLocked() *account { return s.accounts[s.leases.CurrentLocked()] }

// trace reports what happens to all of the Session.
func (s *Session) trace() tracer { return tracer{s.cfg.trace, &s.hooks} }

// log logs a record in order with the hooks: a handler that blocks does not hold up a
// lock.
func (s *Session) log(level slog.Level, message string, args ...any) {
	s.cfg.tell(&s.hooks, level, message, args)
}

// tellUnavailable reports to Trace and Logger that etcd does not answer, and for how long.
func (s *Session) tellUnavailable(reason error, silent time.Duration) {
	s.log(slog.LevelWarn, "etcd does not answer", "endpoints", s.etcd.Endpoints(), "error", reason,
		"silent", silent)
	s.trace().unavailable(reason, silent)
}
