package outages

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A pool is the holders of permits, by what each believes: a multiset of weights, and of their
// limits. They hold beside each other, as readers do. A Mutex takes all of it, as a writer does.
type pool struct{ *holders }

// enter judges a claim that has come to hold. The weights of all that believe to hold add up to at
// most the least of their limits, and a Mutex is alone. In its own Session all that it excludes
// have unlocked. A hold that has ended by now says nothing.
func (p pool) enter(b *holding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.ctx.Err() != nil {
		return
	}
	sum, least := b.weight, b.limit
	for o := range p.inside {
		believes := o.ctx.Err() == nil
		switch {
		case !b.writes && !o.writes && believes:
			p.shared++
			sum, least = sum+o.weight, min(least, o.limit)
		case !b.writes && !o.writes:
		case o.home == b.home, believes && b.ctx.Err() == nil:
			p.t.Errorf("%s holds with token %d beside %s with %d", b.who, b.token, o.who, o.token)
		}
	}
	if sum > least && b.ctx.Err() == nil {
		p.t.Errorf("%s has %d permits: %d are held, of %d", b.who, b.weight, sum, least)
	}
	p.admitLocked(b)
}

// Goroutines of some Sessions take permits, of two limits, and now and then a Mutex of the
// name. They wait and try, give up and hold for a while. Meanwhile answers are lost,
// requests come late and twice, processes are cut off, and watches end. Those that believe
// to hold never have more than the least of their limits. In the end everybody gets in,
// even one that wants all, and nothing is left.
func TestPermitsUnderRandomFaults(t *testing.T) {
	permits, beside, locks := 0, 0, 0
	eachChaos(t, func(t *testing.T, etcd *fake.Server, seed uint64) {
		p := pool{newHolders(t)}
		chaos{each: 4, does: func(s *etcdlock.Session, home int, who string) chaotic {
			sems := []*etcdlock.Semaphore{tests.SemaphoreOf(t, s, 4), tests.SemaphoreOf(t, s, 5)}
			m, err := s.Mutex("n")
			require.NoError(t, err)
			return chaotic{
				call: func(own *rand.Rand, patience time.Duration) {
					p.draws(own, patience, &holding{who: who, home: home}, sems, m)
				},
				last: []func(context.Context) error{
					func(ctx context.Context) error { return sems[0].Do(ctx, 1, nothing) },
					func(ctx context.Context) error { return sems[1].Do(ctx, 5, nothing) },
					func(ctx context.Context) error { return m.Do(ctx, nothing) },
				},
			}
		}}.run(t, etcd, seed)
		permits, beside, locks = permits+p.reads, beside+p.shared, locks+p.writes
	})
	t.Logf("%d holds of permits, %d times beside others, %d of a Mutex", permits, beside, locks)
	require.NotZero(t, locks)
	require.Greater(t, beside, permits/4)
}

// draws makes one call, and returns the hold if there is one.
func (p pool) draws(
	own *rand.Rand, patience time.Duration, b *holding, sems []*etcdlock.Semaphore, m *etcdlock.Mutex,
) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	try := own.IntN(3) == 0
	var unlock func(context.Context) error
	if b.writes = own.IntN(8) == 0; b.writes {
		b.limit = 5
		unlock = b.excludes(ctx, m, try)
	} else {
		i := own.IntN(2)
		b.limit = 4 + i
		b.weight = 1 + own.IntN(b.limit)*own.IntN(2) // mostly small ones
		acquire := sems[i].Acquire
		if try {
			acquire = sems[i].TryAcquire
		}
		unlock = b.holdsBy(acquire(ctx, b.weight))
	}
	b.stays(p, own, unlock)
}
