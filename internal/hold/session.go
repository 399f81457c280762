package hold

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
	"weak"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// keptLines is the number of lines from which on a session drops unused ones.
const keptLines = 1024

// A Session is what a Session of the API consists of: its connection, its leases, its keys, and
// its local lines.
type Session struct {
	// Set once, then only read.
	cfg    *Config
	etcd   *etcd.Conn
	leases *lease.Pool
	ctx    context.Context // of all goroutines
	cancel context.CancelFunc
	keys   *queue.Keys
	tasks  *guard.Group // all goroutines, for which Close waits; ARCHITECTURE.md has a row of each
	hooks  events.Queue // to the user's Trace and Logger

	clientClosed atomic.Bool // it was logged that the client is closed

	// mu guards what follows and the mutable state of every lease, line, place
	// and hold of the session.
	mu          guard.Mutex
	lines       map[string]*localLine
	inOrder     lineOrder // the same
	waits       lasting   // the claims that wait
	marked      markedLines
	backLogged  time.Time // when it was last logged that etcd was set back
	closing     guard.Closing
	stays       map[*stay]struct{}
	leftoverErr error // why a lease was not given back from Close on, nil if all were
}

// New returns a Session that has a config. It does no I/O.
func New(client *clientv3.Client, cfg *Config) *Session {
	s := &Session{cfg: cfg, lines: make(map[string]*localLine), stays: make(map[*stay]struct{})}
	s.mu.Settler = &s.marked
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tasks = new(guard.Group)
	s.etcd = etcd.New(s.ctx, client, cfg.TTL, &s.mu, s.tasks, (*listener)(s))
	s.keys = queue.New(s.ctx, s.etcd, &s.mu, s.tasks, queue.Config{
		TTL: cfg.TTL, RestoreDelay: cfg.RestoreDelay,
		Closed: errs.Closed, Lines: (*listener)(s), Log: s.log,
	})
	s.leases = lease.NewPool(s.ctx, s.etcd, &s.mu, s.tasks, lease.Config{
		TTL:           cfg.TTL,
		Adopt:         cfg.Adopt,
		Margin:        cfg.MarginOf,
		TenantsLocked: s.keys.TenantsLocked,
		Error:         errs.OfLease,
		Hooks:         hooksOfLeases(s),
	})
	s.keys.Leases = s.leases
	if cfg.Opened != nil {
		cfg.Opened(s)
	}
	return s
}

// Config is what s was made with.
func (s *Session) Config() *Config { return s.cfg }

// Conn has the requests of s.
func (s *Session) Conn() *etcd.Conn { return s.etcd }

// Lease is the lease that the next hold will be bound to, clientv3.NoLease if there is none.
func (s *Session) Lease() clientv3.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases.CurrentLocked(); l != nil {
		return l.ID
	}
	return clientv3.NoLease
}

// IsClosed reports whether Close was called.
func (s *Session) IsClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases.ClosedLocked()
}

// log logs a record in order with the hooks: a handler that blocks does not hold up a
// lock.
func (s *Session) log(level slog.Level, message string, args ...any) {
	s.tell(s.cfg, level, message, args)
}

// hooksOfLeases are the hooks of s for what happens to its leases, and what its log says of that.
func hooksOfLeases(s *Session) lease.Hooks {
	h, q, none := s.cfg.Hooks, &s.hooks, context.Background()
	return lease.Hooks{
		Granted: func(id clientv3.LeaseID, ttl time.Duration) {
			report(q, h.LeaseGranted, none, LeaseGranted{id, ttl})
		},
		Renewed: func(id clientv3.LeaseID, roundTrip time.Duration) {
			report(q, h.LeaseRenewed, none, LeaseRenewed{id, roundTrip})
		},
		RenewalFailed: func(l *lease.Lease, err error, remaining time.Duration) {
			var why error // none is what all renewals have that are late
			if attempt.Refused(err) {
				why = err
			}
			s.warnOf(s.cfg, l.ID, why, "lease not renewed", "lease", l.Hex(), "error", err,
				"remaining", remaining)
			report(q, h.RenewalFailed, none, RenewalFailed{l.ID, err})
		},
		AtRisk: func(l *lease.Lease, remaining time.Duration) {
			s.warnOf(s.cfg, l.ID, nil, "lease at risk", "lease", l.Hex(), "remaining", remaining)
			report(q, h.LeaseAtRisk, none, LeaseAtRisk{l.ID, remaining})
		},
		Replaced: func(old clientv3.LeaseID, why error) {
			report(q, h.LeaseReplaced, none, LeaseReplaced{old, why})
		},
		Log: s.log,
	}
}

// warnOf logs a warning about of, for a reason, by the logger of a config. It is about the ID of a
// lease, a key, or a weak pointer to a Session. Of many such of a client, for one reason, the
// logger gets one warning at a time.
//
// (Do not keep what the warning is about. What the Sessions of a client share would keep the
// client. TestAClientIsForgottenWithItsSessions.)
func (s *Session) warnOf(cfg *Config, of any, why error, message string, args ...any) {
	if cfg.Logger == nil {
		return
	}
	kind := struct {
		logger weak.Pointer[slog.Logger]
		why    string
	}{weak.Make(cfg.Logger), fmt.Sprintf("%T: %v", of, why)}
	level := slog.LevelWarn
	also, warns := s.etcd.Warns(kind, of)
	if !warns {
		level = slog.LevelDebug
	}
	if also > 0 {
		args = append(args, "also", also)
	}
	s.tell(cfg, level, message, args)
}

// tell is log, by the logger of a config. Once the client is closed all that fails has that reason:
// it is one warning, however many holds there are.
func (s *Session) tell(cfg *Config, level slog.Level, message string, args []any) {
	if level >= slog.LevelWarn && s.etcd.Closed() {
		if cfg.Logger == nil || s.clientClosed.Swap(true) {
			return
		}
		message = "the client was closed before its Session: no lease is renewed or given back"
		args = []any{"error", attempt.ErrClientClosed}
	}
	cfg.tell(&s.hooks, level, message, args)
}

// A Lock is what the engine has of a Mutex, an RWMutex, a Semaphore or a name of a LockAll: its
// Session, its name and options, and what it holds.
type Lock struct {
	// Set once, then only read.
	s    *Session
	name string
	cfg  *Config

	// Guarded by s.mu, but for the load of hold.
	hold   atomic.Pointer[Hold] // the current one of a Mutex, until Unlock or Close, lost or not
	holds  list.List[*Hold]     // its own ones in which it has a Lock
	nests  map[*Hold]int        // how many Locks it has in holds of other Locks
	given  *place               // of its last key that lingered, and was given up; nil before
	waits  list.List[*claim]    // that wait
	closed bool
	ends   *lockEnd // nil before a Close, and a call of Rest

	limits map[uint16]struct{} // of a Semaphore: the limits that it has met, other than its own
}

// A lockEnd is the Close of a Lock, and what waits for it. Session.mu guards it.
type lockEnd struct {
	closing chan struct{} // closed at the end of the Close that is under way, otherwise nil
	err     error         // of that Close; written before closing is closed
	notice  chan struct{} // closed with the Lock, nil while no call of Rest has needed it
}

// endsLocked is the end of m.
func (m *Lock) endsLocked() *lockEnd {
	if m.ends == nil {
		m.ends = new(lockEnd)
	}
	return m.ends
}

// Init prepares m, for a name and options, and returns it.
func (m *Lock) Init(s *Session, name string, cfg *Config) *Lock {
	m.s, m.name, m.cfg = s, name, cfg
	return m
}

// Name is the name of the lock.
func (m *Lock) Name() string { return m.name }

// Config is what m was made with.
func (m *Lock) Config() *Config { return m.cfg }

// Hold is the current hold of a Mutex, nil if there is none.
func (m *Lock) Hold() *Hold { return m.hold.Load() }

// contender is what is known about the contenders of m before they queue.
func (m *Lock) contender() Contender {
	return Contender{Name: m.name, Value: m.cfg.value(), Self: true}
}

func (m *Lock) log(level slog.Level, message string, args ...any) {
	m.s.tell(m.cfg, level, message, args)
}
