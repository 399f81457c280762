package etcdlock

import (
	"log/slog"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A lockHandle is what a Mutex, an RWMutex, a Semaphore or a name of a LockAll is to the layers
// below: its Session, its name and options, and what it holds.
type lockHandle struct {
	_ noCopy

	// Set once, then only read.
	s    *Session
	name string
	cfg  *config

	// Guarded by s.mu.
	hold   *hold // the current one of a Mutex, until Unlock or Close, lost or not
	depth  int   // Locks of this Mutex that nest in hold
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
		Name: m.name, Owner: m.cfg.owner, Host: host, PID: pid, Mode: line.Exclusive.String(),
		Info: m.cfg.info,
	}
}

// trace reports what happens to m.
func (m *lockHandle) trace() tracer { return tracer{m.cfg.trace, &m.s.hooks} }

func (m *lockHandle) log(level slog.Level, message string, args ...any) {
	m.cfg.tell(&m.s.hooks, level, message, args)
}

// meetLocked warns once for each limit other than its own that a Semaphore meets in line.
func (m *lockHandle) meetLocked(ahead line.Ahead) {
	if m.limit == 0 {
		return
	}
	for _, e := range slices.Concat(ahead.Last, ahead.Beside) {
		other := e.Shape().Limit
		if _, met := m.limits[other]; met || other == 0 || other == m.limit {
			continue
		}
		if m.limits == nil {
			m.limits = make(map[uint16]struct{})
		}
		m.limits[other] = struct{}{}
		m.log(slog.LevelWarn, "a permit counts on another limit",
			"name", m.name, "limit", m.limit, "other", other, "key", e.Key)
	}
}

// notOwner is a comparison that is never true, and that reads no key outside the lock's prefix.
func (m *lockHandle) notOwner() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(line.Prefix(m.name)), "=", -1)
}
