package etcdlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// A pool is the holders of permits, by what each believes: a multiset of weights, and of
// their limits. A Mutex takes all of it.
type pool struct {
	t       *testing.T
	mu      sync.Mutex
	inside  map[*drawn]bool
	token   int64 // the highest of a hold
	last    int   // the home of the last one
	written int64 // the highest of a Mutex
	permits int
	beside  int // holds beside others
	locks   int
}

// A drawn is what a claim has drawn from the pool: weight 0 for a Mutex.
type drawn struct {
	who           string
	home          int // its Session
	weight, limit int
	token         int64
	ctx           context.Context
}

// enter judges a claim that has come to hold. The weights of all that believe to hold add
// up to at most the least of their limits, and a Mutex is alone. In its own Session all
// that it excludes have unlocked. A hold that has ended by now says nothing.
func (p *pool) enter(b *drawn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.ctx.Err() != nil {
		return
	}
	sum, least := b.weight, b.limit
	for o := range p.inside {
		believes := o.ctx.Err() == nil
		switch {
		case b.weight > 0 && o.weight > 0 && believes:
			p.beside++
			sum, least = sum+o.weight, min(least, o.limit)
		case b.weight > 0 && o.weight > 0:
		case o.home == b.home, believes && b.ctx.Err() == nil:
			p.t.Errorf("%s holds with token %d beside %s with %d", b.who, b.token, o.who, o.token)
		}
	}
	if sum > least && b.ctx.Err() == nil {
		p.t.Errorf("%s has %d permits: %d are held, of %d", b.who, b.weight, sum, least)
	}
	before := p.written
	if b.weight == 0 {
		before = p.token
	}
	passedOn := b.weight == 0 && b.token == before && b.home == p.last // WithHandoff, WithLinger
	if b.token <= before && !passedOn {
		p.t.Errorf("%s has token %d after %d", b.who, b.token, before)
	}
	p.token, p.last = max(p.token, b.token), b.home
	if b.weight == 0 {
		p.written = max(p.written, b.token)
		p.locks++
	} else {
		p.permits++
	}
	p.inside[b] = true
}

func (p *pool) leave(b *drawn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.inside, b)
}

// Goroutines of some Sessions take permits, of two limits, and now and then a Mutex of the
// name. They wait and try, give up and hold for a while. Meanwhile answers are lost,
// requests come late and twice, processes are cut off, and watches end. Those that believe
// to hold never have more than the least of their limits. In the end everybody gets in,
// even one that wants all, and nothing is left.
func TestPermitsUnderRandomFaults(t *testing.T) {
	permits, beside, locks := 0, 0, 0
	for seed := range uint64(race.Fewer(60, 12)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				p := &pool{t: t, inside: make(map[*drawn]bool)}
				mayhem{each: 4, does: func(s *etcdlock.Session, home int, who string) chaotic {
					sems := []*etcdlock.Semaphore{semaIn(t, s, 4), semaIn(t, s, 5)}
					m, err := s.Mutex("n")
					require.NoError(t, err)
					return chaotic{
						call: func(own *rand.Rand, patience time.Duration) {
							p.draws(own, patience, &drawn{who: who, home: home}, sems, m)
						},
						last: []func(context.Context) error{
							func(ctx context.Context) error { return sems[0].Do(ctx, 1, nothing) },
							func(ctx context.Context) error { return sems[1].Do(ctx, 5, nothing) },
							func(ctx context.Context) error { return m.Do(ctx, nothing) },
						},
					}
				}}.run(t, etcd, seed)
				permits, beside, locks = permits+p.permits, beside+p.beside, locks+p.locks
			})
		})
	}
	t.Logf("%d holds of permits, %d times beside others, %d of a Mutex", permits, beside, locks)
	require.NotZero(t, locks)
	require.Greater(t, beside, permits/4)
}

// draws makes one call, and returns the hold if there is one.
func (p *pool) draws(
	own *rand.Rand, patience time.Duration, b *drawn, sems []*etcdlock.Semaphore, m *etcdlock.Mutex,
) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	try := own.IntN(3) == 0
	var unlock func(context.Context) error
	if own.IntN(8) == 0 {
		lock := m.Lock
		if try {
			lock = m.TryLock
		}
		if lock(ctx) != nil {
			return
		}
		b.ctx, b.token, unlock = m.Context(context.Background()), m.Token(), m.Unlock
		b.limit = 5
	} else {
		i := own.IntN(2)
		b.limit = 4 + i
		b.weight = 1 + own.IntN(b.limit)*own.IntN(2) // mostly small ones
		acquire := sems[i].Acquire
		if try {
			acquire = sems[i].TryAcquire
		}
		h, err := acquire(ctx, b.weight)
		if err != nil {
			return
		}
		b.ctx, b.token, unlock = h.Context(context.Background()), h.Token(), h.Unlock
	}
	p.enter(b)
	time.Sleep(time.Duration(own.Int64N(int64(4 * time.Second))))
	p.leave(b)
	_ = unlock(context.Background())
}
