package matrix

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A leader is a candidate whose work goes on after its context has ended, until Unlock: a
// term ends when the function returns. Lock is the first call of Lead, or waits for its
// next term.
type leader struct {
	mu        *etcdlock.Mutex
	candidacy context.Context // of Lead
	resign    context.CancelFunc
	terms     chan *term
	over      chan error    // has what Lead returned
	closed    chan struct{} // ends a term that a story has left

	stands bool  // Lead has been called
	now    *term // nil if it does not lead
}

type term struct {
	ctx  context.Context
	done chan struct{} // closed when the work is done
}

func newLeader(client *clientv3.Client, name string, ttl time.Duration) (lock, error) {
	mu, err := etcdlock.NewMutex(client, name, etcdlock.WithTTL(ttl))
	l := &leader{mu: mu, terms: make(chan *term), over: make(chan error, 1),
		closed: make(chan struct{})}
	l.candidacy, l.resign = context.WithCancel(context.Background())
	return l, err
}

func (l *leader) Lock(ctx context.Context) error {
	if !l.stands {
		l.stands = true
		go func() { l.over <- l.mu.Lead(l.candidacy, l.leads) }() // ends with Close at the latest
	}
	select {
	case l.now = <-l.terms:
		return nil
	case err := <-l.over:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *leader) leads(ctx context.Context) error {
	now := &term{ctx, make(chan struct{})}
	select {
	case l.terms <- now:
		select {
		case <-now.done:
		case <-l.closed:
		}
	case <-ctx.Done():
	}
	return nil
}

func (l *leader) TryLock(context.Context) error { return errors.ErrUnsupported }

func (l *leader) Unlock(context.Context) error {
	if l.now == nil {
		return etcdlock.ErrNotHeld
	}
	close(l.now.done)
	l.now = nil
	return nil
}

func (l *leader) Close(ctx context.Context) error {
	l.resign()
	close(l.closed)
	return l.mu.Close(ctx)
}

func (l *leader) Hold() context.Context { return l.now.ctx }

func (l *leader) Token() int64 {
	token, _ := etcdlock.TokenFrom(l.now.ctx)
	return token
}

func (l *leader) Key() string           { return l.mu.Key() }
func (l *leader) IsOwner() clientv3.Cmp { return l.mu.IsOwner() }

// A guest holds, a waits to lead, another guest waits | the first guest leaves, a leads | a's
// function returns, the other guest gets in, a waits again behind it | it leaves, a leads, a
// guest waits | a's candidacy ends, and with it the context of its term, but the function goes
// on, and the guest waits on | the function returns, the guest gets in.
func leaderBeside(tr *trial, g guest) {
	a := tr.partyFor(leading, "a", lasting)
	first := g.visits(tr, "1", lasting)
	first.getsIn(soon)
	term := a.waits()
	second := g.visits(tr, "2", lasting)
	first.leaves()
	term.getsIn(soon)
	second.stillWaits()
	a.unlocks()
	second.getsIn(soon)
	term = a.begins()
	tr.lineIs(2)
	term.stillWaits()
	second.leaves()
	term.getsIn(soon)

	third := g.visits(tr, "3", lasting)
	l, is := a.lock.(*leader)
	tr.must(is, "a has led twice by a lock that is wrong")
	l.resign()
	a.ends(context.Canceled)
	tr.lineStays(2)
	third.stillWaits()
	a.unlocks()
	third.getsIn(soon)
	select {
	case err := <-l.over:
		tr.must(errors.Is(err, context.Canceled), "Lead ended by %v", err)
	case <-time.After(soon):
		tr.must(false, "Lead does not end after %v", soon)
	}
	third.leaves()
}
