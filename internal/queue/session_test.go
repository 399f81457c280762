package queue

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A session is what stands above the Keys of a Session, with the line of one name, in which it has
// one place.
type session struct {
	mu      guard.Mutex
	etcd    *etcd.Conn
	keys    *Keys
	line    Line
	place   *Place // nil while it has none
	lingers bool   // the key of the place
}

// errClosed is the error of a wait whose session was closed.
var errClosed = errors.New("the session was closed")

// newSession returns a session for the name "n".
func newSession(t *testing.T, client *clientv3.Client) *session {
	s, ttl := new(session), time.Minute
	ctx, cancel := context.WithCancel(context.Background())
	tasks := new(guard.Group)
	s.etcd = etcd.New(ctx, client, ttl, &s.mu, tasks, s)
	s.keys = New(ctx, s.etcd, &s.mu, tasks, Config{
		TTL: ttl, Closed: errClosed, Lines: s, Log: func(slog.Level, string, ...any) {},
	})
	s.keys.Leases = lease.NewPool(ctx, s.etcd, &s.mu, tasks, lease.Config{
		TTL:           ttl,
		Margin:        func(time.Duration) time.Duration { return time.Second },
		TenantsLocked: s.keys.TenantsLocked,
		Error:         func(lease.Reason, error) error { return errors.New("ended") },
		Hooks: lease.Hooks{
			Granted:       func(clientv3.LeaseID, time.Duration) {},
			Renewed:       func(clientv3.LeaseID, time.Duration) {},
			RenewalFailed: func(*lease.Lease, error, time.Duration) {},
			AtRisk:        func(*lease.Lease, time.Duration) {},
			Replaced:      func(clientv3.LeaseID, error) {},
			Log:           func(slog.Level, string, ...any) {},
		},
	})
	s.line.Init(s.keys, "n", s)
	t.Cleanup(func() {
		s.mu.Lock()
		s.keys.Leases.CloseLocked()
		s.line.EndLocked()
		idle := tasks.Idle()
		s.mu.Unlock()
		<-idle
		cancel()
	})
	return s
}

// take takes a place of a shape.
func (s *session) take(t *testing.T, shape line.Shape) *Place {
	p := new(Place)
	_, err := s.keys.Leases.Take(t.Context(), func() bool {
		a := s.keys.AccountLocked()
		if a == nil {
			return false
		}
		a.TakeLocked(p, Seat{Line: &s.line, Shape: shape, Owner: s})
		s.place = p
		return true
	})
	require.NoError(t, err)
	return p
}

// put puts the key of p.
func (s *session) put(t *testing.T, p *Place) {
	entering, retry := p.Ticket.Enter(false, false), attempt.Backoff{Policy: attempt.Put}
	done := s.etcd.Commit(t.Context(), &retry, entering.Txn("value"))
	s.mu.Lock()
	defer s.mu.Unlock()
	entering.Read(done.Answer)
	require.Equal(t, ticket.Queued, entering.Judge(done.Answer))
	p.QueuedLocked(entering.Ahead(0), done.Epoch)
}

// It is the Lines, the Local and the Owner of all that is here.

func (s *session) LinesLocked(yield func(*Line) bool) { yield(&s.line) }

func (s *session) PlaceLocked() *Place { return s.place }
func (s *session) LingersLocked() bool { return s.lingers }
func (s *session) LingeringLocked() *Place {
	if s.lingers {
		return s.place
	}
	return nil
}
func (s *session) GiveWayLocked() {
	if s.lingers {
		s.lingers = false
		s.place.AbandonLocked(Removal{})
	}
}
func (s *session) SharesLocked() bool { return false }
func (s *session) MarkLocked()        {}
func (s *session) RefuseLocked(error) {}

func (s *session) EndsLocked()           {}
func (s *session) RecalledLocked()       {}
func (s *session) MeetsLocked(line.Line) {}
func (s *session) EndContexts()          {}
func (s *session) Removing()             {}
func (s *session) Removed()              {}
func (s *session) Stays(error)           {}

func (s *session) SetBackLocked(_, now *etcd.Epoch) { s.keys.SetBackLocked(now) }
func (s *session) StreamSilent()                    { s.keys.WatchAnew() }
func (s *session) TermFell(_, _ uint64)             {}
func (s *session) Uncombined(error)                 {}
func (s *session) Unavailable(error, time.Duration) {}
func (s *session) Limited(int)                      {}
func (s *session) Unreadable(string, error)         {}
func (s *session) Fell(*guard.Fall)                 {}
