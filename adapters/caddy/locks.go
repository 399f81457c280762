package etcdlockcaddy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
)

// A pooled is what the storages of two configurations share while one takes the place of the other:
// an order that began with the former keeps its lock.
type pooled struct {
	client  *clientv3.Client
	session *etcdlock.Session
	loggers loggers

	mu   sync.Mutex
	uses int // calls that lock and locks that are held, and one while the pool has it
}

// Destruct leaves it to the locks that are held.
func (p *pooled) Destruct() error { return p.leave() }

func (p *pooled) use() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uses++
}

// leave ends a use. The last one closes the Session.
//
// Invariant: a Session is open as long as a lock of it is held, also if no configuration has it any
// more. (Do not close it with the configuration: Caddy unlocks after that, when it ends and when an
// order that began before is over. TestALockOutlivesItsConfigurations.)
func (p *pooled) leave() error {
	p.mu.Lock()
	p.uses--
	last := p.uses == 0
	p.mu.Unlock()
	if !last {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(p.session.Close(ctx), p.client.Close())
}

// locks is the storage for certmagic. Its locks use what is pooled.
type locks struct {
	*etcdlockcertmagic.Storage
	of *pooled
}

var (
	_ certmagic.TryLocker        = locks{}
	_ certmagic.LockLeaseRenewer = locks{}
)

func (l locks) Lock(ctx context.Context, name string) error {
	l.of.use()
	err := l.Storage.Lock(ctx, name)
	if err != nil {
		_ = l.of.leave() // the Session logs what etcd does not confirm
	}
	return err
}

func (l locks) TryLock(ctx context.Context, name string) (bool, error) {
	l.of.use()
	got, err := l.Storage.TryLock(ctx, name)
	if !got {
		_ = l.of.leave()
	}
	return got, err
}

func (l locks) Unlock(ctx context.Context, name string) error {
	err := l.Storage.Unlock(ctx, name)
	if err == nil || errors.Is(err, etcdlock.ErrUnconfirmed) { // otherwise it is as it was
		_ = l.of.leave()
	}
	return err
}
