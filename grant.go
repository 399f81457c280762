package etcdlock

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// A grant is one attempt to get a lease. Every claim that needs a lease waits for it.
type grant struct {
	ctx    context.Context // of the attempt; it ends when no claim has waited for a while
	cancel context.CancelFunc
	done   chan struct{} // closed once it is decided, after a pause if it failed

	// Guarded by Session.mu.
	err     error
	waiting int
}

// onLease has take, which it calls with mu held, take what c needs on the current lease. take
// reports false if there is none; then one is granted. It returns an error when ctx ends or etcd
// refuses.
//
// Invariant: taking a lease for a place and deciding to revoke it exclude each
// other: both are done under mu.
func (s *Session) onLease(ctx context.Context, c *claim, take func() bool) error {
	for {
		s.mu.Lock()
		if take() {
			s.mu.Unlock()
			c.lastErr = nil
			return nil
		}
		if s.closed {
			s.mu.Unlock()
			return ErrClosed
		}
		g := s.granting
		if g == nil {
			g = &grant{done: make(chan struct{})}
			g.ctx, g.cancel = context.WithCancel(s.ctx)
			s.granting = g
			s.tasks.GoLocked(func() { s.grantLease(g) })
		}
		g.waiting++
		s.mu.Unlock()

		var err error
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-g.done:
		}
		s.mu.Lock()
		failure := g.err
		if g.waiting--; g.waiting == 0 {
			// Not at once: the next claim may come soon, and etcd may be slow.
			time.AfterFunc(s.etcd.Timeout(), func() { s.forgo(g) })
		}
		s.mu.Unlock()
		if failure != nil {
			c.lastErr = failure
		}
		switch {
		case err != nil:
			return err
		case failure == nil:
		case s.clientClosed():
			return errClientClosed
		case attempt.Refused(failure):
			return failure
		}
	}
}

// Lease returns the lease that the next hold will be bound to, or clientv3.NoLease
// before the first use, after Close and while a lost lease is not replaced yet. A
// lease is replaced after a loss, after a request whose outcome is unknown, and when
// it was not used for two TTLs; any other key attached to it goes with it.
func (s *Session) Lease() clientv3.LeaseID {
	if s == nil {
		return clientv3.NoLease
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.usableLocked() {
		return clientv3.NoLease
	}
	return s.current.id
}

// accountLocked is the account of the lease for new places, nil if there is none.
func (s *Session) accountLocked() *account {
	if !s.usableLocked() {
		return nil
	}
	return s.accounts[s.current]
}

// usableLocked reports whether the current lease may get new places.
func (s *Session) usableLocked() bool {
	if s.current == nil || s.closed {
		return false
	}
	s.current.checkLocked(time.Now())
	return s.current != nil
}

// grantLease is one attempt to get a lease. All claims that need one also share the pause
// after a failure.
func (s *Session) grantLease(g *grant) {
	defer close(g.done)
	defer g.cancel()
	s.standBack(g.ctx)
	err := s.newLease(g.ctx)
	if err != nil && g.ctx.Err() != nil {
		err = attempt.ErrNoAnswer // for a claim that comes just now
	}
	if err != nil {
		s.mu.Lock()
		g.err = err
		s.mu.Unlock()
		if !attempt.Refused(err) && !s.clientClosed() {
			_ = s.grantRetry.Wait(s.ctx, s.etcd.Caller) // the callers see s.ctx's end themselves
		}
	} else {
		s.grantRetry.Reset()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granting = nil
}

// mostDoubled is how often the time over which the Sessions of a crowd spread their leases is
// doubled: to four TTLs.
const mostDoubled = 2

// standBack waits before asking for a lease if etcd granted the last ones and then answered
// nothing in time until they had run out. Then other Sessions ask for more than etcd can do in the
// life of a lease, perhaps each with its own client, so that no window sees it. One such lease is
// what an unreachable etcd leaves behind. After two in a row the next one is asked for within a
// TTL, at random, then within two, then within four.
//
// Invariant: leases that run out one after the other, before anything is answered in time under
// them, spread the next ones over ever more time. (Do not ask for the next one at once: all
// Sessions do, and etcd's answers are again too late for all.
// TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
func (s *Session) standBack(ctx context.Context) {
	s.mu.Lock()
	unansweredLeases := s.unansweredLeases
	s.mu.Unlock()
	if unansweredLeases < 2 {
		return
	}
	apart := min(s.cfg.ttl, math.MaxInt64>>mostDoubled) << min(unansweredLeases-2, mostDoubled)
	pause := time.NewTimer(rand.N(apart))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// forgo ends a grant that no claim waits for.
func (s *Session) forgo(g *grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.waiting == 0 {
		s.mu.After(g.cancel)
	}
}
