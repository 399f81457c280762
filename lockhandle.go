package etcdlock

import (
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A lockHandle is what a Mutex, an RWMutex, a Semaphore or a name of a LockAll is to the layers
// below: its Session, its name and options, and what it holds.
type lockHandle struct {
	_ noCopy

	// Set once, then only read.
	s    *session
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
