package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// A recaller judges holds beside which others begin.
//
// Invariant: while somebody believes to hold, whether recalled or not, nobody else comes to believe
// so, unless both read. And if a hold's Unlock says that it was whole, nobody else has come to hold
// before that Unlock, though the recall may have ended its contexts long ago.
type recaller struct {
	holders
	beside   map[*holding]*holding // who has begun beside one that has not unlocked
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
	} else if isRecalled(b.ctx) && b.ctx.Err() == nil {
		r.heard++
	}
	other, token := r.beside[b], b.token
	r.mu.Unlock()
	r.leave(b)
	if err := unlock(context.Background()); err == nil && other != nil && believes {
		r.t.Errorf("%s was whole with token %d, and %s held with %d before its Unlock", b.who, token, other.who, other.token)
	}
}

// Goroutines of some Sessions read and write, and operators recall whom they find, with requests that
// come late, twice or never, while answers are lost, processes are cut off, and watches end. Holders
// unlock when they hear, when their context ends, or later. Everybody gets in at last, and nothing is
// left.
func TestNobodyBelievesBesideARecalledHold(t *testing.T) {
	recalled, heard := 0, 0
	for seed := range uint64(race.Fewer(60, 12)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				r := &recaller{
					holders: holders{t: t, inside: make(map[*holding]bool)},
					beside:  make(map[*holding]*holding),
				}
				r.run(t, etcd, seed)
				recalled, heard = recalled+r.recalled, heard+r.heard
			})
		})
	}
	t.Logf("%d holds ended by a recall, %d unlocked in their grace", recalled, heard)
	require.Greater(t, recalled, race.Fewer(300, 50))
	require.Greater(t, heard, race.Fewer(300, 50))
}

func (r *recaller) run(t *testing.T, etcd *fake.Server, seed uint64) {
	const each, faulty = 3, 3 * time.Minute
	names := []string{"a", "b", "c"}
	random := rand.New(rand.NewPCG(seed, 1))
	options := [][]etcdlock.Option{
		{listens}, {etcdlock.WithRecall(time.Second), etcdlock.WithHandoff(2), etcdlock.WithLinger(3 * time.Second)},
		{etcdlock.WithRecall(time.Minute), etcdlock.WithMaxHold(6 * time.Second)},
	}
	var homes []*etcdlock.Session
	for _, name := range names {
		homes = append(homes, processIn(t, etcd, name, options[random.IntN(len(options))]...))
	}
	faults := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex // of faults
	etcd.Intercept(func(c fake.Call) (e fake.Effect) {
		mu.Lock()
		defer mu.Unlock()
		some := func(most time.Duration) time.Duration { return 1 + time.Duration(faults.Int64N(int64(most))) }
		rare := 1
		if c.Process == "operator" {
			rare = 8
		}
		switch n := faults.IntN(1000) / rare; {
		case n < 10:
			e.DropReply = true
		case n < 20:
			e.Drop = true
		case n < 30:
			e.Again = some(20 * time.Second)
		case n < 45:
			e.Delay = some(3 * time.Second)
		case n < 60:
			e.DelayReply = some(3 * time.Second)
		}
		return e
	})
	over := time.Now().Add(faulty)
	var wg sync.WaitGroup
	for home, s := range homes {
		for g := range each {
			own := rand.New(rand.NewPCG(seed, uint64(100+10*home+g)))
			who := fmt.Sprintf("%s%d", names[home], g)
			rw := rwIn(t, s)
			wg.Go(func() {
				for time.Now().Before(over) {
					r.one(rw, who, home, own)
					time.Sleep(time.Duration(own.Int64N(int64(time.Second))))
				}
			})
		}
	}
	wg.Go(func() { r.recalls(etcd, rand.New(rand.NewPCG(seed, 3)), over) })
	for time.Now().Before(over) {
		time.Sleep(time.Duration(1+random.IntN(20)) * time.Second)
		name := names[random.IntN(len(names))]
		switch random.IntN(4) {
		case 0:
			etcd.Cut(name)
			time.Sleep(time.Duration(random.Int64N(int64(virtualTTL * 3 / 2))))
			etcd.Heal(name)
		case 1:
			etcd.CancelWatches()
		case 2:
			etcd.Freeze()
			time.Sleep(time.Duration(random.Int64N(int64(virtualTTL / 2))))
			etcd.Thaw()
		case 3:
			etcd.LoseAnswers(name, 1+random.IntN(3))
		}
	}
	wg.Wait()
	etcd.Intercept(nil)
	synctest.Wait()
	for home, s := range homes { // all get in at last
		for _, writes := range []bool{false, true} {
			rw := rwIn(t, s)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*virtualTTL)
				defer cancel()
				do := rw.RDo
				if writes {
					do = rw.Do
				}
				if err := do(ctx, func(context.Context) error { return nil }); err != nil {
					t.Errorf("%s, writes %v: %v", names[home], writes, err)
				}
			})
		}
	}
	wg.Wait()
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

// one is one call, and the hold if there is one.
func (r *recaller) one(rw *etcdlock.RWMutex, who string, home int, own *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(own.Int64N(int64(20*time.Second))))
	defer cancel()
	b := &holding{who: who, home: home, writes: own.IntN(3) > 0}
	var unlock func(context.Context) error
	if b.writes {
		if rw.Lock(ctx) != nil {
			return
		}
		b.ctx, b.token, unlock = rw.Context(context.Background()), rw.Token(), rw.Unlock
	} else {
		h, err := rw.RLock(ctx)
		if err != nil {
			return
		}
		b.ctx, b.token, unlock = h.Context(context.Background()), h.Token(), h.Unlock
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
	case 2: // it asks nobody
		<-work
	}
	r.unlocks(b, unlock, believed)
}
