package hold

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Pin keeps one lease of a Session for keys that are not the Session's: it is renewed also while
// the Session is idle, and while a doubt keeps new holds off it. Package concurrency has one.
type Pin struct {
	s       *Session
	lease   *lease.Lease
	account *queue.Account

	orphaned bool // guarded by s.mu
}

// NewPin gets a lease of s, which the next hold will be bound to, and pins it.
func NewPin(ctx context.Context, s *Session) (*Pin, error) {
	p := &Pin{s: s}
	failure, err := s.leases.Take(ctx, func() bool {
		if p.account = s.keys.AccountLocked(); p.account == nil {
			return false
		}
		p.lease = p.account.PinLocked()
		return true
	})
	if err != nil && failure != nil {
		err = failure
	}
	return p, err
}

// Lease is the lease, and its TTL as granted.
func (p *Pin) Lease() (clientv3.LeaseID, time.Duration) { return p.lease.ID, p.lease.TTL }

// Dead returns a channel that is closed when the trust in the lease has ended.
func (p *Pin) Dead() <-chan struct{} { return p.lease.Dead() }

// Over is why the trust in the lease has ended, nil while it goes on.
func (p *Pin) Over() error { return p.lease.Over(time.Now()) }

// Orphan has the Session's leases neither renewed nor revoked any more, until Close: the holds go
// on until they are unlocked, or are lost with the trust in their lease. The caller locks no more.
func (p *Pin) Orphan() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.orphaned {
		return
	}
	p.orphaned = true
	p.s.leases.OrphanLocked()
	p.account.UnpinLocked()
}
