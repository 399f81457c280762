package hold

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"
	"weak"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/quote"
)

// setBackLogEvery is how often a Session logs that etcd was set back. A client whose
// endpoints belong to two clusters sees a set-back with every other answer.
const setBackLogEvery = 10 * time.Second

// A listener is a session as its etcd.Conn knows it.
type listener Session

// SetBackLocked begins the lock delay, as an epoch of etcd has ended (etcd.Listener).
func (l *listener) SetBackLocked(ended, present *etcd.Epoch) {
	s := (*Session)(l)
	until := s.keys.SetBackLocked(present)
	s.tasks.Go(l.followSetBack)
	known, revision := ended.Revision(), present.Began
	if now := time.Now(); now.Sub(s.backLogged) >= setBackLogEvery {
		s.backLogged = now
		s.log(slog.LevelWarn, "etcd was set back", "revision", revision, "known", known,
			"cluster", present.Cluster(), "before", ended.Cluster(), "delay", until.Sub(now))
	}
	report(&s.hooks, s.cfg.Hooks.SetBack, context.Background(), SetBack{known, revision, until})
}

// followSetBack has the lines of s follow a set-back: what lingers is given up, since no hold
// begins at it, and those that wait look at their lines again.
func (l *listener) followSetBack() {
	s := (*Session)(l)
	guard.Pieces(&s.mu, maps.Values(s.lines), func(n *localLine) {
		n.before = nil
		if p := n.kept; p != nil && p.StaleLocked() {
			n.GiveWayLocked()
		}
		n.MarkLocked()
	})
	s.keys.FollowSetBack()
}

// StreamSilent begins all watches anew, as their stream is silent (etcd.Listener).
func (l *listener) StreamSilent() { l.keys.WatchAnew() }

// TermFell begins a doubt: etcd may have been set back, as its Raft term fell (etcd.Listener).
func (l *listener) TermFell(from, to uint64) {
	s := (*Session)(l)
	s.keys.MayBeSetBack(fmt.Sprintf("its Raft term fell from %d to %d", from, to),
		s.leases.LongestTTL())
}

// Unavailable tells the user that etcd does not answer, and for how long (etcd.Listener).
func (l *listener) Unavailable(reason error, silent time.Duration) {
	s := (*Session)(l)
	s.warnOf(s.cfg, weak.Make(s), reason, "etcd does not answer",
		"endpoints", quote.Addresses(s.etcd.Endpoints()), "error", reason, "silent", silent)
	e := Unavailable{errs.Unavailable(reason), silent}
	report(&s.hooks, s.cfg.Hooks.Unavailable, context.Background(), e)
}

// Limited tells the user that etcd takes few operations in one transaction (etcd.Listener).
func (l *listener) Limited(most int) {
	(*Session)(l).log(slog.LevelWarn, "etcd takes few operations in one transaction", "most", most)
}

// Uncombined tells the user that etcd takes no transactions in one (etcd.Listener).
func (l *listener) Uncombined(err error) {
	(*Session)(l).log(slog.LevelWarn, "etcd takes each transaction alone", "error", err)
}

// Unreadable tells the user that a key may not be read (etcd.Listener).
func (l *listener) Unreadable(key string, err error) {
	(*Session)(l).log(slog.LevelWarn, "a key cannot be looked at", "key", key, "error", err)
}

// Fell tells the user that the program's own code has fallen in a request (etcd.Listener).
func (l *listener) Fell(fall *guard.Fall) {
	(*Session)(l).log(slog.LevelError, "a request did not return", "error", fall)
}

// LinesLocked calls yield with the line of each name, until that reports false (queue.Lines).
func (l *listener) LinesLocked(yield func(*queue.Line) bool) {
	for _, n := range l.lines {
		if !yield(&n.Line) {
			return
		}
	}
}
