// Package lease has the leases of a Session: each is granted when it is needed, renewed for as long
// as its keys need it, trusted no longer than etcd keeps it, and revoked. It knows the keys on a
// lease by an interface, [Tenants].
package lease

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
)

// A Pool is the leases of a Session: the current one, for new places, and the leases before it that
// are yet to be revoked.
type Pool struct {
	// Set once, then only read.
	ctx    context.Context // of all goroutines
	etcd   *etcd.Conn
	mu     *guard.Mutex // the Session's
	tasks  *guard.Group
	config Config
	doubts atomic.Int64 // renewals of all leases whose worth is not certain

	// Guarded by mu.
	current   *Lease // for new places, nil if there is none
	granting  *grant // under way, or nil; it owns retry and backUntil
	retry     attempt.Backoff
	backUntil time.Time // no lease is asked for before that, zero if none is put off
	closedAt  time.Time // zero until then
	orphaned  bool      // see OrphanLocked

	// safety guards what follows, and what ends holds in time; see Life.
	safety     sync.Mutex
	leases     map[*Lease]struct{}
	unanswered int           // leases in a row that ran out before etcd answered anything under them
	granted    time.Duration // the TTL of the last lease, 0 before the first
}

// A Config is what the leases of a Session are like, and how the Session learns what becomes of
// them.
type Config struct {
	TTL    time.Duration                             // to ask for
	Adopt  clientv3.LeaseID                          // to be the first one; NoLease: it is granted
	Margin func(granted time.Duration) time.Duration // the safety margin

	// TenantsLocked returns the tenants of l, which was just granted.
	TenantsLocked func(l *Lease) Tenants

	// Error is the error for a reason. answer is what etcd has answered, and may be nil.
	Error func(r Reason, answer error) error

	Hooks
}

// Hooks report what happens to a lease.
type Hooks struct {
	Granted       func(id clientv3.LeaseID, ttl time.Duration)
	Renewed       func(id clientv3.LeaseID, roundTrip time.Duration)
	RenewalFailed func(l *Lease, err error, remaining time.Duration)
	AtRisk        func(l *Lease, remaining time.Duration)
	Replaced      func(old clientv3.LeaseID, why error)
	Log           func(level slog.Level, message string, args ...any)
}

// NewPool returns the Pool of a Session, which has a mutex, and goroutines that end with ctx.
func NewPool(
	ctx context.Context, conn *etcd.Conn, mu *guard.Mutex, tasks *guard.Group, config Config,
) *Pool {
	p := &Pool{
		ctx: ctx, etcd: conn, mu: mu, tasks: tasks, config: config,
		leases: make(map[*Lease]struct{}), retry: attempt.Backoff{Policy: attempt.Lease},
	}
	conn.Proved = p.proved
	return p
}

// CurrentLocked is the lease that may get new places, nil if there is none.
func (p *Pool) CurrentLocked() *Lease {
	if p.current == nil || p.ClosedLocked() || p.current.Over(time.Now()) != nil {
		return nil
	}
	return p.current
}

// proved applies a linearizable answer to all leases. Its request was sent at a time, in an epoch.
func (p *Pool) proved(sent time.Time, of *etcd.Epoch, term uint64) {
	if p.doubts.Load() == 0 {
		return // the usual case needs no lock
	}
	for _, l := range p.all() {
		l.trusts(func(t *trust.Trust) {
			var present any // in no epoch, if the present one began since
			if l.isReadSafe(of) {
				present = of
			}
			t.Proved(sent, present, term)
		})
	}
}

// all are the leases that are yet to be revoked.
func (p *Pool) all() []*Lease {
	p.safety.Lock()
	defer p.safety.Unlock()
	return slices.Collect(maps.Keys(p.leases))
}

// CheckLocked ends the leases whose time has passed (Lease.CheckLocked).
func (p *Pool) CheckLocked(now time.Time) {
	for _, l := range p.all() {
		l.CheckLocked(now)
	}
}

// LongestTTL is the longest granted TTL of the leases and of the last one, or the TTL that is asked
// for.
func (p *Pool) LongestTTL() time.Duration {
	p.safety.Lock()
	longest := max(p.config.TTL, p.granted)
	p.safety.Unlock()
	for _, l := range p.all() {
		longest = max(longest, l.TTL)
	}
	return longest
}

// CloseLocked ends all holds, and has the keepers revoke all leases, each once no release is under
// way on it. No lease is taken any more.
func (p *Pool) CloseLocked() {
	p.closedAt = time.Now()
	p.mu.After(p.endLives)
	p.WakeKeepers()
}

// WakeKeepers has all keepers see what is due: the Session's context may have ended.
func (p *Pool) WakeKeepers() {
	for _, l := range p.all() {
		l.WakeKeeper()
	}
}

// endLives ends all lives on all leases: the Pool was closed.
func (p *Pool) endLives() {
	for _, l := range p.all() {
		l.endLives(p.config.Error(Closed, nil))
	}
}

// OrphanLocked has no lease renewed any more, and none revoked, unless the Pool is closed: each
// ends with the trust in it, and expires in etcd. The caller has no new place taken.
func (p *Pool) OrphanLocked() {
	p.orphaned = true
	p.WakeKeepers()
}

// OrphanedLocked reports whether the Pool was orphaned.
func (p *Pool) OrphanedLocked() bool { return p.orphaned }

// leavesLeases reports whether leases are left to expire.
func (p *Pool) leavesLeases() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.orphaned && !p.ClosedLocked()
}

// ClosedLocked reports whether the Pool was closed.
func (p *Pool) ClosedLocked() bool { return !p.closedAt.IsZero() }

// closedFor is how long ago the Pool was closed, the longest time if it was not.
func (p *Pool) closedFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.closedAt)
}

// NotRevoked logs that a lease was not revoked, and why.
func (p *Pool) NotRevoked(lease string, why error) {
	p.config.Log(slog.LevelWarn, "lease not revoked; it expires by itself", "lease", lease,
		"error", why)
}
