package hold

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// KeptLines is as it says.
const KeptLines = keptLines

// TheErrors are those of the API.
func TheErrors() Errors { return errs }

// LockOf is the Lock of a Mutex of the API, SessionOf that of a Session, and HandleOf that of a
// Hold.
func LockOf(mutex any) *Lock        { return (*Lock)(field(mutex, "lock").UnsafePointer()) }
func SessionOf(s any) *Session      { return (*Session)(field(s, "engine").UnsafePointer()) }
func HandleOf(h any) *Handle        { return (*Handle)(field(h, "h").Addr().UnsafePointer()) }
func (m *Lock) Session() *Session   { return m.s }
func (s *Session) Mu() *guard.Mutex { return &s.mu }

func field(of any, name string) reflect.Value {
	return reflect.ValueOf(of).Elem().FieldByName(name)
}

// TrustUntilLocked makes the trust in the lease of s last until a time, and sets no timer for it:
// as if the process had paused since.
func (s *Session) TrustUntilLocked(until time.Time) {
	l := s.leases.CurrentLocked()
	span := l.TTL - s.cfg.MarginOf(l.TTL)
	at := (**trust.Trust)(field(l, "trust").Addr().UnsafePointer())
	*at = trust.New(until.Add(-span), l.TTL, s.cfg.MarginOf)
}

// LingersLocked reports whether a key lingers for a name.
func (s *Session) LingersLocked(name string) bool { return s.lines[name].kept != nil }

// HasLine reports whether s remembers a name.
func (s *Session) HasLine(name string) bool { return s.lines[name] != nil }

// StayTimers are the timers of the keys that stay, one for each.
func (s *Session) StayTimers() (timers []*time.Timer) {
	for y := range s.stays {
		timers = append(timers, y.timer)
	}
	return timers
}

// ---- holds

// Contexts is how many contexts h knows.
func (h *Hold) Contexts() int { return h.life.Contexts() }

// EndsNowLocked has the time of WithMaxHold of h be over, while no timer has run.
func (h *Hold) EndsNowLocked() {
	h.boundLocked(time.Now())
}

// UnlockOver is an Unlock of h whose time is over as it has looked at the clock.
func (h *Hold) UnlockOver(ctx context.Context) error {
	s := h.m.s
	s.mu.Lock()
	h.EndsNowLocked()
	h.depth--
	r, err := h.unlockLocked()
	s.mu.Unlock()
	return r.send(ctx, err)
}

// CloseOver has the Session of h begin to close, while the time of h is over.
func (h *Hold) CloseOver() {
	s := h.m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	h.EndsNowLocked()
	h.Status() // a look
	s.closeLocked()
}

// HoldStates are the states of a hold, in their order.
var HoldStates = []holdState{holdWhole, holdRecalled, holdEnded, holdGone}

// InState is another hold at the place of h, the only one there that needs its key.
func (h *Hold) InState(st holdState) *Hold {
	c := &claim{m: h.m, place: h.place}
	o := &c.begins
	o.claim, o.special, o.state, o.life = c, &plain, st, &o.own
	o.place.Refs = 1
	o.self[0] = o
	o.own.Begin(o.place.Account.Lease, o)
	return o
}

// Becomes changes the state of h, and returns what it is then.
func (h *Hold) Becomes(st holdState) holdState {
	h.becomesLocked(st, errs.Unlocked)
	return h.state
}

// IsGone reports whether no hold at the place of h needs its key.
func (h *Hold) IsGone() bool { return h.place.Refs == 0 }

// SharesKey reports whether h and o are at the same key.
func (h *Hold) SharesKey(o *Hold) bool { return h.place == o.place }

// LoseLocked ends h for a reason.
func (h *Hold) LoseLocked(reason error) { h.endLocked(h.lost(reason)) }

// FreesLocked is mayFreeLocked.
func (h *Hold) FreesLocked() bool { return h.mayFreeLocked() }

// FreesWholeLocked is mayFreeLocked as if h had ended whole, after all others at its key.
func (h *Hold) FreesWholeLocked() bool {
	refs := h.place.Refs
	h.state, h.place.Refs = holdEnded, 0
	defer func() { h.state, h.place.Refs = holdGone, refs }()
	return h.mayFreeLocked()
}

// EndTable returns what ends a hold: a row for what has happened to it, a column for its state.
func EndTable() [][]string {
	head := []string{"closed", "lease over", "key lost", "time over"}
	n := len(head)
	for _, st := range HoldStates {
		head = append(head, st.String())
	}
	rows := [][]string{head}
	for facts := range 1 << n {
		row, has := make([]string, n), make([]bool, n)
		for i := range n {
			if row[i], has[i] = "-", facts>>(n-1-i)&1 == 1; has[i] {
				row[i] = "yes"
			}
		}
		for _, st := range HoldStates {
			row = append(row, ends[endOf(st, happened{has[0], has[1], has[2], has[3]})])
		}
		rows = append(rows, row)
	}
	return rows
}

var ends = [...]string{"-", "close", "lease", "key", "time", "recall"}

// ---- the local line

// A WaitingCall is a call that waits.
type WaitingCall = call

// WaitAtHome makes n calls wait in the local line behind a hold of m's.
func (m *Lock) WaitAtHome(t *testing.T, n int) (calls []*WaitingCall) {
	t.Helper()
	for range n {
		c := newCall(m, Request{}, 0)
		require.NoError(t, c.enter(func(error) {}))
		require.NotNil(t, c.first.turn)
		calls = append(calls, c)
	}
	return calls
}

// Leave takes c out of its line, and returns how many it is told to be ahead.
func (c *call) Leave() (ahead int) {
	_, locked := c.leave()
	return locked.Ahead
}

// WaitInLine brings a call into etcd's line, behind others. It returns what the wait returns there,
// and what the call then does.
func (m *Lock) WaitInLine(t *testing.T, ctx context.Context) (wait, fails func() error) {
	t.Helper()
	c := newCall(m, Request{}, 0)
	require.NoError(t, c.enter(func(error) {})) // its context goes on
	_, err := m.s.leases.Take(ctx, c.takePlacesLocked)
	require.NoError(t, err)
	h, err := c.put(ctx)
	require.NoError(t, err)
	require.Nil(t, h)
	return func() error { err = c.wait(ctx); return err },
		func() error { return c.retreat(ctx, err, new(attempt.Backoff)) }
}

// A settlesAll is a Settler that fails the test if a line that was not marked could be settled
// further, too.
type settlesAll struct {
	*markedLines
	t *testing.T
	s *Session

	again map[*localLine]time.Time // when its owner's lease was found to last again, zero: it is late
}

// RequireSettled fails the test if the mutex of s is unlocked while a waiter could get in.
func (s *Session) RequireSettled(t *testing.T) {
	s.mu.Settler = settlesAll{&s.marked, t, s, make(map[*localLine]time.Time)}
}

func (all settlesAll) SettleLocked() {
	all.markedLines.SettleLocked()
	now := time.Now()
	for _, n := range all.s.lines {
		first := n.queue.Candidate()
		if first == nil || all.s.leases.ClosedLocked() || first.Value.m.closed {
			continue
		}
		c, p := first.Value, n.queue.Owner().place
		held := p != nil && p.Ticket.State() == ticket.Held
		n.EndOldViewLocked()
		if p != nil {
			p.Account.Lease.CheckLocked(now)
		}
		switch admission := n.admissionLocked(c); {
		case all.last != nil: // what was over has ended just now, and has marked the line
		case all.lastsAgain(n, p, now): // the lease's keeper waits for the mutex, to mark the line
		case admission == home.Undecided && held && !n.WatchedLocked():
			all.t.Error("no view tells whether a waiter may join")
		case admission == home.Admitted && c.waiter.Steps:
			all.t.Error("a permit could have the turn")
		case admission == home.Admitted:
			all.t.Error("a reader could join")
		}
	}
	all.markedLines.SettleLocked()
}

// lastsAgain reports whether the lease of p, the place of n's owner, was late, and lasts since now.
func (all settlesAll) lastsAgain(n *localLine, p *place, now time.Time) bool {
	since, was := all.again[n]
	switch {
	case p == nil:
		delete(all.again, n)
		return false
	case !p.LastsLocked():
		all.again[n] = time.Time{}
		return false
	case was && since.IsZero():
		all.again[n] = now
		time.AfterFunc(1, func() { // in virtual time the keeper has done it by then
			all.s.mu.Lock()
			defer all.s.mu.Unlock()
		})
		return true
	default:
		return was && since.Equal(now)
	}
}

// A closesAmid is a Settler that has its Session closed, as by another goroutine, once a Lock is.
type closesAmid struct {
	*markedLines
	m *Lock
}

// CloseSessionAmid has the Session of m closed while m is being closed, which holds something yet.
func (m *Lock) CloseSessionAmid() { m.s.mu.Settler = closesAmid{&m.s.marked, m} }

func (c closesAmid) SettleLocked() {
	if s := c.m.s; c.m.closed && !s.leases.ClosedLocked() {
		s.closeLocked()
	}
	c.markedLines.SettleLocked()
}

// RequireRefused fails if TryRLock or TryAcquire waits for another contender.
func (s *Session) RequireRefused(t *testing.T) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.lines {
		first := n.queue.Candidate()
		if first == nil || n.admissionLocked(first.Value) != home.MustQueue {
			continue
		}
		for c := range n.queue.All() {
			waits := c.waiter.Standing() == home.Waiting
			require.False(t, c.waiter.Try && waits, "a call that only tries waits")
		}
	}
}

// A counter counts how often a mutex is unlocked.
type counter struct {
	guard.Settler
	n int
}

func (c *counter) SettleLocked() {
	c.n++
	c.Settler.SettleLocked()
}

// CountLocks counts how often the mutex of s is taken from now on.
func (s *Session) CountLocks() (soFar func() int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &counter{Settler: &s.marked}
	s.mu.Settler = c
	return func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return c.n - 1 // the Unlock of CountLocks
	}
}

// LoseConnection has s lose its watches of all lines.
func (s *Session) LoseConnection() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.lines {
		n.EndLocked()
	}
}
