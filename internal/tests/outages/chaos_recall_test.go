package outages

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A recaller judges holds beside which others begin.
//
// Invariant: while one believes to hold, whether recalled or not, nobody else comes to
// believe so, unless both read. And if a hold's Unlock says that it was whole, nobody else
// has come to hold before that Unlock, though the recall may have ended its contexts long
// ago.
type recaller struct {
	*holders
	beside   map[*holding]*holding // those that have begun beside one that has not unlocked
	recalled int                   // holds that a recall has ended
	heard    int                   // holds that have unlocked since they were recalled
}

func (r *recaller) enters(b *holding) {
	r.enter(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.inside[b] {
		return
	}
	for o := range r.inside {
		if o != b && (b.writes || o.writes) {
			r.beside[o] = b
		}
	}
}

// unlocks ends a hold.
func (r *recaller) unlocks(b *holding, unlock func(context.Context) error, believes bool) {
	r.mu.Lock()
	if errors.Is(context.Cause(b.ctx), etcdlock.ErrRecalled) {
		r.recalled++
	} else if tests.IsRecalled(b.ctx) && b.ctx.Err() == nil {
		r.heard++
	}
	other, token := r.beside[b], b.token
	r.mu.Unlock()
	r.leave(b)
	if err := unlock(context.Background()); err == nil && other != nil && believes {
		r.t.Errorf("%s was whole with token %d, and %s held with %d before its Unlock", b.who, token,
			other.who, other.token)
	}
}

// Goroutines of some Sessions read and write, and operators recall whatever holders they
// find, with requests that come late, twice or never. Meanwhile answers are lost, processes
// are cut off, and watches end. Holders unlock when they learn of a recall, when their
// context ends, or later. Everybody gets in at last, and nothing is left.
func TestNobodyBelievesBesideARecalledHold(t *testing.T) {
	recalled, heard := 0, 0
	eachChaos(t, func(t *testing.T, etcd *fake.Server, seed uint64) {
		r := &recaller{holders: newHolders(t), beside: make(map[*holding]*holding)}
		r.run(t, etcd, seed)
		recalled, heard = recalled+r.recalled, heard+r.heard
	})
	t.Logf("%d holds ended by a recall, %d unlocked in their grace", recalled, heard)
	require.Greater(t, recalled, race.Fewer(300, 50))
	require.Greater(t, heard, race.Fewer(300, 50))
}

func (r *recaller) run(t *testing.T, etcd *fake.Server, seed uint64) {
	chaos{
		each: 3,
		options: [][]etcdlock.SessionOption{
			{tests.Listens}, {etcdlock.WithRecall(time.Second), etcdlock.WithHandoff(2), etcdlock.WithLinger(3 * time.Second)},
			{etcdlock.WithRecall(time.Minute), etcdlock.WithMaxHold(6 * time.Second)},
		},
		does: func(s *etcdlock.Session, home int, who string) chaotic {
			rw := tests.RWMutexOf(t, s)
			return chaotic{
				call: func(own *rand.Rand, patience time.Duration) { r.one(rw, who, home, own, patience) },
				last: readsAndWrites(rw),
			}
		},
		beside:   func(over time.Time) { r.recalls(etcd, rand.New(rand.NewPCG(seed, 3)), over) },
		operator: 5,
	}.run(t, etcd, seed)
}

// recalls recalls some of those that stand in line, again and again.
func (r *recaller) recalls(etcd *fake.Server, random *rand.Rand, over time.Time) {
	operator := etcd.Client("operator")
	for time.Now().Before(over) {
		time.Sleep(time.Duration(1 + random.Int64N(int64(2*time.Second))))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		line, err := etcdlock.Contenders(ctx, operator, "n")
		if err == nil && len(line) > 0 {
			c := line[min(random.IntN(len(line)), random.IntN(len(line)))]
			grace := time.Duration(random.Int64N(int64(4 * time.Second)))
			err = etcdlock.Recall(ctx, operator, c, etcdlock.RecallRequest{By: "op", Grace: grace})
			if errors.Is(err, etcdlock.ErrNotRecallable) {
				r.t.Errorf("%v: %+v", err, c)
			}
		}
		cancel()
	}
}

// one makes one call, and returns the hold if there is one.
func (r *recaller) one(
	rw *etcdlock.RWMutex, who string, home int, own *rand.Rand, patience time.Duration,
) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b := &holding{who: who, home: home, writes: own.IntN(3) > 0}
	unlock := b.readsOrWrites(ctx, rw, false)
	if unlock == nil {
		return
	}
	r.enters(b)
	believed := b.ctx.Err() == nil
	work := time.After(time.Duration(own.Int64N(int64(8 * time.Second))))
	switch own.IntN(3) {
	case 0:
		select {
		case <-etcdlock.RecallFrom(b.ctx):
		case <-b.ctx.Done():
		case <-work:
		}
	case 1:
		select {
		case <-b.ctx.Done():
		case <-work:
		}
	case 2: // it looks at nothing meanwhile
		<-work
	}
	r.unlocks(b, unlock, believed)
}
