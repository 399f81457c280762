package lease

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
)

// A grant is one attempt to get a lease. Every call that needs a lease waits for it.
type grant struct {
	ctx    context.Context // of the attempt; it ends when no call has waited for a while
	cancel context.CancelFunc
	done   chan struct{} // closed once it is decided, after a pause if it failed

	// Guarded by the Session's mutex.
	err     error
	waiting int
}

// Take has take, which it calls with the mutex held, take places on the current lease. take reports
// false if there is none; then one is granted. Take returns an error when ctx ends or etcd refuses.
// Unless take has taken places, failure is why the last grant for which Take has waited has failed.
//
// Invariant: taking a lease for a place and deciding to revoke it exclude each
// other: both are done under the mutex.
func (p *Pool) Take(ctx context.Context, take func() bool) (failure, err error) {
	for {
		g, taken, err := p.takeOrGrant(take)
		switch {
		case taken:
			return nil, nil
		case err != nil:
			return failure, err
		}
		var ended error
		select {
		case <-ctx.Done():
			ended = attempt.Cause(ctx)
		case <-g.done:
		}
		failed := p.waited(g)
		if failed != nil {
			failure = failed
		}
		switch {
		case ended != nil:
			return failure, ended
		case failed == nil:
		case p.etcd.Closed():
			return failure, attempt.ErrClientClosed
		case attempt.Refused(failed) || attempt.Fallen(failed) != nil:
			return failure, failed
		}
	}
}

// takeOrGrant has take take places, or else a lease granted: for that the caller waits, and calls
// waited then.
func (p *Pool) takeOrGrant(take func() bool) (g *grant, taken bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil {
		p.current.CheckLocked(time.Now())
	}
	switch {
	case take():
		return nil, true, nil
	case p.ClosedLocked():
		return nil, false, p.config.Error(Closed, nil)
	}
	g = p.granting
	if g == nil {
		g = &grant{done: make(chan struct{})}
		g.ctx, g.cancel = context.WithCancel(p.ctx)
		p.granting = g
		p.tasks.Go(func() { p.grantLease(g) })
	}
	g.waiting++
	return g, false, nil
}

// waited ends a wait for g. It returns why the grant has failed, if it has.
func (p *Pool) waited(g *grant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.waiting--; g.waiting == 0 {
		// Not at once: the next call may come soon, and etcd may be slow.
		time.AfterFunc(p.etcd.Timeout, func() { p.forgo(g) })
	}
	return g.err
}

// grantLease is one attempt to get a lease. All calls that need one also share the pause
// after a failure.
func (p *Pool) grantLease(g *grant) {
	defer close(g.done)
	defer g.cancel()
	p.standBack(g.ctx)
	err := p.newLease(g.ctx)
	if err != nil && g.ctx.Err() != nil {
		err = attempt.ErrNoAnswer // for a call that comes just now
	}
	if err != nil {
		p.mu.Lock()
		g.err = err
		p.mu.Unlock()
		if !attempt.Refused(err) && !p.etcd.Closed() && attempt.Fallen(err) == nil {
			_ = p.retry.Wait(p.ctx, p.etcd.Caller) // the callers see p.ctx's end themselves
		}
	} else {
		p.retry.Reset()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.granting = nil
}

// newLease asks for a lease and makes it the current one if it can be used.
func (p *Pool) newLease(ctx context.Context) error {
	granted, err := p.ask(ctx)
	if err != nil {
		return err
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	l := &Lease{
		ID:    granted.ID,
		TTL:   granted.TTL,
		trust: trust.New(granted.Sent, granted.TTL, p.config.Margin),
		pool:  p,
		dead:  make(chan struct{}),
		goes:  make(chan struct{}),
		read:  p.etcd.Epoch(), // no hold is on it
	}
	l.live, l.bury = context.WithCancel(p.ctx)
	l.plan = l.trust.Schedule()
	l.distrust = p.etcd.Trusts(l.TTL)
	l.tenants = p.config.TenantsLocked(l)
	p.safety.Lock()
	l.expiry = time.AfterFunc(l.trust.Remaining(time.Now()), l.expire)
	p.leases[l] = struct{}{}
	p.granted = l.TTL
	late := l.trust.At(time.Now()) != trust.Whole
	if late {
		l.over = errGrantTooLate
	}
	p.safety.Unlock()
	l.keepLocked(granted.Sent)
	p.config.Log(slog.LevelDebug, "lease granted", "lease", l.Hex(), "ttl", l.TTL)
	p.config.Granted(l.ID, l.TTL)
	if late {
		l.endLocked(errGrantTooLate)
		return errGrantTooLate
	}
	p.current = l
	return nil
}

// ask gets a lease from etcd: a new one, or at first the one to adopt.
func (p *Pool) ask(ctx context.Context) (etcd.Grant, error) {
	p.safety.Lock()
	first := p.granted == 0
	p.safety.Unlock()
	if id := p.config.Adopt; id != clientv3.NoLease && first {
		return p.etcd.Adopt(ctx, &p.retry, id)
	}
	return p.etcd.Grant(ctx, &p.retry, p.config.TTL)
}

// mostDoubled is how often the time over which the Sessions of a crowd spread their leases is
// doubled: to four TTLs.
const mostDoubled = 2

// standBack waits before asking for a lease if etcd granted the last ones and then answered
// nothing in time until they had run out. Then other Sessions ask for more than etcd can do in the
// life of a lease, perhaps each with its own client, so that no window sees it. One such lease is
// what an unreachable etcd leaves behind. After two in a row the next one is asked for within a
// TTL, at random, then within two, then within four. If no call waits for so long, the next one
// waits for what is left.
//
// (Do not draw another pause for each call. Calls that wait only briefly would ask once in hours,
// or never. TestCallsThatWaitBrieflyAskForALeaseAsSoon.)
//
// Invariant: leases that run out one after the other, before anything is answered in time under
// them, spread the next ones over ever more time. (Do not ask for the next one at once: all
// Sessions do, and etcd's answers are again too late for all.
// TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
func (p *Pool) standBack(ctx context.Context) {
	p.safety.Lock()
	unanswered := p.unanswered
	p.safety.Unlock()
	if unanswered < 2 {
		p.backUntil = time.Time{}
		return
	}
	if p.backUntil.IsZero() {
		apart := min(p.config.TTL, math.MaxInt64>>mostDoubled) << min(unanswered-2, mostDoubled)
		p.backUntil = time.Now().Add(rand.N(apart))
	}
	pause := time.NewTimer(time.Until(p.backUntil))
	defer pause.Stop()
	select {
	case <-pause.C:
		p.backUntil = time.Time{}
	case <-ctx.Done():
	}
}

// forgo ends a grant that no call waits for.
func (p *Pool) forgo(g *grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.waiting == 0 {
		p.mu.After(g.cancel)
	}
}
