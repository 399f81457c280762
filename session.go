package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// keptLines is the number of lines from which on a session drops unused ones.
const keptLines = 1024

// A session is what a Session consists of, as all that stands below the Session knows it.
type session struct {
	// Set once, then only read.
	cfg    *config
	etcd   *etcd.Conn
	leases *lease.Pool
	ctx    context.Context // of all goroutines
	cancel context.CancelFunc
	keys   *queue.Keys
	tasks  *guard.Group // all goroutines, for which Close waits; ARCHITECTURE.md has a row of each
	hooks  events.Queue // to the user's Trace and Logger

	// mu guards what follows and the mutable state of every lease, line, place
	// and hold of the session.
	mu          guard.Mutex
	lines       map[string]*localLine
	inOrder     list.List[*localLine] // the lines, in the order in which they are swept
	waits       list.List[*claim]     // the claims that wait
	marked      markedLines
	backLogged  time.Time // when it was last logged that etcd was set back
	closing     int       // calls that wait until it is closed
	stays       map[*stay]struct{}
	leftoverErr error // why a lease was not given back from Close on, nil if all were
}

// open prepares s for its first use by something that is given opts.
func (s *session) open(client *clientv3.Client, of use, opts []SessionOption) error {
	if err := checkClient(client); err != nil {
		return err
	}
	cfg, err := configure(defaultConfig(), of, opts)
	if err != nil {
		return err
	}
	s.cfg = &cfg
	s.lines = make(map[string]*localLine)
	s.stays = make(map[*stay]struct{})
	s.mu.Settler = &s.marked
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tasks = new(guard.Group)
	s.etcd = etcd.New(s.ctx, client, cfg.ttl, &s.mu, s.tasks, (*listener)(s))
	s.keys = queue.New(s.ctx, s.etcd, &s.mu, s.tasks, queue.Config{
		TTL: cfg.ttl, Closed: ErrClosed, Lines: (*listener)(s), Log: s.log,
	})
	s.leases = lease.NewPool(s.ctx, s.etcd, &s.mu, s.tasks, lease.Config{
		TTL:           cfg.ttl,
		Margin:        cfg.marginOf,
		TenantsLocked: s.keys.TenantsLocked,
		Error:         leaseError,
		Hooks:         cfg.trace.ofLeases(&s.hooks, s.log),
	})
	s.keys.Leases = s.leases
	return nil
}

// check returns an error if s is not that of a Session from NewSession.
func (s *session) check() error {
	if s == nil || s.etcd == nil {
		return errors.New("etcdlock: Session not made with NewSession")
	}
	return nil
}

// configured is the config of a lock of s, with its options: that of s if nothing changes it.
func (s *session) configured(name string, of use, opts []Option) (*config, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	ignores := of != forMutex && s.cfg.minHold > 0 // a default of the Session
	if len(opts) == 0 && !ignores {
		return s.cfg, nil
	}
	cfg, err := configure(*s.cfg, of, opts)
	if ignores {
		cfg.minHold = 0
	}
	return &cfg, err
}

// log logs a record in order with the hooks: a handler that blocks does not hold up a
// lock.
func (s *session) log(level slog.Level, message string, args ...any) {
	s.cfg.tell(&s.hooks, level, message, args)
}

// A lockHandle is what a Mutex, an RWMutex, a Semaphore or a name of a LockAll is to the layers
// below: its Session, its name and options, and what it holds.
type lockHandle struct {
	_ noCopy

	// Set once, then only read.
	s    *session
	name string
	cfg  *config

	// Guarded by s.mu, but for the load of hold.
	hold   atomic.Pointer[hold] // the current one of a Mutex, until Unlock or Close, lost or not
	depth  int                  // Locks of this Mutex that nest in hold
	holds  list.List[*hold]     // that have not ended
	nests  map[*hold]int        // reads that nest in holds of other lockHandles
	waits  list.List[*claim]    // that wait
	closed bool

	// Of a Semaphore: its limit, and the other limits that it has met. Its own is set once, the
	// rest is guarded by s.mu.
	limit  uint16
	limits map[uint16]struct{}
}

// contender is what is known about the contenders of m before they queue.
func (m *lockHandle) contender() Contender {
	host, pid := identity()
	return Contender{
		Name: m.name, Owner: m.cfg.owner, Host: host, PID: pid, Mode: ModeExclusive,
		Info: m.cfg.info, Self: true,
	}
}

func (m *lockHandle) log(level slog.Level, message string, args ...any) {
	m.cfg.tell(&m.s.hooks, level, message, args)
}

// notOwner is a comparison that is never true, and that reads no key outside the lock's prefix.
func (m *lockHandle) notOwner() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(line.Prefix(m.name)), "=", -1)
}
