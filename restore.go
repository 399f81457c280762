package etcdlock

import (
	"log/slog"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// setBackLogEvery is how often a Session logs that etcd was set back. A client whose
// endpoints belong to two clusters sees a set-back with every other answer.
const setBackLogEvery = 10 * time.Second

// setBack ends an epoch: key names are drawn again, views begin again, lingering keys are
// given up, and every place is read before it counts again.
func (s *Session) setBack(h header, ended *epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch.Load() != ended {
		return
	}
	known, revision := ended.revision.Load(), h.GetRevision()
	next := &epoch{}
	next.cluster.Store(h.GetClusterId())
	next.revision.Store(revision)
	s.epoch.Store(next)
	for _, n := range s.lines {
		for _, slots := range n.slots {
			slots.Forget()
		}
		n.ahead = line.None
		n.giveWayLocked()
	}
	for l := range s.leases {
		for _, p := range l.places {
			p.tellLocked()
		}
	}
	s.stream.moved()
	s.endViewsLocked()
	s.suspectLocked()
	if !s.verifying && !s.closed {
		s.verifying = true
		s.tasks.GoLocked(s.verify)
	}
	if now := time.Now(); now.Sub(s.backLogged) >= setBackLogEvery {
		s.backLogged = now
		s.log(slog.LevelWarn, "etcd was set back", "revision", revision, "known", known,
			"cluster", h.GetClusterId(), "before", ended.cluster.Load())
	}
	if t := s.cfg.trace; t != nil && t.SetBack != nil {
		s.hooks.Run(func() { t.SetBack(known, revision) })
	}
}

// endViewsLocked ends all views, and the watches of held keys. Waiters and holders that need one
// begin another.
func (s *Session) endViewsLocked() {
	for _, n := range s.lines {
		if n.view != nil {
			n.view.endLocked()
			n.admitLocked() // a waiter that is to join begins another
		}
		s.unwatchLastLocked(n)
	}
	s.rewatchLocked()
}

// followConnection begins all views again when the client has lost its connection, and makes an
// audit of l's keys due when it has another. A restore stops etcd first. If the restored etcd
// passes its old revision before the Session reads, no answer shows that it was set back, and a
// watch goes on as if it had missed nothing. followConnection ends with l.
func (l *lease) followConnection() {
	s := l.s
	conn := s.client.ActiveConnection()
	if conn == nil {
		return // not made with clientv3.New
	}
	for state := conn.GetState(); conn.WaitForStateChange(l.live, state); {
		was := state
		state = conn.GetState()
		s.mu.Lock()
		if was == connectivity.Ready {
			s.endViewsLocked()
		}
		if state == connectivity.Ready {
			s.suspectLocked()
			for _, p := range l.places {
				p.tellLocked() // a waiter behind many, which watches one key, rechecks soon
			}
		}
		s.mu.Unlock()
	}
}

// verify reads the keys of the holds that began in an earlier epoch. Waiters read the line by
// themselves. Keys that the user may not read are left to the audits.
func (s *Session) verify() {
	var pause attempt.Backoff
	for {
		sent := s.epoch.Load()
		for l, places := range s.staleHolds() {
			_ = s.readKeys(s.ctx, keysOf(places), s.readUntilAnswered, func(from int, read []line.Entry) {
				l.confirmMissing(places[from:], read, true, sent)
			})
		}
		if s.verified(sent) || pause.Wait(s.ctx, s.calls) != nil {
			return
		}
	}
}

// verified reports whether verify is over: everything was read in the present epoch, or the
// Session is closed.
func (s *Session) verified(read *epoch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verifying = s.epoch.Load() != read && !s.closed
	return !s.verifying
}

// staleHolds are the places of holds from an earlier epoch, by lease.
func (s *Session) staleHolds() map[*lease][]*place {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale := make(map[*lease][]*place)
	for l := range s.leases {
		for _, p := range l.places {
			if p.refs > 0 && !p.ticket.Lost() && p.staleLocked() {
				stale[l] = append(stale[l], p)
			}
		}
	}
	return stale
}
