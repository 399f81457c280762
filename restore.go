package etcdlock

import (
	"errors"
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
)

// setBackLogEvery is how often a Session logs that etcd was set back. A client whose
// endpoints belong to two clusters sees a set-back with every other answer.
const setBackLogEvery = 10 * time.Second

// errSetBack says that etcd was set back since something was learned from it.
var errSetBack = errors.New("etcd was set back: restored, wiped, or another cluster")

// A listener is a Session as its etcd.Conn and its lease.Pool know it.
type listener Session

// Proved is as in etcd.Listener.
func (l *listener) Proved(sent time.Time, of *etcd.Epoch, term uint64) {
	(*Session)(l).leases.Proved(sent, of, term)
}

// SetBackLocked is as in etcd.Listener.
func (l *listener) SetBackLocked(ended, present *etcd.Epoch) {
	(*Session)(l).setBackLocked(ended, present)
}

// StreamSilent is as in etcd.Listener.
func (l *listener) StreamSilent() { (*Session)(l).watchAnew() }

// Unavailable is as in etcd.Listener.
func (l *listener) Unavailable(reason error, silent time.Duration) {
	(*Session)(l).tellUnavailable(reason, silent)
}

// Limited is as in etcd.Listener.
func (l *listener) Limited(most int) {
	(*Session)(l).log(slog.LevelWarn, "etcd takes few operations in one transaction", "most", most)
}

// Unreadable is as in etcd.Listener.
func (l *listener) Unreadable(key string, err error) {
	(*Session)(l).log(slog.LevelWarn, "a key cannot be looked at", "key", key, "error", err)
}

// TenantsLocked is as in lease.Listener. They are the account of the keys on the lease.
func (l *listener) TenantsLocked(granted *lease.Lease) lease.Tenants {
	s := (*Session)(l)
	k := &account{
		s: s, lease: granted, places: make(map[string]*place), idleSince: time.Now(),
	}
	s.accounts[granted] = k
	s.tasks.GoLocked(func() { s.followConnection(k) })
	return k
}

// setBackLocked follows the end of an epoch: key names are drawn again, views begin again,
// lingering keys are given up, and every place is read before it counts again.
func (s *Session) setBackLocked(ended, present *etcd.Epoch) {
	for _, n := range s.lines {
		for _, slots := range n.slots {
			slots.Forget()
		}
		n.ahead = line.None
		n.giveWayLocked()
		n.markLocked()
	}
	for _, k := range s.accounts {
		for _, p := range k.places {
			p.tellLocked()
		}
	}
	s.endViewsLocked()
	s.accounts.suspectLocked()
	if !s.verifying && !s.closed {
		s.verifying = true
		s.tasks.GoLocked(s.verify)
	}
	known, revision := ended.Revision(), present.Began
	if now := time.Now(); now.Sub(s.backLogged) >= setBackLogEvery {
		s.backLogged = now
		s.log(slog.LevelWarn, "etcd was set back", "revision", revision, "known", known,
			"cluster", present.Cluster(), "before", ended.Cluster())
	}
	s.trace().setBack(known, revision)
}

// endViewsLocked ends all views, and the watches of held keys. Waiters and holders that need one
// begin another.
func (s *Session) endViewsLocked() {
	for _, n := range s.lines {
		if n.view != nil {
			n.view.endLocked()
		}
		s.unwatchLastLocked(n)
	}
	s.accounts.rewatchLocked()
}

// followConnection begins all views again when the client has lost its connection, and makes an
// audit of all keys due when it has another. A restore stops etcd first. If the restored etcd
// passes its old revision before the Session reads, no answer shows that it was set back, and a
// watch goes on as if it had missed nothing. followConnection ends with k's lease.
func (s *Session) followConnection(k *account) {
	s.etcd.FollowConnection(k.lease.Live(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endViewsLocked()
	}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.accounts.suspectLocked()
		for _, p := range k.places {
			p.tellLocked() // a waiter behind many, which watches one key, rechecks soon
		}
	})
}

// verify reads the keys of the holds that began in an earlier epoch. Waiters read the line by
// themselves. Keys that the user may not read are left to the audits.
func (s *Session) verify() {
	var pause attempt.Backoff
	for {
		present := s.etcd.Epoch()
		s.mu.Lock()
		stale := s.accounts.staleHoldsLocked()
		s.mu.Unlock()
		for k, places := range stale {
			_ = s.etcd.ReadKeys(s.ctx, keysOf(places), s.etcd.Read, func(part etcd.Part) {
				k.confirmMissing(places[part.From:], part, true)
			})
		}
		if s.verified(present) || pause.Wait(s.ctx, s.etcd.Caller) != nil {
			return
		}
	}
}

// verified reports whether verify is over: everything was read in the present epoch, or the
// Session is closed.
func (s *Session) verified(read *etcd.Epoch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verifying = s.etcd.Epoch() != read && !s.closed
	return !s.verifying
}
